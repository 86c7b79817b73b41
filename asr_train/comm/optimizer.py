"""**The optimizer of a group's model**: what its reducer returns -> new weights, in place.

A reducer returns a gradient, quanta that are still to be added up, or a step that its own optimizer
has made already (Seide et al., 2014, section 2: the owner of a part applies AdaGrad and momentum
before it quantizes again), to which no more is applied here. Knows nothing of workers.

AdaGrad here is that of Seide et al. (2014, "On parallelizability ...", section 5):
    g' = g / (sigma / mean of sigma over g's matrix)
with sigma^2 a low-pass of g^2, whose time constant is in frames. The mean of g is ignored. A common
factor of sigma cancels, so the low-pass may begin at zero. With a floor, no sigma counts as less
than that share of its matrix's mean.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asr_train.comm.exchange import added
from asr_train.comm.reducers import Shared, Update, dense
from asr_train.schema import AdagradPlace, AdagradSettings

LEAST_SIGMA = 1e-20  # of an element whose gradient was always zero; 0 / 0 otherwise

Shape = tuple[int, ...]  # of a parameter
Total = Callable[[Tensor], Tensor]  # a tensor's sum over the stripes of a model; may be in place


class Adagrad:
    """The normalization of a vector, or of a part of one.

    Args:
        runs: the matrices that the vector consists of: number and elements; numbers may recur.
        device: of the vector.
        total: of a model that is cut into stripes, of whose matrices a part is here.
    Attributes:
        squares_P: the low-pass of g^2, float32 [P].
    """

    def __init__(
        self,
        settings: AdagradSettings,
        runs: Sequence[tuple[int, int]],
        device: torch.device,
        total: Total | None = None,
    ) -> None:
        self.settings, self.runs, self._total = settings, list(runs), total
        self.squares_P = torch.zeros(sum(n for _, n in runs), device=device)
        numbers = torch.tensor([number for number, _ in runs], dtype=torch.int64)
        sizes = torch.tensor([elements for _, elements in runs], dtype=torch.float64)
        self._numbers = numbers.to(device)
        self._sizes_M = torch.bincount(numbers, weights=sizes).to(device)

    def after(self, grad_P: Tensor, frames: int) -> Tensor:
        """Return what `squares_P` is after a gradient of so many frames, which does not set it."""
        share = -math.expm1(-frames / self.settings.window_frames)
        return torch.lerp(self.squares_P, grad_P.square(), share)

    def sums(self, sigma_P: Tensor, matrices: int) -> Tensor:
        """Return the sum of sigma over each matrix's elements here, float64 [matrices]."""
        sums_M = torch.zeros(matrices, dtype=torch.float64, device=sigma_P.device)
        if self.runs:
            parts = [part.sum(dtype=torch.float64) for part in self._cut(sigma_P)]
            sums_M.index_add_(0, self._numbers, torch.stack(parts))
        return sums_M

    def scaled(self, grad_P: Tensor, sigma_P: Tensor, mean_M: Tensor) -> Tensor:
        """Return g', given sigma and its mean over each matrix; in place of sigma."""
        means_M = mean_M.float()
        floors_M = (self.settings.floor * means_M).clamp_(min=LEAST_SIGMA)
        for (number, _), part in zip(self.runs, self._cut(sigma_P), strict=True):
            torch.maximum(part, floors_M[number], out=part)
            torch.div(means_M[number], part, out=part)
        return sigma_P.mul_(grad_P)

    def normalized(self, grad_P: Tensor, squares_P: Tensor) -> Tensor:
        """Return `scaled` where all elements of the matrices are here, or in other stripes."""
        sigma_P = squares_P.sqrt()
        sums_M = self.sums(sigma_P, len(self._sizes_M))
        return self.scaled(grad_P, sigma_P, means(sums_M, self._sizes_M, self._total))

    def _cut(self, vector_P: Tensor) -> Sequence[Tensor]:
        return torch.split(vector_P, [elements for _, elements in self.runs])


def means(sums_M: Tensor, sizes_M: Tensor, total: Total | None) -> Tensor:
    """Return each matrix's mean, from its sum and its number of elements, float64 [matrices].

    A parameter that all stripes hold counts once for each, in both.
    """
    if total is not None:
        sums_M, sizes_M = total(torch.stack([sums_M, sizes_M]))
    return sums_M / sizes_M


class Momentum:
    """SGD on summed gradients: v <- momentum * v + grad; w <- w - rate * v.

    Args:
        adagrad: normalizes the gradient, or v where its place is `smoothed`; None: neither.
    Attributes:
        velocity_P: v, float32 [P]; None without momentum.
        frames: that the next gradient is a sum over, for AdaGrad.
    """

    def __init__(self, like_P: Tensor, momentum: float, adagrad: Adagrad | None = None) -> None:
        self.momentum, self.adagrad, self.frames = momentum, adagrad, 1
        self.velocity_P = torch.zeros_like(like_P) if momentum > 0 else None

    def apply(self, weights_P: Tensor, update: Update, rate: float) -> None:
        """Change the weights, float32 [P]; overwrites the velocity, and may overwrite the update.

        Args:
            rate: per frame, as gradients are sums over frames.
        """
        if isinstance(update, Shared) and self.velocity_P is None and self.adagrad is None:
            update.descend(weights_P, rate)
            return
        update = dense(update)
        place = None if self.adagrad is None else self.adagrad.settings.place
        if place is not AdagradPlace.smoothed:
            update = self._normalized(update)
        if self.velocity_P is not None:
            update = self.velocity_P.mul_(self.momentum).add_(update)
        if place is AdagradPlace.smoothed:
            update = self._normalized(update)
        weights_P.add_(update, alpha=-rate)

    def _normalized(self, grad_P: Tensor) -> Tensor:
        if self.adagrad is None:
            return grad_P
        self.adagrad.squares_P = self.adagrad.after(grad_P, self.frames)
        return self.adagrad.normalized(grad_P, self.adagrad.squares_P)

    def reset(self) -> None:
        """Forget the velocity."""
        if self.velocity_P is not None:
            self.velocity_P.zero_()

    def state(self) -> dict[str, Any]:
        """Return tensors for a checkpoint; the same on all workers of the group."""
        state = {} if self.velocity_P is None else {"velocity_P": self.velocity_P}
        return state if self.adagrad is None else {**state, "squares_P": self.adagrad.squares_P}

    def load_states(self, states: list[dict[str, Any]]) -> None:
        """Restore one `state`, or the mean of several groups' where their number has changed.

        AdaGrad begins anew after a run in which each worker of a group had its own.
        """
        if self.velocity_P is not None:
            self.velocity_P.copy_(mean([state["velocity_P"] for state in states]))
        if self.adagrad is not None and all("squares_P" in state for state in states):
            self.adagrad.squares_P.copy_(mean([state["squares_P"] for state in states]))


@dataclass(slots=True)
class Replica:
    """A model that a group shares, and its optimizer."""

    weights_P: Tensor
    optimizer: Momentum


def mean(vectors: list[Tensor]) -> Tensor:
    """Return the mean of vectors [P], added up in order; a copy of a single one."""
    return added(vectors) if len(vectors) == 1 else added(vectors) / len(vectors)
