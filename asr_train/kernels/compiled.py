"""The kernels for **CPUs**, compiled by numba: NumPy arrays; bit-identical with the references.

Each works on a range of elements without the interpreter's lock; `in_parts` gives one range to
each of torch.get_num_threads() threads. These are Python's own: numba's parallel loops would
abort a process that was forked after the first one, and one that calls from two threads.
Imported only where numba is needed. threshold, decode, rice and onebit document them.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

Result = TypeVar("Result")
GRAIN = 1 << 19  # elements per thread; fewer take less time than waking the thread
CHUNK = 512  # elements that stay in the L1 cache between two passes
TILE = 1 << 13  # elements whose int32 counts stay in the L1 cache
CROWD = 64  # elements per sent element; with fewer, a pass over all elements is faster
_INDEX = np.int32(2**31 - 1)
_SIGN = np.int32(-(2**31))

_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)  # a child process has no threads


def in_parts(
    size: int, step: int, work: Callable[[int, int], Result], weight: int = 1
) -> list[Result]:
    """Return `work(begin, end)` of ranges that make up [0, size); `step` divides each begin.

    Args:
        weight: elements per unit of `size`.
    """
    global _pool
    count = max(1, min(torch.get_num_threads(), size * weight // GRAIN, size // step))
    ends = [size * i // count // step * step for i in range(count)] + [size]
    if count == 1:
        return [work(0, size)]
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count(), "kernels")
    others = [_pool.submit(work, ends[i], ends[i + 1]) for i in range(1, count)]
    return [work(0, ends[1]), *(other.result() for other in others)]


# --- 64 elements at once --------------------------------------------------------------------------


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return numba's intrinsic; for mypy: it is called without the first argument."""
    return intrinsic(function)


