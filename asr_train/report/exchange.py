"""Logs and scores of network runs -> the **table of exchanges**: what methods send, and its cost.

A row per run: its method, word and frame errors, what a worker sent, and the parts of a step's
time. A run of one worker sends nothing and has dashes there. The baseline is the first run of one
worker, or else the first; the others are compared with it by the paired bootstrap of
`report.tables`. Knows the formats of log.jsonl (train.log), run.json (scripts/train.py) and score
files.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from asr_train.cost.plan import sending_shares
from asr_train.files import DamagedFileError, read_json, read_jsonl
from asr_train.provenance import made
from asr_train.report import seeds, tables
from asr_train.schema import CommSettings, ScoreSettings, build

Row = dict[str, Any]
DASH = "–"
BF16_BYTES = 2
RECEIVED = (
    "received_bytes_a_minibatch",
    "bf16_over_received",
    "received_bytes_all_workers",
    "minutes_at_1_gbps",
)
PARTS = ("compute", "compress", "wait", "decode")


@dataclass(frozen=True, slots=True)
class Trained:
    """The results of a network run.

    Attributes:
        about: run.json.
        log: rows of log.jsonl.
        scores: its score files, one per split.
    """

    run: str
    about: Row
    log: Sequence[Row]
    scores: Sequence[tables.Score]

    @property
    def comm(self) -> CommSettings:
        """The settings of its exchange."""
        return build(CommSettings, self.about["settings"]["comm"], "comm")


def read_trained(folder: Path, scores: Iterable[Path]) -> Trained:
    """Read the results of a run from its folder and these score files."""
    about, log = read_json(folder / "run.json"), read_jsonl(folder / "log.jsonl")
    return Trained(folder.name, about, log, [tables.read_score(path) for path in scores])


def exchange_table(
    runs: Sequence[Trained], settings: ScoreSettings, about: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of `tables/exchange.json`.

    Args:
        about: provenance of the table: see `provenance`.
    Raises:
        ValueError: if there is no run.
        DamagedFileError: if a log has no row of training steps.
    """
    if not runs:
        raise ValueError("no network run to tabulate; name some in RUNS")
    baseline = next((run for run in runs if trained_by(run) == "1"), runs[0])
    rows: list[Row] = []
    for run in runs:
        ours = measured(run) | {"splits": _splits(run, baseline, settings)}
        ours["trained_by"] = trained_by(run)
        rows.append({"label": run.run, "paper": {}, "ours": ours, "measured": True})
    splits = list(dict.fromkeys(s for row in rows for s in row["ours"]["splits"]))
    return {
        "paper": None,
        "table": "exchange",
        "columns": columns(splits, baseline.run),
        "rows": rows,
        "splits": splits,
        "baseline": baseline.run,
        "seeds": seeds.over_seeds(
            (score for run in runs for score in run.scores), baseline.run, settings
        ),
        "bootstrap": settings.draws,
        **about,
    }


