"""Rescoring a lattice finds what going through all of its paths finds."""

import itertools
from dataclasses import replace

import kaldifst
import numpy as np
import pytest
from made_graphs import STATES, WORDS, all_paths, random_graph, random_scores
from toy import logprobs, toy_lang

from asr_train.lang.arpa import NgramModel, read_arpa, write_arpa
from asr_train.lang.histories import Histories, advance, advance_in_graph
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.ngram import Text, prune, train
from asr_train.search.graph import grammar_fst
from asr_train.search.lattice import Lattices, best_path, narrowed
from asr_train.search.nbest import nbest
from asr_train.search.pack import pack, unpack
from asr_train.search.rescore import Model, expanded

SEEDS = range(8)
NAMES = ["ONE", "TWO", "THREE"]
assert len(NAMES) == WORDS
WEIGHTS = list(itertools.product([0.0, 0.5, 1.3], [-1.0, 0.0, 0.7]))
NATS = np.log(10)


def model_of(rng, order: int, pruned: float = 0.0, sentences: int = 12) -> NgramModel:
    """Learn from random sentences; one word is rare, so that the model backs off from it."""
    text = [rng.choice(NAMES, rng.integers(1, 7), p=[0.6, 0.3, 0.1]) for _ in range(sentences)]
    model = train(Text.of([list(each) for each in text], NAMES), order)
    return prune(model, pruned) if pruned else model


def searched(seed, frames=5, width=100.0, nodes=7, arcs=22):
    rng = np.random.default_rng(seed)
    graph, scores_TS = random_graph(rng, nodes, arcs), random_scores(rng, frames)
    lattice = Lattices(graph, STATES).decode(scores_TS, 1000.0, 10**6, width)
    return rng, graph, scores_TS, lattice


def models(rng) -> list[NgramModel]:
    return [model_of(rng, 2, 1e-2), model_of(rng, 4, 1e-3)]


@pytest.mark.parametrize("order, pruned", [(1, 0), (2, 0), (3, 1e-2), (4, 0), (4, 1e-2), (5, 1e-3)])
@pytest.mark.parametrize("given", [False, True])
def test_histories_give_the_model_s_probabilities(order, pruned, given):
    """Also those of a given ARPA file, in which n-grams that nothing follows may have back-offs."""
    rng = np.random.default_rng(order)
    model = model_of(rng, order, pruned, sentences=30)
    for ngrams in model.orders if given else ():  # </s>, too, as CMU's lmtool writes
        ngrams.backoff_N[:] = rng.uniform(-1, 0, len(ngrams.backoff_N))
    histories = Histories.of(model)
    for words in itertools.product(NAMES, repeat=5):
        cost, here = 0.0, histories.start
        for word in [*(model.id_of[w] for w in words), histories.end]:
            more, here = advance(histories, here, word)
            cost += more
        assert cost == pytest.approx(-NATS * logprobs(model, [words])[0], abs=1e-5)  # float32


@pytest.mark.parametrize("order, seed", [(1, 0), (2, 1), (3, 2), (3, 3), (4, 4), (5, 5)])
def test_the_graph_charges_what_its_cheapest_way_of_backing_off_costs(order, seed, tmp_path):
    """With any numbers: often by backing off where there is an n-gram, or a longer history."""
    rng = np.random.default_rng(seed)
    model = model_of(rng, order, 1e-3, sentences=30)
    for n, ngrams in enumerate(model.orders, 1):
        ngrams.logp_N[:] = np.where(ngrams.logp_N > -9, rng.uniform(-1, 0, len(ngrams.key_N)), -99)
        if n < order:
            ngrams.backoff_N[:] = rng.uniform(-0.5, 0.2, len(ngrams.key_N))
    write_arpa(tmp_path / "lm.arpa", model)
    lexicon = Lexicon({name: ((name,),) for name in NAMES})
    lang = replace(toy_lang(arpa=tmp_path / "lm.arpa"), lexicon=lexicon)
    grammar, histories = grammar_fst(lang, 1.0), Histories.of(read_arpa(tmp_path / "lm.arpa"))
    said = list(itertools.product(NAMES, repeat=4))
    charged = [least_cost(grammar, [lang.word_ids[w] for w in words]) for words in said]
    found = [cost_in_graph(histories, [model.id_of[w] for w in words]) for words in said]
    assert found == pytest.approx(charged, abs=1e-4)
    dearer = -NATS * logprobs(model, said) - charged
    assert (dearer > 0.01).sum() > 20 or order == 1


