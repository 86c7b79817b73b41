"""data.speeds: a speed changes all times and frequencies by one factor, and the names."""

from pathlib import Path

import numpy as np
import pytest
from lhotse import CutSet, MonoCut, SupervisionSegment, validate
from lhotse.supervision import AlignmentItem
from noises import in_folder, lexicon
from toy import logmel

from asr_train.align.table import true_phones
from asr_train.data.corpus import (
    CorpusError,
    PreparedSplit,
    whole_recording,
    write,
    write_flac,
)
from asr_train.data.features import extract
from asr_train.data.folder import folder as read
from asr_train.data.speeds import add_speeds, change_volumes
from asr_train.files import read_jsonl
from asr_train.schema import SettingsError

RATE, HZ, SECONDS = 16000, 440.0, 2.0
FACTORS = [0.9, 1.1]


def tone(folder: Path, name: str = "bob-one") -> MonoCut:
    """Two seconds of 440 Hz, labelled as two phones."""
    wave_T = 0.5 * np.sin(2 * np.pi * HZ * np.arange(round(SECONDS * RATE)) / RATE)
    write_flac(folder / f"{name}.flac", wave_T, RATE, "PCM_16")
    recording = whole_recording(name, folder / f"{name}.flac", RATE, len(wave_T))
    phones = [AlignmentItem("AH", 0.0, 0.5), AlignmentItem("N", 0.5, 1.5)]
    said = SupervisionSegment(
        name, name, 0.0, SECONDS, text="ONE", speaker="bob", alignment={"phone": phones}
    )
    return MonoCut(name, 0.0, SECONDS, 0, [said], recording=recording)


@pytest.fixture
def made(tmp_path) -> PreparedSplit:
    return add_speeds(PreparedSplit("train", [tone(tmp_path)]), [1.0, *FACTORS], new_speakers=True)


