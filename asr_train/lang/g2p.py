"""Words that a dictionary lacks -> **pronunciations** in ARPAbet, by espeak-ng's American English.

in    words in upper case; the dictionary, for inflections of its words (VILLAGER -> VILLAGERS')
out   word -> pronunciation; a word of other than Latin letters and digits has none
Knows nothing of settings and files.

Held out from CMU's dictionary, 3,000 random words (tests/lang/test_g2p.py prints this): 8.7 % of
the phones differ from the closest variant, and 34 % of the words. Of inflections 1.5 % of the
phones differ (5.3 % as espeak says them), of other words 11.4 %.
"""

import ctypes
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import kaldialign

from asr_train.lang.espeak import UTF8, EspeakError, loaded

Pronunciation = tuple[str, ...]

# espeak's mnemonics of en-us, less stress marks -> ARPAbet. "": a pause, or the glide that espeak
# puts between vowels. Here is all that it says of CMU's 126,000 words and of 306,000 rows of random
# letters and digits; vowels go to what CMU has most often in their place.
PHONES = {
    **{"p": "P", "t": "T", "t#": "T", "t2": "T", "?": "T", "k": "K", "b": "B", "d": "D", "g": "G"},
    **{"tS": "CH", "dZ": "JH", "f": "F", "T": "TH", "s": "S", "S": "SH", "h": "HH"},
    **{"x": "K", "C": "K"},
    **{"v": "V", "D": "DH", "z": "Z", "Z": "ZH", "m": "M", "n": "N", "n-": "AX N", "N": "NG"},
    **{"l": "L", "l#": "L", "@L": "AX L", "r": "R", "r-": "R", "w": "W", "j": "Y", ";": ""},
    **{"i": "IY", "i:": "IY", "I": "IH", "I2": "IH", "I#": "IH", "E": "EH", "a": "AE", "aa": "AE"},
    **{"A:": "AA", "0": "AA", "O": "AO", "O2": "AO", "O:": "AO", "o": "OW", "U": "UH", "u:": "UW"},
    **{"V": "AH", "@": "AX", "@-": "AX", "@2": "AX", "a#": "AX", "3": "ER", "3:": "ER"},
    **{"eI": "EY", "aI": "AY", "OI": "OY", "aU": "AW", "oU": "OW", "i@": "IY AX", "aI@": "AY AX"},
    **{"A@": "AA R", "e@": "EH R", "i@3": "IH R", "o@": "AO R", "O@": "AO R", "U@": "UH R"},
    **{"aI3": "AY ER", "A~": "AA N", "O~": "AO N", "_": "", "_:": "", "_!": "", "_|": ""},
}
# All phones of CMU's dictionary, and AX, its unstressed AH.
ARPABET = frozenset(" ".join(PHONES.values()).split())
UNSTRESSED = {"V": "AX"}
BEFORE_R = {"a": "EH", "@": "ER", "i@": "IH"}  # r follows
R_COLOURED = ("R", "ER")  # take up an R that follows: espeak links by it, CMU does not

# How an inflected word ends -> what the stem has there, and the sound that the ending adds.
INFLECTIONS = (
    *(("'S", "", "Z"), ("S'", "S", ""), ("IES", "Y", "Z"), ("ES", "", "Z"), ("S", "", "Z")),
    *(("IED", "Y", "D"), ("ED", "", "D"), ("ED", "E", "D"), ("ING", "", "NG"), ("ING", "E", "NG")),
)
SIBILANTS = {"S", "Z", "SH", "ZH", "CH", "JH"}
VOICELESS = {"P", "T", "K", "F", "TH", "S", "SH", "CH"}
SHORTEST_STEM = 3  # letters

_VOICE = b"en-us"
_SEPARATOR = "\t"  # between phonemes: no mnemonic has it


def pronounce(
    words: Iterable[str], dictionary: Mapping[str, Sequence[Pronunciation]], schwa: bool
) -> dict[str, Pronunciation]:
    """One pronunciation a word: of its stem in the dictionary with an ending, else `spoken`.

    Of several stems and variants (RATED: RAT or RATE?) the one closest to what espeak says.

    Args:
        words: in upper case.
        dictionary: word -> its variants in ARPAbet, with AX if `schwa`.
        schwa: unstressed AH is AX, a phone of its own.
    Returns:
        Without words that have sounds of other languages only, or none.
    """
    guessed = spoken(words, schwa)
    for word, guess in guessed.items():
        if inflected := list(_inflected(word, dictionary)):
            guessed[word] = min(inflected, key=lambda pron: _distance(pron, guess))
    return guessed


def _distance(one: Pronunciation, other: Pronunciation) -> int:
    return int(kaldialign.edit_distance(one, other)["total"])


