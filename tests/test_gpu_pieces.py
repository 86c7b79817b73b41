"""`make gpu`: its pieces stop at their limit, resume, and are complete once."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from asr_train import compose
from asr_train.files import read_yaml
from asr_train.paper.rows import PaperSettings, RowSettings, run_of
from asr_train.schema import load, plain

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import gpu

    yield gpu
    for name in ("gpu", "gpu_wheels", "bench_kernels", "bench_step"):
        sys.modules.pop(name, None)


def touching(path: Path) -> list[str]:
    return [sys.executable, "-c", f"open({str(path)!r}, 'a').write('x')"]


@pytest.mark.parametrize(
    "found, bench, gpu", [(True, "results/gpu", "results/gpu"), (False, "results/cpu", "build/gpu")]
)
def test_results_are_those_of_a_gpu_if_torch_finds_one(tmp_path, found, bench, gpu):
    """Not if nvidia-smi is there."""
    for name, says in (("python", found), ("nvidia-smi", "GPU 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {says}\n")
        (tmp_path / name).chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "RESULTS")}
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    command = ["make", "--no-print-directory", "-n", "-o", ".venv/.ready", f"BIN={tmp_path}"]
    command += [f"PY={tmp_path / 'python'}", "bench", "bench-step", "gpu"]
    lines = subprocess.check_output(command, text=True, env=env, cwd=ROOT).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"to={bench}; ") for line in lines[:2])
    assert f"scripts/gpu.py {gpu} " in lines[2]


def test_a_piece_goes_on_after_its_limit_and_is_complete_once(gpu, tmp_path, monkeypatch, capsys):
    work, folder = tmp_path / "work", tmp_path / "results"
    once, is_slow = tmp_path / "once", [True]

    def parts(of: Path):
        yield gpu.Part("quick", [touching(once)], lambda: {"seconds": 1.25})
        wait = [sys.executable, "-c", "import time; time.sleep(1000)"]
        yield gpu.Part("slow", [wait if is_slow[0] else touching(once)], lambda: {"runs": 7})

    monkeypatch.setitem(gpu.PIECES, "b", ("Some numbers", parts))
    monkeypatch.setattr(gpu, "LIMIT", 1.0)
    gpu.main(str(folder), str(work), "b")
    record = json.loads((folder / "b.json").read_text())
    assert not record["complete"]
    assert record["parts"] == {"quick": {"seconds": 1.25}}
    said = capsys.readouterr().out
    assert "b: 1 of 2 parts after 1 s; run it again. If slow alone" in said
    is_slow[0] = False
    monkeypatch.setattr(gpu, "LIMIT", 1000.0)
    gpu.main(str(folder), str(work), "b")
    record = json.loads((folder / "b.json").read_text())
    assert record["complete"]
    assert record["parts"]["slow"] == {"runs": 7}
    assert once.read_text() == "xx"  # the first part was not run again
    assert record["about"].keys() >= {"device", "driver", "date", "commit", "gpu"}
    text = (folder / "b.md").read_text()
    assert "- **quick**: seconds 1.25" in text
    assert ("not measured" in text) != gpu.HAS_GPU
    monkeypatch.setattr(gpu, "PIECES", {"b": gpu.PIECES["b"]})
    gpu.main(str(folder), str(work))  # complete: nothing to do
    assert once.read_text() == "xx"
    assert "PIECE=b runs it again" in capsys.readouterr().out
    gpu.main(str(folder), str(work), "b")  # named: from the beginning
    assert once.read_text() == "xxxx"


def test_a_part_whose_files_are_gone_is_run_again(gpu, tmp_path, monkeypatch):
    """As on another machine, which has the record only; the part after it is not."""
    speech, once = tmp_path / "speech", tmp_path / "once"
    is_left = [gpu.Part("left", [[sys.executable, "-c", "import time; time.sleep(1000)"]], dict)]

    def parts(work):
        yield gpu.Part("speech", [touching(speech)], dict, (speech,))
        yield gpu.Part("trained", [touching(once)], dict)
        yield from is_left

    monkeypatch.setitem(gpu.PIECES, "d", ("Runs", parts))
    monkeypatch.setattr(gpu, "LIMIT", 1.0)
    gpu.main(str(tmp_path / "results"), str(tmp_path / "work"), "d")
    speech.unlink()
    is_left.clear()
    gpu.main(str(tmp_path / "results"), str(tmp_path / "work"), "d")
    assert (speech.read_text(), once.read_text()) == ("x", "x")


def test_checkpoints_are_removed_once_their_part_is_recorded(gpu, tmp_path, monkeypatch):
    """A kill while they are removed does not stop the piece: the next call removes the rest."""
    once, record = tmp_path / "once", tmp_path / "results" / "d.json"
    runs = [tmp_path / "one", tmp_path / "two"]
    parts = [gpu.Part(run.name, [touching(once)], dict, bulky=run) for run in runs]
    monkeypatch.setitem(gpu.PIECES, "d", ("Runs", lambda work: iter(parts)))
    for run in runs:
        run.mkdir()
    killed, remove = [], gpu.shutil.rmtree

    def rmtree(path, **how):
        if path in runs:
            killed.append(path.name in json.loads(record.read_text())["parts"])
            raise KeyboardInterrupt
        remove(path, **how)

    monkeypatch.setattr(gpu.shutil, "rmtree", rmtree)
    with pytest.raises(KeyboardInterrupt):
        gpu.main(str(record.parent), str(tmp_path / "work"), "d")
    assert killed == [True]
    monkeypatch.setattr(gpu.shutil, "rmtree", remove)
    gpu.main(str(record.parent), str(tmp_path / "work"), "d")
    assert json.loads(record.read_text())["complete"]
    assert once.read_text() == "xx"
    assert not any(run.exists() for run in runs)


def test_a_run_removes_its_checkpoints_outside_the_limit(gpu, tmp_path):
    *_, last = gpu.PIECES["e"][1](tmp_path / "e")
    assert [Path(command[1]).name for command in last.commands] == ["gpu.py", "train.py"]
    assert last.bulky == Path(last.commands[-1][-1]).parent / "ckpt"


def test_parts_that_were_measured_on_another_device_are_not_taken_over(gpu, tmp_path, monkeypatch):
    once, record = tmp_path / "once", tmp_path / "results" / "b.json"
    part = gpu.Part("quick", [touching(once)], dict)
    monkeypatch.setitem(gpu.PIECES, "b", ("Some numbers", lambda work: iter([part])))
    for device in ("here", "there"):
        monkeypatch.setattr("bench_kernels.device_name", lambda: device)  # noqa: B023
        gpu.main(str(record.parent), str(tmp_path / "work"), "b")
        found = json.loads(record.read_text())
        record.write_text(json.dumps({**found, "complete": False}))
    assert once.read_text() == "xx"


def test_every_file_of_tests_and_every_size_of_vectors_is_a_part(gpu, tmp_path, monkeypatch):
    """So that what is recorded when the time is over is not run again."""
    monkeypatch.setattr(gpu, "HAS_GPU", True)
    files, sizes = (list(gpu.PIECES[piece][1](tmp_path)) for piece in "ab")
    for part in files:
        (command,) = part.commands
        assert [Path(one).exists() for one in command if one.endswith(".py")] == [True]
    assert [part.name for part in sizes] == ["1 M", "14.6 M", "46 M", "160 M"]
    for part in (*files, *sizes):  # each reads its own result
        with pytest.raises((SystemExit, FileNotFoundError), match=str(tmp_path)):
            part.found()
    assert len({tuple(part.commands[-1]) for part in files}) == len(files) > 6


def test_a_part_that_fails_stops_the_piece(gpu, tmp_path, monkeypatch):
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    part = gpu.Part("bad", [failing], dict)
    monkeypatch.setitem(gpu.PIECES, "c", ("Steps", lambda work: iter([part])))
    with pytest.raises(SystemExit, match="c: bad failed"):
        gpu.main(str(tmp_path / "results"), str(tmp_path / "work"), "c")
    assert not (tmp_path / "results" / "c.json").exists()


def test_an_unknown_piece_is_refused(gpu, tmp_path):
    with pytest.raises(SystemExit, match="PIECE is 'x'; it must be one of a, b, c, d, e"):
        gpu.main(str(tmp_path), str(tmp_path), "x")


def test_runs_are_those_of_the_papers(gpu, tmp_path):
    """The settings of all runs of both networks compose."""
    for piece in ("d", "e"):
        parts = list(gpu.PIECES[piece][1](tmp_path / piece))
        assert len({part.name for part in parts}) == len(parts) > 7
        for part in parts[1:]:
            _, _, _, base, path, *overrides = part.commands[0]
            gpu.write_settings(base, path, *overrides)
            assert Path(path).read_text().startswith("model:")


@pytest.mark.parametrize(
    "piece, label, paper, run, values",
    [
        ("d", "40 workers, tau 9", "strom2015", "gtc_async", {"comm.gtc.threshold": 9.0}),
        ("e", "gtc, 128 workers", "ladkat2019", "gtc", {}),
        ("e", "bmuf, 128 workers", "ladkat2019", "bmuf", {}),
        ("e", "bmuf_gtc, 16 workers", "ladkat2019", "bmuf_gtc", {}),
    ],
)
def test_runs_have_the_settings_of_medium(
    gpu, tmp_path, monkeypatch, piece, label, paper, run, values
):
    """But for the number of workers and of epochs, the precision and the checkpoints."""
    monkeypatch.setattr(gpu, "HAS_GPU", True)  # else sizes are those of a check
    part = next(one for one in gpu.PIECES[piece][1](tmp_path) if one.name == label)
    _, _, _, base, path, *overrides = part.commands[0]
    gpu.write_settings(base, path, *overrides)
    about = load(PaperSettings, ROOT / "recipes" / paper / "paper.yaml")
    row = run_of(RowSettings(run=run, set={"comm.workers": 16, **values}), about, "medium", 1)
    ours, theirs = (
        {**content["comm"], **content["optim"]}
        for content in (read_yaml(path), plain(compose.settings(row.base, list(row.overrides)).run))
    )
    own = {"workers", "epochs", "precision", "checkpoint_steps", "keep_checkpoints", "keep_epochs"}
    own.add("log_steps")
    assert {key for key in ours | theirs if ours.get(key) != theirs.get(key)} <= own


def summarised(gpu, folder, *changes) -> dict:
    """Return what `logged` finds in the log of a run, given what differs from row to row."""
    row = {"epoch": 1, "step_seconds": 0.5, "sent_bits": 0.0, "compression_ratio": None}
    rows = [
        {**row, "step": 5 * n, "minibatch": 64.0, **change} for n, change in enumerate(changes, 1)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "model.json").write_text('{"workers": 1}')
    (folder / "run.json").write_text("{}")
    return gpu.logged(folder)


def test_a_log_whose_last_steps_were_skipped_is_summarised(gpu, tmp_path):
    found = summarised(gpu, tmp_path, {}, {"minibatch": None})
    assert found["frames_per_second"] == 32 / 0.5


def test_the_speed_is_that_without_the_steps_that_compile(gpu, tmp_path):
    found = summarised(gpu, tmp_path, {"step_seconds": 9.0}, {}, {})
    assert found["frames_per_second"] == 64 / 0.5


def required(names: list[str]) -> set[str]:
    """Return packages and all that they require, without extras."""
    found: set[str] = set()
    left = [Requirement(name) for name in names]
    while left:
        one = left.pop()
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            name = canonicalize_name(one.name)
            if name not in found:
                found.add(name)
                left += map(Requirement, importlib.metadata.requires(name) or [])
    return found


def test_the_wheels_are_all_that_may_be_missing(gpu):
    """Of this project's packages, of hypothesis (tests/conftest.py) and of what they require."""
    from gpu_wheels import INSTALLED, PACKAGES

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = [name for name in project["dependencies"] if not name.startswith("torchaudio")]
    assert required([*ours, "hypothesis"]) - required(INSTALLED) == set(PACKAGES)


