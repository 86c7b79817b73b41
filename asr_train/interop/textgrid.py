"""Words and phones with their times <-> **TextGrid**, which Praat shows over the spectrogram.

One file per utterance, one tier per kind, times from the utterance's start. praatio reads and
writes; what it would repair silently (overlaps, labels past the end) is refused here.
"""

from collections.abc import Mapping
from pathlib import Path

from asr_train.files import DamagedFileError, read_text, replacing
from asr_train.interop.times import Span, Timed

SLACK_SECONDS = 1e-5  # of overlap by rounding


def read_textgrid(path: Path | str) -> tuple[float, dict[str, list[Span]]]:
    """Return the length in seconds, and the labelled intervals of each tier; points are left out.

    Raises:
        DamagedFileError: for a file that is no TextGrid.
    """
    from praatio.data_classes.interval_tier import IntervalTier
    from praatio.textgrid import openTextgrid

    try:
        grid = openTextgrid(str(path), includeEmptyIntervals=False, reportingMode="error")
        spans = {}
        for tier in grid.tiers:
            if isinstance(tier, IntervalTier):
                labelled = [entry for entry in tier.entries if entry.label.strip()]
                spans[tier.name] = [
                    Span(e.label, e.start, round(e.end - e.start, 9)) for e in labelled
                ]
        return float(grid.maxTimestamp), spans
    except UnicodeDecodeError:
        read_text(path)  # its message says how to convert the file
        raise
    except Exception as error:  # of any kind: praatio parses by cutting strings
        why = " ".join(str(error).split())[:200]
        raise DamagedFileError(
            f"{path} is no TextGrid that praatio can read ({type(error).__name__}: {why}); open it "
            "in Praat and save it as a text file"
        ) from error


def write_textgrid(
    path: Path | str, tiers: Mapping[str, Timed], beyond_seconds: float = 0.0
) -> None:
    """Write one utterance in the long format; gaps become empty intervals.

    Args:
        tiers: name (words, phones) -> the same utterance with its spans, in time order.
        beyond_seconds: by which the last span may end past the audio, and is cut off: half a frame
            shift for aligned frames, whose number is rounded.
    Raises:
        ValueError: if spans overlap, are empty, or are outside the utterance.
    """
    from praatio.data_classes.interval_tier import IntervalTier
    from praatio.data_classes.textgrid import Textgrid

    grid = Textgrid()
    for name, timed in tiers.items():
        spans = _inside(timed, name, beyond_seconds)
        grid.addTier(IntervalTier(name, spans, 0, round(timed.seconds, 6)))
    with replacing(path) as scratch:
        grid.save(
            str(scratch),
            format="long_textgrid",
            includeBlankSpaces=True,
            minimumIntervalLength=None,  # otherwise praatio drops short ones
            reportingMode="error",
        )


def _inside(timed: Timed, tier: str, beyond: float) -> list[tuple[float, float, str]]:
    """Return (start, end, label) from the utterance's start; cut off overlaps by rounding."""
    rows: list[tuple[float, float, str]] = []
    last, whole = 0.0, round(timed.seconds, 6)
    for span in timed.spans:
        start, end = span.start - timed.start, span.end - timed.start
        what = f"{timed.id}: {span.label} in {tier} lasts from {start:.6f} to {end:.6f} s"
        if start < last - SLACK_SECONDS:
            raise ValueError(f"{what}, but the one before it ends at {last:.6f}")
        if end > whole + beyond + SLACK_SECONDS:
            raise ValueError(f"{what}, but the utterance ends at {whole:.6f}")
        start, end = round(max(start, last), 6), round(min(end, whole), 6)
        if end <= start:
            raise ValueError(f"{what}; Praat has no empty intervals")
        if not span.label.strip():
            raise ValueError(f"{what} and has no label, which only gaps lack")
        rows.append((start, end, span.label))
        last = end
    return rows
