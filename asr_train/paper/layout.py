"""A paper's table -> **Markdown, and lines for a terminal**: the paper's columns, ours beside them.

Knows only the content of `paper.table`, and nothing of runs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asr_train.paper.claims import (
    WERS,
    claims_lines,
    claims_markdown,
    groups_note,
    interval,
    p_value,
    signed,
)
from asr_train.paper.hours import SET_FRAMES
from asr_train.paper.ratios import MOST_OFF, RATIOS, off, unexplained
from asr_train.provenance import made
from asr_train.report.exchange import DASH, NUMBERS, digits, text
from asr_train.report.tables import aligned, as_markdown

TableDict = dict[str, Any]
JsonRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and the text of a row in this column."""

    name: str
    cell: Callable[[JsonRow], str]
    short: str = ""  # for the terminal; "": not shown there


def _ours(key: str, spell: Callable[[Any], str]) -> Callable[[JsonRow], str]:
    return lambda row: text(row["ours"].get(key), spell)


def _exchanged(name: str, short: str = "") -> Column:
    """Return a column of the table of exchanges."""
    return Column(name, _ours(*NUMBERS[name]), short)


def _simulated(key: str) -> Callable[[JsonRow], str]:
    return lambda row: text((row["ours"]["simulated"] or {}).get(key), _speed)


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _label(row: JsonRow) -> str:
    return f"{row['label']} (diverged)" if "diverged" in row["ours"] else str(row["label"])


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _wer_cell(row: JsonRow) -> str:
    each = [_percent(wer) for wer in row["ours"]["wer_by_seed"]]
    mean = _percent(row["ours"]["wer"])
    return f"{mean} ({', '.join(each)})" if len(each) > 1 else mean


# Columns of ours, by name, so that none is repeated
WORKERS = Column("workers", _ours("workers", str), "workers")
WER = Column("WER %", _wer_cell, "WER %")
REDUCTION = Column(
    "relative WER reduction %",
    lambda row: interval(row["ours"]["wer_reduction"]),
    "WER reduction %",
)
KILOBYTES = _exchanged("KB per minibatch", "KB")
RATIO = Column("compression ratio", _ours("compression_ratio", digits), "ratio")
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
MILLIONS = Column("million parameters", _ours("parameters", lambda x: f"{x / 1e6:.3g}"))

HOURS = Column("hours, simulated", _ours("hours", digits), "hours")
TRAIN_ACCURACY = Column(
    "training frame accuracy %", _ours("train_accuracy", lambda x: f"{100 * x:.1f}"), "accuracy"
)


def _after(epoch: int) -> Column:
    """Return the column of the WER after an epoch (from 1)."""

    def cell(row: JsonRow) -> str:
        return "".join(map(_percent, row["ours"]["wer_by_epoch"][epoch - 1 : epoch])) or DASH

    return Column(f"WER % after epoch {epoch}", cell, f"WER % {epoch}")


def _of_split(split: str) -> Column:
    """Return the column of the WER of one of several test sets."""

    def cell(row: JsonRow) -> str:
        return text(row["ours"]["wer_by_split"].get(split), _percent)

    return Column(f"ours, WER % of {split}", cell, split)


SAME = {  # the paper's columns of what a column of ours has, whose name they get
    "update_kb_per_minibatch": KILOBYTES,
    "parameters_millions": MILLIONS,
    "relative_wer_reduction_percent": REDUCTION,
    **dict.fromkeys(WERS, WER),
    **dict.fromkeys(("acc", "main_acc", "relu_acc", "svd_ll_acc"), TRAIN_ACCURACY),
    **{f"pass_{n}": _after(n) for n in range(1, 8)},
}
PRINTED = {  # the paper's columns -> their headings, and our columns beside them
    "nodes": ("nodes", [WORKERS]),
    "gpus": ("gpus", [WORKERS]),
    "tau": ("tau", [THRESHOLD]),
    "block_size": ("block size", [BLOCK]),
    "group_size": ("group size", [GROUP]),
    "frames_per_second": ("frames/s", [SIMULATED_FRAMES, FRAMES]),
    "relative_speed": ("speed-up", [SPEEDUP]),
    "speedup_frames_per_second": ("speed-up in frames/s", [SPEEDUP]),
    "speedup_total_time": ("speed-up in total time", [TOTAL]),
    "elapsed_minutes": ("minutes", [MINUTES]),
    "hours": ("hours", [HOURS]),
    "compression_ratio": ("compression ratio", [RATIO]),
    **{key: (column.name, [column]) for key, column in SAME.items()},
}


