"""Recurrent networks in the same loop: exact, restartable, the same for any placement."""

import math
import multiprocessing
import os
import signal

import pytest
import tiny
import torch
from comm import forked
from tiny import outcome, rows

from asr_train.comm.loopback import Loopback
from asr_train.comm.optimizer import Momentum
from asr_train.model.store import load_model
from asr_train.schema import Precision
from asr_train.shards.batch import context_padded
from asr_train.train import loop
from asr_train.train.batched import rounded
from asr_train.train.feed import Feed, seen_by
from asr_train.train.identity import PrecisionError, check_precision

CPU = torch.device("cpu")
GTC = {"method": "gtc", "gtc": {"threshold": 0.5, "codec": "rice", "capacity": "exact"}}


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")


def settings(comm=None, **optim):
    return tiny.settings(comm, lstm=tiny.LSTM, **{"epochs": 2, "rate": 0.05, **optim})


def trained(folder, splits, comm=None, workers=1, exchange=None, **optim):
    exchange = exchange or Loopback(range(workers), CPU)
    return loop.train(settings(comm, **optim), *splits, folder, CPU, exchange)


@pytest.fixture(scope="module")
def unbroken(splits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exp") / "lstm"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBS", "1")
        trained(folder, splits)
    return folder


def test_it_learns_and_its_dev_accuracy_is_over_every_frame_of_each_utterance(unbroken, splits):
    model, about = load_model(unbroken / "model.json")
    assert about["dev"]["accuracy"] > 0.65  # of six states, after 52 steps
    loss, correct = 0.0, 0
    for sample in splits[1].samples(seed=None, worker=0, workers=1, epoch=0):
        row_BTF = context_padded(sample.feats_TF, model.context_left, model.context_right)
        ali_T = torch.from_numpy(sample.ali_T).long()
        for phase in range(min(model.stride, len(ali_T))):
            logits_TS, kept_T = model(row_BTF[:, phase:])[0], ali_T[phase :: model.stride]
            cross = torch.nn.functional.cross_entropy(logits_TS, kept_T, reduction="sum")
            loss += cross.item()
            correct += (logits_TS.argmax(-1) == kept_T).sum().item()
    frames = splits[1].num_frames
    assert about["dev"] == {
        "loss": pytest.approx(loss / frames, rel=1e-5),
        "accuracy": correct / frames,
    }


def test_an_epoch_learns_from_every_kept_frame(unbroken, splits):
    inside = [row for row in rows(unbroken) if "dev_loss" not in row]
    in_both = splits[0].num_frames  # every second frame in each of two epochs: every frame once
    assert inside[-1]["frames"] == pytest.approx(in_both, abs=1)


def test_a_killed_run_goes_on_to_the_same_bytes(unbroken, splits, tmp_path, monkeypatch):
    original, calls = Momentum.apply, []

    def deadly(*args):
        calls.append(1)
        if len(calls) == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    folder = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(Momentum, "apply", deadly)
        process = multiprocessing.get_context("fork").Process(target=trained, args=(folder, splits))
        process.start()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    trained(folder, splits)
    assert outcome(folder) == outcome(unbroken)


def test_processes_give_the_files_of_virtual_workers(splits, tmp_path):
    trained(tmp_path / "virtual", splits, GTC, workers=3)

    def main(exchange):
        trained(tmp_path / "processes", splits, GTC, exchange=exchange)

    assert forked.run(main, 3, 3, 30) == [None] * 3
    assert outcome(tmp_path / "processes") == outcome(tmp_path / "virtual")


def test_all_workers_take_as_many_steps(unbroken, splits):
    model, _ = load_model(unbroken / "model.json")
    optim = settings().optim
    feed = Feed(splits[0], optim, seen_by(model), Loopback(range(3), CPU), 0)
    feed.start(0)
    counts = [0, 0, 0]
    frames = 0
    for _ in range(feed.num_steps):
        for worker in range(3):
            batch = feed.next(worker)
            counts[worker] += batch is not None
            frames += 0 if batch is None else batch.frames
    assert max(counts) == feed.num_steps
    assert min(counts) == feed.fewest
    assert [feed.next(worker) for worker in range(3)] == [None] * 3
    samples = splits[0].samples(optim.seed, 0, 1, 0)
    positions = splits[0].part(optim.seed, 0, 1, 0)
    wanted = sum(
        math.ceil((len(s.ali_T) - int(p) % model.stride) / model.stride)
        for s, p in zip(samples, positions, strict=True)
    )
    assert frames == wanted


# --- precision ----------------------------------------------------------------------------------


def test_bf16_is_refused_exactly_where_torch_has_no_such_lstm():
    lstm = torch.nn.LSTM(4, 3)

    def works(call):
        try:
            call()
        except (PrecisionError, RuntimeError):
            return False
        return True

    def step():
        with rounded(Precision.bf16, CPU):
            lstm(torch.zeros(2, 1, 4))[0].sum().backward()

    assert works(lambda: check_precision(Precision.bf16, lstm, CPU)) == works(step)
    check_precision(Precision.fp32, lstm, CPU)
    check_precision(Precision.bf16, torch.nn.Linear(4, 3), CPU)


def test_a_run_in_bf16_says_what_to_do_before_it_begins(splits, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    with pytest.raises(PrecisionError, match=r"set optim\.precision=fp32"):
        trained(tmp_path / "exp", splits, precision=Precision.bf16.name)
    assert not list(tmp_path.glob("exp/ckpt*"))
