"""**What every method does in a step**: gradients -> an update of each group's model -> blocks.

A method says which workers share a model (a group), turns a group's gradients into an update
(`reduce`), applies it, and may change the models afterwards (`after_update`). It holds the models
and optimizers of the groups that have a worker in this process. Gradients come one by one, so that
many workers need only one gradient's memory. Knows nothing of networks or shards.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from asr_train.comm.async_workers import AsyncWorkers
from asr_train.comm.blocks import MomentumBlocks
from asr_train.comm.exchange import PARTS, Exchange, hosted
from asr_train.comm.optimizer import Adagrad, Momentum, Replica, Shape, Total, mean
from asr_train.comm.reducers import Gradient, Reducer, Sent, Update
from asr_train.schema import AdagradPlace, AdagradSettings


@dataclass(eq=False)
class ExchangeMethod:
    """The exchange among workers; each of `comm.methods` is one, with parts of its own.

    Args:
        exchange: of all workers.
        groups: those that have a worker here.
        reducers: one per group.
        blocks: None: groups never exchange models (or there is only one).
        halves: steps that a minibatch of several workers is cut into; 2 with double buffering.
        asynchronous: drives workers, in place of `reduce` and `apply`; None: they are synchronous.
        notice: line to print when a run starts; None: nothing.
    Attributes:
        replicas: one per group, once `begin` was called.
        shapes: of their parameters.
    """

    exchange: Exchange
    groups: Sequence[Exchange]
    reducers: Sequence[Reducer]
    blocks: MomentumBlocks | None = None
    halves: int = 1
    asynchronous: AsyncWorkers | None = None
    notice: str | None = None

    def __post_init__(self) -> None:
        self.sent = {worker: Sent() for worker in self.exchange.local}
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.replicas: list[Replica] = []
        self.shapes: Sequence[Shape] = []
        self.partial: dict[int, Adagrad] = {}  # by local worker: of its own gradient
        self.total: Total | None = None  # set before `begin` if models are cut into stripes

    # --- a step -----------------------------------------------------------------------------------

    def begin_step(self, reading: int, frames: int) -> None:
        """Say what is known of the next step, the same on all workers.

        Args:
            reading: how many of each group's workers have minibatches in this part of training.
            frames: of each of their minibatches.
        """
        for reducer in self.reducers:
            reducer.begin_step(reading, reading * frames)
        for replica in self.replicas:
            replica.optimizer.frames = reading * frames

    @contextlib.contextmanager
    def undelayed(self) -> Iterator[None]:
        """Apply every update at once, inside, where a method has late ones."""
        yield

    def reduce(self, group: int, gradients: Iterable[Gradient]) -> Update | None:
        """Return the update of a group's model, the same on all of the group.

        Args:
            group: its place in `groups`.
            gradients: of the group's local workers, in their order; asked for one by one.
        Returns:
            None if a gradient was not finite: the whole group skips this step.
        """
        squares: dict[int, Tensor] = {}
        if self.partial:
            gradients = self._normalized(self.groups[group].local, gradients, squares)
        with self._counted(self.groups[group]):
            update = self.reducers[group].reduce(gradients, self.sent)
        if update is not None:
            for worker, squares_P in squares.items():
                self.partial[worker].squares_P = squares_P
        return update

    def _normalized(
        self, workers: range, gradients: Iterable[Gradient], squares: dict[int, Tensor]
    ) -> Iterator[Gradient]:
        """Yield gradients after AdaGrad; `squares` gets what its state is after them."""
        for worker, gradient in zip(workers, gradients, strict=True):
            adagrad = self.partial.get(worker)
            if adagrad is not None and gradient.is_finite():
                squares[worker] = adagrad.after(gradient.grad_P, gradient.frames)
                gradient.grad_P.copy_(adagrad.normalized(gradient.grad_P, squares[worker]))
            yield replace(gradient, rows_WP=None)  # the others' are not normalised yet

    @property
    def takes_factors(self) -> bool:
        """Whether gradients for `reduce` may be given as factors."""
        return not self.partial and all(reducer.takes_factors for reducer in self.reducers)

    def apply(self, group: int, update: Update, rate: float) -> None:
        """Change a group's model by what `reduce` returned; the rate is per frame."""
        replica = self.replicas[group]
        replica.optimizer.apply(replica.weights_P, update, rate)

    def after_update(self) -> None:
        """Exchange models if a block ends, once all groups have updated theirs or skipped."""
        if self.blocks is not None:
            with self._counted(self.exchange):
                self.blocks.after_update(self.replicas, self.sent)

    def check(self) -> None:
        """Raise MessageError if an update came from a damaged message; call before saving."""
        for reducer in self.reducers:
            reducer.check()

    # --- the beginning, and the ends of epochs ----------------------------------------------------

    def begin(
        self,
        weights_P: Tensor,
        momentum: float,
        shapes: Sequence[Shape] | None = None,
        adagrad: AdagradSettings | None = None,
    ) -> None:
        """Set the weights that all workers begin with; the first group here uses them in place.

        Args:
            momentum: of the optimizer; 0: none.
            shapes: of the parameters that the weights consist of; None: they are one vector.
            adagrad: None: none.
        Raises:
            ValueError: if AdaGrad's place is for a single worker, but there are several.
        """
        self.shapes = [tuple(weights_P.shape)] if shapes is None else shapes
        shares = max(map(len, self.groups)) > 1
        if adagrad is not None and adagrad.place is AdagradPlace.raw and shares:
            raise ValueError(
                "optim.adagrad.place is raw, which is for a single worker; choose partial or "
                "aggregate"
            )
        if adagrad is not None and adagrad.place is AdagradPlace.partial and shares:
            for worker in self.exchange.local:
                self.partial[worker] = self._adagrad(adagrad)
            adagrad = None  # of the models
        for _ in self.groups:
            own_P = weights_P.clone() if self.replicas else weights_P
            self.replicas.append(self._replica(own_P, momentum, adagrad))
        if self.blocks is not None:
            self.blocks.begin(weights_P)

    def _adagrad(self, settings: AdagradSettings) -> Adagrad:
        runs = [(m, math.prod(shape)) for m, shape in enumerate(self.shapes)]
        return Adagrad(settings, runs, self.exchange.device, self.total)

    def _replica(
        self, weights_P: Tensor, momentum: float, adagrad: AdagradSettings | None
    ) -> Replica:
        """Return a group's model and optimizer."""
        own = None if adagrad is None else self._adagrad(adagrad)
        return Replica(weights_P, Momentum(weights_P, momentum, own))

    def end_epoch(self) -> None:
        """Make all replicas identical, by ending a block that has begun."""
        if self.blocks is not None:
            with self._counted(self.exchange):
                self.blocks.finish(self.replicas, self.sent)

    def exported(self) -> Tensor:
        """Return the weights to evaluate and to keep, after `end_epoch`."""
        return self.replicas[0].weights_P if self.blocks is None else self.blocks.momentum.weights_P

    def close(self, error: BaseException | None) -> None:
        """Leave the other processes; `error` is the reason, None at the end of the run."""
        if self.asynchronous is not None:
            self.asynchronous.close(error)

    # --- counts and state -------------------------------------------------------------------------

    def take_sent(self, worker: int) -> Sent:
        """Return what a local worker sent since the last call."""
        sent, self.sent[worker] = self.sent[worker], Sent()
        return sent

    def take_seconds(self) -> dict[str, float]:
        """Return this process's seconds since the last call, by part of `exchange.PARTS`."""
        seconds = dict(self.seconds)
        self.seconds.update(dict.fromkeys(PARTS, 0.0))  # in place: asynchronous workers share it
        return seconds

    @contextlib.contextmanager
    def _counted(self, exchange: Exchange) -> Iterator[None]:
        before, seconds = dict(exchange.received_bits), dict(exchange.seconds)
        yield
        for worker, bits in exchange.received_bits.items():
            self.sent[worker].received_bits += bits - before[worker]
        for part in PARTS:
            self.seconds[part] += exchange.seconds[part] - seconds[part]

    def measures(self, worker: int) -> tuple[float, float]:
        """Return a local worker's threshold, and the sum of squares of what it owes."""
        return self.reducers[self.group_of(worker)].measures(worker)

    def group_of(self, worker: int) -> int:
        """Return the place in `groups` of a local worker's group."""
        return next(i for i, group in enumerate(self.groups) if worker in group.local)

    def shared_state(self) -> dict[str, Any]:
        """Return tensors and plain data that are the same on all workers."""
        return {} if self.blocks is None else self.blocks.state()

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Restore what `shared_state` returned."""
        if self.blocks is not None:
            self.blocks.load_state(state)

    def group_state(self, group: int) -> dict[str, Any]:
        """Return what is the same on all workers of a group: its model, optimizer and reducer."""
        replica = self.replicas[group]
        return {
            "weights_P": replica.weights_P,
            "optimizer": replica.optimizer.state(),
            "reducer": self.reducers[group].group_state(),
        }

    def load_group_states(self, group: int, states: list[dict[str, Any]]) -> None:
        """Restore what `group_state` returned: for this group, or for all groups of another run.

        In the latter case the model and the optimizer's state are the groups' mean.
        """
        replica = self.replicas[group]
        replica.weights_P.copy_(mean([state["weights_P"] for state in states]))
        replica.optimizer.load_states([state["optimizer"] for state in states])
        self.reducers[group].load_group_state(states[0]["reducer"])

    def worker_state(self, worker: int) -> dict[str, Any]:
        """Return a local worker's own state."""
        state = self.reducers[self.group_of(worker)].worker_state(worker)
        if worker in self.partial:
            state = {**state, "squares_P": self.partial[worker].squares_P}
        return {"sent": list(astuple(self.sent[worker])), **state}

    def load_worker_state(self, worker: int, state: dict[str, Any]) -> None:
        """Restore what `worker_state` returned."""
        self.sent[worker] = Sent(*state["sent"])
        if worker in self.partial and "squares_P" in state:  # else they begin anew
            self.partial[worker].squares_P.copy_(state["squares_P"])
        self.reducers[self.group_of(worker)].load_worker_state(worker, state)

    def load_resized(self, states: Iterable[dict[str, Any]], models: int) -> float:
        """Take over workers' states from a run with another number of workers.

        What all of them owed, per model, is divided among the workers that now share one, a slice
        of the elements each, so that nothing is rounded; where models are averaged, its effect is
        the same. Vectors that were cut into the workers' parts are cut anew. What was sent is
        counted so that means over the workers stay.

        Args:
            states: the `worker_state` of each worker of that run, in order.
            models: how many groups there were.
        Returns:
            The sum of squares of what is owed per model.
        """
        sent, owed, parts = Sent(), dict[str, Tensor](), dict[str, list[Tensor]]()
        before = 0
        for state in states:
            before += 1
            sent += Sent(*state["sent"])
            for name, vector_P in state.get("owed", {}).items():
                owed[name] = owed[name].add_(vector_P) if name in owed else vector_P.clone()
            for name, part in state.get("parts", {}).items():
                parts.setdefault(name, []).append(part)
        if models > 1:
            owed = {name: vector_P / models for name, vector_P in owed.items()}
        sent = sent.rescaled(before, len(self.exchange))
        whole = {name: torch.cat(cut).view(models, -1).mean(0) for name, cut in parts.items()}
        for group, reducer in zip(self.groups, self.reducers, strict=True):
            for worker in group.local:
                where = worker - group.members[0], len(group)
                counted = sent if worker == self.exchange.members[0] else Sent()
                state = {"sent": list(astuple(counted))}
                for name, vector_P in owed.items():
                    own = hosted(len(vector_P), *where)
                    dealt_P = torch.zeros_like(vector_P, device=self.exchange.device)
                    dealt_P[own.start : own.stop] = vector_P[own.start : own.stop]
                    state.setdefault("owed", {})[name] = dealt_P
                for name, vector_P in whole.items():
                    own = reducer.part_of(*where, len(vector_P))
                    part = vector_P[own.start : own.stop].to(self.exchange.device)
                    state.setdefault("parts", {})[name] = part
                self.load_worker_state(worker, state)
        return sum(float(vector_P.double().square().sum()) for vector_P in owed.values())
