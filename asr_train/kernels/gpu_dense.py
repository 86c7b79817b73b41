"""The kernels for **GPUs** behind onebit and checksum, in Triton.

Each reads its inputs and writes its outputs once, but for the one-bit quantiser, which reads its
inputs a second time, from a cache if they fit. All matrices of a vector take one launch, in which
a program finds its own in a table on the device. Elements of one matrix, at most 2**31 - 1, are
numbered in 32 bits to save registers.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from asr_train.kernels.backend import launches

BYTES = 4  # of bits in a row of a strip that a program quantises: 8 columns each
ROWS = 64  # of a strip that a program reads at once
WARPS = 4
HIGH, WIDE = 8, 32  # rows, and bytes of bits in a row, of a tile that a program adds up
ADD_WARPS = 4
BLOCK = 1024  # elements per program


class _Table(NamedTuple):
    """Where matrices lie in flat vectors, and the sizes of what belongs to all."""

    fields: Tensor  # int64 [7, M]: see `_find`; M is a power of two
    num_bytes: int
    num_means: int
    num_strips: int
    num_tiles: int


@functools.lru_cache(maxsize=1024)
def _table(matrices: tuple[tuple[int, int, int], ...], device: torch.device) -> _Table:
    offset, rows, columns = np.array(matrices, np.int64).T
    row_bytes = -(-columns // 8)
    tiles = -(-rows // HIGH) * -(-row_bytes // WIDE)
    sizes = np.stack([rows * row_bytes, 2 * columns, -(-row_bytes // BYTES), tiles])
    ends = sizes.cumsum(1)
    fields = np.full((7, triton.next_power_of_2(len(matrices))), np.iinfo(np.int64).max)
    fields[:, : len(matrices)] = [offset, rows, columns, *(ends - sizes)]
    return _Table(torch.from_numpy(fields).to(device), *ends[:, -1].tolist())


@triton.jit
def _find(table, FIRSTS: tl.constexpr, MATRICES: tl.constexpr):
    """Return the program's matrix and its number therein; FIRSTS: 5 for strips, 6 for tiles."""
    program = tl.program_id(0)
    firsts = tl.load(table + FIRSTS * MATRICES + tl.arange(0, MATRICES))
    own = table + tl.sum((firsts <= program).to(tl.int32), 0) - 1
    return (
        tl.load(own),  # offset of its elements
        tl.load(own + MATRICES).to(tl.int32),  # rows
        tl.load(own + 2 * MATRICES).to(tl.int32),  # columns
        tl.load(own + 3 * MATRICES),  # offset of its bits
        tl.load(own + 4 * MATRICES),  # offset of its means
        (program - tl.load(own + FIRSTS * MATRICES)).to(tl.int32),
    )


@triton.jit
def _owed(grad, residual, row, rows, column, columns):
    """Return what is owed, 0 outside of the matrix; where it lies; and what is inside."""
    inside = (row < rows)[:, None, None] & (column < columns)[None, :, :]
    at = row[:, None, None] * columns + column[None, :, :]
    owed = tl.load(residual + at, inside, 0.0) + tl.load(grad + at, inside, 0.0)
    return owed, at, inside


@triton.jit
def _mean(total, count):
    return tl.div_rn(total, tl.maximum(count, 1).to(tl.float32))


