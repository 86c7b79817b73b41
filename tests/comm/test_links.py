"""Messages between processes: all come, whole and in order, and who is gone is named."""

import os
import signal
import socket
import struct
import time

import forked
import pytest
import torch

from asr_train.comm import links
from asr_train.comm.exchange import ExchangeError
from asr_train.comm.links import Links

PATIENCE_SECONDS = 20


def received(ours: Links, count: int) -> list[bytes]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: list[bytes] = []
    while len(found) < count:
        assert time.monotonic() < deadline, len(found)
        message_B = ours.receive(1.0)
        if message_B is not None:
            found.append(bytes(message_B.numpy()))
    return found


def message(process: int, number: int, size: int) -> bytes:
    return bytes([process, number]) + bytes(size)


@pytest.mark.parametrize("processes", [2, 4])
def test_all_messages_come_whole_and_those_of_a_process_in_order(processes):
    sizes = [0, 1, 7, 1_000_000, 3]  # one that no socket takes at once

    def main(exchange):
        ours = Links(exchange, 30, 2_000_000)
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
        ours = Links(exchange, 30, 2_000_000)
        content = torch.zeros(2_000_000, dtype=torch.uint8)
        if ours.me == 0:
            for _ in range(50):  # far more than sockets hold
                ours.send(content)
        exchange.barrier()  # the other reads nothing before all was sent
        if ours.me == 1:
            assert len(received(ours, 50)) == 50
        exchange.barrier()
        ours.close(None)

    assert forked.run(main, 2, 2) == [None, None]


def test_a_goodbye_is_no_error_and_a_killed_process_is_one_at_once():
    def main(exchange):
        ours = Links(exchange, 30, 100)
        if ours.me == 1:
            ours.close(None)
        exchange.barrier()
        if ours.me == 0:
            assert ours.receive(0.2) is None  # what process 1 said has come, or comes later
        exchange.barrier()
        if ours.me == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if ours.me == 1:
            return None
        with pytest.raises(ExchangeError, match=r"process 2 of 3 is gone") as raised:
            ours.receive(PATIENCE_SECONDS)
        return str(raised.value)

    found = forked.run(main, 3, 3)
    assert "training goes on from the last checkpoint" in found[0]
    assert found[2] == -signal.SIGKILL


def test_what_is_longer_than_any_message_is_refused():
    def main(exchange):
        ours = Links(exchange, 30, 100)
        if ours.me == 1:
            ours.send(torch.zeros(101, dtype=torch.uint8))
            exchange.barrier()
            return None
        with pytest.raises(ExchangeError, match="sent 101 bytes of kind 1, at most 100 fit"):
            ours.receive(PATIENCE_SECONDS)
        exchange.barrier()
        return "refused"

    assert forked.run(main, 2, 2) == ["refused", None]


def test_who_does_not_know_the_secret_is_turned_away():
    """Strangers connect first; each is heard, and none becomes a process of the run."""

    def main(exchange):
        original = links._listening

        def watched():
            context = original()
            listener = context.__enter__()
            port = listener.getsockname()[1]
            if exchange.local[0] == 0:
                for said in (b"", b"GET / HTTP/1.1\r\n\r\n....", struct.pack("<16sI", b"", 1)):
                    stranger = socket.create_connection(("127.0.0.1", port))
                    stranger.sendall(said)
                    stranger.shutdown(socket.SHUT_WR)
                    strangers.append(stranger)
            yield listener
            context.__exit__(None, None, None)

        strangers: list[socket.socket] = []
        links._listening = links.contextlib.contextmanager(watched)
        ours = Links(exchange, 30, 100)
        ours.send(torch.full((3,), 7, dtype=torch.uint8))
        assert received(ours, 1) == [b"\7\7\7"]
        assert len(strangers) == (3 if ours.me == 0 else 0)
        ours.close(None)

    assert forked.run(main, 2, 2) == [None, None]


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


def test_addresses_are_found_where_process_0_has_another_kind_of_address(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert links._own_addresses() == ["127.0.0.1", socket.gethostname()]
    monkeypatch.setenv("MASTER_ADDR", "::1")
    assert links._own_addresses() == [socket.gethostname()]


def test_the_second_address_is_tried_where_the_first_one_does_not_answer():
    def main(exchange):
        original = links._own_addresses
        links._own_addresses = lambda: ["127.0.0.2", *original()]
        bound = socket.socket.bind

        def bind(self, address):  # so that nobody answers at 127.0.0.2
            bound(self, ("127.0.0.1", address[1]) if address[0] == "" else address)

        socket.socket.bind = bind
        ours = Links(exchange, 30, 100)
        ours.send(torch.full((3,), ours.me, dtype=torch.uint8))
        found = received(ours, 1)
        ours.close(None)
        return found

    assert forked.run(main, 2, 2) == [[b"\1\1\1"], [b"\0\0\0"]]
