"""Manifests and their tables of dropped utterances -> the **data card** of a page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from asr_train.report.tables import spell_seconds

Row = dict[str, Any]
# Utterances that were dropped or changed: id, kind, details, and whether dropped
Remarks = Sequence[tuple[str, str, str, bool]]
LISTED = 50  # of a split's remarks


def data_card(cuts: Mapping[str, Sequence[Row]], remarks: Mapping[str, Remarks]) -> Row:
    """Return columns, a row per split, notes, and the remarks of each split that has some.

    Args:
        cuts: by split, rows of its manifest, with one supervision each.
        remarks: of each split.
    """
    speakers = {split: {_said(cut)["speaker"] for cut in rows} for split, rows in cuts.items()}
    first, *others = speakers
    notes = []
    for split in others:
        common = len(speakers[split] & speakers[first])
        of = f"{common:,} of {len(speakers[split]):,}" if common else "none"
        notes.append(f"Speakers of {split} that are also in {first}: {of}.")
    rows = [_cells(split, cuts[split], len(speakers[split]), remarks[split]) for split in cuts]
    return {
        "columns": list(rows[0]),
        "rows": [list(row.values()) for row in rows],
        "notes": notes,
        "remarks": [_remarks(split, found) for split, found in remarks.items() if found],
    }


def _said(cut: Row) -> Row:
    return cut["supervisions"][0]


def _cells(split: str, cuts: Sequence[Row], speakers: int, remarks: Remarks) -> dict[str, str]:
    """Return the text of each column."""
    seconds = [cut["duration"] for cut in cuts]
    words = Counter(word for cut in cuts for word in _said(cut)["text"].split())
    return {
        "split": split,
        "utterances": f"{len(seconds):,}",
        "audio": spell_seconds(sum(seconds)),
        "speakers": f"{speakers:,}",
        "words": f"{words.total():,}",
        "different words": f"{len(words):,}",
        "median length": spell_seconds(median(seconds)),
        "longest": spell_seconds(max(seconds)),
        "dropped": f"{sum(dropped for *_, dropped in remarks):,}",
    }


def _remarks(split: str, remarks: Remarks) -> Row:
    kinds = Counter((what, dropped) for _, what, _, dropped in remarks).most_common()
    return {
        "split": split,
        "summary": ", ".join(
            f"{count:,} {what}{'' if dropped else ' (kept)'}" for (what, dropped), count in kinds
        ),
        "rows": [(utt_id, what, why) for utt_id, what, why, _ in remarks[:LISTED]],
        "more": max(0, len(remarks) - LISTED),
    }
