"""Systems of Gaussians and alignments: conf/gmm, conf/ali."""

from dataclasses import dataclass
from enum import Enum

from asr_train.schema.feats import NormSettings
from asr_train.schema.fields import SettingsError, at, here, not_negative, positive, within


@dataclass(kw_only=True, slots=True)
class FrontSettings:
    """Features for Gaussians, computed from the stored log-mel; see `align.front`."""

    num_ceps: int
    deltas: int
    norm: NormSettings
    splice: int = 0

    def __post_init__(self) -> None:
        within(0, 2, deltas=self.deltas)
        not_negative(num_ceps=self.num_ceps, splice=self.splice)


@dataclass(kw_only=True, slots=True)
class FlatSettings:
    """Baum-Welch re-estimations from Gaussians that are all alike; see `align.flat`."""

    utterances: int
    seconds: float
    passes: int

    def __post_init__(self) -> None:
        positive(utterances=self.utterances, passes=self.passes, seconds=self.seconds)


class QuestionStates(Enum):
    """The states of a phone by which phones are clustered."""

    middle = "middle"
    all = "all"  # first, middle and last, each with its own questions


@dataclass(kw_only=True, slots=True)
class TreeSettings:
    """How triphone states are tied; see `align.tree`."""

    leaves: int
    min_count: float
    min_gain: float
    variance_floor: float
    question_states: QuestionStates
    share: list[list[str]]
    merge: bool

    def __post_init__(self) -> None:
        positive(leaves=self.leaves, min_count=self.min_count)
        within(1e-6, 1, variance_floor=self.variance_floor)
        not_negative(min_gain=self.min_gain)
        named = [phone for group in self.share for phone in group]
        for phone in named:
            if named.count(phone) > 1:
                raise SettingsError(f"{at('share')} names {phone} twice; each phone has one root")


@dataclass(kw_only=True, slots=True)
class LdaSettings:
    """A projection of spliced frames that separates states; see `align.transforms`."""

    dims: int
    silence: bool
    mllt_passes: list[int]

    def __post_init__(self) -> None:
        positive(dims=self.dims)
        for number in self.mllt_passes:
            positive(mllt_passes=number)


@dataclass(kw_only=True, slots=True)
class FmllrSettings:
    """Frames adapted by an affine transform per speaker; see `align.adapt`."""

    passes: list[int]
    min_frames: float
    silence_weight: float

    def __post_init__(self) -> None:
        positive(min_frames=self.min_frames)
        for number in self.passes:
            positive(passes=number)
        within(0, 1, silence_weight=self.silence_weight)


@dataclass(kw_only=True, slots=True)
class GmmSettings:
    """A system of Gaussian mixtures, trained from a flat start or from the previous one."""

    front: FrontSettings | None
    flat: FlatSettings | None = None  # of the first system
    tree: TreeSettings | None = None  # ties triphone states; null: those of the previous one
    lda: LdaSettings | None = None
    fmllr: FmllrSettings | None = None  # null: no speaker adaptation
    passes: int
    gaussians: int
    grown_by: float
    realign_first: int
    realign_every: int
    power: float
    min_count: float
    variance_floor: float

    def __post_init__(self) -> None:
        within(0.05, 1, grown_by=self.grown_by)
        within(0, 1, power=self.power)
        within(1e-6, 1, variance_floor=self.variance_floor)  # frames may be equal
        positive(passes=self.passes, gaussians=self.gaussians, min_count=self.min_count)
        positive(realign_every=self.realign_every)
        not_negative(realign_first=self.realign_first)
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
class AliSettings:
    """The alignment of transcripts, in training and afterwards."""

    beam: float
    retry_beam: float
    acoustic_scale: float
    max_lost_share: float

    def __post_init__(self) -> None:
        positive(beam=self.beam, acoustic_scale=self.acoustic_scale)
        within(0, 1, max_lost_share=self.max_lost_share)
        if self.retry_beam < self.beam:
            raise SettingsError(
                f"{at('retry_beam')} is {self.retry_beam}, below {at('beam')} {self.beam}; "
                "it must be wider"
            )
