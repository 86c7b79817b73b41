"""The **main path of training**: shards -> minibatches -> gradients -> updates -> model.json.

`train` and the `step` it repeats read from top to bottom. They know the order of things; what the
things are is in model, comm, shards and the modules beside this one. A process trains for all the
workers that its exchange says it hosts. The same settings, shards and number of workers give the
same bits on a CPU with the same number of threads, however the workers are spread over processes,
and however often they are killed.
"""

import contextlib
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr_train import files, jobs, schema
from asr_train.comm.ahead import Lead
from asr_train.comm.bucket import Bucket
from asr_train.comm.exchange import Exchange
from asr_train.comm.loopback import Loopback
from asr_train.comm.methods import build
from asr_train.comm.reducers import Gradient, Quanta, Sent
from asr_train.model.loss import frame_loss
from asr_train.model.lstm import Lstm
from asr_train.model.store import Model, build_model, hand_over, load_model, save_model
from asr_train.schema import OptimSettings, RunSettings
from asr_train.shards.batch import Batch, context_padded, pad
from asr_train.shards.reader import Shards
from asr_train.shards.sample import Sample
from asr_train.train.ahead import Learned, Stretch
from asr_train.train.feed import Feed, seen_by
from asr_train.train.log import NoLog, RunLog, Taken, Totals, dev_row, epoch_line, say, train_row
from asr_train.train.schedule import Schedule, warning
from asr_train.train.state import Checkpoints, Interval, NotFiniteError, RunState, check_finite

ABOUT = ("feats", "norm", "states_hash")  # of the shards: decoding must find the same again
MAX_SKIPPED = 100  # steps in a row; who fails so often will not recover
DEV_FRAMES = 4096  # evaluated at once; one utterance if that is longer


