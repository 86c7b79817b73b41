"""data.published: folders in the layouts of published corpora, with missing or broken parts.

The recordings are noises; the layouts, names and markup are those of the corpora.
"""

from collections.abc import Callable
from pathlib import Path

import layouts
import numpy as np
import pytest
import soundfile
from layouts import RATE, lines
from lhotse import CutSet, validate
from lhotse.audio.backend import audio_backend
from noises import INTAKE, corpus_of, ids, lexicon
from toy import logmel

from asr_train.data.corpus import CorpusError, PreparedSplit, write
from asr_train.data.features import extract
from asr_train.data.published import hub5_text, ms98_text, published
from asr_train.data.recordings import audio_table, changed_files
from asr_train.files import read_jsonl
from asr_train.schema import (
    NormaliserKind,
    Published,
    PublishedSettings,
    SettingsError,
    SplitBy,
)

LOGMEL = logmel(sample_rate=RATE)


def made(kind: Published, root: Path, split: str, splits=None, **changes) -> PreparedSplit:
    values = {
        **INTAKE,
        "normaliser": NormaliserKind.plain,
        "max_dropped_share": 0.5,
        "kind": kind,
        "dir": str(root),
        "splits": splits or {"train": ["train"], "dev": [], "test": ["test"]},
    }
    settings = corpus_of(published=PublishedSettings(**{**values, **changes}))
    return published(settings, lexicon(root.parent), split, root / "mixed")


def test_parts_may_be_in_several_tests_but_in_no_other_two_splits(tmp_path):
    splits = {"train": ["a"], "dev": ["b"], "test": ["c"], "test_all": ["c", "d"]}
    values = {**INTAKE, "normaliser": NormaliserKind.plain, "max_dropped_share": 0.5}
    values |= {"kind": Published.an4, "dir": str(tmp_path)}
    assert PublishedSettings(**values, splits=splits).splits == splits
    for shared in ({"dev": ["a"]}, {"test": ["b"]}, {"test_all": ["a"]}):
        with pytest.raises(SettingsError, match=r"cannot be tested on"):
            PublishedSettings(**values, splits=splits | shared)


def readable(made: PreparedSplit, folder: Path) -> list[dict]:
    """Return what lhotse reads from the manifest, after checking that features can be computed."""
    write(made, folder / "split.jsonl.gz")
    cuts = CutSet.from_file(folder / "split.jsonl.gz")
    validate(cuts)
    rows, _ = extract(list(cuts), LOGMEL, folder / "feats.h5")
    for row in rows:
        assert row["features"]["num_frames"] == pytest.approx(row["duration"] * 100, abs=1)
    return read_jsonl(folder / "split.jsonl.gz")


def texts(made: PreparedSplit) -> dict[str, tuple[str, str]]:
    """Return id -> speaker and words."""
    said = [cut.supervisions[0] for cut in made.cuts]
    return {s.id: (s.speaker, s.text) for s in said}


def corrected(made: PreparedSplit, folder: Path, *tables: str) -> bool:
    """Return whether a change of each of these files, found by pattern, is noticed as the only."""
    write(made, folder / "split.jsonl.gz")
    listed = audio_table(folder / "split.jsonl.gz")
    for pattern in tables:
        (table,) = folder.rglob(pattern)
        content = table.read_bytes()
        table.write_bytes(content.replace(b"SIX", b"ONE") + b"\n")
        changed = changed_files(listed, keep=False)
        table.write_bytes(content)
        if changed != [str(table)]:
            return False
    return changed_files(listed, keep=False) == []


def unnoticed(root: Path, read: Callable[[], PreparedSplit]) -> list[Path]:
    """Return the files and folders whose coming changes what is read, but is not noticed.

    Each is moved away before the corpus is read, and back when its manifest is written; where the
    rest is refused there is no manifest, and make reads the corpus again.
    """

    def content(made: PreparedSplit) -> list:
        return [[cut.to_dict() for cut in made.cuts], made.remarks]

    lost, manifest = [], root / "split.jsonl.gz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBS", "1")  # forks would take most of the time
        whole = content(read())
        for path in sorted(root.rglob("*")):
            path.rename(root / "away")
            try:
                made = read()
                write(made, manifest)
            except CorpusError:
                continue
            finally:
                (root / "away").rename(path)
            noticed = changed_files(audio_table(manifest), keep=False)
            if content(made) != whole and not noticed:
                lost.append(path)
        made = read()
        assert content(made) == whole
        write(made, manifest)
    assert changed_files(audio_table(manifest), keep=False) == []
    return lost


