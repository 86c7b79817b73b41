"""Expanded lattice and weights -> **posterior**: each word sequence once, with its probability.

in    Expanded (`search.rescore`), the weight of its new model and a penalty per word
out   Posterior: a deterministic acyclic graph of words
A word sequence has the cost of its cheapest path. To add up all of its alignments instead would
favour sequences of more states: at the scale of the search they hardly differ in cost, and a longer
sequence has many more of them. The expansion is pruned and determinised at once, the best first
(Povey et al., 2012, "Generating exact lattices in the WFST framework").
"""

import heapq
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from asr_train.search.rescore import Expanded
from asr_train.search.tokens import ROUNDING

MAX_NODES = 20_000  # of a posterior
COSTED = np.dtype([("source", "<i8"), ("target", "<i8"), ("word", "<i8"), ("cost", "<f8")])
SHARED = np.dtype([("source", "<i4"), ("target", "<i4"), ("word", "<i4"), ("share", "<f8")])
QUANTUM = 1e-6  # nats; costs closer than that count as equal


@dataclass(frozen=True, slots=True)
class Posterior:
    """Word sequences as paths from node 0 to the last node, with probabilities.

    Attributes:
        arcs_A: `SHARED` [arcs]; all arcs into a node come before those that leave it. `share` is
            the probability that a path through the target comes by this arc. Word 0 is none.
        nodes: their number.
        beam: nats above the best sequence's cost within which none is missing.
    """

    arcs_A: np.ndarray
    nodes: int
    beam: float


def posterior(
    found: Expanded,
    lm_weight: float,
    penalty: float,
    beam: float,
    max_nodes: int = MAX_NODES,
) -> Posterior:
    """Return the word sequences within a beam, with probabilities proportional to exp(-cost).

    Args:
        lm_weight, penalty: as for `Expanded.best`.
        beam: nats above the best cost; sequences beyond it may be there too, with costs that are
            at most too large.
        max_nodes: of the result, made the best first; if that is too few, the beam is narrower.
    """
    weights = (found.lm_weight, float(lm_weight), float(penalty))
    costed_A, to_end_N = _pruned(found.lattice.arcs_A, found.arrays, weights, float(beam))
    costed_A = costed_A[np.argsort(costed_A["source"], kind="stable")]
    first_N = np.searchsorted(costed_A["source"], np.arange(len(to_end_N) + 1))
    arcs_A, least_D, used = _determinised(costed_A, first_N, to_end_N, float(beam), max_nodes)
    order_D = np.argsort(least_D, kind="stable")  # a target's least node is above its source's
    number_D = np.empty(len(order_D), np.int32)
    number_D[order_D] = np.arange(len(order_D), dtype=np.int32)
    arcs_A["source"], arcs_A["target"] = number_D[arcs_A["source"]], number_D[arcs_A["target"]]
    arcs_A = arcs_A[np.argsort(arcs_A["source"], kind="stable")]
    return Posterior(_shares(arcs_A, len(order_D)), len(order_D), used)


# --- compiled -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _pruned(arcs_A: Any, into: Any, weights: Any, beam: float) -> Any:
    """Return the arcs on paths within the beam, with an end after all, and costs to it."""
    old_weight, new_weight, penalty = weights
    first_X, first_E, first_W = into.first_X, into.first_E, into.first_W
    target_E, order_A = into.target_E, into.order_A
    word_W = new_weight * into.new_W - old_weight * into.old_W + penalty
    nodes, ends = first_X[-1], len(into.end_X)
    from_X, to_X, end_cost_X = np.full(nodes, np.inf), np.full(nodes, np.inf), np.empty(ends)
    from_X[0] = 0.0
    for k in range(ends):
        cost = new_weight * into.end_new_X[k] - old_weight * into.end_old_X[k]
        to_X[into.end_X[k]] = end_cost_X[k] = into.end_cost_X[k] + cost
    for i in range(len(order_A) - 1, -1, -1):
        arc = arcs_A[order_A[i]]
        fixed = arc.graph + np.float64(arc.acoustic)
        low, e, w = first_X[arc.source], first_E[i], first_W[i]
        for j in range(first_E[i + 1] - e):
            cost = fixed + word_W[w + j] if arc.olabel else fixed
            to_X[low + j] = min(to_X[low + j], to_X[target_E[e + j]] + cost)
    limit = to_X[0] + beam + ROUNDING
    arcs = [(0, 0, 0, 0.0) for _ in range(0)]
    for i in range(len(order_A)):
        arc = arcs_A[order_A[i]]
        fixed = arc.graph + np.float64(arc.acoustic)
        low, e, w = first_X[arc.source], first_E[i], first_W[i]
        for j in range(first_E[i + 1] - e):
            x = low + j
            if from_X[x] + to_X[x] > limit:
                continue
            cost, target = fixed + word_W[w + j] if arc.olabel else fixed, target_E[e + j]
            if from_X[x] + cost + to_X[target] <= limit:
                from_X[target] = min(from_X[target], from_X[x] + cost)
                arcs.append((x, int(target), int(arc.olabel), cost))
    for k in range(ends):
        if from_X[into.end_X[k]] + end_cost_X[k] <= limit:
            arcs.append((into.end_X[k], nodes, 0, end_cost_X[k]))
    reached_X = np.append(from_X < np.inf, True)
    number_X = np.cumsum(reached_X) - 1
    out_A = np.empty(len(arcs), COSTED)
    for a, (source, goal, word, cost) in enumerate(arcs):
        out = out_A[a]
        out.source, out.target, out.word, out.cost = number_X[source], number_X[goal], word, cost
    return out_A, np.append(to_X, 0.0)[reached_X]


