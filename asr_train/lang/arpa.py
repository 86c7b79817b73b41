"""N-gram models with back-off: ARPA file <-> **arrays** -> probabilities of words and sentences.

in    an ARPA file (plain or .gz), orders 1 to 5, or an estimate of `lang.ngram`
out   log10 probabilities; perplexity as defined by SRILM's `ngram -ppl`
Knows nothing of counts, smoothing or graphs.

An n-gram of order n is stored as one integer: the index of its first n - 1 words in the order
below, times V, plus the id of its last word. Sorted by it, n-grams are in the order of their ids,
so that a look-up is a binary search, and 64 bits suffice for any order.
"""

import gc
import gzip
import itertools
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO

import numpy as np

from asr_train.files import DamagedFileError, replacing

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
SYMBOLS = frozenset({BEGIN, END, UNKNOWN, UNKNOWN.upper()})  # among the words of a model
EPSILON = "<eps>"  # of graphs; no word
MAX_ORDER = 5
NEVER = -99.0  # log10 of a zero probability in an ARPA file: nothing predicts <s>
CHUNK = 20_000  # lines read or written at a time

Sentence = Sequence[str]


class Perplexity(NamedTuple):
    """Perplexity of a text; unknown words are counted, and left out of the perplexity."""

    perplexity: float  # 10 ** (-log10 P / (words - oovs + sentences))
    words: int
    oovs: int
    sentences: int


@dataclass(frozen=True, slots=True)
class Ngrams:
    """All n-grams of one order, N of them, sorted by their ids.

    Attributes:
        key_N: int64, index of the context in the order below * V + last word; of order 1, the word.
        logp_N: log10 P(last word | the others).
        backoff_N: log10 of the back-off weight; 0 if there is none.
    """

    key_N: np.ndarray
    logp_N: np.ndarray
    backoff_N: np.ndarray


