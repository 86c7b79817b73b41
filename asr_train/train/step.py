"""**One step**: a minibatch of each worker, gradients, what the method returns, the update."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from asr_train.comm.bucket import Bucket
from asr_train.comm.reducers import Gradient
from asr_train.model.store import Model
from asr_train.schema import OptimSettings
from asr_train.shards.batch import Batch
from asr_train.train.batched import Batched, shorten
from asr_train.train.log import say
from asr_train.train.objective import CROSS_ENTROPY, Objective
from asr_train.train.state import NotFiniteError, RunState, check_finite

MAX_SKIPPED = 100  # steps in a row; a run that skips so many will not recover
NextBatch = Callable[[int], Batch | None]  # worker -> minibatch; None: none is left


def step(model: Model, next_batch: NextBatch, state: RunState, optim: OptimSettings) -> int:
    """Take a step: each worker's minibatch forward and backward, exchange, update, counts.

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
        bucket.point_at(replica.weights_P)
        learned: dict[int, tuple[int, float, int]] = {}
        with state.stopwatch(counts, "exchange_seconds"):
            update = method.reduce(
                number,
                gradients(model, next_batch, state, group.local, optim, progress.step, learned),
            )
        if update is None:
            losses = {worker: loss for worker, (_, loss, _) in learned.items()}
            leader = group.members[0]
            who = "" if len(method.exchange) == 1 else f" by the group of worker {leader}"
            skip(state, number, losses, progress.step, who if leader in losses else None)
            continue
        state.skipped_in_row[number] = 0
        with state.stopwatch(counts, "compute_seconds"):
            method.apply(number, update, state.schedule.rate)
        for worker, numbers in learned.items():
            state.since_log[worker].add_frames(*numbers)
            frames += numbers[0]
    with state.stopwatch(state.since_log[method.exchange.local[0]], "exchange_seconds"):
        method.after_update()
    return frames


def gradients(
    model: Model,
    next_batch: NextBatch,
    state: RunState,
    workers: range,
    optim: OptimSettings,
    step: int,
    learned: dict[int, tuple[int, float, int]],
) -> Iterator[Gradient]:
    """Yield each worker's gradient, which the next one may overwrite; zeros without a minibatch.

    Args:
        optim: has the seed of random numbers in the network, and a gradient's largest norm.
        step: number of the current step, from 1.
        learned: gets frames, loss in nats and correct frames of each worker.
    """
    bucket, counts = state.bucket, state.since_log[workers[0]]
    if state.batched is not None and len(workers) > 1:
        yield from _together(state.batched, next_batch, state, workers, optim, step, learned)
        return
    for worker in workers:
        with state.stopwatch(counts, "wait_seconds"):
            batch = next_batch(worker)
        with state.stopwatch(counts, "compute_seconds"):
            gradient, learned[worker] = one_gradient(
                model, batch, bucket, optim, seed_of(optim.seed, step, worker), state.objective
            )
        yield gradient


def _together(
    batched: Batched,
    next_batch: NextBatch,
    state: RunState,
    workers: range,
    optim: OptimSettings,
    step: int,
    learned: dict[int, tuple[int, float, int]],
) -> Iterator[Gradient]:
    """Yield what `gradients` does; several workers' at a time go through the network."""
    counts = state.since_log[workers[0]]
    for chunk in batched.chunks(workers):
        with state.stopwatch(counts, "wait_seconds"):
            found = [(worker, next_batch(worker)) for worker in chunk]
        batches = {worker: batch for worker, batch in found if batch is not None}
        grads: dict[int, tuple[Tensor, list[float]]] = {}
        with state.stopwatch(counts, "compute_seconds"):
            if len(batches) < len(chunk):
                state.bucket.zero_grad()
            if batches:
                generator = generator_of(state.bucket.grad_P.device)
                generator.manual_seed(seed_of(optim.seed, step, chunk[0]))
                grads_WP, numbers = batched.gradients(list(batches.values()), optim.max_norm)
                grads = dict(zip(batches, zip(grads_WP, numbers, strict=True), strict=True))
        for worker in chunk:
            if worker not in grads:
                learned[worker] = (0, 0.0, 0)
                yield Gradient(state.bucket.grad_P, 0)
                continue
            (grad_P, (loss, correct, grad_sum)), frames = grads[worker], batches[worker].frames
            learned[worker] = (frames, loss, int(correct))
            yield Gradient(grad_P, frames, math.isfinite(loss + grad_sum))


def one_gradient(
    model: Model,
    batch: Batch | None,
    bucket: Bucket,
    optim: OptimSettings,
    seed: int,
    objective: Objective = CROSS_ENTROPY,
) -> tuple[Gradient, tuple[int, float, int]]:
    """Return a minibatch's gradient, in the bucket; its frames, loss in nats, correct frames."""
    bucket.zero_grad()
    if batch is None:
        return Gradient(bucket.grad_P, 0), (0, 0.0, 0)
    generator_of(batch.feats_BTF.device).manual_seed(seed)
    loss, correct = objective(objective.logits(model, batch), batch)
    loss.backward()
    if optim.max_norm is not None:
        shorten(bucket.grad_P, optim.max_norm * batch.frames, bucket.stripes)
    # One NaN or infinity makes the sum one; all three numbers come from the device in one copy
    loss_nats, num_correct, grad_sum = torch.stack(
        [loss.detach(), correct.to(loss.dtype), bucket.total(bucket.grad_P.sum())]
    ).tolist()
    gradient = Gradient(bucket.grad_P, batch.frames, math.isfinite(loss_nats + grad_sum))
    return gradient, (batch.frames, loss_nats, int(num_correct))


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
    state.skipped_in_row[group] += 1
    for worker in losses:
        state.since_log[worker].skipped += 1
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