# --- LibriSpeech --------------------------------------------------------------------------------

LIBRI = {"train": ["train-clean-5"], "dev": [], "test": ["dev-clean-2"]}


@pytest.fixture
def libri(tmp_path) -> Path:
    """Three readers in train-clean-5, one in dev-clean-2; two utterances each."""
    texts = ["ONE TWO", "SIX"]
    readers = {"train-clean-5": ("19", "26", "32"), "dev-clean-2": ("84",)}
    layouts.librispeech(tmp_path, {k: dict.fromkeys(v, texts) for k, v in readers.items()})
    return tmp_path


def test_librispeech_is_read_by_its_subsets(libri):
    test = made(Published.librispeech, libri, "test", LIBRI)
    assert texts(test) == {"84-198-0000": ("84", "ONE TWO"), "84-198-0001": ("84", "SIX")}
    readable(test, libri)
    assert test.remarks == []
    assert corrected(test, libri, "84-198.trans.txt")


def test_the_folder_inside_will_do(libri):
    inner = made(Published.librispeech, libri / "LibriSpeech", "test", LIBRI)
    assert texts(inner) == texts(made(Published.librispeech, libri, "test", LIBRI))


def test_dev_is_some_of_trains_speakers_where_the_corpus_has_none(libri):
    train, dev = (made(Published.librispeech, libri, s, LIBRI) for s in ("train", "dev"))
    assert len({cut.supervisions[0].speaker for cut in dev.cuts}) == 1
    people = [{cut.supervisions[0].speaker for cut in m.cuts} for m in (train, dev)]
    assert people[0] | people[1] == {"19", "26", "32"}
    assert not people[0] & people[1]
    assert "  dev: 1 speaker, 2 utterances" in "\n".join(train.notes)


def test_dev_may_be_a_subset(libri):
    splits = {"train": ["train-clean-5"], "dev": ["dev-clean-2"]}
    assert len(made(Published.librispeech, libri, "train", splits).cuts) == 6
    assert ids(made(Published.librispeech, libri, "dev", splits)) == ["84-198-0000", "84-198-0001"]


def test_a_recording_that_lhotse_passes_over_is_listed(libri, tmp_path):
    (tmp_path / "LibriSpeech/dev-clean-2/84/198/84-198-0001.flac").unlink()
    test = made(Published.librispeech, libri, "test", LIBRI)
    assert ids(test) == ["84-198-0000"]
    (remark,) = test.remarks
    assert (remark.utt_id, remark.what, remark.dropped) == ("84-198-0001", "missing audio", True)


def test_a_recording_without_transcript_is_listed(libri):
    lines(libri / "LibriSpeech/dev-clean-2/84/198/84-198.trans.txt", "84-198-0000 ONE TWO")
    test = made(Published.librispeech, libri, "test", LIBRI)
    assert ids(test) == ["84-198-0000"]
    assert [(r.utt_id, r.what, r.dropped) for r in test.remarks] == [
        ("84-198-0001", "no transcript", True)
    ]


def test_what_comes_to_librispeech_is_noticed(libri):
    """Also the target of a link, on a disk that is not there yet: no folder of names changes."""
    audio = next(libri.rglob("26-198-0001.flac"))
    (libri / "disk").mkdir()
    audio.rename(libri / "disk/26.flac")
    audio.symlink_to(libri / "disk/26.flac")
    aligned = '19-198-0001 ",SIX," "0.05,0.2,0.25"'
    lines(libri / "LibriSpeech/train-clean-5/19/198/19-198.alignment.txt", aligned)
    assert unnoticed(libri, lambda: made(Published.librispeech, libri, "train", LIBRI)) == []


@pytest.mark.parametrize(
    "more, says",
    [
        ("", r"84-198.trans.txt, line 3 is ''; it must be an id and words"),
        ("84-198-0002", r"line 3 is '84-198-0002'; it must be"),
        ("84-198-0001 SIX", "line 3: 84-198-0001 is listed twice"),
    ],
)
def test_an_odd_transcript_is_named_with_its_line(libri, more, says):
    said = "84-198-0000 ONE TWO", "84-198-0001 SIX"
    lines(libri / "LibriSpeech/dev-clean-2/84/198/84-198.trans.txt", *said, more)
    with pytest.raises(CorpusError, match=says):
        made(Published.librispeech, libri, "test", LIBRI)


