"""Training of networks: conf/optim."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated

from asr_train.schema.fields import LEFT_OUT, SettingsError, at
from asr_train.schema.limits import Checked, Count, Natural, NotNegative, Positive, Share, between

PositiveShare = Annotated[float, between(1e-6, 1)]
Epochs = Annotated[float, between(1e-4, 1e4)]
Part = tuple[float, float, int, int | None]  # first and last share, minibatch frames, most workers


class Halving(Enum):
    """When the rate becomes lower."""

    each_epoch = "each_epoch"  # after every epoch from the last of `hold_epochs` on
    newbob = "newbob"  # after `hold_epochs`, each epoch from the first with too little gain
    listed = "listed"  # it is divided by `divisors`, one per epoch


class Precision(Enum):
    """Of the products of a network's forward and backward pass."""

    fp32 = "fp32"
    tf32 = "tf32"  # on a GPU; elsewhere as fp32
    bf16 = "bf16"  # by torch.autocast


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
class AdagradSettings(Checked):
    """Normalization of gradients; see `comm.optimizer`."""

    place: AdagradPlace
    window_frames: Positive
    floor: Share


@dataclass(kw_only=True, slots=True)
class PhaseSettings(Checked):
    """A first part of training with other minibatches."""

    until: Positive
    minibatch_frames: Count
    workers: Count | None = None


@dataclass(kw_only=True, slots=True)
class PretrainSettings(Checked):
    """Training by a single worker before the run, on a part of TRAIN; see `train.pretrain`."""

    share: PositiveShare
    epochs: Count
    layer_by_layer: bool
    rate: Positive | None = None
    minibatch_frames: Count | None = None


@dataclass(kw_only=True, slots=True)
class AutoMinibatchSettings(Checked):
    """The choice of the minibatch size by trial; see `train.control`."""

    every: Epochs
    trial: PositiveShare
    factors: list[float]
    tolerance: NotNegative
    least: Count
    most: Count

    def check(self) -> None:
        if self.least > self.most:
            raise SettingsError(f"{at('least')} is {self.least}, above {at('most')} {self.most}")
        if 1.0 not in self.factors or min(self.factors) <= 0:
            raise SettingsError(
                f"{at('factors')} is {self.factors}; it needs 1.0, the size as it is, and positive "
                "numbers beside it"
            )

    def begin(self, block: int) -> float:
        """Return the epochs before a block; it begins with an epoch if that is close."""
        epochs = block * self.every
        return round(epochs) if abs(epochs - round(epochs)) < 0.1 * self.every else epochs

    def block(self, epochs: float) -> int:
        """Return the block after so many epochs, from 0."""
        near = math.floor(epochs / self.every) + 1
        return next(b for b in range(near, -1, -1) if self.begin(b) <= epochs + 1e-9)


@dataclass(kw_only=True, slots=True)
class AutoRateSettings(Checked):
    """The control of the rate by held-out frame accuracy; see `train.control`."""

    every: Epochs
    gain: NotNegative


@dataclass(kw_only=True, slots=True)
class SpecAugmentSettings(Checked):
    """Masks of training samples; see `shards.masks`."""

    freq_masks: Natural
    freq_width: Count
    time_masks: Natural
    time_width: Count
    time_share: Share


