"""The shipped bundle decodes and aligns digits that it never heard, in any form of recording."""

import doctest
import io
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import soundfile
import torch
from layouts import record_piped
from spoken import RATE, said
from torchaudio.functional import resample

from asr_train.align.table import boundaries, compare
from asr_train.bundle import recogniser as module
from asr_train.bundle.audio import AudioError, resampled, samples_of
from asr_train.bundle.recogniser import AlignmentError
from asr_train.data.folder import read_phone_labels
from asr_train.interop.times import Span
from asr_train.score.words import WordErrors

TEXT = "THREE OH NINE SEVEN ONE"


@pytest.fixture(scope="module")
def speech():
    return said(TEXT)


def test_the_example_of_the_class_is_true():
    names = {"spoken": lambda text, rate=RATE: said(text, rate).samples_T}
    example = doctest.DocTestFinder().find(module.Recogniser, "Recogniser", globs=names)[0]
    ran = doctest.DocTestRunner().run(example)
    assert (ran.failed, ran.attempted) == (0, 5)


def test_the_package_itself_is_light():
    light = "import sys, asr_train; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", light], check=False).returncode == 0


def test_words_stand_where_they_were_said_and_are_sure(recogniser, speech):
    found = recogniser.transcribe(speech.samples_T, RATE)
    assert found.text == TEXT
    assert found.alternatives[0] == TEXT
    assert 2 <= len(set(found.alternatives)) == len(found.alternatives) <= 10
    assert found.final
    for span, true in zip(found.words, speech.words, strict=True):
        assert isinstance(span, Span)
        assert abs(span.start - true.start) < 0.1
        assert abs(span.end - true.end) < 0.1
        assert 0.8 < span.confidence <= 1


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_any_format_rate_and_channel_gives_the_same_words(recogniser, speech, tmp_path, form, rate):
    wave = resample(torch.from_numpy(speech.samples_T), RATE, rate).numpy()
    two = np.stack([np.zeros_like(wave), wave], 1)
    path = tmp_path / f"a.{form.lower()}"
    soundfile.write(path, two, rate, format=form)
    assert recogniser.transcribe(path).text == TEXT
    assert recogniser.transcribe(path, channel=1).text == TEXT
    assert recogniser.transcribe(io.BytesIO(path.read_bytes())).text == TEXT


def test_one_recording_of_a_speaker_is_decoded_as_alone(recogniser, speech):
    """And with another of the same voice, in the order given."""
    found = recogniser.features(speech.samples_T, RATE)
    other = recogniser.features(said("TWO SIX", seed=2).samples_T, RATE)
    (alone,) = recogniser.transcribe_features([found])
    assert replace(alone, search_seconds=0) == replace(
        recogniser.transcribe(speech.samples_T, RATE), search_seconds=0
    )
    both = recogniser.transcribe_features([found, other])
    assert [one.text for one in both] == [TEXT, "TWO SIX"]
    assert recogniser.transcribe_features([]) == []


def test_threads_wait_for_each_other(recogniser, speech, monkeypatch):
    """They had each other's frames, and a word in thirty wrong."""
    load, heard = recogniser._feats.load, []

    def slowly(utterance):
        time.sleep(0.05)
        heard.append(len(recogniser._feats.utterances))
        return load(utterance)

    monkeypatch.setattr(recogniser._feats, "load", slowly)
    waves = speech.samples_T, said("TWO SIX", seed=2).samples_T
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda wave: recogniser.transcribe(wave, RATE).text, waves)]
    assert (found, heard) == ([TEXT, "TWO SIX"], [1, 1])


def test_threads_prepare_the_search_once(monkeypatch):
    prepared, check = [], module.check_const

    def slowly(*given):
        prepared.append(given)
        time.sleep(0.1)
        check(*given)

    monkeypatch.setattr(module, "check_const", slowly)
    fresh = module.Recogniser.load("digits", confidences=False)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: fresh.prepare(), range(2))
    assert first is second
    assert len(prepared) == 1


