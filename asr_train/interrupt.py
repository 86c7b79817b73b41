"""Ctrl-C while a script still loads libraries: one line, where they would show a traceback each.

Every script imports this first. From `jobs.main` on, Ctrl-C is an exception again, so that stages
can put away what they had begun. Nothing happens where the program is none of `scripts/`.
"""

import os
import signal
import sys


def stop(*_: object) -> None:
    """Say so and end at once: nothing was begun, and libraries swallow exceptions as they load."""
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    if not launched():
        os.write(2, f"{name}: interrupted; make goes on from here\n".encode())
    os._exit(1)


def launched() -> bool:
    """One of torchrun's processes: the launcher speaks for all."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def begin() -> None:
    """Make Ctrl-C an exception, unless it is ignored, as behind a shell's `&`."""
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts")
if (
    os.path.dirname(os.path.abspath(sys.argv[0])) == _SCRIPTS
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, stop)
