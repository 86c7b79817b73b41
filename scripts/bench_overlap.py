"""bench_overlap.py FOLDER [MODEL=FRAMES ...]

A training step by GTC whose messages are sent in segments while backward still runs, beside one
that sends all of them after it (comm.gtc.segments; see asr_train/comm/segments.py). Two processes
of one thread each, in network namespaces of their own, with a link whose rate the kernel holds (tc,
tbf) or which has no limit: what they send goes through memory then, as over loopback. Needs Linux,
root, ip and tc; changes nothing outside its own namespaces. Writes FOLDER/overlap.json and
overlap.md. Took six minutes on a machine with a load of 10, for 40 s of CPU time.
Frames are random, other ones in each process; tau is such that about one element in 200 exceeds it.
All take turns at the same step, from a barrier to the slower process's end; after the last step
their weights and residuals must be the same bits, or nothing is written.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_network import ended, in_own_namespaces, shape, shaped

from asr_train.files import replacing, write_json
from asr_train.jobs import main
from asr_train.report.tables import commit, machine

ROOT = Path(__file__).resolve().parents[1]
CASES = ("dnn_5x1536=256", "dnn_4x512=256")  # 14.6 M and 2.5 M parameters
NUM_MELS, NUM_STATES = 20, 3030
SEGMENTS = (1, 4)
RATES = (None, 100.0, 20.0)  # Mb/s; None: no limit
WORKERS = 2
DENSITY = 5e-3
SETTLING = 3  # steps before tau is fixed
SECONDS = 12.0  # that a case's steps may take over one link, once it has ROUNDS
ROUNDS = 5


def run(folder: str, *cases: str) -> None:
    if not in_own_namespaces():
        return
    began, load = time.time(), os.getloadavg()
    rows = measured(cases or CASES)
    content = {
        "rows": rows,
        "gpu": "not measured",
        "machine": machine(),
        "load": {"before": load, "after": os.getloadavg()},
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(ROOT),
        "seconds": round(time.time() - began),
        "command": " ".join(["scripts/bench_overlap.py", "FOLDER", *cases]),
    }
    text = markdown(content)
    print(text)
    write_json(Path(folder) / "overlap.json", content)
    with replacing(Path(folder) / "overlap.md") as part:
        part.write_text(text)


def measured(cases: tuple[str, ...]) -> list[dict[str, Any]]:
    """What rank 0 says of each case, link and number of segments."""
    with tempfile.TemporaryDirectory() as scratch, shaped(WORKERS, None):
        output = str(Path(scratch) / "rows.json")
        own = [sys.executable, __file__, "--rank", output, *cases]
        same = {"WORLD_SIZE": str(WORKERS), "MASTER_ADDR": "10.9.0.1", "MASTER_PORT": "29500"}
        ended(
            [["ip", "netns", "exec", f"n{i}", *own] for i in range(WORKERS)],
            [
                {**same, "RANK": str(i), "GLOO_SOCKET_IFNAME": f"e{i}", "OMP_NUM_THREADS": "1"}
                for i in range(WORKERS)
            ],
            seconds=1200,  # on a machine that others keep busy
        )
        return json.loads(Path(output).read_text())


# --- one process ----------------------------------------------------------------------------------


def rank(output: str, *cases: str) -> None:
    import torch

    from asr_train.comm.exchange import close_exchange, open_exchange

    torch.set_num_threads(1)
    exchange = open_exchange(WORKERS, torch.device("cpu"), 120)
    rows = []
    for case in cases:
        name, frames = case.split("=")
        steps = Steps(name, int(frames), exchange)
        for rate in RATES:
            limit(f"e{exchange.local[0]}", rate)
            rows += [{"mbit_per_s": rate, **row} for row in steps.timed()]
            if exchange.local[0] == 0:
                print(f"{case}, {rate} Mb/s: {rows[-1]['rounds']} rounds", flush=True)
        limit(f"e{exchange.local[0]}", None)
    if exchange.local[0] == 0:
        write_json(output, rows)
    exchange.barrier()
    close_exchange()


def limit(link: str, mbit_per_s: float | None) -> None:
    """Hold what this process sends at a rate."""
    subprocess.run(["tc", "qdisc", "del", "dev", link, "root"], stderr=subprocess.DEVNULL)
    if mbit_per_s is not None:
        subprocess.run(["tc", "qdisc", "add", "dev", link, *shape(mbit_per_s).split()], check=True)


class Trained:
    """A network in training, whose gradients are sent in so many segments."""

    def __init__(self, name: str, segments: int, exchange: Any) -> None:
        import torch
        from resolve import settings

        from asr_train.comm.bucket import Bucket
        from asr_train.comm.methods import build
        from asr_train.model.store import build_model
        from asr_train.train.schedule import Schedule
        from asr_train.train.state import RunState

        config = settings("gtc", [f"model={name}", f"comm.gtc.segments={segments}"])
        ones = torch.ones(NUM_MELS)
        self.model = build_model(config.model, NUM_MELS, NUM_STATES, 0 * ones, ones, seed=1)
        self.optim = config.optim
        bucket = Bucket(self.model)
        self.size = len(bucket.weights_P)
        method = build(config.comm, exchange, self.size)
        self.state = RunState.fresh(bucket, method, Schedule(config.optim), momentum=False)
        (self.gtc,) = method.reducers
        self.exchange, (self.worker,) = exchange, exchange.local

    def step(self, batch: Any) -> dict[str, float]:
        """Seconds, of both processes the slower one's."""
        from asr_train.train.loop import step

        counts = self.state.since_log[self.worker]
        counts.exchange_seconds = counts.compute_seconds = 0.0
        self.exchange.barrier()
        began, busy = time.perf_counter(), time.process_time()
        step(self.model, lambda _: batch, self.state, self.optim)
        seconds = {"step": time.perf_counter() - began, "cpu": time.process_time() - busy}
        seconds |= {"exchange": counts.exchange_seconds, "compute": counts.compute_seconds}
        rows = self.exchange.numbers([list(seconds.values())])
        return dict(zip(seconds, map(max, zip(*rows, strict=True)), strict=True))

    def bits(self) -> Any:
        """Weights and residual."""
        import torch

        return torch.stack([self.state.replicas[0].weights_P, self.gtc.residuals[self.worker]])


