"""pool.py conf/score.yaml FOLD/exp/RUN/score.SPLIT.json... folds.md

Pool the folds of a cross-validation into one table: a row per fold (its test speakers), a column
per run, the baseline's first; then the mean over folds, and all errors over all words with an
interval. folds.json beside it holds the same numbers as fractions and counts.
"""

import asr_train.interrupt  # noqa: F401

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr_train.files import write_json, write_text
from asr_train.jobs import main
from asr_train.provenance import made, provenance
from asr_train.report import tables
from asr_train.schema import ScoreSettings, load
from asr_train.score.summary import counted, spread
from asr_train.score.words import Scored, compare, total, units, wer_line


def pool(conf: str, *paths: str) -> None:
    *scores, output = paths
    if not scores:
        raise ValueError("no score file to pool; name the folds' test speakers in FOLDS")
    settings = load(ScoreSettings, conf)
    table = pooled([tables.read_score(path) for path in scores], settings) | provenance(conf)
    write_json(Path(output).with_suffix(".json"), table)
    write_text(output, markdown(table))
    for run, ours in table["runs"].items():
        print(wer_line(tables.errors_of(ours), f"{run}, {len(table['folds'])} folds"))


def pooled(scores: Sequence[tables.Score], settings: ScoreSettings) -> dict[str, Any]:
    """Return the content of folds.json.

    Raises:
        ValueError: if runs were not scored on the same folds, or an utterance is in two folds.
    """
    runs = list(dict.fromkeys(score["run"] for score in scores))
    folds = {run: {fold_of(s): s for s in scores if s["run"] == run} for run in runs}
    base = runs[0]
    for run in runs:
        check_folds(run, [s for s in scores if s["run"] == run], base, list(folds[base]))
    return {
        "table": "folds",
        "folds": list(folds[base]),
        "bootstrap": settings.draws,
        "runs": {
            run: column(folds[run], settings)
            | {"against": None if run == base else against(folds[base], folds[run], settings)}
            for run in runs
        },
    }


def fold_of(score: tables.Score) -> str:
    """Return a fold's name: its test speakers."""
    return " ".join(sorted({row["speaker"] for row in score["by_utterance"].values()}))


def check_folds(run: str, scores: list[tables.Score], base: str, wanted: list[str]) -> None:
    names = [fold_of(score) for score in scores]
    if names != wanted:
        raise ValueError(
            f"run {run} has the folds {', '.join(names)} but {base} has {', '.join(wanted)}; "
            "give the scores of all runs in the same order of folds, each once"
        )
    seen: dict[str, str] = {}
    for name, score in zip(names, scores, strict=True):
        for utt_id in score["by_utterance"]:
            if seen.setdefault(utt_id, name) != name:
                raise ValueError(
                    f"run {run}: {utt_id} is tested in the folds {seen[utt_id]} and {name}; "
                    "folds must not share test utterances"
                )


def column(folds: dict[str, tables.Score], settings: ScoreSettings) -> dict[str, Any]:
    """Return a run's rates in the folds, their mean, and all folds together."""
    every = utterances(folds)
    errors = total(one.errors for one in every)
    return {
        "folds": {
            name: {key: score[key] for key in ("wer", "ci95", "errors", "words")}
            for name, score in folds.items()
        },
        "mean": statistics.fmean(score["wer"] for score in folds.values()),
        "wer": errors.rate,
        **spread(every, settings),
        **counted(errors),
    }


def against(
    base: dict[str, tables.Score], ours: dict[str, tables.Score], settings: ScoreSettings
) -> dict[str, Any]:
    """Return the pooled difference from the baseline, and the number of folds that improve.

    No p-value: a bootstrap over a handful of speakers would be overconfident.
    """
    found = compare(
        units(utterances(base))[1], units(utterances(ours))[1], settings.bootstrap, settings.seed
    )
    return {
        "difference": found.difference,
        "ci95": found.ci95,
        "better_folds": sum(ours[name]["errors"] < base[name]["errors"] for name in base),
    }


def utterances(folds: dict[str, tables.Score]) -> list[Scored]:
    return [one for score in folds.values() for one in tables.scored(score)]


def markdown(table: dict[str, Any]) -> str:
    runs = table["runs"]
    rows = [
        [fold, *(cell(ours["folds"][fold]) for ours in runs.values())] for fold in table["folds"]
    ]
    rows.append(["mean of folds", *(f"{100 * ours['mean']:.2f}" for ours in runs.values())])
    rows.append(["all words", *(cell(ours) for ours in runs.values())])
    title = "Word error rates, each speaker held out once"
    return tables.as_markdown(title, ["test speaker", *runs], rows, notes(table), names=1)


def cell(row: dict[str, Any]) -> str:
    """Format as `4.20 (2.60 – 6.00), 21 / 500`."""
    rate = f"{100 * row['wer']:.2f} ({tables.percent_interval(row['ci95'])})"
    return f"{rate}, {row['errors']} / {row['words']}"


def notes(table: dict[str, Any]) -> list[str]:
    runs, draws = table["runs"], table["bootstrap"]["bootstrap"]
    (base, first), *others = runs.items()
    lines = [
        f"WER in percent (95 % interval), errors / words. All words: bootstrap over "
        f"{first['ci_over']} ({draws} draws, seed {table['bootstrap']['seed']}), which for so few "
        "speakers is a rough guide; a single fold: over its utterances, so for this speaker only."
    ]
    for run, ours in others:
        found = ours["against"]
        low, high = (100 * limit for limit in found["ci95"])
        points = f"{100 * found['difference']:+.2f} points ({low:+.2f} to {high:+.2f})"
        lines.append(
            f"{run} against {base}: {points.replace('-', '−')}; fewer errors in "
            f"{found['better_folds']} of {len(table['folds'])} folds."
        )
    return [*lines, made(table)]


if __name__ == "__main__":
    main(pool, __doc__)
