"""Score files of all runs -> the **WER table**: rows run x split, compared with the first run.

A row's rates are fractions, as in score files; only Markdown has percentages. The first run is the
baseline (the GMM): every other run is compared with it on held-out splits by a paired bootstrap.
Tables record date, commit, settings and machine.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asr_train.files import DamagedFileError, read_json
from asr_train.provenance import made
from asr_train.schema import ScoreSettings
from asr_train.score.summary import speaker_groups, without_errors
from asr_train.score.words import (
    MIN_PAIRED_SPEAKERS,
    MIN_SPEAKERS,
    Scored,
    WordErrors,
    compare,
    reduction,
    units,
    wer_line,
)

_COUNTS = ("words", "errors", "insertions", "deletions", "substitutions")
_NEEDED = ("run", "split", *_COUNTS, "wer", "ci95", "utterances", "normaliser", "by_utterance")
_COPIED = (
    *("run", "split", "wer", "ci95", "ci_over", "ci95_groups", "groups", *_COUNTS),
    *("utterances", "utterances_wrong", "speakers", "search_failures"),
    *("real_time_factor", "acoustic_scale", "insertion_penalty", "lm_weight"),
)
Score = dict[str, Any]  # what scripts/score.py writes


def read_score(path: Path | str) -> Score:
    """Read a score file.

    Raises:
        DamagedFileError: if it lacks a field.
    """
    score: Score = read_json(path)
    lacking = [key for key in _NEEDED if key not in score]
    if lacking:
        raise DamagedFileError(
            f"{path} has no {', '.join(lacking)}; delete it and run make again to score again"
        )
    return score


def wer_table(
    scores: Sequence[Score], settings: ScoreSettings, about: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of `tables/wer.json`; splits are in order of appearance.

    Args:
        about: provenance of the table: see `provenance`.
    Raises:
        ValueError: if two scores are of the same run and split, or of different normalisers.
    """
    _check_scores(scores)
    splits = list(dict.fromkeys(score["split"] for score in scores))
    baseline = scores[0]["run"]
    rows = []
    for split in splits:
        of_split = [score for score in scores if score["split"] == split]
        base = next((score for score in of_split if score["run"] == baseline), None)
        for score in of_split:
            ours = {key: score.get(key) for key in _COPIED}
            ours["against"] = None
            if base is not None and score is not base and held_out(split):
                ours["against"] = against(base, score, settings)
            label = f"{score['run']}, {split}"
            rows.append({"label": label, "paper": {}, "ours": ours, "measured": True})
    return {
        "paper": None,
        "table": "wer",
        "columns": COLUMNS,
        "rows": rows,
        "baseline": baseline,
        "normaliser": scores[0]["normaliser"],
        "costs": scores[0].get("costs"),
        "bootstrap": settings.draws,
        **about,
    }


def held_out(split: str) -> bool:
    """Return whether scales were not chosen on this split: test_..., or without dev or valid."""
    words = re.split(r"[^a-z]+", split.lower())
    return words[0] == "test" or not {"dev", "valid", "validation"} & set(words)


def against(base: Score, score: Score, settings: ScoreSettings) -> dict[str, Any] | None:
    """Compare a run with the baseline on the same `paired_units` and draws; None for one unit.

    `by_group` has interval and p over `speaker_groups`, if there are any.
    """
    try:
        over, base_units = paired_units(base)
        _, own_units = paired_units(score)
        if len(base_units) < 2:
            return None
        draws = settings.bootstrap, settings.seed
        found = compare(base_units, own_units, *draws)
        base_groups = speaker_groups(over, base_units, settings)
        own_groups = speaker_groups(over, own_units, settings)
        by_group = compare(base_groups, own_groups, *draws) if base_groups else None
    except ValueError as error:
        raise ValueError(f"{score['run']} and {base['run']}, {score['split']}: {error}") from error
    result = {"run": base["run"], "over": over, "units": len(base_units)} | asdict(found)
    if by_group is not None:
        result["by_group"] = {"ci95": by_group.ci95, "p": by_group.p, "units": len(base_groups)}
    return result


