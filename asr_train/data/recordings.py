"""The user's files -> **which of them changed** since they were listed.

    manifests/SPLIT.audio.tsv    recordings and tables, listed with their manifest, files that were
                                 missing, and folders that were searched
    conf/NAME.files.tsv          what a settings file names: a lexicon, text, a mapping
    per line: bytes, time of last change in ns (ctime: renaming counts), SHA-256, path

For a folder, the size is `/` and the checksum is of the names in it. For a missing file, all are
`-`.

Recordings that are made here lie in work/audio, and each work folder has its own.

Size and time are compared first, which is quick; where they differ, the content decides, because a
copy of a corpus has other times. Imports no library: every call of make runs this.
"""

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from asr_train.files import read_text, sha256, write_text
from asr_train.jobs import map_evenly

ABSENT = "-"  # in place of a checksum
FOLDER = "/"  # in place of a size, which depends on the file system


def audio_table(path: Path | str) -> Path:
    """Return the path of the table beside a manifest."""
    return Path(path).with_name(Path(path).name.removesuffix(".jsonl.gz") + ".audio.tsv")


def list_files(paths: Iterable[Path | str], table: Path) -> None:
    """Write the table; remove an old one if there are no files to list.

    Args:
        paths: files or folders; a missing file that appears later counts as changed.
    """
    names = sorted({str(path) for path in paths})
    if not names:
        table.unlink(missing_ok=True)
        return
    stats = [_stat(name) for name in names]  # first: what changes meanwhile is noticed later
    sums = map_evenly(_sum, names, f"checksums of {table.name.split('.')[0]}")
    rows = zip(stats, sums, names, strict=True)
    _write(table, [(*stat, found, name) for stat, found, name in rows])


def changed_files(table: Path, keep: bool) -> list[str]:
    """Return the listed files whose content changed, then the folders with other names in them.

    Args:
        keep: whether to record new times of unchanged content, so that it is not read every time.
    """
    rows = _read(table)
    current = [(*_stat(name), found, name) for *_, found, name in rows]
    touched = [i for i, (row, now) in enumerate(zip(rows, current, strict=True)) if row != now]
    changed = [rows[i][3] for i in touched if rows[i][0] != current[i][0]]
    alike = [rows[i][2:] for i in touched if rows[i][0] == current[i][0]]
    sums = map_evenly(_sum, [name for _, name in alike], f"checksums of {table.name}")
    changed += [name for (found, name), now in zip(alike, sums, strict=True) if now != found]
    if keep and touched and not changed:
        _write(table, current)
    return sorted(changed, key=lambda name: (os.path.isdir(name), name))


def listed_sums(table: Path) -> dict[str, str]:
    """Return the paths in the table, with checksums; none if there is no table."""
    return {name: found for *_, found, name in _read(table)} if table.exists() else {}


def with_own_audio(row: dict[str, Any], manifest: Path | str) -> dict[str, Any]:
    """Return a manifest's row with audio that was made for it beside it: audio/SPLIT/NAME.

    Manifests hold absolute paths. In a copied or renamed work folder these are of the first one,
    which may have been made again since. The user's recordings, which are listed beside the
    manifest, stay: a user's folder may be called audio/SPLIT, too.
    """
    manifest = Path(manifest).absolute()
    sources = (row.get("recording") or {}).get("sources") or []
    for source in sources:
        path = Path(str(source.get("source")))
        own = manifest.parent.parent / "audio" / path.parent.name / path.name
        if path.parent.parent.name == "audio" and own != path.absolute() and own.is_file():
            table = audio_table(manifest)
            if str(path) not in _users(table, _stat(str(table))):
                source["source"] = str(own)
    return row


@lru_cache(maxsize=1)  # for all rows of a manifest
def _users(table: Path, _as_it_is: tuple[str, str]) -> dict[str, str]:
    return listed_sums(table)


def _stat(name: str) -> tuple[str, str]:
    try:
        found = os.stat(name)
    except OSError:
        return ABSENT, ABSENT
    size = FOLDER if S_ISDIR(found.st_mode) else str(found.st_size)
    return size, str(found.st_ctime_ns)


def _sum(name: str) -> str:
    try:
        return _names_sum(name) if os.path.isdir(name) else sha256(name)
    except OSError:  # missing or unreadable; the stage reports it
        return ABSENT


def _names_sum(folder: str) -> str:
    """Return a checksum of the names in a folder, without those that file managers hide there."""
    names = sorted(os.listdir(os.fsencode(folder)))
    shown = b"\0".join(name for name in names if not name.startswith(b"."))
    return hashlib.sha256(shown).hexdigest()


def _read(table: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t", 3)) for line in read_text(table).split("\n") if line]


def _write(table: Path, rows: Iterable[tuple[str, ...]]) -> None:
    write_text(table, "".join("\t".join(row) + "\n" for row in rows))
