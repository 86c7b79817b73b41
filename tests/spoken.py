"""Digits that espeak-ng says, by a voice of no corpus."""

from asr_train.data import synth
from asr_train.schema import DigitsSettings

RATE = 16_000
VOICE = synth.Voice("ann", "en-us", "f2", 50, 50, 160)


def said(text: str, rate: int = RATE, seed: int = 1) -> synth.Speech:
    """Return digits with true times, as recipe digits makes them, with little noise."""
    settings = DigitsSettings(
        speakers={"test": 1},
        utterances={"test": 1},
        words=[1, 8],
        sample_rate=rate,
        snr_db=[30.0, 30.0],
        level_db=[-25.0, -25.0],
    )
    return synth.digit_utterance(text.upper().split(), VOICE, settings, seed)
