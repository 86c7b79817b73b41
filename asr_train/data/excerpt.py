"""A cut of a manifest -> **its sound for a page**: FLAC in memory, and its recording's address.

Reads with soundfile alone, as lhotse takes seconds to import.
"""

import io
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import soundfile


def recording(cut: dict[str, Any]) -> Path | None:
    """Return the file of a cut's recording; None if there is no single one as it is heard."""
    found = cut.get("recording") or {}
    sources = found.get("sources") or []
    if len(sources) != 1 or sources[0]["type"] != "file" or found.get("transforms"):
        return None
    return Path(sources[0]["source"])


def flac(cut: dict[str, Any]) -> bytes | None:
    """Return a cut's sound, its channels averaged, as 16-bit FLAC; None if its file is gone."""
    path = recording(cut)
    if path is None or not path.exists():
        return None
    rate = soundfile.info(path).samplerate
    first, count = round(cut["start"] * rate), round(cut["duration"] * rate)
    wave_TC, _ = soundfile.read(path, count, first, dtype="float32", always_2d=True)
    channel = cut.get("channel", 0)
    chosen_TC = wave_TC[:, channel if isinstance(channel, list) else [channel]]
    content = io.BytesIO()
    soundfile.write(content, chosen_TC.mean(1), rate, format="FLAC", subtype="PCM_16")
    return content.getvalue()


def address(cut: dict[str, Any], folder: Path) -> str | None:
    """Return the address of a cut's sound for a page in `folder`; None if it has no file.

    The address is relative; the fragment names the part of a longer recording (Media Fragments).
    """
    path = recording(cut)
    if path is None:
        return None
    at = quote(os.path.relpath(path.resolve(), folder.resolve()))
    start, end = cut["start"], cut["start"] + cut["duration"]
    whole = start == 0 and end >= cut["recording"]["duration"] - 1e-3
    return at if whole else f"{at}#t={start:.3f},{end:.3f}"
