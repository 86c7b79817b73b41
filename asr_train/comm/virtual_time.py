"""Asynchronous workers of one process, in **virtual time**: reproducible.

The duration of each step and message is drawn from the seed, the worker and the step; so a run that
resumes after a drain needs only the current time. Gradients are computed at the weights that the
worker has when its step begins, at once or when the first step ends whose gradient is outstanding:
then those of all such steps together. Messages are sent when a step ends, and counted as they would
be encoded. A table says when each worker has a message.
"""

import heapq
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from asr_train import schema
from asr_train.comm import codec
from asr_train.comm.async_workers import AsyncWorkers, GradientSource, Staleness
from asr_train.comm.gtc import density
from asr_train.comm.ledger import Rate
from asr_train.comm.peers import Message, Sender, Thresholds
from asr_train.comm.reducers import Gradient
from asr_train.facts import HEADER_BYTES


class Draw(IntEnum):
    """The uses of random numbers."""

    speed = 0
    step = 1  # its duration, then its message's delays


class OpenStep:
    """The messages of one step, and when they arrive.

    Attributes:
        messages: by sender; those that are made, if not yet sent.
        arrival_WW: virtual seconds, by sender and receiver; infinite for a message not yet sent.
        complete_W: when each worker has all messages of this step and of those before; infinite
            until all are sent.
        waiting: workers that need them all, and did not when some were not yet sent.
        to_send: messages that are not yet sent, if made or not.
    """

    def __init__(self, workers: int) -> None:
        self.messages: dict[int, Message] = {}
        self.arrival_WW = np.full((workers, workers), np.inf)
        self.complete_W = np.full(workers, np.inf)
        self.waiting: list[int] = []
        self.to_send = workers

    def arrived(self, worker: int, now: float) -> set[int]:
        """Return the senders whose message of this step a worker has."""
        return set(np.flatnonzero(self.arrival_WW[:, worker] <= now).tolist())


