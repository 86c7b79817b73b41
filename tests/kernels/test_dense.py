"""One-bit quantisation: laws, and bit-identical backends."""

import numpy as np
import pytest
import torch
from backends import forced
from kernels.conftest import DEVICE, INTERPRETED, by_backend, same_bits

from asr_train.kernels import onebit
from asr_train.kernels.backend import Backend

SHAPES = [(1, 1), (1, 9), (5, 1), (33, 8), (70, 131), (1030, 3), (40, 65), (600, 1), (4100, 2)]
# Strips of 64 rows and 32 columns, tiles of 8 rows and 256 columns: whole ones, several, and rests
FEW_SHAPES = [(1, 1), (1, 9), (5, 1), (33, 8), (70, 131), (130, 3), (40, 65), (65, 1), (9, 265)]
any_shape = by_backend("shape", SHAPES, FEW_SHAPES)


def places_of(both):
    """Return matrices of a flat vector, as (offset, rows, columns), and its size."""
    shapes = FEW_SHAPES if both.backend is INTERPRETED else SHAPES
    ends = np.cumsum([rows * columns for rows, columns in shapes]).tolist()
    offsets = zip([0, *ends[:-1]], shapes, strict=True)
    return [(at, *shape) for at, shape in offsets], ends[-1]


def quantised(grad_RC, residual_RC):
    kept_RC = torch.empty_like(residual_RC)
    vectors = (matrix_RC.view(-1) for matrix_RC in (grad_RC, residual_RC, kept_RC))
    (found,) = onebit.quantise_all([(0, *grad_RC.shape)], *vectors)
    return *found, kept_RC


@any_shape
def test_bits_means_and_residuals_are_the_references(both, dyadic, shape):
    grad_RC, residual_RC = dyadic(*shape), dyadic(*shape)
    (bits, means, kept), (bits2, means2, kept2) = both(lambda: quantised(grad_RC, residual_RC))
    assert torch.equal(bits, bits2)
    assert same_bits(means, means2)
    assert same_bits(kept, kept2)


def set_threads(both, num_threads, monkeypatch):
    """Let a CPU's kernels have so many threads."""
    if both.backend is Backend.cpu:
        from asr_train.kernels import compiled

        monkeypatch.setattr(compiled, "GRAIN", 1000)
    elif num_threads > 1:
        pytest.skip("threads are the CPU's")
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_matrices_of_a_vector_are_quantised_as_one_by_one(both, dyadic, num_threads, monkeypatch):
    set_threads(both, num_threads, monkeypatch)
    places, size = places_of(both)
    grad_P, residual_P = dyadic(size), dyadic(size)

    def run():
        kept_P = torch.empty_like(grad_P)
        return *onebit.quantise_all(places, grad_P, residual_P, kept_P), kept_P

    for *found, kept_P in both(run):
        for (bits, means), place in zip(found, places, strict=True):
            own = [onebit.matrix_of(v, place) for v in (grad_P, residual_P, kept_P)]
            wanted_bits, wanted_means, wanted_kept = quantised(*own[:2])
            assert torch.equal(bits, wanted_bits)
            assert same_bits(means, wanted_means)
            assert same_bits(own[2], wanted_kept)


def test_elements_outside_of_matrices_stay_as_they_are(both, dyadic):
    places, size = [(3, 20, 9), (200, 70, 1), (271, 2, 130)], 531
    grad_P, residual_P = dyadic(size), dyadic(size)
    is_outside_P = torch.ones(size, dtype=torch.bool, device=DEVICE)
    for place in places:
        onebit.matrix_of(is_outside_P, place)[:] = False

    def run():
        kept_P, total_P, wanted_P = torch.full((3, size), 7.0, device=DEVICE)
        found = onebit.quantise_all(places, grad_P, residual_P, kept_P)
        sent = tuple(torch.cat([t.flatten() for t in some]) for some in zip(*found, strict=True))
        later = tuple(torch.cat([t[:1], t])[1:] for t in sent)  # as a view into more memory
        onebit.add_up_all(places, [sent, later], total_P)
        for place, one in zip(places, found, strict=True):
            onebit.add_up([one] * 2, onebit.matrix_of(wanted_P, place))
        assert same_bits(total_P, wanted_P)
        assert (kept_P[is_outside_P] == 7).all()
        assert (total_P[is_outside_P] == 7).all()
        return torch.stack([kept_P, total_P])

    assert same_bits(*both(run))


def test_means_of_long_columns_lose_little(both):
    """Sums are in float32 over few rows, and beyond in float64: an error of some 2**-20 at most."""
    rng = torch.Generator().manual_seed(0)
    columns = 9 if both.backend is INTERPRETED else 70
    grad_RC = (1e4 + torch.randn(3000, columns, generator=rng)).to(DEVICE)
    grad_RC[::7] *= -1
    (_, found, _), (_, wanted, _) = both(lambda: quantised(grad_RC, torch.zeros_like(grad_RC)))
    torch.testing.assert_close(found, wanted, rtol=2**-20, atol=0)


@any_shape
def test_what_is_sent_and_what_is_kept_is_what_was_owed(both, dyadic, shape):
    grad_RC, residual_RC = dyadic(*shape), dyadic(*shape)
    owed_RC = residual_RC + grad_RC

    def run():
        bits, means, kept_RC = quantised(grad_RC, residual_RC)
        out_RC = torch.empty_like(owed_RC)
        onebit.add_up([onebit.OneBit(bits, means)], out_RC)
        return bits, means, kept_RC, out_RC

    for bits, means, kept_RC, out_RC in both(run):
        torch.testing.assert_close(kept_RC + out_RC, owed_RC, rtol=0, atol=1e-6)
        high = (owed_RC >= 0).cpu().numpy()
        assert np.array_equal(bits.cpu().numpy(), np.packbits(high, axis=1, bitorder="little"))
        # Each side loses nothing on average
        assert kept_RC.sum(0).abs().max() < 1e-5 * shape[0]
        assert (means[1] >= 0).all()
        assert (means[0] <= 0).all()


