"""An epoch's order of samples -> the **workers' shares**, with about as many frames each."""

import heapq
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


def shares(
    order: Positions, shard_N: Positions, frames_N: Positions, workers: int
) -> list[Positions]:
    """Divide samples among workers so that all have about the same number of frames.

    Shares are cut along `order`, in which a shard's samples are adjacent, so that a worker opens
    few shards. Among the workers that divide a shard, its longest sample goes first, to the one
    that lacks most frames.

    Args:
        order: positions of the samples, at least one for each worker.
        shard_N, frames_N: shard and frames of the samples, by position.
    Returns:
        By worker, its positions in their order: together each exactly once, none empty.
    """
    if workers == 1:
        return [order]
    frames = frames_N[order]
    share = int(frames.sum()) / workers
    owner = np.empty(len(order), np.int64)
    lacking = [0.0] * workers  # frames of a worker, of the shards so far
    done = 0
    cuts = [0, *(np.flatnonzero(np.diff(shard_N[order])) + 1).tolist(), len(order)]
    for first, last in pairwise(cuts):  # of each shard
        own = int(frames[first:last].sum())
        most = workers - 1
        touched = range(min(most, int(done / share)), min(most, int((done + own) / share)) + 1)
        for worker in touched:
            end = min(done + own, (worker + 1) * share)
            lacking[worker] += max(0.0, end - max(done, worker * share))
        heap = [(-lacking[worker], worker) for worker in touched]
        heapq.heapify(heap)
        for place in first + np.argsort(-frames[first:last], kind="stable"):
            less, worker = heap[0]
            owner[place] = worker
            lacking[worker] = -less - float(frames[place])
            heapq.heapreplace(heap, (-lacking[worker], worker))
        done += own
    counts = np.bincount(owner, minlength=workers)
    if not counts.all():  # few samples, of very different lengths
        owner = np.arange(len(order)) * workers // len(order)
    return [order[owner == worker] for worker in range(workers)]
