"""**Asynchronous GTC**, "dead reckoning": a worker that applies whatever messages it has.

in    gradients, and the other workers' messages, in any order, possibly repeated
out   messages, one per step; the weights by all messages received so far

A quantum of step n is worth rate(n) * tau(n), whenever its message is read. When all workers'
messages of a step have arrived, their integer counts are added up and move the base, step by step:
bit for bit what synchronous GTC does. Later, incomplete steps are applied on top:

    weights = base - sum over open steps of rate * tau * counts
So workers with the same messages have bit-identical weights; after a drain all do.

With a staleness of S, a worker that begins step m has all messages of steps before m - S, and uses
none of steps from m + S on. So S = 0 *is* synchronous GTC, however long messages take. As all
workers have the messages before m - S, an adaptive tau of step m depends on those.

Knows nothing of time or transport. Plain SGD only: momentum would depend on the order of messages.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from asr_train import schema
from asr_train.comm import codec
from asr_train.comm.codec import Flags, Header, Kind, MessageError
from asr_train.comm.gtc import adapted
from asr_train.comm.ledger import Ledger, Words
from asr_train.comm.reducers import Gradient, Sent
from asr_train.kernels import threshold

Rate = Callable[[int], float]  # step -> learning rate per frame, the same on all workers


@dataclass(slots=True)
class Inbox:
    """Which of one worker's numbered messages have arrived, in any order, possibly repeated."""

    next: int = 0  # all before it have arrived
    ahead: set[int] = field(default_factory=set)

    def take(self, number: int) -> bool:
        """Note that a message has arrived; return whether it is new."""
        if number < self.next or number in self.ahead:
            return False
        self.ahead.add(number)
        while self.next in self.ahead:
            self.ahead.remove(self.next)
            self.next += 1
        return True


@dataclass(frozen=True, slots=True)
class Message:
    """A message as `Peer.read` returns it."""

    header: Header
    words_K: Tensor

    @property
    def is_finite(self) -> bool:
        """Whether the gradient was finite; if not, the message is empty."""
        return not self.header.flags & Flags.not_finite


