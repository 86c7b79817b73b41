"""Threshold quantiser: gradients -> **sent elements** and residuals; elements -> integer counts.

in    grad_P, residual_P   one worker's flat bucket of P parameters, float32
out   words_K              int32, one per sent element, in ascending order of index: 31 bits of
                           index, then the sign bit
      kept_P               float32, the next step's residual
Knows nothing of messages, workers or models. `compress` and `decode` run on the backend that
kernels.backend chooses, with the same bits on all. `compress_fixed_rows` is for messages of fixed
length: it never waits for the device, so that it can be part of a CUDA graph.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asr_train.checks import check_positive, check_same, check_shape
from asr_train.facts import MAX_ELEMENTS
from asr_train.kernels.backend import Backend, choose

SMALLEST = 2.0**-126  # threshold: smaller float32 are subnormal, with fewer bits
LARGEST = torch.finfo(torch.float32).max
_INDEX = 2**31 - 1  # mask
_SIGN = -(2**31)  # int32 with the highest bit alone


class Compressed(NamedTuple):
    """The result of `compress`."""

    words_K: Tensor
    is_finite: bool  # all of residual + gradient; if not, kept_P must not be used


def compress(grad_P: Tensor, residual_P: Tensor, threshold: float, kept_P: Tensor) -> Compressed:
    """Quantise what this worker owes the others.

        owed = residual + grad        code = sign(owed) where |owed| > threshold, else 0
        kept <- owed - threshold * code

    Args:
        grad_P: this worker's summed gradient, float32 [P].
        residual_P: what was never sent, float32 [P]; stays as it is.
        threshold: one quantum (tau), in units of grad_P; a positive float32.
        kept_P: float32 [P], overwritten: the next residual.
    Returns:
        words_K, int32 [K], and whether all was finite. What exceeds one quantum stays in kept_P.
    Raises:
        ValueError: if shapes or dtypes differ, or the threshold is out of range.
    """
    return compress_rows(grad_P[None], residual_P[None], threshold, kept_P[None])[0]


def compress_rows(
    grads_WP: Tensor, residuals_WP: Tensor, threshold: float, kept_WP: Tensor
) -> list[Compressed]:
    """Compute `compress` of several workers' rows [W, P]; on a GPU with one launch and one wait.

    Rows may be apart; on a GPU, multiples of 16 elements from row to row are fastest.
    """
    rows = {"grads_WP": grads_WP, "residuals_WP": residuals_WP, "kept_WP": kept_WP}
    _check("threshold.compress", threshold, rows)
    backend = choose(grads_WP) if grads_WP.numel() else Backend.reference
    if backend is Backend.triton:
        from asr_train.kernels import gpu_sparse

        found = gpu_sparse.compress_rows(grads_WP, residuals_WP, threshold, kept_WP)
        return [Compressed(*one) for one in found]
    one_by_one = compress_reference if backend is Backend.reference else _compress_on_cpu
    each = zip(grads_WP, residuals_WP, kept_WP, strict=True)
    return [one_by_one(g, r, threshold, kept_P) for g, r, kept_P in each]


def _compress_on_cpu(
    grad_P: Tensor, residual_P: Tensor, threshold: float, kept_P: Tensor
) -> Compressed:
    from asr_train.kernels import compiled

    grad, residual, kept = (t.detach().numpy() for t in (grad_P, residual_P, kept_P))
    words, is_finite = compiled.compress(grad, residual, kept, threshold)
    # NumPy gives an empty array a stride of 0, which torch will not view as bytes
    words_K = torch.from_numpy(words) if len(words) else torch.empty(0, dtype=torch.int32)
    return Compressed(words_K, is_finite)


def compress_reference(
    grad_P: Tensor, residual_P: Tensor, threshold: float, kept_P: Tensor
) -> Compressed:
    """Compute `compress` by tensors."""
    torch.add(residual_P, grad_P, out=kept_P)
    is_finite = bool(kept_P.isfinite().all())
    index_K = (kept_P.abs() > threshold).nonzero().flatten()
    owed_K = kept_P[index_K]
    kept_P[index_K] = owed_K - threshold * owed_K.sign()
    return Compressed(to_words(index_K, owed_K < 0), is_finite)


def tally_rows(
    grads_WP: Tensor, residuals_WP: Tensor, threshold: float, kept_WP: Tensor, counts_P: Tensor
) -> Tensor:
    """Compute `compress_rows`, and `decode` what is sent, without a list of the sent elements.

    For workers of one process, which exchange nothing; bit for bit the same. On a GPU it never
    waits for the device.

    Args:
        counts_P: float32 [P]; gets all rows' sent elements. If a row is not finite, it must not be
            used.
    Returns:
        int64 [W, 2] on the same device: by row, the sent elements, and 0 if all of residual +
        gradient is finite.
    Raises:
        ValueError: as `compress`.
    """
    rows = {"grads_WP": grads_WP, "residuals_WP": residuals_WP, "kept_WP": kept_WP}
    _check("threshold.tally_rows", threshold, rows, counts_P=counts_P)
    backend = choose(counts_P)
    if backend is Backend.reference:
        each = zip(grads_WP, residuals_WP, kept_WP, strict=True)
        found = [compress_reference(g, r, threshold, kept_P) for g, r, kept_P in each]
        for words_K, _ in found:
            decode(words_K, counts_P)
        return torch.tensor([[len(words_K), not is_finite] for words_K, is_finite in found])
    if backend is Backend.triton:
        from asr_train.kernels import gpu_sparse

        return gpu_sparse.tally_rows(grads_WP, residuals_WP, threshold, kept_WP, counts_P)
    from asr_train.kernels import compiled

    vectors = grads_WP, residuals_WP, kept_WP, counts_P
    grads, residuals, kept, counts = (v.detach().numpy() for v in vectors)
    sent, finite = compiled.tally(grads, residuals, kept, counts, threshold)
    return torch.from_numpy(np.stack([sent, len(counts_P) - finite], 1))


def takes_factors(counts_P: Tensor) -> bool:
    """Return whether `tally_factors` has a kernel for these counts."""
    return choose(counts_P) is Backend.cpu


def tally_factors(
    factors: Sequence[tuple[Tensor | None, Tensor, int]],
    residuals_WP: Tensor,
    threshold: float,
    kept_WP: Tensor,
    counts_P: Tensor,
) -> Tensor:
    """Compute `tally_rows` of products without storing them: a row of a matrix is in the L1 cache.

    Products are sums in the order of frames, each term added with one rounding. On a CPU only.

    Args:
        factors: deltas [W, N, O] by worker and frame (None: ones, [W, N, 1]), inputs [W, N, I], and
            an offset each, all float32: a row's gradient has the transposed deltas times the inputs
            there, row by row. Together they are the gradients of all rows.
    Raises:
        ValueError: as `compress`; if the factors are of other workers.
    """
    rows = {"residuals_WP": residuals_WP, "kept_WP": kept_WP}
    _check("threshold.tally_factors", threshold, rows, counts_P=counts_P)
    workers, size = kept_WP.shape
    covered = 0
    matrices = []
    for deltas_WNO, inputs_WNI, offset in factors:
        frames = inputs_WNI.shape[1]
        if deltas_WNO is None:
            deltas_WNO = inputs_WNI.new_ones(workers, frames, 1)
        check_shape("inputs_WNI", inputs_WNI, workers, frames, None)
        check_shape("deltas_WNO", deltas_WNO, workers, frames, None)
        assert deltas_WNO.dtype == inputs_WNI.dtype == torch.float32, "factors are float32"
        assert offset == covered, "factors are not sorted by offset, or have gaps"
        matrices.append([m.detach().contiguous().numpy() for m in (deltas_WNO, inputs_WNI)])
        covered += deltas_WNO.shape[2] * inputs_WNI.shape[2]
    assert covered == size, f"factors have {covered} elements, residuals have {size}"
    from asr_train.kernels import compiled

    residuals, kept, counts = (v.detach().numpy() for v in (residuals_WP, kept_WP, counts_P))
    found = np.zeros((2, workers), np.int64)
    for (deltas, inputs), (_, _, offset) in zip(matrices, factors, strict=True):
        found += compiled.tally_products(deltas, inputs, offset, residuals, kept, counts, threshold)
    return torch.from_numpy(np.stack([found[0], size - found[1]], 1))


class Fixed(NamedTuple):
    """The result of `compress_fixed_rows` for one worker, on the device."""

    words_C: Tensor  # int32 [capacity]; the first min(wanted, capacity) are sent elements, sorted
    wanted: Tensor  # int64 []: elements above the threshold
    turn: Tensor  # int64 []: the first element that waits, or what `turn` was
    is_finite: Tensor  # bool []


def compress_fixed_rows(
    grads_WP: Tensor,
    residuals_WP: Tensor,
    threshold: float,
    kept_WP: Tensor,
    capacity: int,
    turns_W: Tensor,
) -> list[Fixed]:
    """Compress into messages of `capacity` elements; what does not fit stays in the residual.

    If there are too many, they take turns: from the element `turn` on, and then from the beginning,
    so that those that wait come first the next time. On a GPU with one launch for all rows.

    Args:
        grads_WP, residuals_WP, threshold, kept_WP: as for `compress_rows`.
        capacity: elements, at least one.
        turns_W: int64 [W] on the same device, in [0, P).
    Raises:
        ValueError: as `compress`; if the capacity is not positive.
    """
    rows = {"grads_WP": grads_WP, "residuals_WP": residuals_WP, "kept_WP": kept_WP}
    _check("threshold.compress_fixed_rows", threshold, rows)
    check_positive("capacity", capacity)
    if choose(grads_WP) is Backend.triton and grads_WP.numel():
        from asr_train.kernels import gpu_sparse

        found = gpu_sparse.compress_fixed_rows(
            grads_WP, residuals_WP, threshold, kept_WP, capacity, turns_W
        )
        return [Fixed(*one) for one in zip(*found, strict=True)]
    messages = []
    for grad_P, residual_P, kept_P, turn in zip(*rows.values(), turns_W, strict=True):
        words_K, is_finite = compress(grad_P, residual_P, threshold, kept_P)
        words_C, after = words_K.new_zeros(capacity), turn
        wanted = torch.tensor(len(words_K), device=turn.device)
        if len(words_K) > capacity:
            words_K, waiting_K = in_turn(words_K, capacity, turn)
            take_back(grad_P, residual_P, kept_P, waiting_K)
            after = from_words(waiting_K)[0][0]
        words_C[: len(words_K)] = words_K
        finite = torch.tensor(is_finite, device=turn.device)
        messages.append(Fixed(words_C, wanted, after, finite))
    return messages


def in_turn(words_K: Tensor, count: int, turn: Tensor | int) -> tuple[Tensor, Tensor]:
    """Split elements into the first `count`, sorted, and those that wait, in their turn.

    They are counted from the index `turn` on, then from the beginning: if `turn` is the first that
    waited, those that waited go first.
    """
    index_K, _ = from_words(words_K)
    first = int(torch.searchsorted(index_K, turn))
    order_K = torch.arange(len(words_K), device=words_K.device).roll(-first)
    return words_K[order_K[:count].sort().values], words_K[order_K[count:]]


def take_back(grad_P: Tensor, residual_P: Tensor, kept_P: Tensor, words_K: Tensor) -> None:
    """Undo the selection of these elements by `compress`: kept_P owes them again, bit for bit.

    The sum is recomputed, because (owed - threshold) + threshold may round.
    """
    index_K, _ = from_words(words_K)
    kept_P[index_K] = residual_P[index_K] + grad_P[index_K]


def decode(words_K: Tensor, counts_P: Tensor) -> None:
    """Add one worker's sent elements to `counts_P`, float32 [P].

    Integers below 2**24 add exactly in float32, so the order of workers does not matter.
    kernels.decode takes all workers' elements at once.
    """
    if choose(counts_P) is Backend.cpu:
        from asr_train.kernels import compiled

        compiled.add(words_K.numpy(), counts_P.numpy())
        return
    index_K, is_negative_K = from_words(words_K)
    counts_P.index_add_(0, index_K, 1 - 2 * is_negative_K.to(counts_P.dtype))


RefuseIf = Callable[[Tensor | bool, Callable[[], str]], None]  # a condition, and why it is wrong


def refuse_if(is_wrong: Tensor | bool, why: Callable[[], str]) -> None:
    """Raise ValueError at once if a condition holds; waits for its device."""
    if is_wrong:
        raise ValueError(why())


def check_words(words_K: Tensor, size: int, refuse_if: RefuseIf = refuse_if) -> None:
    """Refuse elements that do not ascend strictly below `size`; raises ValueError.

    Decoders rely on it: they search in elements, and write at their indices.
    """
    if not len(words_K):
        return
    if choose(words_K) is Backend.cpu:
        from asr_train.kernels import compiled

        wrong = torch.tensor(int(compiled.first_wrong(words_K.numpy(), size)))
    else:
        index_K = words_K & _INDEX
        is_wrong_K = index_K >= size
        is_wrong_K[1:] |= index_K[1:] <= index_K[:-1]
        wrong = torch.where(is_wrong_K.any(), is_wrong_K.int().argmax(), len(words_K))

    def why() -> str:
        at = int(wrong)
        around = [f"{word & _INDEX:d}" for word in words_K[max(0, at - 1) : at + 1].tolist()]
        return (
            f"element {at} of {len(words_K)} has the index {around[-1]} among {size}, after "
            f"{around[0] if at else 'none'}; indices must ascend below the model's size: do all "
            "workers train the same model?"
        )

    refuse_if(wrong < len(words_K), why)


def to_words(index_K: Tensor, is_negative_K: Tensor) -> Tensor:
    """Pack indices and signs into int32 [K]."""
    return index_K.to(torch.int32) | (is_negative_K.to(torch.int32) * _SIGN)


def negated(words_K: Tensor) -> Tensor:
    """Return elements with inverted signs, int32 [K]."""
    return words_K ^ _SIGN


def from_words(words_K: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack int32 [K] into indices int64 [K] and is_negative bool [K]."""
    return (words_K & _INDEX).to(torch.int64), words_K < 0


