"""Recordings that are not made here -> **which of them changed** since a manifest listed them.

    manifests/SPLIT.audio.tsv    a line each: bytes, time of the last change in ns, SHA-256, path

Size and time tell almost always, and are quick to ask for; where they differ, the content decides:
a copy of a corpus has other times. Loads no library: every call of make asks.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from asr_train.files import read_text, sha256, write_text
from asr_train.jobs import parallel_map

ABSENT = "-"  # in place of a checksum


def list_audio(paths: Iterable[Path], table: Path) -> None:
    """Write the table, or remove an old one where there are no recordings to list."""
    names = sorted({str(path) for path in paths})
    if not names:
        table.unlink(missing_ok=True)
        return
    sums = parallel_map(_sum, names, f"checksums of {table.name.split('.')[0]}")
    _write(table, [(*_stat(name), found, name) for name, found in zip(names, sums, strict=True)])


def changed_audio(table: Path, keep: bool) -> list[str]:
    """The listed recordings whose content is no more what it was.

    Args:
        keep: note new times of an old content in the table, so that it is not read every time.
    """
    rows = [line.split("\t", 3) for line in read_text(table).splitlines()]
    changed, current, touched = [], [], False
    for size, when, found, name in rows:
        now = _stat(name)
        if now != (size, when):
            if now[0] != size or _sum(name) != found:
                changed.append(name)
            touched = True
        current.append((*now, found, name))
    if keep and touched and not changed:
        _write(table, current)
    return changed


def _stat(name: str) -> tuple[str, str]:
    try:
        found = os.stat(name)
    except OSError:
        return ABSENT, ABSENT
    return str(found.st_size), str(found.st_mtime_ns)


def _sum(name: str) -> str:
    try:
        return sha256(name)
    except OSError:  # missing, or not to be read; so the stage says by itself
        return ABSENT


def _write(table: Path, rows: Iterable[tuple[str, ...]]) -> None:
    write_text(table, "".join("\t".join(row) + "\n" for row in rows))
