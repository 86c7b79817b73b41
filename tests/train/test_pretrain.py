"""A run begins with the result of a single worker's training on a part of TRAIN."""

import dataclasses
import json
import multiprocessing
import os
import signal

import pytest
import tiny
import torch

from asr_train.comm.loopback import Loopback
from asr_train.comm.optimizer import Momentum
from asr_train.model.store import build_model, initialise_from, load_model
from asr_train.schema import Nonlinearity, PretrainSettings, SettingsError
from asr_train.train import loop, pretrain
from asr_train.train.schedule import Schedule
from asr_train.train.state import NotFiniteError

CPU = torch.device("cpu")
LAYERS = {"share": 0.5, "epochs": 1, "layer_by_layer": True}
WHOLE = {"share": 0.5, "epochs": 1, "layer_by_layer": False, "rate": 0.05}
GTC = {"method": "gtc", "gtc": {"threshold": 0.5, "codec": "rice", "capacity": "exact"}}


def settings(given: dict, **changes):
    return tiny.settings(epochs=1, pretrain=given, **changes)


def begin(run, splits, folder, leads=True):
    return pretrain.pretrained(run, *splits, folder, CPU, leads)


def test_layers_are_added_one_by_one_and_all_are_handed_over(splits, tmp_path):
    run = settings(LAYERS, comm=GTC)
    path = begin(run, splits, tmp_path / "run")
    one, _ = load_model(path.parents[1] / "layers-1" / "model.json")
    two, about = load_model(path)
    assert [len(one.layers), len(two.layers)] == [2, 3]
    assert about["frames"] == splits[0].some(0.5).num_frames

    def first_step_weights(initial):
        folder = tmp_path / f"of-{initial is not None}"
        seen = []

        def stop(model, *_):
            seen.append({n: t.clone() for n, t in model.state_dict().items()})
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                loop, "step", lambda model, *rest: seen.append(dict(model.state_dict())) or 1 / 0
            )
            with pytest.raises(ZeroDivisionError):
                loop.train(run, *splits, folder, CPU, Loopback(range(2), CPU), initial)
        return seen[0]

    handed = first_step_weights(path)
    assert all(torch.equal(handed[name], tensor) for name, tensor in two.state_dict().items())
    drawn = first_step_weights(None)
    assert not torch.equal(drawn["layers.0.weight"], handed["layers.0.weight"])


def test_a_deeper_network_takes_the_hidden_layers_and_a_new_output(splits):
    run = tiny.settings()
    ones = torch.ones(tiny.NUM_MELS)

    def network(layers, seed):
        model = dataclasses.replace(
            run.model, dnn=dataclasses.replace(run.model.dnn, layers=layers)
        )
        return build_model(model, tiny.NUM_STATES, ones, ones, seed)

    source, target, drawn = network(2, 0), network(3, 1), network(3, 1)
    initialise_from(source, target)
    for layer in (0, 1):
        assert torch.equal(target.layers[layer].weight, source.layers[layer].weight)
    for layer in (2, 3):
        assert torch.equal(target.layers[layer].weight, drawn.layers[layer].weight)
    with pytest.raises(ValueError, match=r"the pre-trained network has layers.3.bias"):
        initialise_from(network(3, 0), network(2, 0))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"nonlinearity": Nonlinearity.relu}, r"has nonlinearity CentredSigmoid\(\) but.*ReLU\(\)"),
        ({"context_left": 1, "context_right": 2}, "has context_left 2 but this one 1"),
    ],
)
def test_a_network_of_equal_sizes_that_computes_otherwise_is_refused(change, message):
    given, ones = tiny.settings().model, torch.ones(tiny.NUM_MELS)
    other = dataclasses.replace(given, dnn=dataclasses.replace(given.dnn, **change))
    source, target = (build_model(s, tiny.NUM_STATES, ones, ones, 0) for s in (given, other))
    with pytest.raises(ValueError, match=message):
        initialise_from(source, target)


def test_layers_of_low_rank_are_the_nearest_to_the_trained_ones():
    """With the largest rank that saves anything, the network computes nearly the same."""
    given = tiny.settings().model
    ones = torch.ones(tiny.NUM_MELS)

    def network(rank, seed):
        dnn = dataclasses.replace(given.dnn, layers=3, width=40, rank=rank)
        return build_model(dataclasses.replace(given, dnn=dnn), 40, ones, ones, seed)

    source, feats_BTF = network(None, 0), torch.randn(2, 30, tiny.NUM_MELS)
    torch.nn.init.normal_(source.layers[-1].weight)
    errors = []
    for rank in (2, 10, 19):
        target = network(rank, 1)
        initialise_from(source, target)
        assert torch.equal(target.layers[0].weight, source.layers[0].weight)
        for own, full in zip(target.layers[1:], source.layers[1:], strict=True):
            lost = torch.linalg.svdvals(full.weight)[rank:].square().sum().sqrt()
            error = (own.out.weight @ own.into.weight - full.weight).norm()
            torch.testing.assert_close(error, lost)  # Eckart and Young (1936)
            assert torch.equal(own.out.bias, full.bias)
        errors.append((target(feats_BTF) - source(feats_BTF)).norm().item())
    assert errors[0] > errors[1] > errors[2] > 0


def test_a_network_of_low_rank_begins_with_one_of_full_rank(splits, tmp_path):
    run = settings(WHOLE)
    dnn = dataclasses.replace(run.model.dnn, rank=5)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, dnn=dnn))
    initial = begin(run, splits, tmp_path / "run")
    found, _ = load_model(initial)
    assert not any("into" in name for name in found.state_dict())
    loop.train(run, *splits, tmp_path / "run", CPU, initial=initial)
    model, _ = load_model(tmp_path / "run" / "model.json")
    assert {name for name in model.state_dict() if "into" in name}
    before, after = (
        json.loads(path.read_text())["dev"]["loss"]
        for path in (initial, tmp_path / "run" / "model.json")
    )
    assert after < before


