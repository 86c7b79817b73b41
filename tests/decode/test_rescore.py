"""A larger language model replaces the small one in lattices; its weight is chosen on DEV."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from toy import logprobs

import asr_train.decode.rescore
from asr_train.decode.rescore import Rescored, Rescorer, RescoringChoice, tune_rescoring
from asr_train.lang.ngram import Text, train
from asr_train.score.normalise import PLAIN
from asr_train.search.lattice import LINK, Lattice

NAMES = ["A", "B"]
SENTENCES = {"A": 10.0, "A B": 10.5, "B": 11.0}  # the acoustic costs
OLD = train(Text.of([["A"]] * 3 + [["A", "B"], ["B"]], "AB"), 2)
NEW = train(Text.of([["A", "B"]] * 9 + [["A"], ["B"]], "AB"), 3)
NATS = np.log(10)


def lattice_of(acoustic=(10.0, 10.5, 11.0), weight=2.0):
    """Return a lattice of the sentences, whose graph cost is only that of the old model."""
    arcs = []
    for text, cost in zip(SENTENCES, acoustic, strict=True):
        graph = -weight * NATS * logprobs(OLD, [text.split()])[0]
        ids = [NAMES.index(word) + 1 for word in text.split()]
        middle = {"A": 1, "A B": 2, "B": 3}[text]
        arcs += [(0, middle, 1, ids[0], graph, cost), (middle, 4, 2, (*ids, 0)[1], 0.0, 0.0)]
    arcs_A = np.array(sorted(arcs), LINK)
    frame_N, final_N = np.array([0, 1, 1, 1, 2], np.int32), np.full(5, np.inf)
    final_N[-1] = 0.0
    active_T = np.ones(2, np.int32)
    return Lattice(frame_N, final_N, arcs_A, 0.0, True, 8.0, active_T)


RESCORER = Rescorer(NAMES, OLD, NEW, 2.0)


def searching(*lattices):
    def search(choices):
        for lattice in lattices:
            yield [found.words for found in RESCORER([lattice], choices)]

    return search


@pytest.mark.parametrize("lm_weight, penalty", [(0.0, 0.0), (1.0, 0.0), (2.0, 1.5), (0.3, -4.0)])
def test_the_cost_is_acoustics_plus_the_new_model_and_the_penalty(lm_weight, penalty):
    costs = {
        text: a - lm_weight * NATS * logprobs(NEW, [text.split()])[0] + penalty * len(text.split())
        for text, a in SENTENCES.items()
    }
    (found,) = RESCORER([lattice_of()], [RescoringChoice(lm_weight, penalty)])
    assert found.cost == pytest.approx(min(costs.values()), abs=1e-5)
    assert " ".join(found.words) == min(costs, key=costs.__getitem__)
    assert found.acoustic_cost == pytest.approx(SENTENCES[" ".join(found.words)])


def test_all_choices_at_once_are_each_by_itself():
    choices = [
        RescoringChoice(*pair) for pair in itertools.product([0.0, 0.7, 3.0], [-2.0, 0.0, 2.0])
    ]
    found = RESCORER([lattice_of()], choices)
    assert len({" ".join(each.words) for each in found}) > 1
    assert found == [RESCORER([lattice_of()], [choice])[0] for choice in choices]


def test_pieces_are_sentences_and_one_where_nothing_was_found_is_empty():
    choice = RescoringChoice(1.0, 0.0)
    (one,) = RESCORER([lattice_of()], [choice])
    (both,) = RESCORER([lattice_of(), None, lattice_of()], [choice])
    assert both == Rescored(one.words * 2, 2 * one.cost, 2 * one.acoustic_cost, [], 8.0, 0)
    (none,) = RESCORER([None], [choice])
    assert (none.words, none.cost) == ([], 0.0)


# --- tuning -------------------------------------------------------------------------------------

# "A B" is better than "A" from this weight on, and for penalties below this one at no weight
LEAST = 0.5 / (NATS * np.diff(logprobs(NEW, [["A"], ["A", "B"]]))[0])
PENALTY = -0.5


def test_the_weight_with_the_fewest_errors_is_chosen():
    weights = [LEAST * factor for factor in (0.2, 0.6, 1.5, 3.0)]
    search, asked = searching(lattice_of(), lattice_of()), []

    def counted(choices):
        asked.append(len(choices))
        return search(choices)

    best, tried, at_end = tune_rescoring(
        counted, ["A B", "a b"], weights, [-0.01, 0, 0.01], [False], PLAIN
    )
    errors = {(c.lm_weight, c.penalty): e.errors for c, e in tried}
    assert asked == [len(tried)] == [12]  # a search of nothing new would expand all lattices again
    assert errors[weights[0], 0] == 2
    assert errors[best.lm_weight, best.penalty] == 0
    assert best.lm_weight in weights[2:]  # the middle of those that tie, not the first
    assert at_end == []


def test_lists_of_rescoring_grow_where_their_end_is_the_best():
    best, tried, at_end = tune_rescoring(
        searching(lattice_of()), ["A B"], [LEAST / 100], [2 * PENALTY, 0.0], [False], PLAIN
    )
    errors = {c.penalty: e.errors for c, e in tried}
    assert errors == {0.0: 1, -1.0: 0, -2.0: 0, -3.0: 0}
    assert best.penalty == -2.0  # the middle of those that tie
    assert at_end == []


def test_a_list_of_weights_grows_by_its_factor():
    """In the second list, A B is best from a weight of four times as much on."""
    search = searching(lattice_of(), lattice_of((10.0, 12.0, 100.0)))
    weights = [3 * LEAST, 6 * LEAST]
    best, tried, at_end = tune_rescoring(search, ["A B", "A B"], weights, [0.0], [False], PLAIN)
    assert [e.errors for _, e in tried] == [1, 0, 0]
    assert sorted(c.lm_weight / LEAST for c, _ in tried) == pytest.approx([3, 6, 12], rel=1e-3)
    assert (best.lm_weight / LEAST, at_end) == (pytest.approx(6, rel=1e-3), [])


# --- minimum Bayes risk -------------------------------------------------------------------------


def test_words_of_least_expected_errors_have_confidences_of_the_posterior():
    """A, A B and B at costs of 0, 0.1 and 0.2 nats: without a B there are the fewest errors."""
    near = lattice_of((10.0, 10.1, 10.2))
    choices = [RescoringChoice(0.0, 0.0), RescoringChoice(0.0, 0.0, mbr=True)]
    share_P = np.exp([0.0, -0.1, -0.2]) / np.exp([0.0, -0.1, -0.2]).sum()
    for found in RESCORER([near], choices, confidences=True):
        assert found.words == ["A"]
        assert found.confidences == pytest.approx([share_P[0] + share_P[1]], abs=1e-5)
    choices = [dataclasses.replace(choice, penalty=-0.15) for choice in choices]  # A B is cheapest
    best, decided = RESCORER([near], choices)
    assert (best.words, best.confidences) == (["A", "B"], [])
    assert decided.cost == best.cost


def test_a_posterior_of_too_many_nodes_is_reported(monkeypatch):
    choices = [RescoringChoice(0.0, 0.0), RescoringChoice(0.0, 0.0, mbr=True)]
    assert [found.cut for found in RESCORER([lattice_of()], choices, True)] == [0, 0]
    few = functools.partial(asr_train.decode.rescore.posterior, max_nodes=2)
    monkeypatch.setattr(asr_train.decode.rescore, "posterior", few)
    assert [found.cut for found in RESCORER([lattice_of()] * 2, choices)] == [0, 2]
    assert [found.cut for found in RESCORER([lattice_of()], choices, True)] == [1, 1]


@pytest.mark.parametrize("said, errors", [("A B", (1, 0)), ("A", (0, 1))])
def test_least_expected_errors_are_chosen_where_dev_has_fewer_errors(said, errors):
    def search(choices):
        yield [["A", "B"] if choice.mbr else ["A"] for choice in choices]

    best, tried, _ = tune_rescoring(search, [said], [1.0], [0.0], [True, False], PLAIN)
    assert tuple(e.errors for _, e in tried) == errors
    assert best.mbr == (errors[1] < errors[0])
    best, _, _ = tune_rescoring(search, ["C"], [1.0], [0.0], [False, True], PLAIN)
    assert not best.mbr
