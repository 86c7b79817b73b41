import pytest
import torch
from kernels.in_the_paper import decode_reference, encode_reference

from asr_train.facts import MAX_ELEMENTS
from asr_train.kernels.threshold import (
    check_size,
    compress,
    decode,
    from_words,
    take_back,
)


@pytest.fixture
def dyadic():
    """Draw multiples of 2**-8 below 4: float32 adds and subtracts those without rounding."""
    rng = torch.Generator().manual_seed(0)
    return lambda n: torch.randint(-1023, 1024, (n,), generator=rng) / 2**8


def encoded(grad_P, residual_P, threshold):
    kept_P = torch.empty_like(grad_P)
    return compress(grad_P, residual_P, threshold, kept_P).words_K, kept_P


def dense(words_K, size):
    counts_P = torch.zeros(size)
    decode(words_K, counts_P)
    return counts_P


@pytest.mark.parametrize("n", [1, 4097])
@pytest.mark.parametrize("threshold", [2**-8, 0.5, 4 - 2**-8, 100.0])
def test_what_is_not_sent_is_kept(dyadic, n, threshold):
    grad_P, residual_P = dyadic(n), dyadic(n)
    before_P = residual_P.clone()
    words_K, kept_P = encoded(grad_P, residual_P, threshold)
    assert torch.equal(threshold * dense(words_K, n) + kept_P, residual_P + grad_P)
    assert torch.equal(residual_P, before_P)


@pytest.mark.parametrize("n", [1, 2, 33, 4097])
def test_hits_and_residuals_are_those_of_the_paper_to_the_bit(n):
    rng = torch.Generator().manual_seed(n)
    grad_P, residual_P = torch.randn(2, n, generator=rng)
    words_K, kept_P = encoded(grad_P, residual_P, 0.7)
    code_P, wanted_P = encode_reference(grad_P, residual_P, 0.7)
    assert torch.equal(dense(words_K, n), code_P.float())
    assert torch.equal(kept_P, wanted_P)
    index_K, _ = from_words(words_K)
    assert torch.equal(index_K, code_P.nonzero().flatten())  # so they are sorted


def test_the_bounds_are_strict_and_one_quantum_goes_a_step():
    grad_P = torch.tensor([4.0, -4.0, 4.000001, -4.000001, 0.0, -0.0, 100.0, 1e-45])
    words_K, kept_P = encoded(grad_P, torch.zeros(8), 4.0)
    assert dense(words_K, 8).tolist() == [0, 0, 1, -1, 0, 0, 1, 0]
    assert kept_P[6] == 96.0
    assert kept_P[0] == 4.0


def test_a_hit_that_is_taken_back_is_owed_again_to_the_bit():
    rng = torch.Generator().manual_seed(0)
    grad_P, residual_P = 100 * torch.randn(2, 1000, generator=rng)
    words_K, kept_P = encoded(grad_P, residual_P, 0.1)
    assert len(words_K) > 900
    take_back(grad_P, residual_P, kept_P, words_K[::2])
    index_K, _ = from_words(words_K)
    owed_P = residual_P + grad_P
    assert torch.equal(kept_P[index_K[::2]], owed_P[index_K[::2]])
    assert not torch.equal(kept_P[index_K[1::2]], owed_P[index_K[1::2]])


def test_counts_are_those_of_one_by_one_in_any_order(dyadic):
    messages = [encoded(dyadic(50), dyadic(50), 2.0)[0] for _ in range(5)]
    wanted_P = decode_reference(messages, 50)
    for order in (messages, messages[::-1]):
        counts_P = torch.zeros(50)
        for words_K in order:
            decode(words_K, counts_P)
        assert torch.equal(counts_P, wanted_P.float())


def test_what_cannot_be_encoded_is_refused():
    one_P, two_P = torch.zeros(1), torch.zeros(2)
    with pytest.raises(ValueError, match="they must agree"):
        compress(one_P, two_P, 1.0, one_P)
    for threshold in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"threshold is .* must be positive"):
            compress(one_P, one_P.clone(), threshold, one_P.clone())
    check_size(MAX_ELEMENTS)
    with pytest.raises(ValueError, match=r"2,147,483,648 parameters but .* reach 2,147,483,647"):
        check_size(MAX_ELEMENTS + 1)
