"""Order, workers and resuming are functions of the arguments; damage is named."""

import hashlib
import io
import itertools
import json
import pickle
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numbered import NUM_STATES, utterance, write

from asr_train.files import DamagedFileError, read_json, sha256
from asr_train.shards import reader
from asr_train.shards.reader import VARIANCE_FLOOR, Shards

LENGTHS = (5, 9, 2, 7, 7, 1, 4, 3, 8, 6, 2, 5, 4)  # 63 frames
PER_SHARD = 3
seeds = st.none() | st.integers(0, 2**40)
epochs = st.integers(0, 1000)
splits = st.integers(1, len(LENGTHS)).flatmap(
    lambda workers: st.tuples(st.integers(0, workers - 1), st.just(workers))
)


def ids(samples):
    return [sample.id for sample in samples]


@given(seeds, epochs, st.integers(1, len(LENGTHS)))
def test_workers_together_read_each_sample_once_in_the_order_of_one(shards, seed, epoch, workers):
    data = shards(LENGTHS, PER_SHARD)
    parts = [ids(data.samples(seed, w, workers, epoch)) for w in range(workers)]
    together = list(itertools.chain.from_iterable(parts))
    assert sorted(together) == sorted(f"utt{n:03d}" for n in range(len(LENGTHS)))
    order = ids(data.samples(seed, 0, 1, epoch))
    for part in parts:
        assert part == [each for each in order if each in part]
    frames = [int(data.frames(seed, w, workers, epoch).sum()) for w in range(workers)]
    assert max(frames) - min(frames) <= max(LENGTHS)


@given(seeds, epochs, st.integers(1, len(LENGTHS)))
def test_the_frames_of_the_index_are_what_workers_read(shards, seed, epoch, workers):
    data = shards(LENGTHS, PER_SHARD)
    frames = [data.frames(seed, w, workers, epoch).tolist() for w in range(workers)]
    for w in range(workers):
        samples = list(data.samples(seed, w, workers, epoch))
        assert frames[w] == [len(s.ali_T) for s in samples]
    assert (sum(map(len, frames)), sum(map(sum, frames))) == (data.num_samples, data.num_frames)


@given(seeds, epochs, splits, st.data())
def test_a_reader_starts_anywhere(shards, seed, epoch, split, data):
    whole = list(shards(LENGTHS, PER_SHARD).samples(seed, *split, epoch))
    start = data.draw(st.integers(0, len(whole)))
    rest = list(shards(LENGTHS, PER_SHARD).samples(seed, *split, epoch, start))  # opened again
    assert ids(rest) == ids(whole[start:])
    for a, b in zip(rest, whole[start:], strict=True):
        np.testing.assert_array_equal(a.feats_TF, b.feats_TF)
        np.testing.assert_array_equal(a.ali_T, b.ali_T)