def columns(table: TableDict) -> list[Column]:
    """Return the row's name; the paper's columns with ours beside; then our other columns."""
    printed = list(dict.fromkeys(key for row in table["rows"] for key in row["paper"]))
    keys = table["keys"]
    found = [Column("row", _label, "row"), Column("method, ours", _ours("method", str))]
    shown: set[str] = set()
    for key in [*keys, *(key for key in printed if key not in keys)]:
        split = table.get("splits", {}).get(key)
        words, beside = PRINTED.get(key, (key.replace("_", " "), []))
        beside = [_of_split(split)] if split else beside
        shown |= {column.name for column in beside}
        if beside or key not in keys:  # otherwise it is in the row's name
            found.append(_printed_column(key, words, beside))
    rest = [
        WORKERS,
        WER,
        REDUCTION,
        Column("p", lambda row: p_value(row["ours"]["wer_reduction"])),
        Column("DEV frame error %", _ours("frame_error", _percent), "DEV frame %"),
        Column("relative frame error reduction %", _ours("frame_error_reduction_percent", signed)),
        KILOBYTES,
        RATIO,
        _exchanged("KB received per step", "KB received"),
        _exchanged("bf16 / received"),
        _exchanged("GB received, all workers"),
        _exchanged("minutes at 1 / 10 Gb/s"),
        Column("elements per step", _ours("elements_a_minibatch", digits)),
        _exchanged("bits per element"),
        _exchanged("density"),
        Column("minibatch, frames per worker", _ours("minibatch_frames", str)),
        FRAMES,
        MINUTES,
        Column("mean staleness, steps", _ours("staleness", digits)),
        Column("virtual seconds", _ours("virtual_seconds", digits)),
        SPEEDUP,
    ]
    known = [column for column in rest if column.name not in shown]
    rows = rows_shown(table)
    return found + [c for c in known if any(c.cell(row) != DASH for row in rows)]


def _printed_column(key: str, words: str, beside: Sequence[Column]) -> Column:
    def cell(row: JsonRow) -> str:
        value = row["paper"].get(key)
        printed = text(value, lambda x: f"{x:,}" if isinstance(x, int) else str(x))
        return " / ".join([printed.replace("-", "−"), *(column.cell(row) for column in beside)])

    names = [column.name.partition(", ")[2] or "ours" for column in beside]
    short = next((column.short for column in beside if column.short), "")
    return Column(f"{words}: {' / '.join(['paper', *names])}", cell, short)


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
        + "".join(f"{line}\n" for line in _warnings(table))
    )


def _ratio_cells(table: TableDict) -> list[list[str]]:
    """Return the headings and rows of the table of ratios; none for a table without."""
    rows = [row for row in rows_shown(table) if row.get("ratios")]
    names = [name for name in RATIOS if any(name in row["ratios"] for row in rows)]
    lines = [["row", *(RATIOS[name] for name in names)]]
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
        f"{RATIOS[name]}: {found['why']}"
        for row in rows_shown(table)
        for name, found in row["ratios"].items()
        if found["why"]
    }
    explanation = f"The paper's / ours. †: more than {MOST_OFF:g} times off; reasons are below."
    remarks = [explanation, *sorted(reasons), *_warnings(table)]
    return "\n#" + as_markdown("Ratios", lines[0], lines[1:], remarks)


def _warnings(table: TableDict) -> list[str]:
    """Return a line for each ratio that lacks a reason: it was measured, after training."""
    return [
        f"warning: {missing}"
        for row in rows_shown(table)
        for name, both in row.get("ratios", {}).items()
        if (missing := unexplained(row["label"], name, both))
    ]


