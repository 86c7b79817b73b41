"""Worker processes keep the order, pass errors on, and never leave the parent waiting."""

import ast
import fcntl
import multiprocessing
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
import weakref
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import asr_train.jobs
from asr_train.jobs import map_evenly, map_in_chunks, num_jobs, parallel_map, progress
from asr_train.locks import FOLDER, at_work, locked
from asr_train.train.process import die_with_launcher
from scripts.launch import processes

ROOT = Path(__file__).parents[1]
STAGES = sorted(p for p in ROOT.glob("scripts/*.py") if not p.stem.startswith("bench_"))
PATIENCE_SECONDS = 300  # for what takes a second on an idle machine; what is killed sleeps longer


@pytest.fixture(autouse=True)
def two_jobs(monkeypatch):
    monkeypatch.setenv("JOBS", "2")


def test_results_come_in_the_order_of_the_items():
    assert list(parallel_map(lambda i: i * i, range(20), "")) == [i * i for i in range(20)]


def test_items_may_be_worked_on_in_chunks():
    assert list(map_in_chunks(lambda i: i * i, range(20), 3, "")) == [i * i for i in range(20)]


@pytest.mark.parametrize(("items", "sizes"), [(3, {1}), (8, {1}), (50, {1, 7})])
def test_many_items_are_few_tasks(monkeypatch, items, sizes):
    """281,241 tasks would take 0.5 GB; of few items, each may be long."""
    monkeypatch.setattr(asr_train.jobs, "TASKS", 8)
    tasks = []

    def mapped(function, chunks, what):
        tasks.extend(map(len, chunks))
        return map(function, chunks)

    monkeypatch.setattr(asr_train.jobs, "parallel_map", mapped)
    assert list(map_evenly(lambda i: i * i, range(items), "")) == [i * i for i in range(items)]
    assert len(tasks) <= 8
    assert set(tasks) == sizes


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_results_that_were_used_are_freed(monkeypatch, jobs):
    """Those of all items, such as the sums of a large corpus' chunks, may not fit into memory."""
    monkeypatch.setenv("JOBS", jobs)
    used = []
    for array in parallel_map(lambda i: np.full(9, i), range(12), ""):
        alive = sum(one() is not None for one in used)
        used.append(weakref.ref(array))
    assert alive <= 2  # the pool may still hold the one that came last


def test_an_item_may_map_items_of_its_own():
    found = parallel_map(lambda a: list(parallel_map(lambda b: a * b, [1, 2, 3], "")), range(9), "")
    assert list(found) == [[a, 2 * a, 3 * a] for a in range(9)]


def test_items_are_worked_on_in_other_processes():
    seen = set(parallel_map(lambda i: os.getpid(), range(8), ""))
    assert os.getpid() not in seen


def test_one_job_needs_no_process(monkeypatch):
    monkeypatch.setenv("JOBS", "1")
    assert set(parallel_map(lambda i: os.getpid(), range(3), "")) == {os.getpid()}


def test_the_error_of_an_item_reaches_the_caller():
    def fail(i):
        if i == 3:
            raise ValueError("item 3")
        return i

    with pytest.raises(ValueError, match="item 3"):
        list(parallel_map(fail, range(6), ""))


def test_a_killed_worker_is_an_error_and_not_a_hang():
    for what, why in (("dying", "^dying: a worker process was killed"), ("", "^a worker process")):
        with pytest.raises(ChildProcessError, match=why):
            list(parallel_map(lambda i: os.kill(os.getpid(), signal.SIGKILL), range(4), what))


def test_jobs_must_be_a_number(monkeypatch):
    for given in ("many", "-1", "0"):
        monkeypatch.setenv("JOBS", given)
        with pytest.raises(ValueError, match=f"JOBS .--jobs. is '{given}'; it must be the number"):
            num_jobs()


