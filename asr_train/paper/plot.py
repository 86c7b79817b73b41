"""A paper's table -> its **picture**: ours beside the printed numbers, or curves by epoch.

`scatter` draws any two lists of numbers over each other.

Knows only the content of `paper.table`, and nothing of runs.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from asr_train.files import replacing
from asr_train.paper.claims import NO_REDUCTION, printed_reduction
from asr_train.paper.layout import JsonRow, TableDict, rows_shown

BESIDE = 0.015  # relative shift between kinds of rows
SPAN = 5  # factor beyond which an axis is logarithmic
FAILED = -50.0  # a relative WER reduction below it would hide all differences between other rows
MARKERS = {"one constant": "x", "fitted": "s", "marked": "^"}  # of `scatter`
Value = Callable[[JsonRow], float | None]


def plot(table: TableDict, path: Path | str) -> None:
    """Write a PNG: curves by epoch of a figure, or of a table that prints passes; else two panels,
    the second if anything was sent or simulated.
    """
    panels: list[Callable[[Axes, TableDict], None]] = [_changes]
    if table["figure"] or any(map(_passes, table["rows"])):
        panels = [_curves]
    elif any(_ratio(row) or _speedup(row) for row in table["rows"]):
        panels.append(_sizes_or_speeds)
    figure = Figure(figsize=(6.4 * len(panels), 5), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, ax in zip(panels, axes, strict=True):
        panel(ax, table)
        ax.grid(color="0.9", linewidth=0.6)
        ax.set_axisbelow(True)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2 * len(panels), fontsize="small"
    )
    title = textwrap.fill(table["title"], 60 * len(panels))
    figure.suptitle(f"{title}\nours: scale {table['scale']}", fontsize="medium")
    with replacing(path) as part:
        figure.savefig(part, dpi=110)


# --- tables -------------------------------------------------------------------------------------


def _changes(ax: Axes, table: TableDict) -> None:
    """Draw relative WER reductions; ours with their intervals, failed ones at the lower edge."""

    def percent(row: JsonRow) -> float | None:
        found = row["ours"]["wer_reduction"]
        return None if found is None else found["percent"]

    def ours(row: JsonRow) -> float | None:
        found = percent(row)
        return None if found is None or found < FAILED else found

    def limits(row: JsonRow) -> tuple[float, float]:
        found = row["ours"]["wer_reduction"]
        low, high = found["ci95"]
        return max(0.0, found["percent"] - low), max(0.0, high - found["percent"])

    ax.axhline(0, color="0.6", linewidth=0.8)
    _series(ax, table, ours, _printed_reduction(table), limits)
    ax.set_ylabel("relative WER reduction %")
    key, edge = _number_key(table), ax.get_ylim()[0]
    kinds = list(dict.fromkeys(_name(row, table) for row in table["rows"]))
    for i, row in enumerate(table["rows"]):
        found, place = percent(row), _place(row, key) if key else i
        if found is not None and found < FAILED and place is not None:
            kind = kinds.index(_name(row, table))
            x = place * (1 + BESIDE * kind) if key else place
            what = f"{row['label']}, ours: {found:.0f} %, below the axis"
            ax.plot(x, edge, "v", color=f"C{kind % 10}", clip_on=False, label=what)
    ax.set_ylim(bottom=edge)


def _sizes_or_speeds(ax: Axes, table: TableDict) -> None:
    """Draw the compression ratio if the paper prints it, else speed-ups, ours simulated."""
    rows = table["rows"]
    of_paper = _printed("compression_ratio")
    if any(of_paper(row) for row in rows) or not any(map(_speedup, rows)):
        _series(ax, table, _ratio, of_paper)
        ax.set_ylabel("compression ratio,\nto 4 bytes per parameter")
    else:
        _series(ax, table, _speedup, _printed("relative_speed", "speedup_frames_per_second"))
        ax.set_ylabel("speed-up on the paper's cluster;\nours simulated")
    low, high = ax.get_ylim()
    if ax.containers and high > SPAN * max(low, 0):
        _plain_log(ax)


def _speedup(row: JsonRow) -> float | None:
    return (row["ours"]["simulated"] or {}).get("speedup")


def _ratio(row: JsonRow) -> float | None:
    found: float | None = row["ours"]["compression_ratio"]
    return found


def _plain_log(ax: Axes) -> None:
    """Make the axis logarithmic, with numbers without exponents."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _printed_reduction(table: TableDict) -> Value:
    """Return the printed reduction, else what follows from the printed WERs."""
    runs, splits = table["baseline"]["ours"]["runs"], list(table["splits"])
    same = (row["paper"] for row in table["rows"] if row["ours"]["runs"] == runs)
    before = next(filter(None, same), NO_REDUCTION)
    return lambda row: printed_reduction(row["paper"], before, splits)


def _printed(*keys: str) -> Value:
    """Return the printed value of one of these columns."""
    return lambda row: next((row["paper"][key] for key in keys if key in row["paper"]), None)


