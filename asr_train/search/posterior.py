"""Lattice -> **posterior**: each word sequence once, with its probability.

in    Lattice; or Expanded (`search.rescore`), the weight of its new model and a penalty per word
out   Posterior: a deterministic acyclic graph of words
A word sequence has the cost of its cheapest path. To add up all of its alignments instead would
favour sequences of more states: at the scale of the search they hardly differ in cost, and a longer
sequence has many more of them. Paths are determinised and pruned at once (Povey et al., 2012,
"Generating exact lattices in the WFST framework"); costs are pushed to the start before (Mohri,
1997, "Finite-state transducers in language and speech processing"), so that pruning needs no more
than the cost so far.
"""

import heapq
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np

from asr_train.search.lattice import Lattice
from asr_train.search.rescore import Expanded
from asr_train.search.tokens import ROUNDING

MAX_NODES = 20_000  # of a posterior
MAX_WORK = 20_000_000  # arcs followed to make one of a search; a second or two
COSTED = np.dtype([("target", "<i4"), ("word", "<i4"), ("cost", "<f8")])
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


class Pushed(NamedTuple):
    """Paths of words, node by node; the cheapest way on from each node costs nothing.

    Costs are nats above that way's, so that those of a path add up to its own above the best one.

    Attributes:
        first_N: int64 [nodes + 1]; node n has the arcs [first[n], first[n + 1]).
        arcs_A: `COSTED` [arcs]; a target comes after its source. Word 0 is none.
        end_N: float64 [nodes], the cost of ending there; infinite if no path does.
    """

    first_N: np.ndarray
    arcs_A: np.ndarray
    end_N: np.ndarray


def posterior(
    found: Expanded, lm_weight: float, penalty: float, beam: float, max_nodes: int = MAX_NODES
) -> Posterior:
    """Return the word sequences within a beam, with probabilities proportional to exp(-cost).

    Args:
        lm_weight, penalty: as for `Expanded.best`.
        beam: nats above the best cost; sequences beyond it may be there too, with costs that are
            at most too large.
        max_nodes: of the result, made the best first; if that is too few, the beam is narrower.
    """
    weights = (found.lm_weight, float(lm_weight), float(penalty))
    lattice = found.lattice
    place_A = np.argsort(found.arrays.order_A)
    paths = _pruned(
        lattice.arcs_A, lattice.arc_offsets(), place_A, found.arrays, weights, float(beam)
    )
    return _of_paths(Pushed(*paths), beam, max_nodes, sys.maxsize)


def lattice_posterior(
    lattice: Lattice, max_nodes: int = MAX_NODES, max_work: int = MAX_WORK
) -> Posterior:
    """Return the word sequences of a lattice within its beam, at the costs of its search.

    Args:
        max_nodes: as for `posterior`.
        max_work: arcs followed, which limit the beam likewise; without this limit, 20 seconds of
            noise take 11 s, as each node stands for many of the lattice's. The best path stays.
    """
    arcs_A, to_end_N = lattice.arcs_A, lattice.costs_to_end()
    pushed_A = np.empty(len(arcs_A), COSTED)
    pushed_A["target"], pushed_A["word"] = arcs_A["target"], arcs_A["olabel"]
    cost_A = arcs_A["graph"] + arcs_A["acoustic"].astype(np.float64)
    pushed_A["cost"] = cost_A + to_end_N[arcs_A["target"]] - to_end_N[arcs_A["source"]]
    paths = Pushed(lattice.arc_offsets(), pushed_A, lattice.final_N - to_end_N)
    return _of_paths(paths, lattice.beam, max_nodes, max_work)


def _of_paths(paths: Pushed, beam: float, max_nodes: int, max_work: int) -> Posterior:
    """Return the posterior of paths; its nodes are numbered so that arcs lead to higher ones."""
    limits = int(max_nodes), int(max_work)
    arcs_A, least_D, used = _determinised(paths, float(beam), limits, False)
    if used < 0:
        arcs_A, least_D, used = _determinised(paths, float(beam), limits, True)
    order_D = np.argsort(least_D, kind="stable")  # a target's least node is above its source's
    number_D = np.empty(len(order_D), np.int32)
    number_D[order_D] = np.arange(len(order_D), dtype=np.int32)
    arcs_A["source"], arcs_A["target"] = number_D[arcs_A["source"]], number_D[arcs_A["target"]]
    arcs_A = arcs_A[np.argsort(arcs_A["source"], kind="stable")]
    _share(arcs_A, len(order_D))
    return Posterior(arcs_A, len(order_D), used)


