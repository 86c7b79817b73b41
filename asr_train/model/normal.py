"""The first step of every network: **normalise** frames by TRAIN's mean and variance.

in    feats_BTF     float32 log-mel as in the shards
out   normal_BTF    float32, every bin of mean 0 and variance 1 over TRAIN
Both statistics are part of the model, so they need not be known elsewhere.
"""

import torch
from torch import Tensor, nn

from asr_train.checks import check_shape


class Normalised(nn.Module):
    """A network over normalised frames.

    Args:
        mean_F, var_F: of TRAIN, [num_mels].
    Raises:
        ValueError: if their shapes are wrong or a variance is not positive.
    """

    mean_F: Tensor
    var_F: Tensor
    stride = 1  # frames from one output to the next
    piece = warm = 0  # for recurrent networks

    def __init__(self, mean_F: Tensor, var_F: Tensor) -> None:
        super().__init__()
        check_shape("mean_F", mean_F, None)
        check_shape("var_F", var_F, len(mean_F))
        if not bool((var_F > 0).all()):
            raise ValueError(f"var_F has {var_F.min().item()}; every bin's must be positive")
        self.num_mels = len(mean_F)
        self.register_buffer("mean_F", mean_F.to(torch.float32, copy=True))
        self.register_buffer("var_F", var_F.to(torch.float32, copy=True))

    def normal(self, feats_BTF: Tensor) -> Tensor:
        return (feats_BTF - self.mean_F) * self.var_F.rsqrt()
