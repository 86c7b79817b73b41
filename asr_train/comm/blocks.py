"""**Block momentum**: every few steps, all groups' weights -> the model, and the next start.

    W(t)    the model            S(t)    where workers begin block t + 1
    G(t)  = mean of the workers' weights - S(t-1)            (2)
    D(t)  = eta D(t-1) + zeta G(t)                           (3)
    classical   W(t) = W(t-1) + D(t)                 S(t) = W(t)
    chen_huo    W(t) = W(t-1) + D(t)                 S(t) = W(t) + eta D(t)      Nesterov
    printed     W(t) = W(t-1) + D(t) + eta D(t)      S(t) = W(t)
Equation numbers are those of Ladkat et al. (2019), whose equation (4) is `printed`: it moves the
model by (1 + eta) D(t) per block, which is classical block momentum with zeta (1 + eta), while Chen
and Huo (2016) only look ahead. With eta = 0 and zeta = 1 all three are plain averaging, and are
computed as such, without rounding.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asr_train.comm.exchange import Exchange
from asr_train.comm.optimizer import Replica
from asr_train.comm.reducers import Sent
from asr_train.schema import BlockForm, BlockVelocity, BmufSettings


class BlockUpdate:
    """The arithmetic of block momentum, on whole vectors.

    Attributes:
        begun_eta: with which S was computed; another one than `eta` if the number of models, on
            which that depends, has changed since.
    """

    def __init__(self, form: BlockForm, eta: float, zeta: float, weights_P: Tensor) -> None:
        self.form, self.eta, self.zeta = form, float(eta), float(zeta)
        self.begun_eta = self.eta
        self.weights_P = weights_P.clone()
        self.delta_P = torch.zeros_like(weights_P)

    def step(self, mean_P: Tensor, began_P: Tensor | None = None) -> Tensor:
        """Update the model with the workers' mean weights at the end of a block.

        Args:
            began_P: S(t-1) as workers have it, if their weights have fewer bits.
        Returns:
            S, where workers begin the next block, in the memory of mean_P.
        """
        if self.eta == self.begun_eta == 0 and self.zeta == 1:
            self.delta_P = mean_P - self.weights_P
            self.weights_P.copy_(mean_P)
            return mean_P
        gain_P = mean_P.sub_(self.start() if began_P is None else began_P)
        self.begun_eta = self.eta
        self.delta_P.mul_(self.eta).add_(gain_P, alpha=self.zeta)
        ahead = 1 + self.eta if self.form is BlockForm.printed else 1.0
        self.weights_P.add_(self.delta_P, alpha=ahead)
        return mean_P.copy_(self.start())

    def start(self) -> Tensor:
        """Return S, from W and D of the same block; it may be W itself."""
        look = self.begun_eta if self.form is BlockForm.chen_huo else 0.0
        return self.weights_P.add(self.delta_P, alpha=look) if look else self.weights_P

    def state(self) -> dict[str, Any]:
        """Return tensors and plain data for a checkpoint."""
        names = ("weights_P", "delta_P", "begun_eta")
        return {name: getattr(self, name) for name in names}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; one of an older version has no `begun_eta`."""
        self.weights_P.copy_(state["weights_P"])
        self.delta_P.copy_(state["delta_P"])
        self.begun_eta = state.get("begun_eta", self.eta)


class MomentumBlocks:
    """One model per group; groups exchange them every `block_steps` steps.

    The first worker of each group sends its weights; all workers get the sum, and compute the rest
    identically.

    Args:
        exchange: of all workers.
        leaders: the first worker of each group.
    """

    def __init__(self, exchange: Exchange, leaders: Sequence[int], settings: BmufSettings) -> None:
        self.exchange, self.leaders, self.settings = exchange, list(leaders), settings
        self.eta = settings.momentum(len(leaders))
        self.position = 0  # steps into the block

    def begin(self, weights_P: Tensor) -> None:
        """Set the model; comes first."""
        self.momentum = BlockUpdate(self.settings.form, self.eta, self.settings.zeta, weights_P)

    def after_update(self, replicas: Sequence[Replica], sent: dict[int, Sent]) -> None:
        """Count a step; exchange models at the last step of a block. Skipped steps count."""
        self.position += 1
        if self.position == self.settings.block_steps:
            self.finish(replicas, sent)

    def finish(self, replicas: Sequence[Replica], sent: dict[int, Sent]) -> None:
        """End the block here, unless none has begun; all replicas are identical then."""
        if self.position == 0:
            return
        ours = [worker for worker in self.leaders if worker in self.exchange.local]
        # A group whose first worker is hosted elsewhere has a replica here that is not sent
        led = replicas[len(replicas) - len(ours) :]
        size = len(self.momentum.weights_P)
        mean_P = self.exchange.sum((r.weights_P for r in led), size, self.leaders)
        mean_P /= len(self.leaders)
        for worker in ours:
            sent[worker].bits += 32 * size
            sent[worker].elements += size
            sent[worker].weights += size
        start_P = self.momentum.step(mean_P)
        for replica in replicas:
            replica.weights_P.copy_(start_P)
            if self.settings.velocity is BlockVelocity.reset:
                replica.optimizer.reset()
        self.position = 0

    def state(self) -> dict[str, Any]:
        return {**self.momentum.state(), "position": self.position}

    def load_state(self, state: dict[str, Any]) -> None:
        if not state:  # of a run with a single model, whose weights `begin` was given
            return
        self.momentum.load_state(state)
        self.position = state["position"]