class Steps:
    """The same steps with each number of segments, in turns."""

    def __init__(self, name: str, frames: int, exchange: Any) -> None:
        import torch

        from asr_train.shards.batch import Batch

        self.name, self.frames, self.exchange = name, frames, exchange
        (self.worker,) = exchange.local
        self.trained = {segments: Trained(name, segments, exchange) for segments in SEGMENTS}
        first = self.trained[1]
        rng = torch.Generator().manual_seed(self.worker)
        window = first.model.context_left + 1 + first.model.context_right
        feats_BTF = torch.randn(frames, window, NUM_MELS, generator=rng)
        ali_BT = torch.randint(NUM_STATES, (frames, 1), generator=rng)
        mask_BT = torch.ones(frames, 1, dtype=torch.bool)
        self.batch = Batch(feats_BTF, ali_BT, mask_BT, frames)
        for _ in range(SETTLING):
            tau = self.threshold(first)
            for one in self.trained.values():
                one.gtc.tau = tau
                one.step(self.batch)

    def threshold(self, one: Trained) -> float:
        """That DENSITY exceeds, if the next gradient is as the last; worker 0's, a float32."""
        import torch

        owed_K = (one.state.bucket.grad_P + one.gtc.residuals[self.worker])[::16].abs()
        tau = owed_K.kthvalue(round(len(owed_K) * (1 - DENSITY))).values.item()
        return float(torch.tensor(max(1e-3, self.exchange.numbers([[tau]])[0][0])))

    def timed(self) -> list[dict[str, Any]]:
        """A row a number of segments; ValueError if they differ in a bit of what they learned."""
        import torch

        taken: dict[int, list[dict[str, float]]] = {segments: [] for segments in SEGMENTS}
        for one in self.trained.values():
            one.state.method.take_sent(self.worker)
        began, rounds = time.perf_counter(), 0
        while rounds < ROUNDS or self._taken(began) < SECONDS:
            turned = SEGMENTS[rounds % len(SEGMENTS) :] + SEGMENTS[: rounds % len(SEGMENTS)]
            for segments in turned:
                taken[segments].append(self.trained[segments].step(self.batch))
            rounds += 1
        rows = []
        for segments, one in self.trained.items():
            if not torch.equal(one.bits(), self.trained[1].bits()):
                raise ValueError(f"{self.name}: {segments} segments give other bits than one")
            sent = one.state.method.take_sent(self.worker)
            row: dict[str, Any] = {
                "model": self.name,
                "parameters": one.size,
                "frames": self.frames,
                "segments": segments,
                "largest_segment": max(map(len, getattr(one.gtc, "segments", [range(one.size)]))),
                "rounds": rounds,
                "message_bytes": sent.bits / 8 / rounds,
                "density": sent.elements / rounds / one.size,
            }
            for part in taken[segments][0]:
                values = sorted(t[part] for t in taken[segments])
                row[f"{part}_seconds"] = statistics.median(values)
                row[f"{part}_quartiles"] = [values[rounds // 4], values[-1 - rounds // 4]]
            # Of the same round, so that other work on the machine weighs on both
            pairs = zip(taken[1], taken[segments], strict=True)
            row["saved_seconds"] = statistics.median(a["step"] - b["step"] for a, b in pairs)
            rows.append(row)
        return rows

    def _taken(self, began: float) -> float:
        """Seconds, by worker 0's clock."""
        return self.exchange.numbers([[time.perf_counter() - began]])[0][0]


# --- how it reads ---------------------------------------------------------------------------------


def markdown(content: dict[str, Any]) -> str:
    lines = [
        "# Exchange beside backward",
        "",
        f"Two processes of one thread each ({content['machine']}; load "
        f"{content['load']['before'][0]:.1f} before, {content['load']['after'][0]:.1f} after). "
        "Milliseconds, medians over steps that take turns, of the slower process; in brackets the "
        "middle half. Waited: of the step, for compression and exchange that backward did not "
        "hide. CPU: of all threads of a process; where a step takes much more, other work on the "
        "machine had its cores, and the step's time says little. Saved: median over rounds of what "
        f"a step without segments took more. On a GPU: {content['gpu']}.",
        "",
        "| network | link | message kB | segments | step | forward, backward, update | waited | "
        "CPU | saved | saved % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in content["rows"]:
        low, high = row["step_quartiles"]
        link = "no limit" if row["mbit_per_s"] is None else f"{row['mbit_per_s']:g} Mb/s"
        whole = row["step_seconds"] + row["saved_seconds"]
        lines.append(
            f"| {row['model']}, {row['parameters'] / 1e6:.1f} M | {link} | "
            f"{row['message_bytes'] / 1e3:.0f} | {row['segments']} | "
            f"{1e3 * row['step_seconds']:.0f} ({1e3 * low:.0f} – {1e3 * high:.0f}) | "
            f"{1e3 * row['compute_seconds']:.0f} | {1e3 * row['exchange_seconds']:.1f} | "
            f"{1e3 * row['cpu_seconds']:.0f} | "
            + (
                f"{1e3 * row['saved_seconds']:+.1f} | {row['saved_seconds'] / whole:+.1%} |"
                if row["segments"] > 1
                else "| |"
            )
        )
    lines += [
        "",
        f"{content['rows'][0]['frames']} frames a process; "
        f"{min(row['rounds'] for row in content['rows'])} to "
        f"{max(row['rounds'] for row in content['rows'])} steps each. Weights and residuals were "
        "the same bits with any number of segments.",
        "",
        f"Made {content['date']} at commit {content['commit']} in {content['seconds']} s: "
        f"`{content['command']}`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(*sys.argv[2:])
    else:
        main(run, __doc__ or "")
