"""A folder of recordings with their texts beside them, a sub-folder per speaker, as MFA reads.

    FOLDER/SPEAKER/NAME.wav    and NAME.lab or NAME.txt with what was said
    FOLDER/.../NAME.wav        and NAME.TextGrid: a tier per speaker, an interval per utterance

A recording that lies in FOLDER itself is a speaker of its own. A TextGrid is read where there is no
text file, so that one written there earlier does not count.
"""

import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path

import numpy as np

from asr_train.bundle.audio import SUFFIXES, samples_of
from asr_train.bundle.recogniser import Alignment, Recogniser, Spoken
from asr_train.files import read_text
from asr_train.interop.textgrid import read_textgrid
from asr_train.interop.times import Span, Timed
from asr_train.jobs import parallel_map

TEXTS = (".lab", ".txt")
GRID = ".textgrid"
LATE_SECONDS = 0.5  # by which an interval may end after its recording
BATCH_FRAMES = 1_500_000  # features in memory at once; whole speakers, four hours


@dataclass(frozen=True, slots=True)
class Item:
    """A recording and the file of its text, or an interval of its TextGrid.

    Attributes:
        name: path in the folder, without suffix.
        interval: with the text as its label; None: the whole recording.
        whole_seconds: of the TextGrid.
    """

    name: str
    speaker: str
    audio: Path
    text: Path
    interval: Span | None = None
    whole_seconds: float = 0.0

    def __str__(self) -> str:
        if self.interval is None:
            return self.name
        at = self.interval
        return f"{self.name}, {self.speaker}, {at.start:.2f} to {at.end:.2f} s"

    def tier(self, kind: str) -> str:
        """Return the name of its tier of words or phones, as MFA calls it."""
        return kind if self.interval is None else f"{self.speaker} - {kind}"


def read_folder(folder: Path) -> tuple[list[Item], list[str]]:
    """Find recordings with texts, by speaker and name; and say which lack the other.

    Raises:
        ValueError: if there is no recording.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name one with recordings and their texts")
    paths = sorted(_files(folder))
    audio, texts, grids = (_by_name(paths, kinds) for kinds in (SUFFIXES, TEXTS, (GRID,)))
    if not audio:
        raise ValueError(
            f"{folder} has no recordings (wav, flac, mp3, ogg, ...) among its {len(paths)} files"
        )
    texts |= {stem: found for stem, found in grids.items() if stem in audio.keys() - texts.keys()}
    problems, items, called = [], [], dict[str, Item]()
    for stem in sorted(audio.keys() | texts.keys()):
        for same in (audio.get(stem, []), texts.get(stem, [])):
            if len(same) > 1:
                names = " and ".join(path.name for path in same)
                problems.append(f"{stem.parent} has {names}; keep one of them")
        if stem not in texts:
            problems.append(
                f"{audio[stem][0]} has no text beside it ({stem.name}.lab, .txt or .TextGrid)"
            )
        elif stem not in audio:
            problems.append(f"{texts[stem][0]} has no recording beside it")
        elif len(audio[stem]) == len(texts[stem]) == 1:
            name = stem.relative_to(folder)
            speaker = name.parts[0] if len(name.parts) > 1 else f"{name}."
            item = Item(name.as_posix(), speaker, audio[stem][0], texts[stem][0])
            other = called.setdefault(_label(item), item)
            if other is item and item.text.suffix.lower() == GRID:
                try:
                    items += _intervals(item)
                except ValueError as error:
                    problems.append(str(error))
            elif other is item:
                items.append(item)
            else:
                problems.append(
                    f"{item.audio} and {other.audio} would both be called {_label(item)}; "
                    "rename one of them"
                )
    return items, sorted(problems)


def _intervals(whole: Item) -> list[Item]:
    """Return an item for each interval with text."""
    seconds, tiers = read_textgrid(whole.text)
    if {"words", "phones"} <= {tier.rpartition(" - ")[2] for tier in tiers}:
        raise ValueError(
            f"{whole.text} has tiers of words and phones: it is an alignment; give the texts in a "
            "tier per speaker"
        )
    found = [
        Item(whole.name, tier.strip(), whole.audio, whole.text, span, seconds)
        for tier, spans in tiers.items()
        for span in spans
    ]
    if not found:
        raise ValueError(f"{whole.text} has no interval with text, in a tier per speaker")
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files, also those in folders that are linked, once.

    Raises:
        OSError: if a folder cannot be read.
    """
    seen = set()

    def unreadable(error: OSError) -> None:
        raise error

    for where, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        if (place := os.path.realpath(where)) in seen:
            folders.clear()
            continue
        seen.add(place)
        yield from (Path(where, name) for name in names)


def _by_name(paths: list[Path], kinds: Collection[str]) -> dict[Path, list[Path]]:
    """Return the files of these suffixes by name without it."""
    found: dict[Path, list[Path]] = {}
    for path in paths:
        if path.suffix.lower() in kinds and path.is_file():
            found.setdefault(path.with_suffix(""), []).append(path)
    return found


def _label(item: Item) -> str:
    """Return a name without spaces, in UTF-8, for CTM."""
    return "_".join(item.name.split()).encode(errors="backslashreplace").decode()


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
            wave_N, _ = samples_of(item.audio, recogniser.sample_rate)
            return [_part(recogniser, wave_N, item) for item in items]
        text = read_text(item.text)
        features_TF, seconds, _ = recogniser.features(item.audio)
    except (ValueError, OSError) as error:
        return [str(error)] * len(items)
    return [Spoken(item.name, item.speaker, text, features_TF, seconds)]


def _part(recogniser: Recogniser, wave_N: np.ndarray, item: Item) -> Spoken | str:
    assert item.interval is not None
    rate, whole = recogniser.sample_rate, len(wave_N) / recogniser.sample_rate
    if item.interval.end > whole + LATE_SECONDS:
        return f"{item}: {item.audio} has {whole:.2f} s; correct {item.text}"
    first, last = (round(time * rate) for time in (item.interval.start, item.interval.end))
    try:
        features_TF, seconds, _ = recogniser.features(wave_N[first:last])
    except ValueError as error:
        return f"{item}: {error}"
    return Spoken(str(item), item.speaker, item.interval.label, features_TF, seconds)


def timed(item: Item, found: Alignment) -> dict[str, Timed]:
    """Return the words and phones of an item, for CTM; times are from the recording's start."""
    name, text = _label(item), " ".join(span.label for span in found.words)
    start, end = 0.0, math.inf
    if item.interval is not None:  # aligned frames may end half a shift after it
        start, end = item.interval.start, item.interval.end
    placed = {
        kind: tuple(
            Span(
                span.label,
                round(start + span.start, 6),
                round(min(start + span.end, end) - start - span.start, 6),
            )
            for span in spans
        )
        for kind, spans in (("words", found.words), ("phones", found.phones))
    }
    return {
        kind: Timed(name, name, 0, item.speaker, start, found.seconds, text, spans)
        for kind, spans in placed.items()
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
