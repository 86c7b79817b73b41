"""An iterator's items, **read ahead** by another thread while a GPU is busy with the last one.

All reads of a run go through one thread, one after the other: shards keep what was read last, and
are not made for two at a time. It only reads and moves arrays: it calls neither CUDA nor torch's
parallel operations, which belong to the training thread.
"""

from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

MOST_FRAMES = 2**24  # read ahead at a time by all workers of a process: 5 GB with 80 bins
Item = TypeVar("Item")


class ReadAhead(Generic[Item]):
    """A context in which items are asked for by `next`, and may be begun earlier.

    Args:
        made: the items; in the thread of `thread` alone, if there is one.
        thread: a single one; None: items are made when they are asked for.
    """

    def __init__(self, made: Iterator[Item], thread: Executor | None) -> None:
        self._made, self._thread = made, thread
        self._begun: Future[Item | None] | None = None

    def __enter__(self) -> "ReadAhead[Item]":
        return self

    def __exit__(self, *error: object) -> None:
        if self._begun is not None:
            self._begun.cancel()

    def begin(self) -> None:
        """Have the next item made, unless it is already; there may be none."""
        if self._thread is not None and self._begun is None:
            self._begun = self._thread.submit(next, self._made, None)

    def next(self) -> Item:
        """Return the next item, which must exist; raises what making it raised."""
        self.begin()
        begun, self._begun = self._begun, None
        found = next(self._made) if begun is None else begun.result()
        assert found is not None
        return found


def reading_thread(device: torch.device, frames: int) -> ThreadPoolExecutor | None:
    """Return a thread that reads ahead; None on a CPU, which has no time for it.

    Args:
        frames: of all local workers' pools, which are in memory once more; None if they are many.
    """
    return ThreadPoolExecutor(1) if device.type == "cuda" and frames <= MOST_FRAMES else None
