"""Tables, logs, an utterance, stage times -> **pictures** and charts of the page.

Pictures are SVG with colours for light and dark mode, and PNG files beside the page for READMEs;
charts are points that page.js draws, so that they zoom. Equal inputs give equal bytes. Knows
nothing of the page around them.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asr_train.report.tables import percent_interval, spell_seconds

Row = dict[str, Any]

INK, FAINT, GRID = "#1b1f24", "#68707a", "#dde1e6"
SERIES = ("#6b7075", "#2463a6", "#c0561b", "#2d7a4c", "#84499c", "#9a7b14")  # the first: baseline
DARK = {INK: "#e6e8eb", FAINT: "#98a1ab", GRID: "#343a41"}  # the same colours in dark mode
DARK |= zip(SERIES, ("#a3a9b0", "#6ea8e6", "#ee8f55", "#63bd86", "#c394d8", "#d3b345"), strict=True)
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "text.parse_math": False,  # '$' in a transcript is not math
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": GRID,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",  # text stays text
}
NARROW = 4.6  # inches: readable on a phone
DRAWN_POINTS = 1500  # of a training curve; more are averaged
CURVES = (  # key of the log, title, factor
    ("loss", "loss per frame (nats; sMBR: wrong frames)", 1.0),
    ("accuracy", "frame accuracy (%)", 100.0),
    ("rate", "learning rate (per frame)", 1.0),
)


@dataclass(frozen=True)
class Picture:
    """One drawing; `name` is its file name beside the page, `alt` its description."""

    name: str
    figure: Figure
    alt: str
    caption: str

    def png(self) -> bytes:
        """Return a PNG for READMEs: on white, without a time stamp."""
        buffer = io.BytesIO()
        with rc_context(STYLE):
            self.figure.savefig(
                buffer, format="png", dpi=160, facecolor="white", metadata={"Software": None}
            )
        return buffer.getvalue()

    @property
    def kind(self) -> str:
        """The picture's class in the style sheet."""
        return self.name.split("_")[0]

    def svg(self) -> str:
        """Return an SVG for the page: colours are CSS variables, the font is the page's."""
        buffer = io.StringIO()
        with rc_context(STYLE | {"svg.hashsalt": self.name}):
            self.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        return _inline(buffer.getvalue(), self.name, self.alt)


def _inline(svg: str, name: str, alt: str) -> str:
    """Convert matplotlib's file to an element of a page, with unique ids and CSS colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href=", "href=")
    svg = re.sub(r'( id="| href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
    for colour, variable in css_variables():
        svg = svg.replace(colour, f"var(--{variable})")
    size = re.search(r'width="([\d.]+)pt" height="[\d.]+pt"', svg)
    assert size is not None, "matplotlib writes an SVG's width and height in points"
    label = f'role="img" aria-label="{escape(alt)}" style="--width: {size[1]}pt"'
    return svg.replace(size[0], label, 1)


def css_variables() -> list[tuple[str, str]]:
    """Return each colour of the drawings and its CSS variable."""
    series = [(colour, f"s{i}") for i, colour in enumerate(SERIES)]
    return [(INK, "ink"), (FAINT, "faint"), (GRID, "grid"), *series]


def colour_of(run: str, runs: Sequence[str]) -> str:
    """Return a run's colour, the same in all pictures; the baseline is grey."""
    i = list(runs).index(run)
    return SERIES[0] if i == 0 else SERIES[1 + (i - 1) % (len(SERIES) - 1)]


def draw_wer(table: Row) -> Picture:
    """Draw WERs with intervals: a panel per split, a line per run."""
    rows = [row["ours"] for row in table["rows"]]
    splits = list(dict.fromkeys(row["split"] for row in rows))
    runs = list(dict.fromkeys(row["run"] for row in rows))
    with rc_context(STYLE):
        figure = Figure(figsize=(NARROW, 0.6 + len(splits) * (0.62 + 0.3 * len(runs))))
        axes = figure.subplots(len(splits), sharex=True, squeeze=False)[:, 0]
        for ax, split in zip(axes, splits, strict=True):
            of_split = [row for row in rows if row["split"] == split]
            for y, row in enumerate(of_split):
                _draw_rate(ax, y, row, colour_of(row["run"], runs))
            ax.set_title(split)
            ax.set_yticks(range(len(of_split)), [row["run"] for row in of_split])
            ax.set_ylim(len(of_split) - 0.45, -0.65)
            ax.grid(axis="y", visible=False)
            ax.spines["left"].set_visible(False)
            ax.tick_params(length=0)
            ax.tick_params(axis="y", labelcolor=INK)
        axes[-1].set_xlim(0, axes[-1].get_xlim()[1] * 1.03)
        axes[-1].set_xlabel("word error rate (%), with 95 % interval")
    alt = "Word error rates: " + "; ".join(
        f"{row['run']} on {row['split']} {100 * row['wer']:.2f} % "
        f"({percent_interval(row['ci95'])} %)"
        for row in rows
    )
    return Picture("wer", figure, alt, "Word error rates. A bar is the 95 % interval.")