# --- compiled -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _pruned(arcs_A: Any, first_N: Any, place_A: Any, into: Any, weights: Any, beam: float) -> Any:
    """Return the arrays of `Pushed`, with the arcs on paths within the beam.

    `place_A` has the place of each of the lattice's arcs in the expansion.
    """
    old_weight, new_weight, penalty = weights
    first_X, first_E, first_W, target_E = into.first_X, into.first_E, into.first_W, into.target_E
    word_W = new_weight * into.new_W - old_weight * into.old_W + penalty
    to_X, end_X = np.full(first_X[-1], np.inf), np.full(first_X[-1], np.inf)
    for k in range(len(into.end_X)):
        cost = new_weight * into.end_new_X[k] - old_weight * into.end_old_X[k]
        to_X[into.end_X[k]] = end_X[into.end_X[k]] = into.end_cost_X[k] + cost
    for a in range(len(arcs_A) - 1, -1, -1):
        arc, i = arcs_A[a], place_A[a]
        fixed = arc.graph + np.float64(arc.acoustic)
        low, e, w = first_X[arc.source], first_E[i], first_W[i]
        for j in range(first_E[i + 1] - e):
            cost = fixed + word_W[w + j] if arc.olabel else fixed
            to_X[low + j] = min(to_X[low + j], cost + to_X[target_E[e + j]])
    from_X = np.full(first_X[-1], np.inf)
    from_X[0] = 0.0
    start_X = np.zeros(first_X[-1] + 1, np.int64)
    arcs = [(np.int32(0), np.int32(0), 0.0) for _ in range(0)]
    for n in range(len(first_N) - 1):
        for x in range(first_X[n], first_X[n + 1]):
            start_X[x] = len(arcs)
            if from_X[x] > beam + ROUNDING:
                continue
            for a in range(first_N[n], first_N[n + 1]):
                arc, i, j = arcs_A[a], place_A[a], x - first_X[n]
                target, cost = target_E[first_E[i] + j], arc.graph + np.float64(arc.acoustic)
                if arc.olabel:
                    cost += word_W[first_W[i] + j]
                more = cost + to_X[target] - to_X[x]
                if from_X[x] + more <= beam + ROUNDING:
                    from_X[target] = min(from_X[target], from_X[x] + more)
                    arcs.append((target, arc.olabel, more))
    start_X[-1] = len(arcs)
    out_A = np.empty(len(arcs), COSTED)
    for a, (target, word, cost) in enumerate(arcs):
        out_A[a].target, out_A[a].word, out_A[a].cost = target, word, cost
    return start_X, out_A, end_X - to_X


@numba.njit(cache=True, nogil=True)
def _levels(paths: Pushed) -> Any:
    """Return the length of the longest chain of arcs without words that ends in each node."""
    level_N = np.zeros(len(paths.end_N), np.int32)
    for n in range(len(level_N)):
        for a in range(paths.first_N[n], paths.first_N[n + 1]):
            arc = paths.arcs_A[a]
            if arc.word == 0:
                level_N[arc.target] = max(level_N[arc.target], level_N[n] + 1)
    return level_N


@numba.njit(cache=True, nogil=True)
def _determinised(paths: Pushed, beam: float, limits: tuple[int, int], by_cost: bool) -> Any:
    """Return arcs with costs as shares, the least node that each node stands for, and the beam.

    A node stands for all nodes that its words lead to, each with the cost that it has more than the
    cheapest. Node 1 is the end. Nodes are taken in an order in which their own costs are final: by
    cost, or by the least node that each stands for. The latter is some 4 times as fast, as paths
    are then in the processor's cache; but if there are more nodes or arcs than the limits, it does
    not tell the best, and the beam returned is negative.
    """
    nodes = len(paths.end_N)
    stands_D = [[(0, 0.0)], [(nodes, 0.0)]]  # nodes given, each with its cost above the cheapest
    cost_D, taken_D = [0.0, 0.0], [False, True]
    number_of = {np.int64(-1): 0}  # hash of what a node stands for -> its number
    waiting = [(0.0, 0)]
    arcs = [(0, 0, 0, 0.0) for _ in range(0)]
    level_N = _levels(paths)
    head_L, next_N = np.full(level_N.max() + 1, -1, np.int32), np.empty(nodes, np.int32)
    inside = level_N, head_L, next_N, np.full(nodes, np.inf)
    max_nodes, max_work = limits
    done, work, used = 0, 0, beam
    while waiting:
        first, d = heapq.heappop(waiting)
        if taken_D[d]:
            continue
        if done == max_nodes or (work >= max_work and first > ROUNDING):  # the best path stays
            used = first if by_cost else -1.0
            break
        taken_D[d] = True
        done += 1
        left = beam + ROUNDING - cost_D[d]
        met, ending, followed = _ahead(paths, inside, stands_D[d], left)
        work += followed
        if ending <= left:
            arcs.append((d, 1, 0, ending))
        while met:
            word, cheapest, stands, mixed = _by_word(met, beam)
            t = number_of.setdefault(mixed, len(cost_D))
            if t == len(cost_D):
                stands_D.append(stands)
                cost_D.append(np.inf)
                taken_D.append(False)
            arcs.append((d, t, word, cheapest))
            if cost_D[d] + cheapest < cost_D[t] and not taken_D[t]:
                cost_D[t] = cost_D[d] + cheapest
                first = cost_D[t] if by_cost else float(stands[0][0])
                heapq.heappush(waiting, (first, t))
    # Without arcs to nodes that were not taken; node 1 stays, as the end
    taken = np.array(taken_D)
    number_D = np.cumsum(taken) - 1
    out_A, count = np.empty(len(arcs), SHARED), 0
    for source, target, word, cost in arcs:
        if taken[target]:
            out = out_A[count]
            out.source, out.target = number_D[source], number_D[target]
            out.word, out.share = word, cost
            count += 1
    least_D = np.array([stands[0][0] for stands in stands_D])
    return out_A[:count].copy(), least_D[taken], used


