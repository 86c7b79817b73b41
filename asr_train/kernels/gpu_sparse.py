"""The kernels for **GPUs** behind threshold and decode, in Triton.

Compression reads residual and gradient and writes what is kept, once each (12 bytes per element),
and one bit per element that marks the elements to send. They are then extracted from the bits, 32
elements per step, to their places in the message, which follow from the tiles' counts and their
sums over SUPER tiles. Several workers' vectors take the same launches.
Workers of one process need no messages: their sent elements are tallied while they are compressed.
Decoding adds sent elements to integer counts by atomic operations, whose order does not matter for
integers; the first of a weight's elements to exchange the count for 0 then updates the weight.
Nothing depends on the order in which programs run, and nothing waits for the host.

A mask with a variable end keeps loads from being 16 bytes wide; so WHOLE tiles have a mask whose
end the compiler knows, and only the last tile has a variable one. Numbers that change from step to
step are not specialised: each kind (1, multiples of 16, others) would be compiled when it comes.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from asr_train.kernels.backend import launches

BLOCK = 4096  # elements that a program compresses
GROUP = 4  # such blocks whose sent elements a program extracts
SUPER = tl.constexpr(64)  # blocks whose counts are summed
TALLY = 1024  # elements of which a program counts what all workers send
CHUNK = 1024  # sent elements that a program decodes
ROOM = 16  # of so many elements, room is made for one sent element before their number is known
WARPS = 8  # of a program that compresses a block
FEW_WARPS = 4  # of one that extracts
ANY = 2**31 - 1  # the capacity of messages of any length
_INDEX = tl.constexpr(2**31 - 1)
_SIGN = tl.constexpr(-(2**31))
# marks; counts per row and tile; per row, elements that are not finite, and then sums of counts
Marked = tuple[Tensor, Tensor, Tensor]
Vectors = tuple[Tensor, Tensor, Tensor]  # by row: gradients, residuals, what is kept of them


# --- compress -------------------------------------------------------------------------------------


@triton.jit
def _mark_tile(
    grad,
    residual,
    kept,
    marks,
    counts,
    sums,
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
    owed = tl.load(residual + at, inside, 0.0) + tl.load(grad + at, inside, 0.0)
    selected = tl.abs(owed) > threshold
    left = tl.where(owed < 0, owed + threshold, owed - threshold)
    tl.store(kept + at, tl.where(selected, left, owed), inside)
    bits = selected.to(tl.int32)
    tl.store(marks + tile * (BLOCK // 32) + word, tl.sum(bits << lane[None, :], 1))
    count = tl.sum(tl.sum(bits, 1), 0)
    tl.store(counts + tile, count)
    tl.atomic_add(sums + 1 + tile // SUPER, count, sem="relaxed")
    finite = (tl.abs(owed) < float("inf")).to(tl.int32)
    wrong = BLOCK - tl.sum(tl.sum(finite, 1), 0)
    tl.atomic_add(sums, wrong, mask=wrong > 0, sem="relaxed")


@triton.jit
def _mark(
    grad,
    residual,
    kept,
    marks,
    counts,
    sums,
    n,
    grad_stride,
    residual_stride,
    kept_stride,
    num_tiles,
    num_sums,
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
    sums += row * num_sums
    if tile * BLOCK + BLOCK <= n:
        _mark_tile(grad, residual, kept, marks, counts, sums, tile, n, threshold, BLOCK, True)
    else:
        _mark_tile(grad, residual, kept, marks, counts, sums, tile, n, threshold, BLOCK, False)


@triton.jit
def _before(counts, sums, tile, SUPERS: tl.constexpr):
    """Return the number of selected elements in the tiles before this one."""
    own = tile // SUPER
    s = tl.arange(0, SUPERS)
    t = own * SUPER + tl.arange(0, SUPER)
    whole = tl.sum(tl.load(sums + 1 + s, s < own, 0), 0)
    return (whole + tl.sum(tl.load(counts + t, t < tile, 0), 0)).to(tl.int64)


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


@triton.jit(do_not_specialize=["capacity", "room"])
def _expand(
    grad,
    residual,
    kept,
    marks,
    counts,
    sums,
    turn,
    words,
    found,
    next_turn,
    num_tiles,
    num_sums,
    grad_stride,
    residual_stride,
    kept_stride,
    capacity,
    room,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    SUPERS: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    grad += row * grad_stride
    residual += row * residual_stride
    kept += row * kept_stride
    marks += row * num_tiles * (BLOCK // 32)
    counts += row * num_tiles
    sums += row * num_sums
    words += row * room
    turn += row
    next_turn += row
    tile = tl.program_id(0).to(tl.int64) * GROUP
    first_word = tile * (BLOCK // 32)
    own = tl.arange(0, GROUP * (BLOCK // 32))
    is_there = own < num_tiles * (BLOCK // 32) - first_word
    bits = tl.load(marks + first_word + own, is_there, 0)
    ones = _ones(bits)
    # Rank of a word's next element among all selected ones
    rank = _before(counts, sums, tile, SUPERS) + tl.cumsum(ones, 0) - ones
    # Hits are sent in turn: ranks from `origin` on, and then from 0
    s = tl.arange(0, SUPERS)
    total = tl.sum(tl.load(sums + 1 + s, s < num_sums - 1, 0), 0).to(tl.int64)
    excess = total - capacity
    origin = total * 0
    if excess > 0:
        at = tl.load(turn)
        first = at // BLOCK
        inner = _selected_before(marks, first, at - first * BLOCK, BLOCK)
        origin = _before(counts, sums, first, SUPERS) + inner
    elif tile == 0:
        tl.store(next_turn, tl.load(turn))
    if tile == 0:
        tl.store(found + 2 * row, total)
        tl.store(found + 2 * row + 1, tl.load(sums).to(tl.int64))
    straight = excess >= origin  # those sent have consecutive ranks, after some that wait
    skipped = tl.where(straight, origin, tl.maximum(excess, 0))
    rounds = tl.max(ones, 0)
    while rounds > 0:  # each round takes every word's lowest selected element
        selected = bits != 0
        index = (first_word + own) * 32 + _ones(~bits & (bits - 1))
        turned = tl.where(rank < origin, rank + total, rank) - origin
        sent = selected & (turned < capacity)
        # Place in the message: the rank, less the waiting elements before
        place = tl.where((rank < origin) & (excess < origin), rank, rank - skipped)
        # The residual of a selected element has its sign: |owed| > threshold, strictly
        is_negative = tl.load(kept + index, selected, 0.0) < 0
        word = index.to(tl.int32) | tl.where(is_negative, _SIGN, 0)
        tl.store(words + place, word, sent & (place < room))
        if excess > 0:
            waits = selected & (turned >= capacity)
            owed = tl.load(residual + index, waits, 0.0)
            owed += tl.load(grad + index, waits, 0.0)
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


def _marked(vectors: Vectors, threshold: float) -> Marked:
    """Write what is kept; return what is to be sent."""
    (workers, size), device = vectors[0].shape, vectors[0].device
    num_tiles = triton.cdiv(size, BLOCK)
    marks = torch.empty(workers * num_tiles * (BLOCK // 32), dtype=torch.int32, device=device)
    counts_WM = torch.empty(workers, num_tiles, dtype=torch.int32, device=device)
    num_sums = 1 + triton.cdiv(num_tiles, SUPER.value)
    sums_WS = torch.zeros(workers, num_sums, dtype=torch.int32, device=device)
    sizes = (size, *_strides(*vectors), num_tiles, num_sums, threshold)
    grid = (num_tiles, workers)
    _mark[grid](*vectors, marks, counts_WM, sums_WS, *sizes, BLOCK, num_warps=WARPS)
    return marks, counts_WM, sums_WS


def _expanded(
    words_WR: Tensor, capacity: int, vectors: Vectors, marked: Marked, turns_W: Tensor
) -> tuple[Tensor, Tensor]:
    """Write sent elements, in a row each.

    Returns:
        int64 [W, 2], each row's elements and how many are not finite; and the next turns.
    """
    (workers, num_tiles), num_sums = marked[1].shape, marked[2].shape[1]
    found_W2 = torch.empty(workers, 2, dtype=torch.int64, device=words_WR.device)
    next_turns_W = torch.empty_like(turns_W)
    tensors = (*vectors, *marked, turns_W, words_WR, found_W2, next_turns_W)
    grid = (triton.cdiv(num_tiles, GROUP), workers)
    _expand[grid](
        *(*tensors, num_tiles, num_sums, *_strides(*vectors), capacity, words_WR.shape[1]),
        BLOCK=BLOCK,
        GROUP=GROUP,
        SUPERS=triton.next_power_of_2(num_sums - 1),
        num_warps=FEW_WARPS,
    )
    return found_W2, next_turns_W


@launches
def compress_rows(
    grads_WP: Tensor, residuals_WP: Tensor, threshold: float, kept_WP: Tensor
) -> list[tuple[Tensor, bool]]:
    """Compute threshold.compress_rows; waits for the device once, when all of it is under way.

    Only if there are more sent elements than was room for, they are extracted once more.
    """
    vectors, (workers, size) = (grads_WP, residuals_WP, kept_WP), grads_WP.shape
    marked = _marked(vectors, threshold)
    turns_W = torch.empty(workers, dtype=torch.int64, device=grads_WP.device)  # nobody waits

    def expanded(room: int) -> tuple[Tensor, list[list[int]]]:
        words_WR = torch.empty(workers, room, dtype=torch.int32, device=grads_WP.device)
        return words_WR, _expanded(words_WR, ANY, vectors, marked, turns_W)[0].tolist()

    words_WR, pairs = expanded(triton.cdiv(size, ROOM))
    longest = max(count for count, _ in pairs)
    if longest > words_WR.shape[1]:
        words_WR, _ = expanded(longest)
    rows = zip(words_WR, pairs, strict=True)
    return [(row_R[:count], wrong == 0) for row_R, (count, wrong) in rows]


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
    vectors = (grads_WP, residuals_WP, kept_WP)
    marked = _marked(vectors, threshold)
    words_WC = torch.zeros(len(grads_WP), capacity, dtype=torch.int32, device=grads_WP.device)
    found_W2, next_turns_W = _expanded(words_WC, capacity, vectors, marked, turns_W)
    wanted_W, wrong_W = found_W2.unbind(1)
    return words_WC, wanted_W, next_turns_W, wrong_W == 0


# --- tally ----------------------------------------------------------------------------------------


@triton.jit
def _tally_rows(
    grad,
    residual,
    kept,
    total,
    sent,
    wrong,
    tile,
    n,
    workers,
    grad_stride,
    residual_stride,
    kept_stride,
    num_tiles,
    threshold,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):
    i = tl.arange(0, BLOCK)
    inside = i < (BLOCK if WHOLE else n - tile * BLOCK)
    at = tile * BLOCK + i
    counts = tl.load(total + at, inside, 0.0)
    row = tile * 0
    while row < workers:
        own = tl.load(grad + row * grad_stride + at, inside, 0.0)
        owed = tl.load(residual + row * residual_stride + at, inside, 0.0) + own
        selected = tl.abs(owed) > threshold
        left = tl.where(owed < 0, owed + threshold, owed - threshold)
        tl.store(kept + row * kept_stride + at, tl.where(selected, left, owed), inside)
        counts += tl.where(selected, tl.where(owed < 0, -1.0, 1.0), 0.0)
        tl.store(sent + row * num_tiles + tile, tl.sum(selected.to(tl.int32), 0))
        finite = (tl.abs(owed) < float("inf")).to(tl.int32)
        tl.store(wrong + row * num_tiles + tile, BLOCK - tl.sum(finite, 0))
        row += 1
    tl.store(total + at, counts, inside)


@triton.jit
def _tally(
    grad,
    residual,
    kept,
    total,
    sent,
    wrong,
    n,
    workers,
    grad_stride,
    residual_stride,
    kept_stride,
    num_tiles,
    threshold,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    if tile * BLOCK + BLOCK <= n:
        _tally_rows(
            grad, residual, kept, total, sent, wrong, tile, n, workers, grad_stride,
            residual_stride, kept_stride, num_tiles, threshold, BLOCK, True,
        )  # fmt: skip
    else:
        _tally_rows(
            grad, residual, kept, total, sent, wrong, tile, n, workers, grad_stride,
            residual_stride, kept_stride, num_tiles, threshold, BLOCK, False,
        )  # fmt: skip


@launches
def tally_rows(
    grads_WP: Tensor, residuals_WP: Tensor, threshold: float, kept_WP: Tensor, counts_P: Tensor
) -> Tensor:
    """Compute threshold.tally_rows; never waits."""
    (workers, size), device = grads_WP.shape, grads_WP.device
    num_tiles = triton.cdiv(size, TALLY)
    found_2WM = torch.empty(2, workers, num_tiles, dtype=torch.int32, device=device)
    vectors = (grads_WP, residuals_WP, kept_WP)
    sizes = (size, workers, *_strides(*vectors), num_tiles, threshold)
    _tally[(num_tiles,)](*vectors, counts_P, *found_2WM, *sizes, TALLY)
    return found_2WM.sum(2).T


# --- decode ---------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["length"])
def _count(words, counts, length, n, CHUNK: tl.constexpr):
    """Add sent elements to integer counts."""
    k = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = k < length
    word = tl.load(words + k, inside, 0)
    index = word & _INDEX
    one = tl.where(word < 0, -1, 1)
    tl.atomic_add(counts + index.to(tl.int64), one, inside & (index < n), sem="relaxed")


@triton.jit(do_not_specialize=["length"])
def _move(words, counts, weights, length, n, tau, rate, CHUNK: tl.constexpr):
    """Update weights by counts: each by the first of its elements to exchange the count for 0."""
    k = tl.program_id(0).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    inside = k < length
    index = tl.load(words + k, inside, 0) & _INDEX
    inside = inside & (index < n)
    at = index.to(tl.int64)
    count = tl.atomic_xchg(counts + at, tl.zeros([CHUNK], tl.int32), inside, sem="relaxed")
    moves = inside & (count != 0)
    old = tl.load(weights + at, moves, 0.0)
    tl.store(weights + at, tl.fma(tau * count.to(tl.float32), -rate, old), moves)


@launches
def decode(messages: Sequence[Tensor], tau: float, rate: float | None, out_P: Tensor) -> None:
    """Compute decode.total, or decode.update if there is a rate."""
    words = torch.cat([*messages, torch.empty(0, dtype=torch.int32, device=out_P.device)])
    size = len(out_P)
    counts_P = torch.zeros(size, dtype=torch.int32, device=out_P.device)
    grid = (triton.cdiv(len(words), CHUNK),)
    if len(words):
        _count[grid](words, counts_P, len(words), size, CHUNK)
    if rate is None:
        torch.mul(counts_P, tau, out=out_P)
    elif len(words):
        sizes = (len(words), size, tau, rate, CHUNK)
        # Apart from explicit tl.fma
        _move[grid](words, counts_P, out_P, *sizes, enable_fp_fusion=False)
