"""N-best lists are sorted, distinct and exact; rescoring and oracles follow their definitions."""

import numpy as np
import pytest
from kaldialign import edit_distance
from made_graphs import STATES, WORDS, cheapest_rows, random_graph, random_scores

from asr_train.search.lattice import Lattices, best_path
from asr_train.search.nbest import lattice_oracle, list_oracle, nbest

SEEDS = range(8)
NAMES = ["ONE", "TWO", "THREE"]
assert len(NAMES) == WORDS


def searched(seed, frames=5, width=50.0, nodes=7, arcs=22):
    rng = np.random.default_rng(seed)
    graph, scores_TS = random_graph(rng, nodes, arcs), random_scores(rng, frames)
    lattice = Lattices(graph, STATES).decode(scores_TS, 1000.0, 10**6, width)
    return graph, scores_TS, lattice


@pytest.mark.parametrize("count", [1, 3, 20, 10**5])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_list_is_what_going_through_all_paths_gives(seed, count):
    graph, scores_TS, lattice = searched(seed)
    rows = cheapest_rows(graph, scores_TS)
    cost_of = {words: cost for cost, words in rows}
    found = nbest(lattice, count)
    costs = [s.cost for s in found.sentences]
    assert found.complete
    assert costs == pytest.approx([cost for cost, _ in rows[:count]], abs=1e-5)
    assert costs == pytest.approx([cost_of[tuple(s.words)] for s in found.sentences], abs=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_lists_are_sorted_distinct_and_begin_with_the_best_path(seed):
    _, _, lattice = searched(seed, frames=25, width=6.0, nodes=60, arcs=300)
    found = nbest(lattice, 200).sentences
    costs = [s.cost for s in found]
    assert costs == sorted(costs)
    assert len({tuple(s.words) for s in found}) == len(found) > 1
    assert found[0].words == best_path(lattice).words
    assert costs[0] == pytest.approx(lattice.cost, abs=1e-9)
    assert [s.words for s in nbest(lattice, 5).sentences] == [s.words for s in found[:5]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sentence_has_a_state_in_every_frame(seed):
    _, _, lattice = searched(seed, frames=25, width=6.0, nodes=60, arcs=300)
    for s in nbest(lattice, 20).sentences:
        assert len(s.states_T) == 25


def test_a_list_cut_short_by_the_limit_says_so_and_is_right():
    _, _, lattice = searched(1, frames=25, width=6.0, nodes=60, arcs=300)
    full, short = nbest(lattice, 300), nbest(lattice, 300, max_work=2000)
    assert full.complete
    assert not short.complete
    assert 0 < len(short.sentences) < len(full.sentences)
    for a, b in zip(short.sentences, full.sentences, strict=False):
        assert a.words == b.words


@pytest.mark.parametrize("more", [-40.0, 40.0])
def test_the_beam_counts_from_the_best_path_whatever_that_costs(more):
    rng = np.random.default_rng(3)
    graph, scores_TS = random_graph(rng, 60, 300), random_scores(rng, 25)
    here, there = (
        nbest(Lattices(graph, STATES).decode(each, 1000.0, 10**6, 2.0), 10**5).sentences
        for each in (scores_TS, (scores_TS + more).astype(np.float32))
    )
    assert len(there) == pytest.approx(len(here), abs=3)  # rounding, at the beam's border
    costs = np.array([[s.cost for s in each[: len(here) - 3]] for each in (here, there)])
    np.testing.assert_allclose(costs[1] - costs[0], -25 * more, atol=1e-3)
    assert here[0].cost + 1.9 < here[-1].cost <= here[0].cost + 2.0 + 1e-3


# --- oracle -------------------------------------------------------------------------------------


def counts(reference, words) -> int:
    return edit_distance(list(reference), list(words))["total"]


@pytest.mark.parametrize("reference", [(), (1,), (1, 2, 3), (3, 3, 3, 3), (2, 0, 1), (1, 2) * 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_lattice_s_oracle_is_that_of_all_its_rows(seed, reference):
    graph, scores_TS, lattice = searched(seed)
    rows = [words for _, words in cheapest_rows(graph, scores_TS)]
    best = min(counts(reference, words) for words in rows)
    assert lattice_oracle(lattice, reference) == best
    assert list_oracle(nbest(lattice, 10**5).sentences, reference) == best


@pytest.mark.parametrize("seed", SEEDS)
def test_oracles_are_no_worse_than_what_they_choose_from(seed):
    rng = np.random.default_rng(seed)
    _, _, lattice = searched(seed, frames=25, width=6.0, nodes=60, arcs=300)
    found = nbest(lattice, 50).sentences
    reference = rng.integers(1, WORDS + 1, 6).tolist()
    first = counts(reference, found[0].words)
    some = list_oracle(found, reference)
    assert lattice_oracle(lattice, reference) <= some <= first
    for s in found[::10]:
        assert lattice_oracle(lattice, s.words) == list_oracle(found, s.words) == 0


def test_an_empty_list_deletes_the_reference():
    assert list_oracle([], [1, 2]) == 2
