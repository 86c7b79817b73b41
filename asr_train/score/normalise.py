"""Transcripts and recognised texts -> **word lists for comparison**, by a named rule.

in    a reference text, or the words of a hypothesis
out   words for `score.edits`; in references some are Marked as optional or as parts of words
A name stands for one behaviour and is recorded in every score file: any change of a rule needs a
new number in its name, because rates under two names are not comparable. `upper-1` changes only the
case; `words-3` removes punctuation in any language, as in the last five lines below, and marks that
belong to no letter or digit, writes sharp s as SS, and keeps accents and hesitations. `en-3` is for
English, after NIST's scoring of 2003:

    upper case, sharp s as SS; accents off; curly apostrophes made straight
    hesitations (UH, UM, AH, HUH, ...): %HESITATION
    yes and no (MHM, MM-HM, UM-HUM, ...; UH-UH, HUH-UH): UHHUH and UHUH, words like others
    E.R., U.M. and other initials that without points would be hesitations: their letters, E R
    WOR-, (WOR-), (-ORD): a part of a word; a lone hyphen is removed. Only parts that end in a
    hyphen match the words that begin with them, as in sclite
    [noise] and <noise>: removed, also within a word: TH[AT]- is TH-
    - / _ between letters: a space, as are dashes of other lengths
    two or more points, and other marks of a pause (, ; ! ?) unless between digits: a space
    & is AND, % is PERCENT
    other punctuation: removed, except apostrophes within words and points within numbers

Hesitations and parts of words are optional in a reference and removed from a hypothesis, so neither
recognising nor missing them is an error; they count as correct words of the reference, as in
sclite. A mapping file then rewrites word sequences on both sides. At intake (`transcribed`) the
same rules keep hesitations and parts of words. Knows nothing of utterances or rates.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from asr_train.checks import without_lone_marks
from asr_train.files import hash_of, read_lines
from asr_train.schema import NormaliserKind, NormaliserSettings
from asr_train.score.edits import Marked
from asr_train.score.words import NORMALISER, normalise

ENGLISH = "en-3"
HESITATION = Marked("(%HESITATION)")
# en20030506.glm of usnistgov/SCTK, with UHH, UMM, UHM, ERM, HMM, MMM and UM-HM
_HESITATIONS = "ACH AH EEE EH ER ERM EW HA HEE HM HMM HUH MM MMM OOF UH UHH UHM UM UMM"
HESITATIONS = frozenset(_HESITATIONS.split())
_YES = "UHHUH UH-HUH MHM MMHM MM-HM MM-HMM MM-HUH UH-HMM UM-HM UM-HMM UM-HUM"
_NO = "UHUH UH-UH HUH-UH HUHUH"
_ONE_WORD = dict.fromkeys(_YES.split(), "UHHUH") | dict.fromkeys(_NO.split(), "UHUH")
Words = tuple[str, ...]

PUNCTUATION = '.,;:!?…"“”„«»'  # beside a word of a lexicon
_APOSTROPHES = str.maketrans(dict.fromkeys("‘’‛ʹʼʻ`´′＇", "'"))
TAG = re.compile(r"\[[^\[\]]*\]|<[^<>\s]*>")
_PAUSE = "[,;!?¿¡،؛؟۔।॥、。，；：！？]"
# No colon, which is within words of Finnish and Swedish: EU:n
_BREAK = re.compile(rf"[–—―−⁄/_…]|--+|\.\.+|(?<!\d){_PAUSE}|{_PAUSE}(?!\d)")
_INITIALS = re.compile(r"(?<!\w)[^\W\d_](?:\.[^\W\d_])+(?!\w)")
_HYPHENS = str.maketrans(dict.fromkeys("‐‑", "-"))
_KEPT = re.compile(r"[^\W_]|['-]|(?<=\d)\.(?=\d)")
_LINE_CONTEXT = re.compile(r"/\s*\[\s*\]\s*__\s*\[\s*\]\s*$")


@dataclass(frozen=True, slots=True)
class Normaliser:
    """Text -> words for each side, with the name of the rule."""

    name: str
    reference: Callable[[str], list[str]]

    def hypothesis(self, text: str) -> list[str]:
        """Return the words of a hypothesis: as a reference's, without optional ones."""
        return [w for w in self.reference(text) if not (isinstance(w, Marked) and w.optional)]


