"""Exchange between workers: conf/comm."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

from asr_train.facts import Method
from asr_train.schema.fields import LEFT_OUT, SettingsError, at
from asr_train.schema.limits import Checked, Count, Natural, Positive, between

Spread = Annotated[float, between(0, 10)]


class Wire(Enum):
    """The type to which dense gradients are rounded before they are sent."""

    fp32 = "fp32"
    bf16 = "bf16"


class Codec(Enum):
    """The encoding of a message's elements; see `comm.codec`."""

    packed32 = "packed32"  # 32 bits each, as in the paper
    tile16 = "tile16"  # 16 bits each
    rice = "rice"  # about log2 of the gap, plus 2.5 bits


class Capacity(Enum):
    """The limit on the lengths of a step's messages."""

    fixed = "fixed"  # estimated from the last step: one collective; what does not fit is kept
    exact = "exact"  # no limit: the lengths are exchanged first


class Virtual(Enum):
    """The computation of the gradients of several workers in one process."""

    exact = "exact"  # one by one: the bits are those of a process for each
    batched = "batched"  # together: much faster, last bits may differ


class BlockForm(Enum):
    """The update of the model from the average of the workers' weights; see `comm.blocks`."""

    classical = "classical"  # block momentum
    chen_huo = "chen_huo"  # Nesterov: workers start ahead of the model
    printed = "printed"  # equation (4) of Ladkat et al. (2019) as printed


class BlockVelocity(Enum):
    """The treatment of a worker's momentum (optim.momentum) at the end of a block."""

    reset = "reset"
    keep = "keep"


@dataclass(kw_only=True, slots=True)
class AllreduceSettings:
    wire: Wire


@dataclass(kw_only=True, slots=True)
class AdaptiveSettings(Checked):
    """A threshold that follows the share of elements that exceed it; see `comm.gtc`.

    Attributes:
        density: target share of the parameters to send, per worker and step.
        band: the threshold is unchanged while the share is from density / band to density * band.
        factor: by which the threshold is multiplied in a step if the share is above, and divided if
            it is below.
    """

    density: Annotated[float, between(1e-9, 1)]
    band: Annotated[float, between(1, 1e6)]
    factor: Annotated[float, between(1.0001, 10)]


@dataclass(kw_only=True, slots=True)
class GtcSettings(Checked):
    """Gradient threshold compression (Strom, 2015); see `comm.gtc`.

    Attributes:
        threshold: tau, in units of the gradient that is exchanged; if `adaptive`, the initial one.
        codec: the encoding of indices and signs.
        capacity: exact: messages have the length that they need, which is exchanged first. fixed:
            all have one length; elements that do not fit are sent later.
        adaptive: None: the threshold is constant.
    """

    threshold: Annotated[float, between(1e-30, 1e30)]
    codec: Codec
    capacity: Capacity
    adaptive: AdaptiveSettings | None = None

    def check(self) -> None:
        if self.threshold is None:  # by a script; of files, the types are checked
            raise SettingsError(f"{at('threshold')} is None; it must be a number")
        self.codec, self.capacity = Codec(self.codec), Capacity(self.capacity)  # or their names
        if isinstance(self.adaptive, dict):
            self.adaptive = AdaptiveSettings(**self.adaptive)


@dataclass(kw_only=True, slots=True)
class OneBitSettings:
    """1-bit SGD; see `comm.onebit`."""

    error_feedback: bool
    double_buffering: bool
    delayed_trials: bool = False


@dataclass(kw_only=True, slots=True)
class VirtualTimeSettings(Checked):
    """Simulated durations, with all workers in one process."""

    step_seconds: Positive
    speed_spread: Spread
    step_spread: Spread
    slowdown: Positive
    delay_seconds: Annotated[float, between(0, 1e6)]
    seed: Annotated[int, between(0, 2**63)]


@dataclass(kw_only=True, slots=True)
class AsynchronousSettings(Checked):
    """Workers that do not wait for each other; see `comm.peers`."""

    staleness: Annotated[int, between(0, 10**6)]
    virtual_time: VirtualTimeSettings


