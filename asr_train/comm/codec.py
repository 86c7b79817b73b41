"""Hits <-> **messages**: a header, then packed words, tile words or Golomb-Rice codes of gaps.

in    words_K     int32 [K] as in kernels.threshold: index and sign, by rising index
out   message_B   uint8 [B]: HEADER_BYTES of header, then at most a quarter byte a parameter
What would be longer than that is sent as a map of two bits a parameter. A message that was cut
or changed, by a single bit anywhere, is refused; so is one whose checksum is right but whose hits
could not have been written here: what is read is as safe to decode as what `words_K` says above.
Checksums (kernels.checksum) are made on the device; the payload's is compared there, too, and the
header's by the host, which has to read headers anyway: all workers' in one copy.
Knows nothing of gradients or of who sends. docs/distributed.md has the layout, byte by byte.

    packed32   32 bits a hit: 31 of index, one of sign (Strom, 2015, section 2.6)
    tile16     16 bits a hit: 15 of offset in a tile of 32,768, one of sign; 16 bits a tile
    rice       about log2(gap) + 2.5 bits a hit: Golomb-Rice codes of the gaps between indices
    map        2 bits a parameter: none, plus, minus
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

import torch
from torch import Tensor

from asr_train.facts import HEADER_BYTES
from asr_train.kernels import rice
from asr_train.kernels.checksum import checksum_of, checksums
from asr_train.kernels.threshold import Fixed, check_size, check_words, from_words, to_words

MAGIC = b"GTCm"
VERSION = 2
TILE = 2**15  # elements
_LAYOUT = struct.Struct("<4sBBBBQIIIfIIIII")  # all but the payload's checksum
CHECKSUM_BYTES = 4
_FLAGS_WORD, _FLAGS_SHIFT, _WANTED_WORD = 1, 16, 9  # of the header's 32-bit words
assert _LAYOUT.size + CHECKSUM_BYTES == HEADER_BYTES


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

    def to_bytes(self) -> bytes:
        """Return the header up to its own checksum; the payload's, made on its device, follows."""
        h = self
        fields = (
            *(MAGIC, VERSION, h.kind, h.flags, h.parameter, h.step, h.worker, h.workers),
            *(h.size, h.tau, h.frames, h.wanted, h.count, h.payload_bytes),
        )
        return _LAYOUT.pack(*fields, checksum_of(_LAYOUT.pack(*fields, 0)))


class Checks:
    """What is wrong with messages: an error at once, or one that a device keeps until it is asked.

    Args:
        deferred: nothing waits for the device before `ask`. Until then a message that is wrong
            stands for its count of elements, the first ones, which are safe to decode.
    """

    def __init__(self, deferred: bool = False) -> None:
        self.deferred = deferred
        self._wrong: Tensor | None = None  # bool []

    def refuse_if(self, is_wrong: Tensor | bool, why: Callable[[], str]) -> None:
        """Take note of a condition; `why` is the error's text.

        Raises:
            ValueError: if it holds, unless that is to be asked for later.
        """
        if isinstance(is_wrong, Tensor) and self.deferred:
            self._wrong = is_wrong if self._wrong is None else self._wrong | is_wrong
        elif is_wrong:
            raise ValueError(why())

    def harmless(self, words_K: Tensor) -> Tensor:
        """Return these elements, or others if anything was wrong since `ask`, int32 [K]."""
        if self._wrong is None:
            return words_K
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
                "a message of the last steps was changed on the way, or has indices that do not "
                "ascend below the model's size; do all workers run the same code? Start again: "
                "the last checkpoint is sound"
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
    head_B = torch.frombuffer(bytearray(header.to_bytes()), dtype=torch.uint8)
    sum_B = checksums([payload_B]).view(torch.uint8)[:CHECKSUM_BYTES]
    return torch.cat([head_B.to(payload_B.device), sum_B, payload_B])


