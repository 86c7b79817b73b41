"""Worker processes keep the order, pass errors on, and never leave the parent waiting."""

import os
import signal
import subprocess
import sys

import pytest

from asr_train.jobs import num_jobs, parallel_map


@pytest.fixture(autouse=True)
def two_jobs(monkeypatch):
    monkeypatch.setenv("JOBS", "2")


def test_results_come_in_the_order_of_the_items():
    assert list(parallel_map(lambda i: i * i, range(20), "")) == [i * i for i in range(20)]


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
    with pytest.raises(ChildProcessError, match="killed"):
        list(parallel_map(lambda i: os.kill(os.getpid(), signal.SIGKILL), range(4), "dying"))


def test_jobs_must_be_a_number(monkeypatch):
    monkeypatch.setenv("JOBS", "many")
    with pytest.raises(ValueError, match="'many'"):
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
