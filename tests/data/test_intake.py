"""data.intake: what cannot be used is dropped and listed, by what is wrong with it."""

from collections.abc import Callable

import numpy as np
import pytest
import soundfile
from noises import RATE, Noises, folders, ids, lexicon

from asr_train.data.corpus import CorpusError, Made, write
from asr_train.data.intake import Row, take


def no_audio(folder: Noises) -> None:
    (folder.root / folder.rows[0][2]).unlink()


def no_sound_file(folder: Noises) -> None:
    (folder.root / folder.rows[0][2]).write_bytes(b"RIFF but not really")


def cut_short(folder: Noises) -> None:
    path = folder.root / folder.rows[0][2]
    flac = path.with_suffix(".flac")
    soundfile.write(flac, soundfile.read(path)[0], RATE)
    flac.write_bytes(flac.read_bytes()[:-2000])
    folder.rows[0][2] = flac.relative_to(folder.root).as_posix()


def no_words(folder: Noises) -> None:
    folder.rows[0][4] = "  "


def told_longer(folder: Noises) -> None:
    folder.rows[0][3] = "0.56"


def lasting(seconds: float) -> Callable[[Noises], None]:
    def spoil(folder: Noises) -> None:
        soundfile.write(folder.root / folder.rows[0][2], np.ones(round(seconds * RATE)), RATE)
        folder.rows[0][3] = str(seconds)

    return spoil


def full_of(value: float) -> Callable[[Noises], None]:
    def spoil(folder: Noises) -> None:
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
    write(made, tmp_path / "train.jsonl.gz")
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
        write(folder.made(), tmp_path / "train.jsonl.gz")
    assert not (tmp_path / "train.jsonl.gz").exists()
    assert "ann-one" in (tmp_path / "train.dropped.tsv").read_text()


def test_a_split_of_which_nothing_is_left_is_refused(folder, tmp_path):
    for row in folder.rows:
        row[4] = ""
    with pytest.raises(CorpusError, match="no utterance is left; dropped: 2 empty transcript"):
        write(folder.made(), tmp_path / "train.jsonl.gz")


# --- parts of recordings ------------------------------------------------------------------------


def part(folder: Noises, seconds=0.25, **changes) -> Made:
    """A quarter of the first recording's half second, from 0.1 s on."""
    audio = folder.root / folder.rows[0][2]
    row = Row("a", "ann", audio, "0.wav", seconds, "ONE", "line 1", **{"start": 0.1, **changes})
    return take("train", [row], folders(), lexicon(folder.root), folder.root)


def test_a_part_holds_the_samples_of_its_time(folder):
    (cut,) = part(folder).cuts
    whole_T, _ = soundfile.read(folder.root / folder.rows[0][2], dtype="float32")
    first = round(0.1 * RATE)
    assert np.array_equal(cut.load_audio()[0], whole_T[first : first + RATE // 4])
    assert (cut.recording.id, cut.supervisions[0].recording_id) == ("0", "0")


def test_a_part_that_ends_a_little_late_ends_with_the_audio(folder):
    (cut,) = part(folder, seconds=0.42).cuts
    assert cut.duration == pytest.approx(0.4)
    assert len(cut.load_audio()[0]) == round(0.4 * RATE)


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"start": 0.4}, "outside the audio"),
        ({"start": -0.1}, "outside the audio"),
        ({"seconds": 0.0}, "outside the audio"),
        ({"channel": 1}, "missing channel"),
        ({"seconds": 0.05}, "too short"),
    ],
)
def test_a_part_that_cannot_be_is_dropped(folder, changes, what):
    made = part(folder, **changes)
    assert made.cuts == []
    assert [remark.what for remark in made.remarks] == [what]


def test_a_part_of_silence_is_dropped_though_the_recording_is_not_silent(folder):
    wave_T = np.ones(RATE // 2)
    wave_T[round(0.05 * RATE) : round(0.4 * RATE)] = 0
    soundfile.write(folder.root / folder.rows[0][2], wave_T, RATE)
    assert [remark.what for remark in part(folder).remarks] == ["only zeros"]
