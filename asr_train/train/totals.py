"""**Totals of all workers since the last row of the log**, gathered from their processes."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

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


@dataclass(frozen=True, slots=True)
class _Row:
    """What one worker sends to the others, in numbers."""

    skipped: int
    frames: int
    loss: float
    correct: int
    sent: Sent
    threshold: float
    squares: float
    lead: Staleness

    def packed(self) -> list[float]:
        own = [self.skipped, self.frames, self.loss, self.correct, self.threshold, self.squares]
        return [*own, *astuple(self.sent), *astuple(self.lead)]

    @staticmethod
    def unpacked(numbers: Sequence[float]) -> "_Row":
        skipped, frames, loss, correct, threshold, squares, *rest = numbers
        size = len(fields(Sent))
        bits, elements, overflows, received_bits = map(int, rest[:size])
        steps, ahead, most, waited_seconds, now = rest[size:]
        sent = Sent(bits, elements, overflows, received_bits)
        lead = Staleness(int(steps), int(ahead), int(most), waited_seconds, now)
        counts = int(skipped), int(frames), loss, int(correct)
        return _Row(*counts, sent, threshold, squares, lead)


def gathered(state: RunState, taken: Sequence[WorkerTotals] | None = None) -> Totals:
    """Return what all workers did since the last row of the log.

    Args:
        taken: totals of the local workers, in their order; None: up to now.
    """
    exchange, stripes = state.method.exchange, state.bucket.stripes
    if taken is None:
        taken = [take(state, worker) for worker in exchange.local]
    everyone = exchange if stripes is None else stripes.everyone
    numbers = everyone.numbers([_row_of(one).packed() for one in taken])
    rows = [
        _Row.unpacked(row) for row in (numbers if stripes is None else stripes.ordered(numbers))
    ]
    lead, sent, here = Staleness(), Sent(), Interval()
    for one in taken:
        here.add(one.counts)
    here.steps //= len(exchange.local)
    here.skipped, here.frames, here.loss, here.correct = 0, 0, 0.0, 0
    for row in rows[: len(exchange)]:  # in the order of workers; further stripes have equal counts
        lead.add(row.lead)
        here.skipped += row.skipped
        here.frames += row.frames
        here.loss += row.loss
        here.correct += row.correct
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


def _row_of(one: WorkerTotals) -> _Row:
    counts = one.counts
    numbers = counts.skipped, counts.frames, counts.loss, counts.correct
    return _Row(*numbers, one.sent, one.threshold, one.squares, one.lead)
