"""**Golomb-Rice codes** of the gaps between sent elements: sorted words -> bits, and back.

in    words_K     int32 [K] as in kernels.threshold, in ascending order of index
out   payload_B   uint8: first all gaps' high parts in unary, then all low parts with their signs
The same bits as one code after the other, but ordered so that codes can be read in parallel.
Knows nothing of messages; comm.codec says how long they may be.
"""

import torch
from torch import Tensor

from asr_train.kernels.backend import Backend, choose
from asr_train.kernels.onebit import packed, unpacked
from asr_train.kernels.threshold import RefuseIf, from_words, refuse_if, to_words

MOST_LOW_BITS = 31  # an index has no more
_SAME_CODE = "do all workers run the same code?"
_MORE = "more ends of codes than those"


def best_parameter(words_K: Tensor) -> tuple[int, int]:
    """Return the number of low bits for which codes are shortest, and their bits in all."""
    count = len(words_K)
    if not count:
        return 0, 0
    elements = int(words_K[-1]) & (2**31 - 1)  # before the last sent one
    middle = max(1, (elements + 1 - count) // count).bit_length() - 1
    first = max(0, middle - 1)
    sizes = {
        first + i: high + count * (first + i + 2) for i, high in enumerate(_high(words_K, first))
    }
    if middle == 0:
        del sizes[2]
    best = min(sizes, key=sizes.__getitem__)
    return best, sizes[best]


def _high(words_K: Tensor, first: int) -> list[int]:
    if choose(words_K) is Backend.cpu:
        from asr_train.kernels import compiled

        return [int(high) for high in compiled.rice_high(words_K.numpy(), first)]
    gaps_K = _gaps(words_K)
    return [int((gaps_K >> k).sum()) for k in range(first, first + 3)]


def write(words_K: Tensor, parameter: int, bits: int) -> Tensor:
    """Write elements as uint8 [bits / 8, rounded up]; other arguments from `best_parameter`."""
    backend = choose(words_K)
    if backend is Backend.triton:
        from asr_train.kernels import gpu_rice

        return gpu_rice.write(words_K, parameter, bits)
    if backend is Backend.cpu:
        from asr_train.kernels import compiled

        unary = bits - len(words_K) * (parameter + 1)
        return torch.from_numpy(compiled.rice_write(words_K.numpy(), parameter, unary))
    return write_reference(words_K, parameter)


def write_reference(words_K: Tensor, parameter: int) -> Tensor:
    """Compute `write` by tensors."""
    gaps_K, count = _gaps(words_K), len(words_K)
    ends_K = (gaps_K >> parameter).cumsum(0) + torch.arange(count, device=words_K.device)
    unary = int(ends_K[-1]) + 1 if count else 0
    width = parameter + 1
    bits = torch.zeros(unary + count * width, dtype=torch.bool, device=words_K.device)
    bits[ends_K] = True
    low_K = (gaps_K & ((1 << parameter) - 1)) * 2 + (words_K < 0)
    shift = torch.arange(width, device=words_K.device)
    bits[unary:] = ((low_K[:, None] >> shift) & 1).flatten().bool()
    return packed(bits[None])[0]


def read(
    payload_B: Tensor, count: int, parameter: int, size: int, refuse_if: RefuseIf = refuse_if
) -> Tensor:
    """Return what `write` was given: `count` sent elements among `size`, int32.

    Args:
        refuse_if: called with the checks of the reference, which never waits for a device.
    Raises:
        ValueError: if the payload's length does not match the codes, or they reach beyond the last
            element; before more is allocated than a small multiple of the payload.
    """
    bits = 8 * len(payload_B)
    if parameter > MOST_LOW_BITS:
        raise ValueError(
            f"Rice codes have {parameter} low bits but an index has {MOST_LOW_BITS}; {_SAME_CODE}"
        )
    if count * (parameter + 2) > bits:  # the shortest code, with its sign
        raise _wrong_length(count, bits, f"at least {count * (parameter + 2)}")
    if choose(payload_B) is not Backend.cpu:
        return read_reference(payload_B, count, parameter, size, refuse_if)
    from asr_train.kernels import compiled

    words_K, needed = compiled.rice_read(payload_B.numpy(), count, parameter, size)
    if needed == compiled.BEYOND:
        raise _beyond(count, size)
    if needed < 0:
        raise _wrong_length(count, bits, _MORE)
    if -(-needed // 8) != len(payload_B):
        raise _wrong_length(count, bits, f"{needed}")
    return torch.from_numpy(words_K) if count else torch.empty(0, dtype=torch.int32)


def read_reference(
    payload_B: Tensor, count: int, parameter: int, size: int, refuse_if: RefuseIf = refuse_if
) -> Tensor:
    """Compute `read` by tensors; on a GPU, kernels find and read the codes."""
    if not count:
        refuse_if(len(payload_B) > 0, lambda: str(_wrong_length(0, 8 * len(payload_B), "0")))
        return torch.empty(0, dtype=torch.int32, device=payload_B.device)
    if is_on_gpu := choose(payload_B) is Backend.triton:
        from asr_train.kernels import gpu_rice

        padded_B = torch.nn.functional.pad(payload_B, (0, -len(payload_B) % 4))
        words = padded_B.contiguous().view(torch.int32)
        ends_K = gpu_rice.ends(words, count)
    else:
        bits = unpacked(payload_B[None], 8 * len(payload_B))[0]
        ends_K = torch.nonzero_static(bits, size=count, fill_value=-1).flatten()
    # The unary part ends with the count-th one; if there are fewer, with -1
    unary = ends_K[-1] + 1
    needed = unary + count * (parameter + 1)
    refuse_if(
        (unary == 0) | ((needed + 7) // 8 != len(payload_B)),
        lambda: str(_wrong_length(count, 8 * len(payload_B), f"{int(needed)}" if unary else _MORE)),
    )
    # Without this condition sums might overflow
    high_K = ends_K.diff(prepend=ends_K.new_full((1,), -1)) - 1
    too_high = unary - count > size >> parameter
    refuse_if(too_high, lambda: str(_beyond(count, size)))
    if is_on_gpu:
        low_K = gpu_rice.read_low(words, ends_K, parameter)
    else:
        low_K = _low(bits, ends_K, parameter)
    gaps_K = (high_K << parameter) + (low_K >> 1)
    index_K = (gaps_K + 1).cumsum(0) - 1
    refuse_if(index_K[-1] >= size, lambda: str(_beyond(count, size)))
    return to_words(index_K, (low_K & 1).bool())


def _low(bits: Tensor, ends_K: Tensor, parameter: int) -> Tensor:
    """Return the low parts with their signs, which follow the last of these ends, int64 [K]."""
    count, width, device = len(ends_K), parameter + 1, ends_K.device
    at_KW = ends_K[-1] + 1 + torch.arange(count * width, device=device).view(count, width)
    low_bits = bits[at_KW.clamp_(max=len(bits) - 1)].to(torch.int64)
    return (low_bits << torch.arange(width, device=device)).sum(1)


def _wrong_length(count: int, bits: int, needed: str) -> ValueError:
    return ValueError(
        f"a message of {count} Rice codes has {bits} bits but needs {needed}; {_SAME_CODE}"
    )


def _beyond(count: int, size: int) -> ValueError:
    return ValueError(
        f"{count} Rice codes reach beyond the last of {size} elements; do all workers train the "
        "same model?"
    )


def _gaps(words_K: Tensor) -> Tensor:
    """Return how many elements that are not sent lie before each one that is."""
    index_K, _ = from_words(words_K)
    return index_K.diff(prepend=index_K.new_full((1,), -1)) - 1
