"""Resuming with another number of workers: residuals and partitions are redistributed."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from small_methods import CPU

from asr_train.comm.loopback import Loopback
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.reducers import Gradient, Reducer, Sent

SIZE = 11


class Owners(Reducer):
    """Has two residuals per worker, and owns a part of a squared gradient and of a velocity.

    Parts are cut at multiples of three elements, as columns of a matrix would be.
    """

    def __init__(self) -> None:
        self.states: dict[int, dict[str, Any]] = {}

    def reduce(self, gradients: Iterable[Gradient], sent: dict[int, Sent]) -> None:
        raise AssertionError("no step is taken")

    def part_of(self, place: int, workers: int, size: int) -> range:
        columns = -(-size // 3)
        cut = [min(size, 3 * (columns * p // workers)) for p in (place, place + 1)]
        return range(cut[0], size if place + 1 == workers else cut[1])

    def worker_state(self, worker: int) -> dict[str, Any]:
        return self.states[worker]

    def load_worker_state(self, worker: int, state: dict[str, Any]) -> None:
        self.states[worker] = state


def method(workers: int, group_size: int) -> ExchangeMethod:
    exchange = Loopback(range(workers), CPU)
    groups = exchange.groups(group_size)
    made = ExchangeMethod(exchange, groups, [Owners() for _ in groups])
    made.begin(torch.zeros(SIZE), momentum=0.5)
    return made


@pytest.mark.parametrize("before, after", [((4, 4), (2, 2)), ((2, 2), (5, 5)), ((4, 2), (3, 3))])
def test_what_is_owed_is_conserved_and_parts_are_cut_anew(before, after):
    old, new = method(*before), method(*after)
    rng = torch.Generator().manual_seed(0)
    squares_P = torch.arange(SIZE) + 1.0  # the same in all groups, so it is their mean
    models, total = len(old.groups), dict.fromkeys(("first", "second"), torch.zeros(SIZE))
    for group, reducer in zip(old.groups, old.reducers, strict=True):
        for place, worker in enumerate(group.local):
            own = reducer.part_of(place, len(group), SIZE)
            owed = {name: torch.randint(-8, 9, (SIZE,), generator=rng) / 4 for name in total}
            total = {name: total[name] + owed[name] for name in total}
            parts = {"squares": squares_P[own.start : own.stop]}
            state = {"sent": [60, 30, 1, 90, 0], "owed": owed, "parts": parts}
            reducer.load_worker_state(worker, state)
    states = [old.worker_state(worker) for worker in old.exchange.local]
    squares = new.load_resized(states, models)
    kept = [new.worker_state(worker) for worker in new.exchange.local]
    counts = [sum(each) for each in zip(*(state["sent"] for state in kept), strict=True)]
    mean = [count * after[0] for count in (60, 30, 0, 90, 0)]
    assert counts == [*mean[:2], before[0], *mean[3:]]  # overflows are a sum
    for name, wanted_P in total.items():
        assert torch.equal(sum(state["owed"][name] for state in kept), wanted_P / models)
    assert squares == sum(float((v / models).square().sum()) for v in total.values())
    assert torch.equal(torch.cat([state["parts"]["squares"] for state in kept]), squares_P)
    sizes = [len(state["parts"]["squares"]) for state in kept]
    assert all(size % 3 == 0 for size in sizes[:-1])


def test_the_mean_of_the_groups_optimizers_is_taken_over():
    old, new = method(4, 2), method(2, 2)
    for number, value in enumerate((1.0, 4.0)):
        old.replicas[number].weights_P.fill_(value)
        old.replicas[number].optimizer.velocity_P.fill_(2 * value)
    new.load_group_states(0, [old.group_state(number) for number in range(2)])
    assert torch.equal(new.replicas[0].weights_P, torch.full((SIZE,), 2.5))
    assert torch.equal(new.replicas[0].optimizer.velocity_P, torch.full((SIZE,), 5.0))
