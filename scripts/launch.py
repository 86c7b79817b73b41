"""launch.py --standalone --nproc-per-node N SCRIPT ARGUMENT...

Run torchrun, without its traceback and warnings when a process fails or on Ctrl-C: print one line
for all processes instead. With fewer GPUs than N, start one process per GPU, which hosts several
workers: NCCL does not let processes share one.
"""

import asr_train.interrupt  # noqa: F401

import logging
import os
import signal
import sys

import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

SUPPRESSED = ("death signal", "closing signal", "failed (exitcode")
LOGGERS = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
)


def processes(wanted: int) -> int:
    """Return how many to start: at most one per GPU, and a multiple of STRIPES."""
    device, stripes = os.environ.get("DEVICE") or "cuda", int(os.environ.get("STRIPES") or "1")
    gpus = torch.cuda.device_count()
    if device.startswith("cpu") or not gpus:
        return wanted
    gpus = gpus if device == "cuda" else 1
    found = min(wanted, gpus // stripes * stripes)
    if not found:
        sys.exit(
            f"train: STRIPES is {stripes}, but NCCL allows one process per GPU and there are "
            f"{gpus}; lower STRIPES, or set DEVICE=cpu"
        )
    if found < wanted:
        print(
            f"train: {found} processes in place of {wanted}, because NCCL allows one per GPU; each "
            "hosts several workers (gtc_async: one process, in virtual time, or one per worker)",
            file=sys.stderr,
        )
    return found


def launch() -> None:
    os.environ["ASR_LAUNCHER"] = str(os.getpid())
    number = sys.argv.index("--nproc-per-node") + 1
    sys.argv[number] = str(processes(int(sys.argv[number])))
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lambda row: not any(s in row.msg for s in SUPPRESSED))
    try:
        main()
    except (SignalException, KeyboardInterrupt):
        sys.exit("train: interrupted; make resumes from here")
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        sys.exit(f"train: process {rank} ended with {_why(first.exitcode)}")


def _why(exitcode: int) -> str:
    """Say what a process ended with, and what to do."""
    if exitcode >= 0:
        return f"exit status {exitcode}; the cause is above"
    name = signal.Signals(-exitcode).name
    often = ", as where memory is short" if exitcode == -signal.SIGKILL else ""
    return f"{name}{often}; make resumes from the last checkpoint"


if __name__ == "__main__":
    launch()