def cost_in_graph(histories: Histories, ids) -> float:
    total, history_K, cost_K = 0.0, np.array([histories.start]), np.zeros(1)
    for word in [*ids, histories.end]:
        cost, history_K, cost_K = advance_in_graph(histories, history_K, cost_K, word)
        total += cost
    return total


def least_cost(grammar, words) -> float:
    """Return the cost of the cheapest path of a grammar that has these words, in nats."""
    cost_of = {grammar.start: 0.0}
    for word in [*words, None]:
        waiting = list(cost_of)
        while waiting:  # arcs without a word: backing off
            state = waiting.pop()
            for arc in kaldifst.ArcIterator(grammar, state):
                cost = cost_of[state] + arc.weight.value
                if arc.olabel == 0 and cost < cost_of.get(arc.nextstate, np.inf):
                    cost_of[arc.nextstate] = cost
                    waiting.append(arc.nextstate)
        if word is None:
            return min(cost + grammar.final(state).value for state, cost in cost_of.items())
        after: dict[int, float] = {}
        for state, so_far in cost_of.items():
            for arc in kaldifst.ArcIterator(grammar, state):
                if arc.olabel == word:
                    cost = so_far + arc.weight.value
                    after[arc.nextstate] = min(cost, after.get(arc.nextstate, np.inf))
        cost_of = after
    raise AssertionError


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("order", [2, 3])
def test_the_best_path_is_that_of_all_paths_at_any_weights(seed, order):
    rng, graph, scores_TS, lattice = searched(seed)
    old, new = model_of(rng, order, 1e-2), model_of(rng, 4, 1e-3)
    histories = Histories.of(old)
    paths = list(all_paths(graph, scores_TS))
    said = [[NAMES[k - 1] for k in words] for _, words, _ in paths]
    old_costs = [cost_in_graph(histories, [old.id_of[w] for w in words]) for words in said]
    fixed = np.array([cost for cost, _, _ in paths]) - 0.8 * np.array(old_costs)
    found = expanded(lattice, Model.of(old, NAMES), Model.of(new, NAMES), 0.8)
    for weight, penalty in WEIGHTS:
        costs = (
            fixed - weight * NATS * logprobs(new, said) + penalty * np.array(list(map(len, said)))
        )
        path = found.best(weight, penalty)
        assert path.cost == pytest.approx(costs.min(), abs=1e-5)
        among = {
            tuple(words) for cost, words in zip(costs, said, strict=True) if cost < path.cost + 1e-5
        }
        assert tuple(NAMES[k - 1] for k in path.words) in among


@pytest.mark.parametrize("seed", range(4))
def test_a_long_list_s_best_sentence_is_the_lattice_s(seed):
    """What lists gave before, if they hold all sentences of a lattice with millions of paths."""
    rng, _, _, lattice = searched(seed, frames=8, width=4.0, nodes=60, arcs=300)
    old, new = models(rng)
    listed = nbest(lattice, 10**5)
    assert listed.complete
    said = [[NAMES[k - 1] for k in s.words] for s in listed.sentences]
    fixed = np.array([s.cost for s in listed.sentences]) + NATS * logprobs(old, said)
    found = expanded(lattice, Model.of(old, NAMES), Model.of(new, NAMES), 1.0)
    for weight, penalty in WEIGHTS:
        costs = (
            fixed - weight * NATS * logprobs(new, said) + penalty * np.array(list(map(len, said)))
        )
        assert found.best(weight, penalty).cost <= costs.min() + 1e-6


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_model_at_its_weight_changes_nothing(seed):
    rng, _, _, lattice = searched(seed, frames=25, width=6.0, nodes=60, arcs=300)
    model = Model.of(model_of(rng, 2), NAMES)
    path, best = expanded(lattice, model, model, 0.7).best(0.7, 0.0), best_path(lattice)
    assert path.words == best.words
    assert path.cost == pytest.approx(best.cost, abs=1e-6)
    assert path.acoustic_cost == pytest.approx(best.acoustic_cost, abs=1e-6)


