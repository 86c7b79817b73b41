"""Asynchronous workers of one process: laws of dead reckoning, for any speeds and delays."""

import copy

import pytest
import small_methods
import torch
from small_async import ADAPTIVE, BEGIN_P, GTC, RATE, LateSource, Run, begun
from small_methods import SIZE, dyadic_gradient, method_of, random_gradient

from asr_train.comm import codec, virtual_time
from asr_train.comm.async_workers import Staleness
from asr_train.comm.links import FRAME_BYTES
from asr_train.comm.peers import Sender
from asr_train.comm.virtual_time import Draw, VirtualTime, draws

SLOW = {"slowdown": 4.0}


def made_up(worker, step, weights_P):
    return random_gradient(worker, step)


def looking(worker, step, weights_P):
    """Return a gradient that depends on the weights, and so on the messages received."""
    return random_gradient(worker, step) + weights_P


def synchronous(gradient, steps, adaptive=None, rate=lambda step: RATE):
    """Train as train.loop does, with gtc; return the weights after each step, and the method."""
    method = method_of("gtc", 4, gtc={**GTC, "adaptive": adaptive})
    run = small_methods.Run(method)
    run.replicas[0].weights_P = BEGIN_P.clone()
    seen = []
    for step in range(steps):
        weights_P = run.replicas[0].weights_P
        run.gradient, run.rate = (lambda w, s, p=weights_P: gradient(w, s, p)), rate(step)
        run.steps(1)
        seen.append(run.weights()[0].clone())
    return seen, method


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("delay", [0.0, 0.5, 20.0])
def test_a_drain_delivers_all_messages(seed, delay):
    run = Run(looking, bad={(1, 5)}, seed=seed, delay_seconds=delay).steps(12)
    assert run.weights_P.isfinite().all()
    assert not torch.equal(run.weights_P, BEGIN_P)
    assert sorted(run.learner.done) == [
        (worker, step, (worker, step) != (1, 5)) for worker in range(4) for step in range(12)
    ]


@pytest.mark.parametrize("adaptive", [None, ADAPTIVE])
@pytest.mark.parametrize(
    "time", [{"delay_seconds": 0.0, "speed_spread": 0.0}, {"delay_seconds": 5.0, **SLOW}]
)
def test_without_staleness_it_is_synchronous_gtc_to_the_bit(adaptive, time):
    """For any delays of messages at each step, with a rate that changes at each step."""

    def rate(step):
        return 0.01 / (3 + step)

    seen, method = synchronous(looking, 12, adaptive, rate)
    run = Run(looking, staleness=0, adaptive=adaptive, **time).steps(7, rate).steps(5, rate)
    assert torch.equal(run.weights_P, seen[-1])
    for worker in range(4):
        for step in range(1, 12):
            assert torch.equal(run.learner.seen[worker, step], seen[step - 1])
        assert torch.equal(run.residuals[worker], method.worker_state(worker)["owed"]["residual_P"])
    if adaptive:
        assert run.asynchronous.thresholds.tau != GTC["threshold"]


def test_order_and_delays_do_not_change_what_made_up_gradients_give():
    """Gradients that do not depend on the weights: the result is that of synchronous GTC."""
    seen, _ = synchronous(made_up, 12)
    for seed, delay in [(0, 0.0), (1, 3.0), (2, 50.0)]:
        run = Run(made_up, seed=seed, delay_seconds=delay, **SLOW).steps(12)
        assert torch.equal(run.weights_P, seen[-1])


def test_what_was_sent_and_what_is_kept_is_all_there_was():
    zeros_P = torch.zeros(SIZE)
    run = Run(lambda w, s, _: dyadic_gradient(w, s), begin_P=zeros_P).steps(10)
    all_P = sum(dyadic_gradient(w, s) for w in range(4) for s in range(10))
    assert torch.equal(sum(run.residuals) - run.weights_P / RATE, all_P)


def test_the_same_seed_gives_the_same_run_and_another_another():
    one, same, other = (Run(looking, seed=seed).steps(12) for seed in (0, 0, 1))
    assert torch.equal(one.weights_P, same.weights_P)
    assert (one.asynchronous.now, one.learner.begun) == (same.asynchronous.now, same.learner.begun)
    assert not torch.equal(one.weights_P, other.weights_P)


