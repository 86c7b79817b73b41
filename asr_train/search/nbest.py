"""Lattice -> **n-best list** of distinct word sequences; oracle errors. Knows words as ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from kaldialign import edit_distance

from asr_train.search.lattice import Lattice, Sentence, sentence_of
from asr_train.search.tables import doubled, pop, push, rehashed, slot
from asr_train.search.tokens import ROUNDING

MAX_WORK = 2_000_000  # partial paths of an n-best search, of at most 200 bytes each


@dataclass(frozen=True, slots=True)
class NBest:
    """Distinct word sequences by cost.

    Attributes:
        sentences: the cheapest path of each word sequence, cheapest first.
        complete: no cheaper sequence is missing. False if the work limit ended the search: the list
            is then correct but short.
    """

    sentences: list[Sentence]
    complete: bool


def nbest(lattice: Lattice, count: int, max_work: int = MAX_WORK) -> NBest:
    """Find the cheapest distinct word sequences within the lattice's beam.

    A best-first search (A*) whose estimate is the exact cost to the end. Of all partial paths with
    the same words at a node, only the first one, which is the cheapest, is extended. So every
    extended path is that of a sequence in the list.

    Args:
        count: sequences wanted; the beam may have fewer.
        max_work: limit of all partial paths.
    """
    if count < 1:
        raise ValueError(f"an n-best list of {count} was asked for; it needs at least 1")
    rows, complete = _astar(
        lattice.arcs_A,
        lattice.arc_offsets(),
        lattice.final_N,
        lattice.costs_to_end(),
        count,
        lattice.beam + ROUNDING,
        max_work,
    )
    sentences = [sentence_of(lattice, arcs) for arcs in rows]
    return NBest(sorted(sentences, key=lambda s: s.cost), complete)


# --- oracle -------------------------------------------------------------------------------------


def lattice_oracle(lattice: Lattice, reference: Sequence[int]) -> int:
    """Return the fewest edits (Levenshtein) to any path of the lattice.

    Args:
        reference: word ids; a word that is not in the lexicon is 0, which equals none.
    """
    frames_first = np.searchsorted(lattice.frame_N, np.arange(lattice.frames + 3))
    rows = int((frames_first[2:] - frames_first[:-2]).max())
    reference_R = np.array(reference, np.int64)
    edits = _edits(lattice.arcs_A, lattice.arc_offsets(), lattice.final_N, reference_R, rows)
    return int(edits)


def list_oracle(sentences: Sequence[Sentence], reference: Sequence[int]) -> int:
    """Return the fewest edits to any sentence of a list; without any, all words are missing."""
    edits = (edit_distance(list(reference), s.words)["total"] for s in sentences)
    return min(edits, default=len(reference))


# --- compiled -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _astar(
    arcs_A: Any, first_N: Any, final_N: Any, to_end_N: Any, count: int, beam: float, max_work: int
) -> Any:
    """Return the arcs of the cheapest path of each word sequence, and whether all were found."""
    size = 1 << 12
    node_P, words_P, from_P, arc_P = (  # partial paths: node, words so far, parent, last arc
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
        np.empty(size, np.int32),
    )
    cost_P, heap, keys = np.empty(size), np.empty(size, np.int32), np.empty(size)
    word_keys, word_ids = np.full(size, -1, np.int64), np.empty(size, np.int32)
    seen_keys, seen_ids = np.full(4 * size, -1, np.int64), np.empty(4 * size, np.int32)
    end, sequences, seen = len(final_N), 1, 0  # numbered word sequences; 0 is the empty one
    node_P[0], words_P[0], from_P[0], arc_P[0], cost_P[0] = 0, 0, -1, -1, 0.0
    paths, waiting = 1, 1
    heap[0], keys[0] = 0, to_end_N[0]
    limit = to_end_N[0] + beam
    found = [np.empty(0, np.int64) for _ in range(0)]
    while waiting and len(found) < count:
        p = pop(heap, keys, waiting)
        waiting -= 1
        node, words = node_P[p], words_P[p]
        key = np.int64(words) << 32 | np.int64(node)
        at = slot(seen_keys, key)
        if seen_keys[at] == key:
            continue
        seen_keys[at] = key
        seen += 1
        if 2 * seen > len(seen_keys):
            seen_keys, seen_ids = rehashed(seen_keys, seen_ids)
        if node == end:
            length, q = 0, from_P[p]
            while from_P[q] >= 0:
                length, q = length + 1, from_P[q]
            arcs, q = np.empty(length, np.int64), from_P[p]
            for i in range(length - 1, -1, -1):
                arcs[i], q = arc_P[q], from_P[q]
            found.append(arcs)
            continue
        while paths + first_N[node + 1] - first_N[node] + 1 > len(node_P):
            node_P, words_P, from_P = doubled(node_P), doubled(words_P), doubled(from_P)
            arc_P, cost_P, heap, keys = (
                doubled(arc_P),
                doubled(cost_P),
                doubled(heap),
                doubled(keys),
            )
        if paths >= max_work:
            return found, False
        if cost_P[p] + final_N[node] <= limit:
            node_P[paths], words_P[paths], from_P[paths], arc_P[paths] = end, words, p, -1
            cost_P[paths] = cost_P[p] + final_N[node]
            push(heap, keys, waiting, cost_P[paths], paths)
            paths, waiting = paths + 1, waiting + 1
        for a in range(first_N[node], first_N[node + 1]):
            arc = arcs_A[a]
            cost = cost_P[p] + (arc.graph + np.float64(arc.acoustic))
            if cost + to_end_N[arc.target] > limit:
                continue
            next_words = words
            if arc.olabel:
                key = np.int64(words) << 32 | np.int64(arc.olabel)
                at = slot(word_keys, key)
                if word_keys[at] != key:
                    word_keys[at], word_ids[at] = key, sequences
                    sequences += 1
                    if 2 * sequences > len(word_keys):
                        word_keys, word_ids = rehashed(word_keys, word_ids)
                        at = slot(word_keys, key)
                next_words = word_ids[at]
            key = np.int64(next_words) << 32 | np.int64(arc.target)
            if seen_keys[slot(seen_keys, key)] == key:
                continue
            node_P[paths], words_P[paths], from_P[paths], arc_P[paths] = (
                arc.target,
                next_words,
                p,
                a,
            )
            cost_P[paths] = cost
            push(heap, keys, waiting, cost + to_end_N[arc.target], paths)
            paths, waiting = paths + 1, waiting + 1
    return found, True


@numba.njit(cache=True, nogil=True)
def _edits(arcs_A: Any, first_N: Any, final_N: Any, reference_R: Any, rows: int) -> Any:
    """Return the fewest edits; a ring of `rows` holds all nodes within an arc's reach."""
    length, never = len(reference_R), np.int64(1) << 62
    edits_NR = np.full((rows, length + 1), never, np.int64)
    edits_NR[0, 0] = 0
    least = never
    for node in range(len(final_N)):
        here_R = edits_NR[node % rows]
        for r in range(length):
            here_R[r + 1] = min(here_R[r + 1], here_R[r] + 1)
        if final_N[node] < np.inf:
            least = min(least, here_R[length])
        for a in range(first_N[node], first_N[node + 1]):
            word, there_R = arcs_A[a].olabel, edits_NR[arcs_A[a].target % rows]
            if word == 0:
                for r in range(length + 1):
                    there_R[r] = min(there_R[r], here_R[r])
                continue
            for r in range(length + 1):
                there_R[r] = min(there_R[r], here_R[r] + 1)
            for r in range(length):
                there_R[r + 1] = min(there_R[r + 1], here_R[r] + (reference_R[r] != word))
        here_R[:] = never
    return least