def _vector_at(context: Any, builder: Any, kind: Any, array: Any, at: Any, vector: Any) -> Any:
    """Return a pointer to a vector of an array's elements, from the element `at` on."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


@_intrinsic
def _above(typing: Any, array: Any, first: Any, bound: Any) -> Any:
    """Return uint64 whose bit j is |array[first + j]| > bound; float32, [64] from `first` on.

    LLVM compiles this, unlike a loop over bits, to one comparison per register.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, first, bound = arguments
        vector = ir.VectorType(ir.FloatType(), 64)
        pointer = _vector_at(context, builder, signature.args[0], array, first, vector)
        kind = ir.FunctionType(vector, [vector])
        fabs = cgutils.get_or_insert_function(builder.module, kind, "llvm.fabs.v64f32")
        values = builder.call(fabs, [builder.load(pointer, align=4)])
        nothing = ir.Constant(vector, ir.Undefined)
        one = builder.insert_element(nothing, bound, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
        bounds = builder.shuffle_vector(one, nothing, zeros)
        return builder.bitcast(builder.fcmp_ordered(">", values, bounds), ir.IntType(64))

    return types.uint64(array, types.int64, types.float32), code


@_intrinsic
def _add_sides(
    typing: Any, bits: Any, byte: Any, means: Any, low: Any, high: Any, out: Any, at: Any
) -> Any:
    """Add to 64 elements of out means from `high` on where a bit is set, else from `low` on.

    Args:
        byte, low, high, at: places in the arrays before them, of uint8, float32 and float32.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits, byte, means, low, high, out, at = arguments
        vector = ir.VectorType(ir.FloatType(), 64)
        word, below, above, total = (
            _vector_at(context, builder, signature.args[number], array, place, of)
            for number, array, place, of in (
                (0, bits, byte, ir.IntType(64)),
                (2, means, low, vector),
                (2, means, high, vector),
                (5, out, at, vector),
            )
        )
        is_high = builder.bitcast(builder.load(word, align=1), ir.VectorType(ir.IntType(1), 64))
        sides = (builder.load(side, align=4) for side in (above, below))
        value = builder.select(is_high, *sides)
        builder.store(builder.fadd(builder.load(total, align=4), value), total, align=4)
        return context.get_dummy_value()

    place = types.int64
    return types.void(bits, place, means, place, place, out, place), code


@_intrinsic
def _lowest(typing: Any, bits: Any) -> Any:
    """Return the index of the lowest set bit of 64, not all zero."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), code


@_intrinsic
def _fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c in float32, rounded once."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), code


# --- threshold ------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True, inline="always")
def _take(kept: Any, i: Any, threshold: Any, words: Any, at: int) -> None:
    # No branch: signs are unpredictable
    owed = kept[i]
    kept[i] = owed - math.copysign(threshold, owed)
    words[at] = np.int32(i) | (np.int32(owed < 0) << np.int32(31))


@numba.njit(cache=True, nogil=True)
def _compress(
    grad: Any, residual: Any, kept: Any, threshold: Any, words: Any, begin: int, end: int
) -> Any:
    """Write selected elements to words[begin:]; return how many, and whether all is finite."""
    infinity = np.float32(np.inf)
    at, finite = begin, np.int64(0)
    for first in range(begin, end, CHUNK):
        last = min(first + CHUNK, end)
        g, r, k = grad[first:last], residual[first:last], kept[first:last]
        good = np.int32(0)
        for i in range(last - first):
            owed = r[i] + g[i]
            k[i] = owed
            # numba adds int32 as int64, which would halve the elements of a register
            good = np.int32(good + np.int32(abs(owed) < infinity))
        finite += good
        whole = first + (last - first) // 64 * 64
        for i in range(first, whole, 64):
            selected = _above(kept, i, threshold)
            while selected:
                _take(kept, i + np.int64(_lowest(selected)), threshold, words, at)
                selected &= selected - np.uint64(1)
                at += 1
        for i in range(whole, last):
            if abs(kept[i]) > threshold:
                _take(kept, i, threshold, words, at)
                at += 1
    return at - begin, finite == end - begin


def compress(grad: Any, residual: Any, kept: Any, threshold: float) -> tuple[Any, bool]:
    """Compute threshold.compress: int32 words, and whether all is finite."""
    size, tau = len(grad), np.float32(threshold)
    scratch = np.empty(size, np.int32)  # takes physical memory only where written

    def work(begin: int, end: int) -> tuple[int, int, bool]:
        return begin, *_compress(grad, residual, kept, tau, scratch, begin, end)

    parts = in_parts(size, CHUNK, work)
    words = np.concatenate([scratch[begin : begin + count] for begin, count, _ in parts])
    return words, all(fine for *_, fine in parts)


@numba.njit(cache=True, nogil=True, inline="always")
def _tally(grad: Any, residual: Any, kept: Any, counts: Any, threshold: Any) -> Any:
    """Compute `tally` of some elements of a row; return how many are sent, and how many finite."""
    infinity = np.float32(np.inf)
    many, good = np.int32(0), np.int32(0)
    for i in range(len(grad)):
        owed = residual[i] + grad[i]
        above, below = np.int32(owed > threshold), np.int32(owed < -threshold)
        # int32 is said again: numba adds and subtracts int32 as int64 (see `_compress`)
        code = np.float32(np.int32(above - below))
        kept[i] = owed - threshold * code  # exact: the code is -1, 0 or 1
        counts[i] += code
        many = np.int32(many + np.int32(above + below))
        good = np.int32(good + np.int32(abs(owed) < infinity))
    return many, good


def tally(grads: Any, residuals: Any, kept: Any, counts: Any, threshold: float) -> Any:
    """Compute threshold.tally_rows; int64 [2, W]: sent elements, and finite ones."""
    (workers, size), tau = kept.shape, np.float32(threshold)

    def work(begin: int, end: int) -> Any:
        own = slice(begin, end)
        rows = zip(grads, residuals, kept, strict=True)
        return np.array([_tally(g[own], r[own], k[own], counts[own], tau) for g, r, k in rows]).T

    return sum(in_parts(size, CHUNK, work, weight=workers))


def _flat(rows: Any) -> tuple[Any, int]:
    """Return rows [W, P] that may lie apart as one vector, and the elements from row to row.

    numba does not know that the elements of a row of such an array are neighbours, and would not
    vectorise a loop over them.
    """
    step = rows.strides[0] // rows.itemsize
    size = (len(rows) - 1) * step + rows.shape[1]
    return np.lib.stride_tricks.as_strided(rows, (size,), (rows.itemsize,)), step


@numba.njit(cache=True, nogil=True)
def _tally_products(
    deltas: Any, inputs: Any, residuals: Any, kept: Any, counts: Any, threshold: Any, offset: int,
    begin: int, end: int,
) -> Any:  # fmt: skip
    """Compute `tally` of products, outputs [begin, end); int64 [2, W] as there.

    A row of the product is added up here for each output, and never leaves the L1 cache.
    """
    workers, frames, wide = inputs.shape
    found = np.zeros((2, workers), np.int64)
    grad = np.empty(wide, np.float32)
    whole = frames // 8 * 8
    for w in range(workers):
        for o in range(begin, end):
            grad[:] = 0
            for n in range(0, whole, 8):
                d, x = deltas[w, n : n + 8, o], inputs[w, n : n + 8]
                d0, d1, d2, d3, d4, d5, d6, d7 = d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]
                x0, x1, x2, x3, x4, x5, x6, x7 = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
                for i in range(wide):
                    half = _fma(d1, x1[i], _fma(d0, x0[i], grad[i]))
                    half = _fma(d3, x3[i], _fma(d2, x2[i], half))
                    half = _fma(d5, x5[i], _fma(d4, x4[i], half))
                    grad[i] = _fma(d7, x7[i], _fma(d6, x6[i], half))
            for n in range(whole, frames):
                d0, x0 = deltas[w, n, o], inputs[w, n]
                for i in range(wide):
                    grad[i] = _fma(d0, x0[i], grad[i])
            at = offset + o * wide
            r = residuals[0][w * residuals[1] + at : w * residuals[1] + at + wide]
            k = kept[0][w * kept[1] + at : w * kept[1] + at + wide]
            many, good = _tally(grad, r, k, counts[at : at + wide], threshold)
            found[0, w] += many
            found[1, w] += good
    return found


