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
from typing import Any

import numba
import numpy as np

from asr_train.search.arrays import ARC, Arrays
from asr_train.search.tokens import grown

# A token: total cost, unscaled acoustic cost, index in the history, node, place that led there
TOKEN = np.dtype(
    [("cost", "<f8"), ("acoustic", "<f8"), ("back", "<i8"), ("node", "<i4"), ("place", "<i4")]
)
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
    live_L = np.zeros(1, TOKEN)
    live_L["node"], live_L["back"] = graph.start, NONE
    slot_N = np.full(nodes, NONE, np.int32)
    place_H, before_H = np.zeros(0, np.int32), np.zeros(0, np.int64)
    # Always of the same types: for others, each worker would compile anew
    search = (first_N, graph.arcs_A, column_K.astype(np.int64), float(scale), float(beam))
    for begin in range(0, frames, WINDOW):
        span = slice(begin, min(begin + WINDOW, frames))
        window_nC = np.ascontiguousarray(scores(span), np.float32)
        _check_window(window_nC, begin, frames, int(column_K.max()) + 1)
        live_L, place_H, before_H = _advance(search, window_nC, live_L, slot_N, place_H, before_H)
        place_H, before_H = _collected(live_L, place_H, before_H)
    end_cost_L = live_L["cost"] + graph.final_N[live_L["node"]]
    best = int(np.argmin(end_cost_L)) if len(end_cost_L) else NONE
    if best == NONE or not np.isfinite(end_cost_L[best]):
        return None
    places_T = _traced(live_L["back"][best], frames, place_H, before_H)
    acoustic = float(live_L["acoustic"][best])
    return Forced(places_T, float(end_cost_L[best]) - scale * acoustic, acoustic)


@cache
def ready() -> None:
    """Load or compile the compiled code before workers are forked."""
    arcs_A = np.array([(1, 0, 0.0, 1), (1, 0, 0.0, 1)], ARC)
    graph = Arrays(0, np.array([np.inf, 0.0], np.float32), np.array([0, 1]), arcs_A)
    column_K = np.zeros(1, np.int64)
    forced_path(graph, column_K, 2, lambda span: np.zeros((2, 1), np.float32), 1.0, 1.0)


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
    search: Any, window_nC: Any, live_L: Any, slot_N: Any, place_H: Any, before_H: Any
) -> Any:
    """Move all tokens over the frames of a window; append a row per token to the history.

    Args:
        search: first arcs by node, arcs, columns by place, scale and beam.
        live_L: `TOKEN`, those of the last frame.
    """
    first_N, arcs_A, column_K, scale, beam = search
    now_L, new_L = np.empty(len(slot_N), TOKEN), np.empty(len(slot_N), TOKEN)
    count, used = len(live_L), len(place_H)
    now_L[:count] = live_L
    for t in range(len(window_nC)):
        best = np.inf
        for i in range(count):
            best = min(best, now_L[i].cost)
        cut, found = best + beam, 0
        for i in range(count):
            now = now_L[i]
            if now.cost > cut:
                continue
            for a in range(first_N[now.node], first_N[now.node + 1]):
                place = arcs_A[a].ilabel - 1
                score = window_nC[t, column_K[place]]
                there = arcs_A[a].next
                total = now.cost + arcs_A[a].weight - scale * score
                j = slot_N[there]
                if j < 0:
                    j = found
                    slot_N[there] = j
                    found += 1
                elif total >= new_L[j].cost:
                    continue
                new = new_L[j]
                new.node, new.place, new.back = there, place, now.back
                new.cost, new.acoustic = total, now.acoustic - score
        if used + found > len(place_H):
            place_H, before_H = grown(place_H, used + found), grown(before_H, used + found)
        for j in range(found):
            new = new_L[j]
            slot_N[new.node] = -1
            place_H[used + j], before_H[used + j] = new.place, new.back
            new.back = used + j
        count, used = found, used + found
        now_L, new_L = new_L, now_L
    return now_L[:count].copy(), place_H[:used].copy(), before_H[:used].copy()


@numba.njit(cache=True, nogil=True)
def _collected(live_L: Any, place_H: Any, before_H: Any) -> Any:
    """Return the history that live tokens refer to; renumber theirs and `before_H`."""
    wanted_H = np.zeros(len(place_H), np.bool_)
    for i in range(len(live_L)):
        wanted_H[live_L[i].back] = True
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
    for i in range(len(live_L)):
        live_L[i].back = number_H[live_L[i].back]
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
