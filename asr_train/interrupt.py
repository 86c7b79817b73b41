"""Ctrl-C while a script still loads libraries: print one line in place of a traceback.

Every script imports this first. From `jobs.main` on, Ctrl-C is an exception again, so that stages
can clean up. Has no effect in programs outside `scripts/`.
"""

import os
import signal
import sys

from asr_train.places import ROOT

WITHOUT_MAKE = "ASR_WITHOUT_MAKE"  # set in the environment of scripts that a command runs


def stop(*_: object) -> None:
    """End at once: there is nothing to clean up, and libraries swallow exceptions as they load."""
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    if not launched():
        os.write(2, f"{name}: {interrupted()}\n".encode())
    os._exit(1)


def interrupted() -> str:
    """Return what to say about Ctrl-C."""
    return "interrupted" if WITHOUT_MAKE in os.environ else "interrupted; make resumes from here"


def launched() -> bool:
    """Return whether this is one of torchrun's processes: the launcher prints for all of them."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def begin() -> None:
    """Make Ctrl-C raise KeyboardInterrupt, unless it is ignored, as after a shell's `&`."""
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if (
    os.path.dirname(os.path.abspath(sys.argv[0])) == os.path.join(ROOT, "scripts")
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, stop)
