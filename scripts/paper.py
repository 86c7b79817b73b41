"""Make a paper's table: our results beside the published ones.

    paper.py SCALE[:SEED...] recipes/PAPER/TABLE.yaml tables/PAPER-TABLE.ratios.json conf/score.yaml
        conf/decode.yaml conf/run shards/TRAIN/index.json exp [RUN.jsonl ...] tables/PAPER-TABLE.md

CORPUS, SET and other variables of make in the environment are named in the table. Runs were trained
here (exp/RUN/{run.json,log.jsonl,score.SPLIT.json}), or elsewhere and have a record, RUN.jsonl.
Also writes .json, .txt and .png of the table, and tables/records/RUN.jsonl of each run trained
here.
"""

import asr_train.interrupt  # noqa: F401

import os
import shlex
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from asr_train import schema
from asr_train.files import read_json, write_json, write_text
from asr_train.jobs import main
from asr_train.paper.layout import markdown, plain
from asr_train.paper.plot import plot
from asr_train.paper.records import Record, check_record, read_record, task_of, write_record
from asr_train.paper.rows import read_table
from asr_train.paper.table import paper_table
from asr_train.provenance import provenance
from asr_train.report.exchange import Trained, read_trained
from asr_train.report.tables import Score, held_out, read_score

# Variables of make that change what a table shows; make exports those of its command line.
VARIABLES = ("CORPUS", "SET", "GMMS", "SIZE", "HOURS", "TEST_HOURS")


def paper(
    scale: str,
    file: str,
    ratios: str,
    conf: str,
    decode: str,
    settings: str,
    index: str,
    exp: str,
    *more: str,
) -> None:
    *given, output = more
    path = Path(output)
    table = read_table(file, scale)
    task = task_of(read_json(index))
    decoding = schema.plain(schema.load(schema.DecodeSettings, decode))
    about = provenance(conf)
    runs = {run.name: run for run in table.runs}
    records = {Path(name).stem: read_record(name) for name in given}
    here = {
        name: Record(finished(Path(exp, name)), by_epoch(Path(exp, name)), task, decoding, about)
        for name in runs
        if name not in records
    }
    usual = replace(next(iter((here | records).values())), task=task, decoding=decoding)
    for name, record in records.items():
        wanted = schema.load(schema.RunSettings, Path(settings, f"{runs[name].settings_name}.yaml"))
        check_record(record, usual, wanted, table.settings.decode_epochs)
    both = here | records
    splits = {score["split"] for record in both.values() for score in record.trained.scores}
    found = paper_table(
        table,
        {name: record.trained for name, record in both.items()},
        {name: record.epochs for name, record in both.items()},
        schema.load(schema.ScoreSettings, conf),
        about
        | {
            "command": command(Path(file), scale, splits),
            "elsewhere": [{"run": name} | record.made for name, record in records.items()],
        },
        read_json(ratios),
    )
    for name, record in here.items():
        # Another table made at the same time may write the same record.
        own = path.parent / "records" / f".{path.stem}.{name}.jsonl"
        write_record(own, record)
        own.replace(own.with_name(f"{name}.jsonl"))
    write_json(path.with_suffix(".json"), found)
    write_text(path.with_suffix(".txt"), plain(found))
    plot(found, path.with_suffix(".png"))
    write_text(path, markdown(found))


def command(file: Path, scale: str, splits: Set[str]) -> str:
    """Return the command that makes the table, from the root."""
    scale, *seeds = scale.split(":")
    words = ["make", f"{file.parent.name}-{file.stem}", f"SCALE={scale}"]
    given = [(name, " ".join(os.environ.get(name, "").split())) for name in VARIABLES]
    given.append(("SEEDS", " ".join(seeds)))
    words += [f"{name}={shlex.quote(value)}" for name, value in given if value]
    if schema.HUMAN in splits:
        words.append("HUMAN=path")
    return " ".join(words)


def finished(folder: Path) -> Trained:
    """Read the results of a run."""
    return read_trained(folder, sorted(folder.glob("score.*.json")))


def by_epoch(folder: Path) -> list[Score]:
    """Return the TEST score of each epoch's model; none if they were not decoded."""
    paths = sorted(folder.glob("epochs/*/score.*.json"), key=lambda path: int(path.parent.name))
    return [score for score in map(read_score, paths) if held_out(score["split"])]


if __name__ == "__main__":
    main(paper, __doc__)
