"""Random graphs with epsilons, and all of their paths."""

import numpy as np

from asr_train.search.arrays import ARC, Arrays

STATES, WORDS = 4, 3


def random_graph(rng, nodes=7, arcs=22, least=0.0) -> Arrays:
    """Draw arcs anywhere, including loops and parallel ones; epsilons only lead to higher nodes.

    Args:
        least: of the costs of arcs, nats.
    """
    arcs_A = np.zeros(arcs, ARC)
    source_A = rng.integers(0, nodes, arcs)
    source_A[:nodes] = np.arange(nodes)  # each node has an arc that leaves it
    arcs_A["next"] = rng.integers(0, nodes, arcs)
    arcs_A["ilabel"] = rng.integers(1, STATES + 1, arcs)
    empty = (rng.random(arcs) < 0.3) & (arcs_A["next"] > source_A)
    empty[:nodes] = False
    arcs_A["ilabel"][empty] = 0
    spoken = rng.random(arcs) < 0.4
    arcs_A["olabel"][spoken] = rng.integers(1, WORDS + 1, spoken.sum())
    arcs_A["weight"] = rng.uniform(least, 2.0, arcs)
    final_N = np.where(rng.random(nodes) < 0.5, rng.uniform(0, 1, nodes), np.inf)
    final_N[-1] = 0.5
    order = np.argsort(source_A, kind="stable")
    return Arrays(0, final_N.astype(np.float32), source_A[order], arcs_A[order])


def random_scores(rng, frames=5, spread=1.0) -> np.ndarray:
    return (spread * rng.standard_normal((frames, STATES))).astype(np.float32)


def all_paths(graph: Arrays, scores_TS: np.ndarray):
    """Yield every complete path: its cost, its words, and the last word passed at each frame."""

    def onward(node, t, cost, words, at_T):
        if t == len(scores_TS) and np.isfinite(graph.final_N[node]):
            yield cost + float(graph.final_N[node]), words, at_T
        for a in np.flatnonzero(graph.source_A == node):
            arc = graph.arcs_A[a]
            said = (*words, int(arc["olabel"])) if arc["olabel"] else words
            there = cost + float(arc["weight"])
            if arc["ilabel"] == 0:
                yield from onward(arc["next"], t, there, said, at_T)
            elif t < len(scores_TS):
                there -= float(scores_TS[t, arc["ilabel"] - 1])
                last = said[-1] if said else 0
                yield from onward(arc["next"], t + 1, there, said, (*at_T, last))

    yield from onward(graph.start, 0, 0.0, (), ())


def cheapest_rows(graph: Arrays, scores_TS: np.ndarray) -> list[tuple[float, tuple[int, ...]]]:
    """Return the lowest cost of each word sequence, sorted."""
    best: dict[tuple[int, ...], float] = {}
    for cost, words, _ in all_paths(graph, scores_TS):
        best[words] = min(cost, best.get(words, np.inf))
    return sorted((cost, words) for words, cost in best.items())
