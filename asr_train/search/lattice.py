"""Scores and graph -> **lattice**: every path near the best one, for n-best lists and rescoring.

in    graph      Arrays (search.graph): input labels are states + 1, 0 is epsilon
      scores_TS  float32, scaled log-likelihoods in nats
out   Lattice    nodes in topological order, each with its frame; arcs with labels and costs
Knows nothing of words beyond their ids, of language models, or of files.

Compiled with numba, because kaldi_decoder's lattice decoder does not limit active tokens. The
search keeps the tokens (graph node and cost) of each frame, but no links: the arcs between the
tokens of two frames are looked up in the graph again after pruning. Every CHUNK frames, tokens that
are not within `lattice_beam` of the best path to *some* live token are dropped; a path within
`lattice_beam` of the best complete one is always kept (Ljolje, Pereira and Riley, 1999, section 2;
Povey et al., 2012, section 4).
"""

import io
import pathlib
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from asr_train.search.arrays import Arrays, const_of, epsilon_heights, view_const
from asr_train.search.beam import Path, check_scores
from asr_train.search.tokens import CHUNK, ROUNDING, Graph, Tokens, backward, forward, links

LINK = np.dtype(
    [(name, "<i4") for name in ("source", "target", "ilabel", "olabel")]
    + [(name, "<f4") for name in ("graph", "acoustic")]
)
MAX_ARCS = 20_000_000  # of a lattice
SLACK_BINS = 256  # steps in which the lattice beam is narrowed to respect max_arcs


@dataclass(frozen=True, slots=True)
class Lattice:
    """All paths near the best one, as an acyclic graph.

    Attributes:
        frame_N: int32 [nodes], frames consumed before each node; non-decreasing. Node 0 is the
            start, and every node lies on a path from it to an end.
        final_N: float64 [nodes], the cost of ending there, nats; infinite if not final.
        arcs_A: `LINK` [arcs], by source; a target comes after its source. Costs in nats, the
            acoustic one at the scale of the scores (0 for epsilon arcs).
        cost: of the best path, nats.
        final: it ends in a final state; if not, paths end anywhere, at no cost.
        beam: nats above the best path within which every path of the search is kept; narrower than
            requested if the lattice would have had more than `max_arcs` arcs.
        active_T: int32 [T], active tokens of each frame.
    """

    frame_N: np.ndarray
    final_N: np.ndarray
    arcs_A: np.ndarray
    cost: float
    final: bool
    beam: float
    active_T: np.ndarray

    @property
    def frames(self) -> int:
        """T."""
        return len(self.active_T)

    def arc_offsets(self) -> np.ndarray:
        """Return the first arc of each node in `arcs_A`: int64 [nodes + 1]."""
        return np.searchsorted(self.arcs_A["source"], np.arange(len(self.frame_N) + 1))

    def costs_to_end(self) -> np.ndarray:
        """Return the cheapest cost from each node to an end: float64 [nodes]."""
        return _to_end(self.arcs_A, self.final_N)


def ordered(graph: Arrays) -> Graph:
    """Order a graph for the search.

    Raises:
        ValueError: if epsilon arcs form a cycle.
    """
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
    return Graph(
        first_N=first_N.astype(np.int32),
        emit_N=(first_N[:-1] + empty_N).astype(np.int32),
        arcs_A=arcs_A,
        height_N=height_N[order].astype(np.int32),
        final_N=graph.final_N[order].astype(np.float64),
        plain=int(np.count_nonzero(height_N == 0)),
        start=int(number_N[graph.start]),
    )


def write_ordered(folder: pathlib.Path, graph: Graph) -> list[pathlib.Path]:
    """Write a graph in the order of the search: HCLG.fst, OpenFst's ConstFst, and heights.npy."""
    paths = [folder / "HCLG.fst", folder / "heights.npy"]
    source_A = np.repeat(np.arange(len(graph.emit_N)), np.diff(graph.first_N))
    final_N = graph.final_N.astype(np.float32)
    paths[0].write_bytes(const_of(Arrays(graph.start, final_N, source_A, graph.arcs_A)))
    np.save(paths[1], graph.height_N, allow_pickle=False)
    return paths


