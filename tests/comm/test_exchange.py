"""Collectives are bit-identical for any placement; a process that does not answer is named."""

import multiprocessing
import os
import re
import signal
import socket
import time
from datetime import timedelta
from types import SimpleNamespace

import forked
import numpy as np
import pytest
import torch
import torch.distributed as dist
from forked import PATIENCE_SECONDS

import asr_train.comm.processes
from asr_train.comm.exchange import ExchangeError, ReplicaError, hosted
from asr_train.comm.loopback import Loopback
from asr_train.comm.processes import check_started_alike, open_exchange

SIZE = 1001


def vector(worker: int) -> torch.Tensor:
    """Not on a grid: another order of summation would change the bits."""
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(worker)) * 10.0**worker


def everything(exchange) -> dict:
    """Run all collectives, among all and in groups of two; return their results and bits sent."""

    def collectives(e):
        mine = list(e.local)
        messages = [torch.arange(3 * w, dtype=torch.uint8) for w in mine]
        some = list(e.members)[::2]
        found = {
            "gather": [m.tolist() for m in e.gather(messages)],
            "capacity": [m.tolist() for m in e.gather(messages, 20)],
            "sum": e.sum((vector(w) for w in mine), SIZE).numpy(),
            "bf16": e.sum((vector(w) for w in mine), SIZE, wire=torch.bfloat16).numpy(),
            "some": e.sum((vector(w) for w in mine if w in some), SIZE, some).numpy(),
            "scatter": [
                [part.tolist() for part in own]
                for own in e.scatter(
                    [
                        [torch.full((1 + to,), 10 * w + to, dtype=torch.uint8) for to in e.members]
                        for w in mine
                    ]
                )
            ],
            "numbers": e.numbers([[w, 1 / 3] for w in mine]),
            "said": e.of_first("abc" if e.members[0] in e.local else ""),
            "silence": e.of_first(""),
        }
        e.barrier()
        return found

    found = {"all": collectives(exchange)}
    for group in exchange.groups(2):
        found[tuple(group.members)] = collectives(group)
    return {"found": found, "bits": exchange.received_bits, "local": list(exchange.local)}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        if isinstance(a[key], np.ndarray):
            assert a[key].tobytes() == b[key].tobytes(), key
        else:
            assert a[key] == b[key], key


@pytest.mark.parametrize("workers, processes", [(2, 2), (3, 3), (4, 2), (5, 3)])
def test_processes_give_the_bits_of_one(workers, processes):
    alone = everything(Loopback(range(workers), forked.CPU))
    together = forked.run(everything, workers, processes)
    assert [w for result in together for w in result["local"]] == list(range(workers))
    assert {w: n for r in together for w, n in r["bits"].items()} == alone["bits"]
    for result in together:
        assert result["found"].keys() <= alone["found"].keys()
        for members, found in result["found"].items():
            wanted = alone["found"][members]
            members = range(workers) if members == "all" else members
            mine = [w - members[0] for w in result["local"] if w in members]
            scattered = [wanted["scatter"][m] for m in mine]
            assert_same(found, {**wanted, "scatter": scattered})


def test_one_process_gives_what_the_words_say():
    found = everything(Loopback(range(5), forked.CPU))["found"]
    total_P = vector(0)
    for w in range(1, 5):
        total_P = total_P + vector(w)
    assert found["all"]["sum"].tobytes() == total_P.numpy().tobytes()
    some_P = (vector(0) + vector(2)) + vector(4)
    assert found["all"]["some"].tobytes() == some_P.numpy().tobytes()
    assert [len(m) for m in found["all"]["gather"]] == [0, 3, 6, 9, 12]
    assert {len(m) for m in found["all"]["capacity"]} == {20}
    for worker, own in enumerate(found["all"]["scatter"]):  # a part has the receiver's length
        assert own == [(1 + worker) * [10 * w + worker] for w in range(5)]
    assert found["all"]["numbers"] == [[w, 1 / 3] for w in range(5)]
    assert found.keys() == {"all", (0, 1), (2, 3), (4,)}
    assert (found["all"]["said"], found["all"]["silence"]) == ("abc", "")


