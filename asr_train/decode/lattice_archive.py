"""`lattices.SPLIT.zip`: the lattices of a split, by the row of hyp.SPLIT.jsonl and by piece.

Needed to rescore without another search. About 5 bytes per arc.
"""

import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from asr_train.decode.words import Decoded
from asr_train.files import DamagedFileError, hash_of, replacing
from asr_train.lang.index import Lang
from asr_train.search.lattice import Lattice
from asr_train.search.pack import unpack


def write_lattices(path: Path, lang: Lang, pairs: Iterator[Decoded]) -> Iterator[Decoded]:
    """Write lattices as they come, and yield the pairs without them."""
    with replacing(path) as scratch, zipfile.ZipFile(scratch, "w", zipfile.ZIP_STORED) as file:
        file.comment = hash_of(lang.lexicon.words).encode()  # in the order of their ids
        for row, (hypothesis, others) in enumerate(pairs):
            if others is not None:
                for piece, packed in enumerate(others.lattices):
                    file.writestr(zipfile.ZipInfo(_name(row, piece)), packed)
                others = replace(others, lattices=())
            yield hypothesis, others


def _name(row: int, piece: int) -> str:
    return f"{row:06d}.{piece:04d}.npz"


class LatticeArchive:
    """Reads what `write_lattices` wrote, in any process.

    Raises:
        DamagedFileError: if the words are numbered by another lexicon.
    """

    def __init__(self, path: Path, lang: Lang) -> None:
        self._path, self._file = path, zipfile.ZipFile(path)
        self._process = os.getpid()
        found, own = self._file.comment.decode(), hash_of(lang.lexicon.words)
        if found != own:
            raise DamagedFileError(
                f"{path} numbers words as {found}, but the lang folder has {own}; "
                "delete the hypotheses beside it and run make again"
            )

    def of(self, row: int, pieces: int) -> list[Lattice | None]:
        """Return a hypothesis' lattices, by piece; None where the search found nothing."""
        if self._process != os.getpid():  # a fork would share the position in the file
            self._file, self._process = zipfile.ZipFile(self._path), os.getpid()
        found = [self._file.read(_name(row, piece)) for piece in range(pieces)]
        try:
            return [unpack(content) if content else None for content in found]
        except (ValueError, KeyError) as error:
            raise DamagedFileError(
                f"{self._path}, hypothesis {row}: {error}; delete it and run make again"
            ) from error
