"""Words missing in a dictionary -> **pronunciations** in ARPAbet, by espeak-ng's American English.

in    words in upper case; the dictionary, for inflections of its words (VILLAGER -> VILLAGERS')
out   word -> pronunciation, also of parts of words (TH-, -Y, (-ORD)); words with other than Latin
      letters and digits have none, nor have those with rare Latin letters (IPA, Ə)
Knows nothing of settings and files.

On 3,000 random words held out from CMU's dictionary (tests/lang/test_g2p.py prints this), 8.7 % of
the phones differ from the closest variant, and 34 % of the words. For inflections 1.5 % of the
phones differ (5.3 % with espeak alone), for other words 11.4 %.
"""

import ctypes
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from kaldialign import edit_distance

from asr_train.lang.espeak import UTF8, EspeakError, loaded

Pronunciation = tuple[str, ...]

# espeak's mnemonics of en-us, without stress marks -> ARPAbet. "": a pause, or espeak's glide
# between vowels. These are all phonemes in CMU's 126,000 words and in 306,000 strings of random
# letters and digits; vowels are mapped to CMU's most frequent phone in their place.
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
VOWELS = frozenset(phone for phone in ARPABET if phone[0] in "AEIOU")
UNSTRESSED = {"V": "AX"}
BEFORE_R = {"a": "EH", "@": "ER", "i@": "IH"}  # before an r
R_COLOURED = ("R", "ER")  # absorb a following R: espeak inserts a linking r, CMU does not

# Ending of an inflected word -> the stem's letters in its place, and the ending's sound.
INFLECTIONS = (
    *(("'S", "", "Z"), ("S'", "S", ""), ("IES", "Y", "Z"), ("ES", "", "Z"), ("S", "", "Z")),
    *(("IED", "Y", "D"), ("ED", "", "D"), ("ED", "E", "D"), ("ING", "", "NG"), ("ING", "E", "NG")),
)
SIBILANTS = {"S", "Z", "SH", "ZH", "CH", "JH"}
VOICELESS = {"P", "T", "K", "F", "TH", "S", "SH", "CH"}
SHORTEST_STEM = 3  # letters
MOST_ENDINGS = 3  # of a word; the number of ways to take off n grows exponentially
LAST_NAMED = "\u017f"  # espeak says "letter one e c five" for many Latin letters beyond

_VOICE = b"en-us"
_SEPARATOR = "\t"  # between phonemes; in no mnemonic


def pronounce(
    words: Iterable[str], dictionary: Mapping[str, Sequence[Pronunciation]], schwa: bool
) -> dict[str, Pronunciation]:
    """Return one pronunciation per word: of a stem in the dictionary with an ending, else `spoken`.

    Of several stems and variants (RATED: RAT or RATE?), the one closest to espeak's output is
    taken.

    Args:
        words: in upper case.
        dictionary: word -> its variants in ARPAbet, with AX if `schwa`.
        schwa: whether unstressed AH is AX, a separate phone.
    Returns:
        Pronunciations; none for words with only foreign sounds, or without sounds.
    """
    guessed = spoken(words, schwa)
    for word, guess in guessed.items():
        if inflected := list(_inflected(word, dictionary)):
            guessed[word] = min(inflected, key=lambda pron: edit_distance(pron, guess)["total"])
    return guessed


def _inflected(
    word: str, dictionary: Mapping[str, Sequence[Pronunciation]], endings: int = MOST_ENDINGS
) -> Iterator[Pronunciation]:
    """Yield the word's pronunciations as an inflection of words in the dictionary."""
    if not endings:
        return
    for ending, letters, sound in INFLECTIONS:
        if not word.endswith(ending) or (ending == "S" and word.endswith("SS")):
            continue
        stem = word.removesuffix(ending) + letters
        doubled = ending in ("ED", "ING") and stem[-1:] == stem[-2:-1]  # STOPPED
        for base in (stem, stem[:-1]) if doubled else (stem,):
            if len(base) >= SHORTEST_STEM:
                for pron in dictionary.get(base) or _inflected(base, dictionary, endings - 1):
                    yield pron + _ending(pron[-1], sound)


