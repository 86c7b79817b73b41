"""Gradients of workers that share weights: computed together, they are those of one at a time."""

import json

import pytest
import tiny
import torch
from test_workers import CPU, GTC

from asr_train import schema
from asr_train.comm.bucket import Bucket
from asr_train.comm.loopback import Loopback
from asr_train.kernels import threshold
from asr_train.model.store import build_model, load_tensors
from asr_train.shards.batch import Batch
from asr_train.train import batched, loop
from asr_train.train.batched import Batched
from asr_train.train.schedule import Schedule
from asr_train.train.state import RunState
from asr_train.train.step import one_gradient

UNCODED = {"codec": "packed32", "capacity": "exact"}  # messages that are counted but not made
NETWORKS = {
    "sigmoid": {},
    "relu": {"nonlinearity": schema.Nonlinearity.relu},
    "low rank": {"layers": 3, "rank": 5},
}


def settings_of(dnn, **optim):
    run = tiny.settings(**optim)
    for name, value in dnn.items():
        setattr(run.model.dnn, name, value)
    return run


def network(run):
    mean_F, var_F = torch.zeros(tiny.NUM_MELS), torch.ones(tiny.NUM_MELS)
    model = build_model(run.model, tiny.NUM_STATES, mean_F, var_F, seed=3)
    return model, Bucket(model)


def all_of(found):
    """Return gradients [W, P] and sums [W, 2] of all workers."""
    grads, sums = zip(*((grads_WP.clone(), sums_W2) for grads_WP, sums_W2 in found), strict=True)
    return torch.cat(grads), torch.cat(sums)


def minibatch(frames, generator, padding=0):
    """Return single frames in windows of four; the last ones are padding."""
    mask_BT = torch.arange(frames)[:, None] < frames - padding
    ali_BT = torch.randint(tiny.NUM_STATES, (frames, 1), generator=generator)
    feats_BTF = torch.randn(frames, 4, tiny.NUM_MELS, generator=generator)
    return Batch(feats_BTF, ali_BT, mask_BT, frames - padding)


