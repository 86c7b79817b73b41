"""What a run reports: log.jsonl, TensorBoard events, a progress bar, a line per epoch.

log.jsonl has a row every `optim.log_steps` steps, over the steps since the previous row:
    step, epoch, frames     so far; epochs count from 1, frames of skipped steps are left out
    loss, accuracy          loss per frame (nats; of sMBR expected wrong frames) and share of
                            frames; null if all steps were skipped
    rate, minibatch         per frame; frames per step, of all workers
    sent_bits, elements_sent, compression_ratio    per step and worker, on average: messages with
                            their headers, counted once for all receivers; the ratio is dense fp32
                            bits over these, null where nothing is sent
    workers                 that trained
    received_bits           per step and worker, on average: what arrives from all others, padding,
                            lengths and everything else included; see `comm.exchange.Exchange`
    step_seconds, compute_seconds, exchange_seconds, wait_seconds    per step of the process that
                            writes this, for all its workers; wait: for the reader
    compress_seconds, transfer_seconds    of exchange_seconds: encoding messages; sending them and
                            waiting for others'. The rest is decoding and adding up. A GPU's work
                            counts where the host waits for it
    cpu_seconds             per step: CPU time of the process that writes this, of all its threads
    skipped                 steps whose gradient was not finite, mean over workers
    overflows               messages without room for all their elements, of all workers
    threshold, residual_norm    tau of GTC, and the norm of what a worker has not sent (root mean
                            square over workers); null in methods without
    staleness_mean, staleness_max    steps that a worker was ahead of the slowest one whose messages
                            it had, when it began a step; these four only of asynchronous methods
    peer_wait_seconds       per step and worker: for workers too far behind, and for drains
    simulated_seconds       since the run began, in virtual time, as peer_wait_seconds then are;
                            null in real time
a row for each decision of a controller (train.control), with `step`, `epoch` (from 1) and
    decision                minibatch: `tried` (pairs of size and training frame accuracy, null if
                            all steps were skipped), minibatch_frames_before, minibatch_frames, per
                            worker. rate: `action` (keep, halve, revert), held_out_accuracy,
                            held_out_accuracy_before, new_rate, before scaling and warm-up. If it
                            reverts after the last epoch, model.json has DEV's loss and accuracy of
                            the restored model, this log those of the rejected one
and a row at the end of each epoch: epoch, step, dev_loss, dev_accuracy, rate, workers, and
weights_crc32, to compare replicas and repeated runs; of a run that was finished although it
diverged, also the reason, `diverged`.
"""

import json
import math
import os
import shutil
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from asr_train.comm.async_workers import Staleness
from asr_train.comm.reducers import Sent
from asr_train.extras import extra
from asr_train.files import DamagedFileError
from asr_train.train.state import Interval, Progress