@dataclass(kw_only=True, slots=True)
class ModelAveragingSettings(Checked):
    block_steps: Count
    velocity: BlockVelocity


@dataclass(kw_only=True, slots=True)
class BmufSettings(Checked):
    block_steps: Count
    form: BlockForm
    zeta: Positive
    c: Positive
    eta: Annotated[float, between(0, 0.9999)] | None
    velocity: BlockVelocity

    def momentum(self, models: int) -> float:
        """Return eta for this number of averaged models."""
        if self.eta is not None:
            return self.eta
        eta = 1 - self.zeta / (self.c * models)
        if eta < 0:
            raise SettingsError(
                f"comm.bmuf: zeta {self.zeta} and c {self.c} give {models} models a block momentum "
                f"of {eta:g}, which must not be negative; lower zeta, raise c or set eta"
            )
        return eta


TIMEOUTS = 1e-3, 1e6  # seconds; sockets take no more than 2**31 ms
MOST_CHOSEN = 8  # workers per group, if the number is not set


@dataclass(kw_only=True, slots=True)
class CommSettings(Checked):
    """A method, and the settings of its components."""

    method: Method
    workers: Count | None = None
    # Left out of files at its default, so that runs without it stay those of earlier versions
    stripes: Count = field(default=1, metadata={LEFT_OUT: True})
    virtual: Virtual = Virtual.exact
    # Maximum wait for another process
    timeout_seconds: Annotated[float, between(*TIMEOUTS)] = 300.0
    check_steps: Count = 1000  # interval at which replicas are compared; steps
    allreduce: AllreduceSettings | None = None
    model_averaging: ModelAveragingSettings | None = None
    gtc: GtcSettings | None = None
    onebit: OneBitSettings | None = None
    bmuf: BmufSettings | None = None
    group_size: Natural | None = None  # 0: chosen automatically
    asynchronous: AsynchronousSettings | None = None

    def check(self) -> None:
        for name in self.method.needs:
            if getattr(self, name) is None:
                raise SettingsError(
                    f"{at(name)} is missing; {at('method')}={self.method.value} needs it"
                )
        is_fixed = self.gtc is not None and self.gtc.capacity is Capacity.fixed
        if self.method.traffic.is_asynchronous and is_fixed:
            raise SettingsError(
                f"{at('gtc.capacity')} is fixed, but messages of {at('method')}="
                f"{self.method.value} have no fixed length; set it to exact"
            )

    def used(self, group: str) -> Any:
        """Return a group's settings; None if the method does not need them."""
        return getattr(self, group) if group in self.method.needs else None

    @property
    def threshold(self) -> float | None:
        """GTC's, if the method sends its messages."""
        gtc: GtcSettings | None = self.used("gtc")
        return None if gtc is None else gtc.threshold

    @property
    def block_steps(self) -> int | None:
        """Steps after which models are combined; None if they never are."""
        blocks: ModelAveragingSettings | BmufSettings | None
        blocks = self.used("model_averaging") or self.used("bmuf")
        return None if blocks is None else blocks.block_steps

    def halves(self, workers: int) -> int:
        """Return into how many steps a minibatch is cut: 2 with double buffering, else 1."""
        own: OneBitSettings | None = self.used("onebit")
        return 2 if own is not None and own.double_buffering and workers > 1 else 1

    def group_of(self, workers: int) -> int:
        """Return the number of workers that share a model in bmuf_gtc.

        If it is 0 in the settings, it is the largest divisor of the workers that leaves two groups
        and is at most 8, as in the paper (Ladkat et al., 2019); 1, which is BMUF, for a prime
        number.

        Raises:
            SettingsError: if the group size in the settings does not divide the workers.
        """
        assert self.group_size is not None
        sizes = [size for size in range(1, workers + 1) if workers % size == 0]
        if self.group_size == 0:
            return max(
                size for size in sizes if size <= MOST_CHOSEN and size <= max(1, workers // 2)
            )
        if self.group_size not in sizes:
            raise SettingsError(
                f"{workers} workers do not make groups of comm.group_size={self.group_size}; "
                f"choose one of {', '.join(map(str, sizes))}, or 0 to choose it automatically"
            )
        return self.group_size
