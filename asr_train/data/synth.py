"""Text -> **speech with known phone times**, by espeak-ng: recordings of the embedded corpora.

    words, Voice --speak--> Speech, clean, at espeak's 22,050 Hz
    digits       --digit_utterance--> Speech with pauses, level and noise, at the corpus's rate
    breaths      --in_a_row--> Speech with pauses --recorded--> samples as recorded in a room

Equal arguments give equal samples, in any process and after any other calls (`lang.espeak` reloads
the library).
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.fft import irfft, next_fast_len, rfftfreq
from scipy.signal import fftconvolve, resample_poly

from asr_train.frames import samples_of
from asr_train.lang import g2p
from asr_train.lang.espeak import PHONEME_EVENTS, UTF8, EspeakError, loaded
from asr_train.schema import DigitsSettings

SILENCE = "SIL"
DIGITS = ("ZERO", "OH", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")

# espeak's phoneme mnemonics (without stress marks) -> the phones of CMU's dictionary, for the digit
# words. "" is espeak's glide between vowels, which belongs to the phone before it. Two phones: an
# r-coloured vowel, cut where its spectrum changes most.
PHONES = {
    **{"z": "Z", "r": "R", "r-": "R", "w": "W", "n": "N", "t": "T", "T": "TH", "f": "F", "v": "V"},
    **{"s": "S", "k": "K", "i@": "IH", "oU": "OW", "V": "AH", "u:": "UW", "i:": "IY", "aI": "AY"},
    **{"I": "IH", "E": "EH", "@": "AH", "eI": "EY", "o@": "AO", ";": ""},
}
# Differences of English dialects from PHONES in these words; the keys are espeak's names. "0" is
# the vowel of British `one`; in other words it would be AA or AO.
DIALECTS: dict[str, dict[str, str]] = {
    "en": {"0": "AH"},
    "en-029": {"0": "AH", "t[": "TH"},
    "en-gb-scotland": {"aI2": "AY"},
    "en-gb-x-gbclan": {"0": "AH"},
    "en-gb-x-gbcwmd": {"O@": "AO"},
    "en-gb-x-rp": {"0": "AH", "O@": "AO"},
    "en-us": {"o@": "AO R"},
    "en-us-nyc": {},
}
# For open text without New York, which drops the h of HUMID, and espeak-ng that word's event.
OPEN_DIALECTS = tuple(dialect for dialect in DIALECTS if dialect != "en-us-nyc")
# Phonemes in 3,100 words that are not in lang.g2p.PHONES, which names the phones of open text.
OTHER_PHONES = {"t[": "TH", "IR": "ER", "VR": "ER", "@5": "UH", "aI2": "AY", "w#": "W"}
# Those of espeak's 104 speakers that sound human. Left out: whispers, croaks and robots, doubles of
# others, Andy, who has no third formant, and "klatt 6", which draws its noise from the C library's
# own rand.
VARIANTS = (
    *("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5"),
    *("Alex", "Andrea", "Annie", "Denis", "Diogo", "Gene", "Henrique", "Hugo", "Jacky"),
    *("Mario", "Michael", "Mike", "Nguyen", "RicishayMax", "Storm", "anika", "antonio", "aunty"),
    *("belinda", "boris", "ed", "grandma", "gustave", "ian", "iven4", "john", "klatt3", "klatt4"),
    *("linda", "marcelo", "max", "michel", "miguel", "norbert", "pablo", "paul", "pedro"),
    *("quincy", "rob", "robert", "sandro", "shelby", "steph", "travis", "victor"),
)
SONORANTS = {"n", "r", "r-", "w", ";", "m", "N", "l", "l#", "j", "w#"}  # mnemonics
STOPS = {"t", "t[", "k", "t2", "p", "b", "d", "g", "tS", "dZ"}
CLOSURE_SECONDS = 0.1  # of stops at the slowest rate: 0.085 where it is visible
# Before a word, prevents espeak from merging it with the word before without an event ("on the");
# "on" is then less reduced, so it is used only if needed.
APART = "\N{WORD JOINER}"
SHORT_SECONDS = 0.03  # a pause before a word, up to this, is the onset of the phone, not silence

# digit_utterance: a person reading numbers from a list
SPREAD = 0.1  # of rate and pitch between utterances, relative to the voice's own
PAUSE_SHARE = 0.2  # of the gaps between words
PAUSE_SECONDS = (0.05, 0.4)
MARGIN_SECONDS = (0.1, 0.4)  # before the first and after the last word
NOISES = ("white", "pink", "babble", "hum")


class SynthesisError(EspeakError):
    """A voice that is not available, words without events, or a phoneme without a name."""


@dataclass(frozen=True, slots=True)
class Voice:
    """One speaker. `dialect` and `variant` are espeak's names."""

    id: str
    dialect: str
    variant: str
    pitch: int  # 0 to 100 around the variant's own, which is 50
    pitch_range: int  # 0 (monotonous) to 100; 50 is the variant's own
    words_per_minute: int


