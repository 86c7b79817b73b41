"""Flat start: one Gaussian per state, estimated from transcripts alone.

    utterances of few words --forward-backward--> each frame's share of each state --> Gaussians

Baum-Welch re-estimation from Gaussians that are all alike: only the order of the states and the
usual durations of phones tell them apart. Utterances of few words are the least ambiguous, so they
come first; the Viterbi passes of `align.train` continue with all. Against the true phone times of
spoken digits, this start halves the boundary errors of an even division of each utterance.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numba
import numpy as np

from asr_train.align.viterbi import unfit
from asr_train.data.features import Utterance
from asr_train.jobs import parallel_map
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import SILENCE

TOGETHER = 16  # utterances at a time
NEVER = -1e30  # a log-probability; -inf would turn differences into NaN
FAR = 50.0  # nats; below this difference the smaller summand is lost in a double's rounding
VOWELS = "AA AE AH AO AW AX AY EH ER EY IH IY OW OY UH UW"  # ARPAbet
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
# Usual seconds per state in clear speech; a phone has three states.
VOWEL_SECONDS, CONSONANT_SECONDS, SILENCE_SECONDS, OTHER_SECONDS = 0.05, 0.02, 0.05, 0.04


def usual_loops(lang: Lang, shift_seconds: float) -> np.ndarray:
    """Return each state's self-loop probability, from the usual durations of phones.

    Only vowels and consonants of ARPAbet are told apart; other phones are treated alike.
    """
    loops = []
    for phone in lang.states.phones:
        seconds = OTHER_SECONDS
        if phone == SILENCE:
            seconds = SILENCE_SECONDS
        elif phone in VOWELS.split():
            seconds = VOWEL_SECONDS
        elif phone in CONSONANTS.split():
            seconds = CONSONANT_SECONDS
        frames = max(1.25, seconds / shift_seconds)
        loops += [1 - 1 / frames] * len(lang.states.of(phone))
    return np.array(loops)


def easiest(utterances: list[Utterance], lang: Lang, most: int, seconds: float) -> list[Utterance]:
    """Select the utterances of the fewest words (then frames) that fit their transcripts.

    Args:
        most: number of utterances at most; `seconds`: speech at most, but at least one utterance.
    """
    fit = [u for u in utterances if unfit(u.words.split(), u.frames, lang) is None]
    fit = [u for u in fit if len(row_of_states(u.words.split(), lang)) <= u.frames]
    fit = sorted(fit, key=lambda u: (len(u.words.split()), u.frames, u.id))[:most]
    total = np.cumsum([u.seconds for u in fit])
    return fit[: max(1, int((total <= seconds).sum()))]


def row_of_states(words: list[str], lang: Lang) -> np.ndarray:
    """Return silence, then each word's shortest pronunciation and silence: int64 [N]."""
    silence = list(lang.states.of(SILENCE))
    row = list(silence)
    for word in words:
        for phone in min(lang.lexicon.prons[word], key=len):
            row += lang.states.of(phone)
        row += silence
    return np.array(row)


def posteriors(
    rows: list[np.ndarray],
    scores: list[np.ndarray],
    loop_S: np.ndarray,
    silence: Sequence[int],
    silence_probability: float,
) -> tuple[list[np.ndarray], float]:
    """Run forward-backward over sequences of states in which each silence is optional.

    Args:
        rows: `row_of_states` of each utterance.
        scores: float [T, S] of each, log-likelihoods in nats.
        silence: the states of silence.
        silence_probability: of each silence.
    Returns:
        Each utterance's probabilities [T, N] of being at the n-th state of its row, and the sum
        of their log-likelihoods.
    """
    size = len(silence)
    pause, none = math.log(silence_probability), math.log1p(-silence_probability)
    found, logliks = [], []
    for row_N, scores_TS in zip(rows, scores, strict=True):
        emit_TN = scores_TS[:, row_N].astype(np.float64)
        stay_N, leave_N = np.log(loop_S)[row_N], np.log1p(-loop_S)[row_N]
        # Log-probability of entering a node: from the one before, and from before a silence.
        next_N = np.where(row_N == silence[0], pause, 0.0)
        skip_N = np.full(len(row_N), NEVER)
        skip_N[size:][row_N[:-size] == silence[0]] = none
        alpha_TN, beta_TN = np.full(emit_TN.shape, NEVER), np.full(emit_TN.shape, NEVER)
        alpha_TN[0, 0], alpha_TN[0, size] = pause + emit_TN[0, 0], none + emit_TN[0, size]
        beta_TN[-1, -1], beta_TN[-1, -1 - size] = 0.0, none
        _forward(emit_TN, stay_N, leave_N, next_N, skip_N, size + 1, alpha_TN)
        _backward(emit_TN, stay_N, leave_N, next_N, skip_N, size + 1, beta_TN)
        alpha_TN += beta_TN
        total = np.logaddexp.reduce(alpha_TN[0])
        alpha_TN -= total
        found.append(np.exp(np.minimum(0.0, alpha_TN, out=alpha_TN), out=alpha_TN))
        logliks.append(total)
    return found, float(np.sum(logliks))


