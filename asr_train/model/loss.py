"""Logits and alignments -> **frame cross-entropy**, summed over real frames, and frames correct.

Papers' learning rates per frame belong to the sum, not to the mean; sums also add up over
minibatches and over workers.
"""

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100  # target of padding; not a state id


def frame_loss(logits_BTS: Tensor, ali_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy in nats, and the number of correctly classified frames.

    Args:
        logits_BTS: float32, finite in padding, too; those of a `StripedDnn` stay cut, and its
            processes get the same results.
        ali_BT: int64 state ids; ignored in padding.
        mask_BT: bool, false in padding.
    Returns:
        float32 [], differentiable; int64 [].
    """
    target_BT = torch.where(mask_BT, ali_BT, IGNORED)
    if hasattr(logits_BTS, "full_tensor"):  # cut into stripes: torch's DTensor
        from asr_train.model.stripes import loss_of_stripes

        return loss_of_stripes(logits_BTS, target_BT, IGNORED)
    loss = functional.cross_entropy(
        logits_BTS.flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    correct = (logits_BTS.detach().argmax(-1) == target_BT).sum()
    return loss, correct
