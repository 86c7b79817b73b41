"""Log-mel equals Kaldi's for any length; features are stored once and read back unchanged."""

import os
import shutil
from copy import deepcopy
from pathlib import Path

import h5py
import numpy as np
import pytest
import soundfile
import torch
import torchaudio
from held import held
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment, validate
from toy import logmel as settings

from asr_train.data.features import (
    OPEN_FILES,
    Sums,
    cepstra,
    extract,
    open_feats,
    open_h5,
    spliced,
    with_deltas,
    write_h5,
    write_index,
)
from asr_train.data.intake import MAX_PEAK
from asr_train.data.logmel import LogMel
from asr_train.files import read_jsonl, write_json, write_jsonl
from asr_train.frames import num_frames
from asr_train.schema import NormBy, NormSettings


def noise(samples, seed=0):
    rng = np.random.default_rng(seed)
    return (0.1 * rng.standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_mels": 64},
        {"sample_rate": 8000, "num_mels": 24, "low_hz": 60.0, "high_hz": -200.0},
        {"window_seconds": 0.032, "shift_seconds": 0.0125},
        {"preemphasis": 0.0},
    ],
)
@pytest.mark.parametrize("samples", [512, 1234, 16000, 16000 * 7 + 11])
def test_log_mel_agrees_with_torchaudio(change, samples):
    wanted, wave_N = settings(**change), noise(samples)
    theirs_TF = torchaudio.compliance.kaldi.fbank(
        torch.from_numpy(wave_N)[None] * 32768,
        num_mel_bins=wanted.num_mels,
        sample_frequency=wanted.sample_rate,
        frame_length=wanted.window_seconds * 1000,
        frame_shift=wanted.shift_seconds * 1000,
        low_freq=wanted.low_hz,
        high_freq=wanted.high_hz,
        preemphasis_coefficient=wanted.preemphasis,
        dither=0.0,
        snip_edges=False,
    ).numpy()
    np.testing.assert_allclose(LogMel(wanted)(wave_N), theirs_TF, atol=1e-3)


def test_a_window_of_a_fraction_of_samples_is_cut_off_as_kaldis():
    test_log_mel_agrees_with_torchaudio({"sample_rate": 44100, "high_hz": 8000.0}, 16000)


@pytest.mark.parametrize("samples", [0, 79, 80, 159, 240, 399])
def test_short_recordings_have_the_frames_that_the_rule_says(samples):
    feats_TF = LogMel(settings())(noise(samples))
    assert feats_TF.shape == (num_frames(samples, 160), 20)
    assert np.isfinite(feats_TF).all()


def test_digital_silence_has_finite_features():
    assert np.isfinite(LogMel(settings())(np.zeros(16000, np.float32))).all()


def test_dither_is_the_same_for_the_same_utterance_only():
    extractor = LogMel(settings(dither=1.0))
    wave_N = np.zeros(16000, np.float32)
    assert np.array_equal(extractor(wave_N, "a"), extractor(wave_N, "a"))
    assert not np.array_equal(extractor(wave_N, "a"), extractor(wave_N, "b"))


def test_too_many_bins_for_the_spectrum_are_refused():
    drifts = "shift_seconds 0.01 is 110.25 samples at .*sample_rate 11025.*sample_rate=11000"
    with pytest.raises(ValueError, match=drifts):
        settings(sample_rate=11025)
    with pytest.raises(ValueError, match="num_mels is 200, but"):
        LogMel(settings(num_mels=200))


def test_cepstra_are_kaldis_mfccs():
    wave_N = noise(16000)
    theirs_TC = torchaudio.compliance.kaldi.mfcc(
        torch.from_numpy(wave_N)[None] * 32768,
        num_ceps=13,
        num_mel_bins=23,
        dither=0.0,
        snip_edges=False,
    ).numpy()
    ours_TC = cepstra(LogMel(settings(num_mels=23))(wave_N), 13)
    np.testing.assert_allclose(ours_TC, theirs_TC, atol=2e-3)


def test_deltas_inside_are_torchaudios():
    feats_TF = LogMel(settings())(noise(8000))
    delta_FT = torchaudio.functional.compute_deltas(torch.from_numpy(feats_TF.T))
    second_TF = torchaudio.functional.compute_deltas(delta_FT).numpy().T
    ours = with_deltas(feats_TF, 2)
    assert ours.shape == (50, 60)
    np.testing.assert_allclose(ours[:, :20], feats_TF)
    np.testing.assert_allclose(ours[:, 20:40], delta_FT.numpy().T, atol=1e-4)
    np.testing.assert_allclose(ours[2:-2, 40:], second_TF[2:-2], atol=1e-4)


