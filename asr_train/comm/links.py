"""**TCP between processes**: one connection a pair; whole messages go both ways, nobody waits.

What is sent is written by a thread, and what comes is read by another, a pair for each of the other
processes. A process that dies is noticed at once, as its connections end without a goodbye; one
that stops because of an error tells the others why. Processes find each other by an exchange, which
also gives them a secret of the run: whoever connects without it is turned away.
Knows nothing of what the messages say.
"""

import contextlib
import hmac
import json
import os
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from asr_train.comm.exchange import Exchange, ExchangeError

_FRAME = struct.Struct("<BI")  # what, bytes
FRAME_BYTES = _FRAME.size
_HELLO = struct.Struct("<16sI")  # the run's secret, a process
LONGEST_WORD = 2**16  # bytes of a reason why
HELLO_SECONDS = 10.0  # for who connects to say who it is
FAREWELL_SECONDS = 5.0  # for what was sent before the end to be on its way


class What(IntEnum):
    message = 1
    goodbye = 2  # all is well, nothing more comes
    error = 3  # why the sender stops
    lost = 4  # never sent: the connection ended; why


class Event(NamedTuple):
    """What came from a process."""

    process: int
    what: What
    content: bytes


class Links:
    """Connections with all other processes.

    Args:
        exchange: of the processes' workers, one each.
        longest: bytes of a message.
    Attributes:
        me: which process this is.
    Raises:
        ExchangeError: if not all are connected in `timeout_seconds`.
    """

    def __init__(self, exchange: Exchange, timeout_seconds: float, longest: int) -> None:
        assert len(exchange.local) == 1
        self.timeout_seconds = timeout_seconds
        self.me, self.processes = exchange.local[0], len(exchange)
        self._longest = longest
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._outboxes: dict[int, queue.SimpleQueue[tuple[What, bytes] | None]] = {}
        self._writers: list[threading.Thread] = []
        for process, connection in connected(exchange, timeout_seconds).items():
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._outboxes[process] = queue.SimpleQueue()
            threading.Thread(target=self._read, args=(process, connection), daemon=True).start()
            writer = threading.Thread(target=self._write, args=(process, connection), daemon=True)
            writer.start()
            self._writers.append(writer)

    def send(self, message_B: Tensor) -> None:
        """To all others; goes on at once."""
        content = message_B.cpu().numpy().tobytes()
        for outbox in self._outboxes.values():
            outbox.put((What.message, content))

    def receive(self, seconds: float) -> Tensor | None:
        """The next message of anybody, uint8 [B]; None: none came in so many seconds.

        Raises:
            ExchangeError: if a process is gone, or stopped because of an error.
        """
        try:
            event = self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        except queue.Empty:
            return None
        if event.what is What.message:
            return torch.frombuffer(bytearray(event.content), dtype=torch.uint8)
        reason = event.content.decode(errors="replace")
        who = f"process {event.process} of {self.processes}"
        if event.what is What.error:
            raise ExchangeError(f"{who} stopped: {reason}")
        raise ExchangeError(
            f"{who} is gone ({reason}); look at its output, then start again: training goes on "
            "from the last checkpoint"
        )

    def close(self, error: BaseException | None) -> None:
        """Say goodbye, or why not; waits a little for what was sent before."""
        word = (What.goodbye, b"") if error is None else (What.error, _reason(error))
        for outbox in self._outboxes.values():
            outbox.put(word)
            outbox.put(None)
        deadline = time.monotonic() + FAREWELL_SECONDS
        for writer in self._writers:
            writer.join(max(0.0, deadline - time.monotonic()))

    # --- the threads of a connection --------------------------------------------------------------

    def _write(self, process: int, connection: socket.socket) -> None:
        try:
            while (item := self._outboxes[process].get()) is not None:
                what, content = item
                connection.sendall(_FRAME.pack(what, len(content)) + content)
            connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._lose(process, error)

    def _read(self, process: int, connection: socket.socket) -> None:
        try:
            while True:
                what, size = _FRAME.unpack(_exactly(connection, FRAME_BYTES))
                longest = self._longest if what == What.message else LONGEST_WORD
                if what not in (What.message, What.goodbye, What.error) or size > longest:
                    raise ValueError(f"it sent {size} bytes of kind {what}, at most {longest} fit")
                content = _exactly(connection, size)
                if what == What.goodbye:
                    return
                self._events.put(Event(process, What(what), content))
                if what == What.error:
                    return
        except (OSError, EOFError, ValueError) as error:
            self._lose(process, error)

    def _lose(self, process: int, error: Exception) -> None:
        self._events.put(Event(process, What.lost, str(error).encode()))


