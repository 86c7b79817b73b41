"""Nothing is lost, whether sent, kept for lack of room or dropped; the density reaches its band."""

import copy
from dataclasses import replace

import pytest
import torch
from kernels.in_the_paper import decode_reference, encode_reference
from small_methods import (
    CPU,
    GTC,
    LARGE,
    SETTINGS,
    SIZE,
    Run,
    dyadic_gradient,
    method_of,
    random_gradient,
)

from asr_train import schema
from asr_train.comm import codec
from asr_train.comm.codec import HEADER_BYTES, Kind, MessageError
from asr_train.comm.gtc import Gtc, adapted
from asr_train.comm.loopback import Loopback
from asr_train.comm.reducers import Gradient
from asr_train.kernels.threshold import LARGEST, SMALLEST, compress, to_words


def residuals(run):
    return [run.method.worker_state(w)["owed"]["residual_P"] for w in run.method.exchange.local]


@pytest.mark.parametrize("codec_name", ["packed32", "tile16", "rice"])
@pytest.mark.parametrize("threshold", [2.0**-6, 0.5, 4.0])
def test_what_was_sent_and_what_is_kept_is_all_there_was(codec_name, threshold):
    gtc = {**GTC, "codec": codec_name, "threshold": threshold}
    run = Run(method_of("gtc", 3, gtc=gtc), dyadic_gradient, rate=1.0)
    run.replicas[0].weights_P = torch.zeros(SIZE)
    run.steps(12)
    all_P = sum(dyadic_gradient(w, step) for w in range(3) for step in range(12))
    assert torch.equal(sum(residuals(run)) - run.weights()[0], all_P)
    assert any(r.any() for r in residuals(run))


def test_a_step_is_that_of_the_paper():
    run = Run(method_of("gtc", 3))
    residual = [torch.zeros(SIZE) for _ in range(3)]
    weights_P = run.weights()[0].clone()
    for step in range(8):
        messages = []
        for w in range(3):
            code_P, residual[w] = encode_reference(random_gradient(w, step), residual[w], 1.0)
            index_K = code_P.nonzero().flatten()
            messages.append(to_words(index_K, code_P[index_K] < 0))
        weights_P = weights_P - 0.125 * decode_reference(messages, SIZE).float()
        run.steps(1)
        assert torch.equal(run.weights()[0], weights_P)
    for found, wanted in zip(residuals(run), residual, strict=True):
        assert torch.equal(found, wanted)


def crowded(run, bytes_of_room):
    """Set the state as if steps with few elements had gone before."""
    (reducer,) = run.method.reducers
    reducer.capacity = bytes_of_room
    return reducer


@pytest.mark.parametrize("codec_name", ["packed32", "tile16", "rice"])
def test_what_does_not_fit_stays_in_the_residual(codec_name, monkeypatch):
    monkeypatch.setattr(codec, "smallest_capacity", lambda kind, size: 12)
    gtc = {**GTC, "codec": codec_name, "threshold": 0.25}
    run = Run(method_of("gtc", 2, gtc=gtc), dyadic_gradient, rate=1.0)
    run.replicas[0].weights_P = torch.zeros(SIZE)
    for _ in range(6):
        crowded(run, 12)
        run.steps(1)
    sent = run.method.take_sent(0)
    assert sent.overflows == 6
    assert sent.bits <= 6 * 8 * (HEADER_BYTES + 12)
    assert sent.elements > 0
    all_P = sum(dyadic_gradient(w, step) for w in range(2) for step in range(6))
    assert torch.equal(sum(residuals(run)) - run.weights()[0], all_P)


def test_a_step_that_nobody_takes_changes_nobodys_turn(monkeypatch):
    monkeypatch.setattr(codec, "smallest_capacity", lambda kind, size: 12)
    gtc = {**GTC, "codec": "packed32", "threshold": 0.25}
    run = Run(method_of("gtc", 2, gtc=gtc), dyadic_gradient, bad={(1, 2)})
    turns = []
    for _ in range(4):
        crowded(run, 12)
        run.steps(1)
        turns.append(run.method.worker_state(0)["turn"])
    assert run.skipped == [2]
    assert 0 < turns[0] < turns[1] == turns[2] < turns[3]