@dataclass(frozen=True)
class NgramModel:
    """A back-off n-gram model.

    Attributes:
        words: the vocabulary with <s> and </s>, in the order of the ids 0 to V - 1.
        orders: one Ngrams per order; the first holds every word.
    """

    words: list[str]
    orders: list[Ngrams]

    @property
    def order(self) -> int:
        """The highest order."""
        return len(self.orders)

    @property
    def counts(self) -> list[int]:
        """The number of n-grams of each order."""
        return [len(ngrams.key_N) for ngrams in self.orders]

    @cached_property
    def id_of(self) -> dict[str, int]:
        """Word -> id."""
        return {word: i for i, word in enumerate(self.words)}

    @cached_property
    def unknown(self) -> int:
        """The id that stands for all other words; -1 if the model has none."""
        return self.id_of.get(UNKNOWN, self.id_of.get(UNKNOWN.upper(), -1))

    def ids(self, n: int) -> np.ndarray:
        """Return the words of all n-grams of order n: int32 [N, n]."""
        place_N = np.arange(len(self.orders[n - 1].key_N))
        columns = []
        for ngrams in reversed(self.orders[:n]):
            place_N, word_N = np.divmod(ngrams.key_N[place_N], len(self.words))
            columns.append(word_N.astype(np.int32))
        return np.stack(columns[::-1], axis=1)

    def find(self, n: int, context_T: np.ndarray, word_T: np.ndarray) -> np.ndarray:
        """Return indices among the n-grams of order n, -1 if not found: int64 [T].

        Args:
            context_T: indices of the first n - 1 words in the order below, -1 if not found.
            word_T: ids of the last words, -1 where unknown.
        """
        if n == 1:
            return word_T.astype(np.int64)
        key_N, key_T = self.orders[n - 1].key_N, context_T * len(self.words) + word_T
        if len(key_N) == 0:
            return np.full(len(key_T), -1, np.int64)
        place_T = np.minimum(np.searchsorted(key_N, key_T), len(key_N) - 1)
        there_T = (key_N[place_T] == key_T) & (context_T >= 0) & (word_T >= 0)
        return np.where(there_T, place_T, -1)

    def conditional(self, ids_TK: np.ndarray) -> np.ndarray:
        """Return log10 P(last word | the K - 1 before it) of each row, with back-off: float64 [T].

        Words beyond the model's order have no effect. An id of -1 is unknown to the model: as a
        last word it has probability zero, before that it ends the context.
        """
        K = min(ids_TK.shape[1], self.order)
        word_T = ids_TK[:, -1]
        logp_T = np.where(word_T >= 0, self.orders[0].logp_N[word_T].astype(np.float64), -np.inf)
        for n in range(2, K + 1):
            if not self.counts[n - 2]:
                break  # without contexts there is nothing longer
            context_T = self.place(ids_TK[:, -n:-1])
            logp_T += np.where(context_T >= 0, self.orders[n - 2].backoff_N[context_T], 0.0)
            found_T = self.find(n, context_T, word_T)
            there_T = found_T >= 0
            logp_T[there_T] = self.orders[n - 1].logp_N[found_T[there_T]]
        return logp_T

    def place(self, ids_TK: np.ndarray) -> np.ndarray:
        """Return the index of each row among the n-grams of order K, -1 if not found: int64 [T]."""
        place_T = ids_TK[:, 0].astype(np.int64)
        for n in range(2, ids_TK.shape[1] + 1):
            place_T = self.find(n, place_T, ids_TK[:, n - 1])
        return place_T

    def word_logprobs(self, sentences: Iterable[Sentence]) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-probability of each word and each sentence end; T in all.

        An unknown word has the probability of <unk>, or zero without one.

        Returns:
            log10 P, float64 [T]; whether it is unknown, bool [T].
        """
        get = self.id_of.get
        begin, end = self.id_of[BEGIN], self.id_of[END]
        known: list[int] = []
        since: list[int] = []  # words since the start of the sentence
        for sentence in sentences:
            known += [begin, *[get(word, -1) for word in sentence], end]
            since += range(len(sentence) + 2)
        id_T, since_T = np.array(known, np.int64), np.array(since, np.int64)
        unknown_T = (id_T < 0) | (id_T == self.unknown)
        id_T[id_T < 0] = self.unknown
        window_TK = np.full((len(id_T), self.order), -1, np.int64)
        for back in range(min(self.order, len(id_T))):
            inside = since_T[back:] >= back
            window_TK[back:, -1 - back] = np.where(inside, id_T[: len(id_T) - back], -1)
        after_begin = since_T > 0
        return self.conditional(window_TK[after_begin]), unknown_T[after_begin]

    def perplexity(self, sentences: Sequence[Sentence]) -> Perplexity:
        """Return the perplexity without unknown words, as SRILM's `ngram -ppl` does."""
        logp_T, unknown_T = self.word_logprobs(sentences)
        if len(logp_T) == 0:
            raise ValueError(
                "no sentences to compute perplexity on; does this split have transcripts?"
            )
        oovs = int(unknown_T.sum())
        value = 10 ** (-logp_T[~unknown_T].sum() / (len(logp_T) - oovs))
        return Perplexity(float(value), len(logp_T) - len(sentences), oovs, len(sentences))


# --- writing ------------------------------------------------------------------------------------


def write_arpa(path: Path | str, model: NgramModel) -> None:
    """Write the model. Equal models give equal bytes."""
    with replacing(path) as scratch, open(scratch, "w", encoding="utf-8") as file:
        file.writelines(_arpa_text(model))


def _arpa_text(model: NgramModel) -> Iterator[str]:
    yield "\\data\\\n"
    yield "".join(f"ngram {n}={count}\n" for n, count in enumerate(model.counts, 1))
    words_V = np.array(model.words, dtype=object)
    for n, ngrams in enumerate(model.orders, 1):
        yield f"\n\\{n}-grams:\n"
        ids_NK = model.ids(n)
        for at in range(0, len(ids_NK), CHUNK):
            rows = slice(at, at + CHUNK)
            columns = [column.tolist() for column in words_V[ids_NK[rows]].T]
            texts = columns[0] if n == 1 else map(" ".join, zip(*columns, strict=True))
            numbers = ngrams.logp_N[rows].tolist(), ngrams.backoff_N[rows].tolist()
            yield "".join(
                f"{logp:.7g}\t{text}\t{backoff:.7g}\n" if backoff else f"{logp:.7g}\t{text}\n"
                for logp, text, backoff in zip(numbers[0], texts, numbers[1], strict=True)
            )
    yield "\n\\end\\\n"


