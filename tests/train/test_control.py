"""Controllers: their rules; a try leaves no trace; the same bytes anywhere and after a kill."""

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import tiny
import torch
from comm import forked
from tiny import outcome, rows

from asr_train.comm.bucket import Bucket
from asr_train.comm.loopback import Loopback
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.methods import build
from asr_train.comm.onebit import OneBitSgd
from asr_train.comm.optimizer import Momentum
from asr_train.comm.reducers import Gradient
from asr_train.model.store import build_model
from asr_train.schema import SettingsError
from asr_train.shards.batch import Cut
from asr_train.train import control, loop
from asr_train.train import step as steps
from asr_train.train.control import Controllers, RateAction, largest_harmless, rate_action
from asr_train.train.feed import Feed
from asr_train.train.schedule import Schedule
from asr_train.train.state import RunState
from asr_train.train.step import step

CPU = torch.device("cpu")
GTC = {"threshold": 0.5, "codec": "rice", "capacity": "fixed"}
BMUF = {"block_steps": 4, "form": "chen_huo", "zeta": 1.0, "c": 1.0, "eta": None}
COMM = {
    "sgd": {"method": "sgd"},
    "gtc": {"method": "gtc", "gtc": GTC},
    "bmuf": {"method": "bmuf", "bmuf": {**BMUF, "velocity": "keep"}},
    "bmuf_gtc": {
        **{"method": "bmuf_gtc", "bmuf": {**BMUF, "velocity": "reset"}, "gtc": GTC},
        "group_size": 2,
    },
    "onebit": {
        "method": "onebit",
        "onebit": {"error_feedback": True, "double_buffering": True},
    },
    "gtc_async": {
        "method": "gtc_async",
        "gtc": {**GTC, "capacity": "exact"},
        "asynchronous": {
            "staleness": 2,
            "virtual_time": {
                **{"step_seconds": 0.1, "speed_spread": 0.1, "delay_seconds": 0.05, "seed": 1},
                **{"step_spread": 0.1, "slowdown": 1.0},
            },
        },
    },
}
MINIBATCH = {
    **{"every": 0.4, "trial": 0.5, "factors": [0.5, 1.0, 2.0]},
    **{"tolerance": 0.01, "least": 8, "most": 256},
}
RATE = {"every": 0.5, "gain": 0.05}
BOTH = {"auto_minibatch": MINIBATCH, "auto_rate": RATE}


def settings(name, **optim):
    """Return settings with dropout, whose random numbers must come again after a try."""
    momentum = 0.0 if name == "gtc_async" else 0.5
    values = {"epochs": 2, "momentum": momentum, **BOTH, **optim}
    return tiny.settings(COMM[name], dropout=0.1, **values)


def workers_of(name) -> int:
    return 1 if name == "sgd" else 4


def trained(folder, splits, name, **optim):
    exchange = Loopback(range(workers_of(name)), CPU)
    return loop.train(settings(name, **optim), *splits, folder, CPU, exchange)


def decisions(folder, kind) -> list[dict]:
    return [row for row in rows(folder) if row.get("decision") == kind]


