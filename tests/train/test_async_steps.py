"""Training of workers that do not wait for each other: in virtual time, and in processes."""

import json
import multiprocessing
import os
import signal
import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from comm import forked

from asr_train import schema
from asr_train.comm.exchange import ExchangeError, ReplicaError
from asr_train.comm.ledger import Ledger
from asr_train.comm.loopback import Loopback
from asr_train.comm.reducers import Gradient
from asr_train.model.store import load_tensors
from asr_train.train import async_steps, batched, loop
from asr_train.train import step as steps
from asr_train.train.async_steps import AsyncSteps
from asr_train.train.state import Checkpoints, Interval, Learned, NotFiniteError

CPU = torch.device("cpu")
GTC = {"threshold": 0.5, "codec": "rice", "capacity": "exact"}
ADAPTIVE = {"density": 0.01, "band": 1.5, "factor": 1.05}
VIRTUAL_TIME = {
    "step_seconds": 1.0,
    "speed_spread": 0.3,
    "step_spread": 0.1,
    "slowdown": 1.0,
    "delay_seconds": 2.0,
    "seed": 0,
}
LEAD = {"staleness_mean", "staleness_max", "peer_wait_seconds", "simulated_seconds"}


def comm(staleness=2, adaptive=None, **time):
    return {
        "method": "gtc_async",
        "gtc": {**GTC, "adaptive": adaptive},
        "asynchronous": {
            "staleness": staleness,
            "virtual_time": {**VIRTUAL_TIME, **time},
        },
    }


def settings(given, **optim) -> schema.RunSettings:
    values = {"rate": 0.04, "momentum": 0.0, "epochs": 2, "warmup_epochs": 0.5}
    return tiny.settings(given, **{**values, **optim})


def virtual(folder, splits, given, workers=4, **optim):
    loop.train(settings(given, **optim), *splits, folder, CPU, Loopback(range(workers), CPU))


def together(folder, splits, given, workers=2, before=None, **optim):
    """Train with one process per worker; `before` is called in each."""

    def main(exchange):
        if before is not None:
            before(exchange)
        run = settings({**given, "timeout_seconds": forked.PATIENCE_SECONDS}, **optim)
        loop.train(run, *splits, folder, CPU, exchange)

    return forked.run(main, workers, workers)


def rows(folder) -> list[dict]:
    """Return the log without times, except simulated ones."""
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for row in found:
        for name in ("step", "compute", "exchange", "wait", "compress", "transfer", "cpu"):
            row.pop(f"{name}_seconds", None)
    return found


def outcome(folder):
    about = json.loads((folder / "model.json").read_text())
    return (folder / "model.pt").read_bytes(), {**about, "run": None}, rows(folder)


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")


@pytest.fixture(scope="module")
def unbroken(splits, tmp_path_factory):
    """A run of four virtual workers."""
    os.environ["JOBS"] = "1"
    folder = tmp_path_factory.mktemp("exp") / "unbroken"
    virtual(folder, splits, comm(adaptive=ADAPTIVE))
    return folder


# --- what a run gives ---------------------------------------------------------------------------


def test_it_learns_from_every_frame_once_an_epoch(unbroken, splits):
    inside = [row for row in rows(unbroken) if "dev_loss" not in row]
    assert inside[-1]["frames"] == 2 * splits[0].num_frames
    assert json.loads((unbroken / "model.json").read_text())["dev"]["accuracy"] > 0.8
    assert all(row["compression_ratio"] > 1 for row in inside)


def test_the_log_says_how_far_ahead_workers_were(unbroken):
    inside = [row for row in rows(unbroken) if "dev_loss" not in row]
    assert all(row.keys() >= LEAD for row in inside)
    assert 0 < max(row["staleness_mean"] for row in inside) < 2
    assert max(row["staleness_max"] for row in inside) == 2
    assert all(row["peer_wait_seconds"] > 0 for row in inside)
    times = [row["simulated_seconds"] for row in inside]
    assert times == sorted(times)
    assert times[-1] > inside[-1]["step"] * 0.5  # steps take a second
    lines = map(json.loads, (unbroken / "log.jsonl").read_text().splitlines())
    timed = [row for row in lines if "dev_loss" not in row]
    assert all(row["compress_seconds"] > 0 == row["transfer_seconds"] for row in timed)
    # Only for sums over all steps: an exchange counts in the row of the gradient that follows it
    steps = [b - a for a, b in pairwise([0, *(row["step"] for row in timed)])]
    compress, exchange = (
        sum(row[name] * n for row, n in zip(timed, steps, strict=True))
        for name in ("compress_seconds", "exchange_seconds")
    )
    assert compress <= exchange + 1e-5 * sum(steps)  # rows are rounded


