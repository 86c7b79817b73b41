"""Laws of all methods."""

import copy
from importlib import import_module
from pathlib import Path

import forked
import pytest
import torch
from small_methods import (
    CPU,
    LARGE,
    SETTINGS,
    SIZE,
    Run,
    bursts,
    dyadic_gradient,
    flat,
    method_of,
    settings,
)

from asr_train import schema
from asr_train.comm import methods
from asr_train.comm.loopback import Loopback
from asr_train.comm.optimizer import Momentum
from asr_train.comm.reducers import Gradient, Sent, dense
from asr_train.facts import Method

MANY = [name for name in SETTINGS if name != "sgd"]  # for several workers


def run(exchange_or_workers, name, steps=10, **changes):
    return Run(method_of(name, exchange_or_workers), momentum=0.5, **changes).steps(steps)


def test_every_named_method_has_a_module_and_a_case_here():
    built = {import_module(f"{methods.__name__}.{method.value}").build for method in Method}
    assert len(built) == len(Method)
    files = {path.stem for path in Path(methods.__file__).parent.glob("[!_]*.py")}
    assert files == {method.value for method in Method}
    assert {settings(name).method for name in SETTINGS} == set(Method)


@pytest.mark.parametrize("name", SETTINGS)
def test_one_worker_is_plain_sgd_to_the_bit_and_sends_nothing(name):
    changes = {"group_size": 1} if name == "bmuf_gtc" else {}
    found = Run(method_of(name, 1, **changes), momentum=0.5).steps(10)
    wanted = run(1, "sgd")
    assert torch.equal(found.weights()[0], wanted.weights()[0])
    assert found.method.take_sent(0) == Sent()


@pytest.mark.parametrize("workers, processes", [(2, 2), (4, 4), (4, 3)])
def test_processes_and_virtual_workers_give_the_same_bits_at_every_step(workers, processes):
    def logs(exchange):
        found = {}
        for name in MANY:
            if name == "gtc_async" and 1 < exchange.processes < workers:
                continue  # refused: a process hosts one of them, or all
            done = run(exchange, name, bad={(1, 4)})
            done.method.close(None)
            found[name] = done.log
        return found

    alone = logs(Loopback(range(workers), CPU))
    for found in forked.run(logs, workers, processes):
        assert isinstance(found, dict), found
        for name, log in found.items():
            for step, hashes in enumerate(log):
                for worker, value in hashes.items():
                    assert value == alone[name][step][worker], (name, step, worker)


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("saved_at", [1, 4, 6])
def test_a_run_goes_on_from_its_state_to_the_same_bits(name, saved_at):
    unbroken = run(4, name)
    second = resumed(run(4, name, steps=saved_at), Run(method_of(name, 4), momentum=0.5))
    second.steps(10 - saved_at)
    assert second.log == unbroken.log[saved_at:]


@pytest.mark.parametrize("place", ["partial", "aggregate", "smoothed"])
@pytest.mark.parametrize("name", ["allreduce", "gtc", "onebit", "bmuf", "bmuf_gtc"])
def test_adagrad_goes_on_from_its_state_with_every_method(name, place):
    given = {"place": place, "window_frames": 30.0, "floor": 0.01}
    adagrad = {"adagrad": schema.build(schema.AdagradSettings, given)}
    unbroken = run(4, name, **adagrad)
    assert unbroken.log[-1] != run(4, name).log[-1]
    second = Run(method_of(name, 4), momentum=0.5, **adagrad)
    second = resumed(run(4, name, steps=4, **adagrad), second)
    assert second.steps(6).log == unbroken.log[4:]


@pytest.mark.parametrize("name", ["allreduce", "gtc", "onebit"])
def test_adagrad_averages_over_the_frames_of_all_workers_that_read(name):
    given = {"place": "aggregate", "window_frames": 300.0, "floor": 0.01}

    def log_of(reading, frames):
        adagrad = schema.build(schema.AdagradSettings, given)
        begun = Run(method_of(name, 4), adagrad=adagrad)
        begun.method.begin_step(reading, frames)
        return begun.steps(4).log

    assert log_of(4, 20) == log_of(2, 40) != log_of(4, 40)


@pytest.mark.parametrize("name", ["gtc", "gtc_adaptive", "bmuf_gtc"])
@pytest.mark.parametrize("saved_at", [5, 9])
def test_where_messages_overflow_a_run_goes_on_with_their_capacity_and_turns(name, saved_at):
    def begun():
        return Run(method_of(name, 2, size=LARGE), bursts)

    unbroken = begun().steps(10)
    assert [unbroken.method.take_sent(w).overflows for w in range(2)] == [2, 2]  # steps 8 and 9
    turns = [unbroken.method.worker_state(w)["turn"] for w in range(2)]
    assert turns[0] != turns[1] != 0
    second = resumed(begun().steps(saved_at), begun())
    assert second.steps(10 - saved_at).log == unbroken.log[saved_at:]


