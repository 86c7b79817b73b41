"""Words or phones with their times -> **CTM**; references -> **STM**: NIST's formats, for sclite.

    CTM   recording channel start duration word confidence
    STM   recording channel speaker start end <label> words

Channels are numbered from 1; times are seconds from the recording's start.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr_train.files import DamagedFileError, read_lines, write_text
from asr_train.interop.times import Span, Timed

Lane = tuple[str, int]  # recording, and channel from 0


def write_ctm(path: Path | str, utterances: Iterable[Timed]) -> int:
    """Write `ctm_text` of utterances; return the number of lines."""
    text = ctm_text(utterances)
    write_text(path, text)
    return text.count("\n")


def ctm_text(utterances: Iterable[Timed]) -> str:
    """Format one line per word, in order of recording, channel and time.

    A word without confidence gets 1. An utterance without words has no line: in a CTM, it cannot be
    distinguished from one that was never decoded.
    """
    rows = [(u.recording, u.channel + 1, span) for u in utterances for span in u.spans]
    rows.sort(key=lambda row: (row[0].encode(), row[1], row[2].start))
    for recording, _, span in rows:
        _check_words(recording, recording, span.label)
    return "".join(f"{r} {c} {_ctm(span)}\n" for r, c, span in rows)


def _ctm(span: Span) -> str:
    confidence = 1.0 if span.confidence is None else min(1.0, max(0.0, span.confidence))
    return f"{span.start:.3f} {span.seconds:.3f} {span.label} {confidence:.4f}"


def read_ctm(path: Path | str) -> dict[Lane, list[Span]]:
    """Read a CTM; the confidence may be missing or NA, comments begin with ';;'.

    Raises:
        DamagedFileError: for a line with other fields; names file and line.
    """
    found: dict[Lane, list[Span]] = {}
    for where, fields in _lines(path):
        try:
            recording, channel, start, seconds, word, *rest = fields
            confidence = float(rest[0]) if rest and rest[0] != "NA" else None
            span = Span(word, float(start), float(seconds), confidence)
            lane = recording, _number(channel) - 1
            if len(rest) > 1 or not all(x >= 0 and x < math.inf for x in (span.start, span.end)):
                raise ValueError("more fields, or a time that is negative or infinite")
        except ValueError as error:
            raise DamagedFileError(
                f"{where} ({error}); it must be recording, channel, start, duration, word and "
                "confidence"
            ) from error
        found.setdefault(lane, []).append(span)
    return found


def write_stm(path: Path | str, utterances: Iterable[Timed]) -> int:
    """Write one line per utterance, its reference, in order of recording, channel and time."""
    rows = sorted(utterances, key=lambda u: (u.recording.encode(), u.channel, u.start))
    lines = []
    for u in rows:
        _check_words(u.id, u.recording, u.speaker)
        end = u.start + u.seconds
        place = f"{u.recording} {u.channel + 1} {u.speaker} {u.start:.3f} {end:.3f}"
        lines.append(f"{place} <NA> {u.text}".rstrip() + "\n")
    write_text(path, "".join(lines))
    return len(lines)


def read_stm(path: Path | str) -> list[Timed]:
    """Read an STM, in its order; the label may be missing, comments begin with ';;'.

    Raises:
        DamagedFileError: for a line with other fields; names file and line.
    """
    found = []
    for where, fields in _lines(path):
        try:
            recording, channel, speaker, start, end, *words = fields
            lane = _number(channel)
            times = float(start), float(end)
            if not 0 <= times[0] <= times[1] < math.inf:
                raise ValueError(f"it lasts from {start} to {end} s")
        except ValueError as error:
            raise DamagedFileError(
                f"{where} ({error}); it must be recording, channel, speaker, start, end and words"
            ) from error
        if words and words[0].startswith("<") and words[0].endswith(">"):
            words = words[1:]
        utt_id = f"{recording}-{lane}-{start}"
        seconds = round(times[1] - times[0], 9)
        text = " ".join(words)
        found.append(Timed(utt_id, recording, lane - 1, speaker, times[0], seconds, text, ()))
    return found


def _lines(path: Path | str) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines that are no comments: what an error calls it, and its fields."""
    for number, line in enumerate(read_lines(path), 1):
        if line.strip() and not line.startswith(";;"):
            yield f"{path}, line {number} is {line!r}", line.split()


def _number(channel: str) -> int:
    """Return a channel, counted from 1."""
    return {"A": 1, "B": 2}.get(channel) or int(channel)


def _check_words(where: str, *names: str) -> None:
    for name in names:
        if name.split() != [name]:
            raise ValueError(
                f"{where}: {name!r} is empty or has a space, a separator in CTM and STM; rename it"
            )
