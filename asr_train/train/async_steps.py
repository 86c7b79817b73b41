"""Training of **asynchronous workers**, from one drain to the next.

The loop takes one step with all workers at a time; here each worker takes its steps up to the next
drain at its own pace (`comm.async_workers`). Rows of the log in between are kept per worker until
all workers have come that far.
"""

import time
from collections.abc import Callable, Iterator

from torch import Tensor

from asr_train.comm.bucket import rows
from asr_train.comm.reducers import Gradient
from asr_train.model.store import Model
from asr_train.shards.batch import Batch
from asr_train.train.feed import Feed, when
from asr_train.train.log import Totals
from asr_train.train.state import Interval, Learned, RunState
from asr_train.train.step import Result, computed, one_gradient, seed_of, several_gradients, skip
from asr_train.train.totals import take

WriteWeights = Callable[[Tensor], None]


def run_asynchronous(
    model: Model,
    feed: Feed,
    state: RunState,
    advance: Callable[[int], None],
    most: int,
    rate: tuple[float, int] | None = None,
) -> dict[int, list[Totals]]:
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
    assert method.asynchronous is not None
    first, before = progress.step, progress.step - progress.epoch_step
    steps = min(most, state.optim.checkpoint_steps - first % state.optim.checkpoint_steps)
    local = method.exchange.local
    others = len(method.exchange) // len(local)  # for each one here
    state.bucket.point_at(weights_P)
    stretch = AsyncSteps(model, feed, state, first + steps, lambda frames: advance(frames * others))
    method.asynchronous.run(
        weights_P,
        first,
        steps,
        lambda step: state.schedule.rate_at(*(rate or when(state, feed, step - before))),
        stretch,
    )
    stretch.end()
    progress.step += steps
    progress.epoch_step += steps
    return {done: [row[worker] for worker in local] for done, row in stretch.rows.items()}


class AsyncSteps:
    """A `comm.async_workers.GradientSource`, for the steps before `stop`.

    Outstanding gradients are computed together, each at its own weights.

    Args:
        advance: called with numbers of frames, as they are learned from.
    Attributes:
        most: steps that may be outstanding; 0: each gradient is computed when it is asked for.
        rows: by steps taken and worker, the worker's totals; of steps before `stop`.
    """

    def __init__(
        self, model: Model, feed: Feed, state: RunState, stop: int, advance: Callable[[int], None]
    ) -> None:
        self.rows: dict[int, dict[int, Totals]] = {}
        self._model, self._feed, self._state = model, feed, state
        self._stop, self._advance = stop, advance
        self.most = 0
        self._asked: list[tuple[int, int, Batch]] = []  # outstanding: worker, step, minibatch
        if state.batched is not None and len(state.since_log) > 1:
            self.most = min(state.batched.most, len(state.since_log))
            weights_P = state.bucket.weights_P
            self._weights_WP = rows(self.most, len(weights_P), weights_P.device)  # of these
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

    def _compute(self, worker: int, step: int, write_weights: WriteWeights) -> Result | None:
        """Return a gradient, which the next call overwrites; None: `late` returns it."""
        state = self._state
        counts = state.since_log[worker]
        with state.stopwatch(counts, "wait_seconds"):
            batch = self._feed.next(worker)
        if batch is not None:
            with state.stopwatch(counts, "exchange_seconds"):
                if self.most:
                    write_weights(self._weights_WP[len(self._asked)])
                    self._asked.append((worker, step, batch))
                    return None
                write_weights(state.method.replicas[0].weights_P)
        with state.stopwatch(counts, "compute_seconds"):
            seed = seed_of(state.optim.seed, step + 1, worker)
            return one_gradient(self._model, batch, state, seed)

    def late(self) -> Iterator[tuple[int, Gradient]]:
        """Compute the gradients of all outstanding steps; yield them with their workers."""
        state = self._state
        counts = next(iter(state.since_log.values()))
        workers, steps, batches = zip(*self._asked, strict=True)
        self._asked = []
        seed = seed_of(state.optim.seed, steps[0] + 1, workers[0])
        weights_WP = self._weights_WP[: len(workers)]
        results = computed(several_gradients(state, batches, seed, weights_WP), state, counts)
        for worker in workers:
            self._count_exchange(counts)
            gradient, self._learned[worker] = next(results)
            self._left, self._left_cpu = time.perf_counter(), time.process_time()
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
            loss = float(learned.sums_2[0])
            skip(self._state, 0, {worker: loss}, step + 1, f" by worker {worker}")
        done = step + 1
        if done % self._state.optim.log_steps == 0 and done < self._stop:
            self.rows.setdefault(done, {})[worker] = take(self._state, worker)

    def end(self) -> None:
        """Count the seconds of the drain."""
        self._count_exchange(next(iter(self._state.since_log.values())))

    def _count_exchange(self, counts: Interval) -> None:
        counts.exchange_seconds += time.perf_counter() - self._left
        counts.cpu_seconds += time.process_time() - self._left_cpu