def wer_reduction(
    own: Sequence[Score], base: Sequence[Score], settings: ScoreSettings
) -> dict[str, Any] | None:
    """Return the reduction of the baseline's errors, in percent; None if it has none.

    One utterance, or speaker, alone gives None, too. `by_group` has interval and p over
    `speaker_groups`, if there are any.

    Args:
        own, base: scores of the same split, one per seed, in the same order.
    """
    over, drawn = paired_units(base[0])
    if len(drawn) < 2 or not any(score["errors"] for score in base):
        return None
    names = f"{own[0]['run']} and {base[0]['run']}, {own[0]['split']}"
    try:
        pairs = [(paired_units(a)[1], paired_units(b)[1]) for a, b in zip(base, own, strict=True)]
        found = reduction(pairs, settings.bootstrap, settings.seed)
        groups = [
            (speaker_groups(over, a, settings), speaker_groups(over, b, settings)) for a, b in pairs
        ]
        grouped = reduction(groups, settings.bootstrap, settings.seed) if groups[0][0] else None
    except ValueError as error:
        raise ValueError(f"{names}: {error}") from error
    result: dict[str, Any] = {
        "percent": 100 * found.relative,
        "percent_by_seed": [None if x is None else 100 * x for x in found.by_pair],
        "ci95": [100 * limit for limit in found.ci95],
        "p": found.p,
        "over": over,
        "units": len(pairs[0][0]),
    }
    if grouped is not None:
        limits = [100 * limit for limit in grouped.ci95]
        result["by_group"] = {"ci95": limits, "p": grouped.p, "units": len(groups[0][0])}
    return result


def markdown(table: dict[str, Any]) -> str:
    """Format the table with its notes as Markdown."""
    rows = [cells(row["ours"], table["baseline"]) for row in table["rows"]]
    return as_markdown("Word error rates", table["columns"], rows, notes(table))


