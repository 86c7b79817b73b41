"""The lattice holds every path within its beam, and its best one is the graph's."""

import numpy as np
import pytest
from made_graphs import STATES, cheapest_rows, random_graph, random_scores
from toy import cheapest, path_of, scores_of, toy_lang

from asr_train.jobs import parallel_map
from asr_train.search.arrays import ARC, Arrays, epsilon_heights, to_vector
from asr_train.search.beam import beam_search
from asr_train.search.graph import decoding_graph
from asr_train.search.lattice import Lattices, best_path
from asr_train.search.nbest import nbest
from asr_train.search.tokens import forward, kth_smallest

SEEDS = range(6)
AMPLE = {"beam": 1000.0, "max_active": 10**6}  # nats, tokens: nothing is pruned
TOY_STATES = 14


@pytest.fixture(scope="module")
def toy():
    lang = toy_lang()
    graph = decoding_graph(lang, lang.states, np.linspace(0.3, 0.8, TOY_STATES))
    return lang, graph, Lattices(graph, TOY_STATES)


def toy_scores(lang, seed, words=("ABC", "C", "A"), margin=1.0):
    rng = np.random.default_rng(seed)
    return scores_of(path_of(lang, words, rng), TOY_STATES, rng, margin)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_path_costs_what_exact_search_and_faster_decoder_say(toy, seed):
    lang, graph, lattices = toy
    scores_TS = toy_scores(lang, seed)
    lattice = lattices.decode(scores_TS, **AMPLE, lattice_beam=4.0)
    path = best_path(lattice)
    other = beam_search(to_vector(graph), scores_TS, 1000, 10**6)
    assert lattice.final
    assert path.cost == pytest.approx(lattice.cost, abs=1e-9)
    assert path.cost == pytest.approx(cheapest(graph, scores_TS), abs=1e-5)
    assert path.cost == pytest.approx(other.graph_cost + other.acoustic_cost, abs=1e-3)
    assert path.words == other.words
    assert np.array_equal(path.states_T, other.states_T)


@pytest.mark.parametrize("least", [0.0, -1.0])
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_are_searched_exactly(seed, least):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, nodes=40, arcs=150, least=least)
    scores_TS = random_scores(rng, frames=12)
    exact = cheapest(graph, scores_TS)
    lattice = Lattices(graph, STATES).decode(scores_TS, **AMPLE, lattice_beam=2.0)
    other = beam_search(to_vector(graph), scores_TS, 1000, 10**6)
    assert lattice.final == other.final == np.isfinite(exact)
    assert lattice.cost == pytest.approx(other.graph_cost + other.acoustic_cost, abs=1e-3)
    if np.isfinite(exact):
        assert lattice.cost == pytest.approx(exact, abs=1e-5)


