"""A folder of recordings with their texts beside them, a sub-folder per speaker, as MFA reads.

    FOLDER/SPEAKER/NAME.wav    and NAME.lab or NAME.txt with what was said

A recording that lies in FOLDER itself is a speaker of its own.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from asr_train.bundle.audio import SUFFIXES
from asr_train.bundle.recogniser import Alignment, Recogniser, Spoken
from asr_train.files import read_text
from asr_train.interop.times import Timed
from asr_train.jobs import parallel_map

TEXTS = (".lab", ".txt")
BATCH_FRAMES = 1_500_000  # features in memory at once; whole speakers, four hours


@dataclass(frozen=True, slots=True)
class Item:
    """A recording and its text.

    Attributes:
        name: path in the folder, without suffix.
    """

    name: str
    speaker: str
    audio: Path
    text: Path


def read_folder(folder: Path) -> tuple[list[Item], list[str]]:
    """Find recordings with texts, by speaker and name; and say which lack the other.

    Raises:
        ValueError: if there is no recording.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name one with recordings and their texts")
    paths = sorted(_files(folder))
    audio, texts = (_by_name(paths, kinds) for kinds in (SUFFIXES, TEXTS))
    if not audio:
        raise ValueError(
            f"{folder} has no recordings (wav, flac, mp3, ogg, ...) among its {len(paths)} files"
        )
    problems, items, called = [], [], dict[str, Item]()
    for stem in sorted(audio.keys() | texts.keys()):
        for same in (audio.get(stem, []), texts.get(stem, [])):
            if len(same) > 1:
                names = " and ".join(path.name for path in same)
                problems.append(f"{stem.parent} has {names}; keep one of them")
        if stem not in texts:
            problems.append(f"{audio[stem][0]} has no text beside it ({stem.name}.lab)")
        elif stem not in audio:
            problems.append(f"{texts[stem][0]} has no recording beside it")
        elif len(audio[stem]) == len(texts[stem]) == 1:
            name = stem.relative_to(folder)
            speaker = name.parts[0] if len(name.parts) > 1 else f"{name}."
            item = Item(name.as_posix(), speaker, audio[stem][0], texts[stem][0])
            other = called.setdefault(_label(item), item)
            if other is item:
                items.append(item)
            else:
                problems.append(
                    f"{item.audio} and {other.audio} would both be called {_label(item)}; "
                    "rename one of them"
                )
    return items, sorted(problems)


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
        loaded = parallel_map(lambda item: _load(recogniser, item), mine, "")
        for item, found in zip(mine, loaded, strict=True):
            if isinstance(found, Spoken):
                batch.append((item, found))
            else:
                yield item, ValueError(found)
        frames = sum(len(spoken.features_TF) for _, spoken in batch)
        if batch and (frames > BATCH_FRAMES or number == len(speakers)):
            outcomes = recogniser.align_features([spoken for _, spoken in batch], what)
            yield from zip([item for item, _ in batch], outcomes, strict=True)
            batch = []


def _load(recogniser: Recogniser, item: Item) -> Spoken | str:
    try:
        text = read_text(item.text)
        features_TF, seconds, _ = recogniser.features(item.audio)
    except (ValueError, OSError) as error:
        return str(error)
    return Spoken(item.name, item.speaker, text, features_TF, seconds)


def timed(item: Item, found: Alignment) -> dict[str, Timed]:
    """Return the words and phones of a recording, for TextGrid and CTM."""
    name, text = _label(item), " ".join(span.label for span in found.words)
    return {
        tier: Timed(name, name, 0, item.speaker, 0.0, found.seconds, text, spans)
        for tier, spans in (("words", found.words), ("phones", found.phones))
    }
