"""Ports for the drills of several processes."""

import random
import socket

RANGE = range(20_000, 30_000)


def free_port() -> int:
    """One of this machine that nobody listens on.

    Not one that the system picks: it hands those to the next who connects anywhere, even to the
    very port that is asked for, and then the process it was meant for cannot have it.
    """
    # Not of a seed, which others may have, too.
    for port in random.SystemRandom().sample(RANGE, len(RANGE)):
        with socket.socket() as one:
            try:
                one.bind(("localhost", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port of {RANGE} is free")
