"""**One step**: a minibatch of each worker, gradients, what the method returns, the update."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from asr_train.comm.bucket import Bucket, shorten
from asr_train.comm.reducers import Gradient
from asr_train.model.store import Model
from asr_train.shards.batch import Batch
from asr_train.train.batched import rounded
from asr_train.train.log import say
from asr_train.train.state import Interval, Learned, NotFiniteError, RunState, check_finite

MAX_SKIPPED = 100  # steps in a row; a run that skips so many will not recover
NextBatch = Callable[[int], Batch | None]  # worker -> minibatch; None: none is left
Result = tuple[Gradient, Learned]


def step(model: Model, next_batch: NextBatch, state: RunState, rate: float) -> int:
    """Take a step: each worker's minibatch forward and backward, exchange, update, counts.

    Args:
        rate: per frame.
    Returns:
        The number of frames that the workers hosted here learned from.
    Raises:
        NotFiniteError: at the last of MAX_SKIPPED skipped steps in a row.
    """
    bucket, progress, method = state.bucket, state.progress, state.method
    progress.step += 1
    frames = 0
    for number, (group, replica) in enumerate(zip(method.groups, method.replicas, strict=True)):
        counts = state.since_log[group.local[0]]
        for worker in group.local:
            state.since_log[worker].steps += 1
        common_P = state.common_P
        bucket.point_at(
            replica.weights_P if common_P is None else common_P.copy_(replica.weights_P)
        )
        learned: dict[int, Learned] = {}
        with state.stopwatch(counts, "exchange_seconds"):
            update = method.reduce(
                number, gradients(model, next_batch, state, group.local, learned)
            )
        if update is None:
            losses = {worker: float(one.sums_2[0]) for worker, one in learned.items()}
            leader = group.members[0]
            who = "" if len(method.exchange) == 1 else f" by the group of worker {leader}"
            skip(state, number, losses, progress.step, who if leader in losses else None)
            continue
        state.skipped_in_row[number] = 0
        with state.stopwatch(counts, "compute_seconds"):
            method.apply(number, update, rate)
        for worker, one in learned.items():
            state.count(worker, one)
            frames += one.frames
    with state.stopwatch(state.since_log[method.exchange.local[0]], "exchange_seconds"):
        method.after_update()
    return frames


def gradients(
    model: Model,
    next_batch: NextBatch,
    state: RunState,
    workers: range,
    learned: dict[int, Learned],
) -> Iterator[Gradient]:
    """Yield each worker's gradient, which the next one may overwrite; zeros without a minibatch.

    Args:
        learned: gets what each worker's minibatch showed.
    """
    counts = state.since_log[workers[0]]
    batched = state.batched if len(workers) > 1 else None
    together = 1 if batched is None else batched.most
    for first in range(0, len(workers), together):
        chunk = workers[first : first + together]
        with state.stopwatch(counts, "wait_seconds"):
            batches = [next_batch(worker) for worker in chunk]
        seed = seed_of(state.optim.seed, state.progress.step, chunk[0])
        if batched is None:
            with state.stopwatch(counts, "compute_seconds"):
                found = iter([one_gradient(model, batches[0], state, seed)])
        else:
            found = computed(several_gradients(state, batches, seed), state, counts)
        for worker, (gradient, one) in zip(chunk, found, strict=True):
            learned[worker] = one
            yield gradient


def computed(found: Iterator[list[Result]], state: RunState, counts: Interval) -> Iterator[Result]:
    """Yield results one by one; the seconds until they are there count as computing."""
    while True:
        with state.stopwatch(counts, "compute_seconds"):
            results = next(found, None)
        if results is None:
            return
        yield from results


def several_gradients(
    state: RunState, batches: Sequence[Batch | None], seed: int, weights_WP: Tensor | None = None
) -> Iterator[list[Result]]:
    """Yield what `one_gradient` returns of several workers' minibatches, of some at a time.

    The next ones overwrite them.

    Args:
        weights_WP: of workers that all have a minibatch, as in `Batched.gradients`.
    """
    batched, bucket = state.batched, state.bucket
    assert batched is not None
    some = [batch for batch in batches if batch is not None]
    found: Iterator[tuple[Tensor, Tensor]] = iter(())
    if some:
        generator_of(bucket.grad_P.device).manual_seed(seed)
        is_plain = weights_WP is None and state.optim.max_norm is None
        is_plain &= len(some) == len(batches) and state.method.takes_factors
        if is_plain and batched.gives_factors(some):
            factors, sums_W2 = batched.factors(some)
            learned = [Learned(b.frames, sums_2) for b, sums_2 in zip(some, sums_W2, strict=True)]
            results = [(Gradient(bucket.grad_P, one.frames), one) for one in learned]
            results[0][0].factors = factors
            yield results
            return
        found = batched.gradients(some, state.optim.max_norm, weights_WP)
    if len(some) < len(batches):
        bucket.zero_grad()
    rest = iter(batches)
    for grads_WP, sums_W2 in found:
        results = []
        for grad_P, sums_2 in zip(grads_WP, sums_W2, strict=True):
            while (batch := next(rest)) is None:
                results.append(_nothing(bucket))
            results.append((Gradient(grad_P, batch.frames), Learned(batch.frames, sums_2)))
        if len(results) == len(grads_WP):
            results[0][0].rows_WP = grads_WP
        yield results
    none_left = [_nothing(bucket) for _ in rest]
    if none_left:
        none_left[0][0].rows_WP = bucket.grad_P.expand(len(none_left), -1)
    yield none_left


def one_gradient(model: Model, batch: Batch | None, state: RunState, seed: int) -> Result:
    """Return a minibatch's gradient, in the bucket; with cross-entropy, without a wait."""
    bucket, captured = state.bucket, state.captured
    if batch is None:
        bucket.zero_grad()
        return _nothing(bucket)
    generator_of(batch.feats_BTF.device).manual_seed(seed)
    compute = partial(_backward, model, state)
    sums_2 = compute(batch) if captured is None else captured.run(compute, batch, bucket.weights_P)
    return Gradient(bucket.grad_P, batch.frames), Learned(batch.frames, sums_2)


