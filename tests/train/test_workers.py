"""Several workers: bit-identical for any placement, and however often they are killed."""

import itertools
import json
import multiprocessing
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from comm import forked
from tiny import outcome, rows

from asr_train.comm.bucket import Bucket, shorten
from asr_train.comm.exchange import ExchangeError, ReplicaError
from asr_train.comm.loopback import Loopback
from asr_train.comm.methods import build
from asr_train.comm.optimizer import Momentum
from asr_train.model.store import build_model, load_tensors
from asr_train.shards.batch import Cut
from asr_train.train import identity, loop
from asr_train.train import step as steps
from asr_train.train.feed import Feed
from asr_train.train.schedule import Schedule
from asr_train.train.state import Checkpoints, Interval, Progress, RunState, Saved

CPU = torch.device("cpu")
GTC = {"threshold": 0.5, "codec": "rice", "capacity": "fixed"}
BMUF = {
    "block_steps": 4,
    "form": "chen_huo",
    "zeta": 1.0,
    "c": 1.0,
    "eta": None,
    "velocity": "reset",
}
COMM = {
    "allreduce": {"method": "allreduce", "allreduce": {"wire": "fp32"}},
    "gtc": {"method": "gtc", "gtc": GTC},
    "gtc_adaptive": {
        "method": "gtc",
        "gtc": {**GTC, "adaptive": {"density": 0.01, "band": 1.5, "factor": 1.05}},
    },
    "onebit": {
        "method": "onebit",
        "onebit": {"error_feedback": True, "double_buffering": True},
    },
    "bmuf": {"method": "bmuf", "bmuf": BMUF},
    "bmuf_gtc": {"method": "bmuf_gtc", "bmuf": BMUF, "gtc": GTC, "group_size": 2},
}


def settings(comm=None, **optim):
    """Return settings with dropout; its random numbers must not depend on a worker's placement."""
    return tiny.settings(comm, dropout=0.1, **optim)


def virtual(folder, splits, name, workers, **optim):
    run = settings(COMM[name], epochs=2, **optim)
    return loop.train(run, *splits, folder, CPU, Loopback(range(workers), CPU))


def together(folder, splits, name, workers, processes, before=None, **optim):
    """Train in several processes; `before` is called in each."""

    def main(exchange):
        if before is not None:
            before(exchange)
        run = settings(COMM[name], epochs=2, **optim)
        loop.train(run, *splits, folder, CPU, exchange)

    return forked.run(main, workers, processes)


