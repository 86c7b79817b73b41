"""Hits <-> **messages**: a header, then packed words, tile words or Golomb-Rice codes of gaps.

in    words_K     int32 [K] as in kernels.threshold: index and sign, by rising index
out   message_B   uint8 [B]: HEADER_BYTES of header, then at most a quarter byte a parameter
What would be longer than that is sent as a map of two bits a parameter. A message that was cut
or changed, by a single bit anywhere, is refused; so is one whose checksum is right but whose hits
could not have been written here: what is read is as safe to decode as what `words_K` says above.
Knows nothing of gradients or of who sends. docs/distributed.md has the layout, byte by byte.

    packed32   32 bits a hit: 31 of index, one of sign (Strom, 2015, section 2.6)
    tile16     16 bits a hit: 15 of offset in a tile of 32,768, one of sign; 16 bits a tile
    rice       about log2(gap) + 2.5 bits a hit: Golomb-Rice codes of the gaps between indices
    map        2 bits a parameter: none, plus, minus
"""

import math
import struct
import zlib
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

import torch
from torch import Tensor

from asr_train.facts import HEADER_BYTES
from asr_train.kernels import rice
from asr_train.kernels.threshold import check_size, check_words, from_words, to_words

MAGIC = b"GTCm"
VERSION = 1
TILE = 2**15  # elements
_LAYOUT = struct.Struct("<4sBBHQIIIfIIIIII")
assert _LAYOUT.size == HEADER_BYTES


class MessageError(ValueError):
    """A message is damaged, or not the one that is due."""


class Kind(IntEnum):
    """How a payload is coded."""

    map = 0
    packed32 = 1
    tile16 = 2
    rice = 3


class Flags(IntFlag):
    none = 0
    not_finite = 1  # this worker's gradient; nothing is sent, and nobody takes this step
    end_of_data = 2  # this worker has no frames left in this epoch
    overflow = 4  # some hits did not fit and wait for the next step


_ALL_FLAGS = int(Flags.not_finite | Flags.end_of_data | Flags.overflow)


@dataclass(frozen=True, slots=True)
class Header:
    """What a message says of itself."""

    step: int
    worker: int
    workers: int
    size: int  # parameters
    tau: float
    frames: int  # that the gradient is a sum over
    wanted: int  # hits; `count` of them are in the message
    flags: Flags = Flags.none
    kind: Kind = Kind.packed32
    parameter: int = 0  # rice's
    count: int = 0
    payload_bytes: int = 0

    def to_bytes(self, payload: bytes | memoryview) -> bytes:
        """With the checksum over all of it and the payload."""
        return _packed(self, zlib.crc32(payload, zlib.crc32(_packed(self, 0))))


def _packed(header: Header, crc32: int) -> bytes:
    h = header
    return _LAYOUT.pack(
        *(MAGIC, VERSION, h.kind, h.flags, h.step, h.worker, h.workers, h.size, h.tau),
        *(h.frames, h.wanted, h.parameter, h.count, h.payload_bytes, crc32),
    )


# --- messages -----------------------------------------------------------------------------------


def write(words_K: Tensor, header: Header, kind: Kind) -> Tensor:
    """A message with these hits; `header` gives all but how they are coded."""
    check_size(header.size)
    kind, parameter, payload_B = encode(words_K, header.size, kind)
    header = replace(
        header,
        kind=kind,
        parameter=parameter,
        count=len(words_K),
        payload_bytes=len(payload_B),
    )
    content = header.to_bytes(payload_B.cpu().numpy().data)
    head_B = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(payload_B.device)
    return torch.cat([head_B, payload_B])


def read(message_B: Tensor) -> tuple[Header, Tensor]:
    """The header and hits of a message; bytes after its payload are padding.

    Whoever knows which message is due compares `read_header` with that first, and then calls
    `read_words`.

    Raises:
        MessageError: if it is cut short, of another version, or a bit was changed; or if it was
            made wrong, whatever its checksum says.
    """
    header = read_header(message_B)
    return header, read_words(header, message_B)


