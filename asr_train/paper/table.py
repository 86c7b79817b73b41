"""Finished runs -> a **paper's table**: our numbers beside the printed ones.

A run has one score of a held-out split; row and baseline of a seed are compared over the same
speakers, and both speakers and seeds are samples (`score.words.crossed`). Changes are relative
reductions in percent, positive if the row is better, as in the papers. Speeds of a cluster are
simulated (paper.speed) and labelled so, beside this machine's measured times. Knows log.jsonl,
run.json and score files as `report.exchange` does; knows nothing of how runs are trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

from asr_train.cost.cluster import read_cluster
from asr_train.paper.claims import NO_REDUCTION, printed_reduction
from asr_train.paper.hours import training_hours
from asr_train.paper.layout import JsonRow, TableDict, columns
from asr_train.paper.rows import ClaimSettings, Row, Run, Table
from asr_train.paper.speed import case_of, density, simulated
from asr_train.report.exchange import RECEIVED, Trained, measured
from asr_train.report.tables import Score, held_out, wer_reduction
from asr_train.schema import HUMAN, Halving, ScoreSettings

SENT = (  # numbers of `measured`
    *("message_bytes_a_minibatch", "compression_ratio", "elements_a_minibatch"),
    *("bits_an_element", "density"),
)


@dataclass(frozen=True, slots=True)
class _Result:
    """The results of a row's run of one seed."""

    run: Trained
    score: Score  # of all test sets of the table together
    by_split: dict[str, Score]  # of each test set that was decoded; empty: there is one
    epochs: Sequence[Score]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row and its results, by seed."""

    row: Row
    results: dict[int, _Result]

    @property
    def runs(self) -> list[Trained]:
        return [found.run for found in self.results.values()]


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
    splits = list(table.settings.splits.values())

    def result(run: Run) -> _Result:
        found = _found(run, trained, table)
        by_split = _by_split(found, splits)
        score = _pooled(list(by_split.values())) if by_split else _test_score(found)
        by_epoch = _epochs_of(found, epochs) if table.settings.decode_epochs else []
        return _Result(found, score, by_split, by_epoch)

    baseline, *rows = (
        _Row(row, {run.seed: result(run) for run in row.runs})
        for row in (table.baseline, *table.rows)
    )
    usual, *others = (found for row in (baseline, *rows) for found in row.results.values())
    for other in others:
        if other.by_split.keys() != usual.by_split.keys():  # recordings of people
            raise ValueError(
                f"{other.run.run} was tested on {', '.join(other.by_split)}, but {usual.run.run} "
                f"on {', '.join(usual.by_split)}; call make with HUMAN=path if the runs in RECORDS "
                "were tested on it, else without HUMAN, or train all runs here, without RECORDS"
            )
    case, cluster = case_of(table.paper.paper), read_cluster(table.paper.cluster)

    def json_row(found: _Row) -> JsonRow:
        row, runs = found.row, found.runs
        base = [baseline.results[seed] for seed in found.results]
        ours = ours_of(list(found.results.values()), base, settings)
        defaults, comm = table.paper.runs[row.settings.run], runs[0].about["settings"]["comm"]
        speed = simulated(case, cluster, row.settings, defaults, row.paper, comm)
        if speed is not None:
            frames = _mean([_whole(run, _frames(run)) for run in runs])
            alone = _mean([_whole(each.run, _frames(each.run)) for each in base])
            speed["speedup_total"] = speed["speedup"] * alone / frames if alone and frames else None
        ours |= {"simulated": speed, "hours": _hours(found, baseline, table)}
        reasons = table.paper.scales[table.scale].unlike | row.settings.unlike
        known = ratios.get(row.label, {})
        return {
            **{"label": row.label, "paper": row.paper or {}, "ours": ours, "measured": True},
            "ratios": {**known, **_quanta(found, known, reasons.get("quanta"))},
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
        "claims": [_claim(c, baseline, rows, table, settings) for c in table.settings.claims],
        "bootstrap": settings.draws,
        **about,
    }
    return {**content, "columns": [column.name for column in columns(content)]}


def _claim(
    claim: ClaimSettings,
    baseline: _Row,
    rows: Sequence[_Row],
    table: Table,
    settings: ScoreSettings,
) -> dict[str, Any]:
    """Return what the paper prints of a claim and what our runs say, over seeds of both rows."""
    named = {each.row.label: each for each in (baseline, *rows)}
    both = named[claim.row], named[claim.against]
    own, base = (_scores_by_seed(row, claim.epoch) for row in both)
    first, second = (NO_REDUCTION if row is baseline else row.row.paper for row in both)
    seeds = sorted(own.keys() & base.keys())
    scores = [own[seed] for seed in seeds], [base[seed] for seed in seeds]
    return {
        **{"claim": claim.claim, "row": claim.row, "against": claim.against, "epoch": claim.epoch},
        "seeds": seeds,
        "paper": printed_reduction(first, second, list(table.settings.splits), claim.epoch),
        "ours": wer_reduction(*scores, settings) if seeds else None,
    }


def _scores_by_seed(row: _Row, epoch: int | None) -> dict[int, Score]:
    """Return a row's scores; after an epoch, those of the runs that have it."""
    if epoch is None:
        return {seed: found.score for seed, found in row.results.items()}
    epochs = {seed: found.epochs[epoch - 1 : epoch] for seed, found in row.results.items()}
    return {seed: scores[0] for seed, scores in epochs.items() if scores}


