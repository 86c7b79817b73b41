"""Language models of open text: conf/lm."""

from dataclasses import dataclass
from enum import Enum

from asr_train.schema.fields import SettingsError, at, positive, within


class Smoothing(Enum):
    """How an n-gram model gives words that were not seen their share."""

    kneser_ney = "kneser_ney"  # modified, interpolated
    witten_bell = "witten_bell"


@dataclass(kw_only=True, slots=True)
class NgramSettings:
    """An n-gram model; see `lang.ngram`."""

    order: int  # words of its longest n-grams
    smoothing: Smoothing = Smoothing.kneser_ney
    min_counts: list[int]  # per order; n-grams that the text has less often are left out
    prune: float
    file: str | None = None  # an ARPA file, plain or .gz, in place of training

    def __post_init__(self) -> None:
        if self.file == "":
            raise SettingsError(f"{at('file')} is empty; it must name an ARPA file, or be null")
        within(1, 4, order=self.order)
        within(0, 1, prune=self.prune)
        counts = self.min_counts
        if len(counts) != self.order or counts[0] != 1 or counts != sorted(counts):
            raise SettingsError(
                f"{at('min_counts')} is {counts}; it needs {self.order} whole numbers, one an "
                "order, from 1 on and none above the next"
            )


@dataclass(kw_only=True, slots=True)
class BigramSettings:
    """A Witten-Bell bigram, with which Kaldi was measured beside us; see `scripts/bigram.py`."""

    text: list[str]  # files, plain or .gz, a sentence a line; taken as upper case
    vocabulary: int | None  # so many of the most frequent words; null: all
    without_eval: bool  # sentences of DEV and TEST are taken out of the text

    def __post_init__(self) -> None:
        if self.vocabulary is not None:
            positive(vocabulary=self.vocabulary)


@dataclass(kw_only=True, slots=True)
class LmSettings:
    """Language models of open text; without any, the grammar is a loop or a file."""

    text: list[str]  # files, plain or .gz, a sentence a line; taken as upper case
    transcripts: bool
    mix: bool
    vocabulary: int | None
    without_eval: bool  # sentences of DEV and TEST are taken out of text and transcripts
    small: NgramSettings | None  # of the decoding graph; null: no model at all
    big: NgramSettings | None  # that n-best lists are scored with anew
    bigram: BigramSettings | None = None  # of the runs in BIGRAM; a settings file of its own

    def __post_init__(self) -> None:
        if self.small is None:
            if self.big is not None:
                raise SettingsError(
                    f"{at('big')} is set but {at('small')} is null; the graph needs one first"
                )
            return
        trained = [m for m in (self.small, self.big) if m is not None and m.file is None]
        if trained and not self.text and not self.transcripts:
            raise SettingsError(
                f"{at('text')} is empty and {at('transcripts')} is false; a language model needs "
                "one of them"
            )
        if self.mix and not (self.text and self.transcripts):
            raise SettingsError(
                f"{at('mix')} is true but {at('text')} is {self.text} and {at('transcripts')} is "
                f"{str(self.transcripts).lower()}; a mixture needs both"
            )
        if self.vocabulary is not None:
            positive(vocabulary=self.vocabulary)
