"""Scores and a weak language model's graph -> **lattices of states** for sequence training.

in    Scorer, HCLG with the weights of decoding, features and alignment of an utterance
out   STATE_ARC [arcs] (search.occupancy): all paths near the best one, and the alignment
Graph costs are kept at their own scale and acoustic ones are not kept: training computes them anew
from the network's current weights. The alignment is the reference; where pruning lost it, its
cheapest path in the graph is added, so that every numerator is part of its denominator.
"""

import numpy as np

from asr_train.data.features import Utterance
from asr_train.decode.scorer import Scorer
from asr_train.decode.words import Choice, Effort, lattice_of
from asr_train.search.arrays import Arrays
from asr_train.search.lattice import Lattice, Lattices, best_path
from asr_train.search.occupancy import EMPTY, STATE_ARC, frame_of_node, has_path

FORBIDDEN = 1e6  # nats: the cost of a frame in another state than the alignment's


class Competitors:
    """Finds what competes with the alignments of utterances.

    Build it before worker processes are forked.

    Args:
        graph: HCLG, made with the choice's LM weight and penalty.
        arcs_per_frame: the most, on average over an utterance; the lattice beam is narrowed.
    """

    def __init__(
        self, scorer: Scorer, graph: Arrays, choice: Choice, effort: Effort, arcs_per_frame: int
    ) -> None:
        self._scorer, self._scale = scorer, np.float32(choice.acoustic_scale)
        self._effort, self._arcs_per_frame = effort, arcs_per_frame
        self._lattices = Lattices(graph, scorer.num_states)

    def __call__(self, utterance: Utterance, ali_T: np.ndarray) -> tuple[np.ndarray, bool] | str:
        """Return an utterance's arcs, and whether its alignment was added; or why it has none."""
        scaled_TS = self._scorer.score(utterance) * self._scale
        most = self._arcs_per_frame * len(ali_T)
        lattice = lattice_of(self._lattices, scaled_TS, self._effort, most)
        if lattice is None or not lattice.final:
            return "the search reached no final state"
        arcs_A = state_arcs(lattice)
        if has_path(arcs_A, ali_T):
            return arcs_A, False
        cost = self._graph_cost(ali_T)
        if cost is None:
            return "the weak language model's graph has no path of its alignment"
        return with_path(arcs_A, ali_T, cost), True

    def _graph_cost(self, ali_T: np.ndarray) -> float | None:
        """Return the cost of the graph's cheapest path of these states; None: it has none."""
        scores_TS = np.full((len(ali_T), self._scorer.num_states), -FORBIDDEN, np.float32)
        scores_TS[np.arange(len(ali_T)), ali_T] = 0.0
        lattice = self._lattices.decode(scores_TS, FORBIDDEN / 2, 10**6, 1.0, min_active=0)
        if lattice is None or not lattice.final or lattice.cost >= FORBIDDEN / 2:
            return None
        return best_path(lattice).graph_cost


def state_arcs(lattice: Lattice) -> np.ndarray:
    """Return a lattice's arcs, and one of EMPTY from each final node to an end after all."""
    nodes, links_A = len(lattice.frame_N), lattice.arcs_A
    ends = np.flatnonzero(np.isfinite(lattice.final_N))
    arcs_A = np.empty(len(links_A) + len(ends), STATE_ARC)
    for name in ("source", "target", "graph"):
        arcs_A[name][: len(links_A)] = links_A[name]
    arcs_A["state"][: len(links_A)] = links_A["ilabel"] - 1
    last = arcs_A[len(links_A) :]
    last["source"], last["target"], last["state"] = ends, nodes, EMPTY
    last["graph"] = lattice.final_N[ends]
    return arcs_A[np.argsort(arcs_A["source"], kind="stable")]


def with_path(arcs_A: np.ndarray, ali_T: np.ndarray, cost: float) -> np.ndarray:
    """Return the arcs with one more path beside the others: these states, at this graph cost."""
    frame_N = frame_of_node(arcs_A)
    nodes, frames = len(frame_N), len(ali_T)
    own = np.zeros(frames, STATE_ARC)
    own["source"][1:] = own["target"][:-1] = np.arange(nodes, nodes + frames - 1)
    own["target"][-1], own["state"], own["graph"][0] = nodes - 1, ali_T, cost
    order = np.argsort(np.concatenate([frame_N, np.arange(1, frames)]), kind="stable")
    number_N = np.argsort(order).astype(np.int32)
    arcs_A = np.concatenate([arcs_A, own])
    arcs_A["source"], arcs_A["target"] = number_N[arcs_A["source"]], number_N[arcs_A["target"]]
    return arcs_A[np.argsort(arcs_A["source"], kind="stable")]