def test_staleness_lets_workers_see_other_weights():
    runs = [Run(looking, staleness=s, **SLOW).steps(12).weights_P for s in (0, 1, 4)]
    assert not torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[1], runs[2])


@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_nobody_is_further_ahead_than_the_bound(staleness):
    run = Run(made_up, staleness=staleness, **SLOW)
    ahead = []

    def gradient(worker, step, weights_P):
        others = [len([1 for w, *_ in run.learner.done if w == o]) for o in range(4)]
        ahead.append(step - min(others))  # of the steps done, which is at least what is known
        return random_gradient(worker, step)

    run.learner.of = gradient
    run.steps(20)
    assert max(ahead) == staleness
    found = [run.asynchronous.take_staleness(worker) for worker in range(4)]
    assert max(one.most for one in found) == staleness
    assert [one.steps for one in found] == [20] * 4
    assert all(one.total <= 20 * staleness for one in found)
    waits = [one.waited_seconds for one in found]
    assert min(waits[:3]) > waits[3]  # the slow worker waits least
    assert run.asynchronous.now == max(one.now for one in found)


def test_more_staleness_takes_less_time_where_speeds_differ_by_chance():
    took = [
        Run(made_up, staleness=s, speed_spread=0.0, step_spread=0.5).steps(60).asynchronous.now
        for s in (0, 1, 4, 16)
    ]
    assert took == sorted(took, reverse=True)
    assert took[0] > 1.5 * took[-1]


def test_a_slow_worker_sets_the_pace_whatever_the_staleness():
    """Bounded staleness evens out short delays; a worker that is always slow must be waited for."""
    alone = {"speed_spread": 0.0, "step_spread": 0.0, "delay_seconds": 0.0, "slowdown": 3.0}
    for staleness in (0, 4):
        assert Run(made_up, staleness=staleness, **alone).steps(
            40
        ).asynchronous.now == pytest.approx(120)


@pytest.mark.parametrize("adaptive", [None, ADAPTIVE])
@pytest.mark.parametrize("saved_at", [1, 5, 9])
def test_a_run_goes_on_from_its_state_to_the_same_bits(saved_at, adaptive):
    whole = Run(looking, adaptive=adaptive).steps(saved_at).steps(12 - saved_at)
    first = Run(looking, adaptive=adaptive).steps(saved_at)
    second = Run(looking, adaptive=adaptive, begin_P=first.weights_P)
    second.step = saved_at
    state = copy.deepcopy(first.method.reducers[0].group_state())
    second.method.reducers[0].load_group_state(state)
    for worker in range(4):
        state = copy.deepcopy(first.method.worker_state(worker))
        second.method.load_worker_state(worker, state)
    second.steps(12 - saved_at)
    assert torch.equal(second.weights_P, whole.weights_P)
    assert second.asynchronous.now == whole.asynchronous.now
    for worker in range(4):
        assert torch.equal(second.residuals[worker], whole.residuals[worker])
        assert second.asynchronous.take_staleness(worker) == whole.asynchronous.take_staleness(
            worker
        )
        assert second.method.take_sent(worker) == whole.method.take_sent(worker)


@pytest.mark.parametrize("time", [{}, {"delay_seconds": 0.0}, {"speed_spread": 1.0, **SLOW}])
@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_weights_are_those_of_a_worker_that_receives_each_message_when_it_arrives(staleness, time):
    """Worker by worker, `peers.Peer` has the same weights at the beginning of each step."""
    steps, sent = 8, {}
    run = Run(looking, staleness=staleness, **time)
    learn, close, arrival = Sender.learn, VirtualTime._close, {}

    def noted(sender, step, gradient):
        sent[sender.worker, step] = learn(sender, step, gradient)
        return sent[sender.worker, step]

    begun_at = {}
    gradient = run.learner.gradient

    def at(worker, step, write_weights):
        begun_at[worker, step] = run.asynchronous.now
        return gradient(worker, step, write_weights)

    def closed(ahead, step):
        arrival[step] = ahead._open[step].arrival_WW.copy()
        close(ahead, step)

    run.learner.gradient = at
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "learn", noted)
        patch.setattr(VirtualTime, "_close", closed)
        run.steps(steps)
    times = {time for times_WW in arrival.values() for time in times_WW.flatten().tolist()}
    assert len(times) == 4 * steps * (4 if run.asynchronous.settings.delay_seconds else 1)
    for peer in begun(4, staleness=staleness):
        due = sorted(
            (arrival[step][worker, peer.worker], worker != peer.worker, step, worker)
            for worker, step in sent
        )
        for step in range(steps):
            now = begun_at[peer.worker, step]
            while due and due[0][0] <= now:
                _, _, number, worker = due.pop(0)
                peer.receive(sent[worker, number])
            weights_P = torch.empty(SIZE)
            peer.weights(weights_P)
            assert torch.equal(weights_P, run.learner.seen[peer.worker, step])


