"""What a run says of itself: log.jsonl, TensorBoard events, a progress bar, a line an epoch.

log.jsonl has a row every `optim.log_steps` steps, over the steps since the row before:
    step, epoch, frames     so far; epochs count from 1, frames of skipped steps are left out
    loss, accuracy          nats a frame and share of frames; null if all steps were skipped
    rate, minibatch         per frame; frames a step
    sent_bits, elements_sent, compression_ratio    a step of this worker; the ratio is dense fp32
                            bits over sent ones, null where nothing is sent
    step_seconds, compute_seconds, exchange_seconds, wait_seconds    a step; it waits for the reader
    skipped                 steps whose gradient was not finite
and a row at the end of each epoch: epoch, step, dev_loss, dev_accuracy, rate.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from asr_train.comm.method import Sent
from asr_train.train.state import Interval, Progress


class RunLog:
    """Everything a run writes beside its checkpoints and model.

    Args:
        folder: of the run.
        progress: where the run goes on: what an earlier process wrote after that is cut off, so
            that no row comes twice.
        total_frames: of all epochs, for the bar.
    """

    def __init__(self, folder: Path, progress: Progress, total_frames: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / "log.jsonl", "ab")  # noqa: SIM115
        self._file.truncate(min(self._file.tell(), progress.log_bytes))
        self._file.seek(0, 2)
        self._events = _events(folder / "tensorboard", progress.step)
        self._bar = tqdm(
            desc=folder.name,
            total=total_frames,
            initial=progress.frames,
            unit=" frames",
            unit_scale=True,
            mininterval=0.2,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
        )

    @property
    def bytes(self) -> int:
        """The length of log.jsonl."""
        return self._file.tell()

    def advance(self, frames: int) -> None:
        """Move the bar."""
        self._bar.update(frames)

    def row(self, row: dict[str, Any]) -> None:
        """Write a row of log.jsonl, and its numbers as events."""
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()
        if self._events is not None:
            for key, value in row.items():
                if key != "step" and value is not None:
                    self._events.add_scalar(key, value, row["step"])
        if row.get("loss") is not None:
            shown = f"loss {row['loss']:.3f} accuracy {100 * row['accuracy']:.1f} %"
            self._bar.set_postfix_str(shown, refresh=False)

    def close(self) -> None:
        self._bar.close()
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def say(line: str) -> None:
    """Print a line, above the bar where there is one."""
    tqdm.write(line)
    sys.stdout.flush()


def train_row(
    interval: Interval, progress: Progress, rate: float, sent: Sent, num_parameters: int
) -> dict[str, Any]:
    """A row over the steps of `interval`, in which `sent` was sent."""
    steps = interval.steps
    learned = steps - interval.skipped
    seconds = {
        "step_seconds": interval.seconds(),
        "compute_seconds": interval.compute_seconds,
        "exchange_seconds": interval.exchange_seconds,
        "wait_seconds": interval.wait_seconds,
    }
    dense_bits = 32 * num_parameters * steps
    return {
        "step": progress.step,
        "epoch": progress.epoch + 1,
        "frames": progress.frames,
        "loss": interval.mean_loss(),
        "accuracy": interval.accuracy(),
        "rate": rate,
        "minibatch": interval.frames / learned if learned else None,
        "sent_bits": sent.bits / steps,
        "elements_sent": sent.elements / steps,
        "compression_ratio": dense_bits / sent.bits if sent.bits else None,
        **{name: round(total / steps, 6) for name, total in seconds.items()},
        "skipped": interval.skipped,
    }


def dev_row(progress: Progress, rate: float) -> dict[str, Any]:
    """A row at the end of an epoch; `rate` was that epoch's."""
    return {
        "epoch": progress.epoch,
        "step": progress.step,
        "dev_loss": progress.dev_loss,
        "dev_accuracy": progress.dev_accuracy,
        "rate": rate,
    }


def epoch_line(interval: Interval, progress: Progress, rate: float, epochs: int) -> str:
    """What a reader of a log wants to know of a finished epoch; `rate` was that epoch's."""
    loss, accuracy = interval.mean_loss(), interval.accuracy()
    learned = "all steps skipped" if loss is None else f"loss {loss:.3f}, {accuracy:.1%} right"
    return (
        f"epoch {progress.epoch}/{epochs}: step {progress.step}, rate {rate:g}, {learned}; "
        f"DEV loss {progress.dev_loss:.3f}, {progress.dev_accuracy:.1%} right; "
        f"{interval.frames / max(interval.seconds(), 1e-9):,.0f} frames/s"
        + (f"; {interval.skipped} steps skipped" if interval.skipped else "")
    )


def _events(folder: Path, step: int) -> Any:
    """TensorBoard's writer, or None where it is not installed: log.jsonl says all that it would."""
    if step == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that is being started over
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        print(f"no TensorBoard events ({error}); log.jsonl has the same numbers", flush=True)
        return None
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)
