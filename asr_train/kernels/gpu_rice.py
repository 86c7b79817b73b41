"""The kernels for **GPUs** behind rice, in Triton: Golomb-Rice codes, bit by bit in parallel.

A program writes whole 32-bit words of a payload, each by looking up the codes that have bits there;
so no result depends on the order of atomics. Where codes begin is a cumulative sum, which torch
makes. Positions of bits have 64 bits, an element's index 31. Sizes change at every step, so none is
specialised.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from asr_train.kernels.backend import launches

BLOCK = 256  # elements, or words of a payload, per program
INDEX = tl.constexpr(2**31 - 1)


@triton.jit(do_not_specialize=["count", "low"])
def _split(words, steps, codes, count, low, BLOCK: tl.constexpr):
    """Write each element's unary length, and its low part with the sign."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + i, i < count, 0)
    before = tl.load(words + i - 1, (i > 0) & (i < count), 0) & INDEX
    gap = (word & INDEX).to(tl.int64) - tl.where(i > 0, before, -1) - 1
    tl.store(steps + i, (gap >> low) + 1, i < count)
    mask = (tl.full([BLOCK], 1, tl.int64) << low) - 1
    code = ((gap & mask) << 1) | (word < 0).to(tl.int64)
    tl.store(codes + i, code, i < count)


@triton.jit(do_not_specialize=["count", "low", "unary", "words"])
def _pack(
    ends, firsts, codes, out, count, low, unary, words, CODES: tl.constexpr, BLOCK: tl.constexpr
):
    """Write words of a payload.

    firsts: by word, the first element whose unary code ends there or later.
    CODES: the most low parts that have bits in a word.
    """
    w = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin = 32 * w  # the first bit of a word
    first = tl.load(firsts + w, w < words, 0)
    word = tl.zeros([BLOCK], tl.int64)
    for j in tl.static_range(32):
        end = tl.load(ends + first + j, first + j < count, 0)
        inside = (first + j < count) & (end >= begin) & (end < begin + 32)
        one = tl.full([BLOCK], 1, tl.int64) << tl.where(inside, end - begin, 0)
        word |= tl.where(inside, one, 0)
    width = low + 1
    element = tl.maximum(begin - unary, 0) // width  # the first whose low part has bits here
    at = unary + element * width - begin
    for _ in tl.static_range(CODES):
        inside = (element < count) & (at < 32) & (at > -width)
        code = tl.load(codes + element, inside, 0)
        up = tl.where(inside & (at > 0), at, 0)
        down = tl.where(inside & (at < 0), -at, 0)
        word |= tl.where(inside, (code << up) >> down, 0)
        element += 1
        at += width
    tl.store(out + w, word.to(tl.uint32).to(tl.int32, bitcast=True), w < words)


@launches
def write(words_K: Tensor, low: int, bits: int) -> Tensor:
    """Compute rice.write."""
    count, device = len(words_K), words_K.device
    words = -(-bits // 32)
    out = torch.zeros(words, dtype=torch.int32, device=device)
    if count:
        steps_K, codes_K = torch.empty(2, count, dtype=torch.int64, device=device)
        _split[(triton.cdiv(count, BLOCK),)](words_K, steps_K, codes_K, count, low, BLOCK=BLOCK)
        ends_K, unary = steps_K.cumsum(0) - 1, bits - count * (low + 1)
        grid, codes = (triton.cdiv(words, BLOCK),), 32 // (low + 1) + 2
        firsts_W = torch.searchsorted(ends_K, 32 * torch.arange(words, device=device))
        numbers = count, low, unary, words
        _pack[grid](ends_K, firsts_W, codes_K, out, *numbers, CODES=codes, BLOCK=BLOCK)
    return out.view(torch.uint8)[: -(-bits // 8)]


@triton.jit(do_not_specialize=["words"])
def _count_ones(payload, ones, words, BLOCK: tl.constexpr):
    w = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(payload + w, w < words, 0)
    found = tl.zeros([BLOCK], tl.int32)
    for j in tl.static_range(32):
        found += (word >> j) & 1
    tl.store(ones + w, found, w < words)


@triton.jit(do_not_specialize=["count", "words"])
def _find_ends(payload, ranks, ends, count, words, BLOCK: tl.constexpr):
    """Write the positions of the first `count` ones; a word's first one has the rank `ranks`."""
    w = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(payload + w, w < words, 0)
    rank = tl.load(ranks + w, w < words, 0)
    for j in tl.static_range(32):
        is_one = ((word >> j) & 1) > 0
        tl.store(ends + rank, 32 * w.to(tl.int64) + j, (w < words) & is_one & (rank < count))
        rank += is_one.to(tl.int64)


@launches
def ends(payload_M: Tensor, count: int) -> Tensor:
    """Return the places of the first `count` ones among the bits, int64; -1 for missing ones.

    Args:
        payload_M: int32 [words].
    """
    words, device = len(payload_M), payload_M.device
    ones_M = torch.empty(words, dtype=torch.int32, device=device)
    found_K = torch.full((count,), -1, dtype=torch.int64, device=device)
    grid = (triton.cdiv(words, BLOCK),)
    _count_ones[grid](payload_M, ones_M, words, BLOCK=BLOCK)
    ranks_M = ones_M.cumsum(0) - ones_M
    _find_ends[grid](payload_M, ranks_M, found_K, count, words, BLOCK=BLOCK)
    return found_K


@triton.jit(do_not_specialize=["count", "low", "words"])
def _read_low(payload, ends, codes, count, low, words, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    width = low + 1
    at = tl.load(ends + count - 1) + 1 + i.to(tl.int64) * width
    w, place = at >> 5, at & 31
    here = tl.load(payload + w, (i < count) & (w < words), 0).to(tl.uint32, bitcast=True)
    after = tl.load(payload + w + 1, (i < count) & (w + 1 < words), 0).to(tl.uint32, bitcast=True)
    both = here.to(tl.uint64) | (after.to(tl.uint64) << 32)
    code = (both >> place.to(tl.uint64)).to(tl.int64)
    code &= (tl.full([BLOCK], 1, tl.int64) << width) - 1
    tl.store(codes + i, code, i < count)


@launches
def read_low(payload_M: Tensor, ends_K: Tensor, low: int) -> Tensor:
    """Return each element's low part with its sign, int64 [K], as `write` has them.

    Places beyond the payload have zeros: whether it is long enough is checked elsewhere.

    Args:
        payload_M: int32 [words].
        ends_K: as from `ends`.
    """
    codes_K = torch.empty_like(ends_K)
    grid = (triton.cdiv(len(ends_K), BLOCK),)
    _read_low[grid](payload_M, ends_K, codes_K, len(ends_K), low, len(payload_M), BLOCK=BLOCK)
    return codes_K
