"""Sentences -> counts of n-grams -> **a back-off model** (`lang.arpa` writes and queries it).

in    text: files (plain or .gz) with one sentence per line, and lists of words
out   an NgramModel: interpolated modified Kneser-Ney or Witten-Bell, with entropy pruning
Knows nothing of file names, pronunciations or graphs.

No maintained wheel trains such models: kenlm's package contains the source of its trainer but
builds only the query code, kaldilm only converts models, knlm (last release 2019) has its own
format and no wheel.

Chen and Goodman (An empirical study of smoothing techniques for language modeling, Computer Speech
and Language 13, 1999), with h' for h without its first word and c for counts:

    p(w | h) = (c(hw) - D(c(hw))) / sum_v c(hv) + gamma(h) p(w | h')
    gamma(h) = sum_v D(c(hv)) / sum_v c(hv)

D has three values per order, for counts of 1, 2, and 3 or more. Below the highest order, c(hw) is
the number of different words before hw, unless hw begins with <s>, which no word precedes. Below
unigrams is the uniform distribution over the vocabulary with </s> and <unk>, without <s>.

Witten-Bell (their eq. 16), with t(h) for the number of different words after h and plain counts at
all orders:

    p(w | h) = (c(hw) + t(h) p(w | h')) / (sum_v c(hv) + t(h))
"""

import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr_train.files import iter_jsonl
from asr_train.lang import arpa
from asr_train.lang.arpa import BEGIN, END, SYMBOLS, UNKNOWN, NgramModel, Ngrams
from asr_train.schema import Smoothing

FALL_BACK = (0.5, 1.0, 1.5)  # discounts for texts too small to estimate them
PASSES = 100  # of EM, at most
TINY = 1e-12  # least probability left over, against rounding
COVERED = 1e-4  # a history's words leave no more: rounding, with an ARPA file's 4 to 7 digits
BLOCK = 1_000_000  # words kept as a list before conversion to an array, an eighth of the size
B, E, U = 0, 1, 2  # ids of <s>, </s> and <unk>
MARKS = {BEGIN, END, BEGIN.upper(), END.upper()}


# --- text ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """Sentences as ids: `<s> word word </s> <s> ...`, T of them.

    Attributes:
        words: the vocabulary: <s>, </s>, <unk>, then all others sorted.
        id_T: int32 ids; words outside of the vocabulary are <unk>.
    """

    words: list[str]
    id_T: np.ndarray

    @property
    def sentences(self) -> int:
        """Number of sentences."""
        return int((self.id_T == E).sum())

    @property
    def num_words(self) -> int:
        """Number of words, without the sentences' ends."""
        return len(self.id_T) - 2 * self.sentences

    @staticmethod
    def of(sentences: Iterable[arpa.Sentence], vocabulary: Iterable[str]) -> "Text":
        """Number the words of sentences; <unk> or <UNK> is an unknown word.

        Raises:
            ValueError: without any sentence, or if one holds <s> or </s>.
        """
        words = [BEGIN, END, UNKNOWN, *sorted(set(vocabulary) - SYMBOLS)]
        id_of = defaultdict(lambda: U, zip(words, range(len(words)), strict=True))
        parts, blocks = [], [np.zeros(0, np.int32)]
        for sentence in sentences:
            if not MARKS.isdisjoint(sentence):
                raise ValueError(
                    f"the text's sentence {' '.join(sentence)[:60]!r} holds {BEGIN} or {END} as a "
                    "word; remove it: a line is a sentence by itself"
                )
            parts.append(B)
            parts.extend(map(id_of.__getitem__, sentence))
            parts.append(E)
            if len(parts) > BLOCK:
                blocks.append(np.array(parts, np.int32))
                parts.clear()
        id_T = np.concatenate([*blocks, np.array(parts, np.int32)])
        if len(id_T) == 0:
            raise ValueError("there is no sentence to train a language model on; see lm.text")
        return Text(words, id_T)


def most_frequent(counts: Mapping[str, int], most: int | None) -> list[str]:
    """Return so many of the words (None: all), of equal counts the first in sorted order."""
    words = counts.keys() - {UNKNOWN, UNKNOWN.upper()}
    return sorted(words, key=lambda word: (-counts[word], word))[:most]


def read_sentences(paths: Iterable[Path | str]) -> Iterator[list[str]]:
    """Yield the lines of text files (plain or .gz) as upper-case words, without empty lines.

    Raises:
        DamagedFileError: for a file that is truncated or not UTF-8.
    """
    for path in paths:
        with arpa.reading(path), arpa.open_text(path) as file:
            for line in file:
                if words := unicodedata.normalize("NFC", line.upper()).split():
                    yield [*map(sys.intern, words)]  # equal words are one object


