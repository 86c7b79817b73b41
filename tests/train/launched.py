"""A script in this process, or alone or under torchrun in processes forked from it.

These need not import torch and what the script uses, which takes longer than most of what is
tested. As torchrun's own, workers are its children, and die of the same signals; test_train_script
starts torchrun itself.
"""

import contextlib
import io
import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from asr_train import jobs
from scripts import train


class Forked:
    """A child that calls a function; has what torchrun uses of a subprocess.Popen."""

    def __init__(self, function: Callable[..., None], *given: object) -> None:
        self._process = multiprocessing.get_context("fork").Process(target=function, args=given)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.returncode


class Started(Forked):
    """A script whose output this process reads.

    Args:
        torchrun: options of torchrun; None: the script runs alone.
        environment: in addition to this process's.
    """

    def __init__(
        self, command: list[str], torchrun: list[str] | None = None, **environment: str
    ) -> None:
        self._output, output = os.pipe()
        super().__init__(_start, self._output, output, command, torchrun, environment)
        os.close(output)

    def read(self, seconds: float, until: str | None = None) -> str:
        """Return the output until `until`, else until all processes that may write it have ended.

        Raises:
            TimeoutError: with what came, if there is no end after so many seconds.
        """
        said, deadline = b"", time.monotonic() + seconds
        while until is None or until.encode() not in said:
            ready, _, _ = select.select([self._output], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(said.decode())
            more = os.read(self._output, 1 << 16)
            if not more:
                self.wait(seconds)
                break
            said += more
        return said.decode()

    def kill(self) -> None:
        """Send SIGKILL, which a stopped process receives, too."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def worker(launcher: Started, rank: int) -> int | None:
    """Return the process id of a worker, if there is one."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:  # it ended in the meantime
            continue
        if name.endswith(f"(worker {rank}") and int(rest.split()[1]) == launcher.pid:
            return pid
    return None


def here(command: list[str], **environment: str) -> subprocess.CompletedProcess:
    """Run train.py in this process."""
    said, error, code = io.StringIO(), io.StringIO(), 0
    interrupted = signal.getsignal(signal.SIGINT)
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", command),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(error),
    ):
        try:
            jobs.main(train.stage, "")
        except SystemExit as ended:
            code = 1
            error.write(f"{ended.code}\n")
        finally:
            signal.signal(signal.SIGINT, interrupted)
    return subprocess.CompletedProcess(command, code, said.getvalue(), error.getvalue())


def _start(unused, output, command, options, environment) -> None:
    os.close(unused)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
    os.environ.update(environment)
    if options is None:
        _script(command)
    else:

        def popen(handler: SubprocessHandler, args: object, worker: dict[str, str]) -> Forked:
            return Forked(_work, worker, command)

        with mock.patch.object(SubprocessHandler, "_popen", popen):
            torchrun.main([*options, *command])


def _work(environment, command) -> None:
    os.setsid()  # as torchrun's workers
    Path("/proc/self/comm").write_text(f"worker {environment['RANK']}")
    os.environ.clear()
    os.environ.update(environment)
    _script(command)


def _script(command) -> None:
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
