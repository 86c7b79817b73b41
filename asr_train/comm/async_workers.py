"""Workers that **do not wait for each other**: what `virtual_time` and `real_time` have in common.

A method with such workers is driven by `run`, in place of the two hooks of comm.method: it takes
some steps of every worker, in whatever order they come to them, and ends with a drain, after which
all messages are everywhere and all models are the same. In between, there is no common model.
"""

import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from asr_train.comm.exchange import PARTS
from asr_train.comm.peers import Peer, Rate
from asr_train.comm.reducers import Gradient, Reducer, Sent


@dataclass(slots=True)
class Staleness:
    """How far a worker was ahead of the others, over some steps."""

    steps: int = 0
    ahead: int = 0  # of the slowest worker whose messages it had, added up over its steps
    most: int = 0
    waited_seconds: float = 0.0  # for others that were too far behind, and for drains
    now: float = 0.0  # virtual time at the end, since the run began; 0 if time is real

    def begin_step(self, ahead: int) -> None:
        """Count a step."""
        self.steps += 1
        self.ahead += ahead
        self.most = max(self.most, ahead)

    def add(self, other: "Staleness") -> None:
        """Count another worker's steps."""
        self.steps += other.steps
        self.ahead += other.ahead
        self.most = max(self.most, other.most)
        self.waited_seconds += other.waited_seconds
        self.now = max(self.now, other.now)


class GradientSource(Protocol):
    """Where gradients come from; steps count from 0 at the beginning of the run."""

    def gradient(self, worker: int, step: int) -> Gradient:
        """At the weights that `AsyncWorkers.run` has put there; overwritten by the next."""

    def finished(self, worker: int, step: int, is_finite: bool) -> None:
        """Its message was sent; if it was not finite, an empty one."""


class AsyncWorkers(Reducer):
    """The workers hosted here, as a group's reducer.

    Attributes:
        sent, leads: by local worker, since they were last taken.
        seconds: of this process, since they were last taken, by `exchange.PARTS`.
    """

    def __init__(self, peers: Sequence[Peer]) -> None:
        self.peers = {peer.worker: peer for peer in peers}
        self.sent = {worker: Sent() for worker in self.peers}
        self.leads = {worker: Staleness() for worker in self.peers}
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @abstractmethod
    def run(
        self, weights_P: Tensor, first: int, steps: int, rate: Rate, learner: GradientSource
    ) -> None:
        """Each worker takes `steps` steps, then all messages are delivered.

        Args:
            weights_P: that all begin with, float32 [P]. Holds those of the worker whose gradient
                is asked for, and in the end those that all have.
            first: the number of the first step.
            rate: of a step.
        Raises:
            MessageError: if a message is damaged or not of this run.
            ReplicaError: if workers that are hosted here differ after the drain.
            ExchangeError: if another process does not answer in time.
        """

    def close(self, error: BaseException | None) -> None:
        """Leave; `error` is why, if it is not the end."""

    def take_lead(self, worker: int) -> Staleness:
        """How far a local worker was ahead since the last call."""
        lead, self.leads[worker] = self.leads[worker], Staleness(now=self.leads[worker].now)
        return lead

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the seconds inside."""
        began = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - began

    # --- as a reducer -----------------------------------------------------------------------------

    def reduce(self, gradients: Iterable[Gradient], sent: dict[int, Sent]) -> Tensor | None:
        raise AssertionError("workers that do not wait for each other have no common step: run()")

    def measures(self, worker: int) -> tuple[float, float]:
        peer = self.peers[worker]
        return peer.tau, float(peer.residual_P.square().sum(dtype=torch.float64))

    def group_state(self) -> dict[str, Any]:
        """After a drain; the same on all workers."""
        peer = next(iter(self.peers.values()))
        return {"tau": peer.tau, "densities": list(peer.densities)}

    def load_group_state(self, state: dict[str, Any]) -> None:
        for peer in self.peers.values() if state else ():  # none from a worker that was alone
            peer.tau = state["tau"]
            peer.densities.clear()
            peer.densities.extend(state["densities"])

    def worker_state(self, worker: int) -> dict[str, Any]:
        return {
            "owed": {"residual_P": self.peers[worker].residual_P},
            "lead": list(astuple(self.leads[worker])),
        }

    def load_worker_state(self, worker: int, state: dict[str, Any]) -> None:
        if "owed" in state:  # not from a worker that was alone
            self.peers[worker].residual_P.copy_(state["owed"]["residual_P"])
        self.leads[worker] = Staleness(*state.get("lead", ()))
