"""Digit strings spoken by espeak-ng (data.synth) -> cuts with true word and phone times.

Knows nothing of other corpora. Equal settings give equal bytes.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from lhotse import MonoCut
from lhotse.supervision import AlignmentItem

from asr_train.data import synth
from asr_train.data.corpus import PreparedSplit, check_split, cut_of, whole_recording, write_flac
from asr_train.jobs import parallel_map
from asr_train.schema import CorpusSettings


def digits(settings: CorpusSettings, split: str, audio_dir: Path | str) -> PreparedSplit:
    """Synthesise digit strings into `audio_dir`/*.flac.

    A killed run starts again and overwrites its files.
    """
    assert settings.digits is not None
    wanted = settings.digits
    check_split(split, "corpus.digits", wanted.utterances)
    voices = synth.cast(settings.seed, wanted.speakers)[split]
    audio, (fewest, most) = Path(audio_dir), wanted.words

    def cut(i: int) -> MonoCut:
        voice = voices[i % len(voices)]
        rng = np.random.default_rng(seed_of(settings.seed, split, i))
        picked = rng.integers(len(synth.DIGITS), size=rng.integers(fewest, most + 1))
        words = [synth.DIGITS[digit] for digit in picked]
        speech = synth.digit_utterance(words, voice, wanted, int(rng.integers(2**62)))
        return spoken_cut(speech, words, voice, f"{voice.id}-{i:05d}", audio)

    cuts = parallel_map(cut, range(wanted.utterances[split]), f"speech of {split}")
    return spoken_split(split, cuts, audio)


def spoken_split(
    split: str, cuts: Iterable[MonoCut], audio: Path, notes: Sequence[str] = ()
) -> PreparedSplit:
    """Collect cuts whose recordings are in `audio`, and delete those of a larger corpus there."""
    made = PreparedSplit(split, list(cuts), notes=list(notes))
    for old in set(audio.glob("*.flac")) - {Path(c.recording.sources[0].source) for c in made.cuts}:
        old.unlink()
    return made


def spoken_cut(
    speech: synth.Speech, words: list[str], voice: synth.Voice, utt_id: str, audio: Path
) -> MonoCut:
    """Write speech to `audio`/`utt_id`.flac; return its cut, with true word and phone times."""
    path = audio / f"{utt_id}.flac"
    pcm_T = np.round(speech.samples_T * (2**15 - 1)).astype(np.int16)
    write_flac(path, pcm_T, speech.rate, "PCM_16")
    recording = whole_recording(utt_id, path, speech.rate, len(speech.samples_T))
    spoken = {"text": " ".join(words), "speaker": voice.id, "language": "English"}
    alignment = {
        kind: [AlignmentItem(s.label, round(s.start, 6), round(s.end - s.start, 6)) for s in spans]
        for kind, spans in (("word", speech.words), ("phone", speech.phones))
    }
    more = {"custom": speech.about, "alignment": alignment}
    return cut_of(utt_id, recording, 0.0, recording.duration, 0, **spoken, **more)


def seed_of(*names: object) -> int:
    """Return a seed that depends on these names only."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, names)).encode()).digest()[:8])
