"""Lattice -> **n-best list** of distinct word sequences; oracle errors. Knows words as ids."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from kaldialign import edit_distance

from asr_train.search.beam import Path
from asr_train.search.lattice import Lattice, path_of
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

    sentences: list[Path]
    complete: bool


def nbest(lattice: Lattice, count: int, max_work: int = MAX_WORK) -> NBest:
    """Find the cheapest distinct word sequences within the lattice's beam.

    A best-first search (A*) whose estimate is the exact cost to the end. Of all partial paths with
    the same words at a node, only the first one, which is the cheapest, is extended. So every
    extended path is that of a sequence in the list.

    Args:
        count: sequences wanted, at least 1; the beam may have fewer.
        max_work: limit of all partial paths.
    """
    graph = lattice.arcs_A, lattice.arc_offsets(), lattice.final_N, lattice.costs_to_end()
    rows, complete = _astar(*graph, count, lattice.beam + ROUNDING, max_work)
    sentences = [path_of(lattice, arcs) for arcs in rows]
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
    return int(_edits(lattice.arcs_A, lattice.arc_offsets(), lattice.final_N, reference_R, rows))


def list_oracle(sentences: Sequence[Path], reference: Sequence[int]) -> int:
    """Return the fewest edits to any sentence of a list; without any, all words are missing."""
    edits = (edit_distance(list(reference), s.words)["total"] for s in sentences)
    return min(edits, default=len(reference))


# --- compiled -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _astar(
    arcs_A: Any, first_N: Any, final_N: Any, to_end_N: Any, count: int, beam: float, max_work: int
) -> Any:
    """Return the arcs of the cheapest path of each word sequence, and whether all were found."""
    end = len(final_N)
    paths = [(0, 0, -1, -1, 0.0)]  # node, words so far, parent, last arc, cost from the start
    longer = {(0, 0): 0}  # words so far and the next one -> the number of both; 0 is no words
    seen = {(-1, -1)}  # words so far and node
    waiting = [(to_end_N[0], 0)]
    limit = to_end_N[0] + beam
    found = [np.empty(0, np.int64) for _ in range(0)]
    while waiting and len(found) < count:
        _, p = heapq.heappop(waiting)
        node, words, parent, _, so_far = paths[p]
        if (words, node) in seen:
            continue
        seen.add((words, node))
        if node == end:
            arcs = [0 for _ in range(0)]
            while parent > 0:
                _, _, before, arc, _ = paths[parent]
                arcs.append(arc)
                parent = before
            found.append(np.array(arcs[::-1], np.int64))
            continue
        if len(paths) >= max_work:
            return found, False
        if so_far + final_N[node] <= limit:
            heapq.heappush(waiting, (so_far + final_N[node], len(paths)))
            paths.append((end, words, p, -1, so_far + final_N[node]))
        for a in range(first_N[node], first_N[node + 1]):
            target, word = int(arcs_A[a].target), int(arcs_A[a].olabel)
            cost = so_far + (arcs_A[a].graph + np.float64(arcs_A[a].acoustic))
            if cost + to_end_N[target] > limit:
                continue
            next_words = words
            if word:
                next_words = longer.setdefault((words, word), len(longer))
            if (next_words, target) not in seen:
                heapq.heappush(waiting, (cost + to_end_N[target], len(paths)))
                paths.append((target, next_words, p, a, cost))
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
