"""bench_stripes.py FOLDER [WIDTH=FRAMES ...]

Measure frames/s of a network in one process, and cut into stripes over two (gloo on this machine's
CPU), beside table 1 of Seide et al. (2014, "On parallelizability ..."): 7 hidden layers of WIDTH
sigmoids over 11 frames, end to end, forward, backward and update alone. Each process has a thread
of its own; one process with two threads is the yardstick of the same cores. Minibatches of FRAMES
are computed whole (`1 part`), or in halves whose exchange overlaps with the other's computation.
Loss and gradient are first compared with those of one process. Each time is the shortest of several
rounds, from a barrier until the slowest process is done. Frames per CPU second are end to end, of
the busiest process with all its threads; they leave out what a process waits for, and depend less
on other load. Writes FOLDER/stripes.json and stripes.md.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bench_kernels import about, frames_of, write
from torch.distributed.tensor.parallel import loss_parallel

from asr_train import jobs, schema
from asr_train.comm.bucket import Bucket
from asr_train.comm.stripes import Stripes
from asr_train.files import read_json, write_json
from asr_train.model.dnn import Dnn
from asr_train.model.loss import frame_loss
from asr_train.model.stripes import StripedDnn
from asr_train.report.tables import as_markdown

CASES = ("512=1024", "1024=1024", "2048=1024")
LAYERS, CONTEXT, MELS = 7, 5, 40
OUTPUTS = 4.54  # per unit of a layer, as 9,304 are to 2,048
ROUNDS = 5
TIMEOUT = timedelta(seconds=600)
CLOSE = 1e-3  # relative; sums are in another order
SETUPS = {  # processes, threads of each, parts of a minibatch
    "1 process": (1, 1, 1),
    "1 process, 2 threads": (1, 2, 1),
    "2 stripes, 1 part": (2, 1, 1),
    "2 stripes, halves": (2, 1, 2),
}
PHASES = ("end to end", "forward", "backward", "update")


def network(width: int) -> Dnn:
    settings = schema.DnnSettings(
        layers=LAYERS,
        width=width,
        nonlinearity=schema.Nonlinearity.sigmoid,
        context_left=CONTEXT,
        context_right=CONTEXT,
    )
    whole = Dnn(settings, round(OUTPUTS * width), torch.zeros(MELS), torch.ones(MELS), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # it is zero in the beginning, and so are then all errors
        whole.layers[-1].weight.normal_(std=0.01, generator=generator)
    return whole


@loss_parallel()
def run(setup: str, width: int, frames: int, rank: int, store: str, output: Path) -> None:
    """Measure as one of the processes; the first writes what all found."""
    processes, threads, parts = SETUPS[setup]
    torch.set_num_threads(threads)
    where = {"rank": rank, "world_size": processes, "timeout": TIMEOUT}
    dist.init_process_group("gloo", init_method=f"file://{store}", **where)
    stripes, model = None, network(width)
    if processes > 1:
        stripes = Stripes(1, processes, torch.device("cpu"), TIMEOUT.total_seconds())
        model = StripedDnn(model, stripes.mesh["model"], parts)
    bucket = Bucket(model, stripes)
    rng = torch.Generator().manual_seed(0)
    feats_BTF = torch.randn(frames, 2 * CONTEXT + 1, MELS, generator=rng)
    ali_BT = torch.randint(model.num_states, (frames, 1), generator=rng)
    mask_BT = torch.ones(frames, 1, dtype=torch.bool)

    def loss() -> torch.Tensor:
        return frame_loss(model(feats_BTF), ali_BT, mask_BT)[0]

    def forward() -> None:
        with torch.no_grad():
            loss()

    def gradient() -> torch.Tensor:
        bucket.zero_grad()
        found = loss()
        found.backward()
        return found.detach()

    def update() -> None:
        bucket.weights_P.add_(bucket.grad_P, alpha=-1e-9)

    def step() -> None:
        gradient()
        update()

    def norm(square: torch.Tensor) -> float:
        return (stripes.total(square) if stripes else square).sqrt().item()

    found: dict[str, Any] = {
        "loss": gradient().item(),
        "norm": norm(bucket.grad_P.double().square().sum()),
    }
    seconds: dict[str, float] = {}
    calls: dict[str, Callable[[], Any]] = {"forward": forward, "gradient": gradient}
    for name, call in (calls | {"update": update, "end to end": step}).items():
        call()
        taken = []
        for _ in range(ROUNDS):
            dist.barrier()
            began, began_cpu = time.perf_counter(), time.process_time()
            call()
            cpu = torch.tensor([time.process_time() - began_cpu], dtype=torch.float64)
            dist.all_reduce(cpu, dist.ReduceOp.MAX)  # a barrier, too
            taken.append((time.perf_counter() - began, cpu.item()))
        seconds[name], seconds["cpu"] = map(min, zip(*taken, strict=True))  # the last: end to end
    seconds["backward"] = max(1e-9, seconds.pop("gradient") - seconds["forward"])
    if rank == 0:
        size = sum(p.numel() for p in model.parameters())
        fps = {phase: frames / seconds[phase] for phase in PHASES}
        found |= {"parameters": size, "frames_per_cpu_second": frames / seconds["cpu"]}
        write_json(output, {**found, "frames_per_second": fps})
    dist.barrier()
    dist.destroy_process_group()


def measured(setup: str, width: int, frames: int) -> dict[str, Any]:
    """Return what `run` found in new processes."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "found.json"
        given = setup, width, frames
        children = [
            context.Process(target=run, args=(*given, rank, f"{folder}/store", output))
            for rank in range(SETUPS[setup][0])
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()
        if any(child.exitcode for child in children):
            raise SystemExit(f"{setup} of width {width} failed; see above")
        return {"setup": setup, "width": width, "frames": frames, **read_json(output)}


def compare(row: dict[str, Any], whole: dict[str, Any]) -> None:
    """Refuse results that are not those of one process."""
    for name in ("loss", "norm"):
        if abs(row[name] / whole[name] - 1) > CLOSE:
            raise SystemExit(
                f"{row['setup']}: {name} is {row[name]} but {whole[name]} in one process"
            )


def table(rows: list[dict[str, Any]]) -> str:
    """Format rows as Markdown: frames/s, and what they are to one process's."""
    lines = []
    for row in rows:
        whole = next(r for r in rows if (r["width"], r["frames"]) == (row["width"], row["frames"]))
        of_whole, own = (r["frames_per_second"] for r in (whole, row))
        size = f"{LAYERS} x {row['width']}, {row['parameters'] / 1e6:.1f} M"
        shown = (f"{own[phase]:,.0f} ({own[phase] / of_whole[phase]:.2f})" for phase in PHASES)
        cpu, of_cpu = row["frames_per_cpu_second"], whole["frames_per_cpu_second"]
        per_cpu = f"{cpu:,.0f} ({cpu / of_cpu:.2f})"
        lines.append([size, str(row["frames"]), row["setup"], *shown, per_cpu])
    head = ["network", "minibatch", "setup", *(f"{phase} frames/s" for phase in PHASES)]
    head.append("frames per CPU s")
    return as_markdown("", head, lines, (), names=1)


def main(folder: str, *cases: str) -> None:
    wanted = [frames_of(case) for case in cases or CASES]
    if odd := [width for width, _ in wanted if not width.isdecimal() or int(width) < 2]:
        raise ValueError(f"{odd[0]!r} must be a layer's width of 2 or more, as in 512=1024")
    facts, rows = about(), list[dict[str, Any]]()
    for width, counts in wanted:
        for frames in counts:
            found = [measured(setup, int(width), frames) for setup in SETUPS]
            for row in found:
                compare(row, found[0])
            rows += found
    facts["load"] = about()["load"]
    title = "A network in one process, and in two stripes"
    write(Path(folder, "stripes"), title, table(rows), facts, {"rows": rows})


if __name__ == "__main__":
    jobs.main(main, __doc__ or "")
