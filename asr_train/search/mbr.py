"""Posterior of paths -> **minimum-Bayes-risk words** (least expected errors), and confidences.

in    Posterior (`search.posterior`): word sequences with probabilities, as an acyclic graph
out   Decision: the words whose expected edit distance to a path is least, and their posteriors;
      or the posteriors of the words of a lattice's path, each at its place there
H. Xu, D. Povey, L. Mangu and J. Zhu (2011), "Minimum Bayes risk decoding and system combination
based on a recursion for edit distance", Computer Speech and Language 25, as in Kaldi's sausages.cc.
Knows words as ids, and nothing of language models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from asr_train.search.lattice import LINK, Lattice
from asr_train.search.posterior import Posterior, lattice_posterior

EXTRA = 1e-5  # errors; a word of a path that gets no place costs so much more, as in Kaldi
GAIN = 1e-9  # least gain in probability that changes a word
TIE = 1e-9  # errors; alignments closer than that are equally good, whatever was rounded
ROUNDS = 50  # at most; each lowers the expected errors, and 2 to 4 are usual


@dataclass(frozen=True, slots=True)
class Decision:
    """Words, and what the posterior says of them.

    Attributes:
        words: ids.
        confidences: the probability that a path has each word there, in [0, 1].
        errors: expected edit distance from a path to the words; at most slightly too large.
    """

    words: list[int]
    confidences: list[float]
    errors: float


def decide(posterior: Posterior, words: Sequence[int], rounds: int = ROUNDS) -> Decision:
    """Find words of fewer expected errors, from those given on.

    All paths are aligned with the words. Each word, and each gap between two, then becomes what
    most paths have there, until none changes. No round raises the expected errors; what is found is
    a local optimum.

    The recursion aligns paths that meet in a node alike, so that its expected errors are an upper
    bound of the true ones, which they equal where paths do not meet (section 4 of the paper).

    Args:
        rounds: at most; 0 returns the words given, with their confidences.
    """
    vocabulary = np.union1d(posterior.arcs_A["word"], [0, *words])
    word_A = np.searchsorted(vocabulary, posterior.arcs_A["word"])  # 0 stays 0
    row_Q = _with_gaps(np.searchsorted(vocabulary, np.array(words, np.int64)))
    while True:
        errors, share_QW = _align(posterior.arcs_A, word_A, posterior.nodes, row_Q, len(vocabulary))
        best_Q = np.argmax(share_QW, 1)
        at_Q = np.arange(len(row_Q))
        best_Q = np.where(share_QW[at_Q, best_Q] > share_QW[at_Q, row_Q] + GAIN, best_Q, row_Q)
        if rounds == 0 or (best_Q == row_Q).all():
            break
        row_Q, rounds = _with_gaps(best_Q[best_Q > 0]), rounds - 1
    sure = np.minimum(share_QW[at_Q, row_Q][1::2], 1.0)
    return Decision(vocabulary[row_Q[1::2]].tolist(), sure.tolist(), float(errors))


def confidences(lattice: Lattice, words: Sequence[int]) -> list[float]:
    """Return the probability, in [0, 1], of each word at its place; at the scale of the search.

    Each word sequence of the lattice counts once, with the cost of its cheapest path, and is
    aligned with the words, as in Kaldi's lattice-to-ctm-conf. Sums over all state alignments at a
    frame would favour sequences of more states, and count a word said once for both of two equal
    ones. In large lattices only the cheapest sequences count (`posterior.MAX_NODES`).

    Args:
        words: ids, of a path through the lattice.
    """
    return decide(lattice_posterior(lattice), words, 0).confidences if words else []


def compile_confidences() -> None:
    """Compile, or load what was compiled before; for all processes that are forked later."""
    arcs_A = np.zeros(1, LINK)
    arcs_A["target"] = arcs_A["ilabel"] = arcs_A["olabel"] = 1
    ends_N, active_T = np.array([np.inf, 0.0]), np.ones(1, np.int32)
    confidences(
        Lattice(np.arange(2, dtype=np.int32), ends_N, arcs_A, 0.0, True, 1.0, active_T), [1]
    )


def _with_gaps(words: np.ndarray) -> np.ndarray:
    """Return words with a gap (0) before, between and after them."""
    row_Q = np.zeros(2 * len(words) + 1, np.int64)
    row_Q[1::2] = words
    return row_Q


# --- compiled -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _edits(word: int, before_Q: Any, row_Q: Any, edits_Q: Any) -> None:
    """Write the expected edits after one more word, from those before it, by place in the row."""
    edits_Q[0] = before_Q[0] + 1.0 + EXTRA
    for q in range(len(row_Q)):
        paired = before_Q[q] + (row_Q[q] != word)
        inserted = before_Q[q + 1] + 1.0 + EXTRA
        deleted = edits_Q[q] + (row_Q[q] != 0)
        edits_Q[q + 1] = min(paired, inserted, deleted)


@numba.njit(cache=True, nogil=True)
def _align(arcs_A: Any, word_A: Any, nodes: int, row_Q: Any, words: int) -> Any:
    """Return the expected edits, and the probability of each word at each place of the row.

    Algorithm 3 of the paper, with alpha' and beta'. An arc without a word costs nothing, so that
    both pass it as they are.
    """
    places = len(row_Q)
    alpha_NQ, beta_NQ = np.zeros((nodes, places + 1)), np.zeros((nodes, places + 1))
    share_QW = np.zeros((places, words))
    edits_Q, sum_Q = np.empty(places + 1), np.empty(places + 1)
    for q in range(places):
        alpha_NQ[0, q + 1] = alpha_NQ[0, q] + (row_Q[q] != 0)
    for a in range(len(arcs_A)):
        arc, before_Q = arcs_A[a], alpha_NQ[arcs_A[a].source]
        after_Q = alpha_NQ[arc.target]
        if word_A[a]:
            _edits(word_A[a], before_Q, row_Q, edits_Q)
            before_Q = edits_Q
        for q in range(places + 1):
            after_Q[q] += arc.share * before_Q[q]
    beta_NQ[nodes - 1, places] = 1.0
    for a in range(len(arcs_A) - 1, -1, -1):
        arc, word = arcs_A[a], word_A[a]
        beta_Q, back_Q = beta_NQ[arc.target], beta_NQ[arc.source]
        if word == 0:
            for q in range(places + 1):
                back_Q[q] += arc.share * beta_Q[q]
            continue
        before_Q = alpha_NQ[arc.source]
        _edits(word, before_Q, row_Q, edits_Q)
        for q in range(places + 1):
            sum_Q[q] = arc.share * beta_Q[q]
        for q in range(places - 1, -1, -1):
            if before_Q[q] + (row_Q[q] != word) <= edits_Q[q + 1] + TIE:
                back_Q[q] += sum_Q[q + 1]
                share_QW[q, word] += sum_Q[q + 1]
            elif before_Q[q + 1] + 1.0 + EXTRA <= edits_Q[q + 1] + TIE:
                back_Q[q + 1] += sum_Q[q + 1]
            else:
                sum_Q[q] += sum_Q[q + 1]
                share_QW[q, 0] += sum_Q[q + 1]
        back_Q[0] += sum_Q[0]
    for q in range(places - 1, -1, -1):
        share_QW[q, 0] += beta_NQ[0, q + 1]
        beta_NQ[0, q] += beta_NQ[0, q + 1]
    return alpha_NQ[nodes - 1, places], share_QW