@pytest.fixture(scope="module")
def unbroken(splits, tmp_path_factory):
    """A run of each method with four workers, made at its first use."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("exp") / name
            virtual(made[name], splits, name, 4)
        return made[name]

    return get


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")


# --- what a run gives ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMM)
def test_every_method_learns_from_every_frame_once_an_epoch(unbroken, splits, name):
    folder = unbroken(name)
    inside = [row for row in rows(folder) if "dev_loss" not in row]
    assert inside[-1]["frames"] == 2 * splits[0].num_frames
    assert json.loads((folder / "model.json").read_text())["dev"]["accuracy"] > 0.75  # chance: 1/6
    assert all(row["sent_bits"] > 0 for row in inside)


@pytest.mark.parametrize("name", COMM)
def test_a_finished_run_goes_on_to_more_epochs_and_back_to_fewer(
    unbroken, splits, tmp_path, capsys, name
):
    firsts = []
    for epochs in (1, 2, 1):
        run = settings(COMM[name], epochs=epochs, keep_epochs=True)
        loop.train(run, *splits, tmp_path / name, CPU, Loopback(range(4), CPU))
        if epochs == 2:
            assert outcome(tmp_path / name) == outcome(unbroken(name))
            assert "removed" not in capsys.readouterr().out
        else:
            firsts.append(outcome(tmp_path / name))
            kept = [path.name for path in (tmp_path / name / "epochs").iterdir()]
            assert kept == ["1"]
    assert firsts[0] == firsts[1]
    assert "or more epochs; removed, training starts" in capsys.readouterr().out


def test_all_workers_take_as_many_steps_though_some_have_fewer_frames(unbroken, splits, capsys):
    steps = tiny.steps_of(splits[0])
    assert min(steps) < max(steps)
    ends = [row for row in rows(unbroken("gtc")) if "dev_loss" in row]
    assert ends[0]["step"] == max(steps)


def test_the_log_says_what_was_sent(unbroken):
    for row in rows(unbroken("gtc")):
        if "dev_loss" not in row:
            assert row["threshold"] == 0.5
            assert row["residual_norm"] > 0
            size = 32 * sum(p.numel() for p in model_of().parameters())
            assert row["compression_ratio"] == pytest.approx(size / row["sent_bits"])
            assert row["received_bits"] >= row["sent_bits"]


def test_the_log_counts_what_the_last_block_sends(unbroken):
    """Epochs end with a shorter block, which their last rows include."""
    folder = unbroken("bmuf")
    steps = [row["step"] for row in rows(folder) if "dev_loss" in row]
    blocks = sum(-(-(b - a) // BMUF["block_steps"]) for a, b in itertools.pairwise([0, *steps]))
    size = 32 * sum(p.numel() for p in model_of().parameters())
    inside = [row for row in rows(folder) if "dev_loss" not in row]
    before = [0, *(row["step"] for row in inside)]
    sent = sum(row["sent_bits"] * (row["step"] - b) for row, b in zip(inside, before, strict=False))
    assert sent == pytest.approx(blocks * size)


def test_the_parts_of_an_exchange_are_no_longer_than_all_of_it(unbroken):
    lines = (unbroken("gtc") / "log.jsonl").read_text().splitlines()
    for row in (row for row in map(json.loads, lines) if "dev_loss" not in row):
        assert row["cpu_seconds"] > 0
        assert 0 < row["compress_seconds"] <= row["exchange_seconds"]
        assert row["transfer_seconds"] == 0


def test_a_cold_start_is_the_run_of_a_single_worker(splits, tmp_path):
    """While only one worker reads, 1-bit SGD quantises nothing; see optim.phases."""
    phases = [{"until": 2.0, "minibatch_frames": 32, "workers": 1}]
    virtual(tmp_path / "four", splits, "onebit", 4, phases=phases)
    loop.train(settings(epochs=2, phases=phases), *splits, tmp_path / "one", CPU)
    models = [(tmp_path / name / "model.pt").read_bytes() for name in ("four", "one")]
    assert models[0] == models[1]


# --- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMM)
def test_processes_give_the_files_of_virtual_workers(unbroken, splits, tmp_path, name):
    folder = tmp_path / "run"
    processes = 3 if name == "bmuf_gtc" else 4  # a group in two processes, one within a process
    assert together(folder, splits, name, 4, processes) == [None] * processes
    assert outcome(folder) == outcome(unbroken(name))
    ours, theirs = (sorted((f / "ckpt").glob("*.pt")) for f in (folder, unbroken(name)))
    assert [path.name for path in ours] == [path.name for path in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert_same(load_tensors(a), load_tensors(b))


def test_a_worker_writes_only_its_own_part_of_a_checkpoint(unbroken):
    paths = list((unbroken("gtc") / "ckpt").glob("*.w*.pt"))
    stored = [load_tensors(path)["worker"]["owed"]["residual_P"] for path in paths]
    assert len(stored) >= 3
    assert all(r.untyped_storage().nbytes() == r.nbytes for r in stored)


def assert_same(a, b):
    """Compare all but times."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            if not str(key).endswith(("_seconds", "log_bytes")):
                assert_same(a[key], b[key])
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


def killed(folder, splits, name, call, monkeypatch):
    """Train in a child that dies by SIGKILL at a call of Momentum.apply."""
    original, calls = Momentum.apply, []

    def deadly(*args):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Momentum, "apply", deadly)
        arguments = (folder, splits, name, 4)
        child = multiprocessing.get_context("fork").Process(target=virtual, args=arguments)
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("name", COMM)
def test_a_killed_run_goes_on_to_the_same_bytes(unbroken, splits, tmp_path, monkeypatch, name):
    folder = tmp_path / "killed"
    updates = {"bmuf": 4, "bmuf_gtc": 2}.get(name, 1)  # per step
    for call in (13, 6, 2):
        killed(folder, splits, name, call * updates, monkeypatch)
    virtual(folder, splits, name, 4)
    assert outcome(folder) == outcome(unbroken(name))


