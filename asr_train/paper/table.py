"""Finished runs -> a **paper's table**: our numbers beside the printed ones.

A run has one score of a held-out split; row and baseline of a seed are compared over the same
speakers, and seeds are drawn as speakers are. Changes are relative reductions in percent, positive
if the row is better, as in the papers. Speeds of a cluster are simulated (paper.speed) and labelled
so, beside this machine's measured times. Knows log.jsonl, run.json and score files as
`report.exchange` does; knows nothing of how runs are trained.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from asr_train.cost.cluster import ClusterSettings
from asr_train.paper.claims import (
    WERS,
    claims_lines,
    claims_markdown,
    compared,
    interval,
    p_value,
    signed,
)
from asr_train.paper.hours import SET_FRAMES, hours_of_pass
from asr_train.paper.ratios import MOST_OFF, RATIOS, off
from asr_train.paper.rows import BASELINE, ClaimSettings, RowSettings, Run, Table
from asr_train.paper.speed import case_of, density, simulated
from asr_train.report.exchange import (
    DASH,
    RECEIVED,
    Trained,
    at_both_rates,
    digits,
    measured,
    text,
)
from asr_train.report.tables import Score, aligned, as_markdown, held_out, made, wer_reduction
from asr_train.schema import HUMAN, CommSettings, ScoreSettings, build

TableDict = dict[str, Any]
JsonRow = dict[str, Any]


# --- the numbers --------------------------------------------------------------------------------


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
    cluster: ClusterSettings,
    about: Mapping[str, Any],
    papers: Path,
    ratios: Mapping[str, Mapping[str, Any]],
) -> TableDict:
    """Return the content of `tables/PAPER-TABLE.json`.

    Args:
        trained: by the name of the run.
        epochs: a run's TEST scores, one per epoch, by its name; read if the table needs them.
        cluster: the paper's, of conf/cluster.
        about: provenance of the table (see `report.tables.provenance`) and the command.
        papers: the folder of printed numbers.
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
    case = case_of(table.paper.paper, papers)

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
        ours["hours"] = _hours(row, table, papers.parent)
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
    """Return a claim's comparison over the seeds that both rows have."""
    row, other = (next(r for r in rows if r.label == x) for x in (claim.row, claim.against))
    own, base = _scores_by_seed(row, claim.epoch), _scores_by_seed(other, claim.epoch)
    both = {seed: (own[seed], base[seed]) for seed in own if seed in base}
    splits = list(table.settings.splits)
    return compared(claim, both, (row.printed, other.printed), splits, settings)


def _scores_by_seed(row: _Row, epoch: int | None) -> dict[int, Score]:
    """Return a row's scores; after an epoch, those of the runs that have it."""
    if epoch is None:
        return dict(zip(row.seeds, row.scores, strict=True))
    found = zip(row.seeds, row.epochs, strict=True)
    return {seed: scores[epoch - 1] for seed, scores in found if len(scores) >= epoch}


def _hours(row: _Row, table: Table, conf: Path) -> float | None:
    """Return the simulated hours of the paper's pass, with the minibatches that our runs chose."""
    one_pass, printed = table.settings.one_pass, row.printed
    if one_pass is None or printed is None or "data_x_model" not in printed:
        return None
    found = []
    for run in row.runs:
        optim = run.about["settings"]["optim"]
        cold = max((phase["until"] for phase in optim["phases"]), default=0.0) / optim["epochs"]
        frames = optim["minibatch_frames"] * run.about["workers"]
        found.append(hours_of_pass(run.log, frames, cold, printed["data_x_model"], one_pass, conf))
    return _mean(found)


def _quanta(row: _Row, ratios: Mapping[str, Any], why: str | None) -> dict[str, Any]:
    """Return the elements sent per parameter, worker and epoch: the paper's and ours, if known.

    The paper prints compression ratios, with 32 bits per element.
    """
    share = _mean([density(run) for run in row.runs])
    ratio = (row.printed or {}).get("compression_ratio")
    if share is None or ratio is None or "step_share" not in ratios:
        return {}
    steps = measured(row.runs[0])["steps"] / max(1, len(_frame_errors(row.runs[0])))
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
    speeds = [
        second and _frames(run) / second for run, second in zip(row.runs, seconds, strict=True)
    ]
    virtual = [_last(run, "simulated_seconds") for run in row.runs]
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
        "cpu_minutes": _mean([second and second / 60 for second in seconds]),
        "virtual_seconds": _mean(virtual),
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


