"""**Block momentum** in one pass: workers' mean weights -> the model, and their next start.

in    mean_P                 float32 [P]: of the workers' weights at the end of a block
      weights_P, delta_P     float32 [P]: the model, and its last movement; changed in place
out   start_P                float32 [P]: where workers begin the next block
    start = W + look * D              of the block that ends
    D <- eta * D + zeta * (mean - start)
    W <- W + ahead * D                start <- W + look * D
comm.blocks explains the forms: `classical` has look = 0 and ahead = 1, `chen_huo` has look = eta,
`printed` has ahead = 1 + eta. Products that are added are not rounded first (fused multiply-add, as
in torch's add with alpha on processors that have it); eta * D is. 24 bytes per element: three
vectors read and three written. Knows nothing of workers or blocks.
"""

import numpy as np
import torch
from torch import Tensor

from asr_train.checks import check_same
from asr_train.kernels.backend import Backend, choose


def step(
    mean_P: Tensor,
    weights_P: Tensor,
    delta_P: Tensor,
    start_P: Tensor,
    *,
    eta: float,
    zeta: float,
    ahead: float = 1.0,
    look: float = 0.0,
) -> None:
    """Update the model by the mean; start_P may be mean_P, or weights_P if look is 0.

    Raises:
        ValueError: if shapes or dtypes differ, or are not float32.
    """
    tensors = (mean_P, weights_P, delta_P, start_P)
    check_same("block.step", mean_P=mean_P, weights_P=weights_P, delta_P=delta_P, start_P=start_P)
    if mean_P.dtype is not torch.float32 or not all(t.is_contiguous() for t in tensors):
        raise ValueError(f"block.step needs contiguous float32 but mean_P is {mean_P.dtype}")
    factors = (eta, zeta, ahead, look)
    backend = choose(mean_P)
    if backend is Backend.reference:
        step_reference(*tensors, *factors)
    elif backend is Backend.triton:
        from asr_train.kernels import gpu_dense

        gpu_dense.block_step(*tensors, *factors)
    else:
        from asr_train.kernels import compiled

        compiled.block_step(*(t.detach().numpy() for t in tensors), *map(np.float32, factors))


def step_reference(
    mean_P: Tensor,
    weights_P: Tensor,
    delta_P: Tensor,
    start_P: Tensor,
    eta: float,
    zeta: float,
    ahead: float,
    look: float,
) -> None:
    """Compute `step`, one equation after the other."""
    gain_P = mean_P - _start(weights_P, delta_P, look)
    delta_P.mul_(eta).add_(gain_P, alpha=zeta)
    weights_P.add_(delta_P, alpha=ahead)
    start_P.copy_(_start(weights_P, delta_P, look))


def _start(weights_P: Tensor, delta_P: Tensor, look: float) -> Tensor:
    return weights_P.add(delta_P, alpha=look) if look else weights_P