@pytest.fixture(scope="module")
def unbroken(splits, tmp_path_factory):
    """A function: name of a method -> folder of a run that nothing broke."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("exp") / name
            trained(made[name], splits, name)
        return made[name]

    return get


# --- the rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before, now, action",
    [
        (None, 0.1, "keep"),  # the first check
        (0.40, 0.46, "keep"),
        (0.40, 0.45, "keep"),  # as much as asked for
        (0.40, 0.44, "halve"),
        (0.40, 0.40, "halve"),
        (0.40, 0.39, "revert"),
    ],
)
def test_the_rate_follows_held_out_accuracy(before, now, action):
    assert rate_action(before, now, gain=0.05 - 1e-9) is RateAction(action)


@pytest.mark.parametrize(
    "accuracies, chosen",
    [
        ({32: 0.5, 64: 0.5, 128: 0.5}, 128),
        ({32: 0.5, 64: 0.495, 128: 0.48}, 64),  # within the tolerance of the best
        ({32: 0.5, 64: 0.52, 128: 0.49}, 64),
        ({32: 0.5, 64: 0.45, 128: 0.495}, 128),  # the largest, though one below it hurts
        ({32: 0.5, 64: None}, 32),
        ({32: None, 64: None}, 64),  # none learned: as it was
    ],
)
def test_the_largest_size_that_does_not_hurt_is_chosen(accuracies, chosen):
    assert largest_harmless(accuracies, tolerance=0.01, current=64) == chosen


def test_sizes_fill_a_minibatch_and_stay_within_limits():
    auto = settings("sgd").optim.auto_minibatch

    def sizes(current: int, frames: int, stride: int = 1) -> list[int]:
        state = SimpleNamespace(optim=settings("sgd").optim)  # a pool of 500 frames
        controllers = Controllers(SimpleNamespace(stride=stride), state, *[None] * 4)
        return controllers.sizes(auto, current, frames)

    assert sizes(32, 1000) == [16, 32, 64]
    assert sizes(32, 50) == [16, 32]
    assert sizes(8, 1000) == [8, 16]
    assert sizes(256, 1000) == [128, 256]
    assert sizes(100, 1000, stride=3) == [50, 100]  # 166 outputs, of 3 frames each
    assert sizes(64, 10) == [64]  # always the one as it is


@pytest.mark.parametrize("every", [0.0777, 0.25, 0.4, 1.0, 1.7, 3.0])
def test_blocks_cut_epochs_without_gaps_and_choices_count_from_the_second(every):
    optim = settings("sgd", epochs=4, auto_minibatch={**MINIBATCH, "every": every}).optim
    chosen = [100 + block for block in range(1, 60)]
    blocks = []
    for epoch in range(4):
        parts = list(optim.parts(epoch, chosen))
        assert parts[0][0] == 0.0
        assert parts[-1][1] == 1.0
        assert all(a[1] == b[0] for a, b in pairwise(parts))
        assert all(last - first > 0.09 * min(every, 1) for first, last, *_ in parts)
        blocks += [size for _, _, size, _ in parts]
    wanted = [optim.minibatch_frames, *chosen]
    assert sorted(set(blocks), key=blocks.index) == wanted[: len(set(blocks))]
    assert len(set(blocks)) == pytest.approx(4 / every, abs=1)
    assert list(optim.parts(3))[-1][2] == optim.minibatch_frames  # none was chosen


def test_phases_must_end_where_choices_begin():
    phases = [{"until": 0.5, "minibatch_frames": 16}]
    with pytest.raises(SettingsError, match=r"optim.phases end at 0.5 epochs, after the first cho"):
        settings("sgd", phases=phases)


# --- runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMM)
def test_every_method_decides_and_learns(unbroken, name):
    folder = unbroken(name)
    assert len(decisions(folder, "minibatch")) == 4  # at 0.4, 0.8, 1.2 and 1.6 epochs
    assert len(decisions(folder, "rate")) == 4  # the last one where training ends
    for row in decisions(folder, "minibatch"):
        accuracies = dict(map(tuple, row["tried"]))
        before = row["minibatch_frames_before"]
        assert row["minibatch_frames"] == largest_harmless(accuracies, 0.01, before)
        assert len(accuracies) > 1
    assert json.loads((folder / "model.json").read_text())["dev"]["accuracy"] > 0.4  # chance: 1/6


@pytest.mark.parametrize("name", COMM)
def test_all_frames_are_learned_from_once_an_epoch_and_tries_do_not_count(unbroken, splits, name):
    last = [row for row in rows(unbroken(name)) if "frames" in row][-1]
    assert last["frames"] == 2 * splits[0].num_frames


@pytest.mark.parametrize("name", ["onebit", "gtc_async"])
def test_a_part_with_fewer_samples_than_workers_is_read_by_fewer(splits, tmp_path, name):
    every = 0.97 / 3  # the end of the first epoch is a part of its own, with a sample or two
    auto = {**MINIBATCH, "every": every, "factors": [1.0, 2.0]}
    assert 1 <= round(0.03 * splits[0].num_samples) < workers_of(name)
    trained(tmp_path, splits, name, auto_minibatch=auto, minibatch_frames=64)
    last = [row for row in rows(tmp_path) if "frames" in row][-1]
    assert last["frames"] == 2 * splits[0].num_frames
    assert len(decisions(tmp_path, "minibatch")) == 6


@pytest.mark.parametrize("name", COMM)
def test_a_try_leaves_no_trace(unbroken, splits, tmp_path, name, monkeypatch):
    """A run that is told the accuracies, instead of trying, ends in the same weights."""
    told = [row["tried"] for row in decisions(unbroken(name), "minibatch")]
    scripted = iter([accuracy for tried in told for _, accuracy in tried])
    monkeypatch.setattr(Controllers, "_tried", lambda *_: next(scripted))
    trained(tmp_path / "told", splits, name)
    assert outcome(tmp_path / "told") == outcome(unbroken(name))


def test_a_size_that_diverges_in_its_try_is_rejected(splits, tmp_path, monkeypatch, capsys):
    original = steps.one_gradient

    def diverging(model, batch, state, seed):
        found = original(model, batch, state, seed)
        if batch is not None and batch.frames > 32:
            state.bucket.grad_P.fill_(torch.nan)
        return found

    monkeypatch.setattr(steps, "one_gradient", diverging)
    monkeypatch.setattr(steps, "MAX_SKIPPED", 2)
    trained(tmp_path / "run", splits, "sgd", auto_rate=None)
    found = decisions(tmp_path / "run", "minibatch")
    assert any(size > 32 for row in found for size, _ in row["tried"])
    for row in found:
        accuracies = dict(map(tuple, row["tried"]))
        assert accuracies[32] > max(accuracies.get(size) or 0 for size in (48, 64))
        assert row["minibatch_frames"] <= 32
    assert "is skipped" not in capsys.readouterr().out


@pytest.mark.parametrize("delayed", [False, True])
def test_updates_are_late_but_not_in_a_try(splits, tmp_path, monkeypatch, delayed):
    """With double buffering, minibatches are halved and updates delayed; in tries if it is said."""
    monkeypatch.setitem(COMM["onebit"]["onebit"], "delayed_trials", delayed)
    seen = {loop: set(), control: set()}

    def watched(module, original):
        def noted(model, next_batch, state, rate):
            seen[module].add((state.method.halves, state.method.owners.delays))
            return original(model, next_batch, state, rate)

        return noted

    for module in seen:
        monkeypatch.setattr(module, "step", watched(module, module.step))
    auto = {**MINIBATCH, "factors": [1.0, 2.0]}
    trained(tmp_path / "run", splits, "onebit", auto_minibatch=auto, epochs=1)
    assert seen == {loop: {(2, True)}, control: {(2, True) if delayed else (1, False)}}


def test_a_try_counts_the_frames_of_workers_that_share_a_model(splits, tmp_path, monkeypatch):
    """AdaGrad's time constant is in these frames; each worker of bmuf has a model of its own."""
    seen, original = set(), ExchangeMethod.begin_step

    def noted(method, reading, frames):
        seen.add(reading)
        original(method, reading, frames)

    monkeypatch.setattr(ExchangeMethod, "begin_step", noted)
    trained(tmp_path / "run", splits, "bmuf", epochs=1)
    assert seen == {1}


