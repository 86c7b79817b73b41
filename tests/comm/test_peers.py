"""Whatever the order of messages, who has the same ones has the same weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_methods import SIZE, Run, dyadic_gradient, method_of, random_gradient

from asr_train.comm.codec import MessageError
from asr_train.comm.method import Gradient
from asr_train.comm.peers import Inbox, Peer, VirtualTime

RATE, TAU = 0.125, 1.0
BEGIN_P = torch.linspace(-1, 1, SIZE)


def peers(workers=4, staleness=3, begin_P=BEGIN_P):
    return [Peer(w, workers, begin_P, RATE, TAU, staleness) for w in range(workers)]


def made_up(gradient, bad=()):
    def of(worker, step, weights_P):
        grad_P = gradient(worker, step)
        is_finite = (worker, step) not in bad
        if not is_finite:
            grad_P[3] = torch.nan
        return Gradient(grad_P, 10, is_finite)

    return of


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("delay", [0.0, 0.5, 20.0])
def test_after_a_drain_all_replicas_are_the_same(seed, delay):
    group = peers()
    VirtualTime(group, 1.0, delay, seed).run(12, made_up(random_gradient, {(1, 5)}))
    for peer in group[1:]:
        assert torch.equal(peer.weights(), group[0].weights())
    assert group[0].weights().isfinite().all()
    assert not torch.equal(group[0].weights(), BEGIN_P)


def test_order_and_delays_do_not_change_what_made_up_gradients_give():
    """Gradients that do not look at the weights: then it is synchronous GTC, on exact numbers."""
    wanted = Run(method_of("gtc", 4), dyadic_gradient)
    wanted.replicas[0].weights_P = torch.zeros(SIZE)
    wanted.steps(12)
    for seed, delay in [(0, 0.0), (1, 3.0), (2, 50.0)]:
        group = peers(begin_P=torch.zeros(SIZE))
        VirtualTime(group, 1.0, delay, seed).run(12, made_up(dyadic_gradient))
        assert torch.equal(group[0].weights(), wanted.weights()[0])
        for worker, peer in enumerate(group):
            wanted_P = wanted.method.worker_state(worker)["residual_P"]
            assert torch.equal(peer.residual_P, wanted_P)


def test_the_same_seed_gives_the_same_run_and_another_another():
    def trained(seed):
        group = peers()
        time = VirtualTime(group, 1.0, 2.0, seed)
        # Gradients that look at the weights, and so at what has arrived
        time.run(12, lambda w, s, now_P: Gradient(random_gradient(w, s) + now_P, 10))
        return group[0].weights(), time.now

    assert torch.equal(trained(0)[0], trained(0)[0])
    assert trained(0)[1] == trained(0)[1]
    assert not torch.equal(trained(0)[0], trained(1)[0])


@pytest.mark.parametrize("staleness", [1, 2, 5])
def test_nobody_is_further_ahead_than_the_bound(staleness):
    group = peers(staleness=staleness)
    lead = []

    def watch(worker, step, weights_P):
        heard = [inbox.next for inbox in group[worker].inboxes.values()]
        lead.append(group[worker].number - min(heard))
        return Gradient(random_gradient(worker, step), 10)

    time = VirtualTime(group, 1.0, 4.0, seed=0)
    time.run(20, watch)
    assert max(lead) == staleness - 1
    assert sum(time.waited_seconds) > 0
    assert [peer.number for peer in group] == [20] * 4


def test_what_was_sent_and_what_is_kept_is_all_there_was():
    group = peers(begin_P=torch.zeros(SIZE))
    VirtualTime(group, 1.0, 3.0, seed=0).run(10, made_up(dyadic_gradient))
    all_P = sum(dyadic_gradient(w, s) for w in range(4) for s in range(10))
    owed_P = sum(peer.residual_P for peer in group)
    assert torch.equal(owed_P + TAU * group[0].counts_P, all_P)


def test_folding_keeps_replicas_the_same_and_lets_rate_and_threshold_change():
    group = peers()
    time = VirtualTime(group, 1.0, 3.0, seed=0)
    time.run(5, made_up(random_gradient))
    before_P = group[0].weights()
    for peer in group:
        peer.fold(RATE / 2, 2 * TAU)
        assert torch.equal(peer.weights(), before_P)
    time.run(5, made_up(random_gradient))
    for peer in group:
        assert torch.equal(peer.weights(), group[0].weights())


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=6))
def test_messages_may_be_reordered_and_doubled(order, again):
    sender, receiver = peers(2, staleness=9)
    messages = [sender.learn(Gradient(random_gradient(0, step), 10)) for step in range(6)]
    taken = [receiver.receive(messages[i]) for i in [*order, *again]]
    assert taken == [True] * 6 + [False] * len(again)
    assert receiver.is_drained([6, 0])
    assert torch.equal(receiver.weights(), sender.weights())


@given(st.permutations(range(5)))
def test_an_inbox_knows_up_to_where_all_are_there(order):
    inbox, came = Inbox(), set()
    for number in order:
        assert inbox.take(number)
        came.add(number)
        assert inbox.next == next(n for n in range(6) if n not in came)


def test_damaged_messages_and_those_of_another_threshold_are_refused():
    sender, receiver = peers(2)
    message_B = sender.learn(Gradient(random_gradient(0, 0), 10))
    receiver.fold(RATE, 2.0)
    with pytest.raises(MessageError, match=r"\(2, 203, 1.0\) but \(2, 203, 2.0\) is due"):
        receiver.receive(message_B)
    message_B[-1] ^= 4
    with pytest.raises(MessageError, match="changed on the way"):
        receiver.receive(message_B)
    assert not receiver.counts_P.any()


def test_a_step_ahead_must_be_allowed():
    with pytest.raises(ValueError, match="staleness is 0"):
        peers(2, staleness=0)
