"""Networks cut into stripes, of one process each, train as whole ones do."""

import json
import os
import signal
import time

import pytest
import tiny
import torch
import torch._dynamo  # which DTensor imports late; once, before processes fork
from comm import forked
from test_workers import COMM as WHOLE
from test_workers import CPU
from tiny import outcome, rows
from torch.distributed.tensor.parallel import loss_parallel

from asr_train.comm.bucket import Bucket, shorten
from asr_train.comm.exchange import ExchangeError
from asr_train.comm.loopback import Loopback
from asr_train.model.loss import frame_loss
from asr_train.model.store import build_model, load_model, load_tensors
from asr_train.model.stripes import StripedDnn
from asr_train.schema import ModelSettings, build
from asr_train.shards.batch import Batch
from asr_train.train import loop, step
from asr_train.train.schedule import Schedule
from asr_train.train.state import RunState

# Sums are in another order: matrices have other shapes, and errors are added up over stripes.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
COMM = {"sgd": {"method": "sgd"}, **WHOLE}


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")


def settings(name, stripes=2, **more):
    few = {"epochs": 1, "minibatch_frames": 128, "checkpoint_steps": 4}
    return tiny.settings({**COMM[name], "stripes": stripes}, **{**few, **more})


def virtual(folder, splits, name, workers, **more):
    """Train whole networks in this process."""
    run = settings(name, stripes=1, **more)
    return loop.train(run, *splits, folder, CPU, Loopback(range(workers), CPU))


def cut(folder, splits, name, workers, processes, before=None, stripes=2, **more):
    """Train networks cut into stripes; `before` is called in each process."""

    def main(opened):
        if before is not None:
            before(opened)
        run = settings(name, stripes, **more)
        loop.train(run, *splits, folder, CPU, opened.exchange, stripes=opened)

    return forked.run(main, workers, processes, stripes=stripes)


@pytest.fixture(scope="module")
def in_two(splits, tmp_path_factory):
    """A run of each method in two processes, with a stripe of every worker each."""
    made = {}

    def get(name, workers):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("exp") / name
            assert cut(made[name], splits, name, workers, 2) == [None] * 2
        return made[name]

    return get


def assert_close(ours, theirs):
    """Compare the files of two models: the same tensors, within the tolerance."""
    ours, theirs = (load_tensors(folder / "model.pt") for folder in (ours, theirs))
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, **CLOSE)


def slow(*given):
    return pytest.param(*given, marks=pytest.mark.slow)


# --- the network ----------------------------------------------------------------------------------

DNN = {
    "layers": 3,
    "width": 13,  # stripes differ in size
    "nonlinearity": "sigmoid",
    "context_left": 2,
    "context_right": 1,
}


def network(**more):
    """Return a network whose output layer is not zero, as it is in the beginning."""
    model_settings = build(ModelSettings, {"dnn": {**DNN, **more}})
    ones = torch.ones(tiny.NUM_MELS)
    model = build_model(model_settings, tiny.NUM_STATES, 0 * ones, ones, seed=3)
    generator = torch.Generator().manual_seed(4)
    last = model.layers[-1]
    torch.nn.init.normal_(getattr(last, "out", last).weight, generator=generator)
    return model


def learned(model, stripes=None):
    """Return loss, correct frames, all gradients, and logits in evaluation, of 15 frames."""
    feats_BTF = torch.randn(3, 8, tiny.NUM_MELS, generator=torch.Generator().manual_seed(1))
    ali_BT = torch.arange(15).view(3, 5) % tiny.NUM_STATES
    bucket = Bucket(model, stripes)
    bucket.zero_grad()
    torch.manual_seed(5)
    loss, correct = frame_loss(model(feats_BTF), ali_BT, torch.ones(3, 5, dtype=torch.bool))
    loss.backward()
    shorten(bucket.grad_P, 1.0, stripes)
    with torch.inference_mode():
        logits_BTS = model.eval()(feats_BTF)
        logits_BTS = logits_BTS.full_tensor() if stripes else logits_BTS
    grads = [p.grad.full_tensor() if stripes else p.grad for p in model.parameters()]
    return [loss.item(), correct.item(), *(t.numpy().copy() for t in (*grads, logits_BTS))]


@pytest.mark.parametrize(
    "more, stripes",
    [
        ({}, 2),
        ({"dropout": 0.3}, 2),
        ({"rank": 3, "nonlinearity": "relu"}, 3),
    ],
)
def test_stripes_learn_what_the_whole_network_learns(more, stripes):
    def main(opened):
        model = StripedDnn(network(**more), opened.mesh["model"])
        with loss_parallel():
            return learned(model, opened)

    wanted = learned(network(**more))
    for found in forked.run(main, 1, stripes, stripes=stripes):
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)


def test_a_layer_that_leaves_a_stripe_without_outputs_is_refused():
    def main(opened):
        StripedDnn(network(rank=4), opened.mesh["model"])

    for error in forked.run(main, 1, 3, stripes=3):
        assert "layers.1.into has 4 outputs but comm.stripes is 3: stripes of 2 leave" in str(error)


