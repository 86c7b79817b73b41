"""Whatever the order of messages, who has the same ones has the same weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_async import ADAPTIVE, BEGIN_P, RATE, begun
from small_methods import SIZE, random_gradient

from asr_train.comm import codec
from asr_train.comm.codec import MessageError
from asr_train.comm.method import Gradient, Sent
from asr_train.comm.peers import Inbox, Message, Peer


def message(peer: Peer, step: int) -> Message:
    """Its next one, which counts there, too."""
    message_B = peer.learn(Gradient(random_gradient(peer.worker, step), 10), Sent())
    found = Message(*codec.read(message_B))
    peer.receive(found)
    return found


def weights(peer: Peer) -> torch.Tensor:
    out_P = torch.empty(SIZE)
    peer.weights(out_P)
    return out_P


@given(st.permutations(range(5)))
def test_an_inbox_knows_up_to_where_all_are_there(order):
    inbox, came = Inbox(), set()
    for number in order:
        assert inbox.take(number)
        came.add(number)
        assert inbox.next == next(n for n in range(6) if n not in came)


@settings(deadline=None)  # kernels may be compiled first
@given(st.permutations(range(12)), st.lists(st.integers(0, 11), max_size=6))
def test_messages_may_be_reordered_and_doubled(order, again):
    """Also while steps are open: two who have the same messages have the same weights."""
    one, two, three = begun(3, staleness=9)
    messages = [message(peer, step) for step in range(6) for peer in (one, two)]
    received = begun(3, staleness=9)[2]
    for m in messages:
        three.receive(m)
    taken = [received.receive(messages[i]) for i in [*order, *again]]
    assert taken == [True] * 12 + [False] * len(again)
    assert torch.equal(weights(received), weights(three))
    assert not torch.equal(weights(received), BEGIN_P)
    assert received.missing(6) == [2]
    for peer, step in [(p, s) for p in (three, received) for s in range(6)]:
        message(peer, step)
        assert peer.missing(step + 1) == []
    assert torch.equal(received.base_P, three.base_P)
    assert torch.equal(weights(received), received.base_P)


def test_a_message_counts_at_once_unless_it_is_too_far_ahead():
    sender, receiver = begun(2, staleness=2)
    before_P = weights(receiver)
    first, second, third = (message(sender, step) for step in range(3))
    receiver.receive(third)
    assert torch.equal(weights(receiver), before_P)  # of step 2; the receiver comes to step 0
    receiver.receive(second)
    after_P = weights(receiver)
    assert not torch.equal(after_P, before_P)
    index_K, is_negative_K = codec.from_words(second.words_K)
    moved_P = torch.zeros(SIZE)
    moved_P[index_K] = -RATE * (1 - 2 * is_negative_K.float())
    assert torch.equal(after_P, before_P + moved_P)
    receiver.receive(first)
    assert (receiver.lead, receiver.may_go_on) == (0, True)
    assert sender.lead == 3
    assert not sender.may_go_on
    sender.receive(message(receiver, 0))
    assert (sender.lead, sender.may_go_on) == (2, True)


def test_the_rate_of_a_message_is_that_of_its_step():
    one, two = begun(2, staleness=5)
    for peer in (one, two):
        peer.begin(0, BEGIN_P, lambda step: RATE / (1 + step))
    first, second = message(one, 0), message(one, 1)
    two.receive(second)
    two.receive(first)
    assert torch.equal(weights(two), weights(one))
    moved_P = BEGIN_P.clone()
    for found, rate in ((first, RATE), (second, RATE / 2)):
        index_K, is_negative_K = codec.from_words(found.words_K)
        moved_P[index_K] -= rate * (1 - 2 * is_negative_K.float())
    torch.testing.assert_close(weights(two), moved_P)


def test_the_threshold_follows_steps_that_all_must_have():
    group = begun(2, staleness=1, adaptive=ADAPTIVE)
    sent = []
    for step in range(6):
        sent.append([message(peer, step) for peer in group])
        assert sent[-1][0].header.tau == sent[-1][1].header.tau
        for peer in group:  # the other's message of the step before
            for found in sent[max(0, step - 1)]:
                peer.receive(found)
    taus = [found[0].header.tau for found in sent]
    assert taus[0] == taus[1]  # nothing was known of any step
    assert taus[1] < taus[2] < taus[3]  # more was sent than the density allows
    assert group[0].densities == group[1].densities


def test_a_debt_that_overflows_is_not_sent_and_not_kept():
    """The gradient is finite, and its sum with the residual is not."""
    (peer,) = begun(1)
    largest = torch.finfo(torch.float32).max
    peer.residual_P[3] = largest
    before_P, sent = peer.residual_P.clone(), Sent()
    found, words_K = codec.read(peer.learn(Gradient(torch.full((SIZE,), largest), 10), sent))
    assert found.flags == codec.Flags.not_finite
    assert (len(words_K), found.wanted, sent.elements) == (0, 0, 0)
    assert torch.equal(peer.residual_P, before_P)


def test_messages_of_another_run_are_refused():
    sender, receiver = begun(3)[0], begun(2)[1]
    with pytest.raises(MessageError, match=rf"\(3, {SIZE}\) but \(2, {SIZE}\) is due"):
        receiver.receive(message(sender, 0))
    one, two = begun(2)
    two.tau = 2.0
    one.receive(message(two, 0))
    with pytest.raises(MessageError, match=r"of step 0 have the thresholds \[1.0, 2.0\]"):
        message(one, 0)