def check_size(size: int) -> None:
    """Raise ValueError if a model has more parameters than a message can number."""
    if size > MAX_ELEMENTS:
        raise ValueError(
            f"the model has {size:,} parameters but a message's 31-bit indices reach "
            f"{MAX_ELEMENTS:,}; use comm=allreduce or comm=bmuf"
        )


def check_vectors(where: str, **vectors: Tensor) -> None:
    """Raise ValueError unless all are contiguous float32 [P], with the same permitted P."""
    check_same(where, **vectors)
    for name, vector_P in vectors.items():
        is_flat = vector_P.ndim == 1 and vector_P.is_contiguous()
        if vector_P.dtype is not torch.float32 or not is_flat:
            # Fewer bits lose small gradients beside a large residual
            raise ValueError(
                f"{where}: {name} is {vector_P.dtype} {list(vector_P.shape)} with strides "
                f"{vector_P.stride()}; it must be a contiguous float32 vector"
            )
        check_size(len(vector_P))


def _check(where: str, threshold: float, rows: dict[str, Tensor], **vectors: Tensor) -> None:
    """Check matrices [W, P] by their first rows, as all rows have one layout, and vectors [P]."""
    check_same(where, **rows)
    check_vectors(where, **{name: rows_WP[0] for name, rows_WP in rows.items()}, **vectors)
    if not SMALLEST <= threshold <= LARGEST:
        raise ValueError(
            f"threshold is {threshold}; it must be positive and a normal float32, "
            f"{SMALLEST:.3g} to {LARGEST:.3g}"
        )
