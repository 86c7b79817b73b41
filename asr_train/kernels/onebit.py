"""One-bit quantiser: a gradient matrix <-> **one bit per element, two means per column**.

in    grad_RC, residual_RC   a layer's [outputs, inputs]; a bias is [outputs, 1]
out   bits_RB                uint8 [R, C / 8 rounded up]: column 8 b + j is bit j of byte b
      means_2C               float32: by column, of its negative elements, of the others
      kept_RC                float32, the next step's residual
A column is one input's weights to all outputs; the threshold is 0 and each side is rebuilt as its
mean (Seide et al., 2014, section 3.1). If some input is not finite, a mean is not.
A mean's sum is in float64 in the reference; on a CPU in float32 over 32 rows at a time, and in
float64 over these; on a GPU in float32, pairwise within 64 rows.
Knows nothing of messages, layers or workers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asr_train.checks import check_shape
from asr_train.kernels.backend import Backend, choose
from asr_train.kernels.threshold import check_vectors

Matrices = Sequence[tuple[int, int, int]]  # offset, rows and columns of each


class OneBit(NamedTuple):
    """A matrix in 1 + 64 / R bits per element."""

    bits_RB: Tensor
    means_2C: Tensor


def quantise_all(
    matrices: Matrices, grad_P: Tensor, residual_P: Tensor, kept_P: Tensor
) -> list[OneBit]:
    """Quantise owed = residual + grad, matrix by matrix; kept_P gets the quantisation errors.

    By one call, in which small matrices take a fraction of the time.

    Args:
        matrices: where they are in the flat vectors.
        grad_P, residual_P: float32; stay as they are.
        kept_P: float32, overwritten.
    Raises:
        ValueError: if sizes or dtypes are wrong.
    """
    _check_vectors(matrices, grad_P=grad_P, residual_P=residual_P, kept_P=kept_P)
    return _split(matrices, *_quantised(matrices, grad_P, residual_P, kept_P))


def _quantised(matrices: Matrices, *vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bits and the means of all matrices, one after the other."""
    backend = choose(vectors[0])
    if not matrices:
        return vectors[0][:0].to(torch.uint8), vectors[0][:0]
    if backend is Backend.reference:
        found = [quantise_reference(*(matrix_of(v, p) for v in vectors)) for p in matrices]
        bits, means = (torch.cat([t.flatten() for t in some]) for some in zip(*found, strict=True))
        return bits, means
    if backend is Backend.triton:
        from asr_train.kernels import gpu_dense

        return gpu_dense.quantise_all(matrices, *vectors)
    return _on_cpu(matrices, *vectors)


