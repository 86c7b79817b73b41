"""The kernels for **GPUs** behind threshold and decode, in Triton.

Compression reads residual and gradient and writes what is kept, once each (12 bytes an element; 10
with bfloat16 gradients), and a bit an element that says where hits are. A scan over the tiles'
counts then gives each tile its place in the message, and only tiles with hits are looked at again.
Nothing depends on the order in which programs run, and nothing waits for the host.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # elements a program compresses
TILE = 2048  # elements whose counts a program decodes
CHUNK = 256  # hits it takes at once
_INDEX = tl.constexpr(2**31 - 1)
_SIGN = tl.constexpr(-(2**31))


# --- compress -------------------------------------------------------------------------------------


@triton.jit
def _mark(grad, residual, kept, marks, counts, wrong, n, threshold, BLOCK: tl.constexpr):
    tile = tl.program_id(0).to(tl.int64)
    word = tl.arange(0, BLOCK // 32)
    lane = tl.arange(0, 32)
    i = word[:, None] * 32 + lane[None, :]
    inside = i < n - tile * BLOCK  # the last program is ragged
    at = tile * BLOCK + i
    owed = tl.load(residual + at, inside, 0.0) + tl.load(grad + at, inside, 0.0).to(tl.float32)
    hit = tl.abs(owed) > threshold
    left = tl.where(owed < 0, owed + threshold, owed - threshold)
    tl.store(kept + at, tl.where(hit, left, owed), inside)
    bits = hit.to(tl.int32)
    tl.store(marks + tile * (BLOCK // 32) + word, tl.sum(bits << lane[None, :], 1))
    tl.store(counts + tile, tl.sum(tl.sum(bits, 1), 0))
    finite = (tl.abs(owed) < float("inf")).to(tl.int32)
    tl.store(wrong + tile, BLOCK - tl.sum(tl.sum(finite, 1), 0))


@triton.jit
def _bits_before(marks, tile, offset, BLOCK: tl.constexpr):
    """Hits of a tile that lie before its element `offset`."""
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
    words,
    next_turn,
    num_tiles,
    capacity,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + tile)
    if count > 0:
        word = tl.arange(0, BLOCK // 32)
        lane = tl.arange(0, 32)
        bits = (tl.load(marks + tile * (BLOCK // 32) + word)[:, None] >> lane[None, :]) & 1
        hit = bits != 0
        in_word = tl.cumsum(bits, 1) - bits
        ones = tl.sum(bits, 1)
        before = tl.load(ends + tile) - count
        rank = before + (tl.cumsum(ones, 0) - ones)[:, None] + in_word  # among all hits
        # Whose turn it is: ranks from `origin` on, and then from 0
        total = tl.load(ends + num_tiles - 1)
        excess = total - capacity
        origin = total * 0
        if excess > 0:
            at = tl.load(turn)
            first = at // BLOCK
            inner = _bits_before(marks, first, at - first * BLOCK, BLOCK)
            origin = tl.load(ends + first) - tl.load(counts + first) + inner
        turned = tl.where(rank < origin, rank + total, rank) - origin
        sent = hit & (turned < capacity)
        # The place in the message: rank less those before that wait
        straight = excess >= origin  # all that are sent lie in one piece, after those who wait
        skipped = tl.where(straight, origin, tl.maximum(excess, 0))
        place = tl.where((rank < origin) & (excess < origin), rank, rank - skipped)
        index = tile * BLOCK + word[:, None] * 32 + lane[None, :]
        # What is left of a hit has its sign: |owed| > threshold, strictly
        is_negative = tl.load(kept + index, hit, 0.0) < 0
        value = index.to(tl.int32) | tl.where(is_negative, _SIGN, 0)
        tl.store(words + place, value, sent)
        if excess > 0:
            waits = hit & (turned >= capacity)
            owed = tl.load(residual + index, waits, 0.0)
            owed += tl.load(grad + index, waits, 0.0).to(tl.float32)
            tl.store(kept + index, owed, waits)
            tl.store(next_turn + index * 0, index, hit & (turned == capacity))


def _marked(grad_P: Tensor, residual_P: Tensor, threshold: float, kept_P: Tensor):
    size, device = grad_P.numel(), grad_P.device
    num_tiles = triton.cdiv(size, BLOCK)
    marks = torch.empty(num_tiles * (BLOCK // 32), dtype=torch.int32, device=device)
    counts_M = torch.empty(num_tiles, dtype=torch.int32, device=device)
    wrong_M = torch.empty_like(counts_M)
    _mark[(num_tiles,)](
        grad_P, residual_P, kept_P, marks, counts_M, wrong_M, size, threshold, BLOCK
    )
    return marks, counts_M, counts_M.cumsum(0), (wrong_M == 0).all()


def _expanded(grad_P, residual_P, kept_P, marked, words, capacity, turn):
    marks, counts_M, ends_M, _ = marked
    next_turn = turn.clone()
    num_tiles = len(counts_M)
    tensors = (grad_P, residual_P, kept_P, marks, counts_M, ends_M, turn, words, next_turn)
    _expand[(num_tiles,)](*tensors, num_tiles, capacity, BLOCK)
    return next_turn


def compress(
    grad_P: Tensor, residual_P: Tensor, threshold: float, kept_P: Tensor
) -> tuple[Tensor, bool]:
    """As threshold.compress; waits for the device once, to learn how long the message is."""
    if not len(grad_P):
        return torch.empty(0, dtype=torch.int32, device=grad_P.device), True
    marked = _marked(grad_P, residual_P, threshold, kept_P)
    count, is_finite = torch.stack([marked[2][-1], marked[3].long()]).tolist()
    words_K = torch.empty(count, dtype=torch.int32, device=grad_P.device)
    turn = torch.zeros((), dtype=torch.int64, device=grad_P.device)
    _expanded(grad_P, residual_P, kept_P, marked, words_K, count, turn)
    return words_K, bool(is_finite)


def compress_fixed(
    grad_P: Tensor,
    residual_P: Tensor,
    threshold: float,
    kept_P: Tensor,
    capacity: int,
    turn: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As threshold.compress_fixed; never waits."""
    marked = _marked(grad_P, residual_P, threshold, kept_P)
    words_C = torch.zeros(capacity, dtype=torch.int32, device=grad_P.device)
    next_turn = _expanded(grad_P, residual_P, kept_P, marked, words_C, capacity, turn)
    return words_C, marked[2][-1], next_turn, marked[3]