def _series(
    ax: Axes,
    table: TableDict,
    ours: Value,
    printed: Value,
    limits: Callable[[JsonRow], tuple[float, float]] | None = None,
) -> None:
    """Draw rows in a colour per kind; ours are filled, the paper's hollow."""
    rows = table["rows"]
    key = _number_key(table)
    names = [_name(row, table) for row in rows]
    for number, name in enumerate(dict.fromkeys(names)):
        places = [i for i, found in enumerate(names) if found == name]
        colour = f"C{number % 10}"
        for value, whose, fill in ((ours, "ours", "full"), (printed, "paper", "none")):
            shown = [
                (place, found, rows[i])
                for i in places
                if (found := value(rows[i])) is not None
                and (place := _place(rows[i], key) if key else i) is not None
            ]
            if not shown:
                continue
            shown.sort(key=lambda point: point[0])
            bars = None
            if limits is not None and value is ours:
                bars = list(zip(*(limits(row) for *_, row in shown), strict=True))
            ax.errorbar(
                [x * (1 + BESIDE * number) if key else x for x, *_ in shown],
                [y for _, y, _ in shown],
                yerr=bars,
                fmt="o" if fill == "full" else "s",
                linestyle=("-" if fill == "full" else ":") if key else "",
                fillstyle=fill,
                color=colour,
                linewidth=1,
                capsize=3,
                markersize=6,
                label=", ".join(filter(None, (name, whose))),
            )
    if key is None:
        ax.set_xticks(range(len(rows)), [r["label"] for r in rows], rotation=30, ha="right")
        return
    ticks = sorted({place for row in rows if (place := _place(row, key)) is not None})
    if min(ticks) > 0:
        ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel(f"{key.replace('_', ' ')} (the paper's)")


def _number_key(table: TableDict) -> str | None:
    """Return the key by which all rows have a number, if there is one."""
    for key in reversed(table["keys"]):
        if all(_place(row, key) is not None for row in table["rows"]):
            return str(key)
    return None


def _place(row: JsonRow, key: str) -> float | None:
    """Return the row's number by that key; for rows that are not printed, simulated workers."""
    value = row["paper"].get(key)
    if value is None and not row["paper"] and key in ("nodes", "gpus"):
        value = (row["ours"]["simulated"] or {}).get("workers")
    return value if isinstance(value, int | float) else None


def _name(row: JsonRow, table: TableDict) -> str:
    """Return the curve's name: its keys that are words; "" if the axis has the labels."""
    if _number_key(table) is None:
        return ""
    if not row["paper"]:
        return str(row["label"])
    words = [row["paper"].get(key) for key in table["keys"]]
    return ", ".join(w.replace("_", "-") for w in words if isinstance(w, str))


# --- figures ------------------------------------------------------------------------------------


def _curves(ax: Axes, table: TableDict) -> None:
    """Draw WER by epoch if epochs were decoded, else frame errors relative to the baseline's."""
    rows = rows_shown(table)
    if any(row["ours"]["wer_by_epoch"] for row in rows):
        lines = [(row, [100 * wer for wer in row["ours"]["wer_by_epoch"]]) for row in rows]
        ax.set_ylabel("WER %")
    else:
        lines = [(row, row["ours"]["frame_error_over_baseline_by_epoch"]) for row in rows]
        ax.set_ylabel("frame error rate of DEV / the baseline's")
    for i, (row, values) in enumerate(lines):
        colour = "0.3" if row["label"] == "baseline" else f"C{i % 10}"
        for whose, found, style in (("ours", values, "o-"), ("paper", _passes(row), "s:")):
            if found:
                ax.plot(
                    range(1, 1 + len(found)),
                    found,
                    style,
                    fillstyle="full" if whose == "ours" else "none",
                    color=colour,
                    markersize=4,
                    label=f"{row['label']}, {whose}" if _passes(row) else row["label"],
                )
    ax.set_xlabel("epoch")
    ax.set_xticks(range(1, 1 + max((len(values) for _, values in lines), default=1)))


def _passes(row: JsonRow) -> list[float]:
    """Return the WER that the paper prints after each pass over the data."""
    return [wer for key, wer in row["paper"].items() if key.startswith("pass_")]


Points = Sequence[tuple[float, float]]


def scatter(groups: Mapping[str, Points], path: Path, **labels: str) -> None:
    """Write a PNG with logarithmic axes, and a line where both are equal.

    Args:
        groups: (x, y) by label; `MARKERS` has some labels' own markers.
        labels: xlabel, ylabel and perhaps title, as `Axes.set` takes them.
    """
    figure = Figure(figsize=(6, 5))
    axes = figure.subplots()
    x = [point[0] for points in groups.values() for point in points]
    ends = [0.8 * min(x), 1.25 * max(x)]
    axes.plot(ends, ends, color="0.5", linewidth=0.8)
    for label, points in groups.items():
        if points:
            axes.plot(*zip(*points, strict=True), MARKERS.get(label, "o"), label=label)
    axes.set(xscale="log", yscale="log", **labels)
    axes.title.set_wrap(True)
    axes.legend()
    figure.tight_layout()
    with replacing(path) as part:
        figure.savefig(part, dpi=100)
