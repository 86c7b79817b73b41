"""A training process and its machine: device, end with its launcher."""

import os
import re

import torch

from asr_train import jobs


def die_with_launcher() -> None:
    """Let this process end with its launcher: torchrun, on Linux.

    torchrun ends its processes when one of them dies, but not if it is killed itself; then they
    would keep running beside those of the next start.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        jobs.die_with_parent()
        if os.environ.get("ASR_LAUNCHER", str(os.getppid())) != str(os.getppid()):
            os._exit(1)  # the launcher died before this call


def chosen_device() -> torch.device:
    """Return DEVICE, else the GPU if there is one; of several, each local process has its own."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = os.environ.get("DEVICE") or ("cuda" if found else "cpu")
    kind, _, number = name.partition(":")
    if re.fullmatch(r"(cpu|cuda)(:[0-9]+)?", name) is None:
        raise ValueError(f"DEVICE is {name!r}; it must be cpu, cuda or cuda:N")
    if kind == "cpu":
        return torch.device("cpu")  # cpu:0 is the same
    if int(number or 0) >= found:
        raise ValueError(f"DEVICE is {name} but torch finds {found} GPUs; try DEVICE=cpu")
    device = torch.device("cuda", int(number or os.environ.get("LOCAL_RANK", "0")) % found)
    torch.cuda.set_device(device)  # whose streams `Captured` and Triton use
    return device