@pytest.mark.parametrize("name", ["gtc", "bmuf_gtc"])
def test_a_killed_worker_stops_the_others_and_all_go_on_to_the_same_bytes(
    unbroken, splits, tmp_path, name
):
    folder = tmp_path / "killed"

    def deadly(exchange):
        if 2 in exchange.local:
            original, calls = loop.step, []

            def step(*args):
                calls.append(1)
                if len(calls) == 17:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args)

            loop.step = step

    results = together(folder, splits, name, 4, 4, before=deadly)
    assert results[2] == -signal.SIGKILL
    assert all(isinstance(results[rank], ExchangeError) for rank in (0, 1, 3))
    assert "process" in str(results[0])
    assert not (folder / "model.json").exists()
    virtual(folder, splits, name, 4)  # which may resume where processes stopped
    assert outcome(folder) == outcome(unbroken(name))


def test_replicas_that_drift_apart_stop_the_run(splits, tmp_path):
    def drift(exchange):
        if 1 in exchange.local:
            original = Momentum.apply

            def apply(self, weights_P, *rest):
                original(self, weights_P, *rest)
                weights_P[-1] += 1e-3

            Momentum.apply = apply

    for error in together(tmp_path / "run", splits, "gtc", 2, 2, before=drift):
        assert isinstance(error, ReplicaError)
        assert "workers 1 have a different layers.2.bias than worker 0" in str(error)


@pytest.mark.parametrize("what", ["settings", "shards", "folders"])
def test_processes_with_other_files_do_not_begin(splits, tmp_path, monkeypatch, what):
    """Each machine has its own, where the same command is started by hand on several."""
    monkeypatch.setattr(identity, "APPEARS_SECONDS", 0.1)

    def main(exchange):
        (rank,) = exchange.local
        run = settings(COMM["gtc"], epochs=1, max_norm=1.0 + (what == "settings") * rank)
        train, dev = splits[::-1] if what == "shards" and rank else splits
        folder = tmp_path / (str(rank) if what == "folders" else "run")
        with pytest.raises(
            ValueError, match=f"workers 1 have other .*{what}.* than worker 0; give"
        ):
            loop.train(run, train, dev, folder, CPU, exchange)
        return "refused"

    assert forked.run(main, 2, 2) == ["refused"] * 2
    assert not list(tmp_path.glob("*/*"))


# --- another number of workers ------------------------------------------------------------------


def model_of():
    run = settings()
    ones = torch.ones(tiny.NUM_MELS)
    return build_model(run.model, tiny.NUM_STATES, ones, ones, seed=0)


def fresh(name, workers) -> RunState:
    run = settings(COMM[name])
    bucket = Bucket(model_of())
    method = build(run.comm, Loopback(range(workers), CPU), bucket.weights_P.numel())
    return RunState.fresh(bucket, method, Schedule(replace(run.optim, momentum=0.9)))


