"""Finished runs -> a **paper's table**: our numbers beside the printed ones.

A run has one score of a held-out split; row and baseline of a seed are compared over the same
speakers, and both speakers and seeds are samples (`score.words.crossed`). Changes are relative
reductions in percent, positive if the row is better, as in the papers. Speeds of a cluster are
simulated (paper.speed) and labelled so, beside this machine's measured times. Knows log.jsonl,
run.json and score files as `report.exchange` does; knows nothing of how runs are trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from asr_train.cost.cluster import read_cluster
from asr_train.paper.claims import NO_REDUCTION, compared
from asr_train.paper.hours import training_hours
from asr_train.paper.layout import JsonRow, TableDict, columns
from asr_train.paper.rows import BASELINE, ClaimSettings, RowSettings, Run, Table
from asr_train.paper.speed import case_of, density, simulated
from asr_train.report.exchange import RECEIVED, Trained, measured
from asr_train.report.tables import Score, held_out, wer_reduction
from asr_train.schema import HUMAN, CommSettings, Halving, ScoreSettings, build


@dataclass(frozen=True, slots=True)
class _Row:
    """A row's settings and the results of its runs, one per seed."""

    label: str
    settings: RowSettings
    printed: dict[str, Any] | None
    seeds: list[int]
    runs: list[Trained]
    scores: list[Score]  # of all test sets of the table together
    by_split: dict[str, list[Score]]  # of each test set that was decoded; empty: there is one
    epochs: list[Sequence[Score]]

    def of_seeds(self, seeds: Sequence[int]) -> "_Row":
        """Return only the results of these seeds, in their order."""
        at = [self.seeds.index(seed) for seed in seeds]
        return replace(
            self,
            seeds=list(seeds),
            runs=[self.runs[i] for i in at],
            scores=[self.scores[i] for i in at],
            by_split={split: [scores[i] for i in at] for split, scores in self.by_split.items()},
            epochs=[self.epochs[i] for i in at] if self.epochs else [],
        )


def paper_table(
    table: Table,
    trained: Mapping[str, Trained],
    epochs: Mapping[str, Sequence[Score]],
    settings: ScoreSettings,
    about: Mapping[str, Any],
    ratios: Mapping[str, Mapping[str, Any]],
) -> TableDict:
    """Return the content of `tables/PAPER-TABLE.json`.

    Args:
        trained: by the name of the run.
        epochs: a run's TEST scores, one per epoch, by its name; read if the table needs them.
        about: provenance of the table (see `provenance.provenance`) and the command.
        ratios: by the label of a row, the paper's and ours; see `paper.ratios.compared`.
    Raises:
        ValueError: if a run, its score or those of its epochs are missing; says what to do.
        DamagedFileError: if a log has no row of training steps.
    """

    def row_of(
        label: str, row: RowSettings, printed: dict[str, Any] | None, runs: Sequence[Run]
    ) -> _Row:
        found = [_found(run, trained, table) for run in runs]
        by_epoch = [_epochs_of(run, epochs) for run in found if table.settings.decode_epochs]
        splits = list(table.settings.splits.values())
        by_split = _by_split(found, splits) if splits else {}
        scores = list(map(_pooled, zip(*by_split.values(), strict=True)))
        scores = scores or [_test_score(run) for run in found]
        seeds = [run.seed for run in runs]
        return _Row(label, row, printed, seeds, found, scores, by_split, by_epoch)

    baseline = row_of(BASELINE, table.settings.baseline, None, table.baselines)
    rows = [
        row_of(row.label, its, row.paper, row.runs)
        for row, its in zip(table.rows, table.settings.rows, strict=True)
    ]
    for row in rows:
        if row.by_split.keys() != baseline.by_split.keys():  # recordings of people
            raise ValueError(
                f"{row.runs[0].run} was tested on {', '.join(row.by_split)}, but "
                f"{baseline.runs[0].run} on {', '.join(baseline.by_split)}; call make with "
                "HUMAN=path if the runs in RECORDS were tested on it, else without HUMAN, or train "
                "all runs here, without RECORDS"
            )
    case, cluster = case_of(table.paper.paper), read_cluster(table.paper.cluster)

    def json_row(row: _Row) -> JsonRow:
        base = baseline.of_seeds(row.seeds)
        ours = ours_of(row, base, settings)
        ours["simulated"] = None
        if case is not None:
            usual = table.paper.runs[row.settings.run]
            comm = row.runs[0].about["settings"]["comm"]
            found = simulated(case, cluster, row.settings, usual, row.printed, comm)
            if found is not None:
                frames = _mean([_frames(run) for run in row.runs])
                alone = _mean([_frames(run) for run in base.runs])
                found["speedup_total"] = (
                    found["speedup"] * alone / frames if alone and frames else None
                )
            ours["simulated"] = found
        ours["hours"] = _hours(row, baseline, table)
        reasons = table.paper.scales[table.scale].unlike | row.settings.unlike
        why = reasons.get("quanta")
        return {
            **{"label": row.label, "paper": row.printed or {}, "ours": ours, "measured": True},
            "ratios": {**ratios.get(row.label, {}), **_quanta(row, ratios.get(row.label, {}), why)},
        }

    content: TableDict = {
        "paper": table.paper.paper,
        "table": table.settings.table,
        "name": table.name,
        "title": f"{table.paper.title}. {table.settings.title}",
        "figure": table.settings.table.startswith("figure"),
        "splits": table.settings.splits,
        "scale": table.scale,
        "passes": None if table.settings.hours is None else table.settings.hours.passes,
        "keys": list(dict.fromkeys(key for row in table.settings.rows for key in row.paper)),
        "cluster": table.paper.cluster,
        "gpu": cluster.gpu.name,
        "baseline": json_row(baseline),
        "rows": [json_row(row) for row in rows],
        "claims": [_claim(c, [*rows, baseline], table, settings) for c in table.settings.claims],
        "bootstrap": settings.draws,
        **about,
    }
    return {**content, "columns": [column.name for column in columns(content)]}


