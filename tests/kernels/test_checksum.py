import pytest
import torch
from kernels.conftest import DEVICE, INTERPRETED

from asr_train.kernels.checksum import checksum_of, checksums


def payload(length: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), generator=rng, dtype=torch.uint8).to(DEVICE)


def by_the_words(content: bytes) -> int:
    """Compute the checksum from the module's docstring, in plain integers."""
    total = 0
    for i in range(0, len(content), 4):
        x = int.from_bytes(content[i : i + 4], "little") * (i // 2 * 0x9E3779B9 + 1) % 2**32
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        total += x ^ x >> 16
    return total % 2**32


@pytest.mark.parametrize(
    "lengths", [[0], [1], [4, 3, 5], [0, 17, 4096, 4100], [20_000, 1], [3] * 40]
)
def test_checksums_are_those_of_plain_integers(both, lengths):
    payloads = [payload(length, seed) for seed, length in enumerate(lengths)]
    wanted = [by_the_words(bytes(p.cpu().numpy())) for p in payloads]
    for found in both(lambda: checksums(payloads)):
        assert found.tolist() == wanted
    assert [checksum_of(bytes(p.cpu().numpy())) for p in payloads] == wanted


def test_zeros_at_the_end_do_not_count():
    content = payload(40)
    assert len(set(checksums([content, torch.cat([content, content.new_zeros(9)])]).tolist())) == 1


def test_a_change_of_one_word_or_the_order_of_two_is_noticed(both):
    content = payload(64)
    changed = [content]
    for bit in range(0, 8 * 64, 37 if both.backend is INTERPRETED else 1):
        other = content.clone()
        other[bit // 8] ^= 1 << (bit % 8)
        changed.append(other)
    changed.append(content.view(16, 4).flip(0).flatten())
    for found in both(lambda: checksums(changed)):
        assert len(set(found.tolist())) == len(changed)
