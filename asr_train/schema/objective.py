"""Sequence training: conf/lattices and conf/objective."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from asr_train.schema.fields import SettingsError, at
from asr_train.schema.limits import Checked, Count, NotNegative, Positive, Share, between


class Criterion(Enum):
    """What sequence training minimises; see `search.occupancy`."""

    mmi = "mmi"  # maximum mutual information; with a boost, boosted MMI
    smbr = "smbr"  # state-level minimum Bayes risk


@dataclass(kw_only=True, slots=True)
class LatticesSettings(Checked):
    """The lattices that sequence training learns from; see `decode.lattices`."""

    order: Annotated[int, between(1, 2)]
    lattice_beam: Positive
    arcs_per_frame: Count


@dataclass(kw_only=True, slots=True)
class ObjectiveSettings(Checked):
    """Sequence training of a network that has learned by frame cross-entropy."""

    criterion: Criterion
    boost: NotNegative
    smoothing: Share
    count_silence: bool
    rate: Positive
    minibatch_frames: Count
    epochs: Count

    def check(self) -> None:
        if self.boost > 0 and self.criterion is not Criterion.mmi:
            raise SettingsError(
                f"{at('boost')} is {self.boost}, but {at('criterion')} is {self.criterion.value}; "
                "only mmi is boosted: set it to 0"
            )
