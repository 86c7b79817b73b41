"""The kernels for **GPUs** behind onebit, block, splice and checksum, in Triton.

Each reads its inputs and writes its outputs once; a matrix of more than MAX_ROWS rows is read twice
by the one-bit quantiser, because its columns no longer fit a program's registers. Elements of one
matrix, at most 2**31 - 1, are numbered in 32 bits to save registers.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from asr_train.kernels.backend import launches

COLUMNS = tl.constexpr(8)  # a byte of bits; and 32 bytes, the least memory transaction
MAX_ROWS = 1024  # of which a program holds 8 columns; with 2,048 its registers spill
ROWS = 1024  # per step of longer columns
BLOCK = 1024  # elements per program


@triton.jit
def _sides(owed, inside):
    """Return sums and numbers by column: of the negative elements, and of the others."""
    high = inside & (owed >= 0)
    low = inside & ~(owed >= 0)  # a NaN too, so that it shows in a mean
    return (
        tl.sum(tl.where(low, owed, 0.0), 0),
        tl.sum(low.to(tl.int32), 0),
        tl.sum(tl.where(high, owed, 0.0), 0),
        tl.sum(high.to(tl.int32), 0),
    )


@triton.jit
def _mean(total, count):
    return tl.div_rn(total, tl.maximum(count, 1).to(tl.float32))


@triton.jit
def _owed(grad, residual, at, inside):
    return tl.load(residual + at, inside, 0.0) + tl.load(grad + at, inside, 0.0).to(tl.float32)


@triton.jit
def _write(owed, low_mean, high_mean, kept, at, inside, bits, row, bits_stride, place):
    high = owed >= 0
    value = tl.where(high, high_mean[None, :], low_mean[None, :])
    tl.store(kept + at, owed - value, inside)
    shift = tl.arange(0, COLUMNS)
    byte = tl.sum((high & inside).to(tl.int32) << shift[None, :], 1)
    # One byte of each row, row by row: 16 at once. Strides are multiples of 16, unlike rows
    first = bits + place.to(tl.int64) * bits_stride
    tl.store(first + row, byte.to(tl.uint8), row < bits_stride)


@triton.jit
def _quantise_held(
    grad, residual, kept, bits, means, rows, columns, bits_stride, ROWS: tl.constexpr
):
    place = tl.program_id(0)
    column = place * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row[:, None] * columns + column[None, :]
    owed = _owed(grad, residual, at, inside)
    low, lows, high, highs = _sides(owed, inside)
    low_mean, high_mean = _mean(low, lows), _mean(high, highs)
    tl.store(means + column, low_mean, column < columns)
    tl.store(means + columns + column, high_mean, column < columns)
    _write(owed, low_mean, high_mean, kept, at, inside, bits, row, bits_stride, place)


@triton.jit
def _quantise_long(
    grad, residual, kept, bits, means, rows: tl.constexpr, columns, bits_stride, ROWS: tl.constexpr
):
    place = tl.program_id(0)
    column = place * COLUMNS + tl.arange(0, COLUMNS)
    low = tl.zeros([COLUMNS], tl.float32)
    high = tl.zeros([COLUMNS], tl.float32)
    lows = tl.zeros([COLUMNS], tl.int32)
    highs = tl.zeros([COLUMNS], tl.int32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = row[:, None] * columns + column[None, :]
        a, b, c, d = _sides(_owed(grad, residual, at, inside), inside)
        low += a
        lows += b
        high += c
        highs += d
    low_mean, high_mean = _mean(low, lows), _mean(high, highs)
    tl.store(means + column, low_mean, column < columns)
    tl.store(means + columns + column, high_mean, column < columns)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        at = row[:, None] * columns + column[None, :]
        owed = _owed(grad, residual, at, inside)
        _write(owed, low_mean, high_mean, kept, at, inside, bits, row, bits_stride, place)


def warps(rows: int) -> int:
    """Return warps so that a thread holds 16 elements of 8 columns, at least 4.

    With 32 elements a thread takes 180 registers and more (sm_90, see tests/kernels/gpu_code.py).
    """
    return max(4, rows // 64)


@launches
def quantise(grad_RC: Tensor, residual_RC: Tensor, kept_RC: Tensor) -> tuple[Tensor, Tensor]:
    """Compute onebit.quantise: bits and means; the float32 sums may differ in the last bit."""
    rows, columns = grad_RC.shape
    row_bytes = triton.cdiv(columns, 8)
    stride = triton.cdiv(rows, 16) * 16
    bits_BR = torch.empty(row_bytes, stride, dtype=torch.uint8, device=grad_RC.device)
    means = torch.empty(2, columns, dtype=torch.float32, device=grad_RC.device)
    is_held = rows <= MAX_ROWS
    kernel = _quantise_held if is_held else _quantise_long
    held = triton.next_power_of_2(rows) if is_held else ROWS
    kernel[(row_bytes,)](
        *(grad_RC, residual_RC, kept_RC, bits_BR, means, rows, columns, stride),
        ROWS=held,
        num_warps=warps(held),
    )
    return bits_BR[:, :rows].t().contiguous(), means


@triton.jit
def _add_up(
    bits,
    means,
    out,
    rows,
    columns,
    row_bytes,
    WORKERS: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * HIGH + tl.arange(0, HIGH)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    total = tl.zeros([HIGH, WIDE], tl.float32)
    for w in range(WORKERS):  # a size of 1 is a constant, which has no method `to`
        at = (row + w * tl.cast(rows, tl.int64))[:, None] * row_bytes + (column // 8)[None, :]
        byte = tl.load(bits + at, inside, 0).to(tl.int32)
        mean = means + 2 * w * tl.cast(columns, tl.int64) + column
        low = tl.load(mean, column < columns, 0.0)
        high = tl.load(mean + columns, column < columns, 0.0)
        is_high = ((byte >> (column % 8)[None, :]) & 1) != 0
        total += tl.where(is_high, high[None, :], low[None, :])
    tl.store(out + row[:, None] * columns + column[None, :], total, inside)


@launches
def add_up(bits_WRB: Tensor, means_W2C: Tensor, out_RC: Tensor) -> None:
    """Compute onebit.add_up."""
    rows, columns = out_RC.shape
    workers, _, row_bytes = bits_WRB.shape
    wide = min(128, triton.next_power_of_2(columns))
    high = 2048 // wide
    _add_up[(triton.cdiv(rows, high), triton.cdiv(columns, wide))](
        *(bits_WRB, means_W2C, out_RC, rows, columns, row_bytes), workers, high, wide
    )


@triton.jit
def _block_tile(
    mean,
    weights,
    delta,
    start,
    first,
    n,
    eta,
    zeta,
    ahead,
    look,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):
    inside = tl.arange(0, BLOCK) < (BLOCK if WHOLE else n - first)
    i = first + tl.arange(0, BLOCK)
    old = tl.load(weights + i, inside, 0.0)
    moved = tl.load(delta + i, inside, 0.0)
    began = tl.where(look == 0, old, tl.fma(moved, look, old))
    gain = tl.load(mean + i, inside, 0.0) - began
    moved = tl.fma(gain, zeta, moved * eta)
    new = tl.fma(moved, ahead, old)
    tl.store(delta + i, moved, inside)
    tl.store(weights + i, new, inside)
    tl.store(start + i, tl.where(look == 0, new, tl.fma(moved, look, new)), inside)


@triton.jit
def _block_step(mean, weights, delta, start, n, eta, zeta, ahead, look, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    if first + BLOCK <= n:
        _block_tile(mean, weights, delta, start, first, n, eta, zeta, ahead, look, BLOCK, True)
    else:
        _block_tile(mean, weights, delta, start, first, n, eta, zeta, ahead, look, BLOCK, False)


@launches
def block_step(
    mean_P: Tensor, weights_P: Tensor, delta_P: Tensor, start_P: Tensor, *factors: float
) -> None:
    """Compute block.step."""
    size = mean_P.numel()
    _block_step[(triton.cdiv(size, BLOCK),)](
        *(mean_P, weights_P, delta_P, start_P, size, *factors, BLOCK), enable_fp_fusion=False
    )


@triton.jit
def _windows(rows, starts, out, width, length, BLOCK: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(starts + b) * width
    tl.store(out + b * length + i, tl.load(rows + first + i, i < length), i < length)


@launches
def windows(rows_RF: Tensor, start_B: Tensor, window: int) -> Tensor:
    """Compute splice.windows."""
    width = rows_RF.shape[1]
    out = torch.empty(len(start_B), window, width, device=rows_RF.device)
    if len(start_B):
        length = window * width
        block = min(BLOCK, triton.next_power_of_2(length))
        grid = (len(start_B), triton.cdiv(length, block))
        _windows[grid](rows_RF, start_B, out, width, length, block)
    return out


@triton.jit
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
def checksums(payloads: Sequence[Tensor], out_W: Tensor) -> None:
    """Compute checksum.checksums; overwrite out_W, int64."""
    device = out_W.device
    lengths_W = torch.tensor([len(p) for p in payloads], dtype=torch.int64, device=device)
    starts_W = lengths_W.cumsum(0) - lengths_W
    blocks = triton.cdiv(max(map(len, payloads)), 4 * BLOCK)
    sums = torch.empty(len(payloads), blocks, dtype=torch.int64, device=device)
    grid = (blocks, len(payloads))
    if blocks:
        _checksum[grid](torch.cat(list(payloads)), starts_W, lengths_W, sums, blocks, BLOCK=BLOCK)
    out_W.copy_(sums.sum(1) & (2**32 - 1))
