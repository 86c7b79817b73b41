"""Compiled hash tables (int64 keys, int32 values), heaps and growing arrays."""

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def slot(keys: Any, key: Any) -> int:
    """Return the index of `key` in an open hash table, or of the free slot (-1) for it."""
    mask = len(keys) - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    at = int(mixed >> np.uint64(20)) & mask
    while keys[at] != -1 and keys[at] != key:
        at = (at + 1) & mask
    return at


@numba.njit(cache=True, nogil=True)
def rehashed(keys: Any, values: Any) -> Any:
    """Return a table of twice the size."""
    new_keys = np.full(2 * len(keys), -1, np.int64)
    new_values = np.empty(2 * len(keys), np.int32)
    for i in range(len(keys)):
        if keys[i] != -1:
            at = slot(new_keys, keys[i])
            new_keys[at], new_values[at] = keys[i], values[i]
    return new_keys, new_values


@numba.njit(cache=True, nogil=True)
def grown(array: Any, size: int = 0) -> Any:
    """Return an array of twice the length or more, with room for `size` and the same beginning."""
    new = np.empty(max(size, 2 * len(array)), array.dtype)
    new[: len(array)] = array
    return new


@numba.njit(cache=True, nogil=True)
def push(heap: Any, keys: Any, size: int, key: float, item: int) -> None:
    """Add an item to a heap of `size`, whose arrays have room for it."""
    at = size
    while at and keys[(at - 1) // 2] > key:
        heap[at], keys[at] = heap[(at - 1) // 2], keys[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at], keys[at] = item, key


@numba.njit(cache=True, nogil=True)
def pop(heap: Any, keys: Any, size: int) -> int:
    """Remove the item with the smallest key from a heap of `size`."""
    top: int = heap[0]
    item, key, at = heap[size - 1], keys[size - 1], 0
    while 2 * at + 1 < size - 1:
        child = 2 * at + 1
        if child + 1 < size - 1 and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        heap[at], keys[at] = heap[child], keys[child]
        at = child
    heap[at], keys[at] = item, key
    return top
