"""Small settings of every method, and training on synthetic gradients, as in train.loop."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from asr_train import schema
from asr_train.comm import codec
from asr_train.comm.exchange import Exchange
from asr_train.comm.loopback import Loopback
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.methods import build
from asr_train.comm.reducers import Gradient

CPU = torch.device("cpu")
SIZE = 203
SHAPES = [(7, 19), (7,), (3, 18), (3, 3)]  # of parameters of so many elements
GTC = {"threshold": 1.0, "codec": "rice", "capacity": "fixed"}
BMUF = {
    "block_steps": 3,
    "form": "chen_huo",
    "zeta": 1.0,
    "c": 1.0,
    "eta": None,
    "velocity": "reset",
}
TIMES = ("lead", "now")  # keys of states of asynchronous workers
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"method": "sgd"},
    "allreduce": {"method": "allreduce", "allreduce": {"wire": "fp32"}},
    "allreduce_bf16": {"method": "allreduce", "allreduce": {"wire": "bf16"}},
    "model_averaging": {
        "method": "model_averaging",
        "model_averaging": {"block_steps": 3, "velocity": "keep"},
    },
    "gtc": {"method": "gtc", "gtc": GTC},
    "gtc_exact": {"method": "gtc", "gtc": {**GTC, "capacity": "exact", "codec": "packed32"}},
    "gtc_adaptive": {
        "method": "gtc",
        "gtc": {
            **GTC,
            "codec": "tile16",
            "adaptive": {"density": 0.02, "band": 1.5, "factor": 1.1},
        },
    },
    "gtc_async": {
        "method": "gtc_async",
        "gtc": {**GTC, "capacity": "exact"},
        "asynchronous": {
            "staleness": 2,
            "virtual_time": {
                "step_seconds": 1.0,
                "speed_spread": 0.3,
                "step_spread": 0.1,
                "slowdown": 2.0,
                "delay_seconds": 3.0,
                "seed": 0,
            },
        },
    },
    "onebit": {
        "method": "onebit",
        "onebit": {"error_feedback": True, "double_buffering": False},
    },
    "onebit_late": {
        "method": "onebit",
        "onebit": {"error_feedback": True, "double_buffering": True},
    },
    "bmuf": {"method": "bmuf", "bmuf": BMUF},
    "bmuf_printed": {"method": "bmuf", "bmuf": {**BMUF, "form": "printed", "velocity": "keep"}},
    "bmuf_classical": {"method": "bmuf", "bmuf": {**BMUF, "form": "classical"}},
    "bmuf_gtc": {"method": "bmuf_gtc", "bmuf": BMUF, "gtc": GTC, "group_size": 2},
}


def settings(name: str, **changes: Any) -> schema.CommSettings:
    return schema.build(schema.CommSettings, {**SETTINGS[name], **changes}, "comm")


def method_of(
    name: str, exchange: Exchange | int, size: int = SIZE, **changes: Any
) -> ExchangeMethod:
    if isinstance(exchange, int):
        exchange = Loopback(range(exchange), CPU)
    return build(settings(name, **changes), exchange, size)


def read(message_B: torch.Tensor) -> tuple[codec.Header, torch.Tensor]:
    """Return the header and the elements of a message."""
    headers = codec.read_headers([message_B])
    return headers[0], codec.read_words(headers, [message_B], codec.Checks())[0]


def random_gradient(worker: int, step: int) -> torch.Tensor:
    """Not on a grid: another order of summation changes the bits."""
    rng = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(SIZE, generator=rng)


def dyadic_gradient(worker: int, step: int) -> torch.Tensor:
    """Multiples of 2**-6 below 2: float32 adds thousands of those without rounding."""
    rng = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randint(-127, 128, (SIZE,), generator=rng) / 2**6


LARGE = 100_000  # elements; messages of this size do not have the smallest possible capacity


def bursts(worker: int, step: int) -> torch.Tensor:
    """Ten sent elements per step, so that the capacity falls to its minimum; later more."""
    rng = torch.Generator().manual_seed(1000 * worker + step)
    hits = 10 if step < 8 else 1000 * 3 ** (step - 8)
    grad_P = torch.zeros(LARGE)
    grad_P[torch.randperm(LARGE, generator=rng)[:hits]] = 2.0
    return grad_P


class Run:
    """Workers with synthetic gradients; `log` has a hash of all local weights after each step.

    Args:
        bad: (worker, step) whose gradient is not finite.
    """

    def __init__(
        self,
        method: ExchangeMethod,
        gradient: Callable[[int, int], torch.Tensor] = random_gradient,
        momentum: float = 0.0,
        rate: float = 0.125,
        bad: set[tuple[int, int]] = frozenset(),
        adagrad: schema.AdagradSettings | None = None,
    ) -> None:
        self.method, self.gradient, self.rate = method, gradient, rate
        self.bad = bad
        self.size = len(gradient(0, 0))
        begin_P = torch.linspace(-1, 1, self.size)
        shapes = SHAPES if self.size == SIZE else None
        method.begin(begin_P, momentum, shapes, adagrad)
        self.replicas = method.replicas
        self.step = 0
        self.skipped: list[int] = []
        self.log: list[dict[int, str]] = []

    def gradients(self, workers: range) -> Iterator[Gradient]:
        buffer_P = torch.empty(self.size)  # one buffer for all, as in training
        for worker in workers:
            buffer_P.copy_(self.gradient(worker, self.step))
            if (worker, self.step) in self.bad:
                buffer_P[7] = torch.nan
            yield Gradient(buffer_P, 10 + worker)

    def steps(self, count: int) -> "Run":
        for _ in range(count):
            if (ahead := self.method.asynchronous) is not None:
                weights_P = self.replicas[0].weights_P
                ahead.run(weights_P, self.step, 1, lambda _: self.rate, _OneByOne(self))
                self.step += 1
                self.log.append(self.hashes())
                continue
            for i, group in enumerate(self.method.groups):
                update = self.method.reduce(i, self.gradients(group.local))
                if update is None:
                    self.skipped.append(self.step)
                    continue
                self.method.apply(i, update, self.rate)
            self.method.after_update()
            self.step += 1
            self.log.append(self.hashes())
        return self

    def hashes(self) -> dict[int, str]:
        """Return the hash of weights, velocity and the method's state, by local worker."""
        found = {}
        for i, group in enumerate(self.method.groups):
            for worker in group.local:
                text = "".join(
                    hashlib.sha256(v.numpy()).hexdigest()
                    if isinstance(v, torch.Tensor)
                    else repr(v)
                    for v in flat(
                        self.method.shared_state(),
                        self.method.group_state(i),
                        self.method.worker_state(worker),
                    )
                )
                found[worker] = hashlib.sha256(text.encode()).hexdigest()
        return found

    def weights(self) -> list[torch.Tensor]:
        return [replica.weights_P for replica in self.replicas]


def flat(*states: dict[str, Any]) -> Iterator[Any]:
    """Yield the values of states and nested states, except times."""
    for state in states:
        for name, value in state.items():
            if isinstance(value, dict):
                yield from flat(value)
            elif name not in TIMES:
                yield value


class _OneByOne:
    """Gradients for workers that do not wait for each other."""

    most = 0

    def __init__(self, run: Run) -> None:
        self.run = run

    def gradient(self, worker: int, step: int, write_weights: Callable) -> Gradient:
        write_weights(self.run.replicas[0].weights_P)
        return next(self.run.gradients(range(worker, worker + 1)))

    def finished(self, worker: int, step: int, is_finite: bool) -> None:
        if not is_finite:
            self.run.skipped.append(step)
