"""A recording -> the scores of its **pieces**: long recordings are cut at pauses.

The search holds all scores, so its memory would grow with a recording's length. A recording of more
than LONGEST seconds is therefore cut where the model finds silence: at the frame between SHORTEST
and PIECE seconds after the last cut at which silence is most likely. The language model starts
again with each piece.
"""

from collections.abc import Iterator

import numpy as np

from asr_train.data.features import Utterance
from asr_train.decode.scorer import Scorer, known_states
from asr_train.lang.lexicon import SILENCE

LONGEST = 60.0  # seconds of a recording that is not cut
SHORTEST, PIECE = 10.0, 30.0  # seconds of a piece of a longer one
AROUND = 0.3  # seconds over which silence is averaged


def pieces(scorer: Scorer, utterance: Utterance) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each piece's first frame, and its scores: float32 [t, S]."""
    if utterance.seconds <= LONGEST:
        yield 0, scorer.score(utterance)
        return
    scores, states_S = scorer.scores(utterance), np.arange(scorer.num_states)
    silent = list(known_states(scorer).of(SILENCE))
    rate = utterance.frames / utterance.seconds
    least, most, around = (max(1, round(s * rate)) for s in (SHORTEST, PIECE, AROUND))
    begin, ahead_tS = 0, np.zeros((0, scorer.num_states), np.float32)
    while begin < utterance.frames:
        known = begin + len(ahead_tS)
        more = scores(states_S, slice(known, min(begin + most, utterance.frames)))
        ahead_tS = np.concatenate([ahead_tS, more])
        end = len(ahead_tS)
        if begin + end < utterance.frames:
            end = least + quietest(ahead_tS[least:], silent, around)
        yield begin, ahead_tS[:end]
        begin, ahead_tS = begin + end, ahead_tS[end:]


def quietest(scores_tS: np.ndarray, silent: list[int], around: int) -> int:
    """Return the frame at which silence has the largest margin over all other states.

    Args:
        silent: states of silence.
        around: frames over which the margin is averaged.
    """
    others = np.setdiff1d(np.arange(scores_tS.shape[1]), silent)
    ahead_t = scores_tS[:, silent].max(1) - scores_tS[:, others].max(1)
    around = min(around, len(ahead_t))
    smooth_t = np.convolve(ahead_t, np.full(around, 1 / around), mode="valid")
    return int(np.argmax(smooth_t)) + around // 2
