"""Posteriors of word sequences, and the words of least expected errors, by enumeration."""

import itertools

import numpy as np
import pytest
from kaldialign import edit_distance
from made_graphs import STATES, all_paths, random_graph, random_scores
from test_expanded import NAMES, NATS, models
from toy import logprobs

from asr_train.search.lattice import Lattices
from asr_train.search.mbr import decide
from asr_train.search.posterior import SHARED, Posterior, lattice_posterior, posterior
from asr_train.search.rescore import Model, expanded

SEEDS = range(8)
ALL = 1e3  # nats; wider than any lattice here
NEARLY = 1e-3  # errors; insertions count 1e-5 more than 1


def searched(seed, weight=1.2, penalty=0.3):
    """Return an expanded lattice, and the least cost of each word sequence by enumeration."""
    rng = np.random.default_rng(seed)
    graph, scores_TS = random_graph(rng, 7, 22), random_scores(rng, 5)
    lattice = Lattices(graph, STATES).decode(scores_TS, 1000.0, 10**6, 100.0)
    old, new = models(rng)
    costs: dict[tuple[int, ...], float] = {}
    for cost, words, _ in all_paths(graph, scores_TS):
        costs[words] = min(cost, costs.get(words, np.inf))
    said = [[NAMES[k - 1] for k in words] for words in costs]
    change = 0.8 * logprobs(old, said) - weight * logprobs(new, said)
    found = expanded(lattice, Model.of(old, NAMES), Model.of(new, NAMES), 0.8)
    rows = zip(costs.items(), change, strict=True)
    return found, {w: c + NATS * more + penalty * len(w) for (w, c), more in rows}


def shares(costs):
    weights = np.exp(min(costs.values()) - np.array(list(costs.values())))
    return dict(zip(costs, weights / weights.sum(), strict=True))


def sequences(found: Posterior):
    """Return the probability of each word sequence of a posterior; each must occur once."""
    rows: dict[tuple[int, ...], float] = {}

    def back(node, words, share):
        if node == 0:
            assert words not in rows
            rows[words] = share
        for arc in found.arcs_A[found.arcs_A["target"] == node]:
            said = (int(arc["word"]), *words) if arc["word"] else words
            back(arc["source"], said, share * arc["share"])

    back(found.nodes - 1, (), 1.0)
    return rows


def risk(rows, words) -> float:
    return sum(p * edit_distance(list(row), list(words))["total"] for row, p in rows.items())


