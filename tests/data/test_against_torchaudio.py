"""Features of speech against torchaudio's Kaldi-compatible ones, which share no code with ours.

Differences, and their reasons:
- Rounding: both work in float32. A bin that is 20 nats below its frame's loudest keeps few digits
  of its energy. The largest differences are there, and grow as bins become narrow: 3e-4 nats with
  23 bins, 9e-4 with 40, 2e-3 with 80. Both differ as much from torchaudio's results in float64.
- Edges: ours are Kaldi's with snip_edges=false. With snip_edges=true, its default, frames inside
  are the same, but begin at another sample; those that reach beyond the recording are absent.
- Dither: ours is seeded by the utterance, Kaldi's is not: only its average effect is equal.
- Energy: ours keeps c0, as torchaudio does unless use_energy is set; Kaldi's default replaces it
  by the frame's log energy.
- Window: Povey's in both.
"""

import numpy as np
import pytest
import soundfile
import torch
from lhotse import MonoCut, Recording, SupervisionSegment
from scipy.signal import resample_poly
from torchaudio.compliance import kaldi
from torchaudio.functional import compute_deltas, resample, sliding_window_cmn
from toy import logmel

from asr_train.align.front import Front
from asr_train.data.features import cepstra, extract, open_feats, write_index
from asr_train.data.logmel import FULL_SCALE, LogMel
from asr_train.data.synth import Voice, speak
from asr_train.files import write_jsonl
from asr_train.schema import FrontSettings, NormBy, NormSettings

RATE = 16000
NUM_CEPS = 13
LOGMEL = {23: 1e-3, 40: 3e-3, 80: 6e-3}  # bins -> nats, three times the largest difference
CEPSTRA = 3e-3  # likewise: sums over 23 bins, which the lifter multiplies by up to 12


def settings(num_mels=23, **change):
    return logmel(sample_rate=RATE, num_mels=num_mels, **change)


@pytest.fixture(scope="module")
def synthesised():
    """Two seconds of a male voice, with pauses; at half of full scale."""
    voice = Voice("plain", "en-us", "m3", 50, 50, 140)
    speech = speak("seven oh three nine four one", voice, seed=0)
    wave_N = resample(torch.from_numpy(speech.samples_T), speech.rate, RATE).numpy()
    return 0.5 * wave_N / np.abs(wave_N).max()


@pytest.fixture(params=["synthesised", "recorded"])
def wave_N(request, synthesised):
    if request.param == "synthesised":
        return synthesised
    folder = request.getfixturevalue("shared_data")("librispeech_mini")
    recorded_N, rate = soundfile.read(min(folder.rglob("*.flac")), dtype="float32")
    assert rate == RATE
    return recorded_N[: 10 * RATE]


def theirs(of, wave_N, num_mels=23, snip_edges=False, dither=0.0, **more) -> np.ndarray:
    """Call `of`, kaldi.fbank or kaldi.mfcc, in the precision of `wave_N`."""
    found = of(
        torch.from_numpy(wave_N)[None] * FULL_SCALE,
        num_mel_bins=num_mels,
        sample_frequency=RATE,
        snip_edges=snip_edges,
        dither=dither,
        **more,
    )
    return found.numpy()


@pytest.mark.parametrize("num_mels", LOGMEL)
def test_log_mel_of_speech_is_kaldis(wave_N, num_mels):
    ours_TF = LogMel(settings(num_mels))(wave_N)
    for precision in (np.float32, np.float64):
        theirs_TF = theirs(kaldi.fbank, wave_N.astype(precision), num_mels)
        np.testing.assert_allclose(ours_TF, theirs_TF, rtol=0, atol=LOGMEL[num_mels])


def test_frames_inside_are_those_of_kaldis_default_edges(wave_N):
    """A window of 400 samples at a shift of 160: ours begin at 160 t - 120, theirs at 160 t."""
    ours_TF = LogMel(settings())(wave_N)
    snipped_TF = theirs(kaldi.fbank, wave_N[40:], snip_edges=True)
    assert 2 <= len(ours_TF) - len(snipped_TF) <= 3
    inside_TF = ours_TF[1 : 1 + len(snipped_TF)]
    np.testing.assert_allclose(inside_TF, snipped_TF, rtol=0, atol=LOGMEL[23])


