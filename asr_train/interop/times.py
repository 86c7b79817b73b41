"""Rows of manifests, alignments and hypotheses -> **what was said when**, for CTM and TextGrid.

Times are seconds from the recording's start. Knows nothing of files.
"""

from dataclasses import dataclass
from typing import Any

KINDS = "word", "phone"


@dataclass(frozen=True, slots=True)
class Span:
    """A word or phone; start and duration in seconds, confidence within 0 and 1 where known."""

    label: str
    start: float
    seconds: float
    confidence: float | None = None

    @property
    def end(self) -> float:
        return round(self.start + self.seconds, 9)


@dataclass(frozen=True, slots=True)
class Timed:
    """An utterance's words or phones, and where in which recording it lies."""

    id: str
    recording: str
    channel: int  # counted from 0
    speaker: str
    start: float
    seconds: float
    text: str
    spans: tuple[Span, ...]


def place_of(row: dict[str, Any], spans: tuple[Span, ...] = ()) -> Timed:
    """A cut's row of a manifest, without or with given spans."""
    spoken = row["supervisions"][0]
    return Timed(
        row["id"],
        row["recording"]["id"],
        row["channel"],
        spoken.get("speaker") or "",
        row["start"],
        row["duration"],
        spoken.get("text") or "",
        spans,
    )


def aligned(row: dict[str, Any], kind: str) -> Timed:
    """The words or phones of a row's lhotse alignment (`ali/MODEL/SPLIT.jsonl.gz`, or true times).

    Args:
        kind: word or phone.
    Raises:
        ValueError: if the row has none; names it.
    """
    items = (row["supervisions"][0].get("alignment") or {}).get(kind)
    if items is None:
        raise ValueError(
            f"{row['id']} has no {kind} times; take the rows of ali/MODEL/SPLIT.jsonl.gz, and if "
            "these lack them, delete that file and run make again"
        )
    return place_of(row, tuple(_span(row["id"], item) for item in items))


def found(hyp: dict[str, Any], row: dict[str, Any]) -> Timed:
    """A hypothesis' words at their times; its `words_at` counts from the utterance's start.

    Args:
        hyp: a row of hyp.SPLIT.jsonl.
        row: of the manifest, the same utterance.
    Raises:
        ValueError: if the hypothesis has no times, or times of other words.
    """
    items = hyp.get("words_at", [] if not hyp["words"] else None)
    if items is None:
        raise ValueError(
            f"{hyp['id']} has words but no times (words_at); delete the hypotheses and decode again"
        )
    if [item[0] for item in items] != list(hyp["words"]):
        raise ValueError(
            f"{hyp['id']} has the words {' '.join(hyp['words'])} but times of "
            f"{' '.join(item[0] for item in items)}; delete the hypotheses and decode again"
        )
    spans = [_span(hyp["id"], item) for item in items]
    return place_of(
        row,
        tuple(Span(s.label, s.start + row["start"], s.seconds, s.confidence) for s in spans),
    )


def _span(utt_id: str, item: list[Any]) -> Span:
    label, start, seconds, *rest = item
    if not (start >= 0 and seconds >= 0):
        raise ValueError(f"{utt_id}: {label} starts at {start} s and lasts {seconds} s")
    confidence = rest[0] if rest else None
    if confidence is not None and not -1e-6 <= confidence <= 1 + 1e-6:
        confidence = None  # an alignment's score, no probability
    return Span(str(label), float(start), float(seconds), confidence)
