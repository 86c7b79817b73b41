"""Long recordings are searched in pieces, cut where the model finds silence."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import toy

import asr_train.decode.words
from asr_train.compose import settings
from asr_train.data.features import Utterance
from asr_train.decode.first_pass import PASSES, adapted
from asr_train.decode.pieces import LONGEST, PIECE, SHORTEST, pieces, quietest
from asr_train.decode.tune import tune
from asr_train.decode.words import NOTHING, Choice, Effort, Recogniser
from asr_train.search.beam import Path
from asr_train.search.graph import Graph, decoding_graph

SHIFT = 0.01
MARGIN = 15.0


def recording(lang, minutes, seed=0, pause=0):
    """Return words with half a second of silence after each: utterance, scorer, times of words.

    Args:
        pause: of silence after the first word, further half seconds.
    """
    rng = np.random.default_rng(seed)
    silence = np.repeat(list(lang.states.of("SIL")), 10)
    words, path, at = [], [silence], []
    frames = len(silence)
    while frames * SHIFT < 60 * minutes:
        word = str(rng.choice(["ABC", "A"]))
        (pron,) = lang.lexicon.prons[word]
        said = np.repeat([s for phone in pron for s in lang.states.of(phone)], 12)
        at.append((frames, frames + len(said)))
        path += [said, silence]
        words.append(word)
        frames += len(said) + len(silence)
        if len(words) == 1:
            path[-1] = np.repeat(silence, 1 + pause)
            frames += pause * len(silence)
    path_T = np.concatenate(path)
    scores = {"u": toy.scores_of(path_T, lang.states.num_states, rng, MARGIN)}
    loop_S = np.full(lang.states.num_states, 0.9)
    u = Utterance("u", "s", " ".join(words), len(path_T) * SHIFT, len(path_T))
    return u, toy.scorer_of(lang.states, loop_S, scores), at


@pytest.fixture(scope="module")
def lang():
    return toy.toy_lang(words=("ABC", "A"))


def test_a_short_recording_is_one_piece(lang):
    u, scorer, _ = recording(lang, LONGEST / 60 - 0.05)
    ((begin, scores_TS),) = pieces(scorer, u)
    assert begin == 0
    np.testing.assert_array_equal(scores_TS, scorer.score(u))


def test_pieces_make_the_whole_and_no_word_is_cut(lang):
    u, scorer, at = recording(lang, 3)
    found = list(pieces(scorer, u))
    assert [begin for begin, _ in found] == np.cumsum(
        [0, *(len(s) for _, s in found[:-1])]
    ).tolist()
    np.testing.assert_array_equal(np.concatenate([s for _, s in found]), scorer.score(u))
    assert all(len(s) * SHIFT <= PIECE for _, s in found)
    assert all(len(s) * SHIFT >= SHORTEST for _, s in found[:-1])
    for begin, _ in found[1:]:
        assert not any(first < begin < end for first, end in at)


def test_pieces_are_measured_in_seconds_whatever_the_frame_shift(lang):
    u, scorer, _ = recording(lang, 1.5)
    slow = replace(u, seconds=2 * u.seconds)  # as if frames were 20 ms apart
    lengths = [2 * SHIFT * len(scores_TS) for _, scores_TS in pieces(scorer, slow)]
    assert all(length <= PIECE for length in lengths)
    assert all(length >= SHORTEST for length in lengths[:-1])
    assert len(lengths) >= 180 / PIECE


def test_the_quietest_place_is_the_middle_of_the_longest_silence():
    scores_tS = np.zeros((40, 4), np.float32)
    scores_tS[:, 2] = 5
    scores_tS[10:12, 0] = 9
    scores_tS[20:30, 0] = 9
    assert 22 <= quietest(scores_tS, [0, 1], around=8) <= 28


@pytest.mark.parametrize("nbest", [0, 5])
def test_words_and_times_of_a_long_recording_are_those_said(lang, nbest):
    u, scorer, at = recording(lang, 2)
    graph = Graph.of(decoding_graph(lang, lang.states, scorer.loop_S))
    effort = Effort(beam=30.0, max_active=1000, lattice_beam=5.0, nbest=nbest)
    recognise = Recogniser(scorer, lang, graph, Choice(0.5, 0.0, 1.0), effort, SHIFT)
    found, alternatives = recognise(u)
    assert found.words == u.words.split()
    assert found.pieces > 2
    assert found.final
    for (word, begin, seconds, _), (first, end), said in zip(
        found.words_at, at, u.words.split(), strict=True
    ):
        assert word == said
        assert begin == pytest.approx(first * SHIFT, abs=3 * SHIFT)
        assert begin + seconds == pytest.approx(end * SHIFT, abs=3 * SHIFT)
    if nbest:
        ((words, *_),) = alternatives.sentences
        assert words == found.words
        assert not alternatives.complete


@pytest.mark.parametrize("nbest", [0, 5])
def test_a_piece_without_speech_has_no_word_though_a_sentence_must(lang, nbest):
    u, scorer, at = recording(lang, 2, pause=120)
    graph = Graph.of(decoding_graph(lang, lang.states, scorer.loop_S))
    effort = Effort(beam=30.0, max_active=1000, lattice_beam=5.0, nbest=nbest)
    choice = Choice(0.5, 0.0, 1.0)
    recognise = Recogniser(scorer, lang, graph, choice, effort, SHIFT, keep=nbest > 0)
    heard = []

    def adapt(spoken, *_):
        heard.extend(words for _, words in spoken)
        return adapting, {}

    adapting = replace(scorer, adapt=adapt)
    adapted(adapting, lang, graph, choice, effort, [u])
    assert heard == [u.words.split()] * PASSES
    once = {"acoustic_scales": [0.5], "insertion_penalties": [0.0], "lm_weights": [1.0]}
    width = replace(settings("dnn", []).decode, beam=30.0, max_active=1000, **once)
    ((_, errors),) = tune(scorer, lang, [u], width).tried
    assert errors.errors == 0
    silent = [s for begin, s in pieces(scorer, u) if at[0][1] <= begin < begin + len(s) <= at[1][0]]
    assert silent
    assert recognise._piece(silent[0])[0].words
    found, others = recognise(u)
    assert found.words == u.words.split()
    if nbest:
        assert [len(packed) for packed in others.lattices].count(0) == len(silent)
    assert [word for word, *_ in found.words_at] == found.words


@pytest.mark.parametrize("words, nothing", [([1], False), ([], False), ([], True)])
def test_a_piece_of_silence_need_not_end_a_sentence(lang, monkeypatch, words, nothing):
    u, scorer, at = recording(lang, 2, pause=120)
    graph = Graph.of(decoding_graph(lang, lang.states, scorer.loop_S))
    effort = Effort(beam=30.0, max_active=1000, lattice_beam=5.0, nbest=0)
    silent = [s for begin, s in pieces(scorer, u) if at[0][1] <= begin < begin + len(s) <= at[1][0]]
    whole = Recogniser._piece

    def unfinished(self, scores_TS):
        if not any(np.array_equal(scores_TS, s) for s in silent):
            return whole(self, scores_TS)
        path, *_ = whole(self, scores_TS)
        return NOTHING if nothing else replace(path, words=words, final=False), None, None

    monkeypatch.setattr(Recogniser, "_piece", unfinished)
    found, _ = Recogniser(scorer, lang, graph, Choice(0.5, 0.0, 1.0), effort, SHIFT)(u)
    assert found.words == u.words.split()
    assert found.final == (not nothing)


def test_costs_and_seconds_of_pieces_add_up_and_every_piece_must_end(lang, monkeypatch):
    """The clock advances by a second at each call; no piece is as likely to be silence."""
    u, scorer, _ = recording(lang, 1.5)
    count = len(list(pieces(scorer, u)))
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(asr_train.decode.words, "time", clock)
    none = np.zeros(0, np.int32)
    made = ((Path(none, [], 2.0, -1e6, n > 0), None, None) for n in itertools.count())
    monkeypatch.setattr(Recogniser, "_piece", lambda self, scores_TS: next(made))
    graph = Graph.of(decoding_graph(lang, lang.states, scorer.loop_S))
    effort = Effort(beam=30.0, max_active=1000, lattice_beam=5.0, nbest=0)
    found, _ = Recogniser(scorer, lang, graph, Choice(0.5, 0.0, 1.0), effort, SHIFT)(u)
    assert (found.pieces, found.seconds) == (count, count)
    assert found.real_time_factor == pytest.approx(count / u.seconds, abs=1e-5)
    assert (found.graph_cost, found.acoustic_cost) == (2.0 * count, -1e6 * count)
    assert not found.final  # the first one did not end, the others did
