"""Processes killed under torchrun: a restarted run is byte-identical to a virtual one."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import tiny
from launched import Started, here, worker
from ports import free_port

from asr_train import files, schema

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.py"
GTC = {
    "method": "gtc",
    "timeout_seconds": 10.0,
    "gtc": {"threshold": 0.5, "codec": "rice", "capacity": "exact"},
}
ENVIRONMENT = {"JOBS": "1", "WORKERS": "2", "DEVICE": "cpu"}
PATIENCE_SECONDS = 300  # for what takes half a minute on an idle machine

started: list[Started] = []

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


class Run:
    """A run's folder and how it is started."""

    def __init__(self, splits, folder: Path, lstm=None, comm=GTC, **optim) -> None:
        values = {"epochs": 5, "minibatch_frames": 16, "checkpoint_steps": 7, **optim}
        run = tiny.settings(comm, lstm, **values)
        files.write_yaml(folder / "a.yaml", schema.plain(run))
        self.model = folder / "a" / "model.json"
        paths = [*(s.path for s in splits), folder / "a.yaml", self.model]
        self.command = [str(SCRIPT), *map(str, paths)]

    def start(self, torchrun: list[str] | None = None) -> Started:
        self.process = Started(self.command, torchrun, **ENVIRONMENT)
        started.append(self.process)
        return self.process

    def torchrun(self, *options: str) -> Started:
        return self.start(["--standalone", "--nproc-per-node", "2", *options])

    def finish(self) -> bytes:
        said = self.process.read(PATIENCE_SECONDS)
        assert self.process.returncode == 0, said
        return self.model.with_name("model.pt").read_bytes()

    def wait_for_checkpoint(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not list(self.model.parent.glob("ckpt/*.json")):
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.process.read(PATIENCE_SECONDS)
            time.sleep(0.02)
        assert not self.model.exists()

    def worker(self, rank: int) -> int:
        """Return its process id, once the run has checkpoints."""
        self.wait_for_checkpoint()
        pid = worker(self.process, rank)
        assert pid is not None
        return pid


@pytest.fixture(autouse=True)
def nothing_runs_on():
    """A process that a failed test left stopped would be waited for."""
    yield
    while started:
        started.pop().kill()


@pytest.fixture(scope="module")
def unbroken(splits, tmp_path_factory) -> bytes:
    run = Run(splits, tmp_path_factory.mktemp("virtual"))
    done = here(run.command, **ENVIRONMENT)  # here, so that children find compiled kernels loaded
    assert done.returncode == 0, done.stderr
    return run.model.with_name("model.pt").read_bytes()


def test_a_killed_worker_ends_the_run_and_the_next_start_gives_the_same_bytes(
    splits, tmp_path, unbroken
):
    run = Run(splits, tmp_path)
    run.torchrun()
    os.kill(run.worker(0), signal.SIGKILL)
    said = run.process.read(PATIENCE_SECONDS)
    assert run.process.returncode != 0
    assert "Signal 9 (SIGKILL)" in said
    assert not run.model.exists()
    run.torchrun()
    assert run.finish() == unbroken


def test_with_restarts_torchrun_starts_again_by_itself(splits, tmp_path, unbroken):
    run = Run(splits, tmp_path)
    run.torchrun("--max-restarts", "1")
    os.kill(run.worker(1), signal.SIGKILL)
    assert run.finish() == unbroken


def start_two_launchers(run: Run) -> Started:
    """Start torchrun's elastic launch with one or two nodes, both on this machine.

    Returns the second launcher once the run has begun; the first is `run.process`. Torch's
    rendezvous can fail if the second launcher starts after the first has begun alone: the first
    waits a minute for the second's role_info, then ends. Therefore both start at once and the
    first waits ten seconds for the second. A failure of this kind, which is before any code of
    ours, is retried: three tries in total.
    """
    options = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"]
    options += ["--rdzv-backend", "c10d", "--rdzv-id", "drill"]
    failures = 0
    while True:
        options += ["--rdzv-endpoint", f"localhost:{free_port()}"]
        first, second = (
            run.start([*options, "--rdzv-conf", f"last_call_timeout=10,is_host={host}"])
            for host in (1, 0)
        )
        run.process = first
        try:
            run.wait_for_checkpoint()
            return second
        except AssertionError as error:
            first.kill()
            second.kill()
            failures += 1
            output = f"{error}\nThe second launcher:\n{second.read(PATIENCE_SECONDS)}"
            if failures == 3 or "torchelastic/role_info" not in str(error):
                raise AssertionError(output) from error
            print(output)  # pytest shows it if the test fails


def test_a_run_goes_on_with_the_launchers_that_are_left(splits, tmp_path, unbroken):
    run = Run(splits, tmp_path)
    leaves = start_two_launchers(run)
    leaves.kill()
    assert run.finish() == unbroken


def test_a_killed_launcher_takes_its_workers_along(splits, tmp_path, unbroken):
    run = Run(splits, tmp_path)
    run.torchrun()
    workers = [run.worker(rank) for rank in (0, 1)]
    run.process.kill()
    run.process.read(PATIENCE_SECONDS)  # until the last of them has ended
    deadline = time.monotonic() + PATIENCE_SECONDS  # a process closes its pipe before it is reaped
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not run.model.exists()
    run.start()  # with another placement: both workers in one process
    assert run.finish() == unbroken


def test_a_hung_worker_is_an_error_in_the_stated_time(splits, tmp_path):
    run = Run(splits, tmp_path, comm={**GTC, "timeout_seconds": 5.0})
    run.torchrun()
    pid = run.worker(1)
    os.kill(pid, signal.SIGSTOP)
    said = run.process.read(PATIENCE_SECONDS, until="did not answer in")
    assert "process 1 of 2 did not answer in" in said
    os.kill(pid, signal.SIGKILL)  # else torchrun waits half a minute for it
    run.process.read(PATIENCE_SECONDS)


def test_two_runs_in_a_folder_are_one_too_many(splits, tmp_path):
    run = Run(splits, tmp_path)
    first = run.start()
    run.wait_for_checkpoint()
    os.kill(first.pid, signal.SIGSTOP)
    said = run.start().read(PATIENCE_SECONDS)
    first.kill()
    assert "another process trains in" in said
    assert run.process.returncode == 1
