"""All workers' sent elements -> **counts**, times a factor, as a gradient or a weight update.

in    messages    int32 [K] per worker, as in kernels.threshold, in ascending order of index
out   out_P       float32 [P]: tau * count, where count is positive less negative elements; or
      weights_P   float32 [P]: less rate times that
Counts are integers, so replicas are bit-identical whatever the order of messages. Counts are made
tile by tile, so no message becomes a dense vector. Knows nothing of workers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from asr_train.checks import check_shape
from asr_train.kernels import threshold
from asr_train.kernels.backend import Backend, choose

Messages = Sequence[Tensor]


def total(messages: Messages, tau: float, out_P: Tensor) -> None:
    """Overwrite out_P with tau * counts, float32 [P].

    Raises:
        ValueError: if a tensor's dtype or shape is wrong.
    """
    _run(messages, tau, None, out_P)


def update(messages: Messages, tau: float, rate: float, weights_P: Tensor) -> None:
    """Compute weights_P -= rate * (tau * counts), plain SGD with the gradient of `total`.

    tau * count is rounded; its product with the rate is not (fused multiply-add, as in torch's add
    with alpha on processors that have it). Weights whose count is zero are not touched.

    Args:
        rate: positive.
    Raises:
        ValueError: if a tensor's dtype or shape is wrong.
    """
    _run(messages, tau, rate, weights_P)


def reference(messages: Messages, tau: float, rate: float | None, out_P: Tensor) -> None:
    """Compute `total`, or with a rate `update`, by a dense gradient, worker by worker."""
    grad_P = out_P.zero_() if rate is None else torch.zeros_like(out_P)
    for words_K in messages:
        index_K, is_negative_K = threshold.from_words(words_K)
        grad_P.index_add_(0, index_K, 1 - 2 * is_negative_K.to(grad_P.dtype))
    grad_P.mul_(tau)
    if rate is not None:
        out_P.add_(grad_P, alpha=-rate)


def combine(
    base_P: Tensor,
    counts_NP: Tensor,
    rows: Sequence[int],
    plus: Messages,
    minus: Messages,
    tau: float,
    rate: float,
    out_P: Tensor,
) -> None:
    """Compute out_P = base_P - rate * (tau * c), products rounded as in `update`.

    c is the sum of some counts that were made before, plus some messages' elements, less others'.

    Args:
        base_P: float32 [P]; may be out_P.
        counts_NP: float32 [N, P], integers.
        rows: of counts_NP: those to add up.
        plus, minus: int32 [K] each, messages.
    Raises:
        ValueError: if a tensor's dtype or shape is wrong.
    """
    _check([*plus, *minus], base_P=base_P, out_P=out_P)
    check_shape("counts_NP", counts_NP, None, len(out_P))
    if counts_NP.dtype is not torch.float32:
        raise ValueError(f"counts_NP is {counts_NP.dtype}; it must be float32")
    messages = [*plus, *map(threshold.negated, minus)]
    if choose(out_P) is Backend.cpu and len(out_P):
        from asr_train.kernels import compiled

        vectors = base_P.numpy(), counts_NP.numpy(), out_P.numpy()
        compiled.combine(*vectors, rows, [words_K.numpy() for words_K in messages], tau, rate)
        return
    total_P = torch.zeros_like(out_P)
    for row in rows:  # one by one: a list as an index would be copied to the device, and waited for
        total_P.add_(counts_NP[row])
    for words_K in messages:
        threshold.decode(words_K, total_P)
    torch.add(base_P, total_P.mul_(tau), alpha=-rate, out=out_P)


def _check(messages: Messages, **vectors: Tensor) -> None:
    threshold.check_vectors("decode", **vectors)
    for words_K in messages:
        if words_K.dtype is not torch.int32:
            raise ValueError(f"sent elements are int32 but a message's are {words_K.dtype}")


def _run(messages: Messages, tau: float, rate: float | None, out_P: Tensor) -> None:
    _check(messages, out_P=out_P)
    backend = choose(out_P)
    if backend is Backend.cpu:
        from asr_train.kernels import compiled

        arrays = [words_K.numpy() for words_K in messages]
        found = compiled.each_tile(arrays, tau, rate, out_P.detach().numpy())
        assert found == sum(map(len, arrays)), "comm.codec refuses elements that do not ascend"
    elif backend is Backend.triton:
        from asr_train.kernels import gpu_sparse

        gpu_sparse.decode(messages, tau, rate, out_P)
    else:
        reference(messages, tau, rate, out_P)