def measured(run: Trained) -> Row:
    """Summarise a run's log over all of its steps; None for unknown values.

    Bytes are averages over workers, also where a run was resumed by other numbers of them;
    `workers` is the last number. `staleness` is the number of steps that workers were ahead of
    the slowest, None if they waited. `message_bytes` are messages with their headers, each counted
    once, however many receive it, as the papers do; per minibatch, over `sending_steps`, as a
    worker that has no minibatch sends nothing. `received_bytes` are all that arrives from others,
    padding and lengths included, and tell what the network has to carry.
    """
    rows, steps = _counted(run)
    total = sum(steps)
    there = _workers(run)
    mean_workers = sum(w * n for w, n in zip(there, steps, strict=True)) / total
    worker_steps = [n * (w / mean_workers) for w, n in zip(there, steps, strict=True)]
    sending = sum(share * n for share, n in zip(_sending(run, rows), worker_steps, strict=True))

    def sums(key: str, weights: Sequence[float] = steps) -> float:
        return sum(row[key] * n for row, n in zip(rows, weights, strict=True))

    message_bytes = sums("sent_bits", worker_steps) / 8
    elements = sums("elements_sent", worker_steps)
    parameters = _parameters(rows)  # known if something was sent
    seconds = sums("step_seconds")
    dev = [row["dev_accuracy"] for row in run.log if "dev_accuracy" in row]
    return {
        "run": run.run,
        "method": method_words(run.comm, run.about["workers"]),
        "workers": run.about["workers"],
        "processes": run.about["processes"],
        "steps": total,
        "sending_steps": sending,
        "parameters": parameters,
        "dev_accuracy": dev[-1] if dev else None,
        "message_bytes": message_bytes or None,
        "message_bytes_a_minibatch": message_bytes / sending or None,
        **received(
            sums("received_bits", worker_steps) / 8,
            total,
            in_bf16(parameters, there, steps),
            mean_workers,
        ),
        "compression_ratio": 4 * parameters * sending / message_bytes
        if parameters and message_bytes
        else None,
        "bits_an_element": 8 * message_bytes / elements if elements else None,
        "elements_a_minibatch": elements / sending or None,
        "density": elements / sending / parameters if parameters else None,
        "frames_a_second": rows[-1]["frames"] / seconds if seconds else None,
        "cpu_seconds": sums("cpu_seconds"),
        "staleness": sums("staleness_mean") / total if "staleness_mean" in rows[0] else None,
        "shares": _shares(sums, seconds) if seconds else None,
    }


def _counted(run: Trained) -> tuple[list[Row], list[int]]:
    """Return the rows of training steps, and the number of steps that each averages."""
    rows = [row for row in run.log if "sent_bits" in row]
    if not rows:
        why = next((row["diverged"] for row in run.log if "diverged" in row), None)
        advice = f"delete exp/{run.run} and run make again to train it again"
        if why is not None:
            advice = f"it diverged before the first ({why}): change its settings, or leave it out"
        raise DamagedFileError(f"the log of {run.run} has no row of training steps; {advice}")
    before = [0, *(row["step"] for row in rows)]
    return rows, [row["step"] - last for row, last in zip(rows, before, strict=False)]


def _workers(run: Trained) -> list[int]:
    """Return the number of workers in each row of training steps; logs did not always say it."""
    last: int = run.about["workers"]
    return [row.get("workers", last) for row in run.log if "sent_bits" in row]


def trained_by(run: Trained) -> str:
    """Return the number of workers, of a run that others resumed as `4, then 2`."""
    return ", then ".join(str(number) for number, _ in groupby(_workers(run)))


def _sending(run: Trained, rows: Sequence[Row]) -> list[float]:
    """Return the share of workers whose messages a row's means are of; of others than sparse
    messages, which are always sent: all, unless there was one worker for a part of the run.
    """
    there = _workers(run)
    alone = [w == 1 < max(there) for w in there]
    traffic, shares = run.comm.method.traffic, [1.0] * len(rows)
    if traffic.is_sparse and not traffic.in_groups:
        phases = run.about["settings"].get("optim", {}).get("phases", [])
        shares = sending_shares(phases, run.about["workers"], rows)
    return [0.0 if nobody else share for nobody, share in zip(alone, shares, strict=True)]


def _parameters(rows: Iterable[Row]) -> int | None:
    """Derive the number of parameters from the compression ratio; None if nothing was sent."""
    ratios = ((row["compression_ratio"], row["sent_bits"]) for row in rows)
    return next((round(ratio * bits / 32) for ratio, bits in ratios if ratio is not None), None)


def ring_bytes(vector_bytes: float, workers: int) -> float:
    """Return what each worker receives while a ring all-reduce adds up the workers' vectors."""
    return 2 * (workers - 1) / workers * vector_bytes


def in_bf16(parameters: int | None, workers: Sequence[int], steps: Sequence[int]) -> float:
    """Return what a worker would receive in ring all-reduces of gradients in bf16, in all steps."""
    taken: Counter[int] = Counter()
    for w, n in zip(workers, steps, strict=True):
        taken[w] += n
    mean = sum(w * n for w, n in taken.items()) / taken.total()
    vector_bytes = BF16_BYTES * (parameters or 0)
    return sum(n * (w / mean) * ring_bytes(vector_bytes, w) for w, n in taken.items())


