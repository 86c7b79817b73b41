"""Lattice -> **n-best list** of distinct word sequences; oracle errors. Knows words as ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from kaldialign import edit_distance

from asr_train.search.lattice import Lattice, Sentence, sentence_of
from asr_train.search.tables import grown, pop, push, rehashed, slot
from asr_train.search.tokens import ROUNDING

MAX_WORK = 2_000_000  # partial paths of an n-best search, of at most 200 bytes each
# A partial path: its node, words so far, parent, last arc, cost from the start
PATH = np.dtype(
    [("node", "<i4"), ("words", "<i4"), ("parent", "<i4"), ("arc", "<i4"), ("cost", "<f8")]
)


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
    path_P, heap, keys = np.empty(size, PATH), np.empty(size, np.int32), np.empty(size)
    word_keys, word_ids = np.full(size, -1, np.int64), np.empty(size, np.int32)
    seen_keys, seen_ids = np.full(4 * size, -1, np.int64), np.empty(4 * size, np.int32)
    end, sequences, seen = len(final_N), 1, 0  # numbered word sequences; 0 is the empty one
    new = path_P[0]
    new.node, new.words, new.parent, new.arc, new.cost = 0, 0, -1, -1, 0.0
    paths, waiting = 1, 1
    heap[0], keys[0] = 0, to_end_N[0]
    limit = to_end_N[0] + beam
    found = [np.empty(0, np.int64) for _ in range(0)]
    while waiting and len(found) < count:
        p = pop(heap, keys, waiting)
        waiting -= 1
        node, words, so_far = path_P[p].node, path_P[p].words, path_P[p].cost
        key = np.int64(words) << 32 | np.int64(node)
        at = slot(seen_keys, key)
        if seen_keys[at] == key:
            continue
        seen_keys[at] = key
        seen += 1
        if 2 * seen > len(seen_keys):
            seen_keys, seen_ids = rehashed(seen_keys, seen_ids)
        if node == end:
            length, q = 0, path_P[p].parent
            while path_P[q].parent >= 0:
                length, q = length + 1, path_P[q].parent
            arcs, q = np.empty(length, np.int64), path_P[p].parent
            for i in range(length - 1, -1, -1):
                arcs[i], q = path_P[q].arc, path_P[q].parent
            found.append(arcs)
            continue
        while paths + first_N[node + 1] - first_N[node] + 1 > len(path_P):
            path_P, heap, keys = grown(path_P), grown(heap), grown(keys)
        if paths >= max_work:
            return found, False
        if so_far + final_N[node] <= limit:
            new = path_P[paths]
            new.node, new.words, new.parent, new.arc = end, words, p, -1
            new.cost = so_far + final_N[node]
            push(heap, keys, waiting, new.cost, paths)
            paths, waiting = paths + 1, waiting + 1
        for a in range(first_N[node], first_N[node + 1]):
            arc = arcs_A[a]
            cost = so_far + (arc.graph + np.float64(arc.acoustic))
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
            new = path_P[paths]
            new.node, new.words, new.parent, new.arc = arc.target, next_words, p, a
            new.cost = cost
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
