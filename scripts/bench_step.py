"""bench_step.py FOLDER [MODEL=FRAMES,FRAMES ...]

Compare a whole training step of plain SGD with one of GTC on one device, and time each part; then
time a step by every method. Writes FOLDER/steps.json and steps.md. The GTC step is that of one
worker of a group: it compresses its gradient, writes a message, reads and checks one, and updates
the weights that it names. No data crosses a network, and a real group would read one message per
worker; reading 15 more is timed separately. Frames and their states are random; tau is such that
one element in a thousand exceeds it. Each time is the shortest of several rounds, in which SGD and
GTC alternate. THREADS=1 works as in bench_kernels.py.

Steps by every method are those of two virtual workers on this device (one for SGD; four in groups
of two for bmuf_gtc), per worker, the mean over the steps of a block: all that training does but the
link and the reader. Their share of the GEMM peak is 6 products per weight and frame that the layers
read (forward and backward), over what a product of two large square matrices reaches in the same
run. PRECISIONS in the environment lists optim.precision (default: fp32, and bf16 on a GPU).
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from bench_kernels import ALONE, DEVICE, about, frames_of, seconds_of, write
from torch import Tensor

from asr_train import jobs, schema
from asr_train.comm import codec
from asr_train.comm.bucket import Bucket
from asr_train.comm.gtc import Gtc
from asr_train.comm.loopback import Loopback
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.methods import build, sgd
from asr_train.comm.reducers import Gradient, Quanta, Sent
from asr_train.compose import settings
from asr_train.kernels import threshold
from asr_train.model.store import Model, build_model
from asr_train.report.tables import as_markdown
from asr_train.schema import Precision
from asr_train.shards.batch import Batch
from asr_train.train.captured import captured_for
from asr_train.train.identity import PrecisionError, check_precision, same_bits_every_time
from asr_train.train.objective import CROSS_ENTROPY
from asr_train.train.schedule import Schedule
from asr_train.train.state import RunState
from asr_train.train.step import gradients, step

FRAMES = "256,512,1024" if DEVICE == "cpu" else "1024,8192"
LARGE = ("dnn_7x2048_9304=1024", "dnn_7x4096=1024")  # of seide2014_1bit, on a GPU
CASES = (  # strom2015's and ladkat2019's first
    *(f"dnn_5x1536={FRAMES}", f"lstm_5x768={FRAMES}"),
    *(LARGE if DEVICE == "cuda" else ()),
)
TASKS = {  # mels and states
    "dnn_7x2048_9304": (56, 9304),
    "dnn_7x4096": (56, 14000),
    "lstm_5x768": (64, 3183),
}
OTHERS = (20, 3030)
PRECISIONS = os.environ.get("PRECISIONS", "fp32,bf16" if DEVICE == "cuda" else "fp32")
METHODS = {"sgd": 1, "allreduce": 2, "gtc": 2, "onebit": 2, "bmuf": 2, "bmuf_gtc": 4}  # workers
BLOCK = 10 if DEVICE == "cuda" else 4  # steps of a block, over which times are averaged
BLOCKS = 3  # of which the median counts
SQUARE = 8192 if DEVICE == "cuda" else 2048  # of the product that shows the peak
OUTPUTS = 64  # per row that a recurrent network reads
DENSITY = 1e-3
WORKERS = 16  # messages that are read, for the time of more than one
SETTLING = 3  # steps before tau is fixed
ROUNDS = 6 if DEVICE == "cpu" else 20
MORE_ROUNDS = 30  # for parts that are short beside forward and backward
PARTS: dict[str, tuple[ModuleType, str]] = {
    "compress": (threshold, "compress_rows"),
    "write message": (codec, "write"),
    "read message": (codec, "read_words"),
}


class Worker:
    """One worker of a group: a network, and what it is trained on."""

    def __init__(self, name: str, frames: int) -> None:
        run = settings("gtc", [f"model={name}"])
        self.optim = run.optim
        num_mels, num_states = TASKS.get(name, OTHERS)
        mean_F, var_F = torch.zeros(num_mels), torch.ones(num_mels)
        self.model = build_model(run.model, num_states, mean_F, var_F, seed=1)
        self.model.to(DEVICE)
        self.bucket = Bucket(self.model)
        self.size = len(self.bucket.weights_P)
        if not ALONE:
            same_bits_every_time(torch.device(DEVICE), self.size * frames)
        exchange = Loopback(range(1), torch.device(DEVICE))
        method: ExchangeMethod = sgd.build(run.comm, exchange, self.size)
        self.state = RunState.fresh(self.bucket, method, Schedule(run.optim))
        device = torch.device(DEVICE)
        self.state.captured = captured_for(self.model, device, CROSS_ENTROPY, is_cut=False)
        self.gtc = Gtc(exchange, self.size, run.comm.gtc or schema.GtcSettings(threshold=1.0))
        self.sent = Sent()
        self.batch = drawn(self.model, frames, num_mels, num_states)

    def gradient(self) -> Gradient:
        """Run forward and backward as training does."""
        (found,) = gradients(self.model, lambda _: self.batch, self.state, range(1), {})
        return found

    def update(self, found: Tensor | Quanta) -> None:
        self.state.method.apply(0, found, rate=1e-9)

    def by_sgd(self) -> None:
        self.update(self.gradient().grad_P)

    def exchange(self, gradient: Gradient) -> Quanta:
        found = self.gtc.reduce([gradient], {0: self.sent})
        assert found is not None
        return found

    def by_gtc(self) -> None:
        self.update(self.exchange(self.gradient()))

    def settle(self) -> None:
        """Bring residual and threshold to where they are in the middle of training."""
        for _ in range(SETTLING):
            owed_K = (self.gradient().grad_P + self.gtc.residuals[0])[::16].abs()
            tau = float(owed_K.kthvalue(round(len(owed_K) * (1 - DENSITY))).values)
            self.gtc.tau = max(tau, threshold.SMALLEST)
            self.by_gtc()


def drawn(model: Model, frames: int, num_mels: int, num_states: int) -> Batch:
    """Draw single frames with their windows, or rows of OUTPUTS outputs."""
    rng = torch.Generator().manual_seed(0)
    rows, columns = (frames, 1) if model.stride == 1 else (frames // OUTPUTS, OUTPUTS)
    times = model.context_left + (columns - 1) * model.stride + 1 + model.context_right
    feats_BTF = torch.randn(rows, times, num_mels, generator=rng)
    ali_BT = torch.randint(num_states, (rows, columns), generator=rng)
    mask_BT = torch.ones(rows, columns, dtype=torch.bool)
    return Batch(feats_BTF.to(DEVICE), ali_BT.to(DEVICE), mask_BT.to(DEVICE), rows * columns)


@contextlib.contextmanager
def watched(spent: dict[str, float]) -> Iterator[None]:
    """Add to `spent` the seconds of each of PARTS inside."""

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            result: list[Any] = []
            spent[name] = spent.get(name, 0.0) + seconds_of(lambda: result.append(call(*given)))
            return result[0]

        return run

    with contextlib.ExitStack() as stack:
        for name, (module, function) in PARTS.items():
            call = getattr(module, function)
            stack.enter_context(patch.object(module, function, timed(name, call)))
        yield


def parts(worker: Worker) -> dict[str, float]:
    """Return the seconds of each part of a step, the shortest of several rounds."""
    best: dict[str, float] = {}

    def keep(name: str, seconds: float) -> None:
        best[name] = min(seconds, best.get(name, seconds))

    for _ in range(ROUNDS):
        keep("forward, backward", seconds_of(worker.gradient))
    held = worker.gradient()
    grad_P, residual_P = held.grad_P.clone(), worker.gtc.residuals[0].clone()
    for _ in range(MORE_ROUNDS):
        held.grad_P.copy_(grad_P)
        keep("update", seconds_of(lambda: worker.update(held.grad_P)))
        worker.gtc.residuals[0].copy_(residual_P)
        spent: dict[str, float] = {}
        found: list[Quanta] = []
        with watched(spent):
            whole = seconds_of(lambda: found.append(worker.exchange(held)))  # noqa: B023
        for name, seconds in spent.items():
            keep(name, seconds)
        keep("other", whole - sum(spent.values()))
        keep("decode and update", seconds_of(lambda: worker.update(found[0])))  # noqa: B023
    return best


def more_messages(worker: Worker) -> float:
    """Return the seconds to read and decode WORKERS messages beyond those of one."""
    gradient = worker.gradient()
    kept_P = torch.empty_like(gradient.grad_P)
    words_K, _ = threshold.compress(
        gradient.grad_P, worker.gtc.residuals[0], worker.gtc.tau, kept_P
    )
    header = codec.Header(
        step=0, worker=0, workers=1, size=worker.size, tau=1.0, frames=1, wanted=len(words_K)
    )
    message_B = codec.write(words_K, header, worker.gtc.kind)

    def taken(messages: int) -> float:
        def run() -> None:
            received = [message_B] * messages
            checks = codec.Checks(deferred=DEVICE == "cuda")
            words = codec.read_words(codec.read_headers(received), received, checks)
            worker.update(Quanta(words, worker.gtc.tau, gradient.grad_P))

        return min(seconds_of(run) for _ in range(MORE_ROUNDS))

    return taken(WORKERS) - taken(1)


def peak(precision: Precision) -> float:
    """Return the products and sums per second of a product of two square matrices."""
    torch.backends.cuda.matmul.allow_tf32 = precision is Precision.tf32
    dtype = torch.bfloat16 if precision is Precision.bf16 else torch.float32
    a, b = torch.randn(2, SQUARE, SQUARE, device=DEVICE, dtype=dtype)
    seconds = min(seconds_of(lambda: torch.mm(a, b)) for _ in range(MORE_ROUNDS))
    return float(2 * SQUARE**3 / seconds)


def products(model: Model, batch: Batch) -> int:
    """Return the products and sums of a step, forward and backward.

    Of a recurrent network, which reads a window per output and, before the first, those of its
    delay; the output layer, which does not multiply these, is counted as if it did.
    """
    rows, columns = batch.ali_BT.shape
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    return 6 * weights * rows * (columns + getattr(model, "delay", 0))


def by_method(name: str, frames: int, tau: float, precision: Precision) -> dict[str, Any]:
    """Return the seconds of a worker's step by every method."""
    worker = Worker(name, frames)
    weights_P = worker.bucket.weights_P.clone()
    batch, optim = worker.batch, replace(worker.optim, precision=precision, rate=1e-9)
    check_precision(precision, worker.model, torch.device(DEVICE))
    same_bits_every_time(torch.device(DEVICE), worker.size * frames, precision)
    seconds = {}
    for method, workers in METHODS.items():
        exchange = Loopback(range(workers), torch.device(DEVICE))
        comm = settings(method, ["comm.group_size=2"] if method == "bmuf_gtc" else []).comm
        if comm.gtc is not None:
            comm.gtc.threshold = tau
            if DEVICE == "cuda":
                comm.gtc.capacity = schema.Capacity.fixed
        if comm.bmuf is not None:
            comm.bmuf.block_steps = BLOCK
        worker.bucket.weights_P.copy_(weights_P)
        built = build(comm, exchange, worker.size)
        state = RunState.fresh(worker.bucket, built, Schedule(optim))
        captured = captured_for(worker.model, torch.device(DEVICE), CROSS_ENTROPY, is_cut=False)
        state.captured = captured

        def a_block(state: RunState = state, workers: int = workers) -> None:
            for _ in range(BLOCK):
                state.method.begin_step(workers, frames)
                step(worker.model, lambda _: batch, state, optim.rate)

        a_block()  # compiles kernels and records graphs
        blocks = [seconds_of(a_block) for _ in range(BLOCKS)]
        seconds[method] = statistics.median(blocks) / BLOCK / workers
    return {
        "model": name,
        "parameters": worker.size,
        "frames": frames,
        "precision": precision.value,
        "tau": tau,
        "step_seconds": seconds,
        "overhead": {m: s / seconds["sgd"] - 1 for m, s in seconds.items()},
        "frames_per_second": {m: frames / s for m, s in seconds.items()},
        "products_per_second": products(worker.model, batch) / seconds["sgd"],
    }


