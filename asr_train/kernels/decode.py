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


def total_reference(messages: Messages, tau: float, out_P: Tensor) -> None:
    """Compute `total`, worker by worker."""
    out_P.zero_()
    for words_K in messages:
        index_K, is_negative_K = threshold.from_words(words_K)
        out_P.index_add_(0, index_K, 1 - 2 * is_negative_K.to(out_P.dtype))
    out_P.mul_(tau)


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


def update_reference(messages: Messages, tau: float, rate: float, weights_P: Tensor) -> None:
    """Compute `update` by a dense gradient."""
    grad_P = torch.empty_like(weights_P)
    total_reference(messages, tau, grad_P)
    weights_P.add_(grad_P, alpha=-rate)


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
    if choose(out_P) is Backend.cpu and len(out_P):
        from asr_train.kernels import compiled

        vectors = base_P.numpy(), counts_NP.numpy(), out_P.numpy()
        added, taken = ([words_K.numpy() for words_K in side] for side in (plus, minus))
        compiled.combine(*vectors, rows, added, taken, tau, rate)
        return
    total_P = torch.zeros_like(out_P)
    for row in rows:  # one by one: a list as an index would be copied to the device, and waited for
        total_P.add_(counts_NP[row])
    if minus:
        negative_P = torch.zeros_like(out_P)
        for words_K in minus:
            threshold.decode(words_K, negative_P)
        total_P.sub_(negative_P)
    for words_K in plus:
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
        if found != sum(map(len, arrays)):
            raise ValueError(
                f"only {found} of {sum(map(len, arrays))} sent elements ascend within the "
                f"{len(out_P)} parameters: comm.codec refuses such messages; discard the result"
            )
    elif backend is Backend.triton:
        from asr_train.kernels import gpu_sparse

        gpu_sparse.decode(messages, tau, rate, out_P)
    elif rate is None:
        total_reference(messages, tau, out_P)
    else:
        update_reference(messages, tau, rate, out_P)