def test_what_macos_keeps_beside_transcripts_is_named(libri):
    (libri / "LibriSpeech/dev-clean-2/84/198/._84-198.trans.txt").write_bytes(b"\0\5\xb0")
    with pytest.raises(CorpusError, match=r"\._84-198.trans.txt is no transcript but of macOS"):
        made(Published.librispeech, libri, "test", LIBRI)


def test_pauses_of_alignments_beside_transcripts_are_no_words(libri):
    lines(
        libri / "LibriSpeech/dev-clean-2/84/198/84-198.alignment.txt",
        '84-198-0000 ",ONE,,TWO," "0.05,0.2,0.25,0.45,0.5"',
    )
    test = made(Published.librispeech, libri, "test", LIBRI)
    aligned = test.cuts[0].supervisions[0].alignment["word"]
    assert [item.symbol for item in aligned] == ["ONE", "TWO"]
    assert corrected(test, libri, "84-198.alignment.txt")


def test_recordings_are_listened_to_as_those_of_a_folder(libri):
    silent = libri / "LibriSpeech/dev-clean-2/84/198/84-198-0000.flac"
    soundfile.write(silent, np.zeros(RATE), RATE)
    test = made(Published.librispeech, libri, "test", LIBRI)
    assert [(r.utt_id, r.what) for r in test.remarks] == [("84-198-0000", "only zeros")]


def test_a_recording_that_lhotse_cannot_read_is_named(libri):
    broken = libri / "LibriSpeech/dev-clean-2/84/198/84-198-0000.flac"
    broken.write_bytes(b"no sound")
    with pytest.raises(CorpusError, match=r"prepare_librispeech cannot read .*84-198-0000"):
        made(Published.librispeech, libri, "test", LIBRI)


def test_a_missing_subset_is_named_with_those_there(libri):
    splits = {"train": ["train-clean-100"], "dev": []}
    with pytest.raises(CorpusError, match=r"train-clean-100 is missing; there are dev-clean-2, tr"):
        made(Published.librispeech, libri, "train", splits)


def test_what_is_trained_on_is_not_tested_on():
    splits = {"train": ["a", "b"], "dev": [], "test": ["b"]}
    with pytest.raises(SettingsError, match="b is in train and in test"):
        made(Published.librispeech, Path("x"), "test", splits)


@pytest.mark.parametrize(
    "split, says", [("tset", "tset is not a split"), ("train", "is not a folder")]
)
def test_what_is_not_there_is_refused(tmp_path, split, says):
    with pytest.raises(CorpusError, match=says):
        made(Published.librispeech, tmp_path / "gone", split, LIBRI)


# --- yesno --------------------------------------------------------------------------------------


@pytest.fixture
def yesno(tmp_path) -> Path:
    layouts.yesno(tmp_path)
    return tmp_path


def test_yesno_has_its_words_in_its_names(yesno):
    whole = {
        s: made(Published.yesno, yesno, s, dev_by=SplitBy.utterances) for s in ("train", "dev")
    }
    test = made(Published.yesno, yesno, "test")
    assert [len(m.cuts) for m in (*whole.values(), test)] == [27, 3, 30]
    assert texts(test)["0_0_0_0_0_1_0_0"] == ("waves_yesno", "NO NO NO NO NO YES NO NO")
    assert len({*ids(whole["train"]), *ids(whole["dev"]), *ids(test)}) == 60
    assert test.tables == [yesno / "waves_yesno"]
    readable(test, yesno)


def test_a_yesno_that_is_not_whole_is_refused(yesno):
    (yesno / "waves_yesno/0_0_0_0_0_0_0_0.wav").unlink()
    with pytest.raises(CorpusError, match=r"prepare_yesno cannot read .*waves_yesno"):
        made(Published.yesno, yesno, "test")


@pytest.mark.parametrize("change", ["unlink", "touch"])
def test_a_yesno_that_is_no_longer_whole_is_noticed(yesno, change):
    """Also of a recording of another split, as the names are dealt out in their order."""
    write(made(Published.yesno, yesno, "test"), yesno / "test.jsonl.gz")
    listed = audio_table(yesno / "test.jsonl.gz")
    assert changed_files(listed, keep=False) == []
    name = {"unlink": "0_0_0_0_0_0_0_0.wav", "touch": "0_0_0_0_0_0_0_1.wav"}[change]
    getattr(yesno / "waves_yesno" / name, change)()
    assert changed_files(listed, keep=False) == [str(yesno / "waves_yesno")]


