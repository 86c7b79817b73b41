"""Cuts and recordings for the tests of interop."""

from pathlib import Path

import numpy as np
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from lhotse.supervision import AlignmentItem
from praatio.textgrid import openTextgrid

from asr_train.interop.times import Span


def noise(path: Path, seconds: float, rate=8000, channels=1, seed=0) -> np.ndarray:
    """Write 16-bit noise; return its samples, int16 [N, C]."""
    rng = np.random.default_rng(seed)
    wave_NC = rng.integers(-9000, 9000, (round(seconds * rate), channels)).astype(np.int16)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave_NC, rate)
    return wave_NC


def cut_of(utt_id: str, path: Path, speaker: str, text: str, start=0.0, seconds=None) -> MonoCut:
    """Return a cut with word times, from its start, that split it evenly; a phone per letter."""
    info = soundfile.info(path)
    recording = Recording(
        path.stem,
        [AudioSource("file", list(range(info.channels)), str(path))],
        info.samplerate,
        info.frames,
        info.duration,
    )
    seconds = info.duration - start if seconds is None else seconds
    words = text.split()
    letters = "".join(words)
    alignment = {
        "word": _even(words, seconds),
        "phone": _even(list(letters), seconds),
    }
    spoken = SupervisionSegment(
        utt_id, path.stem, 0.0, seconds, text=text, speaker=speaker, alignment=alignment
    )
    return MonoCut(utt_id, start, seconds, 0, [spoken], recording=recording)


def _even(labels: list[str], seconds: float) -> list[AlignmentItem]:
    each = seconds / (len(labels) + 2)  # as much silence before and after
    return [
        AlignmentItem(label, round(each * (i + 1), 6), round(each, 6))
        for i, label in enumerate(labels)
    ]


def read_textgrid(path, start=0.0) -> dict[str, list[Span]]:
    """Return the labels of a TextGrid's tiers, by praatio; `start` is added to all times."""
    grid = openTextgrid(str(path), includeEmptyIntervals=False, reportingMode="error")
    return {
        tier.name: [
            Span(e.label, round(start + e.start, 9), round(e.end - e.start, 9))
            for e in tier.entries
        ]
        for tier in grid.tiers
    }