def test_checkpoints_are_due_at_the_same_steps_in_every_epoch(unbroken, splits):
    """At multiples of ten and at the ends of epochs, which are no multiples; three are kept."""
    steps = max(tiny.steps_of(splits[0]))
    assert 10 < steps < 20 < 2 * steps < 30
    found = sorted(int(path.stem[5:]) for path in (unbroken / "ckpt").glob("*.json"))
    assert found == [steps, 20, 2 * steps]


def test_a_finite_step_ends_the_row_of_skipped_ones(monkeypatch):
    seen: list[int] = []
    state = SimpleNamespace(
        since_log={0: Interval()}, skipped_in_row=[0], batched=None, on_trial=False
    )
    state.optim = settings(comm(), log_steps=100).optim
    state.count = lambda worker, learned: seen.append(learned.frames)
    result = Gradient(torch.zeros(1), 5), Learned(5, torch.tensor([1.0, 2.0]))
    monkeypatch.setattr(AsyncSteps, "_compute", lambda *_: result)
    stretch = AsyncSteps(None, None, state, 100, lambda frames: None)
    for step, is_finite in enumerate([False, False, True, False]):
        stretch.gradient(0, step, lambda out_P: None)
        stretch.finished(0, step, is_finite)
        seen.append(state.skipped_in_row[0])
    assert seen == [1, 2, 5, 0, 1]
    assert (state.since_log[0].steps, state.since_log[0].skipped) == (4, 3)


@pytest.mark.parametrize("adaptive", [None, ADAPTIVE])
def test_without_staleness_it_is_synchronous_gtc_to_the_bit(splits, tmp_path, adaptive):
    """All files: weights, and every row of the log."""
    gtc = {"method": "gtc", "gtc": {**GTC, "adaptive": adaptive}}
    virtual(tmp_path / "gtc", splits, gtc, workers=3)
    virtual(tmp_path / "async", splits, comm(0, adaptive, slowdown=3.0), workers=3)
    (weights, about, wanted), (found_weights, found_about, found) = (
        outcome(tmp_path / name) for name in ("gtc", "async")
    )
    assert (found_weights, found_about) == (weights, about)
    for a, b in zip(found, wanted, strict=True):
        assert a.keys() - b.keys() == (set() if "dev_loss" in a else LEAD)
        # One logs the threshold of the last step, the other that of the next one
        for name in b.keys() - {"received_bits", "threshold"}:
            same = b[name] if name == "weights_crc32" else pytest.approx(b[name], rel=1e-12)
            assert a[name] == same, name


def test_one_worker_is_plain_sgd(splits, tmp_path):
    virtual(tmp_path / "async", splits, comm(), workers=1)
    virtual(tmp_path / "sgd", splits, {"method": "sgd"}, workers=1)
    assert outcome(tmp_path / "async") == outcome(tmp_path / "sgd")


# --- killed and resumed -------------------------------------------------------------------------


def deadly(at):
    """Return an AsyncSteps.gradient that ends the process at its call `at`."""
    calls, original = [], AsyncSteps.gradient

    def gradient(*args):
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    return gradient


