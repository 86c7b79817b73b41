"""Lattice -> **confidences** of the words of a path: the posterior of each at its place there.

Each word sequence counts once, with the cost of its cheapest path (`search.posterior`), and is
aligned with the path's words (`search.mbr`), as in Kaldi's lattice-to-ctm-conf. Sums over all
state alignments at a frame would favour sequences of more states, and count a word said once for
both of two equal ones. In large lattices only the cheapest sequences count (`MAX_NODES`). Knows
words as ids.
"""

from collections.abc import Sequence

import numpy as np

from asr_train.search.lattice import LINK, Lattice
from asr_train.search.mbr import decide
from asr_train.search.posterior import lattice_posterior


def confidences(lattice: Lattice, words: Sequence[int]) -> list[float]:
    """Return the probability, in [0, 1], of each word at its place; at the scale of the search.

    Args:
        words: ids, of a path through the lattice.
    """
    if not words:
        return []
    return decide(lattice_posterior(lattice), words, 0).confidences


def compile_confidences() -> None:
    """Compile, or load what was compiled before; for all processes that are forked later."""
    arcs_A = np.zeros(1, LINK)
    arcs_A["target"] = arcs_A["ilabel"] = arcs_A["olabel"] = 1
    ends_N, active_T = np.array([np.inf, 0.0]), np.ones(1, np.int32)
    confidences(
        Lattice(np.arange(2, dtype=np.int32), ends_N, arcs_A, 0.0, True, 1.0, active_T), [1]
    )
