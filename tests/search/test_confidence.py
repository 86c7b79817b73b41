"""Confidences are shares of word sequences, each with the cost of its cheapest path."""

import numpy as np
import pytest
from made_graphs import STATES, all_paths, random_graph, random_scores

from asr_train.search.lattice import Lattices, best_path
from asr_train.search.mbr import compile_confidences, confidences, decide
from asr_train.search.nbest import nbest
from asr_train.search.posterior import lattice_posterior

SEEDS = range(8)


def searched(seed, frames=5, width=100.0, nodes=7, arcs=22):
    rng = np.random.default_rng(seed)
    graph, scores_TS = random_graph(rng, nodes, arcs), random_scores(rng, frames)
    lattice = Lattices(graph, STATES).decode(scores_TS, 1000.0, 10**6, width)
    return graph, scores_TS, lattice


def shares(graph, scores_TS):
    """Return the probability of each word sequence, by its cheapest path of all."""
    costs: dict[tuple[int, ...], float] = {}
    for cost, words, _ in all_paths(graph, scores_TS):
        costs[words] = min(cost, costs.get(words, np.inf))
    weights = np.exp(min(costs.values()) - np.array(list(costs.values())))
    return dict(zip(costs, weights / weights.sum(), strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_word_has_the_share_of_sequences_that_have_it_there(seed):
    graph, scores_TS, lattice = searched(seed)
    found, words = shares(graph, scores_TS), best_path(lattice).words
    sure = confidences(lattice, words)
    assert len(sure) == len(words)
    for word, one in zip(words, sure, strict=True):
        most = sum(share for row, share in found.items() if word in row)
        assert found[tuple(words)] - 1e-5 <= one <= most + 1e-5


def test_a_word_said_once_counts_for_one_of_two_equal_ones():
    met = 0
    for seed in range(200):
        graph, scores_TS, lattice = searched(seed, frames=4)
        words = best_path(lattice).words
        if not lattice.final or len(words) != 2 or words[0] != words[1]:
            continue
        found = shares(graph, scores_TS)
        once = sum(share for row, share in found.items() if row.count(words[0]) == 1)
        none = sum(share for row, share in found.items() if row.count(words[0]) == 0)
        assert sum(confidences(lattice, words)) <= 2 - once - 2 * none + 1e-4
        met += once > 0.01
    assert met >= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_limit_of_work_keeps_the_best_sequences(seed):
    """Noise has so many sequences that all of them would take longer than it lasts."""
    _, _, lattice = searched(seed, frames=25, width=5.0, nodes=60, arcs=300)
    words = best_path(lattice).words
    whole = lattice_posterior(lattice)
    least, more = (lattice_posterior(lattice, max_work=work) for work in (1, 100_000))
    assert 0 <= least.beam <= more.beam <= whole.beam
    assert least.nodes < more.nodes < whole.nodes
    for some in (least, more):
        assert sorted(set(words) - set(some.arcs_A["word"])) == []
        assert some.arcs_A["target"].max() == some.nodes - 1  # its end is reached
        assert all(0 < c <= 1 + 1e-9 for c in decide(some, words, 0).confidences)


@pytest.mark.parametrize("seed", SEEDS)
def test_confidences_are_probabilities(seed):
    _, _, lattice = searched(seed, frames=25, width=5.0, nodes=60, arcs=300)
    found = lattice_posterior(lattice)  # once: these are large
    first, *others = nbest(lattice, 10).sentences
    said = [(first, confidences(lattice, first.words))]
    said += [(other, decide(found, other.words, 0).confidences) for other in others]
    for sentence, sure in said:
        assert len(sure) == len(sentence.words)
        assert all(0 <= c <= 1 for c in sure)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_there_is_no_other_path_words_are_certain(seed):
    _, _, lattice = searched(seed, width=0.0)
    words = best_path(lattice).words
    assert confidences(lattice, words) == pytest.approx([1.0] * len(words))


def test_a_path_without_words_has_no_confidences():
    compile_confidences()  # of a lattice with a single arc
    _, _, lattice = searched(0)
    assert confidences(lattice, []) == []
