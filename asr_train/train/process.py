"""A training process and its machine: device, lock of its folder, end with its launcher."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from asr_train import jobs


def die_with_launcher() -> None:
    """Let this process end with its launcher: torchrun, on Linux.

    torchrun ends its processes when one of them dies, but not if it is killed itself; then they
    would keep running beside those of the next start.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        jobs.die_with_parent()


@contextlib.contextmanager
def alone_in(folder: Path, waits: bool = False) -> Iterator[None]:
    """Lock a folder against other training processes, if its file system has locks.

    Raises:
        ValueError: if another process has locked it, and this one does not wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise ValueError(
                f"another process trains in {folder}; wait for it, or end it"
            ) from error
        except OSError as error:
            print(f"{folder} cannot be locked ({error}); start one training at a time", flush=True)
        yield


def chosen_device() -> torch.device:
    """Return DEVICE, else the GPU if there is one; of several, each local process has its own."""
    has_gpu = torch.cuda.is_available()
    name = os.environ.get("DEVICE") or ("cuda" if has_gpu else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"DEVICE is {name!r}; it must be cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"DEVICE is {name!r}; it must be cpu, cuda or cuda:N")
    found = torch.cuda.device_count() if has_gpu else 0
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ValueError(f"DEVICE is {name} but torch finds {found} GPUs; try DEVICE=cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % found)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # whose streams `Captured` and Triton use
    return device