def _last(run: Trained, key: str) -> float | None:
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


# --- as text ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and the text of a row in this column."""

    name: str
    cell: Callable[[JsonRow], str]
    short: str = ""  # for the terminal; "": not shown there


def _ours(key: str, spell: Callable[[Any], str], factor: float = 1) -> Callable[[JsonRow], str]:
    def cell(row: JsonRow) -> str:
        value = row["ours"].get(key)
        return text(value if value is None or factor == 1 else factor * value, spell)

    return cell


def _simulated(key: str) -> Callable[[JsonRow], str]:
    return lambda row: text((row["ours"]["simulated"] or {}).get(key), _speed)


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _wer_cell(row: JsonRow) -> str:
    each = [f"{100 * wer:.2f}" for wer in row["ours"]["wer_by_seed"]]
    mean = f"{100 * row['ours']['wer']:.2f}"
    return f"{mean} ({', '.join(each)})" if len(each) > 1 else mean


# Columns of ours, by name, so that none is repeated
WORKERS = Column("workers", _ours("workers", str), "workers")
WER = Column("WER %", _wer_cell, "WER %")
REDUCTION = Column(
    "relative WER reduction %",
    lambda row: interval(row["ours"]["wer_reduction"]),
    "WER reduction %",
)
KILOBYTES = Column("KB per minibatch", _ours("message_bytes_a_minibatch", digits, 1e-3), "KB")
RATIO = Column("compression ratio", _ours("compression_ratio", digits), "ratio")
KILOBYTES_RECEIVED = Column(
    "KB received per step", _ours("received_bytes_a_minibatch", digits, 1e-3), "KB received"
)
BELOW_BF16 = Column("bf16 / received", _ours("bf16_over_received", digits))
GIGABYTES_RECEIVED = Column(
    "GB received, all workers", _ours("received_bytes_all_workers", digits, 1e-9)
)
TRANSFER = Column("minutes at 1 / 10 Gb/s", _ours("minutes_at_1_gbps", at_both_rates))
FRAMES = Column(
    "frames/s, CPU of this machine", _ours("frames_a_cpu_second", lambda x: f"{x:,.0f}")
)
SIMULATED_FRAMES = Column("frames/s, simulated", _simulated("frames_per_second"))
MINUTES = Column("minutes, CPU of this machine", _ours("cpu_minutes", digits))
TOTAL = Column("speed-up in total time, simulated", _simulated("speedup_total"))
SPEEDUP = Column("speed-up, simulated", _simulated("speedup"), "speed-up")
THRESHOLD = Column("threshold", _ours("threshold", lambda x: f"{x:g}"))
BLOCK = Column("block size", _ours("block_steps", str))
GROUP = Column("group size", _ours("group_size", str))
MILLIONS = Column("million parameters", _ours("parameters", lambda x: f"{x:.3g}", 1e-6))

HOURS = Column("hours, simulated", _ours("hours", digits), "hours")
TRAIN_ACCURACY = Column(
    "training frame accuracy %", _ours("train_accuracy", lambda x: f"{x:.1f}", 100), "accuracy"
)


def _after(epoch: int) -> Column:
    """Return the column of the WER after an epoch (from 1)."""

    def cell(row: JsonRow) -> str:
        found = row["ours"]["wer_by_epoch"]
        return f"{100 * found[epoch - 1]:.2f}" if len(found) >= epoch else DASH

    return Column(f"WER % after epoch {epoch}", cell, f"WER % {epoch}")


def _of_split(split: str) -> Column:
    """Return the column of the WER of one of several test sets."""

    def cell(row: JsonRow) -> str:
        wer = row["ours"]["wer_by_split"].get(split)
        return DASH if wer is None else f"{100 * wer:.2f}"

    return Column(f"ours, WER % of {split}", cell, split)


