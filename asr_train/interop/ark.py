"""Kaldi's archives: `.ark`, `.ark.gz`, `.scp` <-> **(utterance, array)**, one at a time.

Matrices are float32 [rows, columns] (features, scores), integer vectors int32 [T] (alignments).
kaldiio decodes and encodes single arrays; files are opened here. Its own openers are not used: they
execute names with '|', and unpickle what begins with PKL. Knows nothing of manifests.
"""

import gzip
import io
import os
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from asr_train.extras import extra
from asr_train.files import DamagedFileError, read_lines, replacing, write_bytes, write_text

MATRICES = b"\0BFM ", b"\0BDM ", b"\0BCM ", b"\0BCM2 ", b"\0BCM3 "  # float, double, compressed
INTEGERS = b"\0B\4"
BROKEN = (
    *(ValueError, AssertionError, struct.error, IndexError, MemoryError, RuntimeError),
    OverflowError,  # an integer of more than 32 bits
)
Keyed = Iterator[tuple[str, np.ndarray]]
Decode = Callable[[BinaryIO], np.ndarray]


def read_matrices(path: Path | str) -> Keyed:
    """Yield the matrices of an archive, or of a list of places in archives (`.scp`).

    Binary (float, double, Kaldi's three compressions) or text.

    Returns:
        Utterance and float32 [rows, columns], in the file's order.
    Raises:
        DamagedFileError: if it ends early or has other content; names file, utterance, byte.
        ValueError: for a duplicate utterance, or a list that names a command.
    """
    return _read(Path(path), _matrix)


def read_int_vectors(path: Path | str) -> Keyed:
    """Yield the integer vectors, int32 [T], of an archive, binary or text; see `read_matrices`."""
    return _read(Path(path), _int_vector)


def _read(path: Path, decode: Decode) -> Keyed:
    seen: set[str] = set()
    for key, array in (_listed if path.suffix == ".scp" else _archived)(path, decode):
        if key in seen:
            raise ValueError(f"{path}: the utterance {key} appears twice; ids must be unique")
        seen.add(key)
        yield key, array


def _archived(path: Path, decode: Decode) -> Keyed:
    with _opened(path) as file:
        while key := _key(file, path):
            yield key, _decoded(file, path, key, decode)


def _key(file: BinaryIO, path: Path) -> str:
    """Read the word before the next array; empty at the end of the file."""
    start, key = file.tell(), b""
    while (byte := file.read(1)) not in (b" ", b"\t", b""):
        key += byte
    if byte == b"" and key.strip():
        raise _damaged(path, f"ends after {key[:40]!r} (byte {start})")
    name = key.decode(errors="ignore")
    if (key or byte) and (name.split() != [name] or name.encode() != key):
        raise _damaged(path, f"has {key[:40]!r} where an utterance id should be (byte {start})")
    return name


def _listed(path: Path, decode: Decode) -> Keyed:
    """Look up the places in an .scp, keeping the last archive open."""
    lines = enumerate(read_lines(path), 1)
    places = (_place(f"{path}, line {number}", line) for number, line in lines)
    for archive, some in groupby(places, key=lambda place: place[1]):
        with _opened(archive) as file:
            for key, _, offset in some:
                file.seek(offset)
                yield key, _decoded(file, archive, key, decode)


def _place(where: str, line: str) -> tuple[str, Path, int]:
    """Split `utt feats.ark:123` into its parts."""
    key, *rest = line.split(maxsplit=1) or [""]
    place = "".join(rest).strip()
    if not place:
        raise ValueError(f"{where} is {line!r}; it must be an utterance and a place in an archive")
    if "|" in (place[0], place[-1]):
        raise ValueError(
            f"{where} is a command ({place}), and no input file can execute code; "
            "write an archive with copy-feats and read that"
        )
    if place.endswith("]"):
        raise ValueError(f"{where} names a part of a matrix ({place}); extract it with copy-feats")
    name, colon, offset = place.rpartition(":")
    if colon and offset.isascii() and offset.isdigit():
        return key, Path(name), int(offset)
    return key, Path(place), 0  # a file of one array


def _opened(path: Path) -> BinaryIO:
    if path.suffix != ".gz":
        return open(path, "rb")
    packed = path.read_bytes()
    if not packed:  # which gzip takes for an empty content
        raise _damaged(path, "is empty, and so no gzip file")
    try:
        return io.BytesIO(gzip.decompress(packed))  # must be seekable
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, f"cannot be unpacked ({error})") from error