def tally_products(
    deltas: Any, inputs: Any, offset: int, residuals: Any, kept: Any, counts: Any, threshold: float
) -> Any:
    """Compute threshold.tally_factors of one factor; int64 [2, W] as `tally`."""
    rows = _flat(residuals), _flat(kept)
    given = deltas, inputs, *rows, counts, np.float32(threshold), offset
    workers, _, wide = inputs.shape

    def work(begin: int, end: int) -> Any:
        return _tally_products(*given, begin, end)

    return sum(in_parts(deltas.shape[2], 1, work, weight=workers * wide))


@numba.njit(cache=True, nogil=True)
def first_wrong(words: Any, size: int) -> Any:
    """Return the first place where indices do not ascend below `size`, else their number."""
    before = np.int64(-1)
    for first in range(0, len(words), CHUNK):
        last = min(first + CHUNK, len(words))
        # No early exit, so that the loop is vectorised
        good = True
        for i in range(max(first, 1), last):
            good &= (words[i] & _INDEX) > (words[i - 1] & _INDEX)
        if not good or (words[last - 1] & _INDEX) >= size:
            for i in range(first, last):
                index = np.int64(words[i] & _INDEX)
                if index <= before or index >= size:
                    return i
                before = index
        before = np.int64(words[last - 1] & _INDEX)
    return len(words)


# --- decode ---------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _first_at(words: Any, low: int, high: int, index: int) -> Any:
    """Return the first of words[low:high] at `index` or beyond."""
    while low < high:
        middle = (low + high) // 2
        if (words[middle] & _INDEX) < index:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(cache=True, nogil=True)
def _add(words: Any, counts: Any, begin: int, end: int) -> None:
    at = _first_at(words, 0, len(words), begin)
    while at < len(words) and (words[at] & _INDEX) < end:
        counts[words[at] & _INDEX] += np.float32(-1 if words[at] < 0 else 1)
        at += 1


def add(words: Any, counts: Any) -> None:
    """Compute threshold.decode."""
    in_parts(len(counts), TILE, lambda begin, end: _add(words, counts, begin, end))


