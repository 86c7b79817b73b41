"""A sequence objective trains as cross-entropy does: the same loop, exchanges and bytes."""

import multiprocessing
import os
import signal

import pytest
import tiny
import torch
from comm import forked
from tiny import outcome, rows

from asr_train import schema
from asr_train.comm.loopback import Loopback
from asr_train.comm.optimizer import Momentum
from asr_train.model.loss import frame_loss
from asr_train.model.store import build_model, load_model
from asr_train.schema import Criterion, ObjectiveSettings, SettingsError
from asr_train.shards.batch import Plan, Sequences
from asr_train.train import loop
from asr_train.train.evaluate import evaluate, side_by_side
from asr_train.train.feed import seen_by
from asr_train.train.objective import objective_of

CPU = torch.device("cpu")
GTC = {"method": "gtc", "gtc": {"threshold": 0.1, "codec": "rice", "capacity": "fixed"}}
BMUF = {"block_steps": 4, "form": "chen_huo", "zeta": 1.0, "c": 1.0, "eta": None}
COMM = {
    "sgd": {"method": "sgd"},
    "gtc": GTC,
    "bmuf": {"method": "bmuf", "bmuf": {**BMUF, "velocity": "reset"}},
}
KINDS = {
    "mmi": {"criterion": Criterion.mmi},
    "bmmi": {"criterion": Criterion.mmi, "boost": 0.3},
    "smbr": {"criterion": Criterion.smbr},
    "smoothed": {"criterion": Criterion.smbr, "smoothing": 0.4, "count_silence": True},
}


def objective(kind, **values) -> ObjectiveSettings:
    given = {"boost": 0.0, "smoothing": 0.0, "count_silence": False}
    training = {"rate": 0.02, "minibatch_frames": 80, "epochs": 2}
    return ObjectiveSettings(**{**given, **training, **KINDS[kind], **values})


@pytest.fixture(scope="module")
def latticed(tmp_path_factory):
    """TRAIN and DEV with lattices."""
    folder = tmp_path_factory.mktemp("latticed")
    return [
        tiny.shards(folder / n, *c, lattices=True)
        for n, c in (("train", (1, 40)), ("dev", (2, 12)))
    ]