@dataclass(frozen=True, slots=True)
class Span:
    """A word or phone with its times in seconds."""

    label: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Speech:
    """Samples in [-1, 1] and their transcript.

    `phones` cover all samples without gaps; `SIL` is around words. `about` holds the values drawn
    for this utterance.
    """

    samples_T: np.ndarray  # float32
    rate: int  # Hz
    words: list[Span]
    phones: list[Span]
    about: dict[str, Any] = field(default_factory=dict)


# --- voices -------------------------------------------------------------------------------------


def cast(
    seed: int,
    speakers: dict[str, int],
    words_per_minute: Sequence[int] = (100, 165),
    dialects: Sequence[str] = tuple(DIALECTS),
) -> dict[str, list[Voice]]:
    """Draw voices for each split; no two splits share a variant, which determines the timbre.

    A split has its share of the variants. If it needs more voices, the same variant speaks other
    dialects, and then the same ones at another pitch and rate.
    """
    rng, (slowest, fastest) = np.random.default_rng(seed), words_per_minute
    variants = [VARIANTS[i] for i in rng.permutation(len(VARIANTS))]
    voices: dict[str, list[Voice]] = {}
    for split, share in _shares(speakers, len(variants)).items():
        own = [variants.pop() for _ in range(share)]
        orders = [rng.permutation(len(dialects)) for _ in own]
        voices[split] = []
        for i in range(speakers[split]):
            again, which = divmod(i, share)
            lap, turn = divmod(again, len(dialects))
            dialect = dialects[orders[which][turn]]
            voices[split].append(
                Voice(
                    id=f"{own[which]}-{dialect}" + (f"-{lap + 1}" if lap else ""),
                    dialect=dialect,
                    variant=own[which],
                    pitch=int(rng.integers(25, 76)),
                    pitch_range=int(rng.integers(25, 76)),
                    words_per_minute=int(rng.integers(slowest, fastest + 1)),
                )
            )
    return voices


def _shares(speakers: dict[str, int], total: int) -> dict[str, int]:
    """Divide `total` in proportion to the speakers, at least one each."""
    shares = dict.fromkeys(speakers, 1)
    for _ in range(total - len(shares)):
        neediest = max(speakers, key=lambda split: speakers[split] / shares[split])
        shares[neediest] += 1
    return shares


# --- espeak-ng through ctypes -------------------------------------------------------------------

# From espeak-ng's speak_lib.h, version 1.52.
_RATE, _PITCH, _RANGE = 1, 3, 4
_WORD, _PHONEME = 1, 7


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # `sample` in milliseconds, rounded down
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