@pytest.mark.parametrize("name", ["gtc", "bmuf", "onebit"])
def test_processes_decide_as_virtual_workers_do(unbroken, splits, tmp_path, name):
    def main(exchange):
        loop.train(settings(name), *splits, tmp_path / "run", CPU, exchange)

    assert forked.run(main, 4, 2) == [None] * 2
    assert outcome(tmp_path / "run") == outcome(unbroken(name))


@pytest.mark.parametrize(
    "name, owner, method, call, after",
    [
        ("sgd", Momentum, "apply", 30, True),  # in a try
        ("gtc", Momentum, "apply", 9, True),
        ("bmuf", Controllers, "_tried", 2, True),
        ("bmuf", Controllers, "_tried", 4, False),
        ("gtc", control, "evaluate", 2, True),
        ("gtc", control, "evaluate", 4, True),  # after the last checkpoint
        ("gtc_async", Controllers, "_tried", 5, True),
        ("onebit", OneBitSgd, "reduce", 30, True),
        ("bmuf_gtc", Controllers, "_tried", 2, True),
    ],
)
def test_a_run_killed_in_a_decision_ends_in_the_same_bytes(
    unbroken, splits, tmp_path, monkeypatch, name, owner, method, call, after
):
    original, calls, folder = getattr(owner, method), [], tmp_path / "killed"

    def deadly(*args, **kwargs):
        calls.append(1)
        if len(calls) == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, deadly)
        start = multiprocessing.get_context("fork").Process
        child = start(target=trained, args=(folder, splits, name))
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL
    trained(folder, splits, name)
    assert outcome(folder) == outcome(unbroken(name))