def received(received_bytes: float, steps: int, dense: float, workers: float) -> Row:
    """Return `RECEIVED`, of a worker's bytes in all steps; None where nothing arrived.

    Args:
        dense: bytes of `in_bf16`.
    """
    if not received_bytes:
        return dict.fromkeys(RECEIVED)
    numbers = (
        received_bytes / steps,
        dense / received_bytes,
        workers * received_bytes,
        8 * received_bytes / 1e9 / 60,
    )
    return dict(zip(RECEIVED, numbers, strict=True))


def _shares(sums: Callable[[str], float], seconds: float) -> dict[str, float]:
    """Return the parts of a step's time."""
    compress, transfer = sums("compress_seconds"), sums("transfer_seconds")
    spent = {
        "compute": sums("compute_seconds"),
        "compress": compress,
        "wait": sums("wait_seconds") + transfer,
        "decode": max(0.0, sums("exchange_seconds") - compress - transfer),
    }
    return {part: spent[part] / seconds for part in PARTS}


def method_words(comm: CommSettings, workers: int) -> str:
    """Describe a method with the numbers that determine what it sends: `gtc tau 4 rice`."""
    words = [comm.method.value]
    if (allreduce := comm.used("allreduce")) is not None:
        words.append(allreduce.wire.value)
    if comm.method.traffic.in_groups:
        size = comm.group_of(workers)
        words.append(f"{workers // size} x {size}")
    if (gtc := comm.used("gtc")) is not None:
        tau = f"tau {gtc.threshold:g}"
        words += [f"density {gtc.adaptive.density:g}" if gtc.adaptive else tau, gtc.codec.value]
    if (onebit := comm.used("onebit")) is not None:
        words += ["double buffering"] * onebit.double_buffering
        words += ["no error feedback"] * (not onebit.error_feedback)
    if comm.block_steps is not None:
        words.append(f"block {comm.block_steps}")
    return " ".join(words)


def _splits(run: Trained, baseline: Trained, settings: ScoreSettings) -> dict[str, Row]:
    """Return the WER of held-out splits, and its comparison with the baseline."""
    base = {score["split"]: score for score in baseline.scores if run is not baseline}
    found = {}
    for score in run.scores:
        if tables.held_out(split := score["split"]):
            found[split] = {key: score[key] for key in ("wer", "ci95", "errors", "words")}
            compared = tables.against(base[split], score, settings) if split in base else None
            found[split]["against"] = compared
    return found


# --- as text ------------------------------------------------------------------------------------


def columns(splits: Sequence[str], baseline: str) -> list[str]:
    """Return the headings of `cells`."""
    rates = []
    for split in splits:
        rates += [f"WER %, {split}", "95 % interval", f"points from {baseline} (p)"]
    return ["run", "method", "workers", *rates, *NUMBERS]


def cells(ours: Row, splits: Sequence[str], baseline: str) -> list[str]:
    """Format a row as one text per column."""
    rates: list[str] = []
    for split in splits:
        found = ours["splits"].get(split)
        rates += [DASH] * 3 if found is None else _rate_cells(found, ours["run"] == baseline)
    numbers = (text(ours[key], spell) for key, spell in NUMBERS.values())
    return [
        ours["run"],
        ours["method"],
        ours.get("trained_by", str(ours["workers"])),
        *rates,
        *numbers,
    ]


def _rate_cells(found: Row, is_baseline: bool) -> list[str]:
    compared, gap = found["against"], "baseline" if is_baseline else DASH
    if compared is not None:
        low, high = (100 * limit for limit in compared["ci95"])
        gap = f"{100 * compared['difference']:+.2f}, {low:+.2f} to {high:+.2f}"
        gap = f"{gap} ({compared['p']:.2g})".replace("-", "−")
    return [f"{100 * found['wer']:.2f}", tables.percent_interval(found["ci95"]), gap]


def text(value: Any, spell: Callable[[Any], str]) -> str:
    """Format a value; a dash for None."""
    return DASH if value is None else spell(value)


