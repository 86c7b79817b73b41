"""Training of **asynchronous workers**, from one drain to the next.

The loop takes one step with all workers at a time; here each worker takes its steps up to the next
drain at its own pace (`comm.async_workers`). Rows of the log in between are kept per worker until
all workers have come that far.
"""

import time
from collections.abc import Callable

from asr_train.comm.reducers import Gradient
from asr_train.model.store import Model
from asr_train.schema import OptimSettings
from asr_train.train.feed import Feed, when
from asr_train.train.log import WorkerTotals
from asr_train.train.state import Interval, Learned, RunState
from asr_train.train.step import Result, one_gradient, seed_of, skip
from asr_train.train.totals import take


def run_ahead(
    model: Model,
    feed: Feed,
    state: RunState,
    optim: OptimSettings,
    advance: Callable[[int], None],
    most: int,
    rate: tuple[float, int] | None = None,
) -> dict[int, list[WorkerTotals]]:
    """Take steps with asynchronous workers, `most` of them, or up to a checkpoint.

    All models are identical then, and in `state`.

    Args:
        advance: called with numbers of frames, as they are learned from.
        rate: the schedule's arguments for all steps; None: as the epoch goes on.
    Returns:
        By steps taken, the local workers' totals, for rows of the log in between.
    """
    progress, method = state.progress, state.method
    weights_P = method.replicas[0].weights_P
    assert method.ahead is not None
    first, before = progress.step, progress.step - progress.epoch_step
    steps = min(most, optim.checkpoint_steps - first % optim.checkpoint_steps)
    others = len(method.exchange) // len(method.exchange.local)  # for each one here

    def compute(worker: int, step: int, set_weights: Callable[[], None]) -> Result:
        counts = state.since_log[worker]
        with state.stopwatch(counts, "wait_seconds"):
            batch = feed.next(worker)
        if batch is not None:
            with state.stopwatch(counts, "exchange_seconds"):
                set_weights()
        with state.stopwatch(counts, "compute_seconds"):
            seed = seed_of(optim.seed, step + 1, worker)
            return one_gradient(model, batch, state.bucket, optim, seed, state.objective)

    def skipped(worker: int, step: int, loss: float) -> None:
        skip(state, 0, {worker: loss}, step + 1, f" by worker {worker}")

    state.bucket.point_at(weights_P)
    stretch = AsyncSteps(
        state,
        first + steps,
        compute,
        skipped,
        lambda worker: take(state, worker),
        optim.log_steps,
        lambda frames: advance(frames * others),
    )
    method.ahead.run(
        weights_P,
        first,
        steps,
        lambda step: state.schedule.rate_at(*(rate or when(state, feed, step - before))),
        stretch,
    )
    stretch.end()
    progress.step += steps
    progress.epoch_step += steps
    state.schedule.begin_step(*(rate or when(state, feed, progress.epoch_step - 1)))
    local = method.exchange.local
    return {taken: [row[worker] for worker in local] for taken, row in stretch.rows.items()}


class AsyncSteps:
    """A `comm.async_workers.GradientSource`, for the steps before `stop`.

    Args:
        compute: (worker, step, what sets its weights) -> result; the next call overwrites it.
        skipped: called with (worker, step, loss in nats) for a gradient that was not finite.
        take: worker -> its totals since the last call.
        log_steps: steps between rows.
    Attributes:
        rows: by steps taken and worker, the worker's totals; of steps before `stop`.
    """

    def __init__(
        self,
        state: RunState,
        stop: int,
        compute: Callable[[int, int, Callable[[], None]], Result],
        skipped: Callable[[int, int, float], None],
        take: Callable[[int], WorkerTotals],
        log_steps: int,
        advance: Callable[[int], None],
    ) -> None:
        self.rows: dict[int, dict[int, WorkerTotals]] = {}
        self._state, self._stop, self._log_steps = state, stop, log_steps
        self._compute, self._skipped, self._take = compute, skipped, take
        self._advance = advance
        self._learned: dict[int, Learned] = {}
        self._left, self._left_cpu = time.perf_counter(), time.process_time()

    def gradient(self, worker: int, step: int, set_weights: Callable[[], None]) -> Gradient:
        """Compute the gradient at the weights that the bucket points at, once they are set."""
        self._count_exchange(self._state.since_log[worker])
        gradient, self._learned[worker] = self._compute(worker, step, set_weights)
        self._left, self._left_cpu = time.perf_counter(), time.process_time()
        return gradient

    def finished(self, worker: int, step: int, is_finite: bool) -> None:
        """Count a step whose message was sent."""
        counts, learned = self._state.since_log[worker], self._learned.pop(worker)
        counts.steps += 1
        if is_finite:
            self._state.skipped_in_row[0] = 0
            self._state.count(worker, learned)
            self._advance(learned.frames)
        else:
            self._skipped(worker, step, float(learned.sums_2[0]))
        taken = step + 1
        if taken % self._log_steps == 0 and taken < self._stop:
            self.rows.setdefault(taken, {})[worker] = self._take(worker)

    def end(self) -> None:
        """Count the seconds of the drain."""
        self._count_exchange(next(iter(self._state.since_log.values())))

    def _count_exchange(self, counts: Interval) -> None:
        counts.exchange_seconds += time.perf_counter() - self._left
        counts.cpu_seconds += time.process_time() - self._left_cpu
