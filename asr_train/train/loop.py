"""The **main path of training**: shards -> minibatches -> gradients -> updates -> model.json.

`train` and the `step` it repeats read from top to bottom. They define the order of operations; the
operations are in model, comm, shards and the modules beside this one. A process trains with all
workers that it hosts. Results on a CPU are bit-identical for the same settings, shards, threads and
number of workers, however the workers are spread over processes, and however often they are killed.
"""

import contextlib
import functools
import math
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from asr_train import schema
from asr_train.comm.bucket import Bucket
from asr_train.comm.exchange import Exchange
from asr_train.comm.loopback import Loopback
from asr_train.comm.methods import build
from asr_train.comm.stripes import Stripes
from asr_train.model.dnn import Dnn
from asr_train.model.store import build_model, initialise_from, load_model, save_model
from asr_train.schema import RunSettings, Virtual
from asr_train.shards.read_ahead import reading_thread
from asr_train.shards.reader import Shards
from asr_train.train.async_steps import run_asynchronous
from asr_train.train.batched import Batched
from asr_train.train.captured import MOST, captured_for
from asr_train.train.control import Controllers
from asr_train.train.evaluate import evaluate
from asr_train.train.feed import when
from asr_train.train.identity import (
    check_precision,
    check_same_everywhere,
    check_same_inputs,
    check_same_task,
    identity,
    same_bits_every_time,
)
from asr_train.train.log import NoLog, RunLog, Totals, dev_row, epoch_line, say, train_row
from asr_train.train.objective import objective_of
from asr_train.train.schedule import Schedule, warning
from asr_train.train.state import Checkpoints, Interval, NotFiniteError, RunState, check_finite
from asr_train.train.step import step
from asr_train.train.totals import gathered

MOST_SENT = 1 / 3  # of all elements, by a worker in a step; with 30 to 40 %, training failed
MOST_KEPT = 10.0  # thresholds that each element of a residual has yet to send, root mean square


