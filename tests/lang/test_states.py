"""State ids are dense and in the order of the phones; a tree ties them by a phone's neighbours."""

import json
from dataclasses import replace

import numpy as np
import pytest
from toy import random_tree

from asr_train.lang.states import States


@pytest.fixture
def states():
    return States(("SIL", "AH", "B"), phone_states=3, silence_states=5)


@pytest.fixture(params=range(4))
def tied(request):
    """States tied by a random tree; AH and B start from the same roots in half of the cases."""
    plain = States(("SIL", "AH", "B", "D"), phone_states=3, silence_states=5)
    rng = np.random.default_rng(request.param)
    share = (1, 2) if request.param % 2 else ()
    return replace(plain, tree=random_tree(plain, rng, share))


def contexts(states):
    phones = range(len(states.phones))
    return [(left, phone, right) for left in phones for phone in phones for right in phones]


def test_ids_of_phones_partition_all_ids(states):
    ids = [s for phone in states.phones for s in states.of(phone)]
    assert ids == list(range(states.num_states))
    assert len(states.of("SIL")) == 5
    assert states.num_states == 11


def test_without_a_tree_neighbours_do_not_matter(states):
    for left, phone, right in contexts(states):
        assert states.ids(left, phone, right) == list(states.of(states.phones[phone]))


def test_the_table_has_a_state_for_each_position_and_no_more(states, tied):
    for some in (states, tied):
        for left, phone, right in contexts(some):
            row = some.table_LPRJ[left, phone, right]
            assert row[: some.positions(phone)].tolist() == some.ids(left, phone, right)
            assert (row[some.positions(phone) :] == -1).all()
        assert some.positions(0) == 5
        assert {some.positions(p) for p in range(1, len(some.phones))} == {3}


def test_tied_states_are_the_leaves_that_the_tree_finds(tied):
    assert tied.tied
    for left, phone, right in contexts(tied):
        leaves = [tied.tree.find(left, phone, right, j) for j in range(tied.positions(phone))]
        assert tied.ids(left, phone, right) == leaves
    assert tied.num_states == tied.tree.num_leaves > tied.table_LPRJ.max() - 1


def test_silence_comes_first_and_does_not_depend_on_its_neighbours(tied):
    assert all(tied.ids(left, 0, right) == [0, 1, 2, 3, 4] for left, _, right in contexts(tied))
    assert tied.of("SIL") == range(5)
    assert tied.table_LPRJ[:, 1:].max() >= 5
    with pytest.raises(AssertionError, match="B has context-dependent states"):
        tied.of("B")


def test_states_come_back_from_json(states, tied):
    for some in (states, tied):
        back = States.from_plain(json.loads(json.dumps(some.plain())))
        assert back.hash == some.hash
        assert np.array_equal(back.table_LPRJ, some.table_LPRJ)


def test_monophones_are_the_same_phones_without_the_tree(states, tied):
    assert states.monophones == states
    assert not tied.monophones.tied
    assert tied.monophones.phones == tied.phones
    assert tied.monophones.num_states == 5 + 3 * 3


def test_the_hash_depends_on_phones_topology_and_tree(states):
    others = [
        States(("SIL", "AH", "D"), 3, 5),
        States(("SIL", "AH", "B"), 2, 5),
        States(("SIL", "AH", "B"), 3, 4),
        replace(states, tree=random_tree(states, np.random.default_rng(0))),
        replace(states, tree=random_tree(states, np.random.default_rng(1))),
    ]
    assert len({states.hash, *(o.hash for o in others)}) == 6