def assert_none_missing(some: Posterior, costs):
    """Check that all sequences within the beam are there, with the ratios of their costs."""
    rows, least = sequences(some), min(costs.values())
    inside = {w: c for w, c in costs.items() if c <= least + some.beam - 1e-5}
    assert inside
    ratio = {words: rows[words] / np.exp(least - cost) for words, cost in inside.items()}
    assert list(ratio.values()) == pytest.approx([max(ratio.values())] * len(ratio), rel=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_posterior_has_each_sequence_once_by_its_cheapest_path(seed):
    found, costs = searched(seed)
    wanted, rows = shares(costs), sequences(posterior(found, 1.2, 0.3, ALL))
    assert rows.keys() == wanted.keys()
    for words, share in rows.items():
        assert share == pytest.approx(wanted[words], rel=1e-4)


@pytest.mark.parametrize("max_nodes", [10**4, 6])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_posterior_of_a_lattice_has_the_costs_of_its_search(seed, max_nodes):
    rng = np.random.default_rng(seed)
    graph, scores_TS = random_graph(rng, 7, 22), random_scores(rng, 5)
    lattice = Lattices(graph, STATES).decode(scores_TS, 1000.0, 10**6, 100.0)
    some = lattice_posterior(lattice, max_nodes)
    costs: dict[tuple[int, ...], float] = {}
    for cost, words, _ in all_paths(graph, scores_TS):
        costs[words] = min(cost, costs.get(words, np.inf))
    assert_none_missing(some, costs)
    assert max_nodes > 6 or some.beam < 100


@pytest.mark.parametrize("beam, max_nodes", [(1.5, 10**4), (ALL, 12)])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_sequence_within_the_beam_is_missing(seed, beam, max_nodes):
    found, costs = searched(seed)
    some = posterior(found, 1.2, 0.3, beam, max_nodes)
    assert some.beam <= beam
    assert_none_missing(some, costs)


# --- minimum Bayes risk -------------------------------------------------------------------------


def trie(rows):
    """Return a posterior whose paths meet at the end only."""
    prefixes = sorted({row[:n] for row in rows for n in range(len(row) + 1)}, key=len)
    number = {prefix: n for n, prefix in enumerate(prefixes)}
    arcs = [(number[p[:-1]], number[p], p[-1], 1.0) for p in prefixes[1:]]
    arcs += [(number[row], len(number), 0, share) for row, share in rows.items()]
    return Posterior(np.array(arcs, SHARED), len(number) + 1, np.inf)


@pytest.mark.parametrize("seed", SEEDS)
def test_confidences_do_not_depend_on_rounding(seed):
    found, costs = searched(seed)
    rng, best = np.random.default_rng(seed), min(costs, key=costs.__getitem__)
    made = posterior(found, 1.2, 0.3, ALL)
    sure = decide(made, best, 0).confidences
    for _ in range(10):
        made.arcs_A["share"] *= rng.uniform(1 - 1e-14, 1 + 1e-14, len(made.arcs_A))
        assert decide(made, best, 0).confidences == pytest.approx(sure, abs=1e-9)


def test_the_words_of_least_errors_need_not_be_those_of_the_best_path():
    found = decide(trie({(1, 2): 0.4, (1, 3): 0.35, (4, 3): 0.25}), [1, 2])
    assert found.words == [1, 3]
    assert found.confidences == pytest.approx([0.75, 0.6])
    assert found.errors == pytest.approx(0.65)


@pytest.mark.parametrize("seed", SEEDS)
def test_expected_errors_are_exact_where_paths_do_not_meet(seed):
    _, costs = searched(seed)
    rows = shares(costs)
    for words in list(rows)[:20]:
        found = decide(trie(rows), words, rounds=0)
        assert found.words == list(words)
        assert found.errors == pytest.approx(risk(rows, words), abs=NEARLY)
        assert all(0 <= c <= 1 for c in found.confidences)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_decision_has_the_least_expected_errors_of_all_sequences(seed):
    found, costs = searched(seed)
    rows = shares(costs)
    best = min(costs, key=costs.__getitem__)
    made = posterior(found, 1.2, 0.3, ALL)
    decision, before = decide(made, best), decide(made, best, rounds=0)
    assert decision.errors <= before.errors
    assert risk(rows, decision.words) <= decision.errors + NEARLY  # an upper bound
    longest = max(map(len, rows))
    every = itertools.chain(*(itertools.product([1, 2, 3], repeat=n) for n in range(longest + 1)))
    risks = {words: risk(rows, words) for words in every}
    least = min(risks, key=risks.__getitem__)
    assert risks[least] <= risks[tuple(decision.words)] <= risks[best] + NEARLY
    again = decide(made, least)  # from the best of all on, there is nothing better
    assert risks[tuple(again.words)] == pytest.approx(risks[least], abs=NEARLY)
    assert again.errors == pytest.approx(risks[least], abs=0.01)


def test_decisions_come_nearer_to_the_least_expected_errors_than_best_paths():
    """From random sequences on; local optima remain."""
    rng = np.random.default_rng(0)
    every = [row for n in range(5) for row in itertools.product([1, 2, 3], repeat=n)]
    gaps = []
    for _ in range(30):
        rows = {tuple(rng.integers(1, 4, rng.integers(1, 5)).tolist()): 0.0 for _ in range(6)}
        rows = dict(zip(rows, rng.dirichlet(np.ones(len(rows))), strict=True))
        best = max(rows, key=rows.__getitem__)
        least = min(risk(rows, words) for words in every)
        gaps.append([risk(rows, w) - least for w in (best, decide(trie(rows), best).words)])
    assert all(-1e-9 < decided <= before + NEARLY for before, decided in gaps)
    before, decided = np.mean(gaps, 0)
    assert decided < 0.8 * before


@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_sequence_is_certain(seed):
    found, costs = searched(seed)
    best = min(costs, key=costs.__getitem__)
    made = posterior(found, 1.2, 0.3, 0.0)
    decision = decide(made, best)
    assert decision.words == list(best)
    assert decision.confidences == pytest.approx([1.0] * len(best))
    assert decision.errors == pytest.approx(0, abs=1e-9)
    assert decide(made, []).words == list(best)
