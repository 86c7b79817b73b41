"""Sums of messages are the same to the bit, whoever makes them and however."""

import pytest
import torch
from small_async import BEGIN_P
from small_methods import SIZE, random_gradient

from asr_train.comm.ledger import Ledger
from asr_train.kernels import decode, threshold

TAU, RATE, WORKERS = 0.7, 0.3, 6


def words(worker, step):
    grad_P = random_gradient(worker, step)
    sent = threshold.compress(grad_P, torch.zeros(SIZE), 0.01, torch.empty(SIZE))
    assert len(sent.words_K) > SIZE // 2  # so that taking back pays
    return sent.words_K


def updated(messages, before_P):
    after_P = before_P.clone()
    decode.update([messages[worker] for worker in sorted(messages)], TAU, RATE, after_P)
    return after_P


def read(count=WORKERS, spread=2):
    ledger = Ledger(torch.zeros(SIZE), spread)
    messages = {worker: words(worker, 0) for worker in range(WORKERS)}
    for worker in range(count):
        for _ in range(2):  # a repeated one counts once
            ledger.add(0, worker, messages[worker])
    return ledger, messages


@pytest.mark.parametrize("have", range(1, WORKERS + 1))
@pytest.mark.parametrize("count", [0, 4, WORKERS])
def test_weights_by_some_messages_are_those_of_decode(have, count):
    """Some are taken back, all are added up, or not all were read here."""
    ledger, messages = read(count)
    some = {worker: messages[worker] for worker in range(WORKERS - have, WORKERS)}
    weights_P = BEGIN_P.clone()
    ledger.update(0, some, TAU, RATE, weights_P)
    assert torch.equal(weights_P, updated(some, BEGIN_P))


def test_a_worker_that_lacks_one_message_does_not_add_up_the_others(monkeypatch):
    ledger, messages = read()
    del messages[2]
    wanted_P, weights_P = updated(messages, BEGIN_P), BEGIN_P.clone()
    monkeypatch.setattr(decode, "update", None)
    ledger.update(0, messages, TAU, RATE, weights_P)
    assert torch.equal(weights_P, wanted_P)


def test_a_complete_step_is_added_up_once():
    ledger, messages = read()
    base_P = ledger.begin(0, BEGIN_P)
    assert ledger.begin(0, BEGIN_P.clone()) is base_P
    after_P = ledger.close(0, messages, TAU, RATE, base_P)
    assert torch.equal(after_P, updated(messages, BEGIN_P))
    assert torch.equal(base_P, BEGIN_P)
    assert ledger.close(0, messages, TAU, RATE, base_P) is after_P
    other_P = ledger.begin(0, BEGIN_P + 1)
    assert torch.equal(ledger.close(0, messages, TAU, RATE, other_P), updated(messages, other_P))


def test_a_late_worker_finds_the_base_or_makes_it():
    """Sums are kept for `spread` steps; memory does not grow."""
    ledger, messages = read(0, spread=2)
    base_P = first_P = ledger.begin(0, BEGIN_P)
    for step in range(5):
        for worker, words_K in messages.items():
            ledger.add(step, worker, words_K)
        base_P = ledger.close(step, messages, TAU, RATE, base_P)
        assert len(ledger._counts) <= 2
        assert len(ledger._bases) <= 3
    late_P = first_P
    for step in range(5):
        late_P = ledger.close(step, messages, TAU, RATE, late_P)
    assert torch.equal(late_P, base_P)


def test_steps_that_are_taken_anew_count_their_own_messages():
    ledger, messages = read()
    base_P = ledger.begin(0, BEGIN_P)
    ledger.close(0, messages, TAU, RATE, base_P)
    ledger.forget()
    others = {worker: words(worker, 1) for worker in range(WORKERS)}
    for worker, words_K in others.items():
        ledger.add(0, worker, words_K)
    found_P = ledger.close(0, others, TAU, RATE, ledger.begin(0, BEGIN_P))
    assert torch.equal(found_P, updated(others, BEGIN_P))
