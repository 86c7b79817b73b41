"""The **main path of training**: shards -> minibatches -> gradients -> updates -> model.json.

`train` and the `step` it repeats read from top to bottom. They know the order of things; what the
things are is in model, comm, shards and the modules beside this one. The same settings and shards
give the same bits on a CPU with the same number of threads, however often a run is killed.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from asr_train import files, jobs, schema
from asr_train.comm.bucket import Bucket
from asr_train.comm.loopback import Loopback
from asr_train.comm.method import Gradient
from asr_train.comm.methods import build
from asr_train.model.loss import frame_loss
from asr_train.model.store import Model, build_model, save_model
from asr_train.schema import RunSettings
from asr_train.shards.batch import Batch, FramePools, context_padded
from asr_train.shards.reader import Shards
from asr_train.train.log import RunLog, dev_row, epoch_line, say, train_row
from asr_train.train.schedule import Schedule
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
) -> Path:
    """Train a network as `run` says, going on from its newest checkpoint if there is one.

    Args:
        train_shards: read in another order each epoch.
        dev_shards: evaluated after each epoch, for the log and the schedule.
        folder: of the run, whose name it has. Gets ckpt/, log.jsonl, tensorboard/, model.pt and,
            last of all, model.json.
    Returns:
        The path of model.json.
    Raises:
        ValueError: if the two splits do not fit together.
        NotFiniteError: if no gradient was finite MAX_SKIPPED steps in a row, or a weight is not.
        DamagedFileError: if a shard is not what its index says, or no checkpoint is whole.
    """
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
    ).to(device)
    bucket = Bucket(model)
    num_parameters = bucket.weights_P.numel()
    state = RunState(
        bucket=bucket,
        method=build(run.comm, Loopback(range(1), device), num_parameters),
        schedule=Schedule(optim),
        velocity_P=torch.zeros_like(bucket.weights_P) if optim.momentum else None,
    )

    checkpoints = Checkpoints(
        folder / "ckpt", identity(run, train_shards, dev_shards), optim.keep_checkpoints
    )
    content = checkpoints.newest()
    if content is not None:
        state.restore(content)
    progress = state.progress

    with RunLog(folder, progress, optim.epochs * train_shards.num_frames) as log:
        say(
            f"{folder.name}: {num_parameters:,} parameters, {train_shards.num_frames:,} frames an "
            f"epoch, {device} and {torch.get_num_threads()} threads, "
            + (f"going on after step {progress.step}" if progress.step else "from the beginning")
        )

        def write_row() -> None:
            sent = state.method.take_sent(0)
            rate = state.schedule.rate
            log.row(train_row(state.since_log, progress, rate, sent, num_parameters))
            state.in_epoch.add(state.since_log)
            state.since_log = Interval()

        def save_checkpoint() -> None:
            progress.log_bytes = log.bytes
            checkpoints.save(progress.step, state.content())

        while progress.epoch < optim.epochs:
            batches = FramePools(
                train_shards,
                context_left=model.context_left,
                context_right=model.context_right,
                pool_frames=optim.pool_frames,
                minibatch_frames=optim.minibatch_frames,
                seed=optim.seed,
                worker=0,
                workers=1,
                epoch=progress.epoch,
                start_sample=progress.sample,
                start_batch=progress.batch,
                device=device,
            )
            asked = time.perf_counter()
            for batch in batches:
                step(model, batch, state, optim.momentum, asked)
                progress.sample, progress.batch = batches.position()
                log.advance(batch.frames)
                if progress.step % optim.log_steps == 0:
                    write_row()
                if progress.step % optim.checkpoint_steps == 0:
                    save_checkpoint()
                asked = time.perf_counter()
            if state.since_log.steps:
                write_row()

            check_finite("the weights", bucket.weights_P, bucket, progress.step)
            progress.dev_loss, progress.dev_accuracy = evaluate(model, dev_shards, device)
            if not math.isfinite(progress.dev_loss):
                raise NotFiniteError(
                    f"DEV's loss is {progress.dev_loss} at step {progress.step}; lower optim.rate"
                )
            rate = state.schedule.rate
            state.schedule.end_epoch(progress.dev_loss)
            progress.epoch, progress.sample, progress.batch = progress.epoch + 1, 0, 0
            log.row(dev_row(progress, rate))
            say(epoch_line(state.in_epoch, progress, rate, optim.epochs))
            state.in_epoch = Interval()
            save_checkpoint()

    about = {
        "run": folder.name,
        "model": schema.plain(run.model),
        "priors": train_shards.priors_S.tolist(),
        **train_shards.about,
        "frames": progress.frames,
        "steps": progress.step,
        "dev": {"loss": progress.dev_loss, "accuracy": progress.dev_accuracy},
    }
    return save_model(folder, model, about)


def step(model: Model, batch: Batch, state: RunState, momentum: float, asked: float) -> None:
    """One minibatch: forward, backward, exchange, update; counted in `state`.

    Args:
        asked: when the loop asked the reader for the batch, by time.perf_counter.
    Raises:
        NotFiniteError: at the last of MAX_SKIPPED skipped steps in a row.
    """
    began = time.perf_counter()
    bucket, progress, counts = state.bucket, state.progress, state.since_log
    progress.step += 1
    counts.steps += 1
    counts.wait_seconds += began - asked

    bucket.zero_grad()
    loss, correct = frame_loss(model(batch.feats_BTF), batch.ali_BT, batch.mask_BT)
    loss.backward()
    # One NaN or infinity makes the sum one; all three numbers come from the device in one copy
    loss_nats, num_correct, grad_sum = torch.stack(
        [loss.detach(), correct.to(loss.dtype), bucket.grad_P.sum()]
    ).tolist()
    if not math.isfinite(loss_nats + grad_sum):
        counts.compute_seconds += time.perf_counter() - began
        skip(state, loss_nats)
        return
    progress.skipped_in_row = 0
    computed = time.perf_counter()

    gradient = Gradient(bucket.grad_P, batch.frames)
    grad_P = state.method.reduce_gradient(0, [gradient])
    assert grad_P is not None
    reduced = time.perf_counter()
    update(bucket.weights_P, state.velocity_P, grad_P, state.schedule.rate, momentum)
    updated = time.perf_counter()

    counts.exchange_seconds += (reduced - computed) + (time.perf_counter() - updated)
    counts.compute_seconds += (computed - began) + (updated - reduced)
    counts.add_frames(batch.frames, loss_nats, int(num_correct))
    progress.frames += batch.frames


def update(
    weights_P: Tensor, velocity_P: Tensor | None, grad_P: Tensor, rate: float, momentum: float
) -> None:
    """SGD on summed gradients, in place: v <- momentum * v + grad; w <- w - rate * v."""
    if velocity_P is not None:
        grad_P = velocity_P.mul_(momentum).add_(grad_P)
    weights_P.add_(grad_P, alpha=-rate)


def skip(state: RunState, loss_nats: float) -> None:
    """Leave weights and momentum as they are, and say so; too often in a row is an error."""
    progress = state.progress
    progress.skipped_in_row += 1
    state.since_log.skipped += 1
    say(f"step {progress.step} is skipped: its loss is {loss_nats}, or its gradient not finite")
    if progress.skipped_in_row >= MAX_SKIPPED:
        check_finite("the weights", state.bucket.weights_P, state.bucket, progress.step)
        check_finite("the gradient", state.bucket.grad_P, state.bucket, progress.step)
        raise NotFiniteError(
            f"the loss is {loss_nats} at step {progress.step}, and was not finite for "
            f"{MAX_SKIPPED} steps in a row; lower optim.rate"
        )


@torch.inference_mode()
def evaluate(model: Model, shards: Shards, device: torch.device) -> tuple[float, float]:
    """Mean cross-entropy in nats a frame, and the share of frames whose best state is right."""
    loss, correct = 0.0, 0
    for batch in whole_utterances(shards, model, device):
        batch_loss, batch_correct = frame_loss(model(batch.feats_BTF), batch.ali_BT, batch.mask_BT)
        loss += batch_loss.item()
        correct += int(batch_correct.item())
    return loss / shards.num_frames, correct / shards.num_frames


def whole_utterances(shards: Shards, model: Model, device: torch.device) -> Iterator[Batch]:
    """All utterances, several end to end in one long row [1, T, F], which takes no padding.

    Windows that straddle two utterances are masked.
    """
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    frames = 0
    between = model.context_left + model.context_right
    for sample in shards.samples(seed=None, worker=0, workers=1, epoch=0):
        feats_BTF = context_padded(sample.feats_TF, model.context_left, model.context_right)
        ali_T = torch.from_numpy(sample.ali_T).to(torch.int64)
        gap_T = ali_T.new_zeros(between)
        mask_T = torch.arange(len(ali_T) + between) < len(ali_T)
        rows.append((feats_BTF, torch.cat([ali_T, gap_T]), mask_T))
        frames += len(ali_T)
        if frames >= DEV_FRAMES:
            yield _end_to_end(rows, between, frames, device)
            rows, frames = [], 0
    if rows:
        yield _end_to_end(rows, between, frames, device)


def _end_to_end(
    rows: list[tuple[Tensor, Tensor, Tensor]], between: int, frames: int, device: torch.device
) -> Batch:
    feats, alis, masks = zip(*rows, strict=True)
    last = sum(len(ali) for ali in alis) - between  # after which no window is whole
    return Batch(
        torch.cat(feats, dim=1).to(device),
        torch.cat(alis)[None, :last].to(device),
        torch.cat(masks)[None, :last].to(device),
        frames,
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


def identity(run: RunSettings, train_shards: Shards, dev_shards: Shards) -> str:
    """A name for all that decides what training gives; indexes list their parts' checksums."""
    indexes = [train_shards.index, dev_shards.index]
    return files.hash_of({"run": schema.plain(run), "shards": indexes})


def same_bits_every_time(device: torch.device) -> None:
    """From here on torch is as parallel as JOBS says, and deterministic on a GPU as on a CPU."""
    torch.set_num_threads(jobs.num_jobs())
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
