"""An epoch's **minibatches for the workers hosted here**: as many steps for each of all workers.

Planned from the shards' index before anything is read. Every frame comes once; so workers with
fewer frames run out of minibatches a little earlier, and take part in the last steps with nothing:
nobody waits for a gradient that does not come.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from asr_train.model.lstm import Lstm
from asr_train.model.store import Model
from asr_train.schema import OptimSettings
from asr_train.shards.batch import Batch, Cut, Device, FramePools, Sequences
from asr_train.shards.reader import Shards


@dataclass(frozen=True, slots=True)
class Windows:
    """Frames before and after each one that the network sees."""

    left: int
    right: int


def seen_by(model: Model) -> Windows | Cut:
    """What a network is to be given: single frames in their windows, or utterances."""
    if isinstance(model, Lstm):
        left, right = model.context_left, model.context_right
        return Cut(left, right, model.stride, model.piece, model.warm)
    return Windows(model.context_left, model.context_right)


class Feed:
    """One epoch.

    Args:
        seen: what the network is to be given.
        workers: of the run.
        local: those hosted here.
    Attributes:
        num_steps: of the epoch, for every worker.
        fewest: minibatches of the worker that has the fewest frames.
    """

    def __init__(
        self,
        shards: Shards,
        optim: OptimSettings,
        seen: Windows | Cut,
        workers: int,
        local: range,
        epoch: int,
        device: Device,
    ) -> None:
        self._settings = optim, seen, workers, epoch, device
        self._local = local
        self._shards = shards
        batches = [self._reader(worker).num_batches for worker in range(workers)]
        self.num_steps, self.fewest = max(batches), min(batches)
        self._readers: dict[int, Iterator[Batch]] = {}

    def start(self, step: int) -> None:
        """Begin to read; so many steps of the epoch have been taken already."""
        for worker in self._local:
            reader = self._reader(worker)
            reader.seek(step)
            self._readers[worker] = iter(reader)

    def next(self, worker: int) -> Batch | None:
        """A local worker's next minibatch; None: it has had all of its own."""
        return next(self._readers[worker], None)

    def _reader(self, worker: int) -> FramePools | Sequences:
        optim, seen, workers, epoch, device = self._settings
        return reader(self._shards, optim, seen, worker, workers, epoch, device)


def reader(
    shards: Shards,
    optim: OptimSettings,
    seen: Windows | Cut,
    worker: int,
    workers: int,
    epoch: int,
    device: Device,
) -> FramePools | Sequences:
    """A worker's minibatches of an epoch."""
    sizes = {"pool_frames": optim.pool_frames, "minibatch_frames": optim.minibatch_frames}
    who = {"seed": optim.seed, "worker": worker, "workers": workers, "epoch": epoch}
    if isinstance(seen, Cut):
        return Sequences(shards, seen, **sizes, **who, device=device)
    left, right = seen.left, seen.right
    return FramePools(shards, context_left=left, context_right=right, **sizes, **who, device=device)
