"""Ports for tests with several processes."""

import random
import socket

RANGE = range(20_000, 30_000)


def free_port() -> int:
    """Return a free port of this machine.

    It is not chosen by the system, which also gives such ports to outgoing connections, so that the
    process for which it was meant could not use it.
    """
    # Not from a seed, which other processes may use, too.
    for port in random.SystemRandom().sample(RANGE, len(RANGE)):
        with socket.socket() as one:
            try:
                one.bind(("localhost", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port of {RANGE} is free")
