"""Locks against other processes that would write the same, on file systems that have locks.

A lock ends with its process, however that ends.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "log/.locks"  # of a work folder; an empty file per output, locked while a stage makes it


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


def being_made(work: Path | str) -> str | None:
    """Return an output of the work folder that a process makes now, with _ for /; None: nothing."""
    for path in sorted((Path(work) / FOLDER).glob("*")):
        with open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return path.name
            except OSError:
                pass  # no locks here
    return None
