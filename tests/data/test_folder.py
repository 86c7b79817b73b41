"""data.folder: tables become cuts, of one folder or of several; broken ones are refused."""

import numpy as np
import pytest
from lhotse import CutSet, validate
from noises import RATE, files, ids, in_folder, lexicon

from asr_train.data.corpus import CorpusError, write
from asr_train.data.folder import COLUMNS
from asr_train.data.folder import folder as read
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
        "train: 2 utterances, 1 speakers, 3 words (3 different), 0.0 minutes, 0 dropped"
    )


def test_the_split_is_among_the_notes(folder):
    notes = "\n".join(folder.made().notes)
    for split, name in (("train", "ann"), ("dev", "bob"), ("test", "cid")):
        assert f"{split}: 1 speakers, 2 utterances: {name}" in notes


def test_a_folder_twice_gives_the_same_bytes(folder, tmp_path):
    for name in ("a", "b"):
        write(folder.made(), tmp_path / name / "train.jsonl.gz")
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


def test_two_channels_are_refused_by_default(folder):
    folder.add("ann-stereo", "ann", "one", np.ones((RATE, 2)) / 2)
    with pytest.raises(CorpusError, match=r"ann-stereo: .* has 2 channels .* first or mix"):
        folder.made()


def test_dots_and_slashes_in_ids_are_replaced_and_listed(folder):
    folder.rows[0][0] = "ann/one.5"
    made = folder.made()
    assert ids(made) == ["ann_one_5", "ann-two"]
    (remark,) = made.remarks
    assert (remark.what, remark.why, remark.dropped) == ("renamed", "was ann/one.5", False)


@pytest.mark.parametrize("names", [("ann.1", "ann/1"), ("ann_1", "ann.1"), ("ann.1", "ann_1")])
def test_ids_that_become_equal_are_refused(folder, names):
    folder.rows[0][0], folder.rows[1][0] = names
    with pytest.raises(CorpusError, match=r"'ann.1' and 'ann.1' both become 'ann_1'"):
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
    with pytest.raises(CorpusError, match=r"utterances\.tsv is missing; CORPUS_DIR"):
        folder.found()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("utt_id\tspeaker\tpath\n", "lacks duration_seconds, transcript"),
        ("{head}\na\tann\ta.wav\t1.0\n", r"line 2 has 4 fields for 5 columns"),
        ("{head}\na\tann\ta.wav\t1.0\tone\n\tann\ta.wav\t1.0\tone\n", "line 3 has no utt_id"),
        ("{head}\na\t \ta.wav\t1.0\tone\n", "line 2 has no speaker"),
        ("{head}\na\tann\ta.wav\tlong\tone\n", "duration_seconds is 'long'"),
        ("{head}\na\tann\ta.wav\tnan\tone\n", "duration_seconds is 'nan'"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(folder, table, message):
    folder.write(table.replace("{head}", "\t".join(COLUMNS)))
    with pytest.raises(CorpusError, match=message):
        folder.found()


def test_duplicate_ids_are_refused_with_both_lines(folder):
    folder.rows[3][0] = "ann-one"
    with pytest.raises(CorpusError, match="'ann-one' stands in line 2 and in line 5"):
        folder.made()


def test_an_unknown_split_of_a_folder_is_refused(folder):
    with pytest.raises(CorpusError, match=r"eval is no split .* train, dev, test"):
        folder.made("eval")


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
    assert made.summary().startswith("test: 500 utterances, 1 speakers, 500 words (10 different)")
