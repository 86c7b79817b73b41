"""Scored utterances -> the **summary** of a split, as numbers, as a line and as a page."""

from collections.abc import Mapping, Sequence
from typing import Any

from asr_train.checks import spelled
from asr_train.schema import ScoreSettings
from asr_train.score.edits import align_words, show_alignment
from asr_train.score.sclite import speaker_table
from asr_train.score.words import Scored, WordErrors, confusions, grouped, interval, total, units

SHOWN_CONFUSIONS = 20
SHOWN_KINDS = {"S": "confusions", "D": "deletions", "I": "insertions"}


def counted(errors: WordErrors) -> dict[str, int]:
    """Return the counts by name, as score files hold them."""
    names = ("words", "errors", "insertions", "deletions", "substitutions")
    return {name: getattr(errors, name) for name in names}


def counts(scored: Sequence[Scored]) -> dict[str, Any]:
    """Return the totals of the split."""
    errors = total(s.errors for s in scored)
    return counted(errors) | {
        "wer": errors.rate,
        "utterances": len(scored),
        "utterances_wrong": sum(s.errors.errors > 0 for s in scored),
        "speakers": len({s.speaker for s in scored}),
    }


def spread(scored: Sequence[Scored], settings: ScoreSettings) -> dict[str, Any]:
    """Return the 95 % interval and its units; null for a single utterance.

    With `speaker_groups`, also their number and the interval over them, if there are several.
    """
    over, drawn = units(scored)
    if len(drawn) < 2:
        return {"ci95": None, "ci_over": None}
    low, high = interval(list(drawn.values()), settings.bootstrap, settings.seed)
    found: dict[str, Any] = {"ci95": [low, high], "ci_over": over}
    if groups := speaker_groups(over, drawn, settings):
        low, high = interval(list(groups.values()), settings.bootstrap, settings.seed)
        found |= {"groups": len(groups), "ci95_groups": [low, high]}
    return found


def speaker_groups(
    over: str, drawn: Mapping[str, WordErrors], settings: ScoreSettings
) -> dict[str, WordErrors]:
    """Return the errors of groups of speakers; {} if none are alike, or all are."""
    if settings.speaker_groups is None or over != "speakers":
        return {}
    groups = grouped(drawn, settings.speaker_groups)
    return groups if 1 < len(groups) < len(drawn) else {}


def without_errors(words: int) -> str:
    """Say what the absence of errors leaves possible, at 95 %: 3 / words (the rule of three)."""
    limit = f"{min(100, 300 / words):.2f} %"
    return f"the bootstrap gives no upper limit; rates up to about {limit} are plausible"


def closing_words(summary: dict[str, Any]) -> str:
    """Summarise, beside the rate, the interval and utterances with errors."""
    if summary["ci95"] is None:
        text = "no interval: it needs more than one utterance"
    elif summary["errors"] == 0:
        text = f"no errors: {without_errors(summary['words'])}"
    else:
        low, high = (100 * limit for limit in summary["ci95"])
        text = f"95 % interval {low:.2f} to {high:.2f} %, bootstrap over {summary['ci_over']}"
        if (limits := summary.get("ci95_groups")) is not None:
            low, high = (100 * limit for limit in limits)
            text += f" ({low:.2f} to {high:.2f} % over {summary['groups']} groups of them)"
    wrong, all_ = summary["utterances_wrong"], summary["utterances"]
    return f"{text}; {wrong} of {spelled(all_, 'utterance')} with an error"


def page(line: str, scored: Sequence[Scored], pairs: dict[str, tuple[list[str], list[str]]]) -> str:
    """Format the total, speakers, most frequent errors, then each utterance's alignment."""
    parts = [line, "", speaker_table(scored)]
    for kind, what in SHOWN_KINDS.items():
        parts.append(f"most frequent {what}: times, reference -> hypothesis (*: none)")
        parts += [
            f"{times:6d}  {word or '*'} -> {heard or '*'}"
            for word, heard, times in confusions(pairs.values(), SHOWN_CONFUSIONS, kind)
        ]
        parts.append("")
    parts.append("utterances")
    for s in scored:
        e = s.errors
        reference, hypothesis, marks = show_alignment(align_words(*pairs[s.utt_id]))
        parts += [
            "",
            f"{s.utt_id}  speaker {s.speaker}  {e.correct} correct, {e.substitutions} sub, "
            f"{e.deletions} del, {e.insertions} ins",
            f"  ref   {reference}".rstrip(),
            f"  hyp   {hypothesis}".rstrip(),
        ]
        if e.errors:
            parts.append(f"        {marks}".rstrip())
    return "\n".join(parts) + "\n"
