"""**The optimizer of a group's model**: what its reducer returns -> new weights, in place.

A reducer returns a gradient, quanta that are still to be added up, or a step that its own optimizer
has made already (Seide et al., 2014, section 2: the owner of a part applies AdaGrad and momentum
before it quantizes again). Knows nothing of workers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asr_train.comm.reducers import Quanta, Step, Update


class Momentum:
    """SGD on summed gradients: v <- momentum * v + grad; w <- w - rate * v.

    Attributes:
        velocity_P: v, float32 [P]; None without momentum.
    """

    def __init__(self, like_P: Tensor, momentum: float) -> None:
        self.momentum = momentum
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
            if self.velocity_P is None:
                update.descend(weights_P, rate)
                return
            update = update.dense()
        if self.velocity_P is not None:
            update = self.velocity_P.mul_(self.momentum).add_(update)
        weights_P.add_(update, alpha=-rate)

    def reset(self) -> None:
        """Forget the velocity."""
        if self.velocity_P is not None:
            self.velocity_P.zero_()

    def state(self) -> dict[str, Any]:
        """Return tensors for a checkpoint; the same on all workers of the group."""
        return {} if self.velocity_P is None else {"velocity_P": self.velocity_P}

    def load_states(self, states: list[dict[str, Any]]) -> None:
        """Restore one `state`, or the mean of several groups' where their number has changed."""
        if self.velocity_P is not None:
            self.velocity_P.copy_(mean([state["velocity_P"] for state in states]))


@dataclass(slots=True)
class Replica:
    """A model that a group shares, and its optimizer."""

    weights_P: Tensor
    optimizer: Momentum


def mean(vectors: list[Tensor]) -> Tensor:
    """Return the mean of vectors [P], added up in order; a copy of a single one."""
    total_P = vectors[0].clone()
    for vector_P in vectors[1:]:
        total_P += vector_P
    return total_P if len(vectors) == 1 else total_P / len(vectors)
