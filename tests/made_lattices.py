"""Random lattices of states, and all of their paths."""

import itertools

import numpy as np

from asr_train.search.occupancy import EMPTY, STATE_ARC


def random_arcs(rng, ali_T, num_states, width=3) -> np.ndarray:
    """Draw a lattice of up to `width` nodes per frame, with arcs of EMPTY; `ali_T` is a path."""
    layers, free = [[0]], 1
    for _ in ali_T:
        size = int(rng.integers(1, width + 1))
        layers.append(list(range(free, free + size)))
        free += size
    cost = lambda: float(rng.uniform(-0.5, 2.0))  # noqa: E731
    rows = []
    for t, (here, there) in enumerate(itertools.pairwise(layers)):
        rows.append((here[0], there[0], int(ali_T[t]), cost()))
        pairs = [(s, rng.choice(there)) for s in here] + [(rng.choice(here), u) for u in there]
        rows += [(int(s), int(u), int(rng.integers(num_states)), cost()) for s, u in pairs]
        rows += [
            (s, u, EMPTY, cost()) for s in there for u in there if s < u and rng.random() < 0.4
        ]
    rows += [(s, free, EMPTY, cost()) for s in layers[-1]]
    return np.array(sorted(rows), STATE_ARC)


def all_paths(arcs_A, node=0):
    """Yield every path: its states, and its graph cost."""
    if node == arcs_A["target"].max():
        yield (), 0.0
    for arc in arcs_A[arcs_A["source"] == node]:
        own = () if arc["state"] == EMPTY else (int(arc["state"]),)
        for states, cost in all_paths(arcs_A, arc["target"]):
            yield own + states, cost + float(arc["graph"])
