"""Locks against other processes that would write the same, on file systems that have locks.

A lock ends with its process, however that ends. Between two stages a make holds none, so it is
named by a claim, a file that counts while that process runs on this machine.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "log/.locks"  # of a work folder; an empty file per output, locked while a stage makes it
CLAIM = "make."  # begins a claim's name, make.PID.HOST; it holds the time that the process started


@contextmanager
def locked(path: Path, refusal: str, waits: bool = False) -> Iterator[None]:
    """Hold the lock of the file `path`, which is made if need be.

    Raises:
        ValueError: with `refusal`, if another process holds it, and this one does not wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise ValueError(refusal) from error
        except OSError as error:
            print(f"{path} cannot be locked ({error}); start one process at a time", flush=True)
        yield


@contextmanager
def making(output: str) -> Iterator[None]:
    """Hold the lock of a stage's output, if it is in the work folder that ASR_WORK names.

    Raises:
        ValueError: if another process makes it.
    """
    work = os.environ.get("ASR_WORK")
    inside = os.path.relpath(output, work) if work else ".."
    # Of torchrun's processes, one; the last argument of resolve.py is a setting
    if inside.startswith("..") or os.environ.get("RANK", "0") != "0":
        yield
        return
    refusal = f"{output} is being made by another make; wait for it, or name another folder with W="
    with locked(Path(work or "") / FOLDER / inside.replace("/", "_"), refusal):
        yield


@contextmanager
def settling(work: Path | str, make: str) -> Iterator[str | None]:
    """Yield what is made in the folder (`at_work`), then claim it for the process `make`.

    Others wait meanwhile. Without a process ("") or after an error there is no claim.

    Raises:
        ValueError: if another make is at work there. That looked at all files when it began, as
            this one did, so both would make the same ones, one after the other.
    """
    folder = Path(work) / FOLDER
    with locked(folder / "settings", "", waits=True):
        if make and (other := _claimed(folder, make)):
            raise ValueError(f"{other} in {work}; wait for it, or name another folder with W=")
        yield at_work(work, make)
        if make and (started := _started(make)):
            (folder / f"{CLAIM}{make}.{socket.gethostname()}").write_text(started)


def at_work(work: Path | str, make: str = "") -> str | None:
    """Return what makes something in the work folder now, if not for the process `make`.

    None: nothing. Claims of processes that have ended are removed.
    """
    folder = Path(work) / FOLDER
    if claimed := _claimed(folder, make):
        return claimed
    for path in sorted(folder.glob("*")):
        if path.name != "settings" and not path.name.startswith(CLAIM):
            with open(path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return f"{path.name} is being made"  # an output, with _ for /
                except OSError:
                    pass  # no locks here
    return None


def _claimed(folder: Path, make: str) -> str | None:
    """Return which other make has claimed the folder; remove claims of processes that ended."""
    for path in sorted(folder.glob(f"{CLAIM}*")):
        pid, _, host = path.name.removeprefix(CLAIM).partition(".")
        if host == socket.gethostname() and pid != make:
            if path.read_text() == _started(pid):
                return f"process {pid} is at work"
            path.unlink(missing_ok=True)
    return None


def _started(pid: str) -> str | None:
    """Return when the process started, in ticks since boot; None: it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]  # Z: nobody has waited for it yet
