"""How often a step of GTC waits for its device, and how it treats damaged messages until then.

The reference backend does what eager PyTorch does on a GPU, where the host waits whenever it reads
a tensor's value, and for operations whose result's size depends on data.
"""

import pytest
import torch
from backends import forced
from small_methods import CPU, GTC, LARGE, Run, bursts, method_of
from torch.utils._python_dispatch import TorchDispatchMode
from waits import Waits

from asr_train import schema
from asr_train.comm import codec, gtc
from asr_train.comm.codec import HEADER_BYTES, Checks, Kind, MessageError
from asr_train.comm.loopback import Loopback
from asr_train.comm.reducers import Gradient, Sent
from asr_train.kernels import threshold
from asr_train.kernels.backend import Backend

SIZE = 20_000


def gradients(workers):
    rng = torch.Generator().manual_seed(0)
    return [Gradient(torch.randn(SIZE, generator=rng), 10) for _ in range(workers)]


class OneOfMany(Loopback):
    """Only worker 0 exists; the others' messages were written before."""

    def __init__(self, messages) -> None:
        super().__init__(range(len(messages)), CPU)
        self.local, self.messages = range(1), messages
        self.received_bits = {0: 0}

    def gather(self, messages, capacity=None):
        assert len(messages) == 1
        return [messages[0], *self.messages[1:]]


class Recorded(Loopback):
    """Records what was sent."""

    def __init__(self, workers) -> None:
        super().__init__(range(workers), CPU)
        self.sent: list[bytes] = []

    def gather(self, messages, capacity=None):
        received = super().gather(messages, capacity)
        self.sent += [bytes(message_B.numpy()) for message_B in received]
        return received


def written(workers, codec_name, threshold):
    """Return all messages of a step, and their settings."""
    given = {"threshold": threshold, "codec": codec_name, "capacity": "exact"}
    exchange, settings = Recorded(workers), schema.build(schema.GtcSettings, given, "gtc")
    gtc.Gtc(exchange, SIZE, settings).reduce(
        gradients(workers), dict.fromkeys(range(workers), Sent())
    )
    contents = [torch.frombuffer(bytearray(sent), dtype=torch.uint8) for sent in exchange.sent]
    return contents, settings


CASES = [("packed32", 3.0), ("tile16", 3.0), ("rice", 3.0), ("packed32", 0.01)]  # the last: maps


@pytest.mark.parametrize("codec_name, threshold", CASES)
def test_how_often_a_step_waits_does_not_depend_on_the_number_of_workers(
    codec_name, threshold, monkeypatch
):
    counted = {}
    with forced(Backend.reference):
        for workers in (2, 8, 64):
            messages, settings = written(workers, codec_name, threshold)
            alone = gtc.Gtc(OneOfMany(messages), SIZE, settings)
            alone._checks = Checks(deferred=True)  # as on a GPU
            (gradient,) = gradients(1)
            with monkeypatch.context() as patch, Waits(patch) as waits:
                update = alone.reduce([gradient], {0: Sent()})
            counted[workers] = waits.of
            with monkeypatch.context() as patch, Waits(patch) as waits:
                weights_P = torch.zeros(SIZE)
                update.descend(weights_P, 0.5)
                alone.check()
            assert len(waits.of) == 1  # for the checks of all steps since the last
            assert bool(weights_P.any())
    assert counted[2] == counted[8] == counted[64]
    assert counted[2].count("cpu") == 1  # all headers
    # For its own message: the number of elements, and the length of their Rice codes
    assert len(counted[2]) <= {"rice": 9}.get(codec_name, 3), counted[2]


@pytest.mark.parametrize("bad", [set(), {(1, 4), (0, 9)}])
def test_messages_made_on_the_device_are_those_of_the_host(bad, monkeypatch):
    """With little room, increasing numbers of elements, and gradients that are not finite."""
    found = []
    for on_device in (False, True):
        exchange = Recorded(2)
        method = method_of("gtc", exchange, size=LARGE, gtc={**GTC, "codec": "packed32"})
        (reducer,) = method.reducers
        if on_device:
            reducer._on_device, reducer._checks = True, Checks(deferred=True)
            monkeypatch.setattr(codec, "write", None)
        with forced(Backend.reference):
            run = Run(method, bursts, bad=bad).steps(11)
        reducer.check()
        sent = [method.take_sent(worker) for worker in range(2)]
        found.append((exchange.sent, run.log, run.skipped, sent))
    assert found[0] == found[1]
    assert sum(one.overflows for one in found[0][3]) >= 4


def unseen(waits, compute):
    """Return a function whose own waits are not counted."""

    def called(*given):
        before = list(waits.of)
        found = compute(*given)
        waits.of = before
        return found

    return called


