"""report.py tables/wer.json [tables/exchange.json] ali/MODEL/SPLIT.report.json...
    exp/RUN/log.jsonl... report/index.html

Write the WER table, exchanged bytes, learning curves, alignments and stage times as one HTML page
without network access or scripts. Beside it are its pictures as PNG and the table of alignments as
ali.md, for READMEs.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
from pathlib import Path

from asr_train.files import read_json, read_jsonl, write_bytes, write_text
from asr_train.jobs import main, stage_times
from asr_train.report.page import alignment_markdown, build_page


def report(table: str, *paths: str) -> str:
    *inputs, output = paths
    logs = [Path(path) for path in inputs if path.endswith(".jsonl")]
    work = Path(output).resolve().parent.parent
    # Leave out this stage's own earlier time: a second page would differ from the first
    times = [row for row in stage_times(work) if row["stage"] != "report"]
    rows = [read_json(path) for path in inputs if path.endswith(".json")]
    alignments = [row for row in rows if row.get("table") != "exchange"]  # in order of training
    exchanges = [row for row in rows if row.get("table") == "exchange"]
    html, pictures = build_page(
        recipe_name(work),
        read_json(table),
        alignments,
        {log.parent.name: read_jsonl(log) for log in logs},
        times,
        *exchanges,
    )
    for picture in pictures:
        write_bytes(Path(output).with_name(f"{picture.name}.png"), picture.png())
    if alignments:
        write_text(Path(output).with_name("ali.md"), alignment_markdown(alignments))
    write_text(output, html)
    return f"report: {output}: open it in a browser; its pictures are beside it as PNG"


def recipe_name(work: Path) -> str:
    """Return `digits` for `recipes/digits/work`; for any other folder, its own name."""
    return work.parent.name if work.parent.parent.name == "recipes" else work.name


if __name__ == "__main__":
    main(report, __doc__)