def _inflected(
    word: str, dictionary: Mapping[str, Sequence[Pronunciation]]
) -> Iterator[Pronunciation]:
    """What the word would be as inflection of words in the dictionary, or of their inflections."""
    for ending, letters, sound in INFLECTIONS:
        if not word.endswith(ending) or (ending == "S" and word.endswith("SS")):
            continue
        stem = word.removesuffix(ending) + letters
        doubled = ending in ("ED", "ING") and stem[-1:] == stem[-2:-1]  # STOPPED
        for base in (stem, stem[:-1]) if doubled else (stem,):
            if len(base) >= SHORTEST_STEM:
                for pron in dictionary.get(base) or _inflected(base, dictionary):
                    yield pron + _ending(pron[-1], sound)


def _ending(last: str, sound: str) -> Pronunciation:
    """The phones of an ending after the stem's last phone."""
    if sound == "Z":
        return ("IH", "Z") if last in SIBILANTS else ("S",) if last in VOICELESS else ("Z",)
    if sound == "D":
        return ("IH", "D") if last in ("T", "D") else ("T",) if last in VOICELESS else ("D",)
    return ("IH", "NG") if sound == "NG" else ()


def spoken(words: Iterable[str], schwa: bool) -> dict[str, Pronunciation]:
    """What espeak says of each word by itself; without those that it has no English sounds for.

    The same in any order, process and thread.
    """
    prons = {}
    with loaded() as (lib, _):
        if lib.espeak_SetVoiceByName(_VOICE) != 0:
            raise EspeakError("espeak-ng has no voice 'en-us'; reinstall espeakng-loader")
        lib.espeak_TextToPhonemes.restype = ctypes.c_char_p
        for word in words:
            if not is_latin(word):
                continue
            try:
                pron = arpabet(word, _mnemonics(lib, word))
            except EspeakError:  # a sound of another language: the word stays unknown, and listed
                continue
            if pron:
                prons[word] = pron if schwa else tuple("AH" if p == "AX" else p for p in pron)
    return prons


def is_latin(word: str) -> bool:
    """Whether the word is one to read: Latin letters and digits, with '.&- only between them.

    An apostrophe may stand at the ends as well, and a point at the end. Of other scripts espeak
    names the script, of brackets nothing: <UNK> and [NOISE] are no words.
    """
    word = word.replace("’", "'")
    return bool(re.fullmatch(r"'?[^\W_]+(['.&-][^\W_]+)*['.]?", word)) and all(map(_latin, word))


@cache
def _latin(letter: str) -> bool:
    return letter in "'.&-0123456789" or unicodedata.name(letter, "").startswith("LATIN ")


def _mnemonics(lib: ctypes.CDLL, word: str) -> list[str]:
    """espeak's phonemes, with their marks of stress."""
    text = ctypes.c_char_p(word.replace("’", "'").lower().encode())
    clauses = []
    while text.value is not None:  # each call moves the pointer past a clause, after the last to 0
        said = lib.espeak_TextToPhonemes(ctypes.byref(text), UTF8, ord(_SEPARATOR) << 8)
        clauses.append(said.decode())
    return " ".join(clauses).split()


def arpabet(word: str, mnemonics: Iterable[str]) -> Pronunciation:
    """espeak's phonemes of en-us, with their marks of stress, by CMU's names; see `named`."""
    return tuple(name for names in named(word, mnemonics) for name in names)


def named(
    word: str, mnemonics: Iterable[str], others: Mapping[str, str] | None = None
) -> list[list[str]]:
    """espeak's phonemes, with their marks of stress, by CMU's names: none to two names for each.

    Args:
        word: for the message.
        others: names of sounds that en-us has not.
    Raises:
        EspeakError: for a phoneme that has no name in PHONES, nor in `others`.
    """
    known = {**PHONES, **(others or {})}
    marked = list(mnemonics)
    plain = [_known(mnemonic, known) for mnemonic in marked]
    found: list[list[str]] = []
    for i, mnemonic in enumerate(plain):
        names = known.get(mnemonic)
        if names is None:
            raise EspeakError(
                f"espeak-ng said the phoneme {mnemonic!r} in {word!r}, which has no ARPAbet name; "
                "add it to PHONES in lang/g2p.py, or the word to lang.lexicon.file"
            )
        if plain[i + 1 : i + 2] in (["r"], ["r-"]):
            names = BEFORE_R.get(mnemonic, names)
        elif mnemonic == marked[i]:
            names = UNSTRESSED.get(mnemonic, names)
        last = next((before[-1] for before in reversed(found) if before), "")
        found.append([] if names == "R" and last in R_COLOURED else names.split())
    return found


def _known(mnemonic: str, known: Mapping[str, str]) -> str:
    """Less marks of stress, and less the length of AAAH."""
    mnemonic = mnemonic.lstrip("',%!=")
    while mnemonic not in known and mnemonic.endswith(":"):
        mnemonic = mnemonic[:-1]
    return mnemonic
