"""Alignments -> **probabilities** of pronunciations, and of silence before and after them.

    cuts with aligned words and phones --spoken--> Spoken --learned--> Pronprobs, in lang/index.json

After Chen, Xu, Wu, Povey and Khudanpur (2015), "Pronunciation and silence probability modeling for
ASR", as Kaldi's utils/dict_dir_add_pronprobs.sh has it.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from asr_train.lang.lexicon import SILENCE, Lexicon
from asr_train.schema import PronprobsSettings

EDGE = ("", 0)  # stands for the start or the end where a pronunciation is expected
Variant = tuple[str, int]  # a word, and which of its pronunciations


@dataclass(frozen=True, slots=True)
class Pronprobs:
    """Probabilities learned from alignments; lists have one entry per pronunciation, in order.

    Attributes:
        pron: relative to the word's most likely pronunciation, which has 1.
        pause: that a silence follows.
        after_silence, after_word: factor of the probability of a word that follows a silence, and
            of one that follows another word without silence between them.
        start: that an utterance begins with silence.
        end_after_silence, end_after_word: the same factors, of the end.
    """

    pron: dict[str, list[float]]
    pause: dict[str, list[float]]
    after_silence: dict[str, list[float]]
    after_word: dict[str, list[float]]
    start: float
    end_after_silence: float
    end_after_word: float


@dataclass(frozen=True, slots=True)
class Spoken:
    """How an utterance was pronounced.

    Attributes:
        variants: of its words.
        pauses: whether there is silence before each word, and at the end: one more than words.
    """

    variants: list[Variant]
    pauses: list[bool]


def spoken(row: dict[str, Any], lexicon: Lexicon) -> Spoken:
    """Read an aligned cut (a row of ali/SPLIT.jsonl.gz).

    Raises:
        ValueError: if it has no phones, or other pronunciations than the lexicon.
    """
    aligned = row["supervisions"][0].get("alignment") or {}
    if not aligned.get("word") or not aligned.get("phone"):
        raise ValueError(
            f"{row['id']} is aligned without phones, as alignments of another program are; "
            "pronunciations can only be counted in those of a model of ours"
        )
    phones = [(symbol, start) for symbol, start, *_ in aligned["phone"]]
    variants: list[Variant] = []
    pauses = [phones[0][0] == SILENCE]
    at = int(pauses[0])
    for word, start, duration, *_ in aligned["word"]:
        begin = at
        while at < len(phones) and phones[at][1] < start + duration - 1e-6:
            at += 1
        pron = tuple(symbol for symbol, _ in phones[begin:at])
        known = lexicon.prons.get(word, ())
        if pron not in known:
            raise ValueError(
                f"{row['id']}: {word} is aligned with the phones {' '.join(pron)!r}, but the "
                f"lexicon has {[' '.join(one) for one in known]}; delete ali/ and run make again"
            )
        variants.append((sys.intern(word), known.index(pron)))
        pauses.append(at < len(phones) and phones[at][0] == SILENCE)
        at += pauses[-1]
    return Spoken(variants, pauses)


def learned(
    utterances: Iterable[Spoken], lexicon: Lexicon, settings: PronprobsSettings
) -> Pronprobs:
    """Estimate the probabilities of all pronunciations of a lexicon.

    With C counts, P_s the share of silences after all words, and w a pronunciation:

        pron                (C(w) + pron_count) / (the same of the word's most frequent one)
        pause               (C(w s) + silence_count P_s) / (C(w) + silence_count)
        after_silence       (C(s w) + factor_count) / (sum over w's predecessors of their pause
                            + factor_count), and after_word likewise

    A word that does not occur has equal pronunciations, P_s, and factors of 1.

    Raises:
        ValueError: if there is no utterance.
    """
    count: Counter[Variant] = Counter()
    pauses: Counter[Variant] = Counter()
    pairs: Counter[tuple[Variant, bool, Variant]] = Counter()
    for one in utterances:
        around = [EDGE, *one.variants, EDGE]
        for left, pause, right in zip(around, one.pauses, around[1:], strict=False):
            count[left] += 1
            pauses[left] += pause
            pairs[left, pause, right] += 1
    if not count:
        raise ValueError("no utterance is aligned, so there are no pronunciations to count")
    after_words = sum(pauses.values()) - pauses[EDGE]
    share = (after_words + 1) / (count.total() - count[EDGE] + 2)
    prior = settings.silence_count
    pause_of = {left: (pauses[left] + prior * share) / (n + prior) for left, n in count.items()}
    seen: Counter[tuple[bool, Variant]] = Counter()
    expected: dict[tuple[bool, Variant], float] = defaultdict(float)
    for (left, pause, right), n in pairs.items():
        seen[pause, right] += n
        expected[True, right] += n * pause_of[left]
        expected[False, right] += n * (1 - pause_of[left])

    def factor(pause: bool, right: Variant) -> float:
        more = settings.factor_count
        return (seen[pause, right] + more) / (expected[pause, right] + more)

    def by_word(value: Any) -> dict[str, list[float]]:
        return {
            word: [float(f"{value((word, n)):.6g}") for n in range(len(prons))]
            for word, prons in lexicon.prons.items()
        }

    most = {
        word: max(count[word, n] for n in range(len(prons))) + settings.pron_count
        for word, prons in lexicon.prons.items()
    }
    return Pronprobs(
        by_word(lambda v: (count[v] + settings.pron_count) / most[v[0]]),
        by_word(lambda v: pause_of.get(v, share)),
        by_word(lambda v: factor(True, v)),
        by_word(lambda v: factor(False, v)),
        pause_of[EDGE],
        factor(True, EDGE),
        factor(False, EDGE),
    )
