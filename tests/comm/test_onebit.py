"""1-bit SGD is the paper's: step by step, and nothing is lost or counted twice."""

import copy
import math

import forked
import pytest
import torch
from small_methods import (
    CPU,
    SHAPES,
    SIZE,
    Run,
    dyadic_gradient,
    flat,
    method_of,
    random_gradient,
)

from asr_train import schema
from asr_train.comm import codec
from asr_train.comm.codec import HEADER_BYTES, MessageError
from asr_train.comm.columns import Layout, by_columns, by_rows, payload_bytes, read, write
from asr_train.comm.loopback import Loopback
from asr_train.comm.optimizer import Adagrad
from asr_train.kernels import onebit

LAYOUT = Layout(SHAPES)


def adagrad(place: str, floor: float = 0.0) -> schema.AdagradSettings:
    values = {"place": place, "window_frames": 300.0, "floor": floor}
    return schema.build(schema.AdagradSettings, values, "optim.adagrad")


class Quantiser:
    """The paper's quantiser with error feedback, on whole matrices."""

    def __init__(self):
        self.residual_P = torch.zeros(SIZE)

    def __call__(self, vector_P):
        out_P, kept_P = torch.empty(SIZE), torch.empty(SIZE)
        sent = onebit.quantise_all(LAYOUT.matrices, vector_P, self.residual_P, kept_P)
        for number, one in enumerate(sent):
            onebit.add_up([one], LAYOUT.of(out_P, number))
        self.residual_P = kept_P
        return out_P


def by_hand(steps, workers=3, momentum=0.5, rate=0.125, place=None, gradient=random_gradient):
    """Return the weights after each step of a loop that knows no parts and no messages."""
    quantisers, last = [Quantiser() for _ in range(workers)], Quantiser()
    weights_P, velocity_P = torch.linspace(-1, 1, SIZE), torch.zeros(SIZE)
    squares = [torch.zeros(SIZE) for _ in range(workers)]
    share = 1 - math.exp(-workers / 300)  # frames that `begin_step` is not told of count one each
    found = []

    def normalized(grad_P, number, share):
        squares[number] = (1 - share) * squares[number] + share * grad_P.square()
        out_P = torch.empty(SIZE)
        for m in range(len(SHAPES)):
            sigma = LAYOUT.of(squares[number], m).sqrt()
            LAYOUT.of(out_P, m).copy_(LAYOUT.of(grad_P, m) / (sigma / sigma.mean()))
        return out_P

    for step in range(steps):
        total_P = torch.zeros(SIZE)
        for w in range(workers):
            grad_P = gradient(w, step)
            if place == "partial":
                grad_P = normalized(grad_P, w, 1 - math.exp(-(10 + w) / 300))
            total_P += quantisers[w](grad_P)
        if place == "aggregate":
            total_P = normalized(total_P, 0, share)
        velocity_P = momentum * velocity_P + total_P
        step_P = normalized(velocity_P, 0, share) if place == "smoothed" else velocity_P
        weights_P = weights_P.add(last(step_P), alpha=-rate)
        found.append(weights_P)
    return found


def test_a_step_is_that_of_the_paper_to_the_bit():
    run = Run(method_of("onebit", 3), momentum=0.5)
    for wanted_P in by_hand(8):
        assert torch.equal(run.steps(1).weights()[0], wanted_P)


@pytest.mark.parametrize("place", ["aggregate", "smoothed", "partial"])
def test_adagrad_stands_at_its_place(place):
    run = Run(method_of("onebit", 3), momentum=0.5, adagrad=adagrad(place)).steps(6)
    wanted_P = by_hand(6, place=place)[-1]
    torch.testing.assert_close(run.weights()[0], wanted_P, rtol=1e-4, atol=1e-4)
    assert (run.weights()[0] - by_hand(6)[-1]).abs().max() > 0.1


