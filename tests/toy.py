"""A toy language: few words, with homophones, words that begin others, and variants. Features."""

import itertools
from dataclasses import replace

import numpy as np

from asr_train.decode.scorer import Scorer
from asr_train.lang.arpa import NgramModel
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.pronprobs import Pronprobs
from asr_train.lang.states import States
from asr_train.lang.tree import CENTRE, LEFT, RIGHT, Tree
from asr_train.schema import FeatsSettings, GrammarKind, GrammarSettings

PRONS = {
    "A": (("a",),),
    "AB": (("a", "b"),),
    "ALSO": (("a", "b"),),  # a homophone of AB
    "ABC": (("a", "b", "c"),),
    "C": (("c",), ("c", "a")),
}


def toy_lang(
    words=tuple(PRONS), min_words=1, max_words=None, phone_states=3, silence_states=5, arpa=None
) -> Lang:
    """Return the language of any sequence of these words, or of an ARPA file."""
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


def logmel(**change) -> FeatsSettings:
    """Return the settings of conf/feats/logmel20.yaml, with some changed."""
    values = {"sample_rate": 16000, "num_mels": 20, "window_seconds": 0.025}
    values |= {"shift_seconds": 0.010, "low_hz": 20.0, "high_hz": 0.0}
    return FeatsSettings(**values | {"preemphasis": 0.97, "dither": 0.0} | change)


def random_pronprobs(lexicon: Lexicon, rng) -> Pronprobs:
    """Draw probabilities of pronunciations and pauses, from 0.1 to 0.9, and factors up to 3."""

    def drawn(high):
        return {w: rng.uniform(0.1, high, len(ps)).tolist() for w, ps in lexicon.prons.items()}

    return Pronprobs(drawn(0.9), drawn(0.9), drawn(3), drawn(3), *rng.uniform(0.1, 0.9, 3).tolist())


def random_tree(states: States, rng, share=(), depth=2) -> Tree:
    """Return a tree over the phones of `states`: each root asks `depth` random questions in a row.

    Args:
        share: phones (ids) that start from the same roots, whose first question tells them apart
            in one half of the contexts only.
    """
    phones, most = len(states.phones), max(states.phone_states, states.silence_states)
    questions, rows, root_PJ = [], [], np.full((phones, most), -1)
    leaves = 0

    def leaf() -> int:
        nonlocal leaves
        rows.append([-1, 0, -1, -1, leaves])
        leaves += 1
        return len(rows) - 1

    def asked(side: int, members, yes, no) -> int:
        """Add a question between `yes` and `no`; leaves are added to `yes` first."""
        questions.append(np.isin(np.arange(phones), members))
        rows.append([len(questions) - 1, side, -1, -1, -1])
        node = len(rows) - 1
        rows[node][2] = yes()
        rows[node][3] = no()
        return node

    def grown(left: int) -> int:
        if left == 0:
            return leaf()
        members = rng.permutation(phones)[: rng.integers(1, phones)]
        below = lambda: grown(left - 1)  # noqa: E731
        return asked(rng.choice([LEFT, RIGHT]), members, below, below)

    root_PJ[0, : states.silence_states] = [leaf() for _ in range(states.silence_states)]
    for phone in range(1, phones):
        together = share if phone in share else (phone,)
        if phone != together[0]:
            root_PJ[phone] = root_PJ[together[0]]
            continue
        for j in range(states.phone_states):
            if len(together) == 1:
                root_PJ[phone, j] = grown(depth)
            else:
                apart = lambda p=phone: asked(CENTRE, [p], leaf, leaf)  # noqa: E731
                some = rng.permutation(phones)[: phones // 2]
                root_PJ[phone, j] = asked(rng.choice([LEFT, RIGHT]), some, apart, leaf)
    questions_QP = np.array(questions, bool).reshape(-1, phones)
    return Tree(questions_QP, *np.array(rows, np.int32).T, root_PJ.astype(np.int32))


def tied(lang: Lang, rng, share=(), depth=2) -> States:
    """Return the language's states, tied by a random tree."""
    return replace(lang.states, tree=random_tree(lang.states, rng, share, depth))


def phone_of_state(states: States) -> np.ndarray:
    """Return int [S]: the phone of each state, if states do not depend on neighbours."""
    return np.repeat(np.arange(len(states.phones)), [len(states.of(p)) for p in states.phones])


def rows_of(states: States, phones: list[int]) -> list[list[int]]:
    """Return the states of each phone, by its neighbours; at the edges there is silence."""
    around = [0, *phones, 0]
    return [states.ids(*around[i : i + 3]) for i in range(len(phones))]


def path_of(lang: Lang, words, rng, stay=2, silence=True, states=None) -> np.ndarray:
    """Draw a state path through a transcript; silence may be before, between and after words."""
    phones = []
    for word in [None, *words]:
        if word is not None:
            prons = lang.lexicon.prons[word]
            phones += prons[rng.integers(len(prons))]
        if silence and rng.random() < 0.5:
            phones.append("SIL")
    ids = [lang.states.phones.index(phone) for phone in phones]
    path = [s for row in rows_of(states or lang.states, ids) for s in row]
    return np.repeat(path, rng.integers(1, stay + 1, len(path))).astype(np.int32)


def scores_of(path_T: np.ndarray, num_states: int, rng, margin=8.0) -> np.ndarray:
    """Draw noise, with the path's state `margin` nats above it."""
    scores_TS = rng.standard_normal((len(path_T), num_states)).astype(np.float32)
    scores_TS[np.arange(len(path_T)), path_T] += margin
    return scores_TS


def scorer_of(states: States, loop_S: np.ndarray, scores: dict[str, np.ndarray]) -> Scorer:
    """Return a model with given scores, by utterance id."""
    some = lambda u: lambda ids, span: scores[u.id][span][:, ids]  # noqa: E731
    return Scorer("dnn", states.num_states, states, loop_S, some)


def logprobs(model: NgramModel, sentences) -> np.ndarray:
    """Return log10 P of whole sentences, including their ends: float64 [S]."""
    return np.array([model.word_logprobs([words])[0].sum() for words in sentences])


def cheapest(graph, scores_TS: np.ndarray) -> float:
    """Return the cost of the best complete path, by dynamic programming over all arcs."""
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
    """Yield every sequence of up to `longest` words."""
    for length in range(1, longest + 1):
        yield from itertools.product(words, repeat=length)