def test_a_step_whose_messages_are_made_on_the_device_waits_once(monkeypatch):
    """It waits for the headers; waits of the reference itself are not counted."""
    exchange = Loopback(range(1), CPU)
    alone = gtc.Gtc(
        exchange, SIZE, method_of("gtc", 2, gtc={**GTC, "codec": "packed32"}).reducers[0].settings
    )
    alone._on_device, alone._checks = True, Checks(deferred=True)
    with forced(Backend.reference), monkeypatch.context() as patch, Waits(patch) as waits:
        patch.setattr(
            threshold, "compress_fixed_rows", unseen(waits, threshold.compress_fixed_rows)
        )
        assert alone.reduce(gradients(1), {0: Sent()}) is not None
    assert waits.of == ["cpu"]


def test_a_step_of_virtual_workers_waits_once(monkeypatch):
    """However many there are; waits of the reference itself are not counted."""
    exchange = Loopback(range(8), CPU)
    settings = method_of("gtc_exact", 2).reducers[0].settings
    together = gtc.Gtc(exchange, SIZE, settings, is_direct=True)
    with forced(Backend.reference), monkeypatch.context() as patch, Waits(patch) as waits:
        patch.setattr(threshold, "tally_rows", unseen(waits, threshold.tally_rows))
        assert together.reduce(gradients(8), {worker: Sent() for worker in range(8)}) is not None
    assert waits.of == ["tolist"]


def damaged(messages, worker, place):
    content = messages[worker].clone()
    content[place] ^= 4
    return [*messages[:worker], content, *messages[worker + 1 :]]


@pytest.mark.parametrize("codec_name, threshold", CASES)
def test_a_payload_that_was_changed_is_harmless_until_the_device_is_asked(codec_name, threshold):
    messages, _ = written(3, codec_name, threshold)
    headers = codec.read_headers(messages)
    with forced(Backend.reference):
        for place in range(HEADER_BYTES - 4, len(messages[1]), max(1, len(messages[1]) // 40)):
            checks = Checks(deferred=True)
            found = codec.read_words(headers, damaged(messages, 1, place), checks)
            for words_K, header in zip(found, headers, strict=True):
                index_K = words_K & (2**31 - 1)
                assert len(words_K) == header.count
                assert bool((index_K.diff() > 0).all())
                assert int(index_K[-1]) < SIZE
            with pytest.raises(MessageError, match="the last checkpoint is valid"):
                checks.ask()
            checks.ask()  # once
            with pytest.raises(MessageError, match="worker 1's message of step 0"):
                codec.read_words(headers, damaged(messages, 1, place), Checks())


class Operations(TorchDispatchMode):
    """Counts what a GPU would be asked to do."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "view" not in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("threshold", [3.0, 100.0])  # some elements, none
def test_packed_messages_are_read_together(threshold):
    counted = []
    for workers in (2, 8, 64):
        messages, _ = written(workers, "packed32", threshold)
        headers = codec.read_headers(messages)
        wanted = codec.read_words(headers, messages, Checks())
        checks = Checks(deferred=True)
        payloads = codec.read_payloads(headers, messages, checks)
        with Operations() as operations:
            found = codec._read_packed(headers, payloads, checks)
        counted.append(operations.count)
        assert all(map(torch.equal, found, wanted))
        checks.ask()
    assert counted[0] == counted[1] == counted[2] > 0


@pytest.mark.parametrize("places", [(5, 6), (5, 5), (3, SIZE), (6, 5)])
def test_packed_elements_that_break_the_rules_are_found_when_the_device_is_asked(places):
    """Of the second of two messages, whose checksums are right: descending, twice, too large."""
    messages = []
    for worker, index in enumerate((torch.tensor([7, 9]), torch.tensor([1, *places]))):
        words_K = threshold.to_words(index, torch.zeros(len(index), dtype=torch.bool))
        head = codec.Header(0, worker, 2, SIZE, tau=1.0, frames=1, wanted=len(index))
        messages.append(codec.write(words_K, head, Kind.packed32))
    checks = Checks(deferred=True)
    found = codec.read_words(codec.read_headers(messages), messages, checks)
    if places == (5, 6):
        assert found[1].tolist() == [1, 5, 6]
        checks.ask()
        return
    assert [words_K.tolist() for words_K in found] == [[0, 1], [0, 1, 2]]
    with pytest.raises(MessageError, match="indices that do not ascend below the model's size"):
        checks.ask()


def test_a_step_asks_every_so_often_and_before_a_checkpoint(monkeypatch):
    monkeypatch.setattr(gtc, "CHECK_STEPS", 3)
    method = method_of("gtc", 2)
    (reducer,) = method.reducers
    asked = []
    reducer._checks.ask = lambda: asked.append(reducer.step)
    for _ in range(7):
        method.reduce(0, [Gradient(torch.ones(203), 1) for _ in range(2)])
    method.check()
    assert asked == [3, 6, 7]
    assert Kind.rice is reducer.kind