@pytest.fixture(scope="module")
def first(splits, tmp_path_factory):
    """A network trained by cross-entropy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBS", "1")
        folder = tmp_path_factory.mktemp("exp") / "first"
        return loop.train(tiny.settings(epochs=1), *splits, folder, CPU)


def trained(folder, latticed, first, kind="mmi", comm=None, exchange=None, **values):
    run = tiny.settings(comm, checkpoint_steps=3, log_steps=2)
    run = run.continued(objective(kind, **values), "first")
    return loop.train(run, *latticed, folder, CPU, exchange, first)


def batches(shards, model, frames=80):
    plan = Plan(pool_frames=500, minibatch_frames=frames, seed=0, worker=0, workers=1, epoch=0)
    return Sequences(shards, seen_by(model, whole=True), plan)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_finite_differences(latticed, first, kind):
    model, _ = load_model(first)
    found = objective_of(objective(kind), latticed[0])
    batch = next(iter(batches(latticed[0], model, 30)))
    logits_BTS = model.every_frame(batch.feats_BTF).detach().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: found(z, batch)[0], [logits_BTS], atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lstm", [None, {**tiny.LSTM, "dropout": 0.0}], ids=["dnn", "lstm"])
def test_a_minibatch_has_the_loss_of_its_utterances(latticed, kind, lstm):
    """Padding adds nothing, and all frames of whole utterances are learned from."""
    shards = latticed[0]
    mean, var = torch.from_numpy(shards.mean_F), torch.from_numpy(shards.var_F)
    run = tiny.settings(lstm=lstm)
    model = build_model(run.model, shards.num_states, mean, var, 0).double()
    torch.nn.init.normal_(list(model.parameters())[-2])  # else all states are equally likely
    found = objective_of(objective(kind), shards)
    total, correct, frames = 0.0, 0, 0
    for batch in batches(shards, model):
        batch.feats_BTF.data = batch.feats_BTF.double()
        loss, right = found(found.logits(model, batch), batch)
        total, correct, frames = total + loss.item(), correct + right.item(), frames + batch.frames
    assert frames == shards.num_frames
    wanted, right = 0.0, 0
    for sample in shards.samples(None, 0, 1, 0):
        alone = side_by_side([sample], model.context_left, model.context_right, CPU)
        alone.feats_BTF.data = alone.feats_BTF.double()
        loss, one = found(model.every_frame(alone.feats_BTF), alone)
        wanted, right = wanted + loss.item(), right + one.item()
    assert total == pytest.approx(wanted, rel=1e-9)
    assert correct == right


def test_smoothing_leads_from_the_lattices_to_cross_entropy(latticed, first):
    model, _ = load_model(first)
    batch = next(iter(batches(latticed[0], model)))
    logits_BTS = model.every_frame(batch.feats_BTF)

    def loss(share):
        return objective_of(objective("mmi", smoothing=share), latticed[0])(logits_BTS, batch)[0]

    cross_entropy, _ = frame_loss(logits_BTS, batch.ali_BT, batch.mask_BT)
    assert loss(1.0).item() == pytest.approx(cross_entropy.item())
    between = 0.75 * loss(0.0) + 0.25 * cross_entropy
    assert loss(0.25).item() == pytest.approx(between.item())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_lowers_its_objective_from_the_network_it_begins_with(
    latticed, first, tmp_path, kind
):
    model, _ = load_model(first)
    found = objective_of(objective(kind), latticed[0])  # TRAIN's priors
    before, _ = evaluate(model, latticed[1], Loopback(range(1), CPU), found)
    path = trained(tmp_path / "run", latticed, first, kind)
    ends = [row for row in rows(tmp_path / "run") if "dev_loss" in row]
    assert ends[-1]["dev_loss"] < before
    assert [row["rate"] for row in ends] == [0.02, 0.02]
    last, _ = load_model(path)
    assert evaluate(last, latticed[1], Loopback(range(1), CPU), found)[0] == ends[-1]["dev_loss"]
    parts = evaluate(last, latticed[1], Loopback(range(3), CPU), found)
    assert parts[0] == pytest.approx(ends[-1]["dev_loss"])


@pytest.mark.parametrize("comm", COMM)
def test_a_killed_run_resumes_to_the_same_bytes(latticed, first, tmp_path, monkeypatch, comm):
    def run(folder):
        exchange = Loopback(range(1 if comm == "sgd" else 3), CPU)
        trained(folder, latticed, first, "smoothed", COMM[comm], exchange)

    original, calls = Momentum.apply, []

    def deadly(*args):
        calls.append(1)
        if len(calls) == 10:  # the last of ten steps of gtc, the fourth of three models of bmuf
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    run(tmp_path / "unbroken")
    with monkeypatch.context() as patch:
        patch.setattr(Momentum, "apply", deadly)
        child = multiprocessing.get_context("fork").Process(target=run, args=[tmp_path / "killed"])
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL
    assert list((tmp_path / "killed" / "ckpt").glob("*.json"))
    run(tmp_path / "killed")
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "unbroken")


def test_a_finished_run_goes_on_with_more_epochs(latticed, first, tmp_path, capsys):
    trained(tmp_path / "at_once", latticed, first)
    for epochs in (1, 2):
        trained(tmp_path / "later", latticed, first, epochs=epochs)
    assert outcome(tmp_path / "later") == outcome(tmp_path / "at_once")
    assert "starts over" not in capsys.readouterr().out


@pytest.mark.parametrize("comm", ["gtc", "bmuf"])
def test_processes_give_the_files_of_virtual_workers(latticed, first, tmp_path, comm):
    trained(tmp_path / "virtual", latticed, first, "mmi", COMM[comm], Loopback(range(3), CPU))

    def main(exchange):
        trained(tmp_path / "processes", latticed, first, "mmi", COMM[comm], exchange)

    assert forked.run(main, 3, 3, 60) == [None] * 3
    assert outcome(tmp_path / "processes") == outcome(tmp_path / "virtual")


def test_shards_without_lattices_are_refused(splits, latticed, first, tmp_path):
    with pytest.raises(ValueError, match=r"has no lattices, which objective.criterion=mmi learns"):
        trained(tmp_path / "run", splits, first)
    with pytest.raises(ValueError, match="have lattices that were made otherwise; delete both"):
        trained(tmp_path / "run", (latticed[0], splits[1]), first)


def test_an_objective_has_its_own_rate_and_cross_entropy_leaves_no_trace():
    run = tiny.settings(phases=[{"until": 0.5, "minibatch_frames": 8}], halving="newbob")
    assert "objective" not in schema.plain(run)
    assert "initial" not in schema.plain(run)
    further = run.continued(objective("smbr"), "dnn")
    with pytest.raises(SettingsError, match=r"objective.minibatch_frames is 501, above .* 500"):
        run.continued(objective("smbr", minibatch_frames=501), "dnn")
    optim = further.optim
    assert (optim.rate, optim.minibatch_frames, optim.epochs, optim.phases) == (0.02, 80, 2, [])
    assert schema.build(schema.RunSettings, schema.plain(further)) == further
    with pytest.raises(SettingsError, match=r"boost is 0.1, but criterion is smbr; only mmi is"):
        objective("smbr", boost=0.1)
    batched = tiny.settings({**GTC, "virtual": "batched"})
    with pytest.raises(SettingsError, match=r"comm.virtual is batched, .*; set comm.virtual=exact"):
        batched.continued(objective("mmi"), "dnn")
