"""Workers that do not wait for each other, with synthetic gradients."""

from collections.abc import Callable

import torch
from small_methods import CPU, SIZE

from asr_train import schema
from asr_train.comm.ledger import Ledger
from asr_train.comm.loopback import Loopback
from asr_train.comm.methods import build
from asr_train.comm.peers import Peer, Thresholds
from asr_train.comm.reducers import Gradient
from asr_train.comm.virtual_time import VirtualTime

RATE = 0.125
BEGIN_P = torch.linspace(-1, 1, SIZE)
GTC = {"threshold": 1.0, "codec": "rice", "capacity": "exact"}
ADAPTIVE = {"density": 0.02, "band": 1.5, "factor": 1.1}
VIRTUAL_TIME = {
    "step_seconds": 1.0,
    "speed_spread": 0.3,
    "step_spread": 0.1,
    "slowdown": 1.0,
    "delay_seconds": 3.0,
    "seed": 0,
}


def settings(staleness: int = 3, adaptive: dict | None = None, **time) -> schema.CommSettings:
    values = {"staleness": staleness, "virtual_time": {**VIRTUAL_TIME, **time}}
    gtc = {**GTC, "adaptive": adaptive}
    comm = {"method": "gtc_async", "gtc": gtc, "asynchronous": values}
    return schema.build(schema.CommSettings, comm)


def peers(workers: int, staleness: int = 3, adaptive: dict | None = None) -> list[Peer]:
    gtc = settings(staleness, adaptive).gtc
    return [
        Peer(worker, workers, gtc, Thresholds(gtc, staleness), Ledger(SIZE, CPU))
        for worker in range(workers)
    ]


def begun(workers: int, **changes) -> list[Peer]:
    group = peers(workers, **changes)
    for peer in group:
        peer.begin(0, BEGIN_P, lambda step: RATE)
    return group


class GradientSource:
    """Gradients as a function of (worker, step, weights), and a record of the events, in order.

    Args:
        bad: (worker, step) whose gradient is not finite.
        idle: (worker, step) without a minibatch.
    """

    def __init__(self, gradient: Callable, weights_P: torch.Tensor, bad=(), idle=()) -> None:
        self.of, self.weights_P, self.bad, self.idle = gradient, weights_P, bad, idle
        self.begun: list[tuple[int, int]] = []
        self.seen: dict[tuple[int, int], torch.Tensor] = {}
        self.done: list[tuple[int, int, bool]] = []

    most = 0

    def gradient(self, worker: int, step: int, write_weights: Callable) -> Gradient:
        self.begun.append((worker, step))
        if (worker, step) in self.idle:
            return Gradient(torch.zeros(SIZE), 0)
        write_weights(self.weights_P)
        self.seen[worker, step] = self.weights_P.clone()
        grad_P = self.of(worker, step, self.weights_P).clone()
        if (worker, step) in self.bad:
            grad_P[3] = torch.nan
        return Gradient(grad_P, 10)

    def finished(self, worker: int, step: int, is_finite: bool) -> None:
        self.done.append((worker, step, is_finite))


class LateSource(GradientSource):
    """The same gradients, not before `late` asks for them; at most `most` are outstanding."""

    def __init__(self, *args, most: int) -> None:
        super().__init__(*args)
        self.most = most
        self.asked: list[tuple[int, int, torch.Tensor | None]] = []
        self.together: list[int] = []

    def gradient(self, worker: int, step: int, write_weights: Callable) -> Gradient | None:
        if (worker, step) in self.idle:
            return super().gradient(worker, step, write_weights)
        weights_P = torch.empty(SIZE)
        write_weights(weights_P)
        self.asked.append((worker, step, weights_P))
        assert len(self.asked) <= self.most
        return None

    def late(self):
        asked, self.asked = self.asked, []
        self.together.append(len(asked))
        for worker, step, weights_P in asked:
            yield worker, super().gradient(worker, step, lambda out_P, p=weights_P: out_P.copy_(p))


class Run:
    """Virtual workers; `gradient` is a function of (worker, step, weights)."""

    def __init__(
        self, gradient: Callable, workers=4, begin_P=BEGIN_P, bad=(), idle=(), **changes
    ) -> None:
        self.method = build(settings(**changes), Loopback(range(workers), CPU), SIZE)
        assert isinstance(self.method.asynchronous, VirtualTime)
        self.asynchronous: VirtualTime = self.method.asynchronous
        self.weights_P = begin_P.clone()
        self.learner = GradientSource(gradient, self.weights_P, bad, idle)
        self.step = 0

    def steps(self, count: int, rate: Callable[[int], float] = lambda step: RATE) -> "Run":
        self.asynchronous.run(self.weights_P, self.step, count, rate, self.learner)
        self.step += count
        return self

    @property
    def residuals(self) -> list[torch.Tensor]:
        return [peer.residual_P for peer in self.asynchronous.peers.values()]
