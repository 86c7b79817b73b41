"""Posteriors are shares of all paths, weighted by their costs."""

import numpy as np
import pytest
from made_graphs import STATES, WORDS, all_paths, random_graph, random_scores

from asr_train.search.confidence import arc_probabilities, confidences, word_posterior
from asr_train.search.lattice import Lattices, best_path
from asr_train.search.nbest import nbest

SEEDS = range(8)


def searched(seed, frames=5, width=100.0, nodes=7, arcs=22):
    rng = np.random.default_rng(seed)
    graph, scores_TS = random_graph(rng, nodes, arcs), random_scores(rng, frames)
    lattice = Lattices(graph, STATES).decode(scores_TS, 1000.0, 10**6, width)
    return graph, scores_TS, lattice


def posterior_of(word, lattice, probability_A):
    return word_posterior(lattice.arcs_A, lattice.frame_N, probability_A, word, lattice.frames)


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("seed", SEEDS)
def test_posteriors_are_what_going_through_all_paths_gives(seed, scale):
    graph, scores_TS, lattice = searched(seed)
    paths = list(all_paths(graph, scores_TS))
    weights = np.exp(-scale * np.array([cost for cost, _, _ in paths]))
    weights /= weights.sum()
    probability_A = arc_probabilities(lattice.arcs_A, lattice.final_N, scale)
    at_TW = np.zeros((5, WORDS + 1))
    for weight, (_, _, at_T) in zip(weights, paths, strict=True):
        at_TW[np.arange(5), at_T] += weight
    for word in range(1, WORDS + 1):
        found_T, _ = posterior_of(word, lattice, probability_A)
        assert found_T == pytest.approx(at_TW[:, word], abs=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_words_at_a_frame_share_at_most_one(seed):
    _, _, lattice = searched(seed, frames=25, width=5.0, nodes=60, arcs=300)
    probability_A = arc_probabilities(lattice.arcs_A, lattice.final_N, 1.0)
    total_T = sum(posterior_of(w, lattice, probability_A)[0] for w in range(1, WORDS + 1))
    assert total_T.max() <= 1 + 1e-9
    assert total_T[-1] > 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_confidences_are_probabilities(seed):
    _, _, lattice = searched(seed, frames=25, width=5.0, nodes=60, arcs=300)
    for sentence in nbest(lattice, 10).sentences:
        sure = confidences(lattice, sentence)
        assert len(sure) == len(sentence.words)
        assert all(0 < c <= 1 for c in sure)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_there_is_no_other_path_words_are_certain(seed):
    _, _, lattice = searched(seed, width=0.0)
    assert confidences(lattice, best_path(lattice)) == pytest.approx(
        [1.0] * len(best_path(lattice).words)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_s_confidence_is_at_least_the_posterior_of_its_best_path(seed):
    graph, scores_TS, lattice = searched(seed)
    costs = np.array([cost for cost, _, _ in all_paths(graph, scores_TS)])
    best = best_path(lattice)
    alone = np.exp(-best.cost) / np.exp(-costs).sum()
    assert min(confidences(lattice, best), default=1.0) >= alone - 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_at_a_sharp_scale_the_best_path_is_certain(seed):
    _, _, lattice = searched(seed, frames=25, width=5.0, nodes=60, arcs=300)
    first, second = nbest(lattice, 2).sentences
    scale = 20 / (second.cost - first.cost)
    assert confidences(lattice, first, scale) == pytest.approx([1.0] * len(first.words), abs=1e-3)
