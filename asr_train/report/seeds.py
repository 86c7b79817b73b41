"""Runs that differ in their seed only -> **their mean**, compared with the baseline's same seeds.

`make NAME RUNS='sgd gtc' SEEDS='1 2 3'` names runs sgd-seed1, gtc-seed1, ... Word errors vary more
between seeds than between most methods, so all seeds are compared together: seeds are drawn in
addition to speakers (`score.words.reduction`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from asr_train.report.tables import Score, held_out, wer_reduction
from asr_train.schema import ScoreSettings

NAME = re.compile(r"(.+)-seed(\d+)(-.+)?")


def run_and_seed(name: str) -> tuple[str, int] | None:
    """Split `gtc-seed2-realign1` into gtc-realign1 and 2; None: the name has no seed."""
    found = NAME.fullmatch(name)
    return None if found is None else (found[1] + (found[3] or ""), int(found[2]))


def over_seeds(
    scores: Iterable[Score], baseline: str, settings: ScoreSettings
) -> list[dict[str, Any]]:
    """Return a row per run (with at least two seeds) and held-out split, in order of appearance.

    Args:
        scores: of all runs and splits.
        baseline: a run, with or without its seed; runs with the same seeds are compared with it.
    """
    found: dict[tuple[str, str], dict[int, Score]] = {}
    for score in scores:
        named = run_and_seed(score["run"])
        if named is not None and held_out(score["split"]):
            found.setdefault((named[0], score["split"]), {})[named[1]] = score
    base_run, _ = run_and_seed(baseline) or (baseline, 0)
    rows = []
    for (run, split), by_seed in found.items():
        if len(by_seed) < 2:
            continue
        seeds, base = sorted(by_seed), found.get((base_run, split), {})
        wers = [by_seed[seed]["wer"] for seed in seeds]
        against = None
        if run != base_run and set(seeds) == set(base):
            own, theirs = ([scores[seed] for seed in seeds] for scores in (by_seed, base))
            against = wer_reduction(own, theirs, settings)
            against = None if against is None else {"run": base_run} | against
        row = {"run": run, "split": split, "seeds": seeds, "wer": mean(wers)}
        rows.append(row | {"wer_by_seed": wers, "against": against})
    return rows


def lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format `gtc, test: 3.05 % over seeds 1, 2 (3.12, 2.98); errors against sgd: +4.1 % ...`."""
    lines = []
    for row in rows:
        wers = ", ".join(f"{100 * wer:.2f}" for wer in row["wer_by_seed"])
        text = (
            f"{row['run']}, {row['split']}: {100 * row['wer']:.2f} % over seeds "
            f"{', '.join(map(str, row['seeds']))} ({wers})"
        )
        if (found := row["against"]) is not None:
            high, low = (0.0 - limit for limit in found["ci95"])
            more = f"{0.0 - found['percent']:+.1f} % ({low:+.1f} to {high:+.1f})".replace("-", "−")
            text += (
                f"; errors against {found['run']}: {more}, p {found['p']:.2g}, paired over "
                f"{found['units']} {found['over']} and the seeds"
            )
        lines.append(text)
    return lines
