"""The choice with the fewest errors on DEV is kept; ties are broken deterministically."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import toy

import asr_train.decode.tune
from asr_train.data.features import Utterance
from asr_train.decode.lists import GROWN, extend, least
from asr_train.decode.scorer import Scorer
from asr_train.decode.tune import tune, walked
from asr_train.decode.words import Choice
from asr_train.schema import DecodeSettings, NormaliserKind, NormaliserSettings
from asr_train.score.edits import align_words
from asr_train.score.normalise import load_normaliser
from asr_train.score.words import WordErrors
from asr_train.search.arrays import to_vector
from asr_train.search.beam import beam_search
from asr_train.search.graph import decoding_graph, with_penalty

WORDS = ("A", "AB", "ABC")  # no two sequences of them are homophones


@pytest.fixture(scope="module")
def lang():
    return toy.toy_lang(words=WORDS)


def settings(**changes) -> DecodeSettings:
    values = {
        "beam": 30.0,
        "max_active": 5000,
        "minimise": True,
        "acoustic_scales": [0.1, 0.5, 2.0],
        "insertion_penalties": [-3.0, 0.0, 3.0],
        "lm_weights": [0.5, 2.0],
        "nbest": 0,
        "lattice_beam": 8.0,
        "rescore_lm_weights": [1.0],
        "rescore_penalties": [0.0],
    }
    return DecodeSettings(**(values | changes))


def dev(lang, count, margin) -> tuple[Scorer, list[Utterance]]:
    """Return utterances whose states exceed noise of deviation 1 by `margin` nats."""
    rng = np.random.default_rng(7)
    made, scores = [], {}
    for n in range(count):
        said = rng.choice(WORDS, rng.integers(1, 5)).tolist()
        path_T = toy.path_of(lang, said, rng)
        scores[f"u{n}"] = toy.scores_of(path_T, lang.states.num_states, rng, margin)
        made.append(Utterance(f"u{n}", "s", " ".join(said), 0.01 * len(path_T), len(path_T)))
    return toy.scorer_of(lang.states, np.full(lang.states.num_states, 0.5), scores), made


@pytest.fixture(scope="module")
def noisy(lang):
    """A choice among 18 or more on DEV data with errors, with all intermediate results."""
    scorer, made = dev(lang, 14, margin=1.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBS", "1")
        found = tune(scorer, lang, made, settings())
        return scorer, made, found


def graph_of(lang, scorer, choice):
    plain = decoding_graph(
        lang,
        scorer.states,
        scorer.loop_S,
        choice.lm_weight,
        self_loop_scale=settings().self_loop_scale,
    )
    return with_penalty(plain, choice.insertion_penalty)


def errors_of(lang, scorer, made, choice) -> int:
    """Count without `tune`: one choice, utterance by utterance."""
    graph = graph_of(lang, scorer, choice)
    fst = to_vector(graph)
    errors = 0
    for u in made:
        scores_TS = scorer.score(u) * np.float32(choice.acoustic_scale)
        path = beam_search(fst, scores_TS, 60.0, 5000)
        found = [lang.lexicon.words[i - 1] for i in path.words]
        errors += sum(a != b for a, b in align_words(u.words.split(), found))
    return errors


def test_words_are_normalised_as_in_scoring(noisy, lang):
    scorer, made, tuned = noisy
    hesitant = [replace(u, words=f"uh {u.words.lower()}, umm [noise]") for u in made]
    english = load_normaliser(NormaliserSettings(kind=NormaliserKind.english))
    again = tune(scorer, lang, hesitant, settings(), english)
    assert again.best == tuned.best
    assert [(c, e.errors) for c, e in again.tried] == [(c, e.errors) for c, e in tuned.tried]
    plainly = tune(scorer, lang, hesitant, settings()).tried
    assert min(e.errors for _, e in plainly) > min(e.errors for _, e in tuned.tried)


LISTS = ("acoustic_scale", "insertion_penalty", "lm_weight")
KEYS = ("acoustic_scales", "insertion_penalties", "lm_weights")


def test_only_choices_of_the_lists_are_tried_and_none_twice(noisy):
    """The lists are those after extension."""
    *_, tuned = noisy
    own = settings()
    lists = [tuned.grown.get(key, getattr(own, key)) for key in KEYS]
    found = [tuple(getattr(c, name) for name in LISTS) for c, _ in tuned.tried]
    assert set(found) <= set(itertools.product(*lists))
    assert len(set(found)) == len(found) < len(list(itertools.product(*lists)))


def test_no_value_of_any_list_does_better_than_the_best_choice(noisy):
    """All of them were tried with the other values of the best choice."""
    *_, tuned = noisy
    counts = {choice: errors.errors for choice, errors in tuned.tried}
    own = settings()
    for name, key in zip(LISTS, KEYS, strict=True):
        for value in getattr(own, key):
            choice = replace(tuned.best, **{name: value})
            assert counts.get(choice, np.inf) >= counts[tuned.best]


@pytest.fixture
def counted():
    """The best choice with given errors, and every choice that was decoded."""

    def run(errors_of_choice, **lists):
        decoded = []

        def errors(choices):
            decoded.extend(choices)
            return [WordErrors(correct=1000, deletions=errors_of_choice(c)) for c in choices]

        return walked(settings(**lists), errors)[0], decoded

    return run


@pytest.mark.parametrize("seed", range(8))
def test_the_best_of_all_combinations_is_found_where_errors_add_up_over_the_lists(
    counted, monkeypatch, seed
):
    """For any order of the values, in one round and a second one without change."""
    rng = np.random.default_rng(seed)
    lists = {
        "acoustic_scales": rng.permutation([0.05, 0.1, 0.2, 0.4, 0.8]).tolist(),
        "insertion_penalties": rng.permutation([-4.0, 0.0, 2.0, 4.0]).tolist(),
        "lm_weights": rng.permutation([0.5, 1.0, 2.0]).tolist(),
    }
    part = {v: dict(zip(v, rng.permutation(50), strict=False)) for v in map(tuple, lists.values())}

    def errors(choice):
        values = (choice.acoustic_scale, choice.insertion_penalty, choice.lm_weight)
        return int(sum(p[v] for p, v in zip(part.values(), values, strict=True)))

    monkeypatch.setattr(asr_train.decode.tune, "GROWN", 0)
    best, decoded = counted(errors, **lists)
    every = [Choice(*values) for values in itertools.product(*lists.values())]
    assert errors(best) == min(map(errors, every))
    assert len(set(decoded)) == len(decoded) <= 1 + 2 * (4 + 3 + 2) < len(every)


@pytest.mark.parametrize("best_scale", [0.1, 0.5, 0.9])
def test_a_long_list_is_walked_until_two_in_a_row_do_no_better(counted, best_scale):
    scales = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    bump = {
        0.3: 35,
        0.7: 35,
    }  # worse than both neighbours, which a search of patience 1 would not pass

    def errors(choice):
        return round(100 * abs(choice.acoustic_scale - best_scale)) + bump.get(
            choice.acoustic_scale, 0
        )

    best, decoded = counted(
        errors, acoustic_scales=scales, insertion_penalties=[0.0], lm_weights=[1.0]
    )
    assert best == Choice(best_scale, 0.0, 1.0)
    assert len(set(decoded)) == len(decoded)
    if best_scale == 0.5:
        assert sorted(choice.acoustic_scale for choice in decoded) == [0.3, 0.4, 0.5, 0.6, 0.7]
    else:
        assert len(decoded) == 8  # the list was extended by one, which is no better


def test_a_list_is_tried_again_where_another_ones_choice_changed_it(counted):
    """The best scale for the first penalty is not the best one for the best penalty."""

    def errors(choice):
        wanted = 4.0 if choice.insertion_penalty == 5 else 1.0
        return int(
            10 * abs(choice.acoustic_scale - wanted) + 20 * abs(choice.insertion_penalty - 5)
        )

    lists = {"acoustic_scales": [1.0, 2.0, 4.0], "insertion_penalties": [-5.0, 0.0, 5.0]}
    best, decoded = counted(errors, **lists, lm_weights=[1.0])
    assert best == Choice(4.0, 5.0, 1.0)
    scales = [c.acoustic_scale for c in decoded]
    assert scales.index(1.0) < len(scales) - 1 - scales[::-1].index(4.0)  # 4 again, after 1
    assert len(set(decoded)) == len(decoded)


def test_errors_are_those_of_decoding_with_that_choice(lang, noisy):
    scorer, made, tuned = noisy
    for choice, errors in tuned.tried[::4]:
        assert errors.errors == errors_of(lang, scorer, made, choice)
        assert errors.correct + errors.substitutions + errors.deletions == sum(
            len(u.words.split()) for u in made
        )


def test_the_best_choice_has_the_fewest_errors(noisy):
    *_, tuned = noisy
    counts = {choice: errors.errors for choice, errors in tuned.tried}
    assert counts[tuned.best] == min(counts.values())
    assert len(set(counts.values())) > 2  # else there was no choice to make


def test_the_graph_is_that_of_the_best_choice(lang, noisy):
    scorer, _, tuned = noisy
    graph, wanted = tuned.graph, graph_of(lang, scorer, tuned.best)
    assert graph.start == wanted.start
    for name in ("final_N", "source_A", "arcs_A"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(wanted, name))


@pytest.mark.parametrize("jobs", ["2", "3"])
def test_the_choice_does_not_depend_on_the_number_of_processes(lang, noisy, monkeypatch, jobs):
    scorer, made, tuned = noisy
    monkeypatch.setenv("JOBS", jobs)
    again = tune(scorer, lang, made, settings())
    assert (again.best, again.tried) == (tuned.best, tuned.tried)


@pytest.mark.parametrize(
    "counts, place",
    [
        ([5], 0),
        ([5, 3, 4], 1),
        ([3, 3, 3, 3, 3], 2),
        ([9, 3, 3, 3, 9, 9], 2),
        ([3, 9, 3, 3, 3], 3),  # the longest run
        ([None, 4, 4, 4, None], 2),
        ([None, 4, 7, None], 1),
        ([6, 2, 2, 6], 2),
    ],
)
def test_of_values_that_tie_the_middle_of_the_longest_run_is_taken(counts, place):
    assert least(counts) == place


def test_a_tie_over_a_whole_list_keeps_its_middle(lang):
    """Scores are clear: no choice makes an error, so no list is extended."""
    scorer, made = dev(lang, 3, margin=20.0)
    lists = {"acoustic_scales": [0.3, 0.5, 1.0], "insertion_penalties": [-1.0, 0.0, 1.0]}
    found = tune(scorer, lang, made, settings(**lists, lm_weights=[0.5, 0.8, 1.5]))
    assert {errors.errors for _, errors in found.tried} == {0}
    assert found.best == Choice(0.5, 0.0, 0.8)
    assert (found.grown, found.at_end) == ({}, [])


@pytest.mark.parametrize(
    "values, at, geometric, wanted",
    [
        ([0.1, 0.2, 0.4], 0, True, [0.05, 0.1, 0.2, 0.4]),
        ([0.1, 0.2, 0.4], 2, True, [0.1, 0.2, 0.4, 0.8]),
        ([-2.0, -1.0, 0.0], 0, False, [-3.0, -2.0, -1.0, 0.0]),
        ([-2.0, 0.0, 0.5], 2, False, [-2.0, 0.0, 0.5, 1.0]),
    ],
)
def test_a_list_grows_by_its_last_step(values, at, geometric, wanted):
    extend(values, at, geometric)
    assert values == wanted


@pytest.mark.parametrize("wanted", [0.0125, 1.6])
def test_a_list_whose_end_is_the_best_grows_until_it_is_not(counted, wanted):
    """By a factor of two here; three values on either side of those given."""
    distance = lambda c: abs(np.log2(c.acoustic_scale / wanted))  # noqa: E731
    best, decoded = counted(
        lambda c: round(100 * distance(c)),
        acoustic_scales=[0.1, 0.2],
        insertion_penalties=[0.0],
        lm_weights=[1.0],
    )
    assert best == Choice(wanted, 0.0, 1.0)
    beyond, unneeded = (wanted / 2, 0.4) if wanted < 0.1 else (wanted * 2, 0.05)
    scales = [c.acoustic_scale for c in decoded]
    assert beyond in scales
    assert unneeded not in scales  # the start, which may be an end, was not the best of the two


def test_a_list_that_may_not_grow_further_says_that_its_end_is_the_best():
    def falling(choices):
        return [WordErrors(deletions=1000 - round(10 * c.insertion_penalty)) for c in choices]

    own = settings(acoustic_scales=[1.0], insertion_penalties=[0.0, 1.0], lm_weights=[1.0])
    best, _, grown, at_end = walked(own, falling)
    assert best.insertion_penalty == 1.0 + GROWN
    assert at_end == ["insertion_penalties"]
    assert grown == {"insertion_penalties": [float(n) for n in range(GROWN + 2)]}
