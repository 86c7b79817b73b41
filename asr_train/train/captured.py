"""A minibatch's gradient as a **CUDA graph**: hundreds of kernels of a small network in one launch.

Launched one by one, a step of 14.6 M parameters and 1,024 frames in bf16 took 2.9 ms on an H200, as
a graph 0.9 (docs/kernels.md). A graph is recorded once per shape of a minibatch and per model's
weights, and then replayed with the same kernels on the same memory, which gives the same bits.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from asr_train.model.store import Model
from asr_train.shards.batch import Batch
from asr_train.train.objective import Objective

LARGEST = 8192  # frames; launches take no time there, and a graph keeps its activations
MOST = 8  # graphs; each keeps the memory of its activations
AFTER = 2  # minibatches of a shape that are computed without a graph
IDLE = 1000  # minibatches; a graph that none of them used makes room for another
_Key = tuple[torch.Size, torch.Size, int, int]


class Captured:
    """Computations over minibatches on a GPU, as graphs where shapes come again and again."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._seen: dict[_Key, int] = {}
        self._graphs: dict[_Key, tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}
        self._runs = 0
        self._last: dict[_Key, int] = {}  # of these, by graph

    def run(self, compute: Callable[[Batch], Tensor], batch: Batch, weights_P: Tensor) -> Tensor:
        """Return compute(batch), by a graph if there is one, or it is time to record it.

        Args:
            compute: always the same; it never waits for the device, and writes only to memory that
                it always writes to.
            weights_P: what it reads besides the minibatch; a graph belongs to their address.
        """
        place = weights_P.data_ptr()
        key = batch.feats_BTF.shape, batch.ali_BT.shape, batch.frames, place
        self._runs += 1
        if key not in self._graphs:
            self._seen[key] = self._seen.get(key, 0) + 1
            is_due = self._seen[key] > AFTER and batch.frames <= LARGEST
            if not (is_due and self._has_room()):
                return self._beside(compute, batch)
            self._graphs[key] = self._recorded(compute, batch)
        self._last[key] = self._runs
        graph, given, found = self._graphs[key]
        for ours, theirs in zip(_tensors(given), _tensors(batch), strict=True):
            ours.copy_(theirs)
        graph.replay()
        return found.clone()

    def _has_room(self) -> bool:
        """Return whether one more graph may be kept; first drop the most idle one if need be."""
        if len(self._graphs) == MOST:
            key = min(self._graphs, key=self._last.__getitem__)
            if self._runs - self._last[key] > IDLE:
                del self._graphs[key]
        return len(self._graphs) < MOST

    def _beside(self, compute: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        """Return compute(batch) by the stream that graphs are recorded on, which prepares it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            found = compute(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return found

    def _recorded(
        self, compute: Callable[[Batch], Tensor], batch: Batch
    ) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor]:
        graph = torch.cuda.CUDAGraph()
        feats_BTF, ali_BT, mask_BT = (tensor.clone() for tensor in _tensors(batch))
        given = replace(batch, feats_BTF=feats_BTF, ali_BT=ali_BT, mask_BT=mask_BT)
        # A thread that reads ahead may allocate memory meanwhile
        mode = "thread_local"
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=mode):
            found = compute(given)
        return graph, given, found


def captured_for(
    model: Model, device: torch.device, objective: Objective, is_cut: bool
) -> Captured | None:
    """Return what records graphs of a model's gradients; None where that is not possible.

    Minibatches of recurrent networks rarely have the same shape twice; sequence objectives and
    stripes wait for the device.
    """
    is_fit = not (model.is_recurrent or objective.whole or is_cut)
    return Captured(device) if device.type == "cuda" and is_fit else None


def _tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.feats_BTF, batch.ali_BT, batch.mask_BT
