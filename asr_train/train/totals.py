"""**Totals of all workers since the last row of the log**, gathered from their processes."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from asr_train.comm.async_workers import Staleness
from asr_train.comm.reducers import Sent
from asr_train.train.log import Totals
from asr_train.train.state import Interval, RunState


def take(state: RunState, worker: int) -> Totals:
    """Return what a local worker did since the last call, and reset its counts."""
    state.settle()
    counts, state.since_log[worker] = state.since_log[worker], Interval()
    seconds = state.method.take_seconds()  # of the process; zeros for its other workers
    counts.compress_seconds += seconds["compress"]
    counts.transfer_seconds += seconds["transfer"]
    tau, squares = state.method.measures(worker)
    workers = state.method.asynchronous
    staleness = None if workers is None else workers.take_staleness(worker)
    return Totals(1, counts, state.method.take_sent(worker), tau, squares, staleness)


def _restored(row: Sequence[Any]) -> Totals:
    """Return totals that were plain data."""
    workers, counts, sent, threshold, squares, staleness = row
    known = None if staleness is None else Staleness(*staleness)
    return Totals(workers, Interval(*counts), Sent(*sent), threshold, squares, known)


def gathered(state: RunState, local: Sequence[Totals] | None = None) -> Totals:
    """Return what all workers did since the last row of the log.

    Args:
        local: totals of the local workers, in their order; None: up to now.
    """
    exchange, stripes = state.method.exchange, state.bucket.stripes
    if local is None:
        local = [take(state, worker) for worker in exchange.local]
    everyone = exchange if stripes is None else stripes.everyone
    found = everyone.plain([astuple(one) for one in local])
    rows = [_restored(row) for row in (found if stripes is None else stripes.ordered(found))]
    staleness = None if state.method.asynchronous is None else Staleness()
    here = sum((one.interval for one in local), Interval())
    here.steps //= len(exchange.local)
    first = rows[: len(exchange)]  # in the order of workers; further stripes have equal counts
    for name in ("skipped", "frames", "loss", "correct"):
        setattr(here, name, sum(getattr(row.interval, name) for row in first))
    for row in first:
        if staleness is not None and row.staleness is not None:
            staleness.add(row.staleness)
    sent = sum((row.sent for row in rows), Sent())
    squares = sum(row.squares for row in rows)
    return Totals(len(exchange), here, sent, rows[0].threshold, squares, staleness)