def resumed(first, second):
    """Return `second`, a new run, with all state that `first` would store."""
    second.step = first.step
    second.method.load_shared_state(copy.deepcopy(first.method.shared_state()))
    for i, group in enumerate(first.method.groups):
        second.method.load_group_states(i, [copy.deepcopy(first.method.group_state(i))])
        for worker in group.local:
            state = copy.deepcopy(first.method.worker_state(worker))
            second.method.load_worker_state(worker, state)
    return second


@pytest.mark.parametrize("name", ["gtc", "onebit", "bmuf"])
def test_what_was_owed_by_others_counts_once_where_a_worker_goes_on_alone(name):
    method = method_of(name, 1)
    found = Run(method, dyadic_gradient, rate=1.0, bad={(0, 0)})  # but does not lose it
    owed = {"residual_P": torch.full((SIZE,), 0.5)}
    method.load_worker_state(0, {"sent": [0, 0, 0, 0], "owed": owed})
    found.replicas[0].weights_P.zero_()
    found.steps(6)
    all_P = 0.5 + sum(dyadic_gradient(0, step) for step in range(1, 6))
    assert torch.equal(found.weights()[0], -all_P)


@pytest.mark.parametrize("name", MANY)
def test_states_are_tensors_and_plain_data(name, tmp_path):
    method = run(4, name).method
    states = [method.shared_state(), method.group_state(0), method.worker_state(0)]
    torch.save(states, tmp_path / "state.pt")
    torch.load(tmp_path / "state.pt", weights_only=True)


@pytest.mark.parametrize("name", MANY)
def test_after_an_epoch_all_replicas_are_the_same(name):
    done = run(4, name, steps=10)  # blocks of 3: one has begun
    done.method.end_epoch()
    for weights_P in done.weights():
        assert torch.equal(weights_P, done.weights()[0])
    exported_P = done.method.exported()
    assert exported_P.shape == (SIZE,)
    looks_ahead = name in ("bmuf", "bmuf_gtc")
    assert torch.equal(exported_P, done.weights()[0]) != looks_ahead


@pytest.mark.parametrize("name", [name for name in MANY if name != "gtc_async"])
def test_a_gradient_that_is_not_finite_stops_the_step_of_all_who_share_the_model(name):
    bad = {(1, 3)}
    before = run(4, name, steps=3)
    states = [copy.deepcopy(before.method.worker_state(w)) for w in range(4)]
    weights = [w.clone() for w in before.weights()]
    before.bad = bad
    before.steps(1)
    assert before.skipped == [3]
    for i, group in enumerate(before.method.groups):
        if 1 not in group.members:
            assert not torch.equal(before.weights()[i], weights[i])
            continue
        # A block of three has just ended at step 2, and the next has not
        assert torch.equal(before.weights()[i], weights[i])
        for worker in group.members:
            state = before.method.worker_state(worker)
            assert state.keys() == states[worker].keys()
            now, then = (
                list(flat(state))[4:],
                list(flat(states[worker]))[4:],
            )  # without what it sent
            for value, value_before in zip(now, then, strict=True):
                assert bool((torch.as_tensor(value) == torch.as_tensor(value_before)).all())
    before.steps(3)
    assert all(w.isfinite().all() for w in before.weights())


def test_of_workers_that_do_not_wait_only_that_ones_gradient_is_dropped():
    done = run(4, "gtc_async", steps=3)
    states = [copy.deepcopy(done.method.worker_state(w)) for w in range(4)]
    weights_P = done.weights()[0].clone()
    done.bad = {(1, 3)}
    done.steps(1)
    assert done.skipped == [3]
    assert not torch.equal(done.weights()[0], weights_P)
    for worker in range(4):
        same = torch.equal(
            done.method.worker_state(worker)["owed"]["residual_P"],
            states[worker]["owed"]["residual_P"],
        )
        assert same == (worker == 1)
    assert done.weights()[0].isfinite().all()


