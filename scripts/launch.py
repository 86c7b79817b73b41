"""launch.py --standalone --nproc-per-node N SCRIPT ARGUMENT...

Run torchrun, without its traceback and warnings on Ctrl-C: print one line for all processes
instead. With fewer GPUs than N, start one process per GPU, which hosts several workers: NCCL does
not let processes share one.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
import logging
import os
import sys

import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.run import main

SUPPRESSED = ("death signal", "closing signal")
LOGGERS = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
)


def processes(wanted: int) -> int:
    """Return how many to start: at most one per GPU, unless DEVICE chooses a CPU or one GPU."""
    gpus = torch.cuda.device_count()
    if os.environ.get("DEVICE", "cuda") != "cuda" or not 0 < gpus < wanted:
        return wanted
    print(
        f"train: {wanted} workers in {gpus} processes, one per GPU (DEVICE=cpu starts {wanted})",
        file=sys.stderr,
    )
    return gpus


def launch() -> None:
    number = sys.argv.index("--nproc-per-node") + 1
    sys.argv[number] = str(processes(int(sys.argv[number])))
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lambda row: not any(s in row.msg for s in SUPPRESSED))
    try:
        main()
    except (SignalException, KeyboardInterrupt):
        sys.exit("train: interrupted; make resumes from here")


if __name__ == "__main__":
    launch()
