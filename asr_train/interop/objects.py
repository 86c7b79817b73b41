"""Kaldi's objects as files, binary or text -> **tokens, numbers and vectors**, one after the other.

A binary file begins with a zero byte and `B`; each number then has its size in a byte before it. In
text, all are separated by spaces (src/base/io-funcs-inl.h of Kaldi). Nothing read is executed, and
a size is believed only as far as the file goes. Knows nothing of what the objects mean.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from asr_train.files import DamagedFileError

LONGEST = 64  # characters of a token or of a number in text
_WORD = re.compile(rb"\s*([\[\]]|[^\s\[\]]{1,%d})" % LONGEST)
FOUR, UNSIGNED = b"\x04", b"\xfc"  # before a binary number: its bytes, negative if unsigned
_VECTORS = {"FV": "<f4", "DV": "<f8"}
_LIMITS = np.iinfo(np.int32)


class Objects:
    """Reads the objects of a file in order; errors name the file and the byte."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._content = self.path.read_bytes()
        self.binary = self._content[:2] == b"\0B"
        self._at = 2 if self.binary else 0

    def damaged(self, what: str) -> DamagedFileError:
        """Return the error that says what is wrong at this place."""
        return DamagedFileError(
            f"{self.path}, byte {self._at}: {what}; copy the file again, or write it as text with "
            "Kaldi's --binary=false and look there"
        )

    def token(self) -> str:
        """Read a word such as `<Topology>`."""
        found = _WORD.match(self._content, self._at)
        if found is None:
            raise self.damaged("the file ends where a token should be")
        word = found[1]
        after = self._content[found.end() : found.end() + 1]
        if self.binary and after != b" ":
            raise self.damaged(f"{word[:20]!r} is not a token, which a space follows")
        if not word.isascii() or (after.strip() and word not in b"[]" and after not in b"[]"):
            raise self.damaged(f"{word[:20]!r} is not a token")
        self._at = found.end() + self.binary
        return word.decode()

    def expect(self, *wanted: str) -> str:
        """Read one of these tokens."""
        at, found = self._at, self.token()
        if found not in wanted:
            self._at = at
            raise self.damaged(f"{found!r} is where {' or '.join(wanted)} should be")
        return found

    def int32(self) -> int:
        """Read an integer of 32 bits."""
        if self.binary:
            return int.from_bytes(self._number(FOUR), "little", signed=True)
        return self.whole(self.token())

    def uint32(self) -> int:
        """Read an integer of 32 bits that is not negative."""
        if self.binary:
            return int.from_bytes(self._number(UNSIGNED), "little")
        found = self.int32()
        if found < 0:
            raise self.damaged(f"{found} is negative")
        return found

    def float32(self) -> float:
        """Read a real number."""
        if self.binary:
            return float(np.frombuffer(self._number(FOUR), "<f4")[0])
        return self._real(self.token())

    def int32s(self) -> np.ndarray:
        """Read a vector of integers: int32 [n]."""
        if self.binary:
            return self._vector("<i4")
        self.expect("[")
        return np.fromiter(map(self.whole, self._until_closed()), np.int32)

    def float32s(self) -> np.ndarray:
        """Read a vector of real numbers: float32 [n]."""
        if self.binary:
            numbers = self._vector(_VECTORS[self.expect(*_VECTORS)])
        else:
            self.expect("[")
            numbers = np.fromiter(map(self._real, self._until_closed()), np.float64)
        with np.errstate(over="ignore"):  # a number too large becomes infinite
            return numbers.astype(np.float32)

    def whole(self, word: str) -> int:
        """Return the integer of a text token."""
        if not re.fullmatch(r"[+-]?[0-9]{1,11}", word):
            raise self.damaged(f"{word!r} is not an integer")
        if not _LIMITS.min <= (number := int(word)) <= _LIMITS.max:
            raise self.damaged(f"{number} does not fit 32 bits")
        return number

    def ended(self) -> bool:
        """Whether nothing but white space is left."""
        return not self._content[self._at :].strip()

    def _taken(self, count: int) -> bytes:
        taken = self._content[self._at : self._at + count]
        if len(taken) < count:
            raise self.damaged(f"the file ends {count - len(taken)} bytes early")
        self._at += count
        return taken

    def _number(self, size: bytes) -> bytes:
        if (found := self._taken(1)) != size:
            raise self.damaged(f"a number's first byte is {found!r}, it must be {size!r}")
        return self._taken(4)

    def _vector(self, dtype: str) -> np.ndarray:
        count = self.int32()
        left = (len(self._content) - self._at) // np.dtype(dtype).itemsize
        if not 0 <= count <= left:
            raise self.damaged(f"a vector of {count} numbers, but the file has room for {left}")
        return np.frombuffer(self._taken(count * np.dtype(dtype).itemsize), dtype)

    def _until_closed(self) -> Iterator[str]:
        while (word := self.token()) != "]":
            yield word

    def _real(self, word: str) -> float:
        try:
            return float(word)
        except ValueError:
            raise self.damaged(f"{word!r} is not a number") from None