def _reason(error: BaseException) -> bytes:
    return (str(error) or type(error).__name__).encode()[:LONGEST_WORD]


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes; raises EOFError if the connection ends before."""
    content = bytearray(size)
    view = memoryview(content)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("its connection ended")
        view = view[count:]
    return bytes(content)


# --- finding each other -------------------------------------------------------------------------


def connected(exchange: Exchange, timeout_seconds: float) -> dict[int, socket.socket]:
    """A connection with each other process: made by the higher one, taken by the lower one."""
    me, deadline = exchange.local[0], time.monotonic() + timeout_seconds
    leads = me == exchange.members[0]
    secret = exchange.broadcast(secrets.token_bytes(16) if leads else None)
    found: dict[int, socket.socket] = {}
    with _listening() as listener:
        own = json.dumps([*_own_addresses(), listener.getsockname()[1]]).encode()
        rows = exchange.gather([torch.frombuffer(bytearray(own), dtype=torch.uint8)])
        hello = _HELLO.pack(secret, me)
        for process in (p for p in exchange.members if p < me):
            *hosts, port = json.loads(bytes(rows[process].cpu().numpy()))
            found[process] = _reach(process, hosts, port, hello, deadline)
        wanted = {p for p in exchange.members if p > me}
        while missing := wanted - found.keys():
            found.update(_taken(listener, missing, hello, deadline))
    return found


@contextlib.contextmanager
def _listening() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen(256)
        yield listener


def _own_addresses() -> list[str]:
    """Where others may find this machine: what it would call process 0 from, and its name."""
    found = [socket.gethostname()]
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((master, 9))  # sends nothing: the port does not matter
        found.insert(0, probe.getsockname()[0])
    return found


def _reach(
    process: int, hosts: list[str], port: int, hello: bytes, deadline: float
) -> socket.socket:
    """Connect with a process, at the first of its addresses where it answers."""
    reasons = []
    for number, host in enumerate(hosts):
        try:
            left = max(0.1, deadline - time.monotonic()) / (len(hosts) - number)
            connection = socket.create_connection((host, port), timeout=left)
            if _greeted(connection, hello, left) == process:
                return connection
            connection.close()
            reasons.append(f"{host}:{port} is not it")
        except (OSError, EOFError) as error:
            reasons.append(f"{host}:{port}: {error}")
    raise ExchangeError(
        f"process {process} cannot be reached ({'; '.join(reasons)}); do firewalls let the "
        "processes' machines connect with each other on any port?"
    )


def _taken(
    listener: socket.socket, missing: set[int], hello: bytes, deadline: float
) -> dict[int, socket.socket]:
    """The next connection, if it is of a missing process; who is not of this run is turned away."""
    listener.settimeout(max(0.1, deadline - time.monotonic()))
    try:
        connection, _ = listener.accept()
    except TimeoutError as error:
        raise ExchangeError(
            f"processes {', '.join(map(str, sorted(missing)))} did not connect in time "
            "(comm.timeout_seconds); look at their output"
        ) from error
    with contextlib.suppress(OSError, EOFError):
        process = _greeted(connection, hello, HELLO_SECONDS)
        if process in missing:
            return {process: connection}
    connection.close()
    return {}


def _greeted(connection: socket.socket, hello: bytes, seconds: float) -> int | None:
    """Which process of the run is at the other end; None: none."""
    connection.settimeout(seconds)
    connection.sendall(hello)
    secret, process = _HELLO.unpack(_exactly(connection, _HELLO.size))
    return int(process) if hmac.compare_digest(secret, hello[:16]) else None