def test_second_deltas_at_the_edges_are_kaldis():
    """Kaldi's DeltaFeatures: nine taps on the features, whose first and last frame are repeated."""
    taps = {0: -10, 1: -4, 2: 1, 3: 4, 4: 4}  # times 100; the same for j and -j
    feats_TF = LogMel(settings())(noise(1600))
    last = len(feats_TF) - 1
    for t in range(len(feats_TF)):
        by_hand = sum(taps[abs(j)] / 100 * feats_TF[min(max(t + j, 0), last)] for j in range(-4, 5))
        np.testing.assert_allclose(with_deltas(feats_TF, 2)[t, 40:], by_hand, atol=1e-4)


def test_sums_of_halves_are_the_sums_of_the_whole():
    x_TF = np.random.default_rng(0).standard_normal((100, 3))
    whole, halves = Sums.of(x_TF), Sums.of(x_TF[:30]) + Sums.of(x_TF[30:])
    assert whole.frames == halves.frames
    np.testing.assert_allclose(whole.sum_F, halves.sum_F)
    np.testing.assert_allclose(whole.squares_F, halves.squares_F)


@pytest.fixture
def corpus(tmp_path):
    """Makes cuts of noise: (id, speaker, samples, rate, channels, gain) each."""

    def make(*rows):
        cuts = []
        for i, (name, speaker, samples, rate, channels, gain) in enumerate(rows):
            wave = np.stack([gain * noise(samples, i)] * channels, 1)
            soundfile.write(tmp_path / f"{name}.wav", wave, rate, subtype="FLOAT")
            recording = Recording.from_file(tmp_path / f"{name}.wav", recording_id=name)
            spoken = SupervisionSegment(
                name, name, 0.0, recording.duration, text="ONE", speaker=speaker
            )
            cut = MonoCut(name, 0.0, recording.duration, 0, recording=recording)
            cut.supervisions = [spoken]
            cuts.append(cut)
        return cuts

    return make


def stored(cuts, folder, wanted):
    manifest = folder / "feats" / "dev.jsonl.gz"
    part = folder / "feats" / "dev" / "part-00000.h5"
    rows, about = extract(cuts, wanted, part)
    write_index(manifest, wanted, [part], [about])
    write_jsonl(manifest, rows)
    return manifest


TWO = [("a-1", "a", 16000, 16000, 1, 1.0), ("b-1", "b", 9000, 16000, 1, 0.5)]


def test_stored_features_are_read_back(corpus, tmp_path):
    cuts = corpus(*TWO, ("a-2", "a", 5000, 16000, 1, 2.0))
    feats = open_feats(stored(cuts, tmp_path, settings()))
    assert [u.id for u in feats] == ["a-1", "b-1", "a-2"]
    for utterance, cut in zip(feats, cuts, strict=True):
        wave_N = cut.load_audio()[0]
        assert np.array_equal(feats.load(utterance), LogMel(settings())(wave_N))
        assert utterance.frames == len(feats.load(utterance))


def test_another_manifest_is_named(tmp_path):
    write_json(tmp_path / "dev/index.json", {"parts": []})
    with pytest.raises(ValueError, match=r"dev\.jsonl\.gz has no features; name feats/SPLIT"):
        open_feats(tmp_path / "dev.jsonl.gz")


def test_features_that_were_moved_are_read_where_they_are(corpus, tmp_path):
    """Not where their rows say that they were: another run may have written there since."""
    manifest = stored(corpus(*TWO), tmp_path, settings())
    before = [open_feats(manifest).load(u) for u in open_feats(manifest)]
    shutil.copytree(tmp_path / "feats", tmp_path / "moved" / "feats")
    shutil.rmtree(tmp_path / "feats")
    moved = open_feats(tmp_path / "moved" / "feats" / manifest.name)
    assert all(np.array_equal(x, moved.load(u)) for x, u in zip(before, moved, strict=True))