def write_fixed(fixed: Fixed, header: Header, is_finite: bool) -> Tensor:
    """Return a packed32 message with room for C elements, made on the device without waiting.

    Args:
        fixed: what `threshold.compress_fixed` found.
        header: gives all but what `fixed` knows.
        is_finite: what the host knows of the gradient.
    """
    device = fixed.words_C.device
    is_sent = fixed.is_finite if is_finite else torch.zeros_like(fixed.is_finite)
    wanted = torch.where(is_sent, fixed.wanted, 0)
    count = wanted.clamp(max=len(fixed.words_C))
    flags = torch.where(is_sent, 0, int(Flags.not_finite))
    flags = flags | torch.where(wanted > count, int(Flags.overflow), 0)
    own = replace(header, kind=Kind.packed32, parameter=0, wanted=0, count=0, payload_bytes=0)
    head = torch.frombuffer(bytearray(own.to_bytes()[:-CHECKSUM_BYTES]), dtype=torch.int32)
    head = head.to(device)
    head[_FLAGS_WORD] |= (flags << _FLAGS_SHIFT).to(torch.int32)
    head[_WANTED_WORD : _WANTED_WORD + 3] = torch.stack([wanted, count, 4 * count])
    words_C = torch.where(is_sent, fixed.words_C, 0)
    payload_B = words_C.view(torch.uint8)
    sums = checksums([head.view(torch.uint8), payload_B]).to(torch.int32)
    return torch.cat([head, sums, words_C]).view(torch.uint8)


def read(message_B: Tensor) -> tuple[Header, Tensor]:
    """Return the header and the elements of a message; bytes after its payload are padding.

    Whoever knows which message is due compares `read_headers` with that first, and then calls
    `read_words`.

    Raises:
        MessageError: if it is cut short, of another version, or a bit was changed; or if it was
            made wrong, whatever its checksums say.
    """
    headers = read_headers([message_B])
    return headers[0], read_words(headers, [message_B], Checks())[0]


def read_headers(messages: Sequence[Tensor]) -> list[Header]:
    """Return the headers of messages, with a single wait for a device; raises as `read`."""
    for message_B in messages:
        if len(message_B) < HEADER_BYTES:
            raise MessageError(
                f"a message has {len(message_B)} bytes but its header alone has {HEADER_BYTES}; "
                "it was cut short on the way"
            )
    heads = torch.stack([message_B[: _LAYOUT.size] for message_B in messages]).cpu().numpy()
    return [
        _header(head_B.tobytes(), len(message_B))
        for head_B, message_B in zip(heads, messages, strict=True)
    ]


def _header(content: bytes, length: int) -> Header:
    """Return the header that a message of so many bytes begins with; raises as `read`."""
    magic, version, kind, flags, parameter, *numbers, checksum = _LAYOUT.unpack(content)
    step, worker, workers, size, tau, frames, wanted, count, payload_bytes = numbers
    if (magic, version) != (MAGIC, VERSION):
        raise MessageError(
            f"a message begins with {magic!r}, version {version}, but this code reads {MAGIC!r}, "
            f"version {VERSION}; do all workers run the same code?"
        )
    where = f"worker {worker}'s message of step {step}"
    found = checksum_of(content[:-CHECKSUM_BYTES])
    if found != checksum:
        raise MessageError(f"the header of {where} {_changed(found, checksum)}")
    if HEADER_BYTES + payload_bytes > length:
        raise MessageError(
            f"{where} has {length} bytes but promises {HEADER_BYTES + payload_bytes}; "
            "it was cut short on the way"
        )
    if kind not in set(Kind) or flags & ~_ALL_FLAGS:
        raise MessageError(
            f"{where} is of kind {kind} with flags {flags:#x}, but kinds end at {max(Kind)} and "
            f"flags at {_ALL_FLAGS:#x}; do all workers run the same code?"
        )
    # A worker's number may be above the workers that exchange: those of a group keep theirs.
    if not count <= wanted <= size or not 0 < tau < math.inf:
        raise MessageError(
            f"{where} has {count} of {wanted} elements among {size} "
            f"parameters, threshold {tau}; none may be more than what it is of, and the threshold "
            "must be positive and finite: do all workers run the same code?"
        )
    return Header(
        *(step, worker, workers, size, tau, frames, wanted, Flags(flags), Kind(kind)),
        *(parameter, count, payload_bytes),
    )


def _changed(found: int, promised: int) -> str:
    return (
        f"has the checksum {found:08x} but promises {promised:08x}: it was changed on the way; "
        "start again from the last checkpoint"
    )