@given(seeds, epochs)
def test_samples_come_as_they_were_written_and_a_shard_at_a_time(shards, seed, epoch):
    data = shards(LENGTHS, PER_SHARD)
    numbers = []
    for sample in data.samples(seed, 0, 1, epoch):
        numbers.append(int(sample.id[3:]))
        written = utterance(numbers[-1], LENGTHS[numbers[-1]])
        np.testing.assert_array_equal(sample.feats_TF, written.feats_TF)
        np.testing.assert_array_equal(sample.ali_T, written.ali_T)
        assert sample.words == written.words
    visited = [shard for shard, _ in itertools.groupby(n // PER_SHARD for n in numbers)]
    assert len(visited) == len(set(visited)) == 5


def test_without_a_seed_the_order_is_as_stored(shards):
    data = shards(LENGTHS, PER_SHARD)
    for epoch in (0, 7):
        assert data.order(None, epoch).tolist() == list(range(len(LENGTHS)))


def test_seeds_and_epochs_shuffle_shards_and_what_is_in_them(shards):
    data = shards(LENGTHS, PER_SHARD)
    orders = [data.order(seed, epoch).tolist() for seed in range(5) for epoch in range(5)]
    assert len({tuple(order) for order in orders}) == 25
    assert len({order[0] for order in orders}) > 5
    assert {order.index(0) > order.index(1) for order in orders} == {True, False}


def test_the_order_outlives_versions(shards):
    """A run is resumed with the order that it began with; this changes only with a new format."""
    assert shards(LENGTHS, PER_SHARD).order(1, 2).tolist() == [
        3,
        4,
        5,
        9,
        10,
        11,
        2,
        1,
        0,
        12,
        7,
        8,
        6,
    ]


def test_parts_of_shards_have_orders_of_their_own(tmp_path):
    """Also if the order of the whole is known already."""
    data = Shards(write(tmp_path, LENGTHS, PER_SHARD))
    whole = data.order(3, 0).tolist()
    assert data.span(0, 0.5).order(3, 0).tolist() == whole[:6]
    assert data.span(0.5, 1).order(3, 0).tolist() == whole[6:]
    some = data.some(0.4)
    assert sorted(some.order(3, 0).tolist()) == list(range(6))
    assert data.order(3, 0).tolist() == whole


def test_some_of_the_shards_are_compared_with_checksums_of_their_own(tmp_path):
    """The second of two is the third of five: checking one does not cover the other."""
    data = Shards(write(tmp_path, LENGTHS, PER_SHARD))
    next(data.samples(None, 0, 1, 0, start=3))  # opens the second
    some = data.some(0.4)
    assert [part["path"] for part in some.index["parts"]] == ["00000.tar", "00002.tar"]
    flip_a_bit(tmp_path / "00002.tar")
    with pytest.raises(DamagedFileError, match=r"00002.tar has SHA-256"):
        list(some.samples(None, 0, 1, 0))


def test_what_was_consumed_is_neither_opened_nor_decoded(tmp_path, monkeypatch):
    data = Shards(write(tmp_path, LENGTHS, PER_SHARD))
    decoded = []

    def spy(sample_id, *rest):
        decoded.append(sample_id)
        return reader_from_record(sample_id, *rest)

    reader_from_record = reader.from_record
    monkeypatch.setattr(reader, "from_record", spy)
    order = data.order(3, 0).tolist()
    for shard in {n // PER_SHARD for n in order} - {n // PER_SHARD for n in order[7:]}:
        (tmp_path / f"{shard:05d}.tar").unlink()
    assert ids(data.samples(3, 0, 1, 0, start=7)) == decoded == [f"utt{n:03d}" for n in order[7:]]


def test_workers_of_one_process_read_each_shard_once(tmp_path, monkeypatch):
    shards = Shards(write(tmp_path, [5] * 24, per_shard=8))
    read, original = [], reader.open_part
    monkeypatch.setattr(
        reader, "open_part", lambda *given: read.append(given[1]["path"]) or original(*given)
    )
    for epoch in range(2):
        each = [shards.samples(3, worker, 12, epoch) for worker in range(12)]
        found = [ids(samples) for samples in each]
        assert sorted(itertools.chain(*found)) == [f"utt{n:03d}" for n in range(24)]
        assert sorted(read) == ["00000.tar", "00001.tar", "00002.tar"]
        read.clear()


def test_mean_variance_and_priors_are_fit_to_divide_by(shards):
    data = shards(LENGTHS, PER_SHARD)
    assert data.mean_F.dtype == data.var_F.dtype == np.float32
    assert data.var_F[2] == np.float32(VARIANCE_FLOOR)  # numbered.utterance leaves this bin at zero
    np.testing.assert_allclose(data.var_F[:2], data.index["var"][:2], rtol=1e-6)
    assert min(data.index["state_frames"]) == 0
    assert data.priors_S.min() > 0
    frames_S = [max(1, frames) for frames in data.index["state_frames"]]  # at least one
    np.testing.assert_allclose(data.priors_S, np.array(frames_S) / sum(frames_S), rtol=1e-12)
    assert data.priors_S.sum() == pytest.approx(1, abs=1e-12)
    assert data.about == {"states_hash": "abc"}


def test_more_workers_than_samples_are_refused_before_reading(shards):
    with pytest.raises(ValueError, match=r"13 samples for 14 workers.*use at most 13 workers"):
        shards(LENGTHS, PER_SHARD).samples(0, 0, 14, 0)


# --- damage -------------------------------------------------------------------------------------


def read_all(index_path):
    return list(Shards(index_path).samples(None, 0, 1, 0))


def patch_index(index_path, tar=None, **values):
    """Change an index; with `tar`, update the values that depend on that tar's current bytes."""
    index = {**read_json(index_path), **values}
    for part in index["parts"] if tar else []:
        if part["path"] == tar:
            path = index_path.parent / tar
            part.update(bytes=path.stat().st_size, sha256=sha256(path))
    index_path.write_text(json.dumps(index))


def add_member(path, name, content):
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def index_path(tmp_path):
    return write(tmp_path, LENGTHS, PER_SHARD)


@pytest.fixture
def tar(index_path):
    return index_path.parent / "00001.tar"


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return content


def test_a_flipped_bit_is_noticed_before_anything_is_read(index_path, tar):
    found = hashlib.sha256(flip_a_bit(tar)).hexdigest()[:12]
    with pytest.raises(DamagedFileError, match=rf"00001.tar has SHA-256 {found}.* run make again"):
        read_all(index_path)


def test_a_truncated_tar_is_noticed(index_path, tar):
    content = tar.read_bytes()
    tar.write_bytes(content[:-1])
    with pytest.raises(DamagedFileError, match=f"has {len(content) - 1} bytes .* {len(content)}"):
        read_all(index_path)


def test_a_tar_that_changes_while_it_is_in_use_is_noticed(index_path, tar):
    data = Shards(index_path)
    list(data.samples(None, 0, 1, 0))
    tar.write_bytes(tar.read_bytes()[:-512])
    with pytest.raises(DamagedFileError, match=r"00001.tar has"):
        list(data.samples(None, 0, 1, 1))


def test_a_missing_tar_is_named(index_path, tar):
    tar.unlink()
    with pytest.raises(DamagedFileError, match=r"00001.tar is missing"):
        read_all(index_path)


@pytest.mark.parametrize("size", [100, 1000, 2000, 4000])
def test_a_tar_that_was_truncated_before_it_was_listed_is_noticed(index_path, tar, size):
    tar.write_bytes(tar.read_bytes()[:size])
    patch_index(index_path, "00001.tar")
    with pytest.raises(DamagedFileError, match=r"00001.tar: .*make"):
        read_all(index_path)


def rewritten(index_path, tar, change):
    """Replace the tar's members by those that `change` returns, and update the index's checksum."""
    with tarfile.open(tar) as old:
        members = [(m, old.extractfile(m).read()) for m in old.getmembers()]
    with tarfile.open(tar, "w") as new:
        for member, content in change(members):
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    patch_index(index_path, "00001.tar")


def test_a_missing_sample_is_named(index_path, tar):
    rewritten(index_path, tar, lambda members: [m for m in members if "utt004" not in m[0].name])
    with pytest.raises(DamagedFileError, match=r"00001.tar: sample 'utt004' is missing"):
        read_all(index_path)


def test_a_sample_of_another_shard_is_named(index_path, tar):
    add_member(tar, "utt000.words.txt", b"")
    patch_index(index_path, "00001.tar")
    with pytest.raises(DamagedFileError, match=r"00001.tar: sample 'utt000' is duplicate or not"):
        read_all(index_path)


def test_a_sample_that_comes_twice_is_named(index_path, tar):
    rewritten(index_path, tar, lambda members: [*members, members[0]])
    with pytest.raises(DamagedFileError, match=r"00001.tar: sample 'utt003' is duplicate"):
        read_all(index_path)


def test_a_record_with_two_of_a_key_is_named(index_path, tar):
    rewritten(index_path, tar, lambda members: [members[0], *members])
    with pytest.raises(DamagedFileError, match=r"00001.tar: .*utt003.ali.npy: duplicate"):
        read_all(index_path)


def test_other_frames_than_the_index_says_are_named(index_path):
    parts = read_json(index_path)["parts"]
    parts[1]["order"][2][1] += 1  # utterance 5 has one frame
    patch_index(index_path, parts=parts, num_frames=64)
    with pytest.raises(
        DamagedFileError, match=r"00001.tar: sample 'utt005' has 1 frames .* index says 2 of 3"
    ):
        read_all(index_path)


class Bomb:
    """Unpickling this fails the test."""

    def __reduce__(self):
        return pytest.fail, ("something was unpickled",)


@pytest.mark.parametrize("name", ["utt005.pkl", "utt005.payload.pyd", "utt005.pth", "utt005.npz"])
def test_a_foreign_key_is_refused_and_never_unpickled(index_path, tar, name):
    add_member(tar, name, pickle.dumps(Bomb()))
    patch_index(index_path, "00001.tar")
    with pytest.raises(
        DamagedFileError, match=r"00001.tar: utt005: the record has ali.npy, .* but"
    ):
        read_all(index_path)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"version": 2}, "version 2, but this code reads 'asr-train shards' version 1"),
        ({"format": None}, "is None version 1"),
        ({"num_samples": 12}, "states 12 samples but lists 13"),
        ({"num_frames": 62}, "states 62 frames but lists 63"),
        ({"mean": [0.0]}, "states 3 bins but lists 1"),
        ({"state_frames": [1]}, "states 50 states but lists 1"),
        ({"parts": None}, "is not an index of shards"),
        ({"parts": [{"path": "a.tar", "bytes": 9, "order": []}]}, "is not an index of shards"),
        ({"parts": [{"path": "a", "bytes": 9, "sha256": 1, "order": []}]}, "has a part without"),
        ({"about": None}, "is not an index of shards"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(index_path, values, reason):
    patch_index(index_path, **values)
    with pytest.raises(DamagedFileError, match=rf"index.json .*{reason}.*delete it and run make"):
        Shards(index_path)


def test_something_else_is_no_index(index_path):
    for text in ("[]", "{}", "{"):
        index_path.write_text(text)
        with pytest.raises(DamagedFileError, match=r"index.json is no"):
            Shards(index_path)


def test_states_are_those_of_the_index(index_path):
    counts = read_json(index_path)["state_frames"]
    assert counts[-1] > 0  # else the model below would fit
    patch_index(index_path, num_states=NUM_STATES - 1, state_frames=counts[:-1])
    with pytest.raises(DamagedFileError, match=r"tar: utt\d+: states .* but the model has states"):
        read_all(index_path)


def test_a_lattice_that_is_missing_is_named(index_path):
    index = read_json(index_path)
    index["about"]["lattices"] = {}
    index_path.write_text(json.dumps(index))
    with pytest.raises(DamagedFileError, match=r"'utt\d+' has no lattice but the index says one"):
        list(Shards(index_path).samples(None, 0, 1, 0))
