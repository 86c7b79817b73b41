"""Sent elements <-> **messages**: a header, then packed words, tile words or Golomb-Rice codes.

in    words_K     int32 [K] as in kernels.threshold: index and sign, in ascending order of index
out   message_B   uint8 [B]: HEADER_BYTES of header, then at most a quarter byte per parameter
A payload that would be longer is sent as a map of two bits per parameter. A message that was cut
or changed, even by one bit, is refused; so is one whose checksum is right but whose elements break
the rules of `words_K`: what is read is safe to decode.
Checksums (kernels.checksum) are computed on the device; the payload's is compared there, too, and
the header's on the host, which reads all workers' headers in one copy.
Knows nothing of gradients or senders. docs/distributed.md has the layout, byte by byte.

    packed32   32 bits per element: 31 of index, one of sign (Strom, 2015, section 2.6)
    tile16     16 bits per element: 15 of offset in a tile of 32,768, one of sign; 16 per tile
    rice       about log2(gap) + 2.5 bits per element: Golomb-Rice codes of gaps between indices
    map        2 bits per parameter: none, plus, minus
    columns    no sent elements but whole columns, 1 bit per parameter: see `comm.onebit`
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from itertools import accumulate

import torch
from torch import Tensor

from asr_train.facts import HEADER_BYTES
from asr_train.kernels import rice, threshold
from asr_train.kernels.checksum import checksum_of, checksums
from asr_train.kernels.threshold import Fixed, check_size, check_words, from_words, to_words

MAGIC = b"GTCm"
VERSION = 2
TILE = 2**15  # elements
_LAYOUT = struct.Struct("<4sBBBBQIIIfIIIII")  # all but the payload's checksum
_FIELDS: tuple[str, ...] = ("kind", "flags", "parameter", "step", "worker", "workers", "size")
_FIELDS += ("tau", "frames", "wanted", "count", "payload_bytes")  # of Header, in this order there
CHECKSUM_BYTES = 4
_FLAGS_WORD, _FLAGS_SHIFT, _WANTED_WORD = 1, 16, 9  # of the header's 32-bit words
assert _LAYOUT.size + CHECKSUM_BYTES == HEADER_BYTES


class MessageError(ValueError):
    """A message is damaged, or not the one expected."""


class Kind(IntEnum):
    """How a payload is coded."""

    map = 0
    packed32 = 1
    tile16 = 2
    rice = 3
    columns = 4  # of comm.onebit


class Flags(IntFlag):
    none = 0
    not_finite = 1  # this worker's gradient; nothing is sent, and synchronous workers skip the step
    end_of_data = 2  # this worker has no frames left in this epoch
    overflow = 4  # some elements did not fit and wait for the next step


_ALL_FLAGS = int(Flags.not_finite | Flags.end_of_data | Flags.overflow)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a message."""

    step: int
    worker: int
    workers: int
    size: int  # parameters
    tau: float
    frames: int  # that the gradient is a sum over
    wanted: int  # elements above the threshold; `count` of them are in the message
    flags: Flags = Flags.none
    kind: Kind = Kind.packed32
    parameter: int = 0  # rice's
    count: int = 0
    payload_bytes: int = 0

    def to_bytes(self) -> bytes:
        """Return the header up to its own checksum; the payload's, made on its device, follows."""
        fields = MAGIC, VERSION, *(getattr(self, name) for name in _FIELDS)
        return _LAYOUT.pack(*fields, checksum_of(_LAYOUT.pack(*fields, 0)))


