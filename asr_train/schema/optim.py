"""Training of networks: conf/optim."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from asr_train.schema.fields import SettingsError, at, positive, within


class Halving(Enum):
    """When the rate is halved."""

    each_epoch = "each_epoch"  # after every epoch from the last of `hold_epochs` on
    newbob = "newbob"  # after `hold_epochs`, each epoch from the first with too little gain


class Scaling(Enum):
    """The scaling of the rate for the sum of n workers' gradients; see `train.schedule`."""

    sum = "sum"  # none: an update is n times as large (Strom, 2015)
    sqrt = "sqrt"  # divided by the root of n (Krizhevsky, 2014)
    mean = "mean"  # divided by n: an update is as large as a single worker's

    def factor(self, n: int) -> float:
        """Return the factor of the rate where n gradients are added up."""
        return {Scaling.sum: 1.0, Scaling.sqrt: 1 / math.sqrt(n), Scaling.mean: 1 / n}[self]


class AdagradPlace(Enum):
    """The gradient that AdaGrad normalizes (Seide et al., 2014, section 4)."""

    raw = "raw"  # a single worker's, before momentum
    smoothed = "smoothed"  # after momentum
    partial = "partial"  # each worker's, before it is sent; a single worker's as `raw`
    aggregate = "aggregate"  # the sum over workers, before momentum; a single worker's as `raw`


@dataclass(kw_only=True, slots=True)
class AdagradSettings:
    """Normalization of gradients; see `comm.optimizer`."""

    place: AdagradPlace
    window_frames: float
    floor: float

    def __post_init__(self) -> None:
        positive(window_frames=self.window_frames)
        within(0, 1, floor=self.floor)


@dataclass(kw_only=True, slots=True)
class PhaseSettings:
    """A first part of training with other minibatches."""

    until: float
    minibatch_frames: int
    workers: int | None = None

    def __post_init__(self) -> None:
        positive(until=self.until, minibatch_frames=self.minibatch_frames)
        if self.workers is not None:
            positive(workers=self.workers)


@dataclass(kw_only=True, slots=True)
class PretrainSettings:
    """Training by a single worker before the run, on a part of TRAIN; see `train.pretrain`."""

    share: float
    epochs: int
    layer_by_layer: bool
    rate: float | None = None
    minibatch_frames: int | None = None

    def __post_init__(self) -> None:
        within(1e-6, 1, share=self.share)
        positive(epochs=self.epochs)
        for name in ("rate", "minibatch_frames"):
            if (value := getattr(self, name)) is not None:
                positive(**{name: value})


@dataclass(kw_only=True, slots=True)
class OptimSettings:
    """SGD on gradients summed over the frames of a minibatch, so that `rate` is per frame."""

    rate: float
    momentum: float
    minibatch_frames: int
    epochs: int
    halving: Halving
    hold_epochs: int
    newbob_gain: float
    pool_frames: int
    checkpoint_steps: int
    log_steps: int
    keep_checkpoints: int
    seed: int
    min_rate: float = 0.0
    max_norm: float | None = None
    scaling: Scaling = Scaling.sum
    warmup_epochs: float = 0.0
    warmup_from: float | None = None
    phases: list[PhaseSettings] = field(default_factory=list)
    pretrain: PretrainSettings | None = None
    adagrad: AdagradSettings | None = None
    share: float = 1.0
    keep_epochs: bool = False

    def __post_init__(self) -> None:
        positive(rate=self.rate, minibatch_frames=self.minibatch_frames)
        if self.min_rate < 0 or self.min_rate > self.rate:
            raise SettingsError(
                f"{at('min_rate')} is {self.min_rate}; it must lie in [0, {at('rate')} {self.rate}]"
            )
        within(0, 1e6, warmup_epochs=self.warmup_epochs)
        if self.warmup_from is not None:
            within(1e-9, 1, warmup_from=self.warmup_from)
        ends = [phase.until for phase in self.phases]
        if ends != sorted(set(ends)):
            raise SettingsError(f"{at('phases')} end at {ends} epochs; each must end later")
        for phase in self.phases:
            if phase.minibatch_frames > self.pool_frames:
                raise SettingsError(
                    f"{at('phases')} has minibatches of {phase.minibatch_frames} frames, above "
                    f"{at('pool_frames')} {self.pool_frames}; a pool holds many minibatches"
                )
        if self.max_norm is not None:
            positive(max_norm=self.max_norm)
        positive(epochs=self.epochs, checkpoint_steps=self.checkpoint_steps)
        positive(log_steps=self.log_steps, keep_checkpoints=self.keep_checkpoints)
        within(0, 0.999, momentum=self.momentum)
        within(1e-6, 1, share=self.share)
        if self.pool_frames < self.minibatch_frames:
            raise SettingsError(
                f"{at('pool_frames')} is {self.pool_frames}, below "
                f"{at('minibatch_frames')} {self.minibatch_frames}; a pool holds many minibatches"
            )

    def parts(self, epoch: int) -> Iterator[tuple[float, float, int, int | None]]:
        """Yield the parts of an epoch: first and last share, minibatch frames, most workers."""
        first = 0.0
        for phase in self.phases:
            last = min(1.0, phase.until - epoch)
            if last > first:
                yield first, last, phase.minibatch_frames, phase.workers
                first = last
        if first < 1:
            yield first, 1.0, self.minibatch_frames, None
