"""Take a few steps of every run of a table, on random frames: its time, its memory, its hours.

    dry_run.py SCALE[:SEED...] recipes/PAPER/TABLE.yaml HOURS tables/PAPER-TABLE.dry-run.md

HOURS of speech make a pass; none is needed. Settings in the environment's ASR_SET are for all rows
that do not set them.
Networks, workers, minibatches and methods are those of the runs; frames are random, with 2,000
states. DEVICE=cpu or cuda, JOBS=threads. Also writes .json.
"""

import asr_train.interrupt  # noqa: F401

import contextlib
import io
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asr_train import compose, jobs
from asr_train.comm.loopback import Loopback
from asr_train.files import read_jsonl, write_json, write_text
from asr_train.model.store import num_parameters
from asr_train.paper.ratios import ratios
from asr_train.paper.rows import Table, check_effect, read_table
from asr_train.provenance import commit, machine
from asr_train.report.exchange import digits
from asr_train.report.tables import as_markdown
from asr_train.schema import Config
from asr_train.shards.reader import Shards
from asr_train.shards.sample import Sample
from asr_train.shards.writer import write_shards
from asr_train.train.captured import AFTER
from asr_train.train.loop import train
from asr_train.train.process import chosen_device

STATES = 2000
STEPS = 3  # the first also compiles kernels, and is not counted
FRAMES_PER_HOUR = 360_000
ABOUT = {"feats": "random", "norm": "none", "states_hash": "none"}
COLUMNS = {
    "row": lambda row: row["label"],
    "million parameters": lambda row: f"{row['parameters'] / 1e6:.3g}",
    "workers": lambda row: str(row["workers"]),
    "frames per step": lambda row: f"{row['frames']:,}",
    "seconds per step": lambda row: digits(row["seconds"]),
    "steps of the run": lambda row: f"{row['steps']:,.0f}",
    "hours of the run": lambda row: digits(row["hours"]),
    "peak memory, GB": lambda row: f"{row['gigabytes']:.1f}",
}


def dry_run(scale: str, file: str, hours: str, output: str) -> None:
    given = compose.words_of_set()
    table = read_table(file, scale)
    rows = []
    for label, config in configs(table, given):
        rows.append({"label": label, **in_a_process(config, float(hours))})
        print(f"{table.name}: {label}: {rows[-1]['seconds']:.3g} s per step", flush=True)
    path = Path(output)
    device = chosen_device()
    found = {
        "table": table.name,
        "scale": table.scale,
        "hours": float(hours),
        "settings": given,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else machine(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "rows": rows,
    }
    write_json(path.with_suffix(".json"), found)
    write_text(path, markdown(found))


def configs(table: Table, given: Sequence[str] = ()) -> Iterator[tuple[str, Config]]:
    """Yield the settings of the baseline and of each row; equal runs come once, as a row."""
    check_effect(given, table.runs)
    rows, baseline = table.rows, table.baseline
    if baseline.runs[0].name not in {row.runs[0].name for row in rows}:
        rows = (baseline, *rows)
    seen = set()
    for label, run in ((row.label, row.runs[0]) for row in rows):
        if run.name not in seen:
            seen.add(run.name)
            yield label, compose.settings(run.base, [*given, *run.overrides])


def in_a_process(config: Config, hours: float) -> dict[str, Any]:
    """Return `few_steps` of a process of its own, whose peak memory is that of the run."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(few_steps, config, hours).result()


def few_steps(config: Config, hours: float) -> dict[str, Any]:
    """Train for a few steps of all workers, through the whole loop; return the numbers."""
    run, device = config.run, chosen_device()
    count = AFTER + 3 if device.type == "cuda" else STEPS  # the last two are replayed graphs
    workers, mels = run.comm.workers or 1, config.feats.num_mels
    stride = run.model.lstm.subsample if run.model.lstm else 1
    passes = {name: None for name in ("pretrain", "auto_minibatch", "auto_rate")}
    counts = {"epochs": 1, "share": 1.0, "log_steps": 1}
    optim = replace(run.optim, phases=[], keep_epochs=False, **counts, **passes)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        samples = random_samples(count * workers, run.optim.minibatch_frames * stride, mels)
        index = Path(folder, "shards", "index.json")
        write_shards(samples, index, utterances_per_shard=100, num_states=STATES, about=ABOUT)
        shards = Shards(index)
        exchange = Loopback(range(workers), device)
        train(replace(run, optim=optim), shards, shards, Path(folder, "run"), device, exchange)
        rows = [row for row in read_jsonl(Path(folder, "run", "log.jsonl")) if "frames" in row]
    seconds = min(row["step_seconds"] for row in rows[1:] or rows)
    planned = replace(run, optim=replace(run.optim, auto_minibatch=None))
    frames = hours * FRAMES_PER_HOUR * run.optim.share
    steps = ratios(planned, frames / stride)["updates"]
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    pool_bytes = 0.0
    if run.model.dnn:  # a frame's features, and two numbers of 64 bits
        pool_bytes = workers * min(run.optim.pool_frames, frames / workers) * (4 * mels + 16)
    return {
        "parameters": num_parameters(run.model, mels, STATES),
        "workers": workers,
        "frames": workers * (run.optim.minibatch_frames // run.comm.halves(workers)),
        "seconds": seconds,
        "steps": steps,
        "hours": seconds * steps / 3600,
        "gigabytes": ((peak or jobs.peak_megabytes() * 2**20) + pool_bytes) / 1e9,
    }


def random_samples(count: int, frames: int, mels: int) -> Iterator[Sample]:
    """Yield utterances of one minibatch each."""
    rng = np.random.default_rng(0)
    for n in range(count):
        feats_TF = rng.standard_normal((frames, mels)).astype(np.float32)
        yield Sample(
            f"random-{n:04d}", feats_TF, rng.integers(STATES, size=frames, dtype=np.int32), "A"
        )


def markdown(found: dict[str, Any]) -> str:
    cells = [[spell(row) for spell in COLUMNS.values()] for row in found["rows"]]
    notes = [
        f"A few steps of each row at scale {found['scale']}, on random frames with {STATES:,} "
        "states: nothing was trained. Hours: the seconds of a step times the run's steps with "
        f"{found['hours']:g} hours of speech per pass; smaller minibatches at the beginning, and "
        "larger ones that a controller chooses, take less time than is counted. Pretraining, which "
        "rows share, is not counted. Memory includes the workers' pools of frames of such a pass "
        "(not of LSTMs).",
        *([f"With {' '.join(found['settings'])}."] if found["settings"] else []),
        f"{found['date']}, commit {found['commit']}, {found['device']}.",
    ]
    title = f"{found['table']}: a few steps of each run"
    return as_markdown(title, list(COLUMNS), cells, notes)


if __name__ == "__main__":
    jobs.main(dry_run, __doc__)