def test_columns_of_two_values_lose_nothing(both):
    columns = [[-1.0, 2.5, -1.0, 2.5], [3.0, 3.0, 3.0, 3.0], [0.0, 0.0, 0.0, 0.0], [-2, -2, -2, -2]]
    grad_RC = torch.tensor(columns, device=DEVICE).T.contiguous()
    for bits, means, kept_RC in both(lambda: quantised(grad_RC, torch.zeros_like(grad_RC))):
        assert torch.equal(kept_RC, torch.zeros_like(kept_RC))
        assert means.tolist() == [[-1, 0, 0, -2], [2.5, 3, 0, 0]]
        assert bits.flatten().tolist() == [0b0110, 0b0111, 0b0110, 0b0111]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@by_backend("rows", [6, 4100], [6, 130])
def test_means_tell_of_what_is_not_finite(both, value, rows):
    grad_RC = torch.ones(rows, 9, device=DEVICE)
    grad_RC[rows - 1, 4] = value
    for _, means, _ in both(lambda: quantised(grad_RC, torch.zeros_like(grad_RC))):
        is_fine_C = means.isfinite().all(0)
        assert is_fine_C.tolist() == [c != 4 for c in range(9)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_only_the_matrix_with_what_is_not_finite_tells_of_it(both, value):
    places, size = places_of(both)
    grad_P, zeros_P = torch.ones(size, device=DEVICE), torch.zeros(size, device=DEVICE)
    grad_P[places[5][0] - 1] = value
    for found in both(
        lambda: onebit.quantise_all(places, grad_P, zeros_P, torch.empty_like(grad_P))
    ):
        assert [bool(m.isfinite().all()) for _, m in found] == [n != 4 for n in range(len(places))]


@any_shape
def test_sums_of_workers_are_the_references(both, dyadic, shape):
    sent = []
    for _ in range(3):
        bits, means, _ = quantised(dyadic(*shape), dyadic(*shape))
        sent.append(onebit.OneBit(bits, means))

    def run():
        out_RC = torch.full(shape, 9.0, device=DEVICE)
        onebit.add_up(sent, out_RC)
        return out_RC

    assert same_bits(*both(run))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_sums_without_messages_are_those_of_messages(both, dyadic, num_threads, monkeypatch):
    set_threads(both, num_threads, monkeypatch)
    *places, (total_size, *_) = places_of(both)[0]
    workers = [(dyadic(total_size), dyadic(total_size)) for _ in range(3)]

    def by_messages():
        sent, kept = [], [torch.empty_like(grad_P) for grad_P, _ in workers]
        for vectors, kept_P in zip(workers, kept, strict=True):
            sent.append(onebit.quantise_all(places, *vectors, kept_P))
        total_P = torch.full_like(kept[0], 9.0)
        for place, *quantised in zip(places, *sent, strict=True):
            onebit.add_up(quantised, onebit.matrix_of(total_P, place))
        return torch.stack([total_P, *kept])

    def by_sum():
        kept = [torch.empty_like(grad_P) for grad_P, _ in workers]
        total = onebit.Sum(places, total_size, kept[0].device)
        for vectors, kept_P in zip(workers, kept, strict=True):
            total.add(*vectors, kept_P)
        return torch.stack([total.take(), *kept])

    for found, wanted in zip(both(by_sum), both(by_messages), strict=True):
        assert same_bits(found, wanted)


@pytest.mark.parametrize("where", [0, 4])
def test_there_is_no_sum_of_what_is_not_finite(both, where):
    *places, (size, *_) = places_of(both)[0][:6]
    grad_P, zeros_P = torch.ones(size, device=DEVICE), torch.zeros(size, device=DEVICE)
    bad_P = grad_P.clone()
    bad_P[places[where][0]] = float("nan")

    def run():
        total = onebit.Sum(places, size, grad_P.device)
        for each_P in (grad_P, bad_P, grad_P):
            total.add(each_P, zeros_P, torch.empty_like(each_P))
        return total.take()

    assert both(run) == (None, None)


def test_parts_of_several_threads_make_up_the_whole(threads, dyadic):
    (rows, columns), (count, parts) = (130, 3 * 64 + 21), threads
    grad_RC, residual_RC = dyadic(rows, columns), dyadic(rows, columns)

    def run():
        bits, means, kept_RC = quantised(grad_RC, residual_RC)
        out_RC = torch.full_like(kept_RC, 9.0)
        onebit.add_up([onebit.OneBit(bits, means)] * 2, out_RC)
        return means, kept_RC, out_RC

    with forced(Backend.reference):
        wanted = run()
    with forced(Backend.cpu):
        found = run()
    assert parts == [count] * 2
    assert all(same_bits(*pair) for pair in zip(found, wanted, strict=True))


def test_what_does_not_fit_is_refused():
    with pytest.raises(AssertionError, match="at least one"):
        onebit.add_up([], torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"residual_P .* \(2,\); it must be a contiguous"):
        onebit.quantise_all([(0, 3, 2)], torch.zeros(6), torch.zeros(12)[::2], torch.zeros(6))
    with pytest.raises(ValueError, match=r"grad_P has shape \[7\]; it must be \[6\]"):
        onebit.quantise_all([(0, 3, 2)], *(torch.zeros(7) for _ in range(3)))