def train(
    run: RunSettings,
    train_shards: Shards,
    dev_shards: Shards,
    folder: Path,
    device: torch.device,
    exchange: Exchange | None = None,
    initial: Path | None = None,
    stripes: Stripes | None = None,
    diverged: str | None = None,
) -> Path:
    """Train a network as `run` says, resuming from its newest checkpoint if there is one.

    Args:
        train_shards: read in another order each epoch.
        dev_shards: evaluated after each epoch, for the log and the schedule.
        folder: of the run, whose name it has; all processes share it. Gets ckpt/, log.jsonl,
            tensorboard/, models of epochs if they are kept, model.pt and, last of all, model.json.
        exchange: of all workers; of networks that are cut, `stripes.exchange`; None: a single
            worker.
        initial: model.json of a network whose layers this one begins with; None: random weights.
        stripes: that each network is cut into, `comm.stripes` of them; None: it is whole.
        diverged: the message of the NotFiniteError that ended the training: the run is finished
            with its newest checkpoint, or the network that it began with.
    Returns:
        The path of model.json.
    Raises:
        ValueError: if the splits do not match, or the method cannot have so many workers.
        NotFiniteError: if no gradient was finite MAX_SKIPPED steps in a row, or a weight is not.
        DamagedFileError: if a shard does not match its index, or no checkpoint is intact.
        ExchangeError: if another process does not answer in time.
        ReplicaError: if models that must be identical differ.
    """
    exchange = exchange or Loopback(range(1), device)
    everyone = exchange if stripes is None else stripes.everyone
    leads = everyone.members[0] in everyone.local  # this process writes the run's files
    workers = len(exchange)
    check_same_task(train_shards, dev_shards)
    optim, objective = run.optim, objective_of(run.objective, train_shards)

    model = build_model(
        run.model,
        train_shards.num_states,
        torch.from_numpy(train_shards.mean_F),
        torch.from_numpy(train_shards.var_F),
        optim.seed,
    )
    handed_over = None
    if initial is not None:
        source, handed_over = load_model(initial)
        check_same_inputs(train_shards, f"{initial} was trained on", handed_over)
        initialise_from(source, model)
    model.to(device)
    num_parameters = sum(p.numel() for p in model.parameters())
    if stripes is not None:
        from torch.distributed.tensor.parallel import loss_parallel  # 2 s

        from asr_train.model.stripes import StripedDnn

        assert isinstance(model, Dnn)  # schema checks it
        model = StripedDnn(model, stripes.mesh["model"])
    bucket = Bucket(model, stripes)
    is_batched = run.comm.virtual is Virtual.batched
    together = len(exchange.local) if is_batched else 1
    check_precision(optim.precision, model, device)
    products = num_parameters * optim.minibatch_frames * together
    same_bits_every_time(device, products, optim.precision)
    method = build(run.comm, exchange, bucket.weights_P.numel())
    state = RunState.fresh(bucket, method, Schedule(optim))
    state.objective = objective
    if is_batched:
        state.batched = Batched(model, bucket, optim.precision)
    state.captured = captured_for(model, device, objective, is_cut=stripes is not None)
    if state.captured is not None and len(method.replicas) > MOST:
        state.common_P = torch.empty_like(bucket.weights_P)

    checkpoints = Checkpoints(
        folder / "ckpt",
        identity(run, train_shards, dev_shards, handed_over),
        optim.keep_checkpoints,
        optim.epochs,
        everyone,
        stripes,
    )
    check_same_everywhere(everyone, run, checkpoints.identity, folder)
    saved = checkpoints.newest()
    changed = None if saved is None else state.restore(saved)
    progress = state.progress
    if diverged is not None:
        progress.log_bytes = (folder / "log.jsonl").stat().st_size
    elif leads:  # what a run of other settings, or of more epochs, left
        (folder / "model.json").unlink(missing_ok=True)
        for kept in (folder / "epochs").glob("[0-9]*"):
            if int(kept.name) > progress.epoch:
                shutil.rmtree(kept)

    stride = 1 if objective.whole else model.stride
    total_frames = optim.epochs * train_shards.num_frames // stride
    with contextlib.ExitStack() as stack:
        log: RunLog | NoLog = RunLog(folder, progress, total_frames) if leads else NoLog()
        stack.enter_context(log)
        if stripes is not None:
            stack.enter_context(stripes.answered())
            stack.enter_context(loss_parallel())
        stack.push(lambda kind, error, trace: method.close(error))

        def tell(line: str | None) -> None:
            if leads and line:
                say(line)

        tell(
            f"{folder.name}: {num_parameters:,} parameters, {train_shards.num_frames:,} frames per "
            f"epoch, {device} and {torch.get_num_threads()} threads, "
            + (f"{workers} workers, {len(exchange.local)} of them here, " if workers > 1 else "")
            + (f"{stripes.count} stripes of each, " if stripes is not None else "")
            + (f"resuming after step {progress.step}" if progress.step else "from the beginning")
        )
        tell(changed)
        tell(method.notice)
        is_bounded = run.comm.method.traffic.is_sparse
        tell(warning(optim, len(method.groups[0]), is_bounded, method.halves))
        tell_once = functools.cache(tell)

        def rate_of(epoch_step: int) -> float:
            """Return the rate of the last of so many steps of the epoch."""
            return state.schedule.rate_at(*when(state, feed, max(0, epoch_step - 1)))  # 0: first

        def write_row(step: int, local: Sequence[Totals] | None = None) -> None:
            totals = gathered(state, local)
            progress.frames += totals.interval.frames
            epoch_step = progress.epoch_step - (progress.step - step)
            at_step = replace(progress, step=step)
            row = train_row(totals, at_step, rate_of(epoch_step), num_parameters)
            check_row(row)
            log.row(row)
            ends = max(0, epoch_step - totals.interval.steps), epoch_step - 1  # the row's steps
            reading = min(totals.workers, max(feed.phase(each).workers for each in ends))
            for line in remarks(row, totals, num_parameters, run.comm.gtc, reading):
                tell_once(line)
            state.in_epoch += totals.interval

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

        def keep(folder: Path) -> Path:
            if leads or stripes is not None:
                save_model(folder, model, about(), leads)
            return folder / "model.json"

        saved_step = None if saved is None else saved.step

        def save_checkpoint() -> None:
            nonlocal saved_step
            progress.log_bytes, progress.share = log.sync(), feed.share(progress.epoch_step)
            begun = progress.epoch + bool(progress.epoch_step)
            checkpoints.save(progress.step, state.contents(), begun)
            saved_step = progress.step

        def end_epoch(rate: float, **more: str) -> float:
            """Evaluate the network, write DEV's row, and return DEV's loss."""
            bucket.point_at(method.exported())
            check_finite("the weights", bucket.weights_P, bucket, progress.step)
            loss, accuracy = evaluate(model, dev_shards, exchange, objective)
            if not math.isfinite(loss):
                raise NotFiniteError(
                    f"DEV's loss is {loss} at step {progress.step}; lower optim.rate"
                )
            progress.dev_loss, progress.dev_accuracy = loss, accuracy
            progress.epoch, progress.epoch_step, progress.share = progress.epoch + 1, 0, 0.0
            crc32 = zlib.crc32(bucket.weights_P.cpu().numpy().data)
            log.row(dev_row(progress, rate, workers, crc32) | more)
            return loss

        pools = len(exchange.local) * min(optim.pool_frames, train_shards.num_frames // workers)
        thread = None if objective.whole else reading_thread(device, pools)
        if thread is not None:
            stack.callback(thread.shutdown, wait=False, cancel_futures=True)
        control = Controllers(model, state, train_shards, dev_shards, log.row, tell, thread)
        while diverged is None and not state.schedule.is_finished:
            feed = control.feed()
            if feed.fewest < feed.num_steps and not progress.epoch_step:
                tell(
                    f"epoch {progress.epoch + 1}: {feed.num_steps} steps, but some workers have "
                    f"minibatches for only {feed.fewest}; they send nothing new in the others"
                )
            if feed.share(progress.epoch_step) != progress.share:  # with other workers
                progress.epoch_step = feed.step_at(progress.share)
            feed.start(progress.epoch_step)
            while progress.epoch_step < feed.num_steps:
                if control.rate_is_due(feed):
                    control.set_rate(feed)
                if control.minibatch_is_due(feed):
                    if saved_step != progress.step:
                        save_checkpoint()
                    control.set_minibatch(feed)
                    feed = control.feed()
                    feed.start(progress.epoch_step)
                if method.asynchronous is None:
                    done, reading = when(state, feed, progress.epoch_step)
                    phase = feed.phase(progress.epoch_step)
                    method.begin_step(reading, phase.minibatch_frames)
                    frames = step(model, feed.next, state, state.schedule.rate_at(done, reading))
                    progress.epoch_step += 1
                    log.advance(frames * workers // len(exchange.local))
                    if progress.step % run.comm.check_steps == 0:
                        check_replicas(state)
                else:
                    most = control.next_step(feed) - progress.epoch_step
                    rows = run_asynchronous(model, feed, state, log.advance, most)
                    check_replicas(state)
                    for row_step, totals in sorted(rows.items()):
                        write_row(row_step, totals)
                # The epoch's last row, written below, also counts what its end sends
                if progress.step % optim.log_steps == 0 and progress.epoch_step < feed.num_steps:
                    write_row(progress.step)
                # At the epoch's end one is saved below; twice, a kill could leave none
                due = progress.step % optim.checkpoint_steps == 0
                if due and progress.epoch_step < feed.num_steps:
                    save_checkpoint()

            here = state.since_log[exchange.local[0]]
            with state.stopwatch(here, "exchange_seconds"):
                method.end_epoch()
            if here.steps:
                write_row(progress.step)
            check_replicas(state)
            rate = rate_of(progress.epoch_step)
            dev_loss = end_epoch(rate)
            tell(epoch_line(state.in_epoch, progress, rate, optim.epochs, workers))
            state.schedule.end_epoch(dev_loss)
            state.in_epoch = Interval()
            if optim.keep_epochs:
                keep(folder / "epochs" / str(progress.epoch))
            save_checkpoint()

        # In no checkpoint: where epochs are added, the next one begins with the same check
        is_due = diverged is None and control.rate_is_due(None)
        if is_due:
            control.set_rate(None)
        bucket.point_at(method.exported())
        if is_due:
            progress.dev_loss, progress.dev_accuracy = evaluate(
                model, dev_shards, exchange, objective
            )
        if diverged is not None:
            tell(f"{diverged}; the run is finished with its weights of step {progress.step}")
            feed = control.feed()
            progress.frames += gathered(state).interval.frames  # after the last row before them
            end_epoch(rate_of(progress.epoch_step), diverged=diverged)
            for epoch in range(progress.epoch, optim.epochs + 1) if optim.keep_epochs else ():
                keep(folder / "epochs" / str(epoch))
        return keep(folder)


def check_replicas(state: RunState) -> None:
    """Raise ReplicaError if processes that share a model have different weights."""
    names = [slot.name for slot in state.bucket.table]
    for group, replica in zip(state.method.groups, state.method.replicas, strict=True):
        if len(group.local) < len(group.members):
            checksums = state.bucket.checksums(replica.weights_P)
            group.check_same(checksums, names, f"step {state.progress.step}")


def check_row(row: dict[str, Any]) -> None:
    """Raise NotFiniteError if a number of a row of the log is not finite: the run has diverged."""
    for name, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise NotFiniteError(
                f"{name} is {value} at step {row['step']}: training diverges; lower optim.rate"
            )


def remarks(
    row: dict[str, Any],
    totals: Totals,
    num_parameters: int,
    settings: schema.GtcSettings | None,
    reading: int,
) -> Iterator[str]:
    """Yield warnings if a row of the log and its totals show that GTC cannot send what it should.

    If the threshold is too low, an element exceeds it in almost every step, is sent once, and its
    residual grows: what arrives is ever older. So does an exploded gradient, which stays in the
    residual until all of it is sent, long after the loss has recovered
    (recipes/ladkat2019/RESULTS.md).

    Args:
        reading: number of workers that have minibatches (`optim.phases`), the largest of the row.
    """
    tau = row["threshold"]
    if tau is None or settings is None:
        return
    most = MOST_SENT * num_parameters * reading * totals.interval.steps
    if settings.adaptive is None and totals.sent.elements - totals.sent.weights > most:
        yield (
            f"warning: more than {MOST_SENT:.0%} of all elements exceed comm.gtc.threshold={tau:g} "
            "in a step. An element is sent at most once per step, so residuals grow and training "
            f"may fail; try comm.gtc.threshold={4 * tau:g}"
        )
    kept = (row["residual_norm"] or 0.0) / (tau * math.sqrt(num_parameters))
    kept *= math.sqrt(totals.workers / reading)  # the others have residuals of next to nothing
    if kept > MOST_KEPT:
        yield (
            f"warning: residuals have more than {MOST_KEPT:g} times the threshold on every element "
            "(root mean square), of which a step sends one. Either a gradient has exploded, and "
            "goes on being sent: try optim.max_norm=1; or comm.gtc.threshold is too low"
        )
