"""Files that are whole or absent: write, then rename; an index lists its parts and checksums.

Knows nothing of what the files hold. Formats are JSON, JSON lines (gzipped if the name ends in
`.gz`) and YAML. Equal content gives equal bytes.
"""

import errno
import gzip
import hashlib
import io
import json
import mmap
import os
import shutil
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JSONL = (".jsonl", ".jsonl.gz")
MAX_ID_BYTES = 90  # of an utterance id in shards: a plain tar's names have 100, .feats.npy takes 10


class DamagedFileError(ValueError):
    """A file is not what its index says, or cannot be parsed."""


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield a scratch name beside `path`, which replaces `path` if the block succeeds.

    The scratch file keeps the suffix of `path`, on which many writers depend. A killed block leaves
    `path` unchanged, and a scratch file that the next try overwrites. A link stays one; a device or
    a pipe is written to as it is.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".tmp.{path.name}")
    try:
        yield scratch
        with open(scratch, "rb") as file:
            os.fsync(file.fileno())  # otherwise a power cut could leave an empty file
        if path.exists():
            shutil.copymode(path, scratch)
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_folder(path: Path | str, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a scratch folder beside `path`, which replaces `path` if the block succeeds.

    Args:
        is_ours: whether a file in a folder to be replaced is one that an earlier call wrote.
    Raises:
        FileExistsError: if anything else is in it.
    """
    path = Path(path)
    scratch, old = (path.with_name(f".{what}.{path.name}") for what in ("tmp", "old"))
    if old.exists() and not path.exists():  # killed between the two renames below
        os.replace(old, path)
    if path.exists():
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        if other := next((one for one in inside if not (one.is_file() and is_ours(one))), None):
            raise FileExistsError(
                f"{other} is none of the files written here before, so {path} is not replaced; "
                "name another folder"
            )
    for left in (scratch, old):  # of a killed try
        shutil.rmtree(left, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        if path.exists():
            os.replace(path, old)
        os.replace(scratch, path)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        for left in (scratch, old):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def naming_full_disk(folder: Path | str) -> Iterator[None]:
    """Name the temporary folder in the error if its disk is full while the block writes there.

    Raises:
        OSError: in place of the original one, which names an input, or no file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OSError(
            f"{os.strerror(error.errno).lower()} in the temporary folder {Path(folder).parent}; "
            "free some space there, or set TMPDIR to another folder"
        ) from error


@contextmanager
def keeping_time(
    path: Path | str, content: Callable[[Path], Any] = Path.read_bytes
) -> Iterator[None]:
    """Let a file that the block writes with the content that it had keep its time, too.

    Args:
        content: what is compared, before and after the block; None: nothing can be said.
    """
    path = Path(path)
    found = path.stat() if path.exists() else None
    before = content(path) if found else None
    yield
    if found and before is not None and content(path) == before:
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write a small file atomically."""
    with replacing(path) as scratch:
        scratch.write_bytes(content)


def write_text(path: Path | str, content: str) -> None:
    """Write a small text atomically, in UTF-8."""
    write_bytes(path, content.encode())


def read_text(path: Path | str) -> str:
    """Read a user's text file, without its byte order mark.

    Raises:
        DamagedFileError: if it is not UTF-8; names file and line.
    """
    return decoded(Path(path).read_bytes(), path)


def decoded(content: bytes, name: Path | str) -> str:
    """Return a user's text, as `read_text` does of a file."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = error.object  # without a byte order mark
        line = text.count(b"\n", 0, error.start) + 1
        likely = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "latin1"
        raise DamagedFileError(
            f"{name}, line {line} has the byte 0x{text[error.start]:02x}, so it is not UTF-8; "
            f"convert it, from {likely} by: iconv -f {likely} -t utf-8 {name} > NEW"
        ) from error


def read_lines(path: Path | str) -> list[str]:
    """Read a user's text file by line; other than for `str.splitlines`, U+0085 (a cp1252 ellipsis
    that was taken for Latin-1), U+2028 and form feeds do not end one.

    Raises:
        DamagedFileError: if it is not UTF-8; names file and line.
    """
    return [line.rstrip("\n") for line in io.StringIO(read_text(path), newline=None)]


def write_json(path: Path | str, content: Any) -> None:
    """Write readable JSON: two spaces, keys in the order given; NaN and infinity are refused."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read JSON.

    Raises:
        DamagedFileError: if the file is not JSON; the message names it.
    """
    try:
        return json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:  # of its text, its numbers or its depth
        raise _not_json(path, f"is not valid JSON ({error})", ".json") from error


def write_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON line per row, one at a time; a name in `.gz` is gzipped without a time stamp.

    The file replaces an old one when the last row is written.
    """
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n" for row in rows)
    with replacing(path) as scratch, open(scratch, "wb") as file:
        file.writelines(_gzipped(lines) if str(path).endswith(".gz") else lines)


def _gzipped(lines: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(6, wbits=16 + zlib.MAX_WBITS)
    yield from map(packer.compress, lines)
    yield packer.flush()


def iter_jsonl(path: Path | str) -> Iterator[dict[str, Any]]:
    """Read what `write_jsonl` wrote, a row at a time: all rows of a large corpus take gigabytes.

    Raises:
        DamagedFileError: if the file is truncated or a line is not JSON; names file and line.
    """
    number = 0
    try:
        with (gzip.open if str(path).endswith(".gz") else open)(path, "rb") as file:
            for line in file:
                number += 1
                yield json.loads(line.decode().removesuffix("\n"))
    except json.JSONDecodeError as error:
        why = f"is not valid JSON in line {number} ({error})"
        raise _not_json(path, why, *JSONL) from error
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise _not_json(path, f"cannot be unpacked ({error})", *JSONL) from error


def _not_json(path: Path | str, why: str, *suffixes: str) -> "DamagedFileError":
    """Return an error that advises to delete a file only if its name is that of such a file."""
    if str(path).endswith(suffixes):
        return DamagedFileError(f"{path} {why}; delete it and run make again")
    return DamagedFileError(f"{path} {why}; name a file that ends in {' or '.join(suffixes)}")


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """Return all rows of `iter_jsonl`."""
    return list(iter_jsonl(path))


def write_yaml(path: Path | str, content: Any) -> bool:
    """Write YAML unless the file already has this content; return whether it was written."""
    import yaml  # here, so that comm and kernels load with torch alone

    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()
    path = Path(path)
    if path.exists() and path.read_bytes() == text:
        return False
    write_bytes(path, text)
    return True


def read_yaml(path: Path | str) -> Any:
    """Read YAML: plain data only, so a file cannot execute code."""
    import yaml

    try:
        return yaml.safe_load(Path(path).read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DamagedFileError(
            f"{path} is not valid YAML ({error}); correct it, or delete it if make wrote it"
        ) from error


@dataclass(frozen=True, slots=True)
class Region:
    """A file, or a part of one, such as a member of a .tar.

    Attributes:
        offset, size: of its content in the file; bytes.
    """

    path: Path
    offset: int
    size: int

    @staticmethod
    def of(path: Path) -> "Region":
        """Return all of a file."""
        return Region(path, 0, path.stat().st_size)

    def sha256(self) -> str:
        """Return the content's SHA-256, as 64 hexadecimal digits."""
        digest, left = hashlib.sha256(), self.size
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset)
            while content := file.read(min(left, 1 << 18)):
                digest.update(content)
                left -= len(content)
        return digest.hexdigest()

    def mapped(self) -> memoryview:
        """Map the content into memory: it is read where it is used. What is written stays there.

        Until then, the file may be deleted or replaced by renaming, but not changed in place.
        """
        before = self.offset % mmap.ALLOCATIONGRANULARITY
        with open(self.path, "rb") as file:
            pages = mmap.mmap(
                file.fileno(),
                self.size + before,
                access=mmap.ACCESS_COPY,
                offset=self.offset - before,
            )
        return memoryview(pages)[before:]


