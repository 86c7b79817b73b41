"""Asynchronous workers of one process, in **virtual time**: reproducible.

The duration of each step and message is drawn from the seed, the worker and the step; so a run that
resumes after a drain needs only the current time. Gradients are computed when a step begins, at the
weights of that time; their messages are sent when it ends.
"""

import heapq
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from torch import Tensor

from asr_train import schema
from asr_train.comm.async_workers import AsyncWorkers, GradientSource
from asr_train.comm.peers import Message, Peer, Rate


class Draw(IntEnum):
    """The uses of random numbers."""

    speed = 0
    step = 1
    delay = 2


class VirtualTime(AsyncWorkers):
    """All workers of a run.

    Attributes:
        now: virtual seconds since the run began.
    """

    def __init__(self, peers: Sequence[Peer], settings: schema.VirtualTimeSettings) -> None:
        super().__init__(peers)
        self.settings, self.now = settings, 0.0
        self._step_seconds = step_seconds(settings, len(peers))

    def run(
        self, weights_P: Tensor, first: int, steps: int, rate: Rate, learner: GradientSource
    ) -> None:
        for peer in self.peers.values():
            peer.begin(first, weights_P, rate)
        self._weights_P, self._stop, self._learner = weights_P, first + steps, learner
        self._events: list[tuple[float, int, int, Message]] = []  # time, order, receiver, message
        self._posted = 0
        self._idle_since = dict.fromkeys(self.peers, self.now)
        for worker in self.peers:
            self._begin_step(worker)
        while self._events:
            self.now, _, worker, message = heapq.heappop(self._events)
            self.peers[worker].receive(message)
            if message.header.worker == worker:
                self._end_step(message)
            if worker in self._idle_since:
                self._begin_step(worker)
        self._end()

    def _begin_step(self, worker: int) -> None:
        """Begin a worker's next step, unless none is left or others are too far behind."""
        peer = self.peers[worker]
        if peer.number == self._stop or not peer.may_go_on:
            return
        self._end_wait(worker)
        self.leads[worker].begin_step(peer.lead)
        peer.weights(self._weights_P)
        gradient = self._learner.gradient(worker, peer.number)
        with self.timed("compress"):
            message_B = peer.learn(gradient, self.sent[worker])
        self._count_receivers(worker, len(message_B), len(self.peers))
        noise = draws(self.settings.seed, Draw.step, worker, peer.number).standard_normal()
        seconds = self._step_seconds[worker] * np.exp(self.settings.step_spread * noise)
        self._post(seconds, worker, peer.read(message_B, worker))

    def _end_step(self, message: Message) -> None:
        worker, step = message.header.worker, message.header.step
        self._idle_since[worker] = self.now
        self.leads[worker].now = self.now
        self._learner.finished(worker, step, message.is_finite)
        rng = draws(self.settings.seed, Draw.delay, worker, step)
        delays = self.settings.delay_seconds * rng.standard_exponential(len(self.peers))
        for other in self.peers:
            if other != worker:
                self._post(delays[other], other, message)

    def _post(self, seconds: float, worker: int, message: Message) -> None:
        """Deliver a message after so many seconds; at equal times, in the order of posting."""
        self._posted += 1
        heapq.heappush(self._events, (self.now + float(seconds), self._posted, worker, message))

    def _end_wait(self, worker: int) -> None:
        self.leads[worker].waited_seconds += self.now - self._idle_since.pop(worker)
        self.leads[worker].now = self.now

    def _end(self) -> None:
        """Return the weights after the drain, the same for all, in `weights_P`."""
        for worker, peer in self.peers.items():
            assert not peer.missing(self._stop)
            self._end_wait(worker)
        self._weights_P.copy_(self.peers[0].base_P)
        del self._weights_P, self._learner

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