def killed(folder, splits, given, at):
    """Train virtual workers until a call of AsyncSteps.gradient."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncSteps, "gradient", deadly(at))
        child = multiprocessing.get_context("fork").Process(
            target=virtual, args=(folder, splits, given)
        )
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL


def test_a_killed_virtual_run_goes_on_to_the_same_bytes(unbroken, splits, tmp_path):
    folder = tmp_path / "killed"
    for at in (70, 45, 3):
        killed(folder, splits, comm(adaptive=ADAPTIVE), at)
    assert not (folder / "model.json").exists()
    virtual(folder, splits, comm(adaptive=ADAPTIVE))
    assert outcome(folder) == outcome(unbroken)


@pytest.mark.parametrize(("room", "most"), [(2**24, 4), (1500, 2)])
def test_gradients_computed_together_give_the_same_run_within_rounding(
    unbroken, splits, tmp_path, monkeypatch, room, most
):
    """And the same bytes again, if it was killed."""
    together, late = [], AsyncSteps.late

    def noted(self):
        together.append(len(self._asked))
        return late(self)

    monkeypatch.setattr(AsyncSteps, "late", noted)
    monkeypatch.setitem(batched.ROOM, "cpu", room)
    given = {**comm(adaptive=ADAPTIVE), "virtual": "batched"}
    virtual(tmp_path / "whole", splits, given)
    assert max(together) == most
    found, wanted = (outcome(folder)[1]["dev"] for folder in (tmp_path / "whole", unbroken))
    assert found["loss"] == pytest.approx(wanted["loss"], rel=0.05)
    assert rows(tmp_path / "whole")[-2]["frames"] == 2 * splits[0].num_frames
    killed(tmp_path / "killed", splits, given, 70)
    virtual(tmp_path / "killed", splits, given)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_another_number_of_workers_keeps_what_is_owed(splits, tmp_path, capsys, workers):
    folder = tmp_path / "run"
    virtual(folder, splits, comm(), epochs=1)
    last = max((folder / "ckpt").glob("*.json"))
    parts = [load_tensors(path) for path in sorted((folder / "ckpt").glob(f"{last.stem}*.pt"))]
    owed_P = sum(part["worker"]["owed"]["residual_P"] for part in parts)
    seen = []
    original = loop.run_asynchronous if workers > 1 else loop.step

    def watch(model, feed, state, *rest):
        if not seen:
            local = range(workers)
            kept = [state.method.worker_state(w).get("owed", {}).get("residual_P") for w in local]
            seen.append(sum(k.clone() for k in kept if k is not None))
        return original(model, feed, state, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, original.__name__, watch)
        virtual(folder, splits, comm(), workers, epochs=2)
    assert owed_P.any()
    np.testing.assert_array_equal(seen[0].numpy(), owed_P.numpy())
    assert "is of 4 workers and 1 models, this run has" in capsys.readouterr().out
    assert json.loads((folder / "model.json").read_text())["dev"]["accuracy"] > 0.8


# --- processes ----------------------------------------------------------------------------------


def test_processes_without_staleness_give_the_files_of_virtual_workers(splits, tmp_path):
    for workers in (2, 3):
        real, simulated = tmp_path / f"real{workers}", tmp_path / f"virtual{workers}"
        assert together(real, splits, comm(0), workers) == [None] * workers
        virtual(simulated, splits, comm(0), workers)
        (weights, about, found), (*wanted, simulated_rows) = outcome(real), outcome(simulated)
        assert [weights, about] == wanted
        for a, b in zip(found, simulated_rows, strict=True):
            assert {k: v for k, v in a.items() if k not in LEAD} == {
                k: v for k, v in b.items() if k not in LEAD
            }


def test_processes_that_do_not_wait_end_with_the_same_model(splits, tmp_path):
    """One is delayed until the others have reached the bound, and then occasionally; all
    checkpoints are compared by hashes."""
    ahead = multiprocessing.get_context("fork").Semaphore(0)

    def slow(exchange):
        original, calls = AsyncSteps.gradient, []

        def gradient(self, worker, step, *rest):
            calls.append(1)
            if worker != 1 and len(calls) == 5:
                ahead.release()
            if worker == 1 and len(calls) == 1:
                assert all(ahead.acquire(timeout=forked.PATIENCE_SECONDS) for _ in range(2))
            if worker == 1:
                time.sleep(0.01)
            return original(self, worker, step, *rest)

        AsyncSteps.gradient = gradient

    folder = tmp_path / "run"
    assert together(folder, splits, comm(4), 3, before=slow) == [None] * 3
    inside = [row for row in rows(folder) if "dev_loss" not in row]
    assert inside[-1]["frames"] == 2 * splits[0].num_frames
    assert max(row["staleness_max"] for row in inside) == 4
    assert max(row["peer_wait_seconds"] for row in inside) > 0
    assert {row["simulated_seconds"] for row in inside} == {None}
    assert json.loads((folder / "model.json").read_text())["dev"]["accuracy"] > 0.8


def test_replicas_that_drift_apart_stop_the_run(splits, tmp_path):
    def drift(exchange):
        original = Ledger.close

        def close(self, step):
            original(self, step)
            if exchange.local[0] == 1:
                self.base(step + 1)[-1] += 1e-3

        Ledger.close = close

    for error in together(tmp_path / "run", splits, comm(), before=drift):
        assert isinstance(error, ReplicaError)
        assert "workers 1 have a different layers.2.bias than worker 0" in str(error)


def strike(rank, at, number):
    """Return a hook that sends a process a signal at its step `at`."""

    def before(exchange):
        original, calls = AsyncSteps.gradient, []

        def gradient(*args):
            calls.append(1)
            if rank in exchange.local and len(calls) == at:
                os.kill(os.getpid(), number)
            return original(*args)

        AsyncSteps.gradient = gradient

    return before


def test_a_finished_run_goes_on_to_more_epochs(splits, tmp_path):
    virtual(tmp_path / "once", splits, comm())
    for epochs in (1, 2):
        virtual(tmp_path / "twice", splits, comm(), epochs=epochs)
    weights = [(tmp_path / name / "model.pt").read_bytes() for name in ("once", "twice")]
    assert weights[0] == weights[1]
    assert rows(tmp_path / "once") == rows(tmp_path / "twice")


@pytest.mark.parametrize("rank, staleness", [(0, 2), (2, 0)])
def test_a_killed_process_stops_the_others_which_go_on_from_the_checkpoint(
    splits, tmp_path, rank, staleness
):
    folder, given = tmp_path / "run", comm(staleness)
    found = together(folder, splits, given, 3, before=strike(rank, 15, signal.SIGKILL))
    assert found.pop(rank) == -signal.SIGKILL
    for error in found:
        assert isinstance(error, ExchangeError)
        # At once; after comm.timeout_seconds it "did not answer"
        assert f"process {rank} of 3 has ended" in str(error)
    assert not (folder / "model.json").exists()
    run = settings(given)
    assert Checkpoints(folder / "ckpt", loop.identity(run, *splits), 3, 9).newest().step == 10
    assert together(folder, splits, given, 3) == [None] * 3
    steps = [row["step"] for row in rows(folder) if "dev_loss" not in row]
    assert steps == sorted(set(steps))
    assert json.loads((folder / "model.json").read_text())["dev"]["accuracy"] > 0.8
    if staleness == 0:
        virtual(tmp_path / "virtual", splits, given, 3)
        assert outcome(folder)[:2] == outcome(tmp_path / "virtual")[:2]


def test_a_hung_process_is_an_error_in_the_stated_time(splits, tmp_path):
    """It stops in its 15th step, when the other is in its 17th and has reached the bound."""
    pids, waits = multiprocessing.Array("i", 2), multiprocessing.get_context("fork").Event()
    run, original, calls = settings(comm()), AsyncSteps.gradient, []

    def gradient(stretch, worker, step, *rest):
        calls.append(1)
        if (worker, len(calls)) == (0, 17):
            stretch._state.method.asynchronous.links.timeout_seconds = 1.0
            waits.set()
        if (worker, len(calls)) == (1, 15):
            assert waits.wait(forked.PATIENCE_SECONDS)
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(stretch, worker, step, *rest)

    def main(exchange):
        pids[exchange.local[0]] = os.getpid()
        AsyncSteps.gradient = gradient
        try:
            loop.train(run, *splits, tmp_path / "run", CPU, exchange)
        finally:
            os.kill(pids[1], signal.SIGKILL)  # no other signal has an effect

    found = forked.run(main, 2, 2)
    assert found[1] == -signal.SIGKILL
    assert isinstance(found[0], ExchangeError)
    assert "process 1 of 2 did not answer in 1.0 s" in str(found[0])
    assert "worker 0 has taken 17" in str(found[0])


def test_a_process_that_stops_because_of_an_error_tells_the_others(splits, tmp_path):
    def before(exchange):
        original, calls = AsyncSteps.gradient, []

        def gradient(*args):
            calls.append(1)
            if 1 in exchange.local and len(calls) == 15:
                raise NotFiniteError("something is wrong here")
            return original(*args)

        AsyncSteps.gradient = gradient

    found = together(tmp_path / "run", splits, comm(), 3, before=before)
    assert isinstance(found[1], NotFiniteError)
    for error in (found[0], found[2]):
        assert "process 1 of 3 stopped: something is wrong here" in str(error)


def test_a_gpus_graphs_serve_all_workers(splits, tmp_path, monkeypatch):
    """Their weights are written to one place, to which a graph belongs."""
    places = []

    def run(compute, batch, weights_P):
        places.append(weights_P.data_ptr())
        return compute(batch)

    monkeypatch.setattr(loop, "captured_for", lambda *given, **more: SimpleNamespace(run=run))
    virtual(tmp_path / "run", splits, comm(), epochs=1)
    assert len(places) > 4
    assert len(set(places)) == 1


# --- what is refused ----------------------------------------------------------------------------


def test_gradients_that_are_never_finite_are_an_error(splits, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(steps, "MAX_SKIPPED", 5)
    original, calls = steps.one_gradient, []

    def broken(*args):
        gradient, learned = original(*args)
        calls.append(1)
        if len(calls) > 12:
            gradient.grad_P[0] = torch.nan
        return gradient, learned

    monkeypatch.setattr(async_steps, "one_gradient", broken)
    with pytest.raises(NotFiniteError, match="the gradient of layers"):
        virtual(tmp_path / "run", splits, comm())
    assert "is skipped by worker" in capsys.readouterr().out


def test_momentum_and_messages_of_fixed_length_are_refused():
    with pytest.raises(schema.SettingsError, match=r"optim.momentum is 0.5, but .*gtc_async"):
        settings(comm(), momentum=0.5)
    given = comm()
    given["gtc"]["capacity"] = "fixed"
    with pytest.raises(schema.SettingsError, match=r"comm.gtc.capacity is fixed"):
        settings(given)
    given = comm()
    given["asynchronous"]["staleness"] = -1
    with pytest.raises(schema.SettingsError, match=r"comm.asynchronous.staleness is -1"):
        settings(given)