def sha256(path: Path | str) -> str:
    """Return the file's SHA-256, as 64 hexadecimal digits."""
    return Region.of(Path(path)).sha256()


def hash_of(content: Any) -> str:
    """Return a short name for JSON-able content: equal content, equal name (16 hex digits)."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def part(path: Path | str, root: Path | str) -> dict[str, Any]:
    """Return an index's entry for a finished file: its path under `root`, bytes and SHA-256."""
    path = Path(path)
    return {
        "path": path.relative_to(root).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": sha256(path),
    }


def check_part(
    root: Path | str,
    listed: dict[str, Any],
    content: bool = True,
    remake: Path | str = "the .json beside it",
) -> Path:
    """Return the path of a listed part, after checking its size and (if `content`) its checksum.

    Args:
        remake: the output to delete so that make makes the part again; for the message.
    Raises:
        DamagedFileError: if the file is missing, truncated or changed; gives both values.
    """
    path: Path = Path(root) / listed["path"]
    if not path.exists():
        raise DamagedFileError(
            f"{path} is missing, but its index lists it; delete {remake} and run make again"
        )
    region = Region.of(path)
    sha256_of = region.sha256 if content else None
    check_content(path, listed, region.size, sha256_of, f"delete {remake} and run make again")
    return path


def check_content(
    named: Path | str,
    listed: dict[str, Any],
    size: int,
    sha256_of: Callable[[], str] | None,
    remedy: str = "delete the .json beside it and run make again",
) -> None:
    """Raise DamagedFileError unless a part has the bytes, and the SHA-256, that its index says."""
    if size != listed["bytes"]:
        raise DamagedFileError(
            f"{named} has {size} bytes but its index says {listed['bytes']}; {remedy}"
        )
    if sha256_of is not None and (found := sha256_of()) != listed["sha256"]:
        raise DamagedFileError(
            f"{named} has SHA-256 {found[:12]}... but its index says {listed['sha256'][:12]}...: "
            f"its content changed; {remedy}"
        )