def words(text: str) -> list[str]:
    """Apply `words-3`; see above.

    >>> words("One, one: twenty-one (o’clock).")
    ['ONE', 'ONE', 'TWENTY', 'ONE', "O'CLOCK"]
    """
    text = straight(unicodedata.normalize("NFC", _upper(text))).translate(_HYPHENS)
    pieces = [piece for token in _tokens(without_lone_marks(text)) for piece in token.split("-")]
    kept = ("".join(_kept(piece)).strip("'") for piece in pieces)
    return [word for word in kept if word]


def straight(text: str) -> str:
    """Return a text with typographic apostrophes as `'`."""
    return text.translate(_APOSTROPHES)


def _upper(text: str) -> str:
    return text.upper().replace("ẞ", "SS")  # as small sharp s


def _kept(piece: str) -> Iterator[str]:
    """Yield letters with their marks, digits, apostrophes, points between digits."""
    for i, c in enumerate(piece):
        is_point = c == "." and piece[i - 1 : i].isdigit() and piece[i + 1 : i + 2].isdigit()
        if is_point or c == "'" or unicodedata.category(c)[0] in "LMN":
            yield c


def load_normaliser(settings: NormaliserSettings) -> Normaliser:
    """Return the settings' rule, with its mapping file if there is one.

    The name of a mapped rule ends with the file's name and a hash of its rules:
    `en-3+hub5-0a1b2c3d`.

    Raises:
        ValueError: if a line of the mapping file is wrong; names file and line.
    """
    if settings.mapping is None:
        return NORMALISERS[settings.kind]
    rules = read_mapping(settings.mapping)
    listed = sorted([" ".join(old), " ".join(new)] for old, new in rules.items())
    name = f"{ENGLISH}+{Path(settings.mapping).stem}-{hash_of(listed)[:8]}"
    return Normaliser(name, lambda text: rewrite(english(text), rules))


def transcribed(text: str, kind: NormaliserKind, odd: Set[str] = frozenset()) -> list[str]:
    """Return the words of a transcript at intake; none is Marked.

    Scoring these words by the same rule is equivalent to scoring the text.

    Args:
        odd: words of a lexicon, NEW_YORK or <NOISE>, which are kept, without punctuation beside
            them.

    >>> transcribed("Uh, the twenty-third -- I ca[n't]- can’t.", NormaliserKind.english)
    ['UH', 'THE', 'TWENTY', 'THIRD', 'I', 'CA-', "CAN'T"]
    >>> transcribed("To New_York!", NormaliserKind.words, {"NEW_YORK"})
    ['TO', 'NEW_YORK']
    """
    if odd:
        upper = unicodedata.normalize("NFC", text.upper())
        if kind is not NormaliserKind.plain:  # a noise mark may span words that are odd
            upper = TAG.sub(lambda mark: mark[0] if mark[0] in odd else "", upper)
        found: list[str] = []
        for word, group in groupby(upper.split(), lambda token: _odd_one(token, odd)):
            tokens = list(group)
            found += transcribed(" ".join(tokens), kind) if word is None else [word] * len(tokens)
        return found
    if kind is NormaliserKind.english:
        return [word for token in _english(text) for word in _words_of(token, marks=False)]
    return NORMALISERS[kind].reference(text)


def _odd_one(token: str, odd: Set[str]) -> str | None:
    return next((word for word in (token, token.strip(PUNCTUATION)) if word in odd), None)


def _tokens(text: str) -> list[str]:
    """Split at spaces, dashes and pauses, without noises; spoken signs become words."""
    text = _BREAK.sub(" ", TAG.sub("", text))
    text = text.replace(HESITATION.bare, " UH ").replace("&", " AND ").replace("%", " PERCENT ")
    return text.split()


# --- English ------------------------------------------------------------------------------------


def english(text: str) -> list[str]:
    """Apply `en-3` to a reference; see above.

    >>> english("Uh, the twenty-third -- I ca[n't]- can’t.")
    ['(%HESITATION)', 'THE', 'TWENTY', 'THIRD', 'I', '(CA-)', "CAN'T"]
    """
    return [word for token in _english(text) for word in _words_of(token)]


PLAIN = Normaliser(NORMALISER, normalise)
NORMALISERS = {
    NormaliserKind.plain: PLAIN,
    NormaliserKind.words: Normaliser("words-3", words),
    NormaliserKind.english: Normaliser(ENGLISH, english),
}


def _english(text: str) -> list[str]:
    """Return tokens in upper case, without accents."""
    text = straight(text)
    for _ in range(2):  # some letters decompose only in upper case
        parts = unicodedata.normalize("NFKD", text)
        text = _upper("".join(c for c in parts if not unicodedata.combining(c)))
    tokens = _tokens(straight(text).translate(_HYPHENS))
    return _INITIALS.sub(_spelled, " ".join(tokens)).split()


