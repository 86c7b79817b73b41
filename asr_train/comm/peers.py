"""**Asynchronous GTC**, "dead reckoning": a worker that applies whatever messages it has.

in    gradients, and the other workers' messages, in any order, possibly repeated
out   messages, one per step; the weights by all messages received so far

A quantum of step n is worth rate(n) * tau(n), whenever its message is read. When all workers'
messages of a step have arrived, their integer counts are added up and move the base, step by step:
bit for bit what synchronous GTC does. Later, incomplete steps are applied on top:

    weights = base - sum over open steps of rate * tau * counts
Steps with the same rate and tau are added up first, as integers. So workers with the same messages
have bit-identical weights; after a drain all do.

With a staleness of S, a worker that begins step m has all messages of steps before m - S, and uses
none of steps from m + S on. So S = 0 *is* synchronous GTC, however long messages take. As all
workers have the messages before m - S, an adaptive tau of step m depends on those.

Knows nothing of time or transport. Plain SGD only: momentum would depend on the order of messages.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr_train import schema
from asr_train.comm import codec
from asr_train.comm.codec import Flags, Header, Kind, MessageError
from asr_train.comm.gtc import adapted, density
from asr_train.comm.ledger import Ledger, Rate
from asr_train.comm.reducers import Gradient
from asr_train.kernels import threshold


class Thresholds:
    """tau of each step, the same on all workers: of step m, it depends on steps before m - S.

    Attributes:
        tau: of the latest step that was asked for.
        densities: of the last complete steps that tau does not reflect yet.
    """

    def __init__(self, settings: schema.GtcSettings, staleness: int) -> None:
        self.adaptive, self.staleness = settings.adaptive, staleness
        self.tau = float(np.float32(settings.threshold))
        self.densities: deque[float] = deque()
        self._closed = 0  # steps
        self._taus: dict[int, float] = {}  # by step, of those that a worker may still ask for

    def begin(self, step: int) -> None:
        """Continue with this step; all before are complete."""
        self._closed, self._taus = step, {}

    def close(self, density: float) -> None:
        """Note the share of elements that were above tau in the next complete step."""
        self._closed += 1
        if self.adaptive is not None:
            self.densities.append(density)

    def of(self, step: int) -> float:
        """Return tau of a step; the first worker to ask may be up to S steps ahead of the last."""
        if step not in self._taus:
            while self.densities and self._closed - len(self.densities) < step - self.staleness:
                assert self.adaptive is not None
                self.tau = adapted(self.tau, self.densities.popleft(), self.adaptive)
            self._taus[step] = self.tau
            self._taus.pop(step - self.staleness - 2, None)
        return self._taus[step]


@dataclass(frozen=True, slots=True)
class Message:
    """A message's content: as `Peer.read` returns it, or before `codec.write` encodes it."""

    header: Header
    words_K: Tensor

    @property
    def is_finite(self) -> bool:
        """Whether the gradient was finite; if not, the message is empty."""
        return not self.header.flags & Flags.not_finite


@dataclass(eq=False)
class Sender:
    """What one asynchronous worker sends, and what it has not sent yet.

    Args:
        worker, workers: its number, and how many there are.
        thresholds, ledger: of all workers of this process, or its own.
    Attributes:
        residual_P: what has not been sent yet.
    """

    worker: int
    workers: int
    settings: schema.GtcSettings
    thresholds: Thresholds
    ledger: Ledger

    def __post_init__(self) -> None:
        self.size = len(self.ledger.spare_P)
        threshold.check_size(self.size)
        self.kind = Kind[self.settings.codec.name]
        self.residual_P = torch.zeros_like(self.ledger.spare_P)
        self._below = 0.0  # a threshold that no element of the residual exceeds; 0: none is known

    def owe(self, residual_P: Tensor) -> None:
        """Begin with what another worker has not sent, float32 [P]."""
        self.residual_P.copy_(residual_P)
        self._below = 0.0

    def learn(self, step: int, gradient: Gradient) -> Message:
        """Return what a step's gradient sends to all workers, this one among them.

        A gradient that is not finite is dropped: its message is empty, the residual stays as it
        was. Unlike in synchronous GTC, the others' are kept: they may have continued already.
        """
        tau = self.thresholds.of(step)
        words_K = torch.empty(0, dtype=torch.int32, device=gradient.grad_P.device)
        is_finite = True
        if gradient.frames or tau != self._below:  # else all of it stays
            spare_P = self.ledger.spare_P
            found_K, is_finite = threshold.compress(gradient.grad_P, self.residual_P, tau, spare_P)
            if is_finite:
                words_K = found_K
                self.residual_P, self.ledger.spare_P = spare_P, self.residual_P
                self._below = 0.0 if len(words_K) else tau
        flags = Flags.none if gradient.frames else Flags.end_of_data
        if not is_finite:
            flags |= Flags.not_finite
        place: dict[str, Any] = {"step": step, "worker": self.worker, "workers": self.workers}
        sent: dict[str, Any] = {"frames": gradient.frames, "wanted": len(words_K), "flags": flags}
        return Message(Header(**place, size=self.size, tau=tau, **sent), words_K)


