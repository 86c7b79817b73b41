"""Word errors, and the normalisation of texts: conf/score."""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from asr_train.schema.fields import LEFT_OUT, SettingsError, at
from asr_train.schema.limits import Checked, Natural, between


class NormaliserKind(Enum):
    """The normalisation of a text, at intake or before scoring; see `score.normalise`."""

    plain = "plain"  # upper case, nothing else
    words = "words"  # also removes punctuation
    english = "english"  # punctuation, hyphens, hesitations, partial words as in Hub5 scoring


@dataclass(kw_only=True, slots=True)
class NormaliserSettings(Checked):
    kind: NormaliserKind
    mapping: str | None = None

    def check(self) -> None:
        if self.mapping is not None and self.kind is not NormaliserKind.english:
            raise SettingsError(
                f"{at('kind')} is {self.kind.value} but {at('mapping')} is "
                f"{self.mapping!r}; a mapping goes with kind=english, and only with it"
            )


@dataclass(kw_only=True, slots=True)
class ScoreSettings(Checked):
    bootstrap: Annotated[int, between(100, 10_000_000)]
    seed: Natural
    normaliser: NormaliserSettings
    speaker_groups: str | None = field(default=None, metadata={LEFT_OUT: True})

    @property
    def draws(self) -> dict[str, int]:
        """The settings on which intervals and comparisons depend, for score files and tables."""
        return {"bootstrap": self.bootstrap, "seed": self.seed}

    def check(self) -> None:
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
