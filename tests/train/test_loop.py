import json
import math
import multiprocessing
import os
import signal
from dataclasses import asdict, replace

import pytest
import tiny
import torch
from tiny import outcome, rows
from waits import Waits

from asr_train import files
from asr_train.comm.bucket import Bucket, shorten
from asr_train.comm.loopback import Loopback
from asr_train.comm.methods import build
from asr_train.comm.optimizer import Momentum
from asr_train.model.store import build_model, load_model, load_tensors
from asr_train.shards.batch import Cut, FramePools, Plan, context_padded
from asr_train.train import evaluate, identity, loop, objective, state
from asr_train.train import step as steps
from asr_train.train.schedule import Schedule
from asr_train.train.state import Interval, NotFiniteError, RunState

CPU = torch.device("cpu")


def trained(folder, splits, **optim):
    return loop.train(tiny.settings(**optim), *splits, folder, CPU)


@pytest.fixture(scope="module")
def unbroken(splits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exp") / "unbroken"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBS", "1")
        trained(folder, splits)
    return folder


# --- what a run gives ---------------------------------------------------------------------------


def test_a_separable_task_is_learnt(unbroken):
    dev = json.loads((unbroken / "model.json").read_text())["dev"]
    assert dev["accuracy"] > 0.9
    assert dev["loss"] < math.log(tiny.NUM_STATES) / 4


