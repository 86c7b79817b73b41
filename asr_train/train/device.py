"""Where a process computes; knows nothing of what."""

import os

import torch


def chosen_device() -> torch.device:
    """DEVICE, else the GPU if there is one; of several, each process of a machine has its own."""
    has_gpu = torch.cuda.is_available()
    wish = os.environ.get("DEVICE") or ("cuda" if has_gpu else "cpu")
    try:
        device = torch.device(wish)
    except RuntimeError as error:
        raise ValueError(f"DEVICE is {wish!r}; it must be cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"DEVICE is {wish!r}; it must be cpu, cuda or cuda:N")
    found = torch.cuda.device_count() if has_gpu else 0
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ValueError(f"DEVICE is {wish} but torch finds {found} GPUs; try DEVICE=cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % found)
        torch.cuda.set_device(device)
    return device
