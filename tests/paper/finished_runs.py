"""Results of a paper's runs, made up in memory: scores with given errors, logs with given bytes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from asr_train.paper.rows import Run, Table, read_table
from asr_train.paper.table import paper_table
from asr_train.report.exchange import Trained
from asr_train.schema import CommSettings, ScoreSettings, build

CONF = Path(__file__).parents[2] / "conf"
ABOUT = {
    "date": "2025-01-01",
    "commit": "abc1234",
    "settings": "0f",
    "machine": "a CPU, 2 cores",
    "command": "make strom2015-table2 SCALE=small",
}
P = 100_000  # parameters
STEPS = 40  # per epoch
EPOCHS = 3
SHARE = {"paper": 1e-4, "ours": 2e-3, "why": "little data"}
FRAMES = 64  # per step and worker
GTC = {"threshold": 4.0, "codec": "rice", "capacity": "exact", "adaptive": None}
BMUF = {
    **{"block_steps": 50, "form": "chen_huo", "zeta": 1.0, "c": 1.0, "eta": None},
    "velocity": "reset",
}
VIRTUAL = {"step_seconds": 0.1, "speed_spread": 0.1, "step_spread": 0.05, "slowdown": 1.0}
COMM: dict[str, dict[str, Any]] = {
    "sgd": {},
    "gtc": {"gtc": GTC},
    "gtc_async": {
        "gtc": GTC,
        "asynchronous": {
            "staleness": 4,
            "virtual_time": VIRTUAL | {"delay_seconds": 0.01, "seed": 1},
        },
    },
    "bmuf": {"bmuf": BMUF},
    "bmuf_gtc": {"gtc": GTC, "bmuf": BMUF, "group_size": 0},
}
PAPERS = {
    "strom2015": {
        "cluster": "ec2_g2",
        "runs": {
            "sgd": {"comm.workers": 1},
            "gtc": {"comm.gtc.threshold": 4.0, "comm.workers": 40},
            "gtc_async": {"comm.gtc.threshold": 4.0},
        },
        "times": {"comm.workers": 0.1},
    },
    "ladkat2019": {
        "cluster": "p3.16xlarge",
        "runs": {
            "sgd": {"comm.workers": 1},
            "gtc": {"comm.gtc.threshold": 8.0},
            "bmuf": {"comm.bmuf.block_steps": 50},
            "bmuf_gtc": {
                **{"comm.bmuf.block_steps": 50, "comm.gtc.threshold": 2.0},
                "comm.group_size": 8,
            },
        },
        "times": {"comm.workers": 0.25, "comm.bmuf.block_steps": 0.1},
    },
    "seide2014_parallelizability": {
        "cluster": "k20x_server",
        "runs": {"sgd": {"comm.workers": 1}},
        "times": {},
    },
    "seide2014_1bit": {"cluster": "k20x_farm", "runs": {"sgd": {"comm.workers": 1}}, "times": {}},
}


def a_table(
    folder: Path,
    paper: str,
    table: str,
    rows: list[dict[str, Any]],
    seeds: list[int] | None = None,
    **more: Any,
) -> Table:
    """Return a table of that paper, read from files as in a recipe."""
    about = PAPERS[paper]
    scale = {"times": about["times"], "seeds": seeds or [1]}
    settings = {
        **{"paper": paper, "title": paper, "cluster": about["cluster"], "settings": []},
        **{"epoch_frames": 368e6, "ratios": ["step_share"]},
        **{"runs": about["runs"], "scales": {"small": scale}},
    }
    content = {"table": table, "title": table, "baseline": {"run": "sgd"}, "rows": rows, **more}
    for name, said in (("paper", settings), ("made", content)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    return read_table(folder / "made.yaml", "small")


def score(
    run: str, each: int = 6, split: str = "test", speakers: int = 12, **by_speaker: int
) -> dict[str, Any]:
    """Return a score: per speaker ten utterances of 10 words, and about `each` errors."""
    by_utterance = {}
    for s in range(speakers):
        wrong = by_speaker.get(f"s{s}", each + (s % 3 - 1) * (each // 3))
        for u in range(10):
            errors = wrong // 10 + (u < wrong % 10)
            counts = {"substitutions": errors, "deletions": 0, "insertions": 0}
            by_utterance[f"s{s}-{u}"] = {"speaker": f"s{s}", "words": 10, **counts}
    errors = sum(row["substitutions"] for row in by_utterance.values())
    words = 10 * len(by_utterance)
    return {
        **{"run": run, "split": split, "words": words, "errors": errors, "wer": errors / words},
        **{"utterances": len(by_utterance), "speakers": speakers, "by_utterance": by_utterance},
    }


def log(workers: int, density: float, accuracy: float, virtual: bool = False) -> list[dict]:
    """Return the log of three epochs; the final frame accuracy is `accuracy`."""
    rows: list[dict[str, Any]] = []
    bits = 11 * density * P
    for epoch in range(1, EPOCHS + 1):
        step = epoch * STEPS
        rows.append(
            {
                **{"step": step, "epoch": epoch, "frames": step * FRAMES * workers},
                **{"sent_bits": bits, "elements_sent": density * P, "accuracy": epoch / 10},
                "received_bits": (workers - 1) * bits,
                "compression_ratio": 32 * P / bits if bits else None,
                **{"step_seconds": 0.02, "compute_seconds": 0.01, "exchange_seconds": 0.008},
                **{"wait_seconds": 0.002, "compress_seconds": 0.003, "transfer_seconds": 0.001},
                "cpu_seconds": 0.015,
                **({"simulated_seconds": 4.0 * epoch} if virtual else {}),
            }
        )
        right = accuracy - 0.1 * (EPOCHS - epoch)
        rows.append(
            {
                **{"epoch": epoch, "step": step, "dev_loss": 1.0, "dev_accuracy": right},
                "rate": 0.008 / epoch,
            }
        )
    return rows


def finished(run: Run, density: float = 0.002, accuracy: float = 0.6, errors: int = 6) -> Trained:
    """Return a finished run with these settings."""
    comm: dict[str, Any] = {"method": run.base} | {k: _copy(v) for k, v in COMM[run.base].items()}
    for key, value in run.values.items():
        group, *path, last = key.split(".")
        if group != "comm":
            continue
        inner = comm
        for part in path:
            inner = inner[part]
        inner[last] = value
    workers = int(run.values["comm.workers"])
    sends = density if workers > 1 and "gtc" in run.base else 0.0
    if "bmuf" in run.base:  # all weights, from one worker per group
        made = build(CommSettings, comm)
        group = made.group_of(workers) if run.base == "bmuf_gtc" else 1
        sends += -(-STEPS // comm["bmuf"]["block_steps"]) / STEPS / group
    settings = {"comm": comm, "optim": {"minibatch_frames": FRAMES, "rate": 0.008}}
    return Trained(
        run.name,
        {"settings": settings, "workers": workers, "processes": 1},
        log(workers, sends, accuracy, run.base == "gtc_async"),
        [score(run.name, 9, "dev"), score(run.name, errors)],
    )


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def all_finished(table: Table, **changes: Any) -> dict[str, Trained]:
    return {run.name: finished(run, **changes) for run in table.runs}


def tabulated(
    table: Table,
    trained: Mapping[str, Trained],
    epochs: Mapping[str, list[dict[str, Any]]] | None = None,
    score: Mapping[str, Any] | None = None,
    **about: Any,
) -> dict[str, Any]:
    plain = {"bootstrap": 500, "seed": 1, "normaliser": {"kind": "plain"}}
    settings = build(ScoreSettings, {**plain, **(score or {})})
    ratios = {row.label: {"step_share": SHARE} for row in table.rows}
    return paper_table(table, trained, epochs or {}, settings, ABOUT | about, ratios)