class Peer:
    """One asynchronous worker.

    Args:
        worker, workers: its number, and how many there are.
        staleness: S.
        ledger: of all peers of this process.
    Attributes:
        base_P: the weights by all complete steps.
        base_step: the first incomplete step: all steps before are in the base.
        residual_P: what has not been sent yet.
        tau: of the next step.
        densities: of the last steps in the base that tau does not reflect yet.
    """

    def __init__(
        self,
        worker: int,
        workers: int,
        settings: schema.GtcSettings,
        staleness: int,
        ledger: Ledger,
    ) -> None:
        self.size = len(ledger.spare_P)
        threshold.check_size(self.size)
        self.worker, self.workers, self.staleness = worker, workers, staleness
        self.kind, self.adaptive = Kind[settings.codec.name], settings.adaptive
        self.tau = float(np.float32(settings.threshold))
        self.residual_P = torch.zeros_like(ledger.spare_P)
        self.base_P = self.residual_P  # until `begin`
        self.base_step = 0
        self.densities: deque[float] = deque()
        self._ledger = ledger
        self._inboxes = [Inbox() for _ in range(workers)]
        self._open: dict[int, dict[int, Message]] = {}  # by step and worker

    def begin(self, step: int, weights_P: Tensor, rate: Rate) -> None:
        """Continue from these weights with this step, at the beginning and after each drain.

        Others may have begun before, and sent messages.
        """
        if step != self.number:  # the run was resumed, or a state put back
            assert not self._open
            self._ledger.forget()
            self._inboxes = [Inbox(step) for _ in range(self.workers)]
            self.base_step = step
        assert self.base_step == step, "begin before a drain"
        self.base_P = self._ledger.begin(step, weights_P)
        self._rate = rate

    # --- what this worker knows -------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The next step: its own messages of all steps before have been received here."""
        return self._inboxes[self.worker].next

    @property
    def lead(self) -> int:
        """Steps by which it is ahead of the slowest worker, as its messages show."""
        return self.number - self.base_step

    @property
    def may_go_on(self) -> bool:
        """Whether no worker is too far behind for another step."""
        return self.lead <= self.staleness

    def missing(self, step: int) -> list[int]:
        """Return the workers of which a message of the steps before this one is missing."""
        return [worker for worker, inbox in enumerate(self._inboxes) if inbox.next < step]

    def weights(self, out_P: Tensor) -> None:
        """Write the weights that its next step begins with, float32 [P]."""
        out_P.copy_(self.base_P)
        for step, messages in sorted(self._open.items()):
            if step < self.number + self.staleness:
                tau = next(iter(messages.values())).header.tau
                self._ledger.update(step, _words(messages), tau, self._rate(step), out_P)

    # --- messages ---------------------------------------------------------------------------------

    def learn(self, gradient: Gradient, sent: Sent) -> Tensor:
        """Return the message of a gradient for all workers; this one applies it in `receive`, too.

        A gradient that is not finite is dropped: its message is empty, the residual stays as it
        was. Unlike in synchronous GTC, the others' are kept: they may have continued already.
        """
        self._follow_density()
        words_K = torch.empty(0, dtype=torch.int32, device=gradient.grad_P.device)
        is_finite = gradient.is_finite
        if is_finite:
            compressed = threshold.compress(
                gradient.grad_P, self.residual_P, self.tau, self._ledger.spare_P
            )
            is_finite = compressed.is_finite  # what is owed may overflow, too
        if is_finite:
            words_K = compressed.words_K
            self.residual_P, self._ledger.spare_P = self._ledger.spare_P, self.residual_P
        flags = Flags.none if gradient.frames else Flags.end_of_data
        header = Header(
            step=self.number,
            worker=self.worker,
            workers=self.workers,
            size=self.size,
            tau=self.tau,
            frames=gradient.frames,
            wanted=len(words_K),
            flags=flags if is_finite else flags | Flags.not_finite,
        )
        message_B = codec.write(words_K, header, self.kind)
        sent.bits += 8 * len(message_B)
        sent.elements += len(words_K)
        return message_B

    def read(self, message_B: Tensor, sender: int) -> Message:
        """Decode a message of worker `sender`, for `receive`.

        Raises:
            MessageError: if it is damaged, names another worker, is of another run or of a step
                that the sender cannot have reached; raised before its elements are decoded.
        """
        (header,) = codec.read_headers([message_B])
        if header.worker != sender:
            raise MessageError(
                f"worker {self.worker} got a message of worker {header.worker} from worker "
                f"{sender}, which may send only its own; were all started with the same settings?"
            )
        self._check(header)
        (words_K,) = codec.read_words([header], [message_B], codec.Checks())
        self._ledger.add(header.step, header.worker, words_K)
        return Message(header, words_K)

    def _check(self, header: Header) -> None:
        found, wanted = (header.workers, header.size), (self.workers, self.size)
        if found != wanted:
            raise MessageError(
                f"worker {self.worker} got a message of worker {header.worker} with (workers, "
                f"parameters) {found}, not {wanted}; were all started with the same settings?"
            )
        # A worker that begins step m has all messages of steps before m - S, this worker's, too
        if header.step > self.number + self.staleness:
            raise MessageError(
                f"worker {self.worker} got worker {header.worker}'s message of step {header.step} "
                f"but has taken {self.number} steps itself, and no worker is more than "
                f"{self.staleness} ahead (comm.asynchronous.staleness); were all started from the "
                "same checkpoint and settings?"
            )

    def receive(self, message: Message) -> bool:
        """Apply a worker's message, its own or another's; return False if it had arrived before.

        Raises:
            MessageError: if it is of another run or threshold, or too far ahead.
        """
        header = message.header
        self._check(header)
        if not self._inboxes[header.worker].take(header.step):
            return False
        self._open.setdefault(header.step, {})[header.worker] = message
        while len(self._open.get(self.base_step, ())) == self.workers:
            self._close(self.base_step, self._open.pop(self.base_step))
            self.base_step += 1
        return True

    def _close(self, step: int, messages: dict[int, Message]) -> None:
        """Move the base by a complete step, with the result of synchronous GTC."""
        taus = [messages[worker].header.tau for worker in sorted(messages)]
        if len(set(taus)) > 1:
            raise MessageError(
                f"the workers' messages of step {step} have the thresholds {taus}, which must be "
                "the same; were all started from the same checkpoint and settings?"
            )
        words, rate = _words(messages), self._rate(step)
        self.base_P = self._ledger.close(step, words, taus[0], rate, self.base_P)
        if self.adaptive is not None:
            wanted = sum(message.header.wanted for message in messages.values())
            self.densities.append(wanted / (self.workers * self.size))

    def _follow_density(self) -> None:
        """Set tau of the next step by the steps that all workers must have received by then."""
        first = self.base_step - len(self.densities)
        for _ in range(first, min(self.base_step, self.number - self.staleness)):
            assert self.adaptive is not None
            self.tau = adapted(self.tau, self.densities.popleft(), self.adaptive)


def _words(messages: dict[int, Message]) -> Words:
    return {worker: message.words_K for worker, message in messages.items()}
