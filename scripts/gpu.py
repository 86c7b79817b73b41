"""Run the tests and benchmarks for a GPU, in parts that resume.

    gpu.py FOLDER WORK [PIECE...]

Pieces: a (tests of kernels and of steps), b (kernels beside a copy), c (training steps), d
(strom2015's network with up to 80 workers), e (ladkat2019's LSTM with up to 128). Each stops after
LIMIT seconds (default 480). The next call resumes with the part that was not done (a file of tests,
a size of vectors, the steps of a network, a run): a run from its last checkpoint, others from their
beginning. A piece that is complete is not run again unless it is named. Writes FOLDER/PIECE.json
and PIECE.md, with the device, the driver, the date and the commit. WORK keeps speech, features and
runs. Without a GPU, all of it runs on the CPU and in Triton's interpreter at tiny sizes, which
shows that it works; times are then "not measured".

Needs the packages that scripts/gpu_wheels.py lists. If one that it fetches is not installed, all of
these are taken from wheels in .wheels, if that folder is there. HOURS of speech (default 8) are
synthesised, unless SHARDS names a folder with shards of 20 mel bins in train/ and dev/. COMMIT
names the commit where there is no repository.
"""

import asr_train.interrupt

import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
HAS_GPU = torch.cuda.is_available()
LIMIT = float(os.environ.get("LIMIT", "480"))
HOURS = os.environ.get("HOURS", "8")  # of speech
SHARDS = os.environ.get("SHARDS")
STEPS = ("lstm_5x768=2048", "dnn_7x2048_9304=1024", "dnn_5x1536=1024", "dnn_7x4096=1024")
TAUS = (2, 9, 15)  # of strom2015's table 3, beside 4
STROM = ["feats=logmel20", "model=dnn_5x1536", "optim=strom2015", "optim.precision=tf32"]
# Those of recipes/strom2015's SCALE=medium, but for the epochs: tau is divided by 16 as well
STROM += ["optim.minibatch_frames=64", "optim.rate=0.032", "optim.pretrain.minibatch_frames=64"]
STROM += [
    "optim.phases=[{until:0.166,minibatch_frames:16,workers:10},"
    "{until:1.0,minibatch_frames:32,workers:10}]"
]
ASYNC = ["comm.gtc.codec=packed32", "comm.asynchronous.virtual_time.speed_spread=0.01"]
# The paper has 64 mel bins; with these 20, both networks learn from the same shards
LADKAT = ["feats=logmel20", "model=lstm_5x768", "optim=ladkat2019", "optim.precision=tf32"]
# Those of recipes/ladkat2019's SCALE=medium, but for the epochs: tau is divided by 8 as well
LADKAT += ["optim.minibatch_frames=256", "optim.max_norm=1"]
# With 128 workers an epoch is some 30 steps, of which only the first rows compile and load
LADKAT += ["optim.log_steps=5"]
# Sizes of a check without a GPU; workers are a tenth
TINY_STROM = ["model.dnn.width=32", "optim.phases=[]", "optim.minibatch_frames=64"]
TINY_LADKAT = ["model.lstm.width=32", "model.lstm.layers=1", "optim.minibatch_frames=64"]

RUNS = "exp"  # folder of WORK
Command = list[str]


@dataclass(frozen=True)
class Part:
    """A part of a piece: commands, one after the other, and what they found.

    Attributes:
        files: what later parts read; without them, it is run again.
        bulky: a folder that only this part reads; removed once the part is recorded, outside the
            limit: half of it would be what no run can resume from.
    """

    name: str
    commands: list[Command]
    found: Callable[[], Any]
    files: tuple[Path, ...] = ()
    bulky: Path | None = None


# --- pieces ---------------------------------------------------------------------------------------


def tests(work: Path) -> Iterator[Part]:
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    if importlib.util.find_spec("xdist") is not None:  # kernels are compiled side by side
        pytest += ["-n", str(min(8, os.cpu_count() or 1))]
    kernels = ("backends", "dense", "rice", "checksum", "threshold", "device_steps")
    for name in (*(f"kernels/test_{name}" for name in kernels), "train/test_captured"):
        report = work / f"{name.replace('/', '-')}.xml"
        command = [*pytest, f"--junitxml={report}", str(ROOT / "tests" / f"{name}.py")]
        yield Part(name, [command], partial(outcomes, report))