def spoken(manifest: str) -> list[list[str]]:
    """Return a split's transcripts as upper-case words, without empty ones and speed copies."""
    supervisions = (s for cut in iter_jsonl(manifest) for s in cut["supervisions"])
    originals = (s for s in supervisions if "speed" not in (s.get("custom") or {}))
    sentences = (s["text"].upper().split() for s in originals)
    return [[*map(sys.intern, words)] for words in sentences if words]


def sentences_of(manifests: list[str]) -> set[tuple[str, ...]]:
    """Return the different transcripts of some splits."""
    return {tuple(words) for manifest in manifests for words in spoken(manifest)}


def without(sentences: Iterable[list[str]], apart: set[tuple[str, ...]]) -> Iterator[list[str]]:
    """Yield the sentences that are not in `apart`."""
    return (words for words in sentences if tuple(words) not in apart)


# --- counts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counts:
    """The different n-grams of one order in a text, N of them, sorted by their ids.

    Attributes:
        key_N: int64, as in `arpa.Ngrams`.
        count_N: int64, occurrences in the text.
        suffix_N: int64, index in the order below of all but the first word.
    """

    key_N: np.ndarray
    count_N: np.ndarray
    suffix_N: np.ndarray


def count_ngrams(text: Text, order: int) -> list[Counts]:
    """Count the n-grams of orders 1 to `order`; none crosses a sentence end."""
    base = len(text.words)
    count_V = np.bincount(text.id_T, minlength=base)
    result = [Counts(np.arange(base), count_V, np.zeros(base, np.int64))]
    place_T = text.id_T.astype(np.int64)  # of the n-gram that ends at t, -1 if it would cross
    for _ in range(order - 1):
        inside_T = np.zeros(len(place_T), bool)
        inside_T[1:] = (place_T[:-1] >= 0) & (text.id_T[1:] != B)
        at_T = np.flatnonzero(inside_T)
        keys_T = place_T[at_T - 1] * base + text.id_T[at_T]
        key_N, inverse_T, count_N = np.unique(keys_T, return_inverse=True, return_counts=True)
        suffix_N = np.zeros(len(key_N), np.int64)
        suffix_N[inverse_T] = place_T[at_T]  # the same for every occurrence
        result.append(Counts(key_N, count_N, suffix_N))
        place_T = np.full(len(place_T), -1, np.int64)
        place_T[at_T] = inverse_T
    return result