def _spelled(initials: re.Match[str]) -> str:
    letters = initials[0].split(".")
    return " ".join(letters) if "".join(letters) in HESITATIONS else initials[0]


def _words_of(token: str, marks: bool = True) -> list[str]:
    """Return the words of a token, split at hyphens.

    Args:
        marks: whether to mark hesitations and parts of words.
    """
    core = "".join(_KEPT.findall(token))
    parts = [core] if core in _ONE_WORD else core.split("-")
    pieces = [piece for part in parts if (piece := part.strip("'"))]
    found = [_counted(piece) for piece in pieces] if marks else list(pieces)
    if pieces and core.endswith("-") and _is_part(pieces[-1]):
        found[-1] = Marked(f"({pieces[-1]}-)") if marks else f"{pieces[-1]}-"
    elif pieces and token.startswith("(-") and _is_part(pieces[0]):
        found[0] = Marked(f"(-{pieces[0]})") if marks else f"(-{pieces[0]})"
    return found


def _counted(word: str) -> str:
    return HESITATION if word in HESITATIONS else _ONE_WORD.get(word, word)


def _is_part(word: str) -> bool:
    """Return whether a word beside a hyphen was cut off: a number or a hesitation is not."""
    return not word.isdigit() and word not in HESITATIONS


# --- mapping file -------------------------------------------------------------------------------


def rewrite(words: list[str], rules: Mapping[Words, Words]) -> list[str]:
    """Replace word sequences that have a rule: from the left, the longest first, once."""
    longest = max(map(len, rules), default=0)
    made: list[str] = []
    start = 0
    while start < len(words):
        for length in range(min(longest, len(words) - start), 0, -1):
            new = rules.get(tuple(words[start : start + length]))
            if new is not None:
                made += new
                start += length
                break
        else:
            made.append(words[start])
            start += 1
    return made


def read_mapping(path: Path | str) -> dict[Words, Words]:
    """Read rules in the form of NIST's GLM that replace words by words.

            ;; a comment, also at the end of a line; lines that begin with * are GLM's headers
            CAN'T => CANNOT
            [I'VE] => [I HAVE] / [ ] __ [ ]     brackets and an empty context are allowed
            YOU KNOW => (YOU) (KNOW)            optional in a reference, removed from a hypothesis
            NOISE =>                            removed on both sides

    Both sides of `=>` are normalised by `english` first. A rule matches whole words, also without a
    context, where NIST's filter would match parts of words.

    Raises:
        ValueError: if a line is invalid or not UTF-8, or two lines disagree; names file and line.
    """
    rules: dict[Words, Words] = {}
    first: dict[Words, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        text = line.split(";;", 1)[0].strip()
        if not text or text.startswith("*"):
            continue
        try:
            old, new = _rule(text)
            if rules.setdefault(old, new) != new:
                raise ValueError(f"line {first[old]} maps {' '.join(old)} differently; keep one")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        first.setdefault(old, number)
    return rules


def _rule(text: str) -> tuple[Words, Words]:
    if text.count("=>") != 1:
        raise ValueError(f"{text!r} has {text.count('=>')} '=>' but needs 1: FROM => TO")
    if "{" in text:
        raise ValueError(
            f"{text!r} has alternatives, with which the number of reference words would depend on "
            "the hypothesis; map all of them to one form, one per line"
        )
    left, right = (part.strip() for part in text.split("=>"))
    right = _LINE_CONTEXT.sub("", right).strip()
    if "__" in right:
        raise ValueError(f"{text!r} has a context, which is not supported; write FROM => TO")
    old = english(_unbracketed(left))
    if not old:
        raise ValueError(f"{text!r} has no word before '=>'; write FROM => TO")
    marked = [word for word in old if isinstance(word, Marked)]
    if marked:
        raise ValueError(
            f"{text!r} concerns {marked[0]}, which {ENGLISH} makes optional already; leave it out"
        )
    return tuple(old), tuple(w for token in _unbracketed(right).split() for w in _target(token))


def _target(token: str) -> list[str]:
    """Return the words after `=>`: a word in parentheses is optional."""
    if token.count("(") != token.count(")"):
        raise ValueError(
            f"{token!r} has a parenthesis alone; write each optional word in its own: (YOU) (KNOW)"
        )
    words = english(token)
    if token.startswith("(") and token.endswith(")"):
        return [w if isinstance(w, Marked) else Marked(f"({w})") for w in words]
    return words


def _unbracketed(text: str) -> str:
    return text[1:-1].strip() if text.startswith("[") and text.endswith("]") else text
