"""Windows by index: frames stored once -> **each chosen frame with its neighbours**.

in    rows_RF     float32 [R, F]: utterances one after the other, each with its edges repeated
      start_B     int64 [B]: the row where each window begins
out   windows_BTF float32 [B, window, F]
Any frames, in any order: context windows, stacked frames (windows side by side), or frames stacked
with a shift. A window is a run of memory, so it is copied as one. Knows nothing of utterances.
"""

import torch
from torch import Tensor

from asr_train.checks import check_shape
from asr_train.kernels.backend import Backend, choose


def windows(rows_RF: Tensor, start_B: Tensor, window: int) -> Tensor:
    """Copy rows start to start + window of each.

    Raises:
        ValueError: if a shape or dtype is wrong; on a CPU also if a window is not within the rows
            (this never waits for a GPU: shards.batch makes the starts).
    """
    check_shape("rows_RF", rows_RF, None, None)
    check_shape("start_B", start_B, None)
    if rows_RF.dtype is not torch.float32 or start_B.dtype is not torch.int64:
        raise ValueError(
            f"splice.windows needs float32 rows and int64 starts but got {rows_RF.dtype} "
            f"and {start_B.dtype}"
        )
    if not 1 <= window <= len(rows_RF) or not rows_RF.is_contiguous():
        raise ValueError(
            f"a window has {window} rows but there are {len(rows_RF)}; it needs at least one, and "
            "rows without gaps"
        )
    if start_B.device.type == "cpu" and len(start_B):
        first, last = (int(edge) for edge in start_B.aminmax())
        if first < 0 or last + window > len(rows_RF):
            raise ValueError(
                f"windows of {window} rows begin at {first} to {last} but there are "
                f"{len(rows_RF)} rows; were they made from the same utterances?"
            )
    if choose(rows_RF) is Backend.triton:
        from asr_train.kernels import gpu_dense

        return gpu_dense.windows(rows_RF, start_B, window)
    # On a CPU too: a loop compiled by numba took 3.7 times as long
    return windows_reference(rows_RF, start_B, window)


def windows_reference(rows_RF: Tensor, start_B: Tensor, window: int) -> Tensor:
    """Compute `windows` by a view in which windows overlap."""
    return rows_RF.unfold(0, window, 1).transpose(1, 2).index_select(0, start_B)