@pytest.mark.parametrize("place", ["raw", "partial", "aggregate", "smoothed"])
@pytest.mark.parametrize("name", ["sgd", "onebit"])
def test_adagrad_of_one_worker(name, place):
    run = Run(method_of(name, 1), momentum=0.5, adagrad=adagrad(place))
    weights_P, velocity_P, ours = torch.linspace(-1, 1, SIZE), torch.zeros(SIZE), adagrad(place)
    state = Adagrad(ours, list(enumerate(map(math.prod, SHAPES))), CPU)

    def normalized(grad_P):
        state.squares_P = state.after(grad_P, 1)
        return state.normalized(grad_P, state.squares_P)

    for step in range(5):
        grad_P = random_gradient(0, step)
        if place == "smoothed":
            velocity_P = 0.5 * velocity_P + grad_P
            weights_P = weights_P - 0.125 * normalized(velocity_P)
        else:
            velocity_P = 0.5 * velocity_P + normalized(grad_P)
            weights_P = weights_P - 0.125 * velocity_P
        run.steps(1)
    torch.testing.assert_close(run.weights()[0], weights_P)
    assert "squares" in str(run.method.group_state(0)) + str(run.method.worker_state(0))


def test_adagrad_is_the_ratio_of_sigma_to_its_matrix_mean_and_has_a_floor():
    state = Adagrad(adagrad("raw"), [(0, 4), (1, 2), (2, 1)], CPU)
    state.squares_P = torch.tensor([1.0, 4.0, 9.0, 0.0, 16.0, 16.0, 0.0])
    grad_P = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0])  # what was always zero stays zero
    found = state.normalized(grad_P, state.squares_P)
    torch.testing.assert_close(found, torch.tensor([1.5, 0.75, 0.5, 0.0, 1.0, 1.0, 0.0]))
    state.settings = adagrad("raw", floor=1.0)
    found = state.normalized(grad_P, state.squares_P)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.75, 0.5, 0.0, 1.0, 1.0, 0.0]))
    before = state.squares_P.clone()
    after = state.after(2 * torch.ones(7), 300)  # as many as the window: 1 / e of the past remains
    torch.testing.assert_close(after, before / math.e + 4 * (1 - 1 / math.e))


def test_raw_gradients_are_those_of_a_single_worker():
    with pytest.raises(ValueError, match="raw, which is for a single worker"):
        Run(method_of("onebit", 2), adagrad=adagrad("raw"))


def test_processes_are_virtual_workers_with_adagrad_and_after_a_cold_start():
    def main(exchange):
        run = Run(method_of("onebit_late", exchange), momentum=0.5, adagrad=adagrad("aggregate"))
        for reading, steps in ((1, 2), (4, 4), (1, 1)):
            run.method.begin_step(reading, 20)
            run.steps(steps)
        run.method.end_epoch()
        return run.log[-1], run.weights()[0].numpy()

    log, weights_P = main(Loopback(range(4), CPU))
    for rank, (ours, found_P) in enumerate(forked.run(main, 4, 3)):
        assert ours.items() <= log.items(), rank
        assert (found_P == weights_P).all()


def test_a_cold_start_is_plain_sgd_of_the_first_worker_to_the_bit():
    run, alone = (Run(method_of(n, w), momentum=0.5) for n, w in (("onebit", 4), ("sgd", 1)))
    run.method.begin_step(1, 20)
    assert torch.equal(run.steps(5).weights()[0], alone.steps(5).weights()[0])
    assert not any(run.method.worker_state(w)["owed"]["residual_P"].any() for w in range(4))
    sent = [run.method.take_sent(w) for w in range(4)]
    assert sum(one.bits for one in sent) == 5 * 2 * 32 * SIZE  # to all, and steps back


