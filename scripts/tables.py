"""tables.py conf/score.yaml exp/RUN/score.SPLIT.json... tables/wer.md

Compare score files, the baseline's first. Writes tables/wer.json, wer.txt (the %WER lines, then
each run's difference from the baseline with its interval and p) and wer.md.
"""

import asr_train.interrupt  # noqa: F401

from pathlib import Path

from asr_train.files import write_json, write_text
from asr_train.jobs import main
from asr_train.provenance import provenance
from asr_train.report.tables import comparison_lines, markdown, read_score, wer_lines, wer_table
from asr_train.schema import ScoreSettings, load


def tables(conf: str, *paths: str) -> None:
    *scores, output = paths
    settings = load(ScoreSettings, conf)
    table = wer_table([read_score(path) for path in scores], settings, provenance(conf))
    lines = wer_lines(table) + comparison_lines(table)
    write_json(Path(output).with_suffix(".json"), table)
    write_text(Path(output).with_suffix(".txt"), "\n".join(lines) + "\n")
    write_text(output, markdown(table))


if __name__ == "__main__":
    main(tables, __doc__)