class VirtualTime(AsyncWorkers):
    """All workers of a run."""

    def __init__(
        self, peers: Sequence[Sender], thresholds: Thresholds, settings: schema.VirtualTimeSettings
    ) -> None:
        super().__init__(peers, thresholds)
        self.settings = settings
        self._ledger, self._staleness = peers[0].ledger, thresholds.staleness
        self._step_seconds = step_seconds(settings, len(peers))

    def run(
        self, weights_P: Tensor, first: int, steps: int, rate: Rate, learner: GradientSource
    ) -> None:
        self._ledger.forget()
        self._ledger.begin(first, weights_P, rate)
        self.thresholds.begin(first)
        self._learner = learner
        self._late: set[int] = set()  # workers whose gradients are outstanding
        self._first, self._stop = first, first + steps
        self._open: dict[int, OpenStep] = {}
        self._next = dict.fromkeys(self.peers, first)  # step
        self._delays: dict[int, npt.NDArray[np.float64]] = {}  # of the message being made
        self._idle_since = dict.fromkeys(self.peers, self.now)
        self._events: list[tuple[float, int, int]] = []  # time, order, worker
        self._posted = 0
        for worker in self.peers:
            self._post(self.now, worker)
        while self._events:
            self.now, _, worker = heapq.heappop(self._events)
            if worker not in self._idle_since:
                self._end_step(worker)
            if self._next[worker] < self._stop and self._may_begin(worker):
                self._begin_step(worker)
        self._end(weights_P)

    def _may_begin(self, worker: int) -> bool:
        """Return whether no worker is too far behind; else see to it that this one is asked again.

        A worker that begins step m has all messages of steps before m - S.
        """
        step = self._next[worker] - self._staleness - 1
        if step < self._first or (needed := self._open[step]).complete_W[worker] <= self.now:
            return True
        if needed.to_send:
            needed.waiting.append(worker)
        else:
            self._post(needed.complete_W[worker], worker)
        return False

    def _begin_step(self, worker: int) -> None:
        step, base = self._next[worker], self._base_step(worker)
        self._end_wait(worker)
        self.staleness[worker].add(Staleness(1, step - base, step - base))

        def write_weights(out_P: Tensor) -> None:
            known = {
                number: self._open[number].arrived(worker, self.now)
                for number in range(base, step + self._staleness)
                if number in self._open
            }
            self._ledger.weights(base, known, out_P)

        if step not in self._open:
            self._open[step] = OpenStep(len(self.peers))
        gradient = self._learner.gradient(worker, step, write_weights)
        if gradient is not None:
            self._learn(worker, gradient)
        else:
            self._late.add(worker)
            if len(self._late) == self._learner.most:
                self._learn_late()
        rng = draws(self.settings.seed, Draw.step, worker, step)
        seconds = np.exp(self.settings.step_spread * rng.standard_normal())
        self._delays[worker] = rng.standard_exponential(len(self.peers))
        self._post(self.now + self._step_seconds[worker] * seconds, worker)

    def _learn(self, worker: int, gradient: Gradient) -> None:
        """Make the message of a worker's present step."""
        peer, step = self.peers[worker], self._next[worker]
        with self.timed("compress"):
            message = peer.learn(step, gradient)
            payload_bytes = codec.payload_bytes(message.words_K, peer.size, peer.kind)
        self._count(message, HEADER_BYTES + payload_bytes)
        self._open[step].messages[worker] = message

    def _learn_late(self) -> None:
        for worker, gradient in self._learner.late():
            self._learn(worker, gradient)
        self._late.clear()

    def _end_step(self, worker: int) -> None:
        if worker in self._late:
            self._learn_late()
        step = self._next[worker]
        self._next[worker] += 1
        self._idle_since[worker] = self.staleness[worker].now = self.now
        opened = self._open[step]
        message = opened.messages[worker]
        # Only now, so that most workers have most of what the ledger has counted
        self._ledger.add(step, worker, message.words_K, message.header.tau)
        arrival_W = self.now + self.settings.delay_seconds * self._delays[worker]
        arrival_W[worker] = self.now
        opened.arrival_WW[worker] = arrival_W
        opened.to_send -= 1
        self._learner.finished(worker, step, message.is_finite)
        if not opened.to_send:
            self._close(step)

    def _close(self, step: int) -> None:
        """Move the base by a step of which all messages are sent, with that of synchronous GTC."""
        opened = self._open[step]
        opened.complete_W = opened.arrival_WW.max(0)
        if (before := self._open.get(step - 1)) is not None:
            opened.complete_W = np.maximum(opened.complete_W, before.complete_W)
        self._ledger.close(step)
        self.thresholds.close(density([message.header for message in opened.messages.values()]))
        for worker in opened.waiting:
            self._post(max(self.now, opened.complete_W[worker]), worker)
        oldest = min(self._next.values()) - self._staleness
        self._ledger.drop(oldest)
        for old in [number for number in self._open if number < oldest - 1]:
            del self._open[old]

    def _base_step(self, worker: int) -> int:
        """Return the first step of which a worker lacks a message now."""
        step = max(self._first, self._next[worker] - self._staleness)
        while step in self._open and self._open[step].complete_W[worker] <= self.now:
            step += 1
        return step

    def _post(self, time: float, worker: int) -> None:
        """See to a worker at a time; at equal times, in the order of posting."""
        self._posted += 1
        heapq.heappush(self._events, (float(time), self._posted, worker))

    def _end_wait(self, worker: int) -> None:
        self.staleness[worker].waited_seconds += self.now - self._idle_since.pop(worker)
        self.staleness[worker].now = self.now

    def _end(self, weights_P: Tensor) -> None:
        """Wait for all messages; write the weights, then the same for all."""
        self.now = max(self.now, float(self._open[self._stop - 1].complete_W.max()))
        for worker in self.peers:
            self._end_wait(worker)
        weights_P.copy_(self._ledger.base(self._stop))
        del self._learner

    def group_state(self) -> dict[str, Any]:
        return {**super().group_state(), "now": self.now}

    def load_group_state(self, state: dict[str, Any]) -> None:
        super().load_group_state(state)
        self.now = state.get("now", 0.0)  # absent from a run in real time


def step_seconds(settings: schema.VirtualTimeSettings, workers: int) -> list[float]:
    """Return the median seconds of each worker's steps."""
    found = []
    for worker in range(workers):
        noise = draws(settings.seed, Draw.speed, worker, 0).standard_normal()
        found.append(settings.step_seconds * float(np.exp(settings.speed_spread * noise)))
    found[-1] *= settings.slowdown
    return found


def draws(seed: int, what: Draw, worker: int, step: int) -> np.random.Generator:
    """Return a generator of random numbers, seeded by these integers."""
    return np.random.default_rng([seed, what, worker, step])