@numba.njit(cache=True, nogil=True)
def _sum(x: float, y: float) -> float:
    """Return log(exp(x) + exp(y)), quickly if one of them is negligible."""
    distance = x - y
    if distance > FAR:
        return x
    if distance < -FAR:
        return y
    if distance > 0:
        return x + math.log1p(math.exp(-distance))
    return y + math.log1p(math.exp(distance))


@numba.njit(cache=True, nogil=True)
def _forward(
    emit_TN: np.ndarray,
    stay_N: np.ndarray,
    leave_N: np.ndarray,
    next_N: np.ndarray,
    skip_N: np.ndarray,
    far: int,
    alpha_TN: np.ndarray,
) -> None:
    """Fill alpha_TN from its first frame; skipping a silence goes `far` nodes ahead."""
    frames, nodes = emit_TN.shape
    for t in range(1, frames):
        for n in range(nodes):
            new = alpha_TN[t - 1, n] + stay_N[n]
            if n >= 1:
                new = _sum(new, alpha_TN[t - 1, n - 1] + leave_N[n - 1] + next_N[n])
            if n >= far and skip_N[n] > NEVER:
                new = _sum(new, alpha_TN[t - 1, n - far] + leave_N[n - far] + skip_N[n])
            alpha_TN[t, n] = max(new + emit_TN[t, n], NEVER)


@numba.njit(cache=True, nogil=True)
def _backward(
    emit_TN: np.ndarray,
    stay_N: np.ndarray,
    leave_N: np.ndarray,
    next_N: np.ndarray,
    skip_N: np.ndarray,
    far: int,
    beta_TN: np.ndarray,
) -> None:
    """Fill beta_TN from its last frame."""
    frames, nodes = emit_TN.shape
    for t in range(frames - 2, -1, -1):
        for n in range(nodes):
            new = beta_TN[t + 1, n] + emit_TN[t + 1, n] + stay_N[n]
            if n + 1 < nodes:
                entered = beta_TN[t + 1, n + 1] + emit_TN[t + 1, n + 1] + next_N[n + 1]
                new = _sum(new, entered + leave_N[n])
            if n + far < nodes and skip_N[n + far] > NEVER:
                entered = beta_TN[t + 1, n + far] + emit_TN[t + 1, n + far] + skip_N[n + far]
                new = _sum(new, entered + leave_N[n])
            beta_TN[t, n] = max(new, NEVER)


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
    rows = {u.id: row_of_states(u.words.split(), lang) for u in utterances}
    alike = sorted(utterances, key=lambda u: (u.frames, u.id))  # little padding
    chunks = [alike[i : i + TOGETHER] for i in range(0, len(alike), TOGETHER)]
    silence = lang.states.of(SILENCE)

    def one(chunk: list[Utterance]) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        xs = [read(u) for u in chunk]
        shares, loglik = posteriors(
            [rows[u.id] for u in chunk],
            [scores(x_TD) for x_TD in xs],
            loop_S,
            silence,
            lang.silence_probability,
        )
        share_XS = np.concatenate(
            [_by_state(s, rows[u.id], len(loop_S)) for s, u in zip(shares, chunk, strict=True)]
        )
        x_XD = np.concatenate(xs).astype(np.float64)
        return share_XS.sum(0), share_XS.T @ x_XD, share_XS.T @ (x_XD * x_XD), loglik

    columns = zip(*parallel_map(one, chunks, ""), strict=True)
    frames_S, sum_SD, squares_SD, loglik = (reduce(add, column) for column in columns)
    return frames_S, sum_SD, squares_SD, loglik


def _by_state(share_TN: np.ndarray, row: np.ndarray, num_states: int) -> np.ndarray:
    """Add up the shares of a sequence's places by state: [T, S]."""
    place_NS = np.zeros((len(row), num_states))
    place_NS[np.arange(len(row)), row] = 1
    return share_TN @ place_NS