def in_upper_case(word: str) -> str:
    """Return a word as all stages have it; symbols stay as they are.

    Accents are composed last: some letters (Greek's iota with both accents) have no capital, and
    decompose.
    """
    if word in (BEGIN, END, UNKNOWN, EPSILON):
        return word
    return unicodedata.normalize("NFC", word.upper())


# --- reading ------------------------------------------------------------------------------------


def read_arpa(path: Path | str) -> NgramModel:
    """Read a model, `CHUNK` lines at a time; probabilities become float32, words upper case.

    Raises:
        DamagedFileError: if the file is truncated or inconsistent; names the line.
    """
    collecting = gc.isenabled()
    gc.disable()  # Python's search for cycles takes 40 % of the time here and finds none
    try:
        with reading(path), open_text(path) as file:
            return _Reader(file, path).model()
    finally:
        if collecting:
            gc.enable()


def open_text(path: Path | str) -> TextIO:
    """Open a user's text file, plain or .gz, without its byte order mark."""
    if str(path).endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return open(path, encoding="utf-8-sig")


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn failures to read this text file into a DamagedFileError that names it."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise DamagedFileError(
            f"{path} cannot be read ({error}); it must be complete UTF-8 text, "
            "gzipped if its name ends in .gz"
        ) from error


class _Reader:
    """Reads an ARPA file once; counts lines, so that errors can name them."""

    def __init__(self, file: TextIO, path: Path | str) -> None:
        self.file, self.path, self.line = file, path, 0
        self.words: dict[str, str] = {}  # in upper case -> as in the file
        self.id_of: dict[str, int] = {}  # as in the file -> id
        self.found = NgramModel([], [])  # so far

    def model(self) -> NgramModel:
        counts = self._header()
        for n, count in enumerate(counts, 1):
            self.found.orders.append(self._section(n, count, highest=n == len(counts)))
            if n == 1:
                self.found.words.extend(self.words)
                if not {BEGIN, END} <= set(self.words):
                    self._fail(f"{BEGIN} and {END} must be among the 1-grams")
        if self._next() != "\\end\\":
            self._fail(f"the last section should have {counts[-1]} n-grams and then \\end\\")
        return self.found

    def _header(self) -> list[int]:
        """Return the numbers of n-grams; stop after the line `\\1-grams:`."""
        while self._next(or_end="it has no line \\data\\; is it an ARPA file?") != "\\data\\":
            pass  # text before this line is a comment
        counts: list[int] = []
        while not (text := self._next()).startswith("\\"):
            name, _, count = text.partition("=")
            if name.split() != ["ngram", str(len(counts) + 1)] or not count.strip().isdecimal():
                self._fail(f"{text!r} should be 'ngram {len(counts) + 1}=' and a count")
            counts.append(int(count))
        if not 1 <= len(counts) <= MAX_ORDER:
            self._fail(f"{len(counts)} orders are listed; 1 to {MAX_ORDER} are supported")
        if text != "\\1-grams:":
            self._fail(f"{text!r} should be \\1-grams:")
        if not counts[0]:
            self._fail("no 1-grams are listed; a model needs words")
        return counts

    def _section(self, n: int, count: int, highest: bool) -> Ngrams:
        """Return the n-grams of order n, sorted; the first line `\\n-grams:` is read already."""
        if n > 1 and (text := self._next()) != f"\\{n}-grams:":
            self._fail(f"{text!r} should be \\{n}-grams: after the {n - 1}-grams that are listed")
        none = np.zeros(0, np.float32)
        parts = [(np.zeros(0, np.int64), none, none, np.zeros(0, np.int32))]
        while count > 0:
            rows, line_N = self._rows(n, count)
            if rows:
                parts.append((*self._values(n, rows, line_N, highest), line_N))
            count -= len(rows)
        key_N, logp_N, backoff_N, line_N = (np.concatenate(p) for p in zip(*parts, strict=True))
        del parts
        order_N = np.argsort(key_N, kind="stable")
        key_N = key_N[order_N]
        twice = np.flatnonzero(key_N[1:] == key_N[:-1])
        if len(twice):
            first, second = sorted(line_N[order_N[twice[0] : twice[0] + 2]].tolist())
            self._fail(f"this {n}-gram is in line {first} already", second)
        return Ngrams(key_N, logp_N[order_N], backoff_N[order_N])

    def _rows(self, n: int, count: int) -> tuple[list[list[str]], np.ndarray]:
        """Return up to CHUNK lines as fields, with line numbers; `count` lines are left."""
        before = self.line
        lines = list(itertools.islice(self.file, min(CHUNK, count)))
        self.line += len(lines)
        if not lines:
            self._fail(f"the file ends, but {count} more {n}-grams are missing")
        rows = [line.split() for line in lines]
        line_N = np.arange(before + 1, self.line + 1, dtype=np.int32)
        if not all(rows):
            line_N = line_N[[bool(row) for row in rows]]
            rows = [row for row in rows if row]
        return rows, line_N

    def _values(
        self, n: int, rows: list[list[str]], line_N: np.ndarray, highest: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return keys, log10 P and back-offs of rows; fail with the line number of a wrong one."""
        if set(map(len, rows)) != {n + 2}:
            for row, line in zip(rows, line_N.tolist(), strict=True):
                if len(row) == n + 1:
                    row.append("0")
                elif len(row) != n + 2:
                    self._blame_length(n, row, line)
        logp, *words, backoff = zip(*rows, strict=True)
        what = "{!r} should be a number, log10 P or a back-off"
        logp_N, backoff_N = (
            np.array(self._each(float, column, line_N, what), np.float32)
            for column in (logp, backoff)
        )
        wrong_N = (logp_N > 1e-6) | ~np.isfinite(logp_N) | ~np.isfinite(backoff_N)
        if wrong_N.any():
            i = int(np.argmax(wrong_N))
            self._fail(
                f"log10 P is {logp_N[i]:g} and the back-off {backoff_N[i]:g}; "
                "the first must not be positive, and both must be finite",
                int(line_N[i]),
            )
        if n == 1:
            return self._unigrams(words[0], line_N), logp_N, backoff_N
        what, get = "the word {!r} is not among the 1-grams", self.id_of.__getitem__
        columns = (self._each(get, column, line_N, what) for column in words)
        ids_NK = np.stack([np.array(column, np.int64) for column in columns]).T
        context_N = self.found.place(ids_NK[:, :-1])
        if (context_N < 0).any():
            i = int(np.argmax(context_N < 0))
            self._fail(
                f"{' '.join(rows[i][1:-1])!r} is listed, but not {' '.join(rows[i][1:-2])!r}, "
                f"which holds its back-off, among the {n - 1}-grams",
                int(line_N[i]),
            )
        if highest:
            backoff_N = np.zeros_like(backoff_N)  # some tools write one, without meaning
        return context_N * len(self.words) + ids_NK[:, -1], logp_N, backoff_N

    def _unigrams(self, words: Sequence[str], line_N: np.ndarray) -> np.ndarray:
        before = len(self.words)
        for word, line in zip(words, line_N.tolist(), strict=True):
            upper = in_upper_case(word)
            if (known := self.words.setdefault(upper, word)) != word or word in self.id_of:
                also = "" if known == word else f", first as {known!r}: words become upper case"
                self._fail(f"the word {word!r} is listed twice among the 1-grams{also}", line)
            self.id_of[word] = len(self.id_of)
        return np.arange(before, len(self.words))

    def _each(
        self, value: Callable[[str], Any], column: Sequence[str], line_N: np.ndarray, what: str
    ) -> list[Any]:
        """Return the values of a column; fail with `what` about the first text that has none."""
        values: list[Any] = []
        try:
            values.extend(map(value, column))  # keeps those before an error
        except (KeyError, ValueError):
            self._fail(what.format(column[len(values)]), int(line_N[len(values)]))
        return values

    def _blame_length(self, n: int, row: list[str], line: int) -> NoReturn:
        if row[0].startswith("\\"):
            self._fail(f"{row[0]!r} comes before all {n}-grams that the header counts", line)
        self._fail(
            f"{' '.join(row)!r} has {len(row)} fields; a {n}-gram has {n + 1}, or {n + 2} "
            "with its back-off",
            line,
        )

    def _next(self, or_end: str = "the file ends too soon, without \\end\\") -> str:
        """Return the next line that is not empty."""
        for line in iter(self.file.readline, ""):
            self.line += 1
            if text := line.strip():
                return text
        self._fail(or_end)

    def _fail(self, what: str, line: int | None = None) -> NoReturn:
        raise DamagedFileError(
            f"{self.path}, line {self.line if line is None else line}: {what}; "
            "correct the file and run make again"
        )
