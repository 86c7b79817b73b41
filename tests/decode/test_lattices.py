"""Lattices for sequence training hold their reference, at the graph's own costs."""

import numpy as np
import pytest
import toy

from asr_train.data.features import Utterance
from asr_train.decode.lattices import Competitors, state_arcs
from asr_train.decode.words import Choice, Effort
from asr_train.search.graph import decoding_graph
from asr_train.search.lattice import Lattices
from asr_train.search.occupancy import EMPTY, check_arcs, frame_of_node

SCALE = 0.3
WIDE = Effort(beam=200.0, max_active=10_000, lattice_beam=200.0, nbest=0)
NARROW = Effort(beam=200.0, max_active=10_000, lattice_beam=0.5, nbest=0)


@pytest.fixture(scope="module")
def graph(lang):
    return decoding_graph(lang, lang.states, np.full(lang.states.num_states, 0.6))


def searched(lang, graph, effort, said, reference, seed, arcs_per_frame=1000):
    """Return what is found where `said` is clear, and the path of `reference` is aligned."""
    rng = np.random.default_rng(seed)
    path_T = toy.path_of(lang, said, rng)
    ali_T = toy.path_of(lang, reference, rng, stay=1)
    ali_T = np.pad(ali_T, (0, max(0, len(path_T) - len(ali_T))), mode="edge")
    path_T = np.pad(path_T, (0, len(ali_T) - len(path_T)), mode="edge")
    scores = {"u": toy.scores_of(path_T, lang.states.num_states, rng)}
    scorer = toy.scorer_of(lang.states, np.full(lang.states.num_states, 0.6), scores)
    utterance = Utterance("u", "s", " ".join(reference), 0.01 * len(ali_T), len(ali_T), {})
    choice = Choice(SCALE, 0.0, 1.0)
    return Competitors(scorer, graph, choice, effort, arcs_per_frame)(utterance, ali_T), ali_T


def cheapest_cost(arcs_A, ali_T):
    """Return the graph cost of the cheapest of the lattice's paths with these states."""
    frame_N, cost_N = frame_of_node(arcs_A), np.full(arcs_A["target"].max() + 1, np.inf)
    cost_N[0] = 0.0
    for source, target, state, graph in arcs_A.tolist():
        if state in (EMPTY, ali_T[min(frame_N[source], len(ali_T) - 1)]):
            cost_N[target] = min(cost_N[target], cost_N[source] + graph)
    return cost_N[-1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("effort, added", [(WIDE, False), (NARROW, True)])
def test_a_reference_lost_in_pruning_is_added_at_the_graphs_cost(lang, graph, effort, added, seed):
    (arcs_A, was_added), ali_T = searched(lang, graph, effort, ["A", "C"], ["ABC"], seed)
    check_arcs(arcs_A, len(ali_T), lang.states.num_states)
    assert was_added == added
    forced_TS = np.full((len(ali_T), lang.states.num_states), -1e6, np.float32)
    forced_TS[np.arange(len(ali_T)), ali_T] = 0.0
    assert cheapest_cost(arcs_A, ali_T) == pytest.approx(toy.cheapest(graph, forced_TS), abs=1e-3)


def test_more_arcs_than_asked_for_narrow_the_beam(lang, graph):
    (many, _), ali_T = searched(lang, graph, WIDE, ["A", "C"], ["A", "C"], 0)
    (few, _), _ = searched(lang, graph, WIDE, ["A", "C"], ["A", "C"], 0, arcs_per_frame=10)
    check_arcs(few, len(ali_T), lang.states.num_states)
    assert len(few) < 0.5 * len(many)


def test_an_alignment_that_the_graph_does_not_allow_is_said_so(lang, graph):
    rng = np.random.default_rng(0)
    states = lang.states.num_states
    ali_T = np.array([states - 1, 0, states - 1, 0])  # no phone is that short
    scorer = toy.scorer_of(lang.states, np.full(states, 0.6), {"u": np.zeros((12, states))})
    search = Competitors(scorer, graph, Choice(1.0, 0.0, 1.0), WIDE, 1000)
    found = search(Utterance("u", "s", "A", 0.12, 12, {}), np.tile(ali_T, 3))
    assert found == "the weak language model's graph has no path of its alignment"
    short = toy.scorer_of(lang.states, np.full(states, 0.6), {"u": rng.normal(size=(1, states))})
    search = Competitors(short, graph, Choice(1.0, 0.0, 1.0), WIDE, 1000)
    found = search(Utterance("u", "s", "A", 0.01, 1, {}), ali_T[:1])
    assert found == "the search reached no final state"


def test_a_lattices_arcs_end_in_one_node(lang, graph):
    scores_TS = np.random.default_rng(1).standard_normal((15, lang.states.num_states))
    lattice = Lattices(graph, lang.states.num_states).decode(
        scores_TS.astype(np.float32), 200.0, 10_000, 3.0
    )
    arcs_A = state_arcs(lattice)
    check_arcs(arcs_A, 15, lang.states.num_states)
    ends = np.isfinite(lattice.final_N).sum()
    assert len(arcs_A) == len(lattice.arcs_A) + ends
    assert (arcs_A["target"] == arcs_A["target"].max()).sum() == ends