def _adjusted(counts: list[Counts], base: int) -> list[np.ndarray]:
    """Return the counts of Kneser-Ney, int64 [N] per order; see the module's docstring."""
    begins_N = np.arange(base) == B
    adjusted = []
    for n, here in enumerate(counts, 1):
        if n > 1:
            begins_N = begins_N[here.key_N // base]  # of the contexts
        if n == len(counts):
            adjusted.append(here.count_N)
        else:
            before_N = np.bincount(counts[n].suffix_N, minlength=len(here.key_N))
            adjusted.append(np.where(begins_N, here.count_N, before_N))
    return adjusted


def discounts(count_N: np.ndarray) -> tuple[float, float, float]:
    """Return D for counts of 1, 2, and 3 or more (Chen and Goodman, 1999, eq. 26).

    If no n-gram has a count of 1, 2 or 3, or a discount is not positive, as with tiny or repetitive
    texts, all three are FALL_BACK.
    """
    n1, n2, n3, n4 = (int((count_N == k).sum()) for k in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return FALL_BACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return found if min(found) > 0 else FALL_BACK


# --- estimation ---------------------------------------------------------------------------------


def train(
    text: Text,
    order: int,
    min_counts: Sequence[int] | None = None,
    smoothing: Smoothing = Smoothing.kneser_ney,
) -> NgramModel:
    """Estimate an interpolated model, in float64.

    Args:
        min_counts: per order; the mass of n-grams with smaller counts goes to the back-off. The
            first is 1 (the vocabulary selects words), and they are non-decreasing: the context of a
            kept n-gram is kept.
    """
    counts, base = count_ngrams(text, order), len(text.words)
    min_counts = [1] * order if min_counts is None else list(min_counts)
    # Of the order below; first that of no words, uniform over all but <s>
    p_N = np.array([1 / (base - 1)])
    place_N = np.zeros(1, np.int64)  # index in the model of each of its n-grams; -1: dropped
    orders: list[Ngrams] = []
    plainly = smoothing is Smoothing.witten_bell
    adjusted = [here.count_N for here in counts] if plainly else _adjusted(counts, base)
    adjusted[0] = np.where(np.arange(base) == B, 0, adjusted[0])  # <s> is never predicted
    for n, (here, count_N) in enumerate(zip(counts, adjusted, strict=True), 1):
        context_N, contexts = here.key_N // base, len(place_N)
        kept_N = here.count_N >= min_counts[n - 1] if n > 1 else np.ones(base, bool)
        steps = (0.0, 0.0, 0.0) if plainly else discounts(count_N)
        discount_N = np.array([0.0, *steps])[np.minimum(count_N, 3)]
        discount_N = np.where(kept_N, discount_N, count_N)
        more_C = np.bincount(context_N, count_N > 0, contexts) if plainly else 0.0
        total_C = np.bincount(context_N, count_N, contexts) + more_C
        freed_C = np.bincount(context_N, discount_N, contexts) + more_C
        gamma_C = np.divide(freed_C, total_C, where=total_C > 0, out=np.ones(contexts))
        lower_N = p_N[here.suffix_N]
        p_N = (count_N - discount_N) / total_C[context_N] + gamma_C[context_N] * lower_N
        logp_N = np.log10(p_N)
        if n == 1:
            logp_N[B] = arpa.NEVER
        else:
            backoff_C = np.log10(gamma_C[place_N >= 0])
            orders[-1] = Ngrams(orders[-1].key_N, orders[-1].logp_N, backoff_C)
        key_N = place_N[context_N] * base + here.key_N % base
        orders.append(Ngrams(key_N[kept_N], logp_N[kept_N], np.zeros(int(kept_N.sum()))))
        place_N = np.where(kept_N, np.cumsum(kept_N) - 1, -1)
    return NgramModel(text.words, orders)


# --- pruning ------------------------------------------------------------------------------------


def prune(model: NgramModel, threshold: float) -> NgramModel:
    """Remove n-grams that hardly change the distribution, and recompute all back-offs.

    Stolcke (Entropy-based pruning of backoff language models, 1998): an n-gram is removed if the
    model's perplexity would rise by less than the share `threshold`, each n-gram considered by
    itself. Words are kept, and so are the contexts of kept n-grams.

    Histories are weighed by the model's probabilities, as in the paper. Kneser-Ney's lower orders
    do not reflect word frequencies (Chelba et al., 2010); but weighing by counts, tried on a
    million words of LibriSpeech, helped only when a sixth of the n-grams or fewer were kept.
    A history that all words follow keeps its n-grams: each by itself looks worthless, as all its
    mass would return to it. Without a threshold the model stays as it is.
    """
    if threshold == 0:
        return model
    keeps = [np.ones(count, bool) for count in model.counts]
    for n in range(model.order, 1, -1):
        share_C = 10.0 ** _history_logp(model, n - 1)
        keeps[n - 1] = np.expm1(_relative_entropy(model, n, share_C)) >= threshold
        if n < model.order:
            context_M = model.orders[n].key_N[keeps[n]] // len(model.words)
            keeps[n - 1][context_M] = True
    return normalised(_kept(model, keeps))


def _history_logp(model: NgramModel, n: int) -> np.ndarray:
    """Return log10 P of the n-grams of order n as sequences, with P(</s>) for <s>: float64 [N]."""
    ids_NK = model.ids(n)
    first_N = np.where(ids_NK[:, :1] == model.id_of[BEGIN], model.id_of[END], ids_NK[:, :1])
    logp_N = model.conditional(first_N)
    for k in range(2, n + 1):
        logp_N = logp_N + model.conditional(ids_NK[:, :k])
    return logp_N


def _masses(model: NgramModel, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return, for order n, P(w|h) and P(w|h') [N], and the mass that both leave in h [C]."""
    ngrams, contexts = model.orders[n - 1], model.counts[n - 2]
    context_N = ngrams.key_N // len(model.words)
    p_N = 10.0 ** ngrams.logp_N.astype(np.float64)
    lower_N = 10.0 ** model.conditional(model.ids(n)[:, 1:])
    left_C = np.maximum(1 - np.bincount(context_N, p_N, contexts), TINY)
    left_lower_C = np.maximum(1 - np.bincount(context_N, lower_N, contexts), TINY)
    return p_N, lower_N, left_C, left_lower_C


def _relative_entropy(model: NgramModel, n: int, share_C: np.ndarray) -> np.ndarray:
    """Return the value of each n-gram of order n, in nats per word: float64 [N].

    It is infinite after a history that all words follow.
    """
    context_N = model.orders[n - 1].key_N // len(model.words)
    p_N, lower_N, left_C, left_lower_C = _masses(model, n)
    left_N = left_C[context_N]
    log_alpha_N = np.log(left_N / left_lower_C[context_N])
    log_without_N = np.log((left_N + p_N) / (left_lower_C[context_N] + lower_N))
    gain_N = p_N * (np.log(p_N) - np.log(lower_N) - log_without_N)
    entropy_N = share_C[context_N] * (gain_N + left_N * (log_alpha_N - log_without_N))
    return np.where(left_lower_C[context_N] < COVERED, np.inf, entropy_N)


def _kept(model: NgramModel, keeps: list[np.ndarray]) -> NgramModel:
    """Return the model without the n-grams that are not kept, with unchanged back-offs."""
    base, orders = len(model.words), []
    new_place_N = np.arange(base)
    for n, (ngrams, keep_N) in enumerate(zip(model.orders, keeps, strict=True), 1):
        key_N, backoff_N = ngrams.key_N[keep_N], ngrams.backoff_N[keep_N]
        if n > 1:
            key_N = new_place_N[key_N // base] * base + key_N % base
        orders.append(Ngrams(key_N, ngrams.logp_N[keep_N], backoff_N))
        new_place_N = np.cumsum(keep_N) - 1
    return NgramModel(model.words, orders)


def normalised(model: NgramModel) -> NgramModel:
    """Return the model with back-offs that make each history's distribution sum to one.

    If all words follow a history, any back-off would do, and the masses are but rounding. In a
    graph, though, every word can back off, so the weight is at most one by which none is likelier.
    """
    orders = list(model.orders)
    for n in range(2, model.order + 1):  # upward: an order's back-offs need the lower ones
        contexts, context_N = model.counts[n - 2], orders[n - 1].key_N // len(model.words)
        p_N, lower_N, left_C, left_lower_C = _masses(NgramModel(model.words, orders[:n]), n)
        weight_C, most_C = left_C / left_lower_C, np.ones(contexts)
        np.minimum.at(most_C, context_N, p_N / lower_N)
        covered_C = left_lower_C < COVERED
        weight_C[covered_C] = np.minimum(weight_C, most_C)[covered_C]
        followed_C = np.bincount(context_N, minlength=contexts) > 0
        backoff_C = np.where(followed_C, np.log10(weight_C), 0.0)
        orders[n - 2] = Ngrams(orders[n - 2].key_N, orders[n - 2].logp_N, backoff_C)
    return NgramModel(model.words, orders)


# --- mixtures -----------------------------------------------------------------------------------


def best_weight(first_T: np.ndarray, second_T: np.ndarray) -> float:
    """Return the first model's weight in the mixture with maximum likelihood of a text, by EM.

    Args:
        first_T, second_T: log10 P of the text's words by each model; see `word_logprobs`.
    """
    ratio_T = 10.0 ** np.clip(second_T - first_T, -300, 300)
    weight = 0.5
    for _ in range(PASSES):
        before, weight = weight, float((weight / (weight + (1 - weight) * ratio_T)).mean())
        if abs(weight - before) < 1e-6:
            break
    return weight


def mixed(first: NgramModel, second: NgramModel, weight: float) -> NgramModel:
    """Merge two models with the same words, and of the same order, into one back-off model.

    N-grams of either model get weight * first + (1 - weight) * second; all others follow by
    back-off, so they only approximate the mixture (as with SRILM's `ngram -mix-lm`).
    """
    words, orders = first.words, list[Ngrams]()
    for n in range(1, first.order + 1):
        ids_NK = np.concatenate([first.ids(n), second.ids(n)])
        key_N = ids_NK[:, -1].astype(np.int64)
        if n > 1:
            key_N += NgramModel(words, orders).place(ids_NK[:, :-1]) * len(words)
        key_N, at_N = np.unique(key_N, return_index=True)
        logp_MN = [model.conditional(ids_NK[at_N]) for model in (first, second)]
        p_N = weight * 10.0 ** logp_MN[0] + (1 - weight) * 10.0 ** logp_MN[1]
        orders.append(Ngrams(key_N, np.log10(p_N), np.zeros(len(key_N))))
    return normalised(NgramModel(words, orders))