def test_a_gradient_that_is_not_finite_in_one_stripe_is_so_in_all():
    """Else the others would take the step that this one skips."""

    def main(opened):
        model = StripedDnn(network(), opened.mesh["model"])
        if opened.index == 1:
            model.layers[0].bias.register_hook(lambda error: error * torch.nan)
        ali_BT, mask_BT = torch.zeros(1, 5, dtype=torch.int64), torch.ones(1, 5, dtype=torch.bool)
        batch = Batch(torch.ones(1, 8, tiny.NUM_MELS), ali_BT, mask_BT, 5)
        with loss_parallel():
            schedule = Schedule(tiny.settings().optim)
            state = RunState(Bucket(model, opened), None, schedule)
            found, _ = step.one_gradient(model, batch, state, seed=1)
        return found.is_finite()

    assert forked.run(main, 1, 2, stripes=2) == [False, False]


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_in_stripes_gives_the_model_of_a_whole_one(splits, tmp_path):
    more = {"dropout": 0.1, "max_norm": 0.5}
    virtual(tmp_path / "whole", splits, "sgd", 1, **more)
    assert cut(tmp_path / "cut", splits, "sgd", 1, 2, **more) == [None] * 2
    assert_close(tmp_path / "cut", tmp_path / "whole")
    ours, theirs = (json.loads((tmp_path / f / "model.json").read_text()) for f in ("cut", "whole"))
    assert {**ours, "run": 0, "sha256": 0, "dev": 0} == {**theirs, "run": 0, "sha256": 0, "dev": 0}
    for key in ("frames", "step", "epoch", "minibatch"):
        found = [[row.get(key) for row in rows(tmp_path / f)] for f in ("cut", "whole")]
        assert found[0] == found[1]
    model, _ = load_model(tmp_path / "cut" / "model.json")
    assert not isinstance(model, StripedDnn)


@pytest.mark.parametrize(
    "name", [slow("allreduce"), "gtc", slow("onebit"), slow("bmuf"), slow("bmuf_gtc")]
)
def test_every_method_works_between_stripes(splits, tmp_path, in_two, name):
    """With two processes of virtual workers, and bit for bit the same with twice as many."""
    workers = 4 if name == "bmuf_gtc" else 2
    whole, two, four = tmp_path / "whole", in_two(name, workers), tmp_path / "four"
    virtual(whole, splits, name, workers)
    if name != "bmuf":  # bmuf_gtc exchanges the same and more
        assert cut(four, splits, name, workers, 4) == [None] * 4
        assert outcome(four) == outcome(two)
        parts = [sorted(p.name for p in f.glob("ckpt/*.pt")) for f in (four, two)]
        assert parts[0] == parts[1]
        assert len(parts[0]) == 2 * workers * len(list(four.glob("ckpt/*.json")))
    learned, wanted = rows(two), rows(whole)
    if name == "onebit":  # a column's two values are its stripe's, so it quantises differently
        assert learned[-1]["dev_accuracy"] > 0.5  # chance: 1/6
        return
    assert learned[-1]["dev_loss"] == pytest.approx(wanted[-1]["dev_loss"], rel=0.05)
    # All elements are treated alike, but for gtc a gradient may just miss the threshold
    sent = [[row.get("elements_sent", 0) for row in found] for found in (learned, wanted)]
    assert sent[0] == pytest.approx(sent[1], rel=0.01)
    if name in ("allreduce", "bmuf"):
        assert_close(two, whole)


@pytest.mark.parametrize(
    "name, workers, place",
    [
        ("allreduce", 2, "aggregate"),
        slow("allreduce", 2, "partial"),
        slow("sgd", 1, "raw"),
        slow("onebit", 2, "smoothed"),
    ],
)
def test_adagrad_takes_means_over_all_stripes(splits, tmp_path, name, workers, place):
    more = {"adagrad": {"place": place, "window_frames": 500, "floor": 0.1}, "rate": 0.004}
    virtual(tmp_path / "whole", splits, name, workers, **more)
    assert cut(tmp_path / "cut", splits, name, workers, 2, **more) == [None] * 2
    if name != "onebit":  # which quantises each stripe's columns by themselves
        return assert_close(tmp_path / "cut", tmp_path / "whole")
    ours, theirs = (rows(tmp_path / folder)[-1]["dev_loss"] for folder in ("cut", "whole"))
    assert ours == pytest.approx(theirs, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onebit", "bmuf"])  # with states of workers, and of models
def test_a_killed_stripe_ends_the_run_which_goes_on_to_the_same_bytes(
    splits, tmp_path, in_two, name
):
    def deadly(stripes):
        if stripes.index == 1:
            original, calls = loop.step, []

            def step(*args):
                calls.append(1)
                if len(calls) == 6:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args)

            loop.step = step

    error, died = cut(tmp_path / "killed", splits, name, 2, 2, before=deadly)
    assert died == -signal.SIGKILL
    assert isinstance(error, ExchangeError)
    assert "process 1 of 2 did not answer" in str(error)
    assert not (tmp_path / "killed" / "model.json").exists()
    assert (tmp_path / "killed" / "ckpt" / "step-00000004.s01.w001.pt").exists()
    cut(tmp_path / "killed", splits, name, 2, 2)
    assert outcome(tmp_path / "killed") == outcome(in_two(name, 2))


@pytest.mark.slow
def test_a_stripe_that_hangs_is_an_error_in_the_stated_time(splits, tmp_path):
    def main(stripes):
        if stripes.index == 1:
            loop.step = lambda *_: time.sleep(15)
        run = settings("sgd")
        loop.train(run, *splits, tmp_path / "run", CPU, stripes.exchange, stripes=stripes)

    error, _ = forked.run(main, 1, 2, timeout_seconds=10, stripes=2)
    assert isinstance(error, ExchangeError)
    assert "process 1 of 2 did not answer (timeout_seconds is 10; activations" in str(error)
