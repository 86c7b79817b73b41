"""Beam search, compiled: graph and scores -> the **tokens** of all frames -> the arcs between them.

A token is a graph node with the cheapest cost of reaching it; a token's slack is the cost of the
best path through it minus that of the best path. The tokens of all frames (H) are concatenated:
states_H, costs_H, slack_H; frame t has [first_T[t], first_T[t + 1]). Within a frame they are sorted
by decreasing height, so that epsilon arcs lead forward. Knows nothing of words; search.lattice owns
the arrays.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

CHUNK = 32  # frames between prunings; up to twice as many frames are unpruned
SPARE_BEAM = 0.5  # nats; Kaldi's beam_delta: added to the beam after a frame limited by max_active
ROUNDING = 1e-6  # nats; early pruning must not drop what the last one keeps


class Graph(NamedTuple):
    """A decoding graph, ordered for the search.

    Nodes are sorted by height, the number of epsilon arcs in the longest chain of them from the
    node; nodes below `plain` have none.

    Attributes:
        first_N: int32 [nodes + 1]; node n has the arcs [first[n], first[n + 1]).
        emit_N: int32 [nodes]: the first arc that is not an epsilon.
        arcs_A: search.graph's `ARC` [arcs].
        height_N: int32 [nodes].
        final_N: float64 [nodes], the cost of ending in each node; infinite if not final.
    """

    first_N: np.ndarray
    emit_N: np.ndarray
    arcs_A: np.ndarray
    height_N: np.ndarray
    final_N: np.ndarray
    plain: int
    start: int


class Tokens(NamedTuple):
    """The tokens of some frames, as above."""

    states_H: Any
    costs_H: Any
    slack_H: Any
    first_T: Any


@numba.njit(cache=True, nogil=True)
def grown(array: Any, size: int = 0) -> Any:
    """Return an array of twice the length or more, with room for `size` and the same beginning."""
    new = np.empty(max(size, 2 * len(array)), array.dtype)
    new[: len(array)] = array
    return new


@numba.njit(cache=True, nogil=True)
def _close(graph: Graph, front: Any, count: int, queue: Any, queued: Any, cutoff: float) -> int:
    """Follow epsilon arcs from a frame's tokens until no cost decreases; return the new count.

    Args:
        front: of the tokens, their nodes, their costs, and the tokens that epsilon arcs came from
            (-1: none); of each node, its token (-1: none).
    """
    states, costs, via, slot_N = front
    first_N, emit_N, arcs_A, plain = graph.first_N, graph.emit_N, graph.arcs_A, graph.plain
    head, waiting, size = 0, 0, len(queue)
    for i in range(count):
        if states[i] >= plain and costs[i] <= cutoff:
            queue[waiting] = i
            queued[i] = True
            waiting += 1
    while waiting:
        i = queue[head]
        head = head + 1 if head + 1 < size else 0
        waiting -= 1
        queued[i] = False
        s = states[i]
        for a in range(first_N[s], emit_N[s]):
            cost = costs[i] + arcs_A[a].weight
            if cost > cutoff:
                continue
            there = arcs_A[a].next
            j = slot_N[there]
            if j < 0:
                j = count
                slot_N[there] = j
                states[j] = there
                queued[j] = False
                count += 1
            elif cost >= costs[j]:
                continue
            costs[j] = cost
            via[j] = i
            if there >= plain and not queued[j]:
                at = head + waiting
                queue[at if at < size else at - size] = j
                queued[j] = True
                waiting += 1
    return count


@numba.njit(cache=True, nogil=True)
def kth_smallest(values: Any, count: int, k: int) -> float:
    """Return the k-th smallest (from 0) of the first `count` values, which are reordered.

    Hoare's selection; np.partition would do, but numba takes 14 s to compile it.
    """
    low, high = 0, count - 1
    while low < high:
        a, b, c = values[low], values[(low + high) // 2], values[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return values[k]


@numba.njit(cache=True, nogil=True)
def _cutoffs(
    costs: Any, count: int, scratch: Any, cutoff: float, limits: Any
) -> tuple[float, float, int]:
    """Return a frame's cutoff, the next frame's beam, and how many ties at the cutoff to keep."""
    beam, max_active, min_active = limits
    best = np.inf
    for i in range(count):
        best = min(best, costs[i])
    widest = min(best + beam, cutoff)
    inside, near = 0, 0
    for i in range(count):
        if costs[i] <= cutoff:
            scratch[near] = costs[i]
            near += 1
            inside += costs[i] <= widest
    if inside > max_active:
        cut = kth_smallest(scratch, near, max_active - 1)
        below = 0
        for i in range(near):
            below += scratch[i] < cut
        return cut, min(beam, cut - best + SPARE_BEAM), max_active - below
    if inside < min_active:
        if near <= min_active:
            return cutoff, np.inf, near
        cut = kth_smallest(scratch, near, min_active - 1)
        return cut, max(beam, cut - best + SPARE_BEAM), near
    return widest, beam, near


@numba.njit(cache=True, nogil=True)
def _keep(graph: Graph, front: Any, count: int, cut: float, ties: int, room: Any) -> int:
    """Write the tokens to keep, by decreasing height, to `order`; return their number.

    Of tokens that cost exactly `cut`, higher ones are kept first: the source of an epsilon arc of
    cost 0 is not dropped before its target. A token whose cost came through a dropped one (over an
    arc of negative cost) keeps that one, too.

    Args:
        front: as for `_close`.
        room: `kept` by token, `order`, and `starts` by height; what they hold does not matter.
    """
    kept, order, starts = room
    states, costs, via, _ = front
    height_N, plain = graph.height_N, graph.plain
    starts[:] = 0
    for i in range(count):
        kept[i] = costs[i] <= cut
        if states[i] >= plain:
            starts[height_N[states[i]]] += 1
        else:
            starts[0] += 1
    total = 0
    for h in range(len(starts) - 1, -1, -1):
        here = starts[h]
        starts[h] = total
        total += here
    for i in range(count):
        h = height_N[states[i]] if states[i] >= plain else 0
        order[starts[h]] = i
        starts[h] += 1
    for k in range(count):
        i = order[k]
        if costs[i] == cut:
            kept[i] = ties > 0
            ties -= 1
    for k in range(count):
        i = order[k]
        while kept[i] and via[i] >= 0 and not kept[via[i]]:
            i = via[i]
            kept[i] = True
    total = 0
    for k in range(count):
        if kept[order[k]]:
            order[total] = order[k]
            total += 1
    return total


@numba.njit(cache=True, nogil=True)
def forward(graph: Graph, scores_TS: Any, limits: Any, lattice_beam: float, chunk: int) -> Any:
    """Return the tokens of all frames: states_H, costs_H, first_T [T + 2], active_T [T].

    If no token survives to the end, the last frame has none.

    Args:
        limits: beam in nats, the most active tokens of a frame, and the fewest.
    """
    first_N, emit_N, arcs_A = graph.first_N, graph.emit_N, graph.arcs_A
    nodes, frames = len(emit_N), len(scores_TS)
    slot_N = np.full(nodes, -1, np.int32)
    states, costs = np.empty(nodes, np.int32), np.empty(nodes)
    via, queue = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
    order = np.empty(nodes, np.int32)
    queued, kept, scratch = np.zeros(nodes, np.bool_), np.empty(nodes, np.bool_), np.empty(nodes)
    starts = np.zeros(graph.height_N.max() + 1, np.int32)
    states_H, costs_H, slack_H = np.empty(1 << 14, np.int32), np.empty(1 << 14), np.empty(0)
    first_T, active_T = np.zeros(frames + 2, np.int64), np.zeros(frames, np.int32)
    states[0], costs[0], via[0], slot_N[graph.start], count = graph.start, 0.0, -1, 0, 1
    front, room, cutoff = (states, costs, via, slot_N), (kept, order, starts), np.inf
    for t in range(frames + 1):
        if graph.plain < nodes:
            count = _close(graph, front, count, queue, queued, cutoff)
        if t < frames:
            cut, spare, ties = _cutoffs(costs, count, scratch, cutoff, limits)
        else:
            cut, spare, ties = cutoff, limits[0], count
        total = _keep(graph, front, count, cut, ties, room)
        here, end = first_T[t], first_T[t] + total
        if end > len(states_H):
            states_H, costs_H = grown(states_H, end), grown(costs_H, end)
        best = here
        for k in range(total):
            i = order[k]
            states_H[here + k], costs_H[here + k] = states[i], costs[i]
            if costs[i] < costs_H[best]:
                best = here + k
        for i in range(count):
            slot_N[states[i]] = -1
        first_T[t + 1] = end
        if t == frames or total == 0:
            first_T[t + 1 :] = end
            break
        active_T[t] = total

        if t % chunk == 0 and t:
            since = max(0, t - 2 * chunk)
            if len(slack_H) < len(states_H):
                slack_H = np.empty(len(states_H))
            slack_H[here:end] = 0.0
            tokens = Tokens(states_H, costs_H, slack_H, first_T[: t + 2])
            _prune(graph, scores_TS, lattice_beam, tokens, since, slot_N)
            best -= here - first_T[t]
            here, end = first_T[t], first_T[t + 1]

        cutoff = np.inf
        s = states_H[best]
        for a in range(emit_N[s], first_N[s + 1]):
            cost = costs_H[best] + arcs_A[a].weight - scores_TS[t, arcs_A[a].ilabel - 1]
            cutoff = min(cutoff, cost + spare)
        count = 0
        for h in range(here, end):
            s = states_H[h]
            for a in range(emit_N[s], first_N[s + 1]):
                cost = costs_H[h] + arcs_A[a].weight - scores_TS[t, arcs_A[a].ilabel - 1]
                if cost > cutoff:
                    continue
                cutoff = min(cutoff, cost + spare)
                there = arcs_A[a].next
                j = slot_N[there]
                if j < 0:
                    slot_N[there] = count
                    states[count], costs[count], via[count] = there, cost, -1
                    queued[count] = False
                    count += 1
                elif cost < costs[j]:
                    costs[j] = cost
    return states_H[: first_T[-1]], costs_H[: first_T[-1]], first_T, active_T


@numba.njit(cache=True, nogil=True)
def backward(
    graph: Graph, scores_TS: Any, lattice_beam: float, tokens: Tokens, since: int, slot_N: Any
) -> None:
    """Set the slack of tokens, from the last frame down to frame `since`.

    The last frame's is given; infinite slack marks tokens outside of the lattice beam. `slot_N` is
    all -1, before and after.
    """
    states_H, costs_H, slack_H, first_T = tokens
    first_N, emit_N, arcs_A = graph.first_N, graph.emit_N, graph.arcs_A
    last = len(first_T) - 2
    for t in range(last, since - 1, -1):
        here, border = first_T[t], first_T[t + 1]
        end, dearest = first_T[t + 2] if t < last else border, -np.inf
        for h in range(border, end):
            if slack_H[h] <= lattice_beam:
                slot_N[states_H[h]] = h
                dearest = max(dearest, costs_H[h] - slack_H[h])
        dearest += lattice_beam
        for h in range(here, border if t < last else here):
            s, slack = states_H[h], np.inf
            for a in range(emit_N[s], first_N[s + 1]):
                cost = costs_H[h] + arcs_A[a].weight - scores_TS[t, arcs_A[a].ilabel - 1]
                if cost <= dearest:
                    j = slot_N[arcs_A[a].next]
                    if j >= 0:
                        slack = min(slack, cost - costs_H[j] + slack_H[j])
            slack_H[h] = slack if slack <= lattice_beam else np.inf
        for h in range(border, end):
            slot_N[states_H[h]] = -1
        if graph.plain < len(emit_N):
            _backward_epsilons(graph, lattice_beam, tokens, here, border, slot_N)


@numba.njit(cache=True, nogil=True)
def _backward_epsilons(
    graph: Graph, lattice_beam: float, tokens: Tokens, here: int, border: int, slot_N: Any
) -> None:
    """Propagate slack backward over a frame's epsilon arcs."""
    states_H, costs_H, slack_H, _ = tokens
    first_N, emit_N, arcs_A = graph.first_N, graph.emit_N, graph.arcs_A
    for h in range(border - 1, here - 1, -1):
        s = states_H[h]
        if s >= graph.plain:
            slack = slack_H[h]
            for a in range(first_N[s], emit_N[s]):
                j = slot_N[arcs_A[a].next]
                if j >= 0:
                    cost = costs_H[h] + arcs_A[a].weight
                    slack = min(slack, cost - costs_H[j] + slack_H[j])
            slack_H[h] = slack if slack <= lattice_beam else np.inf
        if slack_H[h] <= lattice_beam:
            slot_N[s] = h
    for h in range(here, border):
        slot_N[states_H[h]] = -1