def test_nobody_waits_for_ever():
    """All elements exceed tau at every step, and there is room for three."""
    gtc = {**GTC, "codec": "packed32", "threshold": 1.0}
    run = Run(method_of("gtc", 2, gtc=gtc), lambda *_: torch.full((SIZE,), 2.0), rate=1.0)
    run.replicas[0].weights_P = torch.zeros(SIZE)
    rounds = -(-SIZE // 3)
    for _ in range(rounds):
        crowded(run, 12)
        run.steps(1)
    assert set(run.weights()[0].tolist()) <= {-2.0, -4.0}  # of two workers; once or twice


@pytest.mark.parametrize("codec_name", ["packed32", "tile16", "rice"])
@pytest.mark.parametrize("size", [1, 12, 13])
def test_the_smallest_model_has_room_for_an_element(codec_name, size):
    method = method_of("gtc", 2, size=size, gtc={**GTC, "codec": codec_name, "threshold": 0.5})
    for _ in range(3):
        method.reduce(0, (Gradient(torch.ones(size), 1) for _ in range(2)))
    assert method.take_sent(0).elements >= 3


def test_room_grows_with_what_was_wanted_and_shrinks_slowly(monkeypatch):
    gtc = {**GTC, "codec": "packed32"}
    size = 100_000
    method = method_of("gtc", 2, size=size, gtc=gtc)
    (reducer,) = method.reducers

    def step(hits):
        grads = [torch.zeros(size) for _ in range(2)]
        grads[1][:hits] = 2.0
        method.reduce(0, (Gradient(g, 1) for g in grads))
        return reducer.capacity

    assert reducer.capacity == size // 4  # at first the maximum
    capacities = [step(10) for _ in range(8)]
    assert capacities == sorted(capacities, reverse=True)
    assert capacities[-1] == 256
    assert step(1000) >= 1.25 * 4 * 1000
    assert method.take_sent(1).overflows == 1
    step(1000)
    assert method.take_sent(1).overflows == 0


@pytest.mark.parametrize(
    "hits, after", [(2000, 16384), (1000, 8192), (600, 8192), (400, 4096), (10, 4096)]
)
def test_room_is_a_power_of_two_that_halves_where_a_quarter_of_it_is_enough(hits, after):
    """Sent elements take four bytes each, and a quarter more is reserved."""
    method = method_of("gtc", 2, size=LARGE, gtc={**GTC, "codec": "packed32"})
    (reducer,) = method.reducers
    reducer.capacity = 8192
    grads = torch.zeros(2, LARGE)
    grads[1, :hits] = 2.0  # the room follows the worker that needs most
    method.reduce(0, (Gradient(g, 1) for g in grads))
    assert reducer.capacity == after


def test_no_message_is_longer_than_a_quarter_byte_a_parameter():
    gtc = {**GTC, "codec": "packed32", "threshold": 2.0**-20, "capacity": "exact"}
    run = Run(method_of("gtc", 2, gtc=gtc)).steps(5)
    sent = run.method.take_sent(0)
    assert sent.elements == 5 * SIZE
    assert sent.bits == 5 * 8 * (HEADER_BYTES + -(-SIZE // 4))
    run = Run(method_of("gtc", 2, gtc={**gtc, "capacity": "fixed"})).steps(5)
    sent = run.method.take_sent(0)
    assert sent.elements == 5 * (SIZE // 16)  # words of four bytes, and no maps
    assert sent.bits == 5 * 8 * (HEADER_BYTES + 4 * (SIZE // 16))


def test_with_a_tiny_threshold_signs_are_sent():
    gtc = {**GTC, "threshold": 2.0**-20}
    run = Run(method_of("gtc", 3, gtc=gtc), rate=1.0)
    run.replicas[0].weights_P = torch.zeros(SIZE)
    run.steps(1)
    signs_P = sum(random_gradient(w, 0).sign() for w in range(3))
    assert torch.equal(run.weights()[0], -(2.0**-20) * signs_P)


@pytest.mark.parametrize("idle", [0, 6])
def test_adaptive_thresholds_hold_the_density_in_its_band(idle):
    """That of the workers that have minibatches: the others, behind them, send nothing."""
    adaptive = {"density": 0.02, "band": 1.5, "factor": 1.1}
    for start in (0.01, 1.0, 500.0):
        gtc = {**GTC, "threshold": start, "adaptive": adaptive}
        method = method_of("gtc", 2 + idle, size=20 * SIZE, gtc=gtc)
        rng, nothing_P = torch.Generator().manual_seed(0), torch.zeros(20 * SIZE)
        density = []
        for _ in range(300):
            grads = torch.randn(2, 20 * SIZE, generator=rng)
            none = [Gradient(nothing_P, 0) for _ in range(idle)]
            method.reduce(0, [*(Gradient(g, 1) for g in grads), *none])
            density.append(method.take_sent(0).elements / (20 * SIZE))
        late = density[200:]
        assert 0.02 / 1.6 < sum(late) / len(late) < 0.02 * 1.6


def test_tau_moves_by_its_factor_outside_its_band_and_is_a_float32():
    settings = schema.AdaptiveSettings(density=0.01, band=2.0, factor=1.25)
    assert adapted(4.0, 0.0201, settings) == 5.0
    assert adapted(4.0, 0.0199, settings) == 4.0
    assert adapted(4.0, 0.0051, settings) == 4.0
    assert adapted(5.0, 0.0049, settings) == 4.0
    odd = adapted(0.1, 1.0, settings)
    assert odd == float(torch.tensor(odd))


@pytest.mark.parametrize("density, end", [(0.0, SMALLEST), (1.0, LARGEST)])
def test_tau_stays_one_that_kernels_take_however_long_nothing_or_all_is_sent(density, end):
    settings, tau = schema.AdaptiveSettings(density=0.01, band=2.0, factor=1.25), 4.0
    for _ in range(450):
        tau = adapted(tau, density, settings)
    assert tau == end
    compress(torch.zeros(1), torch.zeros(1), tau, torch.zeros(1))


def test_tau_follows_what_was_wanted_not_what_had_room():
    """3,100 of 100,000 elements exceed tau, more than 2 % times 1.5; 64 of them are sent."""
    adaptive = {"density": 0.02, "band": 1.5, "factor": 1.25}
    gtc = {**GTC, "codec": "packed32", "adaptive": adaptive}
    method = method_of("gtc", 2, size=LARGE, gtc=gtc)
    (reducer,) = method.reducers
    reducer.capacity = 256
    grads = torch.zeros(2, LARGE)
    grads[:, :3100] = 2.0
    method.reduce(0, (Gradient(g, 1) for g in grads))
    assert method.take_sent(0).elements == 64
    assert reducer.tau == 1.25


def test_a_capacity_that_another_codec_chose_has_room_for_the_smallest_message():
    gtc = {**GTC, "codec": "tile16", "capacity": "fixed"}
    (reducer,) = method_of("gtc", 2, size=LARGE, gtc=gtc).reducers
    reducer.load_group_state({"tau": 1.0, "capacity": 16, "step": 3})
    assert reducer.capacity == codec.smallest_capacity(reducer.kind, LARGE) > 16


def test_a_message_of_another_step_or_threshold_is_refused():
    run = Run(method_of("gtc", 2)).steps(1)
    (reducer,) = run.method.reducers
    original = codec.write

    def late(words_K, header, kind):
        return original(words_K, replace(header, step=0) if header.worker == 1 else header, kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "write", late)
        patch.setattr(codec, "read_words", None)  # only headers are read
        with pytest.raises(MessageError, match=r"\(0, 1, 2, 203, 1.0\) but \(1, 1, 2, 203, 1.0\)"):
            run.steps(1)
    assert reducer.kind is Kind.rice


def test_measures_are_the_threshold_and_the_squares_of_what_is_owed():
    run = Run(method_of("gtc", 2), dyadic_gradient).steps(3)
    tau, squares = run.method.measures(1)
    assert tau == 1.0
    assert squares == residuals(run)[1].double().square().sum().item()


def test_a_step_whose_debt_overflows_is_nobodys():
    """Each gradient is finite, and its sum with the residual is not."""
    run = Run(method_of("gtc", 2), dyadic_gradient, rate=1.0)
    state = run.method.worker_state(1)
    state["owed"]["residual_P"][3] = torch.finfo(torch.float32).max
    before = [r.clone() for r in residuals(run)]
    (reducer,) = run.method.reducers
    huge_P = torch.full((SIZE,), torch.finfo(torch.float32).max)
    gradients = [Gradient(torch.ones(SIZE), 5), Gradient(huge_P, 5)]
    assert reducer.reduce(iter(gradients), run.method.sent) is None
    for found, wanted in zip(residuals(run), before, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("codec_name", ["packed32", "tile16"])
@pytest.mark.parametrize("threshold", [2.0**-20, 0.5, 4.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_messages_that_are_counted_only_do_what_messages_do(codec_name, threshold, momentum):
    """To the bit: weights, residuals, bits sent and received, capacity and adaptive threshold."""
    adaptive = {"density": 0.01, "band": 1.5, "factor": 1.05}
    gtc = {**GTC, "codec": codec_name, "threshold": threshold, "capacity": "exact"}
    found = []
    for is_counted in (True, False):
        method = method_of("gtc", 3, gtc={**gtc, "adaptive": adaptive})
        (reducer,) = method.reducers
        assert reducer._spare.counts_P is not None
        if not is_counted:
            reducer._spare.counts_P = None
        run = Run(method, random_gradient, momentum, bad={(1, 2)}).steps(6)
        assert run.skipped == [2]
        numbers = [method.take_sent(w) for w in range(3)], reducer.tau, reducer.capacity
        found.append((run.weights()[0], *residuals(run), numbers))
    (*ours, numbers), (*theirs, wanted) = found
    assert numbers == wanted
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("name", ["gtc", "gtc_exact"])
def test_groups_of_one_process_share_what_a_step_writes_to(name):
    """Also where a group skips a step; results are those of groups with memory of their own."""
    found = []
    for is_shared in (True, False):
        method = method_of("bmuf_gtc", 6, gtc=SETTINGS[name]["gtc"])
        assert len({id(reducer._spare) for reducer in method.reducers}) == 1
        if not is_shared:
            for reducer in method.reducers:
                reducer._spare = copy.deepcopy(reducer._spare)
        run = Run(method, momentum=0.5, bad={(1, 2), (4, 3)}).steps(7)
        assert run.skipped == [2, 3]
        found.append(run.log)
    assert found[0] == found[1]


def test_a_group_of_which_fewer_workers_are_here_has_memory_of_its_own():
    whole = Loopback(range(2), CPU)
    part = Loopback(range(2, 4), CPU)
    part.local = range(2, 3)
    (reducer,) = method_of("gtc", whole).reducers
    other = Gtc(part, SIZE, reducer.settings, is_direct=True, others=[reducer])
    assert other._spare is not reducer._spare
