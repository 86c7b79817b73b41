"""Laws of word errors, their sums, intervals and comparisons."""

import random
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_train.score.edits import Marked
from asr_train.score.words import (
    MIN_PAIRED_SPEAKERS,
    Scored,
    WordErrors,
    by_speaker,
    compare,
    confusions,
    crossed,
    grouped,
    interval,
    normalise,
    reduction,
    total,
    units,
    wer_line,
)

DRAWS = 2000
counts = st.integers(0, 50)
word_errors = st.builds(WordErrors, counts, counts, counts, counts)
lists_of_errors = st.lists(word_errors, min_size=1, max_size=12)


def speakers(count, rate, seed=0, words=60):
    """Draw speakers whose words err independently at `rate`, some speakers at twice the rate."""
    draw = random.Random(seed)
    made = {}
    for i in range(count):
        own = rate * draw.choice([0.5, 1.0, 2.0])
        wrong = sum(draw.random() < own for _ in range(words))
        made[f"s{i:03d}"] = WordErrors(words - wrong, wrong, 0, 0)
    return made


# --- counts -------------------------------------------------------------------------------------


@given(lists_of_errors)
def test_errors_of_lists_add_up(errors):
    whole = total(errors)
    assert whole.errors == sum(e.errors for e in errors)
    assert whole.words == sum(e.words for e in errors)


@given(lists_of_errors, st.data())
def test_the_order_of_adding_does_not_matter(errors, data):
    assert total(data.draw(st.permutations(errors))) == total(errors)


@given(st.lists(st.tuples(st.sampled_from("abc"), word_errors), min_size=1, max_size=12))
def test_speakers_and_utterances_total_alike(rows):
    scored = [Scored(f"u{i}", speaker, errors) for i, (speaker, errors) in enumerate(rows)]
    whole = total(errors for _, errors in rows)
    assert total(by_speaker(scored).values()) == whole
    assert total(units(scored, enough=99)[1].values()) == whole


def test_equal_words_have_rate_zero_and_an_empty_hypothesis_rate_one():
    said = ["ONE", "TWO"]
    assert WordErrors.between(said, said).rate == 0
    assert WordErrors.between(said, []).rate == 1


def test_a_rate_may_exceed_one():
    assert WordErrors.between(["ONE"], ["TWO", "TWO", "TWO"]).rate == 3


def test_a_rate_of_no_words_is_refused():
    with pytest.raises(ValueError, match="no reference words"):
        _ = WordErrors(insertions=3).rate


def test_counts_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        WordErrors().correct = 1  # type: ignore[misc]


def test_the_line_is_kaldis():
    line = "%WER 3.27 [ 49 / 1500, 8 ins, 6 del, 35 sub ] exp/gtc"
    assert wer_line(WordErrors(1459, 35, 6, 8), "exp/gtc") == line


@given(st.text())
def test_normalising_twice_is_normalising_once(text):
    once = normalise(text)
    assert normalise(" ".join(once)) == once


def test_case_and_white_space_do_not_count():
    assert normalise(" one\ttwo\n  Three ") == ["ONE", "TWO", "THREE"]


def test_confusions_are_counted_and_ranked():
    pairs = [(["A", "B"], ["A", "C"]), (["B"], ["C"]), (["A"], []), ([], ["D"])]
    assert confusions(pairs, 9) == [("B", "C", 2), (None, "D", 1), ("A", None, 1)]
    assert confusions(pairs, 1) == [("B", "C", 2)]
    assert confusions(pairs, 9, "D") == [("A", None, 1)]
    assert confusions(pairs, 9, "IS") == [("B", "C", 2), (None, "D", 1)]


def test_optional_words_left_out_are_no_confusion():
    assert confusions([([Marked("(UH)"), "A"], ["A"])], 9) == []


# --- intervals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 20, 80])
@pytest.mark.parametrize("seed", range(4))
def test_the_interval_contains_the_rate(count, seed):
    errors = list(speakers(count, 0.1, seed).values())
    low, high = interval(errors, DRAWS, seed)
    assert low <= total(errors).rate <= high
    assert low < high


