"""Manifests and their tables of dropped utterances -> the **data card** of a page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from asr_train.report.tables import spell_seconds

Row = dict[str, Any]
LISTED = 50  # utterances of a split that were dropped or changed


@dataclass(frozen=True, slots=True)
class Recorded:
    """One split.

    Attributes:
        cuts: rows of its manifest, with one supervision each.
        remarks: utterances that were dropped or changed: id, kind, details, and whether dropped.
    """

    split: str
    cuts: Sequence[Row]
    remarks: Sequence[tuple[str, str, str, bool]]


def data_card(splits: Sequence[Recorded]) -> Row:
    """Return columns, a row per split, notes, and the remarks of each split that has some."""
    speakers = {s.split: {_said(cut)["speaker"] for cut in s.cuts} for s in splits}
    first = splits[0].split
    notes = []
    for split in list(speakers)[1:]:
        common = len(speakers[split] & speakers[first])
        of = f"{common:,} of {len(speakers[split]):,}" if common else "none"
        notes.append(f"Speakers of {split} that are also in {first}: {of}.")
    rows = [_cells(split, len(speakers[split.split])) for split in splits]
    return {
        "columns": list(rows[0]),
        "rows": [list(row.values()) for row in rows],
        "notes": notes,
        "remarks": [_remarks(split) for split in splits if split.remarks],
    }


def _said(cut: Row) -> Row:
    return cut["supervisions"][0]


def _cells(split: Recorded, speakers: int) -> dict[str, str]:
    """Return the text of each column."""
    seconds = [cut["duration"] for cut in split.cuts]
    words = Counter(word for cut in split.cuts for word in _said(cut)["text"].split())
    return {
        "split": split.split,
        "utterances": f"{len(seconds):,}",
        "audio": spell_seconds(sum(seconds)),
        "speakers": f"{speakers:,}",
        "words": f"{words.total():,}",
        "different words": f"{len(words):,}",
        "median length": spell_seconds(median(seconds)),
        "longest": spell_seconds(max(seconds)),
        "dropped": f"{sum(dropped for *_, dropped in split.remarks):,}",
    }


def _remarks(split: Recorded) -> Row:
    kinds = Counter((what, dropped) for _, what, _, dropped in split.remarks).most_common()
    return {
        "split": split.split,
        "summary": ", ".join(
            f"{count:,} {what}{'' if dropped else ' (kept)'}" for (what, dropped), count in kinds
        ),
        "rows": [(utt_id, what, why) for utt_id, what, why, _ in split.remarks[:LISTED]],
        "more": max(0, len(split.remarks) - LISTED),
    }
