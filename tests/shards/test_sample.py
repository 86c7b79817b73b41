"""The record of a sample is read back unchanged; what cannot be stored is refused."""

import io
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_lattices import random_arcs
from numbered import NUM_STATES, utterance

from asr_train.shards.sample import KEYS, LATTICE, MAX_STATES, Sample, from_record, to_record


def changed(**values):
    sample = utterance(1, 4)
    fields = {name: getattr(sample, name) for name in ("id", "feats_TF", "ali_T", "words")}
    return Sample(**{**fields, **values})


def npy(array, allow_pickle=False):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


class Bomb:
    """Unpickling this fails the test."""

    def __reduce__(self):
        return pytest.fail, ("something was unpickled",)


ids = st.text(st.characters(exclude_characters="./"), min_size=1, max_size=20).filter(
    lambda text: text.isprintable() and not any(c.isspace() for c in text)
)


@given(
    ids,
    st.text(),
    st.lists(st.tuples(st.floats(-60000, 60000), st.integers(0, NUM_STATES - 1)), min_size=1),
)
def test_a_record_gives_the_sample_back_but_for_float16(sample_id, words, frames):
    feats_TF = np.array([[x, 1.0] for x, _ in frames], np.float32)
    ali_T = np.array([s for _, s in frames], np.int32)
    record = to_record(Sample(sample_id, feats_TF, ali_T, words), NUM_STATES)
    back = from_record(sample_id, record, NUM_STATES)
    assert sorted(record) == sorted(KEYS)
    assert (back.id, back.words) == (sample_id, words)
    assert (back.feats_TF.dtype, back.ali_T.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(back.feats_TF, feats_TF.astype(np.float16))
    np.testing.assert_array_equal(back.ali_T, ali_T)
    assert to_record(back, NUM_STATES) == record


def with_lattice(ali_T=(3, 3, 1, 0)):
    """Return a sample with a lattice, of which `ali_T` is a path."""
    ali_T = np.array(ali_T, np.int32)
    arcs_A = random_arcs(np.random.default_rng(0), ali_T, NUM_STATES)
    return changed(ali_T=ali_T, lattice_A=arcs_A)


def test_a_record_gives_a_lattice_back():
    sample = with_lattice()
    record = to_record(sample, NUM_STATES)
    back = from_record("a", record, NUM_STATES)
    np.testing.assert_array_equal(back.lattice_A, sample.lattice_A)
    assert to_record(back, NUM_STATES) == record
    assert record.keys() - to_record(changed(), NUM_STATES).keys() == {LATTICE}


def test_a_lattice_that_cannot_be_learned_from_is_refused_both_ways():
    sample, other = with_lattice(), with_lattice((4, 4, 4, 4))
    says = "utt001: its lattice is damaged: the alignment is none of its paths; rerun the shards"
    with pytest.raises(ValueError, match=says):
        to_record(changed(ali_T=sample.ali_T, lattice_A=other.lattice_A), NUM_STATES)
    record = to_record(sample, NUM_STATES)
    broken_A = sample.lattice_A.copy()
    broken_A["state"][-2] = NUM_STATES
    for content, reason in (
        (to_record(other, NUM_STATES)[LATTICE], "the alignment is none of its paths"),
        (npy(broken_A), "arc .* has a state outside of -1 to 49"),
        (npy(sample.lattice_A[:2]), "its lattice is damaged"),
        (npy(sample.lattice_A[:0]), "one at least"),
        (npy(sample.lattice_A)[:-1], "lat.npy cannot be read"),
        (npy(np.zeros((4, 4), np.int32)), "lat.npy cannot be read .it holds int32"),
        (pickle.dumps(Bomb()), "lat.npy cannot be read"),
    ):
        with pytest.raises(ValueError, match=f"utt: .*{reason}"):
            from_record("utt", {**record, LATTICE: content}, NUM_STATES)


@pytest.mark.parametrize(
    ("sample_id", "reason"),
    [
        ("a_sp0.9", "utterance id 'a_sp0.9' contains '.', where tar readers cut names; rename it"),
        ("a/b", "utterance id 'a/b' contains '/', where tar readers cut names; rename it"),
        ("", "is empty"),
        ("a b", "white space"),
        ("a\n", "white space"),
        ("a\x00", "control"),
        ("a" * 91, "91 bytes but a tar's names have room for 90"),
        ("ä" * 46, "92 bytes"),
    ],
)
def test_ids_that_a_tar_would_change_are_refused_both_ways(sample_id, reason):
    with pytest.raises(ValueError, match=reason):
        to_record(changed(id=sample_id), NUM_STATES)
    with pytest.raises(ValueError, match=reason):
        from_record(sample_id, to_record(utterance(1, 4), NUM_STATES), NUM_STATES)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"ali_T": np.zeros(3, np.int32)},
            "utt001: 4 feature frames but 3 alignment frames; rerun",
        ),
        ({"feats_TF": np.full((4, 3), np.nan, np.float32)}, "utt001: bin 0 of frame 0 is nan"),
        ({"feats_TF": np.float32([[0], [1], [np.inf], [2]])}, "bin 0 of frame 2 is inf"),
        ({"feats_TF": np.float32([[0], [-70000], [3], [2]])}, "bin 0 of frame 1 is -inf"),
        ({"feats_TF": np.float32([[np.inf], [-np.inf], [3], [2]])}, "bin 0 of frame 0 is inf"),
        ({"ali_T": np.int32([0, 1, NUM_STATES, 2])}, "states 0 to 50 but the model has .* to 49"),
        ({"ali_T": np.int32([0, -1, 3, 2])}, "states -1 to 3"),
        ({"ali_T": np.int64([0, 65536, 3, 2])}, "states 0 to 65536"),  # 0 as int16
        ({"ali_T": np.zeros(4, np.float32)}, "integers"),
        ({"feats_TF": np.zeros(4, np.float32)}, r"features are \[4\]"),
        ({"feats_TF": np.zeros((0, 3)), "ali_T": np.zeros(0, np.int32)}, "0 frames of 3 bins"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(values, reason):
    with pytest.raises(ValueError, match=reason):
        to_record(changed(**values), NUM_STATES)


def test_the_largest_float16_sums_without_overflow():
    feats_TF = np.full((1000, 80), np.finfo(np.float16).max, np.float32)
    sample = changed(feats_TF=feats_TF, ali_T=np.zeros(1000, np.int32))
    np.testing.assert_array_equal(
        from_record("a", to_record(sample, NUM_STATES), NUM_STATES).feats_TF, feats_TF
    )


def test_more_states_than_int16_holds_are_refused():
    to_record(changed(ali_T=np.full(4, MAX_STATES - 1)), MAX_STATES)
    with pytest.raises(ValueError, match="32768 states cannot be stored"):
        to_record(utterance(1, 4), MAX_STATES + 1)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"feats.pkl": pickle.dumps(Bomb())}, "utt: the record has ali.npy, feats.npy, feats.pkl"),
        ({"feats.npy": pickle.dumps(Bomb())}, "utt: feats.npy cannot be read"),
        ({"ali.npy": npy(np.array([Bomb()] * 4), allow_pickle=True)}, "ali.npy cannot be read"),
        (
            {"ali.npy": npy(np.zeros(4, np.int64))},
            r"ali.npy cannot be read \(it holds int64, but int16",
        ),
        ({"feats.npy": npy(np.zeros((4, 3)))}, "it holds float64"),
        ({"feats.npy": npy(np.zeros((4, 3), np.float16))[:-1]}, "feats.npy cannot be read"),
        ({"feats.npy": b""}, "feats.npy cannot be read"),
        (
            {"feats.npy": npy(np.zeros((4, 3), np.float16)).replace(b"}", b" ")},
            "feats.npy cannot be read",
        ),
        ({"feats.npy": npy(np.zeros((4, 3), np.float16))[:50]}, "feats.npy cannot be read"),
        ({"feats.npy": npy(np.zeros((4, 3), np.float16)) + b"xx"}, "feats.npy cannot be read"),
        ({"feats.npy": npy(np.zeros((5, 3), np.float16))}, "5 feature frames but 4 alignment"),
        ({"feats.npy": npy(np.full((4, 3), np.nan, np.float16))}, "bin 0 of frame 0 is nan"),
        ({"ali.npy": npy(np.full(4, NUM_STATES, np.int16))}, "states 50 to 50"),
        ({"words.txt": b"\xff"}, "utt: words.txt is not UTF-8"),
    ],
)
def test_a_foreign_record_is_refused_and_never_unpickled(values, reason):
    record = {**to_record(utterance(1, 4), NUM_STATES), **values}
    with pytest.raises(ValueError, match=reason):
        from_record("utt", record, NUM_STATES)