def read_words(
    headers: Sequence[Header], messages: Sequence[Tensor], checks: Checks
) -> list[Tensor]:
    """Return the elements of messages whose headers were read, int32 [K] each.

    How many waits for a device that takes does not depend on how many messages there are, and with
    deferred checks it takes none.

    Raises:
        MessageError: as `read`; of a condition that `checks` does not defer.
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

    try:
        checks.refuse_if((sums_W != promised_W).any(), why)
        return [
            decode(h.kind, h.parameter, payload_B, h.count, h.size, checks)
            for h, payload_B in zip(headers, payloads, strict=True)
        ]
    except ValueError as error:
        raise error if isinstance(error, MessageError) else MessageError(str(error)) from None


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


def decode(
    kind: Kind, parameter: int, payload_B: Tensor, count: int, size: int, checks: Checks
) -> Tensor:
    """Return what `encode` had, int32 [K].

    How many elements are promised is compared with how many bytes are there before there is room
    made for any: so no more is allocated than a small multiple of what came.

    Raises:
        MessageError: if the payload is not `count` elements in ascending order below `size`, unless
            `checks` defers that.
    """
    try:
        check_size(size)
        if kind is Kind.rice:
            words_K = rice.read(payload_B, count, parameter, size, checks.refuse_if)
            return checks.harmless(words_K)
        wanted = {
            Kind.map: map_bytes(size),
            Kind.packed32: 4 * count,
            Kind.tile16: 2 * (-(-size // TILE) + count),
        }[kind]
        if len(payload_B) != wanted:
            raise ValueError(
                f"{kind.name} of {count} elements among {size} parameters has {wanted} bytes but "
                f"this one has {len(payload_B)}; do all workers train the same model?"
            )
        if kind is Kind.map:
            return checks.harmless(_read_map(payload_B, count, size, checks))
        if kind is Kind.tile16:
            words_K = _read_tiles(payload_B, count, size, checks)
        else:
            words_K = payload_B.clone().view(torch.int32)  # cloned, for alignment
        check_words(words_K, size, checks.refuse_if)
        return checks.harmless(words_K)
    except ValueError as error:
        raise MessageError(f"a message is not sound: {error}") from None


def fitting(
    words_K: Tensor, size: int, kind: Kind, capacity: int, turn: int
) -> tuple[Tensor, Tensor]:
    """Hits -> those that a payload of `capacity` bytes has room for, and those that must wait.

    For packed32 that is capacity / 4 of them: a map has no place in a message of words.

    Whose turn it is is chosen from the element `turn` on and then from the beginning, so that who
    waited comes first when `turn` is the first one that waits. Both stay sorted.
    """

    def bytes_of(some_K: Tensor) -> int:
        return 4 * len(some_K) if kind is Kind.packed32 else payload_bytes(some_K, size, kind)

    needed = bytes_of(words_K)
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
        needed = bytes_of(sent_K)
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


def _read_map(payload_B: Tensor, count: int, size: int, checks: Checks) -> Tensor:
    shift = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=payload_B.device)
    codes_P = ((payload_B[:, None] >> shift) & 3).flatten()
    found, unknown = codes_P.count_nonzero(), (codes_P == 3).sum()
    beyond = codes_P[size:].count_nonzero()
    checks.refuse_if(
        (found != count) | (unknown > 0) | (beyond > 0),
        lambda: (
            f"a map promises {count} elements among {size} parameters but has {int(found)}, "
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
    # A full tile's 32,768 hits wrap to a negative number, and back in reading
    return torch.cat([counts_M.to(torch.int16), offset_K.to(torch.int16)]).view(torch.uint8)


def _read_tiles(payload_B: Tensor, count: int, size: int, checks: Checks) -> Tensor:
    both = payload_B.clone().view(torch.int16)
    num_tiles = -(-size // TILE)
    ends_M = (both[:num_tiles].to(torch.int32) & 0xFFFF).cumsum(0)
    offset_K = both[num_tiles:]
    checks.refuse_if(
        ends_M[-1] != count,
        lambda: (
            f"{count} elements lie in {num_tiles} tiles that count {int(ends_M[-1])}; do all "
            "workers train the same model?"
        ),
    )
    place_K = torch.arange(count, device=both.device)
    tile_K = torch.searchsorted(ends_M, place_K, right=True).clamp_(max=num_tiles - 1)
    return to_words(tile_K * TILE + (offset_K & (TILE - 1)), offset_K < 0)
