"""Gradients by CUDA graphs are those without, to the bit; needs a GPU."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from asr_train import compose
from asr_train.comm.bucket import Bucket
from asr_train.model.store import build_model
from asr_train.shards.batch import Batch
from asr_train.train import captured
from asr_train.train.captured import captured_for
from asr_train.train.identity import same_bits_every_time
from asr_train.train.objective import CROSS_ENTROPY
from asr_train.train.schedule import Schedule
from asr_train.train.state import RunState
from asr_train.train.step import one_gradient

MELS, STATES = 8, 40


def network(*changes, name="dnn_4x256"):
    run = compose.settings("sgd", [f"model={name}", *changes])
    model = build_model(run.model, STATES, torch.zeros(MELS), torch.ones(MELS), seed=1)
    return model, run.optim


def minibatch(model, frames, seed, device):
    rng = torch.Generator().manual_seed(seed)
    window = model.context_left + 1 + model.context_right
    feats_BTF = torch.randn(frames, window, MELS, generator=rng)
    ali_BT = torch.randint(STATES, (frames, 1), generator=rng)
    mask_BT = torch.ones(frames, 1, dtype=torch.bool)
    return Batch(feats_BTF.to(device), ali_BT.to(device), mask_BT.to(device), frames)


def test_a_cpu_recurrent_networks_and_stripes_have_none():
    model, _ = network()
    lstm, _ = network(name="lstm_2x128")
    assert captured_for(lstm, torch.device("cuda"), CROSS_ENTROPY, is_cut=False) is None
    assert captured_for(model, torch.device("cpu"), CROSS_ENTROPY, is_cut=False) is None
    assert captured_for(model, torch.device("cuda"), CROSS_ENTROPY, is_cut=True) is None


def test_sizes_that_are_no_longer_used_make_room_for_new_ones(monkeypatch):
    """As trials of minibatch sizes leave many; graphs in turn are not recorded again and again."""
    recorded = []

    def record(self, compute, batch):
        recorded.append(batch.frames)
        return SimpleNamespace(replay=lambda: None), batch, compute(batch)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(captured, "IDLE", 20)
    monkeypatch.setattr(captured.Captured, "_beside", lambda self, compute, batch: compute(batch))
    monkeypatch.setattr(captured.Captured, "_recorded", record)
    graphs, weights_P = captured.Captured(torch.device("cuda")), torch.zeros(1)

    def run(sizes, times):
        for _ in range(times):
            for frames in sizes:
                ali_BT = torch.zeros(frames, 1, dtype=torch.int64)
                batch = Batch(torch.ones(frames, 1, 1), ali_BT, ali_BT == 0, frames)
                found = graphs.run(lambda batch: batch.feats_BTF.sum(), batch, weights_P)
                assert found == frames

    run(range(1, captured.MOST + 3), times=9)
    assert recorded == list(range(1, captured.MOST + 1))
    run([90], times=30)
    assert recorded[captured.MOST :] == [90]
    assert len(graphs._graphs) == captured.MOST
    run([captured.LARGEST + 1], times=30)  # of which a graph would keep much memory
    assert recorded[captured.MOST :] == [90]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_graphs_compute_what_single_launches_do(precision):
    """Also with dropout, a largest norm, changing weights, two models and a last, smaller one."""
    device = torch.device("cuda")
    changes = [f"optim.precision={precision}", "model.dnn.dropout=0.1", "optim.max_norm=0.5"]
    model, optim = network(*changes)
    model.to(device)
    bucket = Bucket(model)
    same_bits_every_time(device, len(bucket.weights_P) * 64, optim.precision)
    replicas = [bucket.weights_P, bucket.weights_P.clone()]
    graphs = captured_for(model, device, CROSS_ENTROPY, is_cut=False)
    single = RunState(bucket, None, Schedule(optim))
    by_graphs = replace(single, captured=graphs)
    for step in range(12):
        frames = 24 if step == 9 else 64
        batch = minibatch(model, frames, step, device)
        for replica_P in replicas:
            bucket.point_at(replica_P)
            wanted, learned = one_gradient(model, batch, single, step)
            wanted_P = wanted.grad_P.clone()
            bucket.grad_P.fill_(7.0)
            found, learned2 = one_gradient(model, batch, by_graphs, step)
            assert torch.equal(found.grad_P, wanted_P), step
            assert torch.equal(learned2.sums_2, learned.sums_2)
            assert found.frames == wanted.frames == frames
            replica_P.sub_(wanted_P, alpha=0.01)
    assert len(graphs._graphs) == 2
    assert {seen for seen in graphs._seen.values()} == {1, captured.AFTER + 1}