def test_a_failing_stage_says_why_in_one_line():
    code = (
        "from asr_train.jobs import main\n"
        "def stage(a):\n    raise ValueError('x is 1;\\n it must be 2')\n"
        "main(stage, 'usage')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "out"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("x is 1; it must be 2")
    assert len(done.stderr.strip().splitlines()) == 1


# --- a stage as make sees it --------------------------------------------------------------------


def test_help_into_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", "from asr_train.jobs import main; main(print, 'usage')", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def stage(code: str, **environment: str) -> subprocess.Popen:
    """Start a stage: `code` defines stage(output); the output is OUT, else named `out`."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"from asr_train.jobs import *\n{code}\nmain(stage, 'usage')",
            environment.get("OUT", "out"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "JOBS": "2", **environment},
    )


BUSY = """
def busy(i):
    os.write(1, b"%d\\n" % os.getpid())  # one write: both workers use the pipe
    time.sleep(900)
def stage(output):
    list(parallel_map(busy, range(2), ""))
"""


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("is_there", [False, True])
def test_a_copied_work_folder_makes_its_recordings_anew(tmp_path, monkeypatch, is_there):
    """The manifest of the folder that it was copied from, if it is still there, is left alone."""
    monkeypatch.setenv("ASR_WORK", str(tmp_path / "work"))
    manifest, old = (tmp_path / w / "manifests/dev.jsonl.gz" for w in ("work", "old"))
    for path in (manifest, old)[: 1 + is_there]:
        path.parent.mkdir(parents=True)
        path.touch()
    error = FileNotFoundError(2, "", f"{tmp_path}/old/audio/dev/a.flac")
    assert asr_train.jobs.cause(error, "x") == (
        f"{tmp_path}/old/audio/dev/a.flac is missing; the manifests stage makes it: "
        f"delete {manifest} and run make again"
    )


@pytest.mark.parametrize("launcher, code", [(None, 0), ("parent", 0), ("1", 1)])
def test_a_process_ends_if_its_launcher_died_before_it_asked(launcher, code):
    environment = {"TORCHELASTIC_RUN_ID": "none"}
    if launcher:
        environment["ASR_LAUNCHER"] = launcher.replace("parent", str(os.getpid()))

    def work():
        os.environ.pop("ASR_LAUNCHER", None)
        os.environ.update(environment)
        die_with_launcher()

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == code


def test_workers_die_with_a_killed_parent():
    """An orphan would continue to write the files that the next try writes."""
    parent = stage(BUSY)
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    deadline = time.time() + PATIENCE_SECONDS
    while any(map(lives, workers)) and time.time() < deadline:
        time.sleep(0.01)
    assert not any(map(lives, workers))


MAKE_RESUMES = pytest.mark.parametrize(
    "environment, resumes",
    [({}, "; make resumes from here"), ({"ASR_WITHOUT_MAKE": "1"}, "")],
    ids=["by make", "by a command"],
)


@MAKE_RESUMES
def test_ctrl_c_ends_a_stage_at_once_with_one_line(environment, resumes):
    parent = stage(BUSY, **environment)
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    os.killpg(parent.pid, signal.SIGINT)
    _, said = parent.communicate(timeout=PATIENCE_SECONDS)
    assert parent.returncode == 1
    assert said == f"-c: interrupted{resumes}\n"
    assert not any(map(lives, workers))


@MAKE_RESUMES
def test_ctrl_c_ends_a_script_that_still_imports_with_one_line(tmp_path, environment, resumes):
    """torch is replaced by a module whose import never ends."""
    (tmp_path / "torch.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(900)")
    script = subprocess.Popen(
        [sys.executable, ROOT / "scripts/feats.py", "a", "b", "c"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", **environment},
    )
    assert script.stdout.readline() == "loading\n"
    script.send_signal(signal.SIGINT)
    _, said = script.communicate(timeout=PATIENCE_SECONDS)
    assert (script.returncode, said) == (1, f"feats: interrupted{resumes}\n")


@pytest.mark.parametrize("script", STAGES, ids=lambda p: p.stem)
def test_every_script_sees_to_ctrl_c_before_it_imports_anything_else(script):
    imports = [n for n in ast.parse(script.read_text()).body if not isinstance(n, ast.Expr)]
    assert ast.unparse(imports[0]) == "import asr_train.interrupt"


def test_ctrl_c_ends_several_processes_with_one_line(tmp_path):
    (tmp_path / "wait.py").write_text(
        "import os, time\nfrom asr_train.jobs import main\n"
        "def stage(path):\n    os.write(1, b'up\\n')\n    time.sleep(900)\nmain(stage, '')"
    )
    command = [sys.executable, ROOT / "scripts/launch.py", "--standalone", "--nproc-per-node", "2"]
    launcher = subprocess.Popen(
        [*command, tmp_path / "wait.py", "x"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert [launcher.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    os.killpg(launcher.pid, signal.SIGINT)
    _, said = launcher.communicate(timeout=PATIENCE_SECONDS)
    assert (launcher.returncode, said) == (1, "train: interrupted; make resumes from here\n")


@pytest.mark.parametrize(
    "does, said",
    [
        ("sys.exit('no such corpus')", "no such corpus\ntrain: process 1 ended with exit"),
        ("os.kill(os.getpid(), 9)", "train: process 1 ended with SIGKILL, as where memory is"),
        ("os.kill(os.getpid(), 6)", "train: process 1 ended with SIGABRT; make resumes from"),
    ],
)
def test_a_process_that_fails_ends_all_with_one_line(tmp_path, does, said):
    """Without torchrun's traceback."""
    (tmp_path / "fail.py").write_text(
        f"import os, sys, time\nif os.environ['RANK'] == '1':\n    {does}\ntime.sleep(900)"
    )
    command = ["scripts/launch.py", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, tmp_path / "fail.py"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(said), done.stderr
    assert len(done.stderr.splitlines()) == len(said.splitlines())


@pytest.mark.parametrize(
    "device, gpus, stripes, started",
    [
        *((None, 2, 1, 2), ("cuda", 1, 1, 1), (None, 0, 1, 4), ("cpu", 2, 1, 4), ("", 8, 1, 4)),
        *(("cuda:1", 4, 1, 1), (None, 3, 2, 2), (None, 1, 2, None)),
    ],
)
def test_processes_do_not_share_a_gpu(monkeypatch, capsys, device, gpus, stripes, started):
    monkeypatch.delenv("DEVICE", raising=False)
    if device is not None:
        monkeypatch.setenv("DEVICE", device)
    monkeypatch.setenv("STRIPES", str(stripes))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if started is None:
        with pytest.raises(SystemExit, match=r"STRIPES is 2, but NCCL allows one .* there are 1"):
            processes(4)
        return
    assert processes(4) == started
    said = capsys.readouterr().err
    assert (f"{started} processes in place of 4" in said) == (started < 4)


def test_who_imports_us_keeps_ones_own_ctrl_c():
    code = "import signal, asr_train.interrupt; raise SystemExit(signal.getsignal(2).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "default_int_handler\n"


def test_ctrl_c_as_a_stage_ends_is_not_seen():
    code = "import atexit\natexit.register(os.kill, os.getpid(), 2)\ndef stage(output): pass"
    process = stage(code)
    assert process.communicate(timeout=PATIENCE_SECONDS) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    "code, message",
    [
        (
            "open('feats/dev/index.json')",
            "feats/dev/index.json is missing; the feats stage makes it",
        ),
        ("open('/no/such')", "/no/such is missing; put it back"),
        ("open('/dev/full', 'wb', 0).write(b'x')", "out: no space left on device; free some space"),
        ("open('/dev/null/x', 'w')", "/dev/null/x: not a directory; move what is there"),
        ("{}['x']", "KeyError: 'x'"),
        ("raise RuntimeError('odd')", "RuntimeError: odd"),
    ],
)
def test_whatever_goes_wrong_is_one_line(code, message):
    for where in ("{}", "list(parallel_map(lambda i: {}, range(2), ''))"):
        body = f"def failing(): {code}\ndef stage(output): " + where.format("failing()")
        process = stage(body)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 1
        assert said.startswith(f"-c: {message}")
        assert said.count("\n") == 1


def test_where_compiled_code_cannot_be_kept_is_told(monkeypatch):
    error = RuntimeError("cannot cache function 'f': no locator")
    for given, says in (
        ("", f"neither {ROOT} nor ~/.cache can be written to"),
        ("/no", "compiled code cannot be kept in NUMBA_CACHE_DIR, /no, nor in"),
    ):
        monkeypatch.setenv("NUMBA_CACHE_DIR", given)
        assert asr_train.jobs.cause(error, "out").startswith(says)


def test_an_error_that_cannot_travel_is_still_told():
    """Its class takes two arguments, but passes one on: unpickling it fails."""
    code = """
class Odd(Exception):
    def __init__(self, a, b): super().__init__(a)
def fail(i): raise Odd('odd thing', 2)
def stage(output): list(parallel_map(fail, range(2), ''))
"""
    _, said = stage(code).communicate(timeout=PATIENCE_SECONDS)
    assert said.startswith("-c: RuntimeError: Odd: odd thing")


def test_letters_that_the_locale_lacks_end_no_stage():
    said, _ = stage("def stage(output): return 'ДА'", PYTHONIOENCODING="latin-1").communicate()
    assert said.startswith(r"\u0414\u0410; ")


@pytest.mark.parametrize("columns, most", [(0, 100), (60, 59), (300, 100)])
def test_a_progress_bar_is_as_wide_as_the_terminal_at_most(columns, most):
    """A bar that wraps leaves a line at each of its updates."""
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(stderr, "w") as file, mock.patch.object(sys, "stderr", file):
        list(progress(range(3), "bar", 3))
    drawn = os.read(terminal, 1 << 16).decode().replace("\n", "").split("\r")
    assert max(map(len, drawn)) == most


def test_a_closed_standard_error_shows_no_progress():
    with mock.patch.object(sys, "stderr", None):  # as Python does
        assert list(progress(range(3), "bar", 3)) == [0, 1, 2]


def test_debug_shows_the_traceback():
    _, said = stage("def stage(output): raise ValueError('odd')", DEBUG="1").communicate()
    assert said.startswith("Traceback")


def test_an_assertion_is_a_defect_and_shows_its_traceback():
    _, said = stage("def stage(output): assert output == 'other'").communicate()
    assert said.startswith("Traceback")


def test_a_call_with_too_few_paths_prints_the_usage():
    code = "from asr_train.jobs import *\ndef stage(a, b): pass\nmain(stage, 'usage: A B')"
    for paths, status in ((["a"], 2), ([], 2), (["--help"], 0), (["a", "b"], 0)):
        done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (status, "")
        assert done.stdout == ("" if paths == ["a", "b"] else "usage: A B\n")


def test_two_makes_do_not_make_one_output(tmp_path):
    """A second make in a work folder is refused what the first is making, and nothing else."""
    code, work = "def stage(output): return 'made'", str(tmp_path)
    with locked(tmp_path / FOLDER / "out", "never"):
        assert at_work(tmp_path) == "out is being made"
        _, said = stage(code, ASR_WORK=work, OUT=f"{work}/out").communicate()
        assert said.startswith(f"-c: {work}/out is being made by another make")
        shown, _ = stage(code, ASR_WORK=work, OUT=f"{work}/other").communicate()
        assert shown.startswith("made")
    assert at_work(tmp_path) is None
    shown, _ = stage(code, ASR_WORK=work, OUT=f"{work}/out").communicate()
    assert shown.startswith("made")
