"""N-gram model -> **histories**: the states of a deterministic automaton over words, for lattices.

in    an NgramModel (`lang.arpa`)
out   cost in nats and next history for each history and word, by compiled code
A history is the longest end of the words so far after which the model has an n-gram. Equal
histories give equal costs to all that follows, so that paths that share one can share the rest.
`advance` backs off only where there is no n-gram. A graph may back off anywhere, and its search
takes what is cheapest: `advance_in_graph`.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from asr_train.lang.arpa import BEGIN, END, NgramModel

NATS = math.log(10)  # per unit of log10
ROUNDING = 1e-6  # nats; ways of backing off that differ by less cost the same


class Histories(NamedTuple):
    """A back-off model; n-grams of all orders are numbered together from the lowest, M of them.

    History 0 is the empty one, 1 + m is n-gram m. The n-grams after history h are those from
    `first_H[h]` to `first_H[h + 1]`, sorted by their last words.

    Attributes:
        first_H: int64 [H + 1]; n-grams of the highest order are no histories.
        word_M: int32, last words.
        logp_M, backoff_M: float32, log10.
        suffix_M: int32, the history without its first word, or shorter if the model lacks that.
        start: the history in which a sentence begins.
        end: the word that ends it.
    """

    first_H: np.ndarray
    word_M: np.ndarray
    logp_M: np.ndarray
    backoff_M: np.ndarray
    suffix_M: np.ndarray
    start: int
    end: int

    @staticmethod
    def of(model: NgramModel) -> "Histories":
        """Number a model's n-grams: 16 bytes for each, and 8 for each history."""
        base, found, offset = len(model.words), [np.zeros(1, np.int64)], len(model.words)
        for contexts, ngrams in zip(model.counts, model.orders[1:], strict=False):
            first_N = np.searchsorted(ngrams.key_N, np.arange(contexts, dtype=np.int64) * base)
            found.append(offset + first_N)
            offset += len(ngrams.key_N)
        first_H = np.concatenate([*found, [offset]])
        word_M = np.concatenate([(each.key_N % base).astype(np.int32) for each in model.orders])
        logp_M, backoff_M = (
            np.concatenate([getattr(each, name) for each in model.orders]).astype(np.float32)
            for name in ("logp_N", "backoff_N")
        )
        start = 1 + model.id_of[BEGIN] if model.order > 1 else 0
        suffix_M = _suffixes(first_H, word_M, base)
        return Histories(first_H, word_M, logp_M, backoff_M, suffix_M, start, model.id_of[END])


# --- compiled -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _place(first_H: Any, word_M: Any, history: Any, word: int) -> Any:
    """Return the n-gram of a word after a history, without back-off; -1 if there is none."""
    first, end = first_H[history], first_H[history + 1]
    m = first + np.searchsorted(word_M[first:end], word)
    return np.int64(m if m < end and word_M[m] == word else -1)


@numba.njit(cache=True, nogil=True)
def _suffixes(first_H: Any, word_M: Any, base: int) -> Any:
    suffix_M = np.zeros(len(word_M), np.int32)  # 0 for 1-grams
    for history in range(1, len(first_H) - 1):  # lower orders first: their suffixes are known
        for m in range(first_H[history], first_H[history + 1]):
            shorter, place = history, -1
            while place < 0:
                shorter = suffix_M[shorter - 1]
                place = _place(first_H, word_M, shorter, word_M[m])
            suffix_M[m] = 1 + place
    return suffix_M


@numba.njit(cache=True, nogil=True)
def advance(model: Any, history: int, word: int) -> Any:
    """Return the cost of a word in nats, and the history after it.

    Args:
        model: Histories.
        word: an id of the model.
    """
    logp, here = 0.0, np.int64(history)
    place = _place(model.first_H, model.word_M, here, word)
    while place < 0:  # ends with the empty history, which every word follows
        logp += np.float64(model.backoff_M[here - 1])
        here = np.int64(model.suffix_M[here - 1])
        place = _place(model.first_H, model.word_M, here, word)
    logp += np.float64(model.logp_M[place])
    return -NATS * logp, _after(model, place)


@numba.njit(cache=True, nogil=True)
def advance_in_graph(model: Any, history_K: Any, cost_K: Any, word: int) -> Any:
    """Return the least cost of a word in nats over all ways of backing off, and what follows it.

    A path that backs off where it need not has a shorter history, and does not pay the longer
    one's back-off. After it, a word may cost less than by the n-gram of the longer history.

    Args:
        model: Histories.
        history_K: int64, where the cheapest paths may be: a history, and shorter ones that cost
            less than backing off to them.
        cost_K: float64, nats more than the cheapest.
        word: an id of the model.
    Returns:
        The cost, and `history_K` and `cost_K` after the word.
    """
    here, paid, k = np.int64(history_K[0]), np.float64(cost_K[0]), 1
    next_K, next_cost_K = [np.int64(0) for _ in range(0)], [0.0 for _ in range(0)]
    reached, reached_cost = np.int64(0), np.inf  # by backing off from next_K
    least = np.inf
    while True:
        place = _place(model.first_H, model.word_M, here, word)
        if place >= 0:
            after = _after(model, place)
            cost = paid - NATS * np.float64(model.logp_M[place])
            least = min(least, cost)
            while reached > after:  # n-grams of higher order have higher numbers
                reached_cost -= NATS * np.float64(model.backoff_M[reached - 1])
                reached = np.int64(model.suffix_M[reached - 1])
            if cost < reached_cost - ROUNDING:
                if len(next_K) and next_K[-1] == after:
                    next_cost_K[-1] = cost
                else:
                    next_K.append(after)
                    next_cost_K.append(cost)
                reached, reached_cost = after, cost
        if not here:
            break
        paid -= NATS * np.float64(model.backoff_M[here - 1])
        here = np.int64(model.suffix_M[here - 1])
        if k < len(history_K) and history_K[k] == here:
            paid, k = np.float64(cost_K[k]), k + 1
    return least, np.array(next_K), np.array(next_cost_K) - least


@numba.njit(cache=True, nogil=True)
def _after(model: Any, place: Any) -> Any:
    """Return the history after an n-gram."""
    here = np.int64(1 + place)
    if here >= len(model.first_H) - 1:  # of the highest order
        here = np.int64(model.suffix_M[place])
    # Where nothing follows, any word backs off. Only where this is free, histories are equal: other
    # back-offs are paid with the word that follows, and none follows the end of the sentence.
    while (
        here and model.first_H[here] == model.first_H[here + 1] and model.backoff_M[here - 1] == 0
    ):
        here = np.int64(model.suffix_M[here - 1])
    return here