BESIDE = {  # the paper's columns -> our columns beside them
    "nodes": (WORKERS,),
    "gpus": (WORKERS,),
    "tau": (THRESHOLD,),
    "block_size": (BLOCK,),
    "group_size": (GROUP,),
    "parameters_millions": (MILLIONS,),
    "frames_per_second": (SIMULATED_FRAMES, FRAMES),
    "relative_speed": (SPEEDUP,),
    "speedup_frames_per_second": (SPEEDUP,),
    "speedup_total_time": (TOTAL,),
    "elapsed_minutes": (MINUTES,),
    "hours": (HOURS,),
    "update_kb_per_minibatch": (KILOBYTES,),
    "compression_ratio": (RATIO,),
    "relative_wer_reduction_percent": (REDUCTION,),
    **dict.fromkeys(WERS, (WER,)),
    **{name: (TRAIN_ACCURACY,) for name in ("acc", "main_acc", "relu_acc", "svd_ll_acc")},
    **{f"pass_{n}": (_after(n),) for n in range(1, 8)},
}


def columns(table: TableDict) -> list[Column]:
    """Return the row's name; the paper's columns with ours beside; then our other columns."""
    printed = list(dict.fromkeys(key for row in table["rows"] for key in row["paper"]))
    keys = table["keys"]
    found = [
        Column("row", lambda row: row["label"], "row"),
        Column("method, ours", _ours("method", str)),
    ]
    shown: set[str] = set()
    for key in [*keys, *(key for key in printed if key not in keys)]:
        split = table.get("splits", {}).get(key)
        beside = (_of_split(split),) if split else BESIDE.get(key, ())
        shown |= {column.name for column in beside}
        if beside or key not in keys:  # otherwise it is in the row's name
            found.append(_printed_column(key, beside))
    virtual, late = (
        any(row["ours"][key] is not None for row in table["rows"])
        for key in ("virtual_seconds", "staleness")
    )
    rest = [
        WORKERS,
        WER,
        REDUCTION,
        Column("p", lambda row: p_value(row["ours"]["wer_reduction"])),
        Column("DEV frame error %", _ours("frame_error", lambda x: f"{x:.2f}", 100), "DEV frame %"),
        Column("relative frame error reduction %", _ours("frame_error_reduction_percent", signed)),
        KILOBYTES,
        RATIO,
        KILOBYTES_RECEIVED,
        BELOW_BF16,
        GIGABYTES_RECEIVED,
        TRANSFER,
        Column("elements per step", _ours("elements_a_minibatch", digits)),
        Column("bits per element", _ours("bits_an_element", digits)),
        Column("density", _ours("density", lambda x: f"{x:.2g}")),
        Column("minibatch, frames per worker", _ours("minibatch_frames", str)),
        FRAMES,
        MINUTES,
        *([Column("mean staleness, steps", _ours("staleness", digits))] if late else []),
        *([Column("virtual seconds", _ours("virtual_seconds", digits))] if virtual else []),
        SPEEDUP,
    ]
    known = [column for column in rest if column.name not in shown]
    rows = rows_shown(table)
    return found + [c for c in known if any(c.cell(row) != DASH for row in rows)]


WORDS = {
    **dict.fromkeys(WERS, WER.name),
    **{name: TRAIN_ACCURACY.name for name in ("acc", "main_acc", "relu_acc", "svd_ll_acc")},
    **{f"pass_{n}": _after(n).name for n in range(1, 8)},
    "frames_per_second": "frames/s",
    "elapsed_minutes": "minutes",
    "relative_speed": "speed-up",
    "speedup_frames_per_second": "speed-up in frames/s",
    "speedup_total_time": "speed-up in total time",
    "update_kb_per_minibatch": KILOBYTES.name,
    "parameters_millions": MILLIONS.name,
    "relative_wer_reduction_percent": REDUCTION.name,
}


def _words(key: str) -> str:
    return WORDS.get(key, key.replace("_", " "))


def _printed_column(key: str, beside: Sequence[Column]) -> Column:
    def cell(row: JsonRow) -> str:
        value = row["paper"].get(key)
        printed = text(value, lambda x: f"{x:,}" if isinstance(x, int) else str(x))
        return " / ".join([printed.replace("-", "−"), *(column.cell(row) for column in beside)])

    names = [column.name.partition(", ")[2] or "ours" for column in beside]
    short = next((column.short for column in beside if column.short), "")
    return Column(f"{_words(key)}: {' / '.join(['paper', *names])}", cell, short)