@numba.njit(cache=True, nogil=True)
def _ahead(paths: Pushed, waiting: Any, stands: Any, left: float) -> Any:
    """Return a heap of the words met next: word, target and cost; the least cost of an end; and
    the number of arcs.

    Nodes wait until their arcs are followed, in lists by level: the lowest level is first.

    Args:
        waiting: `_levels`; by level, the first node that waits (-1: none); by node, the one that
            waits after it, and the cost of one that waits (infinite of all others).
        stands: nodes to start from, and their costs.
        left: nats; what costs more is left out.
    """
    level_N, head_L, next_N, near_N = waiting
    level, last = len(head_L), -1
    for n, cost in stands:
        near_N[n] = cost
        next_N[n], head_L[level_N[n]] = head_L[level_N[n]], n
        level, last = min(level, level_N[n]), max(last, level_N[n])
    met: list[tuple[Any, Any, float]] = [(0, 0, 0.0) for _ in range(0)]
    ending, followed = np.inf, 0
    while level <= last:
        n = head_L[level]
        if n < 0:
            level += 1
            continue
        head_L[level] = next_N[n]
        near, near_N[n] = near_N[n], np.inf
        ending = min(ending, near + paths.end_N[n])
        followed += paths.first_N[n + 1] - paths.first_N[n]
        for a in range(paths.first_N[n], paths.first_N[n + 1]):
            arc = paths.arcs_A[a]
            target, cost = np.int64(arc.target), near + arc.cost
            if cost > left:
                continue
            if arc.word:
                heapq.heappush(met, (np.int64(arc.word), target, cost))
                continue
            if near_N[target] == np.inf:
                next_N[target], head_L[level_N[target]] = head_L[level_N[target]], target
                last = max(last, level_N[target])
            near_N[target] = min(near_N[target], cost)
    return met, ending, followed


@numba.njit(cache=True, nogil=True)
def _by_word(met: Any, beam: float) -> Any:
    """Take the least word from the heap: word, cheapest cost, what it leads to and its hash."""
    word, cheapest = met[0][0], np.inf
    reached = [(0, 0.0) for _ in range(0)]
    while met and met[0][0] == word:
        _, target, cost = heapq.heappop(met)
        cheapest = min(cheapest, cost)
        if not reached or reached[-1][0] != target:
            reached.append((target, cost))
    stands, mixed = [(0, 0.0) for _ in range(0)], np.uint64(0x94D049BB133111EB)
    for target, cost in reached:
        more = cost - cheapest
        if more <= beam + ROUNDING:
            stands.append((target, more))
            quanta = np.uint64(np.int64(np.floor(more / QUANTUM + 0.5)))
            mixed = (mixed ^ np.uint64(target)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29)) ^ quanta) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(32)
    return word, cheapest, stands, np.int64(mixed >> np.uint64(1))


@numba.njit(cache=True, nogil=True)
def _share(arcs_A: Any, nodes: int) -> None:
    """Turn the arcs' costs into the share of each in the paths that enter its target."""
    log_N = np.full(nodes, -np.inf)
    log_N[0] = 0.0
    for a in range(len(arcs_A)):
        arc = arcs_A[a]
        log_N[arc.target] = np.logaddexp(log_N[arc.target], log_N[arc.source] - arc.share)
    for a in range(len(arcs_A)):
        arc = arcs_A[a]
        log = log_N[arc.source] - arc.share
        arc.share = np.exp(log - log_N[arc.target]) if log > -np.inf else 0.0