def _claim(
    claim: ClaimSettings, rows: Sequence[_Row], table: Table, settings: ScoreSettings
) -> dict[str, Any]:
    """Return a claim's comparison over the seeds that both rows have; the last is the baseline."""
    row, other = (next(r for r in rows if r.label == x) for x in (claim.row, claim.against))
    own, base = _scores_by_seed(row, claim.epoch), _scores_by_seed(other, claim.epoch)
    both = {seed: (own[seed], base[seed]) for seed in own if seed in base}

    def printed(row: _Row) -> dict[str, Any] | None:
        return NO_REDUCTION if row is rows[-1] else row.printed

    splits = list(table.settings.splits)
    return compared(claim, both, (printed(row), printed(other)), splits, settings)


def _scores_by_seed(row: _Row, epoch: int | None) -> dict[int, Score]:
    """Return a row's scores; after an epoch, those of the runs that have it."""
    if epoch is None:
        return dict(zip(row.seeds, row.scores, strict=True))
    found = zip(row.seeds, row.epochs, strict=True)
    return {seed: scores[epoch - 1] for seed, scores in found if len(scores) >= epoch}


def _hours(row: _Row, base: _Row, table: Table) -> float | None:
    """Return the simulated hours of the paper's training, with the minibatches of our runs."""
    settings, printed = table.settings.hours, row.printed or {}
    parallel = printed.get("data_x_model", printed.get("gpus"))
    if settings is None or parallel is None:
        return None
    # Of the baseline: a row's own is rounded to whole frames of each worker
    first = base.runs[0].about
    frames = first["settings"]["optim"]["minibatch_frames"] * first["workers"]
    found = []
    for run in row.runs:
        optim = run.about["settings"]["optim"]
        cold = max((phase["until"] for phase in optim["phases"]), default=0.0) / optim["epochs"]
        workers = run.about["workers"]
        halves = build(CommSettings, run.about["settings"]["comm"], "comm").halves(workers)
        found.append(training_hours(run.log, frames, cold, halves, parallel, settings))
    return _mean(found)


def _quanta(row: _Row, ratios: Mapping[str, Any], why: str | None) -> dict[str, Any]:
    """Return the elements sent per parameter, worker and epoch: the paper's and ours, if known.

    The paper prints compression ratios, with 32 bits per element.
    """
    share = _mean([density(run) for run in row.runs])
    ratio = (row.printed or {}).get("compression_ratio")
    if share is None or ratio is None or "step_share" not in ratios:
        return {}
    steps = measured(row.runs[0])["sending_steps"] / max(1, len(_frame_errors(row.runs[0])))
    printed = 1 / ratio / ratios["step_share"]["paper"]
    return {"quanta": {"paper": printed, "ours": share * steps, "why": why}}


