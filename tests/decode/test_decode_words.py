"""The words of clear scores are found; a failed search is repeated with a wider beam."""

import dataclasses

import kaldifst
import numpy as np
import pytest
import toy

from asr_train.data.features import Utterance
from asr_train.decode.lattice_archive import LatticeArchive, write_lattices
from asr_train.decode.words import Alternatives, Choice, Effort, Recogniser, search, transcribe
from asr_train.files import DamagedFileError
from asr_train.search.arrays import Arrays
from asr_train.search.beam import beam_search
from asr_train.search.graph import Graph, decoding_graph
from asr_train.search.nbest import nbest
from scripts.decode import oracle_of

ALL = 10_000
WIDE = 1e4
SHIFT = 0.01  # seconds


@pytest.fixture(scope="module")
def loop_S(lang):
    return np.full(lang.states.num_states, 0.6)


@pytest.fixture(scope="module")
def graph(lang, loop_S):
    return decoding_graph(lang, lang.states, loop_S)


def utterances_of(lang, count, seed=0):
    """Return utterances with clear scores by id, of words without homophones."""
    rng = np.random.default_rng(seed)
    made, scores = [], {}
    for n in range(count):
        said = rng.choice(["A", "ABC"], rng.integers(1, 4)).tolist()
        path_T = toy.path_of(lang, said, rng)
        scores[f"u{n}"] = toy.scores_of(path_T, lang.states.num_states, rng)
        made.append(Utterance(f"u{n}", "s", " ".join(said), 0.01 * len(path_T), len(path_T)))
    return made, scores


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_clear_scores_give_the_words_said(lang, graph, scale):
    made, scores = utterances_of(lang, 10)
    ready = Graph.of(graph)
    for u in made:
        path = search(ready, scores[u.id], scale, 40.0, ALL)
        assert [lang.lexicon.words[i - 1] for i in path.words] == u.words.split()
        assert path.final


@pytest.mark.parametrize("scale", [0.1, 0.7])
def test_the_costs_are_those_of_the_cheapest_path_as_weighed(lang, graph, scale):
    rng = np.random.default_rng(4)
    scores_TS = rng.standard_normal((15, lang.states.num_states)).astype(np.float32)
    path = search(Graph.of(graph), scores_TS, scale, WIDE, ALL)
    assert path.final
    wanted = toy.cheapest(graph, scores_TS * np.float32(scale))
    assert path.graph_cost + path.acoustic_cost == pytest.approx(wanted, abs=1e-3)


OTHERS = 30  # paths; the decoder keeps the best 20 tokens for any beam


def two_ends(margin: float):
    """Return a graph whose end, word 7, is `margin` nats worse than its other paths, word 8.

    Returns:
        The graph and the scores of four frames.
    """
    ways = "".join(f"0 {s} {s} 8 0\n{s} {s} {s} 0 0\n" for s in range(2, OTHERS + 2))
    fst = kaldifst.compile(f"0 1 1 7 0\n1 1 1 0 0\n{ways}1 0\n", acceptor=False)
    scores_TS = np.full((4, OTHERS + 1), margin / 4, np.float32)
    scores_TS[:, 0] = 0
    return fst, scores_TS


@pytest.mark.parametrize(
    "margin, words, final", [(9.0, [7], True), (16.0, [7], True), (40.0, [8], False)]
)
def test_a_search_that_misses_the_end_is_tried_with_twice_the_beam(margin, words, final):
    """An end more than 10 nats behind is missed once; one more than 20 behind, twice."""
    fst, scores_TS = two_ends(margin)
    once = beam_search(fst, scores_TS, 10.0, ALL)
    assert once.final == (margin < 10)
    path = search(Graph(fst), scores_TS, 1.0, 10.0, ALL)
    assert (path.words, path.final) == (words, final)
    assert path.graph_cost + path.acoustic_cost == pytest.approx(0 if final else -margin)


def test_a_dead_search_finds_no_words():
    """The graph ends after one frame, and there are three."""
    fst = kaldifst.compile("0 1 1 7 0\n1 0\n", acceptor=False)
    found = search(Graph(fst), np.zeros((3, 1), np.float32), 1.0, 10.0, ALL)
    assert (found.words, found.graph_cost, found.acoustic_cost, found.final) == ([], 0, 0, False)


def all_of(lang, graph, loop_S, made, scores, count=0):
    scorer = toy.scorer_of(lang.states, loop_S, scores)
    effort = Effort(beam=40.0, max_active=ALL, lattice_beam=12.0, nbest=count)
    recognise = Recogniser(scorer, lang, Graph.of(graph), Choice(1.0, 0.0, 1.0), effort, SHIFT)
    return [
        (dataclasses.replace(row, seconds=0.0, real_time_factor=0.0), others)
        for row, others in transcribe(recognise, made, "")
    ]


@pytest.mark.parametrize("count", [1, 19])
def test_every_utterance_has_its_row_in_order(lang, graph, loop_S, count):
    made, scores = utterances_of(lang, count)
    rows = [row for row, _ in all_of(lang, graph, loop_S, made, scores)]
    assert [(r.id, r.words, r.frames) for r in rows] == [
        (u.id, u.words.split(), u.frames) for u in made
    ]


@pytest.mark.parametrize("count", [0, 5])
def test_the_rows_do_not_depend_on_the_number_of_processes(lang, graph, loop_S, monkeypatch, count):
    made, scores = utterances_of(lang, 19, seed=1)
    found = []
    for jobs in "123":
        monkeypatch.setenv("JOBS", jobs)
        found.append(all_of(lang, graph, loop_S, made, scores, count))
    assert found[0] == found[1] == found[2]


