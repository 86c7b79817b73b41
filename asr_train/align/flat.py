"""Flat start: one Gaussian per state, estimated from transcripts alone.

    utterances of few words --forward-backward--> each frame's share of each state --> Gaussians

Baum-Welch re-estimation from Gaussians that are all alike: only the order of the states and the
usual durations of phones tell them apart. Utterances of few words are the least ambiguous, so they
come first; the Viterbi passes of `align.train` continue with all. Against the true phone times of
spoken digits, this start halves the boundary errors of an even division of each utterance.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, reduce
from operator import add
from typing import Any

import numba
import numpy as np

from asr_train.align.viterbi import unfit
from asr_train.data.features import Utterance
from asr_train.jobs import parallel_map
from asr_train.lang.g2p import ARPABET, VOWELS
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import SILENCE

TOGETHER = 16  # utterances at a time
NEVER = -1e30  # a log-probability; -inf would turn differences into NaN
# Usual seconds per state in clear speech; a phone has three states.
VOWEL_SECONDS, CONSONANT_SECONDS, SILENCE_SECONDS, OTHER_SECONDS = 0.05, 0.02, 0.05, 0.04


def usual_loops(lang: Lang, shift_seconds: float) -> np.ndarray:
    """Return each state's self-loop probability, from the usual durations of phones.

    Only vowels and consonants of ARPAbet are told apart; other phones are treated alike.
    """
    usual = {SILENCE: SILENCE_SECONDS, **dict.fromkeys(VOWELS, VOWEL_SECONDS)}
    usual |= dict.fromkeys(ARPABET - VOWELS, CONSONANT_SECONDS)
    seconds_P = np.array([usual.get(phone, OTHER_SECONDS) for phone in lang.states.phones])
    positions_P = [len(lang.states.of(phone)) for phone in lang.states.phones]
    return np.repeat(1 - 1 / np.maximum(1.25, seconds_P / shift_seconds), positions_P)


def easiest(utterances: list[Utterance], lang: Lang, most: int, seconds: float) -> list[Utterance]:
    """Select the utterances of the fewest words (then frames) that fit their transcripts.

    Args:
        most: number of utterances at most; `seconds`: speech at most, but at least one utterance.
    """
    fit = [u for u in utterances if unfit(u.words.split(), u.frames, lang) is None]
    with_pauses = [u for u in fit if len(row_of_states(u.words.split(), lang)) <= u.frames]
    fit = with_pauses or fit
    fit = sorted(fit, key=lambda u: (len(u.words.split()), u.frames, u.id))[:most]
    total = np.cumsum([u.seconds for u in fit])
    return fit[: max(1, int((total <= seconds).sum()))]


def row_of_states(words: list[str], lang: Lang) -> np.ndarray:
    """Return silence, then each word's shortest pronunciation and silence: int64 [N]."""
    silence = lang.states.of(SILENCE)
    row = list(silence)
    for word in words:
        for phone in min(lang.lexicon.prons[word], key=len):
            row += lang.states.of(phone)
        row += silence
    return np.array(row)


def posteriors(
    row_N: np.ndarray,
    scores_TS: np.ndarray,
    loop_S: np.ndarray,
    silence: Sequence[int],
    silence_probability: float,
) -> tuple[np.ndarray, float]:
    """Run forward-backward over a sequence of states in which each silence is optional.

    Args:
        row_N: `row_of_states` of an utterance.
        scores_TS: its log-likelihoods in nats.
        silence: the states of silence.
        silence_probability: of each silence.
    Returns:
        The probabilities [T, N] of being at the n-th state of the row, and the log-likelihood.
    """
    size = len(silence)
    pause, none = math.log(silence_probability), math.log1p(-silence_probability)
    emit_TN = np.ascontiguousarray(scores_TS[:, row_N], np.float64)
    stay_N, leave_N = np.log(loop_S)[row_N], np.log1p(-loop_S)[row_N]
    # Log-probability of entering a node: from the one before, and from before a silence.
    next_N = np.where(row_N == silence[0], pause, 0.0)
    skip_N = np.full(len(row_N), NEVER)
    skip_N[size:][row_N[:-size] == silence[0]] = none
    first_N, last_N = np.full(len(row_N), NEVER), np.full(len(row_N), NEVER)
    first_N[[0, size]], last_N[[-1, -1 - size]] = (pause, none), (0.0, none)
    sum_TN = _forward(size + 1, emit_TN, stay_N, (leave_N, next_N, leave_N, skip_N), first_N)
    # Backward is forward from the end: what an arc costs to leave, it now costs to enter
    backward = emit_TN, stay_N, next_N, leave_N, skip_N, leave_N, last_N
    turned_TN, turned_N, *arcs, end_N = (np.flip(array).copy() for array in backward)
    sum_TN += emit_TN
    sum_TN += np.flip(_forward(size + 1, turned_TN, turned_N, tuple(arcs), end_N))
    total = np.logaddexp.reduce(sum_TN[0])
    return np.exp(np.minimum(0.0, sum_TN - total)), total


