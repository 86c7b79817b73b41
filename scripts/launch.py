"""launch.py --standalone --nproc-per-node N SCRIPT ARGUMENT...

Run torchrun, without its traceback and warnings on Ctrl-C: print one line for all processes
instead.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
import logging
import sys

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.run import main

SUPPRESSED = ("death signal", "closing signal")
LOGGERS = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
)


def launch() -> None:
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lambda row: not any(s in row.msg for s in SUPPRESSED))
    try:
        main()
    except (SignalException, KeyboardInterrupt):
        sys.exit("train: interrupted; make resumes from here")


if __name__ == "__main__":
    launch()