# --- reverting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "gtc", "bmuf", "onebit"])
def test_what_is_put_back_is_what_was_held(splits, name):
    """Models, velocity, residuals and blocks: the same steps give the same bits."""
    run, workers = settings(name), workers_of(name)
    stds = (torch.from_numpy(numbers) for numbers in (splits[0].mean_F, splits[0].var_F))
    model = build_model(run.model, tiny.NUM_STATES, *stds, 0)
    bucket = Bucket(model)
    exchange = Loopback(range(workers), CPU)
    method = build(run.comm, exchange, bucket.weights_P.numel())
    state = RunState.fresh(bucket, method, Schedule(replace(run.optim, momentum=0.5)))

    def steps(count: int, begin: int) -> list[torch.Tensor]:
        feed = Feed(splits[0], run.optim, Cut(2, 1), exchange, 0)
        feed.start(begin)
        state.progress.step = begin
        for _ in range(count):
            step(model, feed.next, state, state.schedule.rate)
        return [replica.weights_P.clone() for replica in method.replicas]

    steps(5, 0)
    held = state.held()
    once = steps(4, 5)
    for _ in range(2):
        state.roll_back(held)
        for a, b in zip(once, steps(4, 5), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["sgd", "gtc_async"])
def test_held_out_accuracy_is_checked_every_so_many_frames(splits, tmp_path, monkeypatch, name):
    """Whatever the sizes of minibatches: here 4 to 64 frames."""
    sizes, found = iter([64, 4, 64, 16]), []
    monkeypatch.setattr(control, "largest_harmless", lambda *_: next(sizes))

    def due(self, feed):
        progress, checks = self.state.progress, self.state.control.checks
        begin, end = (feed.share(s) for s in (progress.epoch_step - 1, progress.epoch_step))
        found.append((checks + 1, progress.epoch + begin, progress.epoch + end))
        self.state.control.checks += 1

    monkeypatch.setattr(Controllers, "set_rate", due)
    every = {"auto_rate": {"every": 0.15, "gain": 0.0}}
    phases = [{"until": 0.1, "minibatch_frames": 4, "workers": None}]
    trained(tmp_path / "run", splits, name, **every, phases=phases)
    assert [check for check, _, _ in found] == list(range(1, 14))
    for check, before, now in found:
        assert now >= check * 0.15 - 1e-6
        assert before < check * 0.15 or now == int(now)


@pytest.mark.parametrize("name", ["gtc", "gtc_async"])
def test_a_fall_reverts_the_model_and_halves_the_rate(splits, tmp_path, monkeypatch, name):
    """DEV's accuracy is told here: it fell at the second check and the last, else grew slowly."""
    told, weights = iter([0.5, 0.4, 0.52, 0.51]), []
    monkeypatch.setattr(control, "evaluate", lambda *_: (1.0, next(told)))
    original = Controllers.set_rate

    def watched(self, feed):
        before = self.state.method.replicas[0].weights_P.clone()
        original(self, feed)
        weights.append((before, self.state.method.replicas[0].weights_P.clone()))

    monkeypatch.setattr(Controllers, "set_rate", watched)
    trained(tmp_path / "run", splits, name, min_rate=0.006)
    assert all(row["sent_bits"] > 0 for row in rows(tmp_path / "run") if "sent_bits" in row)
    found = decisions(tmp_path / "run", "rate")
    assert [row["action"] for row in found] == ["keep", "revert", "halve", "revert"]
    assert [row["new_rate"] for row in found] == [0.02, 0.01, 0.006, 0.006]  # not below min_rate
    assert [row["held_out_accuracy_before"] for row in found] == [None, 0.5, 0.5, 0.52]
    assert [row["epoch"] for row in found] == [1, 2, 2, 2]
    (first, kept), (fallen, reverted), (slow, stays), (last, kept_again) = weights
    assert torch.equal(first, kept)
    assert not torch.equal(fallen, reverted)
    assert torch.equal(reverted, kept)
    assert torch.equal(slow, stays)
    assert not torch.equal(last, kept_again)
    assert torch.equal(kept_again, stays)
    ends = [row["rate"] for row in rows(tmp_path / "run") if "dev_loss" in row]
    assert ends == [0.02, 0.006]  # ends of epochs halve nothing