@numba.njit(cache=True, nogil=True)
def _each_tile(
    words: Any, starts: Any, tau: Any, step: Any, updates: bool, out: Any, begin: int, end: int
) -> Any:
    """Compute out = tau * count, or out += step times that, from words[starts[w]:starts[w + 1]].

    Returns:
        The number of sent elements in the range.
    """
    workers = len(starts) - 1
    at = np.empty(workers, np.int64)
    for w in range(workers):
        at[w] = _first_at(words, starts[w], starts[w + 1], begin)
    before = at.copy()
    counts = np.zeros(TILE, np.int32)
    total = 0
    for first in range(begin, end, TILE):
        last = min(first + TILE, end)
        room = np.uint64(last - first)
        sent = 0
        for w in range(workers):
            i = before[w] = at[w]
            # Unsigned: an index before the tile counts as beyond it. So elements out of order are
            # left over, but nothing outside the tile is written
            while i < starts[w + 1] and np.uint64((words[i] & _INDEX) - first) < room:
                counts[(words[i] & _INDEX) - first] += np.int32(1) + (words[i] >> 31) * np.int32(2)
                i += 1
            sent += i - at[w]
            at[w] = i
        total += sent
        tile = out[first:last]
        if sent * CROWD > last - first:
            for j in range(last - first):
                quanta = tau * np.float32(counts[j])
                if not updates:
                    tile[j] = quanta
                elif counts[j] != 0:
                    tile[j] = _fma(quanta, step, tile[j])
            counts[:] = 0
            continue
        if not updates:
            tile[:] = 0
        for w in range(workers):
            for i in range(before[w], at[w]):
                j = (words[i] & _INDEX) - first
                if counts[j] != 0:
                    quanta = tau * np.float32(counts[j])
                    tile[j] = _fma(quanta, step, tile[j]) if updates else quanta
                    counts[j] = 0
    return total


def each_tile(messages: list[Any], tau: float, rate: float | None, out: Any) -> int:
    """Compute decode.total, or with a rate decode.update; return how many elements were decoded."""
    starts = np.cumsum([0, *map(len, messages)])
    words = np.concatenate([*messages, np.empty(0, np.int32)])
    quantum, step, updates = np.float32(tau), np.float32(-(rate or 0.0)), rate is not None

    def work(begin: int, end: int) -> int:
        return int(_each_tile(words, starts, quantum, step, updates, out, begin, end))

    return sum(in_parts(len(out), TILE, work))


@numba.njit(cache=True, nogil=True)
def _combine(
    base: Any, counts: Any, rows: Any, words: Any, starts: Any, tau: Any, step: Any, out: Any,
    begin: int, end: int,
) -> None:  # fmt: skip
    """Compute out = base + step * (tau * c)."""
    messages = len(starts) - 1
    at = np.empty(messages, np.int64)
    for m in range(messages):
        at[m] = _first_at(words, starts[m], starts[m + 1], begin)
    total = np.empty(TILE, np.float32)
    for first in range(begin, end, TILE):
        last = min(first + TILE, end)
        room = np.uint64(last - first)
        total[:] = 0
        for row in rows:
            made = counts[row, first:last]
            for j in range(last - first):
                total[j] += made[j]
        for m in range(messages):
            i, stop = at[m], starts[m + 1]
            while i < stop and np.uint64((words[i] & _INDEX) - first) < room:  # as in _each_tile
                total[(words[i] & _INDEX) - first] += np.float32(-1 if words[i] < 0 else 1)
                i += 1
            at[m] = i
        before, after = base[first:last], out[first:last]
        for j in range(last - first):
            after[j] = _fma(tau * total[j], step, before[j])


def combine(
    base: Any, counts: Any, out: Any, rows: Any, messages: list[Any], tau: float, rate: float
) -> None:
    """Compute decode.combine, of the elements of all messages."""
    starts = np.cumsum([0, *map(len, messages)])
    words = np.concatenate([*messages, np.empty(0, np.int32)])
    which, numbers = np.array(rows, np.int64), (np.float32(tau), np.float32(-rate))

    def work(begin: int, end: int) -> None:
        _combine(base, counts, which, words, starts, *numbers, out, begin, end)

    in_parts(len(out), TILE, work)


# --- Golomb-Rice codes ----------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def rice_high(words: Any, low: int) -> Any:
    """Return the sum of the gaps' high parts, for three numbers of low bits from `low` on."""
    a = b = c = np.int64(0)
    before = np.int64(-1)
    for i in range(len(words)):
        index = np.int64(words[i] & _INDEX)
        gap = index - before - 1
        before = index
        a += gap >> low
        b += gap >> (low + 1)
        c += gap >> (low + 2)
    return a, b, c


