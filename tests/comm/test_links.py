"""Messages between processes arrive whole and in order, and a process that ends is named."""

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import forked
import pytest
import torch
from forked import PATIENCE_SECONDS

from asr_train.comm import links
from asr_train.comm.exchange import ExchangeError
from asr_train.comm.links import Links


def received(ours: Links, count: int) -> list[bytes]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: list[bytes] = []
    while len(found) < count:
        assert time.monotonic() < deadline, len(found)
        arrived = ours.receive(1.0)
        if arrived is not None:
            found.append(bytes(arrived[1].numpy()))
    return found


def message(process: int, number: int, size: int) -> bytes:
    return bytes([process, number]) + bytes(size)


@pytest.mark.parametrize("processes", [2, 4])
def test_all_messages_come_whole_and_those_of_a_process_in_order(processes):
    sizes = [0, 1, 7, 1_000_000, 3]  # one that no socket takes at once

    def main(exchange):
        ours = Links(exchange, PATIENCE_SECONDS, 2_000_000)
        for number, size in enumerate(sizes):
            content = bytearray(message(ours.me, number, size))
            ours.send(torch.frombuffer(content, dtype=torch.uint8))
        found = received(ours, len(sizes) * (processes - 1))
        ours.close(None)
        by = {p: [m for m in found if m[0] == p] for p in range(processes) if p != ours.me}
        for process, messages in by.items():
            assert messages == [message(process, n, size) for n, size in enumerate(sizes)]

    assert forked.run(main, processes, processes) == [None] * processes


def test_sending_does_not_wait_for_who_does_not_read():
    def main(exchange):
        ours = Links(exchange, PATIENCE_SECONDS, 2_000_000)
        content = torch.zeros(2_000_000, dtype=torch.uint8)
        if ours.me == 0:
            for _ in range(50):  # far more than sockets hold
                ours.send(content)
        exchange.barrier()  # the other reads nothing until all was sent
        if ours.me == 1:
            assert len(received(ours, 50)) == 50
        exchange.barrier()
        ours.close(None)

    assert forked.run(main, 2, 2) == [None, None]


def test_a_goodbye_is_no_error_and_a_killed_process_is_one_at_once():
    def main(exchange):
        ours = Links(exchange, PATIENCE_SECONDS, 100)
        if ours.me == 1:
            ours.close(None)
        exchange.barrier()
        if ours.me == 0:
            assert ours.receive(0.2) is None  # messages of process 1 arrive before or after
        exchange.barrier()
        if ours.me == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if ours.me == 1:
            return None
        with pytest.raises(ExchangeError, match=r"process 2 of 3 has ended") as raised:
            ours.receive(PATIENCE_SECONDS)
        return str(raised.value)

    found = forked.run(main, 3, 3)
    assert "training resumes from the last checkpoint" in found[0]
    assert found[2] == -signal.SIGKILL


def test_what_is_longer_than_any_message_is_refused():
    def main(exchange):
        ours = Links(exchange, PATIENCE_SECONDS, 100)
        if ours.me == 1:
            ours.send(torch.zeros(101, dtype=torch.uint8))
            exchange.barrier()
            return None
        with pytest.raises(ExchangeError, match="sent 101 bytes of kind 1; the most is 100"):
            ours.receive(PATIENCE_SECONDS)
        exchange.barrier()
        return "refused"

    assert forked.run(main, 2, 2) == ["refused", None]


# --- strangers ------------------------------------------------------------------------------------

Stranger = Callable[[socket.socket], bytes]


def met(*strangers: Stranger, **constants) -> list[bytes]:
    """Connect two processes after strangers have; return what process 0 sent each stranger."""

    def main(exchange):
        for name, value in constants.items():
            setattr(links, name, value)
        original, told = links._listening, []

        def watched(*where):
            with original(*where) as listener, ThreadPoolExecutor(len(strangers)) as pool:
                for stranger in strangers if exchange.local[0] == 0 else ():
                    connection = socket.create_connection(listener.getsockname()[:2])
                    connection.settimeout(PATIENCE_SECONDS)
                    told.append(pool.submit(stranger, connection))
                yield listener

        links._listening = links.contextlib.contextmanager(watched)
        ours = Links(exchange, PATIENCE_SECONDS, 100)
        ours.send(torch.full((3,), 7, dtype=torch.uint8))
        assert received(ours, 1) == [b"\7\7\7"]
        ours.close(None)
        return [one.result() for one in told]

    first, second = forked.run(main, 2, 2)
    assert second == []
    return first