@pytest.mark.parametrize("seed", range(4))
def test_sixteen_times_the_speakers_quarter_the_interval(seed):
    few = list(speakers(12, 0.1, seed).values())
    low, high = interval(few, DRAWS, seed)
    low_16, high_16 = interval(few * 16, DRAWS, seed)
    expected = (11 / 191) ** 0.5 * 1.972 / 2.201  # of Student's t with 191 and 11 degrees
    assert (high_16 - low_16) / (high - low) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("count, least, most", [(5, 870, 970), (10, 900, 970)])
def test_intervals_contain_the_rate_though_speakers_are_few(count, least, most):
    """Of 1,000 samples of speakers whose rates have 0.6 of their mean as standard deviation; plain
    percentiles contain it in 83 and 88 of 100."""
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(1000):
        wrong = rng.poisson(200 * rng.gamma(1 / 0.36, 0.1 * 0.36, count))
        low, high = interval([WordErrors(200, 0, 0, int(n)) for n in wrong], DRAWS, 1)
        inside += low <= 0.1 <= high
    assert least <= inside <= most


@pytest.mark.parametrize("count", [5, 12, 60])
@pytest.mark.parametrize("seed", range(6))
def test_p_is_below_a_twentieth_where_the_interval_is_on_one_side_of_zero(count, seed):
    b = speakers(count, 0.2, seed=seed + 100)
    found = compare(speakers(count, 0.12, seed), b, DRAWS, seed)
    assert (found.p < 0.05) == (found.ci95[0] > 0 or found.ci95[1] < 0)


def test_the_interval_is_the_normal_one_where_units_are_many():
    # 1000 units of one word each: the standard error is sqrt(p (1 - p) / n).
    errors = [WordErrors(substitutions=1)] * 100 + [WordErrors(correct=1)] * 900
    low, high = interval(errors, 5000, 1)
    half = 1.96 * (0.1 * 0.9 / 1000) ** 0.5
    assert (low, high) == pytest.approx((0.1 - half, 0.1 + half), abs=0.05 * half)


def test_a_seed_gives_the_same_interval_and_another_seed_another():
    errors = list(speakers(30, 0.1).values())
    assert interval(errors, DRAWS, 1) == interval(errors, DRAWS, 1)
    assert interval(errors, DRAWS, 1) != interval(errors, DRAWS, 2)


def test_the_interval_does_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    errors = list(speakers(30, 0.1).values())
    whole = interval(errors, DRAWS, 1)
    monkeypatch.setattr("asr_train.score.words._DRAWN_NUMBERS", 1000)
    assert interval(errors, DRAWS, 1) == whole


def test_one_unit_has_no_interval():
    with pytest.raises(ValueError, match="1 unit to draw from, but an interval needs 2"):
        interval([WordErrors(correct=3)], DRAWS, 1)


@pytest.mark.parametrize("count, over", [(4, "utterances"), (5, "speakers")])
def test_speakers_are_drawn_from_five_up(count, over):
    scored = [Scored(f"u{i}", f"s{i % count}", WordErrors(correct=1)) for i in range(20)]
    name, drawn = units(scored)
    assert name == over
    assert len(drawn) == (count if over == "speakers" else 20)


@pytest.mark.parametrize("count, over", [(9, "utterances"), (10, "speakers")])
def test_runs_are_compared_over_speakers_from_ten_up(count, over):
    scored = [Scored(f"u{i}", f"s{i % count}", WordErrors(correct=1)) for i in range(20)]
    assert units(scored, MIN_PAIRED_SPEAKERS)[0] == over


def test_speakers_that_are_alike_are_one_unit_and_any_other_is_its_own():
    one = WordErrors(correct=2, deletions=1)
    named = {"m7-en": one, "m7-en-us": one, "m70-en": one, "mary": one, "anna": one}
    found = grouped(named, "(.+?)-en.*")
    assert found == {"m7": one + one, "m70": one, "mary": one, "anna": one}
    assert grouped({"m7": one, "m7-en": one}, "(.+?)-en") == {"m7, alone": one, "m7": one}


def test_the_interval_is_wider_over_groups_whose_speakers_agree():
    of_groups = speakers(10, rate=0.1)
    named = {f"{name}-{i}": errors for name, errors in of_groups.items() for i in range(6)}
    found = grouped(named, "(.*)-.")
    (low, high), (lowest, highest) = (
        interval(list(drawn.values()), DRAWS, 1) for drawn in (named, found)
    )
    assert highest - lowest > 2 * (high - low)


# --- comparisons --------------------------------------------------------------------------------


