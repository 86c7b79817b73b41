"""Asynchronous workers of one process, in **virtual time**: the same every time.

How long steps and messages take is drawn, each by itself, from the seed, the worker and the step;
so nothing has to be remembered for a run to go on after a drain, but what time it is. Gradients are
computed when a step begins, by the weights of that time; their messages leave when it ends.
"""

import heapq
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr_train import schema
from asr_train.comm.async_workers import AsyncWorkers, GradientSource
from asr_train.comm.exchange import ReplicaError
from asr_train.comm.links import FRAME_BYTES
from asr_train.comm.peers import Message, Peer, Rate


class Draw(IntEnum):
    """What random numbers are for."""

    speed = 0
    step = 1
    delay = 2


class VirtualTime(AsyncWorkers):
    """All workers.

    Attributes:
        now: seconds since the run began.
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
        self._events: list[tuple[float, int, int, Message]] = []  # when, which, for whom, what
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
        """Unless it has none left, or others are too far behind."""
        peer = self.peers[worker]
        if peer.number == self._stop or not peer.may_go_on:
            return
        self._end_wait(worker)
        self.leads[worker].begin_step(peer.lead)
        peer.weights(self._weights_P)
        gradient = self._learner.gradient(worker, peer.number)
        with self.timed("compress"):
            message_B = peer.learn(gradient, self.sent[worker])
        self.sent[worker].wire_bits += 8 * (FRAME_BYTES + len(message_B))
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
        """What is posted first comes first, of two that come at the same time."""
        self._posted += 1
        heapq.heappush(self._events, (self.now + float(seconds), self._posted, worker, message))

    def _end_wait(self, worker: int) -> None:
        self.leads[worker].waited_seconds += self.now - self._idle_since.pop(worker)
        self.leads[worker].now = self.now

    def _end(self) -> None:
        """After the drain."""
        first = self.peers[0]
        for worker, peer in self.peers.items():
            assert not peer.missing(self._stop)
            self._end_wait(worker)
        others = [w for w, p in self.peers.items() if not torch.equal(p.base_P, first.base_P)]
        if others:
            raise ReplicaError(
                f"step {self._stop}: workers {', '.join(map(str, others))} have other weights than "
                "worker 0 after a drain, though all have the same messages"
            )
        self._weights_P.copy_(first.base_P)
        del self._weights_P, self._learner

    def group_state(self) -> dict[str, Any]:
        return {**super().group_state(), "now": self.now}

    def load_group_state(self, state: dict[str, Any]) -> None:
        super().load_group_state(state)
        self.now = state.get("now", 0.0)  # not from workers in processes


def step_seconds(settings: schema.VirtualTimeSettings, workers: int) -> list[float]:
    """By worker, how long its steps usually take."""
    found = []
    for worker in range(workers):
        noise = draws(settings.seed, Draw.speed, worker, 0).standard_normal()
        found.append(settings.step_seconds * float(np.exp(settings.speed_spread * noise)))
    found[-1] *= settings.slowdown
    return found


def draws(seed: int, what: Draw, worker: int, step: int) -> np.random.Generator:
    """Random numbers that these whole numbers name."""
    return np.random.default_rng([seed, what, worker, step])
