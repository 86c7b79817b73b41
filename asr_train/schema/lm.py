"""Language models of open text: conf/lm."""

from dataclasses import dataclass
from enum import Enum

from asr_train.schema.fields import SettingsError, at, positive, within


class Smoothing(Enum):
    """How an n-gram model gives probability to unseen words."""

    kneser_ney = "kneser_ney"  # modified, interpolated
    witten_bell = "witten_bell"


@dataclass(kw_only=True, slots=True)
class NgramSettings:
    """An n-gram model; see `lang.ngram`."""

    order: int
    smoothing: Smoothing = Smoothing.kneser_ney
    min_counts: list[int]
    prune: float
    file: str | None = None  # an ARPA file, plain or .gz, instead of training

    def __post_init__(self) -> None:
        if self.file == "":
            raise SettingsError(f"{at('file')} is empty; it must name an ARPA file, or be null")
        within(1, 4, order=self.order)
        within(0, 1, prune=self.prune)
        counts = self.min_counts
        if len(counts) != self.order or counts[0] != 1 or counts != sorted(counts):
            raise SettingsError(
                f"{at('min_counts')} is {counts}; it needs {self.order} integers, one per "
                "order, the first 1 and none above the next"
            )


@dataclass(kw_only=True, slots=True)
class BigramSettings:
    """A Witten-Bell bigram, as used for measurements with Kaldi; see `scripts/bigram.py`."""

    text: list[str]
    vocabulary: int | None
    without_eval: bool

    def __post_init__(self) -> None:
        positive(vocabulary=self.vocabulary)


@dataclass(kw_only=True, slots=True)
class LmSettings:
    """Language models of open text; without any, the grammar is a loop or a file."""

    text: list[str]
    transcripts: bool
    mix: bool
    vocabulary: int | None
    without_eval: bool
    small: NgramSettings | None
    big: NgramSettings | None
    bigram: BigramSettings | None = None  # for the runs in BIGRAM; in a separate settings file

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
        positive(vocabulary=self.vocabulary)