def test_an_utterance_is_held_in_a_fraction_of_its_rows_memory(corpus, tmp_path):
    manifest = stored(corpus(*TWO), tmp_path, settings())
    row = read_jsonl(manifest)[0]
    write_jsonl(manifest, ({**row, "id": f"u{n}"} for n in range(100)))
    assert open_feats(manifest).utterances[7].row == {**row, "id": "u7"}
    assert held(lambda: open_feats(manifest))[0] < held(lambda: read_jsonl(manifest))[0] / 2


def test_more_files_can_be_read_than_may_be_open(tmp_path):
    """960 hours are 1,407 files, but a process may usually have 1,024."""
    write_h5(tmp_path / "0.h5", {"u": np.full(1, 7.0)})
    for n in range(1, OPEN_FILES + 20):
        shutil.copy(tmp_path / "0.h5", tmp_path / f"{n}.h5")
    for n in (*range(OPEN_FILES + 20), 0):
        assert open_h5(str(tmp_path / f"{n}.h5"), os.getpid())["u"][:] == 7
    names = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
    assert sum(name.startswith(str(tmp_path)) for name in names) <= OPEN_FILES


def test_lhotse_loads_the_same_features(corpus, tmp_path):
    """Of a whole recording, and of a part that begins within one."""
    cuts = corpus(*TWO)
    cuts[1].start, cuts[1].duration = 0.2, 0.3
    cuts[1].supervisions[0].duration = 0.3
    manifest = stored(cuts, tmp_path, settings())
    ours = open_feats(manifest)
    assert [u.frames for u in ours] == [100, 30]
    for cut, utterance in zip(CutSet.from_file(manifest), ours, strict=True):
        validate(cut)
        assert np.array_equal(cut.load_features(), ours.load(utterance))


@pytest.mark.parametrize("by", [NormBy.speaker, NormBy.utterance])
def test_normalised_features_have_mean_zero_and_variance_one(corpus, tmp_path, by):
    feats = open_feats(stored(corpus(*TWO), tmp_path, settings()))
    normalise = feats.normaliser(NormSettings(by=by, variance=True))
    for utterance in feats:  # each speaker has one utterance here
        x_TF = normalise(utterance, feats.load(utterance))
        np.testing.assert_allclose(x_TF.mean(0), 0, atol=1e-3)
        np.testing.assert_allclose(x_TF.std(0), 1, atol=1e-2)


def test_a_speakers_utterances_share_one_mean(corpus, tmp_path):
    rows = [("a-1", "a", 16000, 16000, 1, 1.0), ("a-2", "a", 16000, 16000, 1, 0.1)]
    feats = open_feats(stored(corpus(*rows), tmp_path, settings()))
    normalise = feats.normaliser(NormSettings(by=NormBy.speaker, variance=False))
    loud, quiet = (normalise(u, feats.load(u)) for u in feats)
    assert loud.mean() > 1 > -1 > quiet.mean()
    np.testing.assert_allclose((loud.sum(0) + quiet.sum(0)) / 200, 0, atol=1e-3)


def test_a_speakers_mean_and_variance_are_those_of_all_parts(corpus, tmp_path):
    """Each part has an utterance of both speakers; the first is the longer one."""
    rows = [
        (f"{s}-{i}", s, 16000 - 5000 * i, 16000, 1, 1.0 / (i + 1)) for i in (0, 1) for s in "ab"
    ]
    cuts = corpus(*rows)
    manifest, listed, abouts = tmp_path / "feats" / "dev.jsonl.gz", [], []
    parts = [tmp_path / "feats" / "dev" / f"part-{i:05d}.h5" for i in (0, 1)]
    for part, some in zip(parts, (cuts[:2], cuts[2:]), strict=True):
        found, about = extract(some, settings(), part)
        listed += found
        abouts.append(about)
    write_index(manifest, settings(), parts, abouts)
    write_jsonl(manifest, listed)
    feats = open_feats(manifest)
    assert sum(u.frames for u in feats) == 2 * (100 + 69)
    normalise = feats.normaliser(NormSettings(by=NormBy.speaker, variance=True))
    for speaker in "ab":
        x_TF = np.concatenate([normalise(u, feats.load(u)) for u in feats if u.speaker == speaker])
        assert len(x_TF) == 100 + 69
        np.testing.assert_allclose(x_TF.mean(0), 0, atol=1e-3)
        np.testing.assert_allclose(x_TF.std(0), 1, atol=1e-2)


