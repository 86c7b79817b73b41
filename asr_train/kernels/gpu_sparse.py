"""The kernels for **GPUs** behind threshold and decode, in Triton.

Compression reads residual and gradient and writes what is kept, once each (12 bytes per element; 10
with bfloat16 gradients), and one bit per element that marks the elements to send. A scan over
the tiles' counts then gives each tile its place in the message, and they are extracted from the
bits, 32 elements per step. Several workers' vectors take the same launches. Decoding first finds
where each tile's elements begin in every message, all tiles at once, because a search is a chain of
dependent loads.
Nothing depends on the order in which programs run, and nothing waits for the host.

A mask with a variable end keeps loads from being 16 bytes wide; so WHOLE tiles have a mask whose
end the compiler knows, and only the last tile has a variable one.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from asr_train.kernels.backend import launches

BLOCK = 4096  # elements that a program compresses
GROUP = 8  # such blocks whose sent elements a program extracts
TILE = 2048  # elements whose counts a program decodes
CHUNK = 128  # sent elements that it decodes at once
WORKERS = 32  # workers that it decodes at once; with 64, registers spill
BOUNDS = 128  # tiles whose first sent elements a program finds
WARPS = 8  # per program; with 4, compression takes 203 registers per thread, which lowers occupancy
_INDEX = tl.constexpr(2**31 - 1)
_SIGN = tl.constexpr(-(2**31))
# marks; counts per row and tile, their ends within the row; is_finite per row
Marked = tuple[Tensor, Tensor, Tensor, Tensor]


# --- compress -------------------------------------------------------------------------------------


@triton.jit
def _mark_tile(
    grad,
    residual,
    kept,
    marks,
    counts,
    wrong,
    tile,
    n,
    threshold,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):
    word = tl.arange(0, BLOCK // 32)
    lane = tl.arange(0, 32)
    i = word[:, None] * 32 + lane[None, :]
    inside = i < (BLOCK if WHOLE else n - tile * BLOCK)
    at = tile * BLOCK + i
    owed = tl.load(residual + at, inside, 0.0) + tl.load(grad + at, inside, 0.0).to(tl.float32)
    selected = tl.abs(owed) > threshold
    left = tl.where(owed < 0, owed + threshold, owed - threshold)
    tl.store(kept + at, tl.where(selected, left, owed), inside)
    bits = selected.to(tl.int32)
    tl.store(marks + tile * (BLOCK // 32) + word, tl.sum(bits << lane[None, :], 1))
    tl.store(counts + tile, tl.sum(tl.sum(bits, 1), 0))
    finite = (tl.abs(owed) < float("inf")).to(tl.int32)
    tl.store(wrong + tile, BLOCK - tl.sum(tl.sum(finite, 1), 0))


@triton.jit
def _mark(
    grad,
    residual,
    kept,
    marks,
    counts,
    wrong,
    n,
    grad_stride,
    residual_stride,
    kept_stride,
    num_tiles,
    threshold,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1).to(tl.int64)
    grad += row * grad_stride
    residual += row * residual_stride
    kept += row * kept_stride
    marks += row * num_tiles * (BLOCK // 32)
    counts += row * num_tiles
    wrong += row * num_tiles
    if tile * BLOCK + BLOCK <= n:
        _mark_tile(grad, residual, kept, marks, counts, wrong, tile, n, threshold, BLOCK, True)
    else:
        _mark_tile(grad, residual, kept, marks, counts, wrong, tile, n, threshold, BLOCK, False)


@triton.jit
def _ones(bits):
    """Return how many bits of each int32 are set."""
    x = bits.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _selected_before(marks, tile, offset, BLOCK: tl.constexpr):
    """Return the number of a tile's selected elements before its element `offset`."""
    word = tl.arange(0, BLOCK // 32)
    lane = tl.arange(0, 32)
    bits = (tl.load(marks + tile * (BLOCK // 32) + word)[:, None] >> lane[None, :]) & 1
    before = word[:, None] * 32 + lane[None, :] < offset
    return tl.sum(tl.sum(tl.where(before, bits, 0), 1), 0)


@triton.jit
def _expand(
    grad,
    residual,
    kept,
    marks,
    counts,
    ends,
    turn,
    starts,
    words,
    next_turn,
    num_tiles,
    grad_stride,
    residual_stride,
    kept_stride,
    capacity,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    grad += row * grad_stride
    residual += row * residual_stride
    kept += row * kept_stride
    marks += row * num_tiles * (BLOCK // 32)
    counts += row * num_tiles
    ends += row * num_tiles
    turn += row
    next_turn += row
    words += tl.load(starts + row)
    tile = tl.program_id(0).to(tl.int64) * GROUP
    first_word = tile * (BLOCK // 32)
    word = tl.arange(0, GROUP * (BLOCK // 32))
    is_there = word < num_tiles * (BLOCK // 32) - first_word
    bits = tl.load(marks + first_word + word, is_there, 0)
    ones = _ones(bits)
    # Rank of a word's next element among all selected ones
    rank = tl.load(ends + tile) - tl.load(counts + tile) + tl.cumsum(ones, 0) - ones
    # Hits are sent in turn: ranks from `origin` on, and then from 0
    total = tl.load(ends + num_tiles - 1)
    excess = total - capacity
    origin = total * 0
    if excess > 0:
        at = tl.load(turn)
        first = at // BLOCK
        inner = _selected_before(marks, first, at - first * BLOCK, BLOCK)
        origin = tl.load(ends + first) - tl.load(counts + first) + inner
    straight = excess >= origin  # those sent have consecutive ranks, after some that wait
    skipped = tl.where(straight, origin, tl.maximum(excess, 0))
    rounds = tl.max(ones, 0)
    while rounds > 0:  # each round takes every word's lowest selected element
        selected = bits != 0
        index = (first_word + word) * 32 + _ones(~bits & (bits - 1))
        turned = tl.where(rank < origin, rank + total, rank) - origin
        sent = selected & (turned < capacity)
        # Place in the message: the rank, less the waiting elements before
        place = tl.where((rank < origin) & (excess < origin), rank, rank - skipped)
        # The residual of a selected element has its sign: |owed| > threshold, strictly
        is_negative = tl.load(kept + index, selected, 0.0) < 0
        tl.store(words + place, index.to(tl.int32) | tl.where(is_negative, _SIGN, 0), sent)
        if excess > 0:
            waits = selected & (turned >= capacity)
            owed = tl.load(residual + index, waits, 0.0)
            owed += tl.load(grad + index, waits, 0.0).to(tl.float32)
            tl.store(kept + index, owed, waits)
            tl.store(next_turn + index * 0, index, selected & (turned == capacity))
        bits = bits & (bits - 1)
        rank += 1
        rounds -= 1


def _strides(*matrices: Tensor) -> list[int]:
    """Return the rows' distances; of a single row 0, which a launch knows to be a multiple of 16.

    Rows at multiples of 16 elements are read 16 bytes at a time.
    """
    return [matrix.stride(0) if len(matrix) > 1 else 0 for matrix in matrices]


def _marked(grads_WP: Tensor, residuals_WP: Tensor, threshold: float, kept_WP: Tensor) -> Marked:
    (workers, size), device = grads_WP.shape, grads_WP.device
    num_tiles = triton.cdiv(size, BLOCK)
    marks = torch.empty(workers * num_tiles * (BLOCK // 32), dtype=torch.int32, device=device)
    counts_WM = torch.empty(workers, num_tiles, dtype=torch.int32, device=device)
    wrong_WM = torch.empty_like(counts_WM)
    matrices = (grads_WP, residuals_WP, kept_WP)
    _mark[(num_tiles, workers)](
        *(*matrices, marks, counts_WM, wrong_WM, size, *_strides(*matrices), num_tiles, threshold),
        BLOCK,
        num_warps=WARPS,
    )
    return marks, counts_WM, counts_WM.cumsum(1), (wrong_WM == 0).all(1)


def _expanded(
    grads_WP: Tensor,
    residuals_WP: Tensor,
    kept_WP: Tensor,
    marked: Marked,
    starts_W: Tensor,
    words: Tensor,
    capacity: int,
    turns_W: Tensor,
) -> Tensor:
    marks, counts_WM, ends_WM, _ = marked
    next_turns_W = turns_W.clone()
    workers, num_tiles = counts_WM.shape
    matrices = (grads_WP, residuals_WP, kept_WP)
    tensors = (*matrices, marks, counts_WM, ends_WM, turns_W, starts_W, words, next_turns_W)
    grid = (triton.cdiv(num_tiles, GROUP), workers)
    sizes = (num_tiles, *_strides(*matrices), capacity)
    _expand[grid](*tensors, *sizes, BLOCK, GROUP, num_warps=WARPS)
    return next_turns_W


@launches
def compress_rows(
    grads_WP: Tensor, residuals_WP: Tensor, threshold: float, kept_WP: Tensor
) -> list[tuple[Tensor, bool]]:
    """Compute threshold.compress_rows; waits for the device once, for the messages' lengths."""
    marked = _marked(grads_WP, residuals_WP, threshold, kept_WP)
    counts_W = marked[2][:, -1]
    pairs = torch.stack([counts_W, marked[3].long()], 1).tolist()
    counts = [count for count, _ in pairs]
    words = torch.empty(sum(counts), dtype=torch.int32, device=grads_WP.device)
    starts_W = counts_W.cumsum(0) - counts_W
    turns_W = torch.zeros_like(counts_W)
    _expanded(
        *(grads_WP, residuals_WP, kept_WP, marked, starts_W, words, max(counts), turns_W),
    )
    is_finite = (bool(flag) for _, flag in pairs)
    return list(zip(words.split(counts), is_finite, strict=True))


@launches
def compress_fixed_rows(
    grads_WP: Tensor,
    residuals_WP: Tensor,
    threshold: float,
    kept_WP: Tensor,
    capacity: int,
    turns_W: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute threshold.compress_fixed_rows; never waits."""
    marked = _marked(grads_WP, residuals_WP, threshold, kept_WP)
    words_WC = torch.zeros(len(grads_WP), capacity, dtype=torch.int32, device=grads_WP.device)
    starts_W = torch.arange(len(grads_WP), device=grads_WP.device) * capacity
    next_turns_W = _expanded(
        *(grads_WP, residuals_WP, kept_WP, marked, starts_W, words_WC, capacity, turns_W),
    )
    return words_WC, marked[2][:, -1], next_turns_W, marked[3]


# --- decode ---------------------------------------------------------------------------------------


@triton.jit
def _find(words, starts, lengths, firsts, num_tiles, TILE: tl.constexpr, BOUNDS: tl.constexpr):
    """Write to firsts[w, m] the number of elements of worker w before tile m, m up to num_tiles."""
    w = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BOUNDS + tl.arange(0, BOUNDS)
    inside = m <= num_tiles
    bound = m.to(tl.int64) * TILE
    start = tl.load(starts + w)
    high = tl.load(lengths + w) + bound * 0
    low = high * 0
    left = tl.max(high, 0)
    while left > 0:
        middle = (low + high) // 2
        is_open = inside & (low < high)
        index = (tl.load(words + start + middle, is_open, 0) & _INDEX).to(tl.int64)
        low = tl.where(is_open & (index < bound), middle + 1, low)
        high = tl.where(is_open & (index >= bound), middle, high)
        left = left // 2
    tl.store(firsts + w * (num_tiles + 1) + m, low.to(tl.int32), inside)


@triton.jit
def _put(
    out,
    counts,
    tau,
    rate,
    first,
    n,
    TILE: tl.constexpr,
    UPDATES: tl.constexpr,
    WHOLE: tl.constexpr,
):
    i = tl.arange(0, TILE)
    is_here = i < (TILE if WHOLE else n - first)
    if UPDATES:
        moves = is_here & (counts != 0)
        old = tl.load(out + first + i, moves, 0.0)
        tl.store(out + first + i, tl.fma(tau * counts.to(tl.float32), -rate, old), moves)
    else:
        tl.store(out + first + i, tau * counts.to(tl.float32), is_here)


@triton.jit
def _decode(
    words,
    starts,
    firsts,
    out,
    n,
    workers,
    num_tiles,
    tau,
    rate,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    WORKERS: tl.constexpr,
    UPDATES: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    first = tile * TILE
    counts = tl.zeros([TILE], tl.int32)
    first_worker = tl.program_id(0) * 0
    while first_worker < workers:  # not range: the interpreter cannot take its end from a tensor
        w = first_worker + tl.arange(0, WORKERS)
        inside = w < workers
        row = firsts + w.to(tl.int64) * (num_tiles + 1) + tile
        low = tl.load(row, inside, 0)
        size = tl.load(row + 1, inside, 0) - low
        # The elements of these workers in the tile as one row: find the j-th one's worker
        end = tl.cumsum(size, 0)
        shift = tl.load(starts + w, inside, 0) + (low - (end - size))
        elements = tl.sum(size, 0)
        begin = elements * 0
        while begin < elements:
            j = begin + tl.arange(0, CHUNK)
            owner = tl.sum((j[:, None] >= end[None, :]).to(tl.int32), 1)
            mine = owner[:, None] == tl.arange(0, WORKERS)[None, :]
            at = j + tl.sum(tl.where(mine, shift[None, :], 0), 1)
            word = tl.load(words + at, j < elements, 0)
            offset = ((word & _INDEX).to(tl.int64) - first).to(tl.int32)
            offset = tl.where(j < elements, offset, 0)
            up = tl.histogram(offset, TILE, mask=(j < elements) & (word >= 0))
            down = tl.histogram(offset, TILE, mask=(j < elements) & (word < 0))
            counts += up - down
            begin += CHUNK
        first_worker += WORKERS
    if first + TILE <= n:
        _put(out, counts, tau, rate, first, n, TILE, UPDATES, True)
    else:
        _put(out, counts, tau, rate, first, n, TILE, UPDATES, False)


@launches
def decode(messages: Sequence[Tensor], tau: float, rate: float | None, out_P: Tensor) -> None:
    """Compute decode.total, or decode.update if there is a rate."""
    lengths = [len(words_K) for words_K in messages]
    words = torch.cat([*messages, torch.empty(0, dtype=torch.int32, device=out_P.device)])
    lengths_W = torch.tensor(lengths, dtype=torch.int64, device=out_P.device)
    _decode_rows(words, lengths_W.cumsum(0) - lengths_W, lengths_W, tau, rate, out_P)


@launches
def decode_fixed(
    words_WC: Tensor, lengths_W: Tensor, tau: float, rate: float | None, out_P: Tensor
) -> None:
    """Compute `decode` of messages made by threshold.compress_fixed; never waits.

    Args:
        words_WC: int32 [workers, capacity], as gathered.
        lengths_W: int64 [workers] on the device; lengths beyond capacity are cut to it.
    """
    workers, capacity = words_WC.shape
    starts_W = torch.arange(workers, device=out_P.device) * capacity
    lengths_W = lengths_W.clamp(max=capacity)
    _decode_rows(words_WC.flatten(), starts_W, lengths_W, tau, rate, out_P)


def _decode_rows(
    words: Tensor,
    starts_W: Tensor,
    lengths_W: Tensor,
    tau: float,
    rate: float | None,
    out_P: Tensor,
) -> None:
    workers, num_tiles = len(starts_W), triton.cdiv(len(out_P), TILE)
    firsts = torch.empty(workers, num_tiles + 1, dtype=torch.int32, device=out_P.device)
    if workers:
        grid = (triton.cdiv(num_tiles + 1, BOUNDS), workers)
        _find[grid](words, starts_W, lengths_W, firsts, num_tiles, TILE, BOUNDS)
    _decode[(num_tiles,)](
        *(words, starts_W, firsts, out_P, len(out_P), workers, num_tiles, tau, rate or 0.0),
        TILE=TILE,
        CHUNK=CHUNK,
        WORKERS=min(WORKERS, triton.next_power_of_2(max(1, workers))),
        UPDATES=rate is not None,
        num_warps=WARPS,
        enable_fp_fusion=False,  # apart from explicit tl.fma
    )
