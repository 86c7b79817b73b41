"""Train a network.

    train.py shards/TRAIN/index.json shards/DEV/index.json conf/run/RUN.yaml exp/RUN/model.json

Goes on from the run's newest checkpoint, in exp/RUN/ckpt/. Started plainly or by torchrun.
DEVICE=cpu, cuda or cuda:N chooses the device (else the GPU if there is one); JOBS=n the threads.
"""

import os
import platform
import shlex
import sys
from pathlib import Path

import numpy
import torch

from asr_train import files, jobs, schema
from asr_train.shards.reader import Shards
from asr_train.train.loop import train


def stage(train_index: str, dev_index: str, settings: str, output: str) -> None:
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    run = schema.load(schema.RunSettings, settings)
    if workers != 1:
        raise ValueError(
            f"{workers} workers were started (WORLD_SIZE), but comm.method={run.comm.method.value} "
            "is for one; call make with NPROC=1"
        )
    if Path(output).name != "model.json":
        raise ValueError(f"the output is {output}; it must be the model.json of a run's folder")
    device = chosen_device()
    folder = Path(output).resolve().parent
    files.write_json(folder / "run.json", description(run, device))
    train(run, Shards(train_index), Shards(dev_index), folder, device)


def chosen_device() -> torch.device:
    """DEVICE, else the GPU if there is one."""
    has_gpu = torch.cuda.is_available()
    wish = os.environ.get("DEVICE") or ("cuda" if has_gpu else "cpu")
    try:
        device = torch.device(wish)
    except RuntimeError as error:
        raise ValueError(f"DEVICE is {wish!r}; it must be cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"DEVICE is {wish!r}; it must be cpu, cuda or cuda:N")
    found = torch.cuda.device_count() if has_gpu else 0
    if device.type == "cuda" and (device.index or 0) >= found:
        raise ValueError(f"DEVICE is {wish} but torch finds {found} GPUs; try DEVICE=cpu")
    return device


def description(run: schema.RunSettings, device: torch.device) -> dict[str, object]:
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
    }


if __name__ == "__main__":
    # What makes cuBLAS deterministic; read when the GPU is first used
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    jobs.main(stage, __doc__)
