"""bench_kernels.py FOLDER [MILLIONS...]

Measure GB/s of every kernel beside a copy of as many elements and beside PyTorch's alternatives, in
one run. Writes FOLDER/kernels.json, kernels.md and kernels.svg. Results are compared with the
reference first. Sizes are millions of parameters: by default 1, 14.6 and 46 on a CPU, and also 160
on a GPU. Each time is the shortest of several rounds; every round runs all calls, so other
load on the machine affects all alike. On a GPU, times are the device's own: launches are queued
before it begins, as in training, where the host is ahead; only calls that wait for the device show
its idle time. With THREADS=1 in the environment, a CPU uses one thread and its CPU time is
measured, which depends little on other load.
"""

import datetime
import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr_train import jobs
from asr_train.facts import MAX_ELEMENTS
from asr_train.files import replacing, write_json, write_text
from asr_train.kernels import decode, onebit, rice, threshold
from asr_train.kernels.backend import VARIABLE
from asr_train.provenance import commit, machine
from asr_train.report.tables import as_markdown

DENSITIES = (1e-1, 1e-2, 1e-3, 1e-4)
USUAL = 1e-3  # at which the peers are measured whose time hardly depends on it
BUDGET = 1.5 if not torch.cuda.is_available() else 0.3  # seconds of rounds, per group of calls
AHEAD = 1_000_000  # cycles of a GPU, 0.5 ms, in which the host queues a call's launches
MIN_ROUNDS = 2
SLOW, SELDOM = 0.1, 8  # a call of more than so many seconds runs in every 8th round only
WORKERS = 4
COLUMNS = 1536  # inputs of the 14.6 M network's hidden layers
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALONE = os.environ.get("THREADS") == "1" and DEVICE == "cpu"

Calls = dict[str, Callable[[], Any]]


def timed(calls: Calls) -> dict[str, float]:
    """Return the seconds of each call; the first, which may compile, does not count.

    Rounds continue for BUDGET seconds; slow calls run in fewer of them.
    """
    best: dict[str, float] = {}
    for call in calls.values():
        call()
    began, round_ = time.perf_counter(), 0
    while round_ < MIN_ROUNDS or time.perf_counter() - began < BUDGET:
        for name, call in calls.items():
            if round_ >= MIN_ROUNDS and best[name] > SLOW and round_ % SELDOM:
                continue
            seconds = seconds_of(call) if DEVICE == "cpu" else seconds_on_device(call)
            best[name] = min(seconds, best.get(name, float("inf")))
        round_ += 1
    return best


def seconds_of(call: Callable[[], Any]) -> float:
    clock = time.thread_time if ALONE else time.perf_counter
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    began = clock()
    call()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def seconds_on_device(call: Callable[[], Any]) -> float:
    """Return a GPU's seconds; it waits first, so that the host's launches are ahead of it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(AHEAD)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


class Vectors:
    """The buffers that kernels of P parameters work on."""

    def __init__(self, size: int) -> None:
        rng = torch.Generator(DEVICE).manual_seed(0)
        self.size = size
        self.grad_P = torch.randn(size, generator=rng, device=DEVICE)
        self.residual_P = torch.randn(size, generator=rng, device=DEVICE)
        self.kept_P = torch.zeros(size, device=DEVICE)
        self.out_P = torch.zeros(size, device=DEVICE)

    def threshold(self, density: float) -> float:
        """Return the threshold that this share of elements exceeds, estimated on a sample."""
        owed_K = (self.residual_P[:1_000_000] + self.grad_P[:1_000_000]).abs()
        below = min(len(owed_K) - 1, round(len(owed_K) * (1 - density)))  # at least one is sent
        return float(owed_K.kthvalue(below).values)

    def layers(self) -> list[tuple[int, int, int]]:
        """Return places of matrices [COLUMNS, COLUMNS], or of one with fewer rows."""
        rows = min(COLUMNS, self.size // COLUMNS)
        count = self.size // (rows * COLUMNS)
        return [(n * rows * COLUMNS, rows, COLUMNS) for n in range(count)]


def referred(call: Callable[[], Any]) -> Any:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "reference"
    try:
        return call()
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def check(name: str, found: Tensor, wanted: Tensor, rounds: float = 0.0) -> None:
    """Check for bit-identity, or for equality within float32 rounding where sums are rounded."""
    if not torch.allclose(found, wanted, rtol=rounds, atol=rounds):
        raise SystemExit(f"{name}: differs from the reference ({len(found):,} elements)")


# --- peers ----------------------------------------------------------------------------------------


def marked(grad_P: Tensor, residual_P: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Do all of the eager form but the compaction, whose size no compiler knows."""
    owed_P = residual_P + grad_P
    is_hit_P = owed_P.abs() > tau
    return torch.where(is_hit_P, owed_P - tau * owed_P.sign(), owed_P), is_hit_P


