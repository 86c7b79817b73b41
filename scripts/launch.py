"""launch.py --standalone --nproc-per-node N SCRIPT ARGUMENT...

torchrun, less its traceback and its warnings where Ctrl-C ends it: then this says so, in one line,
for all processes.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
import logging
import sys

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.run import main

SAID = ("death signal", "closing signal")
LOGGERS = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
)


def launch() -> None:
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lambda row: not any(s in row.msg for s in SAID))
    try:
        main()
    except (SignalException, KeyboardInterrupt):
        sys.exit("train: interrupted; make goes on from here")


if __name__ == "__main__":
    launch()
