import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from asr_train import files, schema

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.py"


def call(splits, tmp_path, output="exp/a/model.json", **environment):
    files.write_yaml(tmp_path / "a.yaml", schema.plain(tiny.settings(epochs=1)))
    paths = [*(shards.path for shards in splits), tmp_path / "a.yaml", tmp_path / output]
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, paths)],
        env={**os.environ, "JOBS": "1", **environment},
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


@pytest.mark.parametrize(
    "environment, output, message",
    [
        ({"WORLD_SIZE": "2"}, "exp/a/model.json", "2 workers were started"),
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