def heard(connection: socket.socket, size: int = 1000) -> bytes:
    """Return what is received, up to this size or the end of the connection."""
    found = b""
    with contextlib.suppress(OSError):
        while len(found) < size and (part := connection.recv(size - len(found))):
            found += part
    return found


def says(content: bytes) -> Stranger:
    def stranger(connection):
        with contextlib.suppress(OSError):
            connection.sendall(content)
        return heard(connection)

    return stranger


def nothing(connection):
    return heard(connection)


def what_it_is_told(connection):
    """The number of the process that is waited for, as often as it is notified."""
    told = heard(connection, 20)
    with contextlib.suppress(OSError):
        connection.sendall(told[:16] + struct.pack("<I", 1))
    return told + heard(connection)


def test_a_stranger_who_waits_to_be_told_the_secret_is_told_nothing():
    assert met(what_it_is_told) == [b""]


def test_silent_strangers_delay_nobody():
    assert met(*[nothing] * 5, HELLO_SECONDS=1000.0) == [b""] * 5


def test_there_is_room_behind_more_silent_strangers_than_are_heard():
    assert met(*[nothing] * 8, HELLO_SECONDS=1000.0, MOST_PENDING=3) == [b""] * 8


HELLO = struct.Struct("<8sII")


def hello(connects: int, listens: int, nonce: bytes = bytes(32)) -> bytes:
    return HELLO.pack(b"asr-tr 2", connects, listens) + nonce