def _synthesise(
    text: str, voice: Voice, seed: int
) -> tuple[np.ndarray, int, list[tuple[int, int, bytes]]]:
    """Return int16 samples, their rate, and events (type, sample, name), in order of time."""
    chunks: list[bytes] = []
    events: list[tuple[int, int, bytes]] = []

    def collect(samples: Any, count: int, event: Any) -> int:
        i = 0
        while event and event[i].type:
            if event[i].type in (_WORD, _PHONEME):
                events.append((event[i].type, event[i].sample, event[i].name))
            i += 1
        if samples and count:
            chunks.append(ctypes.string_at(samples, 2 * count))
        return 0  # continue

    callback = _CALLBACK(collect)  # must outlive the library's use
    name = f"{voice.dialect}+{voice.variant}"
    encoded = text.encode() + b"\0"
    with loaded(PHONEME_EVENTS) as (lib, rate):
        lib.espeak_SetSynthCallback(callback)
        if lib.espeak_SetVoiceByName(name.encode()) != 0:
            raise SynthesisError(f"espeak-ng has no voice {name!r}; see data.synth.DIALECTS")
        lib.espeak_SetParameter(_RATE, voice.words_per_minute, 0)
        lib.espeak_SetParameter(_PITCH, voice.pitch, 0)
        lib.espeak_SetParameter(_RANGE, voice.pitch_range, 0)
        lib.espeak_ng_SetRandSeed(ctypes.c_long(seed % 2**31))  # otherwise seeded by the clock
        lib.espeak_Synth(encoded, ctypes.c_size_t(len(encoded)), 0, 1, 0, UTF8, None, None)
        lib.espeak_Synchronize()
    return np.frombuffer(b"".join(chunks), np.int16), rate, events


# --- text -> speech -----------------------------------------------------------------------------


Names = Callable[[str, list[str], Voice], list[list[str]]]  # word, mnemonics -> ARPAbet of each


def digit_names(word: str, marked: list[str], voice: Voice) -> list[list[str]]:
    """Return the phones of a digit word, by PHONES and DIALECTS."""
    known = PHONES | DIALECTS.get(voice.dialect, {})
    for mnemonic in map(_unmarked, marked):
        if mnemonic not in known:
            raise SynthesisError(
                f"voice {voice.id}: espeak-ng gave the phoneme {mnemonic!r} in {word!r}, "
                "which has no ARPAbet name; add it to PHONES or DIALECTS in data/synth.py"
            )
    return [known[_unmarked(mnemonic)].split() for mnemonic in marked]


def open_names(word: str, marked: list[str], voice: Voice) -> list[list[str]]:
    """Return the phones of any English word, by lang.g2p's names of espeak's sounds."""
    return g2p.named(word, marked, OTHER_PHONES)


def speak(text: str, voice: Voice, seed: int, names: Names = digit_names) -> Speech:
    """Synthesise `text` in one breath, at espeak's rate and level, without noise.

    Args:
        text: words separated by spaces, whose phones have a name in `names`.
        seed: of espeak's breath and flutter; equal arguments give equal samples.
    Raises:
        SynthesisError: for a phoneme without ARPAbet name, or words without an event.
    """
    words = text.upper().split()
    samples_T, rate, events = _synthesise(" ".join(words).lower(), voice, seed)
    if sum(kind == _WORD for kind, *_ in events) < len(words):
        samples_T, rate, events = _synthesise(f" {APART}".join(words).lower(), voice, seed)
    wave_T = samples_T.astype(np.float32) / 2**15
    phones = _phones_of(words, events, voice, names)
    _set_times(phones, wave_T, rate)
    starts = {p.word: p.start / rate for p in reversed(phones)}
    ends = {p.word: p.end / rate for p in phones}
    spans = [Span(word, starts[i], ends[i]) for i, word in enumerate(words)]
    sounds = _with_silence(_arpabet(phones, wave_T, rate), len(wave_T) / rate)
    return Speech(wave_T, rate, spans, sounds)


@dataclass(slots=True)
class _Phone:
    """A phone from espeak's events. Times are in samples, words are numbered from 0."""

    mnemonic: str
    names: list[str]  # in ARPAbet; none for a glide, two for an r-coloured vowel
    word: int
    word_event: int | None  # of a word's first phone
    event: int
    start: int = 0
    end: int = 0


