"""Logits and alignments -> **frame cross-entropy**, summed over real frames, and frames correct.

The sum, not the mean, is what papers' rates per frame belong to; and sums of parts add up, over
minibatches and over workers.
"""

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100  # no state's id; stands where there is no frame


def frame_loss(logits_BTS: Tensor, ali_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats and the number of frames whose best state is the aligned one.

    Args:
        logits_BTS: float32, finite where there is no frame, too.
        ali_BT: int64 state ids, of any value where there is no frame.
        mask_BT: bool, where there is a frame.
    Returns:
        float32 [], differentiable; int64 [].
    """
    target_BT = torch.where(mask_BT, ali_BT, IGNORED)
    loss = functional.cross_entropy(
        logits_BTS.flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    correct = (logits_BTS.detach().argmax(-1) == target_BT).sum()
    return loss, correct
