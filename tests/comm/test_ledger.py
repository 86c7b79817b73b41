"""Sums of messages are the same to the bit, however they are made."""

import pytest
import torch
from small_async import BEGIN_P
from small_methods import CPU, SIZE, random_gradient

from asr_train.comm.ledger import Ledger
from asr_train.kernels import decode, threshold

TAU, RATE, WORKERS = 0.7, 0.3, 6


def words(worker, step):
    grad_P = random_gradient(worker, step)
    return threshold.compress(grad_P, torch.zeros(SIZE), 0.01, torch.empty(SIZE)).words_K


def read(steps, worth=lambda step: (TAU, RATE)):
    ledger = Ledger(SIZE, CPU)
    ledger.begin(0, BEGIN_P, lambda step: worth(step)[1])
    for step in range(steps):
        for worker in range(WORKERS):
            ledger.add(step, worker, words(worker, step), worth(step)[0])
    return ledger


def weights(ledger, step, known):
    out_P = torch.empty(SIZE)
    ledger.weights(step, known, out_P)
    return out_P


def moved(before_P, known, tau=TAU, rate=RATE):
    """Return weights by all messages at once, added up by another kernel."""
    after_P = before_P.clone()
    messages = [words(worker, step) for step, workers in known.items() for worker in workers]
    decode.update(messages, tau, rate, after_P)
    return after_P


@pytest.mark.parametrize("have", range(WORKERS + 1))
def test_weights_by_some_messages_of_two_steps(have):
    """What is lacking is taken back, or what is there is added up."""
    known = {0: set(range(WORKERS - have, WORKERS)), 1: set(range(have))}
    assert torch.equal(weights(read(3), 0, known), moved(BEGIN_P, known))


def test_steps_of_another_rate_or_threshold_have_sums_of_their_own():
    known = {step: {0, 1, 2, 4, 5} for step in range(4)}
    worths = {0: (TAU, RATE), 1: (TAU, 0.2), 2: (TAU, RATE), 3: (0.5, 0.2)}
    wanted_P = BEGIN_P
    for steps, worth in (((0, 2), (TAU, RATE)), ((1,), (TAU, 0.2)), ((3,), (0.5, 0.2))):
        wanted_P = moved(wanted_P, {step: known[step] for step in steps}, *worth)
    assert torch.equal(weights(read(4, worths.__getitem__), 0, known), wanted_P)


def test_no_message_leaves_the_base():
    for known in ({}, {0: set()}):
        assert torch.equal(weights(read(1), 0, known), BEGIN_P)


def test_a_complete_step_is_the_next_ones_base():
    ledger = read(2)
    ledger.close(0)
    assert torch.equal(ledger.base(0), BEGIN_P)
    first_P = moved(BEGIN_P, {0: range(WORKERS)})
    assert torch.equal(ledger.base(1), first_P)
    known = {1: {3}}
    assert torch.equal(weights(ledger, 1, known), moved(first_P, known))


def test_memory_does_not_grow_with_the_steps():
    ledger = read(0)
    wanted_P = BEGIN_P
    for step in range(8):
        for worker in range(WORKERS):
            ledger.add(step, worker, words(worker, step), TAU)
        ledger.close(step)
        wanted_P = moved(wanted_P, {step: range(WORKERS)})
        ledger.drop(step)
        assert torch.equal(ledger.base(step + 1), wanted_P)
    assert len(ledger._counts_NP) == 2
    assert list(ledger._bases) == [7, 8]


def test_steps_that_are_taken_anew_count_their_own_messages():
    ledger = read(1)
    ledger.forget()
    ledger.begin(0, BEGIN_P, lambda step: RATE)
    ledger.add(0, 2, words(2, 1), TAU)
    wanted_P = BEGIN_P.clone()
    decode.update([words(2, 1)], TAU, RATE, wanted_P)
    assert torch.equal(weights(ledger, 0, {0: {2}}), wanted_P)