def _backward(model: Model, state: RunState, batch: Batch) -> Tensor:
    """Write the gradient to the bucket; return the loss and the number of correct frames."""
    bucket, optim, objective = state.bucket, state.optim, state.objective
    bucket.zero_grad()
    with rounded(optim.precision, bucket.grad_P.device):
        logits_BTS = objective.logits(model, batch).float()
    loss, correct = objective(logits_BTS, batch)
    loss.backward()
    if optim.max_norm is not None:
        shorten(bucket.grad_P, optim.max_norm * batch.frames, bucket.stripes)
    sums_2 = torch.stack([loss.detach(), correct.to(loss.dtype)])
    known = sums_2[0]
    if bucket.stripes is not None:  # all stripes must skip a step together
        known = known + bucket.stripes.total(bucket.grad_P.sum())
    bucket.grad_P[:1].masked_fill_(~known.isfinite(), torch.nan)
    return sums_2


def _nothing(bucket: Bucket) -> Result:
    return Gradient(bucket.grad_P, 0), Learned(0, bucket.grad_P.new_zeros(2))


def seed_of(seed: int, step: int, worker: int) -> int:
    """Return the seed of a worker's random numbers in a step, the same in any process and start.

    Hashed, because torch's generator on a CPU uses only the lowest 32 bits of a seed.
    """
    (bits,) = np.random.SeedSequence([seed, step, worker]).generate_state(1, np.uint64)
    return int(bits)


def generator_of(device: torch.device) -> torch.Generator:
    """Return a device's default generator, which dropout draws from.

    torch.manual_seed seeds all devices, and formats the call stack for each kind that it has not
    found yet: 0.1 to 0.4 ms at every step.
    """
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def skip(state: RunState, group: int, losses: dict[int, float], step: int, who: str | None) -> None:
    """Count and report a step that leaves a group's weights and momentum as they are.

    Args:
        losses: in nats, of the workers hosted here that skip it.
        who: the group, for the report; None: another process reports.
    Raises:
        NotFiniteError: at the last of MAX_SKIPPED skipped steps in a row.
    """
    for worker in losses:
        state.since_log[worker].skipped += 1
    if state.on_trial:  # of a minibatch size, which is rejected then
        return
    state.skipped_in_row[group] += 1
    if who is not None:
        text = ", ".join(str(loss) for loss in losses.values())
        say(f"step {step} is skipped{who}: its loss is {text}, or a gradient is not finite")
    if state.skipped_in_row[group] >= MAX_SKIPPED:
        check_finite("the weights", state.method.replicas[group].weights_P, state.bucket, step)
        check_finite("the gradient", state.bucket.grad_P, state.bucket, step)
        raise NotFiniteError(
            f"the loss is {list(losses.values())} at step {step}, and a gradient was not finite "
            f"for {MAX_SKIPPED} steps in a row; lower optim.rate"
        )
