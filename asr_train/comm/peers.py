"""**Asynchronous GTC**, "dead reckoning": every worker sends to every other and waits for none.

    weights = base - rate * tau * counts
A worker keeps the base that all share and an integer ledger of the quanta that it has sent or
received. Whole numbers add up to the same in whatever order messages come; so two workers that have
the same messages have the same weights, to the bit, and after a drain all have. The ledger is
folded into the base there, which is where rate and tau may change.

`Peer` is one worker and knows nothing of time or wires; `VirtualTime` carries messages between the
peers of one process, with speeds and delays drawn from a seed. Plain SGD only: momentum depends on
the order in which messages come.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from asr_train.comm import codec
from asr_train.comm.codec import Flags, Header, Kind, MessageError
from asr_train.comm.method import Gradient, Sent
from asr_train.kernels import threshold


@dataclass(slots=True)
class Inbox:
    """Which of one peer's numbered messages have come: in any order, some perhaps twice."""

    next: int = 0  # all before it are here
    ahead: set[int] = field(default_factory=set)

    def take(self, number: int) -> bool:
        """Whether the message is new."""
        if number < self.next or number in self.ahead:
            return False
        self.ahead.add(number)
        while self.next in self.ahead:
            self.ahead.remove(self.next)
            self.next += 1
        return True


class Peer:
    """One worker.

    Args:
        worker, workers: its number, and how many there are.
        weights_P: that all begin with, float32 [P].
        rate, tau: of the optimizer and the quantum; the same for all, between two drains.
        staleness: how many messages a worker may be ahead of the slowest whose messages it has.
    Attributes:
        number: of messages sent so far.
        residual_P: what was never sent.
    """

    def __init__(
        self,
        worker: int,
        workers: int,
        weights_P: Tensor,
        rate: float,
        tau: float,
        staleness: int,
        kind: Kind = Kind.rice,
    ) -> None:
        threshold.check_size(len(weights_P))
        if staleness < 1:
            raise ValueError(f"staleness is {staleness}; a worker must be allowed one step ahead")
        self.worker, self.workers, self.kind = worker, workers, kind
        self.rate, self.tau, self.staleness = rate, float(np.float32(tau)), staleness
        self.base_P = weights_P.clone()
        self.counts_P = torch.zeros_like(weights_P)  # whole numbers
        self.residual_P = torch.zeros_like(weights_P)
        self._kept_P = torch.zeros_like(weights_P)
        self.inboxes = {peer: Inbox() for peer in range(workers) if peer != worker}
        self.number = 0
        self.sent = Sent()

    def weights(self) -> Tensor:
        """By what is known here."""
        return torch.add(self.base_P, self.counts_P, alpha=-self.rate * self.tau)

    def may_go_on(self) -> bool:
        """Whether nobody is too far behind for another step."""
        heard = [inbox.next for inbox in self.inboxes.values()]
        return not heard or self.number - min(heard) < self.staleness

    def learn(self, gradient: Gradient) -> Tensor:
        """A gradient -> the message for all others, which counts here at once.

        One that is not finite is dropped: its message is empty, the residual stays as it was.
        """
        if gradient.is_finite:
            words_K = threshold.encode(gradient.grad_P, self.residual_P, self.tau, self._kept_P)
            self.residual_P, self._kept_P = self._kept_P, self.residual_P
        else:
            words_K = torch.empty(0, dtype=torch.int32, device=gradient.grad_P.device)
        threshold.decode(words_K, self.counts_P)
        header = Header(
            step=self.number,
            worker=self.worker,
            workers=self.workers,
            size=len(self.base_P),
            tau=self.tau,
            frames=gradient.frames,
            wanted=len(words_K),
            flags=Flags.none if gradient.is_finite else Flags.not_finite,
        )
        message_B = codec.write(words_K, header, self.kind)
        self.number += 1
        self.sent.bits += 8 * len(message_B)
        self.sent.elements += len(words_K)
        return message_B

    def receive(self, message_B: Tensor) -> bool:
        """Take in another's message; False: it had come before.

        Raises:
            MessageError: if it is damaged, or of another run or threshold.
        """
        header, words_K = codec.read(message_B)
        found = (header.workers, header.size, header.tau)
        wanted = (self.workers, len(self.base_P), self.tau)
        if found != wanted or header.worker not in self.inboxes:
            raise MessageError(
                f"worker {self.worker} got a message of worker {header.worker} with (workers, "
                f"parameters, tau) {found} but {wanted} is due; were all started with the same "
                "settings, and drained before tau changed?"
            )
        if not self.inboxes[header.worker].take(header.step):
            return False
        threshold.decode(words_K, self.counts_P)
        return True

    def is_drained(self, numbers: Sequence[int]) -> bool:
        """Whether all messages are here, of which each worker has sent so many."""
        return all(inbox.next == numbers[peer] for peer, inbox in self.inboxes.items())

    def fold(self, rate: float, tau: float) -> None:
        """After a drain: put the ledger into the base; rate and tau are these from now on."""
        self.base_P = self.weights()
        self.counts_P.zero_()
        self.rate, self.tau = rate, float(np.float32(tau))


