"""Lattice -> **confidences** of the words of a path: the posterior of each at its place there.

Each word sequence counts once, with the cost of its cheapest path (`search.posterior`), and is
aligned with the path's words (`search.mbr`), as in Kaldi's lattice-to-ctm-conf. Sums over all
state alignments at a frame would favour sequences of more states, and count a word said once for
both of two equal ones. Knows words as ids.
"""

from collections.abc import Sequence

import numpy as np

from asr_train.lang.arpa import BEGIN, END, NgramModel, Ngrams
from asr_train.search.lattice import Lattice
from asr_train.search.mbr import decide
from asr_train.search.posterior import posterior
from asr_train.search.rescore import Model, expanded


class Confidences:
    """Confidences of words under the costs of the lattice alone.

    Args:
        names: the lexicon's words, numbered from 1 in lattices.
    """

    def __init__(self, names: Sequence[str]) -> None:
        words = [BEGIN, END, *names]
        free_V = np.zeros(len(words), np.float32)  # a model in which no word costs anything
        ngrams = Ngrams(np.arange(len(words), dtype=np.int64), free_V, free_V)
        self._free = Model.of(NgramModel(words, [ngrams]), names)

    def __call__(self, lattice: Lattice, words: Sequence[int]) -> list[float]:
        """Return the probability, in [0, 1], of each word at its place; at the search's scale.

        Args:
            words: ids, of a path through the lattice.
        """
        found = expanded(lattice, self._free, self._free, 0.0)
        return decide(posterior(found, 0.0, 0.0, lattice.beam), words, 0).confidences
