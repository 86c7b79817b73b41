"""The **hooks of every method**: what happens to gradients before an update, to weights after it.

A method says which workers share a model (a group), adds up a group's gradients (`reduce_gradient`)
and may change the models once they are updated (`after_update`). It works for all the workers that
a process hosts: their gradients come one by one, so that many workers need only one gradient's
memory. Knows nothing of networks, shards or how weights are updated.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from asr_train.comm.async_workers import AsyncWorkers
from asr_train.comm.exchange import PARTS, Exchange, hosted
from asr_train.comm.reducers import Blocks, Gradient, Quanta, Reducer, Replica, Sent


class ExchangeMethod:
    """What the workers hosted here exchange; each of `comm.methods` is one, with other parts.

    Args:
        exchange: of all workers.
        groups: of those that have a worker here.
        reducers: one a group.
        blocks: None: groups never meet (or there is only one).
    Attributes:
        ahead: of workers that do not wait for each other: drives them, in place of the two hooks.
        notice: what a user should know of it when a run starts; None: nothing.
    """

    ahead: AsyncWorkers | None = None
    notice: str | None = None

    def __init__(
        self,
        exchange: Exchange,
        groups: Sequence[Exchange],
        reducers: Sequence[Reducer],
        blocks: Blocks | None = None,
    ) -> None:
        assert len(groups) == len(reducers)
        self.exchange, self.groups = exchange, list(groups)
        self.reducers, self.blocks = list(reducers), blocks
        self.sent = {worker: Sent() for worker in exchange.local}
        self.seconds = dict.fromkeys(PARTS, 0.0)

    # --- the two hooks ----------------------------------------------------------------------------

    def reduce_gradient(self, group: int, gradients: Iterable[Gradient]) -> Tensor | None:
        """The gradient to update a group's model with: the sum over its workers, or what stands for
        it. May be one of the tensors that came in.

        Args:
            group: its place in `groups`.
            gradients: of the group's local workers, in their order; asked for one by one.
        Returns:
            float32 [P], the same on all of the group; None: all of them skip this step.
        """
        with self._counted(self.groups[group]):
            return self.reducers[group].reduce(gradients, self.sent)

    def reduce_quanta(self, group: int, gradients: Iterable[Gradient]) -> Tensor | Quanta | None:
        """As `reduce_gradient`, but hits may be left to be added up as they are used."""
        with self._counted(self.groups[group]):
            return self.reducers[group].quanta(gradients, self.sent)

    def after_update(self, replicas: Sequence[Replica]) -> None:
        """May change the models, once they are updated (or the step was skipped).

        Args:
            replicas: one a group, in the order of `groups`.
        """
        if self.blocks is not None:
            with self._counted(self.exchange):
                self.blocks.after_update(replicas, self.sent)

    # --- the beginning, and the ends of epochs ----------------------------------------------------

    def begin(self, weights_P: Tensor) -> None:
        """Take note of the weights that all workers begin with."""
        if self.blocks is not None:
            self.blocks.begin(weights_P)

    def end_epoch(self, replicas: Sequence[Replica]) -> None:
        """Let all replicas be the same: a block that has begun ends here."""
        if self.blocks is not None:
            with self._counted(self.exchange):
                self.blocks.finish(replicas, self.sent)

    def exported(self, replica: Replica) -> Tensor:
        """The weights to evaluate and to keep, after `end_epoch`."""
        return replica.weights_P if self.blocks is None else self.blocks.exported()

    def close(self, error: BaseException | None) -> None:
        """Leave the other processes; `error` is why, if it is not the end."""
        if self.ahead is not None:
            self.ahead.close(error)

    # --- counts and state -------------------------------------------------------------------------

    def take_sent(self, worker: int) -> Sent:
        """What a local worker sent since the last call."""
        sent, self.sent[worker] = self.sent[worker], Sent()
        return sent

    def take_seconds(self) -> dict[str, float]:
        """Of this process in the parts of its exchanges since the last call; see `Exchange`."""
        seconds, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return seconds

    @contextlib.contextmanager
    def _counted(self, exchange: Exchange) -> Iterator[None]:
        before, seconds = dict(exchange.wire_bits), dict(exchange.seconds)
        yield
        for worker, bits in exchange.wire_bits.items():
            self.sent[worker].wire_bits += bits - before[worker]
        for part in PARTS:
            self.seconds[part] += exchange.seconds[part] - seconds[part]

    def measures(self, worker: int) -> tuple[float, float]:
        """A local worker's threshold, and the sum of squares of what it owes."""
        return self.reducers[self.group_of(worker)].measures(worker)

    def group_of(self, worker: int) -> int:
        """The place in `groups` of a local worker's group."""
        return next(i for i, group in enumerate(self.groups) if worker in group.local)

    def shared_state(self) -> dict[str, Any]:
        """Tensors and plain data that are the same on all workers."""
        return {} if self.blocks is None else self.blocks.state()

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Takes what `shared_state` gave."""
        if self.blocks is not None:
            self.blocks.load_state(state)

    def group_state(self, group: int) -> dict[str, Any]:
        """What is the same on all workers of a group."""
        return self.reducers[group].group_state()

    def load_group_state(self, group: int, state: dict[str, Any]) -> None:
        """Takes what `group_state` gave."""
        self.reducers[group].load_group_state(state)

    def worker_state(self, worker: int) -> dict[str, Any]:
        """What is a local worker's own."""
        return {
            "sent": list(astuple(self.sent[worker])),
            **self.reducers[self.group_of(worker)].worker_state(worker),
        }

    def load_worker_state(self, worker: int, state: dict[str, Any]) -> None:
        """Takes what `worker_state` gave."""
        self.sent[worker] = Sent(*state["sent"])
        self.reducers[self.group_of(worker)].load_worker_state(worker, state)

    def load_resized(self, states: Iterable[dict[str, Any]], models: int) -> float:
        """Take over from a run with another number of workers.

        What all of them owed, a model, is dealt out to those who share one now, a slice of the
        elements each, so that nothing is rounded; on models that are averaged it will count as much
        as it would have.

        Args:
            states: the `worker_state` of each worker of that run, in order.
            models: how many groups there were.
        Returns:
            The sum of squares of what is owed a model.
        """
        owed_P: Tensor | None = None
        sent = Sent()
        for state in states:
            sent.add(Sent(*state["sent"]))
            if "residual_P" in state:
                residual_P = state["residual_P"]
                owed_P = residual_P.clone() if owed_P is None else owed_P.add_(residual_P)
        if owed_P is not None and models > 1:
            owed_P /= models
        for group in self.groups:
            for worker in group.local:
                is_first = worker == self.exchange.members[0]
                counted = sent if is_first else Sent()
                state = {"sent": list(astuple(counted))}
                if owed_P is not None:
                    own = hosted(len(owed_P), worker - group.members[0], len(group))
                    state["residual_P"] = torch.zeros_like(owed_P, device=self.exchange.device)
                    state["residual_P"][own.start : own.stop] = owed_P[own.start : own.stop]
                self.load_worker_state(worker, state)
        return 0.0 if owed_P is None else float(owed_P.double().square().sum())
