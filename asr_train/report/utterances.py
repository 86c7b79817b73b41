"""Scores and hypotheses of all runs -> the **utterances of a page**, as page.js reads them.

A split has its utterances with the edits of each run (words that are correct are not repeated),
speakers with intervals, confusions, and the paired comparison of any two runs. Knows nothing of
files or audio.
"""

from collections.abc import Mapping, Sequence
from operator import lt
from typing import Any

from asr_train.report.tables import Score, held_out, paired_units, scored
from asr_train.schema import ScoreSettings
from asr_train.score.edits import align_words, edit_mark
from asr_train.score.normalise import Normaliser
from asr_train.score.words import Scored, WordErrors, compare_all, intervals

Row = dict[str, Any]
Edit = tuple[int, str | None, str]

SHOWN_UTTERANCES = 3000  # of a split: those with the most errors


def of_split(
    cuts: Mapping[str, Row],
    scores: Sequence[Score],
    hypotheses: Sequence[Mapping[str, Row]],
    settings: ScoreSettings,
    normaliser: Normaliser,
    most: int = SHOWN_UTTERANCES,
) -> Row:
    """Return a split's content of the page.

    Args:
        cuts: of the manifest, by utterance.
        scores: of all runs on this split.
        hypotheses: each run's rows of hyp.SPLIT.jsonl, by utterance, in the same order.
        normaliser: with which the scores were made.
        most: utterances to keep; those with the fewest errors of all runs are left out.
    Raises:
        ValueError: if a hypothesis has not the errors that its score counts.
    """
    kept = set(worst(scores, most))
    names = [utt_id for utt_id in cuts if utt_id in kept]
    utterances = []
    for utt_id in names:
        (supervision,) = cuts[utt_id]["supervisions"]
        reference = normaliser.reference(supervision["text"])
        found = []
        for score, rows in zip(scores, hypotheses, strict=True):
            words = normaliser.hypothesis(" ".join(rows[utt_id]["words"]))
            found.append(edits(reference, words))
            _check_edits(score, utt_id, found[-1])
        utterances.append(
            {
                "id": utt_id,
                "speaker": supervision["speaker"],
                "seconds": round(cuts[utt_id]["duration"], 2),
                "words": reference,
                "edits": found,
            }
        )
    return {
        "runs": [score["run"] for score in scores],
        "utterances": utterances,
        "all": len(cuts),
        "counts": [
            [score[key] for key in ("words", "errors", "utterances_wrong")] for score in scores
        ],
        "speakers": speakers(scores, settings),
        "confusions": [score.get("confusions", []) for score in scores],
        "fewer": fewer(scores),
        "compared": compared(scores, settings),
    }


def worst(scores: Sequence[Score], most: int) -> list[str]:
    """Return the utterances with the most errors, summed over these scores; ties by name."""
    errors = {
        utt_id: sum(score["by_utterance"][utt_id]["errors"] for score in scores)
        for utt_id in scores[0]["by_utterance"]
    }
    return sorted(errors, key=lambda utt_id: (-errors[utt_id], utt_id))[:most]


def fewer(scores: Sequence[Score]) -> list[list[int]]:
    """Return, by run and other run, in how many utterances the run has fewer errors."""
    errors = [
        [score["by_utterance"][utt_id]["errors"] for utt_id in scores[0]["by_utterance"]]
        for score in scores
    ]
    return [[sum(map(lt, mine, other)) for other in errors] for mine in errors]


def edits(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Edit]:
    """List what differs: index of the reference word, the word found there, and its mark.

    The word is None for a deletion. An insertion (mark `I`) stands before the indexed word. A
    difference that is no error, such as a missing optional word, has the mark "".

    >>> edits("ONE SIX TWO".split(), "ONE TWO OH".split())
    [(1, None, 'D'), (3, 'OH', 'I')]
    """
    if reference == hypothesis:
        return []
    found: list[Edit] = []
    at = 0
    for word, heard in align_words(reference, hypothesis):
        if word != heard:
            found.append((at, heard, edit_mark(word, heard)))
        at += word is not None
    return found


def _check_edits(score: Score, utt_id: str, found: Sequence[Edit]) -> None:
    marked = sum(mark != "" for *_, mark in found)
    counted = score["by_utterance"][utt_id]["errors"]
    if marked != counted:
        raise ValueError(
            f"{utt_id}: {score['run']} has {marked} errors but its score.{score['split']}.json "
            f"has {counted}; delete exp/{score['run']}/score.{score['split']}.json and run make "
            "again"
        )


def speakers(scores: Sequence[Score], settings: ScoreSettings) -> list[Row]:
    """Return, per speaker: utterances, words, and each run's errors and 95 % interval.

    The interval is by bootstrap over the speaker's utterances; None if there is only one.
    """
    by_run = [_of_speakers(score) for score in scores]
    found = []
    for name, first in sorted(by_run[0].items()):
        runs = [[s.errors for s in of_run[name]] for of_run in by_run]
        totals = [sum(errors, WordErrors()) for errors in runs]
        drawn = len(first) > 1 and totals[0].words > 0
        spread = intervals(runs, settings.bootstrap, settings.seed) if drawn else []
        found.append(
            {
                "name": name,
                "utterances": len(first),
                "words": totals[0].words,
                "errors": [errors.errors for errors in totals],
                "ci95": [[round(limit, 4) for limit in limits] for limits in spread] or None,
            }
        )
    return found


def _of_speakers(score: Score) -> dict[str, list[Scored]]:
    found: dict[str, list[Scored]] = {}
    for row in scored(score):
        found.setdefault(row.speaker, []).append(row)
    return found


def compared(scores: Sequence[Score], settings: ScoreSettings) -> Row | None:
    """Compare any two runs, as `tables.against` does with the baseline.

    None on the split that scales were chosen on, and where there is nothing to draw from. A pair
    has the indices of both runs, the difference of their rates, its interval, and p.
    """
    if not held_out(scores[0]["split"]) or len(scores) < 2 or scores[0]["words"] == 0:
        return None
    over, _ = paired_units(scores[0])
    errors = {score["run"]: paired_units(score)[1] for score in scores}
    count = len(errors[scores[0]["run"]])
    if count < 2:
        return None
    order = list(errors)
    pairs = [
        [order.index(a), order.index(b), *(round(x, 6) for x in (c.difference, *c.ci95, c.p))]
        for (a, b), c in compare_all(errors, settings.bootstrap, settings.seed).items()
    ]
    return {"over": over, "units": count, "pairs": pairs}
