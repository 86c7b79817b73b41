"""Recordings with their texts beside them, a sub-folder per speaker, as MFA reads -> **items**.

    FOLDER/SPEAKER/NAME.wav    and NAME.lab or NAME.txt with what was said
    FOLDER/.../NAME.wav        and NAME.TextGrid: a tier per speaker, an interval per utterance

A recording that lies in FOLDER itself is a speaker of its own. A TextGrid is read where there is no
text file, so that one written there earlier does not count.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import soundfile

from asr_train.checks import printable, spelled
from asr_train.interop.textgrid import read_textgrid
from asr_train.interop.times import Span

SUFFIXES = frozenset(f".{name.lower()}" for name in soundfile.available_formats()) | {
    *(".aif", ".sph", ".opus")
}
UNREAD = frozenset({".m4a", ".m4b", ".mp4", ".aac", ".wma", ".amr", ".3gp", ".webm"})
TEXTS = (".lab", ".txt")
GRID = ".textgrid"


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

    @property
    def label(self) -> str:
        """The name without spaces, in UTF-8, for CTM."""
        return printable("_".join(self.name.split()) or "_")

    def tier(self, kind: str) -> str:
        """Return the name of its tier of words or phones, as MFA calls it."""
        return kind if self.interval is None else f"{self.speaker} - {kind}"


def read_folder(folder: Path) -> tuple[list[Item], list[str], dict[str, list[Path]]]:
    """Find recordings with texts, by speaker and name.

    Returns:
        items: to align, or to train on.
        problems: a line for each file that is left out.
        left_out: names that are no item's, with the texts and TextGrids of that name.
    Raises:
        ValueError: if there is no recording.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; name one with recordings and their texts")
    files = sorted(_files(folder))
    attributes = [path for path in files if path.name.startswith("._")]
    paths = [path for path in files if not path.name.startswith("._")]
    audio, unread, texts, grids = (
        _by_name(paths, kinds) for kinds in (SUFFIXES, UNREAD, TEXTS, (GRID,))
    )
    if not audio:
        raise ValueError(
            f"{folder} has no recordings (wav, flac, mp3, ogg, ...) among its {len(paths)} files"
        )
    texts |= {stem: found for stem, found in grids.items() if stem in audio.keys() - texts.keys()}
    problems, items, called = [], [], dict[str, Item]()
    if attributes:
        problems.append(
            f"{spelled(len(attributes), 'file')} beginning with ._, as {attributes[0]}, left out: "
            "macOS writes them beside others, to keep attributes; delete them"
        )
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
            others = [path.name for path in unread.get(stem, [])]
            problems.append(
                f"{texts[stem][0]} has no recording beside it"
                + (f", but {' and '.join(others)}; convert it to WAV or FLAC" if others else "")
            )
        elif len(audio[stem]) == len(texts[stem]) == 1:
            name = stem.relative_to(folder)
            speaker = name.parts[0] if len(name.parts) > 1 else f"{name}."
            item = Item(name.as_posix(), speaker, audio[stem][0], texts[stem][0])
            try:
                if (other := called.setdefault(item.label, item)) is not item:
                    raise ValueError(
                        f"{item.audio} and {other.audio} would both be called {item.label}; "
                        "rename one of them"
                    )
                items += _intervals(item) if item.text.suffix.lower() == GRID else [item]
            except ValueError as error:
                problems.append(str(error))
    left_out = {
        stem.relative_to(folder).as_posix(): texts.get(stem, []) + grids.get(stem, [])
        for stem in audio.keys() | texts.keys()
    }
    for item in items:
        left_out.pop(item.name, None)
    return items, sorted(problems), left_out


def _intervals(whole: Item) -> list[Item]:
    """Return an item for each interval with text."""
    seconds, tiers = read_textgrid(whole.text)
    if {"words", "phones"} <= {tier.rpartition(" - ")[2] for tier in tiers}:
        raise ValueError(
            f"{whole.text} has tiers of words and phones: it is an alignment; give the texts in a "
            "tier per speaker"
        )
    names = Counter(tier.strip() for tier in tiers)
    if same := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"{whole.text} has two tiers called {same[0]!r}; rename one of them")
    found = [
        Item(whole.name, tier.strip(), whole.audio, whole.text, span, seconds)
        for tier, spans in tiers.items()
        for span in spans
    ]
    if not found:
        raise ValueError(f"{whole.text} has no interval with text, in a tier per speaker")
    if nameless := [span for tier, spans in tiers.items() if not tier.strip() for span in spans]:
        raise ValueError(
            f"{whole.text} has {nameless[0].label!r} in a tier without a name; name the tier after "
            "its speaker"
        )
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
