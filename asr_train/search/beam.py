"""Scores and graph -> best path. Only this module uses kaldi_decoder.

It handles kaldi_decoder's traps: the decoder keeps a bare reference to the graph, does not check
labels against the matrix, and holds the interpreter's lock (so: processes, not threads).
"""

from dataclasses import dataclass
from typing import Any

import kaldi_decoder
import kaldifst
import numpy as np


@dataclass(frozen=True, slots=True)
class Path:
    """The cheapest path through a graph.

    Attributes:
        columns_T: int32 [T], the column of the scores (the state) at each frame.
        words: ids.
        graph_cost, acoustic_cost: nats; the acoustic one at the scale of the scores.
        final: it ends in a final state; if not, the words are those of the best token.
    """

    columns_T: np.ndarray
    words: list[int]
    graph_cost: float
    acoustic_cost: float
    final: bool


def check_labels(top_label: int, num_states: int) -> None:
    """Raise ValueError unless a graph's largest input label has a column in the scores."""
    if top_label > num_states:
        raise ValueError(
            f"the graph has states up to {top_label - 1} but the model has {num_states}; "
            "graph and model belong to different runs"
        )


def check_scores(scores_TS: np.ndarray, num_states: int) -> None:
    """Raise ValueError unless scores are finite, with a column per state and at least one frame."""
    if scores_TS.ndim != 2 or scores_TS.shape[1] != num_states or not len(scores_TS):
        raise ValueError(f"scores are {list(scores_TS.shape)}; they must be [frames, {num_states}]")
    if not np.isfinite(scores_TS).all():
        frame = int(np.flatnonzero(~np.isfinite(scores_TS).all(1))[0])
        raise ValueError(f"the scores of frame {frame} are not finite; was training stable?")


def beam_search(
    graph: Any, scores_TS: np.ndarray, beam: float, max_active: int, top_label: int
) -> Path | None:
    """Search one utterance for the best path, frame by frame (Kaldi's FasterDecoder).

    Args:
        graph: a kaldifst transducer; input labels are states + 1.
        scores_TS: float32 [T, S], scaled log-likelihoods in nats; finite.
        beam: nats, at the scale of the scores.
        max_active: tokens per frame.
        top_label: the graph's largest input label.
    Returns:
        The best path; None if no token survives to the last frame.
    Raises:
        ValueError: if the graph has labels beyond the matrix, which the decoder would not notice,
            or for scores that are not finite.
    """
    check_labels(top_label, scores_TS.shape[1])
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
    columns_T = np.array(labels, np.int32) - 1
    return Path(columns_T, list(words), weight.value1, weight.value2, final)
