"""Networks: conf/model."""

from dataclasses import dataclass, fields
from enum import Enum
from typing import Annotated

from asr_train.schema.fields import SettingsError, at, here
from asr_train.schema.limits import Checked, Count, Natural, between, within

Dropout = Annotated[float, between(0, 0.9)]


class Nonlinearity(Enum):
    sigmoid = "sigmoid"
    relu = "relu"


@dataclass(kw_only=True, slots=True)
class DnnSettings(Checked):
    layers: Count
    width: Count
    nonlinearity: Nonlinearity
    context_left: Natural
    context_right: Natural
    dropout: Dropout = 0.0
    rank: int | None = None

    def check(self) -> None:
        # From half the width on, two factors of a hidden layer are no smaller than the layer
        within(1, (self.width - 1) // 2 if self.layers > 1 else self.width - 1, rank=self.rank)


@dataclass(kw_only=True, slots=True)
class LstmSettings(Checked):
    """An LSTM over stacked frames; lengths are in kept frames, each of `stack` frames."""

    layers: Count
    width: Count
    stack: Count
    subsample: Count
    delay: Annotated[int, between(0, 100)]
    piece: Count
    warm: Annotated[int, between(0, 10_000)]
    dropout: Dropout = 0.0

    def check(self) -> None:
        if self.dropout > 0 and self.layers == 1:
            raise SettingsError(
                f"{at('dropout')} is {self.dropout} but {at('layers')} is 1; it applies between "
                "layers, so set it to 0 or use more layers"
            )


@dataclass(kw_only=True, slots=True)
class ModelSettings(Checked):
    """Exactly one kind of network."""

    dnn: DnnSettings | None = None
    lstm: LstmSettings | None = None

    def check(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        if len(given) != 1:
            kinds = ", ".join(f.name for f in fields(self))
            raise SettingsError(
                f"{here()} holds {given or 'nothing'}; it needs exactly one of {kinds}"
            )
