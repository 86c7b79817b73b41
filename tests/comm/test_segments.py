"""Segments change when things are sent, and nothing else: not a bit of what comes of it."""

import contextlib
import copy
import itertools
import threading

import forked
import pytest
import torch
from small_methods import CPU, GTC, method_of, settings
from torch import nn

from asr_train import schema
from asr_train.comm import codec
from asr_train.comm.bucket import Bucket, Slot
from asr_train.comm.codec import MessageError
from asr_train.comm.ddp_hook import GtcHook
from asr_train.comm.exchange import Exchange
from asr_train.comm.loopback import Loopback
from asr_train.comm.method import Gradient, Replica
from asr_train.comm.segments import ALIGNED, Side, cut, lies_in

EXACT = {**GTC, "capacity": "exact", "threshold": 0.25}
PARTS = (1, 2, 5)  # segments


class Layers(nn.Module):
    """Five of them; those in `unused` do nothing, and `hooked` is called between the first two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = [7, 11, 13, 11, 9, 5]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.skip = nn.Linear(7, 5)
        self.unused = False
        self.hooked = lambda grad: None

    def forward(self, x):
        y = x
        for i, layer in enumerate(self.layers):
            y = layer(y)
            if i == 0 and y.requires_grad:
                y.register_hook(self.hooked)
            y = torch.tanh(y)
        return y if self.unused else y + self.skip(x)


class Cells(nn.Module):
    """Recurrent: all of a layer's gradients come at once, in another order than they lie in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells = nn.LSTM(7, 6, 3, batch_first=True)
        self.output = nn.Linear(6, 5)
        self.unused = False

    def forward(self, x):
        return self.output(self.cells(x[:, None].expand(-1, 4, -1))[0][:, -1])


class Run:
    """Workers that share a model, as train.loop has them.

    Args:
        bad: (worker, step, element of the gradient): that is a NaN.
        idle: (worker, step) without a minibatch.
        unused: steps in which `Layers.skip` has no gradient.
    """

    def __init__(self, exchange, segments, kind=Layers, name="gtc_exact", **more) -> None:
        if isinstance(exchange, int):
            exchange = Loopback(range(exchange), CPU)
        self.bad, self.idle = more.pop("bad", ()), more.pop("idle", ())
        self.unused = more.pop("unused", ())
        self.model = kind()
        self.bucket = Bucket(self.model)
        size = len(self.bucket.weights_P)
        gtc = {**EXACT, "segments": segments, **more}
        self.method = method_of(name, exchange, size, gtc=gtc)
        self.method.watch(self.bucket)
        self.replicas = [Replica(self.bucket.weights_P.clone(), None) for _ in self.method.teams]
        self.method.begin(self.bucket.weights_P)
        self.step, self.skipped = 0, []

    def gradients(self, workers):
        for worker in workers:
            self.bucket.zero_grad()
            if (worker, self.step) in self.idle:
                yield Gradient(self.bucket.grad_P, 0)
                continue
            rng = torch.Generator().manual_seed(1000 * worker + self.step)
            self.model.unused = self.step in self.unused
            hooks = [self.poison(n) for w, step, n in self.bad if (w, step) == (worker, self.step)]
            x = torch.randn(6, 7, generator=rng).to(self.bucket.grad_P.device)
            self.model(x).square().sum().backward()
            for hook in hooks:
                hook.remove()
            is_finite = bool(self.bucket.grad_P.sum().isfinite())
            yield Gradient(self.bucket.grad_P, 10 + worker, is_finite)

    def poison(self, element):
        """A hook that makes this element of the gradient a NaN as backward comes to it."""
        slot = next(s for s in self.bucket.table if s.offset <= element < s.offset + s.numel)

        def write(grad):
            grad = grad.clone()
            grad.view(-1)[element - slot.offset] = torch.nan
            return grad

        return self.model.get_parameter(slot.name).register_hook(write)

    def steps(self, count):
        for _ in range(count):
            for i, team in enumerate(self.method.teams):
                self.bucket.point_at(self.replicas[i].weights_P)
                found = self.method.reduce_quanta(i, self.gradients(team.local))
                if found is None:
                    self.skipped.append(self.step)
                    continue
                grad_P = found.dense() if hasattr(found, "dense") else found
                self.replicas[i].weights_P.add_(grad_P, alpha=-0.05)
            self.method.after_update(self.replicas)
            self.step += 1
        return self

    def bits(self):
        """All that the next step depends on; and the weights of all teams here."""
        local = self.method.exchange.local
        residuals = [self.method.worker_state(w).get("residual_P") for w in local]
        taus = [self.method.measures(w)[0] for w in local]
        vectors = [replica.weights_P for replica in self.replicas] + residuals
        return taus, self.skipped, [v.tolist() for v in vectors if v is not None]