def _decoded(file: BinaryIO, path: Path, key: str, decode: Decode) -> np.ndarray:
    start = file.tell()
    try:
        return decode(file)
    except BROKEN as error:
        why = " ".join(str(error).split()) or "it is truncated or changed"
        raise _damaged(path, f"cannot be read at {key}, byte {start} ({why[:200]})") from error


def _damaged(path: Path, what: str) -> DamagedFileError:
    return DamagedFileError(f"{path} {what}; copy or make it again")


def _matrix(file: BinaryIO) -> np.ndarray:
    head = _peek(file, 6)
    if head.startswith(MATRICES):
        return np.ascontiguousarray(_matio().read_matrix_or_vector(file), np.float32)
    if head.startswith(b"\0B") or not head.lstrip().startswith(b"["):
        raise ValueError(f"{head!r} is not a matrix")
    with warnings.catch_warnings(action="ignore"):  # of numpy, at a matrix without rows
        rows_TF: np.ndarray = _matio().read_ascii_mat(file)
    if not rows_TF.size:
        return np.zeros((0, 0), np.float32)  # as of a binary one
    if rows_TF.ndim != 2:
        raise ValueError("a vector is not a matrix")
    return rows_TF.astype(np.float32)


def _int_vector(file: BinaryIO) -> np.ndarray:
    head = _peek(file, 3)
    if head == INTEGERS:
        return _matio().read_int32vector(file)
    if head.startswith(b"\0B"):
        raise ValueError(f"{_peek(file, 6)!r} is not a vector of integers")
    line = file.readline()
    if not line.endswith(b"\n"):
        raise ValueError("the last line has no end")
    return np.array([int(word) for word in line.split()], np.int32)


def _peek(file: BinaryIO, count: int) -> bytes:
    head = file.read(count)
    file.seek(-len(head), io.SEEK_CUR)
    return head


# --- writing ------------------------------------------------------------------------------------


def write_matrices(path: Path | str, matrices: Iterable[tuple[str, np.ndarray]]) -> int:
    """Write a binary, uncompressed archive, and the `.scp` that lists its places.

    Args:
        path: ends in .ark; written last.
        matrices: utterance and [rows, columns], neither zero; stored as float32.
    Returns:
        The number written.
    Raises:
        ValueError: for an id with a space, a duplicate id, an empty matrix, or a path that Kaldi
            would take for a command.
    """
    path = Path(path)
    if path.suffix != ".ark":
        raise ValueError(f"{path} must end in .ark: its list has .scp in that place")
    where = os.path.abspath(path)
    if re.search(r"[|\n]", where):
        raise ValueError(f"{where!r} has | or a line feed, which a list cannot name; rename it")
    places: dict[str, int] = {}
    with replacing(path) as scratch:
        with open(scratch, "wb") as file:
            for key, matrix in matrices:
                _check_key(key, places)
                if matrix.ndim != 2 or not matrix.size:
                    raise ValueError(f"{key} has shape {list(matrix.shape)}; it must be a matrix")
                file.write(f"{key} ".encode())
                places[key] = file.tell()
                _matio().write_array(file, np.ascontiguousarray(matrix, np.float32))
        # The list first: if the archive exists, so does the list
        lines = [f"{key} {where}:{places[key]}\n" for key in sorted(places, key=str.encode)]
        write_text(path.with_suffix(".scp"), "".join(lines))
    return len(places)


def write_int_vectors(path: Path | str, vectors: Iterable[tuple[str, np.ndarray]]) -> int:
    """Write integer vectors, [T]: an archive if the name ends in `.ark`, else text (`ark,t`).

    A name in `.gz` is gzipped. Returns the number written; raises as `write_matrices`.
    """
    path = Path(path)
    binary = ".ark" in path.suffixes
    content, seen = io.BytesIO(), dict[str, int]()
    for key, vector in vectors:
        _check_key(key, seen)
        seen[key] = len(vector)
        content.write(f"{key} ".encode())
        if binary:
            _matio().write_array(content, np.ascontiguousarray(vector, np.int32))
        else:
            content.write("".join(f"{number} " for number in vector.tolist()).encode() + b"\n")
    packed = content.getvalue()
    write_bytes(path, gzip.compress(packed, mtime=0) if path.suffix == ".gz" else packed)
    return len(seen)


def _check_key(key: str, seen: dict[str, int]) -> None:
    if key.split() != [key]:
        raise ValueError(f"the utterance id {key!r} is empty or has a space, which Kaldi splits at")
    if key in seen:
        raise ValueError(f"the utterance {key} appears twice; ids must be unique")


def _matio() -> Any:
    with extra("kaldi", "an archive of Kaldi"):
        from kaldiio import matio
    return matio