class VirtualTime:
    """Peers of one process, with speeds and delays by a seed: the same every time.

    Args:
        peers: all workers.
        step_seconds: of the mean worker; each has its own speed, and every step differs a little.
        delay_seconds: a message's mean time on its way, exponentially distributed: messages
            overtake each other.
        seed: of speeds and delays.
    Attributes:
        now: seconds.
        waited_seconds: by worker, for others that were too far behind.
    """

    def __init__(
        self, peers: Sequence[Peer], step_seconds: float, delay_seconds: float, seed: int
    ) -> None:
        self.peers = list(peers)
        self._rng = np.random.Generator(np.random.Philox(seed))
        self._speed = self._rng.lognormal(0.0, 0.3, len(self.peers))
        self._step_seconds, self._delay_seconds = step_seconds, delay_seconds
        self.now = 0.0
        self.waited_seconds = [0.0] * len(self.peers)

    def run(self, steps: int, gradient: Callable[[int, int, Tensor], Gradient]) -> None:
        """Each worker takes `steps` steps; then all messages are delivered.

        Args:
            gradient: of (worker, step, weights), where the step counts from 0 in this call.
        """
        events: list[tuple[float, int, int, Tensor | None]] = []  # when, which, for whom, what
        order = 0
        stalled: dict[int, float] = {}  # since when
        done = [0] * len(self.peers)
        at_work: dict[int, Tensor] = {}  # the weights that a step began with

        def begin(worker: int) -> None:
            nonlocal order
            at_work[worker] = self.peers[worker].weights()
            seconds = self._step_seconds * self._speed[worker] * self._rng.lognormal(0.0, 0.1)
            order += 1
            heapq.heappush(events, (self.now + seconds, order, worker, None))

        def begin_or_stall(worker: int) -> None:
            if done[worker] == steps:
                return
            if self.peers[worker].may_go_on():
                self.waited_seconds[worker] += self.now - stalled.pop(worker, self.now)
                begin(worker)
            else:
                stalled.setdefault(worker, self.now)

        for worker in range(len(self.peers)):
            begin_or_stall(worker)
        while events:
            self.now, _, worker, message_B = heapq.heappop(events)
            if message_B is not None:
                self.peers[worker].receive(message_B)
                if worker in stalled:
                    begin_or_stall(worker)
                continue
            found = gradient(worker, done[worker], at_work.pop(worker))
            message_B = self.peers[worker].learn(found)
            done[worker] += 1
            for other in range(len(self.peers)):
                if other != worker:
                    delay = self._rng.exponential(self._delay_seconds)
                    order += 1
                    heapq.heappush(events, (self.now + delay, order, other, message_B))
            begin_or_stall(worker)
        numbers = [peer.number for peer in self.peers]
        assert all(peer.is_drained(numbers) for peer in self.peers)
