"""Edits of utterances -> **WordErrors** of speakers and splits, their 95 % intervals, comparisons.

Speakers are drawn with replacement (Bisani and Ney, 2004): errors on words of one speaker are
correlated, so an interval over utterances would be too narrow. Utterances are drawn instead if
there are fewer than 5 speakers, in comparisons of two runs fewer than 10; the result says which.
Percentiles of draws are too close to each other where units are few, as normal limits are instead
of those of Student's t, and 1/n instead of 1/(n - 1): intervals and p-values allow for both
(Hesterberg, 2015, "What teachers should know about the bootstrap", expanded percentiles). Knows
nothing of files.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from asr_train.score.edits import align_words, count_edits, edit_mark
from asr_train.sums import Summed

MIN_SPEAKERS = 5  # fewer are not a sample of speakers
MIN_PAIRED_SPEAKERS = 10  # with fewer, a p-value would be overconfident
NORMALISER = "upper-1"  # change it with `normalise`: rates under two names are not comparable
_DRAWN_NUMBERS = 1 << 22  # at a time: 32 MB


def normalise(text: str) -> list[str]:
    """Apply `upper-1`: words in upper case, separated by white space."""
    return text.upper().split()


@dataclass(frozen=True, slots=True)
class WordErrors(Summed):
    """Edits from references to hypotheses; counts add up, so rates are computed last."""

    correct: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @classmethod
    def between(cls, reference: Sequence[str], hypothesis: Sequence[str]) -> "WordErrors":
        """Count the cheapest edits of one utterance."""
        return cls(*count_edits(reference, hypothesis))

    @property
    def words(self) -> int:
        """Number of reference words."""
        return self.correct + self.substitutions + self.deletions

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per reference word; may exceed 1."""
        if self.words == 0:
            raise ValueError("no reference words to score: does this split have transcripts?")
        return self.errors / self.words


@dataclass(frozen=True, slots=True)
class Scored:
    """One utterance and its errors."""

    utt_id: str
    speaker: str
    errors: WordErrors


def total(errors: Iterable[WordErrors]) -> WordErrors:
    """Add up all counts."""
    return sum(errors, WordErrors())


def by_speaker(scored: Iterable[Scored]) -> dict[str, WordErrors]:
    """Add up each speaker's utterances; speakers are sorted by name."""
    sums: dict[str, WordErrors] = {}
    for row in scored:
        sums[row.speaker] = sums.get(row.speaker, WordErrors()) + row.errors
    return dict(sorted(sums.items()))


def units(
    scored: Sequence[Scored], enough: int = MIN_SPEAKERS
) -> tuple[str, dict[str, WordErrors]]:
    """Return the bootstrap's units: "speakers", or "utterances" if speakers are too few."""
    speakers = by_speaker(scored)
    if len(speakers) >= enough:
        return "speakers", speakers
    return "utterances", {row.utt_id: row.errors for row in scored}


def grouped(speakers: Mapping[str, WordErrors], pattern: str) -> dict[str, WordErrors]:
    """Add up speakers that are alike: a sample of them is smaller than it looks.

    Args:
        pattern: a regular expression. Speakers whose whole names match it form a group if its first
            group matches the same text; any other speaker is a group alone.
    """
    sums: dict[tuple[bool, str], WordErrors] = {}
    for name, errors in speakers.items():
        found = re.fullmatch(pattern, name)
        group = (False, name) if found is None else (True, found[1] or "")
        sums[group] = sums.get(group, WordErrors()) + errors
    return {
        f"{name}, alone" if not shared and (True, name) in sums else name: errors
        for (shared, name), errors in sums.items()
    }


def confusions(
    pairs: Iterable[tuple[Sequence[str], Sequence[str]]], most: int, kinds: str = "SDI"
) -> list[tuple[str | None, str | None, int]]:
    """Return the most frequent edits: reference and hypothesis word (None: missing), and count.

    Args:
        kinds: which to count: substitutions, deletions, insertions.
    """
    edits = (edit for pair in pairs for edit in align_words(*pair))
    seen = Counter(edit for edit in edits if (mark := edit_mark(*edit)) and mark in kinds)
    ranked = sorted(seen.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or ""))
    return [(word, found, count) for (word, found), count in ranked[:most]]


def wer_line(errors: WordErrors, name: str) -> str:
    """Format the line of Kaldi's compute-wer and best_wer.sh.

    >>> wer_line(WordErrors(1459, 35, 6, 8), "exp/gtc")
    '%WER 3.27 [ 49 / 1500, 8 ins, 6 del, 35 sub ] exp/gtc'
    """
    return (
        f"%WER {100 * errors.rate:.2f} [ {errors.errors} / {errors.words}, "
        f"{errors.insertions} ins, {errors.deletions} del, {errors.substitutions} sub ] {name}"
    )


