"""Compare the ratios of a paper's table with those of our runs, before these are trained.

    ratios.py SCALE[:SEED...] recipes/PAPER/TABLE.yaml shards/TRAIN/index.json conf/run
        [RUN.jsonl ...] tables/PAPER-TABLE.ratios.json

A ratio that is more than ten times off without a stated reason is refused, as is a record of a run
(RUN.jsonl) with other settings or another TRAIN.
"""

import asr_train.interrupt  # noqa: F401

from dataclasses import replace
from pathlib import Path

from asr_train import compose
from asr_train.files import read_json, write_json
from asr_train.jobs import main
from asr_train.paper.ratios import RATIOS, compared, off, ratios
from asr_train.paper.records import check_record, read_record, task_of
from asr_train.paper.rows import PaperSettings, RowSettings, read_table, unscaled
from asr_train.schema import RunSettings, load


def stage(scale: str, file: str, train_index: str, conf: str, *more: str) -> str:
    *records, output = more
    table = read_table(file, scale)
    index = read_json(train_index)
    frames = float(index["num_frames"])
    runs = {run.name: run for run in table.runs}
    for record in map(read_record, records):  # decoding and scores are checked with the table
        run = runs[record.trained.run]
        wanted = load(RunSettings, Path(conf, f"{run.settings_name}.yaml"))
        here = replace(record, task=task_of(index))
        check_record(record, here, wanted, table.settings.decode_epochs)
    found = {
        row.label: compared(
            row.label,
            table.paper.ratios,
            ratios(of_paper(row.settings, table.paper), table.paper.epoch_frames),
            of_ours(load(RunSettings, Path(conf, f"{row.runs[0].settings_name}.yaml")), frames),
            table.paper.scales[table.scale].unlike | row.settings.unlike,
        )
        for row in (table.baseline, *table.rows)
    }
    write_json(output, found)
    distances = [
        (off(both["paper"], both["ours"]), label, name)
        for label, row in found.items()
        for name, both in row.items()
    ]
    if not distances:
        return f"{table.name}: no ratio of paper.yaml to compare"
    times, label, name = max(distances)
    return f"{table.name}: furthest off: {RATIOS[name]} of row {label}, {times:.3g} times"


def of_paper(row: RowSettings, paper: PaperSettings) -> RunSettings:
    """Return the settings of a row at the paper's scale."""
    run = unscaled(row, paper)
    return compose.settings(run.base, list(run.overrides)).run


def of_ours(run: RunSettings, frames: float) -> dict[str, float]:
    """Return the ratios of a run with these frames of TRAIN."""
    outputs = frames * run.optim.share
    return ratios(run, outputs / (run.model.lstm.subsample if run.model.lstm else 1))


if __name__ == "__main__":
    main(stage, __doc__)