@pytest.mark.parametrize("max_norm", [None, 0.01])
@pytest.mark.parametrize("dnn", NETWORKS.values(), ids=NETWORKS)
def test_gradients_are_those_of_one_at_a_time(dnn, max_norm, monkeypatch):
    """Within rounding; of minibatches of several lengths, and again in the same memory."""
    run = settings_of(dnn, max_norm=max_norm)
    model, bucket = network(run)
    monkeypatch.setitem(batched.AT_ONCE, "cpu", 2 * len(bucket.weights_P))
    together, generator = Batched(model, bucket), torch.Generator().manual_seed(0)
    for sizes in ((8, 8, 8, 8, 8), (8, 1, 5), (3,)):
        batches = [minibatch(n, generator, padding=n == 5) for n in sizes]
        grads_WP, sums_W2 = all_of(together.gradients(batches, max_norm))
        for grad_P, sums_2, batch in zip(grads_WP, sums_W2, batches, strict=True):
            wanted, learned = one_gradient(
                model, batch, RunState(bucket, None, Schedule(run.optim)), 0
            )
            torch.testing.assert_close(grad_P, wanted.grad_P, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(sums_2, learned.sums_2, atol=0, rtol=1e-5)


@pytest.mark.parametrize("dnn", NETWORKS.values(), ids=NETWORKS)
def test_each_worker_may_have_weights_of_its_own(dnn):
    run = settings_of(dnn)
    model, bucket = network(run)
    before_P, generator = bucket.weights_P.clone(), torch.Generator().manual_seed(0)
    batches = [minibatch(n, generator, padding=n == 5) for n in (8, 1, 5)]
    weights_WP = before_P * (1 + 0.5 * torch.randn(3, len(before_P), generator=generator))
    found = Batched(model, bucket).gradients(batches, None, weights_WP)
    grads_WP, sums_W2 = all_of(found)
    assert torch.equal(bucket.weights_P, before_P)
    for worker, (grad_P, sums_2) in enumerate(zip(grads_WP, sums_W2, strict=True)):
        bucket.weights_P.copy_(weights_WP[worker])
        wanted, learned = one_gradient(
            model, batches[worker], RunState(bucket, None, Schedule(run.optim)), 0
        )
        torch.testing.assert_close(grad_P, wanted.grad_P, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(sums_2, learned.sums_2, atol=0, rtol=1e-5)


def test_in_bfloat16_gradients_are_close_and_stay_float32():
    run = tiny.settings()
    model, bucket = network(run)
    batches = [minibatch(8, torch.Generator().manual_seed(w)) for w in range(3)]
    exact_WP, exact_W2 = all_of(Batched(model, bucket).gradients(batches, None))
    run.optim.precision = schema.Precision.bf16
    together = Batched(model, bucket, schema.Precision.bf16)
    rounded_WP, sums_W2 = all_of(together.gradients(batches, None))
    for exact_P, rounded_P, batch in zip(exact_WP, rounded_WP, batches, strict=True):
        alone = one_gradient(model, batch, RunState(bucket, None, Schedule(run.optim)), 0)[0].grad_P
        assert alone.dtype is rounded_P.dtype is torch.float32
        for found_P in (rounded_P, alone):
            error = float((found_P - exact_P).norm() / exact_P.norm())
            assert 1e-5 < error < 0.05
    torch.testing.assert_close(sums_W2[:, 0], exact_W2[:, 0], rtol=0.02, atol=0)


def test_only_the_worker_whose_gradient_is_not_finite_says_so():
    run = tiny.settings()
    together, generator = Batched(*network(run)), torch.Generator().manual_seed(0)
    batches = [minibatch(4, generator) for _ in range(3)]
    batches[1].feats_BTF[0, 0, 0] = torch.inf
    grads_WP, _ = all_of(together.gradients(batches, None))
    assert [bool(grad_P.isfinite().all()) for grad_P in grads_WP] == [True, False, True]


def trained(folder, splits, virtual, workers=5, gtc=GTC, **optim):
    comm = {"method": "gtc", "gtc": {**gtc, "threshold": 0.05}, "virtual": virtual}
    run = tiny.settings(comm, momentum=0.0, epochs=2, **optim)
    return loop.train(run, *splits, folder, CPU, Loopback(range(workers), CPU))


def test_a_run_is_the_same_up_to_rounding_whatever_is_computed_at_a_time(
    splits, tmp_path, monkeypatch
):
    """Workers without a minibatch take part, also in a part of the epoch where few read."""
    phases = [{"until": 0.5, "minibatch_frames": 16, "workers": 2}]
    dev, together = {}, []
    gradients = Batched.gradients

    def noted(self, batches, *about):
        together.append(batches)
        return gradients(self, batches, *about)

    monkeypatch.setattr(Batched, "gradients", noted)
    for name, virtual, room in (("a", "exact", 0), ("b", "batched", 2**22), ("c", "batched", 900)):
        monkeypatch.setitem(batched.ROOM, "cpu", room)
        monkeypatch.setitem(batched.AT_ONCE, "cpu", 1300)  # two workers' gradients
        about = json.loads(trained(tmp_path / name, splits, virtual, phases=phases).read_text())
        dev[name] = about["dev"]
        most = max((len(batches) for batches in together), default=0)
        assert most == {"a": 0, "b": 5, "c": 1}[name]
        together.clear()
        assert about["frames"] == 2 * splits[0].num_frames
    for name in "bc":
        assert dev[name]["loss"] == pytest.approx(dev["a"]["loss"], rel=0.05)
    assert dev["a"]["accuracy"] > 0.5  # chance: 1/6
    same = trained(tmp_path / "again", splits, "batched", phases=phases).parent
    assert _weights(same) == _weights(tmp_path / "c")


@pytest.mark.parametrize(
    "given, steps",
    [({}, (15, 22)), ({"max_norm": 10.0}, (0, 0)), ({"minibatch_frames": 40}, (1, 2))],
)
def test_gradients_of_small_minibatches_are_not_computed(
    given, steps, splits, tmp_path, monkeypatch
):
    """Only if all workers have minibatches, which only an epoch's last may be small enough for."""
    tallied = []
    tally = threshold.tally_factors
    monkeypatch.setattr(threshold, "tally_factors", lambda *of: tallied.append(of[0]) or tally(*of))
    about = {}
    for few in (0, 32):
        monkeypatch.setattr(batched, "FEW", few)
        found = trained(tmp_path / str(few), splits, "batched", gtc=UNCODED, **given)
        about[few] = json.loads(found.read_text())["dev"]
        assert few or not tallied
    assert about[32]["loss"] == pytest.approx(about[0]["loss"], rel=0.02)
    assert steps[0] <= len(tallied) <= steps[1]
    assert all(tuple(factors[0].inputs_WNI.shape[:2]) <= (5, 32) for factors in tallied)


def test_a_step_whose_loss_is_not_finite_is_skipped_with_factors_too(splits, tmp_path, monkeypatch):
    """By all workers; then training goes on."""
    factors, tally, wrong = Batched.factors, threshold.tally_factors, []

    def damaged(self, batches, *about):
        if len(wrong) == 1:
            batches[1].feats_BTF[0] = torch.inf
        return factors(self, batches, *about)

    def noted(*about):
        found = tally(*about)
        wrong.append((found[:, 1] > 0).tolist())
        return found

    monkeypatch.setattr(Batched, "factors", damaged)
    monkeypatch.setattr(threshold, "tally_factors", noted)
    found = trained(tmp_path, splits, "batched", workers=2, gtc=UNCODED)
    rows = [json.loads(line) for line in (found.parent / "log.jsonl").read_text().splitlines()]
    assert sum(row.get("skipped", 0) for row in rows) == 1
    assert wrong[:3] == [[False, False], [False, True], [False, False]]


def _weights(folder):
    return {name: t.numpy().tobytes() for name, t in load_tensors(folder / "model.pt").items()}


def test_networks_that_cannot_are_refused(splits, tmp_path):
    recurrent = tiny.settings({"method": "sgd", "virtual": "batched"}, lstm=tiny.LSTM)
    with pytest.raises(ValueError, match=r"is batched, but parameter cells.weight_ih_l0"):
        loop.train(recurrent, *splits, tmp_path / "run", CPU)
