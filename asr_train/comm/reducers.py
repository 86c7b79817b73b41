"""A step's **gradients and their reducers**: inputs and outputs, and reducers of whole gradients.

Knows nothing of networks, shards or how weights are updated.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr_train.comm.exchange import Exchange, hosted
from asr_train.kernels import decode
from asr_train.sums import Summed


class Factor(NamedTuple):
    """A part of several workers' gradients, as a product of matrices that is not computed yet.

    A worker's part is the transposed deltas times the inputs, row by row [O I] from `offset` on.
    """

    deltas_WNO: Tensor | None  # by worker and frame, gradients of a layer's outputs; None: ones
    inputs_WNI: Tensor  # what entered the layer, of the same type; of a bias, its own deltas
    offset: int  # elements

    @property
    def outputs(self) -> int:
        return 1 if self.deltas_WNO is None else self.deltas_WNO.shape[2]

    def write_to(self, grads_WP: Tensor, workers: slice) -> None:
        """Compute the part of some workers' gradients, float32, rows of `grads_WP`."""
        inputs_WNI = self.inputs_WNI[workers]
        size = self.outputs * inputs_WNI.shape[2]
        part_WP = grads_WP[:, self.offset : self.offset + size]
        if self.deltas_WNO is None:
            torch.sum(inputs_WNI, 1, dtype=part_WP.dtype, out=part_WP)
            return
        deltas_WON = self.deltas_WNO[workers].transpose(1, 2)
        part_WOI = part_WP.unflatten(1, (self.outputs, -1))
        if part_WOI.dtype is deltas_WON.dtype:
            torch.bmm(deltas_WON, inputs_WNI, out=part_WOI)
        else:
            part_WOI.copy_(torch.bmm(deltas_WON, inputs_WNI))


@dataclass(slots=True)
class Gradient:
    """One worker's gradient of a step; the next worker's overwrites `grad_P`.

    Where the loss is not finite, the first element is NaN: kernels that read the gradient anyway
    say so, without a wait for the loss.

    Attributes:
        grad_P: float32 [P], summed over its frames; not set if there are factors.
        rows_WP: float32 [W, P], this and the next workers' gradients, if they are there already;
            None: only this one is.
        factors: of this and the next workers' gradients, for a reducer that takes them.
    """

    grad_P: Tensor
    frames: int
    rows_WP: Tensor | None = None
    factors: Sequence[Factor] | None = None

    def is_finite(self) -> bool:
        """Return whether all elements are finite; reads them all, and waits for the device."""
        return bool(self.grad_P.sum().isfinite())  # one NaN or infinity makes the sum one


@dataclass(slots=True)
class Quanta:
    """A group's sent elements, not added up yet: their counts, times tau, are its gradient.

    Attributes:
        messages: int32 [K] per worker, as in kernels.threshold.
        room_P: float32 [P], which `dense` overwrites.
    """

    messages: list[Tensor]
    tau: float
    room_P: Tensor

    def dense(self) -> Tensor:
        """Return the gradient, float32 [P]."""
        decode.total(self.messages, self.tau, self.room_P)
        return self.room_P

    def descend(self, weights_P: Tensor, rate: float) -> None:
        """Compute weights_P -= rate * dense(), bit for bit; touches only weights that change."""
        decode.update(self.messages, self.tau, rate, weights_P)


@dataclass(slots=True)
class Counts:
    """A group's quanta that are added up already: times tau, they are its gradient.

    Attributes:
        counts_P: float32 [P], integers, which `dense` overwrites.
    """

    counts_P: Tensor
    tau: float

    def dense(self) -> Tensor:
        """Return the gradient, float32 [P]."""
        return self.counts_P.mul_(self.tau)

    def descend(self, weights_P: Tensor, rate: float) -> None:
        """Compute weights_P -= rate * dense(), bit for bit what Quanta does."""
        decode.combine(weights_P, self.counts_P[None], [0], [], [], self.tau, rate, weights_P)


Shared = Quanta | Counts
Update = Tensor | Shared  # a Tensor, float32 [P]: a gradient, or a reducer's own step


def dense(update: Update) -> Tensor:
    """Return an update as a vector to subtract, not yet multiplied by the rate, float32 [P]."""
    return update.dense() if isinstance(update, Shared) else update


