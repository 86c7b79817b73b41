"""exchange.py conf/score.yaml exp/RUN/model.json... exp/RUN/score.SPLIT.json... tables/exchange.md

Tabulate what each network run's workers sent, beside its errors and its speed. Also writes
exchange.json, and exchange.txt for the terminal. Beside each model.json lie run.json and log.jsonl.
"""

import asr_train.interrupt  # noqa: F401

from pathlib import Path

from asr_train.files import write_json, write_text
from asr_train.jobs import main
from asr_train.provenance import provenance
from asr_train.report.exchange import exchange_table, markdown, plain, read_trained
from asr_train.schema import ScoreSettings, load


def exchange(conf: str, *paths: str) -> None:
    *inputs, output = map(Path, paths)
    models = [path for path in inputs if path.name == "model.json"]
    scores = [path for path in inputs if path.name != "model.json"]
    runs = [
        read_trained(folder, [path for path in scores if path.parent == folder])
        for folder in (model.parent for model in models)
    ]
    table = exchange_table(runs, load(ScoreSettings, conf), provenance(conf))
    write_json(output.with_suffix(".json"), table)
    write_text(output.with_suffix(".txt"), plain(table))
    write_text(output, markdown(table))


if __name__ == "__main__":
    main(exchange, __doc__)
