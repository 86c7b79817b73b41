"""Asynchronous workers of several processes, one each, in **real time**: messages go over TCP.

Which messages a worker has when it begins a step depends on timing; so, unless the staleness is 0,
runs are not reproducible.
"""

import time

from torch import Tensor

from asr_train.comm import codec
from asr_train.comm.async_workers import AsyncWorkers, GradientSource, Staleness
from asr_train.comm.exchange import ExchangeError
from asr_train.comm.ledger import Rate
from asr_train.comm.links import Links
from asr_train.comm.peers import Peer


class RealTime(AsyncWorkers):
    """The worker of this process, and its connections to the others."""

    def __init__(self, peer: Peer, links: Links) -> None:
        super().__init__([peer], peer.thresholds)
        self.peer, self.links = peer, links

    def run(
        self, weights_P: Tensor, first: int, steps: int, rate: Rate, learner: GradientSource
    ) -> None:
        peer, worker = self.peer, self.peer.worker
        peer.begin(first, weights_P, rate)
        for step in range(first, first + steps):
            self._wait(step - peer.staleness)  # until no worker is too far behind for another step
            self.staleness[worker].add(Staleness(1, peer.steps_ahead, peer.steps_ahead))
            gradient = learner.gradient(worker, step, peer.weights)
            assert gradient is not None  # as there is one worker
            with self.timed("compress"):
                message = peer.learn(step, gradient)
                message_B = codec.write(message.words_K, message.header, peer.kind)
            self.links.send(message_B)
            self._count(message, len(message_B))
            peer.receive(message)
            learner.finished(worker, step, message.is_finite)
        self._wait(first + steps)
        weights_P.copy_(peer.base_P)

    def close(self, error: BaseException | None) -> None:
        self.links.close(error)

    def _wait(self, step: int) -> None:
        """Receive what has arrived, and then more until all messages of the steps before are here.

        Raises:
            ExchangeError: if for comm.timeout_seconds nothing arrives from those that are.
        """
        while self._take(0.0) is not None:
            pass
        began = heard = time.monotonic()
        while late := self.peer.missing(step):
            left = heard + self.links.timeout_seconds - time.monotonic()
            if left <= 0:
                raise ExchangeError(
                    f"process {', '.join(map(str, late))} of {self.links.processes} did not answer "
                    f"in {time.monotonic() - heard:.1f} s (comm.timeout_seconds is "
                    f"{self.links.timeout_seconds:g}; its messages up to step "
                    f"{self.peer.base_step} are here, and worker {self.peer.worker} has taken "
                    f"{self.peer.number}); look at its output, then start again: training resumes "
                    "from the last checkpoint"
                )
            if self._take(left) in late:
                heard = time.monotonic()
        self.staleness[self.peer.worker].waited_seconds += time.monotonic() - began

    def _take(self, seconds: float) -> int | None:
        """Receive the next message; return its sender."""
        with self.timed("transfer"):
            arrived = self.links.receive(seconds)
        if arrived is None:
            return None
        sender, message_B = arrived
        self.peer.receive(self.peer.read(message_B.to(self.peer.residual_P.device), sender))
        return sender