def test_double_buffering_is_a_loop_whose_updates_come_one_half_batch_late():
    holder = []

    def gradient(worker, step):
        weights_P = holder[0].weights()[0] if holder else torch.linspace(-1, 1, SIZE)
        return weights_P * (1 + worker) + random_gradient(worker, step)

    run = Run(method_of("onebit_late", 3), gradient, momentum=0.5)
    holder.append(run)
    plain = Run(method_of("onebit", 3), momentum=0.5)
    weights_P, waiting_P = torch.linspace(-1, 1, SIZE), torch.zeros(SIZE)
    for step in range(6):
        plain.step, half = step, weights_P.clone()
        plain.gradient = lambda w, s, half=half: half * (1 + w) + random_gradient(w, s)
        step_P = plain.method.reduce(0, plain.gradients(range(3)))
        weights_P.add_(waiting_P, alpha=-0.125)  # of the half before, while this one was computed
        waiting_P = step_P
        assert torch.equal(run.steps(1).weights()[0], weights_P)
    run.method.end_epoch()
    assert torch.equal(run.weights()[0], weights_P.add_(waiting_P, alpha=-0.125))
    run.method.end_epoch()  # nothing is left
    assert torch.equal(run.weights()[0], weights_P)


def test_double_buffering_that_is_switched_off_delays_nothing_more():
    late, plain = (Run(method_of(name, 3), momentum=0.5) for name in ("onebit_late", "onebit"))
    late.steps(3)
    late.method.reducers[0].delays = False
    late.steps(2)
    torch.testing.assert_close(late.weights()[0], plain.steps(5).weights()[0])


def settings(**changes):
    return {"error_feedback": True, "double_buffering": False, **changes}


def kept(run):
    """Return what is owed, added up: by workers, and by owners as elements of the model."""
    states = [run.method.worker_state(w) for w in run.method.exchange.local]
    owed = [s["owed"]["residual_P"] for s in states if "owed" in s]
    owned = torch.cat([s["parts"]["residual"] for s in states if "residual" in s["parts"]])
    whole = torch.empty(SIZE)
    by_column = by_rows(owned, LAYOUT.blocks(0, 1))
    for block in LAYOUT.blocks(0, 1):
        LAYOUT.of(whole, block.matrix).copy_(block.of(by_column))
    return sum(owed), whole


@pytest.mark.parametrize("after", [1, 2, 3, 8])
def test_what_was_not_sent_is_kept_over_changes_of_workers(after):
    first = Run(method_of("onebit", 4), dyadic_gradient, rate=1.0)
    first.replicas[0].weights_P.zero_()
    first.steps(5)
    all_P = sum(dyadic_gradient(w, step) for w in range(4) for step in range(5))
    owed_P, owned_P = kept(first)
    torch.testing.assert_close(owed_P + owned_P - first.weights()[0], all_P)
    assert owed_P.any()
    assert owned_P.any()
    second = Run(method_of("onebit", after), dyadic_gradient, rate=1.0)
    states = [copy.deepcopy(first.method.worker_state(w)) for w in range(4)]
    second.method.load_group_states(0, [copy.deepcopy(first.method.group_state(0))])
    second.method.load_resized(iter(states), models=1)
    if after > 1:
        for now, before in zip(kept(second), (owed_P, owned_P), strict=True):
            assert torch.equal(now, before)
    second.step = 5
    second.steps(3)
    all_P = all_P + sum(dyadic_gradient(w, s) for w in range(after) for s in range(5, 8))
    if after == 1:
        torch.testing.assert_close(-second.weights()[0], all_P)
    else:
        torch.testing.assert_close(sum(kept(second)) - second.weights()[0], all_P)


def test_the_optimizers_state_comes_back_on_its_device():
    """`meta` stands for a GPU: a checkpoint is read on the CPU."""
    saved = Run(method_of("onebit", 2), momentum=0.5, adagrad=adagrad("aggregate")).steps(3)
    meta = torch.device("meta")
    method = method_of("onebit", Loopback(range(2), meta))
    method.begin(torch.zeros(SIZE, device=meta), 0.5, SHAPES, adagrad("aggregate"))
    method.load_worker_state(0, saved.method.worker_state(0))
    owner = method.owners.owners[0]
    found = owner.velocity, owner.residual, owner.adagrad.squares_P, method.owners.residuals[0]
    assert {tensor.device for tensor in found} == {meta}