def test_a_run_does_not_beat_itself():
    run = speakers(20, 0.1)
    found = compare(run, run, DRAWS, 1)
    assert (found.difference, found.ci95, found.better, found.p) == (0, (0, 0), 0.5, 1)


def test_fewer_errors_of_every_speaker_are_surely_better():
    a = speakers(20, 0.2)
    b = {
        name: WordErrors(e.correct + e.substitutions, 0, 0, 0) if i % 2 else e
        for i, (name, e) in enumerate(a.items())
    }
    found = compare(a, b, DRAWS, 1)
    assert found.better == 1
    assert found.p < 0.005  # no draw of 2,000, by t with 19 degrees of freedom
    assert found.ci95[0] < found.difference < found.ci95[1] < 0


@pytest.mark.parametrize("seed", range(4))
def test_exchanging_the_runs_turns_the_comparison_around(seed):
    a, b = speakers(20, 0.1, seed), speakers(20, 0.12, seed + 100)
    there, back = compare(a, b, DRAWS, seed), compare(b, a, DRAWS, seed)
    assert there.difference == -back.difference
    assert there.better == pytest.approx(1 - back.better)
    assert there.p == back.p
    assert there.ci95 == pytest.approx((-back.ci95[1], -back.ci95[0]))


def test_pairing_finds_what_two_intervals_cannot():
    a = speakers(20, 0.2)
    b = {name: WordErrors(e.correct + 1, e.substitutions - 1) for name, e in a.items()}
    lowest_of_a = interval(list(a.values()), DRAWS, 1)[0]
    highest_of_b = interval(list(b.values()), DRAWS, 1)[1]
    assert lowest_of_a < highest_of_b  # the intervals overlap
    assert compare(a, b, DRAWS, 1).p < 0.01


def test_equally_good_runs_are_seldom_told_apart():
    # Of 40 pairs without a true difference, about 2 fall below 0.05: more than 8 is a bad test.
    found = [
        compare(speakers(30, 0.1, 2 * i), speakers(30, 0.1, 2 * i + 1), 500, i).p for i in range(40)
    ]
    assert sum(p < 0.05 for p in found) <= 8


def test_runs_over_other_units_or_words_are_refused():
    a = {"u1": WordErrors(3), "u2": WordErrors(2)}
    with pytest.raises(ValueError, match="2 and 1 units cannot be paired: u2"):
        compare(a, {"u1": WordErrors(3)}, DRAWS, 1)
    with pytest.raises(ValueError, match="u2 has 2 reference words in one run but 4"):
        compare(a, {"u1": WordErrors(3), "u2": WordErrors(4)}, DRAWS, 1)


# --- relative reductions ------------------------------------------------------------------------


def test_a_reduction_is_the_difference_over_the_rate():
    a, b = speakers(20, 0.2), speakers(20, 0.15, seed=1)
    found, compared = reduction([(a, b)], 500, 1), compare(a, b, 500, 1)
    assert found.relative == pytest.approx(-compared.difference / total(a.values()).rate)
    assert found.by_pair == (found.relative,)
    assert found.p == compared.p  # the same draws
    assert found.ci95[0] < found.relative < found.ci95[1]


def test_the_same_share_of_every_speaker_has_no_interval():
    a = {f"s{i}": WordErrors(50, 4 * i) for i in range(1, 12)}
    b = {f"s{i}": WordErrors(50 + 3 * i, i) for i in range(1, 12)}
    found = reduction([(a, b), (a, b)], 300, 1)
    assert found.relative == pytest.approx(0.75)
    assert found.ci95 == pytest.approx((0.75, 0.75))
    assert reduction([(a, a)], 300, 1).ci95 == (0, 0)
    assert reduction([(a, a)], 300, 1).p == 1


