"""Speakers -> splits: by name, every Nth, or by a hash of the name, equal on every machine.

Knows nothing of recordings.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from unicodedata import normalize

from asr_train.checks import few, spelled
from asr_train.data.corpus import CorpusError, hash_order
from asr_train.schema import FolderSettings, SplitBy


def spelled_as(speakers: Iterable[str], settings: FolderSettings) -> FolderSettings:
    """Return the settings with the names of these speakers as the corpus spells them.

    Names of files from macOS have an umlaut as two characters, where keyboards give one.
    """
    there = {normalize("NFC", name): name for name in speakers}
    dev, test = (
        [there.get(normalize("NFC", name), name) for name in names]
        for names in (settings.dev_speakers, settings.test_speakers)
    )
    return replace(settings, dev_speakers=dev, test_speakers=test)


def split_speakers(
    speakers: Sequence[str], settings: FolderSettings, more: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Assign speakers to train, dev and test: as named in the settings, else by drawing.

    If `test_every` is set, TEST has every Nth speaker in sorted order. Otherwise speakers are
    ordered by a hash of their names; TEST takes its share from one end, then DEV, at least one
    each. A split `by_utterances` has TRAIN's speakers.

    Args:
        speakers: of the folder that DEV and TEST are drawn from, once per utterance.
        more: of further folders; they are in TRAIN unless they are named.
    Raises:
        CorpusError: for names that are not in the corpus, or too few speakers.
    """
    everyone, others = sorted(set(speakers)), sorted(set(more))
    for key in ("dev_speakers", "test_speakers"):
        _refuse_unknown(key, getattr(settings, key), sorted({*everyone, *others}))
    taken = {"test": sorted(settings.test_speakers), "dev": sorted(settings.dev_speakers)}
    if settings.test_every is not None:
        taken["test"] = _every(everyone, settings)
    shares = {"test": settings.test_share, "dev": settings.dev_share}
    for split in (*by_utterances(settings), *settings.held_out):
        taken.pop(split, None)
    named = {name for names in taken.values() for name in names}
    free = sorted(set(everyone) - named, key=hash_order)
    train = set(others) - named
    drawn = [split for split in taken if not taken[split]]
    counts = {split: max(1, round(shares[split] * len(everyone))) for split in drawn}
    spare = len(free) + bool(train) - 1
    if drawn and sum(counts.values()) > spare:
        wanted = ", ".join(f"{count} for {split}" for split, count in counts.items())
        raise CorpusError(
            f"{spelled(len(free), 'speaker')} ({few(free)}) cannot be split into {wanted} "
            f"and some for train; {_remedy(counts, spare, speakers, settings)}"
        )
    for split in drawn:
        taken[split], free = sorted(free[: counts[split]]), free[counts[split] :]
    trained = sorted({*free, *train})
    return {"train": trained, "dev": taken.get("dev", trained), "test": taken.get("test", trained)}


def by_utterances(settings: FolderSettings) -> list[str]:
    """Return the splits that are shares of the training speakers' utterances, in drawing order."""
    test = settings.test_by is SplitBy.utterances
    named = settings.dev_speakers or settings.dev_dir
    dev = settings.dev_by is SplitBy.utterances or (test and not named)
    return ["test"] * test + ["dev"] * dev


def _remedy(
    counts: dict[str, int], spare: int, speakers: Sequence[str], settings: FolderSettings
) -> str:
    """Return a setting that makes a split possible."""
    where = settings.GROUP
    if max(counts.values()) > 1:
        return f"lower {where}.dev_share or test_share, or add speakers"
    others = sum(count for split, count in counts.items() if split != "dev")
    if "dev" in counts and others <= spare and min(Counter(speakers).values()) > 1:
        return f"set {where}.dev_by=utterances: DEV is then a share of the training speakers' own"
    if len(speakers) > 2:
        empty = f" and leave {where}.test_speakers empty" if settings.test_speakers else ""
        return f"set {where}.test_by=utterances{empty}: TEST and DEV are then shares of everybody's"
    return "add recordings: train, dev and test need an utterance each"


def further_test_speakers(speakers: Sequence[str], settings: FolderSettings) -> list[str]:
    """Return the speakers of a further folder to test on: every Nth, or a share.

    Raises:
        CorpusError: if no speaker would be left to train on.
    """
    everyone = sorted(set(speakers))
    if settings.test_every is not None:
        return _every(everyone, settings)
    return sorted(share_of(everyone, settings.test_share, "speaker"))


def share_of(
    names: Sequence[str], share: float, what: str, remedy: str = "add recordings"
) -> set[str]:
    """Select a share of these names, at least one, by their hashes.

    Args:
        what: the noun for messages; "utterance", "speaker of train".
        remedy: what to do if there are too few.
    Raises:
        CorpusError: if none would be left to train on.
    """
    count = max(1, round(share * len(names)))
    if count >= len(names):
        low = "lower dev_share or test_share of the corpus, or " if count > 1 else ""
        raise CorpusError(
            f"{spelled(len(names), what)} cannot be split into {count} held out and some for "
            f"train; {low}{remedy}"
        )
    return set(sorted(names, key=hash_order)[:count])


def _every(everyone: list[str], settings: FolderSettings) -> list[str]:
    """Return the Nth, 2Nth, ... speaker."""
    assert settings.test_every is not None
    found = everyone[settings.test_every - 1 :: settings.test_every]
    both = sorted(set(found) & set(settings.dev_speakers))
    if both:
        raise CorpusError(
            f"corpus.folder.dev_speakers names {few(both)}, but test_every="
            f"{settings.test_every} takes them for test; name others for dev"
        )
    if not found:
        raise CorpusError(
            f"corpus.folder.test_every is {settings.test_every}, but there are only "
            f"{len(everyone)} speakers ({few(everyone)}); lower it"
        )
    return found


def _refuse_unknown(key: str, names: list[str], everyone: list[str]) -> None:
    for name in names:
        if name not in everyone:
            near = difflib.get_close_matches(name, everyone, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise CorpusError(
                f"corpus.folder.{key} names {name!r}, who is not in the corpus; {hint}"
                f"it has {few(everyone)}"
            )