@dataclass(kw_only=True, slots=True)
class OptimSettings(Checked):
    """SGD on gradients summed over the frames of a minibatch, so that `rate` is per frame."""

    rate: Positive
    momentum: Annotated[float, between(0, 0.999)]
    minibatch_frames: Count
    epochs: Count
    halving: Halving
    hold_epochs: Natural
    newbob_gain: Share
    pool_frames: int
    checkpoint_steps: Count
    log_steps: Count
    keep_checkpoints: Count
    seed: Annotated[int, between(0, 2**63 - 1)]
    min_rate: float = 0.0
    max_norm: Positive | None = None
    scaling: Scaling = Scaling.sum
    warmup_epochs: Annotated[float, between(0, 1e6)] = 0.0
    warmup_from: Annotated[float, between(1e-9, 1)] | None = None
    phases: list[PhaseSettings] = field(default_factory=list)
    pretrain: PretrainSettings | None = None
    adagrad: AdagradSettings | None = None
    auto_minibatch: AutoMinibatchSettings | None = None
    auto_rate: AutoRateSettings | None = None
    divisors: list[Positive] = field(default_factory=list)
    share: PositiveShare = 1.0
    keep_epochs: bool = False
    precision: Precision = field(default=Precision.fp32, metadata={LEFT_OUT: True})
    specaugment: SpecAugmentSettings | None = field(default=None, metadata={LEFT_OUT: True})

    def check(self) -> None:
        if self.min_rate < 0 or self.min_rate > self.rate:
            raise SettingsError(
                f"{at('min_rate')} is {self.min_rate}; it must lie in [0, {at('rate')} {self.rate}]"
            )
        if self.min_rate > 0 and self.halving is Halving.listed and self.auto_rate is None:
            raise SettingsError(
                f"{at('min_rate')} is {self.min_rate}, but with {at('halving')}=listed rates are "
                "given; leave it out"
            )
        if (self.halving is Halving.listed) != bool(self.divisors):
            raise SettingsError(
                f"{at('divisors')} is {self.divisors} and {at('halving')} is {self.halving.value}; "
                "a list of divisors, one per epoch, belongs to listed and to nothing else"
            )
        if self.warmup_from is not None and self.warmup_epochs == 0:
            raise SettingsError(
                f"{at('warmup_from')} is {self.warmup_from}, but has no effect, as "
                f"{at('warmup_epochs')} is 0; set that above 0, or leave warmup_from null"
            )
        ends = [phase.until for phase in self.phases]
        if ends != sorted(set(ends)):
            raise SettingsError(f"{at('phases')} end at {ends} epochs; each must end later")
        for name, size in self.sizes():
            if size > self.pool_frames:
                raise SettingsError(
                    f"{at(name)} has minibatches of {size} frames, above {at('pool_frames')} "
                    f"{self.pool_frames}; a pool holds many minibatches"
                )
        auto = self.auto_minibatch
        if auto is not None and ends and ends[-1] > auto.every:
            raise SettingsError(
                f"{at('phases')} end at {ends[-1]} epochs, after the first choice of "
                f"{at('auto_minibatch')} at {auto.every}; let them end there, or before"
            )

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the sizes of minibatches, in outputs, each after the name of its setting."""
        yield "minibatch_frames", self.minibatch_frames
        yield from (("phases", phase.minibatch_frames) for phase in self.phases)
        if self.pretrain is not None and self.pretrain.minibatch_frames is not None:
            yield "pretrain", self.pretrain.minibatch_frames

    def at_one_rate(self, rate: float, minibatch_frames: int, epochs: int) -> "OptimSettings":
        """Return the settings of a training at a constant rate, without phases or controllers."""
        return replace(
            self,
            rate=rate,
            minibatch_frames=minibatch_frames,
            epochs=epochs,
            halving=Halving.each_epoch,
            divisors=[],
            hold_epochs=epochs,
            min_rate=0.0,
            phases=[],
            warmup_from=None,
            pretrain=None,
            auto_minibatch=None,
            auto_rate=None,
        )

    def listed_rate(self, epoch: int) -> float:
        """Return the rate of an epoch (from 0) by `divisors`, the last of which stays."""
        return self.rate / self.divisors[min(epoch, len(self.divisors) - 1)]

    def parts(self, epoch: int, chosen: Sequence[int] = ()) -> Iterator[Part]:
        """Yield the parts of an epoch.

        Args:
            chosen: sizes by choice of `auto_minibatch`; later parts have the last one's.
        """
        first = 0.0
        for phase in self.phases:
            last = min(1.0, phase.until - epoch)
            if last > first:
                yield first, last, phase.minibatch_frames, phase.workers
                first = last
        if first < 1:
            yield from self._blocks(epoch, first, chosen)

    def _blocks(self, epoch: int, first: float, chosen: Sequence[int]) -> Iterator[Part]:
        """Cut the rest of an epoch where a minibatch size is chosen."""
        if self.auto_minibatch is None:
            yield first, 1.0, self.minibatch_frames, None
            return
        sizes = [self.minibatch_frames, *chosen]
        while first < 1:
            block = self.auto_minibatch.block(epoch + first)
            last = min(1.0, self.auto_minibatch.begin(block + 1) - epoch)
            yield first, last, sizes[min(block, len(chosen))], None
            first = last
