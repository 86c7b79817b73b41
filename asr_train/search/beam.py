"""Scores and graph -> best path. Only this module uses kaldi_decoder.

It handles kaldi_decoder's traps: the decoder keeps a bare reference to the graph, and holds the
interpreter's lock (so: processes, not threads). It does not check labels against the matrix:
graphs are made of the model's states, and `search.arrays.check_const` checks stored ones.
"""

from dataclasses import dataclass
from typing import Any

import kaldi_decoder
import kaldifst
import numpy as np


@dataclass(frozen=True, slots=True)
class Path:
    """A path through a graph or a lattice.

    Attributes:
        states_T: int32 [T], the state (the column of the scores) of each frame.
        words: ids.
            Labels stand where determinisation left them, often some phones into their word; an
            alignment of the words gives their actual times.
        graph_cost, acoustic_cost: nats; the acoustic one at the scale of the scores.
        final: it ends in a final state; if not, the words are those of the best token.
    """

    states_T: np.ndarray
    words: list[int]
    graph_cost: float
    acoustic_cost: float
    final: bool

    @property
    def cost(self) -> float:
        """Total cost in nats."""
        return self.graph_cost + self.acoustic_cost


def check_scores(scores_TS: np.ndarray, num_states: int) -> None:
    """Raise ValueError unless scores are finite, with a column per state and at least one frame."""
    if scores_TS.ndim != 2 or scores_TS.shape[1] != num_states or not len(scores_TS):
        raise ValueError(f"scores are {list(scores_TS.shape)}; they must be [frames, {num_states}]")
    if not np.isfinite(scores_TS).all():
        frame = int(np.flatnonzero(~np.isfinite(scores_TS).all(1))[0])
        raise ValueError(f"the scores of frame {frame} are not finite; was training stable?")


def beam_search(graph: Any, scores_TS: np.ndarray, beam: float, max_active: int) -> Path | None:
    """Search one utterance for the best path, frame by frame (Kaldi's FasterDecoder).

    Args:
        graph: a kaldifst transducer; input labels are states + 1, and at most S.
        scores_TS: float32 [T, S], scaled log-likelihoods in nats; finite.
        beam: nats, at the scale of the scores.
        max_active: tokens per frame.
    Returns:
        The best path; None if no token survives to the last frame.
    Raises:
        ValueError: for scores that are not finite.
    """
    check_scores(scores_TS, scores_TS.shape[1])
    options = kaldi_decoder.FasterDecoderOptions(beam=beam, max_active=max_active)
    decoder = kaldi_decoder.FasterDecoder(graph, options)
    decoder.decode(kaldi_decoder.DecodableCtc(np.ascontiguousarray(scores_TS)))
    final = decoder.reached_final()
    ok, lattice = decoder.get_best_path(use_final_probs=final)
    if not ok:
        return None
    ok, labels, words, weight = kaldifst.get_linear_symbol_sequence(lattice)
    assert ok
    if len(labels) != len(scores_TS):
        return None
    states_T = np.array(labels, np.int32) - 1
    return Path(states_T, list(words), weight.value1, weight.value2, final)