def view_ordered(fst: memoryview, heights: memoryview) -> Graph:
    """View what `write_ordered` wrote, without a copy of the arcs and without sorting anything.

    Args:
        fst, heights: content of the files; `check_const` has checked the first.
    Raises:
        ValueError: if there are more or fewer heights than nodes, heights out of order, or an
            epsilon arc that does not lead to a lower node.
    """
    start, states_N, arcs_A = view_const(fst)
    height_N = np.lib.format.read_array(io.BytesIO(heights), allow_pickle=False)
    if height_N.shape != states_N.shape or height_N.dtype != np.int32:
        raise ValueError(
            f"heights.npy has {height_N.dtype} {list(height_N.shape)}, but HCLG.fst has "
            f"{len(states_N)} nodes, with an int32 each"
        )
    if height_N.min(initial=0) < 0 or (height_N[1:] < height_N[:-1]).any():
        raise ValueError("heights.npy is not in the order of the search; make the bundle again")
    if height_N.max(initial=0) > len(height_N):  # the search has an array of that size
        raise ValueError(f"heights.npy has {height_N[-1]}, above the {len(height_N)} nodes")
    first_N = np.empty(len(states_N) + 1, np.int32)
    first_N[:-1], first_N[-1] = states_N["first"], len(arcs_A)
    emit_N = first_N[:-1] + states_N["iepsilons"].astype(np.int32)
    final_N, plain = states_N["final"].astype(np.float64), int(np.searchsorted(height_N, 1))
    graph = Graph(first_N, emit_N, arcs_A, height_N, final_N, plain, start)
    _check_epsilons(graph)
    return graph


def _check_epsilons(graph: Graph) -> None:
    """Check that epsilon arcs come first in their nodes, and each leads to a lower node.

    So there is no cycle of them, in which a search would never end. Only nodes from `plain` on have
    any.
    """
    first, plain = graph.first_N[graph.plain], graph.plain
    height_N, tail_A = graph.height_N, graph.arcs_A[first:]
    source_A = np.repeat(
        np.arange(plain, len(height_N), dtype=np.int32), np.diff(graph.first_N[plain:])
    )
    empty_A = np.arange(first, len(graph.arcs_A), dtype=np.int32) < graph.emit_N[source_A]
    falls_E = height_N[tail_A["next"][empty_A]] < height_N[source_A[empty_A]]
    if (
        (graph.emit_N[:plain] > graph.first_N[:plain]).any()
        or not graph.arcs_A["ilabel"][:first].all()
        or ((tail_A["ilabel"] == 0) != empty_A).any()
        or not falls_E.all()
    ):
        raise ValueError(
            "HCLG.fst has an epsilon arc that is not among the first of its node, or does not lead "
            "to a lower node of heights.npy; make the bundle again"
        )


class Lattices:
    """Time-synchronous beam search that keeps alternatives.

    Build it before worker processes are forked: they share the graph and the compiled code.

    Args:
        graph: input labels are states + 1; one that is ordered already is taken as it is.
        num_states: columns of the score matrices, the graph's largest input label at least.
    Raises:
        ValueError: if the graph has a cycle of epsilon arcs.
    """

    def __init__(self, graph: Arrays | Graph, num_states: int) -> None:
        self._graph = graph if isinstance(graph, Graph) else ordered(graph)
        self._num_states = num_states
        # Compile the search, or load it where it was compiled before: a second per process
        self.decode(np.zeros((1, num_states), np.float32), 1.0, 10, 1.0)

    def decode(
        self,
        scores_TS: np.ndarray,
        beam: float,
        max_active: int,
        lattice_beam: float,
        min_active: int = 20,
        max_arcs: int = MAX_ARCS,
        chunk: int = CHUNK,
    ) -> Lattice | None:
        """Search one utterance.

        Memory: 20 bytes per token for up to `2 * chunk * max_active` tokens and those that survive
        pruning, 25 bytes per arc of the result.

        Args:
            scores_TS: float32 [T, S], scaled log-likelihoods in nats; finite.
            beam: nats, at the scale of the scores.
            max_active: active tokens per frame, not counting those from which an epsilon arc of
                negative cost leads to an active one.
            lattice_beam: nats above the best path's cost.
            min_active: tokens that stay active even outside of the beam.
            max_arcs: of the lattice; if it has more, the lattice beam is narrowed.
            chunk: frames between prunings; the result does not depend on it.
        Returns:
            The lattice; None if no token survives to the last frame.
        Raises:
            ValueError: for a wrong number of columns, or scores that are not finite.
        """
        check_scores(scores_TS, self._num_states)
        scores_TS = np.ascontiguousarray(scores_TS, np.float32)
        limits = float(beam), max_active, min(min_active, max_active)
        lattice_beam = float(lattice_beam)
        states_H, costs_H, first_T, active_T = forward(
            self._graph, scores_TS, limits, lattice_beam + ROUNDING, chunk
        )
        last = slice(first_T[-2], first_T[-1])
        if last.start == last.stop:
            return None
        ends = self._graph.final_N[states_H[last]]
        final = bool(np.isfinite(ends).any())
        totals = costs_H[last] + (ends if final else 0.0)
        cost = float(totals.min())
        slack_H = np.empty(len(states_H))
        slack_H[last] = totals - cost
        tokens = Tokens(states_H, costs_H, slack_H, first_T)
        slot_N = np.full(len(self._graph.final_N), -1, np.int32)
        backward(self._graph, scores_TS, lattice_beam, tokens, 0, slot_N)
        search = (self._graph, scores_TS, tokens)
        bins = np.zeros(SLACK_BINS, np.int64)
        counting = np.empty(0, np.int32), np.empty(0, LINK), bins
        width, count = lattice_beam, links(*search, lattice_beam, *counting)
        if count > max_arcs:
            width *= np.searchsorted(np.cumsum(bins), max_arcs, "right") / SLACK_BINS
            count = links(*search, width, *counting)
        inside_H = slack_H <= width
        node_H = (np.cumsum(inside_H) - 1).astype(np.int32)
        arcs_A = np.empty(count, LINK)
        links(*search, width, node_H, arcs_A, np.empty(0, np.int64))
        frame_N = np.repeat(np.arange(len(first_T) - 1, dtype=np.int32), np.diff(first_T))[inside_H]
        final_N = np.full(len(frame_N), np.inf)
        ending = np.flatnonzero(totals - cost <= width)
        final_N[node_H[last][ending]] = ends[ending] if final else 0.0
        return Lattice(frame_N, final_N, arcs_A, cost, final, width, active_T)