def digits(value: float) -> str:
    """Format with three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else format(Decimal(f"{value:.3g}"), "f")


NUMBERS: dict[str, tuple[str, Callable[[Any], str]]] = {  # heading -> key of a row, and text
    "dev frame accuracy %": ("dev_accuracy", lambda x: f"{100 * x:.2f}"),
    "MB sent per worker": ("message_bytes", lambda x: digits(x / 1e6)),
    "KB per minibatch": ("message_bytes_a_minibatch", lambda x: digits(x / 1e3)),
    "dense / sent": ("compression_ratio", digits),
    "KB received per step": ("received_bytes_a_minibatch", lambda x: digits(x / 1e3)),
    "bf16 / received": ("bf16_over_received", digits),
    "GB received, all workers": ("received_bytes_all_workers", lambda x: digits(x / 1e9)),
    "minutes at 1 / 10 Gb/s": ("minutes_at_1_gbps", lambda x: f"{digits(x)} / {digits(x / 10)}"),
    "bits per element": ("bits_an_element", digits),
    "density": ("density", lambda x: f"{x:.2g}"),
    "frames/s": ("frames_a_second", lambda x: f"{x:,.0f}"),
    "compute / compress / wait / decode %": (
        "shares",
        lambda x: " / ".join(f"{100 * x[part]:.0f}" for part in PARTS),
    ),
}


def notes(table: Mapping[str, Any]) -> list[str]:
    """Explain the columns and caveats."""
    rows = [row["ours"] for row in table["rows"]]
    sizes = sorted({ours["parameters"] for ours in rows if ours["parameters"]})
    lines = [
        "Sent: a worker's messages with their headers, each once, however many receive it, "
        "averaged over workers, as in the papers. Dense: 4 bytes per parameter and minibatch"
        + (f" ({', '.join(f'{n:,}' for n in sizes)} parameters)." if sizes else "."),
        "Received: what arrives at a worker from all others, with padding and lengths: W - 1 "
        "messages of an all-gather, 2 (W - 1) / W of a vector that is added up. bf16 / received: "
        "ring all-reduce of bf16 gradients receives so many times as much. GB received: of the "
        "whole run. Minutes: in which a worker receives its share of them at that rate, without "
        "latency.",
        "Density: elements sent per minibatch, relative to all parameters.",
        "Frames/s: of all workers, by the clock of the process that writes the log.",
        "Compress: gradients to messages. Wait: for other processes, and for the reader. Decode: "
        "the rest of the exchange, including summation.",
        f"Points: WER minus that of {table['baseline']}, its 95 % interval and two-sided p "
        "(paired bootstrap, as in wer.md).",
    ]
    virtual = [ours["run"] for ours in rows if ours["processes"] < ours["workers"]]
    if virtual:
        lines.append(
            f"{', '.join(virtual)}: several workers in a process, so that no data crosses a "
            "network "
            "and frames/s is that of one machine for all of them, not the speed of a cluster."
        )
    lines += [f"{line}." for line in seeds.lines(table["seeds"])]
    return [*lines, made(dict(table))]


def markdown(table: Mapping[str, Any]) -> str:
    """Format the table as Markdown."""
    title = "What the workers exchanged"
    return tables.as_markdown(title, table["columns"], text_rows(table), notes(table))


def text_rows(table: Mapping[str, Any]) -> list[list[str]]:
    """Format all rows."""
    return [cells(row["ours"], table["splits"], table["baseline"]) for row in table["rows"]]


TERMINAL = {  # shorter headings
    "dev frame accuracy %": "dev acc %",
    "KB per minibatch": "KB/step",
    "dense / sent": "ratio",
    "KB received per step": "KB received",
    "bf16 / received": "bf16/received",
    "frames/s": "frames/s",
    "compute / compress / wait / decode %": "comp/press/wait/decode %",
}


def plain(table: Mapping[str, Any]) -> str:
    """Format the main columns for a terminal, and then means over seeds."""
    rates = {f"WER %, {split}": f"WER % {split}" for split in table["splits"]}
    names = {"run": "run", "workers": "workers", **rates, **TERMINAL}
    places = [table["columns"].index(name) for name in names]
    lines = [list(names.values()), *([row[i] for i in places] for row in text_rows(table))]
    return tables.aligned(lines) + "".join(f"{line}\n" for line in seeds.lines(table["seeds"]))
