"""Which **columns of which matrices** each worker owns, and their one-bit form in a message.

A matrix is a parameter's [outputs, inputs]; a bias is [outputs, 1]. What a worker owns of one
matrix is a block: whole columns, from a multiple of 8 on. A part is a worker's blocks, one after
the other, each row by row.

    payload    two means per column, float32: all the low ones of a block, then the high ones,
               block by block; then the blocks' bits, row by row: 8 columns per byte, then those
               that do not fill a byte, without gaps
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asr_train.comm.optimizer import Shape
from asr_train.kernels import onebit
from asr_train.kernels.onebit import OneBit


@dataclass(frozen=True, slots=True)
class Block:
    """Whole columns of a matrix."""

    matrix: int
    rows: int
    first: int  # column, a multiple of 8
    columns: int
    offset: int  # elements of the part before it

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def of(self, part: Tensor) -> Tensor:
        """Return the block's matrix in a part; shares memory."""
        return part[self.offset : self.offset + self.size].view(self.rows, self.columns)

    def quantised(self, whole: OneBit) -> OneBit:
        """Return the block of a quantised matrix."""
        last = self.first + self.columns
        return OneBit(
            whole.bits_RB[:, self.first // 8 : -(-last // 8)], whole.means_2C[:, self.first : last]
        )


class Layout:
    """Where matrices lie in a flat vector, and which columns each worker owns."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.matrices: list[tuple[int, int, int]] = []  # offset, rows, columns
        self.size = 0
        for shape in shapes:
            rows, columns = shape[0] if shape else 1, math.prod(shape[1:])
            if rows * columns:  # a parameter may be empty
                self.matrices.append((self.size, rows, columns))
                self.size += rows * columns

    def of(self, vector_P: Tensor, matrix: int) -> Tensor:
        """Return a matrix of a flat vector, [R, C]; shares memory."""
        return onebit.matrix_of(vector_P, self.matrices[matrix])

    def cut(self, vector_P: Tensor, block: Block) -> Tensor:
        """Return a block of a flat vector, [R, C]; shares memory."""
        return self.of(vector_P, block.matrix)[:, block.first : block.first + block.columns]

    def blocks(self, place: int, workers: int) -> list[Block]:
        """Return what the worker at `place` owns: as near to 1/K as cuts of 8 columns allow."""
        begin, end = (self._cut(p, workers) for p in (place, place + 1))
        found, offset = [], 0
        for number, (before, rows, columns) in enumerate(self.matrices):
            first, last = (min(columns, max(0, (at - before) // rows)) for at in (begin, end))
            if first < last:
                found.append(Block(number, rows, first, last - first, offset))
                offset += rows * (last - first)
        return found

    def _cut(self, place: int, workers: int) -> int:
        """Return the elements, column after column, before a worker's own."""
        wanted = self.size * place / workers
        for before, rows, columns in self.matrices:
            if wanted <= before + rows * columns:
                low = 8 * int((wanted - before) / (8 * rows))
                near = (before + rows * min(columns, column) for column in (low, low + 8))
                return min(near, key=lambda at: abs(at - wanted))
        return self.size

    def range_of(self, place: int, workers: int) -> range:
        """Return what a worker owns, as elements counted column after column."""
        return range(self._cut(place, workers), self._cut(place + 1, workers))


def by_columns(part: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Return a part in the order of columns, which does not depend on the cut."""
    return torch.cat([part[:0], *(block.of(part).T.flatten() for block in blocks)])


def by_rows(ordered: Tensor, blocks: Sequence[Block]) -> Tensor:
    """Return the part that `by_columns` was given."""
    shaped = (b.of(ordered).view(b.columns, b.rows).T.flatten() for b in blocks)
    return torch.cat([ordered[:0], *shaped])


# --- payloads -------------------------------------------------------------------------------------


def payload_bytes(blocks: Sequence[Block]) -> int:
    """Return the bytes of these blocks: 1 bit per element, 64 per column."""
    return sum(8 * block.columns + -(-block.size // 8) for block in blocks)


def write(quantised: Sequence[OneBit], device: torch.device) -> Tensor:
    """Return the payload of a part's blocks, uint8 [payload_bytes]."""
    content = [torch.empty(0, dtype=torch.uint8, device=device)]
    content += [q.means_2C.contiguous().view(torch.uint8).flatten() for q in quantised]
    for bits_RB, means_2C in quantised:
        whole, rest = divmod(means_2C.shape[1], 8)
        content.append(bits_RB[:, :whole].flatten())
        if rest:
            is_high = onebit.unpacked(bits_RB[:, whole:], rest)
            content.append(onebit.packed(is_high.reshape(1, -1)).flatten())
    return torch.cat(content)


def read(payload_B: Tensor, blocks: Sequence[Block]) -> list[OneBit]:
    """Return the blocks that `write` was given."""
    count = 2 * sum(block.columns for block in blocks)
    means = payload_B[: 4 * count].clone().view(torch.float32)  # cloned, for alignment
    found, at, mean_at = [], 4 * count, 0
    for block in blocks:
        whole, rest = divmod(block.columns, 8)
        means_2C = means[mean_at : mean_at + 2 * block.columns].view(2, block.columns)
        mean_at += 2 * block.columns
        bits_RB = payload_B[at : at + block.rows * whole].view(block.rows, whole)
        at += block.rows * whole
        if rest:
            length = -(-block.rows * rest // 8)
            is_high = onebit.unpacked(payload_B[None, at : at + length], block.rows * rest)
            bits_RB = torch.cat([bits_RB, onebit.packed(is_high.view(block.rows, rest))], 1)
            at += length
        found.append(OneBit(bits_RB, means_2C))
    return found


def is_finite(quantised: Iterable[OneBit]) -> bool:
    """Return whether all means are finite, and so all elements."""
    means = [q.means_2C.sum() for q in quantised]  # one NaN or infinity makes the sum one
    return not means or bool(torch.isfinite(torch.stack(means)).all())
