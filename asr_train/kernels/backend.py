"""Which **backend** runs a kernel: a tensor's device -> reference, cpu or triton.

    reference   plain PyTorch, anywhere: what the others must equal
    cpu         compiled by numba, on torch.get_num_threads() threads
    triton      on a GPU; or anywhere in Triton's interpreter, for tests (TRITON_INTERPRET=1)
The environment's ASR_KERNELS names one for all kernels; else the device decides.
"""

import functools
import os
import subprocess
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

VARIABLE = "ASR_KERNELS"


class Backend(Enum):
    """The backends, whose results are bit-identical for inputs whose sums are exact."""

    reference = "reference"
    cpu = "cpu"
    triton = "triton"


def choose(tensor: Tensor) -> Backend:
    """Return the backend for tensors like this one.

    Raises:
        ValueError: if the requested one does not exist, or cannot work on the tensor's device.
    """
    name, kind = os.environ.get(VARIABLE), tensor.device.type
    if not name:
        return {"cpu": Backend.cpu, "cuda": Backend.triton}.get(kind, Backend.reference)
    if name not in (names := [b.value for b in Backend]):
        raise ValueError(f"{VARIABLE} is {name!r}; it must be one of {', '.join(names)}")
    wanted = Backend(name)
    if wanted is Backend.cpu and kind != "cpu":
        raise ValueError(f"{VARIABLE} is cpu but a tensor is on {tensor.device}")
    if wanted is Backend.triton and kind != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f"{VARIABLE} is triton but a tensor is on {tensor.device}; "
            "set TRITON_INTERPRET=1 to run Triton's interpreter there"
        )
    return wanted


def launches(function: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a function so that it launches Triton kernels on its tensors' GPU."""

    @functools.wraps(function)
    def launch(*given: Any) -> Result:
        first = given[0] if isinstance(given[0], Tensor) else given[-1]
        with torch.cuda.device_of(first):
            try:
                return function(*given)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                if isinstance(error, RuntimeError) and "C compiler" not in str(error):
                    raise
                raise RuntimeError(
                    f"Triton cannot build what launches its kernels ({error}); install a C "
                    "compiler and Python's headers (Debian: apt-get install gcc python3-dev), or "
                    f"set {VARIABLE}=reference, which is slower"
                ) from error

    return launch
