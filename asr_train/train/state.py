"""What a checkpoint holds, and which one a run goes on from.

RunState is all that the next step depends on: weights, momentum, schedule, method, the reader's
position, counters, random generators. Checkpoints keeps the newest few in a folder:
    step-00001000.pt      tensors and plain data, by torch.save
    step-00001000.json    written after it: size, SHA-256, step, and the run it belongs to
A checkpoint is used if both are there and agree; so a kill at any moment leaves the one before.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr_train import files
from asr_train.comm.bucket import Bucket
from asr_train.comm.method import Method
from asr_train.files import DamagedFileError
from asr_train.model.store import load_tensors, save_tensors
from asr_train.train.schedule import Schedule


class NotFiniteError(ValueError):
    """Weights or gradients are NaN or infinite."""


@dataclass(slots=True)
class Interval:
    """Sums over some steps; their means are what the log shows."""

    steps: int = 0
    skipped: int = 0  # of the steps: their gradient was not finite, so they count no frames
    frames: int = 0
    loss: float = 0.0  # nats
    correct: int = 0  # frames
    compute_seconds: float = 0.0
    exchange_seconds: float = 0.0
    wait_seconds: float = 0.0  # for the reader

    def add_frames(self, frames: int, loss: float, correct: int) -> None:
        """Count what one step learned from."""
        self.frames += frames
        self.loss += loss
        self.correct += correct

    def add(self, other: "Interval") -> None:
        """Count the steps of another interval."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def mean_loss(self) -> float | None:
        """Nats a frame; None if all steps were skipped."""
        return self.loss / self.frames if self.frames else None

    def accuracy(self) -> float | None:
        """The share of frames whose best state is right; None if all steps were skipped."""
        return self.correct / self.frames if self.frames else None

    def seconds(self) -> float:
        """All of its steps."""
        return self.compute_seconds + self.exchange_seconds + self.wait_seconds


@dataclass(slots=True)
class Progress:
    """Where a run stands, in plain numbers."""

    epoch: int = 0  # finished ones
    sample: int = 0  # the reader's position in the epoch that is being trained
    batch: int = 0
    step: int = 0  # skipped ones count
    frames: int = 0
    skipped_in_row: int = 0
    dev_loss: float | None = None  # at the end of the last epoch, nats a frame
    dev_accuracy: float | None = None
    log_bytes: int = 0  # of log.jsonl


@dataclass(slots=True)
class RunState:
    """A run in memory."""

    bucket: Bucket
    method: Method
    schedule: Schedule
    velocity_P: Tensor | None  # None: no momentum
    progress: Progress = field(default_factory=Progress)
    since_log: Interval = field(default_factory=Interval)
    in_epoch: Interval = field(default_factory=Interval)

    def content(self) -> dict[str, Any]:
        """Tensors and plain data for a checkpoint.

        Raises:
            NotFiniteError: if a weight is not finite: nothing could go on from there.
        """
        check_finite("the weights", self.bucket.weights_P, self.bucket, self.progress.step)
        device = self.bucket.weights_P.device
        return {
            "weights_P": self.bucket.weights_P,
            "velocity_P": self.velocity_P,
            "method": self.method.worker_state(0),
            "schedule": self.schedule.state_dict(),
            "progress": asdict(self.progress),
            "since_log": asdict(self.since_log),
            "in_epoch": asdict(self.in_epoch),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }

    def restore(self, content: dict[str, Any]) -> None:
        """Take what `content` gave, in place."""
        self.bucket.weights_P.copy_(content["weights_P"])
        if self.velocity_P is not None:
            self.velocity_P.copy_(content["velocity_P"])
        self.method.load_worker_state(0, content["method"])
        self.schedule.load_state_dict(content["schedule"])
        self.progress = Progress(**content["progress"])
        self.since_log = Interval(**content["since_log"])
        self.in_epoch = Interval(**content["in_epoch"])
        torch.set_rng_state(content["rng"])
        device = self.bucket.weights_P.device
        if device.type == "cuda" and content["cuda_rng"] is not None:
            torch.cuda.set_rng_state(content["cuda_rng"], device)


