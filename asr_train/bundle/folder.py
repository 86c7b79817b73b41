"""Alignment of a folder of recordings with their texts beside them (interop.beside finds them)."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, groupby

import numpy as np

from asr_train.bundle.audio import check_whole, samples_of
from asr_train.bundle.recogniser import Alignment, Recogniser, Spoken
from asr_train.checks import check_text
from asr_train.files import read_text
from asr_train.interop.beside import Item
from asr_train.interop.times import Span, Timed
from asr_train.jobs import parallel_map

LATE_SECONDS = 0.5  # by which an interval may end after its recording
BATCH_FRAMES = 1_500_000  # features in memory at once; whole speakers, four hours


def align_folder(
    recogniser: Recogniser, items: list[Item], what: str = ""
) -> Iterator[tuple[Item, Alignment | ValueError]]:
    """Align all items; speakers are normalised and adapted as a whole, in worker processes.

    Args:
        what: label of progress bars; "": none is shown.
    """
    batch: list[tuple[Item, Spoken]] = []
    speakers: dict[str, list[Item]] = {}
    for item in items:
        speakers.setdefault(item.speaker, []).append(item)
    for number, mine in enumerate(speakers.values(), 1):
        recordings = [list(some) for _, some in groupby(mine, lambda item: item.audio)]
        loaded = parallel_map(lambda some: _load(recogniser, some), recordings, "")
        for item, found in zip(mine, chain(*loaded), strict=True):
            if isinstance(found, Spoken):
                batch.append((item, found))
            else:
                yield item, ValueError(found)
        frames = sum(len(spoken.features_TF) for _, spoken in batch)
        if batch and (frames > BATCH_FRAMES or number == len(speakers)):
            outcomes = recogniser.align_features([spoken for _, spoken in batch], what)
            yield from zip([item for item, _ in batch], outcomes, strict=True)
            batch = []


def _load(recogniser: Recogniser, items: list[Item]) -> list[Spoken | str]:
    """Read one recording: the texts and features of its items, or why they cannot be used."""
    (item, *_) = items
    try:
        if item.interval is not None:
            wave_N, own_rate = samples_of(item.audio, recogniser.sample_rate)
            return [_part(recogniser, wave_N, own_rate, item) for item in items]
        text = read_text(item.text)
        check_text(item.text, text)
        heard = recogniser.features(item.audio)
        check_whole(item.audio)
    except (ValueError, OSError) as error:
        return [str(error)] * len(items)
    return [Spoken(item.name, item.speaker, text, *heard)]


def _part(recogniser: Recogniser, wave_N: np.ndarray, own_rate: int, item: Item) -> Spoken | str:
    assert item.interval is not None
    rate, whole = recogniser.sample_rate, len(wave_N) / recogniser.sample_rate
    if item.interval.end > whole + LATE_SECONDS:
        return f"{item}: {item.audio} has {whole:.2f} s; correct {item.text}"
    first, last = (round(time * rate) for time in (item.interval.start, item.interval.end))
    try:
        check_text(item.text, item.interval.label)
        features_TF, seconds, _ = recogniser.features(wave_N[first:last])
    except ValueError as error:
        return f"{item}: {error}"
    return Spoken(str(item), item.speaker, item.interval.label, features_TF, seconds, own_rate)


def timed(item: Item, found: Alignment) -> dict[str, Timed]:
    """Return the words and phones of an item, for CTM; times are from the recording's start."""
    name, text = item.label, " ".join(span.label for span in found.words)
    start, end = 0.0, math.inf
    if item.interval is not None:  # aligned frames may end half a shift after it
        start, end = item.interval.start, item.interval.end

    def placed(span: Span) -> Span:
        begin = start + span.start
        seconds = min(start + span.end, end) - start - span.start
        return Span(span.label, round(begin, 6), round(seconds, 6))

    return {
        kind: Timed(
            name, name, 0, item.speaker, start, found.seconds, text, tuple(map(placed, spans))
        )
        for kind, spans in (("words", found.words), ("phones", found.phones))
    }


def tiers_of(found: list[tuple[Item, dict[str, Timed]]]) -> dict[str, Timed]:
    """Return the tiers of one recording's TextGrid from its items' words and phones."""
    tiers: dict[str, Timed] = {}
    for item, parts in sorted(found, key=lambda pair: pair[1]["words"].start):
        for kind, part in parts.items():
            whole = tiers.get(item.tier(kind))
            spans = (*(whole.spans if whole else ()), *part.spans)
            seconds = part.seconds if item.interval is None else item.whole_seconds
            tiers[item.tier(kind)] = replace(part, start=0.0, seconds=seconds, spans=spans)
    return tiers
