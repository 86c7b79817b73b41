import math
import random
import re
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from backends import forced
from hypothesis import given
from hypothesis import strategies as st
from small_methods import read
from torch.utils._python_dispatch import TorchDispatchMode

from asr_train.comm import codec
from asr_train.comm.codec import HEADER_BYTES, TILE, Checks, Flags, Header, Kind, MessageError
from asr_train.kernels import decode, rice
from asr_train.kernels.backend import Backend
from asr_train.kernels.checksum import checksum_of, checksums
from asr_train.kernels.threshold import from_words, to_words

DOCUMENT = Path(__file__).parents[2] / "docs/distributed.md"
CODECS = [Kind.packed32, Kind.tile16, Kind.rice, Kind.map]


@st.composite
def hits(draw):
    """A size and a sorted set of signed indices below it."""
    size = draw(st.one_of(st.integers(1, 40), st.integers(1, 4 * TILE)))
    index = draw(st.sets(st.integers(0, size - 1), max_size=min(size, 60)))
    sign = draw(st.lists(st.booleans(), min_size=len(index), max_size=len(index)))
    return size, to_words(torch.tensor(sorted(index)).long(), torch.tensor(sign).bool())


def some(size: int, count: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    index_K = torch.randperm(size, generator=rng)[:count].sort().values
    return to_words(index_K, torch.rand(count, generator=rng) < 0.5)


def header(size: int, **changes) -> Header:
    values = {"step": 7, "worker": 1, "workers": 3, "tau": 4.0, "frames": 256, "wanted": size}
    return Header(size=size, **{**values, **changes})


@given(hits(), st.sampled_from(CODECS))
def test_what_is_read_is_what_was_written(case, kind):
    size, words_K = case
    message_B = codec.write(words_K, header(size, flags=Flags.overflow), kind)
    found, found_K = read(message_B)
    assert torch.equal(found_K, words_K)
    assert (found.step, found.worker, found.workers, found.size) == (7, 1, 3, size)
    assert (found.tau, found.frames, found.wanted, found.flags) == (4.0, 256, size, Flags.overflow)
    assert found.count == len(words_K)


@given(hits(), st.sampled_from(CODECS))
def test_no_message_exceeds_a_quarter_byte_a_parameter_and_its_header(case, kind):
    size, words_K = case
    assert len(codec.write(words_K, header(size), kind)) <= HEADER_BYTES + math.ceil(size / 4)


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("size", [0, 1, 5, TILE - 1, TILE, TILE + 1])
def test_all_elements_may_be_hit_or_none(kind, size):
    for words_K in (some(size, size), some(size, 0)):
        assert torch.equal(read(codec.write(words_K, header(size), kind))[1], words_K)


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("count", [0, 1, 40])
def test_a_flipped_bit_anywhere_is_refused(kind, count):
    message_B = codec.write(some(300, count), header(300), kind)
    for bit in range(8 * len(message_B)):
        flipped_B = message_B.clone()
        flipped_B[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(MessageError):
            read(flipped_B)


@pytest.mark.parametrize("kind", CODECS)
def test_a_truncated_message_is_refused_and_padding_is_not(kind):
    words_K = some(300, 20)
    message_B = codec.write(words_K, header(300), kind)
    for length in range(len(message_B)):
        with pytest.raises(MessageError, match="truncated"):
            read(message_B[:length])
    padded_B = torch.cat([message_B, torch.full((5,), 255, dtype=torch.uint8)])
    assert torch.equal(read(padded_B)[1], words_K)


def test_a_tile_may_be_full_among_empty_ones():
    words_K = to_words(torch.arange(2 * TILE, 3 * TILE), torch.arange(TILE) % 3 == 0)
    kind, parameter, payload_B = codec.encode(words_K, 20 * TILE, Kind.tile16)
    assert kind is Kind.tile16
    found_K = codec.decode(kind, parameter, payload_B, TILE, 20 * TILE, Checks())
    assert torch.equal(found_K, words_K)


def test_what_is_wrong_is_said_with_both_values():
    message_B = codec.write(some(300, 20), header(300), Kind.rice)
    message_B[-1] ^= 1
    with pytest.raises(MessageError, match=r"worker 1's message of step 7 .* \w{8} but declares"):
        read(message_B)


def test_hits_beyond_the_model_are_refused():
    with pytest.raises(
        MessageError, match=r"element 7 of 20 has the index 105 among 100, after 92"
    ):
        codec.decode(Kind.packed32, 0, some(300, 20).view(torch.uint8), 20, 100, Checks())


def test_sizes_are_those_of_the_formats():
    words_K = some(100_000, 1000)
    sizes = {kind: len(codec.encode(words_K, 100_000, kind)[2]) for kind in CODECS}
    assert sizes[Kind.packed32] == 4 * 1000
    assert sizes[Kind.tile16] == 2 * (1000 + 4)
    assert sizes[Kind.map] == 25_000
    # Golomb-Rice codes of random gaps are within 0.5 bit of their entropy, plus 1 bit for the sign
    p = 0.01
    entropy = -math.log2(p) - (1 - p) / p * math.log2(1 - p) + 1
    assert entropy < 8 * sizes[Kind.rice] / 1000 < entropy + 0.5


def test_at_the_papers_density_a_hit_in_a_random_place_takes_12_to_13_bits():
    """Strom (2015): 14.6 M parameters, tau = 4, 69 KB per minibatch: one sent element in about 850.

    The paper's 10 to 11 bits are for real sent elements, which are closer together, in few rows.
    """
    words_K = some(2_000_000, 2_000_000 // 850)
    bits = 8 * len(codec.encode(words_K, 2_000_000, Kind.rice)[2]) / len(words_K)
    assert 12 < bits < 13


@pytest.mark.parametrize("kind", CODECS[:3])
@pytest.mark.parametrize("capacity", [260, 300, 400])
def test_what_does_not_fit_waits_and_comes_first_next_time(kind, capacity):
    size, words_K = 4000, some(4000, 800)
    turn, rounds, seen = 0, 0, torch.zeros(size)
    while not seen[from_words(words_K)[0]].all():
        sent_K, waiting_K = codec.fitting(words_K, size, kind, capacity, turn)
        assert 0 < len(codec.encode(sent_K, size, kind)[2]) <= capacity
        both_K = torch.cat([sent_K, waiting_K])
        assert torch.equal(both_K[from_words(both_K)[0].argsort()], words_K)
        assert (from_words(sent_K)[0].diff() > 0).all()
        seen[from_words(sent_K)[0]] += 1
        turn = int(from_words(waiting_K)[0][0])
        rounds += 1
    assert rounds <= math.ceil(800 / len(sent_K)) + 1  # no element waits while others go twice
    assert seen.max() <= 2


@pytest.mark.parametrize("kind", CODECS[:3])
def test_the_smallest_capacity_has_room_for_64_hits_among_many_tiles(kind):
    size = 120 * TILE
    words_K = some(size, 5000)
    sent_K, waiting_K = codec.fitting(words_K, size, kind, codec.smallest_capacity(kind, size), 0)
    assert 64 <= len(sent_K) < 200
    assert torch.equal(torch.cat([sent_K, waiting_K]), words_K)
    if kind is not Kind.rice:
        assert len(sent_K) == (64 if kind is Kind.packed32 else 128)


def test_a_capacity_without_room_for_an_empty_message_is_an_error():
    words_K = some(40 * TILE, 500)
    with pytest.raises(ValueError, match="no message of tile16 fits into 8 bytes; it needs "):
        codec.fitting(words_K, 40 * TILE, Kind.tile16, 8, 0)


def test_whoever_fits_is_not_touched():
    words_K = some(4000, 50)
    sent_K, waiting_K = codec.fitting(words_K, 4000, Kind.packed32, 200, 17)
    assert torch.equal(sent_K, words_K)
    assert not len(waiting_K)


def test_the_layout_is_the_documented_one():
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE)
    offset = 0
    for at, size, _ in rows:
        assert int(at) == offset
        offset += int(size)
    assert offset == HEADER_BYTES
    words_K = some(4000, 30)
    message_B = codec.write(words_K, header(4000, flags=Flags.end_of_data), Kind.rice)
    content = bytes(message_B.numpy())
    found = {name: content[int(at) :][: int(size)] for at, size, name in rows}
    tau = struct.unpack("<f", found.pop("tau"))
    assert (found.pop("magic"), *tau) == (b"GTCm", 4.0)
    assert {name: int.from_bytes(value, "little") for name, value in found.items()} == {
        **{"version": 2, "kind": 3, "flags": 2, "step": 7, "worker": 1, "workers": 3},
        **{"size": 4000, "frames": 256, "wanted": 4000, "count": 30},
        **{"parameter": rice.best_parameter(words_K)[0], "payload": len(content) - HEADER_BYTES},
        "header_checksum": checksum_of(content[:48]),
        "payload_checksum": int(checksums([message_B[HEADER_BYTES:]])),
    }


@pytest.mark.parametrize(
    "kind, payload",
    [
        (Kind.packed32, "00000000 03000080 00800000 01800080"),
        (Kind.tile16, "0200 0200 0000 0380 0000 0180"),
        # b = 12, gaps 0, 2, 32764 and 0: 1, 1, 00000001, 1; then signs and low bits, 13 bits each
        (Kind.rice, "0306000500ff0700"),
    ],
)
def test_payloads_are_the_documented_ones(kind, payload):
    index_K, is_negative_K = torch.tensor([0, 3, TILE, TILE + 1]), torch.tensor([0, 1, 0, 1])
    words_K = to_words(index_K, is_negative_K.bool())
    found, parameter, payload_B = codec.encode(words_K, 2 * TILE, kind)
    assert (found, parameter) == (kind, 12 if kind is Kind.rice else 0)
    assert bytes(payload_B.numpy()).hex() == payload.replace(" ", "")


def test_a_map_is_the_documented_one():
    words_K = to_words(torch.tensor([0, 3, 4]), torch.tensor([False, True, False]))
    assert bytes(codec.encode(words_K, 6, Kind.map)[2].numpy()).hex() == "8101"


# --- messages that nobody wrote here, with checksums that are right -------------------------------

FIELDS = {  # docs/distributed.md: offsets in the header
    **{"kind": (5, "B"), "flags": (6, "B"), "parameter": (7, "B"), "step": (8, "Q")},
    **{"worker": (16, "I"), "workers": (20, "I"), "size": (24, "I"), "tau": (28, "f")},
    **{"frames": (32, "I"), "wanted": (36, "I"), "count": (40, "I"), "payload": (44, "I")},
}


def repaired(content: bytearray) -> torch.Tensor:
    """Return the content with the checksums that its sender would have written."""
    (payload,) = struct.unpack_from("<I", content, FIELDS["payload"][0])
    struct.pack_into("<I", content, 48, checksum_of(bytes(content[:48])))
    message_B = torch.frombuffer(content, dtype=torch.uint8)
    own = checksums([message_B[HEADER_BYTES : HEADER_BYTES + payload]])
    struct.pack_into("<I", content, 52, int(own))
    return message_B


def changed(message_B: torch.Tensor, **values) -> torch.Tensor:
    content = bytearray(message_B.numpy())
    for name, value in values.items():
        place, kind = FIELDS[name]
        struct.pack_into("<" + kind, content, place, value)
    return repaired(content)


def corrupted(message_B: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Return the message with some fields, bits, words or the length changed."""
    content = bytearray(message_B.numpy())
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name = rng.choice([*FIELDS, *["payload bits"] * 8, *["payload words"] * 4, "length"])
        if name == "length":
            more = rng.choice([-3, -2, -1, 1, 2, 3, 4, 8])
            content = content[: max(HEADER_BYTES, len(content) + more)]
            content += rng.randbytes(max(0, more))
            struct.pack_into("<I", content, FIELDS["payload"][0], len(content) - HEADER_BYTES)
        elif name == "payload bits":
            for _ in range(rng.choice([1, 2, 30])):
                if len(content) > HEADER_BYTES:
                    content[rng.randrange(HEADER_BYTES, len(content))] ^= 1 << rng.randrange(8)
        elif name == "payload words":  # are swapped, or equal
            places = range(HEADER_BYTES, len(content) - 3, rng.choice([2, 4]))
            if places:
                a, b = rng.choice(places), rng.choice(places)
                first, second = bytes(content[a : a + 4]), bytes(content[b : b + 4])
                content[b : b + 4] = first
                if rng.random() < 0.5:
                    content[a : a + 4] = second
        else:
            place, kind = FIELDS[name]
            size = struct.calcsize(kind)
            value = int.from_bytes(content[place : place + size], "little")
            bits = 8 * size
            some = [value + 1, value - 1, 0, rng.getrandbits(bits), 2 ** rng.randrange(bits)]
            value = rng.choice(some) % 2**bits
            content[place : place + size] = value.to_bytes(size, "little")
    return repaired(content)


class LargestTensor(TorchDispatchMode):
    """Records the size in bytes of the largest tensor that any operation returned."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            if isinstance(one, torch.Tensor):
                self.bytes = max(self.bytes, one.nbytes)
        return found


# A byte has up to 4 sent elements, with words of 32 bits and torch's indices of 64. The reference,
# which is for GPUs, expands each bit to 64 bits.
@pytest.mark.parametrize(
    "backend, messages, most",
    [(Backend.cpu, 1_000, 32), (Backend.reference, 300, 64)],
)
def test_corrupted_messages_with_right_checksums_are_refused_or_sound(backend, messages, most):
    rng = random.Random(0)
    sizes = [1, 50, 4000, TILE + 5]
    counted = {"refused": 0, "sound": 0}
    with forced(backend):
        sound = [
            (size, codec.write(some(size, min(size, count), count), header(size), kind))
            for size in sizes
            for count in (0, 1, 40, 500)
            for kind in CODECS
        ]
        with LargestTensor():  # compiles and imports beforehand
            for size, message_B in sound:
                decode.total([read(message_B)[1]], 1.0, torch.empty(size))
        tracemalloc.start()
        for _ in range(messages):
            size, message_B = rng.choice(sound)
            message_B = corrupted(message_B, rng)
            room = most * len(message_B) + 20_000  # memory that Python itself takes
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            words_K = None
            with LargestTensor() as largest:
                try:
                    found, words_K = read(message_B)
                except MessageError:
                    counted["refused"] += 1
            assert tracemalloc.get_traced_memory()[1] - before < room
            assert largest.bytes < room
            if words_K is None:
                continue
            counted["sound"] += 1
            index_K, _ = from_words(words_K)
            assert len(words_K) == found.count <= found.wanted <= found.size
            assert (index_K.diff() > 0).all()
            assert (index_K < found.size).all()
            assert 0 < found.tau < math.inf
            if found.size == size:
                decode.total([words_K], found.tau, torch.empty(size))
        tracemalloc.stop()
    assert min(counted.values()) > messages // 20, counted


SOUND = [(300, 20), (4000, 700), (3 * TILE, 100)]


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("size, count", SOUND)
def test_a_field_that_says_too_much_is_refused(kind, size, count):
    message_B = codec.write(some(size, count), header(size), kind)
    many = {"count": [0, count - 1, count + 1, 2**32 - 1], "wanted": [0, size + 1]}
    wrong = {"kind": [4, 255], "flags": [8, 128], "parameter": [32, 255]}
    if kind is not Kind.rice:
        del wrong["parameter"]  # which is not read
    for name, values in {**many, **wrong, "tau": [0.0, -1.0, math.inf, math.nan]}.items():
        for value in values:
            with pytest.raises(MessageError):
                read(changed(message_B, **{name: value}))
    for size_bytes in (1, 2, 3):
        content = message_B[:-size_bytes].clone()
        with pytest.raises(MessageError):
            read(changed(content, payload=len(content) - HEADER_BYTES))


@pytest.mark.parametrize("backend", [Backend.cpu, Backend.reference])
@pytest.mark.parametrize(
    "index, message",
    [
        (
            [29_000_000, 5, 29_999_999],
            "element 1 of 3 has the index 5 among 30000000, after 29000000",
        ),
        ([5, 5], "element 1 of 2 has the index 5 among 30000000, after 5"),
        ([5, 30_000_000], "element 1 of 2 has the index 30000000 among 30000000, after 5"),
        ([2**31 - 1], "element 0 of 1 has the index 2147483647 among 30000000, after none"),
    ],
)
def test_hits_that_do_not_rise_or_end_are_refused(backend, index, message):
    words_K = to_words(torch.tensor(index), torch.tensor(index) % 2 == 0)
    with forced(backend), pytest.raises(MessageError, match=message):
        read(codec.write(words_K, header(30_000_000), Kind.packed32))


@pytest.mark.parametrize("place", [0, 1, 511, 512, 513, 1023, 1500, 1999])
def test_where_hits_stop_rising_is_found(place):
    index_K = torch.arange(2000) * 3
    index_K[place] = index_K[place - 1] if place else 6000
    words_K = to_words(index_K, index_K % 2 == 0)
    for backend in (Backend.cpu, Backend.reference):
        with forced(backend), pytest.raises(MessageError, match=f"element {place} of 2000"):
            codec.decode(Kind.packed32, 0, words_K.view(torch.uint8), 2000, 6000, Checks())


def test_the_map_has_no_fourth_sign_and_nothing_behind_its_end():
    message_B = codec.write(some(301, 20), header(301), Kind.map)
    for place, code in ((HEADER_BYTES, 3), (HEADER_BYTES + 75, 4)):
        content_B = message_B.clone()
        content_B[place] |= code
        for count in (20, 21):
            with pytest.raises(MessageError, match="sign that does not exist"):
                read(changed(content_B, count=count))


def test_the_compiled_decoder_stays_inside_whatever_it_is_given():
    size = 8 * 2**13
    words_K = to_words(torch.tensor([7 * 2**13 + 9, 5, size - 1]), torch.zeros(3).bool())
    with forced(Backend.cpu):
        for call in (
            lambda: decode.total([words_K], 1.0, torch.empty(size)),
            lambda: decode.update([words_K], 1.0, 0.5, torch.zeros(size)),
        ):
            with pytest.raises(AssertionError, match="elements that do not ascend"):
                call()


def test_more_parameters_than_indices_are_refused():
    with pytest.raises(ValueError, match="2,147,483,648 parameters"):
        codec.write(some(10, 2), header(2**31), Kind.packed32)
