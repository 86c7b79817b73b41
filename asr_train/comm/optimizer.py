"""**The optimizer of a group's model**: what its reducer returns -> new weights, in place.

A reducer returns a gradient, quanta that are still to be added up, or a step that its own optimizer
has made already (Seide et al., 2014, section 2: the owner of a part applies AdaGrad and momentum
before it quantizes again). Knows nothing of workers.

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
from asr_train.comm.reducers import Quanta, Step, Update
from asr_train.schema import AdagradPlace, AdagradSettings

Shape = tuple[int, ...]  # of a parameter
Total = Callable[[Tensor], Tensor]  # a tensor's sum over the stripes of a model; may be in place


class Adagrad:
    """The normalization of a vector, or of a part of one.

    Args:
        runs: the matrices that the vector consists of: number and elements; numbers may recur.
        like: has the vector's device.
        total: of a model that is cut into stripes, of whose matrices a part is here.
    Attributes:
        squares_P: the low-pass of g^2, float32 [P].
    """

    def __init__(
        self,
        settings: AdagradSettings,
        runs: Sequence[tuple[int, int]],
        like: Tensor,
        total: Total | None = None,
    ) -> None:
        self.settings, self.runs, self._total = settings, list(runs), total
        self.squares_P = torch.zeros(sum(n for _, n in runs), device=like.device)

    def after(self, grad_P: Tensor, frames: int) -> Tensor:
        """Return what `squares_P` is after a gradient of so many frames, which does not set it."""
        share = -math.expm1(-frames / self.settings.window_frames)
        return torch.lerp(self.squares_P, grad_P.square(), share)

    def sums(self, squares_P: Tensor, matrices: int) -> Tensor:
        """Return the sum of sigma over each matrix's elements here, float64 [matrices]."""
        sums_M = torch.zeros(matrices, dtype=torch.float64, device=squares_P.device)
        for (number, _), part in zip(self.runs, self._cut(squares_P), strict=True):
            sums_M[number] += part.sqrt().sum(dtype=torch.float64)
        return sums_M

    def scaled(self, grad_P: Tensor, squares_P: Tensor, mean_M: Tensor) -> Tensor:
        """Return g', given sigma^2 and the mean of sigma over each matrix."""
        parts = []
        for (number, _), grad, squares in zip(
            self.runs, self._cut(grad_P), self._cut(squares_P), strict=True
        ):
            mean = mean_M[number].float()
            factor = mean / torch.maximum(squares.sqrt(), self.settings.floor * mean)
            # Without a floor, an element whose gradient was always zero has no sigma
            parts.append(grad * factor.where(squares > 0, 1.0))
        return torch.cat([grad_P[:0], *parts])

    def normalized(self, grad_P: Tensor, squares_P: Tensor) -> Tensor:
        """Return `scaled` where all elements of the matrices are here, or in other stripes."""
        numbers, counts = zip(*self.runs, strict=True)
        sizes_M = torch.zeros(max(numbers) + 1, dtype=torch.float64, device=grad_P.device)
        sizes_M.index_add_(
            0,
            torch.tensor(numbers, device=grad_P.device),
            torch.tensor(counts, dtype=torch.float64, device=grad_P.device),
        )
        return self.scaled(
            grad_P, squares_P, means(self.sums(squares_P, len(sizes_M)), sizes_M, self._total)
        )

    def _cut(self, vector_P: Tensor) -> Sequence[Tensor]:
        return torch.split(vector_P, [elements for _, elements in self.runs])


def means(sums_M: Tensor, sizes_M: Tensor, total: Total | None) -> Tensor:
    """Return each matrix's mean, from its sum and its number of elements, float64 [matrices].

    A parameter that all stripes hold counts once for each, in both.
    """
    if total is not None:
        sums_M, sizes_M = total(torch.stack([sums_M, sizes_M]))
    return sums_M / sizes_M


def adagrad_of(
    settings: AdagradSettings | None,
    shapes: Sequence[Shape],
    like_P: Tensor,
    total: Total | None = None,
) -> Adagrad | None:
    """Return AdaGrad of a whole vector, whose parameters have these shapes; None: no settings."""
    if settings is None:
        return None
    runs = [(m, math.prod(shape)) for m, shape in enumerate(shapes)]
    return Adagrad(settings, runs, like_P, total)


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
        if isinstance(update, Step):
            weights_P.add_(update.step_P, alpha=-rate)
            return
        if isinstance(update, Quanta):
            if self.velocity_P is None and self.adagrad is None:
                update.descend(weights_P, rate)
                return
            update = update.dense()
        smoothed = self.adagrad is not None and (
            self.adagrad.settings.place is AdagradPlace.smoothed
        )
        if not smoothed:
            update = self._normalized(update)
        if self.velocity_P is not None:
            update = self.velocity_P.mul_(self.momentum).add_(update)
        if smoothed:
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
        """Restore one `state`, or the mean of several groups' where their number has changed."""
        if self.velocity_P is not None:
            self.velocity_P.copy_(mean([state["velocity_P"] for state in states]))
        if self.adagrad is not None:
            self.adagrad.squares_P.copy_(mean([state["squares_P"] for state in states]))


@dataclass(slots=True)
class Replica:
    """A model that a group shares, and its optimizer."""

    weights_P: Tensor
    optimizer: Momentum


def mean(vectors: list[Tensor]) -> Tensor:
    """Return the mean of vectors [P], added up in order; a copy of a single one."""
    return added(vectors) if len(vectors) == 1 else added(vectors) / len(vectors)