@triton.jit
def _quantise(
    grad,
    residual,
    kept,
    bits,
    means,
    table,
    MATRICES: tl.constexpr,
    ROWS: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Quantise a strip of columns, by [row, byte, bit]."""
    offset, rows, columns, bits_offset, means_offset, strip = _find(table, 5, MATRICES)
    grad += offset
    residual += offset
    kept += offset
    bits += bits_offset
    means += means_offset
    row = tl.arange(0, ROWS)
    byte = strip * BYTES + tl.arange(0, BYTES)
    bit = tl.arange(0, 8)
    column = byte[:, None] * 8 + bit[None, :]
    low = tl.zeros([BYTES, 8], tl.float32)
    high = tl.zeros([BYTES, 8], tl.float32)
    highs = tl.zeros([BYTES, 8], tl.int32)
    first = tl.cast(0, tl.int32)
    while first < rows:
        owed, _, inside = _owed(grad, residual, first + row, rows, column, columns)
        is_high = owed >= 0  # not a NaN, so that it shows in a mean
        low += tl.sum(tl.where(is_high, 0.0, owed), 0)
        high += tl.sum(tl.where(is_high, owed, 0.0), 0)
        highs += tl.sum((is_high & inside).to(tl.int32), 0)
        first += ROWS
    low = _mean(low, rows - highs)
    high = _mean(high, highs)
    tl.store(means + column, low, column < columns)
    tl.store(means + columns + column, high, column < columns)
    row_bytes = tl.cdiv(columns, 8)
    while first > 0:  # what was read last is likeliest in a cache
        first -= ROWS
        owed, at, inside = _owed(grad, residual, first + row, rows, column, columns)
        is_high = owed >= 0
        value = tl.where(is_high, high[None, :, :], low[None, :, :])
        tl.store(kept + at, owed - value, inside)
        packed = tl.sum((is_high & inside).to(tl.int32) << bit[None, None, :], 2).to(tl.uint8)
        is_there = (first + row < rows)[:, None] & (byte < row_bytes)[None, :]
        tl.store(bits + (first + row)[:, None] * row_bytes + byte[None, :], packed, is_there)


@launches
def quantise_all(
    matrices: Sequence[tuple[int, int, int]], grad_P: Tensor, residual_P: Tensor, kept_P: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute onebit.quantise_all; the float32 sums may differ in the last bit.

    Returns:
        The bits and the means of all matrices, one after the other.
    """
    table = _table(tuple(matrices), kept_P.device)
    bits = torch.empty(table.num_bytes, dtype=torch.uint8, device=kept_P.device)
    means = torch.empty(table.num_means, device=kept_P.device)
    _quantise[(table.num_strips,)](
        *(grad_P, residual_P, kept_P, bits, means, table.fields),
        *(table.fields.shape[1], ROWS, BYTES),
        num_warps=WARPS,
    )
    return bits, means


@triton.jit
def _add_up(
    bits,
    means,
    out,
    table,
    num_bytes,
    num_means,
    MATRICES: tl.constexpr,
    WORKERS: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
):
    offset, rows, columns, bits_offset, means_offset, tile = _find(table, 6, MATRICES)
    row_bytes = tl.cdiv(columns, 8)
    tiles = tl.cdiv(row_bytes, WIDE)  # side by side
    row = tile // tiles * HIGH + tl.arange(0, HIGH)
    byte = tile % tiles * WIDE + tl.arange(0, WIDE)
    bit = tl.arange(0, 8)
    column = byte[:, None] * 8 + bit[None, :]
    byte_at = row[:, None] * row_bytes + byte[None, :]
    is_there = (row < rows)[:, None] & (byte < row_bytes)[None, :]
    bits += bits_offset
    means += means_offset
    total = tl.zeros([HIGH, WIDE, 8], tl.float32)
    for _ in range(WORKERS):
        eight = tl.load(bits + byte_at, is_there, 0).to(tl.int32)
        low = tl.load(means + column, column < columns, 0.0)
        high = tl.load(means + columns + column, column < columns, 0.0)
        is_high = ((eight[:, :, None] >> bit[None, None, :]) & 1) != 0
        total += tl.where(is_high, high[None, :, :], low[None, :, :])
        bits += num_bytes
        means += num_means
    inside = (row < rows)[:, None, None] & (column < columns)[None, :, :]
    at = row[:, None, None] * columns + column[None, :, :]
    tl.store(out + offset + at, total, inside)


@launches
def add_up(
    matrices: Sequence[tuple[int, int, int]], bits_WN: Tensor, means_WN: Tensor, total_P: Tensor
) -> None:
    """Compute onebit.add_up_all, from workers' bits and means as `quantise_all` returns them."""
    table = _table(tuple(matrices), total_P.device)
    _add_up[(table.num_tiles,)](
        *(bits_WN, means_WN, total_P, table.fields, table.num_bytes, table.num_means),
        *(table.fields.shape[1], len(bits_WN), HIGH, WIDE),
        num_warps=ADD_WARPS,
    )


@triton.jit(do_not_specialize=["blocks"])
def _checksum(content, starts, lengths, sums, blocks, BLOCK: tl.constexpr):
    """Write to sums[w, b] the sum of the mixed words of block b of payload w."""
    w = tl.program_id(1)
    b = tl.program_id(0)
    i = b * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(starts + w)
    length = tl.load(lengths + w)
    word = tl.zeros([BLOCK], tl.uint32)
    for place in tl.static_range(4):
        at = 4 * i.to(tl.int64) + place
        byte = tl.load(content + start + at, at < length, 0)
        word |= byte.to(tl.uint32) << (8 * place)
    x = word * ((2 * i).to(tl.uint32) * 0x9E3779B9 + 1)
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    x = x ^ (x >> 16)
    total = tl.sum(tl.where(4 * i.to(tl.int64) < length, x, 0).to(tl.int64), 0)
    tl.store(sums + w * blocks + b, total)


@launches
def checksums(*payloads: Tensor) -> Tensor:
    """Compute checksum.checksums."""
    device = payloads[0].device
    lengths_W = torch.tensor([len(p) for p in payloads], dtype=torch.int64)
    lengths_W = lengths_W.to(device, non_blocking=True)
    starts_W = lengths_W.cumsum(0) - lengths_W
    blocks = triton.cdiv(max(map(len, payloads)), 4 * BLOCK)
    sums = torch.empty(len(payloads), blocks, dtype=torch.int64, device=device)
    grid = (blocks, len(payloads))
    if blocks:
        _checksum[grid](torch.cat(payloads), starts_W, lengths_W, sums, blocks, BLOCK=BLOCK)
    return sums.sum(1) & (2**32 - 1)