def measured(name: str, frames: int) -> dict[str, Any]:
    worker = Worker(name, frames)
    worker.settle()
    best = {"sgd": float("inf"), "gtc": float("inf")}
    steps, before = 0, worker.sent.elements
    for round_ in range(ROUNDS + 1):
        for how, by in (("sgd", worker.by_sgd), ("gtc", worker.by_gtc)):
            seconds = seconds_of(by)
            steps += how == "gtc"
            best[how] = min(best[how], seconds) if round_ else best[how]
    density = (worker.sent.elements - before) / steps / worker.size
    found = parts(worker)
    plain = found["forward, backward"] + found["update"]
    added = sum(found.values()) - plain - found["update"]
    return {
        "model": name,
        "parameters": worker.size,
        "frames": frames,
        "density": density,
        "step_seconds": best,
        "overhead": best["gtc"] / best["sgd"] - 1,
        "overhead_by_parts": added / plain,
        "part_seconds": found,
        "tau": worker.gtc.tau,
        f"{WORKERS - 1}_more_messages_seconds": more_messages(worker),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Format rows as Markdown."""
    names = list(rows[0]["part_seconds"])
    head = ["model", "frames", "density", "SGD ms", "GTC ms", "GTC costs", "by its parts"]
    head += [f"{name} ms" for name in names] + [f"{WORKERS - 1} more messages ms"]
    lines = []
    for row in rows:
        line = [
            f"{row['model']}, {row['parameters'] / 1e6:.1f} M",
            f"{row['frames']}",
            f"{row['density']:.1e}",
            *(f"{1e3 * row['step_seconds'][how]:.1f}" for how in ("sgd", "gtc")),
            f"{100 * row['overhead']:+.1f} %",
            f"{100 * row['overhead_by_parts']:+.1f} %",
            *(f"{1e3 * row['part_seconds'][name]:.2f}" for name in names),
            f"{1e3 * row[f'{WORKERS - 1}_more_messages_seconds']:.2f}",
        ]
        lines.append(line)
    return as_markdown("", head, lines, (), names=1)


def methods_table(rows: list[dict[str, Any]], peaks: dict[str, float]) -> str:
    """Format steps by every method as Markdown."""
    head = ["model", "frames", "precision", *(f"{method} ms" for method in METHODS)]
    head += ["gtc costs", "frames/s of sgd", "TFLOP/s of sgd", "of the GEMM peak"]
    lines = [
        [
            f"{row['model']}, {row['parameters'] / 1e6:.1f} M",
            f"{row['frames']}",
            row["precision"],
            *(f"{1e3 * row['step_seconds'][method]:.2f}" for method in METHODS),
            f"{100 * row['overhead']['gtc']:+.1f} %",
            f"{row['frames_per_second']['sgd']:,.0f}",
            f"{row['products_per_second'] / 1e12:.3g}",
            f"{100 * row['products_per_second'] / peaks[row['precision']]:.0f} %",
        ]
        for row in rows
    ]
    return as_markdown("", head, lines, (), names=1)


def main(folder: str, *cases: str) -> None:
    began = time.time()
    known = [precision.value for precision in Precision]
    if not set(PRECISIONS.split(",")) <= set(known):
        raise ValueError(f"PRECISIONS is {PRECISIONS!r}; name some of {', '.join(known)}")
    precisions = [Precision(name) for name in PRECISIONS.split(",")]
    wanted = [frames_of(case) for case in cases or CASES]
    for name, counts in wanted:
        odd = [frames for frames in counts if frames % OUTPUTS]
        if settings("gtc", [f"model={name}"]).model.lstm and odd:
            raise ValueError(
                f"{name}={odd[0]} must be a multiple of {OUTPUTS}, for rows of outputs"
            )
    facts = about()
    peaks = {precision.value: peak(precision) for precision in precisions}
    rows, methods = [], []
    for name, counts in wanted:
        for frames in counts:
            rows.append(measured(name, frames))
            tau = rows[-1]["tau"]
            for precision in precisions:
                try:
                    methods.append(by_method(name, frames, tau, precision))
                except PrecisionError as error:
                    print(f"{name}={frames}, {precision.value}: not measured: {error}")
    facts |= {f"GEMM peak {name}, TFLOP/s": round(p / 1e12, 3) for name, p in peaks.items()}
    facts["seconds"] = round(time.time() - began)
    text = table(rows) + "## By method, per worker\n\n" + methods_table(methods, peaks)
    content = {"peaks": peaks, "steps": rows, "methods": methods}
    write(Path(folder, "steps"), "A training step by SGD and by GTC", text, facts, content)


if __name__ == "__main__":
    jobs.main(main, __doc__ or "")
