"""Scores and a transcript's graph -> its **best path**, compiled; recordings of any length.

in    graph    Arrays (search.graph) without epsilons: label k + 1 is place k of the transcript
      scores   float32 [n, columns], unscaled log-likelihoods of a window of frames at a time, nats
out   Forced   the label of every frame, and the costs
Knows nothing of words, phones or models.

Kaldi's decoders need a column per label (frames times places of the transcript), the scores of all
frames at once, and keep every token: ten minutes took 22 GB. Here scores come in windows, a label
reads the column of its state, and after each window the history that no live token refers to is
dropped, so that memory grows with frames plus tokens, not with their product.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np

from asr_train.search.arrays import ARC, Arrays
from asr_train.search.tokens import grown

WINDOW = 2000  # frames whose scores are in memory at once
NONE = -1


@dataclass(frozen=True, slots=True)
class Forced:
    """The cheapest complete path.

    Attributes:
        places_T: int32 [T], the label of each frame, minus 1.
        graph_cost, acoustic_cost: nats; the acoustic one unscaled.
    """

    places_T: np.ndarray
    graph_cost: float
    acoustic_cost: float


def forced_path(
    graph: Arrays,
    column_K: np.ndarray,
    frames: int,
    scores: Callable[[slice], np.ndarray],
    scale: float,
    beam: float,
) -> Forced | None:
    """Find the cheapest path that ends in a final state; None if the beam has none.

    Args:
        column_K: the column of the scores that each place reads.
        frames: T, at least 1.
        scores: a span of frames -> their scores; called for consecutive spans.
        scale: of the scores.
        beam: nats above a frame's cheapest token, at that scale.
    """
    nodes = len(graph.final_N)
    first_N = np.searchsorted(graph.source_A, np.arange(nodes + 1)).astype(np.int64)
    live = _Live(
        np.array([graph.start], np.int32), np.zeros(1), np.zeros(1), np.array([NONE], np.int64)
    )
    slot_N = np.full(nodes, NONE, np.int32)
    place_H, before_H = np.zeros(0, np.int32), np.zeros(0, np.int64)
    search = (first_N, graph.arcs_A, column_K, scale, beam)
    for begin in range(0, frames, WINDOW):
        window_nC = np.ascontiguousarray(scores(slice(begin, min(begin + WINDOW, frames))))
        _check_window(window_nC, begin, frames, int(column_K.max()) + 1)
        live, place_H, before_H = _advance(search, window_nC, live, slot_N, place_H, before_H)
        place_H, before_H = _collected(live.back, place_H, before_H)
    end_cost = live.cost + graph.final_N[live.node]
    best = int(np.argmin(end_cost)) if len(end_cost) else NONE
    if best == NONE or not np.isfinite(end_cost[best]):
        return None
    places_T = _traced(live.back[best], frames, place_H, before_H)
    acoustic = float(live.acoustic[best])
    return Forced(places_T, float(end_cost[best]) - scale * acoustic, acoustic)


@cache
def ready() -> None:
    """Load or compile the compiled code before workers are forked."""
    arcs_A = np.array([(1, 0, 0.0, 1), (1, 0, 0.0, 1)], ARC)
    graph = Arrays(0, np.array([np.inf, 0.0], np.float32), np.array([0, 1]), arcs_A)
    column_K = np.zeros(1, np.int64)
    forced_path(graph, column_K, 2, lambda span: np.zeros((2, 1), np.float32), 1.0, 1.0)


class _Live(NamedTuple):
    """Tokens of the last frame: node, total cost, unscaled acoustic cost, index in the history."""

    node: np.ndarray
    cost: np.ndarray
    acoustic: np.ndarray
    back: np.ndarray


def _check_window(window_nC: np.ndarray, begin: int, frames: int, columns: int) -> None:
    wanted = min(WINDOW, frames - begin)
    if window_nC.ndim != 2 or len(window_nC) != wanted or window_nC.shape[1] < columns:
        raise ValueError(
            f"scores are {list(window_nC.shape)}; they must be [{wanted}, {columns} or more]"
        )
    if not np.isfinite(window_nC).all():
        frame = begin + int(np.flatnonzero(~np.isfinite(window_nC).all(1))[0])
        raise ValueError(f"the scores of frame {frame} are not finite; was training stable?")


@numba.njit(cache=True, nogil=True)
def _advance(
    search: Any, window_nC: Any, live: _Live, slot_N: Any, place_H: Any, before_H: Any
) -> Any:
    """Move all tokens over the frames of a window; append a row per token to the history.

    Args:
        search: first arcs by node, arcs, columns by place, scale and beam.
    """
    first_N, arcs_A, column_K, scale, beam = search
    size = len(slot_N)
    now_node, now_cost = np.empty(size, np.int32), np.empty(size)
    now_acoustic, now_back = np.empty(size), np.empty(size, np.int64)
    new_node, new_cost = np.empty(size, np.int32), np.empty(size)
    new_acoustic, new_back = np.empty(size), np.empty(size, np.int64)
    new_place = np.empty(size, np.int32)
    count, used = len(live.node), len(place_H)
    now_node[:count], now_cost[:count] = live.node, live.cost
    now_acoustic[:count], now_back[:count] = live.acoustic, live.back
    for t in range(len(window_nC)):
        best = np.inf
        for i in range(count):
            best = min(best, now_cost[i])
        cut, found = best + beam, 0
        for i in range(count):
            if now_cost[i] > cut:
                continue
            for a in range(first_N[now_node[i]], first_N[now_node[i] + 1]):
                place = arcs_A[a].ilabel - 1
                score = window_nC[t, column_K[place]]
                there = arcs_A[a].next
                total = now_cost[i] + arcs_A[a].weight - scale * score
                j = slot_N[there]
                if j < 0:
                    j = found
                    slot_N[there] = j
                    new_node[j] = there
                    found += 1
                elif total >= new_cost[j]:
                    continue
                new_cost[j], new_place[j] = total, place
                new_acoustic[j], new_back[j] = now_acoustic[i] - score, now_back[i]
        if used + found > len(place_H):
            place_H, before_H = grown(place_H, used + found), grown(before_H, used + found)
        for j in range(found):
            slot_N[new_node[j]] = -1
            place_H[used + j], before_H[used + j] = new_place[j], new_back[j]
            new_back[j] = used + j
        count, used = found, used + found
        now_node, new_node = new_node, now_node
        now_cost, new_cost = new_cost, now_cost
        now_acoustic, new_acoustic = new_acoustic, now_acoustic
        now_back, new_back = new_back, now_back
    now = now_node[:count].copy(), now_cost[:count].copy()
    moved = _Live(*now, now_acoustic[:count].copy(), now_back[:count].copy())
    return moved, place_H[:used].copy(), before_H[:used].copy()


@numba.njit(cache=True, nogil=True)
def _collected(back: Any, place_H: Any, before_H: Any) -> Any:
    """Return the history that live tokens refer to; renumber `back` and `before_H`."""
    wanted_H = np.zeros(len(place_H), np.bool_)
    for i in range(len(back)):
        if back[i] >= 0:
            wanted_H[back[i]] = True
    for h in range(len(place_H) - 1, -1, -1):
        if wanted_H[h] and before_H[h] >= 0:
            wanted_H[before_H[h]] = True
    number_H = np.full(len(place_H), -1, np.int64)
    kept = 0
    for h in range(len(place_H)):
        if wanted_H[h]:
            number_H[h] = kept
            place_H[kept] = place_H[h]
            before_H[kept] = number_H[before_H[h]] if before_H[h] >= 0 else -1
            kept += 1
    for i in range(len(back)):
        back[i] = number_H[back[i]] if back[i] >= 0 else -1
    return place_H[:kept].copy(), before_H[:kept].copy()


@numba.njit(cache=True, nogil=True)
def _traced(last: int, frames: int, place_H: Any, before_H: Any) -> Any:
    """Return the places of the path that ends in row `last`, one per frame."""
    places_T = np.empty(frames, np.int32)
    h = last
    for t in range(frames - 1, -1, -1):
        places_T[t] = place_H[h]
        h = before_H[h]
    return places_T
