"""Counts how often a computation waits for its device.

The host waits whenever it reads a tensor's value, for operations whose result's size depends on
data, and where it copies numbers to the device, unless by `non_blocking`. Code that runs on a CPU
is counted as if it ran on a GPU.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = ("cpu", "tolist", "item", "__bool__", "__int__", "__float__", "__index__")
TENSOR = torch.Tensor
COPIES = [(torch, "tensor"), (torch, "as_tensor"), (TENSOR, "new_tensor"), (TENSOR, "to")]
SIZED_BY_DATA = ("aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::bincount")


class Waits(TorchDispatchMode):
    """Counts waits; `of` has the names, one per wait."""

    def __init__(self, monkeypatch) -> None:
        super().__init__()
        self.of: list[str] = []
        self._inside = False
        for name in READS:
            monkeypatch.setattr(torch.Tensor, name, self._counted(name))
        for owner, name in COPIES:
            monkeypatch.setattr(owner, name, self._copying(owner, name))

    def _counted(self, name):
        original = getattr(torch.Tensor, name)

        def read(*args, **kwargs):
            outer, self._inside = self._inside, True  # one may call another
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = outer
                if not outer:
                    self.of.append(name)

        return read

    def _copying(self, owner, name):
        original = getattr(owner, name)

        def copy(*args, **kwargs):
            is_there = "device" in kwargs or any(isinstance(a, torch.device) for a in args)
            if (is_there or name == "new_tensor") and not kwargs.get("non_blocking"):
                self.of.append(name)
            return original(*args, **kwargs)

        return copy

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name() in SIZED_BY_DATA:
            self.of.append(func.name())
        by_mask = func.name() == "aten::index.Tensor" and any(
            i is not None and i.dtype is torch.bool for i in args[1]
        )
        if by_mask or (func.name() == "aten::repeat_interleave.Tensor" and not kwargs):
            self.of.append(func.name())
        return func(*args, **(kwargs or {}))
