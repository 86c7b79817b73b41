"""A model's parameters <-> **one flat vector**, always in the same order; gradients likewise.

Methods and the optimizer only do arithmetic on `weights_P` and `grad_P`; the model's tensors are
views of them, so that it reads weights, and its backward pass writes gradients, in place. One
network can serve many workers: `point_at` gives it other weights. Of a model that is cut into
stripes (its parameters are torch's DTensors), a bucket holds this process's. Knows nothing of
networks.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from asr_train.comm.stripes import Stripes


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one parameter lies."""

    name: str
    offset: int  # elements
    numel: int
    shape: tuple[int, ...]

    def of(self, vector_P: Tensor) -> Tensor:
        """Return the parameter's part of a flat vector, in its shape; shares memory."""
        return vector_P[self.offset : self.offset + self.numel].view(self.shape)


def slots(named: Sequence[tuple[str, Tensor]]) -> tuple[list[Slot], torch.device]:
    """Return where named parameters lie in a flat vector, one after the other, and their device.

    Raises:
        ValueError: if one is not float32, they are on several devices, or there are none.
    """
    if not named:
        raise ValueError("there are no parameters to train")
    device = named[0][1].device
    table, offset = [], 0
    for name, parameter in named:
        if parameter.dtype != torch.float32 or parameter.device != device:
            raise ValueError(
                f"parameter {name} is {parameter.dtype} on {parameter.device}; "
                f"all must be float32 on {device}"
            )
        table.append(Slot(name, offset, parameter.numel(), tuple(parameter.shape)))
        offset += parameter.numel()
    return table, device


def rows(count: int, size: int, device: torch.device) -> Tensor:
    """Return float32 [count, size], uninitialised; each row begins at a multiple of 64 bytes."""
    return torch.empty(count, -(-size // 16) * 16, device=device)[:, :size]


def shorten(grad_P: Tensor, longest: float, stripes: Stripes | None = None) -> None:
    """Scale a gradient, in place, to an L2 norm of at most `longest` (Pascanu et al., 2013).

    If the norm is not finite, or overflows float32, no element is then finite: the step is skipped.
    """
    norm = torch.linalg.vector_norm(grad_P)
    if stripes is not None:
        norm = stripes.total(norm.square()).sqrt()
    grad_P.mul_(torch.where(norm.isfinite(), (longest / norm).clamp(max=1.0), norm))


class Bucket:
    """The flat vectors of a model that is on its device already, float32 [P] each.

    Args:
        stripes: that the model is cut into; None: it is whole.
    Attributes:
        table: one Slot per parameter, without gaps, in the order in which the model registers them.
    Raises:
        ValueError: if a parameter is not float32, or they are on several devices.
    """

    def __init__(self, model: nn.Module, stripes: Stripes | None = None) -> None:
        named = [(name, _held(p)) for name, p in model.named_parameters()]
        self.stripes = stripes
        self.table, device = slots(named)
        size = self.table[-1].offset + self.table[-1].numel
        self.weights_P = torch.empty(size, device=device)
        self.grad_P = torch.zeros(size, device=device)
        self._held = [tensor for _, tensor in named]
        self._grads: list[tuple[nn.Parameter, Tensor]] = []
        for slot, held, parameter in zip(self.table, self._held, model.parameters(), strict=True):
            slot.of(self.weights_P).copy_(held.detach())
            self._grads.append((parameter, _as(parameter, slot.of(self.grad_P))))
        self.point_at(self.weights_P)
        self.zero_grad()

    def point_at(self, weights_P: Tensor) -> None:
        """Make the model compute with `weights_P`, float32 [P], and set `self.weights_P` to it."""
        self.weights_P = weights_P
        for slot, held in zip(self.table, self._held, strict=True):
            held.data = slot.of(weights_P)

    def zero_grad(self) -> None:
        """Set gradients to zero before a backward pass, and direct them to `grad_P` again.

        `Module.zero_grad` and `Optimizer.zero_grad` drop the gradient tensors by default.
        """
        self.grad_P.zero_()
        for parameter, grad in self._grads:
            if parameter.grad is not grad:
                parameter.grad = grad

    def checksums(self, vector_P: Tensor) -> list[int]:
        """Return the CRC-32 of each parameter's part of a flat vector, in the table's order."""
        content = vector_P.cpu().numpy()
        return [zlib.crc32(content[s.offset : s.offset + s.numel].data) for s in self.table]

    def name_of(self, element: int) -> str:
        """Return the name of the parameter that an element belongs to, for error messages."""
        return next(slot.name for slot in self.table if element < slot.offset + slot.numel)


def _held(parameter: Any) -> Tensor:
    """Return what this process holds of a parameter: it, or a DTensor's tensor."""
    with torch.no_grad():  # else it would be a copy with a gradient of its own
        held: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return held


def _as(parameter: Any, held: Tensor) -> Tensor:
    """Return a tensor as the kind that a parameter is."""
    if not hasattr(parameter, "from_local"):
        return held
    size = {"shape": parameter.shape, "stride": parameter.stride()}
    cut: Tensor = parameter.from_local(
        held, parameter.device_mesh, parameter.placements, run_check=False, **size
    )
    return cut
