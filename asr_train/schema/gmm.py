"""Systems of Gaussians and alignments: conf/gmm, conf/ali."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from asr_train.schema.feats import NormSettings
from asr_train.schema.fields import SettingsError, at, here
from asr_train.schema.limits import Checked, Count, Natural, NotNegative, Positive, Share, between

Floor = Annotated[float, between(1e-6, 1)]  # frames may be equal


@dataclass(kw_only=True, slots=True)
class FrontSettings(Checked):
    """Features for Gaussians, computed from the stored log-mel; see `align.front`."""

    num_ceps: Natural
    deltas: Annotated[int, between(0, 2)]
    norm: NormSettings
    splice: Natural = 0


@dataclass(kw_only=True, slots=True)
class FlatSettings(Checked):
    """Baum-Welch re-estimations from Gaussians that are all alike; see `align.flat`."""

    utterances: Count
    seconds: Positive
    passes: Count


class QuestionStates(Enum):
    """The states of a phone by which phones are clustered."""

    middle = "middle"
    all = "all"  # first, middle and last, each with its own questions


@dataclass(kw_only=True, slots=True)
class TreeSettings(Checked):
    """How triphone states are tied; see `align.tree`."""

    leaves: Count
    min_count: Positive
    min_gain: NotNegative
    variance_floor: Floor
    question_states: QuestionStates
    share: list[list[str]]
    merge: bool

    def check(self) -> None:
        named = [phone for group in self.share for phone in group]
        for phone in named:
            if named.count(phone) > 1:
                raise SettingsError(f"{at('share')} names {phone} twice; each phone has one root")


@dataclass(kw_only=True, slots=True)
class LdaSettings(Checked):
    """A projection of spliced frames that separates states; see `align.transforms`."""

    dims: Count
    silence: bool
    mllt_passes: list[Count]


@dataclass(kw_only=True, slots=True)
class FmllrSettings(Checked):
    """Frames adapted by an affine transform per speaker; see `align.adapt`."""

    passes: list[Count]
    min_frames: Positive
    silence_weight: Share


@dataclass(kw_only=True, slots=True)
class GmmSettings(Checked):
    """A system of Gaussian mixtures, trained from a flat start or from the previous one."""

    front: FrontSettings | None
    flat: FlatSettings | None = None  # of the first system
    tree: TreeSettings | None = None  # ties triphone states; null: those of the previous one
    lda: LdaSettings | None = None
    fmllr: FmllrSettings | None = None  # null: no speaker adaptation
    passes: Count
    gaussians: Count
    grown_by: Annotated[float, between(0.05, 1)]
    realign_first: Natural
    realign_every: Count
    power: Share
    min_count: Positive
    variance_floor: Floor

    def check(self) -> None:
        later = (self.tree, self.lda, self.fmllr)
        if self.flat is not None and (self.front is None or any(s is not None for s in later)):
            raise SettingsError(
                f"{here()}: a system with a flat start has no previous system, so it needs a "
                "front, and cannot have tree, lda or fmllr; set those for the next system"
            )
        if self.lda is not None and (self.front is None or self.front.splice == 0):
            raise SettingsError(
                f"{at('lda')} needs {at('front.splice')} above 0, frames on each side"
            )
        if self.fmllr is not None and self.front is not None:
            raise SettingsError(
                f"{at('fmllr')} needs {at('front')}=null: the first transforms are estimated "
                "towards the Gaussians of the previous system, which must have the same front end"
            )


@dataclass(kw_only=True, slots=True)
class AliSettings(Checked):
    """The alignment of transcripts, in training and afterwards."""

    beam: Positive
    retry_beam: float
    acoustic_scale: Positive
    max_lost_share: Share

    def check(self) -> None:
        if self.retry_beam < self.beam:
            raise SettingsError(
                f"{at('retry_beam')} is {self.retry_beam}, below {at('beam')} {self.beam}; "
                "it must be wider"
            )