def best_path(lattice: Lattice) -> Path:
    """Return the cheapest path of a lattice."""
    to_end_N = lattice.costs_to_end()
    arcs = _best_arcs(lattice.arcs_A, lattice.arc_offsets(), lattice.final_N, to_end_N)
    return path_of(lattice, arcs)


def path_of(lattice: Lattice, arcs: np.ndarray) -> Path:
    """Return the path of arcs from the start to an end."""
    links = lattice.arcs_A[arcs]
    spoken = links["olabel"] > 0
    graph = links["graph"].sum(dtype=np.float64) + lattice.final_N[links["target"][-1]]
    return Path(
        words=links["olabel"][spoken].tolist(),
        states_T=links["ilabel"][links["ilabel"] > 0].astype(np.int32) - 1,
        graph_cost=float(graph),
        acoustic_cost=float(links["acoustic"].sum(dtype=np.float64)),
        final=lattice.final,
    )


def narrowed(lattice: Lattice, beam: float) -> Lattice:
    """Return the part of a lattice on paths within `beam` nats of its best path's cost."""
    arcs_A, to_end_N = lattice.arcs_A, lattice.costs_to_end()
    from_start_N = _from_start(arcs_A, len(to_end_N))
    source_A, target_A = arcs_A["source"], arcs_A["target"]
    cost_A = arcs_A["graph"] + arcs_A["acoustic"].astype(np.float64)
    limit = to_end_N[0] + beam + ROUNDING
    kept_A = from_start_N[source_A] + cost_A + to_end_N[target_A] <= limit
    kept_N = from_start_N + to_end_N <= limit
    number_N = (np.cumsum(kept_N) - 1).astype(np.int32)
    kept_A &= kept_N[source_A] & kept_N[target_A]  # rounding, at the beam's border
    inside_A = arcs_A[kept_A]
    inside_A["source"], inside_A["target"] = number_N[source_A[kept_A]], number_N[target_A[kept_A]]
    final_N = np.where(from_start_N + lattice.final_N <= limit, lattice.final_N, np.inf)
    return replace(
        lattice,
        frame_N=lattice.frame_N[kept_N],
        final_N=final_N[kept_N],
        arcs_A=inside_A,
        beam=min(beam, lattice.beam),
    )


# --- compiled -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _to_end(arcs_A: Any, final_N: Any) -> Any:
    cost_N = final_N.copy()
    for a in range(len(arcs_A) - 1, -1, -1):  # sorted by source; targets come after it
        arc = arcs_A[a]
        cost = arc.graph + np.float64(arc.acoustic) + cost_N[arc.target]
        cost_N[arc.source] = min(cost_N[arc.source], cost)
    return cost_N


@numba.njit(cache=True, nogil=True)
def _from_start(arcs_A: Any, nodes: int) -> Any:
    cost_N = np.full(nodes, np.inf)
    cost_N[0] = 0.0
    for a in range(len(arcs_A)):
        arc = arcs_A[a]
        cost = cost_N[arc.source] + (arc.graph + np.float64(arc.acoustic))
        cost_N[arc.target] = min(cost_N[arc.target], cost)
    return cost_N


@numba.njit(cache=True, nogil=True)
def _best_arcs(arcs_A: Any, first_N: Any, final_N: Any, to_end_N: Any) -> Any:
    """Return the best path's arcs; it ends at the first node where ending is cheapest."""
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