@numba.njit(cache=True, nogil=True)
def _forward(far: int, emit_TN: Any, stay_N: Any, arcs: Any, first_N: Any) -> Any:
    """Return the log-probability of each node and all before it, without what it emits.

    Args:
        arcs: two of the arc to the next node, added at its source and at its target; and two of the
            arc to the node `far` ahead, NEVER if there is none.
        first_N: in the first frame.
    """
    leave_N, enter_N, leave_far_N, enter_far_N = arcs
    sum_TN = np.empty(emit_TN.shape)
    sum_TN[0] = first_N
    for t in range(1, len(emit_TN)):
        before_N = sum_TN[t - 1] + emit_TN[t - 1]
        for n in range(len(stay_N)):
            new = before_N[n] + stay_N[n]
            if n >= 1:
                new = np.logaddexp(new, before_N[n - 1] + leave_N[n - 1] + enter_N[n])
            if n >= far and min(leave_far_N[n - far], enter_far_N[n]) > NEVER:
                new = np.logaddexp(new, before_N[n - far] + leave_far_N[n - far] + enter_far_N[n])
            sum_TN[t, n] = max(new, NEVER)
    return sum_TN


@cache
def ready() -> None:
    """Load or compile the compiled code before workers are forked."""
    zero_N = np.zeros(1)
    _forward(1, np.zeros((1, 1)), zero_N, (zero_N, zero_N, zero_N, zero_N), zero_N)


def flat_start(
    scores: Callable[[np.ndarray], np.ndarray],
    read: Callable[[Utterance], np.ndarray],
    utterances: list[Utterance],
    lang: Lang,
    loop_S: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Run one pass of Baum-Welch statistics.

    Args:
        scores: x_TD -> log-likelihoods [T, S] by the present Gaussians.
        read: utterance -> x_TD.
    Returns:
        Per state: frames [S], sums [S, D] and sums of squares [S, D]; and the log-likelihood.
    """
    alike = sorted(utterances, key=lambda u: (u.frames, u.id))  # chunks of similar lengths
    chunks = [alike[i : i + TOGETHER] for i in range(0, len(alike), TOGETHER)]
    silence = lang.states.of(SILENCE)
    ready()

    def one(chunk: list[Utterance]) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        xs, shares, logliks = [], [], []
        for u in chunk:
            xs.append(read(u))
            row_N, pause = row_of_states(u.words.split(), lang), lang.silence_probability
            share_TN, loglik = posteriors(row_N, scores(xs[-1]), loop_S, silence, pause)
            place_NS = (row_N[:, None] == np.arange(len(loop_S))).astype(np.float64)
            shares.append(share_TN @ place_NS)
            logliks.append(loglik)
        share_XS, x_XD = np.concatenate(shares), np.concatenate(xs).astype(np.float64)
        sums = share_XS.sum(0), share_XS.T @ x_XD, share_XS.T @ (x_XD * x_XD)
        return *sums, float(np.sum(logliks))

    columns = zip(*parallel_map(one, chunks, ""), strict=True)
    frames_S, sum_SD, squares_SD, loglik = (reduce(add, column) for column in columns)
    return frames_S, sum_SD, squares_SD, loglik
