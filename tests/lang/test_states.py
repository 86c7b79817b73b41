"""State ids are dense and in the order of the phones; paths fall into phones."""

from itertools import pairwise

import numpy as np
import pytest

from asr_train.lang.states import States


@pytest.fixture
def states():
    return States(("SIL", "AH", "B"), phone_states=3, silence_states=5)


def test_ids_of_phones_partition_all_ids(states):
    ids = [s for phone in states.phones for s in states.of(phone)]
    assert ids == list(range(states.num_states))
    assert len(states.of("SIL")) == 5
    assert states.num_states == 11


def test_phone_of_state_inverts_of(states):
    phone_S = states.phone_of_state()
    for p, phone in enumerate(states.phones):
        assert (phone_S[list(states.of(phone))] == p).all()


def test_segments_are_the_phones_that_made_the_path(states):
    phones = ["SIL", "B", "B", "AH", "SIL"]
    path = [s for phone in phones for s in states.of(phone) for _ in range(1 + s % 3)]
    segments = states.segments(np.array(path))
    assert [phone for phone, _, _ in segments] == phones
    assert segments[0][1] == 0
    assert segments[-1][2] == len(path)
    assert all(a[2] == b[1] for a, b in pairwise(segments))


def test_an_empty_path_has_no_segments(states):
    assert states.segments(np.zeros(0, np.int32)) == []


def test_the_hash_depends_on_phones_and_topology(states):
    others = [
        States(("SIL", "AH", "D"), 3, 5),
        States(("SIL", "AH", "B"), 2, 5),
        States(("SIL", "AH", "B"), 3, 4),
    ]
    assert len({states.hash, *(o.hash for o in others)}) == 4
