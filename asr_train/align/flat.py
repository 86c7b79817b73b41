"""Flat start: one Gaussian a state, from transcripts alone.

    utterances of few words --forward-backward--> every frame's share of every state --> Gaussians

Baum-Welch re-estimation, from Gaussians that are all alike: only the order of the states and how
long phones usually last tell them apart. Utterances of few words leave the least open, so they
come first; the Viterbi passes of `align.gmm` then go on with all. Against the true phone times of
spoken digits, this start halves the boundary errors of an even division of each utterance.
"""

import math
from collections.abc import Callable

import numpy as np

from asr_train.align.viterbi import unfit
from asr_train.data.features import Utterance
from asr_train.jobs import parallel_map
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import SILENCE

TOGETHER = 16  # utterances in one array
NEVER = -1e30  # a log-probability; -inf would turn differences into NaN
VOWELS = "AA AE AH AO AW AX AY EH ER EY IH IY OW OY UH UW"  # ARPAbet
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
# Usual seconds in one of a phone's states, three to a phone, in clear speech.
VOWEL_SECONDS, CONSONANT_SECONDS, SILENCE_SECONDS, OTHER_SECONDS = 0.05, 0.02, 0.05, 0.04


def usual_loops(lang: Lang, shift_seconds: float) -> np.ndarray:
    """Each state's probability to be followed by itself, from how long phones usually last.

    Only whether an ARPAbet phone is a vowel counts; phones of other alphabets are all alike.
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
    """The utterances of the fewest words (then frames) that fit their transcripts.

    Args:
        most: so many at most; `seconds`: so much speech at most, yet at least one utterance.
    """
    fit = [u for u in utterances if unfit(u.words.split(), u.frames, lang) is None]
    fit = [u for u in fit if len(row_of_states(u.words.split(), lang)) <= u.frames]
    fit = sorted(fit, key=lambda u: (len(u.words.split()), u.frames, u.id))[:most]
    total = np.cumsum([u.seconds for u in fit])
    return fit[: max(1, int((total <= seconds).sum()))]


def row_of_states(words: list[str], lang: Lang) -> np.ndarray:
    """Silence, and each word's shortest pronunciation with a silence after it: int64 [N]."""
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
    silence: range,
    silence_probability: float,
) -> tuple[list[np.ndarray], float]:
    """Forward-backward over rows of states in which every silence may be passed by.

    Args:
        rows: `row_of_states` of each utterance.
        scores: float [T, S] of each, log-likelihoods in nats.
        silence: the states of silence, as they stand in the rows.
        silence_probability: of each silence.
    Returns:
        Each utterance's probabilities [T, N] of being at the n-th state of its row, and the sum
        of their log-likelihoods.
    """
    size = len(silence)
    lengths = [len(s) for s in scores]
    most_t, most_n = max(lengths), max(map(len, rows))
    node_BN = np.full((len(rows), most_n), -1)
    emit_TBN = np.full((most_t, len(rows), most_n), NEVER)
    for b, (row, scores_TS) in enumerate(zip(rows, scores, strict=True)):
        node_BN[b, : len(row)] = row
        emit_TBN[: lengths[b], b, : len(row)] = scores_TS[:, row]
    real_BN = node_BN >= 0
    stay_BN = np.where(real_BN, np.log(loop_S)[node_BN], NEVER)
    leave_BN = np.where(real_BN, np.log1p(-loop_S)[node_BN], NEVER)
    pause, none = math.log(silence_probability), math.log1p(-silence_probability)
    # What entering a node costs: from the one before it, and from the one before a silence.
    next_BN = np.where(node_BN == silence[0], pause, 0.0)
    skip_BN = np.full(node_BN.shape, NEVER)
    skip_BN[:, size:][node_BN[:, :-size] == silence[0]] = none
    skip_BN[~real_BN] = NEVER

    def forward(alpha_BN: np.ndarray) -> np.ndarray:
        out_BN = alpha_BN + leave_BN
        new_BN = alpha_BN + stay_BN
        new_BN[:, 1:] = np.logaddexp(new_BN[:, 1:], out_BN[:, :-1] + next_BN[:, 1:])
        far = size + 1
        new_BN[:, far:] = np.logaddexp(new_BN[:, far:], out_BN[:, :-far] + skip_BN[:, far:])
        return new_BN

    def backward(beta_BN: np.ndarray) -> np.ndarray:
        new_BN = beta_BN + stay_BN
        step_BN = (beta_BN + next_BN)[:, 1:] + leave_BN[:, :-1]
        new_BN[:, :-1] = np.logaddexp(new_BN[:, :-1], step_BN)
        far = size + 1
        jump_BN = (beta_BN + skip_BN)[:, far:] + leave_BN[:, :-far]
        new_BN[:, :-far] = np.logaddexp(new_BN[:, :-far], jump_BN)
        return new_BN

    alpha_TBN = np.full(emit_TBN.shape, NEVER)
    alpha_TBN[0, :, 0], alpha_TBN[0, :, size] = pause, none
    alpha_TBN[0] += emit_TBN[0]
    for t in range(1, most_t):
        alpha_TBN[t] = np.maximum(forward(alpha_TBN[t - 1]) + emit_TBN[t], NEVER)
    last_BN = np.full(node_BN.shape, NEVER)
    for b, row in enumerate(rows):
        last_BN[b, len(row) - 1], last_BN[b, len(row) - 1 - size] = 0.0, none
    beta_TBN = np.full(emit_TBN.shape, NEVER)
    ends_B = np.array(lengths) - 1
    for t in range(most_t - 1, -1, -1):
        if t < most_t - 1:
            beta_TBN[t] = np.maximum(backward(beta_TBN[t + 1] + emit_TBN[t + 1]), NEVER)
        beta_TBN[t][ends_B == t] = last_BN[ends_B == t]
    both_TBN = alpha_TBN + beta_TBN
    total_B = np.logaddexp.reduce(both_TBN[0], axis=1)
    share_TBN = np.exp(np.minimum(0.0, both_TBN - total_B[:, None]))
    found = [share_TBN[: lengths[b], b, : len(row)] for b, row in enumerate(rows)]
    return found, float(total_B.sum())


def flat_start(
    scores: Callable[[np.ndarray], np.ndarray],
    read: Callable[[Utterance], np.ndarray],
    utterances: list[Utterance],
    lang: Lang,
    loop_S: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """One pass: how much of which frames each state has.

    Args:
        scores: x_TD -> log-likelihoods [T, S] by the present Gaussians.
        read: utterance -> x_TD.
    Returns:
        Per state: frames [S], sum [S, D] and sum of squares [S, D]; and the log-likelihood.
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

    results = list(parallel_map(one, chunks, ""))
    frames_S, sum_SD, squares_SD, loglik = results[0]
    for more in results[1:]:
        frames_S, sum_SD = frames_S + more[0], sum_SD + more[1]
        squares_SD, loglik = squares_SD + more[2], loglik + more[3]
    return frames_S, sum_SD, squares_SD, loglik


def _by_state(share_TN: np.ndarray, row: np.ndarray, num_states: int) -> np.ndarray:
    """Shares of a row's places, added up by state: [T, S]."""
    place_NS = np.zeros((len(row), num_states))
    place_NS[np.arange(len(row)), row] = 1
    return share_TN @ place_NS