def test_integers_are_samples_too(recogniser, speech):
    pcm = np.round(speech.samples_T * 32767).astype(np.int16)
    assert recogniser.transcribe(pcm).text == TEXT
    wave_N, _ = samples_of(np.array([0, 64, 128, 255], np.uint8), RATE)
    assert wave_N.tolist() == [-1, -0.5, 0, 127 / 128]


def test_aligned_phones_are_near_the_true_ones(recogniser, speech):
    found = recogniser.align(speech.samples_T, "three, oh nine - SEVEN one.")
    assert [span.label for span in found.words] == TEXT.split()
    true = [span for span in speech.phones if span.label != "SIL"]
    ours = [span for span in found.phones if span.label != "SIL"]
    assert len(ours) == len(true)
    starts = [abs(a.start - b.start) for a, b in zip(ours, true, strict=True)]
    assert np.median(starts) < 0.03
    assert max(starts) < 0.15


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "empty transcript"),
        ("three zebra", "no pronunciation of ZEBRA"),
        ("three " * 99, "its shortest pronunciation needs"),
    ],
)
def test_a_text_that_cannot_be_aligned_says_why(recogniser, speech, text, says):
    with pytest.raises(AlignmentError, match=says):
        recogniser.align(speech.samples_T, text)


def test_the_error_names_the_file(recogniser, speech, tmp_path):
    soundfile.write(tmp_path / "a.wav", speech.samples_T, 16000)
    with pytest.raises(AlignmentError, match=r"/a\.wav: empty transcript"):
        recogniser.align(tmp_path / "a.wav", "")


@pytest.mark.parametrize(
    "wave, options, says",
    [
        (np.zeros(0), {}, "has no samples"),
        (np.zeros(9), {}, "less than a frame"),
        (np.full(999, np.nan), {}, "NaN or infinite"),
        (np.zeros((99, 2)), {"channel": 2}, "no channel 2: it has 2"),
        (np.zeros((2, 2, 2)), {}, r"shape \[2, 2, 2\]"),
        (np.zeros((2, 999)), {}, r"shape \[2, 999\] .* must be samples or \[samples, channels\]"),
        (np.zeros(999, np.int64), {}, "samples of int64, which do not tell full scale"),
        ([0.0] * 999, {}, "audio is a list; it must be a path"),
        (io.StringIO(), {}, "audio is a StringIO; it must be a path, a file open in binary mode"),
        (np.zeros(999), {"rate": 8000.5}, "at 8000.5 Hz; .* at a positive, whole rate"),
        (np.zeros(999), {"rate": 2**31 - 1}, "2147483647 Hz, which cannot be resampled"),
    ],
)
def test_a_recording_that_cannot_be_used_is_refused(recogniser, wave, options, says):
    with pytest.raises(AudioError, match=says):
        recogniser.transcribe(wave, **options)


def test_a_file_without_audio_is_named(recogniser, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"b\.wav is missing"):
        recogniser.transcribe(tmp_path / "b.wav")
    with pytest.raises(AudioError, match="is a folder"):
        recogniser.transcribe(tmp_path)
    (tmp_path / "b.wav").write_text("no audio")
    with pytest.raises(AudioError, match=r"b\.wav cannot be read as audio"):
        recogniser.transcribe(tmp_path / "b.wav")
    denied = mock.Mock(side_effect=PermissionError)
    monkeypatch.setattr("asr_train.bundle.audio.open", denied, raising=False)
    with pytest.raises(AudioError, match=r"b\.wav: permission denied; make it readable"):
        recogniser.transcribe(tmp_path / "b.wav")


