"""**TCP between processes**: one connection per pair; messages go both ways without waiting.

Each connection has a thread that writes and a thread that reads. A process that dies is noticed at
once, as its connections end without a goodbye; one that stops because of an error sends the reason.

Processes find each other by an exchange, which also gives them a secret of the run. The secret is
never sent on a connection: both ends prove that they know it, for a nonce that the other has just
drawn. docs/distributed.md says what that protects and what it does not.
Knows nothing of the content of messages.
"""

import contextlib
import hashlib
import hmac
import ipaddress
import os
import queue
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Generator, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from asr_train.comm.exchange import Exchange, ExchangeError

_FRAME = struct.Struct("<BI")  # What, bytes that follow
FRAME_BYTES = _FRAME.size
_HELLO = struct.Struct("<8sII")  # greeting; process that connects, process that listens
GREETING = b"asr-tr 2"
NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size
LONGEST_WORD = 2**16  # bytes of an error's text
HELLO_SECONDS = 10.0  # in all, for a connecting process to prove its identity
MOST_PENDING = 256  # unproven connections at once; with one more, the oldest is closed
FAREWELL_SECONDS = 5.0  # at the end, to finish sending


class What(IntEnum):
    message = 1
    goodbye = 2  # end without an error
    error = 3  # why the sender stops
    lost = 4  # never sent: why the connection ended


class Event(NamedTuple):
    """A frame received from a process, or the loss of its connection."""

    process: int
    what: What
    content: bytes


class Links:
    """Connections with all other processes.

    Args:
        exchange: of all workers, one per process.
        longest: bytes of a message.
    Attributes:
        me: the number of this process.
    Raises:
        ExchangeError: if not all are connected within `timeout_seconds`.
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
        """Send a message to all other processes, without waiting."""
        content = message_B.cpu().numpy().tobytes()
        for outbox in self._outboxes.values():
            outbox.put((What.message, content))

    def receive(self, seconds: float) -> tuple[int, Tensor] | None:
        """Return the sender, as proved on its connection, and its next message, uint8 [B].

        None if none arrives in so many seconds.

        Raises:
            ExchangeError: if a process has ended, or stopped because of an error.
        """
        try:
            event = self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        except queue.Empty:
            return None
        if event.what is What.message:
            return event.process, torch.frombuffer(bytearray(event.content), dtype=torch.uint8)
        reason = event.content.decode(errors="replace")
        sender = f"process {event.process} of {self.processes}"
        if event.what is What.error:
            raise ExchangeError(f"{sender} stopped: {reason}")
        raise ExchangeError(
            f"{sender} has ended ({reason}); look at its output, then start again: training "
            "resumes from the last checkpoint"
        )

    def close(self, error: BaseException | None) -> None:
        """Send a goodbye, or the error's text; wait a little for what was sent before."""
        reason = (str(error) or type(error).__name__).encode()[:LONGEST_WORD]
        last = (What.goodbye, b"") if error is None else (What.error, reason)
        for outbox in self._outboxes.values():
            outbox.put(last)
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
            self._disconnect(process, error)

    def _read(self, process: int, connection: socket.socket) -> None:
        try:
            while True:
                what, size = _FRAME.unpack(_exactly(connection, FRAME_BYTES))
                longest = self._longest if what == What.message else LONGEST_WORD
                if what not in (What.message, What.goodbye, What.error) or size > longest:
                    raise ValueError(f"it sent {size} bytes of kind {what}; the most is {longest}")
                content = _exactly(connection, size)
                if what == What.goodbye:
                    return
                self._events.put(Event(process, What(what), content))
                if what == What.error:
                    return
        except (OSError, EOFError, ValueError) as error:
            self._disconnect(process, error)

    def _disconnect(self, process: int, error: Exception) -> None:
        self._events.put(Event(process, What.lost, str(error).encode()))


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Read so many bytes; raise EOFError if the connection ends before."""
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
    """Return connections to all other processes: the higher number connects, the lower accepts."""
    me, deadline = exchange.local[0], time.monotonic() + timeout_seconds
    secret = bytes.fromhex(exchange.of_first(secrets.token_hex(32)))
    found: dict[int, socket.socket] = {}
    launcher = os.environ.get("MASTER_ADDR", "127.0.0.1")
    address = _own_address(me, exchange.plain([_facing(launcher)]))
    with _listening(address) as listener:
        places = exchange.plain([listener.getsockname()[:2]])
        for process in (p for p in exchange.members if p < me):
            host, port = places[process]
            found[process] = _reach(process, host, port, me, secret, deadline)
        wanted = {p for p in exchange.members if p > me}
        found.update(_admitted(listener, me, wanted, secret, deadline))
    return found


def _facing(host: str) -> str:
    """Return this machine's own address on its route to a host, in IPv4 or IPv6."""
    reason: OSError = socket.gaierror("no address")
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind) as probe:
                    probe.connect(address)  # sends nothing: the port does not matter
                    return str(probe.getsockname()[0])
            except OSError as error:
                reason = error
    except socket.gaierror as error:
        reason = error
    raise ExchangeError(
        f"this machine has no route to {host!r}, where the launcher is (MASTER_ADDR): {reason}; "
        "start all processes by torchrun, with an endpoint that each machine can reach"
    ) from reason