@pytest.mark.parametrize("least", [0.0, -1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_path_s_costs_are_those_of_its_states_and_arcs(seed, least):
    """Also if tokens are pruned, and if a pruned one survives through a negative epsilon."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, nodes=40, arcs=200, least=least)
    scores_TS = random_scores(rng, frames=12)
    lattice = Lattices(graph, STATES).decode(scores_TS, 2.0, 4, 1.0, min_active=1)
    for path in [best_path(lattice), *nbest(lattice, 20).sentences]:
        acoustic = -scores_TS[np.arange(12), path.states_T].sum()
        assert path.acoustic_cost == pytest.approx(acoustic, abs=1e-5)
        only_TS = np.full_like(scores_TS, -1e4)
        only_TS[np.arange(12), path.states_T] = 0
        if path.final:
            assert path.graph_cost > cheapest(graph, only_TS) - 1e-5
    assert best_path(lattice).cost == pytest.approx(lattice.cost, abs=1e-9)


@pytest.mark.parametrize("width", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_of_words_within_the_lattice_beam_is_there(seed, width):
    rng = np.random.default_rng(seed)
    graph, scores_TS = random_graph(rng), random_scores(rng)
    rows = cheapest_rows(graph, scores_TS)
    lattice = Lattices(graph, STATES).decode(scores_TS, **AMPLE, lattice_beam=width)
    inside = [(cost, words) for cost, words in rows if cost <= rows[0][0] + width]
    found = nbest(lattice, 10**4).sentences
    assert [s.cost for s in found] == pytest.approx([cost for cost, _ in inside], abs=1e-5)
    assert {tuple(s.words) for s in found} == {words for _, words in inside}


def test_the_lattice_is_in_topological_order_and_all_of_it_is_of_use(toy):
    lang, _, lattices = toy
    lattice = lattices.decode(toy_scores(lang, 0), **AMPLE, lattice_beam=6.0)
    source, target = lattice.arcs_A["source"], lattice.arcs_A["target"]
    assert (np.diff(source) >= 0).all()
    assert (target > source).all()
    assert set(target) == set(range(1, len(lattice.frame_N)))
    step = lattice.frame_N[target] - lattice.frame_N[source]
    assert np.array_equal(step, lattice.arcs_A["ilabel"] > 0)
    assert np.isfinite(lattice.costs_to_end()).all()


@pytest.mark.parametrize("least", [0.0, -1.0])
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_early_pruning_changes_nothing(chunk, least):
    rng = np.random.default_rng(chunk)
    graph = random_graph(rng, nodes=60, arcs=300, least=least)
    scores_TS = random_scores(rng, frames=25)
    lattices = Lattices(graph, STATES)
    late, early = (lattices.decode(scores_TS, 8.0, 30, 3.0, chunk=c) for c in (10**6, chunk))
    assert np.array_equal(late.arcs_A, early.arcs_A)
    assert np.array_equal(late.frame_N, early.frame_N)
    assert np.array_equal(late.final_N, early.final_N)


def test_early_pruning_gives_memory_back():
    rng = np.random.default_rng(0)
    lattices = Lattices(random_graph(rng, nodes=60, arcs=300), STATES)
    scores_TS = random_scores(rng, frames=200)
    search = (lattices._graph, scores_TS, (8.0, 30, 1), 1.0)
    late, early = (len(forward(*search, chunk)[0]) for chunk in (10**6, 10))
    assert late > 200 * 25
    assert early < late / 3


def test_a_wider_lattice_beam_only_adds(toy):
    lang, _, lattices = toy
    scores_TS = toy_scores(lang, 1)
    arcs, rows = 0, set()
    for width in (0.0, 2.0, 5.0, 9.0):
        lattice = lattices.decode(scores_TS, **AMPLE, lattice_beam=width)
        sentences = nbest(lattice, 10**4).sentences
        found = {(tuple(s.words), round(s.cost, 4)) for s in sentences}
        assert found >= rows
        assert len(lattice.arcs_A) > arcs
        arcs, rows = len(lattice.arcs_A), found
    assert len(rows) > 10


@pytest.mark.parametrize("limit", [1, 5, 20])
@pytest.mark.parametrize("spread", [0.0, 1.0])  # nats; with 0 all tokens of a kind cost the same
def test_no_more_tokens_go_on_than_may(toy, limit, spread):
    rng = np.random.default_rng(0)
    scores_TS = (spread * rng.standard_normal((40, TOY_STATES))).astype(np.float32)
    lattice = toy[2].decode(scores_TS, 1000.0, limit, 4.0)
    assert lattice.active_T.max() == limit


def test_min_active_keeps_a_narrow_beam_from_starving(toy):
    lang, _, lattices = toy
    scores_TS = toy_scores(lang, 2)
    few = lattices.decode(scores_TS, 0.1, 100, 1.0, min_active=1)
    more = lattices.decode(scores_TS, 0.1, 100, 1.0, min_active=12)
    assert few.active_T.mean() < 2
    assert more.active_T.mean() > 8
    assert more.cost <= few.cost or not few.final


def test_a_full_lattice_gets_a_narrower_beam(toy):
    lang, _, lattices = toy
    scores_TS = toy_scores(lang, 3)
    full = lattices.decode(scores_TS, **AMPLE, lattice_beam=8.0)
    limit = len(full.arcs_A) // 2
    less = lattices.decode(scores_TS, **AMPLE, lattice_beam=8.0, max_arcs=limit)
    same = lattices.decode(scores_TS, **AMPLE, lattice_beam=less.beam)
    assert full.beam == 8.0
    assert less.beam < 8.0
    assert 0.7 * limit < len(less.arcs_A) <= limit
    assert np.array_equal(less.arcs_A, same.arcs_A)


def test_a_search_that_does_not_end_where_the_graph_does_says_so(toy):
    lang, _, lattices = toy
    begun = np.array(lang.states.of("a")[:2])  # no word is as short
    scores_TS = scores_of(begun, TOY_STATES, np.random.default_rng(0))
    lattice = lattices.decode(scores_TS, **AMPLE, lattice_beam=4.0)
    path = best_path(lattice)
    assert not lattice.final
    assert not path.final
    assert np.array_equal(path.states_T, begun)


@pytest.mark.parametrize(
    "ends, width, cost, kept",
    [
        ([0.5, 0.0, 3.0], 0.0, 0.5, [(0.0, 0.5)]),
        ([0.5, 0.0, 3.0], 2.0, 0.5, [(0.0, 0.5), (1.0, 0.0)]),
        ([0.5, 0.0, 3.0], 3.0, 0.5, [(0.0, 0.5), (0.25, 3.0), (1.0, 0.0)]),
        ([np.inf, 2.0, np.inf], 9.0, 3.0, [(1.0, 2.0)]),
        ([np.inf] * 3, 0.5, 0.0, [(0.0, 0.0), (0.25, 0.0)]),  # none: anywhere, at no cost
    ],
)
def test_paths_end_at_the_costs_of_the_graphs_final_states(ends, width, cost, kept):
    """Three arcs of costs 0, 1 and 0.25, each to an end of its own; the beam counts both costs."""
    arcs_A = np.zeros(3, ARC)
    arcs_A["ilabel"], arcs_A["next"], arcs_A["weight"] = 1, [1, 2, 3], [0, 1, 0.25]
    final_N = np.array([np.inf, *ends], np.float32)
    lattices = Lattices(Arrays(0, final_N, np.zeros(3, np.int64), arcs_A), 1)
    lattice = lattices.decode(np.zeros((1, 1), np.float32), **AMPLE, lattice_beam=width)
    arcs = lattice.arcs_A
    found = zip(arcs["graph"].tolist(), lattice.final_N[arcs["target"]].tolist(), strict=True)
    assert sorted(found) == kept
    assert lattice.cost == best_path(lattice).cost == cost
    assert lattice.final == np.isfinite(min(ends))


def test_nothing_is_found_where_no_path_is_as_long_as_the_scores():
    arcs_A = np.zeros(1, ARC)
    arcs_A["ilabel"], arcs_A["next"] = 1, 1
    graph = Arrays(0, np.array([np.inf, 0], np.float32), np.zeros(1, np.int64), arcs_A)
    lattices = Lattices(graph, 1)
    assert lattices.decode(np.zeros((1, 1), np.float32), 10.0, 10, 1.0) is not None
    for frames in (2, 3, 100):
        assert lattices.decode(np.zeros((frames, 1), np.float32), 10.0, 10, 1.0) is None


def test_forked_workers_find_the_same(toy, monkeypatch):
    monkeypatch.setenv("JOBS", "2")
    lang, _, lattices = toy
    scores = [toy_scores(lang, seed) for seed in range(4)]

    def cost(scores_TS):
        return lattices.decode(scores_TS, 10.0, 100, 4.0).cost

    assert list(parallel_map(cost, scores, "")) == [cost(s) for s in scores]


def test_scores_of_another_model_are_refused(toy):
    with pytest.raises(ValueError, match=r"\[frames, 14\]"):
        toy[2].decode(np.zeros((5, TOY_STATES - 1), np.float32), 10.0, 10, 1.0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_refused(toy, wrong):
    scores_TS = np.zeros((5, TOY_STATES), np.float32)
    scores_TS[3, 2] = wrong
    with pytest.raises(ValueError, match="frame 3"):
        toy[2].decode(scores_TS, 10.0, 10, 1.0)


def test_heights_count_the_longest_way_of_epsilons():
    arcs_A = np.zeros(4, ARC)
    arcs_A["ilabel"], arcs_A["next"] = [0, 0, 0, 1], [1, 2, 2, 3]
    graph = Arrays(0, np.zeros(4, np.float32), np.array([0, 0, 1, 2]), arcs_A)
    assert epsilon_heights(graph).tolist() == [2, 1, 0, 0]


def test_a_cycle_of_epsilons_is_refused():
    arcs_A = np.zeros(3, ARC)
    arcs_A["ilabel"], arcs_A["next"] = [1, 0, 0], [1, 2, 1]
    graph = Arrays(0, np.zeros(3, np.float32), np.array([0, 1, 2]), arcs_A)
    with pytest.raises(ValueError, match="cycle"):
        Lattices(graph, 1)


@pytest.mark.parametrize("kinds", [1, 3, 10**6])
@pytest.mark.parametrize("count", [1, 2, 17, 400])
def test_selection_is_what_sorting_gives(kinds, count):
    rng = np.random.default_rng(count)
    values = rng.integers(0, kinds, count).astype(np.float64)
    for k in {0, count // 3, count - 1}:
        assert kth_smallest(values.copy(), count, k) == np.sort(values)[k]
