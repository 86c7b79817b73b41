"""Print the runs that a paper's table needs: their names, the baseline first, on one line.

    rows.py SCALE[:SEED...] recipes/PAPER/TABLE.yaml

RUN/epochs/N stands for the model of an epoch, if those are decoded too. make calls this several
times, so it imports little.
"""

import asr_train.interrupt  # noqa: F401

from collections.abc import Iterator

from asr_train.jobs import main
from asr_train.paper.rows import Table, read_table


def rows(scale: str, file: str) -> None:
    table = read_table(file, scale)
    print(*dict.fromkeys(targets(table)))


def targets(table: Table) -> Iterator[str]:
    """Yield what make must train and decode."""
    for run in table.runs:
        yield run.name
    if table.settings.decode_epochs:
        for run in table.runs:
            yield from (f"{run.name}/epochs/{n}" for n in range(1, run.epochs + 1))


if __name__ == "__main__":
    main(rows, __doc__)