def train(
    run: RunSettings,
    train_shards: Shards,
    dev_shards: Shards,
    folder: Path,
    device: torch.device,
    exchange: Exchange | None = None,
    initial: Path | None = None,
) -> Path:
    """Train a network as `run` says, going on from its newest checkpoint if there is one.

    Args:
        train_shards: read in another order each epoch.
        dev_shards: evaluated after each epoch, for the log and the schedule.
        folder: of the run, whose name it has; all processes share it. Gets ckpt/, log.jsonl,
            tensorboard/, models of epochs if they are kept, model.pt and, last of all, model.json.
        exchange: of all workers; None: a single one.
        initial: model.json of a network whose layers this one begins with; None: drawn at random.
    Returns:
        The path of model.json.
    Raises:
        ValueError: if the two splits do not fit together, or the method so many workers.
        NotFiniteError: if no gradient was finite MAX_SKIPPED steps in a row, or a weight is not.
        DamagedFileError: if a shard is not what its index says, or no checkpoint is whole.
        ExchangeError: if another process does not answer in time.
        ReplicaError: if models that must be the same differ.
    """
    exchange = exchange or Loopback(range(1), device)
    leads = exchange.members[0] in exchange.local  # writes what is written once
    workers = len(exchange)
    check_same_task(train_shards, dev_shards)
    same_bits_every_time(device)
    optim = run.optim

    model = build_model(
        run.model,
        train_shards.num_mels,
        train_shards.num_states,
        torch.from_numpy(train_shards.mean_F),
        torch.from_numpy(train_shards.var_F),
        optim.seed,
    )
    handed_over = None
    if initial is not None:
        source, handed_over = load_model(initial)
        hand_over(source, model)
    model.to(device)
    bucket = Bucket(model)
    num_parameters = bucket.weights_P.numel()
    method = build(run.comm, exchange, num_parameters)
    state = RunState.fresh(bucket, method, Schedule(optim), optim.momentum > 0)

    checkpoints = Checkpoints(
        folder / "ckpt",
        identity(run, train_shards, dev_shards, handed_over),
        optim.keep_checkpoints,
        exchange,
    )
    saved = checkpoints.newest()
    changed = None if saved is None else state.restore(saved)
    progress = state.progress

    total_frames = optim.epochs * train_shards.num_frames // model.stride
    with contextlib.ExitStack() as stack:
        log: RunLog | NoLog = RunLog(folder, progress, total_frames) if leads else NoLog()
        stack.enter_context(log)
        stack.push(lambda kind, error, trace: method.close(error))

        def tell(line: str | None) -> None:
            if leads and line:
                say(line)

        tell(
            f"{folder.name}: {num_parameters:,} parameters, {train_shards.num_frames:,} frames an "
            f"epoch, {device} and {torch.get_num_threads()} threads, "
            + (f"{workers} workers, {len(exchange.local)} of them here, " if workers > 1 else "")
            + (f"going on after step {progress.step}" if progress.step else "from the beginning")
        )
        tell(changed)
        tell(method.said)
        tell(warning(optim, len(method.teams[0])))

        def write_row(step: int, taken: Sequence[Taken] | None = None) -> None:
            totals = gathered(state, taken)
            progress.frames += totals.interval.frames
            epoch_step = progress.epoch_step - (progress.step - step)
            rate = state.schedule.rate_at(*when(state, feed, epoch_step - 1))
            log.row(train_row(totals, replace(progress, step=step), rate, num_parameters))
            state.in_epoch.add(totals.interval)

        def about() -> dict[str, Any]:
            return {
                "run": folder.name,
                "model": schema.plain(run.model),
                "priors": train_shards.priors_S.tolist(),
                **train_shards.about,
                "frames": progress.frames,
                "steps": progress.step,
                "workers": workers,
                "dev": {"loss": progress.dev_loss, "accuracy": progress.dev_accuracy},
            }

        def save_checkpoint() -> None:
            progress.log_bytes = log.bytes
            checkpoints.save(progress.step, state.contents())

        while not state.schedule.is_finished:
            feed = Feed(
                train_shards,
                optim,
                seen_by(model),
                workers,
                exchange.local,
                progress.epoch,
                device,
            )
            if feed.fewest < feed.num_steps and not progress.epoch_step:
                tell(
                    f"epoch {progress.epoch + 1}: {feed.num_steps} steps, but some workers have "
                    f"minibatches for only {feed.fewest}; they send nothing new in the others"
                )
            begin = start_step(progress.epoch_step, progress.epoch_steps, feed.num_steps)
            progress.epoch_step, progress.epoch_steps = begin, feed.num_steps
            feed.start(begin)
            while progress.epoch_step < progress.epoch_steps:
                if method.ahead is None:
                    state.schedule.begin_step(*when(state, feed, progress.epoch_step))
                    frames = step(model, feed.next, state, optim)
                    progress.epoch_step += 1
                    log.advance(frames * workers // len(exchange.local))
                    if progress.step % run.comm.check_steps == 0:
                        check_replicas(state)
                else:
                    rows = run_ahead(model, feed, state, optim, log.advance)
                    check_replicas(state)
                    for row_step, taken in sorted(rows.items()):
                        write_row(row_step, taken)
                # The epoch's last row has what its end sends, too
                if progress.step % optim.log_steps == 0 and progress.epoch_step < feed.num_steps:
                    write_row(progress.step)
                if progress.step % optim.checkpoint_steps == 0:
                    save_checkpoint()

            ended = time.perf_counter()
            method.end_epoch(state.replicas)
            if state.since_log[exchange.local[0]].steps:
                here = state.since_log[exchange.local[0]]
                here.exchange_seconds += time.perf_counter() - ended
                write_row(progress.step)
            check_replicas(state)
            bucket.point_at(method.exported(state.replicas[0]))
            check_finite("the weights", bucket.weights_P, bucket, progress.step)
            progress.dev_loss, progress.dev_accuracy = evaluate(model, dev_shards, device, exchange)
            if not math.isfinite(progress.dev_loss):
                raise NotFiniteError(
                    f"DEV's loss is {progress.dev_loss} at step {progress.step}; lower optim.rate"
                )
            rate = state.schedule.rate
            state.schedule.end_epoch(progress.dev_loss)
            progress.epoch, progress.epoch_step, progress.epoch_steps = progress.epoch + 1, 0, 0
            crc32 = zlib.crc32(bucket.weights_P.cpu().numpy().data)
            log.row(dev_row(progress, rate, workers, crc32))
            tell(epoch_line(state.in_epoch, progress, rate, optim.epochs, workers))
            state.in_epoch = Interval()
            if optim.keep_epochs and leads:
                save_model(folder / "epochs" / str(progress.epoch), model, about())
            save_checkpoint()

    bucket.point_at(method.exported(state.replicas[0]))
    return save_model(folder, model, about()) if leads else folder / "model.json"


NextBatch = Callable[[int], Batch | None]  # of a worker; None: it has had all


def step(model: Model, next_batch: NextBatch, state: RunState, optim: OptimSettings) -> int:
    """One minibatch of each worker: forward, backward, exchange, update; counted in `state`.

    Returns:
        How many frames the workers hosted here learned from.
    Raises:
        NotFiniteError: at the last of MAX_SKIPPED skipped steps in a row.
    """
    bucket, progress, method = state.bucket, state.progress, state.method
    progress.step += 1
    frames = 0
    for number, (team, replica) in enumerate(zip(method.teams, state.replicas, strict=True)):
        counts = state.since_log[team.local[0]]
        for worker in team.local:
            state.since_log[worker].steps += 1
        began, busy = time.perf_counter(), counts.compute_seconds + counts.wait_seconds
        bucket.point_at(replica.weights_P)
        learned: dict[int, tuple[int, float, int]] = {}
        found = method.reduce_quanta(
            number,
            gradients(model, next_batch, state, team.local, optim, progress.step, learned),
        )
        busy = counts.compute_seconds + counts.wait_seconds - busy
        reduced = time.perf_counter()
        counts.exchange_seconds += reduced - began - busy
        if found is None:
            losses = {worker: loss for worker, (_, loss, _) in learned.items()}
            leader = team.members[0]
            who = "" if len(method.exchange) == 1 else f" by the team of worker {leader}"
            skip(state, number, losses, progress.step, who if leader in losses else None)
            continue
        state.skipped_in_row[number] = 0
        rate = state.schedule.rate
        update(replica.weights_P, replica.velocity_P, found, rate, optim.momentum)
        counts.compute_seconds += time.perf_counter() - reduced
        for worker, numbers in learned.items():
            state.since_log[worker].add_frames(*numbers)
            frames += numbers[0]
    updated = time.perf_counter()
    method.after_update(state.replicas)
    first = state.since_log[method.exchange.local[0]]
    first.exchange_seconds += time.perf_counter() - updated
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
    """Each worker's gradient, one after the other in the same memory; zeros without a minibatch.

    Args:
        optim: the seed of random numbers in the network, and how long a gradient may be.
        step: which is being taken, from 1.
        learned: gets frames, loss in nats and correct frames of each worker.
    """
    bucket, counts = state.bucket, state.since_log[workers[0]]
    for worker in workers:
        asked = time.perf_counter()
        batch = next_batch(worker)
        began = time.perf_counter()
        counts.wait_seconds += began - asked
        bucket.zero_grad()
        if batch is None:
            learned[worker] = (0, 0.0, 0)
            yield Gradient(bucket.grad_P, 0)
            continue
        torch.manual_seed(seed_of(optim.seed, step, worker))
        loss, correct = frame_loss(model(batch.feats_BTF), batch.ali_BT, batch.mask_BT)
        loss.backward()
        if optim.max_norm is not None:
            shorten(bucket.grad_P, optim.max_norm * batch.frames)
        # One NaN or infinity makes the sum one; all three numbers come from the device in one copy
        loss_nats, num_correct, grad_sum = torch.stack(
            [loss.detach(), correct.to(loss.dtype), bucket.grad_P.sum()]
        ).tolist()
        learned[worker] = (batch.frames, loss_nats, int(num_correct))
        counts.compute_seconds += time.perf_counter() - began
        yield Gradient(bucket.grad_P, batch.frames, math.isfinite(loss_nats + grad_sum))


def seed_of(seed: int, step: int, worker: int) -> int:
    """Of the random numbers in the network: a worker's own wherever it lives, and after a restart.

    Hashed, for torch's generator of a CPU takes the lowest 32 bits of a seed alone.
    """
    (bits,) = np.random.SeedSequence([seed, step, worker]).generate_state(1, np.uint64)
    return int(bits)


def shorten(grad_P: Tensor, longest: float) -> None:
    """Scale a gradient, in place, to an L2 norm of at most `longest` (Pascanu et al., 2013).

    One whose norm is not finite, or too long for float32, is finite nowhere then, and is skipped.
    """
    norm = torch.linalg.vector_norm(grad_P)
    grad_P.mul_(torch.where(norm.isfinite(), (longest / norm).clamp(max=1.0), norm))


def update(
    weights_P: Tensor,
    velocity_P: Tensor | None,
    found: Tensor | Quanta,
    rate: float,
    momentum: float,
) -> None:
    """SGD on summed gradients, in place: v <- momentum * v + grad; w <- w - rate * v."""
    if isinstance(found, Quanta) and velocity_P is None:
        found.descend(weights_P, rate)
        return
    grad_P = found.dense() if isinstance(found, Quanta) else found
    if velocity_P is not None:
        grad_P = velocity_P.mul_(momentum).add_(grad_P)
    weights_P.add_(grad_P, alpha=-rate)


def when(state: RunState, feed: Feed, epoch_step: int) -> tuple[float, int]:
    """For the schedule: epochs done before a step, and gradients that are added up in it."""
    done = state.progress.epoch + epoch_step / state.progress.epoch_steps
    return done, min(len(state.method.teams[0]), feed.reading(epoch_step))


def run_ahead(
    model: Model,
    feed: Feed,
    state: RunState,
    optim: OptimSettings,
    advance: Callable[[int], None],
) -> dict[int, list[Taken]]:
    """Steps of workers that do not wait for each other, up to a checkpoint or the epoch's end.

    All models are the same then, and in `state`.

    Args:
        advance: told of frames, as they are learned from.
    Returns:
        By steps taken, what the workers hosted here had done: for rows of the log in between.
    """
    progress, method, weights_P = state.progress, state.method, state.replicas[0].weights_P
    assert method.ahead is not None
    first, before = progress.step, progress.step - progress.epoch_step
    left = progress.epoch_steps - progress.epoch_step
    steps = min(left, optim.checkpoint_steps - first % optim.checkpoint_steps)
    others = len(method.exchange) // len(method.exchange.local)  # for each one here

    def compute(worker: int, step: int) -> Learned:
        learned: dict[int, tuple[int, float, int]] = {}
        only = range(worker, worker + 1)
        found = gradients(model, feed.next, state, only, optim, step + 1, learned)
        return Learned(next(found), *learned[worker])

    def skipped(worker: int, step: int, loss: float) -> None:
        skip(state, 0, {worker: loss}, step + 1, f" by worker {worker}")

    state.bucket.point_at(weights_P)
    stretch = Stretch(
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
        lambda step: state.schedule.rate_at(*when(state, feed, step - before)),
        stretch,
    )
    stretch.end()
    progress.step += steps
    progress.epoch_step += steps
    state.schedule.begin_step(*when(state, feed, progress.epoch_step - 1))
    local = method.exchange.local
    return {taken: [row[worker] for worker in local] for taken, row in stretch.rows.items()}


def skip(state: RunState, team: int, losses: dict[int, float], step: int, who: str | None) -> None:
    """Leave a team's weights and momentum as they are, and say so; too often is an error.

    Args:
        losses: in nats, of the workers hosted here that skip it.
        who: to say so of; None: another process says it.
    """
    state.skipped_in_row[team] += 1
    for worker in losses:
        state.since_log[worker].skipped += 1
    if who is not None:
        said = ", ".join(str(loss) for loss in losses.values())
        say(f"step {step} is skipped{who}: its loss is {said}, or a gradient not finite")
    if state.skipped_in_row[team] >= MAX_SKIPPED:
        check_finite("the weights", state.replicas[team].weights_P, state.bucket, step)
        check_finite("the gradient", state.bucket.grad_P, state.bucket, step)
        raise NotFiniteError(
            f"the loss is {list(losses.values())} at step {step}, and a gradient was not finite "
            f"for {MAX_SKIPPED} steps in a row; lower optim.rate"
        )


def take(state: RunState, worker: int) -> Taken:
    """What a local worker did since it was last asked; its counts start over."""
    counts, state.since_log[worker] = state.since_log[worker], Interval()
    seconds = state.method.take_seconds()  # of the process; the next worker's are none
    counts.compress_seconds += seconds["compress"]
    counts.transfer_seconds += seconds["transfer"]
    tau, squares = state.method.measures(worker)
    ahead = state.method.ahead
    lead = Lead() if ahead is None else ahead.take_lead(worker)
    return Taken(counts, state.method.take_sent(worker), tau, squares, lead)


def gathered(state: RunState, taken: Sequence[Taken] | None = None) -> Totals:
    """What all workers did since the last row of the log; None: up to now.

    Args:
        taken: of the local workers, in their order.
    """
    exchange = state.method.exchange
    if taken is None:
        taken = [take(state, worker) for worker in exchange.local]
    rows = []
    for one in taken:
        counts = one.counts
        numbers = [counts.skipped, counts.frames, counts.loss, counts.correct]
        rows.append([*numbers, *astuple(one.sent), one.threshold, one.squares, *astuple(one.lead)])
    all_rows = exchange.numbers(rows)
    skipped, frames, loss, correct, bits, elements, overflows, wire, _, squares, *_ = (
        sum(column)
        for column in zip(*all_rows, strict=True)  # in the order of workers
    )
    lead = Lead()
    for row in all_rows:
        steps, ahead, most, waited, now = row[10:]
        lead.add(Lead(int(steps), int(ahead), int(most), waited, now))
    here = Interval()
    for one in taken:
        here.add(one.counts)
    here.steps //= len(exchange.local)
    here.skipped, here.frames, here.correct = int(skipped), int(frames), int(correct)
    here.loss = loss
    sent = Sent(int(bits), int(elements), int(overflows), int(wire))
    is_ahead = state.method.ahead is not None
    return Totals(len(exchange), here, sent, all_rows[0][8], squares, lead if is_ahead else None)


def check_replicas(state: RunState) -> None:
    """Those who share a model in several processes have the same one, else ReplicaError."""
    names = [slot.name for slot in state.bucket.table]
    for team, replica in zip(state.method.teams, state.replicas, strict=True):
        if len(team.local) < len(team.members):
            checksums = state.bucket.checksums(replica.weights_P)
            team.check_same(checksums, names, f"step {state.progress.step}")


def start_step(done: int, of: int, steps: int) -> int:
    """Where to go on in an epoch of `steps` of which `done` `of` some other number were taken."""
    return done if of in (0, steps) else round(done / of * steps)


@torch.inference_mode()
def evaluate(
    model: Model, shards: Shards, device: torch.device, exchange: Exchange | None = None
) -> tuple[float, float]:
    """Mean cross-entropy in nats a frame, and the share of frames whose best state is right.

    Over every frame, so that networks can be compared that are trained on every frame or on fewer.
    Workers evaluate a part each; who have no utterance, none.
    """
    exchange = exchange or Loopback(range(1), device)
    was_training = model.training
    model.eval()
    parts = min(len(exchange), shards.num_samples)
    rows = []
    for worker in exchange.local:
        loss, correct = 0.0, 0
        batches = whole_utterances(shards, model, device, worker, parts) if worker < parts else ()
        for batch in batches:
            logits_BTS = model.every_frame(batch.feats_BTF)
            batch_loss, batch_correct = frame_loss(logits_BTS, batch.ali_BT, batch.mask_BT)
            loss += batch_loss.item()
            correct += int(batch_correct.item())
        rows.append([loss, correct])
    model.train(was_training)
    total_loss, total_correct = (sum(n) for n in zip(*exchange.numbers(rows), strict=True))
    return total_loss / shards.num_frames, total_correct / shards.num_frames


def whole_utterances(
    shards: Shards, model: Model, device: torch.device, worker: int, workers: int
) -> Iterator[Batch]:
    """A worker's utterances, about DEV_FRAMES at once; see `side_by_side` and `end_to_end`.

    What a recurrent network heard of one utterance must not colour the next.
    """
    join = side_by_side if isinstance(model, Lstm) else end_to_end
    left, right = model.context_left, model.context_right
    held: list[Sample] = []
    for sample in shards.samples(None, worker, workers, epoch=0):
        held.append(sample)
        if sum(len(s.ali_T) for s in held) >= DEV_FRAMES:
            yield join(held, left, right, device)
            held = []
    if held:
        yield join(held, left, right, device)


def end_to_end(samples: list[Sample], left: int, right: int, device: torch.device) -> Batch:
    """Utterances in one long row [1, T, F], which takes no padding; windows that straddle two of
    them are masked.
    """
    gap_T = torch.zeros(left + right, dtype=torch.int64)
    feats, alis, masks = [], [], []
    for sample in samples:
        ali_T = torch.from_numpy(sample.ali_T).to(torch.int64)
        feats.append(context_padded(sample.feats_TF, left, right))
        alis.append(torch.cat([ali_T, gap_T]))
        masks.append(torch.arange(len(alis[-1])) < len(ali_T))
    last = sum(map(len, alis)) - len(gap_T)  # after which no window is whole
    return Batch(
        torch.cat(feats, dim=1).to(device),
        torch.cat(alis)[None, :last].to(device),
        torch.cat(masks)[None, :last].to(device),
        sum(len(sample.ali_T) for sample in samples),
    )


def side_by_side(samples: list[Sample], left: int, right: int, device: torch.device) -> Batch:
    """A row each, as long as the longest one needs; edges repeat the first and the last frame."""
    padded = pad(samples)
    longest = padded.ali_BT.shape[1]
    feats = [context_padded(s.feats_TF, left, right + longest - len(s.ali_T)) for s in samples]
    return Batch(
        torch.cat(feats).to(device),
        padded.ali_BT.to(device),
        padded.mask_BT.to(device),
        padded.frames,
    )


def check_same_task(train_shards: Shards, dev_shards: Shards) -> None:
    """Both splits have the same features and states, else ValueError."""
    for name in ("num_mels", "num_states"):
        ours, theirs = getattr(train_shards, name), getattr(dev_shards, name)
        if ours != theirs:
            raise ValueError(
                f"{train_shards.path} has {name} {ours} but {dev_shards.path} has {theirs}; "
                "rerun the shards stage of both"
            )
    for name in ABOUT:
        for shards in (train_shards, dev_shards):
            if name not in shards.about:
                raise ValueError(f"{shards.path} does not say {name!r}; rerun the shards stage")
        ours, theirs = train_shards.about[name], dev_shards.about[name]
        if ours != theirs:
            raise ValueError(
                f"{train_shards.path} has {name} {ours} but {dev_shards.path} has {theirs}; "
                "rerun the shards stage of both"
            )


def identity(
    run: RunSettings,
    train_shards: Shards,
    dev_shards: Shards,
    initial: dict[str, Any] | None = None,
) -> str:
    """A name for all that decides what training gives, but for the number of workers, which a
    run may change; indexes list their parts' checksums.

    Args:
        initial: model.json of the network that it begins with.
    """
    settings = schema.plain(run)
    for name in ("timeout_seconds", "check_steps", "workers"):
        del settings["comm"][name]  # decide nothing
    indexes = [train_shards.index, dev_shards.index]
    content = {"run": settings, "shards": indexes}
    if initial is not None:
        content["initial"] = initial["sha256"]
    return files.hash_of(content)


def same_bits_every_time(device: torch.device) -> None:
    """From here on torch is as parallel as JOBS says, and deterministic on a GPU as on a CPU.

    The processes of a machine, of which torchrun tells, share the JOBS.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, jobs.num_jobs() // processes))
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