def _draw_rate(ax: Axes, y: int, row: Row, colour: str) -> None:
    low, high = row["ci95"] or (row["wer"], row["wer"])
    ax.plot([100 * low, 100 * high], [y, y], color=colour, linewidth=2, solid_capstyle="round")
    ax.plot(100 * row["wer"], y, "o", color=colour, markersize=6.5)
    text, at = f"{100 * row['wer']:.2f}", (100 * row["wer"], y)
    ax.annotate(text, at, (0, 6), textcoords="offset points", ha="center", fontsize=8.5)


def draw_bytes(table: Row, runs: Sequence[str]) -> Picture | None:
    """Draw WER on the last held-out split against bytes per worker and minibatch.

    Runs that send nothing are horizontal lines. None if no run sends anything.
    """
    split = table["splits"][-1] if table["splits"] else None
    rows = [row["ours"] for row in table["rows"] if split in row["ours"]["splits"]]
    if not any(row["message_bytes_a_minibatch"] for row in rows):
        return None
    parts = []
    with rc_context(STYLE):
        figure = Figure(figsize=(NARROW, 3.1))
        ax = figure.subplots()
        for row in rows:
            colour, score = colour_of(row["run"], runs), row["splits"][split]
            wer, sent = 100 * score["wer"], row["message_bytes_a_minibatch"]
            low, high = score["ci95"] or (score["wer"], score["wer"])
            if sent is None:
                ax.axhline(wer, color=colour, linewidth=1.2, linestyle="--")
                at: dict[str, Any] = {"xy": (1, wer), "xycoords": ax.get_yaxis_transform()}
                ax.annotate(row["run"], **at, ha="right", va="bottom", size=8.5)
            else:
                ax.plot([sent / 1e3] * 2, [100 * low, 100 * high], color=colour, linewidth=2)
                ax.plot(sent / 1e3, wer, "o", color=colour, markersize=6.5)
                ax.annotate(
                    row["run"], (sent / 1e3, wer), (6, 4), textcoords="offset points", size=8.5
                )
            parts.append(f"{row['run']} {wer:.2f} %, {(sent or 0) / 1e3:.3g} KB")
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.margins(x=0.15)
        ax.set_ylim(0)
        ax.set_title(f"word error rate on {split} (%)")
        ax.set_xlabel("KB sent per worker and minibatch")
    return Picture(
        "bytes",
        figure,
        f"Word error rate on {split} against what a worker sends per minibatch: {'; '.join(parts)}",
        "A bar is the 95 % interval; a dashed line is a run of one worker, which sends nothing.",
    )


def training_curve(rows: Sequence[Row], key: str) -> np.ndarray:
    """Return millions of frames seen and `key` of training rows, averaged to DRAWN_POINTS."""
    known = [row for row in rows if "frames" in row and row.get(key) is not None]
    xy = np.array([(row["frames"] / 1e6, row[key]) for row in known], np.float64).reshape(-1, 2)
    if not len(xy):
        return xy
    return np.array([part.mean(0) for part in np.array_split(xy, min(len(xy), DRAWN_POINTS))])


def dev_curve(rows: Sequence[Row], key: str) -> np.ndarray:
    """Return millions of frames seen and `dev_KEY` at each epoch's end."""
    train = [(row["step"], row["frames"]) for row in rows if "frames" in row]
    steps, frames = zip(*train, strict=True) if train else ((0,), (0,))
    known = [row for row in rows if row.get(f"dev_{key}") is not None]
    points = [(np.interp(row["step"], steps, frames) / 1e6, row[f"dev_{key}"]) for row in known]
    return np.array(points, np.float64).reshape(-1, 2)


def draw_times(times: Sequence[Row]) -> Picture:
    """Draw the seconds of each stage; a bar's pieces are the stage's outputs."""
    stages = list(dict.fromkeys(row["stage"] for row in times))
    totals = {s: sum(row["seconds"] for row in times if row["stage"] == s) for s in stages}
    with rc_context(STYLE):
        figure = Figure(figsize=(NARROW, 0.9 + 0.27 * len(stages)))
        ax = figure.subplots()
        for y, stage in enumerate(stages):
            left = 0.0
            for i, row in enumerate(r for r in times if r["stage"] == stage):
                shade = 1.0 if i % 2 == 0 else 0.62
                ax.barh(y, row["seconds"], 0.62, left, color=SERIES[1], alpha=shade, linewidth=0)
                left += row["seconds"]
            text = spell_seconds(totals[stage])
            ax.annotate(text, (left, y), (5, 0), textcoords="offset points", va="center", size=8.5)
        ax.set_yticks(range(len(stages)), stages)
        ax.set_ylim(len(stages) - 0.5, -0.5)
        ax.set_xlim(0, max(totals.values()) * 1.2 or 1)  # room for the last number
        ax.grid(axis="y", visible=False)
        ax.tick_params(length=0)
        ax.tick_params(axis="y", labelcolor=INK)
        ax.set_xlabel("seconds")
    alt = "Time of each stage: " + ", ".join(f"{s} {spell_seconds(totals[s])}" for s in stages)
    return Picture("times", figure, alt, "Time of each stage; a bar's shades are its outputs.")