def power_sgd(owed_RC: Tensor, q_CK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Do one power iteration, without the exchange between its halves; return the residual too."""
    p_RK, _ = torch.linalg.qr(owed_RC @ q_CK)
    q_CK = owed_RC.T @ p_RK
    return p_RK, q_CK, owed_RC - p_RK @ q_CK.T


def sign_packed(grad_P: Tensor, residual_P: Tensor, kept_P: Tensor) -> tuple[Tensor, Tensor]:
    """Pack signs in bits with one scale, norm / sqrt(P), as 1-bit Adam compresses."""
    torch.add(residual_P, grad_P, out=kept_P)
    scale = kept_P.norm() / len(kept_P) ** 0.5
    is_high_P = kept_P >= 0
    places = torch.arange(8, dtype=torch.uint8, device=grad_P.device)
    whole = is_high_P[: len(is_high_P) // 8 * 8].view(-1, 8).to(torch.uint8)
    bits_B = (whole << places).sum(1, dtype=torch.uint8)
    kept_P -= torch.where(is_high_P, scale, -scale)
    return bits_B, scale


def compiled_mark() -> tuple[Callable[..., Any] | None, str]:
    """Return torch.compile's form of `marked`, or None, with the reason."""
    try:
        mark = torch.compile(marked, dynamic=True)
        mark(torch.randn(1000, device=DEVICE), torch.randn(1000, device=DEVICE), 1.0)
        return mark, "measured"
    except Exception as error:  # the compiler beneath raises many kinds
        return None, f"no compiler: {type(error).__name__}"


# --- what is measured -----------------------------------------------------------------------------


def compression(v: Vectors, mark: Callable[..., Any] | None) -> list[dict[str, Any]]:
    rows = []
    g, r, kept = v.grad_P, v.residual_P, v.kept_P
    for density in DENSITIES:
        tau = v.threshold(density)
        words_K, _ = threshold.compress(g, r, tau, kept)
        wanted_P = torch.empty_like(kept)
        check("compress", words_K, threshold.compress_reference(g, r, tau, wanted_P).words_K)
        check("compress", kept, wanted_P)
        del wanted_P
        calls: Calls = {
            "copy": lambda: v.out_P.copy_(g),
            "ours": lambda: threshold.compress(g, r, tau, kept),  # noqa: B023
            "eager torch": lambda: threshold.compress_reference(g, r, tau, kept),  # noqa: B023
        }
        if DEVICE == "cuda":
            turns_W = torch.zeros(1, dtype=torch.int64, device=DEVICE)
            fixed = g[None], r[None], tau, kept[None], 2 * len(words_K) + 1, turns_W
            calls["ours, fixed capacity"] = lambda: threshold.compress_fixed_rows(*fixed)  # noqa: B023
        if mark is not None:

            def compiled() -> Tensor:
                return mark(g, r, tau)[1].nonzero()  # noqa: B023

            calls["torch.compile, nonzero"] = compiled
        if density == USUAL:
            count = len(words_K)
            grad_RC = g[: len(g) // COLUMNS * COLUMNS].view(-1, COLUMNS)
            q_CK = torch.randn(COLUMNS, 2, device=DEVICE)
            calls |= {
                "torch.nonzero alone": lambda: (g.abs() > tau).nonzero(),  # noqa: B023
                "nonzero_static alone": lambda: torch.nonzero_static(g.abs() > tau, size=count),  # noqa: B023
                "torch.topk alone": lambda: g.abs().topk(count),  # noqa: B023
                "PowerSGD, rank 2": lambda: power_sgd(grad_RC, q_CK),  # noqa: B023
                "sign packing": lambda: sign_packed(g, r, kept),
            }
            if DEVICE == "cuda" and importlib.util.find_spec("cupy") is not None:
                import cupy

                view_P = cupy.from_dlpack(g)
                calls["CuPy flatnonzero alone"] = lambda: cupy.flatnonzero(abs(view_P) > tau)  # noqa: B023
        floor = 12 + 4 * density
        rows += entries("compress", v.size, timed(calls), floor, density=density)
    return rows


def decoding(v: Vectors) -> list[dict[str, Any]]:
    rows = []
    for density in DENSITIES:
        sent = []
        for w in range(WORKERS):
            tau = v.threshold(density)
            grad_P = v.grad_P.roll(w)
            sent.append(threshold.compress(grad_P, v.residual_P, tau, v.kept_P).words_K)
        found_P, wanted_P = v.grad_P.clone(), v.grad_P.clone()
        decode.update(sent, 0.5, 0.3, found_P)
        decode.reference(sent, 0.5, 0.3, wanted_P)
        check("decode", found_P, wanted_P)
        del wanted_P
        calls: Calls = {
            "copy": lambda: v.out_P.copy_(v.grad_P),
            "ours": lambda: decode.update(sent, 0.5, 1e-9, found_P),  # noqa: B023
            "eager torch": lambda: decode.reference(sent, 0.5, 1e-9, found_P),  # noqa: B023
        }
        hits = sum(map(len, sent)) / v.size
        floor = 4 * hits + 8 * min(1.0, 16 * hits)  # messages, and the cache lines they touch
        rows += entries("decode and update, 4", v.size, timed(calls), floor, density=density)
    return rows


def dense(v: Vectors) -> list[dict[str, Any]]:
    layers = v.layers()
    size = layers[-1][0] + layers[-1][1] * COLUMNS
    grad_P, residual_P, kept_P, out_P = (
        vector_P[:size] for vector_P in (v.grad_P, v.residual_P, v.kept_P, v.out_P)
    )
    found = onebit.quantise_all(layers, grad_P, residual_P, kept_P)
    wanted_P = torch.empty_like(kept_P)
    wanted = referred(lambda: onebit.quantise_all(layers, grad_P, residual_P, wanted_P))
    for ours, theirs in zip(found, wanted, strict=True):
        check("1-bit", ours.bits_RB, theirs.bits_RB)
        check("1-bit", ours.means_2C, theirs.means_2C, rounds=1e-5)
    check("1-bit", kept_P, wanted_P, rounds=1e-5)

    bits, means = (torch.cat([t.flatten() for t in some]) for some in zip(*found, strict=True))

    def add_up() -> None:
        onebit.add_up_all(layers, [(bits, means)] * WORKERS, out_P)

    copy: Calls = {"copy": lambda: out_P.copy_(grad_P)}
    calls = copy | {
        "ours": lambda: onebit.quantise_all(layers, grad_P, residual_P, kept_P),
        "eager torch": lambda: referred(
            lambda: onebit.quantise_all(layers, grad_P, residual_P, kept_P)
        ),
    }
    rows = entries("1-bit quantise", size, timed(calls), 12.125)
    calls = copy | {"ours": add_up, "eager torch": lambda: referred(add_up)}
    return rows + entries("1-bit add up 4", size, timed(calls), 4 + WORKERS / 8)


def coding(v: Vectors) -> list[dict[str, Any]]:
    """Measure Golomb-Rice codes: elements per second, and the link speed below which they pay."""
    found = []
    for density in DENSITIES:
        words_K, _ = threshold.compress(v.grad_P, v.residual_P, v.threshold(density), v.kept_P)
        parameter, bits = rice.best_parameter(words_K)
        payload_B = rice.write(words_K, parameter, bits)
        check("rice", payload_B, rice.write_reference(words_K, parameter))
        check("rice", rice.read(payload_B, len(words_K), parameter, v.size), words_K)
        count = len(words_K)

        def write_eagerly(words_K: Tensor = words_K) -> None:
            parameter, bits = rice.best_parameter(words_K)
            rice.write(words_K, parameter, bits)

        calls: Calls = {
            "write": write_eagerly,
            "read": lambda: rice.read(payload_B, count, parameter, v.size),  # noqa: B023
            "eager write": lambda: referred(write_eagerly),
            "eager read": lambda: referred(
                lambda: rice.read(payload_B, count, parameter, v.size)  # noqa: B023
            ),
        }
        seconds = timed(calls)
        saved = 32 * count - bits
        found.append(
            {
                "parameters": v.size,
                "density": density,
                "elements": count,
                "bits_an_element": bits / count,
                "elements_per_second": {name: count / s for name, s in seconds.items()},
                # Time saved on the link, over the time of one to write and one to read; packed
                # words of 32 bits take next to none
                "break_even_bits_per_second": saved / (seconds["write"] + seconds["read"]),
            }
        )
    return found


def entries(
    kernel: str, size: int, seconds: dict[str, float], floor: float, density: float | None = None
) -> list[dict[str, Any]]:
    """Return a row per peer: the fewest bytes that the kernel must move, over its time."""
    copy = 8 * size / seconds["copy"]
    return [
        {
            "kernel": kernel,
            "by": name,
            "parameters": size,
            "density": density,
            "seconds": s,
            "floor_bytes_a_parameter": 8 if name == "copy" else floor,
            "bytes_per_second": (8 if name == "copy" else floor) * size / s,
            "share_of_copy": (8 if name == "copy" else floor) * size / s / copy,
            "times_ours": s / seconds["ours"],
        }
        for name, s in seconds.items()
    ]


# --- report ---------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]], codes: list[dict[str, Any]]) -> str:
    """Format rows as Markdown."""
    head = ["kernel", "M parameters", "density", "by", "ms", "GB/s", "of copy", "x ours"]
    lines = [
        [
            row["kernel"],
            f"{row['parameters'] / 1e6:g}",
            "" if row["density"] is None else f"{row['density']:.0e}",
            row["by"],
            f"{1e3 * row['seconds']:.2f}",
            f"{row['bytes_per_second'] / 1e9:.1f}",
            f"{row['share_of_copy']:.2f}",
            f"{row['times_ours']:.2f}",
        ]
        for row in rows
    ]
    code_head = ["M parameters", "density", "elements", "bits per element"]
    code_head += ["write M/s", "read M/s", "eager write M/s", "eager read M/s", "pays below Gb/s"]
    code_lines = []
    for code in codes:
        speed = {name: s / 1e6 for name, s in code["elements_per_second"].items()}
        code_lines.append(
            [
                f"{code['parameters'] / 1e6:g}",
                f"{code['density']:.0e}",
                f"{code['elements']:,}",
                f"{code['bits_an_element']:.1f}",
                *(f"{speed[s]:.1f}" for s in ("write", "read", "eager write", "eager read")),
                f"{code['break_even_bits_per_second'] / 1e9:.2f}",
            ]
        )
    return (
        as_markdown("", head, lines, (), names=1)
        + "Golomb-Rice codes of the sent elements, in millions per second. On a link slower than "
        "the last column they save more time than they take:\n\n"
        + as_markdown("", code_head, code_lines, (), names=0)
    )


def plot(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    from matplotlib.figure import Figure

    size = max(row["parameters"] for row in rows)
    shown = [
        row
        for row in rows
        if row["parameters"] == size and row["density"] in (None, USUAL) and row["by"] != "copy"
    ][::-1]
    figure = Figure(figsize=(7, 0.3 * len(shown) + 1.2))
    axes = figure.subplots()
    colours = ["C0" if row["by"] == "ours" else "0.7" for row in shown]
    axes.barh(range(len(shown)), [row["share_of_copy"] for row in shown], color=colours)
    axes.set_yticks(range(len(shown)), [f"{row['kernel']}: {row['by']}" for row in shown])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("fewest bytes / time, as a share of a copy's in the same run")
    axes.set_title(title, fontsize=9)
    figure.tight_layout()
    with replacing(path) as part:
        figure.savefig(part, format=path.suffix[1:])


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else machine()


def about() -> dict[str, Any]:
    """Describe where and when something was measured."""
    if ALONE:
        torch.set_num_threads(1)
    return {
        "device": device_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": "the thread's own CPU time" if ALONE else "wall",
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("COMMIT") or commit(),
        "torch": torch.__version__,
        "load": [round(load, 2) for load in os.getloadavg()],
        "gpu": "measured" if DEVICE == "cuda" else "not measured",
    }


def millions_of(argument: str) -> float:
    try:
        size = float(argument)
    except ValueError:
        size = 0.0
    if not COLUMNS <= 1e6 * size <= MAX_ELEMENTS:
        most = MAX_ELEMENTS / 1e6
        raise ValueError(f"{argument!r} must be millions of parameters, from 0.002 to {most:.0f}")
    return size


def frames_of(case: str) -> tuple[str, list[int]]:
    """Return what a case NAME=FRAMES,FRAMES of other benchmarks names, and its numbers of frames.

    Raises:
        ValueError: for another form.
    """
    name, _, counts = case.partition("=")
    frames = [int(count) if count.isdecimal() else 0 for count in counts.split(",")]
    if not name or min(frames) < 1:
        raise ValueError(f"{case!r} must be a name and numbers of frames, as lstm_2x128=512,1024")
    return name, frames


def main(folder: str, *millions: str) -> None:
    began = time.time()
    Path(folder).mkdir(parents=True, exist_ok=True)
    sizes = [millions_of(m) for m in millions] or [1, 14.6, 46, *[160] * (DEVICE == "cuda")]
    facts = about()
    mark, compiler = compiled_mark()
    rows: list[dict[str, Any]] = []
    codes: list[dict[str, Any]] = []
    for million in sizes:
        vectors = Vectors(round(million * 1e6))
        rows += compression(vectors, mark)
        rows += decoding(vectors)
        codes += coding(vectors)
        rows += dense(vectors)  # last: it changes the vectors
    facts |= {
        "torch.compile": compiler,
        "load at the end": os.getloadavg()[0],
        "seconds": round(time.time() - began),
    }
    heading, content = "Kernels beside a copy and their peers", {"kernels": rows, "rice": codes}
    write(Path(folder, "kernels"), heading, table(rows, codes), facts, content)
    biggest = max(row["parameters"] for row in rows) / 1e6
    where = f"{facts['device']}, {facts['threads']} thread(s)"
    title = f"{biggest:g} M parameters, {where}, {facts['date']}"
    plot(rows, Path(folder) / "kernels.svg", title)


def write(
    path: Path, heading: str, text: str, facts: dict[str, Any], content: dict[str, Any]
) -> None:
    """Print a text, and facts below it; write them as .md, and the numbers as .json."""
    text += "\n".join(f"- {key}: {value}" for key, value in facts.items())
    print(text)
    write_json(path.with_suffix(".json"), {"about": facts, **content})
    write_text(path.with_suffix(".md"), f"# {heading}\n\n{text}\n")


if __name__ == "__main__":
    jobs.main(main, __doc__ or "")