def outcomes(report: Path) -> dict[str, Any]:
    """Return how many tests passed, and why others did not."""
    if not report.exists():
        raise SystemExit(f"pytest wrote no {report}: is it installed? Its output is above")
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors")}
    skipped = [case.find("skipped") for case in suite.iter("testcase")]
    reasons = sorted({one.get("message", "") for one in skipped if one is not None})
    return {**counts, "skipped": sum(one is not None for one in skipped), "reasons": reasons}


def kernels(work: Path) -> Iterator[Part]:
    for millions in ("1", "14.6", "46", "160") if HAS_GPU else ("0.02",):
        folder = work / f"kernels-{millions}"
        commands = [["mkdir", "-p", str(folder)], script("bench_kernels.py", str(folder), millions)]
        yield Part(f"{millions} M", commands, reader(folder, "kernels"))


def steps(work: Path) -> Iterator[Part]:
    for case in STEPS if HAS_GPU else ("dnn_4x256=32",):
        folder = work / f"steps-{case.split('=')[0]}"
        command = script("bench_step.py", str(folder), case)
        yield Part(case, [["mkdir", "-p", str(folder)], command], reader(folder, "steps"))


def strom(work: Path) -> Iterator[Part]:
    yield speech(work.parent)
    share = 1 if HAS_GPU else 10
    tiny = [] if HAS_GPU else TINY_STROM
    epochs = [f"optim.epochs={4 if HAS_GPU else 1}"]
    for workers, tau in [(40, 4), (80, 4), *((40, tau) for tau in TAUS), (10, 4)]:
        own = [f"comm.gtc.threshold={tau / 16}", "comm.virtual=batched", *ASYNC]
        label = f"{workers} workers, tau {tau}"
        yield trained(work, label, "gtc_async", workers // share, [*STROM, *tiny, *epochs, *own])
    short = ["optim.epochs=1", "comm.gtc.threshold=0.25", *ASYNC]
    label = "80 workers, tau 4, one by one, one epoch"
    yield trained(work, label, "gtc_async", 80 // share, [*STROM, *tiny, *short])
    yield trained(work, "one worker", "sgd", 1, [*STROM, *tiny, *epochs])


def ladkat(work: Path) -> Iterator[Part]:
    yield speech(work.parent)
    share, tiny = (1, []) if HAS_GPU else (8, TINY_LADKAT)
    common = [*LADKAT, *tiny, "optim.epochs=1"]
    # SCALE=medium has a quarter of the paper's 128 workers; all of them show what memory they need
    for workers in (128, 16):
        for method, own in (
            ("gtc", ["comm.gtc.threshold=1"]),
            ("bmuf", ["comm.bmuf.block_steps=5"]),  # so that an epoch has many blocks
            (
                "bmuf_gtc",
                ["comm.bmuf.block_steps=5", "comm.group_size=2", "comm.gtc.threshold=0.25"],
            ),
        ):
            label = f"{method}, {workers} workers"
            yield trained(work, label, method, workers // share, [*common, *own])
    yield trained(work, "one worker", "sgd", 1, common)


PIECES: dict[str, tuple[str, Callable[[Path], Iterator[Part]]]] = {
    "a": ("Tests of kernels and of one step of every method", tests),
    "b": ("Kernels beside a copy and their peers", kernels),
    "c": ("Training steps by every method", steps),
    "d": ("strom2015's network, virtual workers", strom),
    "e": ("ladkat2019's LSTM, virtual workers", ladkat),
}


def script(name: str, *arguments: str) -> Command:
    return [sys.executable, str(ROOT / "scripts" / name), *arguments]


def reader(folder: Path, name: str) -> Callable[[], Any]:
    return lambda: json.loads((folder / f"{name}.json").read_text())


def speech(work: Path) -> Part:
    """Of all pieces: synthesise, align and shard sentences of `commands` (digits without a GPU)."""
    if SHARDS is not None:
        return Part("speech", [], lambda: frames_of(work))
    recipe, more = ("commands", [f"HOURS={HOURS}"]) if HAS_GPU else ("digits", ["SIZE=tiny"])
    indexes = tuple(index(work, split) for split in ("train", "dev"))
    command = ["make", "-C", str(ROOT / "recipes" / recipe), f"W={work / 'speech'}"]
    command += [f"PY={sys.executable}", "GMMS=mono tri", "REALIGN=0", "SET=feats=logmel20", *more]
    return Part("speech", [[*command, *map(str, indexes)]], lambda: frames_of(work), indexes)


def index(work: Path, split: str) -> Path:
    folder = work / "speech" / "shards" / "tri" if SHARDS is None else Path(SHARDS).resolve()
    return folder / split / "index.json"


def frames_of(work: Path) -> dict[str, Any]:
    from asr_train.shards.reader import Shards

    splits = {split: Shards(index(work, split)) for split in ("train", "dev")}
    return {
        "states": splits["train"].num_states,
        **{split: shards.num_frames for split, shards in splits.items()},
    }


def trained(work: Path, label: str, base: str, workers: int, overrides: list[str]) -> Part:
    """Train virtual workers by scripts/train.py, which resumes.

    A checkpoint has each worker's vectors: of 128 LSTMs, 10 GB and more, for which there is no
    room once the part is done.
    """
    name = label.replace(", ", "-").replace(" ", "_")
    folder = work / RUNS / name
    settings = folder.with_suffix(".yaml")
    arguments = [*overrides, f"comm.workers={workers}"]
    arguments += ["optim.checkpoint_steps=1000", "optim.keep_checkpoints=1"]
    command = script("gpu.py", "--settings", base, str(settings), *arguments)
    splits = [str(index(work.parent, split)) for split in ("train", "dev")]
    train = script("train.py", *splits, str(settings), str(folder / "model.json"))
    return Part(label, [command, train], lambda: logged(folder), bulky=folder / "ckpt")


def write_settings(base: str, path: str, *overrides: str) -> None:
    """Write a run's settings, as scripts/resolve.py does for make."""
    from asr_train import compose, files, schema

    files.write_yaml(path, schema.plain(compose.settings(base, list(overrides)).run))


def logged(folder: Path) -> dict[str, Any]:
    """Return what a run's log shows: of its last epoch, and of DEV after each.

    The speed is the median row's: a process's first row includes compiling and loading kernels. Of
    a run that diverged, only where and why.
    """
    from asr_train.files import read_jsonl

    rows = read_jsonl(folder / "log.jsonl")
    model = json.loads((folder / "model.json").read_text())
    if "diverged" in rows[-1]:
        return {name: rows[-1][name] for name in ("workers", "step", "diverged")}
    taken = [row for row in rows if "sent_bits" in row]
    dev = [row for row in rows if "dev_accuracy" in row]
    last = [row for row in taken if row["epoch"] == taken[-1]["epoch"]]
    # No minibatch: all steps were skipped
    speeds = [(row["minibatch"] or 0) / row["step_seconds"] for row in last]
    dense = [row["compression_ratio"] for row in last if row["compression_ratio"]]
    most = json.loads((folder / "run.json").read_text()).get("most_gpu_bytes")
    return {
        "workers": model["workers"],
        "steps": taken[-1]["step"],
        "compression_ratio": len(dense) / sum(1 / ratio for ratio in dense) if dense else None,
        "frames_per_second": statistics.median(speeds),
        "dev_accuracy": [row["dev_accuracy"] for row in dev],
        "dev_loss": [row["dev_loss"] for row in dev],
        "most_gpu_gb": None if most is None else most / 1e9,
    }


# --- running --------------------------------------------------------------------------------------


def run_piece(piece: str, folder: Path, work: Path, anew: bool) -> bool:
    """Run what is left of a piece; return whether it is complete."""
    from bench_kernels import about

    from asr_train.files import read_json, write_json, write_text

    title, parts_of = PIECES[piece]
    path, facts = folder / f"{piece}.json", {**about(), "driver": driver()}
    found: dict[str, Any] = read_json(path) if path.exists() else {}
    before = found.get("about", {})
    is_here = before.get("device") == facts["device"]
    if found.get("complete") and is_here and not anew:
        print(f"{piece}: complete since {before['date']}; PIECE={piece} runs it again")
        return True
    is_resumed = is_here and not found["complete"] and before["commit"] == facts["commit"]
    done: dict[str, Any] = found["parts"] if is_resumed else {}
    if not is_resumed:
        shutil.rmtree(work / piece, ignore_errors=True)
    (work / piece).mkdir(parents=True, exist_ok=True)
    ends, parts = time.monotonic() + LIMIT, list(parts_of(work / piece))
    for part in parts:
        if part.name in done and all(path.exists() for path in part.files):
            remove_bulky(part)  # a kill may have left some of it
            continue
        print(f"{piece}: {part.name}", flush=True)
        for command in part.commands:
            code = limited(command, ends - time.monotonic())
            if code is None:
                print(
                    f"{piece}: {len(done)} of {len(parts)} parts after {LIMIT:g} s; run it again. "
                    f"If {part.name} alone does not get done in this time, raise LIMIT"
                )
                return False
            if code and piece != "a":  # tests that fail are a result
                raise SystemExit(f"{piece}: {part.name} failed: {' '.join(command)}")
        done[part.name] = part.found()
        complete = len(done) == len(parts)
        left = [one.name for one in parts if one.name not in done]
        record = {"title": title, "about": facts, "complete": complete, "parts": done, "left": left}
        write_json(path, record)
        write_text(path.with_suffix(".md"), markdown(record))
        remove_bulky(part)
    return True


def remove_bulky(part: Part) -> None:
    if part.bulky is not None:
        shutil.rmtree(part.bulky, ignore_errors=True)


def limited(command: Command, seconds: float) -> int | None:
    """Run a command; return its code, None if it took longer."""
    # Variables of this make are not the recipe's
    environment = {key: value for key, value in os.environ.items() if "MAKE" not in key}
    environment.setdefault("DIVERGED", "keep")  # that a run diverges is a result: see train.py
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            return process.wait(max(1.0, seconds))
        except BaseException as error:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise


def driver() -> str:
    if not HAS_GPU:
        return "none"
    query = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # as in some containers
        memory = torch.cuda.get_device_properties(0).total_memory
        return f"unknown (no nvidia-smi), {memory >> 20} MiB"


def markdown(record: dict[str, Any]) -> str:
    """Format a piece's parts; the numbers of b and c are in tables of their own."""
    import bench_kernels
    import bench_step

    parts, facts = record["parts"], record["about"]
    lines = [f"# {record['title']}", ""]
    first = next(iter(parts.values()))
    if "kernels" in first:
        rows = [row for part in parts.values() for row in part["kernels"]]
        codes = [row for part in parts.values() for row in part["rice"]]
        lines.append(bench_kernels.table(rows, codes))
    elif "methods" in first:
        for part in parts.values():
            lines.append(bench_step.table(part["steps"]))
            lines.append(bench_step.methods_table(part["methods"], part["peaks"]))
    else:
        for name, part in parts.items():
            shown = ", ".join(f"{key} {spelt(value)}" for key, value in part.items())
            lines.append(f"- **{name}**: {shown}")
    lines += [f"\nNot measured yet: {', '.join(record['left'])}."] if record["left"] else []
    speed = [] if HAS_GPU else ["- times: not measured (no GPU; tiny sizes show that it works)"]
    return "\n".join([*lines, "", *(f"- {k}: {v}" for k, v in facts.items()), *speed, ""])


def spelt(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(spelt, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def is_installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def unpack_wheels() -> None:
    """Put wheels of .wheels on the path, if a package is missing."""
    from gpu_wheels import PACKAGES

    wheels = sorted((ROOT / ".wheels").glob("*.whl"))
    site = ROOT / "build" / "wheels"
    if wheels and not site.exists() and not all(map(is_installed, PACKAGES)):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
        part = site.with_name("wheels.part")
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run([*pip, "--target", str(part), *map(str, wheels)], check=True)
        part.rename(site)
    if site.exists():
        sys.path.insert(2, str(site))


def main(folder: str, work: str, *pieces: str) -> None:
    unknown = [piece for piece in pieces if piece not in PIECES]
    if unknown:
        raise SystemExit(f"PIECE is {unknown[0]!r}; it must be one of {', '.join(PIECES)}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for piece in pieces or PIECES:
        if not run_piece(piece, Path(folder).resolve(), Path(work).resolve(), bool(pieces)):
            break


if __name__ == "__main__":
    asr_train.interrupt.begin()
    unpack_wheels()
    if sys.argv[1:2] == ["--settings"]:
        write_settings(*sys.argv[2:])
    elif len(sys.argv) < 3:
        sys.exit(__doc__)
    else:
        main(*sys.argv[1:])