@numba.njit(cache=True, nogil=True)
def _determinised(arcs_A: Any, first_N: Any, to_end_N: Any, beam: float, max_nodes: int) -> Any:
    """Return `COSTED` arcs, the least node that each node stands for, and the beam.

    A node stands for all nodes that its words lead to, each with the cost that it has more than the
    cheapest. Node 1 is the end. Nodes are taken in the order of their best complete paths, whose
    costs to the end are known, so that no node is taken before its own cost is final.
    """
    nodes = len(to_end_N)
    limit = to_end_N[0] + beam + ROUNDING
    stands_D = [[(0, 0.0)], [(nodes, 0.0)]]  # nodes given, each with its cost above the cheapest
    cost_D, rest_D = [0.0, 0.0], [to_end_N[0], 0.0]  # from the start, and to the end
    taken_D = [False, True]
    number_of = {np.int64(-1): 0}  # hash of what a node stands for -> its number
    waiting = [(to_end_N[0], 0)]
    arcs = [(0, 0, 0, 0.0) for _ in range(0)]
    near_N, stamp_N = np.empty(nodes), np.full(nodes, -1, np.int64)
    done, used = 0, beam
    while waiting:
        least, d = heapq.heappop(waiting)
        if taken_D[d]:
            continue
        if done == max_nodes:
            used = least - to_end_N[0]
            break
        taken_D[d] = True
        done += 1
        # All nodes that can be reached without a word, in topological order
        inside = cost_D[d] + rest_D[d] + beam + ROUNDING
        ahead = [0 for _ in range(0)]
        for n, cost in stands_D[d]:
            near_N[n], stamp_N[n] = cost, d
            heapq.heappush(ahead, n)
        met = [(0, 0, 0.0) for _ in range(0)]  # word, target and cost
        while ahead:
            n = heapq.heappop(ahead)
            if n == nodes - 1:
                arcs.append((d, 1, 0, near_N[n]))
            if cost_D[d] + near_N[n] + to_end_N[n] > inside:
                continue
            for a in range(first_N[n], first_N[n + 1]):
                word, target, cost = arcs_A[a].word, arcs_A[a].target, near_N[n] + arcs_A[a].cost
                if cost_D[d] + cost + to_end_N[target] > limit:
                    continue
                if word:
                    heapq.heappush(met, (word, target, cost))
                    continue
                if stamp_N[target] != d:
                    near_N[target], stamp_N[target] = cost, d
                    heapq.heappush(ahead, target)
                near_N[target] = min(near_N[target], cost)
        while met:
            # The nodes that a word leads to, the cheapest way to each
            word, cheapest = met[0][0], np.inf
            reached = [(0, 0.0) for _ in range(0)]
            while met and met[0][0] == word:
                _, target, cost = heapq.heappop(met)
                cheapest = min(cheapest, cost)
                if not reached or reached[-1][0] != target:
                    reached.append((target, cost))
            rest = np.inf
            for target, cost in reached:
                rest = min(rest, cost - cheapest + to_end_N[target])
            stands, mixed = [(0, 0.0) for _ in range(0)], np.uint64(0x94D049BB133111EB)
            for target, cost in reached:
                more = cost - cheapest
                if more + to_end_N[target] <= rest + beam + ROUNDING:
                    stands.append((target, more))
                    quanta = np.uint64(np.int64(np.floor(more / QUANTUM + 0.5)))
                    mixed = (mixed ^ np.uint64(target)) * np.uint64(0x9E3779B97F4A7C15)
                    mixed = (mixed ^ (mixed >> np.uint64(29)) ^ quanta) * np.uint64(
                        0xBF58476D1CE4E5B9
                    )
                    mixed ^= mixed >> np.uint64(32)
            t = number_of.setdefault(np.int64(mixed >> np.uint64(1)), len(cost_D))
            if t == len(cost_D):
                stands_D.append(stands)
                cost_D.append(np.inf)
                rest_D.append(rest)
                taken_D.append(False)
            arcs.append((d, t, word, cheapest))
            if cost_D[d] + cheapest < cost_D[t] and not taken_D[t]:
                cost_D[t] = cost_D[d] + cheapest
                heapq.heappush(waiting, (cost_D[t] + rest_D[t], t))
    # Without arcs to nodes that were not taken; node 1 stays, as the end
    taken = np.array(taken_D)
    number_D = np.cumsum(taken) - 1
    out_A, count = np.empty(len(arcs), COSTED), 0
    for source, target, word, cost in arcs:
        if taken[target]:
            out = out_A[count]
            out.source, out.target = number_D[source], number_D[target]
            out.word, out.cost = word, cost
            count += 1
    least_D = np.array([stands[0][0] for stands in stands_D])
    return out_A[:count].copy(), least_D[taken], used


@numba.njit(cache=True, nogil=True)
def _shares(arcs_A: Any, nodes: int) -> Any:
    """Return arcs with the share of each in the paths that enter its target."""
    log_N = np.full(nodes, -np.inf)
    log_N[0] = 0.0
    for a in range(len(arcs_A)):
        arc = arcs_A[a]
        log_N[arc.target] = np.logaddexp(log_N[arc.target], log_N[arc.source] - arc.cost)
    shared_A = np.empty(len(arcs_A), SHARED)
    for a in range(len(arcs_A)):
        arc, shared = arcs_A[a], shared_A[a]
        shared.source, shared.target, shared.word = arc.source, arc.target, arc.word
        log = log_N[arc.source] - arc.cost
        shared.share = np.exp(log - log_N[arc.target]) if log > -np.inf else 0.0
    return shared_A