def as_markdown(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Iterable[str],
    names: int = 2,
) -> str:
    """Format a table whose first columns are names, below its title, if any, and above notes."""
    lines = [
        *([f"# {title}", ""] if title else []),
        _line(columns),
        _line(["---" if i < names else "---:" for i in range(len(columns))]),
        *map(_line, rows),
        "",
        *(f"- {note}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


CELLS: dict[str, Callable[[dict[str, Any]], str]] = {  # heading -> text of a row
    "run": lambda ours: ours["run"],
    "split": lambda ours: ours["split"],
    "WER %": lambda ours: f"{100 * ours['wer']:.2f}",
    "95 % interval": lambda ours: percent_interval(ours["ci95"]),
    "errors / words": lambda ours: f"{ours['errors']} / {ours['words']}",
    "ins": lambda ours: str(ours["insertions"]),
    "del": lambda ours: str(ours["deletions"]),
    "sub": lambda ours: str(ours["substitutions"]),
    "utterances": lambda ours: str(ours["utterances"]),
    "RTF": lambda ours: _number(ours["real_time_factor"]),
    "acoustic scale": lambda ours: _number(ours["acoustic_scale"]),
    "insertion penalty": lambda ours: _number(ours["insertion_penalty"]),
    "LM weight": lambda ours: _number(ours["lm_weight"]),
}
COLUMNS = [*CELLS, "points from baseline", "p"]


def cells(ours: dict[str, Any], baseline: str) -> list[str]:
    """Format a row as one text per column; an unknown value is an en dash."""
    return [*(cell(ours) for cell in CELLS.values()), *_against_cells(ours, baseline)]


def notes(table: dict[str, Any]) -> list[str]:
    """Explain how the rows were counted and compared, with caveats."""
    rows = [row["ours"] for row in table["rows"]]
    draws = table["bootstrap"]["bootstrap"]
    over = sorted({ours["ci_over"] for ours in rows if ours["ci_over"]})
    lines = [
        f"Interval: 95 %, bootstrap over {' or '.join(over) or 'nothing'} ({draws} draws, seed "
        f"{table['bootstrap']['seed']}); utterances are drawn where speakers are fewer than "
        f"{MIN_SPEAKERS}, in comparisons fewer than {MIN_PAIRED_SPEAKERS}.",
        f"Points from baseline: WER minus that of {table['baseline']}, on the same draws; p is "
        "two-sided. Scales were chosen on the dev split, so only other splits are compared.",
        f"Errors: cheapest edits with the costs of {table['costs']}; words normalised by "
        f"{table['normaliser']}. RTF: seconds of decoding per second of speech, over all "
        "processes.",
    ]
    lines += [f"{text}." for text in comparison_lines(table)]
    lines += [
        f"{ours['run']}, {ours['split']}: {percent_interval(ours['ci95_groups'])} % over "
        f"{ours['groups']} groups of speakers that are alike."
        for ours in rows
        if ours.get("ci95_groups") is not None
    ]
    for ours in rows:
        if ours.get("search_failures"):
            lines.append(
                f"{ours['run']}, {ours['split']}: {ours['search_failures']} of "
                f"{ours['utterances']} utterances reached no final state within the beam; the best "
                "partial path is scored."
            )
        if ours["errors"] == 0:
            lines.append(
                f"{ours['run']}, {ours['split']}: there are no errors, so "
                f"{without_errors(ours['words'])}."
            )
    return [*lines, made(table)]


def wer_lines(table: dict[str, Any]) -> list[str]:
    """Return Kaldi's line for each row."""
    return [
        wer_line(errors_of(row["ours"]), f"exp/{row['ours']['run']} {row['ours']['split']}")
        for row in table["rows"]
    ]


def comparison_lines(table: dict[str, Any]) -> list[str]:
    """Format `dnn against gmm, test: −2.10 points (−2.53 to −1.20), p 0.0002, paired over ...`."""
    lines = []
    for ours in (row["ours"] for row in table["rows"]):
        if (found := ours["against"]) is not None:
            points, p = _against_cells(ours, found["run"])
            gap = points.replace(" (", " points (")
            text = (
                f"{ours['run']} against {found['run']}, {ours['split']}: {gap}, p {p}, "
                f"paired over {found['units']} {found['over']}"
            )
            if (groups := found.get("by_group")) is not None:
                low, high = (100 * limit for limit in groups["ci95"])
                limits = f"{low:+.2f} to {high:+.2f}".replace("-", "−")
                text += f" ({limits}, p {groups['p']:.2g} over {groups['units']} groups of them)"
            lines.append(text)
    return lines


def percent_interval(limits: Sequence[float] | None) -> str:
    """Format `2.10 – 3.45`, from two fractions."""
    return "–" if limits is None else f"{100 * limits[0]:.2f} – {100 * limits[1]:.2f}"


def spell_seconds(seconds: float) -> str:
    """Format `4.2 s`, `3 min 05 s` or `2 h 07 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def spell_bytes(count: float) -> str:
    """Format `812 B`, `3.41 kB` or `120 MB`: three digits, powers of 1000, as for disks."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * scale:  # with three digits, 1
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def _check_scores(scores: Sequence[Score]) -> None:
    if not scores:
        raise ValueError("no score file to tabulate; name the runs in RUNS")
    seen = set()
    for score in scores:
        key = (score["run"], score["split"])
        if key in seen:
            raise ValueError(f"run {key[0]} has two scores of {key[1]}; give each run its own name")
        seen.add(key)
        if score["normaliser"] != scores[0]["normaliser"]:
            raise ValueError(
                f"{key[0]}, {key[1]} was normalised by {score['normaliser']} but "
                f"{scores[0]['run']} by {scores[0]['normaliser']}; delete the score files and "
                "run make again"
            )


def scored(score: Score) -> list[Scored]:
    """Return a score's utterances."""
    return [
        Scored(utt_id, row["speaker"], errors_of(row))
        for utt_id, row in score["by_utterance"].items()
    ]


def paired_units(score: Score) -> tuple[str, dict[str, WordErrors]]:
    """Return what comparisons draw: speakers if there are MIN_PAIRED_SPEAKERS, else utterances."""
    return units(scored(score), MIN_PAIRED_SPEAKERS)


def errors_of(row: dict[str, Any]) -> WordErrors:
    """Return the counts of a score, or of one of its utterances."""
    substitutions, deletions = row["substitutions"], row["deletions"]
    correct = row["words"] - substitutions - deletions
    return WordErrors(correct, substitutions, deletions, row["insertions"])


def _against_cells(ours: dict[str, Any], baseline: str) -> tuple[str, str]:
    found = ours["against"]
    if found is None:
        return ("baseline" if ours["run"] == baseline else "–", "–")
    low, high = (100 * limit for limit in found["ci95"])
    points = f"{100 * found['difference']:+.2f} ({low:+.2f} to {high:+.2f})"
    return points.replace("-", "−"), f"{found['p']:.2g}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}".replace("-", "−")


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Align columns for a terminal, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) + "\n"
        for line in lines
    )


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
