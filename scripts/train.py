"""Train a network.

    train.py shards/TRAIN/index.json shards/DEV/index.json conf/run/RUN.yaml \\
        [exp/INITIAL/model.json] exp/RUN/model.json

Resumes from the run's newest checkpoint, in exp/RUN/ckpt/; a run that had ended with another number
of workers starts over. Runs alone or under torchrun. The number of workers that train together is
WORKERS=n, else comm.workers, else one per process. The processes of torchrun share them evenly; a
single process hosts all, and the result is bit-identical. With comm.stripes=M, each network is cut
into the stripes of M processes, and the number of processes is a multiple of M. DEVICE=cpu, cuda or
cuda:N chooses the device (default: the GPU if there is one); JOBS=n is the number of threads of all
processes of a machine together. Sequence training begins with the network of the run INITIAL.
With DIVERGED=keep, a run in a single process that diverges (NaN or infinity) is finished with its
newest checkpoint, or as it began; it is an error otherwise, and in pre-training, which runs share.
"""

import asr_train.interrupt  # noqa: F401

import contextlib
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import torch

from asr_train import files, jobs, schema
from asr_train.comm.processes import close_exchange, open_exchange, started
from asr_train.comm.stripes import open_stripes
from asr_train.locks import locked
from asr_train.provenance import commit
from asr_train.shards.reader import Shards
from asr_train.train.loop import train
from asr_train.train.pretrain import pretrained
from asr_train.train.process import chosen_device, die_with_launcher
from asr_train.train.state import NotFiniteError


def stage(train_index: str, dev_index: str, settings: str, *paths: str) -> str | None:
    die_with_launcher()
    *given, output = paths
    run = schema.load(schema.RunSettings, settings)
    initial = begins_with(run, settings, given)
    count = run.comm.stripes
    workers = chosen_workers(run.comm.workers, count)
    leads = os.environ.get("RANK", "0") == "0"
    idle = max(workers, started() // count) - 1  # with sgd
    if run.comm.method is schema.Method.sgd and idle > 0:
        if int(os.environ.get("RANK", "0")) >= count:
            return None
        if leads:
            print(f"comm.method=sgd trains one worker: the other {idle} stay idle", flush=True)
        workers = 1
        os.environ["WORLD_SIZE"] = str(count)
        here = min(count, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        os.environ["LOCAL_WORLD_SIZE"] = str(here)  # which share the JOBS
    if Path(output).name != "model.json":
        raise ValueError(f"the output is {output}; it must be the model.json of a run's folder")
    device = chosen_device()
    folder = Path(output).resolve().parent
    whole = Shards(train_index)
    splits = whole.some(run.optim.share), Shards(dev_index)
    if leads and (why := splits[0].other_share(whole, run.optim.share, "optim.share")):
        print(why, flush=True)
    refusal = f"another process trains in {folder}; wait for it, or end it"
    with locked(folder / ".lock", refusal) if leads else contextlib.nullcontext():
        if leads:
            forget_other_workers(folder, workers)
        # Before the process group forms: the others would time out while one pretrains
        initial = initial or pretrained(run, *splits, folder, device, leads)
        where = device, run.comm.timeout_seconds
        stripes = open_stripes(workers, count, *where) if count > 1 else None
        exchange = open_exchange(workers, *where) if stripes is None else stripes.exchange
        if leads:
            files.write_json(folder / "run.json", description(run, device, workers))
        once = partial(train, run, *splits, folder, device, initial=initial)
        if os.environ.get("DIVERGED") != "keep" or started() > 1:
            once(exchange, stripes=stripes)
        elif (why := divergence(partial(once, exchange, stripes=stripes))) is not None:
            again = open_exchange(workers, *where)
            if divergence(partial(once, again, diverged=why)) is not None:  # weights are too large
                shutil.rmtree(folder / "ckpt", ignore_errors=True)
                once(again, diverged=why)
        if leads and device.type == "cuda":
            about = files.read_json(folder / "run.json")
            about["most_gpu_bytes"] = torch.cuda.max_memory_allocated(device)
            files.write_json(folder / "run.json", about)
        everyone = exchange if stripes is None else stripes.everyone
        everyone.barrier()  # process 0 hosts the store that the others use
        close_exchange()
    return f"train: {folder.name}: finished" if leads else None


def divergence(train_once: Callable[[], Path]) -> str | None:
    """Train; return the message of a NotFiniteError, whose traceback would hold a GPU's memory."""
    try:
        train_once()
    except NotFiniteError as error:
        return str(error)
    return None


def begins_with(run: schema.RunSettings, settings: str, given: list[str]) -> Path | None:
    """Return the model.json that a run of sequence training begins with.

    Raises:
        ValueError: if it is not of the run that the settings name.
    """
    runs = [files.read_json(path)["run"] for path in given]
    if runs != [name for name in (run.initial,) if name is not None]:
        raise ValueError(
            f"{settings} names {run.initial or 'no run'} to begin with, but is given "
            f"{', '.join(runs) or 'none'}; delete {settings} and run make again"
        )
    return Path(given[0]) if given else None


def chosen_workers(settings: int | None, stripes: int) -> int:
    """Return WORKERS, else the number in the settings, else one per process that has no stripes."""
    whole = max(1, started() // stripes)
    value = os.environ.get("WORKERS") or str(settings or whole)
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"WORKERS is {value!r}; it must be a positive integer")
    return int(value)


def forget_other_workers(folder: Path, workers: int) -> None:
    """Remove the checkpoints of a run that ended with another number of workers.

    An interrupted run continues with the present number (docs/distributed.md). A finished one has
    no steps left, and its model is not the result of the new number.
    """
    path = folder / "run.json"
    if not ((folder / "model.json").exists() and path.exists()):
        return
    before = files.read_json(path)["workers"]
    if before != workers:
        print(
            f"train: {folder.name} had ended with {before} workers; with {workers} it starts over"
        )
        shutil.rmtree(folder / "ckpt", ignore_errors=True)
        (folder / "model.json").unlink()


def description(run: schema.RunSettings, device: torch.device, workers: int) -> dict[str, object]:
    """Return what is needed to repeat the run."""
    return {
        "settings": schema.plain(run),
        "command": shlex.join(["train.py", *sys.argv[1:]]),
        "commit": commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "jobs": jobs.num_jobs(),  # the most threads of all processes
        "workers": workers,
        "processes": started() // run.comm.stripes,  # of one stripe
        "stripes": run.comm.stripes,
    }


if __name__ == "__main__":
    jobs.main(stage, __doc__)
