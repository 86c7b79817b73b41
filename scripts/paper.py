"""A paper's tables: which runs they need, and what these gave.

    paper.py runs SCALE recipes/PAPER/TABLE.yaml
    paper.py table SCALE recipes/PAPER/TABLE.yaml conf/score.yaml exp tables/PAPER-TABLE.md

`runs` prints names of runs, the baseline first, and RUN/epochs/N for models of single epochs that
are decoded too. `table` reads exp/RUN/{run.json,log.jsonl,score.SPLIT.json}, and writes .json, .txt
and .png as well.
"""

from collections.abc import Iterator
from pathlib import Path

from asr_train.jobs import main
from asr_train.paper.rows import Run, Table, read_tables

CONF = Path(__file__).resolve().parents[1] / "conf"


def paper(what: str, scale: str, file: str, *more: str) -> None:
    (table,) = read_tables([file], scale, CONF / "papers")
    if what == "runs":
        print(*dict.fromkeys(targets(table)))
    elif what == "table":
        tabulate(table, *more)
    else:
        raise ValueError(f"paper.py has no command {what!r}; it has runs and table")


def targets(table: Table) -> Iterator[str]:
    """What make is to train and decode."""
    for run in table.runs:
        yield run.name
    if table.settings.decode_epochs:
        for run in table.runs:
            yield from (f"{run.name}/epochs/{n}" for n in range(1, epochs_of(run) + 1))


def epochs_of(run: Run) -> int:
    """As its settings say."""
    said = [o.partition("=")[2] for o in run.overrides if o.startswith("optim.epochs=")]
    if not said:
        raise ValueError(
            f"{run.name} is decoded after every epoch, but no setting says how many there are; "
            "give optim.epochs in paper.yaml"
        )
    return int(said[-1])


def tabulate(table: Table, conf: str, exp: str, output: str) -> None:
    raise NotImplementedError


if __name__ == "__main__":
    main(paper, __doc__)
