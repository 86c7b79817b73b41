"""A training process and its machine: device, end with its launcher."""

import os

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
    has_gpu = torch.cuda.is_available()
    name = os.environ.get("DEVICE") or ("cuda" if has_gpu else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"DEVICE is {name!r}; it must be cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"DEVICE is {name!r}; it must be cpu, cuda or cuda:N")
    if device.type == "cpu":
        return torch.device("cpu")  # cpu:0 is the same
    found = torch.cuda.device_count() if has_gpu else 0
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ValueError(f"DEVICE is {name} but torch finds {found} GPUs; try DEVICE=cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % found)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # whose streams `Captured` and Triton use
    return device
