"""Rows of manifests, alignments and hypotheses -> **words and phones with times**.

Times are seconds from the recording's start. Knows nothing of files.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """A word or phone; start and duration in seconds, confidence within 0 and 1 if known."""

    label: str
    start: float
    seconds: float
    confidence: float | None = None

    @property
    def end(self) -> float:
        return round(self.start + self.seconds, 9)


@dataclass(frozen=True, slots=True)
class Timed:
    """An utterance's words or phones, and its place in a recording."""

    id: str
    recording: str
    channel: int  # from 0
    speaker: str
    start: float
    seconds: float
    text: str
    spans: tuple[Span, ...]


def place_of(row: dict[str, Any], spans: tuple[Span, ...] = ()) -> Timed:
    """Convert a manifest's row, without or with given spans."""
    supervision = row["supervisions"][0]
    return Timed(
        row["id"],
        row["recording"]["id"],
        row["channel"],
        supervision.get("speaker") or "",
        row["start"],
        row["duration"],
        supervision.get("text") or "",
        spans,
    )


def aligned(row: dict[str, Any], kind: str) -> Timed:
    """Return the words or phones of a row's lhotse alignment (aligned or true times).

    Its times are relative to the utterance's start, as in all cuts of lhotse. The last frame may
    end half a shift after the utterance, where its word or phone is cut off.

    Args:
        kind: word or phone.
    Raises:
        ValueError: if the row has none.
    """
    items = (row["supervisions"][0].get("alignment") or {}).get(kind)
    if items is None:
        raise ValueError(
            f"{row['id']} has no {kind} times; take the rows of ali/MODEL/SPLIT.jsonl.gz. If these "
            "lack them, delete that file and run make again; or if it was imported, align here: "
            "Kaldi's phones did not tell where the transcript's words are"
        )
    shift = row.get("features", {}).get("frame_shift", 0.0)
    return _placed(row, items, shift)


def is_wordless(row: dict[str, Any]) -> bool:
    """Return whether only the row's phones are known, as of some alignments made by Kaldi."""
    alignment = row["supervisions"][0].get("alignment") or {}
    return "phone" in alignment and "word" not in alignment


def found(hyp: dict[str, Any], row: dict[str, Any]) -> Timed:
    """Return a hypothesis' words with times; its `words_at` is relative to the utterance's start.

    Words without times, as those that rescoring found, are spread evenly over the utterance: a CTM
    without them would be scored as if they were missed.

    Args:
        hyp: a row of hyp.SPLIT.jsonl.
        row: the manifest's row of the same utterance.
    Raises:
        ValueError: if the times are of other words.
    """
    words, items = list(hyp["words"]), hyp.get("words_at")
    if items is None:
        each = row["duration"] / max(1, len(words))
        sure = hyp.get("confidences") or [None] * len(words)
        items = [[word, i * each, each, sure[i]] for i, word in enumerate(words)]
    if [item[0] for item in items] != words:
        raise ValueError(
            f"{hyp['id']} has the words {' '.join(words)} but times of "
            f"{' '.join(item[0] for item in items)}; delete the hypotheses and decode again"
        )
    return _placed(row, items, math.inf)


def _placed(row: dict[str, Any], items: Iterable[Sequence[Any]], beyond: float) -> Timed:
    """Return the utterance with items whose times are relative to its start.

    Items that end at most `beyond` seconds after the utterance are cut off there.
    """
    end, spans = row["duration"], []
    for label, start, seconds, *rest in items:
        if end < start + seconds <= end + beyond:
            seconds = max(0.0, end - start)
        if not (start >= 0 and seconds >= 0):
            raise ValueError(f"{row['id']}: {label} starts at {start} s and lasts {seconds} s")
        confidence = rest[0] if rest else None
        if confidence is not None and not -1e-6 <= confidence <= 1 + 1e-6:
            confidence = None  # an alignment's score, not a probability
        spans.append(Span(str(label), float(start) + row["start"], float(seconds), confidence))
    return place_of(row, tuple(spans))
