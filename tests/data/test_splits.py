"""data.splits: the splits are the same everywhere, and no speaker is in two."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noises import folders, ids

from asr_train.data.corpus import CorpusError
from asr_train.data.folder import SPLITS, split_rows
from asr_train.data.intake import Row
from asr_train.data.splits import share_of, split_speakers
from asr_train.schema import FolderSettings, SettingsError, SplitBy


def shares(dev=0.1, test=0.1, **changes) -> FolderSettings:
    return folders(dev_share=dev, test_share=test, **changes)


NAMES = st.lists(st.text(min_size=1, max_size=5), min_size=3, max_size=40, unique=True)


@given(NAMES, st.floats(0, 0.3), st.floats(0, 0.3), st.randoms())
def test_every_speaker_is_in_one_split_whatever_the_order(names, dev, test, random):
    splits = split_speakers(names, shares(dev, test))
    shuffled = random.sample(names, len(names))
    assert split_speakers(shuffled * 2, shares(dev, test)) == splits
    assert sorted(name for split in splits.values() for name in split) == sorted(names)
    assert len(splits["dev"]) == max(1, round(dev * len(names)))
    assert len(splits["test"]) == max(1, round(test * len(names)))


def test_the_split_is_the_same_in_all_versions():
    names = [f"s{i}" for i in range(10)]
    splits = split_speakers(names, shares(0.2, 0.2))
    assert (splits["dev"], splits["test"]) == (["s3", "s5"], ["s7", "s8"])


@given(NAMES)
def test_named_speakers_are_where_they_are_named(names):
    splits = split_speakers(names, shares(test_speakers=names[:1]))
    assert splits["test"] == names[:1]
    assert names[0] not in splits["dev"] + splits["train"]


def test_shares_are_of_all_speakers_though_some_are_named():
    names = [f"s{i}" for i in range(10)]
    splits = split_speakers(names, shares(dev=0.4, test_speakers=names[:4]))
    assert {split: len(who) for split, who in splits.items()} == {"train": 2, "dev": 4, "test": 4}


def test_two_speakers_are_too_few_unless_named():
    with pytest.raises(CorpusError, match=r"2 speakers \(ann, bob\) cannot be split"):
        split_speakers(["ann", "bob"], shares())
    named = shares(dev_speakers=["ann"], test_speakers=["bob"])
    assert split_speakers(["ann", "bob"], named) == {"train": [], "dev": ["ann"], "test": ["bob"]}


@pytest.mark.parametrize(
    "names, changes, advice",
    [
        (["ann"] * 3, {}, {"test_by": SplitBy.utterances}),
        (["ann", "bob", "bob"], {}, {"test_by": SplitBy.utterances}),
        (["ann", "bob"] * 2, {}, {"dev_by": SplitBy.utterances}),
        (["ann", "bob"] * 2, {"test_speakers": ["ann"]}, {"dev_by": SplitBy.utterances}),
        (["ann"] * 2, {}, "add recordings"),
        (["ann", "bob", "cid", "dan"], {"test": 0.5, "dev": 0.5}, "lower corpus.folder.dev_share"),
    ],
)
def test_few_speakers_are_refused_with_a_setting_that_works(names, changes, advice):
    rows = [Row(f"u{i}", name, Path(), "", 1.0, "", "") for i, name in enumerate(names)]
    with pytest.raises(CorpusError) as error:
        split_rows([rows], shares(**changes))
    if isinstance(advice, str):
        assert advice in str(error.value)
        return
    ((key, value),) = advice.items()
    assert f"set corpus.folder.{key}={value.value}:" in str(error.value)
    parts = split_rows([rows], shares(**changes, **advice))
    assert sorted(row.utt_id for part in parts.values() for row in part) == [r.utt_id for r in rows]
    assert all(parts.values())


def test_test_by_utterances_leaves_named_dev_speakers_to_dev():
    rows = [Row(f"u{i}", "abc"[i % 3], Path(), "", 1.0, "", "") for i in range(12)]
    parts = split_rows([rows], shares(test_by=SplitBy.utterances, dev_speakers=["a"]))
    assert {row.speaker for row in parts["dev"]} == {"a"}
    assert "a" not in {row.speaker for row in parts["test"]}
    with pytest.raises(SettingsError, match="test_by is utterances but test_speakers is"):
        shares(test_by=SplitBy.utterances, test_speakers=["a"])


def test_a_split_without_speakers_is_refused(folder):
    folder.overrides = {"dev_speakers": ["ann", "bob"]}
    with pytest.raises(
        CorpusError, match="train has no speakers: all 3 are named for dev and test"
    ):
        folder.made("train")


def test_an_unknown_speaker_is_refused_with_the_nearest_name():
    with pytest.raises(CorpusError, match=r"names 'jorge', .* did you mean george"):
        split_speakers(["george", "theo", "lucas"], shares(test_speakers=["jorge"]))


WHAT = "utterance of the training speakers"
IDS = st.lists(st.text(min_size=1, max_size=5), min_size=2, max_size=40, unique=True)


@given(IDS, st.floats(0, 0.6), st.randoms())
def test_dev_utterances_are_the_same_share_whatever_the_order(ids, share, random):
    dev = share_of(ids, share, WHAT)
    assert dev < set(ids)
    assert len(dev) == max(1, round(share * len(ids)))
    assert share_of(random.sample(ids, len(ids)), share, WHAT) == dev


def test_the_dev_utterances_are_the_same_in_all_versions():
    assert share_of([f"u{i}" for i in range(10)], 0.2, WHAT) == {"u3", "u9"}


def test_one_utterance_cannot_be_split():
    with pytest.raises(CorpusError, match=r"1 utterance of the training .* train; add recordings"):
        share_of(["a"], 0.1, WHAT)


def test_dev_by_utterances_leaves_all_but_the_test_speakers_to_train(folder):
    folder.overrides = {"dev_by": SplitBy.utterances, "dev_speakers": [], "dev_share": 0.25}
    made = {split: folder.made(split) for split in SPLITS}
    train, dev, test = (ids(made[split]) for split in SPLITS)
    assert test == ["cid-one", "cid-two"]
    assert (len(train), len(dev)) == (3, 1)
    assert sorted(train + dev) == ["ann-one", "ann-two", "bob-one", "bob-two"]
    assert {cut.supervisions[0].speaker for cut in made["train"].cuts} == {"ann", "bob"}
    assert "  train: 2 speakers, 3 utterances: ann, bob" in made["train"].notes
    assert f"  dev: 1 speaker, 1 utterance: {dev[0][:3]}" in made["train"].notes


def test_test_speakers_are_drawn_alike_when_dev_is_taken_by_utterances():
    names = [f"s{i}" for i in range(10)]
    by_utterances = shares(0.2, 0.2)
    by_utterances.dev_by = SplitBy.utterances
    splits = split_speakers(names, by_utterances)
    assert splits["test"] == split_speakers(names, shares(0.2, 0.2))["test"]
    assert splits["train"] == splits["dev"] == sorted(set(names) - set(splits["test"]))


def test_test_speakers_alone_leave_nobody_to_train(folder):
    folder.overrides = {
        "dev_by": SplitBy.utterances,
        "dev_speakers": [],
        "test_speakers": ["ann", "bob", "cid"],
    }
    with pytest.raises(CorpusError, match="train has no speakers: all 3 are named"):
        folder.made("train")


def test_dev_by_utterances_takes_no_dev_speakers(folder):
    folder.overrides = {"dev_by": SplitBy.utterances}
    with pytest.raises(SettingsError, match=r"dev_by is utterances but dev_speakers is \['bob'\]"):
        folder.settings()


# --- every Nth, further folders -----------------------------------------------------------------


@pytest.mark.parametrize("people, every, count", [(107, 5, 21), (231, 5, 46), (5, 5, 1)])
def test_every_nth_speaker_in_sorted_order_is_for_test(people, every, count):
    names = [f"s{i:03d}" for i in range(people)]
    splits = split_speakers(names[::-1], shares(0.1, test_every=every))
    assert splits["test"] == names[every - 1 :: every]
    assert len(splits["test"]) == count
    dev = split_speakers(names, shares(0.1, test_speakers=splits["test"]))
    assert splits == dev  # named or not, the others are drawn alike


def test_fewer_speakers_than_every_nth_are_refused():
    with pytest.raises(CorpusError, match=r"test_every is 5, but there are only 3 speakers"):
        split_speakers(["a", "b", "c"], shares(test_every=5))


def test_dev_speakers_that_every_nth_takes_are_refused():
    with pytest.raises(CorpusError, match=r"dev_speakers names b, but test_every=2 takes"):
        split_speakers(["a", "b", "c", "d"], shares(test_every=2, dev_speakers=["b"]))


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"test_every": 1}, "it must be 2 or more"),
        (
            {"test_every": 5, "test_speakers": ["a"]},
            "others: test_every=null, test_sp",
        ),
        ({"more_tests": {"test": "x"}}, "its name must be test_ followed"),
        ({"test_dirs": {"test": "x", "b": "y"}}, "its name must be test_ followed"),
        ({"test_dirs": {"test_b": "x"}}, "name test, too"),
        (
            {"test_dirs": {"test": "x", "test_b": "y"}, "more_tests": {"test_b": "z"}},
            r"\['test_b'\] are in test_dirs and more_tests",
        ),
        ({"test_dirs": {"test": "x"}, "test_every": 5}, "keep one, without the others"),
        ({"dev_dir": "x", "dev_speakers": ["a"]}, r"dev_dir is x but dev_speakers is \['a'\]"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(changes, says):
    with pytest.raises(SettingsError, match=says):
        shares(**changes)


@given(NAMES, NAMES)
def test_speakers_of_further_folders_train_unless_they_are_named(here, there):
    there = [f"there-{name}" for name in there]
    alone = split_speakers(here, shares())
    both = split_speakers(here, shares(), there)
    assert (both["dev"], both["test"]) == (alone["dev"], alone["test"])
    assert both["train"] == sorted({*alone["train"], *there})
    named = split_speakers(here, shares(test_speakers=there[:1]), there)
    assert named["test"] == there[:1]
    assert there[0] not in named["train"] + named["dev"]


def test_with_a_further_folder_two_speakers_are_enough():
    splits = split_speakers(["ann", "bob"], shares(), ["cid"])
    assert splits["train"] == ["cid"]
    assert sorted(splits["dev"] + splits["test"]) == ["ann", "bob"]