def test_strangers_who_say_something_else_are_told_nothing():
    garbage = [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n" * 9, os.urandom(500), os.urandom(16)]
    wrong = [hello(0, 0), hello(2, 0), hello(1, 1), hello(1, 0)[::-1]]
    told = met(*map(says, garbage + wrong))
    assert told == [b""] * len(told)


def test_an_echo_is_no_proof():
    """A peer that echoes gets a number; echoing that, or anything, is no proof."""

    def echo(connection):
        connection.sendall(hello(1, 0))
        nonce = heard(connection, 32)
        connection.sendall(nonce)
        return nonce + heard(connection)

    first, second = met(echo, echo)
    assert (len(first), len(second)) == (32, 32)  # the challenge, and then the end
    assert first != second


SECRET = bytes(range(32))


@contextlib.contextmanager
def waiting(wanted: set[int], me: int = 0, seconds: float = PATIENCE_SECONDS):
    """A process that admits others: its address, and what it will have received."""
    with links._listening("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        deadline = time.monotonic() + seconds
        found = pool.submit(links._admitted, listener, me, wanted, SECRET, deadline)
        yield listener.getsockname(), found


def reach(where, me: int = 1, process: int = 0, secret: bytes = SECRET) -> socket.socket:
    return links._reach(process, *where, me, secret, time.monotonic() + PATIENCE_SECONDS)


@contextlib.contextmanager
def between(where, change=lambda number, content: content):
    """A relay between the two sides: its address, and what each side sent."""
    said: list[bytes] = []

    def pass_on(listener):
        one, _ = listener.accept()
        with one, socket.create_connection(where) as other:
            for number, (source, target, size) in enumerate(
                [(one, other, 48), (other, one, 32), (one, other, 32), (other, one, 32)]
            ):
                said.append(heard(source, size))
                with contextlib.suppress(OSError):
                    target.sendall(change(number, said[-1]))

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        passing = pool.submit(pass_on, listener)
        yield listener.getsockname(), said
        passing.result()


def test_what_was_said_once_proves_nothing_the_next_time():
    with waiting({1}) as (where, found):
        with between(where) as (there, said):
            reach(there).close()
        assert list(found.result()) == [1]
    assert [len(part) for part in said] == [48, 32, 32, 32]
    assert SECRET not in b"".join(said)
    with waiting({1}) as (where, found):
        with socket.create_connection(where) as replay:
            replay.settimeout(PATIENCE_SECONDS)
            replay.sendall(said[0])
            assert heard(replay, 32) != said[1]
            replay.sendall(said[2])
            assert heard(replay) == b""
        assert not found.done()
        reach(where).close()
        assert list(found.result()) == [1]


@pytest.mark.parametrize("secret", [bytes(32), SECRET[::-1], b""])
def test_another_secret_is_refused(secret):
    with waiting({1}) as (where, found):
        with pytest.raises(ExchangeError, match=r"process 0 cannot be reached .* ended"):
            reach(where, secret=secret)
        assert not found.done()
        reach(where).close()
        assert list(found.result()) == [1]


def test_a_proof_is_of_one_process_only():
    """Even for a relay that can change the content."""

    def as_another(number, content):
        return hello(2, 0, content[16:]) if number == 0 else content

    with waiting({1, 2}) as (where, found):
        with between(where, as_another) as (there, _), pytest.raises(ExchangeError, match="ended"):
            reach(there)
        for process in (1, 2):
            reach(where, process).close()
        assert sorted(found.result()) == [1, 2]


@pytest.mark.parametrize("answer", ["echo", "zeros"])
def test_who_listens_proves_itself_too(answer):
    def listen(listener):
        connection, _ = listener.accept()
        with connection:
            nonce = heard(connection, 48)[16:]
            connection.sendall(nonce)  # whose proof would then be valid for both
            proof = heard(connection, 32)
            connection.sendall(proof if answer == "echo" else bytes(32))

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listening = pool.submit(listen, listener)
        with pytest.raises(ExchangeError, match="does not know this run's secret"):
            reach(listener.getsockname())
        listening.result()


def test_who_speaks_slowly_is_turned_away_all_the_same(monkeypatch):
    monkeypatch.setattr(links, "HELLO_SECONDS", 0.3)
    with waiting({1}) as (where, found):
        with socket.create_connection(where) as slow:
            slow.settimeout(0.02)
            deadline = time.monotonic() + PATIENCE_SECONDS
            with contextlib.suppress(ConnectionError):
                while time.monotonic() < deadline:
                    slow.sendall(b"a"[:0] if found.done() else hello(1, 0)[:1])
                    with contextlib.suppress(TimeoutError):
                        assert slow.recv(1) == b""
                        break
        assert time.monotonic() < deadline
        assert not found.done()
        monkeypatch.undo()  # the next one has the full time
        reach(where).close()
        assert list(found.result()) == [1]


# --- addresses ------------------------------------------------------------------------------------


def has_ipv6_loopback() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.parametrize("launcher", ["127.0.0.1", "::1"])
def test_who_listens_does_so_where_the_launcher_is(launcher):
    if launcher == "::1" and not has_ipv6_loopback():
        pytest.skip("this machine has no ::1")

    def main(exchange):
        os.environ["MASTER_ADDR"] = launcher
        original, found = links._listening, []

        def watched(*where):
            with original(*where) as listener:
                found.append(listener.getsockname()[0])
                yield listener

        links._listening = links.contextlib.contextmanager(watched)
        ours = Links(exchange, PATIENCE_SECONDS, 100)
        ours.send(torch.full((3,), ours.me, dtype=torch.uint8))
        messages = received(ours, 1)
        ours.close(None)
        return found, messages

    assert forked.run(main, 2, 2) == [([launcher], [b"\1\1\1"]), ([launcher], [b"\0\0\0"])]


def test_a_launcher_that_calls_itself_loopback_is_reached_by_other_machines(monkeypatch):
    """As on Debian. The address that faces the other machines is used then."""
    asked = []
    monkeypatch.setattr(links, "_facing", lambda host: asked.append(host) or "10.0.0.1")
    facing = ["127.0.1.1", "127.0.1.1", "10.0.0.2", "10.0.0.3"]
    own = [links._own_address(me, facing) for me in range(4)]
    assert own == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert asked == ["10.0.0.2", "10.0.0.2"]
    assert links._own_address(1, ["127.0.0.1"] * 2) == "127.0.0.1"


def test_a_launcher_that_has_no_address_is_named():
    with pytest.raises(ExchangeError, match=r"no route to 'nobody\.invalid'.*MASTER_ADDR"):
        links._facing("nobody.invalid")


# --- time -----------------------------------------------------------------------------------------


def test_who_does_not_connect_in_time_is_named():
    def main(exchange):
        if exchange.local[0] == 0:
            with pytest.raises(ExchangeError, match="processes 1 did not connect in time"):
                Links(exchange, 1, 100)
            exchange.barrier()
        else:
            links._reach = lambda *_: exchange.barrier()
            with pytest.raises(AttributeError):  # there is no connection
                Links(exchange, 1, 100)

    assert forked.run(main, 2, 2) == [None, None]