@pytest.mark.parametrize("codec_name", ["packed32", "tile16", "rice"])
def test_messages_are_counted_as_they_would_be_encoded(codec_name, monkeypatch):
    monkeypatch.setitem(GTC, "codec", codec_name)
    found, learn = [], Sender.learn

    def noted(sender, step, gradient):
        found.append((sender, learn(sender, step, gradient)))
        return found[-1][1]

    monkeypatch.setattr(Sender, "learn", noted)
    run = Run(made_up).steps(3)
    sizes = [len(codec.write(m.words_K, m.header, peer.kind)) for peer, m in found]
    assert sum(run.asynchronous.sent[worker].bits for worker in range(4)) == 8 * sum(sizes)
    received = sum(run.asynchronous.sent[worker].received_bits for worker in range(4))
    assert received == 8 * 3 * sum(size + FRAME_BYTES for size in sizes)


def test_a_worker_without_a_minibatch_asks_for_no_weights_and_changes_nothing():
    idle = {(2, step) for step in range(12)}
    run = Run(looking, idle=idle).steps(12)
    assert not any(worker == 2 for worker, _ in run.learner.seen)
    assert (2, 11, True) in run.learner.done
    assert run.asynchronous.sent[2].elements == 0


@pytest.mark.parametrize("adaptive", [None, ADAPTIVE])
@pytest.mark.parametrize("most", [1, 3, 4])
@pytest.mark.parametrize("time", [{}, {"delay_seconds": 0.0}, {"staleness": 0}, SLOW])
def test_gradients_computed_together_make_the_same_run(time, most, adaptive):
    """They may come as late as the first message that one of them makes is sent."""
    about = {"bad": {(1, 5)}, "idle": {(2, 7), (0, 3)}, "adaptive": adaptive, **time}
    wanted, found = Run(looking, **about).steps(7).steps(5), Run(looking, **about)
    learner = found.learner
    found.learner = LateSource(looking, found.weights_P, learner.bad, learner.idle, most=most)
    found.steps(7).steps(5)
    assert torch.equal(found.weights_P, wanted.weights_P)
    assert found.learner.seen.keys() == wanted.learner.seen.keys()
    for name, weights_P in wanted.learner.seen.items():
        assert torch.equal(found.learner.seen[name], weights_P)
    assert found.learner.done == wanted.learner.done
    assert found.asynchronous.group_state() == wanted.asynchronous.group_state()
    assert found.asynchronous.staleness == wanted.asynchronous.staleness
    assert found.asynchronous.sent == wanted.asynchronous.sent
    assert all(map(torch.equal, found.residuals, wanted.residuals))
    assert max(found.learner.together) == most
    assert sum(found.learner.together) == 4 * 12 - 2


def test_leads_of_workers_add_up_to_the_time_of_the_last():
    staleness = Staleness(steps=2, total=3, most=2, waited_seconds=1.5, now=10.0)
    staleness.add(Staleness(steps=4, total=1, most=1, waited_seconds=0.5, now=12.0))
    assert staleness == Staleness(steps=6, total=4, most=2, waited_seconds=2.0, now=12.0)


def test_no_random_number_of_a_run_is_drawn_twice(monkeypatch):
    names = []
    monkeypatch.setattr(virtual_time, "draws", lambda *name: names.append(name) or draws(*name))
    Run(made_up).steps(6).steps(4)
    assert len(set(names)) == len(names) == 4 + 4 * 10  # speeds, steps


def test_random_numbers_depend_on_what_they_are_for():
    names = [
        (0, Draw.speed, 0, 0),
        (0, Draw.step, 0, 0),
        (1, Draw.step, 0, 0),
    ]
    names += [(0, Draw.step, 1, 0), (0, Draw.step, 0, 1)]
    assert len({draws(*name).random() for name in names}) == len(names)
