"""**Checksums** of payloads, on their device: bytes -> one 32-bit number each.

in    payloads     uint8 [B] each; lengths may differ
out   sums_W       int64 [W], below 2**32, on the payloads' device
A payload is cut into 32-bit words, the last one padded with zeros. Word i counts as m(w_i * (2 i S
+ 1) mod 2**32), where S is 0x9E3779B9 and m the finalizer of MurmurHash3 (Appleby, public domain);
the sum modulo 2**32 of all is the checksum. As both are bijections, a change inside one word, so of
any single bit, is always detected; any other with a probability of 1 - 2**-32. Unlike a CRC it
needs no order, and no copy to the host. Zeros at the end and the payload's length do not count.
"""

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from asr_train.kernels.backend import Backend, choose

STEP = 0x9E3779B9
FACTORS = (0x85EBCA6B, 0xC2B2AE35)
_MASK = 2**32 - 1


def checksums(payloads: Sequence[Tensor]) -> Tensor:
    """Return the checksum of each payload, int64 [W]; never waits for a device."""
    backend = choose(payloads[0])
    if backend is Backend.cpu:
        from asr_train.kernels import compiled

        return torch.tensor([int(compiled.checksum(p.numpy())) for p in payloads])
    if backend is Backend.triton:
        from asr_train.kernels import gpu_dense

        return gpu_dense.checksums(*payloads)
    return torch.stack([checksum_reference(payload_B) for payload_B in payloads])


def checksum_reference(payload_B: Tensor) -> Tensor:
    """Return the checksum of one payload, int64 []."""
    padded_B = torch.nn.functional.pad(payload_B, (0, -len(payload_B) % 4))
    words = padded_B.view(-1, 4).to(torch.int64)
    places = torch.arange(0, 32, 8, device=words.device)
    words = (words << places).sum(1)
    odd = 2 * STEP * torch.arange(len(words), device=words.device) + 1
    mixed = (words * odd) & _MASK
    for factor, shift in zip(FACTORS, (16, 13), strict=True):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK
    return (mixed ^ (mixed >> 16)).sum() & _MASK


def checksum_of(content: bytes) -> int:
    """Return the checksum of a few bytes on the host."""
    total = 0
    for i, (word,) in enumerate(struct.iter_unpack("<I", content + bytes(-len(content) % 4))):
        mixed = word * (2 * STEP * i + 1) & _MASK
        for factor, shift in zip(FACTORS, (16, 13), strict=True):
            mixed = (mixed ^ mixed >> shift) * factor & _MASK
        total += mixed ^ mixed >> 16
    return total & _MASK
