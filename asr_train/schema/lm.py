"""Language models of open text: conf/lm."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from asr_train.schema.fields import SettingsError, at
from asr_train.schema.limits import Checked, Count, Share, between


class Smoothing(Enum):
    """How an n-gram model gives probability to unseen words."""

    kneser_ney = "kneser_ney"  # modified, interpolated
    witten_bell = "witten_bell"


@dataclass(kw_only=True, slots=True)
class NgramSettings(Checked):
    """An n-gram model; see `lang.ngram`."""

    order: Annotated[int, between(1, 4)]
    smoothing: Smoothing = Smoothing.kneser_ney
    min_counts: list[int]
    prune: Share
    file: str | None = None  # an ARPA file, plain or .gz, instead of training

    def check(self) -> None:
        if self.file == "":
            raise SettingsError(f"{at('file')} is empty; it must name an ARPA file, or be null")
        counts = self.min_counts
        if len(counts) != self.order or counts[0] != 1 or counts != sorted(counts):
            raise SettingsError(
                f"{at('min_counts')} is {counts}; it needs {self.order} integers, one per "
                "order, the first 1 and none above the next"
            )


@dataclass(kw_only=True, slots=True)
class BigramSettings(Checked):
    """A Witten-Bell bigram, as used for measurements with Kaldi; see `scripts/bigram.py`."""

    text: list[str]
    vocabulary: Count | None
    without_eval: bool


@dataclass(kw_only=True, slots=True)
class LmSettings(Checked):
    """Language models of open text; without any, the grammar is a loop or a file."""

    text: list[str]
    transcripts: bool
    mix: bool
    vocabulary: Count | None
    without_eval: bool
    small: NgramSettings | None
    big: NgramSettings | None
    bigram: BigramSettings | None = None  # for the runs in BIGRAM; in a separate settings file

    def check(self) -> None:
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