def check_finite(what: str, vector_P: Tensor, bucket: Bucket, step: int) -> None:
    """All elements are numbers, else NotFiniteError with the first one's parameter and value."""
    if torch.isfinite(vector_P.sum()):  # one NaN or infinity makes the sum one
        return
    is_bad_P = ~torch.isfinite(vector_P)
    if not is_bad_P.any():  # large, but numbers
        return
    element = int(is_bad_P.nonzero()[0])
    raise NotFiniteError(
        f"{what} of {bucket.name_of(element)} hold {vector_P[element].item()} at step {step} "
        f"({int(is_bad_P.sum())} of {len(vector_P)} elements are not finite); lower optim.rate"
    )


class Checkpoints:
    """The checkpoints of one run in `folder`.

    Args:
        identity: names settings and data; those of another identity cannot be gone on from.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: Path | str, identity: str, keep: int) -> None:
        self.folder = Path(folder)
        self.identity = identity
        self.keep = keep

    def save(self, step: int, content: dict[str, Any]) -> None:
        """Write a checkpoint whole, then let the oldest go."""
        path = self.folder / f"step-{step:08d}.pt"
        path.with_suffix(".json").unlink(missing_ok=True)  # while it would not fit its .pt
        save_tensors(path, content)
        listed = {**files.part(path, self.folder), "step": step, "identity": self.identity}
        files.write_json(path.with_suffix(".json"), listed)
        for old in self._newest_first()[self.keep :]:
            self._remove(old)

    def newest(self) -> dict[str, Any] | None:
        """The content of the newest whole checkpoint; None: start from the beginning.

        Says which ones it passes over, and why, and removes them: those of other settings or data,
        unfinished ones, and damaged ones that are newer than the one returned.

        Raises:
            DamagedFileError: if there are checkpoints of this run, and all are damaged.
        """
        self._remove_others()
        damaged: list[tuple[Path, str]] = []
        for path in self._newest_first():
            try:
                content = self._load(path)
            except DamagedFileError as error:
                damaged.append((path, str(error)))
                continue
            for other, reason in damaged:
                print(f"checkpoint passed over and removed: {reason}", flush=True)
                self._remove(other)
            return content
        if damaged:
            raise DamagedFileError(
                f"no checkpoint in {self.folder} is whole: {damaged[0][1]}. "
                f"To start over, delete {self.folder}"
            )
        return None

    def _load(self, path: Path) -> dict[str, Any]:
        listed = files.read_json(path)
        try:
            part = {key: listed[key] for key in ("path", "bytes", "sha256")}
        except (KeyError, TypeError) as error:
            raise DamagedFileError(f"{path} lacks {error}") from error
        return load_tensors(files.check_part(self.folder, part))

    def _remove_others(self) -> None:
        """Whatever this run cannot go on from, yet is no damage."""
        for path in self.folder.glob(".tmp.step-*"):
            path.unlink()
        listed = self._newest_first()
        for path in sorted(self.folder.glob("step-*.pt")):
            if path.with_suffix(".json") not in listed:
                print(f"{path} was not finished; removed", flush=True)
                path.unlink()
        others = [path for path in listed if not self._is_ours(path)]
        if others:
            print(
                f"{self.folder}: {len(others)} checkpoints up to {others[0].stem} were made with "
                "other settings or shards; removed, training starts over",
                flush=True,
            )
        for path in others:
            self._remove(path)

    def _is_ours(self, path: Path) -> bool:
        try:
            return files.read_json(path)["identity"] == self.identity
        except (DamagedFileError, KeyError, TypeError):
            return True  # as far as one can tell: `newest` says what is wrong with it

    def _newest_first(self) -> list[Path]:
        """The indexes; their names sort by step."""
        return sorted(self.folder.glob("step-*.json"), reverse=True)

    def _remove(self, path: Path) -> None:
        path.unlink()  # first: without it the other is just unfinished
        path.with_suffix(".pt").unlink(missing_ok=True)