class Checks:
    """Checks of messages that raise at once, or whose result stays on the device until `ask`.

    Args:
        deferred: nothing waits for the device before `ask`. Until then a wrong message decodes to
            as many elements as it declares, the model's first ones, which is safe.
    """

    def __init__(self, deferred: bool = False) -> None:
        self.deferred = deferred
        self._wrong: Tensor | None = None  # bool []

    def refuse_if(self, is_wrong: Tensor | bool, why: Callable[[], str]) -> None:
        """Refuse messages if a condition holds; `why` returns the error's text.

        Raises:
            MessageError: if it holds and is not deferred.
        """
        if isinstance(is_wrong, Tensor) and self.deferred:
            self._wrong = is_wrong if self._wrong is None else self._wrong | is_wrong
        elif is_wrong:
            raise MessageError(why())

    def harmless(self, words_K: Tensor, first_K: Tensor | None = None) -> Tensor:
        """Return these elements, or safe ones if anything was wrong since `ask`, int32 [K].

        Args:
            first_K: the safe ones; None: the model's first K.
        """
        if self._wrong is None:
            return words_K
        if first_K is None:
            first_K = torch.arange(len(words_K), dtype=torch.int32, device=words_K.device)
        return torch.where(self._wrong, first_K, words_K)

    def ask(self) -> None:
        """Wait for the device.

        Raises:
            MessageError: if a message was wrong since the last call.
        """
        wrong, self._wrong = self._wrong, None
        if wrong is not None and bool(wrong):
            raise MessageError(
                "a message of the last steps was changed in transit, or has indices that do not "
                "ascend below the model's size; do all workers run the same code? Start again: "
                "the last checkpoint is valid"
            )


# --- messages -----------------------------------------------------------------------------------


def write(words_K: Tensor, header: Header, kind: Kind) -> Tensor:
    """Return a message with these elements; `header` gives all but their coding."""
    check_size(header.size)
    kind, parameter, payload_B = encode(words_K, header.size, kind)
    return enclose(payload_B, replace(header, kind=kind, parameter=parameter, count=len(words_K)))


def enclose(payload_B: Tensor, header: Header) -> Tensor:
    """Return a message with this payload; `header` gives all but its length."""
    header = replace(header, payload_bytes=len(payload_B))
    head_B = torch.frombuffer(bytearray(header.to_bytes()), dtype=torch.uint8)
    sum_B = checksums([payload_B]).view(torch.uint8)[:CHECKSUM_BYTES]
    return torch.cat([head_B.to(payload_B.device, non_blocking=True), sum_B, payload_B])


def write_fixed(fixed: Fixed, header: Header) -> Tensor:
    """Return a packed32 message with room for C elements, made on the device without waiting.

    Args:
        fixed: what `threshold.compress_fixed_rows` found.
        header: gives all but what `fixed` knows.
    """
    device, is_sent = fixed.words_C.device, fixed.is_finite
    wanted = torch.where(is_sent, fixed.wanted, 0)
    count = wanted.clamp(max=len(fixed.words_C))
    flags = torch.where(is_sent, 0, int(Flags.not_finite))
    flags = flags | torch.where(wanted > count, int(Flags.overflow), 0)
    own = replace(header, kind=Kind.packed32, parameter=0, wanted=0, count=0, payload_bytes=0)
    head = torch.frombuffer(bytearray(own.to_bytes()[:-CHECKSUM_BYTES]), dtype=torch.int32)
    head = head.to(device, non_blocking=True)
    head[_FLAGS_WORD] |= (flags << _FLAGS_SHIFT).to(torch.int32)
    head[_WANTED_WORD : _WANTED_WORD + 3] = torch.stack([wanted, count, 4 * count])
    words_C = torch.where(is_sent, fixed.words_C, 0)
    payload_B = words_C.view(torch.uint8)
    sums = checksums([head.view(torch.uint8), payload_B]).to(torch.int32)
    return torch.cat([head, sums, words_C]).view(torch.uint8)


def check_due(header: Header, **due: float) -> None:
    """Raise MessageError unless these fields of a header have these values."""
    found = {name: getattr(header, name) for name in due}
    if found != due:
        says, wanted = (tuple(+value for value in each.values()) for each in (found, due))
        raise MessageError(
            f"a message says ({', '.join(due)}) {says} but {wanted} is expected; were all workers "
            "started from the same checkpoint and settings?"
        )


def read_headers(messages: Sequence[Tensor]) -> list[Header]:
    """Return the headers of messages, with a single wait for a device.

    A caller that knows which messages are due compares these before `read_words`.

    Raises:
        MessageError: if one is truncated, of another version, changed in any bit, or invalid in
            spite of a correct checksum.
    """
    for message_B in messages:
        if len(message_B) < HEADER_BYTES:
            raise MessageError(
                f"a message has {len(message_B)} bytes but its header alone has {HEADER_BYTES}; "
                "it was truncated in transit"
            )
    heads = torch.stack([message_B[: _LAYOUT.size] for message_B in messages]).cpu().numpy()
    return [
        _header(head_B.tobytes(), len(message_B))
        for head_B, message_B in zip(heads, messages, strict=True)
    ]


