"""Training of **asynchronous workers**, from one drain to the next.

The loop takes one step with all workers at a time; here each worker takes its steps up to the next
drain at its own pace (`comm.async_workers`). Rows of the log in between are kept per worker until
all workers have come that far.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from asr_train.comm.bucket import Bucket, rows
from asr_train.comm.reducers import Gradient
from asr_train.model.store import Model
from asr_train.schema import OptimSettings
from asr_train.shards.batch import Batch
from asr_train.train.batched import Batched
from asr_train.train.feed import Feed, when
from asr_train.train.log import WorkerTotals
from asr_train.train.state import Interval, Learned, RunState
from asr_train.train.step import Result, computed, one_gradient, seed_of, several_gradients, skip
from asr_train.train.totals import take

WriteWeights = Callable[[Tensor], None]


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
    local = method.exchange.local
    others = len(method.exchange) // len(local)  # for each one here
    outstanding = None
    if state.batched is not None and len(local) > 1:
        outstanding = Outstanding(state.batched, state.bucket, optim, len(local))

    def compute(worker: int, step: int, write_weights: WriteWeights) -> Result | None:
        counts = state.since_log[worker]
        with state.stopwatch(counts, "wait_seconds"):
            batch = feed.next(worker)
        if batch is not None:
            with state.stopwatch(counts, "exchange_seconds"):
                if outstanding is not None:
                    outstanding.add(worker, step, batch, write_weights)
                    return None
                write_weights(weights_P)
        with state.stopwatch(counts, "compute_seconds"):
            seed = seed_of(optim.seed, step + 1, worker)
            return one_gradient(model, batch, state.bucket, optim, seed, state.objective)

    def late() -> Iterator[tuple[int, Result]]:
        assert outstanding is not None
        workers, results = outstanding.compute()
        return zip(workers, computed(results, state, state.since_log[local[0]]), strict=True)

    def skipped(worker: int, step: int, loss: float) -> None:
        skip(state, 0, {worker: loss}, step + 1, f" by worker {worker}")

    state.bucket.point_at(weights_P)
    stretch = AsyncSteps(
        state,
        first + steps,
        compute,
        late,
        0 if outstanding is None else outstanding.most,
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
    return {taken: [row[worker] for worker in local] for taken, row in stretch.rows.items()}


class Outstanding:
    """Minibatches of workers whose gradients are computed together, each at its own weights.

    Args:
        bucket: of the model.
        workers: of this process.
    Attributes:
        most: minibatches.
    """

    def __init__(
        self, batched: Batched, bucket: Bucket, optim: OptimSettings, workers: int
    ) -> None:
        self.most = min(batched.most, workers)
        self._batched, self._bucket, self._optim = batched, bucket, optim
        self._weights_WP = rows(self.most, len(bucket.weights_P), bucket.weights_P.device)
        self._asked: list[tuple[int, int, Batch]] = []  # worker, step

    def add(self, worker: int, step: int, batch: Batch, write_weights: WriteWeights) -> None:
        """Take a worker's minibatch, and the weights that it has now."""
        write_weights(self._weights_WP[len(self._asked)])
        self._asked.append((worker, step, batch))

    def compute(self) -> tuple[Sequence[int], Iterator[list[Result]]]:
        """Return the workers, and their gradients as they are computed, in the same order."""
        workers, steps, batches = zip(*self._asked, strict=True)
        self._asked = []
        seed = seed_of(self._optim.seed, steps[0] + 1, workers[0])
        weights_WP = self._weights_WP[: len(workers)]
        about = self._bucket, self._optim, seed, weights_WP
        return workers, several_gradients(self._batched, batches, *about)


class AsyncSteps:
    """A `comm.async_workers.GradientSource`, for the steps before `stop`.

    Args:
        compute: (worker, step, what writes its weights) -> result, which the next call overwrites;
            None: `late` returns it.
        late: -> the results of all steps that are outstanding, with their workers.
        most: steps that may be outstanding.
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
        compute: Callable[[int, int, WriteWeights], Result | None],
        late: Callable[[], Iterator[tuple[int, Result]]],
        most: int,
        skipped: Callable[[int, int, float], None],
        take: Callable[[int], WorkerTotals],
        log_steps: int,
        advance: Callable[[int], None],
    ) -> None:
        self.rows: dict[int, dict[int, WorkerTotals]] = {}
        self._state, self._stop, self._log_steps = state, stop, log_steps
        self._compute, self._late, self.most = compute, late, most
        self._skipped, self._take, self._advance = skipped, take, advance
        self._learned: dict[int, Learned] = {}
        self._left, self._left_cpu = time.perf_counter(), time.process_time()

    def gradient(self, worker: int, step: int, write_weights: WriteWeights) -> Gradient | None:
        """Compute the gradient at the weights that are written, or later."""
        self._count_exchange(self._state.since_log[worker])
        result = self._compute(worker, step, write_weights)
        self._left, self._left_cpu = time.perf_counter(), time.process_time()
        if result is None:
            return None
        gradient, self._learned[worker] = result
        return gradient

    def late(self) -> Iterator[tuple[int, Gradient]]:
        """Compute the gradients of all outstanding steps; yield them with their workers."""
        counts, results = next(iter(self._state.since_log.values())), self._late()
        while True:
            self._count_exchange(counts)
            found = next(results, None)
            self._left, self._left_cpu = time.perf_counter(), time.process_time()
            if found is None:
                return
            worker, (gradient, self._learned[worker]) = found
            yield worker, gradient

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