def pitch_hz(wave_T: np.ndarray) -> float:
    middle_T = wave_T[len(wave_T) // 4 : -len(wave_T) // 4]
    power_H = np.abs(np.fft.rfft(middle_T * np.hanning(len(middle_T)), 1 << 18))
    return float(power_H.argmax()) * RATE / (1 << 18)


def test_names_have_no_dot_and_speakers_are_others(made):
    assert [cut.id for cut in made.cuts] == ["bob-one", "bob-one-sp09", "bob-one-sp11"]
    assert [cut.supervisions[0].speaker for cut in made.cuts] == ["bob", "bob-sp09", "bob-sp11"]
    for cut in made.cuts:
        (said,) = cut.supervisions
        assert cut.id == said.id == cut.recording.id == said.recording_id


def test_a_copy_whose_id_is_too_long_for_a_tar_is_refused(tmp_path):
    long = PreparedSplit("train", [tone(tmp_path, "b" * 86)])
    with pytest.raises(CorpusError, match=r"b-sp09 at speed 0\.9 has an id of 91 bytes"):
        add_speeds(long, [0.9], new_speakers=True)


def test_copies_can_be_told_by_who_counts_words(made):
    said = [cut.supervisions[0].custom for cut in made.cuts]
    assert said == [None, {"speed": 0.9}, {"speed": 1.1}]


def test_speakers_may_stay_who_they_are(tmp_path):
    made = add_speeds(PreparedSplit("train", [tone(tmp_path)]), [1.0, 0.9], new_speakers=False)
    assert {cut.supervisions[0].speaker for cut in made.cuts} == {"bob"}


def test_duration_and_pitch_go_with_the_factor(made):
    for cut, factor in zip(made.cuts, [1.0, *FACTORS], strict=True):
        (wave_T,) = cut.load_audio()
        assert len(wave_T) == cut.num_samples == round(SECONDS * RATE / factor)
        assert cut.supervisions[0].duration == pytest.approx(SECONDS / factor, abs=1 / RATE)
        assert pitch_hz(wave_T) == pytest.approx(HZ * factor, rel=1e-3)


def test_true_phones_move_with_the_audio(made, tmp_path):
    write(made, tmp_path / "train.jsonl.gz")
    for row, factor in zip(read_jsonl(tmp_path / "train.jsonl.gz"), [1.0, *FACTORS], strict=True):
        ah, n = true_phones(row)
        assert ah[1:] == pytest.approx((0.0, 0.5 / factor), abs=2 / RATE)
        assert n[1:] == pytest.approx((0.5 / factor, 2.0 / factor), abs=2 / RATE)


def test_lhotse_reads_what_is_written_and_features_are_the_same_again(made, tmp_path):
    write(made, tmp_path / "train.jsonl.gz")
    settings = logmel(sample_rate=RATE)
    stored = []
    for name in ("a", "b"):
        cuts = CutSet.from_file(tmp_path / "train.jsonl.gz")
        validate(cuts, read_data=True)
        rows, _ = extract(list(cuts), settings, tmp_path / f"{name}.h5")
        stored.append((tmp_path / f"{name}.h5").read_bytes())
    assert stored[0] == stored[1]
    assert [row["features"]["num_frames"] for row in rows] == [200, 222, 182]


def test_an_id_that_is_taken_is_refused(tmp_path):
    cuts = [tone(tmp_path, "bob"), tone(tmp_path, "bob-sp09")]
    with pytest.raises(CorpusError, match="bob-sp09 is an utterance id of the corpus already"):
        add_speeds(PreparedSplit("train", cuts), [1.0, 0.9], new_speakers=True)


@pytest.mark.parametrize("speeds", [[0.9, 1.1], [1.0, 1.0], [1.0, 3.0], []])
def test_speeds_that_cannot_be_meant_are_refused(speeds):
    settings = in_folder()
    settings.speeds = speeds
    with pytest.raises(SettingsError, match=r"^speeds"):
        settings.__post_init__()


def test_real_speech_at_three_speeds(shared_data, tmp_path):
    root = shared_data("cmu_arctic")
    settings = in_folder(
        dir=str(root),
        test_speakers=["bdl"],
        dev_by=in_folder().folder.dev_by.utterances,
        dev_share=0.99,
        phone_labels="phone_labels_slt.tsv",
    )
    plain = read(settings, lexicon(tmp_path), "train", tmp_path)
    seconds = sum(cut.duration for cut in plain.cuts)
    made = add_speeds(plain, [1.0, *FACTORS], new_speakers=True)
    total = seconds * (1 + sum(1 / factor for factor in FACTORS))
    assert sum(cut.duration for cut in made.cuts) == pytest.approx(total, rel=1e-4)
    for cut in made.cuts:
        assert cut.load_audio().shape == (1, cut.num_samples)
        assert cut.supervisions[0].alignment["phone"][-1].end <= cut.duration + 0.05


def test_a_volume_is_a_factor_of_amplitudes_that_id_and_seed_determine(made, tmp_path):
    before = [cut.load_audio() for cut in made.cuts]
    change_volumes(made, [0.125, 2.0], seed=1)
    factors = []
    for old, cut in zip(before, made.cuts, strict=True):
        new = cut.load_audio()
        factors.append(float(np.vdot(old, new) / np.vdot(old, old)))
        np.testing.assert_allclose(new, factors[-1] * old, atol=1e-6)
    assert len(set(factors)) == 3
    assert 0.125 <= min(factors) < max(factors) <= 2.0
    assert [cut.id for cut in made.cuts] == ["bob-one", "bob-one-sp09", "bob-one-sp11"]
    again = PreparedSplit("train", [tone(tmp_path)])
    change_volumes(again, [0.125, 2.0], seed=1)
    np.testing.assert_array_equal(again.cuts[0].load_audio(), made.cuts[0].load_audio())
    change_volumes(again, [0.125, 2.0], seed=2)
    assert not np.allclose(again.cuts[0].load_audio(), made.cuts[0].load_audio())