# --- AN4 ----------------------------------------------------------------------------------------


@pytest.fixture(params=[".sph", ".wav", ".SPH"])
def an4(tmp_path, request) -> Path:
    people = {"train": ("fash", "fbbh"), "test": ("fcaw",)}
    parts = {subset: dict.fromkeys(names, ["ONE TWO"] * 2) for subset, names in people.items()}
    layouts.an4(tmp_path, parts, suffix=request.param)
    return tmp_path


def test_an4_is_read_by_its_lists(an4):
    test = made(Published.an4, an4, "test")
    assert texts(test) == {
        "cen0-fcaw-b": ("fcaw", "ONE TWO"),
        "cen1-fcaw-b": ("fcaw", "ONE TWO"),
    }
    train, dev = (made(Published.an4, an4, s) for s in ("train", "dev"))
    assert {words for _, words in texts(train).values()} == {"ONE TWO"}
    assert sorted({speaker for m in (train, dev) for speaker, _ in texts(m).values()}) == [
        *("fash", "fbbh")
    ]
    readable(test, an4)
    assert corrected(test, an4, "an4_test.transcription", "an4_test.fileids")


def test_an4_drops_and_lists_a_recording_that_is_not_there(an4):
    for path in an4.rglob("cen1-fcaw-b.*"):
        path.unlink()
    test = made(Published.an4, an4, "test")
    assert [(r.utt_id, r.what) for r in test.remarks] == [("cen1-fcaw-b", "missing audio")]


@pytest.mark.parametrize("an4", [".wav"], indirect=True)
def test_what_comes_to_an4_is_noticed(an4):
    """Also a recording in a format that is preferred, and one on a disk that is not there yet."""
    audio = next(an4.rglob("cen1-fash-b.*"))
    (an4 / "disk").mkdir()
    audio.rename(an4 / "disk/cen1")
    audio.symlink_to(an4 / "disk/cen1")
    layouts.record(next(an4.rglob("cen0-fash-b.*")).with_suffix(".flac"), layouts.noise(""), RATE)
    assert unnoticed(an4, lambda: made(Published.an4, an4, "train")) == []


def test_an4_without_headers_is_refused(an4):
    for path in an4.rglob("cen1-fcaw-b.*"):
        path.rename(path.with_suffix(".raw"))
    with pytest.raises(CorpusError, match=r"cen1-fcaw-b.raw has no header"):
        made(Published.an4, an4, "test")


@pytest.mark.parametrize(
    "said, says",
    [("ONE TWO", r"line 1: 'ONE TWO' does not end in"), ("ONE (x)", "no transcript of cen0")],
)
def test_an4s_lists_must_agree(an4, said, says):
    lines(an4 / "an4/etc/an4_test.transcription", said)
    with pytest.raises(CorpusError, match=says):
        made(Published.an4, an4, "test")


def test_another_folder_is_not_an4(tmp_path):
    with pytest.raises(CorpusError, match=r"an4_test.fileids is missing; CORPUS_DIR must be"):
        made(Published.an4, tmp_path, "test")


# --- Switchboard --------------------------------------------------------------------------------

SWBD = {"train": ["swbd"], "dev": [], "test": ["eval2000_swbd"], "test_ch": ["eval2000_callhome"]}


@pytest.fixture
def swbd(tmp_path) -> Path:
    """Two conversations for training; one of each half of Hub5'00."""
    side = ["[laughter-one] two <b_aside> th[ree]-", "six_1 [noise]"]
    layouts.switchboard(tmp_path, {"2001": (side, side), "2005": (side, side)})
    halves = ["%um, <contraction e_form=\"[do=>do][not=>n't]\">don't stop --"], ["((six)) two."]
    layouts.hub5(tmp_path, {"sw_4390": halves, "en_4156": halves})
    return tmp_path


def test_switchboards_sides_are_speakers_of_their_own(swbd):
    train, dev = (made(Published.swbd, swbd, s, SWBD) for s in ("train", "dev"))
    said = texts(train) | texts(dev)
    assert sorted(said.values()) == [
        (f"sw0{number}-{side}", words)
        for number in ("2001", "2005")
        for side in "AB"
        for words in ("ONE TWO TH-", "SIX")
    ]  # silences are not utterances
    for row in readable(train, swbd):
        (spoken,) = row["supervisions"]
        assert row["channel"] == spoken["channel"] == "AB".index(spoken["speaker"][-1])
    assert corrected(train, swbd, "sw2001A*trans.text", "sw2005B*trans.text")