def _on_cpu(matrices: Matrices, *vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `compiled.quantise_all` does."""
    from asr_train.kernels import compiled

    places = np.array(matrices, np.int64).reshape(-1, 3)
    found, means = compiled.quantise_all(places, *(v.detach().numpy() for v in vectors))
    return torch.from_numpy(found), torch.from_numpy(means)


def _split(matrices: Matrices, bits: Tensor, means: Tensor) -> list[OneBit]:
    """Return each matrix's bits and means, of what `_quantised` returns; shares memory."""
    found = []
    byte, mean = bits.storage_offset(), means.storage_offset()
    for _, rows, columns in matrices:  # as_strided takes half the time of split and view
        row_bytes = -(-columns // 8)
        bits_RB = bits.as_strided((rows, row_bytes), (row_bytes, 1), byte)
        found.append(OneBit(bits_RB, means.as_strided((2, columns), (columns, 1), mean)))
        byte += rows * row_bytes
        mean += 2 * columns
    return found


class Sum:
    """The **sum of what workers would send**, of which no message is made: `add_up`, to the bit.

    On a CPU what is quantised is added at once, without bits in between.

    Args:
        matrices: where they are in the flat vectors.
        size: of the flat vectors.
    """

    def __init__(self, matrices: Matrices, size: int, device: torch.device) -> None:
        self.matrices = matrices
        self._total_P = torch.zeros(size, device=device)
        self._sums: list[Tensor] = []  # of means: one NaN or infinity makes a sum one
        self._sent: list[tuple[Tensor, Tensor]] = []  # where they are added at the end

    def add(self, grad_P: Tensor, residual_P: Tensor, kept_P: Tensor) -> None:
        """Quantise a worker's vector as `quantise_all` does, and add what it would send."""
        _check_vectors(self.matrices, grad_P=grad_P, residual_P=residual_P, kept_P=kept_P)
        vectors = grad_P, residual_P, kept_P
        if choose(grad_P) is Backend.cpu:
            _, means = _on_cpu(self.matrices, *vectors, self._total_P)
        else:
            self._sent.append(_quantised(self.matrices, *vectors))
            means = self._sent[-1][1]
        self._sums.append(means.sum())

    def take(self) -> Tensor | None:
        """Return the sum, float32 [size]; None if anything was not finite. To be called once."""
        if self._sent:
            add_up_all(self.matrices, self._sent, self._total_P)
        is_finite = not self._sums or bool(torch.isfinite(torch.stack(self._sums)).all())
        return self._total_P if is_finite else None


def _check_vectors(matrices: Matrices, **vectors: Tensor) -> None:
    check_vectors("onebit.quantise_all", **vectors)
    size = max((o + r * c for o, r, c in matrices), default=0)
    check_shape("grad_P", vectors["grad_P"], size)  # and all others are like it


def matrix_of(vector_P: Tensor, place: tuple[int, int, int]) -> Tensor:
    """Return a matrix of a flat vector, [R, C]; shares memory."""
    offset, rows, columns = place
    return vector_P[offset : offset + rows * columns].view(rows, columns)


def quantise_reference(grad_RC: Tensor, residual_RC: Tensor, kept_RC: Tensor) -> OneBit:
    """Quantise a matrix by tensors. Sums are in float64, so that their order hardly matters."""
    torch.add(residual_RC, grad_RC, out=kept_RC)
    is_high_RC = kept_RC >= 0
    owed_RC = kept_RC.double()
    means = []
    for side_RC in (~is_high_RC, is_high_RC):
        sum_C = owed_RC.where(side_RC, 0.0).sum(0)
        means.append((sum_C / side_RC.sum(0).clamp(min=1)).float())
    means_2C = torch.stack(means)
    kept_RC -= torch.where(is_high_RC, means_2C[1], means_2C[0])
    return OneBit(packed(is_high_RC), means_2C)


def add_up(matrices: Sequence[OneBit], out_RC: Tensor) -> None:
    """Overwrite out_RC with the sum of what workers sent, float32, added in their order.

    Raises:
        ValueError: if shapes or dtypes are wrong.
    """
    check_shape("out_RC", out_RC, None, None)
    if out_RC.dtype is not torch.float32 or not out_RC.is_contiguous():
        raise ValueError(f"onebit.add_up: out_RC is {out_RC.dtype}; it must be contiguous float32")
    assert matrices, "a sum needs at least one matrix"
    rows, columns = out_RC.shape
    for bits_RB, means_2C in matrices:
        check_shape("bits_RB", bits_RB, rows, -(-columns // 8))
        check_shape("means_2C", means_2C, 2, columns)
    backend = choose(out_RC)
    if backend is Backend.reference:
        add_up_reference(matrices, out_RC)
        return
    bits_WRB, means_W2C = (torch.stack(some) for some in zip(*matrices, strict=True))
    if backend is Backend.triton:
        from asr_train.kernels import gpu_dense

        whole = [(0, rows, columns)]
        gpu_dense.add_up(whole, bits_WRB.flatten(1), means_W2C.flatten(1), out_RC.view(-1))
        return
    from asr_train.kernels import compiled

    compiled.add_up(bits_WRB.numpy(), means_W2C.numpy(), out_RC.detach().numpy())


def add_up_all(matrices: Matrices, sent: Sequence[tuple[Tensor, Tensor]], total_P: Tensor) -> None:
    """Overwrite matrices in a flat vector as `add_up` does; on a GPU by one call.

    Args:
        matrices: where they are.
        sent: by worker, at least one, the bits and the means of all matrices as `_quantised` has
            them.
        total_P: float32.
    """
    if not (matrices and choose(total_P) is Backend.triton):
        by_worker = [_split(matrices, *one) for one in sent]
        for number, place in enumerate(matrices):
            add_up([one[number] for one in by_worker], matrix_of(total_P, place))
        return
    from asr_train.kernels import gpu_dense

    bits_WN, means_WN = (torch.stack(some) for some in zip(*sent, strict=True))
    gpu_dense.add_up(matrices, bits_WN, means_WN, total_P)


def add_up_reference(matrices: Sequence[OneBit], out_RC: Tensor) -> None:
    """Compute `add_up`, worker by worker."""
    out_RC.zero_()
    for bits_RB, means_2C in matrices:
        is_high_RC = unpacked(bits_RB, out_RC.shape[1])
        out_RC += torch.where(is_high_RC, means_2C[1], means_2C[0])


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


def packed(is_high_RC: Tensor) -> Tensor:
    """Return bits_RB of a bool matrix."""
    if is_high_RC.device.type == "cpu":
        return torch.from_numpy(np.packbits(is_high_RC.numpy(), axis=1, bitorder="little"))
    columns = is_high_RC.shape[1]
    whole = torch.nn.functional.pad(is_high_RC.to(torch.uint8), (0, -columns % 8))
    return (whole.unflatten(1, (-1, 8)) << _places(whole)).sum(2, dtype=torch.uint8)


def unpacked(bits_RB: Tensor, columns: int) -> Tensor:
    """Return the bool matrix [R, columns] that `packed` was given."""
    if bits_RB.device.type == "cpu":
        bits = np.unpackbits(bits_RB.numpy(), axis=1, count=columns, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    return ((bits_RB[..., None] >> _places(bits_RB)) & 1).flatten(1)[:, :columns].bool()