def owed(state: RunState) -> list[np.ndarray]:
    """Return the residuals of each group's workers."""
    found = []
    for group in state.method.groups:
        states = [state.method.worker_state(w).get("owed", {}) for w in group.local]
        found.append(sum(owed["residual_P"].numpy() for owed in states if owed))
    return found


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_another_number_of_workers_keeps_what_is_owed(
    splits, tmp_path, capsys, workers, monkeypatch
):
    folder = tmp_path / "killed"
    killed(folder, splits, "gtc", 12, monkeypatch)  # in the first epoch
    run = settings(COMM["gtc"], epochs=2)
    saved = Checkpoints(folder / "ckpt", loop.identity(run, *splits), 3, 9).newest()
    before, after = fresh("gtc", 4), fresh("gtc", workers)
    assert before.restore(saved) is None
    said = after.restore(saved)
    assert "is of 4 workers and 1 models, this run has" in said
    assert owed(before)[0].any()
    np.testing.assert_array_equal(owed(after)[0], owed(before)[0])
    assert torch.equal(after.method.replicas[0].weights_P, before.method.replicas[0].weights_P)
    assert torch.equal(
        after.method.replicas[0].optimizer.velocity_P,
        before.method.replicas[0].optimizer.velocity_P,
    )
    assert f"(norm {np.linalg.norm(owed(before)[0]):.4g} per model)" in said
    virtual(folder, splits, "gtc", workers)
    assert said in capsys.readouterr().out
    # It reads what the others had not: all but one minibatch of each worker at most, once
    frames = [row["frames"] for row in rows(folder) if "frames" in row][-1]
    assert 2 * splits[0].num_frames - 32 * workers <= frames <= 2 * splits[0].num_frames + 32 * 4
    assert json.loads((folder / "model.json").read_text())["dev"]["accuracy"] > 0.8


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_a_row_of_two_numbers_of_workers_has_means_over_workers(
    splits, tmp_path, monkeypatch, workers
):
    folder, one_gradient = tmp_path / "killed", steps.one_gradient

    def spoiled(model, batch, state, seed):
        gradient, learned = one_gradient(model, batch, state, seed)
        if seed == steps.seed_of(state.optim.seed, 8, 0):  # worker 0 in step 8
            gradient.grad_P.fill_(np.nan)
        return gradient, learned

    monkeypatch.setattr(steps, "one_gradient", spoiled)
    killed(folder, splits, "allreduce", 12, monkeypatch)  # after the checkpoint of step 10
    virtual(folder, splits, "allreduce", workers)
    first, second = rows(folder)[:2]
    assert first["step"] == 7 < 10 < second["step"]
    assert second["skipped"] == 1
    assert second["sent_bits"] == first["sent_bits"]
    assert second["compression_ratio"] == 1


@pytest.mark.parametrize(
    ("threshold", "adaptive", "workers", "warnings"),
    [
        (0.001, None, 2, 1),  # almost every element exceeds it: said once, not in every row
        (0.001, None, 8, 1),  # of which only two have minibatches at first
        (0.5, None, 2, 0),
        (0.001, {"density": 0.01, "band": 1.5, "factor": 1.05}, 2, 0),  # it will rise
    ],
)
def test_a_threshold_below_most_elements_is_warned_of(
    splits, tmp_path, capsys, threshold, adaptive, workers, warnings
):
    gtc = {"threshold": threshold, "codec": "tile16", "capacity": "exact", "adaptive": adaptive}
    phases = [{"until": 1.0, "minibatch_frames": 16, "workers": 2}]
    run = settings({"method": "gtc", "gtc": gtc}, epochs=1, phases=phases)
    loop.train(run, *splits, tmp_path / "run", CPU, Loopback(range(workers), CPU))
    said = capsys.readouterr().out
    named = "more than 33% of all elements exceed comm.gtc.threshold=0.001"
    assert said.count(named) == warnings
    assert ("try comm.gtc.threshold=0.004" in said) == bool(warnings)


def test_workers_that_stop_within_a_row_are_no_reason_to_warn(splits, tmp_path, capsys):
    """A row of the log counts the elements of eight workers, of which one goes on."""
    gtc = {"threshold": 0.1, "codec": "tile16", "capacity": "exact"}
    phases = [
        {"until": 0.8, "minibatch_frames": 4, "workers": 8},
        {"until": 1.0, "minibatch_frames": 4, "workers": 1},
    ]
    run = settings({"method": "gtc", "gtc": gtc}, epochs=1, phases=phases, log_steps=10_000)
    loop.train(run, *splits, tmp_path / "run", CPU, Loopback(range(8), CPU))
    assert len([row for row in rows(tmp_path / "run") if "elements_sent" in row]) == 1
    assert "of all elements exceed" not in capsys.readouterr().out


def test_weights_of_blocks_are_not_counted_as_beyond_the_threshold(splits, tmp_path, capsys):
    comm = {**COMM["bmuf_gtc"], "bmuf": {**BMUF, "block_steps": 1}}
    run = settings(comm, epochs=1)
    loop.train(run, *splits, tmp_path / "run", CPU, Loopback(range(4), CPU))
    assert "of all elements exceed" not in capsys.readouterr().out