def test_kept_lattices_are_those_of_the_lists(lang, graph, loop_S, tmp_path):
    made, scores = utterances_of(lang, 3)
    scorer = toy.scorer_of(lang.states, loop_S, scores)
    effort = Effort(beam=40.0, max_active=ALL, lattice_beam=12.0, nbest=5)
    choice = Choice(1.0, 0.0, 1.0)
    keep = Recogniser(scorer, lang, Graph.of(graph), choice, effort, SHIFT, keep=True)
    path = tmp_path / "lattices.dev.zip"
    found = list(write_lattices(path, lang, transcribe(keep, made, "")))
    kept = LatticeArchive(path, lang)
    for number, (row, others) in enumerate(found):
        (lattice,) = kept.of(number, row.pieces)
        assert len(lattice.arcs_A) == others.arcs
        listed = [[lang.lexicon.words[i - 1] for i in s.words] for s in nbest(lattice, 5).sentences]
        assert listed == [words for words, *_ in others.sentences]
        assert "lattices" not in others.row()
    LatticeArchive(path, dataclasses.replace(lang, silence_probability=0.3))  # has the same words
    prons = {"AA": (("a",),), **lang.lexicon.prons}
    other = dataclasses.replace(lang, lexicon=dataclasses.replace(lang.lexicon, prons=prons))
    with pytest.raises(DamagedFileError, match=r"numbers words as [0-9a-f]+, but the lang folder"):
        LatticeArchive(path, other)


def test_words_stand_where_they_were_said(lang, graph, loop_S):
    """For a path with clear scores, times are those of the path's phones."""
    rng = np.random.default_rng(3)
    words = ["C", "ABC", "A"]
    states = [s for w in words for p in lang.lexicon.prons[w][0] for s in lang.states.of(p)]
    path_T = np.repeat(states, 2).astype(np.int32)
    scores = {"u": toy.scores_of(path_T, lang.states.num_states, rng, 20.0)}
    spoken = Utterance("u", "s", " ".join(words), SHIFT * len(path_T), len(path_T))
    ((row, _),) = all_of(lang, graph, loop_S, [spoken], scores)
    phones = [1, 3, 1]  # of each word
    starts = np.cumsum([0, *phones]) * 3 * 2 * SHIFT
    assert row.words == words
    for (word, start, seconds, sure), w, at, n in zip(
        row.words_at, words, starts, phones, strict=False
    ):
        assert (word, sure) == (w, None)
        assert start == pytest.approx(at)
        assert seconds == pytest.approx(n * 3 * 2 * SHIFT)


def test_lattices_find_the_same_words_and_say_how_sure_they_are(lang, graph, loop_S):
    rng = np.random.default_rng(5)
    made, scores = utterances_of(lang, 12, seed=2)
    noisy = {
        k: (v / 4 + rng.standard_normal(v.shape)).astype(np.float32) for k, v in scores.items()
    }
    alone = all_of(lang, graph, loop_S, made, noisy)
    for (one, none), (row, others) in zip(
        alone, all_of(lang, graph, loop_S, made, noisy, count=7), strict=True
    ):
        assert none is None
        cost = one.graph_cost + one.acoustic_cost
        assert row.graph_cost + row.acoustic_cost == pytest.approx(cost, abs=1e-3)
        costs = [graph_cost + acoustic for _, graph_cost, acoustic in others.sentences]
        assert costs == sorted(costs)
        assert costs[0] == pytest.approx(cost, abs=1e-3)
        assert len({tuple(words) for words, *_ in others.sentences}) == len(costs) <= 7
        assert all(0 <= sure <= 1 for *_, sure in row.words_at)
        assert others.oracle_errors <= others.list_errors


def test_a_transcript_with_unknown_words_has_an_oracle_too(lang, graph, loop_S):
    (spoken,), scores = utterances_of(lang, 1)
    odd = dataclasses.replace(spoken, words=spoken.words + " NOSUCH")
    ((_, others),) = all_of(lang, graph, loop_S, [odd], scores, count=5)
    assert others.oracle_errors == 1


def test_oracle_rates_count_the_words_of_utterances_that_have_oracles():
    made = [Utterance(f"u{n}", "s", "A B C", 1.0, 100) for n in range(3)]
    found = [Alternatives("u0", [], True, 1, 2, 9), Alternatives("u1", [], True, 3, 3, 0)]
    pieces = Alternatives("u2", [], False, None, None, 9)  # no list of the whole, so no oracle
    counts = {"words": 6, "lattice_errors": 4, "list_errors": 5}
    assert oracle_of(made, [*found, pieces]) == counts
    assert oracle_of(made[2:], [pieces]) is None


def test_a_search_that_finds_nothing_misses_all_words(lang, graph, loop_S):
    spoken = Utterance("u", "s", "ABC A", SHIFT, 1)  # one frame is too short for any word
    scores = {"u": np.zeros((1, lang.states.num_states), np.float32)}
    empty = Arrays(0, graph.final_N[:1], graph.source_A[:0], graph.arcs_A[:0])  # leads nowhere
    ((row, others),) = all_of(lang, empty, loop_S, [spoken], scores, count=5)
    assert row.words == others.sentences == []
    assert (others.oracle_errors, others.list_errors) == (2, 2)
