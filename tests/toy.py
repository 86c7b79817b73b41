"""A toy language: few words, with homophones, beginnings of others, and variants."""

import itertools

import numpy as np

from asr_train.lang.index import Lang
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.states import States
from asr_train.schema import GrammarKind, GrammarSettings

PRONS = {
    "A": (("a",),),
    "AB": (("a", "b"),),
    "ALSO": (("a", "b"),),  # sounds like AB
    "ABC": (("a", "b", "c"),),
    "C": (("c",), ("c", "a")),
}


def toy_lang(
    words=tuple(PRONS), min_words=1, max_words=None, phone_states=3, silence_states=5, arpa=None
) -> Lang:
    """The language of any row of these words, or of an ARPA file."""
    lexicon = Lexicon({word: PRONS[word] for word in sorted(PRONS)})
    kind = GrammarKind.loop if arpa is None else GrammarKind.arpa
    grammar = GrammarSettings(
        kind=kind,
        words=list(words) if arpa is None else [],
        min_words=min_words,
        max_words=max_words,
        file=None if arpa is None else str(arpa),
    )
    states = States(tuple(lexicon.phones), phone_states, silence_states)
    return Lang(lexicon, states, grammar, arpa, 0.4)


def path_of(lang: Lang, words, rng, stay=2, silence=True) -> np.ndarray:
    """A random state path through a transcript; silence may stand before, between and after."""
    phones = []
    for word in [None, *words]:
        if word is not None:
            prons = lang.lexicon.prons[word]
            phones += prons[rng.integers(len(prons))]
        if silence and rng.random() < 0.5:
            phones.append("SIL")
    states = [s for phone in phones for s in lang.states.of(phone)]
    return np.repeat(states, rng.integers(1, stay + 1, len(states))).astype(np.int32)


def scores_of(path_T: np.ndarray, num_states: int, rng, margin=8.0) -> np.ndarray:
    """Noise, with the path's state `margin` nats above."""
    scores_TS = rng.standard_normal((len(path_T), num_states)).astype(np.float32)
    scores_TS[np.arange(len(path_T)), path_T] += margin
    return scores_TS


def cheapest(graph, scores_TS: np.ndarray) -> float:
    """The exact cost of the best complete path by dynamic programming over all arcs."""
    arcs, source = graph.arcs_A, graph.source_A
    empty = arcs["ilabel"] == 0

    def close(cost_N):
        while True:
            new = cost_N.copy()
            np.minimum.at(new, arcs["next"][empty], cost_N[source[empty]] + arcs["weight"][empty])
            if np.array_equal(new, cost_N):
                return cost_N
            cost_N = new

    cost_N = np.full(len(graph.final_N), np.inf)
    cost_N[graph.start] = 0
    cost_N = close(cost_N)
    for score_S in scores_TS:
        new = np.full_like(cost_N, np.inf)
        step = arcs["weight"][~empty] - score_S[arcs["ilabel"][~empty] - 1]
        np.minimum.at(new, arcs["next"][~empty], cost_N[source[~empty]] + step)
        cost_N = close(new)
    return float((cost_N + graph.final_N).min())


def all_sentences(words, longest):
    """Every row of up to `longest` words."""
    for length in range(1, longest + 1):
        yield from itertools.product(words, repeat=length)