def test_the_log_has_a_row_an_interval_and_a_row_an_epoch(unbroken, splits):
    minibatch, log_steps, epochs = 32, 7, 3
    steps = math.ceil(splits[0].num_frames / minibatch)
    found = rows(unbroken)
    ends = [row for row in found if "dev_loss" in row]
    assert [(row["epoch"], row["step"]) for row in ends] == [
        (n, n * steps) for n in range(1, epochs + 1)
    ]
    assert [row["rate"] for row in ends] == [0.02, 0.01, 0.005]
    inside = [row for row in found if "dev_loss" not in row]
    wanted = {n * log_steps for n in range(1, epochs * steps // log_steps + 1)}
    assert [row["step"] for row in inside] == sorted(wanted | {row["step"] for row in ends})
    assert inside[-1]["frames"] == epochs * splits[0].num_frames
    assert inside[-1]["loss"] < inside[0]["loss"]


def test_the_logs_rates_are_those_of_the_rows_last_steps(splits, tmp_path):
    """While it rises from half of it: the row of step n has the rate of step n."""
    trained(tmp_path / "run", splits, epochs=1, warmup_epochs=1.0, warmup_from=0.5)
    steps = math.ceil(splits[0].num_frames / 32)
    inside = [row for row in rows(tmp_path / "run") if "dev_loss" not in row]
    wanted = [0.02 * (0.5 + 0.5 * (row["step"] - 1) / steps) for row in inside]
    assert [row["rate"] for row in inside] == pytest.approx(wanted)


def test_the_model_knows_what_it_was_trained_on(unbroken, splits):
    model, about = load_model(unbroken / "model.json")
    assert about["priors"] == splits[0].priors_S.tolist()
    assert {key: about[key] for key in tiny.ABOUT} == tiny.ABOUT
    assert torch.equal(model.mean_F, torch.from_numpy(splits[0].mean_F))
    assert torch.equal(model.var_F, torch.from_numpy(splits[0].var_F))
    loss, accuracy = loop.evaluate(model, splits[1], Loopback(range(1), CPU))
    assert about["dev"] == {"loss": loss, "accuracy": accuracy}


def test_what_an_epoch_counted_is_not_counted_in_the_next(unbroken):
    last = max((unbroken / "ckpt").glob("*.pt"))
    assert load_tensors(last)["shared"]["in_epoch"] == asdict(Interval())


# --- the same bits, however often it is killed -------------------------------------------------


def test_the_same_run_gives_the_same_bytes(unbroken, splits, tmp_path):
    trained(tmp_path / "again", splits)
    assert outcome(tmp_path / "again") == outcome(unbroken)


def test_another_seed_gives_another_model(unbroken, splits, tmp_path):
    trained(tmp_path / "other", splits, seed=1)
    assert outcome(tmp_path / "other")[0] != outcome(unbroken)[0]


def killed(folder, splits, module, name: str, call: int, after: bool, monkeypatch) -> None:
    """Train in a child that dies by SIGKILL before (or after) a call of `module.name`."""
    original, calls = getattr(module, name), []

    def deadly(*args, **kwargs):
        calls.append(1)
        if len(calls) == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if len(calls) == call and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(module, name, deadly)
        child = multiprocessing.get_context("fork").Process(target=trained, args=(folder, splits))
        child.start()
        child.join()
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    "module, name, call, after",
    [
        (Momentum, "apply", 1, True),  # before the first checkpoint
        (Momentum, "apply", 37, False),  # in the middle of an epoch
        (loop, "evaluate", 1, True),  # between the last step of an epoch and its checkpoint
        (loop, "evaluate", 3, False),
        (torch, "save", 3, True),  # a checkpoint is not yet renamed
        (state.files, "write_json", 4, False),  # a checkpoint is complete, its index is missing
        (state.files, "write_json", 4, True),
        (loop, "save_model", 1, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_killed_run_goes_on_to_the_same_bytes(
    unbroken, splits, tmp_path, monkeypatch, module, name, call, after
):
    folder = tmp_path / "killed"
    killed(folder, splits, module, name, call, after, monkeypatch)
    assert not (folder / "model.json").exists()
    trained(folder, splits)
    assert outcome(folder) == outcome(unbroken)


def test_a_run_killed_again_and_again_goes_on_to_the_same_bytes(
    unbroken, splits, tmp_path, monkeypatch
):
    folder = tmp_path / "killed"
    for call in (15, 23, 19, 40):
        killed(folder, splits, Momentum, "apply", call, True, monkeypatch)
    trained(folder, splits)
    assert outcome(folder) == outcome(unbroken)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    unbroken, splits, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "killed"
    killed(folder, splits, Momentum, "apply", 37, True, monkeypatch)
    newest = max((folder / "ckpt").glob("*.pt"))
    newest.write_bytes(newest.read_bytes()[:100])
    trained(folder, splits)
    assert f"{newest} has 100 bytes" in capsys.readouterr().out
    assert outcome(folder) == outcome(unbroken)


def test_a_finished_run_that_is_asked_for_again_takes_no_step(
    unbroken, splits, tmp_path, monkeypatch
):
    folder = tmp_path / "twice"
    trained(folder, splits)
    before = outcome(folder)
    (folder / "model.json").unlink()
    monkeypatch.delattr(Momentum, "apply")
    trained(folder, splits, keep_checkpoints=1)  # which does not change a run
    assert outcome(folder) == before


def test_the_only_checkpoint_is_not_removed_before_there_is_another(splits, tmp_path, monkeypatch):
    """At an epoch's last step, too, where the interval of checkpoints ends."""
    steps, original, calls = -(-splits[0].num_frames // 32), state.save_tensors, []
    run = tiny.settings(keep_checkpoints=1, checkpoint_steps=steps, epochs=2)

    def failing(path, content):
        calls.append(path.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        original(path, content)

    monkeypatch.setattr(state, "save_tensors", failing)
    with pytest.raises(KeyboardInterrupt):
        loop.train(run, *splits, tmp_path / "run", CPU)
    assert calls == [f"step-{steps:08d}.pt", f"step-{2 * steps:08d}.pt"]
    assert (tmp_path / "run" / "ckpt" / f"step-{steps:08d}.json").exists()


def test_other_settings_start_a_run_over(splits, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "changed"
    killed(folder, splits, Momentum, "apply", 37, True, monkeypatch)
    (folder / "epochs" / "9").mkdir(parents=True)  # a model that make would take for this run's
    trained(folder, splits, rate=0.01)
    assert not list((folder / "epochs").iterdir())
    assert "other settings or shards" in capsys.readouterr().out
    trained(tmp_path / "fresh", splits, rate=0.01)
    assert outcome(folder) == outcome(tmp_path / "fresh")


def test_settings_that_change_no_result_do_not_start_a_run_over(splits):
    run = tiny.settings()
    comm = replace(run.comm, timeout_seconds=7.0, check_steps=7, workers=7)
    other = replace(run, comm=comm, optim=replace(run.optim, keep_checkpoints=7, log_steps=3))
    assert loop.identity(other, *splits) == loop.identity(run, *splits)


def test_other_shards_start_a_run_over(splits, tmp_path, monkeypatch):
    run, (train, dev) = tiny.settings(), splits
    other = tiny.shards(tmp_path / "other", seed=3, count=5)
    assert loop.identity(run, train, dev) == loop.identity(tiny.settings(), train, dev)
    names = [loop.identity(run, a, b) for a, b in [(train, dev), (other, dev), (train, other)]]
    monkeypatch.setattr(identity, "FORMAT", identity.FORMAT + 1)  # another version's checkpoints
    names.append(loop.identity(run, train, dev))
    assert len(set(names)) == 4


# --- a step -------------------------------------------------------------------------------------


def new_state(splits, momentum=0.5) -> tuple[torch.nn.Module, RunState]:
    run, train = tiny.settings(momentum=momentum), splits[0]
    model = build_model(
        run.model,
        train.num_states,
        torch.from_numpy(train.mean_F),
        torch.from_numpy(train.var_F),
        seed=0,
    )
    bucket = Bucket(model)
    method = build(run.comm, Loopback(range(1), CPU), bucket.weights_P.numel())
    return model, RunState.fresh(bucket, method, Schedule(run.optim))


def taken(model, batch, run_state, momentum=0.5, max_norm=None) -> None:
    run_state.schedule.settings = tiny.settings(momentum=momentum, max_norm=max_norm).optim
    loop.step(model, lambda worker: batch, run_state, run_state.schedule.rate)


def minibatches(splits, count: int) -> list:
    plan = Plan(pool_frames=500, minibatch_frames=32, seed=0, worker=0, workers=1, epoch=0)
    pools = FramePools(splits[0], Cut(2, 1), plan)
    return [batch for batch, _ in zip(pools, range(count), strict=False)]


@pytest.mark.parametrize("momentum, max_norm", [(0.0, None), (0.9, None), (0.0, 0.4), (0.9, 1e-3)])
def test_steps_are_those_of_torchs_sgd_on_summed_losses(splits, momentum, max_norm):
    model, run_state = new_state(splits, momentum)
    reference, _ = new_state(splits)
    sgd = torch.optim.SGD(reference.parameters(), lr=0.02, momentum=momentum)
    norms = []
    for batch in minibatches(splits, 10):
        taken(model, batch, run_state, momentum, max_norm)
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(
            reference(batch.feats_BTF)[:, 0], batch.ali_BT[:, 0], reduction="sum"
        ).backward()
        if max_norm is not None:
            longest = max_norm * batch.frames
            norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), longest)
            norms.append(float(norm) / batch.frames)
        sgd.step()
    for name, weights in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weights)
    if max_norm == 0.4:
        assert min(norms) < max_norm < max(norms)


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(splits, value, max_norm, capsys):
    model, run_state = new_state(splits)
    good, bad, last = minibatches(splits, 3)
    bad.feats_BTF[3, 1, 2] = value
    taken(model, good, run_state)
    (replica,) = run_state.method.replicas
    weights_P, velocity_P = replica.weights_P.clone(), replica.optimizer.velocity_P.clone()
    taken(model, bad, run_state, max_norm=max_norm)
    assert torch.equal(run_state.bucket.weights_P, weights_P)
    assert torch.equal(replica.optimizer.velocity_P, velocity_P)
    assert "step 2 is skipped" in capsys.readouterr().out
    taken(model, last, run_state)
    assert not torch.equal(run_state.bucket.weights_P, weights_P)
    assert run_state.bucket.weights_P.isfinite().all()
    counts = run_state.since_log[0]
    assert (counts.steps, counts.skipped) == (3, 1)
    assert counts.frames == good.frames + last.frames
    assert run_state.skipped_in_row == [0]


def test_a_step_whose_loss_alone_is_not_finite_is_skipped(splits, monkeypatch, capsys):
    original = objective.frame_loss

    def infinite(*given):
        loss, correct = original(*given)
        return loss + torch.inf, correct

    model, run_state = new_state(splits)
    before_P = run_state.bucket.weights_P.clone()
    monkeypatch.setattr(objective, "frame_loss", infinite)
    taken(model, minibatches(splits, 1)[0], run_state)
    assert torch.equal(run_state.bucket.weights_P, before_P)
    assert "its loss is inf" in capsys.readouterr().out


def test_losses_are_fetched_every_so_many_steps(splits, monkeypatch):
    """A step of SGD waits once, to know whether its gradient is finite."""
    monkeypatch.setattr(state, "FETCHED", 3)
    model, run_state = new_state(splits)
    found = []
    for batch in minibatches(splits, 4):
        with monkeypatch.context() as patch, Waits(patch) as waits:
            taken(model, batch, run_state)
        found.append(waits.of)
    assert found == [["__bool__"], ["__bool__"], ["__bool__", "tolist"], ["__bool__"]]
    assert len(run_state.unsettled) == 1
    counts = run_state.since_log[0]
    before = counts.loss
    run_state.settle()
    assert counts.loss > before > 0
    assert counts.frames > counts.correct > 0


def test_losses_of_virtual_workers_are_fetched_as_seldom(splits, monkeypatch):
    monkeypatch.setattr(state, "FETCHED", 3)
    _, run_state = new_state(splits)
    run_state.since_log = {worker: Interval() for worker in range(4)}
    fetched = []
    monkeypatch.setattr(RunState, "settle", lambda self: fetched.append(len(self.unsettled)))
    for _ in range(3):
        assert not fetched
        for worker in range(4):
            run_state.count(worker, state.Learned(1, torch.ones(2)))
    assert fetched == [12]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_gradient_without_a_norm_is_not_shortened_to_one_that_looks_sound(value):
    grad_P = torch.ones(5)
    grad_P[3] = value
    shorten(grad_P, 1.0)
    assert not grad_P.isfinite().any()
    zeros_P = torch.zeros(5)
    shorten(zeros_P, 1.0)
    assert torch.equal(zeros_P, torch.zeros(5))


def test_a_row_of_the_log_that_is_not_finite_names_its_number_and_step():
    loop.check_row({"step": 7, "loss": 1.5, "residual_norm": None})
    with pytest.raises(state.NotFiniteError, match=r"residual_norm is inf at step 7: .*optim.rate"):
        loop.check_row({"step": 7, "loss": 1.5, "residual_norm": float("inf")})


def test_too_many_skipped_steps_in_a_row_stop_the_run(splits, monkeypatch):
    monkeypatch.setattr(steps, "MAX_SKIPPED", 3)
    model, run_state = new_state(splits)
    (bad,) = minibatches(splits, 1)
    bad.feats_BTF[:] = float("nan")
    taken(model, bad, run_state)
    taken(model, bad, run_state)
    with pytest.raises(NotFiniteError, match=r"gradient of layers.\d.\w+ hold nan at step 3"):
        taken(model, bad, run_state)


@pytest.mark.parametrize("checkpoint_steps, found_at", [(10, 10), (1000, 53)])
def test_weights_that_blew_up_are_an_error_and_no_checkpoint(
    splits, tmp_path, monkeypatch, checkpoint_steps, found_at
):
    monkeypatch.setattr(Momentum, "apply", lambda _, weights_P, *__: weights_P.fill_(torch.inf))
    message = rf"the weights of layers.0.weight hold inf at step {found_at} "
    with pytest.raises(NotFiniteError, match=message):
        trained(tmp_path / "run", splits, checkpoint_steps=checkpoint_steps)
    assert not list(tmp_path.glob("run/ckpt/*"))


def test_a_loss_on_dev_that_is_no_number_is_an_error(splits, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "evaluate", lambda *_: (float("nan"), 0.0))
    with pytest.raises(NotFiniteError, match=r"DEV's loss is nan at step 53; lower optim.rate"):
        trained(tmp_path / "run", splits)


def test_a_run_that_diverged_can_be_finished_with_its_last_sound_checkpoint(
    splits, tmp_path, monkeypatch
):
    original, calls, folder = Momentum.apply, [], tmp_path / "run"

    def explodes(self, weights_P, *rest):
        original(self, weights_P, *rest)
        calls.append(1)
        if len(calls) == 80:
            weights_P.fill_(torch.inf)

    monkeypatch.setattr(Momentum, "apply", explodes)
    with pytest.raises(NotFiniteError) as error:
        trained(folder, splits, keep_epochs=True, checkpoint_steps=1000)
    before = rows(folder)
    settings = tiny.settings(keep_epochs=True, checkpoint_steps=1000)
    loop.train(settings, *splits, folder, CPU, diverged=str(error.value))
    *kept, last = rows(folder)
    assert kept == before
    assert (last["epoch"], last["step"], last["diverged"]) == (2, 53, str(error.value))
    first = next(row for row in kept if "dev_loss" in row)
    assert last["weights_crc32"] == first["weights_crc32"]
    same = [(folder / f"epochs/{n}/model.pt").read_bytes() for n in (1, 2, 3)]
    assert same == [(folder / "model.pt").read_bytes()] * 3


def test_a_run_that_diverged_counts_its_checkpoints_steps_frames_and_rate(
    splits, tmp_path, monkeypatch
):
    comm = {"method": "allreduce", "allreduce": {"wire": "fp32"}}
    run, folder = tiny.settings(comm, scaling="mean"), tmp_path / "run"

    def second(row):
        if row["step"] == 14:
            raise NotFiniteError("made up")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "check_row", second)
        with pytest.raises(NotFiniteError, match="made up"):
            loop.train(run, *splits, folder, CPU, Loopback(range(2), CPU))
    loop.train(run, *splits, folder, CPU, Loopback(range(2), CPU), diverged="made up")
    first, dev = rows(folder)
    about = json.loads((folder / "model.json").read_text())
    assert first["step"] == 7 < about["steps"] == dev["step"] == 10
    assert about["frames"] == 10 * 2 * 32
    assert dev["rate"] == first["rate"] == run.optim.rate / 2


# --- DEV ----------------------------------------------------------------------------------------


def test_dev_is_evaluated_as_if_each_utterance_stood_alone(unbroken, splits, monkeypatch):
    model, _ = load_model(unbroken / "model.json")
    loss, correct = 0.0, 0
    for sample in splits[1].samples(seed=None, worker=0, workers=1, epoch=0):
        logits_TS = model(context_padded(sample.feats_TF, 2, 1))[0]
        ali_T = torch.from_numpy(sample.ali_T).long()
        loss += torch.nn.functional.cross_entropy(logits_TS, ali_T, reduction="sum").item()
        correct += (logits_TS.argmax(-1) == ali_T).sum().item()
    frames = splits[1].num_frames
    for at_once in (1, 100, frames, 2 * frames):
        monkeypatch.setattr(evaluate, "DEV_FRAMES", at_once)
        found = loop.evaluate(model, splits[1], Loopback(range(1), CPU))
        assert found == (pytest.approx(loss / frames, rel=1e-5), correct / frames)


def test_dev_may_have_fewer_utterances_than_there_are_workers(unbroken, splits):
    model, _ = load_model(unbroken / "model.json")
    many = Loopback(range(splits[1].num_samples + 1), CPU)
    found = loop.evaluate(model, splits[1], many)
    assert found == pytest.approx(loop.evaluate(model, splits[1], Loopback(range(1), CPU)))


def test_dropout_is_of_training_alone(splits, tmp_path):
    run = tiny.settings(epochs=1, dropout=0.5)
    path = loop.train(run, *splits, tmp_path / "run", CPU)
    model, about = load_model(path)
    wanted = about["dev"]["loss"], about["dev"]["accuracy"]
    for is_training in (False, True):
        model.train(is_training)
        assert loop.evaluate(model, splits[1], Loopback(range(1), CPU)) == wanted
        assert model.training == is_training  # it is as before
    feats_BTF = torch.randn(1, 40, tiny.NUM_MELS)
    model.train()
    assert not torch.equal(model(feats_BTF), model(feats_BTF))
    model.eval()
    assert torch.equal(model(feats_BTF), model(feats_BTF))


FMLLR = {"fmllr": {"run": "sat", "sha256": "abc"}}


def test_inputs_of_another_kind_are_refused(splits, tmp_path):
    """Another split's, and those that the network to begin with was trained on."""
    both = [tiny.shards(tmp_path / f"{n}", seed=n, count=5, **FMLLR) for n in (1, 3)]
    says = r"has log-mel but .* has fMLLR features of sat \(SHA-256 abc...\)"
    with pytest.raises(ValueError, match=says):
        loop.train(tiny.settings(), splits[0], both[1], tmp_path / "run", CPU)
    one = tiny.settings(epochs=1)
    made = loop.train(one, *both, tmp_path / "run", CPU)
    assert files.read_json(made)["fmllr"] == FMLLR["fmllr"]
    loop.train(one, *both, tmp_path / "again", CPU, initial=made)
    with pytest.raises(ValueError, match=r"has log-mel but .*model.json was trained on fMLLR"):
        loop.train(one, *splits, tmp_path / "other", CPU, initial=made)


@pytest.mark.parametrize("about", [{"states_hash": "other"}, {"norm": {"by": "speaker"}}])
def test_splits_of_different_tasks_are_refused(splits, tmp_path, about):
    other = tiny.shards(tmp_path / "dev", seed=3, count=5, **about)
    with pytest.raises(ValueError, match=rf"has {next(iter(about))} .* but .*dev/index.json has"):
        loop.train(tiny.settings(), splits[0], other, tmp_path / "run", CPU)
    assert not (tmp_path / "run").exists()


def test_shards_that_do_not_say_what_they_hold_are_refused(tmp_path):
    index = files.read_json(tiny.shards(tmp_path / "dev", seed=3, count=5).path)
    del index["about"]["states_hash"]
    files.write_json(tmp_path / "dev" / "index.json", index)
    shards = loop.Shards(tmp_path / "dev" / "index.json")
    with pytest.raises(ValueError, match="does not say 'states_hash'"):
        loop.train(tiny.settings(), shards, shards, tmp_path / "run", CPU)


@pytest.mark.parametrize(
    "processes, products, wanted",
    [(1, 8 * 264_496, 1), (1, 2**24, 2), (1, 2**30, 6), (2, 2**30, 3), (8, 2**30, 1)],
)
def test_threads_follow_the_size_of_a_minibatch(monkeypatch, processes, products, wanted):
    monkeypatch.setenv("JOBS", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    identity.same_bits_every_time(torch.device("cpu"), products)
    assert set_to == [wanted]


def test_on_a_gpu_torch_is_deterministic_without_filling_empty_tensors(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    try:
        identity.same_bits_every_time(torch.device("cuda"), 1)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
