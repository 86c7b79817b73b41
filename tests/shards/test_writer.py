"""Bytes do not depend on what happened before, and totals are those of the tars."""

import multiprocessing
import os
import signal
import sys
import tarfile

import numpy as np
import pytest
import webdataset
from numbered import NUM_STATES, utterance, write

from asr_train.files import check_part, read_json
from asr_train.shards.sample import KEYS, Sample
from asr_train.shards.writer import write_shards

LENGTHS = (5, 9, 2, 7, 7, 1, 4)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_samples(folder, samples, **settings):
    settings = {"utterances_per_shard": 2, "num_states": NUM_STATES, "about": {}, **settings}
    return write_shards(samples, folder / "index.json", **settings)


def test_equal_samples_give_equal_bytes(tmp_path):
    first, second = write(tmp_path / "a", LENGTHS, 3), write(tmp_path / "b", LENGTHS, 3)
    assert content(first.parent) == content(second.parent)
    assert sorted(content(first.parent)) == ["00000.tar", "00001.tar", "00002.tar", "index.json"]


def test_a_tar_says_nothing_of_time_or_user(tmp_path):
    folder = write(tmp_path, LENGTHS, 3).parent
    with tarfile.open(folder / "00000.tar") as tar:
        members = tar.getmembers()
    assert [m.name for m in members[:3]] == [f"utt000.{key}" for key in KEYS]
    assert {(m.mtime, m.uid, m.gid, m.uname) for m in members} == {(0, 0, 0, "bigdata")}


def test_webdataset_reads_what_was_written(tmp_path):
    index = read_json(write(tmp_path, LENGTHS, 3))
    urls = [str(tmp_path / part["path"]) for part in index["parts"]]
    dataset = webdataset.WebDataset(urls, shardshuffle=False).decode()
    for number, sample in enumerate(dataset):
        assert sample["__key__"] == f"utt{number:03d}"
        np.testing.assert_array_equal(
            sample["feats.npy"], utterance(number, 9).feats_TF[: LENGTHS[number]]
        )
    assert number == len(LENGTHS) - 1


@pytest.mark.parametrize("per_shard", [1, 2, 3, 7, 8])
def test_totals_are_those_of_the_samples(tmp_path, per_shard):
    rng = np.random.default_rng(0)
    samples = [
        Sample(
            f"u{n}",
            rng.normal(15, 3, (frames, 4)).astype(np.float32),
            rng.integers(0, NUM_STATES, frames).astype(np.int32),
            "",
        )
        for n, frames in enumerate(LENGTHS)
    ]
    index = write_samples(tmp_path, samples, utterances_per_shard=per_shard, left_out=["lost"])
    stored_NF = np.concatenate([s.feats_TF for s in samples]).astype(np.float16).astype(np.float64)
    states_N = np.concatenate([s.ali_T for s in samples])
    np.testing.assert_allclose(index["mean"], stored_NF.mean(0), rtol=1e-12)
    np.testing.assert_allclose(index["var"], stored_NF.var(0), rtol=1e-9)
    assert index["state_frames"] == np.bincount(states_N, minlength=NUM_STATES).tolist()
    assert (index["num_samples"], index["num_frames"]) == (7, 35)
    assert (index["num_mels"], index["num_states"]) == (4, NUM_STATES)
    assert (index["longest"], index["shortest"]) == (["u1", 9], ["u5", 1])
    assert index["left_out"] == ["lost"]
    assert [row for part in index["parts"] for row in part["order"]] == [
        [f"u{n}", frames] for n, frames in enumerate(LENGTHS)
    ]
    for part in index["parts"]:
        assert part["samples"] == len(part["order"])
        assert part["frames"] == sum(frames for _, frames in part["order"])
        check_part(tmp_path, part)
    assert index == read_json(tmp_path / "index.json")


def test_sums_do_not_depend_on_how_samples_are_cut_into_shards(tmp_path):
    one = read_json(write(tmp_path / "one", LENGTHS, 1))
    all_ = read_json(write(tmp_path / "all", LENGTHS, 100))
    assert {**one, "parts": []} == {**all_, "parts": []}


def test_leftovers_of_a_larger_run_are_removed(tmp_path):
    write(tmp_path / "a", LENGTHS, 1)
    (tmp_path / "a" / ".tmp.00009.tar").write_bytes(b"killed while writing")
    write(tmp_path / "b", LENGTHS[:3], 2)
    write(tmp_path / "a", LENGTHS[:3], 2)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_failed_run_leaves_no_index_and_no_scratch_file(tmp_path):
    write(tmp_path, LENGTHS, 2)
    bad = [utterance(0, 3), utterance(1, 3), utterance(0, 4)]
    with pytest.raises(ValueError, match="'utt000' appears twice, with 3 and 4 frames"):
        write_samples(tmp_path, bad)
    assert not (tmp_path / "index.json").exists()
    assert not list(tmp_path.glob(".tmp*"))


@pytest.mark.parametrize(
    ("samples", "settings", "reason"),
    [
        ([], {}, "index.json: there are no samples"),
        ([utterance(0, 3, 4), utterance(1, 3, 5)], {}, "utt001: 5 feature bins but .* have 4"),
        ([utterance(0, 3)], {"utterances_per_shard": 0}, "0 utterances per shard"),
        ([utterance(0, 3)], {"num_states": 40000}, "40000 states"),
        ([utterance(0, 3)], {"num_states": 2}, "utt000: states 0 to 2"),
    ],
)
def test_what_makes_no_shards_is_refused(tmp_path, samples, settings, reason):
    with pytest.raises(ValueError, match=reason):
        write_samples(tmp_path, samples, **settings)


# --- SIGKILL ------------------------------------------------------------------------------------


def profiled(folder, when, events=None):
    """Write shards in this process; SIGKILL it at the `when`-th call of any function."""
    count = 0

    def at_each_call(*_):
        nonlocal count
        count += 1
        if count == when:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(at_each_call)
    write(folder, LENGTHS, 2)
    sys.setprofile(None)
    if events is not None:
        events.put(count)


def run_child(*args):
    child = multiprocessing.get_context("fork").Process(target=profiled, args=args)
    child.start()
    child.join(30)
    return child.exitcode


def test_killed_at_any_call_a_rerun_gives_the_bytes_of_an_unbroken_run(tmp_path):
    wanted = content(write(tmp_path / "unbroken", LENGTHS, 2).parent)
    events = multiprocessing.get_context("fork").SimpleQueue()
    assert run_child(tmp_path / "counted", 0, events) == 0
    calls = events.get()
    rng = np.random.default_rng(0)
    for when in [1, *rng.integers(1, calls, 20).tolist(), calls - 20]:
        folder = tmp_path / f"killed{when}"
        write(folder, (*LENGTHS, 3, 3), 2)  # an earlier run, larger and with other lengths
        assert run_child(folder, when) == -signal.SIGKILL
        if (folder / "index.json").exists():  # then all that it lists exists, old or new
            for part in read_json(folder / "index.json")["parts"]:
                check_part(folder, part)
        write(folder, LENGTHS, 2)
        assert content(folder) == wanted
