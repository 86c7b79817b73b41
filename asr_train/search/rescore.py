"""Lattice and two n-gram models -> **expanded lattice**: the best words under the larger model.

in    Lattice (`search.lattice`), the model in its graph and the one to replace it (`Model`)
out   Expanded: each node split by the histories of both models, with all costs apart
      Path: the cheapest path at a weight of the new model and a penalty per word
Every path of the lattice is one path of the expansion, so that the cheapest is found exactly,
whatever its rank was. Only arcs with words change histories: all other arcs of an expansion share
the lattice's costs, and need 4 bytes each. Knows words as ids, and nothing of files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np

from asr_train.lang.arpa import UNKNOWN, NgramModel
from asr_train.lang.histories import ROUNDING, Histories, advance, advance_in_graph
from asr_train.search.lattice import Lattice, narrowed

MAX_ARCS = 50_000_000  # of an expansion; about 5 bytes each
NARROWING = 0.75  # factor of the lattice's beam while its expansion has more
LEAST_BEAM = 0.01  # nats; below it, only the best path is left


@dataclass(frozen=True, slots=True)
class Model:
    """An n-gram model that can be asked for the lattice's words.

    Attributes:
        id_W: int32 [words + 1], the model's id of each word of the lexicon, counted from 1; that of
            <unk> where the model lacks it, -1 without <unk>.
    """

    histories: Histories
    id_W: np.ndarray
    names: Sequence[str]

    @staticmethod
    def of(model: NgramModel, names: Sequence[str]) -> "Model":
        """Number a model's histories, and the lexicon's words (`names`) as it does."""
        ids = [-1, *(model.id_of.get(name, model.unknown) for name in names)]
        return Model(Histories.of(model), np.array(ids, np.int32), names)


@dataclass(frozen=True, slots=True)
class Path:
    """A path through a lattice, under the new model.

    Attributes:
        words: ids.
        cost: with the weights of rescoring, nats.
        acoustic_cost: the part of it that is acoustic, at the scale of the search.
    """

    words: list[int]
    cost: float
    acoustic_cost: float


class Expansion(NamedTuple):
    """The arrays of an expanded lattice, X nodes.

    The lattice's arcs are taken by target. A copy of arc i for every copy of its source: copy j
    leads to node `target_E[first_E[i] + j]`; if it has a word, its costs are at `first_W[i] + j`.

    Attributes:
        order_A: int64 [arcs], the lattice's arcs by target.
        first_X: int64 [lattice nodes + 1], the first copy of each of the lattice's nodes.
        first_E, first_W: int64 [arcs + 1].
        target_E: int32, nodes of the expansion.
        old_W, new_W: float64, cost of the word by either model at a weight of 1, nats.
        end_X, end_cost_X, end_old_X, end_new_X: nodes where paths end, and the costs of ending.
    """

    order_A: np.ndarray
    first_X: np.ndarray
    first_E: np.ndarray
    first_W: np.ndarray
    target_E: np.ndarray
    old_W: np.ndarray
    new_W: np.ndarray
    end_X: np.ndarray
    end_cost_X: np.ndarray
    end_old_X: np.ndarray
    end_new_X: np.ndarray


@dataclass(frozen=True, slots=True)
class Expanded:
    """A lattice whose nodes know both models' histories.

    Attributes:
        lattice: what was expanded; narrower than what was given if that exceeded the limit.
        lm_weight: of the old model.
    """

    lattice: Lattice
    lm_weight: float
    arrays: Expansion

    def best(self, lm_weight: float, penalty: float) -> Path:
        """Return the cheapest path.

        Args:
            lm_weight: of the new model.
            penalty: nats per word, in addition to the graph's.
        """
        arcs, cost = _cheapest(
            self.lattice.arcs_A, self.arrays, self.lm_weight, float(lm_weight), float(penalty)
        )
        found = self.lattice.arcs_A[arcs]
        words = found["olabel"][found["olabel"] > 0]
        return Path(words.tolist(), cost, float(found["acoustic"].sum(dtype=np.float64)))


def expanded(
    lattice: Lattice, old: Model, new: Model, lm_weight: float, max_arcs: int = MAX_ARCS
) -> Expanded:
    """Follow both models' histories through a lattice.

    The old model's cost of a path is the least that the graph can charge for its words, however it
    backs off; the new model's is that of its words with back-off. Both models' sentence ends count
    if the search reached a final state.

    Args:
        lm_weight: of the old model in the graph.
        max_arcs: of the expansion. If it has more, the lattice's beam is narrowed until it fits;
            the path that was best before always stays.
    Raises:
        ValueError: if a model has neither a word nor <unk>, or if the best path alone exceeds
            `max_arcs`.
    """
    words = np.unique(lattice.arcs_A["olabel"])
    for name, model in (("graph's", old), ("larger", new)):
        missing = words[(model.id_W[words] < 0) & (words > 0)]
        if len(missing):
            raise ValueError(
                f"the {name} language model knows neither {model.names[missing[0] - 1]!r} nor "
                f"{UNKNOWN}; make it again with a vocabulary that holds both"
            )
    while True:
        arrays = _expansion(lattice, old, new, max_arcs)
        if arrays is not None:
            return Expanded(lattice, float(lm_weight), arrays)
        if lattice.beam == 0:
            raise ValueError(
                f"the best path of {lattice.frames} frames has more than {max_arcs} arcs, to which "
                "rescoring is limited"
            )
        beam = lattice.beam * NARROWING
        lattice = narrowed(lattice, beam if beam > LEAST_BEAM else 0.0)


def _expansion(lattice: Lattice, old: Model, new: Model, max_arcs: int) -> Expansion | None:
    """Return the expansion; None if it has too many arcs."""
    order_A = np.argsort(lattice.arcs_A["target"], kind="stable")
    models = old.histories, old.id_W, new.histories, new.id_W
    graph = lattice.arcs_A, order_A, lattice.final_N
    found = _expand(*graph, models, lattice.final, int(max_arcs))
    return Expansion(order_A, *found) if len(found[0]) else None


# --- compiled -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _expand(
    arcs_A: Any, order_A: Any, final_N: Any, models: Any, ended: bool, max_arcs: int
) -> Any:
    """Return the arrays of `Expansion` from `first_X` on; empty ones if there are too many arcs.

    Args:
        ended: whether the paths end in final states, and so with the sentence's end.
    """
    old, oldid_W, new, newid_W = models
    nodes = len(final_N)
    first_X = np.zeros(nodes + 1, np.int64)
    first_E, first_W = np.zeros(len(arcs_A) + 1, np.int64), np.zeros(len(arcs_A) + 1, np.int64)
    target_E = [np.int32(0) for _ in range(0)]
    old_W, new_W = [0.0 for _ in range(0)], [0.0 for _ in range(0)]
    # What follows in the old model: histories and their costs (`advance_in_graph`), numbered
    history_HK, cost_HK = [np.array([np.int64(old.start)])], [np.zeros(1)]
    number_of = {(np.int64(-1), np.int64(old.start), np.int64(0)): 0}
    # Pairs of one of these and the new model's history, and what a word leads to from each
    pairs = [(0, int(new.start))]
    pair_of = {pairs[0]: 0}
    steps = {(0, 0): (0, 0.0, 0.0)}
    pair_X = [0]
    node_P, place_P = [-1], [0]  # the last node with a copy of a pair, and that copy
    i = 0
    for node in range(nodes):
        first_X[node] = len(pair_X) if node else 0
        while i < len(order_A) and arcs_A[order_A[i]].target == node:
            arc = arcs_A[order_A[i]]
            word = int(arc.olabel)
            low, high = first_X[arc.source], first_X[arc.source + 1]
            first_E[i], first_W[i] = len(target_E), len(old_W)
            if len(target_E) + high - low > max_arcs:
                none = np.empty(0, np.int64)
                empty = np.empty(0)
                few = np.empty(0, np.int32)
                return none, none, none, few, empty, empty, none, empty, empty, empty
            for x in range(low, high):
                pair = pair_X[x]
                if word:
                    if (pair, word) not in steps:
                        here, new_here = pairs[pair]
                        old_cost, history_K, cost_K = advance_in_graph(
                            old, history_HK[here], cost_HK[here], oldid_W[word]
                        )
                        new_cost, new_next = advance(new, new_here, newid_W[word])
                        old_next = _number(history_K, cost_K, number_of, history_HK, cost_HK)
                        both = old_next, int(new_next)
                        if both not in pair_of:
                            pair_of[both] = len(pairs)
                            pairs.append(both)
                            node_P.append(-1)
                            place_P.append(0)
                        steps[pair, word] = pair_of[both], old_cost, new_cost
                    pair, old_cost, new_cost = steps[pair, word]
                    old_W.append(old_cost)
                    new_W.append(new_cost)
                if node_P[pair] != node:
                    node_P[pair], place_P[pair] = node, len(pair_X)
                    pair_X.append(pair)
                target_E.append(np.int32(place_P[pair]))
            i += 1
        first_X[node + 1] = len(pair_X)
    first_E[i], first_W[i] = len(target_E), len(old_W)
    end_X, cost_X = [0 for _ in range(0)], [0.0 for _ in range(0)]
    end_old_X, end_new_X = [0.0 for _ in range(0)], [0.0 for _ in range(0)]
    for end in np.flatnonzero(final_N < np.inf):
        for x in range(first_X[end], first_X[end + 1]):
            last, new_last = pairs[pair_X[x]]
            old_end, _, _ = advance_in_graph(old, history_HK[last], cost_HK[last], old.end)
            end_X.append(x)
            cost_X.append(final_N[end])
            end_old_X.append(old_end if ended else 0.0)
            end_new_X.append(advance(new, new_last, new.end)[0] if ended else 0.0)
    return (
        first_X,
        first_E,
        first_W,
        np.array(target_E),
        np.array(old_W),
        np.array(new_W),
        np.array(end_X),
        np.array(cost_X),
        np.array(end_old_X),
        np.array(end_new_X),
    )


@numba.njit(cache=True, nogil=True)
def _number(history_K: Any, cost_K: Any, number_of: Any, history_HK: Any, cost_HK: Any) -> Any:
    """Return the number of some histories with their costs, given to them if they are new.

    Args:
        number_of: of the histories up to one: by those before it, it, and its rounded cost.
    """
    number = -1
    for k in range(len(history_K)):
        key = np.int64(number), history_K[k], np.int64(round(cost_K[k] / ROUNDING))
        if key not in number_of:
            number_of[key] = len(history_HK)
            history_HK.append(history_K[: k + 1])
            cost_HK.append(cost_K[: k + 1])
        number = number_of[key]
    return number


@numba.njit(cache=True, nogil=True)
def _cheapest(arcs_A: Any, into: Any, old_weight: float, new_weight: float, penalty: float) -> Any:
    """Return the lattice's arcs of the cheapest path, of ties the first one, and its cost."""
    cost_X = np.full(into.first_X[-1], np.inf)
    best_X = np.full(into.first_X[-1], -1, np.int64)  # the arc of the expansion that enters
    cost_X[0] = 0.0
    for i in range(len(into.order_A)):
        arc = arcs_A[into.order_A[i]]
        fixed = arc.graph + np.float64(arc.acoustic)
        low, e, w = into.first_X[arc.source], into.first_E[i], into.first_W[i]
        for j in range(into.first_E[i + 1] - e):
            cost = cost_X[low + j] + fixed
            if arc.olabel:
                cost += new_weight * into.new_W[w + j] - old_weight * into.old_W[w + j] + penalty
            target = into.target_E[e + j]
            if cost < cost_X[target]:
                cost_X[target], best_X[target] = cost, e + j
    least, last = np.inf, -1
    for k in range(len(into.end_X)):
        cost = cost_X[into.end_X[k]] + into.end_cost_X[k]
        cost += new_weight * into.end_new_X[k] - old_weight * into.end_old_X[k]
        if cost < least:
            least, last = cost, into.end_X[k]
    arcs, x = [0 for _ in range(0)], last
    while best_X[x] >= 0:
        arc, x = _source(arcs_A, into, best_X[x])
        arcs.append(arc)
    return np.array(arcs[::-1]), least


@numba.njit(cache=True, nogil=True)
def _source(arcs_A: Any, into: Any, e: int) -> Any:
    """Return the lattice's arc of an arc of the expansion, and the node that it leaves."""
    i = np.searchsorted(into.first_E, e, "right") - 1
    a = into.order_A[i]
    return a, into.first_X[arcs_A[a].source] + (e - into.first_E[i])