@numba.njit(cache=True, nogil=True)
def _prune(
    graph: Graph, scores_TS: Any, lattice_beam: float, tokens: Tokens, since: int, slot_N: Any
) -> None:
    """Drop tokens from which no path within the lattice beam leads to the last frame."""
    backward(graph, scores_TS, lattice_beam, tokens, since, slot_N)
    states_H, costs_H, slack_H, first_T = tokens
    free, begin = first_T[since], first_T[since]
    for t in range(since, len(first_T) - 1):
        for h in range(begin, first_T[t + 1]):
            if slack_H[h] <= lattice_beam:
                states_H[free], costs_H[free] = states_H[h], costs_H[h]
                free += 1
        begin = first_T[t + 1]
        first_T[t + 1] = free


@numba.njit(cache=True, nogil=True)
def links(
    graph: Graph, scores_TS: Any, tokens: Tokens, width: float, node_H: Any, links_A: Any, bins: Any
) -> int:
    """Visit all arcs between tokens whose slack is at most `width`; return their number.

    Either `bins` counts them by slack, or (if it is empty) they are written to `links_A`; `node_H`
    has the tokens' node numbers.
    """
    states_H, costs_H, slack_H, first_T = tokens
    first_N, emit_N, arcs_A = graph.first_N, graph.emit_N, graph.arcs_A
    count, last, step = 0, len(first_T) - 2, max(width, ROUNDING) / max(1, len(bins))
    now_N, next_N = np.full(len(emit_N), -1, np.int32), np.full(len(emit_N), -1, np.int32)
    for h in range(first_T[0], first_T[1]):
        if slack_H[h] <= width:
            now_N[states_H[h]] = h
    for t in range(last + 1):
        here, border = first_T[t], first_T[t + 1]
        end = first_T[t + 2] if t < last else border
        for h in range(border, end):
            if slack_H[h] <= width:
                next_N[states_H[h]] = h
        for h in range(here, border):
            if slack_H[h] > width:
                continue
            s = states_H[h]
            for a in range(first_N[s], first_N[s + 1] if t < last else emit_N[s]):
                empty = a < emit_N[s]
                j = now_N[arcs_A[a].next] if empty else next_N[arcs_A[a].next]
                if j < 0:
                    continue
                weight = arcs_A[a].weight
                score = np.float32(0.0) if empty else scores_TS[t, arcs_A[a].ilabel - 1]
                slack = costs_H[h] + weight - score - costs_H[j] + slack_H[j]
                if slack > width:
                    continue
                if len(bins):
                    bins[min(len(bins) - 1, max(0, int(slack / step)))] += 1
                else:
                    links_A[count].source = node_H[h]
                    links_A[count].target = node_H[j]
                    links_A[count].ilabel = arcs_A[a].ilabel
                    links_A[count].olabel = arcs_A[a].olabel
                    links_A[count].graph = weight
                    links_A[count].acoustic = -score
                count += 1
        for h in range(here, border):
            now_N[states_H[h]] = -1
        now_N, next_N = next_N, now_N
    return count
