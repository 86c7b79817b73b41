"""An epoch's **minibatches for the workers hosted here**: as many steps for each of all workers.

Planned from the shards' index before anything is read. Every frame comes once; so workers with
fewer frames run out of minibatches a little earlier, and take part in the last steps with nothing:
nobody waits for a gradient that does not come.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from asr_train.schema import OptimSettings
from asr_train.shards.batch import Batch, Device, FramePools
from asr_train.shards.reader import Shards


@dataclass(frozen=True, slots=True)
class Windows:
    """Frames before and after each one that the network sees."""

    left: int
    right: int


class Feed:
    """One epoch.

    Args:
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
        windows: Windows,
        workers: int,
        local: range,
        epoch: int,
        device: Device,
    ) -> None:
        self._settings = shards, optim, windows, workers, epoch, device
        frames = shards.plan(workers, optim.seed, epoch).frames
        batches = [-(-n // optim.minibatch_frames) for n in frames]
        self.num_steps, self.fewest = max(batches), min(batches)
        self._local = local
        self._readers: dict[int, Iterator[Batch]] = {}

    def start(self, step: int) -> None:
        """Begin to read; so many steps of the epoch have been taken already."""
        for worker in self._local:
            pools = self._pools(worker)
            pools.seek(step)
            self._readers[worker] = iter(pools)

    def next(self, worker: int) -> Batch | None:
        """A local worker's next minibatch; None: it has had all of its own."""
        return next(self._readers[worker], None)

    def _pools(self, worker: int) -> FramePools:
        shards, optim, windows, workers, epoch, device = self._settings
        return FramePools(
            shards,
            context_left=windows.left,
            context_right=windows.right,
            pool_frames=optim.pool_frames,
            minibatch_frames=optim.minibatch_frames,
            seed=optim.seed,
            worker=worker,
            workers=workers,
            epoch=epoch,
            device=device,
        )