@numba.njit(cache=True, nogil=True)
def rice_write(words: Any, low: int, unary: int) -> Any:
    """Compute rice.write: `unary` bits of high parts, and then the low parts."""
    mask, width = np.int64((1 << low) - 1), low + 1
    total = unary + len(words) * width
    bits = np.zeros((total + 63) // 64 + 1, np.uint64)
    before, end = np.int64(-1), np.int64(-1)
    at = np.int64(unary)
    for i in range(len(words)):
        index = np.int64(words[i] & _INDEX)
        gap = index - before - 1
        before = index
        end += (gap >> low) + 1
        bits[end >> 6] |= np.uint64(1) << np.uint64(end & 63)
        code = np.uint64((gap & mask) * 2 + (1 if words[i] < 0 else 0))
        place = at & 63
        bits[at >> 6] |= code << np.uint64(place)
        if place + width > 64:
            bits[(at >> 6) + 1] |= code >> np.uint64(64 - place)
        at += width
    return bits.view(np.uint8)[: (total + 7) // 8].copy()


BEYOND = -2  # returned by `rice_read` for codes that reach beyond the last element


@numba.njit(cache=True, nogil=True)
def _rice_read(bits: Any, num_bits: int, low: int, size: int, words: Any) -> Any:
    """Return the number of bits needed; -1 if there are fewer codes than `words` has room for."""
    count, width = len(words), low + 1
    read, end = 0, np.int64(-1)
    for i in range(len(bits)):
        if read == count:
            break
        ones = bits[i]
        while ones and read < count:
            here = np.int64(i) * 64 + np.int64(_lowest(ones))
            words[read] = here - end - 1
            end = here
            ones &= ones - np.uint64(1)
            read += 1
    if read < count:
        return -1
    at = end + 1
    needed = at + count * width
    if needed > num_bits:
        return needed
    if at - count > np.int64(size) >> low:  # else sums below, and int32 above, do not overflow
        return BEYOND
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    index = np.int64(-1)
    for i in range(count):
        place = at & 63
        code = bits[at >> 6] >> np.uint64(place)
        if place + width > 64:
            code |= bits[(at >> 6) + 1] << np.uint64(64 - place)
        both = np.int64(code & mask)
        index += (np.int64(words[i]) << low) + (both >> 1) + 1
        words[i] = np.int32(index & _INDEX) | (_SIGN if both & 1 else np.int32(0))
        at += width
    return needed if index < size else BEYOND


def rice_read(payload: Any, count: int, low: int, size: int) -> tuple[Any, int]:
    """Return the words, and the number of bits needed, or -1, or BEYOND; see `_rice_read`."""
    bits = np.zeros(-(-len(payload) // 8) + 1, np.uint64)
    bits.view(np.uint8)[: len(payload)] = payload
    words = np.empty(count, np.int32)
    return words, int(_rice_read(bits, 8 * len(payload), low, size, words))


# --- one bit --------------------------------------------------------------------------------------

COLUMNS = 64  # of which a thread gets a multiple, so whole bytes of bits
SUMMED = 32  # rows that are added up in float32; what results is in float64


# Where quantised elements go, `to`: bits, uint8 [R, C / 8 rounded up], all 0, or a sum, float32
# [R, C]


@numba.njit(cache=True, nogil=True)
def _quantise(
    grad: Any, residual: Any, kept: Any, to: Any, means: Any, begin: int, end: int
) -> None:
    """Quantise columns. Together, the first two loops over a row would not be vectorised."""
    rows, wide = grad.shape[0], end - begin
    low, high = np.empty(wide, np.float32), np.empty(wide, np.float32)
    lows, highs = np.zeros(wide), np.zeros(wide)
    counts, zero = np.zeros(wide, np.int32), np.float32(0)
    for first in range(0, rows, SUMMED):
        low[:] = 0
        high[:] = 0
        for r in range(first, min(first + SUMMED, rows)):
            g, d, k = grad[r, begin:end], residual[r, begin:end], kept[r, begin:end]
            for j in range(wide):
                k[j] = d[j] + g[j]
            for j in range(wide):
                owed = k[j]
                is_high = owed >= 0
                high[j] += owed if is_high else zero
                low[j] += zero if is_high else owed
                counts[j] = np.int32(counts[j] + np.int32(is_high))
        for j in range(wide):
            lows[j] += low[j]
            highs[j] += high[j]
    for j in range(wide):
        low[j] = means[0, begin + j] = lows[j] / max(1, rows - counts[j])
        high[j] = means[1, begin + j] = highs[j] / max(1, counts[j])
    for r in range(rows):
        k = kept[r, begin:end]
        if to.itemsize == 1:
            bits = to[r, begin >> 3 :]
            for b in range(wide >> 3):
                byte = np.uint8(0)
                for i in range(8):
                    byte |= np.uint8(k[8 * b + i] >= 0) << np.uint8(i)
                bits[b] = byte
            for j in range(wide // 8 * 8, wide):
                bits[j >> 3] += np.uint8(k[j] >= 0) << np.uint8(j & 7)
        sums = to[r, begin:end]
        for j in range(wide):
            owed, below, above = k[j], low[j], high[j]
            value = above if owed >= 0 else below
            k[j] = owed - value
            if to.itemsize != 1:
                sums[j] += value


@numba.njit(cache=True, nogil=True)
def _column(element: int, rows: int, columns: int) -> Any:
    """Return the column of an element, counted column after column, or one before it.

    A multiple of COLUMNS, or the number of columns where there are fewer elements.
    """
    if element >= rows * columns:
        return columns
    return max(0, element) // (rows * COLUMNS) * COLUMNS


@numba.njit(cache=True, nogil=True)
def _quantise_all(
    places: Any, grad: Any, residual: Any, kept: Any, to: Any, means: Any, begin: int, end: int
) -> None:
    """Quantise the columns of a range of elements, counted column after column."""
    before, byte, mean = 0, 0, 0
    for offset, rows, columns in places:
        size, row_bytes = rows * columns, (columns + 7) >> 3
        first, last = _column(begin - before, rows, columns), _column(end - before, rows, columns)
        to_begin, wide = (byte, row_bytes) if to.itemsize == 1 else (offset, columns)
        if first < last:
            _quantise(
                grad[offset : offset + size].reshape(rows, columns),
                residual[offset : offset + size].reshape(rows, columns),
                kept[offset : offset + size].reshape(rows, columns),
                to[to_begin : to_begin + rows * wide].reshape(rows, wide),
                means[mean : mean + 2 * columns].reshape(2, columns),
                *(first, last),
            )
        before += size
        byte += rows * row_bytes
        mean += 2 * columns


def quantise_all(
    places: Any, grad: Any, residual: Any, kept: Any, total: Any = None
) -> tuple[Any, Any]:
    """Compute onebit.quantise_all: bits and means, matrix after matrix.

    With `total`, what is sent is added to it, and there are no bits.
    """
    rows, columns = places[:, 1], places[:, 2]
    if (to := total) is None:
        to = np.zeros(int((rows * ((columns + 7) >> 3)).sum()), np.uint8)
    means = np.empty(2 * int(columns.sum()), np.float32)
    given = places, grad, residual, kept, to, means
    in_parts(int((rows * columns).sum()), 1, lambda begin, end: _quantise_all(*given, begin, end))
    return to, means


@numba.njit(cache=True, nogil=True)
def _add_up(bits: Any, means: Any, out: Any, begin: int, end: int) -> None:
    workers, rows, row_bytes = bits.shape
    columns = out.shape[1]
    whole = columns // COLUMNS * COLUMNS
    for r in range(begin, end):
        row = out[r]
        row[:] = 0
        for w in range(workers):
            byte, low = (w * rows + r) * row_bytes, 2 * w * columns
            for c in range(0, whole, COLUMNS):
                _add_sides(
                    *(bits, byte + (c >> 3), means, low + c, low + columns + c),
                    *(out, r * columns + c),
                )
            for c in range(whole, columns):
                is_high = (bits[w, r, c >> 3] >> (c & 7)) & 1
                row[c] += means[w, 1, c] if is_high else means[w, 0, c]


def add_up(bits: Any, means: Any, out: Any) -> None:
    """Compute onebit.add_up."""
    rows, columns = out.shape
    in_parts(rows, 1, lambda begin, end: _add_up(bits, means, out, begin, end), weight=columns)


# --- checksums ------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _mixed(words: Any) -> Any:
    total = np.uint32(0)
    for i in range(len(words)):
        x = np.uint32(words[i] * np.uint32(np.uint32(2 * i) * np.uint32(0x9E3779B9) + 1))
        x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        total = np.uint32(total + (x ^ (x >> np.uint32(16))))
    return total


def checksum(payload: Any) -> int:
    """Compute checksum.checksum_reference."""
    padded = np.zeros(-(-len(payload) // 4) * 4, np.uint8)
    padded[: len(payload)] = payload
    return int(_mixed(padded.view(np.uint32)))
