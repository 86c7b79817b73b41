"""Expanded lattice and weights -> **posterior**: each word sequence once, with its probability.

in    Expanded (`search.rescore`), the weight of its new model and a penalty per word
out   Posterior: a deterministic acyclic graph of words
A word sequence has the cost of its cheapest path. To add up all of its alignments instead would
favour sequences of more states: at the scale of the search they hardly differ in cost, and a longer
sequence has many more of them. The expansion is pruned and determinised at once, the best first
(Povey et al., 2012, "Generating exact lattices in the WFST framework").
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from asr_train.search.rescore import Expanded
from asr_train.search.tables import grown, pop, push, rehashed, slot
from asr_train.search.tokens import ROUNDING

MAX_NODES = 20_000  # of a posterior
COSTED = np.dtype([("source", "<i4"), ("target", "<i4"), ("word", "<i4"), ("cost", "<f8")])
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
    out_A, arcs = np.empty(1 << 14, COSTED), 0
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
                if arcs == len(out_A):
                    out_A = grown(out_A)
                out = out_A[arcs]
                out.source, out.target, out.word, out.cost = x, target, arc.olabel, cost
                arcs += 1
    while arcs + ends > len(out_A):
        out_A = grown(out_A)
    for k in range(ends):
        if from_X[into.end_X[k]] + end_cost_X[k] <= limit:
            out = out_A[arcs]
            out.source, out.target, out.word, out.cost = into.end_X[k], nodes, 0, end_cost_X[k]
            arcs += 1
    number_X, made = np.full(nodes + 1, -1, np.int32), 0
    for x in range(nodes):
        if from_X[x] < np.inf:
            number_X[x], made = made, made + 1
    number_X[nodes] = made
    to_end_N = np.zeros(made + 1)
    for x in range(nodes):
        if number_X[x] >= 0:
            to_end_N[number_X[x]] = to_X[x]
    for a in range(arcs):
        out_A[a].source = number_X[out_A[a].source]
        out_A[a].target = number_X[out_A[a].target]
    return out_A[:arcs].copy(), to_end_N


@numba.njit(cache=True, nogil=True)
def _determinised(arcs_A: Any, first_N: Any, to_end_N: Any, beam: float, max_nodes: int) -> Any:
    """Return `COSTED` arcs, the least node that each node stands for, and the beam.

    A node stands for all nodes that its words lead to, each with the cost that it has more than the
    cheapest. Node 1 is the end. Nodes are taken in the order of their best complete paths, whose
    costs to the end are known, so that no node is taken before its own cost is final.
    """
    nodes = len(to_end_N)
    limit = to_end_N[0] + beam + ROUNDING
    pool_node, pool_cost = np.empty(1 << 14, np.int32), np.empty(1 << 14)
    first_D, size_D = np.empty(1 << 10, np.int64), np.empty(1 << 10, np.int64)
    cost_D, rest_D = np.empty(1 << 10), np.empty(1 << 10)  # from the start, and to the end
    taken_D, least_D = np.zeros(1 << 10, np.bool_), np.empty(1 << 10, np.int32)
    keys, ids = np.full(1 << 12, -1, np.int64), np.empty(1 << 12, np.int32)
    heap, order = np.empty(1 << 12, np.int32), np.empty(1 << 12)
    out_A, arcs = np.empty(1 << 12, COSTED), 0
    near_N, stamp_N = np.empty(nodes), np.full(nodes, -1, np.int64)
    front, number = np.empty(nodes, np.int32), np.empty(nodes)
    met_key, met_cost = np.empty(1 << 12, np.int64), np.empty(1 << 12)
    by_word, rank = np.empty(1 << 12, np.int32), np.empty(1 << 12)
    pool_node[0], pool_cost[0], first_D[0], size_D[0] = 0, 0.0, 0, 1
    cost_D[0], rest_D[0], least_D[0], least_D[1] = 0.0, to_end_N[0], 0, nodes
    made, pooled, done = 2, 1, 0
    taken_D[1] = True
    heap[0], order[0] = 0, to_end_N[0]
    waiting, used = 1, beam
    while waiting:
        least = order[0]
        d = pop(heap, order, waiting)
        waiting -= 1
        if taken_D[d]:
            continue
        if done == max_nodes:
            used = least - to_end_N[0]
            break
        taken_D[d] = True
        done += 1
        # All nodes that can be reached without a word, in topological order
        top, ending, met = nodes - 1, np.inf, 0
        inside = cost_D[d] + rest_D[d] + beam + ROUNDING
        ahead = 0
        for k in range(first_D[d], first_D[d] + size_D[d]):
            near_N[pool_node[k]], stamp_N[pool_node[k]] = pool_cost[k], d
            push(front, number, ahead, float(pool_node[k]), pool_node[k])
            ahead += 1
        while ahead:
            n = pop(front, number, ahead)
            ahead -= 1
            if n == top:
                ending = near_N[n]
            if cost_D[d] + near_N[n] + to_end_N[n] > inside:
                continue
            for a in range(first_N[n], first_N[n + 1]):
                arc = arcs_A[a]
                cost, target = near_N[n] + arc.cost, arc.target
                if cost_D[d] + cost + to_end_N[target] > limit:
                    continue
                if arc.word == 0:
                    if stamp_N[target] != d:
                        near_N[target], stamp_N[target] = cost, d
                        push(front, number, ahead, float(target), target)
                        ahead += 1
                    near_N[target] = min(near_N[target], cost)
                else:
                    if met == len(met_key):
                        met_key, met_cost = grown(met_key), grown(met_cost)
                        by_word, rank = grown(by_word), grown(rank)
                    met_key[met], met_cost[met] = np.int64(arc.word) << 32 | target, cost
                    push(by_word, rank, met, float(met_key[met]), met)
                    met += 1
        while arcs + met + 1 > len(out_A):
            out_A = grown(out_A)
        if ending < np.inf:
            out = out_A[arcs]
            out.source, out.target, out.word, out.cost = d, 1, 0, ending
            arcs += 1
        by_key = np.empty(met, np.int32)
        for k in range(met):
            by_key[k] = pop(by_word, rank, met - k)
        at = 0
        while at < met:
            word = met_key[by_key[at]] >> 32
            end, cheapest = at, np.inf
            while end < met and met_key[by_key[end]] >> 32 == word:
                cheapest = min(cheapest, met_cost[by_key[end]])
                end += 1
            rest = np.inf
            for k in range(at, end):
                target = met_key[by_key[k]] & 0xFFFFFFFF
                rest = min(rest, met_cost[by_key[k]] - cheapest + to_end_N[target])
            # The nodes that this word leads to, the cheapest way to each
            while pooled + end - at > len(pool_node):
                pool_node, pool_cost = grown(pool_node), grown(pool_cost)
            size, mixed = 0, np.uint64(0x94D049BB133111EB)
            k = at
            while k < end:
                target, cost = met_key[by_key[k]] & 0xFFFFFFFF, np.inf
                while k < end and met_key[by_key[k]] & 0xFFFFFFFF == target:
                    cost = min(cost, met_cost[by_key[k]] - cheapest)
                    k += 1
                if cost + to_end_N[target] <= rest + beam + ROUNDING:
                    pool_node[pooled + size], pool_cost[pooled + size] = target, cost
                    size += 1
                    quanta = np.uint64(np.int64(np.floor(cost / QUANTUM + 0.5)))
                    mixed = (mixed ^ np.uint64(target)) * np.uint64(0x9E3779B97F4A7C15)
                    mixed = (mixed ^ (mixed >> np.uint64(29)) ^ quanta) * np.uint64(
                        0xBF58476D1CE4E5B9
                    )
                    mixed ^= mixed >> np.uint64(32)
            at = end
            key = np.int64(mixed >> np.uint64(1))
            place = slot(keys, key)
            if keys[place] == key:
                t = ids[place]
            else:
                if made == len(first_D):
                    first_D, size_D, cost_D = grown(first_D), grown(size_D), grown(cost_D)
                    rest_D, least_D = grown(rest_D), grown(least_D)
                    taken_D = np.append(taken_D, np.zeros(len(taken_D), np.bool_))
                t, made = made, made + 1
                first_D[t], size_D[t], cost_D[t], rest_D[t] = pooled, size, np.inf, rest
                least_D[t] = pool_node[pooled]
                pooled += size
                keys[place], ids[place] = key, t
                if 2 * made > len(keys):
                    keys, ids = rehashed(keys, ids)
            out = out_A[arcs]
            out.source, out.target, out.word, out.cost = d, t, word, cheapest
            arcs += 1
            if cost_D[d] + cheapest < cost_D[t] and not taken_D[t]:
                cost_D[t] = cost_D[d] + cheapest
                if waiting == len(heap):
                    heap, order = grown(heap), grown(order)
                push(heap, order, waiting, cost_D[t] + rest_D[t], t)
                waiting += 1
    # Without arcs to nodes that were not taken; node 1 stays, as the end
    number_D, kept = np.full(made, -1, np.int32), 0
    for d in range(made):
        if taken_D[d]:
            number_D[d], least_D[kept] = kept, least_D[d]
            kept += 1
    count = 0
    for a in range(arcs):
        if taken_D[out_A[a].target]:
            out_A[count] = out_A[a]
            out_A[count].source = number_D[out_A[a].source]
            out_A[count].target = number_D[out_A[a].target]
            count += 1
    return out_A[:count].copy(), least_D[:kept].copy(), used


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