def test_sentence_ends_count_only_where_the_search_ended():
    rng = np.random.default_rng(0)
    graph, scores_TS = random_graph(rng, 60, 300), random_scores(rng, 10)
    graph.final_N[:] = np.inf
    lattice = Lattices(graph, STATES).decode(scores_TS, 1000.0, 10**6, 0.0)
    assert not lattice.final
    old, new = models(rng)
    path = expanded(lattice, Model.of(old, NAMES), Model.of(new, NAMES), 1.0).best(1.0, 0.0)
    said = [NAMES[k - 1] for k in path.words]
    cost = lattice.cost
    for sign, model in ((1, old), (-1, new)):
        logp_T, _ = model.word_logprobs([said])
        cost += sign * NATS * logp_T[:-1].sum()
    assert path.cost == pytest.approx(cost, abs=1e-5)


# --- limits -------------------------------------------------------------------------------------


def test_a_lattice_too_large_to_expand_is_narrowed_and_stays_exact():
    rng, _, _, lattice = searched(2, frames=25, width=6.0, nodes=60, arcs=300)
    old, new = (Model.of(each, NAMES) for each in models(rng))
    whole = expanded(lattice, old, new, 1.0)
    small = expanded(lattice, old, new, 1.0, max_arcs=len(whole.arrays.target_E) // 4)
    assert whole.lattice is lattice
    assert 0 < small.lattice.beam < lattice.beam
    assert len(small.arrays.target_E) <= len(whole.arrays.target_E) // 4
    same = expanded(narrowed(lattice, small.lattice.beam), old, new, 1.0)
    assert same.best(1.1, 0.2) == small.best(1.1, 0.2)
    assert small.best(1.1, 0.2).cost >= whole.best(1.1, 0.2).cost
    with pytest.raises(ValueError, match="best path of 25 frames has more than 5 arcs"):
        expanded(lattice, old, new, 1.0, max_arcs=5)


@pytest.mark.parametrize("beam", [0.0, 1.0, 3.0])
def test_a_narrowed_lattice_has_the_paths_within_its_beam(beam):
    _, _, _, lattice = searched(1)
    inside = [s for s in nbest(lattice, 10**5).sentences if s.cost <= lattice.cost + beam]
    narrow = narrowed(lattice, beam)
    found = nbest(narrow, 10**5).sentences
    assert [s.words for s in found] == [s.words for s in inside]
    assert [s.cost for s in found] == pytest.approx([s.cost for s in inside])
    assert narrow.beam == beam


def test_a_word_that_a_model_lacks_is_named():
    rng, _, _, lattice = searched(0)
    known = model_of(rng, 2)
    few = train(Text.of([["ONE", "TWO"]] * 3, ["ONE", "TWO"]), 2)
    lacking = NgramModel(few.words, few.orders)
    lacking.words[lacking.id_of["<unk>"]] = "<none>"
    lacking = NgramModel(lacking.words, lacking.orders)
    with pytest.raises(ValueError, match="larger language model knows neither 'THREE' nor <unk>"):
        expanded(lattice, Model.of(known, NAMES), Model.of(lacking, NAMES), 1.0)


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0.0, 6.0])
def test_a_packed_lattice_is_the_same_lattice(width):
    _, _, _, lattice = searched(3, frames=25, width=width, nodes=60, arcs=300)
    packed = pack(lattice)
    found = unpack(packed)
    for name in ("frame_N", "final_N", "arcs_A", "active_T"):
        ours, theirs = getattr(found, name), getattr(lattice, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert (found.cost, found.final, found.beam) == (lattice.cost, lattice.final, lattice.beam)
    assert pack(found) == packed


@pytest.mark.parametrize(
    ("field", "value"), [("target", 2**28), ("target", 0), ("ilabel", -1), ("graph", np.nan)]
)
def test_a_lattice_that_leads_astray_is_refused(field, value):
    _, _, _, lattice = searched(3, frames=25, width=6.0, nodes=60, arcs=300)
    lattice.arcs_A[field][5] = value
    with pytest.raises(ValueError, match="a lattice has arcs that lead beyond its nodes or back"):
        unpack(pack(lattice))


def test_lattices_are_packed_at_the_level_given(monkeypatch):
    _, _, _, lattice = searched(3, frames=25, width=6.0, nodes=60, arcs=300)
    packed = pack(lattice)
    monkeypatch.setattr("asr_train.search.pack.LEVEL", 0)
    assert len(pack(lattice)) > len(packed)
