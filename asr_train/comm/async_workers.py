"""**Asynchronous workers**: what `virtual_time` and `real_time` have in common.

`run` drives them, in place of `reduce` and `apply` of comm.method: each worker takes some steps at
its own pace; then a drain delivers all messages, after which all models are identical. In between,
there is no common model.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from asr_train.comm.exchange import Timed
from asr_train.comm.ledger import Rate
from asr_train.comm.links import FRAME_BYTES
from asr_train.comm.peers import Message, Sender, Thresholds
from asr_train.comm.reducers import Gradient, Reducer, Sent


@dataclass(slots=True)
class Staleness:
    """How far a worker was ahead of the others, over some steps."""

    steps: int = 0
    total: int = 0  # steps ahead of the slowest worker whose messages it had, over its steps
    most: int = 0
    waited_seconds: float = 0.0  # for workers that were too far behind, and for drains
    now: float = 0.0  # virtual time at the end, since the run began; 0 in real time

    def add(self, other: "Staleness") -> None:
        """Count further steps, or another worker's."""
        self.steps += other.steps
        self.total += other.total
        self.most = max(self.most, other.most)
        self.waited_seconds += other.waited_seconds
        self.now = max(self.now, other.now)


class GradientSource(Protocol):
    """Computes gradients; steps count from 0 at the beginning of the run.

    Attributes:
        most: gradients that may be outstanding; 0: none ever is.
    """

    most: int

    def gradient(
        self, worker: int, step: int, write_weights: Callable[[Tensor], None]
    ) -> Gradient | None:
        """Return the gradient at the weights that `write_weights` writes into a float32 [P].

        The next call overwrites it. A worker without a minibatch needs no weights. None: `late`
        returns it, and the worker's next step must not begin before.
        """

    def late(self) -> Iterable[tuple[int, Gradient]]:
        """Return all outstanding gradients, each with its worker; the next one may overwrite it."""

    def finished(self, worker: int, step: int, is_finite: bool) -> None:
        """Note that the gradient's message was sent: an empty one if it was not finite."""


class AsyncWorkers(Timed, Reducer):
    """The workers hosted here, as a group's reducer.

    Attributes:
        sent, staleness: by local worker, since they were last reset.
        seconds: of this process, since they were last reset.
        now: virtual seconds since the run began; 0 in real time.
    """

    now = 0.0

    def __init__(self, peers: Sequence[Sender], thresholds: Thresholds) -> None:
        super().__init__()
        self.peers, self.thresholds = {peer.worker: peer for peer in peers}, thresholds
        self.sent = {worker: Sent() for worker in self.peers}
        self.staleness = {worker: Staleness() for worker in self.peers}

    @abstractmethod
    def run(
        self, weights_P: Tensor, first: int, steps: int, rate: Rate, learner: GradientSource
    ) -> None:
        """Take `steps` steps with each worker, then deliver all messages.

        Args:
            weights_P: float32 [P]: the weights that all begin with; on return, the final weights of
                all. In between, the learner may write to it.
            first: the number of the first step.
            rate: the learning rate of a step.
        Raises:
            MessageError: if a message is damaged or not of this run.
            ExchangeError: if another process does not answer in time.
        """

    def close(self, error: BaseException | None) -> None:
        """Leave the other processes; `error` is the reason, None at the end of the run."""

    def take_staleness(self, worker: int) -> Staleness:
        """Return how far a local worker was ahead since the last call."""
        found = self.staleness[worker]
        self.staleness[worker] = Staleness(now=found.now)
        return found

    def _count(self, message: Message, message_bytes: int) -> None:
        """Count a message, for all who receive it, too: when it arrives there is chance."""
        others, sent = message.header.workers - 1, self.sent[message.header.worker]
        sent.bits += 8 * message_bytes
        sent.elements += len(message.words_K)
        sent.received_bits += 8 * others * (FRAME_BYTES + message_bytes)

    # --- as a reducer -----------------------------------------------------------------------------

    def reduce(self, gradients: Iterable[Gradient], sent: dict[int, Sent]) -> Tensor | None:
        raise AssertionError("asynchronous workers have no common step; call run()")

    def measures(self, worker: int) -> tuple[float, float]:
        residual_P = self.peers[worker].residual_P
        return self.thresholds.tau, float(residual_P.square().sum(dtype=torch.float64))

    def group_state(self) -> dict[str, Any]:
        """Return the state after a drain, the same on all workers."""
        return {"tau": self.thresholds.tau, "densities": list(self.thresholds.densities)}

    def load_group_state(self, state: dict[str, Any]) -> None:
        if state:  # empty from a run with one worker
            self.thresholds.tau = state["tau"]
            self.thresholds.densities = deque(state["densities"])

    def worker_state(self, worker: int) -> dict[str, Any]:
        return {
            "owed": {"residual_P": self.peers[worker].residual_P},
            "lead": list(astuple(self.staleness[worker])),
        }

    def load_worker_state(self, worker: int, state: dict[str, Any]) -> None:
        if "owed" in state:  # absent from a run with one worker
            self.peers[worker].owe(state["owed"]["residual_P"])
        self.staleness[worker] = Staleness(*state.get("lead", ()))