# --- decode ---------------------------------------------------------------------------------------


@triton.jit
def _first_at(words, starts, lengths, inside, bound, STEPS: tl.constexpr):
    """By worker: its first hit that lies at `bound` or beyond."""
    low = lengths * 0
    high = lengths
    for _ in range(STEPS):
        middle = (low + high) // 2
        open_ = inside & (low < high)
        index = tl.load(words + starts + middle, open_, 0) & _INDEX
        below = open_ & (index.to(tl.int64) < bound)
        low = tl.where(below, middle + 1, low)
        high = tl.where(open_ & (index.to(tl.int64) >= bound), middle, high)
    return low


@triton.jit
def _decode(
    words,
    starts,
    lengths,
    out,
    n,
    workers,
    factor,
    STEPS: tl.constexpr,
    WORKERS: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    UPDATES: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64) * TILE
    w = tl.arange(0, WORKERS)
    inside = w < workers
    start = tl.load(starts + w, inside, 0)
    length = tl.load(lengths + w, inside, 0)
    low = _first_at(words, start, length, inside, tile, STEPS)
    size = _first_at(words, start, length, inside, tile + TILE, STEPS) - low
    # All workers' hits of the tile in one row: which worker's is the j-th, and where is it?
    end = tl.cumsum(size, 0)
    shift = start + low - (end - size)
    hits = tl.sum(size, 0)
    counts = tl.zeros([TILE], tl.int32)
    begin = hits * 0
    while begin < hits:  # not range: the interpreter cannot take its end from a tensor
        j = begin + tl.arange(0, CHUNK)
        owner = tl.sum((j[:, None] >= end[None, :]).to(tl.int32), 1)
        mine = owner[:, None] == w[None, :]
        at = j + tl.sum(tl.where(mine, shift[None, :], 0), 1)
        word = tl.load(words + at, j < hits, 0)
        offset = ((word & _INDEX).to(tl.int64) - tile).to(tl.int32)
        offset = tl.where(j < hits, offset, 0)
        up = tl.histogram(offset, TILE, mask=(j < hits) & (word >= 0))
        down = tl.histogram(offset, TILE, mask=(j < hits) & (word < 0))
        counts += up - down
        begin += CHUNK
    i = tl.arange(0, TILE)
    is_here = i < n - tile
    if UPDATES:
        moves = is_here & (counts != 0)
        old = tl.load(out + tile + i, moves, 0.0)
        tl.store(out + tile + i, old + factor * counts.to(tl.float32), moves)
    else:
        tl.store(out + tile + i, factor * counts.to(tl.float32), is_here)


def decode(messages: Sequence[Tensor], factor: float, out_P: Tensor, updates: bool) -> None:
    """As decode.total, and decode.update."""
    lengths = [len(words_K) for words_K in messages]
    words = torch.cat([*messages, torch.empty(0, dtype=torch.int32, device=out_P.device)])
    lengths_W = torch.tensor(lengths, dtype=torch.int64, device=out_P.device)
    longest = max(lengths, default=0)
    _decode_rows(words, lengths_W.cumsum(0) - lengths_W, lengths_W, longest, factor, out_P, updates)


def decode_fixed(
    words_WC: Tensor, lengths_W: Tensor, factor: float, out_P: Tensor, updates: bool
) -> None:
    """`decode` of messages as threshold.compress_fixed made them; never waits.

    Args:
        words_WC: int32 [workers, capacity], as gathered.
        lengths_W: int64 [workers] on the device; hits beyond capacity are not there.
    """
    workers, capacity = words_WC.shape
    starts_W = torch.arange(workers, device=out_P.device) * capacity
    lengths_W = lengths_W.clamp(max=capacity)
    _decode_rows(words_WC.flatten(), starts_W, lengths_W, capacity, factor, out_P, updates)


def _decode_rows(words, starts_W, lengths_W, longest, factor, out_P, updates) -> None:
    workers = len(starts_W)
    _decode[(triton.cdiv(len(out_P), TILE),)](
        *(words, starts_W, lengths_W, out_P, len(out_P), workers, factor),
        STEPS=longest.bit_length(),
        WORKERS=triton.next_power_of_2(max(1, workers)),
        TILE=TILE,
        CHUNK=CHUNK,
        UPDATES=updates,
        enable_fp_fusion=False,  # factor * count is rounded before it is added, as elsewhere
    )