def test_an_archive_of_arrays_is_no_array():
    file = io.BytesIO()
    np.savez(file, feats=np.zeros((4, 3), np.float16))
    record = {**to_record(utterance(1, 4), NUM_STATES), "feats.npy": file.getvalue()}
    with pytest.raises(ValueError, match=r"feats.npy cannot be read"):
        from_record("utt", record, NUM_STATES)


def test_a_header_that_promises_too_much_takes_no_memory():
    promised = npy(np.zeros((4, 3), np.float16)).replace(b"(4, 3)", b"(4, 3000000000000)")
    record = {**to_record(utterance(1, 4), NUM_STATES), "feats.npy": promised}
    with pytest.raises(ValueError, match=r"feats.npy cannot be read"):
        from_record("utt", record, NUM_STATES)


def test_equal_features_give_equal_bytes_however_they_lie_in_memory():
    feats_TF = utterance(1, 4).feats_TF
    transposed = changed(feats_TF=np.asfortranarray(feats_TF))
    record = to_record(transposed, NUM_STATES)
    assert record == to_record(utterance(1, 4), NUM_STATES)
    by_hand = {**record, "feats.npy": npy(np.asfortranarray(feats_TF.astype(np.float16)))}
    assert by_hand != record
    np.testing.assert_array_equal(from_record("u", by_hand, NUM_STATES).feats_TF, feats_TF)


@pytest.mark.parametrize("key", KEYS)
def test_a_record_without_a_key_is_refused(key):
    record = to_record(utterance(1, 4), NUM_STATES)
    del record[key]
    with pytest.raises(ValueError, match=f"but a sample has .*{key}"):
        from_record("utt", record, NUM_STATES)
