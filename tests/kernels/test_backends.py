"""Every backend is bit-identical to the reference; and how the backend is chosen."""

import contextlib
import subprocess
import sys

import pytest
import torch
from backends import forced
from kernels.conftest import COMPILED, DEVICE, INTERPRETED, same_bits
from kernels.in_the_paper import decode_reference, encode_reference

from asr_train.comm.reducers import Factor
from asr_train.facts import MAX_ELEMENTS
from asr_train.kernels import compiled, decode, threshold
from asr_train.kernels.backend import Backend, choose, launches
from asr_train.kernels.threshold import (
    compress,
    compress_fixed_rows,
    compress_rows,
    from_words,
    tally_factors,
    tally_rows,
)

BLOCK = 4096  # of the GPU's kernel; 512 and 64 are the CPU's


def at_edges(cpu, triton):
    """Parametrise by backend and size: each at the edges of its own blocks."""
    sizes = {Backend.cpu: cpu, Backend.triton: triton}
    pairs = [(backend, size) for backend in COMPILED for size in sizes[backend]]
    return pytest.mark.parametrize("both, size", pairs, indirect=["both"])


all_edges = at_edges([1, 63, 64, 65, 511, 513], [1, BLOCK - 1, BLOCK, 3 * BLOCK + 1])


def compress_fixed(grad_P, residual_P, tau, kept_P, capacity, turn):
    vectors = grad_P[None], residual_P[None], tau, kept_P[None]
    return compress_fixed_rows(*vectors, capacity, turn[None])[0]


def compressed(grad_P, residual_P, tau):
    kept_P = torch.full_like(residual_P, 7.0)
    words_K, is_finite = compress(grad_P, residual_P, tau, kept_P)
    return words_K, is_finite, kept_P


@all_edges
@pytest.mark.parametrize("tau", [2**-8, 3.0, 100.0])
def test_messages_and_residuals_are_the_references(both, dyadic, size, tau):
    grad_P, residual_P = dyadic(size), dyadic(size)
    before_P = residual_P.clone()
    (words_K, fine, kept_P), (words2_K, fine2, kept2_P) = both(
        lambda: compressed(grad_P, residual_P, tau)
    )
    assert torch.equal(words_K, words2_K)
    assert words_K.dtype is torch.int32
    assert same_bits(kept_P, kept2_P)
    assert fine
    assert fine2
    assert torch.equal(residual_P, before_P)