# --- intervals and comparisons ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run B compared with run A over the same units and draws."""

    difference: float  # B's rate minus A's, a fraction: negative if B is better
    ci95: tuple[float, float]  # of the difference
    better: float  # share of draws in which B has fewer errors, ties counted half
    p: float  # two-sided, of the difference's sign


def interval(errors: Sequence[WordErrors], draws: int, seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the rate, by bootstrap over these units.

    Raises:
        ValueError: if there is only one unit, or no reference word.
    """
    return intervals([errors], draws, seed)[0]


def intervals(
    runs: Sequence[Sequence[WordErrors]], draws: int, seed: int
) -> list[tuple[float, float]]:
    """Return each run's `interval` over the same units, which are drawn once for all."""
    _check_units(runs[0])
    return [_middle_95(rates_D, len(runs[0])) for rates_D in _draw_rates(runs, draws, seed)]


def compare(
    a: Mapping[str, WordErrors], b: Mapping[str, WordErrors], draws: int, seed: int
) -> Comparison:
    """Compare two runs over the same units, by name, with a paired bootstrap.

    Raises:
        ValueError: if the runs were not scored on the same units with the same references.
    """
    return compare_all({"a": a, "b": b}, draws, seed)["a", "b"]


def compare_all(
    runs: Mapping[str, Mapping[str, WordErrors]], draws: int, seed: int
) -> dict[tuple[str, str], Comparison]:
    """Return the `compare` of each run with every later one; units are drawn once for all."""
    names = _common_units(runs.values())
    units_RU = [[errors[name] for name in names] for errors in runs.values()]
    rate_R = {run: total(errors).rate for run, errors in zip(runs, units_RU, strict=True)}
    rates_RD = dict(zip(runs, _draw_rates(units_RU, draws, seed), strict=True))
    return {
        (a, b): _comparison(rate_R[b] - rate_R[a], rates_RD[b] - rates_RD[a], len(names))
        for a, b in combinations(runs, 2)
    }


def _comparison(difference: float, difference_D: np.ndarray, count: int) -> Comparison:
    return Comparison(
        difference=difference,
        ci95=_middle_95(difference_D, count),
        better=float((difference_D < 0).mean() + (difference_D == 0).mean() / 2),
        p=_two_sided(difference_D, count),
    )


@dataclass(frozen=True, slots=True)
class Reduction:
    """Reduction of A's errors by B: (A - B) / A, a fraction, positive if B is better."""

    relative: float  # of the summed errors of all pairs
    by_pair: tuple[float | None, ...]  # None: A has no error
    ci95: tuple[float, float]
    p: float  # two-sided; of one pair as in Comparison, of several from `crossed`


def reduction(
    pairs: Sequence[tuple[Mapping[str, WordErrors], Mapping[str, WordErrors]]],
    draws: int,
    seed: int,
) -> Reduction:
    """Compare runs A and B, one pair of them per seed; errors are summed before they are divided.

    A single pair's interval is from a paired bootstrap over units (the same as by `compare`). With
    several, both units and seeds are samples, and three seeds are too few to be drawn from: the
    interval is `crossed`'s.

    Args:
        pairs: errors of A and of B by unit, one pair per seed, all of the same units.
    Raises:
        ValueError: if there is no pair, units or references differ, or A has no error at all.
    """
    if not pairs:
        raise ValueError("no pair of runs to compare; score at least one seed")
    names = _common_units(errors for pair in pairs for errors in pair)
    counts_RSU = np.array(
        [[[errors[n].errors for n in names] for errors in run] for run in zip(*pairs, strict=True)]
    )
    totals_RS = counts_RSU.sum(axis=2)
    if totals_RS[0].sum() == 0:
        raise ValueError("the baseline has no error, so there is no relative reduction")
    a, b = totals_RS.sum(axis=1)
    relative = float((a - b) / a)
    if len(pairs) == 1:
        shares = []
        for times_DU in _drawn(len(names), draws, seed):
            a_D, b_D = (times_DU @ n_SU[0] for n_SU in counts_RSU)
            shares.append((a_D - b_D) / np.maximum(a_D, 1))
        saved_D = np.concatenate(shares)
        limits, p = _middle_95(saved_D, len(names)), _two_sided(saved_D, len(names))
    else:
        a_SU, b_SU = counts_RSU
        # What each count moves the ratio by, to first order, times their number
        moved_SU = (a_SU - b_SU - relative * a_SU) / a_SU.mean()
        if b:
            limits, p = crossed(relative, moved_SU)
        else:  # then the ratio does not move, but its numerator does
            (low, _), p = crossed(relative, a_SU / a_SU.mean())
            limits = low, 1.0
    by_pair = tuple(float((a - b) / a) if a else None for a, b in totals_RS.T)
    return Reduction(relative, by_pair, limits, p)


def crossed(mean: float, values_SU: np.ndarray) -> tuple[tuple[float, float], float]:
    """Return the 95 % interval of a mean, and p of its sign, if rows and columns are samples.

    By the components of variance of two crossed random factors: the mean's variance is estimated by
    (MS_S + MS_U - MS_rest) / (S U), and by MS_U / (S U) where rows vary no more than the rest; its
    degrees of freedom are Satterthwaite's (1946). With three rows that differ, there are few. A
    difference of mean squares may be estimated too small, and its degrees of freedom then fall to
    nothing: neither may be less than those of rows, or of columns, alone.

    Args:
        values_SU: one per seed and unit, at least two of each.
    """
    from scipy.special import stdtr, stdtrit

    S, U = values_SU.shape
    mean_S1, mean_1U = values_SU.mean(1, keepdims=True), values_SU.mean(0, keepdims=True)
    rest_SU = values_SU - mean_S1 - mean_1U + values_SU.mean()
    squares = {  # mean squares and their degrees of freedom
        "seeds": (U * float(mean_S1.var(ddof=1)), S - 1),
        "units": (S * float(mean_1U.var(ddof=1)), U - 1),
        "rest": (float((rest_SU**2).sum()) / ((S - 1) * (U - 1)), (S - 1) * (U - 1)),
    }
    total, freedom = squares["units"]
    if squares["seeds"][0] > squares["rest"][0]:
        parts = squares.values()
        least = max(total, squares["seeds"][0])
        total += squares["seeds"][0] - squares["rest"][0]
        freedom = max(total**2 / sum(x**2 / free for x, free in parts), min(S, U) - 1.0)
        total = max(total, least)
    if total <= 0:  # all values are equal
        return (mean, mean), 1.0 if mean == 0 else 0.0
    error = math.sqrt(total / (S * U))
    reach = float(stdtrit(freedom, 0.975)) * error
    return (mean - reach, mean + reach), float(2 * stdtr(freedom, -abs(mean) / error))


def _draw_rates(
    runs: Sequence[Sequence[WordErrors]], draws: int, seed: int
) -> tuple[np.ndarray, ...]:
    """Return each run's rate in each of `draws` samples; units are drawn for all runs alike."""
    count = len(runs[0])
    errors_RU = np.array([[unit.errors for unit in run] for run in runs], np.int64)
    words_U = np.array([unit.words for unit in runs[0]], np.int64)
    rates = [
        # A draw without reference words has no rate; it counts as one word.
        errors_RU @ times_DU.T / np.maximum(times_DU @ words_U, 1)
        for times_DU in _drawn(count, draws, seed)
    ]
    return tuple(np.concatenate(rates, axis=1))


def _drawn(count: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each of `count` units is drawn, in blocks of draws.

    This is equivalent to drawing `count` of them one by one.
    """
    rng = np.random.default_rng(seed)
    step = max(1, _DRAWN_NUMBERS // count)
    for start in range(0, draws, step):
        yield rng.multinomial(count, np.full(count, 1 / count), min(step, draws - start))


def _two_sided(difference_D: np.ndarray, count: int) -> float:
    """Return the two-sided p-value of a difference's sign, from draws of `count` units."""
    from scipy.special import ndtri, stdtr

    below, above = int((difference_D < 0).sum()), int((difference_D > 0).sum())
    draws = len(difference_D)
    # Adding 1 to both counts the observed value as a draw: p is never 0.
    share = min(1.0, 2 * (draws - max(below, above) + 1) / (draws + 1))
    deviations = ndtri(share / 2) * math.sqrt((count - 1) / count)
    return float(2 * stdtr(count - 1, deviations))


def _middle_95(values_D: np.ndarray, count: int) -> tuple[float, float]:
    """Return the 95 % interval from draws of `count` units: p is 0.05 at its limits."""
    from scipy.special import ndtr, stdtrit

    share = ndtr(math.sqrt(count / (count - 1)) * stdtrit(count - 1, 0.025))
    low, high = np.quantile(values_D, [share, 1 - share])
    return float(low), float(high)


def _check_units(errors: Sequence[WordErrors]) -> None:
    if len(errors) < 2:
        raise ValueError(
            f"{len(errors)} unit to draw from, but an interval needs 2; score more utterances"
        )
    if total(errors).words == 0:
        raise ValueError("no reference words to score: does this split have transcripts?")


def _common_units(runs: Iterable[Mapping[str, WordErrors]]) -> list[str]:
    """Return the names of the units, which all runs must have, with as many reference words."""
    a, *others = runs
    names = sorted(a)
    for b in others:
        if unpaired := sorted(set(a) ^ set(b)):
            raise ValueError(
                f"{len(a)} and {len(b)} units cannot be paired: {', '.join(unpaired[:3])} "
                "are in one run only; score both runs on the same split"
            )
        for name in names:
            if a[name].words != b[name].words:
                raise ValueError(
                    f"{name} has {a[name].words} reference words in one run but {b[name].words} in "
                    "the other; score both runs with the same manifest"
                )
    _check_units([a[name] for name in names])
    return names