@pytest.mark.parametrize("lstm", [None, tiny.LSTM], ids=["dnn", "lstm"])
def test_the_whole_network_on_a_part_is_where_the_run_goes_on(splits, tmp_path, lstm):
    run = settings(WHOLE, lstm=lstm, rate=1e-9)  # so small that it changes nothing by itself
    initial = begin(run, splits, tmp_path / "run")
    before = json.loads(initial.read_text())["dev"]
    loop.train(run, *splits, tmp_path / "run", CPU, initial=initial)
    after = json.loads((tmp_path / "run" / "model.json").read_text())["dev"]
    assert before["loss"] < 1.7  # of log(6) = 1.79
    assert after["loss"] == pytest.approx(before["loss"], rel=1e-4)


@pytest.mark.parametrize("given", [LAYERS, {**WHOLE, "rate": None}])
def test_the_rate_stays_the_same_in_all_epochs_before_a_run(given):
    warmed = {"warmup_epochs": 2.0, "warmup_from": 0.01}  # of the run itself
    for _, stage in pretrain.stages(settings({**given, "epochs": 4}, rate=0.5, **warmed)):
        assert stage.optim.warmup_from is None
        schedule, rates = Schedule(stage.optim), []
        while not schedule.is_finished:
            rates.append(schedule.rate)
            schedule.end_epoch(1.0)
        assert rates == [0.5] * 4


def test_other_initial_weights_start_a_run_over(splits, tmp_path):
    run = settings(WHOLE)
    initials = (None, {"sha256": "a"}, {"sha256": "b"})
    names = {loop.identity(run, *splits, initial) for initial in initials}
    assert len(names) == 3


def test_killed_it_goes_on_and_what_is_done_is_not_trained_again(splits, tmp_path, monkeypatch):
    run = settings(LAYERS)
    wanted = begin(run, splits, tmp_path / "unbroken" / "run").with_name("model.pt").read_bytes()
    original, calls = Momentum.apply, []

    def deadly(*args):
        calls.append(1)
        if len(calls) == 40:  # in the second network
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Momentum, "apply", deadly)
        target = (run, splits, tmp_path / "killed" / "run")
        process = multiprocessing.get_context("fork").Process(target=begin, args=target)
        process.start()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    found = begin(run, splits, tmp_path / "killed" / "run")
    assert found.with_name("model.pt").read_bytes() == wanted
    monkeypatch.delattr(pretrain, "train")
    for name in ("run", "another that begins with the same network"):
        assert begin(run, splits, tmp_path / "killed" / name) == found
    assert begin(run, splits, tmp_path / "killed" / "run", leads=False) == found


def test_other_settings_are_trained_anew_and_without_any_there_is_nothing(splits, tmp_path):
    first = begin(settings(WHOLE), splits, tmp_path)
    other = begin(settings({**WHOLE, "rate": 0.01}), splits, tmp_path)
    assert first != other
    assert begin(tiny.settings(), splits, tmp_path) is None


def test_runs_share_a_network_if_they_differ_in_nothing_that_it_depends_on(
    splits, tmp_path, monkeypatch
):
    monkeypatch.setattr(pretrain, "train", lambda *_, **__: None)

    def path(given=WHOLE, **changes):
        return begin(tiny.settings(pretrain=given, **changes), splits, tmp_path / "run")

    for name, value in [("log_steps", 3), ("keep_checkpoints", 1), ("epochs", 9)]:
        assert path(**{name: value}) == path()
    for name, value in [("newbob_gain", 0.5), ("warmup_epochs", 2.0), ("keep_epochs", True)]:
        assert path(**{name: value}) == path()
    others = [path(seed=7), path(momentum=0.1), path(max_norm=1.0), path(dropout=0.1)]
    changes = {"share": 0.9}, {"epochs": 2}, {"rate": 0.01}, {"minibatch_frames": 16}
    others += [path({**WHOLE, **change}) for change in changes]
    assert len({path(), *others}) == 9


@pytest.mark.parametrize("rate, named", [(1e37, "optim.pretrain.rate"), (None, "optim.rate")])
def test_a_network_that_diverges_before_the_run_names_its_own_rate(splits, tmp_path, rate, named):
    run = settings({**WHOLE, "rate": rate}, rate=1e37, log_steps=1)
    with pytest.raises(NotFiniteError, match=rf"^pre-training \(whole\): .*; lower {named}$"):
        begin(run, splits, tmp_path / "run")


def test_layers_of_a_recurrent_network_are_not_added_one_by_one():
    with pytest.raises(SettingsError, match=r"layer_by_layer is for model\.dnn"):
        settings(LAYERS, lstm=tiny.LSTM)
    with pytest.raises(SettingsError, match=r"share is 0; it must lie in"):
        PretrainSettings(share=0, epochs=1, layer_by_layer=False)


def test_some_shards_are_at_equal_distances_and_keep_the_statistics_of_all(splits):
    whole, part = splits[0], splits[0].some(0.67)
    assert [p["path"] for p in part.index["parts"]] == ["00000.tar", "00001.tar"]
    ids = [sample.id for sample in part.samples(None, 0, 1, 0)]
    assert ids == [f"utt{n:03d}" for n in range(40)]
    assert part.num_samples == 40
    assert part.num_frames == sum(len(s.ali_T) for s in part.samples(3, 0, 1, 0))
    assert (part.mean_F == whole.mean_F).all()
    assert (part.priors_S == whole.priors_S).all()
    assert whole.num_samples == 60