def _header(content: bytes, length: int) -> Header:
    """Return the header that a message of so many bytes begins with."""
    magic, version, *fields, checksum = _LAYOUT.unpack(content)
    header = Header(**dict(zip(_FIELDS, fields, strict=True)))
    if (magic, version) != (MAGIC, VERSION):
        raise MessageError(
            f"a message begins with {magic!r}, version {version}, but this code reads {MAGIC!r}, "
            f"version {VERSION}; do all workers run the same code?"
        )
    where = f"worker {header.worker}'s message of step {header.step}"
    found = checksum_of(content[:-CHECKSUM_BYTES])
    if found != checksum:
        raise MessageError(f"the header of {where} {_changed(found, checksum)}")
    if (declared := HEADER_BYTES + header.payload_bytes) > length:
        raise MessageError(
            f"{where} has {length} bytes but declares {declared}; it was truncated in transit"
        )
    if header.kind not in set(Kind) or header.flags & ~_ALL_FLAGS:
        raise MessageError(
            f"{where} is of kind {header.kind} with flags {header.flags:#x}, but kinds end at "
            f"{max(Kind)} and flags at {_ALL_FLAGS:#x}; do all workers run the same code?"
        )
    # A worker's number may exceed `workers`: in a group, workers keep their numbers in the run
    if not header.count <= header.wanted <= header.size or not 0 < header.tau < math.inf:
        raise MessageError(
            f"{where} has {header.count} of {header.wanted} elements among {header.size} "
            f"parameters, threshold {header.tau}; each number may be at most the next, and the "
            "threshold must be positive and finite: do all workers run the same code?"
        )
    return replace(header, kind=Kind(header.kind), flags=Flags(header.flags))


def _changed(found: int, promised: int) -> str:
    return (
        f"has the checksum {found:08x} but declares {promised:08x}: it was changed in transit; "
        "start again from the last checkpoint"
    )


def read_words(
    headers: Sequence[Header], messages: Sequence[Tensor], checks: Checks
) -> list[Tensor]:
    """Return the elements of messages whose headers were read, int32 [K] each.

    Bytes after a payload are padding. The number of waits for a device does not depend on the
    number of messages; with deferred checks there are none.

    Raises:
        MessageError: if a payload was changed in any bit, or is invalid in spite of a correct
            checksum, unless `checks` defers that.
    """
    payloads = read_payloads(headers, messages, checks)
    if checks.deferred and {header.kind for header in headers} == {Kind.packed32}:
        return _read_packed(headers, payloads, checks)
    return [
        decode(h.kind, h.parameter, payload_B, h.count, h.size, checks)
        for h, payload_B in zip(headers, payloads, strict=True)
    ]


