"""Workers that have received the same messages have the same weights, whatever the order."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_async import ADAPTIVE, BEGIN_P, RATE, begun
from small_methods import SIZE, random_gradient

from asr_train.comm import codec
from asr_train.comm.codec import Kind, MessageError
from asr_train.comm.peers import Message, Peer
from asr_train.comm.reducers import Gradient
from asr_train.kernels import threshold


def message(peer: Peer, step: int) -> Message:
    """Return the peer's next message, which it applies to itself, too."""
    found = peer.learn(step, Gradient(random_gradient(peer.worker, step), 10))
    peer.receive(found)
    return found


def encoded(message: Message) -> torch.Tensor:
    return codec.write(message.words_K, message.header, Kind.rice)


def weights(peer: Peer) -> torch.Tensor:
    out_P = torch.empty(SIZE)
    peer.weights(out_P)
    return out_P


@given(st.permutations(range(12)), st.lists(st.integers(0, 11), max_size=6))
def test_messages_may_be_reordered_and_doubled(order, again):
    """Also while steps are open."""
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
    assert torch.equal(weights(receiver), before_P)  # of step 2; the receiver reaches step 0
    receiver.receive(second)
    after_P = weights(receiver)
    assert not torch.equal(after_P, before_P)
    index_K, is_negative_K = codec.from_words(second.words_K)
    moved_P = torch.zeros(SIZE)
    moved_P[index_K] = -RATE * (1 - 2 * is_negative_K.float())
    assert torch.equal(after_P, before_P + moved_P)
    receiver.receive(first)
    assert receiver.steps_ahead == 0
    assert sender.steps_ahead == 3 > sender.staleness
    sender.receive(message(receiver, 0))
    assert sender.steps_ahead == 2 == sender.staleness


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
        for peer in group:  # the other's message of the previous step
            for found in sent[max(0, step - 1)]:
                peer.receive(found)
    taus = [found[0].header.tau for found in sent]
    assert taus[0] == taus[1]  # no message of any step was known
    assert taus[1] < taus[2] < taus[3]  # more was sent than the density allows
    assert group[0].thresholds.densities == group[1].thresholds.densities
    wanted = sum(found.header.wanted for found in sent[4])  # of the last step that both have
    assert group[0].thresholds.densities[-1] == wanted / (2 * SIZE)


def test_a_debt_that_overflows_is_not_sent_and_not_kept():
    """The gradient is finite, and its sum with the residual is not."""
    (peer,) = begun(1)
    largest = torch.finfo(torch.float32).max
    peer.residual_P[3] = largest
    before_P = peer.residual_P.clone()
    found = peer.learn(0, Gradient(torch.full((SIZE,), largest), 10))
    assert not found.is_finite
    assert (len(found.words_K), found.header.wanted) == (0, 0)
    assert torch.equal(peer.residual_P, before_P)


def test_a_worker_without_a_minibatch_sends_what_it_still_owes_and_then_nothing():
    """Until no element is above the threshold, also after what it owes has changed."""
    (peer,) = begun(1)
    nothing = Gradient(torch.zeros(SIZE), 0)
    for owed_P in (torch.full((SIZE,), 2.5), torch.full((SIZE,), -1.5)):
        peer.owe(owed_P)
        sums_P = torch.zeros(SIZE)
        for step in range(4):
            found = peer.learn(step, nothing)
            threshold.decode(found.words_K, sums_P)
            assert found.header.flags == codec.Flags.end_of_data
        assert len(found.words_K) == 0
        assert torch.equal(sums_P + peer.residual_P, owed_P)
        assert float(peer.residual_P.abs().max()) <= 1.0


def test_messages_of_another_run_are_refused():
    sender, receiver = begun(3)[0], begun(2)[1]
    with pytest.raises(MessageError, match=rf"\(0, 3, {SIZE}\) but \(0, 2, {SIZE}\)"):
        receiver.read(encoded(message(sender, 0)), 0)
    one, two = begun(2)
    two.thresholds.tau = 2.0
    one.receive(message(two, 0))
    with pytest.raises(MessageError, match=r"tau\) \(0, 0, 1.0\) but \(0, 0, 2.0\) is expected"):
        message(one, 0)


def test_a_message_speaks_for_its_sender_only_and_before_its_hits_are_looked_at(monkeypatch):
    one, two, three = begun(3)
    message_B = encoded(two.learn(0, Gradient(random_gradient(1, 0), 10)))
    assert one.read(message_B, 1).header.worker == 1
    monkeypatch.setattr(codec, "read_words", None)
    with pytest.raises(MessageError, match=r"\(worker, .*\) \(1, .*\) but \(2, "):
        one.read(message_B, 2)
    with pytest.raises(MessageError, match=r"\(worker, .*\) \(1, .*\) but \(0, "):
        three.read(message_B, 0)


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_message_of_a_step_that_nobody_can_have_come_to_is_refused(staleness, monkeypatch):
    """The bound is exact to the step; a refused message changes nothing."""
    sender, receiver = begun(2, staleness=staleness)
    for step in range(3 + staleness):
        message_B = encoded(message(sender, step))
        if step > staleness:
            before_P = weights(receiver)
            refusal = r"step {} but has taken {} steps itself, and no worker is more than {} ahead"
            with monkeypatch.context() as patch:
                patch.setattr(codec, "read_words", None)
                with pytest.raises(MessageError, match=refusal.format(step, 0, staleness)):
                    receiver.read(message_B, 0)
            assert torch.equal(weights(receiver), before_P)
        else:
            assert receiver.receive(receiver.read(message_B, 0))
    assert receiver.missing(staleness + 2) == [0, 1]
    message(receiver, 0)  # one step later, one more is possible
    (header,) = codec.read_headers([message_B])
    far = 1 + staleness
    words_K = torch.empty(0, dtype=torch.int32)
    for step, is_possible in ((far, True), (far + 1, False), (2**63, False)):
        changed_B = codec.write(words_K, replace(header, step=step), Kind.rice)
        if is_possible:
            assert receiver.receive(receiver.read(changed_B, 0))
        else:
            with pytest.raises(MessageError, match=f"of step {step} but has taken 1 steps"):
                receiver.read(changed_B, 0)