def _ending(last: str, sound: str) -> Pronunciation:
    """Return the phones of an ending after the stem's last phone."""
    if sound == "Z":
        return ("IH", "Z") if last in SIBILANTS else ("S",) if last in VOICELESS else ("Z",)
    if sound == "D":
        return ("IH", "D") if last in ("T", "D") else ("T",) if last in VOICELESS else ("D",)
    return ("IH", "NG") if sound == "NG" else ()


def spoken(words: Iterable[str], schwa: bool) -> dict[str, Pronunciation]:
    """Return espeak's pronunciation of each word by itself; omit words without English sounds.

    The result does not depend on order, process and thread.
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
            except EspeakError:  # a foreign sound: the word stays unknown
                continue
            if pron:
                prons[word] = pron if schwa else tuple("AH" if p == "AX" else p for p in pron)
    return prons


def is_latin(word: str) -> bool:
    """Return whether the word can be read: Latin letters and digits, with '.&- only between them.

    An apostrophe is also allowed at the ends, and a point at the end, and the marks of parts of
    words. In other scripts, espeak reads the script's name; brackets have no sound: <UNK> and
    [NOISE] are not words.
    """
    word = _unmarked(word.replace("’", "'"))
    return bool(re.fullmatch(r"'?[^\W_]+(['.&-][^\W_]+)*['.]?", word)) and all(map(_latin, word))


def _unmarked(word: str) -> str:
    """Return a word, or a part of one (TH-, -Y, (TH-), (-ORD)) without its marks."""
    if re.fullmatch(r"\((-.+|.+-)\)", word):
        word = word[1:-1]
    return word.removeprefix("-").removesuffix("-")


@cache
def _latin(letter: str) -> bool:
    if letter in "'.&-0123456789":
        return True
    return unicodedata.name(letter, "").startswith("LATIN ") and _read(letter) <= LAST_NAMED


@cache
def _read(letter: str) -> str:
    """Return what espeak gets: the base (E of Ễ) of letters that it may spell by code point."""
    base = unicodedata.normalize("NFD", letter)[0]
    return base if letter > LAST_NAMED and base.isascii() else letter


def _mnemonics(lib: ctypes.CDLL, word: str) -> list[str]:
    """Return espeak's phonemes, with stress marks."""
    letters = "".join(map(_read, _unmarked(word.replace("’", "'"))))
    text = ctypes.c_char_p(letters.lower().encode())
    clauses = []
    while text.value is not None:  # each call moves the pointer past a clause, finally to 0
        output = lib.espeak_TextToPhonemes(ctypes.byref(text), UTF8, ord(_SEPARATOR) << 8)
        clauses.append(output.decode())
    return " ".join(clauses).split()


def arpabet(word: str, mnemonics: Iterable[str]) -> Pronunciation:
    """Convert espeak's phonemes of en-us, with stress marks, to CMU's names; see `named`."""
    return tuple(name for names in named(word, mnemonics) for name in names)


def named(
    word: str, mnemonics: Iterable[str], others: Mapping[str, str] | None = None
) -> list[list[str]]:
    """Convert espeak's phonemes, with stress marks, to CMU's names: up to two for each.

    Args:
        word: for the message.
        others: names of sounds that en-us lacks.
    Raises:
        EspeakError: for a phoneme without a name in PHONES or `others`.
    """
    known = {**PHONES, **(others or {})}
    marked = list(mnemonics)
    plain = [_known(mnemonic, known) for mnemonic in marked]
    found: list[list[str]] = []
    for i, mnemonic in enumerate(plain):
        names = known.get(mnemonic)
        if names is None:
            raise EspeakError(
                f"espeak-ng gave the phoneme {mnemonic!r} in {word!r}, which has no ARPAbet name; "
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
    """Remove stress marks, and lengthening as in AAAH."""
    mnemonic = mnemonic.lstrip("',%!=")
    while mnemonic not in known and mnemonic.endswith(":"):
        mnemonic = mnemonic[:-1]
    return mnemonic