def read_payloads(
    headers: Sequence[Header], messages: Sequence[Tensor], checks: Checks
) -> list[Tensor]:
    """Return the payloads of messages whose headers were read, uint8 [B] each.

    Raises:
        MessageError: if one was changed in transit, unless `checks` defers it.
    """
    payloads = [
        message_B[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
        for header, message_B in zip(headers, messages, strict=True)
    ]
    sums_W = checksums(payloads)
    promised = torch.stack([message_B[_LAYOUT.size : HEADER_BYTES] for message_B in messages])
    promised_W = promised.contiguous().view(torch.int32).flatten().to(torch.int64) & (2**32 - 1)

    def why() -> str:
        first = int((sums_W != promised_W).nonzero()[0])
        header, pair = headers[first], (int(sums_W[first]), int(promised_W[first]))
        return f"worker {header.worker}'s message of step {header.step} {_changed(*pair)}"

    checks.refuse_if((sums_W != promised_W).any(), why)
    return payloads


# --- payloads -----------------------------------------------------------------------------------


def map_bytes(size: int) -> int:
    """Return the most bytes of a payload: two bits per parameter."""
    return -(-size // 4)


def largest_capacity(size: int) -> int:
    """Return the most bytes that a payload needs room for: those of a map, and of a word."""
    return max(4, map_bytes(size))


def smallest_capacity(kind: Kind, size: int) -> int:
    """Return payload bytes that always fit some elements: the tiles' table, and 64 words."""
    table = 2 * -(-size // TILE) if kind is Kind.tile16 else 0
    return min(largest_capacity(size), table + 256)


def payload_bytes(words_K: Tensor, size: int, kind: Kind) -> int:
    """Return the bytes that `encode` would take for these elements, without encoding them."""
    return -(-_plan(words_K, size, kind)[2] // 8)


def payload_bytes_of(count: int, size: int, kind: Kind) -> int:
    """Return the bytes of so many elements in a kind for which their values do not matter."""
    sizes = {
        Kind.map: map_bytes(size),
        Kind.packed32: 4 * count,
        Kind.tile16: 2 * (-(-size // TILE) + count),
    }
    return sizes[kind]


def _plan(words_K: Tensor, size: int, kind: Kind) -> tuple[Kind, int, int]:
    """Return the kind to use, its parameter, and the payload's bits."""
    if kind is Kind.rice:
        parameter, bits = rice.best_parameter(words_K)
    else:
        parameter, bits = 0, 8 * payload_bytes_of(len(words_K), size, kind)
    if -(-bits // 8) > map_bytes(size):
        return Kind.map, 0, 8 * map_bytes(size)
    return kind, parameter, bits


def encode(words_K: Tensor, size: int, kind: Kind) -> tuple[Kind, int, Tensor]:
    """Encode elements; return the kind that was used, its parameter, and the payload.

    The map replaces `kind` where that would be longer.
    """
    kind, parameter, bits = _plan(words_K, size, kind)
    if kind is Kind.map:
        return kind, 0, _write_map(words_K, size)
    if kind is Kind.tile16:
        return kind, 0, _write_tiles(words_K, size)
    if kind is Kind.rice:
        return kind, parameter, rice.write(words_K, parameter, bits)
    return kind, 0, words_K.contiguous().view(torch.uint8)


def decode(
    kind: Kind, parameter: int, payload_B: Tensor, count: int, size: int, checks: Checks
) -> Tensor:
    """Return the elements that `encode` was given, int32 [K].

    The promised count is compared with the payload's length before memory is allocated, which so
    never exceeds a small multiple of what was received.

    Raises:
        MessageError: if the payload is not `count` elements in ascending order below `size`, unless
            `checks` defers that.
    """
    try:
        check_size(size)
        if kind is Kind.rice:
            words_K = rice.read(payload_B, count, parameter, size, checks.refuse_if)
        elif kind is Kind.columns:
            raise ValueError(
                "its payload is columns, but sent elements are due; were all workers started with "
                "the same comm.method?"
            )
        else:
            _check_bytes(kind, payload_B, count, size)
            if kind is Kind.map:
                words_K = _read_map(payload_B, count, size, checks)
            elif kind is Kind.tile16:
                words_K = _read_tiles(payload_B, count, size, checks)
            else:
                words_K = payload_B.clone().view(torch.int32)  # cloned, for alignment
            if kind is not Kind.map:  # whose elements ascend as they are read
                check_words(words_K, size, checks.refuse_if)
    except ValueError as error:
        raise MessageError(f"a message is invalid: {error}") from None
    return checks.harmless(words_K)


def _check_bytes(kind: Kind, payload_B: Tensor, count: int, size: int) -> None:
    wanted = payload_bytes_of(count, size, kind)
    if len(payload_B) != wanted:
        raise ValueError(
            f"{kind.name} of {count} elements among {size} parameters has {wanted} bytes but "
            f"this one has {len(payload_B)}; do all workers train the same model?"
        )


def _read_packed(
    headers: Sequence[Header], payloads: Sequence[Tensor], checks: Checks
) -> list[Tensor]:
    """Compute `decode` of all packed32 payloads by a few operations; for deferred checks.

    Message by message, the host takes half a millisecond for each (results/gpu/c.md).
    """
    counts, size = [header.count for header in headers], headers[0].size
    try:
        for header, payload_B in zip(headers, payloads, strict=True):
            _check_bytes(header.kind, payload_B, header.count, size)
    except ValueError as error:
        raise MessageError(f"a message is invalid: {error}") from None
    words = torch.cat(list(payloads)).view(torch.int32)
    begins = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
    begins_W, counts_W = torch.tensor([begins, counts]).to(words.device, non_blocking=True)
    begins_N = torch.repeat_interleave(begins_W, counts_W, output_size=len(words))
    place_N = torch.arange(len(words), device=words.device) - begins_N  # in its message
    index_N, _ = from_words(words)
    is_wrong_N = index_N >= size
    is_wrong_N[1:] |= (index_N[1:] <= index_N[:-1]) & (place_N[1:] > 0)
    checks.refuse_if(is_wrong_N.any(), str)  # deferred: `ask` says why
    return list(checks.harmless(words, place_N.to(torch.int32)).split(counts))


def fitting(
    words_K: Tensor, size: int, kind: Kind, capacity: int, turn: int
) -> tuple[Tensor, Tensor]:
    """Split elements into those that fit into a payload of `capacity` bytes, and those that wait.

    They take turns as in `threshold.in_turn`. A payload of packed32 has room for capacity / 4
    elements: it is never a map here.

    Raises:
        ValueError: if not even an empty message fits.
    """

    def bytes_of(some_K: Tensor) -> int:
        return 4 * len(some_K) if kind is Kind.packed32 else payload_bytes(some_K, size, kind)

    needed = bytes_of(words_K)
    if needed <= capacity:
        return words_K, words_K[:0]
    count = len(words_K)
    while count > 0:
        # First in proportion, as if all codes were equally long; then fewer, until they fit
        count = min(count - 1, int(count * capacity / needed))
        sent_K, waiting_K = threshold.in_turn(words_K, count, turn)
        needed = bytes_of(sent_K)
        if needed <= capacity:
            return sent_K, waiting_K
    raise ValueError(f"no message of {kind.name} fits into {capacity} bytes; it needs {needed}")


def _write_map(words_K: Tensor, size: int) -> Tensor:
    index_K, is_negative_K = from_words(words_K)
    codes_P = torch.zeros(4 * map_bytes(size), dtype=torch.uint8, device=words_K.device)
    codes_P[index_K] = 1 + is_negative_K.to(torch.uint8)
    shift = torch.arange(0, 8, 2, dtype=torch.uint8, device=words_K.device)
    return (codes_P.view(-1, 4) << shift).sum(1, dtype=torch.uint8)


def _read_map(payload_B: Tensor, count: int, size: int, checks: Checks) -> Tensor:
    shift = torch.arange(0, 8, 2, dtype=torch.uint8, device=payload_B.device)
    codes_P = ((payload_B[:, None] >> shift) & 3).flatten()
    found, unknown = codes_P.count_nonzero(), (codes_P == 3).sum()
    beyond = codes_P[size:].count_nonzero()
    checks.refuse_if(
        (found != count) | (unknown > 0) | (beyond > 0),
        lambda: (
            f"a map declares {count} elements among {size} parameters but has {int(found)}, "
            f"{int(unknown)} of them with a sign that does not exist and {int(beyond)} beyond the "
            "last parameter; do all workers train the same model?"
        ),
    )
    index_K = torch.nonzero_static(codes_P, size=count, fill_value=0).flatten()
    return to_words(index_K, codes_P[index_K] == 2)


def _write_tiles(words_K: Tensor, size: int) -> Tensor:
    index_K, is_negative_K = from_words(words_K)
    counts_M = torch.zeros(-(-size // TILE), dtype=torch.int64, device=words_K.device)
    counts_M.index_add_(0, index_K // TILE, torch.ones_like(index_K))  # unlike bincount, no wait
    offset_K = (index_K % TILE).to(torch.int32) - TILE * is_negative_K.to(torch.int32)
    # A full tile's count of 32,768 wraps to a negative number, and back when read
    return torch.cat([counts_M.to(torch.int16), offset_K.to(torch.int16)]).view(torch.uint8)


def _read_tiles(payload_B: Tensor, count: int, size: int, checks: Checks) -> Tensor:
    both = payload_B.clone().view(torch.int16)
    num_tiles = -(-size // TILE)
    counts_M = both[:num_tiles].to(torch.int32) & 0xFFFF
    offset_K = both[num_tiles:]
    checks.refuse_if(
        counts_M.sum() != count,
        lambda: (
            f"{count} elements lie in {num_tiles} tiles that count {int(counts_M.sum())}; do all "
            "workers train the same model?"
        ),
    )
    place_K = torch.arange(count, device=both.device)
    tile_K = torch.searchsorted(counts_M.cumsum(0), place_K, right=True).clamp_(max=num_tiles - 1)
    return to_words(tile_K * TILE + (offset_K & (TILE - 1)), offset_K < 0)
