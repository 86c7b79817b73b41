import pytest
import torch
from kernels.conftest import DEVICE, by_backend

from asr_train.facts import MAX_ELEMENTS
from asr_train.kernels import rice
from asr_train.kernels.threshold import to_words


def some(size, count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    index_K = torch.randint(0, size, (count,), generator=rng).unique()
    return to_words(index_K, torch.rand(len(index_K), generator=rng) < 0.5).to(DEVICE)


CASES = [(1, 1), (50, 50), (1000, 3), (10**5, 10**5), (10**6, 5000), (MAX_ELEMENTS, 40)]
FEW_CASES = [(2000, 2000) if case == (10**5, 10**5) else case for case in CASES]
any_case = by_backend("case", CASES, FEW_CASES)  # of element numbers and draws


@any_case
def test_bits_are_the_references_and_are_read_back(both, case):
    size, count = case
    words_K = some(size, count)

    def run():
        parameter, bits = rice.best_parameter(words_K)
        payload_B = rice.write(words_K, parameter, bits)
        assert len(payload_B) == -(-bits // 8)
        return parameter, payload_B, rice.read(payload_B, len(words_K), parameter, size)

    (parameter, payload_B, read_K), (parameter2, payload2_B, read2_K) = both(run)
    assert parameter == parameter2
    assert torch.equal(payload_B, payload2_B)
    assert torch.equal(read_K, words_K)
    assert torch.equal(read2_K, words_K)


@any_case
def test_no_parameter_is_better_than_the_best(both, case):
    size, count = case
    words_K = some(size, count)
    gaps_K = rice._gaps(words_K)
    bits = [int((gaps_K >> k).sum()) + len(words_K) * (k + 2) for k in range(32)]
    for found in both(lambda: rice.best_parameter(words_K)):
        assert found == (bits.index(min(bits)), min(bits))


@pytest.mark.parametrize("parameter", [0, 1, 7, 20, 30, 31])
def test_any_parameter_is_read_back(both, parameter):
    size = 60 if parameter < 20 else MAX_ELEMENTS
    words_K = some(size, 30)
    bits = 8 * len(rice.write_reference(words_K, parameter))

    def run():
        gaps_K = rice._gaps(words_K)
        exact = int((gaps_K >> parameter).sum()) + len(words_K) * (parameter + 2)
        assert -(-exact // 8) * 8 == bits
        payload_B = rice.write(words_K, parameter, exact)
        return payload_B, rice.read(payload_B, len(words_K), parameter, size)

    (payload_B, read_K), (payload2_B, _) = both(run)
    assert torch.equal(payload_B, payload2_B)
    assert torch.equal(read_K, words_K)


def test_no_hits_are_no_bits(both):
    words_K = torch.empty(0, dtype=torch.int32, device=DEVICE)
    for payload_B in both(lambda: rice.write(words_K, *rice.best_parameter(words_K))):
        assert len(payload_B) == 0
    for read_K in both(lambda: rice.read(payload_B, 0, 0, 1)):
        assert len(read_K) == 0


def test_too_few_codes_are_refused(both):
    words_K = some(1000, 100)
    parameter, bits = rice.best_parameter(words_K)
    payload_B = rice.write(words_K, parameter, bits)

    def run():
        messages = []
        for payload, count in ((payload_B[:-1], len(words_K)), (payload_B[:2], len(words_K))):
            with pytest.raises(ValueError, match=r"Rice codes has \d+ bits but needs") as caught:
                rice.read(payload, count, parameter, 1000)
            messages.append(str(caught.value))
        return messages

    found, wanted = both(run)
    assert found == wanted


def test_codes_beyond_the_last_element_are_refused(both):
    words_K = some(1000, 100)
    last = int(words_K[-1]) & (2**31 - 1)
    parameter, bits = rice.best_parameter(words_K)
    payload_B = rice.write(words_K, parameter, bits)
    count = len(words_K)
    for read_K in both(lambda: rice.read(payload_B, count, parameter, last + 1)):
        assert torch.equal(read_K, words_K)

    def run():
        with pytest.raises(ValueError, match=f"beyond the last of {last} elements") as caught:
            rice.read(payload_B, count, parameter, last)
        return str(caught.value)

    found, wanted = both(run)
    assert found == wanted


def test_high_parts_that_no_int32_holds_are_refused(both):
    """31 low bits and a high part of three: 2**32 and more elements in one gap."""
    payload_B = torch.tensor([0b1000, 0, 0, 0, 0], dtype=torch.uint8, device=DEVICE)

    def run():
        with pytest.raises(ValueError, match="beyond the last"):
            rice.read(payload_B, 1, 31, MAX_ELEMENTS)

    both(run)
