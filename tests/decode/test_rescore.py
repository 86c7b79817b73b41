"""A larger language model replaces the small one in n-best lists; its weight is chosen on DEV."""

import numpy as np
import pytest

from asr_train.decode.rescore import Listed, Reweighed, tune_rescoring
from asr_train.score.normalise import PLAIN

OLD = {"A": -1.0, "A B": -3.0, "B": -2.0}
NEW = {"A": -4.0, "A B": -1.0, "B": -2.5}


def logprobs(table):
    return lambda sentences: np.array([table[" ".join(words)] for words in sentences])


def listed(utt_id="u", weight=2.0, acoustic=(10.0, 10.5, 11.0)):
    """Return sentences whose graph cost is only that of the old model."""
    sentences = [
        [text.split(), -weight * OLD[text], cost] for text, cost in zip(OLD, acoustic, strict=True)
    ]
    row = {"id": utt_id, "sentences": sentences}
    return Listed.of(row, logprobs(OLD), logprobs(NEW), weight)


@pytest.mark.parametrize("lm_weight, penalty", [(0.0, 0.0), (1.0, 0.0), (2.0, 1.5), (0.3, -4.0)])
def test_the_cost_is_acoustics_plus_the_new_model_and_the_penalty(lm_weight, penalty):
    costs = {
        text: a - lm_weight * NEW[text] + penalty * len(text.split())
        for text, a in zip(OLD, (10.0, 10.5, 11.0), strict=True)
    }
    words, cost = listed().best(Reweighed(lm_weight, penalty))
    assert cost == pytest.approx(min(costs.values()))
    assert " ".join(words) == min(costs, key=costs.__getitem__)


def test_the_same_model_at_its_weight_changes_nothing():
    row = {"id": "u", "sentences": [[["A"], 5.0, 1.0], [["B"], 4.5, 2.0]]}
    same = Listed.of(row, logprobs(OLD), logprobs(OLD), 0.7)
    assert same.best(Reweighed(0.7, 0.0)) == (["A"], pytest.approx(6.0))


def test_an_empty_list_gives_no_words():
    assert Listed.of({"id": "u", "sentences": []}, logprobs(OLD), logprobs(NEW), 1.0).best(
        Reweighed(1.0, 0.0)
    ) == ([], 0.0)


def test_the_weight_with_the_fewest_errors_is_chosen():
    """A B is best from a weight of 1/6 on: 11 + w against A's 10 + 4 w and B's 10.5 + 2.5 w."""
    lists, said = [listed("u"), listed("v")], {"u": "A B", "v": "a b"}
    best, tried, at_end = tune_rescoring(lists, said, [0.1, 0.2, 0.5, 1.0], [-0.1, 0.0, 0.1], PLAIN)
    errors = {(c.lm_weight, c.penalty): e.errors for c, e in tried}
    assert errors[0.1, 0.0] == 2
    assert errors[best.lm_weight, best.penalty] == 0
    assert best.lm_weight in (0.5, 1.0)  # the middle of those that tie, not the first
    assert at_end == []


def test_lists_of_rescoring_grow_where_their_end_is_the_best():
    """A B (11 + 2 p) is better than A (10 + p) for a penalty p below about -1."""
    best, tried, at_end = tune_rescoring([listed("u")], {"u": "A B"}, [0.01], [-1.0, 0.0], PLAIN)
    errors = {c.penalty: e.errors for c, e in tried}
    assert errors == {0.0: 1, -1.0: 0, -2.0: 0, -3.0: 0}
    assert best.penalty == -2.0  # the middle of those that tie
    assert at_end == []


def test_a_list_of_weights_grows_by_its_factor():
    """In the second list, A B is best from a weight of 1.5 on."""
    lists = [listed("u"), listed("v", acoustic=(10.0, 14.5, 100.0))]
    said = {"u": "A B", "v": "A B"}
    best, tried, at_end = tune_rescoring(lists, said, [1.0, 2.0], [0.0], PLAIN)
    assert {c.lm_weight: e.errors for c, e in tried} == {1.0: 1, 2.0: 0, 4.0: 0}
    assert (best.lm_weight, at_end) == (2.0, [])


def test_a_sentence_that_the_old_model_forbids_names_it():
    forbid = logprobs({**OLD, "A B": -np.inf})
    row = {"id": "u7", "sentences": [[["A", "B"], 1.0, 1.0]]}
    with pytest.raises(ValueError, match=r"u7: .*'A B'.* different runs"):
        Listed.of(row, forbid, logprobs(NEW), 1.0)