def _hours(row: _Row, base: _Row, table: Table) -> float | None:
    """Return the simulated hours of the paper's training, with the minibatches of our runs."""
    settings, printed = table.settings.hours, row.row.paper or {}
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
        halves = run.comm.halves(run.about["workers"])
        found.append(training_hours(run.log, frames, cold, halves, parallel, settings))
    return _mean(found)


def _quanta(row: _Row, ratios: Mapping[str, Any], why: str | None) -> dict[str, Any]:
    """Return the elements sent per parameter, worker and epoch: the paper's and ours, if known.

    The paper prints compression ratios, with 32 bits per element.
    """
    share = _mean([density(run) for run in row.runs])
    ratio = (row.row.paper or {}).get("compression_ratio")
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


def _by_split(run: Trained, splits: Sequence[str]) -> dict[str, Score]:
    """Return the scores of these test sets; of `test_human` only if it was decoded.

    Raises:
        ValueError: if one is missing.
    """
    found = {score["split"]: score for score in run.scores}
    for split in splits:
        if split not in found and split != HUMAN:
            raise ValueError(
                f"{run.run} has no score of {split}, which the row needs; run make in the recipe's "
                "folder to decode it"
            )
    return {split: found[split] for split in splits if split in found}


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


def ours_of(
    results: Sequence[_Result], base: Sequence[_Result], settings: ScoreSettings
) -> dict[str, Any]:
    """Return a row's numbers: means over its seeds, None for unknown values.

    Args:
        base: the baseline's results with the same seeds.
    """
    runs = [each.run for each in results]
    scores = [each.score for each in results]
    found = [measured(run) for run in runs]
    first = found[0]

    def mean(key: str) -> float | None:
        return _mean([numbers[key] for numbers in found])

    frame_errors = [_frame_errors(run) for run in runs]
    both_errors = [*zip(frame_errors, [_frame_errors(each.run) for each in base], strict=True)]
    optim = runs[0].about["settings"].get("optim", {})
    seconds = [numbers["cpu_seconds"] for numbers in found]
    speeds = [_frames(run) / second for run, second in zip(runs, seconds, strict=True)]
    virtual = [_whole(run, _last(run, "simulated_seconds")) for run in runs]
    full_rate = [_full_rate_epochs(run) for run in runs]
    diverged = {run.run: why for run in runs if (why := _last(run, "diverged"))}
    return {
        "runs": [run.run for run in runs],
        **{key: first[key] for key in ("method", "workers", "processes", "parameters")},
        **_method_numbers(runs[0]),
        "seeds": len(runs),
        **{key: scores[0][key] for key in ("split", "words", "utterances")},
        "wer": _mean([score["wer"] for score in scores]),
        "wer_by_seed": [score["wer"] for score in scores],
        "wer_by_split": {
            split: _mean([each.by_split[split]["wer"] for each in results])
            for split in results[0].by_split
        },
        "wer_reduction": wer_reduction(scores, [each.score for each in base], settings),
        "frame_error": _mean([errors[-1] if errors else None for errors in frame_errors]),
        "frame_error_reduction_percent": _mean(
            [100 * (1 - a[-1] / b[-1]) if a and b and b[-1] else None for a, b in both_errors]
        ),
        "epochs": max(map(len, frame_errors)),
        "frame_error_by_epoch": _by_epoch(frame_errors),
        "frame_error_over_baseline_by_epoch": _by_epoch(
            [[a / b for a, b in zip(*both, strict=False) if b] for both in both_errors]
        ),
        "wer_by_epoch": _by_epoch([[score["wer"] for score in each.epochs] for each in results]),
        "train_accuracy": _mean([_train_accuracy(run) for run in runs]),
        "rate_divisors": _divisors(runs[0]),
        "minibatch_by_epoch": _by_epoch([_minibatches(run) for run in runs]),
        "is_controlled": bool(optim.get("auto_minibatch") or optim.get("auto_rate")),
        **{key: mean(key) for key in (*SENT, *RECEIVED)},
        "minibatch_frames": optim.get("minibatch_frames"),
        "frames_an_epoch": _frames(runs[0]) / max(1, len(frame_errors[0])),
        "staleness": mean("staleness"),
        "frames_a_cpu_second": _mean(speeds),
        "cpu_minutes": _mean(
            [_whole(run, second / 60) for run, second in zip(runs, seconds, strict=True)]
        ),
        "virtual_seconds": _mean(virtual),
        **({"diverged": diverged} if diverged else {}),
        **({"full_rate_epochs": full_rate} if optim.get("halving") == Halving.newbob.name else {}),
    }


def _method_numbers(run: Trained) -> dict[str, float | None]:
    """Return the numbers that the papers' tables vary."""
    comm, in_groups = run.comm, run.comm.method.traffic.in_groups
    return {
        "threshold": comm.threshold,
        "block_steps": comm.block_steps,
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
    pairs = pairwise([(0, 0), *(end for _, end in sorted(ends.items()))])
    return [(frames - before) / max(1, step - first) for (first, before), (step, frames) in pairs]


def _frames(run: Trained) -> int:
    """Return the number of frames trained on in all epochs."""
    return int(_last(run, "frames") or 0)


def _whole(run: Trained, total: float | None) -> float | None:
    """Return a total of the whole run; None if it diverged, as it then depends on when it did."""
    return total if _last(run, "diverged") is None else None


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