@pytest.mark.parametrize("missing, unpacked", [("lhotse", True), (None, False)])
def test_wheels_are_unpacked_if_any_of_their_packages_is_missing(
    gpu, tmp_path, monkeypatch, missing, unpacked
):
    (tmp_path / ".wheels").mkdir()
    (tmp_path / ".wheels" / "lhotse.whl").touch()
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(gpu, "is_installed", lambda name: name != missing)

    def pip(command, **how):
        Path(command[command.index("--target") + 1]).mkdir(parents=True)

    monkeypatch.setattr(gpu.subprocess, "run", pip)
    gpu.unpack_wheels()
    assert (str(tmp_path / "build" / "wheels") in sys.path) is unpacked


def test_a_package_is_installed_or_not(gpu):
    assert gpu.is_installed("pytest")
    assert not gpu.is_installed("none-of-this-name")


def test_a_run_that_diverges_is_a_result(gpu, tmp_path, monkeypatch):
    """Else its piece would stop there at every call."""
    monkeypatch.delenv("DIVERGED", raising=False)
    keeps = "import os, sys; sys.exit(os.environ['DIVERGED'] != 'keep')"
    assert gpu.limited([sys.executable, "-c", keeps], 60) == 0
    row = {"epoch": 1, "step": 7, "workers": 4, "dev_loss": 2.0, "diverged": "DEV's loss is nan"}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "model.json").write_text('{"workers": 4}')
    assert gpu.logged(tmp_path) == {"workers": 4, "step": 7, "diverged": "DEV's loss is nan"}


def test_a_gpu_without_nvidia_smi_is_described_by_torch(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "HAS_GPU", True)
    about = SimpleNamespace(total_memory=3 * 2**30)
    monkeypatch.setattr(gpu.torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setenv("PATH", "")
    assert gpu.driver() == "unknown (no nvidia-smi), 3072 MiB"


def test_outcomes_of_tests_are_counted(gpu, tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(
        '<testsuites><testsuite tests="3" failures="1" errors="0"><testcase/><testcase>'
        '<failure/></testcase><testcase><skipped message="needs a GPU"/></testcase></testsuite>'
        "</testsuites>"
    )
    found = gpu.outcomes(path)
    assert (found["tests"], found["failures"], found["skipped"]) == (3, 1, 1)
    assert found["reasons"] == ["needs a GPU"]
    with pytest.raises(SystemExit, match=r"none\.xml: is it installed"):
        gpu.outcomes(tmp_path / "none.xml")
