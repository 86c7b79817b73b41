"""Word errors, and the normalisation of texts: conf/score."""

from dataclasses import dataclass
from enum import Enum

from asr_train.schema.fields import SettingsError, at, not_negative, positive


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

    @property
    def draws(self) -> dict[str, int]:
        """The settings on which intervals and comparisons depend, for score files and tables."""
        return {"bootstrap": self.bootstrap, "seed": self.seed}

    def __post_init__(self) -> None:
        positive(bootstrap=self.bootstrap)
        not_negative(seed=self.seed)