def test_the_optimizers_state_moves_with_the_columns_to_their_new_owners():
    first = Run(method_of("onebit", 4), momentum=0.5, adagrad=adagrad("aggregate")).steps(5)
    states = [copy.deepcopy(first.method.worker_state(w)) for w in range(4)]
    second = Run(method_of("onebit", 3), momentum=0.5, adagrad=adagrad("aggregate"))
    second.method.load_resized(iter(states), models=1)
    for name in ("velocity", "squares", "residual"):
        before, after = (
            torch.cat([run.method.worker_state(w)["parts"][name] for w in range(n)])
            for run, n in ((first, 4), (second, 3))
        )
        assert torch.equal(before, after)
        assert before.any()


def test_without_error_feedback_what_quantisation_loses_is_lost():
    changes = {"onebit": settings(error_feedback=False)}
    run = Run(method_of("onebit", 3, **changes), momentum=0.5).steps(4)
    again = Run(method_of("onebit", 3, **changes), momentum=0.5).steps(4)
    assert torch.equal(run.weights()[0], again.weights()[0])
    assert not torch.equal(run.weights()[0], by_hand(4)[-1])
    once = Run(method_of("onebit", 3, **changes)).steps(1)
    assert torch.equal(once.weights()[0], by_hand(1, momentum=0.0)[0])
    assert "owed" not in run.method.worker_state(0)
    assert set(run.method.worker_state(0)["parts"]) == {"velocity"}


# --- messages and counts --------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 40])
def test_workers_own_whole_columns_and_about_as_much_each(workers):
    parts = [LAYOUT.blocks(place, workers) for place in range(workers)]
    own = [(b.matrix, b.first + c) for blocks in parts for b in blocks for c in range(b.columns)]
    assert sorted(own) == [(m, c) for m, (_, _, n) in enumerate(LAYOUT.matrices) for c in range(n)]
    assert all(b.first % 8 == 0 for blocks in parts for b in blocks)
    most = 8 * max(rows for _, rows, _ in LAYOUT.matrices)
    for place, blocks in enumerate(parts):
        size = sum(b.size for b in blocks)
        assert abs(size - SIZE / workers) <= most
        assert size == len(LAYOUT.range_of(place, workers))
        part = torch.arange(float(size))
        assert torch.equal(by_rows(by_columns(part, blocks), blocks), part)


def test_an_empty_parameter_is_nobodys():
    around = Layout([(0,), *SHAPES[:2], (0, 5), (5, 0), *SHAPES[2:]])
    assert (around.matrices, around.size) == (LAYOUT.matrices, LAYOUT.size)


def test_a_payload_has_one_bit_per_element_and_two_floats_per_column():
    blocks = LAYOUT.blocks(0, 1)
    quantised = []
    for block in blocks:
        matrix = torch.randn(block.rows, block.columns)
        zeros = torch.zeros_like(matrix)
        quantised.append(onebit.quantise_reference(matrix, zeros, torch.empty_like(matrix)))
    payload_B = write(quantised, CPU)
    # (7, 19): 2 bytes per row, and 3 bits of each; (7, 1); (3, 18): 2 bytes per row, 2 bits; (3, 3)
    assert len(payload_B) == payload_bytes(blocks) == 8 * (19 + 1 + 18 + 3) + 17 + 1 + 7 + 2
    for found, wanted in zip(read(payload_B, blocks), quantised, strict=True):
        assert torch.equal(found.bits_RB, wanted.bits_RB)
        assert torch.equal(found.means_2C, wanted.means_2C)


