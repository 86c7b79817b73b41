"""All workers' hits at once -> **counts**, times a factor, as a gradient or straight into weights.

in    messages    int32 [K] a worker, as in kernels.threshold, by rising index
out   out_P       float32 [P]: factor * count, where count is hits up less hits down; or
      weights_P   float32 [P]: changed by that
Counts are whole numbers, so replicas are the same to the bit whatever the order of messages. A tile
of counts is made at a time: no worker's hits are ever a dense vector. Knows nothing of workers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from asr_train.checks import check_shape
from asr_train.kernels import threshold
from asr_train.kernels.backend import Backend, choose

Messages = Sequence[Tensor]


def total(messages: Messages, factor: float, out_P: Tensor) -> None:
    """Overwrite out_P with factor * counts, float32 [P].

    Raises:
        ValueError: if a tensor's dtype or shape is wrong.
    """
    _run(messages, factor, out_P, updates=False)


def total_reference(messages: Messages, factor: float, out_P: Tensor) -> None:
    """`total`, worker by worker."""
    out_P.zero_()
    for words_K in messages:
        index_K, is_negative_K = threshold.from_words(words_K)
        out_P.index_add_(0, index_K, 1 - 2 * is_negative_K.to(out_P.dtype))
    out_P.mul_(factor)


def update(messages: Messages, factor: float, weights_P: Tensor) -> None:
    """weights_P += factor * counts, in float32, each operation rounded by itself.

    Weights whose count is zero are not touched. Plain SGD with rate r and threshold tau: the factor
    is -r * tau.

    Raises:
        ValueError: if a tensor's dtype or shape is wrong.
    """
    _run(messages, factor, weights_P, updates=True)


def update_reference(messages: Messages, factor: float, weights_P: Tensor) -> None:
    """`update`, by way of a dense gradient."""
    counts_P = torch.empty_like(weights_P)
    total_reference(messages, 1.0, counts_P)
    moved_P = weights_P + counts_P * factor
    weights_P.copy_(torch.where(counts_P != 0, moved_P, weights_P))


def _run(messages: Messages, factor: float, out_P: Tensor, updates: bool) -> None:
    check_shape("out_P", out_P, None)
    threshold.check_size(len(out_P))
    if out_P.dtype is not torch.float32 or not out_P.is_contiguous():
        raise ValueError(f"decode needs contiguous float32 but out_P is {out_P.dtype}")
    for words_K in messages:
        if words_K.dtype is not torch.int32:
            raise ValueError(f"hits are int32 but a message's are {words_K.dtype}")
    backend = choose(out_P)
    if backend is Backend.cpu:
        from asr_train.kernels import compiled

        arrays = [words_K.numpy() for words_K in messages]
        compiled.each_tile(arrays, factor, out_P.detach().numpy(), updates)
    elif backend is Backend.triton:
        from asr_train.kernels import gpu_hits

        gpu_hits.decode(messages, factor, out_P, updates)
    else:
        (update_reference if updates else total_reference)(messages, factor, out_P)
