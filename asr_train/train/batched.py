"""Gradients of **many virtual workers that share weights**, by one forward and backward pass.

in    minibatches of several workers
out   each worker's gradient, float32 [P], summed over its frames; its loss and correct frames

Minibatches of 8 frames leave most of a processor idle. Here, all workers' frames go through the
network together; the gradient of a layer's weights is a product of its inputs and of the gradients
of its outputs, which batched products keep apart by worker (as in Goodfellow, 2015, "Efficient
per-example gradient computations"). Sums have another order than in `step.one_gradient`, so the
last bits may differ. For networks whose parameters are all those of linear layers.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asr_train.comm.bucket import Bucket, rows
from asr_train.comm.stripes import Stripes
from asr_train.model.loss import IGNORED
from asr_train.model.store import Model
from asr_train.schema import Precision
from asr_train.shards.batch import Batch

ROOM = {"cpu": 2**24, "cuda": 2**30}  # elements of gradients at a time: 64 MB, 4 GB


class Batched:
    """A network that computes several workers' gradients together.

    Args:
        bucket: of the model.
        precision: of its products.
    Raises:
        ValueError: if a parameter does not belong to a linear layer.
    """

    def __init__(self, model: Model, bucket: Bucket, precision: Precision = Precision.fp32) -> None:
        self._precision = precision
        self._model, self._layers = model, [m for m in model.modules() if isinstance(m, nn.Linear)]
        slots = {slot.name: slot for slot in bucket.table}
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._slots = []
        for layer in self._layers:
            bias = None if layer.bias is None else slots.pop(names[id(layer.bias)])
            self._slots.append((slots.pop(names[id(layer.weight)]), bias))
        if slots:
            raise ValueError(
                f"comm.virtual is batched, but parameter {next(iter(slots))} is not one of a "
                "linear layer: only feed-forward networks can compute many workers' gradients "
                "together; set comm.virtual=exact"
            )
        self._size = len(bucket.weights_P)
        self._most = max(1, ROOM[bucket.weights_P.device.type] // self._size)  # workers at a time
        self._grads_WP: Tensor | None = None
        self._inputs: dict[nn.Module, Tensor] = {}
        self._outputs: dict[nn.Module, Tensor] = {}

    def chunks(self, workers: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield groups of workers whose gradients are computed at a time."""
        for first in range(0, len(workers), self._most):
            yield workers[first : first + self._most]

    def gradients(self, batches: Sequence[Batch], max_norm: float | None) -> tuple[Tensor, Tensor]:
        """Compute workers' gradients at the weights that the model has.

        Args:
            max_norm: the largest L2 norm of a gradient, per frame.
        Returns:
            float32 [W, P], which the next call overwrites; and [W, 2], by worker the loss in nats
            and the number of correct frames.
        """
        workers, most = len(batches), max(len(batch.ali_BT) for batch in batches)
        feats_NTF = torch.cat([_padded(batch.feats_BTF, most) for batch in batches])
        target_N = torch.cat(
            [_padded(_target(batch), most, IGNORED) for batch in batches]
        ).flatten()
        with rounded(self._precision, feats_NTF.device):
            logits_NS = self._forward(feats_NTF).flatten(0, 1).float()
        loss_N = functional.cross_entropy(
            logits_NS, target_N, ignore_index=IGNORED, reduction="none"
        )
        outputs = [self._outputs[layer] for layer in self._layers]
        deltas = torch.autograd.grad(loss_N.sum(), outputs)
        grads_WP = self._room(workers)
        for layer, delta_NO, (weight, bias) in zip(self._layers, deltas, self._slots, strict=True):
            delta_WNO = delta_NO.unflatten(0, (workers, -1))
            input_WNI = self._inputs[layer].unflatten(0, (workers, -1)).to(delta_NO.dtype)
            weight_WOI = grads_WP[:, weight.offset : weight.offset + weight.numel]
            weight_WOI = weight_WOI.unflatten(1, weight.shape)
            if delta_NO.dtype is weight_WOI.dtype:
                torch.bmm(delta_WNO.transpose(1, 2), input_WNI, out=weight_WOI)
            else:
                weight_WOI.copy_(torch.bmm(delta_WNO.transpose(1, 2), input_WNI))
            if bias is not None:
                bias_WO = grads_WP[:, bias.offset : bias.offset + bias.numel]
                torch.sum(delta_WNO, 1, dtype=bias_WO.dtype, out=bias_WO)
        self._inputs, self._outputs = {}, {}
        if max_norm is not None:
            for grad_P, batch in zip(grads_WP, batches, strict=True):
                shorten(grad_P, max_norm * batch.frames)
        correct_N = (logits_NS.detach().argmax(-1) == target_N).to(loss_N.dtype)
        columns = [loss_N.detach(), correct_N]
        sums_W = [column.unflatten(0, (workers, -1)).sum(1) for column in columns]
        return grads_WP, torch.stack(sums_W, 1)

    def _forward(self, feats_NTF: Tensor) -> Tensor:
        def keep(layer: nn.Module, given: Any, output: Tensor) -> None:
            self._inputs[layer], self._outputs[layer] = given[0].detach(), output

        hooks = [layer.register_forward_hook(keep) for layer in self._layers]
        try:
            logits: Tensor = self._model(feats_NTF)
        finally:
            for hook in hooks:
                hook.remove()
        return logits

    def _room(self, workers: int) -> Tensor:
        if self._grads_WP is None or len(self._grads_WP) < workers:
            device = next(self._model.parameters()).device
            self._grads_WP = rows(workers, self._size, device)
        return self._grads_WP[:workers]


def rounded(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which products have a run's precision, as far as torch's modes do not."""
    if precision is not Precision.bf16:
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def shorten(grad_P: Tensor, longest: float, stripes: Stripes | None = None) -> None:
    """Scale a gradient, in place, to an L2 norm of at most `longest` (Pascanu et al., 2013).

    If the norm is not finite, or overflows float32, no element is then finite: the step is skipped.
    """
    norm = torch.linalg.vector_norm(grad_P)
    if stripes is not None:
        norm = stripes.total(norm.square()).sqrt()
    grad_P.mul_(torch.where(norm.isfinite(), (longest / norm).clamp(max=1.0), norm))


def _target(batch: Batch) -> Tensor:
    return torch.where(batch.mask_BT, batch.ali_BT, IGNORED)


def _padded(rows: Tensor, most: int, value: float = 0.0) -> Tensor:
    if len(rows) == most:
        return rows
    return torch.cat([rows, rows.new_full((most - len(rows), *rows.shape[1:]), value)])