def rows_shown(table: TableDict) -> list[JsonRow]:
    """Return the rows, after the baseline if it is not one of them."""
    base, rows = table["baseline"], table["rows"]
    if any(row["ours"]["runs"] == base["ours"]["runs"] for row in rows):
        return list(rows)
    return [base, *rows]


def markdown(table: TableDict) -> str:
    """Format the table as Markdown."""
    shown = columns(table)
    cells = [[column.cell(row) for column in shown] for row in rows_shown(table)]
    names = [column.name for column in shown]
    return (
        as_markdown(table["title"], names, cells, notes(table))
        + claims_markdown(table["claims"])
        + _ratios_markdown(table)
    )


def plain(table: TableDict) -> str:
    """Format the main columns for a terminal."""
    shown = [column for column in columns(table) if column.short]
    cells = [[column.cell(row) for column in shown] for row in rows_shown(table)]
    explanation = "a / b: the paper's / ours; ours of speed-ups are simulated\n"
    ratios, claims = _ratio_cells(table), claims_lines(table["claims"])
    return (
        aligned([[column.short for column in shown], *cells])
        + explanation
        + (f"claims of the paper:\n{aligned(claims)}" if claims else "")
        + (f"ratios, the paper's / ours:\n{aligned(ratios)}" if ratios else "")
    )


def _ratio_cells(table: TableDict) -> list[list[str]]:
    """Return the headings and rows of the table of ratios; none for a table without."""
    rows = [row for row in rows_shown(table) if row.get("ratios")]
    names = [name for name in RATIOS if any(name in row["ratios"] for row in rows)]
    lines = [["row", *(RATIOS[name].words for name in names)]]
    for row in rows:
        found = [row["ratios"].get(name) for name in names]
        lines.append([row["label"], *map(_ratio_cell, found)])
    return lines if rows else []


def _ratio_cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return DASH
    mark = " †" if off(found["paper"], found["ours"]) > MOST_OFF else ""
    return f"{found['paper']:.3g} / {found['ours']:.3g}{mark}"


def _ratios_markdown(table: TableDict) -> str:
    lines = _ratio_cells(table)
    if not lines:
        return ""
    reasons = {
        f"{RATIOS[name].words}: {found['why']}"
        for row in rows_shown(table)
        for name, found in row["ratios"].items()
        if found["why"]
    }
    explanation = f"The paper's / ours. †: more than {MOST_OFF:g} times off; reasons are below."
    return "\n#" + as_markdown("Ratios", lines[0], lines[1:], [explanation, *sorted(reasons)])


def notes(table: TableDict) -> list[str]:
    """Explain the columns and numbers, with caveats."""
    base = table["baseline"]["ours"]
    rows = [row["ours"] for row in rows_shown(table)]
    lines = [
        f"Paper: as printed, at the paper's size; ours: at scale {table['scale']}; {DASH}: not "
        "printed, or unknown.",
        _reduction_note(base, table),
        f"WER: of {base['split']}, {base['utterances']:,} utterances, {base['words']:,} words"
        f"{', a mean over seeds' if base['seeds'] > 1 else ''}; {_seeds_words(rows)} per row. "
        "Frame errors: of DEV, after the last epoch.",
        _size_note(rows),
        "KB, ratio, elements and density: what a worker sends per step, messages with headers, "
        "averaged over the run; including weights of blocks. The ratio is to 4 bytes per "
        "parameter. Received: what arrives at a worker from all others; bf16 / received: ring "
        "all-reduce of bf16 gradients receives so many times as much; minutes: in which a worker "
        "receives the whole run's at that rate.",
    ]
    virtual = any(ours["processes"] < ours["workers"] for ours in rows)
    lines.append(
        "CPU of this machine: CPU seconds of training steps"
        + (
            ", of all workers that share a process; not the speed of a cluster."
            if virtual
            else ", of the process that writes the log."
        )
    )
    if any(ours["virtual_seconds"] is not None for ours in rows):
        lines.append("Virtual seconds: the simulated clock of an asynchronous run.")
    lines += _simulated_notes(table)
    if any(ours.get("hours") is not None for ours in rows):
        lines.append(
            "Hours: simulated, of one pass over the paper's speech by its hardware and network, "
            f"with our runs' minibatches in multiples of {SET_FRAMES:,} frames; time for trying "
            "sizes is left out."
        )
    if any(ours["wer_by_epoch"] for ours in rows):
        lines += [_epochs_line(row) for row in rows_shown(table)]
    if any(ours["is_controlled"] for ours in rows):
        lines += [_control_line(row) for row in rows_shown(table)]
    if table.get("elsewhere"):
        lines.append("Trained elsewhere, and read from records: " + _elsewhere(table["elsewhere"]))
    return [*lines, f"{made(table)[:-1]}: `{table['command']}`."]


