"""A run's settings and the size of its data -> the **ratios** that a paper's effects depend on.

A row that is scaled down shows what the paper shows only if these ratios are kept, not if its sizes
are. The same functions are applied to the paper's settings with the paper's data and to ours.
Knows nothing of results.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from asr_train.schema import Halving, OptimSettings, RunSettings, SettingsError

MOST_OFF = 10.0  # times; a ratio that differs more needs a reason


RATIOS = {  # their headings
    "step_share": "frames per step / epoch",
    "updates": "steps of the run",
    "threshold_per_frame": "threshold / minibatch frames",
    "quanta": "elements sent per parameter, worker and epoch",  # measured
    "update_size": "rate x frames per update",
    "largest_move": "rate x threshold x workers",
    "blocks": "blocks per epoch",
    "pretraining": "pre-training / epoch",
    "last_rate": "last / first rate",
    "growth": "last / first minibatch",
    "averaged": "steps in AdaGrad's time constant",
}


def ratios(run: RunSettings, epoch_frames: float) -> dict[str, float]:
    """Return those of RATIOS that the run's method has, and that no controller chooses, by name.

    Args:
        epoch_frames: frames (outputs of the network) per epoch.
    """
    optim, comm = run.optim, run.comm
    workers, traffic = comm.workers or 1, comm.method.traffic
    added_up = 1 if traffic.has_blocks else workers  # workers whose gradients are added up
    if traffic.in_groups:
        added_up = comm.group_of(workers)
    minibatch_frames = optim.minibatch_frames / comm.halves(workers)  # after all phases
    step_frames = workers * minibatch_frames
    # The scaled rate per frame in the first whole epoch after the phases
    first = math.ceil(optim.phases[-1].until) if optim.phases else 0
    rate = rate_in(optim, first) * optim.scaling.factor(added_up)
    found = {"step_share": step_frames / epoch_frames}
    found["update_size"] = rate * added_up * minibatch_frames
    if (tau := comm.threshold) is not None:
        found["threshold_per_frame"] = tau / minibatch_frames
        found["largest_move"] = rate * tau * added_up
    if comm.block_steps is not None:
        found["blocks"] = epoch_frames / step_frames / comm.block_steps
    if optim.pretrain is not None:
        found["pretraining"] = optim.pretrain.share * optim.pretrain.epochs
    if optim.adagrad is not None:
        found["averaged"] = optim.adagrad.window_frames / step_frames
    if optim.auto_rate is None:
        newbob = optim.halving is Halving.newbob
        last = optim.min_rate if newbob else rate_in(optim, optim.epochs - 1)
        found["last_rate"] = last / optim.rate
    if optim.auto_minibatch is None:
        found["updates"] = 0.0
        for epoch in range(optim.epochs):
            for start, end, frames, most in optim.parts(epoch):
                reading = min(workers, most or workers)
                step = reading * frames / comm.halves(reading)
                found.setdefault("growth", step_frames / step)
                found["updates"] += (end - start) * epoch_frames / step
    return {name: found[name] for name in RATIOS if name in found}


def rate_in(optim: OptimSettings, epoch: int) -> float:
    """Return the rate of an epoch (from 0) before scaling; of newbob that before it halves."""
    if optim.halving is Halving.listed:
        return optim.listed_rate(epoch)
    halvings = max(0, epoch + 1 - max(1, optim.hold_epochs))  # the first epoch is always held
    return optim.rate * (0.5**halvings if optim.halving is Halving.each_epoch else 1.0)


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
        f"row {label}: {RATIOS[name]} is {both['ours']:.3g}, where the paper has "
        f"{both['paper']:.3g}: {times:.0f} times off, which changes what the row shows; change the "
        f"scale's settings, or state the reason as unlike.{name} of the scale or row"
    )


def off(paper: float, ours: float) -> float:
    """Return how many times one is the other, at least 1."""
    low, high = sorted([paper, ours])
    return high / low if low > 0 else (1.0 if high == low else math.inf)