@pytest.mark.parametrize(
    "size, stride", [(5, 5), (BLOCK + 7, BLOCK + 16), (4 * BLOCK + 9, 5 * BLOCK)]
)
def test_rows_of_several_workers_are_those_of_one_at_a_time(both, size, stride):
    """The second row has nothing to send, the third a NaN; rows are apart."""
    rng = torch.Generator().manual_seed(size)
    matrices = torch.randn(2, 4, stride, generator=rng).to(DEVICE)[:, :, :size]
    grads_WP, residuals_WP = matrices
    grads_WP[1], residuals_WP[1] = 0.0, 0.0
    grads_WP[2, size // 2] = torch.nan
    turns_W = torch.tensor([0, 1, 2, size - 1], device=DEVICE)

    def rows(compressed, *more):
        kept_WP = torch.full((4, stride), 7.0, device=DEVICE)[:, :size]
        return compressed(grads_WP, residuals_WP, 1.5, kept_WP, *more), kept_WP

    def singly(compressed, *more):
        def run(*given):
            vectors, turns = zip(*given[:2], given[3], strict=True), (more or [[]])[-1]
            return [
                compressed(
                    grad_P, residual_P, 1.5, kept_P, *more[:-1], *([turns[w]] if more else [])
                )
                for w, (grad_P, residual_P, kept_P) in enumerate(vectors)
            ]

        return run

    for form, one, more in (
        (compress_rows, compress, ()),
        (compress_fixed_rows, compress_fixed, (size // 20 + 1, turns_W)),
    ):
        wanted, wanted_WP = rows(singly(one, *more))
        for found, kept_WP in both(lambda: rows(form, *more)):  # noqa: B023
            assert same_bits(kept_WP.contiguous(), wanted_WP.contiguous())
            for ours, theirs in zip(found, wanted, strict=True):
                for a, b in zip(ours, theirs, strict=True):
                    assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_odd_values_are_the_references(both):
    """At tau, both zeros, denormals, all elements, none, infinite, NaN, and sums that overflow."""
    odd = [4.0, -4.0, 4.000001, -4.000001, 0.0, -0.0, 1e-45, -1e-45, 1e-39, 8.0, 3.4e38, -3.4e38]
    odd += [2.0**-126, -(2.0**-126), 1.2e-38, -1.2e-38]
    for extra in ([], [float("inf")], [-float("inf")], [float("nan")]):
        grad_P = torch.zeros(len(odd + extra) * 10, 4, device=DEVICE)  # sparse, for the interpreter
        grad_P[:, 0] = torch.tensor((odd + extra) * 10)
        grad_P = grad_P.view(-1)
        residuals = [torch.zeros_like(grad_P), grad_P, -grad_P]
        pairs = [(grad_P, residual_P) for residual_P in residuals]
        if extra:  # at once: whether all is finite is the same
            pairs = [(grad_P.repeat(3), torch.cat(residuals))]
        for pair in pairs:
            for tau in (4.0, 2.0**-126, 1e-30, 3.4e38):
                (words_K, fine, kept_P), (words2_K, fine2, kept2_P) = both(
                    lambda: compressed(*pair, tau)  # noqa: B023
                )
                assert torch.equal(words_K, words2_K)
                assert same_bits(kept_P, kept2_P)
                assert fine == fine2 == bool(sum(pair).isfinite().all())


@at_edges([1, 65, 513], [1, 3 * BLOCK + 1])
@pytest.mark.parametrize("tau", [2**-8, 3.0, 100.0])
@pytest.mark.parametrize("odd", [None, float("inf"), float("nan")])
def test_a_tally_is_what_the_messages_add_up_to(both, dyadic, size, tau, odd):
    """Also of rows that lie apart; only rows that are not finite say so."""
    grads_WP = torch.empty(3, size + 16, device=DEVICE)[:, :size]
    for grad_P in grads_WP:
        grad_P.copy_(dyadic(size))
    if odd is not None:
        grads_WP[1, size // 2] = odd
    residuals_WP = torch.stack([dyadic(size) for _ in range(3)])
    wanted_WP = torch.empty_like(residuals_WP)
    wanted = compress_rows(grads_WP, residuals_WP, tau, wanted_WP)

    def tallied():
        kept_WP, counts_P = torch.empty_like(residuals_WP), torch.ones(size, device=DEVICE)
        return tally_rows(grads_WP, residuals_WP, tau, kept_WP, counts_P), kept_WP, counts_P

    for found, kept_WP, counts_P in both(tallied):
        assert found[:, 0].tolist() == [len(words_K) for words_K, _ in wanted]
        assert (found[:, 1] == 0).tolist() == [True, odd is None, True]
        assert same_bits(kept_WP, wanted_WP)
        total_P = decode_reference([words_K.cpu() for words_K, _ in wanted], size)
        assert torch.equal(counts_P.cpu(), 1 + total_P.float())


def test_a_tally_of_workers_without_a_minibatch(both, dyadic):
    """They share one gradient of zeros."""
    size = BLOCK + 3
    grads_WP = torch.zeros(size, device=DEVICE).expand(3, -1)
    residuals_WP = torch.stack([dyadic(size) for _ in range(3)])

    def tallied():
        kept_WP, counts_P = torch.empty_like(residuals_WP), torch.zeros(size, device=DEVICE)
        return tally_rows(grads_WP, residuals_WP, 2.0, kept_WP, counts_P), kept_WP, counts_P

    (found, kept_WP, counts_P), (wanted, kept2_WP, counts2_P) = both(tallied)
    assert torch.equal(found, wanted)
    assert 0 < found[0, 0] < size
    assert same_bits(kept_WP, kept2_WP)
    assert torch.equal(counts_P, counts2_P)


def whole_numbers(*shape, seed=0):
    """Return small integers: their products and sums are exact."""
    drawn = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.float()


def factors_of(workers, frames, layers):
    """Return a factor for each pair of outputs and inputs; the first is not contiguous.

    Of those with one output, deltas are ones.
    """
    factors, offset = [], 0
    for outputs, inputs in layers:
        deltas_WNO = whole_numbers(workers, frames, outputs, seed=offset)
        if not factors:
            deltas_WNO = deltas_WNO.transpose(0, 2).contiguous().transpose(0, 2)
        inputs_WNI = whole_numbers(workers, frames, inputs, seed=offset + 1)
        factors.append(Factor(deltas_WNO if outputs > 1 else None, inputs_WNI, offset))
        offset += outputs * inputs
    return factors, offset


@pytest.mark.parametrize("frames", [1, 7, 8, 19])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("odd", [None, float("inf")])
def test_a_tally_of_factors_is_that_of_their_products(frames, threads, odd, monkeypatch):
    """Bit for bit where products are exact; rows of residuals lie apart."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(compiled, "GRAIN", 1)
    factors, size = factors_of(3, frames, [(5, 70), (1, 5), (4, 8), (1, 3)])
    if odd is not None:
        factors[2].deltas_WNO[1, -1, -1] = odd
    residuals_WP = torch.empty(3, size + 16)[:, :size]
    residuals_WP.copy_(whole_numbers(3, size, seed=9) / 8)
    grads_WP = torch.empty(3, size)
    for factor in factors:
        factor.write_to(grads_WP, slice(3))
    kept_WP, wanted_WP = torch.empty_like(residuals_WP), torch.empty_like(residuals_WP)
    counts_P, total_P = torch.ones(size), torch.ones(size)
    wanted = tally_rows(grads_WP, residuals_WP, 2.5, wanted_WP, total_P)
    found = tally_factors(factors, residuals_WP, 2.5, kept_WP, counts_P)
    assert torch.equal(found, wanted)
    assert found[:, 0].min() > 0
    assert (found[:, 1] > 0).tolist() == [False, odd is not None, False]
    assert same_bits(kept_WP, wanted_WP)
    assert torch.equal(counts_P, total_P)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: f[1:], "not sorted by offset, or have gaps"),
        (lambda f: f[:1], "factors have 6 elements, residuals have 10"),
        (lambda f: [f[0]._replace(inputs_WNI=f[0].inputs_WNI.double()), f[1]], "float32"),
        (lambda f: [f[0]._replace(deltas_WNO=f[0].deltas_WNO[:1]), f[1]], "must be .2, 4, any"),
    ],
)
def test_factors_that_do_not_make_up_the_gradients_are_refused(change, message):
    factors, size = factors_of(2, 4, [(3, 2), (2, 2)])
    residuals_WP = torch.zeros(2, size)
    with pytest.raises((AssertionError, ValueError), match=message):
        tally_factors(change(factors), residuals_WP, 1.0, residuals_WP.clone(), torch.zeros(size))


def test_arbitrary_values_are_the_references(both):
    rng = torch.Generator().manual_seed(0)
    grad_P, residual_P = torch.randn(2, 3 * BLOCK + 5, generator=rng).to(DEVICE)
    for tau in (1e-6, 0.7, 3.0):
        found, wanted = both(lambda: compressed(grad_P, residual_P, tau))  # noqa: B023
        assert torch.equal(found[0], wanted[0])
        assert same_bits(found[2], wanted[2])


@pytest.mark.parametrize("tau, least, most", [(2.0**-9, 0.99, 1.0), (7.5, 0.001, 0.01)])
def test_parts_of_several_threads_make_up_the_whole(threads, dyadic, tau, least, most):
    """Every sent element counts once, also at borders, for few and for many."""
    size, (count, parts) = 3 * 2**13 + 777, threads
    grad_P, residual_P, weights_P = dyadic(size), dyadic(size), dyadic(size)
    with forced(Backend.cpu):
        words_K, fine, kept_P = compressed(grad_P, residual_P, tau)
        counts_P, out_P, moved_P = torch.full((size,), 3.0), torch.empty(size), weights_P.clone()
        threshold.decode(words_K, counts_P)
        decode.total([words_K, words_K], 0.5, out_P)
        decode.update([words_K, words_K], 0.5, 0.25, moved_P)
    assert parts == [count] * 4
    assert fine
    assert least < len(words_K) / size < most
    code_P, wanted_P = encode_reference(grad_P, residual_P, tau)
    assert torch.equal(from_words(words_K)[0], code_P.nonzero().flatten())
    assert torch.equal(kept_P, wanted_P)
    assert torch.equal(counts_P, 3.0 + code_P)
    assert torch.equal(out_P, code_P.float())  # of two workers, half each
    assert torch.equal(moved_P, weights_P - code_P / 4)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("value", [0.0, 5.0])
def test_no_element_and_one_are_the_references(both, size, value):
    grad_P, residual_P = torch.full((2, size), value, device=DEVICE)
    turn = torch.tensor(0, device=DEVICE)

    def run():
        kept_P, fixed_P = torch.empty(2, size, device=DEVICE)
        words_K, fine = compress(grad_P, residual_P, 4.0, kept_P)
        fixed = compress_fixed(grad_P, residual_P, 4.0, fixed_P, 1, turn)
        assert torch.equal(fixed.words_C[: int(fixed.wanted)], words_K)
        assert same_bits(kept_P, fixed_P)
        out_P, moved_P = torch.empty_like(grad_P), grad_P.clone()
        decode.total([words_K, words_K], 0.5, out_P)
        decode.update([words_K, words_K], 0.5, 0.25, moved_P)
        return words_K, fine, kept_P, out_P, moved_P

    for words_K, fine, kept_P, out_P, moved_P in both(run):
        assert words_K.tolist() == [0] * (size if value else 0)
        assert words_K.dtype is torch.int32
        assert fine
        assert kept_P.tolist() == [6.0 if value else 0.0] * size
        assert out_P.tolist() == [1.0 if value else 0.0] * size
        assert moved_P.tolist() == [4.75 if value else 0.0] * size


@all_edges
def test_all_elements_are_hits_or_none_is(both, size):
    rng = torch.Generator().manual_seed(size)
    sign_P = (torch.randint(0, 2, (size,), generator=rng) * 2 - 1.0).to(DEVICE)
    zeros_P = torch.zeros_like(sign_P)
    for tau, hits in ((0.5, size), (1.0, 0)):  # at tau, nothing is sent
        for words_K, _, kept_P in both(lambda: compressed(sign_P, zeros_P, tau)):  # noqa: B023
            index_K, is_negative_K = from_words(words_K)
            assert index_K.tolist() == list(range(hits))
            assert torch.equal(is_negative_K, (sign_P < 0)[:hits])
            assert torch.equal(kept_P, sign_P * (0.5 if hits else 1.0))


@pytest.mark.parametrize(
    "size", [1, 100, BLOCK + 1, pytest.param(2 * BLOCK, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("tau", [2**-8, 2.0, 100.0])
def test_hits_beyond_capacity_wait_and_take_turns(both, dyadic, size, tau):
    grad_P, residual_P = dyadic(size), dyadic(size)
    owed_P = residual_P + grad_P
    hits = int((owed_P.abs() > tau).sum())
    turns = sorted({0, size // 3, size - 1})
    third = max(1, hits // 3)
    for n, capacity in enumerate(sorted({1, third, max(1, hits - 1), max(1, hits), hits + 9})):
        some = both.backend is INTERPRETED and capacity != third
        for start in [turns[(n + 2) % len(turns)]] if some else turns:
            turn = torch.tensor(start, device=DEVICE)

            def run():
                kept_P = torch.empty_like(residual_P)
                got = compress_fixed(grad_P, residual_P, tau, kept_P, capacity, turn)  # noqa: B023
                return got, kept_P

            (found, kept_P), (wanted, kept2_P) = both(run)
            assert torch.equal(found.words_C, wanted.words_C)
            assert found.wanted == wanted.wanted == hits
            assert found.turn == wanted.turn
            assert found.is_finite
            assert same_bits(kept_P, kept2_P)
            sent_K = found.words_C[: min(hits, capacity)]
            index_K, is_negative_K = from_words(sent_K)
            assert (index_K.diff() > 0).all()
            owed_P = residual_P + grad_P
            owed_P[index_K] -= tau * (1 - 2 * is_negative_K.float())
            assert torch.equal(kept_P, owed_P)


def test_everybody_is_sent_once_before_anybody_twice(both, dyadic):
    size, capacity = 1200, 50
    grad_P = torch.zeros(size, device=DEVICE)  # sparse, for the interpreter
    grad_P[::4] = dyadic(size // 4).abs() + 2**-8

    def run():
        seen_P = torch.zeros(size, dtype=torch.int64, device=DEVICE)
        turn = torch.tensor(77, device=DEVICE)
        for _ in range(size // 4 // capacity):
            kept_P = torch.empty_like(grad_P)
            zeros_P = torch.zeros_like(grad_P)
            words_C, _, turn, _ = compress_fixed(grad_P, zeros_P, 2**-9, kept_P, capacity, turn)
            seen_P[from_words(words_C)[0]] += 1
        return seen_P

    for seen_P in both(run):
        assert torch.equal(seen_P == 1, grad_P > 0)


# --- decode ---------------------------------------------------------------------------------------


def messages(size, workers, density, seed=0):
    rng = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(workers):
        index_K = (torch.rand(size, generator=rng) < density).nonzero().flatten()
        sign_K = torch.rand(len(index_K), generator=rng) < 0.4
        found.append(threshold.to_words(index_K, sign_K).to(DEVICE))
    return found


@pytest.mark.parametrize("size", [1, 2047, 2048, 8192, 3 * 2048 + 1])
@pytest.mark.parametrize(
    "workers, density",
    [(0, 0), (1, 1), (2, 0.003), (3, 0.01), (5, 0.3), (17, 0.02), (70, 0.01)],
)
def test_decoding_is_the_references(both, dyadic, size, workers, density):
    sent = messages(size, workers, density)
    weights_P = dyadic(size)
    counts_P = decode_reference([m.cpu() for m in sent], size).to(DEVICE)

    def run():
        out_P, moved_P = torch.full_like(weights_P, 9.0), weights_P.clone()
        decode.total(sent, 0.3, out_P)
        decode.update(sent, 0.3, 0.7, moved_P)
        return out_P, moved_P

    (out_P, moved_P), (out2_P, moved2_P) = both(run)
    assert same_bits(out_P, out2_P)
    assert same_bits(moved_P, moved2_P)
    assert torch.equal(out_P, counts_P.float() * 0.3)
    assert same_bits(moved_P[counts_P == 0], weights_P[counts_P == 0])


@pytest.mark.parametrize("size", [1, 8192, 3 * 8192 + 1])
@pytest.mark.parametrize("density", [0.003, 0.3])
def test_counts_that_were_made_before_and_messages_combine(both, dyadic, size, density):
    """Adding a message and taking it back changes nothing; out may be the base."""
    sent, base_P = messages(size, 7, density), dyadic(size)
    counts_NP = torch.full((3, size), 9.0, device=DEVICE)
    for row, some in ((0, sent[:3]), (2, sent[3:5])):
        decode.total(some, 1.0, counts_NP[row])
    wanted_P = base_P.clone()
    decode.update(sent[1:], 0.3, 0.7, wanted_P)

    def run():
        out_P, same_P = torch.full_like(base_P, 9.0), base_P.clone()
        plus, minus = [*sent[5:], sent[0]], [sent[0], sent[0]]
        decode.combine(base_P, counts_NP, [0, 2], plus, minus, 0.3, 0.7, out_P)
        decode.combine(same_P, counts_NP, [], sent[1:], [], 0.3, 0.7, same_P)
        return out_P, same_P

    for found_P in (*both(run)[0], *both(run)[1]):
        assert torch.equal(found_P, wanted_P)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_graph_of_a_compression_gives_the_same_as_its_calls(dyadic):
    size = 5 * BLOCK + 3
    grad_P, residual_P = dyadic(size), dyadic(size)
    turn = torch.tensor(77, device=DEVICE)

    def step():
        kept_P = torch.empty_like(residual_P)
        return compress_fixed(grad_P, residual_P, 3.0, kept_P, 200, turn).words_C, kept_P

    wanted_C, wanted_kept_P = step()  # compiles, too
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        words_C, kept_P = step()
    graph.replay()
    assert torch.equal(words_C, wanted_C)
    assert same_bits(kept_P, wanted_kept_P)


@pytest.mark.skipif(
    DEVICE == "cpu" or torch.cuda.get_device_properties(0).total_memory < 50e9,
    reason="needs a GPU of 50 GB",
)
def test_the_last_of_all_elements_that_can_be_numbered():
    size = MAX_ELEMENTS
    grad_P, residual_P, kept_P = (torch.zeros(size, device=DEVICE) for _ in range(3))
    places = [0, 2**30, 2**31 - 4099, size - 2, size - 1]
    grad_P[places] = torch.tensor([5.0, -5.0, 5.0, -5.0, 5.0], device=DEVICE)
    words_K, fine = compress(grad_P, residual_P, 4.0, kept_P)
    assert fine
    index_K, is_negative_K = from_words(words_K)
    assert index_K.tolist() == places
    assert is_negative_K.tolist() == [False, True, False, True, False]
    assert kept_P[places].abs().tolist() == [1.0] * 5
    assert int(kept_P.count_nonzero()) == 5
    decode.total([words_K, words_K], 0.5, kept_P)
    assert kept_P[places].tolist() == [1.0, -1.0, 1.0, -1.0, 1.0]
    assert int(kept_P.count_nonzero()) == 5


def test_the_order_of_workers_does_not_count(both, dyadic):
    sent = messages(3000, 6, 0.2)
    for order in (sent, sent[::-1]):
        found = []
        for result_P in both(lambda: _total(order, 3000)):  # noqa: B023
            found.append(result_P)
        assert torch.equal(found[0], found[1])
    assert torch.equal(_total(sent, 3000), _total(sent[::-1], 3000))


def _total(sent, size):
    out_P = torch.empty(size, device=DEVICE)
    decode.total(sent, 1.0, out_P)
    return out_P


def test_what_cannot_be_decoded_is_refused():
    with pytest.raises(ValueError, match="sent elements are int32 but a message"):
        decode.total([torch.zeros(3, dtype=torch.int64)], 1.0, torch.zeros(5))
    with pytest.raises(ValueError, match=r"out_P is torch.float64 \[5\] .* a contiguous float32"):
        decode.update([], 1.0, 1.0, torch.zeros(5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"counts_NP has shape \[2, 4\]; it must be \[any, 5\]"):
        decode.combine(torch.zeros(5), torch.zeros(2, 4), [0], [], [], 1.0, 1.0, torch.zeros(5))
    five_P, counts_NP = torch.zeros(5), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match="must be float32"):
        decode.combine(five_P, counts_NP, [0], [], [], 1.0, 1.0, five_P)
    with pytest.raises(ValueError, match="sent elements are int32 but a message"):
        decode.combine(five_P, counts_NP.float(), [0], [], [five_P], 1.0, 1.0, five_P)
    half_P = torch.zeros(3, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="a contiguous float32 vector"):
        compress(half_P, half_P, 1.0, half_P)
    with pytest.raises(ValueError, match="threshold is 1e-45; it must be positive and a normal"):
        compress(torch.zeros(1), torch.zeros(1), 1e-45, torch.zeros(1))


# --- the choice -----------------------------------------------------------------------------------


def test_the_environment_names_a_backend_and_a_wrong_name_is_refused(monkeypatch):
    like = torch.zeros(1)
    monkeypatch.setenv("ASR_KERNELS", "reference")
    assert choose(like) is Backend.reference
    with forced(Backend.cpu):
        assert choose(like) is Backend.cpu
    monkeypatch.setenv("ASR_KERNELS", "fast")
    with pytest.raises(ValueError, match="'fast'; it must be one of reference, cpu, triton"):
        choose(like)
    monkeypatch.delenv("ASR_KERNELS")
    assert choose(like) is Backend.cpu


def test_kernels_are_launched_where_their_tensors_are(monkeypatch):
    """Not on the current GPU, which is another one after DEVICE=cuda:1."""
    from asr_train.kernels import gpu_dense, gpu_sparse

    seen = []

    class On:
        def __init__(self, tensor):
            seen.append(tensor)

        def __enter__(self):
            pass

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(torch.cuda, "device_of", On)
    grad_P, kept_P = torch.ones(2, 7, device=DEVICE)
    gpu_sparse.compress_rows(grad_P[None], torch.zeros_like(grad_P)[None], 4.0, kept_P[None])
    gpu_sparse.decode([torch.zeros(1, dtype=torch.int32, device=DEVICE)], 1.0, None, kept_P)
    gpu_dense.quantise_all([(0, 7, 1)], grad_P, kept_P, torch.empty_like(kept_P))
    assert [t.shape for t in seen] == [(1, 7), (7,), (7,)]
    for module in (gpu_sparse, gpu_dense):
        for name, made in vars(module).items():
            if callable(made) and not name.startswith("_") and made.__module__ == module.__name__:
                assert hasattr(made, "__wrapped__"), name


@pytest.mark.parametrize(
    "error, says",
    [
        (RuntimeError("Failed to find C compiler."), "a C compiler .*ASR_KERNELS=reference"),
        (subprocess.CalledProcessError(1, ["gcc"]), "Python's headers"),
        (RuntimeError("out of memory"), "^out of memory$"),
    ],
)
def test_a_machine_without_a_compiler_says_what_to_do(monkeypatch, error, says):
    monkeypatch.setattr(torch.cuda, "device_of", lambda _: contextlib.nullcontext())

    @launches
    def kernel(tensor):
        raise error

    with pytest.raises(RuntimeError, match=says):
        kernel(torch.zeros(1))


def test_a_backend_that_cannot_be_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with forced(Backend.triton), pytest.raises(ValueError, match="a tensor is on cpu"):
        choose(torch.zeros(1))
    with forced(Backend.cpu), pytest.raises(ValueError, match=r"is cpu but a tensor is on meta"):
        choose(torch.zeros(1, device="meta"))


def test_kernels_load_without_numba_and_triton():
    names = "backend, decode, onebit, rice, threshold"
    code = f"import sys; from asr_train.kernels import {names}; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
