"""Lattice -> **confidences** of the words of a path: posteriors by forward and backward sums.

A path's word at a frame is the last one whose label it has passed. A graph's labels occur at the
same place in a word, so the same word in two paths overlaps in time as its labels do. Knows words
as ids.
"""

from typing import Any

import numba
import numpy as np

from asr_train.search.lattice import Lattice, Sentence


def confidences(lattice: Lattice, sentence: Sentence, scale: float = 1.0) -> list[float]:
    """Return each word's posterior in [0, 1]: at its best frame, over all paths with it there.

    This is C_max of Wessel, Schlueter, Macherey and Ney (2001), section IV: arcs of the same word
    are added where they overlap, at one frame at a time, so that the sum is a probability.

    Args:
        sentence: a path of this lattice.
        scale: of all costs; 1 is the scale of the search.
    """
    arcs_A, frame_N, frames = lattice.arcs_A, lattice.frame_N, lattice.frames
    probability_A = arc_probabilities(arcs_A, lattice.final_N, scale)
    posteriors = {
        word: word_posterior(arcs_A, frame_N, probability_A, word, frames)
        for word in set(sentence.words)
    }
    found = []
    for word, start, end in zip(sentence.words, sentence.starts, sentence.ends, strict=True):
        # A label at the end of its word may be followed by the next word's in the same frame. The
        # word then has no frame of its own, and its labels at that frame are counted instead.
        at_T, label_T = posteriors[word]
        best = at_T[start:end].max() if end > start else label_T[start]
        found.append(min(1.0, float(best)))
    return found


@numba.njit(cache=True, nogil=True)
def arc_probabilities(arcs_A: Any, final_N: Any, scale: float) -> Any:
    """Return the probability of each arc of a lattice, given its source: float64 [arcs]."""
    log_N = -scale * final_N  # log of the summed weight from each node to the ends
    for a in range(len(arcs_A) - 1, -1, -1):
        arc = arcs_A[a]
        way = log_N[arc.target] - scale * (arc.graph + np.float64(arc.acoustic))
        log_N[arc.source] = np.logaddexp(log_N[arc.source], way)
    probability_A = np.empty(len(arcs_A))
    for a in range(len(arcs_A)):
        arc = arcs_A[a]
        way = log_N[arc.target] - scale * (arc.graph + np.float64(arc.acoustic))
        probability_A[a] = np.exp(way - log_N[arc.source])
    return probability_A


@numba.njit(cache=True, nogil=True)
def word_posterior(arcs_A: Any, frame_N: Any, probability_A: Any, word: int, frames: int) -> Any:
    """Return the probability of a word at each frame of a lattice.

    Args:
        probability_A: from `arc_probabilities`.
    Returns:
        float64 [T], of paths whose last label is the word; over all words at most 1.
        float64 [T + 1], of paths that pass its label at this frame.
    """
    reach_N, spoken_N = np.zeros(len(frame_N)), np.zeros(len(frame_N))
    reach_N[0] = 1.0
    at_T, label_T = np.zeros(frames), np.zeros(frames + 1)
    for a in range(len(arcs_A)):
        arc = arcs_A[a]
        reach_N[arc.target] += reach_N[arc.source] * probability_A[a]
        if arc.olabel == word:
            passing = reach_N[arc.source] * probability_A[a]
            label_T[frame_N[arc.source]] += passing
        elif arc.olabel == 0:
            passing = spoken_N[arc.source] * probability_A[a]
        else:
            continue
        spoken_N[arc.target] += passing
        if arc.ilabel:
            at_T[frame_N[arc.source]] += passing
    return at_T, label_T