@pytest.mark.parametrize("place", [None, "aggregate"])
def test_bits_are_counted_exactly(place):
    run = Run(method_of("onebit", 3), adagrad=None if place is None else adagrad(place)).steps(2)
    lengths = [payload_bytes(LAYOUT.blocks(place, 3)) for place in range(3)]
    sums = 0 if place is None else 64 * len(SHAPES)
    for w in range(3):
        sent = run.method.take_sent(w)
        others = sum(HEADER_BYTES + n for p, n in enumerate(lengths) if p != w)
        assert sent.elements == 2 * SIZE
        assert sent.bits == 2 * (8 * (others + HEADER_BYTES + lengths[w]) + sums)
        to_all = HEADER_BYTES + max(lengths)  # gathered with padding
        received = 8 * 2 * (HEADER_BYTES + lengths[w] + to_all) + 2 * sums
        assert sent.received_bits == 2 * received


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("byte", [20, HEADER_BYTES + 3])
def test_a_damaged_message_is_found(way, byte, monkeypatch):
    run, original = Run(method_of("onebit", 2)).steps(1), codec.enclose

    def damaged(payload_B, header):
        message_B = original(payload_B, header)
        if (header.worker, header.parameter) == (1, way):
            message_B[byte] ^= 4
        return message_B

    before = copy.deepcopy(list(flat(run.method.worker_state(0))))
    monkeypatch.setattr(codec, "enclose", damaged)
    with pytest.raises(MessageError, match="changed in transit"):
        run.steps(1)
    del before[:4]  # what it sent
    now = list(flat(run.method.worker_state(0)))[4:]
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))


def test_a_message_of_another_step_or_method_is_refused(monkeypatch):
    run = Run(method_of("onebit", 2)).steps(1)
    run.method.reducers[0].exchange.scatter = lambda parts: [[p[0], p[0]] for p in parts]
    with pytest.raises(MessageError, match=r"\(1, 0, 2, 203, 4, 0, .* but \(1, 1, 2, 203, 4, 0, "):
        run.steps(1)
    header = codec.Header(0, 0, 2, SIZE, 1.0, 1, 0, kind=codec.Kind.columns)
    message_B = codec.enclose(torch.zeros(4, dtype=torch.uint8), header)
    with pytest.raises(MessageError, match=r"columns, but sent elements are due"):
        codec.read_words(codec.read_headers([message_B]), [message_B], codec.Checks())


@pytest.mark.parametrize("name", ["onebit", "onebit_late"])
def test_a_sum_that_overflows_stops_the_step_of_all(name):
    """Each worker's gradient is finite, and what owners make of them is not."""
    run = Run(method_of(name, 4), lambda *_: torch.full((SIZE,), 2e38), momentum=0.5)
    weights_P = run.weights()[0].clone()
    run.steps(2)
    assert run.skipped == [0, 1]
    assert torch.equal(run.weights()[0], weights_P)
    assert not any(tensor.any() for tensor in kept(run))


@pytest.mark.parametrize("place", [None, "aggregate", "partial"])
@pytest.mark.parametrize("name", ["onebit", "onebit_late"])
def test_workers_together_in_a_process_need_no_messages(name, place, monkeypatch):
    """With virtual=batched: the same bits as by messages, and the same traffic."""
    found = []
    for virtual in ("exact", "batched"):
        method = method_of(name, 3, virtual=virtual)
        given = None if place is None else adagrad(place)
        run = Run(method, momentum=0.5, adagrad=given, bad={(1, 2)})
        if virtual == "batched":
            monkeypatch.setattr(codec, "enclose", lambda *_: pytest.fail("a message was made"))
        run.method.begin_step(1, 10)  # a cold start
        run.steps(1)
        run.method.begin_step(3, 10)
        run.steps(7)
        assert run.skipped == [2]
        found.append((run.log, [run.method.take_sent(w) for w in range(3)]))
    by_messages, direct = found
    assert by_messages[0] == direct[0]
    for one, other in zip(by_messages[1], direct[1], strict=True):
        for count in ("bits", "elements", "received_bits"):
            assert getattr(one, count) == getattr(other, count)
