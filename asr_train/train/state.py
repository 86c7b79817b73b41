"""The state of a run, its checkpoints, and which of them it resumes from.

RunState is all that the next step depends on: weights, momentum, schedule, method, the place in
the epoch, counters. Random numbers need no state: they are drawn anew from (seed, step, worker).
Checkpoints keeps the newest few in a folder, one file per worker:
    step-00001000.pt        worker 0's: tensors and plain data, by torch.save
    step-00001000.w001.pt   worker 1's, and so on; the state of a group is in its first worker's
    step-00001000.s01.pt, step-00001000.s01.w001.pt    of the second stripe of the models
    step-00001000.end.pt    replaces step-00001000.pt if an epoch ends without a further step
    step-00001000.json      written after them: sizes, SHA-256, step, and the run it belongs to
A checkpoint is used if all files exist and match; so a kill at any moment leaves the previous one.
Files belong to workers, so it does not matter which processes host them.
"""

import contextlib
import copy
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr_train import files
from asr_train.comm.bucket import Bucket
from asr_train.comm.exchange import Exchange
from asr_train.comm.loopback import Loopback
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.stripes import Stripes
from asr_train.files import DamagedFileError
from asr_train.model.store import load_tensors, save_tensors
from asr_train.schema import OptimSettings
from asr_train.sums import Summed
from asr_train.train.batched import Batched
from asr_train.train.captured import Captured
from asr_train.train.objective import CROSS_ENTROPY, Objective
from asr_train.train.schedule import Schedule

FETCHED = 100  # steps of all local workers whose losses come from the device in one copy


class NotFiniteError(ValueError):
    """Weights or gradients are NaN or infinite."""


@dataclass(slots=True)
class Interval(Summed):
    """Sums over some steps, of one worker or of all; their means are what the log shows."""

    steps: int = 0
    skipped: float = 0  # of the steps: a gradient was not finite, so they count no frames
    frames: int = 0
    loss: float = 0.0  # nats; of sMBR, expected wrong frames
    correct: int = 0  # frames
    compute_seconds: float = 0.0
    exchange_seconds: float = 0.0
    wait_seconds: float = 0.0  # for the reader
    compress_seconds: float = 0.0  # of the exchange
    transfer_seconds: float = 0.0  # of the exchange
    cpu_seconds: float = 0.0  # of all threads of the process, during the first three

    def mean_loss(self) -> float | None:
        """Return the loss per frame; None if all steps were skipped."""
        return self.loss / self.frames if self.frames else None

    def accuracy(self) -> float | None:
        """Return the share of frames whose best state is correct; None if all were skipped."""
        return self.correct / self.frames if self.frames else None

    def seconds(self) -> float:
        """Return the seconds of all its steps."""
        return self.compute_seconds + self.exchange_seconds + self.wait_seconds


class Stopwatch:
    """Adds the seconds inside a `with` to a field of an Interval, without those nested in it.

    Also the process's CPU seconds to `cpu_seconds`, which do not depend on other work beside it.
    """

    def __init__(self) -> None:
        self._inner = self._inner_cpu = 0.0  # seconds already counted inside the current one

    @contextlib.contextmanager
    def __call__(self, counts: Interval, name: str) -> Iterator[None]:
        outer, outer_cpu = self._inner, self._inner_cpu
        self._inner = self._inner_cpu = 0.0
        began, began_cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
            setattr(counts, name, getattr(counts, name) + seconds - self._inner)
            counts.cpu_seconds += cpu - self._inner_cpu
            self._inner, self._inner_cpu = outer + seconds, outer_cpu + cpu


class Learned(NamedTuple):
    """What a worker's minibatch showed: its frames, and what is summed over them."""

    frames: int
    sums_2: Tensor  # float32: loss, correct frames; still on the device


@dataclass(slots=True)
class Progress:
    """How far a run has come, in plain numbers; the same on all workers."""

    epoch: int = 0  # finished epochs
    epoch_step: int = 0  # steps taken in the current epoch
    share: float = 0.0  # of the current epoch's data before them, at the last checkpoint
    step: int = 0  # steps taken, including skipped ones
    frames: int = 0  # of all workers, up to the last row of the log
    dev_loss: float | None = None  # at the end of the last epoch, per frame
    dev_accuracy: float | None = None
    log_bytes: int = 0  # of log.jsonl


