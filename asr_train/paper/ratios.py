"""A run's settings and the size of its data -> the **ratios** that a paper's effects depend on.

A row that is scaled down shows what the paper shows only if these ratios are kept, not if its sizes
are. The same functions are applied to the paper's settings with the paper's data and to ours.
Knows nothing of results.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asr_train.schema import Halving, OptimSettings, RunSettings, SettingsError

MOST_OFF = 10.0  # times; a ratio that differs more needs a reason


@dataclass(frozen=True, slots=True)
class _Shape:
    """A run, with what several ratios need.

    Attributes:
        epoch_frames: frames (outputs of the network) per epoch.
        added_up: workers whose gradients are added up.
    """

    run: RunSettings
    epoch_frames: float
    workers: int
    added_up: int

    @property
    def minibatch_frames(self) -> float:
        """The frames of a worker's step, after the phases of the beginning."""
        return self.run.optim.minibatch_frames / self.run.comm.halves(self.workers)

    @property
    def step_frames(self) -> float:
        """The frames of a step of all workers."""
        return self.workers * self.minibatch_frames

    @property
    def rate(self) -> float:
        """The scaled rate per frame in the first whole epoch after the phases."""
        optim = self.run.optim
        first = math.ceil(optim.phases[-1].until) if optim.phases else 0
        return rate_in(optim, first) * optim.scaling.factor(self.added_up)


def _shape(run: RunSettings, epoch_frames: float) -> _Shape:
    traffic, workers = run.comm.method.traffic, run.comm.workers or 1
    added_up = 1 if traffic.has_blocks else workers
    if traffic.in_groups:
        added_up = run.comm.group_of(workers)
    return _Shape(run, epoch_frames, workers, added_up)


def rate_in(optim: OptimSettings, epoch: int) -> float:
    """Return the rate of an epoch (from 0) before scaling; of newbob that before it halves."""
    if optim.halving is Halving.listed:
        return optim.listed_rate(epoch)
    halvings = max(0, epoch + 1 - max(1, optim.hold_epochs))  # the first epoch is always held
    return optim.rate * (0.5**halvings if optim.halving is Halving.each_epoch else 1.0)


def _updates(shape: _Shape) -> float | None:
    if shape.run.optim.auto_minibatch is not None:
        return None
    steps = 0.0
    for epoch in range(shape.run.optim.epochs):
        for first, last, frames, most in shape.run.optim.parts(epoch):
            workers = min(shape.workers, most or shape.workers)
            step_frames = workers * frames / shape.run.comm.halves(workers)
            steps += (last - first) * shape.epoch_frames / step_frames
    return steps


def _pretraining(shape: _Shape) -> float | None:
    pretrain = shape.run.optim.pretrain
    return None if pretrain is None else pretrain.share * pretrain.epochs


def _last_rate(shape: _Shape) -> float | None:
    optim = shape.run.optim
    if optim.auto_rate is not None:
        return None
    if optim.halving is Halving.newbob:
        return optim.min_rate / optim.rate
    return rate_in(optim, optim.epochs - 1) / optim.rate


def _growth(shape: _Shape) -> float | None:
    """Of a step of all workers: the last one's frames over the first one's."""
    run = shape.run
    if run.optim.auto_minibatch is not None:
        return None
    _, _, frames, most = next(iter(run.optim.parts(0)))
    workers = min(shape.workers, most or shape.workers)
    return shape.step_frames / (workers * frames / run.comm.halves(workers))


def _averaged(shape: _Shape) -> float | None:
    adagrad = shape.run.optim.adagrad
    return None if adagrad is None else adagrad.window_frames / shape.step_frames


def _blocks(shape: _Shape) -> float | None:
    steps = shape.run.comm.block_steps
    return None if steps is None else shape.epoch_frames / shape.step_frames / steps


def _per_frame(shape: _Shape) -> float | None:
    tau = shape.run.comm.threshold
    return None if tau is None else tau / shape.minibatch_frames


def _cap(shape: _Shape) -> float | None:
    tau = shape.run.comm.threshold
    return None if tau is None else shape.rate * tau * shape.added_up


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio: its heading, and its value for a run; None if none, or a controller chooses it."""

    words: str
    of: Callable[[_Shape], float | None]


RATIOS = {
    "step_share": Ratio("frames per step / epoch", lambda s: s.step_frames / s.epoch_frames),
    "updates": Ratio("steps of the run", _updates),
    "threshold_per_frame": Ratio("threshold / minibatch frames", _per_frame),
    "quanta": Ratio("elements sent per parameter, worker and epoch", lambda s: None),  # measured
    "update_size": Ratio(
        "rate x frames per update", lambda s: s.rate * s.added_up * s.minibatch_frames
    ),
    "largest_move": Ratio("rate x threshold x workers", _cap),
    "blocks": Ratio("blocks per epoch", _blocks),
    "pretraining": Ratio("pre-training / epoch", _pretraining),
    "last_rate": Ratio("last / first rate", _last_rate),
    "growth": Ratio("last / first minibatch", _growth),
    "averaged": Ratio("steps in AdaGrad's time constant", _averaged),
}


def ratios(run: RunSettings, epoch_frames: float) -> dict[str, float]:
    """Return those of RATIOS that the run's method has, by name."""
    shape = _shape(run, epoch_frames)
    found = {name: ratio.of(shape) for name, ratio in RATIOS.items()}
    return {name: value for name, value in found.items() if value is not None}


def compared(
    label: str,
    names: Sequence[str],
    paper: Mapping[str, float],
    ours: Mapping[str, float],
    reasons: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """Return both values of each named ratio, and the reason stated for a difference.

    Raises:
        SettingsError: if a ratio is more than MOST_OFF times off without a reason; says what to do.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        if name not in paper or name not in ours:
            continue
        found[name] = {"paper": paper[name], "ours": ours[name], "why": reasons.get(name)}
        if missing := unexplained(label, name, found[name]):
            raise SettingsError(missing)
    return found


def unexplained(label: str, name: str, both: Mapping[str, Any]) -> str | None:
    """Return what to do about a row's ratio that is more than MOST_OFF times off, else None.

    Args:
        both: the values and the reason, as `compared` returns them; with a reason, all is well.
    """
    times = off(both["paper"], both["ours"])
    if times <= MOST_OFF or both["why"] is not None:
        return None
    return (
        f"row {label}: {RATIOS[name].words} is {both['ours']:.3g}, where the paper has "
        f"{both['paper']:.3g}: {times:.0f} times off, which changes what the row shows; change the "
        f"scale's settings, or state the reason as unlike.{name} of the scale or row"
    )


def off(paper: float, ours: float) -> float:
    """Return how many times one is the other, at least 1."""
    low, high = sorted([paper, ours])
    return high / low if low > 0 else (1.0 if high == low else math.inf)
