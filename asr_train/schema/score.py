"""Word errors, and the normalisation of texts: conf/score."""

import re
from dataclasses import dataclass, field
from enum import Enum

from asr_train.schema.fields import LEFT_OUT, SettingsError, at, not_negative, within


class NormaliserKind(Enum):
    """The normalisation of a text, at intake or before scoring; see `score.normalise`."""

    plain = "plain"  # upper case, nothing else
    words = "words"  # also removes punctuation
    english = "english"  # punctuation, hyphens, hesitations, partial words as in Hub5 scoring


@dataclass(kw_only=True, slots=True)
class NormaliserSettings:
    kind: NormaliserKind
    mapping: str | None = None

    def __post_init__(self) -> None:
        if self.mapping is not None and self.kind is not NormaliserKind.english:
            raise SettingsError(
                f"{at('kind')} is {self.kind.value} but {at('mapping')} is "
                f"{self.mapping!r}; a mapping goes with kind=english, and only with it"
            )


@dataclass(kw_only=True, slots=True)
class ScoreSettings:
    bootstrap: int
    seed: int
    normaliser: NormaliserSettings
    speaker_groups: str | None = field(default=None, metadata={LEFT_OUT: True})

    @property
    def draws(self) -> dict[str, int]:
        """The settings on which intervals and comparisons depend, for score files and tables."""
        return {"bootstrap": self.bootstrap, "seed": self.seed}

    def __post_init__(self) -> None:
        within(100, 10_000_000, bootstrap=self.bootstrap)
        not_negative(seed=self.seed)
        if self.speaker_groups is not None:
            try:
                count = re.compile(self.speaker_groups).groups
            except re.error as error:
                raise SettingsError(
                    f"{at('speaker_groups')} is {self.speaker_groups!r}, which is no regular "
                    f"expression: {error}"
                ) from None
            if count != 1:
                raise SettingsError(
                    f"{at('speaker_groups')} is {self.speaker_groups!r} and has {count} pairs of "
                    "capturing parentheses; put one pair around what a group's names have in common"
                )