def test_cepstra_of_speech_are_kaldis(wave_N):
    ours_TC = cepstra(LogMel(settings())(wave_N), NUM_CEPS)
    theirs_TC = theirs(kaldi.mfcc, wave_N, num_ceps=NUM_CEPS)
    np.testing.assert_allclose(ours_TC, theirs_TC, rtol=0, atol=CEPSTRA)
    energy_TC = theirs(kaldi.mfcc, wave_N, num_ceps=NUM_CEPS, use_energy=True)
    np.testing.assert_allclose(ours_TC[:, 1:], energy_TC[:, 1:], rtol=0, atol=CEPSTRA)
    assert np.abs(ours_TC[:, 0] - energy_TC[:, 0]).min() > 1


def test_dither_does_on_average_what_kaldis_does():
    """For silence, features are dither only: 2000 frames, standard error of means about 0.02."""
    silence_N = np.zeros(20 * RATE, np.float32)
    ours_TF = LogMel(settings(dither=1.0))(silence_N, "an utterance")
    torch.manual_seed(0)
    theirs_TF = theirs(kaldi.fbank, silence_N, dither=1.0)
    np.testing.assert_allclose(ours_TF.mean(0), theirs_TF.mean(0), rtol=0, atol=0.1)
    np.testing.assert_allclose(ours_TF.std(0), theirs_TF.std(0), rtol=0, atol=0.1)


def stored(wave_N, rate, folder):
    """Return the features of one recording, as stored by the feats stage."""
    soundfile.write(folder / "u.wav", wave_N, rate, subtype="FLOAT")
    recording = Recording.from_file(folder / "u.wav", recording_id="u")
    cut = MonoCut("u", 0.0, recording.duration, 0, recording=recording)
    cut.supervisions = [
        SupervisionSegment("u", "u", 0.0, recording.duration, text="A", speaker="s")
    ]
    manifest, part = folder / "dev.jsonl.gz", folder / "dev/part-00000.h5"
    rows, about = extract([cut], settings(), part)
    write_index(manifest, settings(), [part], [about])
    write_jsonl(manifest, rows)
    return open_feats(manifest)


def test_what_gaussians_see_is_made_of_torchaudios_parts(wave_N, tmp_path):
    """Cepstra minus their mean, and two orders of deltas.

    torchaudio's deltas of deltas repeat the first and last frame of the deltas; Kaldi's and ours,
    those of the cepstra: four frames at each end may differ.
    """
    feats = stored(wave_N, RATE, tmp_path)
    norm = NormSettings(by=NormBy.utterance, variance=False)
    (utterance,) = feats
    ours_TD = Front(FrontSettings(num_ceps=NUM_CEPS, deltas=2, norm=norm))(feats)(utterance)
    mfcc_TC = torch.from_numpy(theirs(kaldi.mfcc, wave_N, num_ceps=NUM_CEPS))
    # A window beyond both ends has the mean of all frames
    rows = [sliding_window_cmn(mfcc_TC, cmn_window=2 * len(mfcc_TC) + 2, center=True).T]
    for _ in range(2):
        rows.append(compute_deltas(rows[-1]))
    theirs_TD = torch.cat(rows).T.numpy()
    assert ours_TD.shape == (len(mfcc_TC), 3 * NUM_CEPS)
    np.testing.assert_allclose(ours_TD[4:-4], theirs_TD[4:-4], rtol=0, atol=CEPSTRA)
    static = slice(0, 2 * NUM_CEPS)
    np.testing.assert_allclose(ours_TD[:, static], theirs_TD[:, static], rtol=0, atol=CEPSTRA)


def test_a_faster_recording_has_the_features_of_the_slower_one(wave_N, tmp_path):
    """SciPy resamples to 48 kHz, and extraction to 16 kHz again, by torchaudio.functional.resample.

    Bins from 5.5 kHz on are in the slopes of the two filters. One of them mirrors the recording's
    ends, the other takes them as silence.
    """
    fast_N = resample_poly(wave_N.astype(np.float64), 3, 1).astype(np.float32)
    feats = stored(fast_N, 3 * RATE, tmp_path)
    (utterance,) = feats
    found_TF, wanted_TF = feats.load(utterance), LogMel(settings())(wave_N)
    assert found_TF.shape == wanted_TF.shape
    inside, low = slice(2, -2), slice(0, 19)
    np.testing.assert_allclose(found_TF[inside, low], wanted_TF[inside, low], rtol=0, atol=0.05)