class Peer(Sender):
    """One asynchronous worker, and what it has received.

    Attributes:
        base_step: the first incomplete step: all steps before are in the base.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.staleness = self.thresholds.staleness
        self.base_step = 0
        self._open: dict[int, dict[int, Header]] = {}  # by step and worker
        self._next_W = [0] * self.workers  # of each, the first message that is missing

    def begin(self, step: int, weights_P: Tensor, rate: Rate) -> None:
        """Continue from these weights with this step, at the beginning and after each drain.

        Others may have begun before, and sent messages.
        """
        if step != self.number:  # the run was resumed, or a state put back
            assert not self._open
            self.ledger.forget()
            self.base_step, self._next_W = step, [step] * self.workers
        assert self.base_step == step, "begin before a drain"
        self.ledger.begin(step, weights_P, rate)
        self.thresholds.begin(step)

    # --- what this worker knows -------------------------------------------------------------------

    @property
    def base_P(self) -> Tensor:
        """The weights by all complete steps."""
        return self.ledger.base(self.base_step)

    @property
    def number(self) -> int:
        """The next step: its own messages of all steps before have been received here."""
        return self._next_W[self.worker]

    @property
    def steps_ahead(self) -> int:
        """Steps by which it is ahead of the slowest worker, as its messages show."""
        return self.number - self.base_step

    def missing(self, step: int) -> list[int]:
        """Return the workers of which a message of the steps before this one is missing."""
        return [worker for worker, first in enumerate(self._next_W) if first < step]

    def weights(self, out_P: Tensor) -> None:
        """Write the weights that its next step begins with, float32 [P]."""
        last = self.number + self.staleness
        known = {step: headers for step, headers in self._open.items() if step < last}
        self.ledger.weights(self.base_step, known, out_P)

    # --- messages ---------------------------------------------------------------------------------

    def read(self, message_B: Tensor, sender: int) -> Message:
        """Decode a message of worker `sender`, for `receive`.

        Raises:
            MessageError: if it is damaged, names another worker, is of another run or of a step
                that the sender cannot have reached; raised before its elements are decoded.
        """
        (header,) = codec.read_headers([message_B])
        codec.check_due(header, worker=sender, workers=self.workers, size=self.size)
        # A worker that begins step m has all messages of steps before m - S, this worker's, too
        if header.step > self.number + self.staleness:
            raise MessageError(
                f"worker {self.worker} got worker {header.worker}'s message of step {header.step} "
                f"but has taken {self.number} steps itself, and no worker is more than "
                f"{self.staleness} ahead (comm.asynchronous.staleness); were all started from the "
                "same checkpoint and settings?"
            )
        (words_K,) = codec.read_words([header], [message_B], codec.Checks())
        return Message(header, words_K)

    def receive(self, message: Message) -> bool:
        """Apply a worker's message, its own or one from `read`; return False if it came before.

        Raises:
            MessageError: if it has another threshold than the others of its step.
        """
        header = message.header
        headers = self._open.get(header.step, {})
        if header.step < self.base_step or header.worker in headers:
            return False
        self._open[header.step] = headers
        tau = next(iter(headers.values()), header).tau
        codec.check_due(header, step=header.step, worker=header.worker, tau=tau)
        self.ledger.add(header.step, header.worker, message.words_K, tau)
        headers[header.worker] = header
        while header.worker in self._open.get(self._next_W[header.worker], ()):
            self._next_W[header.worker] += 1
        while len(self._open.get(self.base_step, ())) == self.workers:
            # With the result of synchronous GTC
            complete = self._open.pop(self.base_step)
            self.ledger.close(self.base_step)
            self.thresholds.close(density(complete.values()))
            self.base_step += 1
            self.ledger.drop(self.base_step)
        return True