def _phones_of(
    words: list[str], events: list[tuple[int, int, bytes]], voice: Voice, names: Names
) -> list[_Phone]:
    """Return the phones of the events; `end` is set if a pause follows."""
    phones: list[_Phone] = []
    marked: list[list[str]] = [[] for _ in words]  # mnemonics of each word
    word, word_event = -1, None
    for kind, sample, name in events:
        if kind == _WORD:
            word, word_event = word + 1, sample
            continue
        mnemonic = name.decode()
        if not _unmarked(mnemonic).startswith("_"):
            phones.append(_Phone(_unmarked(mnemonic), [], word, word_event, sample))
            marked[min(word, len(words) - 1)].append(mnemonic)
            word_event = None
        elif phones and not phones[-1].end:
            phones[-1].end = sample
    if sorted({p.word for p in phones}) != list(range(len(words))):
        raise SynthesisError(
            f"voice {voice.id}: espeak-ng marked {word + 1} words in {' '.join(words)!r}, "
            f"which has {len(words)}; synthesise shorter pieces"
        )
    named = [n for w, ms in zip(words, marked, strict=True) for n in names(w, ms, voice)]
    for phone, its_names in zip(phones, named, strict=True):
        phone.names = its_names
    return phones


def _unmarked(mnemonic: str) -> str:
    return mnemonic.lstrip("',%!=")  # stress marks


def _set_times(phones: list[_Phone], wave_T: np.ndarray, rate: int) -> None:
    phones[0].start = phones[0].event
    for before, phone in pairwise(phones):
        end, phone.start = _boundary(before, phone, wave_T, rate)
        before.end = before.end or end
    phones[-1].end = phones[-1].end or len(wave_T)


def _boundary(before: _Phone, phone: _Phone, wave_T: np.ndarray, rate: int) -> tuple[int, int]:
    """Return the end of one phone and the start of the next: equal, unless there is a pause.

    Events are exact to the sample, but not always at the phonetic boundary: a stop's event is its
    burst, though the closure before it belongs to the stop; a vowel's event after n, r or w comes
    after the transition, which often contains all of the consonant, even across words. There the
    cut is where the spectrum changes most between the two events. A word's event comes before the
    10 to 20 ms of silence with which most words begin.
    """
    vowel = phone.names[:1] and phone.names[0] in g2p.VOWELS
    stop = phone.mnemonic in STOPS
    if vowel and before.mnemonic in SONORANTS:
        end = start = _change(wave_T, before.event, phone.event, rate)
    elif phone.word_event is None and stop:
        earliest = max(before.event, phone.event - round(CLOSURE_SECONDS * rate))
        end = start = _change(wave_T, earliest, phone.event, rate)
    elif phone.word_event is None:
        end = start = phone.event
    else:
        end, start = phone.word_event, phone.event
        if stop or start - end <= SHORT_SECONDS * rate:
            start = end
    return end, start