def _found(run: Run, trained: Mapping[str, Trained], table: Table) -> Trained:
    if run.name not in trained:
        raise ValueError(
            f"table {table.name} needs the run {run.name}, which is missing; run make in the "
            f"recipe's folder with SCALE={table.scale} to train it"
        )
    return trained[run.name]


def _test_score(run: Trained) -> Score:
    found = [score for score in run.scores if held_out(score["split"])]
    if len(found) != 1:
        splits = ", ".join(score["split"] for score in found) or "none"
        raise ValueError(
            f"{run.run} has {len(found)} scores of held-out splits ({splits}), but a row has one; "
            "run make in the recipe's folder to decode it, with one TEST split"
        )
    return found[0]


def _by_split(runs: Sequence[Trained], splits: Sequence[str]) -> dict[str, list[Score]]:
    """Return the scores, one per run, of these test sets; of `test_human` only if it was decoded.

    Raises:
        ValueError: if one is missing.
    """
    found: dict[str, list[Score]] = {}
    for split in splits:
        scores = [s for run in runs for s in run.scores if s["split"] == split]
        if len(scores) == len(runs):
            found[split] = scores
        elif scores or split != HUMAN:
            raise ValueError(
                f"{runs[0].run} and its other seeds have {len(scores)} scores of {split}, but the "
                f"row needs {len(runs)}; run make in the recipe's folder to decode it"
            )
    return found


def _pooled(scores: Sequence[Score]) -> Score:
    """Return the score of several test sets together."""
    counts = {key: sum(score[key] for score in scores) for key in ("errors", "words", "utterances")}
    return {
        "run": scores[0]["run"],
        "split": " + ".join(score["split"] for score in scores),
        **counts,
        "wer": counts["errors"] / max(1, counts["words"]),
        "by_utterance": {
            f"{score['split']}/{utt_id}": row
            for score in scores
            for utt_id, row in score["by_utterance"].items()
        },
    }


def _epochs_of(run: Trained, epochs: Mapping[str, Sequence[Score]]) -> Sequence[Score]:
    found = [score for score in epochs.get(run.run, ()) if held_out(score["split"])]
    if not found:
        raise ValueError(
            f"{run.run} has no scores of its epochs; set optim.keep_epochs=true for it in "
            "paper.yaml and run make again"
        )
    return found


def ours_of(row: _Row, base: _Row, settings: ScoreSettings) -> dict[str, Any]:
    """Return a row's numbers: means over its seeds, None for unknown values."""
    found = [measured(run) for run in row.runs]
    first = found[0]

    def mean(key: str) -> float | None:
        return _mean([numbers[key] for numbers in found])

    frame_errors = [_frame_errors(run) for run in row.runs]
    base_errors = [_frame_errors(run) for run in base.runs]
    optim = row.runs[0].about["settings"].get("optim", {})
    seconds = [numbers["cpu_seconds"] for numbers in found]
    speeds = [_frames(run) / second for run, second in zip(row.runs, seconds, strict=True)]
    virtual = [_last(run, "simulated_seconds") for run in row.runs]
    full_rate = [_full_rate_epochs(run) for run in row.runs]
    diverged = {run.run: why for run in row.runs if (why := _last(run, "diverged"))}
    return {
        "runs": [run.run for run in row.runs],
        **{key: first[key] for key in ("method", "workers", "processes", "parameters")},
        **_method_numbers(row.runs[0]),
        "seeds": len(row.runs),
        "split": row.scores[0]["split"],
        "words": row.scores[0]["words"],
        "utterances": row.scores[0]["utterances"],
        "wer": _mean([score["wer"] for score in row.scores]),
        "wer_by_seed": [score["wer"] for score in row.scores],
        "wer_by_split": {
            split: _mean([score["wer"] for score in scores])
            for split, scores in row.by_split.items()
        },
        "wer_reduction": wer_reduction(row.scores, base.scores, settings),
        "frame_error": _mean([errors[-1] if errors else None for errors in frame_errors]),
        "frame_error_reduction_percent": _mean(
            [
                100 * (1 - own[-1] / other[-1]) if own and other and other[-1] else None
                for own, other in zip(frame_errors, base_errors, strict=True)
            ]
        ),
        "epochs": max(map(len, frame_errors)),
        "frame_error_by_epoch": _by_epoch(frame_errors),
        "frame_error_over_baseline_by_epoch": _by_epoch(
            [
                [a / b for a, b in zip(own, other, strict=False) if b]
                for own, other in zip(frame_errors, base_errors, strict=True)
            ]
        ),
        "wer_by_epoch": _by_epoch([[score["wer"] for score in scores] for scores in row.epochs]),
        "train_accuracy": _mean([_train_accuracy(run) for run in row.runs]),
        "rate_divisors": _divisors(row.runs[0]),
        "minibatch_by_epoch": _by_epoch([_minibatches(run) for run in row.runs]),
        "is_controlled": bool(optim.get("auto_minibatch") or optim.get("auto_rate")),
        "message_bytes_a_minibatch": mean("message_bytes_a_minibatch"),
        "compression_ratio": mean("compression_ratio"),
        "elements_a_minibatch": mean("elements_a_minibatch"),
        "bits_an_element": mean("bits_an_element"),
        "density": mean("density"),
        **{key: mean(key) for key in RECEIVED},
        "minibatch_frames": optim.get("minibatch_frames"),
        "frames_an_epoch": _frames(row.runs[0]) / max(1, len(frame_errors[0])),
        "staleness": mean("staleness"),
        "frames_a_cpu_second": _mean(speeds),
        "cpu_minutes": _mean([second / 60 for second in seconds]),
        "virtual_seconds": _mean(virtual),
        **({"diverged": diverged} if diverged else {}),
        **({"full_rate_epochs": full_rate} if optim.get("halving") == Halving.newbob.name else {}),
    }


