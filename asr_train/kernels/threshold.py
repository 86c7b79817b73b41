"""Threshold quantiser: gradients -> **hits** (and what is kept); hits -> integer counts.

in    grad_P, residual_P   float32, one worker's flat bucket of P parameters
out   words_K              int32, a hit each, by rising index: 31 bits of index, then the sign bit
      kept_P               float32, the next step's residual
Knows nothing of messages, workers or models. `encode_reference` and `decode_reference` are the
paper's words; `encode` and `decode` are what runs, and equal them bit for bit.
"""

import torch
from torch import Tensor

from asr_train.checks import check_positive, check_same

MAX_ELEMENTS = 2**31 - 1  # an index has 31 bits
_INDEX = 2**31 - 1  # mask
_SIGN = -(2**31)  # int32 with the highest bit alone


def encode_reference(grad_P: Tensor, residual_P: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """int8 [P] in {-1, 0, 1} and the new residual (Strom, 2015, 2.6); bounds are strict."""
    owed_P = residual_P + grad_P
    code_P = (owed_P > threshold).to(torch.int8) - (owed_P < -threshold).to(torch.int8)
    return code_P, owed_P - threshold * code_P


def encode(grad_P: Tensor, residual_P: Tensor, threshold: float, kept_P: Tensor) -> Tensor:
    """Quantise what this worker owes the others.

        owed = residual + grad        code = sign(owed) where |owed| > threshold, else 0
        kept <- owed - threshold * code

    Args:
        grad_P: this worker's summed gradient, float32 [P], finite.
        residual_P: what was never sent, float32 [P]; stays as it is.
        threshold: one quantum (tau), in units of grad_P; a positive float32.
        kept_P: float32 [P], overwritten: the residual to go on with.
    Returns:
        words_K, int32 [K]. What exceeds one quantum waits a step.
    Raises:
        ValueError: if shapes or dtypes differ, or the threshold cannot be.
    """
    check_same("threshold.encode", grad_P=grad_P, residual_P=residual_P, kept_P=kept_P)
    check_positive("threshold", threshold)
    check_size(grad_P.numel())
    torch.add(residual_P, grad_P, out=kept_P)
    index_K = (kept_P.abs() > threshold).nonzero().flatten()
    owed_K = kept_P[index_K]
    kept_P[index_K] = owed_K - threshold * owed_K.sign()
    return to_words(index_K, owed_K < 0)


def take_back(grad_P: Tensor, residual_P: Tensor, kept_P: Tensor, words_K: Tensor) -> None:
    """These hits of `encode` are not sent after all: kept_P owes them again, to the bit.

    The sum is made anew, because (owed - threshold) + threshold may round.
    """
    index_K, _ = from_words(words_K)
    kept_P[index_K] = residual_P[index_K] + grad_P[index_K]


def decode_reference(messages: list[Tensor], size: int) -> Tensor:
    """Each element's number of positive hits less its negative ones, int64 [size], one by one."""
    counts = [0] * size
    for words_K in messages:
        for word in words_K.tolist():
            counts[word & _INDEX] += -1 if word < 0 else 1
    return torch.tensor(counts)


def decode(words_K: Tensor, counts_P: Tensor) -> None:
    """Add one worker's hits to `counts_P`, float32 [P].

    Whole numbers below 2**24 add exactly in float32, so the order of workers does not count.
    """
    index_K, is_negative_K = from_words(words_K)
    counts_P.index_add_(0, index_K, 1 - 2 * is_negative_K.to(counts_P.dtype))


def to_words(index_K: Tensor, is_negative_K: Tensor) -> Tensor:
    """Indices and signs -> int32 [K]."""
    return index_K.to(torch.int32) | (is_negative_K.to(torch.int32) * _SIGN)


def from_words(words_K: Tensor) -> tuple[Tensor, Tensor]:
    """int32 [K] -> indices int64 [K], is_negative bool [K]."""
    return (words_K & _INDEX).to(torch.int64), words_K < 0


def check_size(size: int) -> None:
    """A model's parameters can be numbered in a message, else ValueError."""
    if size > MAX_ELEMENTS:
        raise ValueError(
            f"the model has {size:,} parameters but a message's 31-bit indices reach "
            f"{MAX_ELEMENTS:,}; use comm=allreduce or comm=bmuf"
        )