def test_seeds_that_disagree_have_a_wide_interval():
    """Two seeds have one degree of freedom: from 0.5 and -1 nothing follows."""
    a = {f"s{i}": WordErrors(50, 4 * i) for i in range(1, 12)}
    half = {name: WordErrors(e.words - e.errors // 2, e.errors // 2) for name, e in a.items()}
    found = reduction([(a, half), (half, a)], 300, 1)  # half the errors, and twice as many
    assert found.relative == 0
    assert found.by_pair == (0.5, -1)
    assert found.ci95[0] < -3
    assert found.p == 1


@pytest.mark.parametrize(
    "of_seeds, of_units, rest", [(1, 0, 1), (1, 1, 1), (0, 1, 1), (0, 0, 1), (0.1, 1, 2)]
)
def test_crossed_intervals_contain_the_mean_in_95_of_100_cases(of_seeds, of_units, rest):
    """Of 3 seeds and 60 units, whose effects have these standard deviations, units' 8 times them:
    sqrt(60) is near 8, so that both move the mean alike."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(1000):
        values_SU = of_seeds * rng.normal(size=(3, 1)) + 8 * of_units * rng.normal(size=(1, 60))
        values_SU = values_SU + 8 * rest * rng.normal(size=(3, 60))
        (low, high), p = crossed(float(values_SU.mean()), values_SU)
        assert (p < 0.05) == (not low <= 0 <= high)
        inside += low <= 0 <= high
    assert 930 <= inside <= 985


@pytest.mark.parametrize("of_seeds, least, most", [(0.99, 1.5, 1.7), (1.01, 4, 4.5), (1.3, 4, 5)])
def test_crossed_intervals_are_no_wider_than_those_of_the_seeds_alone(of_seeds, least, most):
    """With 0.65 of the rest's mean square for units, Satterthwaite alone has 0.8 degrees of freedom
    just above the limit, and an interval of 17 standard errors."""
    rng = np.random.default_rng(5)
    seed_S1, unit_1U = rng.normal(size=(3, 1)), rng.normal(size=(1, 60))
    rest_SU = rng.normal(size=(3, 60))
    rest_SU -= rest_SU.mean(0) + rest_SU.mean(1, keepdims=True) - rest_SU.mean()
    rest_SU /= np.sqrt((rest_SU**2).sum() / (2 * 59))
    seed_S1 = (seed_S1 - seed_S1.mean()) * np.sqrt(of_seeds / seed_S1.var(ddof=1) / 60)
    unit_1U = (unit_1U - unit_1U.mean()) * np.sqrt(0.65 / unit_1U.var(ddof=1) / 3)
    (low, high), _ = crossed(0.0, rest_SU + seed_S1 + unit_1U)
    assert low == pytest.approx(-high)
    assert least < high * np.sqrt(180) < most


def test_what_one_seed_gains_is_no_gain_of_the_method():
    """A bootstrap over three seeds takes the smallest and the largest for limits: it would tell
    1, 2 and 6 % from 0."""
    a = {f"s{i:02d}": WordErrors(900, 100 + i) for i in range(60)}
    pairs = [
        (a, {n: WordErrors(e.words - e.errors + k, e.errors - k) for n, e in a.items()})
        for k in (1, 2, 6)
    ]
    found = reduction(pairs, 500, 1)
    assert min(found.by_pair) > 0
    assert found.ci95[0] < 0 < found.relative < found.ci95[1]
    assert found.p > 0.1


def test_few_errors_that_are_all_gone_are_no_proof():
    """Their ratio is 1 in every draw, however few they were."""
    b = {f"u{i:02d}": WordErrors(10) for i in range(20)}
    pairs = [({**b, f"u{i:02d}": WordErrors(9, 1)}, b) for i in (1, 5, 9)]
    found = reduction(pairs, 500, 1)
    assert (found.relative, found.ci95[1]) == (1, 1)
    assert found.ci95[0] < 0
    assert found.p == pytest.approx(0.083, abs=0.001)


def test_a_reduction_does_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    a, b = speakers(20, 0.2), speakers(20, 0.15, seed=1)
    whole = reduction([(a, b)], 300, 1)
    monkeypatch.setattr("asr_train.score.words._DRAWN_NUMBERS", 20 * 7)
    assert reduction([(a, b)], 300, 1) == whole


def test_a_reduction_needs_pairs_of_the_same_units_and_errors_to_reduce():
    a = speakers(12, 0.2)
    with pytest.raises(ValueError, match="no pair"):
        reduction([], 100, 1)
    with pytest.raises(ValueError, match="cannot be paired"):
        reduction([(a, a), (a, speakers(13, 0.2))], 100, 1)
    perfect = {name: WordErrors(e.words) for name, e in a.items()}
    with pytest.raises(ValueError, match="has no error"):
        reduction([(perfect, a)], 100, 1)
    assert reduction([(perfect, a), (a, a)], 100, 1).by_pair == (None, 0)
