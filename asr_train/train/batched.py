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
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode

from asr_train.comm.bucket import Bucket, Slot, rows, shorten
from asr_train.comm.reducers import Factor
from asr_train.model.loss import IGNORED
from asr_train.model.store import Model
from asr_train.schema import Precision
from asr_train.shards.batch import Batch

ROOM = {"cpu": 2**25, "cuda": 2**30}  # elements of gradients, or of workers' weights, in one pass
AT_ONCE = {"cpu": 2**21, "cuda": 2**30}  # of gradients in memory; 8 MB stay in a CPU's cache
FEW = 32  # frames of a minibatch, up to which factors are faster than gradients
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

    def gives_factors(self, batches: Sequence[Batch]) -> bool:
        """Return whether it pays to take workers' gradients as factors, and not to compute them."""
        return self._precision is Precision.fp32 and max(len(b.ali_BT) for b in batches) <= FEW

    def gradients(
        self, batches: Sequence[Batch], max_norm: float | None, weights_WP: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield workers' gradients, in their order, of some workers at a time.

        Args:
            max_norm: the largest L2 norm of a gradient, per frame.
            weights_WP: float32 [W, P], each worker's weights; None: those that the model has.
        Yields:
            float32 [W, P], which the next ones overwrite; and [W, 2], by worker the loss in nats
            and the number of correct frames. Where the loss is not finite, neither is the gradient.
        """
        factors, sums_W2 = self.factors(batches, weights_WP)
        workers = len(batches)
        if len(self._grads_WP) < (count := min(workers, self._at_once)):
            self._grads_WP = rows(count, self._size, self._device)
        for first in range(0, workers, self._at_once):
            some = slice(first, min(first + self._at_once, workers))
            grads_WP = self._grads_WP[: some.stop - first]
            for factor in factors:
                factor.write_to(grads_WP, some)
            if max_norm is not None:
                for grad_P, batch in zip(grads_WP, batches[some], strict=True):
                    shorten(grad_P, max_norm * batch.frames)
            yield grads_WP, sums_W2[some]

    def factors(
        self, batches: Sequence[Batch], weights_WP: Tensor | None = None
    ) -> tuple[list[Factor], Tensor]:
        """Return workers' gradients as products that are not computed yet; and as `gradients`."""
        workers = len(batches)
        each = ((batch.feats_BTF, batch.ali_BT, batch.mask_BT) for batch in batches)
        feats_NTF, ali_NT, mask_NT = (
            pad_sequence(list(rows), batch_first=True).flatten(0, 1)  # to the longest minibatch
            for rows in zip(*each, strict=True)
        )
        target_N = torch.where(mask_NT, ali_NT, IGNORED).flatten()
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
        wrong_W11 = ~sums_W2[:, :1, None].isfinite()
        deltas[0].unflatten(0, (workers, -1)).masked_fill_(wrong_W11, torch.nan)
        factors: list[Factor] = []
        for (weight, bias), input_NI, delta_NO in zip(
            passed.slots, passed.inputs, deltas, strict=True
        ):
            delta_WNO = delta_NO.unflatten(0, (workers, -1))
            input_WNI = input_NI.unflatten(0, (workers, -1)).to(delta_WNO.dtype)
            factors.append(Factor(delta_WNO, input_WNI, weight.offset))
            if bias is not None:
                factors.append(Factor(None, delta_WNO, bias.offset))
        return sorted(factors, key=lambda factor: factor.offset), sums_W2


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
    return rows_WP[:, slot.offset : slot.offset + slot.numel].unflatten(1, slot.shape)


def rounded(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which products have a run's precision, as far as torch's modes do not."""
    if precision is not Precision.bf16:
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
