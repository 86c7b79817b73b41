import json
import os
import re
import subprocess
import sys
import weakref
from importlib import import_module
from pathlib import Path

import pytest
import tiny
import torch
from launched import Started, here

from asr_train import files, schema
from asr_train.comm.bucket import Bucket
from asr_train.model.store import load_model
from asr_train.train import loop
from asr_train.train.process import chosen_device

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.py"


GTC = {"method": "gtc", "gtc": {"threshold": 0.5, "codec": "rice", "capacity": "fixed"}}
PATIENCE_SECONDS = 300  # for what takes seconds on an idle machine
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def call(
    splits,
    tmp_path,
    output="exp/a/model.json",
    comm=None,
    processes=1,
    forked=False,
    optim=None,
    **environment,
) -> subprocess.CompletedProcess:
    files.write_yaml(
        tmp_path / "a.yaml", schema.plain(tiny.settings(comm, **(optim or {"epochs": 1})))
    )
    paths = [*(shards.path for shards in splits), tmp_path / "a.yaml", tmp_path / output]
    command, environment = [str(SCRIPT), *map(str, paths)], {"JOBS": "1", **environment}
    if processes == 1:
        return here(command, **environment)
    if forked:
        options = ["--standalone", "--nproc-per-node", str(processes)]
        started = Started(command, options, **environment)
        said = started.read(PATIENCE_SECONDS)
        return subprocess.CompletedProcess(command, started.returncode, said, said)
    return subprocess.run(
        [sys.executable, *TORCHRUN, str(processes), *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_trains_and_says_what_it_ran(splits, tmp_path):
    done = call(splits, tmp_path, DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    assert "epoch 1/1: step" in done.stdout
    assert (tmp_path / "exp/a/model.json").exists()
    said = json.loads((tmp_path / "exp/a/run.json").read_text())
    assert said["settings"] == schema.plain(tiny.settings(epochs=1))
    assert said["command"].startswith("train.py ")
    assert said["versions"].keys() == {"python", "torch", "numpy"}
    assert (said["workers"], said["processes"]) == (1, 1)


def test_shares_that_whole_tar_files_do_not_give_are_said(splits, tmp_path):
    """TRAIN has three of about 500 frames."""
    pretrain = {"share": 0.5, "epochs": 1, "layer_by_layer": False}
    done = call(splits, tmp_path, optim={"epochs": 1, "share": 0.1, "pretrain": pretrain})
    assert done.returncode == 0, done.stderr
    first, second = [line for line in done.stdout.splitlines() if "whole tar files" in line]
    assert re.match(r"optim.share=0.1, but 3\d% of the frames are used: .*, 1 of 3;", first)
    assert re.match(r"optim.pretrain.share=0.5, but 100% of .*, 1 of 1;", second)
    done = call(splits, tmp_path, "exp/b/model.json", optim={"epochs": 1, "share": 0.3})
    assert "whole tar files" not in done.stdout


@pytest.mark.parametrize("comm", [None, GTC | {"workers": 2}])
def test_a_run_that_diverges_at_once_is_finished_as_it_began(splits, tmp_path, comm, monkeypatch):
    """Neither the checkpoint's weights, which are finite, nor those after it can be evaluated."""
    optim = {"rate": 1e37, "checkpoint_steps": 1, "log_steps": 1}
    done = call(splits, tmp_path, comm=comm, optim=optim)
    assert (done.returncode, "lower optim.rate" in done.stderr) == (1, True)
    assert not (tmp_path / "exp/a/model.json").exists()
    made, alive = [], []

    class Noted(Bucket):
        def __init__(self, *given):
            alive.append(sum(one() is not None for one in made))
            super().__init__(*given)
            made.append(weakref.ref(self))

    monkeypatch.setattr(loop, "Bucket", Noted)
    done = call(splits, tmp_path, comm=comm, optim=optim, DIVERGED="keep")
    assert done.returncode == 0, done.stderr
    assert alive == [0, 0, 0]  # its memory is free before it is finished
    assert "the run is finished with its weights of step 0" in done.stdout
    last = tiny.rows(tmp_path / "exp/a")[-1]
    assert "at step" in last["diverged"]
    model, _ = load_model(tmp_path / "exp/a/model.json")
    assert all(p.isfinite().all() for p in model.parameters())


def test_torchrun_gives_the_bytes_of_virtual_workers(splits, tmp_path):
    virtual = call(splits, tmp_path, "exp/virtual/model.json", GTC, WORKERS="3")
    assert virtual.returncode == 0, virtual.stderr
    # JOBS are per machine, so each of two processes gets one thread
    work = {"WORKERS": "3", "JOBS": "2", "ASR_WORK": str(tmp_path)}
    real = call(splits, tmp_path, "exp/real/model.json", GTC, 2, **work)
    assert real.returncode == 0, real.stderr
    assert [path.name for path in (tmp_path / "log").glob("*.json")] == ["exp_real_model.json.json"]
    assert real.stdout.count("epoch 1/1: step") == 1
    a, b = (tmp_path / "exp" / name / "model.pt" for name in ("virtual", "real"))
    assert a.read_bytes() == b.read_bytes()
    said = json.loads((tmp_path / "exp/real/run.json").read_text())
    assert (said["workers"], said["processes"]) == (3, 2)


@pytest.mark.slow
def test_torchrun_trains_a_network_in_stripes_and_leaves_other_workers_idle(splits, tmp_path):
    import_module("torch._dynamo")  # which DTensor imports late; once, before processes fork
    work = {"WORKERS": "2", "JOBS": "2", "ASR_WORK": str(tmp_path)}
    comm = {"method": "sgd", "stripes": 2}
    done = call(splits, tmp_path, comm=comm, processes=4, forked=True, **work)
    assert done.returncode == 0, done.stderr
    assert "sgd trains one worker: the other 1 stay idle" in done.stdout
    assert done.stdout.count("2 stripes of each") == done.stdout.count("epoch 1/1: step") == 1
    said = json.loads((tmp_path / "exp/a/run.json").read_text())
    assert (said["workers"], said["processes"], said["stripes"]) == (1, 1, 2)
    model, _ = load_model(tmp_path / "exp/a/model.json")
    assert model.layers[0].weight.shape == (16, 16)


def test_processes_that_make_no_whole_network_are_refused(splits, tmp_path):
    done = call(splits, tmp_path, comm={**GTC, "stripes": 2}, WORKERS="2")
    assert done.returncode == 1
    assert "1 processes were started, but comm.stripes is 2: a worker's network" in done.stderr


def test_a_run_that_ended_starts_over_with_other_workers(splits, tmp_path):
    """Else make would show the model of two workers as that of three."""
    for workers in ("2", "3"):
        done = call(splits, tmp_path, comm=GTC, WORKERS=workers)
        assert done.returncode == 0, done.stderr
    assert "a had ended with 2 workers; with 3 it starts over" in done.stdout
    fresh = call(splits, tmp_path, "exp/b/model.json", GTC, WORKERS="3")
    assert fresh.returncode == 0, fresh.stderr
    a, b = (tmp_path / "exp" / name / "model.pt" for name in "ab")
    assert a.read_bytes() == b.read_bytes()
    assert json.loads((tmp_path / "exp/a/run.json").read_text())["workers"] == 3


def test_sgd_uses_one_of_several_workers_and_says_so(splits, tmp_path):
    done = call(splits, tmp_path, WORKERS="3")
    assert done.returncode == 0, done.stderr
    assert "sgd trains one worker: the other 2 stay idle" in done.stdout


@pytest.mark.parametrize("rank", ["0", "1"])
def test_sgd_leaves_processes_idle_that_other_runs_need(splits, tmp_path, rank):
    """As by `make digits RUNS='sgd gtc' WORKERS=2`: the settings of sgd say one worker."""
    comm = {"method": "sgd", "workers": 1}
    done = call(splits, tmp_path, comm=comm, RANK=rank, WORLD_SIZE="2", DEVICE="cpu")
    assert done.returncode == 0, done.stderr
    assert ("the other 1 stay idle" in done.stdout) == (rank == "0")
    assert (tmp_path / "exp/a/model.json").exists() == (rank == "0")


def test_sgd_has_all_threads_where_other_processes_stay_idle(splits, tmp_path):
    settings = schema.plain(tiny.settings({"method": "sgd"}, epochs=1, minibatch_frames=64))
    settings["model"]["dnn"]["width"] = 600  # large enough for two threads
    files.write_yaml(tmp_path / "a.yaml", settings)
    model = tmp_path / "exp/a/model.json"
    command = [
        str(each) for each in (SCRIPT, *(s.path for s in splits), tmp_path / "a.yaml", model)
    ]
    of_two = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = here(command, JOBS="2", DEVICE="cpu", **of_two)
    assert done.returncode == 0, done.stderr
    assert "cpu and 2 threads" in done.stdout


@pytest.mark.parametrize("said, rank, number", [("cuda:1", "0", 1), ("cuda", "3", 1), ("", "2", 0)])
def test_the_chosen_gpu_is_torchs_current_one(monkeypatch, said, rank, number):
    """Whose streams graphs of a step wait for."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setenv("DEVICE", said)
    monkeypatch.setenv("LOCAL_RANK", rank)
    assert chosen_device() == torch.device("cuda", number)
    assert current == [torch.device("cuda", number)]


@pytest.mark.parametrize(
    "environment, output, message",
    [
        (
            {"WORKERS": "two"},
            "exp/a/model.json",
            "WORKERS is 'two'; it must be a positive integer",
        ),
        ({"DEVICE": "tpu9000"}, "exp/a/model.json", "DEVICE is 'tpu9000'"),
        ({"DEVICE": "cuda:99"}, "exp/a/model.json", "DEVICE is cuda:99 but torch finds"),
        ({}, "exp/a/model.pt", "it must be the model.json of a run's folder"),
    ],
)
def test_a_wrong_call_is_one_line_and_writes_nothing(
    splits, tmp_path, environment, output, message
):
    done = call(splits, tmp_path, output, **environment)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "exp").exists()