@dataclass(slots=True)
class Sent(Summed):
    """What a worker sent to others, each message once, and what it received from them."""

    bits: int = 0  # headers included
    elements: int = 0  # gradient or weight values
    overflows: int = 0  # messages that had no room for all their elements
    received_bits: int = 0  # padding and lengths included
    weights: int = 0  # of `elements`, those of models

    def rescaled(self, before: int, now: int) -> "Sent":
        """Return the sum for `now` workers of which each sent as much as `before` did on average.

        Overflows are a sum whose mean is not taken, so they stay.
        """
        counts = {name: round(value * now / before) for name, value in asdict(self).items()}
        return Sent(**{**counts, "overflows": self.overflows})


class Reducer(ABC):
    """A group's gradients -> the update of its model. This base class has no state.

    Attributes:
        takes_factors: whether gradients may be given as `Gradient.factors`.
    """

    takes_factors = False

    def begin_step(self, reading: int, frames: int) -> None:  # noqa: B027
        """Say how many of the group's workers have minibatches in the next step; their frames."""

    @abstractmethod
    def reduce(self, gradients: Iterable[Gradient], sent: dict[int, Sent]) -> Update | None:
        """Return the update, the same on all of the group; may be one of the given tensors.

        Args:
            gradients: of the group's local workers, in their order; asked for one by one.
            sent: by worker; gets what it sent.
        Returns:
            None if any worker's gradient is not finite: the whole group skips the step.
        """

    def check(self) -> None:  # noqa: B027
        """Wait for deferred checks of the device; raise what they found."""

    def group_state(self) -> dict[str, Any]:
        """Return what is the same on all workers of the group."""
        return {}

    def load_group_state(self, state: dict[str, Any]) -> None:
        """Restore what `group_state` returned."""
        return  # there is none

    def worker_state(self, worker: int) -> dict[str, Any]:
        """Return a local worker's own state.

        Two entries survive a change of the number of workers, dictionaries of tensors by name:
        `owed`, float32 [P] each, whose sum over workers counts, and `parts`, float32 [`part_of`]
        each, one vector [P] cut among the group's workers. All others start afresh.
        """
        return {}

    def load_worker_state(self, worker: int, state: dict[str, Any]) -> None:
        """Restore what `worker_state` returned."""
        return  # there is none

    def part_of(self, place: int, workers: int, size: int) -> range:
        """Return the elements that the group's worker at `place` has in `parts`."""
        return hosted(size, place, workers)

    def measures(self, worker: int) -> tuple[float, float]:
        """Return the threshold, and the sum of squares of what is owed; zeros if there is none."""
        return 0.0, 0.0


class Alone(Reducer):
    """The reducer of a worker that does not share its model: its gradient, unchanged.

    If it resumes a run in which several shared a model, what they still owed each other is added
    once, to its next gradient.
    """

    def __init__(self) -> None:
        self.owed_P: Tensor | None = None

    def reduce(self, gradients: Iterable[Gradient], sent: dict[int, Sent]) -> Tensor | None:
        (gradient,) = gradients
        if not gradient.is_finite():
            return None
        if self.owed_P is not None:
            gradient.grad_P += self.owed_P.to(gradient.grad_P.device)
            self.owed_P = None
        return gradient.grad_P

    def worker_state(self, worker: int) -> dict[str, Any]:
        return {} if self.owed_P is None else {"owed": {"residual_P": self.owed_P}}

    def load_worker_state(self, worker: int, state: dict[str, Any]) -> None:
        self.owed_P = state.get("owed", {}).get("residual_P")


class Dense(Reducer):
    """The reducer that adds up whole gradients, in the order of workers.

    Args:
        wire: what gradients, and then their sum, are rounded to.
    """

    def __init__(self, exchange: Exchange, size: int, wire: torch.dtype = torch.float32) -> None:
        self.exchange, self.size, self.wire = exchange, size, wire

    def reduce(self, gradients: Iterable[Gradient], sent: dict[int, Sent]) -> Tensor | None:
        vectors = (gradient.grad_P for gradient in gradients)
        total_P = self.exchange.sum(vectors, self.size, wire=self.wire)
        for worker in self.exchange.local:
            sent[worker].bits += 8 * self.wire.itemsize * self.size
            sent[worker].elements += self.size
        return total_P if bool(torch.isfinite(total_P.sum())) else None