def _own_address(me: int, facing: Sequence[str]) -> str:
    """Return where to listen: on the one interface that faces the launcher.

    On the launcher's machine its name may resolve to a loopback address, which others cannot reach;
    then it is the interface that faces another machine.
    """
    outside = [a for a in facing if not ipaddress.ip_address(a).is_loopback]
    return _facing(outside[0]) if outside and facing[me] not in outside else facing[me]


def _listening(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=256)


def _proof(secret: bytes, role: bytes, connects: int, listens: int, nonces: bytes) -> bytes:
    """Return the proof that one end of a connection knows the secret.

    Args:
        role: of that end, so that its proof is of no use to the other.
        nonces: of the end that connects, then of the one that listens.
    """
    return hmac.digest(secret, _HELLO.pack(GREETING, connects, listens) + role + nonces, "sha256")


def _reach(
    process: int, host: str, port: int, me: int, secret: bytes, deadline: float
) -> socket.socket:
    """Connect to a process; both ends prove that they know the secret."""
    left, ours = max(0.1, deadline - time.monotonic()), secrets.token_bytes(NONCE_BYTES)
    try:
        connection = socket.create_connection((host, port), timeout=left)
        connection.sendall(_HELLO.pack(GREETING, me, process) + ours)
        nonces = ours + _exactly(connection, NONCE_BYTES)
        connection.sendall(_proof(secret, b"connects", me, process, nonces))
        proof = _exactly(connection, PROOF_BYTES)
    except (OSError, EOFError) as error:
        raise ExchangeError(
            f"process {process} cannot be reached at {host}, port {port} ({error}); do firewalls "
            "let the processes' machines connect with each other on any port?"
        ) from error
    if not hmac.compare_digest(proof, _proof(secret, b"listens", me, process, nonces)):
        connection.close()
        raise ExchangeError(
            f"what answers as process {process} at {host}, port {port}, does not know this run's "
            "secret; is there a proxy between the machines?"
        )
    return connection


class _Pending(NamedTuple):
    """A connection whose process has not proved its identity yet."""

    handshake: Generator[None, None, int | None]
    until: float


def _admitted(
    listener: socket.socket, me: int, wanted: set[int], secret: bytes, deadline: float
) -> dict[int, socket.socket]:
    """Accept connections of the wanted processes, and close all others.

    They are served concurrently: one that sends nothing delays no other.
    """
    found: dict[int, socket.socket] = {}
    pending: dict[socket.socket, _Pending] = {}  # the oldest first
    listener.setblocking(False)
    while missing := wanted - found.keys():
        now = time.monotonic()
        if now >= deadline:
            raise ExchangeError(
                f"processes {', '.join(map(str, sorted(missing)))} did not connect in time "
                "(comm.timeout_seconds); look at their output"
            )
        due = [caller for caller, (_, until) in pending.items() if until <= now]
        for caller in due or list(pending)[: max(0, len(pending) - MOST_PENDING)]:
            del pending[caller]
            caller.close()
        first = min([deadline, *(until for _, until in pending.values())])
        for connection in _ready([listener, *pending], first - now):
            if connection is listener:
                with contextlib.suppress(OSError):  # closed by the other end
                    caller, _ = listener.accept()
                    caller.setblocking(False)
                    handshake = _handshake(caller, me, missing, secret)
                    pending[caller] = _Pending(handshake, now + HELLO_SECONDS)
                continue
            try:
                next(pending[connection].handshake)
            except StopIteration as end:
                del pending[connection]
                if end.value is None or end.value in found:
                    connection.close()
                else:
                    found[end.value] = connection
    for caller in pending:
        caller.close()
    return found


def _ready(connections: Iterable[socket.socket], seconds: float) -> list[socket.socket]:
    """Return the connections that can be read, after at most so many seconds."""
    with selectors.DefaultSelector() as waiting:
        for connection in connections:
            waiting.register(connection, selectors.EVENT_READ, connection)
        return [key.data for key, _ in waiting.select(seconds)]


def _handshake(
    connection: socket.socket, me: int, missing: set[int], secret: bytes
) -> Generator[None, None, int | None]:
    """Identify a connection, a step whenever it can be read; return its process, None: refused."""
    with contextlib.suppress(OSError, EOFError):
        hello = yield from _received(connection, _HELLO.size)
        greeting, process, listener = _HELLO.unpack(hello)
        if greeting != GREETING or listener != me or process not in missing:
            return None  # without an answer
        theirs = yield from _received(connection, NONCE_BYTES)
        nonces = theirs + secrets.token_bytes(NONCE_BYTES)
        connection.sendall(nonces[NONCE_BYTES:])
        proof = yield from _received(connection, PROOF_BYTES)
        if hmac.compare_digest(proof, _proof(secret, b"connects", process, me, nonces)):
            connection.sendall(_proof(secret, b"listens", process, me, nonces))
            return int(process)
    return None


def _received(connection: socket.socket, size: int) -> Generator[None, None, bytes]:
    """Read as `_exactly`, from a connection that does not block."""
    content = b""
    while len(content) < size:
        yield
        part = connection.recv(size - len(content))
        if not part:
            raise EOFError("its connection ended")
        content += part
    return content
