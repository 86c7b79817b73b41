"""data.intake: what cannot be used is dropped and listed, with its reason."""

from collections.abc import Callable

import numpy as np
import pytest
import soundfile
from layouts import record_piped
from lhotse import CutSet
from noises import RATE, Noises, folders, ids, lexicon

from asr_train.data.check import read_split
from asr_train.data.corpus import CorpusError, PreparedSplit, write
from asr_train.data.intake import Row, take
from asr_train.schema import Channel, LowRate


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


def telephone(folder: Noises) -> None:
    path = folder.root / folder.rows[0][2]
    soundfile.write(path, soundfile.read(path)[0], RATE, subtype="GSM610")
    folder.rows[0][3] = str(soundfile.info(path).duration)


def piped(folder: Noises) -> None:
    path = folder.root / folder.rows[0][2]
    flac = path.with_suffix(".flac")
    record_piped(flac, soundfile.read(path)[0], RATE)
    folder.rows[0][2] = flac.relative_to(folder.root).as_posix()


def no_bytes(folder: Noises) -> None:
    (folder.root / folder.rows[0][2]).write_bytes(b"")


def no_path(folder: Noises) -> None:
    """Whatever error the system raises, as for a folder that must not be read."""
    folder.rows[0][2] = "x" * 300


def half_as_fast(folder: Noises) -> None:
    soundfile.write(folder.root / folder.rows[0][2], np.ones(RATE // 4), RATE // 2)


def numbers(folder: Noises) -> None:
    folder.rows[0][4] = "one 108"


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
        (no_bytes, "unreadable audio", "0.wav is empty, it has 0 bytes"),
        (no_path, "unreadable audio", "File name too long"),
        (
            half_as_fast,
            "low sample rate",
            "4000 Hz, below feats.sample_rate 8000; if most have no ",
        ),
        (numbers, "with digits", "108 has digits; write what was said, or set corpus.folder."),
        (no_sound_file, "unreadable audio", "0.wav"),
        (cut_short, "unreadable audio", "0.flac"),
        (telephone, "unreadable audio", "is GSM610, of which no part can be read"),
        (piped, "unreadable audio", "0.flac does not say how long it is"),
        (no_words, "empty transcript", "has no words"),
        (told_longer, "other duration", "0.500 s but duration_seconds is 0.560"),
        (lasting(2.1), "too long", "2.100 s, but corpus.folder.max_seconds is 2.0"),
        (lasting(0.09), "too short", "0.090 s, but corpus.folder.min_seconds is 0.1"),
        (full_of(0.0), "only zeros", "all 4000 samples are zero"),
        (full_of(np.nan), "not finite", "4000 of 4000 samples are NaN or infinite"),
        (full_of(-np.inf), "not finite", "4000 of 4000 samples are NaN or infinite"),
        (full_of(-1e25), "out of range", "0.wav has a sample of 1e+25, where full scale is 1"),
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


def test_a_slow_recording_is_resampled_where_the_settings_say_so(folder, tmp_path):
    half_as_fast(folder)
    folder.overrides["low_rate"] = LowRate.resample
    made = folder.made()
    assert [note for note in made.notes if "Hz" in note] == [
        f"  sample rates in train: {RATE // 2} Hz: 1, {RATE} Hz: 1",
        f"  1 of 2 utterances of train have only {RATE // 2} Hz: their upper bands are empty",
    ]
    write(made, tmp_path / "train.jsonl.gz")
    assert f"minutes at {RATE // 2}, {RATE} Hz" in str(read_split(tmp_path / "train.jsonl.gz"))
    cuts = list(CutSet.from_file(tmp_path / "train.jsonl.gz"))
    assert [cut.sampling_rate for cut in cuts] == [RATE, RATE]
    assert [cut.load_audio().shape for cut in cuts] == [(1, RATE // 2)] * 2


def test_what_was_changed_in_transcripts_is_said_with_three_examples(folder):
    for i in range(4):
        folder.add(f"ann-{i}", "ann", f"One, {'two ' * i}six.")
    (note,) = [note for note in folder.made().notes if "changed by" in note]
    assert note == (
        "  4 of 6 transcripts of train changed by words-3 (corpus.folder.normaliser=words), for "
        "example 'One, six.' is ONE SIX; 'One, two six.' is ONE TWO SIX; "
        "'One, two two six.' is ONE TWO TWO SIX"
    )


def test_a_split_of_which_nothing_is_left_is_refused(folder, tmp_path):
    for row in folder.rows:
        row[4] = ""
    with pytest.raises(CorpusError, match=r"is left; dropped: 2 empty transcript \(ann-one: the"):
        write(folder.made(), tmp_path / "train.jsonl.gz")


# --- parts of recordings ------------------------------------------------------------------------


def part(folder: Noises, seconds=0.25, settings=None, **changes) -> PreparedSplit:
    """Prepare a quarter of the first recording's half second, from 0.1 s on."""
    audio = folder.root / folder.rows[0][2]
    row = Row("a", "ann", audio, "0.wav", seconds, "ONE", "line 1", **{"start": 0.1, **changes})
    return take("train", [row], settings or folders(), lexicon(folder.root), folder.root)


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


def test_the_channel_that_is_meant_is_listened_to(folder):
    silent_T, loud_T = np.zeros(RATE // 2), np.full(RATE // 2, 0.5)
    soundfile.write(folder.root / folder.rows[0][2], np.stack([silent_T, loud_T], 1), RATE)
    (cut,) = part(folder, channel=1).cuts
    np.testing.assert_allclose(cut.load_audio(), 0.5, atol=1e-4)
    assert [remark.what for remark in part(folder, channel=0).remarks] == ["only zeros"]


def test_parts_of_several_channels_are_mixed_or_named_by_them(folder, tmp_path):
    wave_TC = np.stack([np.linspace(0, 0.5, RATE // 2), np.full(RATE // 2, 0.25)], 1)
    soundfile.write(folder.root / folder.rows[0][2], wave_TC, RATE)
    (cut,) = part(folder, settings=folders(channel=Channel.mix)).cuts
    first = round(0.1 * RATE)
    expected_T = wave_TC.mean(1)[first : first + RATE // 4]
    np.testing.assert_allclose(cut.load_audio()[0], expected_T, atol=1e-4)
    write(PreparedSplit("train", [cut]), tmp_path / "train.jsonl.gz")
    names = {part(folder, channel=channel).cuts[0].recording.id for channel in (0, 1)}
    assert names == {"0-0", "0-1"}


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
