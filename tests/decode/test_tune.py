"""The choice with the fewest errors on DEV is kept, whoever counts, and ties are broken alike."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import toy

import asr_train.decode.tune
from asr_train.data.features import Utterance
from asr_train.decode.posteriors import Scorer
from asr_train.decode.tune import at_an_edge, tune
from asr_train.decode.words import Choice
from asr_train.schema import DecodeSettings, NormaliserKind, NormaliserSettings
from asr_train.score.edits import align_words
from asr_train.score.normalise import load_normaliser
from asr_train.score.words import WordErrors
from asr_train.search.beam import Beam
from asr_train.search.graph import decoding_graph, to_vector, top_label, with_penalty

WORDS = ("A", "AB", "ABC")  # no two rows of them sound alike


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
    """Utterances whose states stand out by `margin` nats from noise of deviation 1."""
    rng = np.random.default_rng(7)
    made, scores = [], {}
    for n in range(count):
        said = rng.choice(WORDS, rng.integers(1, 5)).tolist()
        path_T = toy.path_of(lang, said, rng)
        scores[f"u{n}"] = toy.scores_of(path_T, lang.states.num_states, rng, margin)
        made.append(Utterance(f"u{n}", "s", " ".join(said), 0.01 * len(path_T), len(path_T), {}))
    return toy.scorer_of(lang.states, np.full(lang.states.num_states, 0.5), scores), made


@pytest.fixture(scope="module")
def noisy(lang):
    """A choice among 18 on DEV data with errors, and all that led to it."""
    scorer, made = dev(lang, 14, margin=1.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBS", "1")
        return scorer, made, tune(scorer, lang, made, settings())


def graph_of(lang, scorer, choice):
    plain = decoding_graph(lang, scorer.states, scorer.loop_S, choice.lm_weight)
    return with_penalty(plain, choice.insertion_penalty)


def errors_of(lang, scorer, made, choice) -> int:
    """Counted without `tune`: one choice, utterance by utterance, its pairs counted."""
    graph = graph_of(lang, scorer, choice)
    beam = Beam(to_vector(graph), scorer.num_states, 60.0, 5000, top_label(graph))
    errors = 0
    for u in made:
        path = beam.best_path(scorer.score(u) * np.float32(choice.acoustic_scale))
        found = [lang.lexicon.words[i - 1] for i in path.words]
        errors += sum(a != b for a, b in align_words(u.words.split(), found))
    return errors


def test_words_are_normalised_as_in_scoring(noisy, lang):
    scorer, made, (best, _, tried) = noisy
    hesitant = [replace(u, words=f"uh {u.words.lower()}, um-hum [noise]") for u in made]
    english = load_normaliser(NormaliserSettings(kind=NormaliserKind.english))
    again, _, also = tune(scorer, lang, hesitant, settings(), english)
    assert again == best
    assert [(c, e.errors) for c, e in also] == [(c, e.errors) for c, e in tried]
    plainly = tune(scorer, lang, hesitant, settings())[2]
    assert min(e.errors for _, e in plainly) > min(e.errors for _, e in tried)


LISTS = ("acoustic_scale", "insertion_penalty", "lm_weight")


def test_only_choices_of_the_lists_are_tried_and_none_twice(noisy):
    *_, (_, _, tried) = noisy
    own = settings()
    lists = own.acoustic_scales, own.insertion_penalties, own.lm_weights
    found = [tuple(getattr(c, name) for name in LISTS) for c, _ in tried]
    assert set(found) <= set(itertools.product(*lists))
    assert len(set(found)) == len(found) < len(list(itertools.product(*lists)))


def test_no_value_of_any_list_does_better_than_the_best_choice(noisy):
    """All of them were tried with the best choice's other values: there it ends."""
    *_, (best, _, tried) = noisy
    counts = {choice: errors.errors for choice, errors in tried}
    own = settings()
    for name, values in zip(
        LISTS, (own.acoustic_scales, own.insertion_penalties, own.lm_weights), strict=True
    ):
        for value in values:
            assert counts[replace(best, **{name: value})] >= counts[best]


@pytest.fixture
def counted(lang, monkeypatch):
    """`tune` with errors that are made up, and every choice that it had decoded."""

    def run(errors_of_choice, **lists):
        decoded = []

        def errors(scorer, lang, utterances, settings, normaliser, choices, graph_of):
            decoded.extend(choices)
            return [(c, WordErrors(correct=1000, deletions=errors_of_choice(c))) for c in choices]

        monkeypatch.setattr(asr_train.decode.tune, "_errors", errors)
        scorer, made = dev(lang, 1, margin=20.0)
        best, *_ = tune(scorer, lang, made, settings(**lists))
        return best, decoded

    return run