@pytest.mark.parametrize("adaptive", [None, {"density": 0.5, "band": 1.5, "factor": 1.01}])
def test_a_gradient_that_exploded_is_warned_of_while_its_residual_is_sent(
    splits, tmp_path, capsys, monkeypatch, adaptive
):
    """The loss is finite, and training would go wrong without a word."""
    one_gradient = steps.one_gradient

    def exploded(model, batch, state, seed):
        gradient, learned = one_gradient(model, batch, state, seed)
        optim = state.optim
        if seed == steps.seed_of(optim.seed, 5, 0):  # worker 0 in step 5
            gradient.grad_P.mul_(1e5)
            if optim.max_norm is not None:
                shorten(gradient.grad_P, optim.max_norm * gradient.frames)
        return gradient, learned

    monkeypatch.setattr(steps, "one_gradient", exploded)
    gtc = {"threshold": 0.5, "codec": "packed32", "capacity": "exact", "adaptive": adaptive}
    for max_norm in (None, 1.0):
        run = settings({"method": "gtc", "gtc": gtc}, epochs=1, max_norm=max_norm, log_steps=5)
        loop.train(run, *splits, tmp_path / f"{max_norm}", CPU, Loopback(range(2), CPU))
        said = capsys.readouterr().out
        assert said.count("goes on being sent: try optim.max_norm=1") == (max_norm is None)


def test_many_models_share_a_gpus_graphs(splits, tmp_path, monkeypatch):
    """Their weights are copied to one place, to which a graph belongs; results are the same."""
    virtual(tmp_path / "plain", splits, "bmuf", 3)
    places = []

    def run(compute, batch, weights_P):
        places.append(weights_P.data_ptr())
        return compute(batch)

    monkeypatch.setattr(loop, "captured_for", lambda *given, **more: SimpleNamespace(run=run))
    monkeypatch.setattr(loop, "MOST", 2)
    virtual(tmp_path / "shared", splits, "bmuf", 3)
    assert outcome(tmp_path / "shared") == outcome(tmp_path / "plain")
    assert len(places) > 3
    assert len(set(places)) == 1


def test_models_that_are_averaged_owe_as_much_on_average(splits, tmp_path, monkeypatch):
    folder = tmp_path / "killed"
    killed(folder, splits, "bmuf_gtc", 31, monkeypatch)
    run = settings(COMM["bmuf_gtc"], epochs=2)
    saved = Checkpoints(folder / "ckpt", loop.identity(run, *splits), 3, 9).newest()
    before, after = fresh("bmuf_gtc", 4), fresh("bmuf_gtc", 8)
    before.restore(saved)
    assert "4 workers and 2 models" in after.restore(saved)
    wanted_P = sum(owed(before)) / 2
    for found_P in owed(after):
        np.testing.assert_allclose(found_P, wanted_P, rtol=1e-6, atol=1e-7)
    assert torch.equal(after.method.exported(), before.method.exported())


@pytest.mark.parametrize("name", ["allreduce", "gtc", "gtc_adaptive"])
def test_one_worker_goes_on_from_several_that_had_adagrad_each(splits, tmp_path, name):
    run = settings(
        COMM[name], adagrad={"place": "partial", "window_frames": 1000, "floor": 0.01}, epochs=2
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "epoch_line", None)  # stops in the first epoch
        with pytest.raises(TypeError):
            loop.train(run, *splits, tmp_path / "run", CPU, Loopback(range(4), CPU))
    loop.train(run, *splits, tmp_path / "run", CPU, Loopback(range(1), CPU))
    assert [row["workers"] for row in rows(tmp_path / "run") if "dev_loss" in row] == [1, 1]


