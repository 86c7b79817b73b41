"""Transcripts of a corpus -> **words that a lexicon may know**; numbers are spelled out.

The rules are those of scoring (score.normalise), so what is removed here costs no word error later.
A word in the lexicon (UH-HUH, 'TIS, <NOISE>) is kept, without punctuation beside it. Knows nothing
of utterances.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property

from asr_train.checks import spelled
from asr_train.lang.lexicon import odd_words
from asr_train.lang.ngram import read_sentences
from asr_train.schema import CorpusSettings, Digits, IntakeSettings, LexiconSettings, NormaliserKind
from asr_train.score.normalise import PUNCTUATION, TAG, transcribed

ONES = "ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE TEN ELEVEN TWELVE THIRTEEN FOURTEEN " + (
    "FIFTEEN SIXTEEN SEVENTEEN EIGHTEEN NINETEEN"
)
UNITS = ONES.split()
TENS = ["TWENTY", "THIRTY", "FORTY", "FIFTY", "SIXTY", "SEVENTY", "EIGHTY", "NINETY"]
# Said, and lost with punctuation: times, products, decimal commas, signs, currencies
SPOKEN_SIGNS = re.compile(
    r"\d,(?!\d{3}(?!\d))\d|\.\d+,\d|\d(?:[^\w\s.,&%'’‐‑–—―−-]+|\.\.+)\d|(?<![^\s(])[-+−#]\d"
    r"|[$¢-¥₠-⃏°²³¹¼-¾⅐-⅞]"
)
POWERS = (10**9, "BILLION"), (10**6, "MILLION"), (1000, "THOUSAND"), (100, "HUNDRED")


class DigitsError(ValueError):
    """A transcript has digits that are refused, or cannot be read."""


class Transcriber:
    """Turns text into words, by a corpus's settings."""

    def __init__(self, settings: IntakeSettings, lexicon: LexiconSettings) -> None:
        self.settings, self.lexicon = settings, lexicon

    @cached_property
    def _known(self) -> frozenset[str]:
        return odd_words(self.lexicon)  # may take a second; only for texts with more than letters

    def __call__(self, text: str) -> list[str]:
        """Return the words of one transcript.

        Raises:
            DigitsError: names the word and what to do.
        """
        upper = unicodedata.normalize("NFC", text.upper()).split()
        letters = "".join(upper)
        if self.settings.normaliser is NormaliserKind.plain or (
            letters.isascii() and letters.isalpha()
        ):
            return upper
        if self.settings.digits is not Digits.refuse and any(c.isnumeric() for c in letters):
            self._refuse_signs(TAG.sub("", " ".join(upper)).split())
        words = transcribed(text, self.settings.normaliser, self._known)
        return [read for word in words for read in self._read(word)]

    def _refuse_signs(self, tokens: Sequence[str]) -> None:
        for token in tokens:
            if re.match(r"[^\w.]*\.\d", token):
                raise DigitsError(f"{token} begins with a point; write what was said")
            if self.settings.digits is not Digits.number:
                continue
            word = token.strip(PUNCTUATION)
            if SPOKEN_SIGNS.search(word) and word not in self._known:
                raise DigitsError(f"{word} is more than a number; write what was said")

    def _read(self, word: str) -> Sequence[str]:
        if not any(c.isdigit() for c in word) or word in self._known:
            return [word]
        where = f"{self.settings.GROUP}.digits"
        match self.settings.digits:
            case Digits.refuse:
                raise DigitsError(
                    f"{word} has digits; write what was said, or set {where}=each to have 108 read "
                    f"ONE ZERO EIGHT, or {where}=number for ONE HUNDRED EIGHT"
                )
            case Digits.each:
                pieces = (piece.strip("'") for piece in re.findall(r"\d|\.|[^\d.]+", word))
                return [_digit(piece) for piece in pieces if piece]
            case Digits.number:
                whole, _, decimals = word.partition(".")
                zeros = len(whole) > 1 and _digit(whole[0]) == UNITS[0]  # 007, or 000 of 12 000
                if not (whole + decimals).isdecimal() or len(whole) > 12 or zeros:
                    raise DigitsError(
                        f"{word} is not a number that can be read; write what was said"
                    )
                tail = ["POINT", *map(_digit, decimals)] if decimals else []
                return [*number_words(int(whole)), *tail]


class LmText:
    """Sentences of text files, as words by the rule of a corpus's transcripts.

    Attributes:
        unread: sentences left out in the last pass: they have digits that are refused.
        reason: of the last of them.
    """

    def __init__(
        self, paths: Sequence[str], corpus: CorpusSettings, lexicon: LexiconSettings
    ) -> None:
        intake = corpus.folder or corpus.published
        self._paths, self.unread, self.reason = paths, 0, ""
        self._words_of = None if intake is None else Transcriber(intake, lexicon)

    def __iter__(self) -> Iterator[list[str]]:
        self.unread = 0
        for words in read_sentences(self._paths):
            try:
                found = words if self._words_of is None else self._words_of(" ".join(words))
            except DigitsError as error:
                self.unread, self.reason = self.unread + 1, str(error)
                continue
            if found:
                yield found

    def notice(self) -> str:
        """Return a part of a summary line, on sentences left out; "" if there are none."""
        if not self.unread:
            return ""
        return f"; {spelled(self.unread, 'sentence')} of text left out, for example: {self.reason}"


def _digit(piece: str) -> str:
    if piece == ".":
        return "POINT"
    return UNITS[int(piece)] if piece.isdecimal() else piece


def number_words(number: int) -> list[str]:
    """Spell a number below 10**12 in English.

    >>> " ".join(number_words(1108))
    'ONE THOUSAND ONE HUNDRED EIGHT'
    """
    for size, name in POWERS:
        if number >= size:
            rest = number_words(number % size) if number % size else []
            return [*number_words(number // size), name, *rest]
    if number >= 20:
        return [TENS[number // 10 - 2], *([UNITS[number % 10]] if number % 10 else [])]
    return [UNITS[number]]