# --- where the cuts are ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Layers, Cells])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 100])
def test_segments_are_all_elements_once_and_begin_where_parameters_do(kind, count):
    table = Bucket(kind()).table
    parts = cut(table, count)
    size = sum(slot.numel for slot in table)
    assert [i for part in parts for i in part] == list(range(size))
    assert 1 <= len(parts) <= count
    begins = {-(-slot.offset // ALIGNED) * ALIGNED for slot in table}
    assert {part.start for part in parts} <= begins
    for slot in table:
        inside = [
            n for n, p in enumerate(parts) if set(p) & set(range(size)[slot.offset :][: slot.numel])
        ]
        assert lies_in(slot, parts) == inside


def test_segments_of_equal_parameters_are_equal():
    table = [Slot(f"{n}", 40 * n, 40, (40,)) for n in range(12)]
    assert [len(part) for part in cut(table, 4)] == [120] * 4
    assert [len(part) for part in cut(table, 12)] == [40] * 12


# --- the same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Layers, Cells])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_segments_change_no_bit(kind, workers):
    more = {"idle": {(0, 2), (1, 3)}, "unused": {1, 4}}
    wanted = Run(workers, 1, kind, **more)
    others = [Run(workers, parts, kind, **more) for parts in PARTS[1:]]
    for _ in range(8):
        wanted.steps(1)
        for other in others:
            assert other.steps(1).bits() == wanted.bits()
    assert wanted.skipped == []
    sent = [run.method.take_sent(0).elements for run in (wanted, *others)]
    assert len(set(sent)) == 1
    assert (sent[0] > 0) == (workers > 1)


@pytest.mark.parametrize("codec_name", ["packed32", "tile16", "rice"])
@pytest.mark.parametrize("tau", [2.0**-30, 0.25, 100.0])
def test_codecs_and_densities_change_no_bit(codec_name, tau):
    more = {"codec": codec_name, "threshold": tau}
    assert Run(2, 5, **more).steps(4).bits() == Run(2, 1, **more).steps(4).bits()


def test_an_adaptive_threshold_is_the_same():
    adaptive = {"density": 0.02, "band": 1.1, "factor": 1.3}
    found, wanted = (Run(3, parts, adaptive=adaptive).steps(8) for parts in (5, 1))
    assert found.bits() == wanted.bits()
    assert wanted.bits()[0][0] != 0.25


def test_groups_whose_models_are_averaged_are_the_same():
    found, wanted = (Run(4, parts, name="bmuf_gtc").steps(8) for parts in (3, 1))
    assert len(found.replicas) == 2
    assert found.bits() == wanted.bits()


def test_a_run_goes_on_with_another_number_of_segments():
    first = Run(3, 2).steps(3)
    second = Run(3, 5)
    second.step = 3
    second.method.load_team_state(0, copy.deepcopy(first.method.team_state(0)))
    for worker in range(3):
        state = copy.deepcopy(first.method.worker_state(worker))
        second.method.load_worker_state(worker, state)
    second.replicas[0].weights_P.copy_(first.replicas[0].weights_P)
    assert second.steps(4).bits() == Run(3, 1).steps(7).bits()


def test_gradients_that_nobody_watched_are_one_segment():
    method = method_of("gtc_exact", 2, 40, gtc={**EXACT, "segments": 3})
    other = method_of("gtc_exact", 2, 40, gtc=EXACT)
    rng = torch.Generator().manual_seed(0)
    grads = torch.randn(2, 40, generator=rng)
    found, wanted = (
        m.reduce_gradient(0, (Gradient(g.clone(), 1) for g in grads)) for m in (method, other)
    )
    assert torch.equal(found, wanted)
    assert method.take_sent(0) == other.take_sent(0)


# --- gradients that are not finite ----------------------------------------------------------------


def test_a_nan_anywhere_stops_the_step_of_all_and_leaves_no_trace():
    parts = Run(3, 5).method.reducers[0].segments
    assert len(parts) == 5
    for number, part in enumerate(parts):
        run = Run(3, 5, bad={(number % 3, 2, part[len(part) // 2])}).steps(2)
        before = copy.deepcopy(run.bits())
        run.steps(1)
        assert run.skipped == [2]
        assert run.bits() == (before[0], [2], before[2])
        wanted = Run(3, 1, bad=run.bad).steps(3)
        assert run.bits() == wanted.bits()
        assert run.steps(3).bits() == wanted.steps(3).bits()


@pytest.mark.parametrize("segments", PARTS)
def test_what_only_the_whole_gradient_says_stops_the_step_too(segments):
    """Backward gave numbers, but the loss was none, or their sum."""
    run = Run(2, segments).steps(2)
    before = copy.deepcopy(run.bits()[2])

    def not_finite(workers):
        for worker, gradient in zip(workers, run.gradients(workers), strict=True):
            gradient.is_finite = worker != 1
            yield gradient

    assert run.method.reduce_quanta(0, not_finite(range(2))) is None
    assert run.bits()[2] == before


def test_a_debt_that_overflows_in_one_segment_is_nobodys():
    run = Run(2, 5)
    largest = torch.finfo(torch.float32).max
    state = run.method.worker_state(1)
    state["residual_P"].fill_(largest)
    state["residual_P"][: len(state["residual_P"]) // 2] = 0.0
    before = copy.deepcopy(run.bits()[2])
    huge = [Gradient(torch.full_like(run.bucket.grad_P, largest), 5, True) for _ in range(2)]
    assert run.method.reduce_quanta(0, iter(huge)) is None
    assert run.bits()[2] == before


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers, processes", [(2, 2), (3, 2)])
def test_processes_are_virtual_workers_without_segments(workers, processes):
    more = {"idle": {(0, 2), (1, 3)}, "unused": {1, 4}, "bad": {(1, 5, 3), (0, 6, 300)}}

    def bits(exchange):
        return [
            Run(exchange, parts, kind, **more).steps(8).bits()
            for kind in (Layers, Cells)
            for parts in PARTS
        ]

    wanted = {kind: Run(workers, 1, kind, **more).steps(8).bits() for kind in (Layers, Cells)}
    assert wanted[Layers][1] == [5, 6]
    for rank, found in enumerate(forked.run(bits, workers, processes)):
        assert isinstance(found, list), found
        mine = range(workers * rank // processes, workers * (rank + 1) // processes)
        for i, (taus, skipped, vectors) in enumerate(found):
            all_taus, all_skipped, (weights, *residuals) = wanted[(Layers, Cells)[i // len(PARTS)]]
            assert taus == [all_taus[w] for w in mine]
            assert skipped == all_skipped
            assert vectors == [weights, *(residuals[w] for w in mine)]


def read_before_the_end(exchange: Exchange) -> int:
    """How many segments' messages, of all workers, have been read when backward comes to the first
    layer; it waits there for one."""
    run = Run(exchange, 5)
    (reducer,) = run.method.reducers
    is_read, seen = threading.Semaphore(0), []
    original = reducer._read

    def read(*given):
        result = original(*given)
        is_read.release()
        return result

    def wait(grad):
        seen.append(is_read.acquire(timeout=20))

    reducer._read, run.model.hooked = read, wait
    run.steps(1)
    assert len(seen) == 1
    return sum(seen)


def test_messages_are_exchanged_while_backward_still_runs():
    assert forked.run(read_before_the_end, 2, 2) == [1, 1]


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_damaged_message_stops_the_run_and_what_would_follow_it(monkeypatch):
    run, calls = Run(2, 5).steps(1), []

    def damaged(header, message_B):
        calls.append(1)
        raise MessageError("changed on the way")

    monkeypatch.setattr(codec, "read_words", damaged)
    with pytest.raises(MessageError, match="changed on the way"):
        run.steps(1)
    assert len(calls) == 1


def test_other_segments_elsewhere_are_refused():
    def different(exchange):
        Run(exchange, 2 + exchange.local[0]).steps(1)

    for error in forked.run(different, 2, 2):
        assert isinstance(error, MessageError)
        assert "is due; were all workers started from the same checkpoint and settings?" in str(
            error
        )


def test_after_a_task_that_failed_none_is_begun():
    side, done = Side(CPU), []
    side.do(lambda: done.append(1))
    side.do(lambda: 1 // 0)
    side.do(lambda: done.append(2))
    with pytest.raises(ZeroDivisionError):
        side.wait()
    assert done == [1]
    side.do(lambda: done.append(3))
    side.wait()
    assert done == [1, 3]


class Stream:
    """Of a GPU, as far as `Side` uses it: says what it is told."""

    def __init__(self, name, said) -> None:
        self.name, self.said = name, said

    def record_event(self):
        self.said.append(f"{self.name} records")
        return self

    def wait(self):  # of the event
        self.said.append(f"{torch.cuda.current_stream().name} waits for {self.name}'s event")

    def wait_stream(self, other):
        self.said.append(f"{self.name} waits for all of {other.name}")


def test_a_gpus_side_stream_waits_for_the_gradient_and_the_step_for_the_side_stream(monkeypatch):
    said, here = [], threading.local()

    @contextlib.contextmanager
    def stream(chosen):
        here.stream = chosen
        yield
        del here.stream

    main = Stream("main", said)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side", said))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device=None: getattr(here, "stream", main)
    )
    side = Side(torch.device("cuda", 0))
    side.do(lambda: said.append(f"done on {torch.cuda.current_stream().name}"))
    side.wait()
    assert said == [
        "main records",
        "side waits for main's event",
        "done on side",
        "main waits for all of side",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", [Layers, Cells])
def test_segments_change_no_bit_on_a_gpu(kind):
    gpu = torch.device("cuda")
    runs = [Run(Loopback(range(2), gpu), parts, lambda: kind().to(gpu)) for parts in PARTS]
    for _ in range(8):
        bits = [run.steps(1).bits() for run in runs]
        assert bits == [bits[0]] * len(PARTS)


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("gtc", {}, "comm.gtc.segments is 2 but comm.gtc.capacity is fixed"),
        ("gtc_async", {"capacity": "exact"}, "comm.method=gtc_async sends whole gradients"),
        ("gtc", {"capacity": "exact", "segments": 0}, "comm.gtc.segments is 0"),
    ],
)
def test_what_segments_do_not_go_with_is_said(name, changes, message):
    with pytest.raises(schema.SettingsError, match=message):
        settings(name, gtc={**GTC, "segments": 2, **changes})


def test_the_ddp_hook_has_no_segments():
    given = schema.build(schema.GtcSettings, {**EXACT, "segments": 2})
    with pytest.raises(ValueError, match=r"segments is 2, but the hook exchanges whole gradients"):
        GtcHook(Layers(), given)


# --- how long it takes ----------------------------------------------------------------------------


def test_seconds_count_from_when_they_are_waited_for():
    exchange = Loopback(range(2), CPU)
    exchange.awaited_since = float("inf")
    with exchange.timed("compress"):
        pass
    assert exchange.seconds["compress"] == 0.0
    exchange.awaited_since = float("-inf")
    with exchange.timed("compress"):
        pass
    assert exchange.seconds["compress"] > 0.0