@pytest.mark.parametrize("seed", range(8))
def test_the_best_of_all_combinations_is_found_where_errors_add_up_over_the_lists(counted, seed):
    """However the values are ordered, in one round and another that sees it stay."""
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
    }  # worse than both neighbours, which a walk of patience 1 would not pass

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
        assert len(decoded) == 7


def test_a_list_is_tried_again_where_another_ones_choice_changed_it(counted):
    """The scale that suits the first penalty is not the one that suits the best penalty."""

    def errors(choice):
        wanted = {0.0: 1.0, 5.0: 4.0}[choice.insertion_penalty]
        return int(10 * abs(choice.acoustic_scale - wanted)) + (choice.insertion_penalty == 0) * 40

    lists = {"acoustic_scales": [1.0, 2.0, 4.0], "insertion_penalties": [0.0, 5.0]}
    best, decoded = counted(errors, **lists, lm_weights=[1.0])
    assert best == Choice(4.0, 5.0, 1.0)
    assert len(set(decoded)) == len(decoded)


def test_errors_are_those_of_decoding_with_that_choice(lang, noisy):
    scorer, made, (_, _, tried) = noisy
    for choice, errors in tried[::4]:
        assert errors.errors == errors_of(lang, scorer, made, choice)
        assert errors.correct + errors.substitutions + errors.deletions == sum(
            len(u.words.split()) for u in made
        )


def test_the_best_choice_has_the_fewest_errors(noisy):
    *_, (best, _, tried) = noisy
    counts = {choice: errors.errors for choice, errors in tried}
    assert counts[best] == min(counts.values())
    assert len(set(counts.values())) > 2  # else there was nothing to choose


def test_the_graph_is_that_of_the_best_choice(lang, noisy):
    scorer, _, (best, graph, _) = noisy
    wanted = graph_of(lang, scorer, best)
    assert graph.start == wanted.start
    for name in ("final_N", "source_A", "arcs_A"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(wanted, name))


@pytest.mark.parametrize("jobs", ["2", "3"])
def test_the_choice_does_not_depend_on_the_number_of_processes(lang, noisy, monkeypatch, jobs):
    scorer, made, (best, _, tried) = noisy
    monkeypatch.setenv("JOBS", jobs)
    again, _, also = tune(scorer, lang, made, settings())
    assert (again, also) == (best, tried)


@pytest.mark.parametrize(
    "changes, best",
    [
        ({}, Choice(0.5, 0.0, 0.8)),
        ({"insertion_penalties": [1.0, -1.0, 2.0]}, Choice(0.5, -1.0, 0.8)),
        ({"insertion_penalties": [2.0, 1.0]}, Choice(0.5, 1.0, 0.8)),
        ({"acoustic_scales": [2.0, 1.0]}, Choice(1.0, 0.0, 0.8)),
        ({"lm_weights": [1.5, 1.1]}, Choice(0.5, 0.0, 1.1)),
    ],
)
def test_among_equals_the_mildest_choice_is_kept(lang, changes, best):
    """The smallest penalty, then the weight nearest to 1, then the smallest scale."""
    scorer, made = dev(lang, 3, margin=20.0)
    clear = {
        "acoustic_scales": [0.5, 1.0],
        "insertion_penalties": [-1.0, 0.0, 1.0],
        "lm_weights": [0.5, 0.8, 1.5],
    }
    found, _, tried = tune(scorer, lang, made, settings(**(clear | changes)))
    assert {errors.errors for _, errors in tried} == {0}
    assert found == best


@pytest.mark.parametrize(
    "best, names",
    [
        (Choice(0.5, 0.0, 1.0), []),
        (Choice(0.1, 0.0, 1.0), ["acoustic_scales"]),
        (Choice(2.0, -3.0, 1.0), ["acoustic_scales", "insertion_penalties"]),
        (Choice(0.5, 3.0, 1.0), ["insertion_penalties"]),
    ],
)
def test_a_choice_at_an_edge_of_its_list_is_named(best, names):
    """A list of one value has no edges."""
    assert at_an_edge(best, settings(lm_weights=[1.0])) == names