def test_an_epoch_that_ends_without_a_step_has_the_rate_of_its_last(splits, tmp_path, monkeypatch):
    folder = tmp_path / "killed"
    run = settings(COMM["allreduce"], scaling="mean", epochs=1, checkpoint_steps=1)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "dev_row", None)  # stops after the last step
        with pytest.raises(TypeError):
            loop.train(run, *splits, folder, CPU, Loopback(range(1), CPU))
    step = -(-splits[0].num_frames // 32) - 1  # of four workers, none is left
    loop.train(run, *splits, folder, CPU, Loopback(range(4), CPU))
    dev = rows(folder)[-1]
    assert (dev["workers"], dev["step"], dev["rate"]) == (4, step, run.optim.rate / 4)


def stored(state: RunState, folder) -> Saved:
    checkpoints = Checkpoints(folder, "a", 1, 9, state.method.exchange)
    checkpoints.save(7, state.contents(), begun=1)
    return checkpoints.newest()


def test_a_threshold_that_moved_stays_where_it_is_with_other_workers(tmp_path):
    before, after = fresh("gtc_adaptive", 4), fresh("gtc_adaptive", 2)
    before.method.reducers[0].tau = 0.75
    after.restore(stored(before, tmp_path))
    assert after.method.reducers[0].tau == 0.75


def test_a_restored_run_stands_where_it_stood(tmp_path):
    before, after = fresh("bmuf_gtc", 4), fresh("bmuf_gtc", 4)
    before.skipped_in_row = [3, 1]
    before.in_epoch = Interval(9, 1, 700, 123.5, 600, 1.0, 2.0, 3.0, 4.0, 5.0)
    before.progress = Progress(1, 9, 27, 36, 1400, 1.25, 0.5, 99)
    for worker in before.since_log:
        before.since_log[worker] += Interval(frames=10 + worker, loss=5.5, correct=7)
    before.schedule.end_epoch(1.25)
    assert after.restore(stored(before, tmp_path)) is None
    for name in ("skipped_in_row", "in_epoch", "progress", "since_log"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.schedule.rate == settings().optim.rate / 2


def test_steps_of_a_row_are_counted_once_with_another_number_of_workers(tmp_path):
    """Frames of all workers are added up; steps that they take together are counted once."""
    before, after = fresh("gtc", 4), fresh("gtc", 2)
    for worker in range(4):
        before.since_log[worker] = Interval(steps=6, frames=100 + worker)
    after.restore(stored(before, tmp_path))
    assert [after.since_log[worker].steps for worker in range(2)] == [6, 6]
    assert sum(after.since_log[worker].frames for worker in range(2)) == 406


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, models", [("gtc", 1), ("allreduce", 1), ("bmuf_gtc", 4), ("bmuf", 8)]
)
def test_workers_that_share_a_model_share_its_memory(name, models):
    state = fresh(name, 8)
    assert len({replica.weights_P.data_ptr() for replica in state.method.replicas}) == models


def test_every_worker_and_every_step_has_dropout_of_its_own(splits):
    state, run, model = fresh("allreduce", 2), settings(COMM["allreduce"]), model_of()
    state.bucket = Bucket(model)
    feed = Feed(splits[0], run.optim, Cut(2, 1), Loopback(range(2), CPU), 0)
    batch = feed.next(0)  # the same for all

    def learned(step, optim=run.optim):
        state.progress.step, state.schedule.settings = step, optim
        found = steps.gradients(model, lambda _: batch, state, range(2), {})
        return [gradient.grad_P.clone() for gradient in found]

    first, second = learned(5)
    assert not torch.equal(first, second)
    assert torch.equal(learned(5)[1], second)
    others = [*learned(6), *learned(5 + 2**12), *learned(5, replace(run.optim, seed=1))]
    assert not any(torch.equal(other, one) for other in others for one in (first, second))


def test_a_step_that_one_worker_cannot_take_is_skipped_by_all(splits, capsys):
    state, run = fresh("gtc", 2), settings(COMM["gtc"])
    feed = Feed(splits[0], run.optim, Cut(2, 1), Loopback(range(2), CPU), 0)
    feed.start(0)

    def next_batch(worker):
        batch = feed.next(worker)
        if worker == 1:
            batch.feats_BTF[0, 0, 0] = torch.nan
        return batch

    model = model_of()
    state.bucket = Bucket(model)
    before_P = state.method.replicas[0].weights_P.clone()
    loop.step(model, next_batch, state, state.schedule.rate)
    assert torch.equal(state.method.replicas[0].weights_P, before_P)
    assert not owed(state)[0].any()
    assert [state.since_log[w].skipped for w in range(2)] == [1, 1]
    assert "step 1 is skipped by the group of worker 0" in capsys.readouterr().out
    totals = loop.gathered(state)
    assert (totals.interval.skipped, totals.interval.frames) == (2, 0)