def _method_numbers(run: Trained) -> dict[str, float | None]:
    """Return the numbers that the papers' tables vary."""
    comm = build(CommSettings, run.about["settings"]["comm"], "comm")
    facts = comm.method.facts
    in_groups = facts.traffic.in_groups
    return {
        "threshold": comm.gtc.threshold if "gtc" in facts.needs and comm.gtc else None,
        "block_steps": getattr(comm, facts.blocks).block_steps if facts.blocks else None,
        "group_size": comm.group_of(run.about["workers"]) if in_groups else None,
        "halves": comm.halves(run.about["workers"]),  # of a minibatch, each a step
    }


def _frame_errors(run: Trained) -> list[float]:
    """Return DEV's frame errors, as fractions, after each epoch."""
    return [1 - row["dev_accuracy"] for row in run.log if "dev_accuracy" in row]


def _train_accuracy(run: Trained) -> float | None:
    """Return the share of frames that were right in the last epoch, while it was trained."""
    rows = [row for row in run.log if row.get("accuracy") is not None]  # null: all were skipped
    epochs = {row["epoch"] for row in rows}
    before = 0
    right = frames = 0.0
    for row in rows:
        if row["epoch"] == max(epochs):
            right += row["accuracy"] * (row["frames"] - before)
            frames += row["frames"] - before
        before = row["frames"]
    return right / frames if frames else None


def _divisors(run: Trained) -> list[float]:
    """Return the first rate over the rate at the end of each epoch."""
    rates = [row["rate"] for row in run.log if "dev_accuracy" in row]
    first = run.about["settings"].get("optim", {}).get("rate")
    return [first / rate for rate in rates] if first and all(rates) else []


def _full_rate_epochs(run: Trained) -> int:
    """Return the number of epochs that ended at the highest rate."""
    rates = [row["rate"] for row in run.log if "dev_accuracy" in row]
    return rates.count(max(rates, default=0.0))


def _minibatches(run: Trained) -> list[float]:
    """Return the mean number of frames of all workers per step in each epoch."""
    ends = {row["epoch"]: (row["step"], row["frames"]) for row in run.log if "frames" in row}
    found, before = [], (0, 0)
    for _, end in sorted(ends.items()):
        found.append((end[1] - before[1]) / max(1, end[0] - before[0]))
        before = end
    return found


def _frames(run: Trained) -> int:
    """Return the number of frames trained on in all epochs."""
    return int(_last(run, "frames") or 0)


def _last(run: Trained, key: str) -> Any:
    return next((row[key] for row in reversed(run.log) if key in row), None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) and known else None


def _by_epoch(series: Sequence[Sequence[float]]) -> list[float]:
    """Return means by epoch over the seeds that reached it."""
    return [
        sum(known) / len(known)
        for values in zip_longest(*series)
        if (known := [value for value in values if value is not None])
    ]