def test_faster_recordings_are_resampled(corpus, tmp_path):
    feats = open_feats(stored(corpus(("a", "a", 44100, 44100, 1, 1.0)), tmp_path, settings()))
    assert [u.frames for u in feats] == [100]


def test_slower_recordings_are_refused_with_both_rates(corpus, tmp_path):
    with pytest.raises(ValueError, match=r"a has 8000 Hz.*16000.*feats.sample_rate=8000"):
        extract(corpus(("a", "a", 8000, 8000, 1, 1.0)), settings(), tmp_path / "a.h5")


def test_samples_that_are_no_numbers_are_refused_by_place(corpus, tmp_path):
    cuts = corpus(("a", "a", 8000, 16000, 1, 1.0))
    wave_N = noise(8000)
    wave_N[1234] = np.nan
    soundfile.write(tmp_path / "a.wav", wave_N, 16000, subtype="FLOAT")
    with pytest.raises(ValueError, match="a: sample 1234 is nan"):
        extract(cuts, settings(), tmp_path / "a.h5")
    assert not (tmp_path / "a.h5").exists()


def test_features_that_are_no_numbers_are_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match="a: its features are not finite"):
        extract(corpus(("a", "a", 8000, 16000, 1, 1e25)), settings(), tmp_path / "a.h5")


def test_the_largest_samples_that_are_taken_have_finite_features():
    wave_N = (MAX_PEAK * np.sign(np.sin(np.arange(16000)))).astype(np.float32)
    assert np.isfinite(LogMel(settings())(wave_N)).all()


def test_a_finished_part_is_kept_only_for_the_same_cuts_and_settings(corpus, tmp_path):
    path, cuts = tmp_path / "part.h5", corpus(*TWO)
    extract(deepcopy(cuts), settings(), path)
    first = path.stat().st_mtime_ns
    extract(deepcopy(cuts), settings(), path)
    assert path.stat().st_mtime_ns == first
    extract(deepcopy(cuts), settings(num_mels=24), path)
    assert path.stat().st_mtime_ns != first


def test_a_finished_part_whose_arrays_were_changed_is_made_anew(corpus, tmp_path):
    path, cuts = tmp_path / "part.h5", corpus(*TWO)
    extract(deepcopy(cuts), settings(), path)
    with h5py.File(path, "r+") as file:
        wanted_TF = file["b-1"][:]
        file["b-1"][3, 4] += 1
    extract(deepcopy(cuts), settings(), path)
    with h5py.File(path) as file:
        assert np.array_equal(file["b-1"][:], wanted_TF)


def test_a_finished_part_whose_recordings_changed_is_made_anew(corpus, tmp_path):
    """The cuts are the same, but one of them is half as loud."""
    path, cuts = tmp_path / "part.h5", corpus(*TWO)
    extract(deepcopy(cuts), settings(), path)
    with h5py.File(path) as file:
        loud_TF = file["a-1"][:]
    assert corpus(("a-1", "a", 16000, 16000, 1, 0.5), TWO[1]) == cuts
    extract(deepcopy(cuts), settings(), path)
    with h5py.File(path) as file:
        np.testing.assert_allclose(file["a-1"][:], loud_TF - 2 * np.log(2), atol=1e-3)


def test_equal_cuts_and_settings_give_equal_bytes(corpus, tmp_path):
    cuts = corpus(*TWO)
    for name in ("x", "y"):
        extract(deepcopy(cuts), settings(dither=1.0), tmp_path / f"{name}.h5")
    assert (tmp_path / "x.h5").read_bytes() == (tmp_path / "y.h5").read_bytes()


def test_a_truncated_part_is_noticed(corpus, tmp_path):
    manifest = stored(corpus(*TWO), tmp_path, settings())
    part = tmp_path / "feats" / "dev" / "part-00000.h5"
    part.write_bytes(part.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"part-00000\.h5"):
        open_feats(manifest)


@pytest.mark.parametrize("around", [0, 1, 4])
def test_spliced_frames_are_neighbours_in_order_of_time(around):
    x_TF = np.arange(14, dtype=np.float32).reshape(7, 2)
    found = spliced(x_TF, around)
    assert found.shape == (7, 2 * (2 * around + 1))
    for t in range(7):
        for w, offset in enumerate(range(-around, around + 1)):
            at = min(max(t + offset, 0), 6)
            assert found[t, 2 * w : 2 * w + 2].tolist() == x_TF[at].tolist()
