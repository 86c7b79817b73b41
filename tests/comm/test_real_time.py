"""Asynchronous workers in processes, with delayed and reordered messages."""

import multiprocessing
import random
import time

import forked
import pytest
import torch
from forked import PATIENCE_SECONDS
from small_async import BEGIN_P, RATE, GradientSource, Run, settings
from small_methods import SIZE, dyadic_gradient, random_gradient

from asr_train.comm import codec
from asr_train.comm.codec import MessageError
from asr_train.comm.exchange import ExchangeError
from asr_train.comm.methods import build
from asr_train.comm.real_time import RealTime
from asr_train.comm.reducers import Gradient

STEPS = 25
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True, scope="module")
def kernels_are_compiled():
    """Compile once here and not in each process."""
    Run(looking, workers=2).steps(1)


class Late:
    """Links whose messages arrive late, some twice, and in another order."""

    def __init__(self, links, seed: int, longest: float) -> None:
        self.links, self.random, self.longest = links, random.Random(seed), longest
        self.held: list[tuple[float, float, torch.Tensor]] = []

    def __getattr__(self, name):
        return getattr(self.links, name)

    def receive(self, seconds: float):
        deadline = time.monotonic() + seconds
        while True:
            while (message_B := self.links.receive(0)) is not None:
                for _ in range(self.random.choice([1, 1, 1, 2])):
                    due = time.monotonic() + self.random.uniform(0, self.longest)
                    self.held.append((due, self.random.random(), message_B))
            self.held.sort(key=lambda entry: entry[:2])
            if self.held and self.held[0][0] <= time.monotonic():
                return self.held.pop(0)[2]
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.0005)


def real(exchange, gradient, staleness=3, late=None, begin_P=BEGIN_P, stretches=(STEPS,)):
    """Train; return the result, and how far ahead this worker was."""
    method = build(settings(staleness), exchange, SIZE)
    ahead, worker = method.asynchronous, exchange.local[0]
    assert isinstance(ahead, RealTime)
    if late is not None:
        ahead.links = Late(ahead.links, worker, late)
    weights_P, step = begin_P.clone(), 0
    learner = GradientSource(gradient, weights_P)
    for steps in stretches:
        ahead.run(weights_P, step, steps, lambda step: RATE, learner)
        step += steps
    staleness = ahead.take_staleness(worker)
    method.close(None)
    seen = [learner.seen[worker, s].numpy() for s in range(step)]
    return {
        "weights": weights_P.numpy(),
        "residual": ahead.peer.residual_P.numpy(),
        "staleness": staleness,
        "seen": seen,
    }


def looking(worker, step, weights_P):
    time.sleep(0.001 if worker else 0.003)  # worker 0 is slow
    return random_gradient(worker, step) + weights_P


def ran(function, workers):
    found = forked.run(function, workers, workers)
    assert all(isinstance(one, dict) for one in found), found
    return found


@pytest.mark.parametrize("workers, late", [(2, 0.0), (3, 0.01), (4, 0.03)])
def test_after_a_drain_all_replicas_are_the_same(workers, late):
    """Also if some continue with the next steps while others still wait for messages."""
    stretches = (10, 1, 14)
    found = ran(lambda e: real(e, looking, late=late, stretches=stretches), workers)
    for one in found:
        assert one["weights"].tobytes() == found[0]["weights"].tobytes()
        assert one["weights"].tobytes() != BEGIN_P.numpy().tobytes()
        assert one["staleness"].steps == STEPS


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_nobody_is_further_ahead_than_the_bound(staleness):
    """Worker 0 takes its first step once the others have reached the bound."""
    ahead = FORK.Semaphore(0)

    def gradient(worker, step, weights_P):
        if worker and step == staleness:
            ahead.release()
        if not worker and step == 0:
            assert all(ahead.acquire(timeout=PATIENCE_SECONDS) for _ in range(2))
        return looking(worker, step, weights_P)

    found = ran(lambda e: real(e, gradient, staleness), 3)
    assert [one["staleness"].most for one in found[1:]] == [staleness] * 2
    assert found[0]["staleness"].most <= staleness
    assert found[2]["staleness"].waited_seconds > 0


def test_without_staleness_it_is_the_virtual_run_to_the_bit():
    """It is synchronous GTC at each step, even with late and reordered messages."""
    wanted = Run(looking, workers=3, staleness=0).steps(STEPS)
    for worker, one in enumerate(ran(lambda e: real(e, looking, 0, late=0.01), 3)):
        assert one["weights"].tobytes() == wanted.weights_P.numpy().tobytes()
        for step, seen in enumerate(one["seen"]):
            assert seen.tobytes() == wanted.learner.seen[worker, step].numpy().tobytes()


def test_what_was_sent_and_what_is_kept_is_all_there_was():
    def dyadic(worker, step, weights_P):
        return dyadic_gradient(worker, step)

    zeros_P = torch.zeros(SIZE)
    found = ran(lambda e: real(e, dyadic, late=0.01, begin_P=zeros_P), 3)
    owed = sum(torch.from_numpy(one["residual"]) for one in found)
    all_P = sum(dyadic_gradient(w, s) for w in range(3) for s in range(STEPS))
    assert torch.equal(owed - torch.from_numpy(found[0]["weights"]) / RATE, all_P)


def test_who_is_late_is_named_with_what_is_missing():
    """Worker 1 takes four steps, and no more until worker 0 has stopped waiting."""
    over = FORK.Event()

    def main(exchange):
        method, worker = build(settings(2), exchange, SIZE), exchange.local[0]
        weights_P = BEGIN_P.clone()

        def gradient(worker, step, weights_P):
            if (worker, step) == (0, 6):  # the last step that it reaches
                method.asynchronous.links.timeout_seconds = 1.0
            if (worker, step) == (1, 4):
                assert over.wait(PATIENCE_SECONDS)
            return looking(worker, step, weights_P)

        try:
            method.asynchronous.run(
                weights_P, 0, 10, lambda step: RATE, GradientSource(gradient, weights_P)
            )
        except ExchangeError as error:
            method.close(error)
            if worker == 0:
                over.set()
            exchange.barrier()
            return str(error)

    found = forked.run(main, 2, 2)
    assert "process 1 of 2 did not answer in 1.0 s (comm.timeout_seconds is 1; " in found[0]
    assert "its messages up to step 4 are here, and worker 0 has taken 7" in found[0]
    assert "process 0 of 2 stopped: process 1 of 2 did not answer" in found[1]


def test_a_process_that_speaks_for_another_is_refused():
    def main(exchange):
        method = build(settings(2), exchange, SIZE)
        peer, links = method.asynchronous.peer, method.asynchronous.links
        peer.begin(0, BEGIN_P, lambda step: RATE)
        if exchange.local[0] == 2:
            peer.worker = 1
            found = peer.learn(0, Gradient(random_gradient(1, 0), 10))
            links.send(codec.write(found.words_K, found.header, peer.kind))
            exchange.barrier()
            return None
        try:
            with pytest.raises(MessageError, match=r"\(worker, .*\) \(1, .*\) but \(2, ") as error:
                method.asynchronous._take(20)
            return str(error.value)
        finally:
            exchange.barrier()

    found = forked.run(main, 3, 3)
    assert [isinstance(one, str) for one in found] == [True, True, False], found
