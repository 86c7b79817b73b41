"""Words are found where they were said."""

import numpy as np
import pytest
from toy import scores_of, toy_lang

from asr_train.search.graph import decoding_graph
from asr_train.search.lattice import Lattices, best_path
from asr_train.search.nbest import nbest
from asr_train.search.times import word_times

NUM_STATES = 14


def said(lang, words, rng, last_phones=None):
    """A state path with silences here and there, and when each word begins and ends."""
    path, times = [], []

    def say(phone):
        for state in lang.states.of(phone):
            path.extend([state] * int(rng.integers(1, 4)))

    for k, word in enumerate(words):
        if rng.random() < 0.5:
            say("SIL")
        begin = len(path)
        prons = lang.lexicon.prons[word]
        pron = prons[rng.integers(len(prons))]
        for phone in pron[:last_phones] if k == len(words) - 1 else pron:
            say(phone)
        times.append((begin, len(path)))
    if last_phones is None and rng.random() < 0.5:
        say("SIL")
    return np.array(path), times


@pytest.fixture(scope="module")
def toy():
    lang = toy_lang(words=("A", "ALSO", "ABC"))  # nothing else sounds like a row of these
    return lang, Lattices(decoding_graph(lang, np.full(NUM_STATES, 0.6)), NUM_STATES)


@pytest.mark.parametrize("seed", range(10))
def test_words_are_found_where_they_were_said(toy, seed):
    lang, lattices = toy
    rng = np.random.default_rng(seed)
    words = [lang.grammar.words[i] for i in rng.integers(0, 3, 5)]
    path_T, times = said(lang, words, rng)
    scores_TS = scores_of(path_T, NUM_STATES, rng, margin=15.0)
    lattice = lattices.decode(scores_TS, 100.0, 1000, 20.0)
    best = best_path(lattice)
    assert [lang.lexicon.words[w - 1] for w in best.words] == words
    assert word_times(best, lang) == times
    for other in nbest(lattice, 20).sentences:
        spans = word_times(other, lang)
        assert len(spans) == len(other.words)
        frames = [frame for span in spans for frame in span]
        assert frames == sorted(frames)
        assert all(end - begin >= 3 for begin, end in spans)


@pytest.mark.parametrize("seed", range(4))
def test_the_last_word_of_a_search_that_did_not_end_may_be_cut(toy, seed):
    lang, lattices = toy
    rng = np.random.default_rng(seed)
    path_T, times = said(lang, ["A", "ABC"], rng, last_phones=2)
    path_T = path_T[: np.flatnonzero(path_T == lang.states.of("b")[1])[-1] + 1]
    scores_TS = scores_of(path_T, NUM_STATES, rng, margin=30.0)
    best = best_path(lattices.decode(scores_TS, 15.0, 1000, 5.0, min_active=1))
    assert not best.final
    spans = word_times(best, lang)
    assert spans[0] == times[0]
    assert len(spans) == len(best.words)
    if len(best.words) == 2:
        assert spans[1] == (times[1][0], len(path_T))


def test_states_of_another_lexicon_are_refused(toy):
    lang, lattices = toy
    rng = np.random.default_rng(0)
    path_T, _ = said(lang, ["ABC"], rng)
    best = best_path(lattices.decode(scores_of(path_T, NUM_STATES, rng, 15.0), 100.0, 1000, 1.0))
    fits_SP = np.zeros((NUM_STATES, len(lang.states.phones)), bool)
    with pytest.raises(ValueError, match="made together"):
        word_times(best, lang, fits_SP)
