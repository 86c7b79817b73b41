"""A folder of recordings with their texts beside them, a sub-folder per speaker, as MFA reads.

    FOLDER/SPEAKER/NAME.wav    and NAME.lab or NAME.txt with what was said

A recording that lies in FOLDER itself is a speaker of its own.
"""

from collections.abc import Iterator
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
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    audio = {path.with_suffix(""): path for path in paths if path.suffix.lower() in SUFFIXES}
    texts = {path.with_suffix(""): path for path in paths if path.suffix.lower() in TEXTS}
    if not audio:
        raise ValueError(
            f"{folder} has no recordings (wav, flac, mp3, ogg, ...) among its {len(paths)} files"
        )
    items = []
    for stem in sorted(audio.keys() & texts.keys()):
        name = stem.relative_to(folder)
        speaker = name.parts[0] if len(name.parts) > 1 else f"{name}."
        items.append(Item(name.as_posix(), speaker, audio[stem], texts[stem]))
    problems = [
        *(f"{audio[s]} has no text beside it ({s.name}.lab)" for s in audio.keys() - texts.keys()),
        *(f"{texts[s]} has no recording beside it" for s in texts.keys() - audio.keys()),
    ]
    return items, sorted(problems)


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
    name = "_".join(item.name.split())
    text = " ".join(span.label for span in found.words)
    return {
        tier: Timed(name, name, 0, item.speaker, 0.0, found.seconds, text, spans)
        for tier, spans in (("words", found.words), ("phones", found.phones))
    }
