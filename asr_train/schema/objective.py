"""Sequence training: conf/lattices and conf/objective."""

from dataclasses import dataclass
from enum import Enum

from asr_train.schema.fields import SettingsError, at, not_negative, positive, within


class Criterion(Enum):
    """What sequence training minimises; see `search.occupancy`."""

    mmi = "mmi"  # maximum mutual information; with a boost, boosted MMI
    smbr = "smbr"  # state-level minimum Bayes risk


@dataclass(kw_only=True, slots=True)
class LatticesSettings:
    """The lattices that sequence training learns from; see `decode.lattices`."""

    order: int
    lattice_beam: float
    arcs_per_frame: int

    def __post_init__(self) -> None:
        within(1, 2, order=self.order)
        positive(lattice_beam=self.lattice_beam, arcs_per_frame=self.arcs_per_frame)


@dataclass(kw_only=True, slots=True)
class ObjectiveSettings:
    """Sequence training of a network that has learned by frame cross-entropy."""

    criterion: Criterion
    boost: float
    smoothing: float
    count_silence: bool
    rate: float
    minibatch_frames: int
    epochs: int

    def __post_init__(self) -> None:
        not_negative(boost=self.boost)
        if self.boost > 0 and self.criterion is not Criterion.mmi:
            raise SettingsError(
                f"{at('boost')} is {self.boost}, but {at('criterion')} is {self.criterion.value}; "
                "only mmi is boosted: set it to 0"
            )
        within(0, 1, smoothing=self.smoothing)
        positive(rate=self.rate, minibatch_frames=self.minibatch_frames, epochs=self.epochs)