def test_files_are_read_to_their_end_from_pipes_and_by_any_name(tmp_path):
    """The end of a cut MP3 comes earlier than its header says."""
    noise = np.random.default_rng(0).normal(0, 0.1, 25 * RATE).astype(np.float32)
    soundfile.write(tmp_path / "a.mp3", noise, RATE)
    path = tmp_path / os.fsdecode(b"caf\xe9.mp3")
    path.write_bytes((tmp_path / "a.mp3").read_bytes()[:40_000])
    known = samples_of(path, RATE)[0]
    (tmp_path / "a.mp3").write_bytes(path.read_bytes())
    assert np.abs(known - soundfile.read(tmp_path / "a.mp3", dtype="float32")[0]).max() < 1e-4
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as piped:
        assert np.abs(samples_of(piped.stdout, RATE)[0] - known).max() < 1e-4
        piped.stdout.close()
    assert len(samples_of(noise, RATE, 44_100.0)[0]) == pytest.approx(len(noise) / 2.75625, abs=1)
    record_piped(tmp_path / "a.flac", noise, RATE)
    assert np.abs(samples_of(tmp_path / "a.flac", RATE)[0] - noise).max() < 1e-4


def test_an_open_file_is_read_from_its_beginning_whenever_it_is_used(tmp_path):
    noise = np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32)
    with open(tmp_path / "a.flac", "w+b") as file:
        soundfile.write(file, noise, RATE, format="FLAC")
        for _ in range(2):
            assert np.abs(samples_of(file, RATE)[0] - noise).max() < 1e-4


@pytest.mark.parametrize(
    "rates", [(50, 16_000), (8000, 16_000), (44_100, 16_000), (48_000, 16_000)]
)
@pytest.mark.parametrize("seconds", [0.02, 10.0, 35.3])
def test_resampling_in_blocks_is_resampling_of_the_whole(rates, seconds):
    rng = np.random.default_rng(1)
    wave = rng.normal(0, 0.1, int(rates[0] * seconds)).astype(np.float32)
    whole = resample(torch.from_numpy(wave), *rates).numpy()
    cuts = np.sort(rng.integers(0, len(wave), 7))
    parts = np.concatenate(list(resampled(np.split(wave, cuts), *rates)))
    assert parts.shape == whole.shape
    assert np.abs(parts - whole).max() < 1e-5


def test_long_recordings_are_read_in_blocks_and_decoded_in_pieces(recogniser, speech, tmp_path):
    path = tmp_path / "long.flac"
    soundfile.write(path, np.tile(speech.samples_T, 30), RATE)
    assert len(samples_of(path, RATE)[0]) == 30 * len(speech.samples_T)
    found = recogniser.transcribe(path)
    assert found.pieces > 1
    words = found.text.split()
    assert abs(len(words) - 30 * 5) <= 3
    assert [w.start for w in found.words] == sorted(w.start for w in found.words)
    assert found.words[-1].end <= found.seconds + 0.01


def test_english_is_recognised_and_aligned_as_people_speak_it(shared_data):
    """Telephone numbers by the speakers that were held out (TEST of recipes/english).

    Also between seconds of digital silence, with which 65 words were wrong before it was left out.
    """
    english = module.Recogniser.load("english", confidences=False)
    root = shared_data("alphanumeric_digits")
    rows = [line.split("\t") for line in (root / "utterances.tsv").read_text().splitlines()[1:]]
    rows.sort(key=lambda row: row[1])
    errors, words = [0, 0], 0
    for _, _, path, _, text in rows[4::5]:
        samples_N, rate = soundfile.read(root / path)
        for i, seconds in enumerate((0, 2)):
            found = english.transcribe(np.pad(samples_N, seconds * rate), rate).text
            errors[i] += WordErrors.between(text.split(), found.split()).errors
        words += len(text.split())
    assert words == 90
    assert max(errors) <= 18  # 9, and 12
    root = shared_data("cmu_arctic")
    labels = read_phone_labels(root / "phone_labels_slt.tsv")
    rows = [line.split("\t") for line in (root / "utterances.tsv").read_text().splitlines()[1:]]
    distances = []
    for utt, _, path, _, text in [row for row in rows if row[0] in labels][:5]:
        ours = english.align(root / path, text).phones
        true = [(item.symbol, item.start, item.end) for item in labels[utt]]
        distances += compare([(span.label, span.start, span.end) for span in ours], true)[0]
    assert boundaries(distances, 0)["within_50ms"] > 0.9  # 0.98 of 300 sentences