@pytest.mark.parametrize("name", MANY)
def test_what_is_sent_is_counted_by_worker(name):
    done = run(4, name, steps=6)
    sent = [done.method.take_sent(worker) for worker in range(4)]
    dense = 32 * SIZE
    slices = 50, 51, 51, 51  # of 203 elements: a worker adds up one, and receives the others
    ring = [32 * (3 * own + 203 - own) for own in slices]
    if "gtc" in name:
        for one in sent:
            assert 0 < one.elements < 6 * SIZE
            assert one.bits > 6 * 8 * 56
    elif "onebit" in name:  # see test_onebit
        assert [one.elements for one in sent] == [6 * SIZE] * 4
    elif name == "allreduce_bf16":
        assert sent == [Sent(6 * dense // 2, 6 * SIZE, received_bits=3 * bits) for bits in ring]
    elif name == "allreduce":
        assert sent == [Sent(6 * dense, 6 * SIZE, received_bits=6 * bits) for bits in ring]
    elif "bmuf" in name or name == "model_averaging":
        assert sent == [
            Sent(2 * dense, 2 * SIZE, received_bits=2 * bits, weights=2 * SIZE) for bits in ring
        ]
    if name != "bmuf_gtc":  # each message arrives at the three others, with padding and lengths
        assert sum(one.received_bits for one in sent) >= 1.5 * sum(one.bits for one in sent)
    assert done.method.take_sent(0) == Sent()


def test_messages_of_fixed_length_are_counted_with_their_padding():
    """Exact messages are counted with the longest length; headers have 56 bytes."""
    fixed = Run(method_of("gtc", 2, size=LARGE), bursts).steps(2).method.take_sent(1)
    assert fixed.received_bits == 8 * (56 + 25_000) + 8 * (56 + 12_500)
    assert fixed.bits < 2 * 8 * (56 + 30)
    exact = Run(method_of("gtc_exact", 2, size=LARGE), bursts).steps(2).method.take_sent(1)
    assert exact.bits == 2 * 8 * (56 + 4 * 10)
    assert exact.received_bits == exact.bits + 2 * 64


def test_allreduce_is_one_worker_with_all_the_gradients():
    many = Run(method_of("allreduce", 4), dyadic_gradient).steps(5)
    one = Run(
        method_of("sgd", 1), lambda _, step: sum(dyadic_gradient(w, step) for w in range(4))
    ).steps(5)
    assert torch.equal(many.weights()[0], one.weights()[0])


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - {"sgd", "gtc_async", "onebit_late"}))
def test_quanta_that_go_straight_into_the_weights_are_the_gradients_step_to_the_bit(name):
    whole, straight = method_of(name, 4), method_of(name, 4)
    run, _ = Run(whole), Run(straight)
    for _ in range(5):
        for group, members in enumerate(whole.groups):
            ours_P, theirs_P = torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE)
            theirs_P.add_(dense(whole.reduce(group, run.gradients(members.local))), alpha=-0.3)
            update = straight.reduce(group, run.gradients(members.local))
            Momentum(ours_P, 0.0).apply(ours_P, update, 0.3)
            assert torch.equal(ours_P.view(torch.int32), theirs_P.view(torch.int32))
            assert bool((ours_P != torch.linspace(-1, 1, SIZE)).any())
        run.step += 1


def test_bf16_rounds_what_is_sent_and_nothing_else():
    method = method_of("allreduce_bf16", 2)
    grads = [torch.full((SIZE,), 1 + 2.0**-7), torch.full((SIZE,), 2.0**-12)]
    total_P = method.reduce(0, (Gradient(g, 1) for g in grads))
    assert torch.equal(total_P, grads[0])  # 8 bits are kept, to which 2**-12 adds nothing


def test_sgd_refuses_several_workers():
    with pytest.raises(ValueError, match="sgd is for one worker, but there are 2"):
        method_of("sgd", 2)


def test_asynchronous_workers_live_in_a_process_each_or_all_in_one():
    def refused(exchange):
        exchange.barrier()  # leaving early would disturb processes that are still connecting
        return method_of("gtc_async", exchange)

    for error in forked.run(refused, 4, 3):
        assert isinstance(error, ValueError)
        assert "3 processes host 4 workers" in str(error)


def test_workers_that_make_no_whole_groups_are_refused():
    with pytest.raises(ValueError, match=r"5 workers do not make groups of comm.group_size=2"):
        method_of("bmuf_gtc", 5)


@pytest.mark.parametrize(
    "workers, size", [(1, 1), (2, 1), (3, 1), (4, 2), (6, 3), (7, 1), (8, 4), (16, 8), (128, 8)]
)
def test_a_group_size_that_is_not_set_is_chosen_and_said(workers, size):
    method = method_of("bmuf_gtc", workers, group_size=0)
    assert len(method.groups) == workers // size
    assert all(len(group) == size for group in method.groups)
    assert method.notice == f"bmuf_gtc: {workers // size} groups of {size}, one model each"


def test_a_negative_group_size_is_refused():
    with pytest.raises(schema.SettingsError, match=r"comm\.group_size is -1"):
        method_of("bmuf_gtc", 4, group_size=-1)


def test_seconds_of_an_exchange_are_counted_where_they_pass():
    apart = run(2, "gtc").method.take_seconds()
    assert apart["compress"] > 0
    assert apart["transfer"] == 0  # in one process nothing is sent
    for seconds in forked.run(seconds_of, 2, 2):
        assert seconds["compress"] > 0
        assert seconds["transfer"] > 0


def seconds_of(exchange):
    method = method_of("gtc", exchange)
    Run(method).steps(3)
    seconds = method.take_seconds()
    assert method.take_seconds() == {"compress": 0, "transfer": 0}
    return seconds


def test_settings_that_a_method_needs_must_be_there():
    for name, values in SETTINGS.items():
        for key in values.keys() - {"method"}:
            rest = {k: v for k, v in values.items() if k != key}
            with pytest.raises(schema.SettingsError, match=f"comm.{key} is missing"):
                schema.build(schema.CommSettings, rest, "comm")
            assert name
