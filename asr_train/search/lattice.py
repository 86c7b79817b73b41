"""Scores and graph -> **lattice**: every path near the best one, for n-best lists and confidences.

in    graph      Arrays (search.graph): input labels are states + 1, 0 is epsilon
      scores_TS  float32, scaled log-likelihoods in nats
out   Lattice    nodes in topological order, each with its frame; arcs with labels and costs
Knows nothing of words beyond their ids, of language models, or of files.

Compiled with numba, because kaldi_decoder's lattice decoder has no limit on active tokens. The
search keeps tokens (graph node and cost) of each frame, and no links: the arcs between two frames'
tokens are found again in the graph, when all that can still be pruned has been. Every CHUNK frames
the tokens which are not within `lattice_beam` of the best path to *some* live token are dropped;
a path within `lattice_beam` of the best complete one never is (Ljolje, Pereira and Riley 1999,
section 2; Povey et al. 2012, section 4).
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from asr_train.search.beam import check_labels, check_scores
from asr_train.search.graph import ARC, Arrays

LINK = np.dtype(
    [
        ("source", "<i4"),
        ("target", "<i4"),
        ("ilabel", "<i4"),
        ("olabel", "<i4"),
        ("graph", "<f4"),
        ("acoustic", "<f4"),
    ]
)
CHUNK = 32  # frames between two prunings: so many frames' tokens are held unpruned, twice
SPARE_BEAM = 0.5  # nats; Kaldi's beam_delta: what a frame cut by max_active leaves to the next one
ROUNDING = 1e-6  # nats; early pruning must not drop what the last one, summing otherwise, keeps
SLACK_BINS = 256  # steps in which the lattice beam is narrowed where max_arcs asks for it


@dataclass(frozen=True, slots=True)
class Lattice:
    """All paths near the best one, as an acyclic graph.

    Attributes:
        frame_N: int32 [nodes], frames consumed on the way to each node; never falls. Node 0 is
            the start, and every node lies on a path from it to an end.
        final_N: float64 [nodes], the cost of ending there, nats; infinite where no path ends.
        arcs_A: `LINK` [arcs], by source; a target comes after its source. Costs in nats, the
            acoustic one at the scale of the scores (0 for epsilon arcs).
        loops_A: bool [arcs], the arc stays in a graph node (an HMM's self-loop).
        cost: of the best path, nats.
        final: it ends where the graph ends; if not, paths end anywhere, at no cost.
        beam: nats above the best path within which every path that the search saw is kept; less
            than was asked for where the lattice would have had more than `max_arcs` arcs.
        active_T: int32 [T], tokens that went on from each frame.
    """

    frame_N: np.ndarray
    final_N: np.ndarray
    arcs_A: np.ndarray
    loops_A: np.ndarray
    cost: float
    final: bool
    beam: float
    active_T: np.ndarray

    @property
    def frames(self) -> int:
        """T."""
        return len(self.active_T)

    def arc_offsets(self) -> np.ndarray:
        """int64 [nodes + 1]: where each node's arcs begin in `arcs_A`."""
        return np.searchsorted(self.arcs_A["source"], np.arange(len(self.frame_N) + 1))

    def costs_to_end(self) -> np.ndarray:
        """float64 [nodes]: the cheapest cost from each node to an end."""
        return _to_end(self.arcs_A, self.final_N)


class Lattices:
    """Time-synchronous beam search that keeps alternatives.

    Built before worker processes are forked, it shares the graph with them. Compiled code is
    loaded (or, once an installation, compiled) here, not in each worker.

    Args:
        graph: input labels are states + 1.
        num_states: columns of the score matrices.
    Raises:
        ValueError: if the graph has labels beyond the matrix, or a cycle of epsilon arcs.
    """

    def __init__(self, graph: Arrays, num_states: int) -> None:
        check_labels(int(graph.arcs_A["ilabel"].max(initial=0)), num_states)
        self._num_states = num_states
        height_N = epsilon_heights(graph)
        order = np.argsort(height_N, kind="stable")  # nodes that epsilons leave come last
        number_N = np.empty(len(order), np.int32)
        number_N[order] = np.arange(len(order), dtype=np.int32)
        source_A = number_N[graph.source_A]
        by_source = np.lexsort((graph.arcs_A["ilabel"] > 0, source_A))
        arcs_A = np.ascontiguousarray(graph.arcs_A[by_source])
        arcs_A["next"] = number_N[arcs_A["next"]]
        counts_N = np.bincount(source_A, minlength=len(order))
        empty_N = np.bincount(source_A[graph.arcs_A["ilabel"] == 0], minlength=len(order))
        first_N = np.concatenate([[0], np.cumsum(counts_N)])
        self._final_N = graph.final_N[order].astype(np.float64)
        self._arcs = (
            first_N.astype(np.int32),
            (first_N[:-1] + empty_N).astype(np.int32),
            arcs_A.astype(ARC, copy=False),
        )
        self._height_N = height_N[order].astype(np.int32)
        self._plain = int(np.count_nonzero(height_N == 0))
        self._start = int(number_N[graph.start])
        self.decode(np.zeros((1, num_states), np.float32), 1.0, 10, 1.0)  # compiles

    def decode(
        self,
        scores_TS: np.ndarray,
        beam: float,
        max_active: int,
        lattice_beam: float,
        min_active: int = 20,
        max_arcs: int = 20_000_000,
        chunk: int = CHUNK,
    ) -> Lattice | None:
        """Search one utterance.

        Memory: 20 bytes a token for up to `2 * chunk * max_active` tokens and those that pruning
        spares, 25 bytes an arc of the result.

        Args:
            scores_TS: float32 [T, S], scaled log-likelihoods in nats; finite.
            beam: nats, at the scale of the scores.
            max_active: tokens that go on from a frame; beside them go only tokens from which an
                epsilon arc of negative cost leads to one of them.
            lattice_beam: nats above the best path's cost.
            min_active: tokens that go on from a frame even outside of the beam.
            max_arcs: of the lattice; where it is too small the lattice gets a narrower beam.
            chunk: frames between prunings; the result does not depend on it.
        Returns:
            The lattice; None if no token lived to the last frame.
        Raises:
            ValueError: for a wrong number of columns, scores that are no numbers, or beams and
                limits that are not positive.
        """
        check_scores(scores_TS, self._num_states)
        if not (beam > 0 and lattice_beam >= 0 and max_active > 0 and chunk > 0 and max_arcs > 0):
            raise ValueError(
                f"beam {beam}, lattice beam {lattice_beam} (nats), max_active {max_active}, "
                f"max_arcs {max_arcs}, chunk {chunk}: all must be positive"
            )
        scores_TS = np.ascontiguousarray(scores_TS, np.float32)
        states_H, costs_H, first_T, active_T = _forward(
            *self._arcs,
            self._height_N,
            self._plain,
            self._start,
            scores_TS,
            float(beam),
            int(max_active),
            int(min(min_active, max_active)),
            float(lattice_beam) + ROUNDING,
            chunk,
        )
        last = slice(first_T[-2], first_T[-1])
        if last.start == last.stop:
            return None
        ends = self._final_N[states_H[last]]
        final = bool(np.isfinite(ends).any())
        totals = costs_H[last] + (ends if final else 0.0)
        cost = float(totals.min())
        slack_H = np.empty(len(states_H))
        slack_H[last] = totals - cost
        _backward(
            *self._arcs,
            self._plain,
            scores_TS,
            float(lattice_beam),
            states_H,
            costs_H,
            slack_H,
            first_T,
            0,
            np.full(len(self._final_N), -1, np.int32),
        )
        search = (*self._arcs, scores_TS, states_H, costs_H, slack_H, first_T)
        width, count = self._width(search, float(lattice_beam), max_arcs)
        inside_H = slack_H <= width
        node_H = (np.cumsum(inside_H) - 1).astype(np.int32)
        arcs_A = np.empty(count, LINK)
        _links(*search, width, node_H, arcs_A, np.empty(0, np.int64))
        frame_N = np.repeat(np.arange(len(first_T) - 1, dtype=np.int32), np.diff(first_T))[inside_H]
        state_N = states_H[inside_H]
        final_N = np.full(len(frame_N), np.inf)
        ending = np.flatnonzero(totals - cost <= width)
        final_N[node_H[last][ending]] = ends[ending] if final else 0.0
        loops_A = state_N[arcs_A["source"]] == state_N[arcs_A["target"]]
        return Lattice(frame_N, final_N, arcs_A, loops_A, cost, final, width, active_T)

    @staticmethod
    def _width(search: tuple[Any, ...], beam: float, max_arcs: int) -> tuple[float, int]:
        """The lattice beam, narrowed where more than `max_arcs` are inside, and the arcs inside."""
        bins = np.zeros(SLACK_BINS, np.int64)
        counting = (np.empty(0, np.int32), np.empty(0, LINK), bins)
        count = _links(*(*search, beam, *counting))
        if count > max_arcs:
            beam *= np.searchsorted(np.cumsum(bins), max_arcs, "right") / SLACK_BINS
            count = _links(*(*search, beam, *counting))
        return beam, count


@dataclass(frozen=True, slots=True)
class Sentence:
    """One path through a lattice.

    Attributes:
        words: ids.
        starts, ends: frames at which the path passes each word's label, and the next word's (or
            T). Labels stand where determinisation left them, often some phones into their word;
            search.times gives the words' own times.
        states_T: int32 [T], the state of each frame.
        entered_T: bool [T], the frame enters its state; else it stays there.
        graph_cost, acoustic_cost: nats; the acoustic one at the scale of the scores.
        final: it ends where the graph ends.
    """

    words: list[int]
    starts: list[int]
    ends: list[int]
    states_T: np.ndarray
    entered_T: np.ndarray
    graph_cost: float
    acoustic_cost: float
    final: bool

    @property
    def cost(self) -> float:
        """Nats."""
        return self.graph_cost + self.acoustic_cost


def best_path(lattice: Lattice) -> Sentence:
    """The cheapest path of a lattice."""
    to_end_N = lattice.costs_to_end()
    arcs = _best_arcs(lattice.arcs_A, lattice.arc_offsets(), lattice.final_N, to_end_N)
    return sentence_of(lattice, arcs)


def sentence_of(lattice: Lattice, arcs: np.ndarray) -> Sentence:
    """What the arcs of a complete path say."""
    links = lattice.arcs_A[arcs]
    speech = links["ilabel"] > 0
    spoken = links["olabel"] > 0
    starts = lattice.frame_N[links["source"][spoken]].tolist()
    graph = links["graph"].sum(dtype=np.float64) + lattice.final_N[links["target"][-1]]
    return Sentence(
        words=links["olabel"][spoken].tolist(),
        starts=starts,
        ends=[*starts[1:], lattice.frames][: len(starts)],
        states_T=links["ilabel"][speech].astype(np.int32) - 1,
        entered_T=~lattice.loops_A[arcs][speech],
        graph_cost=float(graph),
        acoustic_cost=float(links["acoustic"].sum(dtype=np.float64)),
        final=lattice.final,
    )


def epsilon_heights(graph: Arrays) -> np.ndarray:
    """int64 [nodes]: epsilon arcs on the longest way of them from each node; 0 where none leaves.

    Raises:
        ValueError: if epsilon arcs form a cycle: a path could run through it for ever.
    """
    empty = graph.arcs_A["ilabel"] == 0
    source, target = graph.source_A[empty], graph.arcs_A["next"][empty]
    height_N = np.zeros(len(graph.final_N), np.int64)
    while len(source):
        waiting_N = np.zeros(len(height_N), bool)
        waiting_N[source] = True
        ready = ~waiting_N[target]
        if not ready.any():
            raise ValueError(
                f"epsilon arcs form a cycle through node {int(source[0])} or a node after it; "
                "the grammar or the lexicon has a way that consumes no speech and returns"
            )
        np.maximum.at(height_N, source[ready], height_N[target[ready]] + 1)
        source, target = source[~ready], target[~ready]
    return height_N


# --- compiled -----------------------------------------------------------------------------------
# Graphs come as (first_N, emit_N, arcs_A, height_N, plain): node n's epsilon arcs are
# [first[n], emit[n]), its others [emit[n], first[n + 1]); nodes below `plain` have no epsilons.
# Tokens of all frames (H) lie in a row: states_H, costs_H; frame t's are first_T[t] and following.
# Within a frame they fall in height, so that epsilon arcs lead forward.


@numba.njit(cache=True, nogil=True)
def _grown(array: Any, size: int) -> Any:
    new = np.empty(max(size, 2 * len(array)), array.dtype)
    new[: len(array)] = array
    return new


@numba.njit(cache=True, nogil=True)
def _close(
    first_N: Any, emit_N: Any, arcs_A: Any, plain: int,
    states: Any, costs: Any, via: Any, count: int, slot_N: Any, queue: Any, queued: Any,
    cutoff: float,
) -> int:  # fmt: skip
    """Follow epsilon arcs from a frame's tokens until no cost falls; returns the new count."""
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
def _kth(values: Any, count: int, k: int) -> float:
    """The k-th smallest (from 0) of the first `count` values, which change places.

    Hoare's selection; np.partition would do, but takes numba 14 s to compile.
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
    costs: Any, count: int, scratch: Any, cutoff: float, beam: float, max_active: int,
    min_active: int,
) -> tuple[float, float, int]:  # fmt: skip
    """Where to cut a frame's tokens, the beam for the next frame, and how many ties may pass."""
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
        cut = _kth(scratch, near, max_active - 1)
        below = 0
        for i in range(near):
            below += scratch[i] < cut
        return cut, min(beam, cut - best + SPARE_BEAM), max_active - below
    if inside < min_active:
        if near <= min_active:
            return cutoff, np.inf, near
        cut = _kth(scratch, near, min_active - 1)
        return cut, max(beam, cut - best + SPARE_BEAM), near
    return widest, beam, near


@numba.njit(cache=True, nogil=True)
def _keep(
    height_N: Any, plain: int, states: Any, costs: Any, via: Any, count: int, cut: float,
    ties: int, kept: Any, order: Any, starts: Any,
) -> int:  # fmt: skip
    """The tokens that stay, by falling height, in `order`; returns their number.

    Of tokens that cost just `cut`, higher ones go first: where an epsilon arc is free, its source
    is not dropped before its target. A token whose cost came through one that is cut (over an arc
    of negative cost) brings that one along.
    """
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
def _forward(
    first_N: Any, emit_N: Any, arcs_A: Any, height_N: Any, plain: int, start: int,
    scores_TS: Any, beam: float, max_active: int, min_active: int, lattice_beam: float,
    chunk: int,
) -> Any:  # fmt: skip
    """The tokens of all frames: states_H, costs_H, first_T [T + 2], active_T [T].

    Where no token lived to the end, the last frame has none.
    """
    nodes, frames = len(emit_N), len(scores_TS)
    slot_N = np.full(nodes, -1, np.int32)
    states, costs = np.empty(nodes, np.int32), np.empty(nodes)
    via, queue = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
    order = np.empty(nodes, np.int32)
    queued, kept, scratch = np.zeros(nodes, np.bool_), np.empty(nodes, np.bool_), np.empty(nodes)
    starts = np.zeros(height_N.max() + 1, np.int32)
    states_H, costs_H, slack_H = np.empty(1 << 14, np.int32), np.empty(1 << 14), np.empty(0)
    first_T, active_T = np.zeros(frames + 2, np.int64), np.zeros(frames, np.int32)
    states[0], costs[0], via[0], slot_N[start], count = start, 0.0, -1, 0, 1
    cutoff = np.inf
    for t in range(frames + 1):
        if plain < nodes:
            count = _close(
                first_N, emit_N, arcs_A, plain, states, costs, via, count, slot_N, queue, queued,
                cutoff,
            )  # fmt: skip
        if t < frames:
            cut, spare, ties = _cutoffs(costs, count, scratch, cutoff, beam, max_active, min_active)
        else:
            cut, spare, ties = cutoff, beam, count
        total = _keep(height_N, plain, states, costs, via, count, cut, ties, kept, order, starts)
        here, end = first_T[t], first_T[t] + total
        if end > len(states_H):
            states_H, costs_H = _grown(states_H, end), _grown(costs_H, end)
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
            _prune(
                first_N, emit_N, arcs_A, plain, scores_TS, lattice_beam, states_H, costs_H,
                slack_H, first_T[: t + 2], since, slot_N,
            )  # fmt: skip
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
def _backward(
    first_N: Any, emit_N: Any, arcs_A: Any, plain: int, scores_TS: Any, lattice_beam: float,
    states_H: Any, costs_H: Any, slack_H: Any, first_T: Any, since: int, slot_N: Any,
) -> None:  # fmt: skip
    """Set tokens' slack, from the last frame of `first_T` down to frame `since`.

    A token's slack is what the best path through it costs more than the best path. The last
    frame's is given; infinite slack marks tokens outside of the lattice beam. `slot_N` is all -1,
    before and after.
    """
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
        if plain < len(emit_N):
            _backward_epsilons(
                first_N, emit_N, arcs_A, plain, lattice_beam, states_H, costs_H, slack_H, here,
                border, slot_N,
            )  # fmt: skip


@numba.njit(cache=True, nogil=True)
def _backward_epsilons(
    first_N: Any, emit_N: Any, arcs_A: Any, plain: int, lattice_beam: float, states_H: Any,
    costs_H: Any, slack_H: Any, here: int, border: int, slot_N: Any,
) -> None:  # fmt: skip
    """Let slack flow back over a frame's epsilon arcs."""
    for h in range(border - 1, here - 1, -1):
        s = states_H[h]
        if s >= plain:
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
    first_N: Any, emit_N: Any, arcs_A: Any, plain: int, scores_TS: Any, lattice_beam: float, states_H: Any, costs_H: Any, slack_H: Any, first_T: Any, since: int,
    slot_N: Any,
) -> None:  # fmt: skip
    """Drop tokens from which no path within the lattice beam leads to the last frame's."""
    _backward(
        first_N, emit_N, arcs_A, plain, scores_TS, lattice_beam, states_H, costs_H, slack_H,
        first_T, since, slot_N,
    )  # fmt: skip
    free, begin = first_T[since], first_T[since]
    for t in range(since, len(first_T) - 1):
        for h in range(begin, first_T[t + 1]):
            if slack_H[h] <= lattice_beam:
                states_H[free], costs_H[free] = states_H[h], costs_H[h]
                free += 1
        begin = first_T[t + 1]
        first_T[t + 1] = free