@pytest.mark.parametrize("name", COMM)
def test_a_model_that_fell_at_the_end_is_not_kept_and_more_epochs_end_as_ever(
    splits, tmp_path, monkeypatch, name
):
    """Also if it is asked for again, as after a kill between its last checkpoint and its model."""
    measured, original = [], control.evaluate

    def run(folder, told, **optim):
        accuracies = iter(told)

        def evaluate(*given):
            measured.append(original(*given))
            return measured[-1][0], next(accuracies)

        monkeypatch.setattr(control, "evaluate", evaluate)
        trained(tmp_path / folder, splits, name, **optim)
        assert next(accuracies, None) is None
        return outcome(tmp_path / folder)

    whole = run("whole", [0.5, 0.4, 0.52, 0.51])
    assert run("whole", [0.51]) == whole
    measured.clear()
    _, about, _ = run("short", [0.5, 0.4], epochs=1)
    assert (about["dev"]["loss"], about["dev"]["accuracy"]) == measured[0] != measured[1]
    assert run("short", [0.4, 0.52, 0.51]) == whole


def test_a_check_due_within_the_last_step_does_not_take_place(splits, tmp_path):
    """As in runs of the published tables, whose last steps may be more than 0.016 epochs."""
    assert 1 / max(tiny.steps_of(splits[0])) > 0.05
    auto = {"auto_minibatch": None, "auto_rate": {"every": 0.96, "gain": 0.05}}
    trained(tmp_path / "run", splits, "gtc", epochs=1, **auto)
    assert decisions(tmp_path / "run", "rate") == []


def test_a_simulated_clock_does_not_run_back_when_a_model_is_reverted():
    bucket = Bucket(build_model(settings("gtc_async").model, 6, torch.zeros(4), torch.ones(4), 0))
    method = build(settings("gtc_async").comm, Loopback(range(3), CPU), len(bucket.weights_P))
    state = RunState.fresh(bucket, method, Schedule(settings("gtc_async").optim))

    class Source:
        most = 0

        def gradient(self, worker, step, write_weights):
            write_weights(bucket.weights_P)
            return Gradient(torch.ones_like(bucket.weights_P), 10)

        def finished(self, worker, step, is_finite):
            pass

    method.asynchronous.run(bucket.weights_P, 0, 5, lambda step: 0.1, Source())
    held, early = state.held(), method.asynchronous.now
    method.asynchronous.run(bucket.weights_P, 5, 10, lambda step: 0.1, Source())
    assert method.asynchronous.now > early > 0
    now, steps = (
        method.asynchronous.now,
        [method.asynchronous.staleness[worker].steps for worker in range(3)],
    )
    state.roll_back(held)
    assert method.asynchronous.now == now
    assert [method.asynchronous.staleness[worker].steps for worker in range(3)] == steps == [15] * 3
    seconds = dict(method.asynchronous.seconds)
    with state.roll_back_after():
        method.asynchronous.run(bucket.weights_P, 15, 5, lambda step: 0.1, Source())
    assert method.take_seconds() == seconds != method.take_seconds()


def test_another_number_of_workers_resumes_without_a_model_to_revert_to(splits, tmp_path):
    folder = tmp_path / "run"

    def stops(exchange):
        raise RuntimeError("stop")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "epoch_line", stops)
        with pytest.raises(TypeError):
            trained(folder, splits, "gtc")
    run = settings("gtc")
    loop.train(run, *splits, folder, CPU, Loopback(range(2), CPU))
    assert len(decisions(folder, "minibatch")) == 4