def _change(wave_T: np.ndarray, start: int, end: int, rate: int) -> int:
    """Return the sample that best divides start..end into two parts of steady spectrum.

    It minimises the squared distances of log band energies to their mean, summed over both parts.
    """
    hop, width = rate // 500, rate // 60  # 2 ms; a window of 17 ms holds a pitch period
    centres = np.arange(start, end, hop)
    if len(centres) < 2:
        return end
    padded = np.pad(wave_T, width)
    hann = np.hanning(width)
    windows = np.stack([padded[c + (width + 1) // 2 :][:width] for c in centres]) * hann
    power = np.abs(np.fft.rfft(windows, next_fast_len(width))) ** 2
    edges = np.unique(np.geomspace(2, power.shape[1] - 1, 16).astype(int))
    bands = np.log(np.add.reduceat(power, edges[:-1], axis=1) + 1e-5 * power.max() + 1e-12)
    sums, squares = bands.cumsum(0), (bands**2).cumsum(0)
    left = np.arange(1, len(bands))[:, None]
    rest = len(bands) - left
    loss = (squares[-1] - sums[:-1] ** 2 / left - (sums[-1] - sums[:-1]) ** 2 / rest).sum(1)
    return int(centres[1 + loss.argmin()]) - hop // 2


def _arpabet(phones: list[_Phone], wave_T: np.ndarray, rate: int) -> list[Span]:
    """Return CMU's phones; espeak may use two for one of them, or one for two."""
    spans: list[Span] = []
    word = -1
    for p in phones:
        if p.start == p.end:
            continue  # an r that is not sounded
        cuts = [p.start, p.end]
        if len(p.names) == 2:
            quarter = (p.end - p.start) // 4  # onset and end change more than the colour
            cuts.insert(1, _change(wave_T, p.start + quarter, p.end - quarter, rate))
        names = p.names or [spans[-1].label]
        for name, start, end in zip(names, cuts, cuts[1:], strict=False):
            if p.word == word and spans[-1].label == name:
                spans[-1] = Span(name, spans[-1].start, end / rate)
            else:
                spans.append(Span(name, start / rate, end / rate))
            word = p.word
    return spans


def _with_silence(spans: list[Span], seconds: float) -> list[Span]:
    """Return the spans, with SIL in the gaps."""
    full: list[Span] = []
    at = 0.0
    for span in [*spans, Span("", seconds, seconds)]:
        if span.start > at:
            full.append(Span(SILENCE, at, span.start))
        if span.label:
            full.append(span)
        at = span.end
    return full


# --- digits in noise ----------------------------------------------------------------------------


def digit_utterance(
    words: Sequence[str], voice: Voice, settings: DigitsSettings, seed: int
) -> Speech:
    """Synthesise digits in one or more breaths, between silences, at a random level and noise.

    Args:
        words: of DIGITS, at least one.
        seed: of all random values: breaths, pauses, rate and pitch around the voice's own, level,
            noise and its ratio (`about` has the last three).
    Returns:
        Samples at `settings.sample_rate` whose highest peak is at the level drawn.
    """
    rng = np.random.default_rng(seed)
    speech = in_a_row(breaths(words, voice, rng), rng)
    return recorded(speech, settings.sample_rate, settings.snr_db, settings.level_db, rng)


def recorded(
    speech: Speech,
    rate: int,
    snr_db: list[float],
    level_db: list[float],
    rng: np.random.Generator,
    response_T: np.ndarray | None = None,
) -> Speech:
    """Return the same words at another rate, with noise, at a random level (see `about`).

    Args:
        rate: Hz.
        snr_db, level_db: ranges to draw from: signal-to-noise ratio, and peak level.
        response_T: of the room, at `rate`; the first sample is the direct sound, 1.
    """
    snr = round(rng.uniform(snr_db[0], snr_db[1]), 2)
    level = round(rng.uniform(level_db[0], level_db[1]), 2)
    kind = NOISES[rng.integers(len(NOISES))]
    clean_T = resample_poly(speech.samples_T.astype(float), rate, speech.rate)
    if response_T is not None:
        clean_T = fftconvolve(clean_T, response_T)[: len(clean_T)]
    word_waves = [
        clean_T[samples_of(w.start, rate) : samples_of(w.end, rate)] for w in speech.words
    ]
    power = np.mean(np.concatenate(word_waves) ** 2) / 10 ** (snr / 10)
    noisy_T = clean_T + math.sqrt(power) * noise(kind, len(clean_T), rate, rng)
    noisy_T *= 10 ** (level / 20) / np.abs(noisy_T).max()
    about = {"snr_db": snr, "level_db": level, "noise": kind}
    return replace(speech, samples_T=noisy_T.astype(np.float32), rate=rate, about=about)


def breaths(
    words: Sequence[str],
    voice: Voice,
    rng: np.random.Generator,
    pause_share: float = PAUSE_SHARE,
    names: Names = digit_names,
) -> list[Speech]:
    """Synthesise words in groups, as a person reads a long number, with one rate and pitch.

    Args:
        pause_share: share of the gaps between words at which a group ends.
    """
    manner = replace(
        voice,
        words_per_minute=round(voice.words_per_minute * rng.uniform(1 - SPREAD, 1 + SPREAD)),
        pitch=round(float(np.clip(voice.pitch * rng.uniform(1 - SPREAD, 1 + SPREAD), 0, 100))),
    )
    groups = [[words[0]]]
    for word in words[1:]:
        if rng.random() < pause_share:
            groups.append([])
        groups[-1].append(word)
    return [speak(" ".join(group), manner, int(rng.integers(2**31)), names) for group in groups]


def in_a_row(
    spoken: list[Speech],
    rng: np.random.Generator,
    margin_seconds: Sequence[float] = MARGIN_SECONDS,
) -> Speech:
    """Concatenate breaths, with digital silence before, between and after them."""
    rate = spoken[0].rate
    pieces: list[np.ndarray] = [_pause(margin_seconds, rate, rng)]
    words: list[Span] = []
    phones: list[Span] = []
    for i, breath in enumerate(spoken):
        start = sum(map(len, pieces)) / rate
        words += _later(breath.words, start)
        phones += _later(breath.phones, start)
        last = i == len(spoken) - 1
        pieces += [breath.samples_T, _pause(margin_seconds if last else PAUSE_SECONDS, rate, rng)]
    wave_T = np.concatenate(pieces)
    return Speech(wave_T, rate, words, _with_silence(phones, len(wave_T) / rate))


def _pause(seconds: Sequence[float], rate: int, rng: np.random.Generator) -> np.ndarray:
    return np.zeros(samples_of(rng.uniform(seconds[0], seconds[1]), rate), np.float32)


def _later(spans: list[Span], seconds: float) -> list[Span]:
    """Shift these spans; drop silence, which `_with_silence` fills in again."""
    return [Span(s.label, s.start + seconds, s.end + seconds) for s in spans if s.label != SILENCE]


# --- noise --------------------------------------------------------------------------------------


def noise(kind: str, count: int, rate: int, rng: np.random.Generator) -> np.ndarray:
    """Return `count` samples of one of NOISES, with mean power 1."""
    if kind == "white":
        noise_T = rng.standard_normal(count)
    elif kind == "pink":
        noise_T = _coloured(count, rate, rng, lambda f: 1 / np.sqrt(np.maximum(f, 50)))
    elif kind == "babble":
        noise_T = np.sum([_talker(count, rate, rng) for _ in range(6)], axis=0)
    else:
        assert kind == "hum", kind
        noise_T = _hum(count, rate, rng)
    return noise_T / np.sqrt(np.mean(noise_T**2))


def _coloured(
    count: int, rate: int, rng: np.random.Generator, gain: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return Gaussian noise whose amplitude spectrum is `gain` of the frequency in Hz."""
    padded = next_fast_len(count, real=True)
    hertz = rfftfreq(padded, 1 / rate)
    spectrum = rng.standard_normal(len(hertz)) + 1j * rng.standard_normal(len(hertz))
    noise_T = irfft(spectrum * gain(hertz), padded)[:count]
    return noise_T / np.sqrt(np.mean(noise_T**2))


def _talker(count: int, rate: int, rng: np.random.Generator) -> np.ndarray:
    """Return noise with the long-term spectrum and the rhythm of speech (3 to 6 syllables/s)."""
    rhythm = 2 * np.pi * rng.uniform(3, 6) * np.arange(count) / rate + rng.uniform(0, 2 * np.pi)
    voice_T = _coloured(count, rate, rng, lambda f: f / (f + 100) / (1 + (f / 500) ** 2) ** 0.75)
    return voice_T * (1 + np.sin(rhythm)) ** 2


def _hum(count: int, rate: int, rng: np.random.Generator) -> np.ndarray:
    """Return mains hum at 50 or 60 Hz with harmonics up to 2 kHz, and quieter pink noise."""
    mains = float(rng.choice([50.0, 60.0]))
    radians = 2 * np.pi * mains * np.arange(count) / rate
    hum_T = np.zeros(count)
    for k in range(1, int(min(2000, rate / 2) / mains)):
        hum_T += rng.uniform(0.3, 1) / k * np.sin(k * radians + rng.uniform(0, 2 * np.pi))
    return hum_T / np.sqrt(np.mean(hum_T**2)) + 0.5 * noise("pink", count, rate, rng)