def draw_utterance(model: str, split: str, example: Row) -> Picture:
    """Draw an utterance's log-mel; aligned phones above, true ones below, with boundaries."""
    feats_TF = np.array(example["logmel"], np.float32)
    seconds = len(feats_TF) * example["shift_seconds"]
    strips = [("aligned", example["aligned"], SERIES[1])]
    if example["true"] is not None:
        strips.append(("true", example["true"], SERIES[3]))
    width = min(40.0, max(7.2, 0.3 * max(len(phones) for _, phones, _ in strips)))
    with rc_context(STYLE):
        figure = Figure(figsize=(width, 2.7 + 0.3 * len(strips)))
        heights = [1, 8, 1][: 1 + len(strips)]
        axes = figure.subplots(len(heights), sharex=True, height_ratios=heights)
        figure.get_layout_engine().set(hspace=0, h_pad=0.02)  # type: ignore[union-attr,call-arg]
        low, high = np.percentile(feats_TF, [1, 99.7])
        axes[1].imshow(
            feats_TF.T,
            "magma",
            aspect="auto",
            origin="lower",
            extent=(0, seconds, 0, feats_TF.shape[1]),
            vmin=low,
            vmax=high,
            interpolation="nearest",
        )
        axes[1].grid(visible=False)
        axes[1].set_ylabel("mel band")
        for ax, (what, phones, colour), half in zip(
            (axes[0], axes[-1]), strips, ((0.5, 1), (0, 0.5)), strict=False
        ):
            _draw_phones(ax, what, phones, colour)
            for boundary in sorted({t for _, start, end in phones for t in (start, end)}):
                axes[1].axvline(boundary, *half, color="white", linewidth=0.8, alpha=0.85)
        axes[0].set_title(_shortened(example["words"], int(13 * width)))
        axes[-1].set_xlim(0, seconds)
        axes[-1].set_xlabel("seconds")
    below = "true ones below" if len(strips) == 2 else "true ones are unknown"
    phones = " ".join(phone for phone, _, _ in example["aligned"])
    alt = (
        f"Log-mel energies of {example['id']}, {seconds:.2f} s, with aligned phones above "
        f"({phones}); {below}"
    )
    caption = (
        f"{example['id']}: log-mel energy (brighter is louder), phone boundaries aligned by "
        f"{model} (upper half){', and true ones (lower half)' if len(strips) == 2 else ''}."
    )
    return Picture(f"utterance_{split}", figure, alt, caption)


def _draw_phones(ax: Axes, what: str, phones: Sequence[Sequence[Any]], colour: str) -> None:
    for i, (phone, start, end) in enumerate(phones):
        ax.axvspan(start, end, color=colour, alpha=0.28 if i % 2 else 0.14, linewidth=0)
        ax.text((start + end) / 2, 0.46, phone, ha="center", va="center", size=8, clip_on=True)
    ax.set_ylim(0, 1)
    ax.set_yticks([0.5], [what])
    ax.grid(visible=False)
    ax.tick_params(length=0, axis="y", labelcolor=INK)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _shortened(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def curves(logs: Mapping[str, Sequence[Row]], runs: Sequence[str]) -> dict[str, Row]:
    """Return loss, frame accuracy and rate against frames seen: a chart each, by its id."""
    charts = {}
    for key, title, factor in CURVES:
        found = []
        for run, rows in logs.items():
            if rows:
                both = (_points(curve(rows, key), factor) for curve in (training_curve, dev_curve))
                found.append(_curve(run, colour_of(run, runs), *both))
        axes = {"x": "frames seen (millions)", "y": title, "log": key == "rate"}
        charts[f"chart_{key}"] = {"title": title, **axes, "curves": found}
    return charts


def passes_curves(passes: Mapping[str, Sequence[Row]]) -> dict[str, Row]:
    """Return a chart per Gaussian system: log-likelihood per frame after each pass."""
    charts = {}
    for i, (system, rows) in enumerate(passes.items()):
        dots: list[list[float | None]] = [
            [at, _finite(row["loglik_per_frame"])]
            for at, row in enumerate(rows, 1)
            if row.get("loglik_per_frame") is not None
        ]
        what = "log-likelihood (nats per frame)"
        axes = {"x": "pass, flat ones counted", "y": what, "log": False, "dots": "training"}
        found = [_curve(system, SERIES[1], [], dots)]
        charts[f"chart_passes_{i}"] = {"title": f"{system}: {what}", **axes, "curves": found}
    return charts


Points = list[list[float | None]]


def _curve(name: str, colour: str, points: Points, dots: Points) -> Row:
    variable = dict(css_variables())[colour]
    return {"name": name, "colour": variable, "points": points, "dots": dots}


def _points(points_XY: np.ndarray, factor: float) -> Points:
    return [[_finite(x), _finite(y * factor)] for x, y in points_XY]


def _finite(value: float) -> float | None:
    """Round for the page; None for what JSON has no number for."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