@dataclass(slots=True)
class ControlState:
    """What `train.control` decided; the same on all workers.

    Attributes:
        minibatches: frames per worker, by choice; the first is for data after the first block.
        checks: of held-out accuracy, so far.
        accuracy: at the check that `RunState.kept` is of; None: there was none.
    """

    minibatches: list[int] = field(default_factory=list)
    checks: int = 0
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A copy of what the method knows here: models, optimizers, residuals.

    Attributes:
        groups: by place in `method.groups`.
        workers: by local worker.
    """

    shared: dict[str, Any]
    groups: list[dict[str, Any]]
    workers: dict[int, dict[str, Any]]


@dataclass(slots=True)
class RunState:
    """A run in memory: what is shared, and what belongs to the workers hosted here.

    Attributes:
        skipped_in_row: one per group of `method.groups`.
        since_log: by local worker, once `settle` was called; its seconds are a part of the
            process's.
        unsettled: sums that since_log lacks, by worker.
        in_epoch: of all workers, up to the last row of the log.
        on_trial: within `roll_back_after`.
        kept: the method at the last check of held-out accuracy; None: there was none.
        batched: computes gradients of workers that share weights; None: they are computed one by
            one.
        captured: records and replays the gradients of one worker after the other; None: nothing.
        common_P: each model's weights are copied here for its gradients, so that the same graphs
            serve all; None: they are read where they are.
        objective: what is minimised.
    """

    bucket: Bucket
    method: ExchangeMethod
    schedule: Schedule
    progress: Progress = field(default_factory=Progress)
    since_log: dict[int, Interval] = field(default_factory=dict)
    unsettled: list[tuple[int, Tensor]] = field(default_factory=list)
    in_epoch: Interval = field(default_factory=Interval)
    skipped_in_row: list[int] = field(default_factory=list)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    control: ControlState = field(default_factory=ControlState)
    on_trial: bool = False
    kept: Held | None = None
    batched: Batched | None = None
    captured: Captured | None = None
    common_P: Tensor | None = None
    objective: Objective = CROSS_ENTROPY

    @classmethod
    def fresh(cls, bucket: Bucket, method: ExchangeMethod, schedule: Schedule) -> "RunState":
        """Create the state at the beginning: all workers have the model's weights."""
        state = cls(bucket, method, schedule)
        state.skipped_in_row = [0] * len(method.groups)
        state.since_log = {worker: Interval() for worker in method.exchange.local}
        shapes = [slot.shape for slot in bucket.table]
        if bucket.stripes is not None:
            method.total = bucket.stripes.total
        method.begin(bucket.weights_P, state.optim.momentum, shapes, state.optim.adagrad)
        return state

    @property
    def optim(self) -> OptimSettings:
        """The settings that the schedule follows."""
        return self.schedule.settings

    def count(self, worker: int, learned: Learned) -> None:
        """Count what a step learned from; its loss, later."""
        self.since_log[worker].frames += learned.frames
        self.unsettled.append((worker, learned.sums_2))
        if len(self.unsettled) >= FETCHED * len(self.since_log):
            self.settle()

    def settle(self) -> None:
        """Wait for the losses of all steps so far, and count them."""
        if self.unsettled:
            rows = torch.stack([sums_2 for _, sums_2 in self.unsettled]).tolist()
            for (worker, _), (loss, correct) in zip(self.unsettled, rows, strict=True):
                self.since_log[worker].loss += loss
                self.since_log[worker].correct += int(correct)
            self.unsettled.clear()

    def contents(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return tensors and plain data for each local worker's part of a checkpoint, one by one.

        Raises:
            NotFiniteError: if a weight is not finite: no run could resume from there.
        """
        self.method.check()
        self.settle()
        for replica in self.method.replicas:
            check_finite("the weights", replica.weights_P, self.bucket, self.progress.step)
        return self._contents()

    def _contents(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for worker in self.method.exchange.local:
            group = self.method.group_of(worker)
            content: dict[str, Any] = {
                "worker": self.method.worker_state(worker),
                "since_log": asdict(self.since_log[worker]),
            }
            if worker == self.method.groups[group].members[0]:
                content["group"] = {
                    "skipped_in_row": self.skipped_in_row[group],
                    "method": self.method.group_state(group),
                }
            if worker == self.method.exchange.members[0]:
                content["shared"] = {
                    "method": self.method.shared_state(),
                    "schedule": self.schedule.state_dict(),
                    "progress": asdict(self.progress),
                    "in_epoch": asdict(self.in_epoch),
                    "control": asdict(self.control),
                }
            if self.kept is not None:
                content["worker_kept"] = self.kept.workers[worker]
                if "group" in content:
                    content["group"]["kept"] = self.kept.groups[group]
                if "shared" in content:
                    content["shared"]["kept"] = self.kept.shared
            yield worker, content

    def held(self) -> Held:
        """Return a copy of what the method knows here."""
        method = self.method
        method.check()
        groups = [method.group_state(number) for number in range(len(method.groups))]
        workers = {worker: method.worker_state(worker) for worker in method.exchange.local}
        return copy.deepcopy(Held(method.shared_state(), groups, workers))

    def roll_back(self, held: Held) -> None:
        """Restore what `held` returned; counts of what was sent, and a simulated clock, go on."""
        sent, workers = dict(self.method.sent), self.method.asynchronous
        if workers is not None:
            staleness, now = dict(workers.staleness), workers.now
        self._load(held)
        self.method.sent.update(sent)  # in place: asynchronous workers share it
        if workers is not None:
            workers.staleness, workers.now = staleness, now

    def _load(self, held: Held) -> None:
        held = copy.deepcopy(held)  # methods may keep what they load
        self.method.load_shared_state(held.shared)
        for number, state in enumerate(held.groups):
            self.method.load_group_states(number, [state])
        for worker, state in held.workers.items():
            self.method.load_worker_state(worker, state)

    @contextlib.contextmanager
    def roll_back_after(self) -> Iterator[None]:
        """Put back all that the next step depends on, and all counts: steps inside leave no trace.

        Random numbers are drawn from the number of the step, so they come again.
        """
        self.settle()
        held, seconds = self.held(), self.method.take_seconds()
        shared = copy.deepcopy(
            (asdict(self.progress), self.schedule.state_dict(), self.since_log, self.in_epoch)
        )
        skipped = list(self.skipped_in_row)
        self.on_trial = True
        yield
        self.on_trial = False
        self.unsettled.clear()
        self._load(held)
        progress, schedule, self.since_log, self.in_epoch = shared
        for name, value in progress.items():  # in place: the loop and the log share it
            setattr(self.progress, name, value)
        self.schedule.load_state_dict(schedule)
        self.skipped_in_row = skipped
        self.method.seconds.update(seconds)

    def restore(self, saved: "Saved") -> str | None:
        """Resume from a checkpoint, in place.

        Returns:
            A notice if the checkpoint has another number of workers, else None.
        """
        shared = saved.load(0)["shared"]
        self.method.load_shared_state(shared["method"])
        self.schedule.load_state_dict(shared["schedule"])
        self.progress = Progress(**shared["progress"])
        self.in_epoch = Interval(**shared["in_epoch"])
        self.control = ControlState(**shared["control"])
        if saved.workers != len(self.method.exchange):
            return self._restore_resized(saved)
        kept = Held(shared["kept"], [], {}) if "kept" in shared else None
        for number, group in enumerate(self.method.groups):
            state = saved.load(group.members[0])["group"]
            self.method.load_group_states(number, [state["method"]])
            self.skipped_in_row[number] = state["skipped_in_row"]
            if kept is not None:
                kept.groups.append(state["kept"])
        for worker in self.method.exchange.local:
            content = saved.load(worker)
            self.method.load_worker_state(worker, content["worker"])
            self.since_log[worker] = Interval(**content["since_log"])
            if kept is not None:
                kept.workers[worker] = content["worker_kept"]
        self.kept = kept
        return None

    def _restore_resized(self, saved: "Saved") -> str:
        """Resume from another number of workers: all continue from the mean of the models.

        There is no model to revert to until held-out accuracy is checked again.
        """
        groups = [c["group"] for c in map(saved.load, range(saved.workers)) if "group" in c]
        for number in range(len(self.method.groups)):
            self.method.load_group_states(number, [group["method"] for group in groups])
        blocks = self.method.blocks
        if blocks is not None and not saved.load(0)["shared"]["method"]:
            blocks.begin(self.method.replicas[0].weights_P)
        contents = map(saved.load, range(saved.workers))
        squares = self.method.load_resized((c["worker"] for c in contents), len(groups))
        contents = map(saved.load, range(saved.workers))
        counted = sum((Interval(**c["since_log"]) for c in contents), Interval())
        counted.steps //= saved.workers
        for sums in (counted, self.in_epoch):  # means over the workers stay
            sums.skipped *= len(self.method.exchange) / saved.workers
        self.since_log = {w: Interval(steps=counted.steps) for w in self.since_log}
        if 0 in self.since_log:
            self.since_log[0] = counted
        return (
            f"the checkpoint is of {saved.workers} workers and {len(groups)} models, this run has "
            f"{len(self.method.exchange)} workers; they continue from the models' mean, and what "
            f"was not yet sent (norm {squares**0.5:.4g} per model) is divided among them"
        )


def check_finite(what: str, vector_P: Tensor, bucket: Bucket, step: int) -> None:
    """Raise NotFiniteError, with the first parameter and value, if an element is not finite."""
    if torch.isfinite(vector_P.sum()):  # one NaN or infinity makes the sum one
        return
    is_bad_P = ~torch.isfinite(vector_P)
    if not is_bad_P.any():  # large but finite
        return
    element = int(is_bad_P.nonzero()[0])
    raise NotFiniteError(
        f"{what} of {bucket.name_of(element)} hold {vector_P[element].item()} at step {step} "
        f"({int(is_bad_P.sum())} of {len(vector_P)} elements are not finite); lower optim.rate"
    )


@dataclass(frozen=True, slots=True)
class Saved:
    """A whole checkpoint."""

    folder: Path
    step: int
    workers: int
    parts: list[dict[str, Any]]  # by worker

    def load(self, worker: int) -> dict[str, Any]:
        """Load a worker's part.

        Raises:
            DamagedFileError: if torch cannot read it safely.
        """
        return load_tensors(self.folder / self.parts[worker]["path"])


@dataclass
class Checkpoints:
    """The checkpoints of one run in `folder`, which all processes share.

    Args:
        identity: hash of settings and data; a run resumes only from checkpoints with its own.
        keep: how many of the newest to keep.
        epochs: of the run, which does not resume from a later one.
        exchange: of all workers, or of all their stripes; a single worker's, if none is given.
        stripes: that the models are cut into; None: they are whole.
    """

    folder: Path
    identity: str
    keep: int
    epochs: int
    exchange: Exchange = field(default_factory=lambda: Loopback(range(1), torch.device("cpu")))
    stripes: Stripes | None = None

    def __post_init__(self) -> None:
        self._leads = self.exchange.members[0] in self.exchange.local

    def save(self, step: int, contents: Iterator[tuple[int, dict[str, Any]]], begun: int) -> None:
        """Write a checkpoint, then remove the oldest; all processes call it.

        Args:
            begun: how many epochs were begun, or finished.
        """
        stem = f"step-{step:08d}"
        index = self.folder / f"{stem}.json"
        stripe = 0 if self.stripes is None else self.stripes.index
        # Resumed by other workers, an epoch may end where it resumed; a kill must leave one of both
        exists = self.exchange.of_first(index.exists())
        own = stem + (".end" if exists else "") + (f".s{stripe:02d}" if stripe else "")
        listed = []
        for worker, content in contents:
            path = self.folder / (f"{own}.w{worker:03d}.pt" if worker else f"{own}.pt")
            save_tensors(path, content)
            listed.append(files.part(path, self.folder))
        parts = self.exchange.plain(listed)
        workers = len(parts)
        if self.stripes is not None:
            parts, workers = self.stripes.ordered(parts), len(parts) // self.stripes.count
        if self._leads:
            about = {"step": step, "begun": begun, "identity": self.identity, "workers": workers}
            files.write_json(index, {**about, "parts": parts})
            for replaced in {*self.folder.glob(f"{stem}.*pt")} if exists else ():
                if replaced.name not in {part["path"] for part in parts}:
                    replaced.unlink()
            for old in self._newest_first()[self.keep :]:
                self._remove(old)

    def newest(self) -> Saved | None:
        """Return the newest intact checkpoint, or None; all processes call it.

        Prints which ones it skips, and why, and removes them: those of other settings or data,
        unfinished ones, and damaged ones that are newer than the one returned.

        Raises:
            DamagedFileError: if there are checkpoints of this run, and all are damaged.
        """
        if self._leads:
            self._remove_others()
        names = [path.name for path in self._newest_first()] if self._leads else []
        damaged: list[tuple[Path, str]] = []
        for name in self.exchange.of_first(names):
            path = self.folder / name
            saved, reason = self._checked(path)
            reasons = self.exchange.plain([reason] * len(self.exchange.local))
            if reason := next(filter(None, reasons), ""):
                damaged.append((path, reason))
                continue
            assert saved is not None
            for other, reason in damaged if self._leads else []:
                print(f"checkpoint skipped and removed: {reason}", flush=True)
                self._remove(other)
            return saved
        if damaged:
            raise DamagedFileError(
                f"no checkpoint in {self.folder} is intact: {damaged[0][1]}. "
                f"To start over, delete {self.folder}"
            )
        return None

    def _checked(self, path: Path) -> tuple[Saved | None, str]:
        """Return a checkpoint, or what is wrong with it; each process checks some of the parts."""
        try:
            listed = files.read_json(path)
            parts, workers = listed["parts"], listed["workers"]
            first = 0 if self.stripes is None else self.stripes.index * workers
            saved = Saved(self.folder, listed["step"], workers, parts[first : first + workers])
            for place in range(len(parts)):
                if place % len(self.exchange) in self.exchange.local:
                    files.check_part(self.folder, parts[place])
        except DamagedFileError as error:
            return None, str(error)
        except (KeyError, TypeError, IndexError) as error:
            return None, f"{path} lacks {error}"
        return saved, ""

    def _remove_others(self) -> None:
        """Remove files that are undamaged, but that this run cannot resume from."""
        for path in self.folder.glob(".tmp.step-*"):
            path.unlink()
        listed = {path.stem for path in self._newest_first()}
        for path in sorted(self.folder.glob("step-*.pt")):
            if path.name.split(".")[0] not in listed:
                print(f"{path} was not finished; removed", flush=True)
                path.unlink()
        others = [path for path in self._newest_first() if not self._is_ours(path)]
        if others:
            print(
                f"{self.folder}: {len(others)} checkpoints up to {others[0].stem} were made with "
                "other settings or shards, or more epochs; removed, training starts "
                + ("over" if len(others) == len(listed) else "from earlier ones"),
                flush=True,
            )
        for path in others:
            self._remove(path)

    def _is_ours(self, path: Path) -> bool:
        try:
            about = files.read_json(path)
            return bool(about["identity"] == self.identity and about["begun"] <= self.epochs)
        except (DamagedFileError, KeyError, TypeError):
            return True  # possibly: `newest` reports what is wrong with it

    def _newest_first(self) -> list[Path]:
        """Return the paths of the indexes, by step; of over eight digits after 1e8 steps."""
        by_step = lambda path: (len(path.stem), path.stem)  # noqa: E731
        return sorted(self.folder.glob("step-*.json"), key=by_step, reverse=True)

    def _remove(self, path: Path) -> None:
        path.unlink()  # first: without it the other files are an unfinished checkpoint
        for part in self.folder.glob(f"{path.stem}.*pt"):
            part.unlink()
