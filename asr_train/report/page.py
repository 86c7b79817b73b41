"""Tables, logs, utterances, data, settings, stage times -> **one HTML page**.

The page is one file that needs no network; its pictures are in it, and go beside it for READMEs.
Equal inputs give equal bytes. Missing inputs are named in the text. This module selects what the
page shows, page.html.j2 lays it out, and page.js makes it a place to work: it reads the page's
data, and a policy in the page lets no other script run. Knows formats, not folders: see
scripts/report.py.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import jinja2

from asr_train.provenance import made
from asr_train.report import exchange, pictures, tables
from asr_train.report.tables import cells, held_out, notes, percent_interval, spell_seconds

Row = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """What a page has beside tables and logs; all may be empty.

    Attributes:
        splits: `utterances.of_split` by split, its utterances with the address of their `audio`.
        heard: by split and utterance, sounds in the page: `flac` (base64), `rate` in Hz, `found`
            (by run: words with start, seconds, confidence), `said` (the same of true times).
        embedded: a sentence on which sounds are in the page.
        card: from `card.data_card`.
        passes: rows of passes.jsonl of Gaussian systems.
        runs: `name`, `settings` (names with dots, and values as text), `facts` (pairs) and `files`
            (pairs of name and address) of each.
        command: that made all of it.
    """

    splits: Mapping[str, Row] = field(default_factory=dict)
    heard: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)
    embedded: str = ""
    card: Row | None = None
    passes: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    runs: Sequence[Row] = ()
    command: str = ""

    @property
    def untrained(self) -> set[str]:
        """Runs without steps of training: Gaussian mixtures, and other decodings of a model."""
        return {*self.passes, *(run["name"] for run in self.runs if "decoding" in run["settings"])}


def build_page(
    name: str,
    table: Row,
    alignments: Sequence[Row],
    logs: Mapping[str, Sequence[Row]],
    times: Sequence[Row],
    exchanged: Row | None = None,
    work: Work | None = None,
) -> tuple[str, list[pictures.Picture]]:
    """Return the page's HTML, and the pictures to store beside it.

    Args:
        name: of the recipe.
        table: from `tables.wer_table`.
        alignments: `ali/MODEL/SPLIT.report.json`, any number, in the order of the models.
        logs: each run's `log.jsonl`.
        times: `jobs.stage_times`.
        exchanged: from `exchange.exchange_table`; None: there is no network.
        work: further content; None: none.
    """
    work = work or Work()
    runs = list(dict.fromkeys([*(row["ours"]["run"] for row in table["rows"]), *logs]))
    shown = {
        "wer": _shown_wer(table),
        "exchange": None if exchanged is None else _shown_exchange(exchanged, runs),
        "alignments": _shown_alignments(alignments, list(logs)),
        "times": _shown_times(times),
    }
    curves = pictures.curves(logs, runs) if any(logs.values()) else {}
    script = "\n" + files("asr_train.report").joinpath("page.js").read_text("utf-8")
    html = render(
        "page.html.j2",
        name=name,
        lead=headline(table),
        made=made(table),
        work=work,
        logs=logs,
        silent=[run for run in runs if run not in {*work.untrained, *logs}],
        curves=list(curves),
        gmm=_shown_passes(work.passes),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data={
            "splits": work.splits,
            "split": best_run(table)["split"],
            "settings": {run["name"]: run["settings"] for run in work.runs},
            "heard": work.heard,
            "charts": curves | pictures.passes_curves(work.passes),
        },
        **shown,
    )
    drawn = [section["picture"] for section in shown.values() if section is not None]
    return html, [picture for picture in drawn if picture is not None]


def render(template: str, **content: Any) -> str:
    """Render a template of this folder; text in `content` is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("asr_train.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    colours = [(name, colour, pictures.DARK[colour]) for colour, name in pictures.css_variables()]
    return environment.get_template(template).render(colours=colours, **content) + "\n"


def best_run(table: Row) -> Row:
    """Return the row of the best run on the last held-out split."""
    rows = [row["ours"] for row in table["rows"]]
    splits = [row["split"] for row in rows]
    split = ([s for s in splits if held_out(s)] or splits)[-1]
    return min((row for row in rows if row["split"] == split), key=lambda row: row["wer"])


def headline(table: Row) -> str:
    """Summarise in a sentence: the best run on the last held-out split, against the baseline."""
    best = best_run(table)
    rivals = [row for row in table["rows"] if row["ours"]["split"] == best["split"]]
    verb = "is best with" if len(rivals) > 1 else "makes"
    text = (
        f"On {best['split']}, {best['run']} {verb} {100 * best['wer']:.2f} % word errors "
        f"({best['errors']:,} errors in {best['words']:,} words)"
    )
    if best["ci95"] is not None:
        text += f", 95 % interval {percent_interval(best['ci95'])} %"
    found = best["against"]
    if found is not None:
        sign = "fewer" if found["difference"] < 0 else "more"
        points = abs(100 * found["difference"])
        text += f": {points:.2f} points {sign} than {found['run']} (p = {found['p']:.2g})"
    return text + "."


def _shown_wer(table: Row) -> Row:
    rows = [cells(row["ours"], table["baseline"]) for row in table["rows"]]
    shown = _known(table["columns"], rows)
    return {"picture": pictures.draw_wer(table), **shown, "notes": notes(table)[:-1]}


def _known(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Row:
    """Leave out columns that have only dashes, or compare a lone run with itself."""
    empty = {exchange.DASH, "baseline"}
    kept = [i for i in range(len(columns)) if any(row[i] not in empty for row in rows)]
    return {"columns": [columns[i] for i in kept], "rows": [[row[i] for i in kept] for row in rows]}


def _parts(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Row]:
    """Split the table of exchanges in two, which a screen has room for: errors, and the rest."""
    cut = columns.index("dev frame accuracy %") + 1
    rest = [0, *range(cut, len(columns))]
    return [
        _known(columns[:cut], [row[:cut] for row in rows]),
        _known([columns[i] for i in rest], [[row[i] for i in rest] for row in rows]),
    ]


def _shown_exchange(table: Row, runs: Sequence[str]) -> Row:
    """Return the exchange table, with a drawing if any run sent something."""
    silent = not any(row["ours"]["message_bytes"] for row in table["rows"])
    unused: tuple[str, ...] = ("Sent:", "Received:", "Density:") if silent else ()
    unused += ("Points:",) if len(table["rows"]) == 1 else ()
    return {
        "silent": silent,
        "picture": pictures.draw_bytes(table, runs),
        "tables": _parts(table["columns"], exchange.text_rows(table)),
        "notes": [note for note in exchange.notes(table)[:-1] if not note.startswith(unused)],
    }


ALIGNED: dict[str, Callable[[Row], str]] = {  # heading -> text of a report
    "model": lambda ali: ali["model"],
    "split": lambda ali: ali["split"],
    "utterances": lambda ali: f"{ali['utterances']:,}",
    "lost": lambda ali: f"{len(ali['lost']):,}",
    "wider beam": lambda ali: f"{ali['retried']:,}",
    "nats per frame": lambda ali: f"{ali['loglik_per_frame']:.2f}".replace("-", "−"),
    "silence, %": lambda ali: f"{100 * ali['silence_share']:.1f}",
    "shortest phones, %": lambda ali: f"{100 * ali['durations']['shortest_share']:.1f}",
    "long phones": lambda ali: f"{ali['durations']['long']:,}",
}


def alignment_table(alignments: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return columns and a row per report: how well each model aligned each split.

    Boundary errors have columns if any report has true times.
    """
    shown = ALIGNED | (BOUNDARIES if any(ali["boundaries"] for ali in alignments) else {})
    return list(shown), [[cell(ali) for cell in shown.values()] for ali in alignments]


def _boundaries(key: str, factor: int, unknown: str = "") -> Callable[[Row], str]:
    """Return the text of a number of `boundaries`; without them, `unknown`."""
    return lambda ali: f"{factor * b[key]:.1f}" if (b := ali["boundaries"]) else unknown


BOUNDARIES = {  # as ALIGNED, of reports with true times
    "median, ms": _boundaries("median_ms", 1, "unknown"),
    "in 20 ms, %": _boundaries("within_20ms", 100),
    "in 25 ms, %": _boundaries("within_25ms", 100),
    "in 50 ms, %": _boundaries("within_50ms", 100),
}


def alignment_notes(alignments: Sequence[Row]) -> list[str]:
    """Explain the columns and caveats."""
    notes = [
        "Nats per frame: log-likelihood, acoustic and transition; comparable only between "
        "Gaussian systems with the same features.",
        "Shortest phones: with no more frames than states. Long phones: above the limit of the "
        "aligner's report. Silence is left out; both point to wrong transcripts.",
    ]
    compared = [ali for ali in alignments if ali["boundaries"]]
    if compared:
        counts = ", ".join(
            f"{ali['boundaries']['compared']:,} ({ali['model']}, {ali['split']})"
            for ali in compared
        )
        notes.append(f"Boundaries of matched phones, aligned against true times: {counts}.")
    if len(compared) < len(alignments):
        names = [f"{ali['model']}, {ali['split']}" for ali in alignments if not ali["boundaries"]]
        notes.append(f"True phone times are unknown: {'; '.join(names)}.")
    return notes


def _shown_alignments(alignments: Sequence[Row], networks: Sequence[str]) -> Row | None:
    """Return a table of all reports, the lost utterances, and an utterance by the last Gaussians.

    Args:
        alignments: in the order of the models.
        networks: the runs that are not Gaussian mixtures.
    """
    if not alignments:
        return None
    columns, rows = alignment_table(alignments)
    mixtures = [ali for ali in alignments if ali["model"] not in networks] or alignments
    model, split, example = (mixtures[-1][key] for key in ("model", "split", "example"))
    return {
        "columns": columns,
        "rows": rows,
        "notes": alignment_notes(alignments),
        "lost": [ali for ali in alignments if ali["lost"]],
        "model": model,
        "picture": None if example is None else pictures.draw_utterance(model, split, example),
    }


def alignment_markdown(alignments: Sequence[Row]) -> str:
    """Format the table of all alignment reports for READMEs."""
    return tables.as_markdown("", *alignment_table(alignments), alignment_notes(alignments))


def _shown_passes(passes: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return each Gaussian system's table of passes, and the id of its chart."""
    return [
        {
            "name": system,
            "chart": f"chart_passes_{i}",
            "columns": ["pass", "aligned", *PASSES],
            "rows": [_pass_cells(row) for row in rows],
        }
        for i, (system, rows) in enumerate(passes.items())
        if rows
    ]


PASSES: dict[str, tuple[str, Callable[[Any], str]]] = {  # heading -> key and text
    "nats per frame": ("loglik_per_frame", lambda x: f"{x:.3f}".replace("-", "−")),
    "Gaussians": ("gaussians", lambda x: f"{x:,}"),
    "frames moved, %": ("moved", lambda x: f"{100 * x:.2f}"),
    "lost": ("lost", lambda x: f"{x:,}"),
    "wider beam": ("retried", lambda x: f"{x:,}"),
    "time": ("seconds", spell_seconds),
}


def _pass_cells(row: Row) -> list[str]:
    """Format a row of passes.jsonl: a flat pass, the start from another system, or a pass."""
    if "flat_pass" in row:
        name, how = f"flat {row['flat_pass']}", "all paths"
    elif "start" in row:
        name, how = "start", f"by {row['start']}"
    else:
        name, how = str(row["pass"]), "anew" if row.get("realigned", True) else "as before"
    numbers = ("" if row.get(key) is None else spell(row[key]) for key, spell in PASSES.values())
    return [name, how, *numbers]


def _shown_times(times: Sequence[Row]) -> Row | None:
    if not times:
        return None
    return {
        "whole": spell_seconds(sum(row["seconds"] for row in times)),
        "picture": pictures.draw_times(times),
        "rows": [(row["stage"], row["output"], spell_seconds(row["seconds"])) for row in times],
    }
