"""Whole runs whose gradients are sent in segments: the files of runs without segments."""

import json
import math
import multiprocessing
import os
import signal

import pytest
import tiny
import torch
from comm import forked

from asr_train import schema
from asr_train.comm.bucket import Bucket
from asr_train.comm.exchange import ExchangeError
from asr_train.comm.loopback import Loopback
from asr_train.comm.methods import build
from asr_train.model.store import build_model, load_tensors
from asr_train.train import loop
from asr_train.train.feed import Feed, seen_by
from asr_train.train.schedule import Schedule
from asr_train.train.state import RunState

CPU = torch.device("cpu")
GTC = {"threshold": 0.5, "codec": "rice", "capacity": "exact"}
LSTM = [None, tiny.LSTM]
SENT = ("sent_bits", "wire_bits", "compression_ratio", "bits_per_element")  # a header a segment


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")


def settings(segments, lstm=None):
    comm = {"method": "gtc", "gtc": {**GTC, "segments": segments}}
    return tiny.settings(comm, lstm, epochs=1, rate=0.02)


def trained(folder, splits, segments, lstm=None, exchange=None):
    exchange = exchange or Loopback(range(2), CPU)
    loop.train(settings(segments, lstm), *splits, folder, CPU, exchange)


def rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def outcome(folder):
    """Weights, what is said of them, the log, and what the last checkpoint's workers owe."""
    about = json.loads((folder / "model.json").read_text())
    log = [
        {k: v for k, v in row.items() if not k.endswith("_seconds") and k not in SENT}
        for row in rows(folder)
    ]
    last = sorted((folder / "ckpt").glob("*.json"))[-1].stem
    parts = sorted((folder / "ckpt").glob(f"{last}*.pt"))
    owed = [load_tensors(path)["worker"]["residual_P"].tolist() for path in parts]
    assert len(owed) == about["workers"]
    return (folder / "model.pt").read_bytes(), {**about, "run": None}, log, owed


@pytest.fixture(scope="module")
def whole(splits, tmp_path_factory):
    """A run without segments of each network, made when first asked for."""
    made = {}

    def get(lstm):
        if str(lstm) not in made:
            made[str(lstm)] = tmp_path_factory.mktemp("exp") / "run"
            trained(made[str(lstm)], splits, 1, lstm)
        return made[str(lstm)]

    return get


@pytest.mark.parametrize("lstm", LSTM, ids=["dnn", "lstm"])
@pytest.mark.parametrize("segments", [2, 5])
def test_segments_give_the_files_of_a_run_without(whole, splits, tmp_path, lstm, segments):
    trained(tmp_path / "run", splits, segments, lstm)
    assert outcome(tmp_path / "run") == outcome(whole(lstm))
    for row, other in zip(rows(tmp_path / "run"), rows(whole(lstm)), strict=True):
        if "dev_loss" in row:
            continue
        assert row["sent_bits"] > other["sent_bits"]
        parts = row["compress_seconds"] + row["transfer_seconds"]
        assert 0 < parts <= row["exchange_seconds"]  # what nobody waits for does not count


@pytest.mark.parametrize("lstm", LSTM, ids=["dnn", "lstm"])
def test_processes_with_segments_give_the_files_of_virtual_workers_without(
    whole, splits, tmp_path, lstm
):
    def main(exchange):
        trained(tmp_path / "run", splits, 3, lstm, exchange)

    assert forked.run(main, 2, 2) == [None] * 2
    assert outcome(tmp_path / "run") == outcome(whole(lstm))


def killed(folder, splits, segments, step, monkeypatch):
    """Train in a child that dies by SIGKILL in a step, when a segment has been compressed."""
    original, calls = loop.step, []

    def deadly(model, next_batch, state, *rest):
        calls.append(1)
        if len(calls) == step:
            (reducer,) = state.method.reducers
            compress = reducer._exchange_part

            def once(number, *given):
                compress(number, *given)
                os.kill(os.getpid(), signal.SIGKILL)

            reducer._exchange_part = once
        return original(model, next_batch, state, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "step", deadly)
        arguments = (folder, splits, segments)
        child = multiprocessing.get_context("fork").Process(target=trained, args=arguments)
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL


def test_a_killed_run_goes_on_with_any_number_of_segments(whole, splits, tmp_path, monkeypatch):
    """That number decides nothing: checkpoints of runs with another are this run's, too."""
    folder = tmp_path / "run"
    killed(folder, splits, 5, 14, monkeypatch)
    killed(folder, splits, 3, 2, monkeypatch)
    found = sorted(path.stem for path in (folder / "ckpt").glob("*.json"))
    assert found == ["step-00000010"]
    trained(folder, splits, 2)
    assert outcome(folder)[0] == outcome(whole(None))[0]
    assert outcome(folder)[2:] == outcome(whole(None))[2:]


def test_a_worker_that_dies_while_messages_are_under_way_stops_the_other(splits, tmp_path):
    def main(exchange):
        original, calls = loop.frame_loss, []

        def dies(*given):
            calls.append(1)
            if len(calls) == 7 and 1 in exchange.local:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*given)

        loop.frame_loss = dies
        trained(tmp_path / "run", splits, 3, exchange=exchange)

    first, second = forked.run(main, 2, 2, timeout_seconds=5)
    assert isinstance(first, ExchangeError)
    assert second == -signal.SIGKILL


def fresh(segments, lstm) -> tuple[RunState, loop.Model, schema.RunSettings]:
    run = settings(segments, lstm)
    ones = torch.ones(tiny.NUM_MELS)
    model = build_model(run.model, tiny.NUM_MELS, tiny.NUM_STATES, ones, ones, seed=0)
    bucket = Bucket(model)
    method = build(run.comm, Loopback(range(2), CPU), len(bucket.weights_P))
    return RunState.fresh(bucket, method, Schedule(run.optim), momentum=False), model, run


def test_a_longest_gradient_is_refused_where_parts_are_sent_before_the_rest_is_known():
    comm = {"method": "gtc", "gtc": {**GTC, "segments": 4}}
    with pytest.raises(schema.SettingsError, match=r"optim.max_norm is 0.5 but comm.gtc.segments"):
        tiny.settings(comm, max_norm=0.5)
    assert tiny.settings({"method": "gtc", "gtc": GTC}, max_norm=0.5).optim.max_norm == 0.5


@pytest.mark.parametrize("lstm", LSTM, ids=["dnn", "lstm"])
def test_a_minibatch_that_is_not_finite_is_skipped_by_all_and_training_goes_on(
    splits, lstm, capsys
):
    ends = []
    for segments in (1, 4):
        state, model, run = fresh(segments, lstm)
        feed = Feed(splits[0], run.optim, seen_by(model), 2, range(2), 0, CPU)
        feed.start(0)

        def next_batch(worker, feed=feed, state=state):
            batch = feed.next(worker)
            if (worker, state.progress.step) == (1, 2):
                batch.feats_BTF[0, 0, 0] = math.nan
            return batch

        for _ in range(4):
            loop.step(model, next_batch, state, run.optim)
        assert [state.since_log[w].skipped for w in range(2)] == [1, 1]
        residuals = [state.method.worker_state(w)["residual_P"].tolist() for w in range(2)]
        ends.append((state.replicas[0].weights_P.tolist(), residuals))
        assert "step 2 is skipped by the team of worker 0" in capsys.readouterr().out
    assert ends[0] == ends[1]
    assert any(any(r) for r in ends[0][1])
