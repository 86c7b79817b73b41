"""Networks: conf/model."""

from dataclasses import dataclass, fields
from enum import Enum

from asr_train.schema.fields import SettingsError, at, here, not_negative, positive, within


class Nonlinearity(Enum):
    sigmoid = "sigmoid"
    relu = "relu"


@dataclass(kw_only=True, slots=True)
class DnnSettings:
    layers: int
    width: int
    nonlinearity: Nonlinearity
    context_left: int
    context_right: int
    dropout: float = 0.0
    rank: int | None = None

    def __post_init__(self) -> None:
        positive(layers=self.layers, width=self.width)
        # From half the width on, two factors of a hidden layer are no smaller than the layer
        within(1, (self.width - 1) // 2 if self.layers > 1 else self.width - 1, rank=self.rank)
        within(0, 0.9, dropout=self.dropout)
        not_negative(context_left=self.context_left, context_right=self.context_right)


@dataclass(kw_only=True, slots=True)
class LstmSettings:
    """An LSTM over stacked frames; lengths are in kept frames, each of `stack` frames."""

    layers: int
    width: int
    stack: int
    subsample: int
    delay: int
    piece: int
    warm: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        within(0, 0.9, dropout=self.dropout)
        positive(layers=self.layers, width=self.width, piece=self.piece)
        positive(stack=self.stack, subsample=self.subsample)
        within(0, 100, delay=self.delay)
        within(0, 10_000, warm=self.warm)
        if self.dropout > 0 and self.layers == 1:
            raise SettingsError(
                f"{at('dropout')} is {self.dropout} but {at('layers')} is 1; it applies between "
                "layers, so set it to 0 or use more layers"
            )


@dataclass(kw_only=True, slots=True)
class ModelSettings:
    """Exactly one kind of network."""

    dnn: DnnSettings | None = None
    lstm: LstmSettings | None = None

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        if len(given) != 1:
            kinds = ", ".join(f.name for f in fields(self))
            raise SettingsError(
                f"{here()} holds {given or 'nothing'}; it needs exactly one of {kinds}"
            )