def test_what_each_worker_receives_is_counted():
    """By hand, for four workers; the processes' counts are compared with these above."""

    def received(call):
        exchange = Loopback(range(4), forked.CPU)
        call(exchange)
        return list(exchange.received_bits.values())

    messages = [torch.zeros(3 * w, dtype=torch.uint8) for w in range(4)]
    parts = [[torch.zeros(1 + to, dtype=torch.uint8) for to in range(4)] for _ in range(4)]
    vectors = [torch.zeros(1000)] * 4
    # Three others' messages, padded to 9 bytes, and their lengths
    assert received(lambda e: e.gather(messages)) == [8 * 3 * (9 + 8)] * 4
    assert received(lambda e: e.gather(messages, 20)) == [8 * 3 * 20] * 4
    assert received(lambda e: e.scatter(parts)) == [8 * 3 * size for size in (1, 2, 3, 4)]
    # 250 elements of each of three others, and then the sums of the other 750
    assert received(lambda e: e.sum(iter(vectors), 1000)) == [32 * 2 * 750] * 4
    assert received(lambda e: e.sum(iter(vectors), 1000, wire=torch.bfloat16)) == [16 * 2 * 750] * 4
    some = received(lambda e: e.sum(iter(vectors[:2]), 1000, [0, 2]))
    assert some == [32 * (250 * others + 750) for others in (1, 2, 1, 2)]


def test_vectors_may_be_overwritten_when_the_next_is_asked_for():
    buffer_P = torch.empty(SIZE)

    def one_by_one(e):
        return e.sum((buffer_P.copy_(vector(w)) for w in e.local), SIZE).numpy().tobytes()

    wanted = one_by_one(Loopback(range(4), forked.CPU))
    assert forked.run(one_by_one, 4, 2) == [wanted, wanted]


def test_each_worker_has_one_host_and_shares_are_about_equal():
    for processes in range(1, 9):
        hosts = [hosted(8, p, processes) for p in range(processes)]
        assert [w for host in hosts for w in host] == list(range(8))
        assert max(map(len, hosts)) - min(map(len, hosts)) <= 1


def test_replicas_that_differ_are_named_with_the_first_parameter():
    def check(exchange):
        sums = [5, 6 + (exchange.local[0] == 2), 7]
        exchange.check_same(sums, ["a.weight", "a.bias", "b.weight"], "step 30")

    for error in forked.run(check, 3, 3):
        assert isinstance(error, ReplicaError)
        assert "step 30: workers 2 have a different a.bias than worker 0 (1 of 3" in str(error)


@pytest.mark.parametrize("is_dead", [True, False], ids=["dead", "hung"])
def test_a_process_that_does_not_answer_is_named_in_the_time_stated(is_dead):
    """A process that hangs does so until the others have reported that they no longer wait.

    They learn of each other's timeout however long that takes, not only within a second.
    """
    fork = multiprocessing.get_context("fork")
    said, both = fork.Semaphore(0), fork.Barrier(2, timeout=PATIENCE_SECONDS)

    def main(exchange):
        exchange.barrier()
        if exchange.local[0] == 1:
            if is_dead:
                os.kill(os.getpid(), signal.SIGKILL)
            return [said.acquire(timeout=PATIENCE_SECONDS) for _ in range(2)]
        sleep = lambda seconds: both.wait()  # noqa: E731
        asr_train.comm.processes.time = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
        exchange.timeout_seconds = 2  # from here on, since finding each other may take longer
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2))
        try:
            exchange.barrier()
        except ExchangeError as error:
            both.wait()  # process 0 holds the store through which they communicate
            asr_train.comm.processes.time = time
            said.release()
            return str(error)

    results = forked.run(main, 3, 3)
    assert results[1] == (-signal.SIGKILL if is_dead else [True, True])
    for rank in (0, 2):
        # On a busy machine, the other one may be late to report that it waits, too
        assert re.match(r"process (0, )?1(, 2)? of 3 did not answer in", results[rank])
        assert "timeout_seconds is 2" in results[rank]


def test_more_processes_than_workers_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="3 processes were started for 2 workers"):
        open_exchange(2, forked.CPU, 1)


def test_processes_for_other_workers_are_named():
    def main(exchange):
        says = r"process 1 .* 3 workers with 1 stripes, but process 0 for 2 with 1; set the same"
        with pytest.raises(ValueError, match=says):
            check_started_alike(2 + exchange.local[0], 1, forked.CPU)
        return "refused"

    assert forked.run(main, 2, 2) == ["refused"] * 2


def test_processes_that_never_start_are_an_error_in_time(monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    with pytest.raises(ExchangeError, match=r"2 processes did not find each other in \d+\.\d s"):
        open_exchange(None, forked.CPU, 1)
    assert time.monotonic() - began < PATIENCE_SECONDS


def test_a_port_that_is_in_use_is_named(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ExchangeError, match=f"with another MASTER_PORT than {port}$"):
            open_exchange(None, forked.CPU, 60)


def test_an_error_is_told_by_its_first_and_last_line():
    """NCCL gives the reason last, after a trace of C++."""
    said = "NCCL error in: x.cpp:9\nLast error:\nDuplicate GPU detected\nframe #0: c10::Error"
    found = asr_train.comm.processes._shortened(RuntimeError(said))
    assert found == "NCCL error in: x.cpp:9 ... Duplicate GPU detected"
    assert asr_train.comm.processes._shortened(RuntimeError("one")) == "one"