def notes(table: TableDict) -> list[str]:
    """Explain the columns and numbers, with caveats."""
    base = table["baseline"]["ours"]
    rows = [row["ours"] for row in rows_shown(table)]
    lines = [
        f"Paper: as printed, at the paper's size; ours: at scale {table['scale']}; {DASH}: not "
        "printed, or unknown.",
        _reduction_note(base, table),
        *groups_note((row["label"], row["ours"]["wer_reduction"]) for row in rows_shown(table)),
        f"WER: of {base['split']}, {base['utterances']:,} utterances, {base['words']:,} words"
        f"{', a mean over seeds' if base['seeds'] > 1 else ''}; {_seeds_words(rows)} per row. "
        "Frame errors: of DEV, after the last epoch.",
        _size_note(rows),
    ]
    if any(ours["message_bytes_a_minibatch"] for ours in rows):
        lines.append(
            "KB, ratio, elements and density: what a worker sends per step, messages with headers, "
            "averaged over the run (of GTC: over steps in which it has a minibatch); including "
            "weights of blocks. The ratio is to 4 bytes per parameter. Received: what arrives at a "
            "worker from all others; bf16 / received: ring all-reduce of bf16 gradients receives "
            "so many times as much; minutes: in which a worker receives the whole run's at that "
            "rate."
        )
    if any(ours.get("halves", 1) > 1 for ours in rows):
        lines.append(
            "With double buffering a step is half a minibatch, and the ratios are to one dense "
            "exchange per half: per minibatch it sends twice the KB shown, at half the ratios."
        )
    virtual = any(ours["processes"] < ours["workers"] for ours in rows)
    lines.append(
        "CPU of this machine: CPU seconds of training steps"
        + (
            ", of all workers that share a process; not the speed of a cluster."
            if virtual
            else ", of the process that writes the log."
        )
    )
    lines += [
        f"{run} diverged and was tested with its last sound checkpoint, or as it began: {why}."
        for ours in rows
        for run, why in ours.get("diverged", {}).items()
    ]
    if any(ours["virtual_seconds"] is not None for ours in rows):
        lines.append("Virtual seconds: the simulated clock of an asynchronous run.")
    lines += _simulated_notes(table)
    if any(ours.get("hours") is not None for ours in rows):
        count = table.get("passes", 1)
        passes = "one pass" if count == 1 else f"{count} passes"
        lines.append(
            f"Hours: simulated, of {passes} over the paper's speech by its hardware and network, "
            f"with our runs' minibatches in multiples of {SET_FRAMES:,} frames; time for trying "
            "sizes is left out."
        )
    if any(ours["wer_by_epoch"] for ours in rows):
        lines += [_epochs_line(row) for row in rows_shown(table)]
    if any(ours["is_controlled"] for ours in rows):
        lines += [_control_line(row) for row in rows_shown(table)]
    if any("full_rate_epochs" in ours for ours in rows):
        each = (
            f"{row['label']}: {', '.join(map(str, row['ours'].get('full_rate_epochs', [])))}"
            for row in rows_shown(table)
        )
        lines.append(
            "Epochs at the full rate, whose number newbob chooses, by seed (it may matter more "
            f"than the method): {'; '.join(each)}."
        )
    if table.get("elsewhere"):
        lines.append("Trained elsewhere: " + _elsewhere(table["elsewhere"]))
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
    of_one = (
        f"a bootstrap over {found['units']} {found['over']} ({draws['bootstrap']} draws, seed "
        f"{draws['seed']}), the same for row and baseline"
    )
    several = ""
    if base["seeds"] > 1:
        several = (
            f"; of rows with several seeds, from the components of variance of {found['over']} and "
            "seeds, by t with Satterthwaite's degrees of freedom"
        )
    return (
        "Relative reductions: errors fewer than those of the baseline "
        f"({', '.join(base['runs'])}), in percent of them; positive: better, as in the papers. "
        f"In brackets the 95 % interval, {of_one}{several}; *: it excludes 0. p is two-sided."
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
    seeds = row["ours"]["seeds"]  # the sizes are means over all of them
    return (
        f"{row['label']}: mean frames per step in each epoch {sizes}; the rate was divided by "
        f"{divisors or DASH} at the end of each{', with the first seed' * (seeds > 1)}."
    )


def _epochs_line(row: JsonRow) -> str:
    series = ", ".join(map(_percent, row["ours"]["wer_by_epoch"]))
    return f"{row['label']}: WER % after each epoch {series}."