def _elsewhere(runs: Iterable[Mapping[str, str]]) -> str:
    found = [
        f"{run['run']} ({run['date']}, commit {run['commit']}, {run['machine']})" for run in runs
    ]
    return "; ".join(found) + "."


def _seeds_words(rows: Sequence[dict[str, Any]]) -> str:
    counts = sorted({ours["seeds"] for ours in rows})
    numbers = " or ".join(", ".join(map(str, counts)).rsplit(", ", 1))
    return f"{numbers} seed{'s' if counts[-1] > 1 else ''}"


def _reduction_note(base: dict[str, Any], table: TableDict) -> str:
    found, draws = base["wer_reduction"], table["bootstrap"]
    if found is None:
        return "The baseline made no error, so there is no relative WER reduction."
    seeds = " and seeds" if base["seeds"] > 1 else ""
    return (
        "Relative reductions: errors fewer than those of the baseline "
        f"({', '.join(base['runs'])}), in percent of them; positive: better, as in the papers. "
        f"In brackets the 95 % interval, a bootstrap over {found['units']} {found['over']}{seeds} "
        f"({draws['bootstrap']} draws, seed {draws['seed']}), the same for row and baseline; "
        "*: it excludes 0. p is two-sided."
    )


def _size_note(rows: Sequence[dict[str, Any]]) -> str:
    sizes = sorted({ours["parameters"] for ours in rows if ours["parameters"]})
    epochs, batches = ({ours[key] for ours in rows} for key in ("epochs", "minibatch_frames"))
    frames = sorted({round(ours["frames_an_epoch"]) for ours in rows})
    networks = f"networks of {_listed(sizes)} parameters, " if sizes else ""  # known if they send
    return (
        f"Trained: {networks}for {_listed(epochs)} epochs of "
        f"{_range(frames)} frames, minibatches of {_listed(batches)} frames per worker."
    )


def _listed(numbers: Iterable[int | None]) -> str:
    known = sorted(n for n in numbers if n is not None)
    return ", ".join(f"{n:,}" for n in known) or DASH


def _range(numbers: Sequence[int]) -> str:
    low, high = numbers[0], numbers[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _simulated_notes(table: TableDict) -> list[str]:
    found = [row["ours"]["simulated"] for row in table["rows"] if row["ours"]["simulated"]]
    if not found:
        return []
    methods = ", ".join(dict.fromkeys(f["method"] for f in found))
    sizes = ", ".join(dict.fromkeys(f"{f['parameters'] / 1e6:g}" for f in found))
    frames = ", ".join(dict.fromkeys(f"{f['minibatch_frames']:,}" for f in found))
    return [
        f"Simulated, not measured, and all the paper's: workers ({table['gpu']}, conf/cluster/"
        f"{table['cluster']}.yaml with its fitted constants), network ({sizes} million "
        f"parameters), minibatch ({frames} frames), method ({methods}) and density at the row's "
        "threshold, at 32 bits per element. Speed-ups are over one worker of the paper's first "
        "network; in total time: times the frames that our baseline was trained on over those of "
        "our row. Accuracy of simulation for the paper's own speeds: "
        f"results/{table['paper']}/speed.md."
    ]


def _control_line(row: JsonRow) -> str:
    sizes = ", ".join(f"{size:,.0f}" for size in row["ours"]["minibatch_by_epoch"])
    divisors = ", ".join(f"{divisor:g}" for divisor in row["ours"]["rate_divisors"])
    return (
        f"{row['label']}: mean frames per step in each epoch {sizes}; the rate was divided by "
        f"{divisors or DASH} at the end of each."
    )


def _epochs_line(row: JsonRow) -> str:
    series = ", ".join(f"{100 * wer:.2f}" for wer in row["ours"]["wer_by_epoch"])
    return f"{row['label']}: WER % after each epoch {series}."