def read_words(header: Header, message_B: Tensor) -> Tensor:
    """The hits of a message whose header was read; raises as `read`."""
    payload_B = message_B[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    return decode(header.kind, header.parameter, payload_B, header.count, header.size)


def read_header(message_B: Tensor) -> Header:
    """The header of a message, whose checksum is right; raises as `read`."""
    content = message_B.cpu().numpy()
    if len(content) < HEADER_BYTES:
        raise MessageError(
            f"a message has {len(content)} bytes but its header alone has {HEADER_BYTES}; "
            "it was cut short on the way"
        )
    magic, version, kind, flags, *numbers, crc32 = _LAYOUT.unpack(bytes(content[:HEADER_BYTES]))
    step, worker, workers, size, tau, frames, wanted, parameter, count, payload_bytes = numbers
    if (magic, version) != (MAGIC, VERSION):
        raise MessageError(
            f"a message begins with {magic!r}, version {version}, but this code reads {MAGIC!r}, "
            f"version {VERSION}; do all workers run the same code?"
        )
    where = f"worker {worker}'s message of step {step}"
    if HEADER_BYTES + payload_bytes > len(content):
        raise MessageError(
            f"{where} has {len(content)} bytes but promises {HEADER_BYTES + payload_bytes}; "
            "it was cut short or changed on the way"
        )
    zeroed = bytearray(content[:HEADER_BYTES])
    zeroed[-4:] = bytes(4)
    payload = content.data[HEADER_BYTES : HEADER_BYTES + payload_bytes]
    found = zlib.crc32(payload, zlib.crc32(zeroed))
    if found != crc32:
        raise MessageError(
            f"{where} has the checksum {found:08x} but promises {crc32:08x}: it was changed on "
            "the way; start again from the last checkpoint"
        )
    if kind not in set(Kind) or flags & ~_ALL_FLAGS:
        raise MessageError(
            f"{where} is of kind {kind} with flags {flags:#x}, but kinds end at {max(Kind)} and "
            f"flags at {_ALL_FLAGS:#x}; do all workers run the same code?"
        )
    # A worker's number may be above the workers that exchange: those of a group keep theirs.
    if not count <= wanted <= size or not 0 < tau < math.inf:
        raise MessageError(
            f"{where} says {count} of {wanted} hits among {size} "
            f"parameters, threshold {tau}; none may be more than what it is of, and the threshold "
            "must be positive and finite: do all workers run the same code?"
        )
    return Header(
        *(step, worker, workers, size, tau, frames, wanted, Flags(flags), Kind(kind)),
        *(parameter, count, payload_bytes),
    )


# --- payloads -----------------------------------------------------------------------------------


def map_bytes(size: int) -> int:
    """The most bytes of a payload: two bits a parameter."""
    return -(-size // 4)


def smallest_capacity(kind: Kind, size: int) -> int:
    """Payload bytes in which some hits fit whatever they are: the tiles' table, and 64 words."""
    table = 2 * -(-size // TILE) if kind is Kind.tile16 else 0
    return min(map_bytes(size), table + 256)


def payload_bytes(words_K: Tensor, size: int, kind: Kind) -> int:
    """How long `encode` makes these hits, without doing it."""
    return -(-_plan(words_K, size, kind)[2] // 8)


def _plan(words_K: Tensor, size: int, kind: Kind) -> tuple[Kind, int, int]:
    """The kind to use, its parameter, and the payload's bits."""
    parameter, bits = 0, 32 * len(words_K)
    if kind is Kind.tile16:
        bits = 16 * (len(words_K) + -(-size // TILE))
    elif kind is Kind.rice:
        parameter, bits = rice.best_parameter(words_K)
    if kind is Kind.map or -(-bits // 8) > map_bytes(size):
        return Kind.map, 0, 8 * map_bytes(size)
    return kind, parameter, bits


def encode(words_K: Tensor, size: int, kind: Kind) -> tuple[Kind, int, Tensor]:
    """Hits -> the kind that was used, its parameter, and the payload.

    The map takes over where `kind` would be longer.
    """
    kind, parameter, bits = _plan(words_K, size, kind)
    if kind is Kind.map:
        return kind, 0, _write_map(words_K, size)
    if kind is Kind.tile16:
        return kind, 0, _write_tiles(words_K, size)
    if kind is Kind.rice:
        return kind, parameter, rice.write(words_K, parameter, bits)
    return kind, 0, words_K.contiguous().view(torch.uint8)


def decode(kind: Kind, parameter: int, payload_B: Tensor, count: int, size: int) -> Tensor:
    """What `encode` had.

    How many hits are promised is compared with how many bytes are there before there is room made
    for any: so no more is allocated than a small multiple of what came.

    Raises:
        MessageError: if the payload is not `count` hits by rising index, all below `size`.
    """
    try:
        check_size(size)
        if kind is Kind.rice:
            return rice.read(payload_B, count, parameter, size)
        wanted = {
            Kind.map: map_bytes(size),
            Kind.packed32: 4 * count,
            Kind.tile16: 2 * (-(-size // TILE) + count),
        }[kind]
        if len(payload_B) != wanted:
            raise ValueError(
                f"{kind.name} of {count} hits among {size} parameters has {wanted} bytes but this "
                f"one has {len(payload_B)}; do all workers train the same model?"
            )
        if kind is Kind.map:
            return _read_map(payload_B, count, size)
        if kind is Kind.tile16:
            words_K = _read_tiles(payload_B, count, size)
        else:
            words_K = payload_B.clone().view(torch.int32)  # cloned, for alignment
        check_words(words_K, size)
        return words_K
    except ValueError as error:
        raise MessageError(f"a message is not sound: {error}") from None


def fitting(
    words_K: Tensor, size: int, kind: Kind, capacity: int, turn: int
) -> tuple[Tensor, Tensor]:
    """Hits -> those that a payload of `capacity` bytes has room for, and those that must wait.

    Whose turn it is is chosen from the element `turn` on and then from the beginning, so that who
    waited comes first when `turn` is the first one that waits. Both stay sorted.
    """
    needed = payload_bytes(words_K, size, kind)
    if needed <= capacity:
        return words_K, words_K[:0]
    index_K, _ = from_words(words_K)
    first = int(torch.searchsorted(index_K, turn))
    rolled_K = words_K.roll(-first)
    count = len(words_K)
    while True:
        # By share first, as if all codes were equally long; then less, until it fits
        count = min(count - 1, int(count * capacity / needed))
        sent_K = _sorted(rolled_K[:count])
        needed = payload_bytes(sent_K, size, kind)
        if needed <= capacity:
            return sent_K, rolled_K[count:]


def _sorted(words_K: Tensor) -> Tensor:
    return words_K[from_words(words_K)[0].argsort()]


def _write_map(words_K: Tensor, size: int) -> Tensor:
    index_K, is_negative_K = from_words(words_K)
    codes_P = torch.zeros(4 * map_bytes(size), dtype=torch.uint8, device=words_K.device)
    codes_P[index_K] = 1 + is_negative_K.to(torch.uint8)
    place = torch.tensor([1, 4, 16, 64], dtype=torch.uint8, device=words_K.device)
    return (codes_P.view(-1, 4) * place).sum(1, dtype=torch.uint8)


def _read_map(payload_B: Tensor, count: int, size: int) -> Tensor:
    shift = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=payload_B.device)
    codes_P = ((payload_B[:, None] >> shift) & 3).flatten()
    found, unknown = int(codes_P.count_nonzero()), int((codes_P == 3).sum())
    beyond = int(codes_P[size:].count_nonzero())
    if found != count or unknown or beyond:
        raise ValueError(
            f"a map promises {count} hits among {size} parameters but has {found}, {unknown} of "
            f"them with a sign that does not exist and {beyond} beyond the last parameter; do all "
            "workers train the same model?"
        )
    index_K = codes_P.nonzero().flatten()
    return to_words(index_K, codes_P[index_K] == 2)


def _write_tiles(words_K: Tensor, size: int) -> Tensor:
    index_K, is_negative_K = from_words(words_K)
    counts_M = torch.bincount(index_K // TILE, minlength=-(-size // TILE))
    offset_K = (index_K % TILE).to(torch.int32) - TILE * is_negative_K.to(torch.int32)
    # A full tile's 32,768 hits wrap to a negative number, and back in reading
    return torch.cat([counts_M.to(torch.int16), offset_K.to(torch.int16)]).view(torch.uint8)


def _read_tiles(payload_B: Tensor, count: int, size: int) -> Tensor:
    both = payload_B.clone().view(torch.int16)
    num_tiles = -(-size // TILE)
    counts_M, offset_K = both[:num_tiles].to(torch.int32) & 0xFFFF, both[num_tiles:]
    if int(counts_M.sum()) != count:
        raise ValueError(
            f"{count} hits lie in {num_tiles} tiles that count {int(counts_M.sum())}; do all "
            "workers train the same model?"
        )
    first_M = torch.arange(num_tiles, dtype=torch.int32, device=both.device) * TILE
    first_K = first_M.repeat_interleave(counts_M, output_size=count)
    return to_words(first_K + (offset_K & (TILE - 1)), offset_K < 0)
