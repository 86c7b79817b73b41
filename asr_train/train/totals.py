"""**Totals of all workers since the last row of the log**, gathered from their processes."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from asr_train.comm.async_workers import Staleness
from asr_train.comm.reducers import Sent
from asr_train.train.log import Totals, WorkerTotals
from asr_train.train.state import Interval, RunState


def take(state: RunState, worker: int) -> WorkerTotals:
    """Return what a local worker did since the last call, and reset its counts."""
    state.settle()
    counts, state.since_log[worker] = state.since_log[worker], Interval()
    seconds = state.method.take_seconds()  # of the process; zeros for its other workers
    counts.compress_seconds += seconds["compress"]
    counts.transfer_seconds += seconds["transfer"]
    tau, squares = state.method.measures(worker)
    ahead = state.method.ahead
    lead = Staleness() if ahead is None else ahead.take_lead(worker)
    return WorkerTotals(counts, state.method.take_sent(worker), tau, squares, lead)


def _restored(row: Sequence[Any]) -> WorkerTotals:
    """Return totals that were plain data."""
    counts, sent, threshold, squares, lead = row
    return WorkerTotals(Interval(*counts), Sent(*sent), threshold, squares, Staleness(*lead))


def gathered(state: RunState, taken: Sequence[WorkerTotals] | None = None) -> Totals:
    """Return what all workers did since the last row of the log.

    Args:
        taken: totals of the local workers, in their order; None: up to now.
    """
    exchange, stripes = state.method.exchange, state.bucket.stripes
    if taken is None:
        taken = [take(state, worker) for worker in exchange.local]
    everyone = exchange if stripes is None else stripes.everyone
    found = everyone.plain([astuple(one) for one in taken])
    rows = [_restored(row) for row in (found if stripes is None else stripes.ordered(found))]
    lead, sent, here = Staleness(), Sent(), Interval()
    for one in taken:
        here.add(one.counts)
    here.steps //= len(exchange.local)
    first = rows[: len(exchange)]  # in the order of workers; further stripes have equal counts
    for name in ("skipped", "frames", "loss", "correct"):
        setattr(here, name, sum(getattr(row.counts, name) for row in first))
    for row in first:
        lead.add(row.lead)
    for row in rows:
        sent.add(row.sent)
    return Totals(
        len(exchange),
        here,
        sent,
        rows[0].threshold,
        sum(row.squares for row in rows),
        lead if state.method.ahead is not None else None,
    )