class RunLog(AbstractContextManager["RunLog"]):
    """Everything that a run writes besides its checkpoints and model.

    Args:
        folder: of the run.
        progress: where the run resumes: rows that an earlier process wrote after that are removed,
            so that none appears twice.
        total_frames: of all epochs, for the bar.
    Raises:
        DamagedFileError: if rows from before that are missing.
    """

    def __init__(self, folder: Path, progress: Progress, total_frames: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = open(folder / "log.jsonl", "ab")  # noqa: SIM115
        if (found := self._file.tell()) < progress.log_bytes:
            self._file.close()
            raise DamagedFileError(
                f"{folder}/log.jsonl has {found} bytes, but {progress.log_bytes} when the "
                f"checkpoint of step {progress.step} was written, so rows are missing; put it "
                f"back, or delete {folder} and run make again to train it again"
            )
        self._file.truncate(progress.log_bytes)
        self._file.seek(0, 2)
        # Events are no more than the rows: those of rows that stay do, too
        since = progress.step if found > progress.log_bytes or not found else None
        self._events = _events(folder / "tensorboard", since)
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

    def sync(self) -> int:
        """Return the bytes of log.jsonl, all on disk now, for a checkpoint to name."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def advance(self, frames: int) -> None:
        """Advance the progress bar."""
        self._bar.update(frames)

    def row(self, row: dict[str, Any]) -> None:
        """Write a row of log.jsonl, and its numbers as events."""
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()
        row = {k: v for k, v in row.items() if not isinstance(v, str | list)}
        if self._events is not None:
            for key, value in row.items():
                if key != "step" and value is not None:
                    self._events.add_scalar(key, value, row["step"])
        if row.get("loss") is not None:
            shown = f"loss {row['loss']:.3f} accuracy {100 * row['accuracy']:.1f} %"
            self._bar.set_postfix_str(shown, refresh=False)

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._file.close()
        if self._events is not None:
            self._events.close()


def say(line: str) -> None:
    """Print a line, above the progress bar if there is one."""
    tqdm.write(line)
    sys.stdout.flush()


class NoLog(nullcontext[None]):
    """The log of all processes but worker 0's: nothing is written."""

    def sync(self) -> int:
        return 0

    def advance(self, frames: int) -> None:
        pass

    def row(self, row: dict[str, Any]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Totals:
    """What one worker, or all of them, did in some steps, and what they owe after these.

    Attributes:
        interval: of all workers, steps and seconds are of the process that writes the log; all
            else, including `skipped`, is summed.
        staleness: None: workers are synchronous.
    """

    workers: int
    interval: Interval
    sent: Sent
    threshold: float = 0.0
    squares: float = 0.0  # of residuals
    staleness: Staleness | None = None


def train_row(
    totals: Totals, progress: Progress, rate: float, num_parameters: int
) -> dict[str, Any]:
    """Return a row of the log over the steps of `totals`."""
    interval, sent = totals.interval, totals.sent
    steps, workers = interval.steps, totals.workers
    learned = steps - interval.skipped / workers
    seconds = {"step_seconds": interval.seconds()}
    seconds |= {k: v for k, v in asdict(interval).items() if k.endswith("_seconds")}
    has_threshold = totals.threshold > 0
    keeps = has_threshold or totals.squares > 0  # onebit has no threshold
    dense_bits = 32 * num_parameters * steps * workers
    return {
        "step": progress.step,
        "epoch": progress.epoch + 1,
        "frames": progress.frames,
        "loss": interval.mean_loss(),
        "accuracy": interval.accuracy(),
        "rate": rate,
        "minibatch": interval.frames / learned if learned else None,
        "sent_bits": sent.bits / steps / workers,
        "elements_sent": sent.elements / steps / workers,
        "compression_ratio": dense_bits / sent.bits if sent.bits else None,
        "received_bits": sent.received_bits / steps / workers,
        "workers": workers,
        **{name: round(total / steps, 6) for name, total in seconds.items()},
        "skipped": interval.skipped / workers,
        "overflows": sent.overflows,
        "threshold": totals.threshold if has_threshold else None,
        "residual_norm": math.sqrt(totals.squares / workers) if keeps else None,
        **({} if totals.staleness is None else _staleness_numbers(totals.staleness)),
    }


def _staleness_numbers(staleness: Staleness) -> dict[str, Any]:
    steps = max(1, staleness.steps)  # 0: resumed by other workers where an epoch ends
    return {
        "staleness_mean": staleness.total / steps,
        "staleness_max": int(staleness.most),
        "peer_wait_seconds": staleness.waited_seconds / steps,
        "simulated_seconds": staleness.now or None,
    }


def dev_row(progress: Progress, rate: float, workers: int, crc32: int) -> dict[str, Any]:
    """Return the row of a finished epoch; `rate` was that epoch's, and `crc32` is the weights'."""
    return {
        "epoch": progress.epoch,
        "step": progress.step,
        "dev_loss": progress.dev_loss,
        "dev_accuracy": progress.dev_accuracy,
        "rate": rate,
        "workers": workers,
        "weights_crc32": f"{crc32:08x}",
    }


def epoch_line(
    interval: Interval, progress: Progress, rate: float, epochs: int, workers: int
) -> str:
    """Return the line to print for a finished epoch; `rate` was that epoch's."""
    loss, accuracy = interval.mean_loss(), interval.accuracy()
    learned = "all steps skipped" if loss is None else f"loss {loss:.3f}, accuracy {accuracy:.1%}"
    return (
        f"epoch {progress.epoch}/{epochs}: step {progress.step}, rate {rate:g}, {learned}; "
        f"DEV loss {progress.dev_loss:.3f}, accuracy {progress.dev_accuracy:.1%}; "
        f"{interval.frames / max(interval.seconds(), 1e-9):,.0f} frames/s"
        + (f"; {interval.skipped / workers:g} steps skipped" if interval.skipped else "")
    )


def _events(folder: Path, step: int | None) -> Any:
    """Return TensorBoard's writer; None if it is not installed: log.jsonl has its numbers.

    Args:
        step: events after it are removed; None: no events.
    """
    if step == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that is being started over
    try:
        with extra("tensorboard", "TensorBoard"):
            from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        print(f"no TensorBoard events: {error}; log.jsonl has the same numbers", flush=True)
        return None
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)
