"""Train a network.

    train.py shards/TRAIN/index.json shards/DEV/index.json conf/run/RUN.yaml exp/RUN/model.json

Resumes from the run's newest checkpoint, in exp/RUN/ckpt/; a run that had ended with another number
of workers starts over. Started plainly or by torchrun. WORKERS=n, else comm.workers, is how many
workers train together (else one per process); the processes that torchrun starts share them evenly,
and a single process hosts all: the result is the same, to the bit. DEVICE=cpu, cuda or cuda:N
chooses the device (else the GPU if there is one); JOBS=n the threads of a machine's processes
together.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
import contextlib
import os
import platform
import shlex
import shutil
import sys
from pathlib import Path

import numpy
import torch

from asr_train import files, jobs, schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.processes import close_exchange, open_exchange
from asr_train.shards.reader import Shards
from asr_train.train.loop import train
from asr_train.train.pretrain import pretrained
from asr_train.train.process import alone_in, chosen_device, die_with_launcher


def stage(train_index: str, dev_index: str, settings: str, output: str) -> str | None:
    die_with_launcher()
    run = schema.load(schema.RunSettings, settings)
    workers = chosen_workers(run.comm.workers)
    if run.comm.method is schema.Method.sgd and workers > 1:
        if int(os.environ.get("RANK", "0")):
            return None
        print(f"comm.method=sgd is for one worker: of {workers}, the others do nothing", flush=True)
        workers = 1
        os.environ["WORLD_SIZE"] = "1"
    if Path(output).name != "model.json":
        raise ValueError(f"the output is {output}; it must be the model.json of a run's folder")
    device = chosen_device()
    folder = Path(output).resolve().parent
    splits = Shards(train_index).some(run.optim.share), Shards(dev_index)
    leads = os.environ.get("RANK", "0") == "0"
    with alone_in(folder) if leads else contextlib.nullcontext():
        if leads:
            forget_other_workers(folder, workers)
        # Before the processes meet: while one of them does this, the others would wait too long
        initial = pretrained(run, *splits, folder, device, leads)
        exchange = open_exchange(workers, device, run.comm.timeout_seconds)
        if leads:
            files.write_json(folder / "run.json", description(run, device, exchange))
        train(run, *splits, folder, device, exchange, initial)
        exchange.barrier()  # process 0 holds what the others meet by
        close_exchange()
    return f"train: {folder.name}: finished" if leads else None


def chosen_workers(settings: int | None) -> int:
    """WORKERS, else what the settings say, else one per process."""
    wish = os.environ.get("WORKERS") or str(settings or os.environ.get("WORLD_SIZE", "1"))
    if not wish.isdigit() or int(wish) < 1:
        raise ValueError(f"WORKERS is {wish!r}; it must be a whole number from 1")
    return int(wish)


def forget_other_workers(folder: Path, workers: int) -> None:
    """Remove the checkpoints of a run that ended with another number of workers.

    One that was interrupted goes on with those there are now (docs/distributed.md); one that ended
    has nothing to go on with, and its model is not what so many workers make.
    """
    told = folder / "run.json"
    if not ((folder / "model.json").exists() and told.exists()):
        return
    before = files.read_json(told)["workers"]
    if before != workers:
        print(
            f"train: {folder.name} had ended with {before} workers; with {workers} it starts over"
        )
        shutil.rmtree(folder / "ckpt", ignore_errors=True)
        (folder / "model.json").unlink()


def description(
    run: schema.RunSettings, device: torch.device, exchange: Exchange
) -> dict[str, object]:
    """What one needs to know to repeat the run."""
    return {
        "settings": schema.plain(run),
        "command": shlex.join(["train.py", *sys.argv[1:]]),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": jobs.num_jobs(),
        "workers": len(exchange),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }


if __name__ == "__main__":
    # What makes cuBLAS deterministic; read when the GPU is first used
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    jobs.main(stage, __doc__)