def test_a_segment_holds_the_samples_of_its_time_and_side(swbd):
    train = made(Published.swbd, swbd, "train", SWBD)
    for cut in train.cuts:
        both_TC, _ = soundfile.read(cut.recording.sources[0].source, dtype="float32")
        first = round(cut.start * RATE)
        wave_T = both_TC[first : first + cut.num_samples, cut.channel]
        with audio_backend("LibsndfileBackend"):
            assert np.array_equal(cut.load_audio()[0], wave_T)


def test_hub5_has_two_halves(swbd):
    for split, name in (("test", "sw_4390"), ("test_ch", "en_4156")):
        test = made(Published.swbd, swbd, split, SWBD)
        assert texts(test) == {
            f"{name}-0": (f"{name}-A", "UM DON'T STOP"),
            f"{name}-1": (f"{name}-B", "SIX TWO"),
        }
        readable(test, swbd)
        assert corrected(test, swbd, f"{name}.txt")


def test_a_segment_that_sticks_out_ends_with_its_recording(swbd):
    (table,) = swbd.rglob("sw2001B*trans.text")
    *_, last = table.read_text().split("\n")[:-1]
    name, start, end, *_ = last.split()
    table.write_text(table.read_text().replace(end, "99.0"))
    cuts = [c for s in ("train", "dev") for c in made(Published.swbd, swbd, s, SWBD).cuts]
    (cut,) = [cut for cut in cuts if cut.id == name]
    assert cut.start == float(start)
    assert cut.end == pytest.approx(cut.recording.duration)


def test_transcripts_of_recordings_that_are_not_there_are_counted(swbd):
    (swbd / "LDC2002S09/hub5e_00/english/sw_4390.sph").unlink()
    with pytest.raises(CorpusError, match="no utterances in eval2000_swbd"):
        made(Published.swbd, swbd, "test", SWBD)
    both = made(Published.swbd, swbd, "test", SWBD | {"test": ["eval2000"]})
    assert ids(both) == ["en_4156-0", "en_4156-1"]
    assert [r.what for r in both.remarks if r.dropped] == ["missing audio"] * 2


@pytest.mark.parametrize("split, parts", [("train", ["swbd"]), ("test", ["eval2000"])])
def test_what_comes_to_switchboard_is_noticed(swbd, split, parts):
    assert unnoticed(swbd, lambda: made(Published.swbd, swbd, split, SWBD | {split: parts})) == []


@pytest.mark.parametrize("part", ["LDC97S62", "swb_ms98_transcriptions"])
def test_a_missing_part_of_switchboard_is_named(swbd, part):
    (swbd / part).rename(swbd / "elsewhere")
    with pytest.raises(
        CorpusError, match=rf"{part} is missing; CORPUS_DIR must hold LDC97S62, swb"
    ):
        made(Published.swbd, swbd, "train", SWBD)


@pytest.mark.parametrize(
    "said, words",
    [  # as Kaldi's swbd1_map_words.pl maps its own examples
        ("[laughter-story]", "STORY"),
        ("[it'n/isn't]", "IT'N"),
        ("[lem[guini]-/linguini]", "LEM-"),
        ("-[an]y", "-Y"),
        ("ab[solute]-", "AB-"),
        ("{yuppiedom}", "YUPPIEDOM"),
        ("them_1 them_1's", "THEM THEM'S"),
        ("[silence] [noise] [vocalized-noise] [laughter] <b_aside> <e_aside>", ""),
        ("yeah  i don't know", "YEAH I DON'T KNOW"),
    ],
)
def test_the_markup_of_the_ms98_transcripts_is_not_spoken(said, words):
    assert ms98_text(said) == words


@pytest.mark.parametrize(
    "said, words",
    [
        ("what to you mean? {breath} oh, about", "WHAT TO YOU MEAN OH ABOUT"),
        (
            "they're not that thrilled about it, but %uh",
            "THEY'RE NOT THAT THRILLED ABOUT IT BUT UH",
        ),
        ("&Bob's ((going to)) ~AT&T -- uh-huh", "BOB'S GOING TO AT&T UH-HUH"),
        ("<contraction e_form=\"[we=>we]['re=>are]\">we're starting", "WE'RE STARTING"),
        ("{laugh} --", ""),
    ],
)
def test_the_markup_of_hub5_transcripts_is_not_spoken(said, words):
    assert hub5_text(said) == words
