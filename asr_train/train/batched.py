"""Gradients of **many virtual workers**, by one forward and backward pass.

in    minibatches of several workers; their weights, if each has its own
out   each worker's gradient, float32 [P], summed over its frames; its loss and correct frames

Minibatches of 8 frames leave most of a processor idle. Here, all workers' frames go through the
network together; the gradient of a layer's weights is a product of its inputs and of the gradients
of its outputs, which batched products keep apart by worker (as in Goodfellow, 2015, "Efficient
per-example gradient computations"). Workers with weights of their own (asynchronous ones) multiply
theirs in the same way. Sums have another order than in `step.one_gradient`, so the last bits may
differ. For networks whose parameters are all those of linear layers.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from asr_train.comm.bucket import Bucket, Slot, rows, shorten
from asr_train.model.loss import IGNORED
from asr_train.model.store import Model
from asr_train.schema import Precision
from asr_train.shards.batch import Batch

ROOM = {"cpu": 2**25, "cuda": 2**30}  # elements of gradients, or of workers' weights, in one pass
AT_ONCE = {"cpu": 2**21, "cuda": 2**30}  # of gradients in memory; 8 MB stay in a CPU's cache
_Slots = tuple[Slot, Slot | None]  # of a layer's weights and bias


class Batched:
    """A network that computes several workers' gradients together.

    Args:
        bucket: of the model.
        precision: of its products.
    Attributes:
        most: workers that go through the network together.
    Raises:
        ValueError: if a parameter does not belong to a linear layer.
    """

    def __init__(self, model: Model, bucket: Bucket, precision: Precision = Precision.fp32) -> None:
        self._model, self._precision = model, precision
        slots = {slot.name: slot for slot in bucket.table}
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._layers: dict[int, _Slots] = {}  # by the id of the weights
        for layer in (m for m in model.modules() if isinstance(m, nn.Linear)):
            bias = None if layer.bias is None else slots.pop(names[id(layer.bias)])
            self._layers[id(layer.weight)] = slots.pop(names[id(layer.weight)]), bias
        if slots:
            raise ValueError(
                f"comm.virtual is batched, but parameter {next(iter(slots))} is not one of a "
                "linear layer: only feed-forward networks can compute many workers' gradients "
                "together; set comm.virtual=exact"
            )
        self._size = len(bucket.weights_P)
        self._device = bucket.weights_P.device
        self.most = max(1, ROOM[self._device.type] // self._size)
        self._at_once = max(1, AT_ONCE[self._device.type] // self._size)  # gradients
        self._grads_WP = rows(0, self._size, self._device)

    def gradients(
        self, batches: Sequence[Batch], max_norm: float | None, weights_WP: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield workers' gradients, in their order, of some workers at a time.

        Args:
            max_norm: the largest L2 norm of a gradient, per frame.
            weights_WP: float32 [W, P], each worker's weights; None: those that the model has.
        Yields:
            float32 [W, P], which the next ones overwrite; and [W, 2], by worker the loss in nats
            and the number of correct frames.
        """
        workers, most = len(batches), max(len(batch.ali_BT) for batch in batches)
        feats_NTF = torch.cat([_padded(batch.feats_BTF, most) for batch in batches])
        targets = [torch.where(batch.mask_BT, batch.ali_BT, IGNORED) for batch in batches]
        target_N = torch.cat([_padded(one, most, IGNORED) for one in targets]).flatten()
        passed = _Products(self._layers, workers, weights_WP)
        with rounded(self._precision, feats_NTF.device), passed:
            logits_NS = self._model(feats_NTF).flatten(0, 1).float()
        loss_N = functional.cross_entropy(
            logits_NS, target_N, ignore_index=IGNORED, reduction="none"
        )
        deltas = torch.autograd.grad(loss_N.sum(), passed.outputs)
        correct_N = (logits_NS.detach().argmax(-1) == target_N).to(loss_N.dtype)
        columns = [loss_N.detach(), correct_N]
        sums_W2 = torch.stack([c.unflatten(0, (workers, -1)).sum(1) for c in columns], 1)
        pairs = list(zip(passed.inputs, deltas, strict=True))
        if len(self._grads_WP) < (count := min(workers, self._at_once)):
            self._grads_WP = rows(count, self._size, self._device)
        for first in range(0, workers, self._at_once):
            some = slice(first, min(first + self._at_once, workers))
            grads_WP = self._grads_WP[: some.stop - first]
            for (weight, bias), pair in zip(passed.slots, pairs, strict=True):
                input_WNI, delta_WNO = (x.unflatten(0, (workers, -1))[some] for x in pair)
                weight_WOI, input_WNI = _of_workers(grads_WP, weight), input_WNI.to(delta_WNO.dtype)
                if delta_WNO.dtype is weight_WOI.dtype:
                    torch.bmm(delta_WNO.transpose(1, 2), input_WNI, out=weight_WOI)
                else:
                    weight_WOI.copy_(torch.bmm(delta_WNO.transpose(1, 2), input_WNI))
                if bias is not None:
                    bias_WO = _of_workers(grads_WP, bias)
                    torch.sum(delta_WNO, 1, dtype=bias_WO.dtype, out=bias_WO)
            if max_norm is not None:
                for grad_P, batch in zip(grads_WP, batches[some], strict=True):
                    shorten(grad_P, max_norm * batch.frames)
            yield grads_WP, sums_W2[some]


class _Products(TorchFunctionMode):
    """A context that keeps what enters and leaves linear layers, in their order.

    Args:
        layers: by the id of a layer's weights, where its parameters lie in a row of weights_WP.
        weights_WP: each worker's weights, to use in place of the layers'; None: these.
    """

    def __init__(self, layers: dict[int, _Slots], workers: int, weights_WP: Tensor | None) -> None:
        super().__init__()
        self._layers, self._workers, self._weights_WP = layers, workers, weights_WP
        self.slots: list[_Slots] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not functional.linear:
            return func(*args, **(kwargs or {}))
        input_NI, layer_weight, layer_bias = args  # as nn.Linear calls it
        slots = weight, bias = self._layers[id(layer_weight)]
        if self._weights_WP is None:
            output_NO = functional.linear(input_NI, layer_weight, layer_bias)
        else:
            input_WNI = input_NI.unflatten(0, (self._workers, -1))
            weight_WIO = _of_workers(self._weights_WP, weight).transpose(1, 2)
            if bias is None:
                output_NO = torch.bmm(input_WNI, weight_WIO).flatten(0, 1)
            else:
                bias_W1O = _of_workers(self._weights_WP, bias)[:, None]
                output_NO = torch.baddbmm(bias_W1O, input_WNI, weight_WIO).flatten(0, 1)
            output_NO.requires_grad_()  # of the first layer
        self.slots.append(slots)
        self.inputs.append(input_NI.detach())
        self.outputs.append(output_NO)
        return output_NO


def _of_workers(rows_WP: Tensor, slot: Slot) -> Tensor:
    """Return a parameter's part of each row, in the parameter's shape."""
    part: Tensor = rows_WP[:, slot.offset : slot.offset + slot.numel].unflatten(1, slot.shape)
    return part


def rounded(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which products have a run's precision, as far as torch's modes do not."""
    if precision is not Precision.bf16:
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def _padded(rows: Tensor, most: int, value: float = 0.0) -> Tensor:
    if len(rows) == most:
        return rows
    return torch.cat([rows, rows.new_full((most - len(rows), *rows.shape[1:]), value)])