@numba.njit(cache=True, nogil=True)
def _links(
    first_N: Any, emit_N: Any, arcs_A: Any, scores_TS: Any, states_H: Any, costs_H: Any, slack_H: Any, first_T: Any, width: float, node_H: Any,
    links_A: Any, bins: Any,
) -> int:  # fmt: skip
    """Visit all arcs between tokens whose slack is at most `width`; returns their number.

    Either `bins` counts them by slack, or (where it is empty) `links_A` gets them; `node_H` gives
    the tokens' node numbers.
    """
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


@numba.njit(cache=True, nogil=True)
def _to_end(arcs_A: Any, final_N: Any) -> Any:
    cost_N = final_N.copy()
    for a in range(len(arcs_A) - 1, -1, -1):  # by source, and targets come after it
        arc = arcs_A[a]
        cost = arc.graph + np.float64(arc.acoustic) + cost_N[arc.target]
        cost_N[arc.source] = min(cost_N[arc.source], cost)
    return cost_N


@numba.njit(cache=True, nogil=True)
def _best_arcs(arcs_A: Any, first_N: Any, final_N: Any, to_end_N: Any) -> Any:
    """The best path's arcs; it ends in the first node where ending is as cheap as going on."""
    arcs = [0 for _ in range(0)]
    node = 0
    while to_end_N[node] < final_N[node]:
        best, least = -1, np.inf
        for a in range(first_N[node], first_N[node + 1]):
            arc = arcs_A[a]
            cost = arc.graph + np.float64(arc.acoustic) + to_end_N[arc.target]
            if cost < least:
                best, least = a, cost
        arcs.append(best)
        node = arcs_A[best].target
    return np.array(arcs, np.int64)
