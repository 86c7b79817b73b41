"""The learning rate, by epochs and DEV losses so far; knows nothing of networks or files.

Gradients are sums over frames and over workers, so `optim.rate` is per frame, and n workers' update
at the same rate is n times as large: the linear scaling rule of Goyal et al. (2017), which holds up
to some size and then diverges. Two settings prevent that in the first epochs:
    optim.scaling         sum: the rate as it is. sqrt: divided by the root of n (Krizhevsky, 2014:
                          the variance of an update stays the same). mean: divided by n.
    optim.warmup_epochs   the rate rises linearly, from 1 / n of it, which is a single worker's
                          update, to all of it (Goyal et al., 2017, section 2.2).
n is the number of workers whose gradients are added up: all for gtc and allreduce, a group for
bmuf_gtc, one for bmuf and model_averaging, whose workers each take their own steps.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from asr_train.schema import Halving, OptimSettings

# rate * frames per update above which training with added gradients is likely to diverge. On
# digits, 8 workers of 256 frames, DEV accuracy of dnn_4x256 after an epoch (one worker: 77.3 %):
#   allreduce   2.0 (mean) 71.6 %   5.8 (sqrt) 28.1 %, with warm-up over the epoch 73.1 %
#   gtc, tau 4  2.0 70.2 %   5.8 75.5 %   16.4 (sum) 30.8 %, with warm-up over half of it 33.2 %
# After warm-up, allreduce of 5.8 diverges in epoch 2 with one seed of two, as does one worker
# with minibatches of 2,048 frames; gtc, whose updates are bounded by the threshold, does not.
MOST_AN_UPDATE, MOST_BOUNDED = 5.0, 10.0


@dataclass(slots=True)
class _State:
    rate: float  # of the current epoch, per frame; before scaling and warm-up
    epochs: int = 0  # finished
    is_halving: bool = False
    last_loss: float | None = None  # of DEV
    is_finished: bool = False


class Schedule:
    """`optim.rate` for `hold_epochs` epochs (at least the first), then halved.

    each_epoch: after every epoch from then on (Strom, 2015).
    newbob: once DEV's loss fell by less than the share `newbob_gain` of its previous value, and
    after every epoch from then on. With a `min_rate`, the run is finished when the rate would fall
    below it (min-rate newbob; Ladkat et al., 2019).
    listed: instead, `optim.rate` divided by the epoch's entry of `optim.divisors`.
    With `optim.auto_rate`, epochs change nothing; `train.control` halves, down to `min_rate`.
    """

    def __init__(self, settings: OptimSettings) -> None:
        self.settings = settings
        is_listed = settings.halving is Halving.listed and settings.auto_rate is None
        self._state = _State(settings.listed_rate(0) if is_listed else settings.rate)

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left."""
        return self._state.is_finished or self._state.epochs >= self.settings.epochs

    @property
    def rate(self) -> float:
        """The rate of the current epoch, before scaling and warm-up, per frame."""
        return self._state.rate

    def halve(self) -> None:
        """Halve the rate, but not to less than `min_rate`."""
        self._state.rate = max(self._state.rate / 2, self.settings.min_rate)

    def rate_at(self, epochs: float, added_up: int) -> float:
        """Return the rate of a step of this epoch, per frame.

        Args:
            epochs: done before it.
            added_up: number of workers whose gradients are added up.
        """
        return self._state.rate * share(self.settings, epochs, added_up)

    def end_epoch(self, dev_loss: float) -> None:
        """Update the schedule by DEV's loss per frame after an epoch."""
        state, last_loss = self._state, self._state.last_loss
        state.epochs += 1
        if self.settings.halving is Halving.listed and self.settings.auto_rate is None:
            state.rate = self.settings.listed_rate(state.epochs)
        elif state.epochs >= self.settings.hold_epochs and self.settings.auto_rate is None:
            state.is_halving = (
                state.is_halving
                or self.settings.halving is Halving.each_epoch
                or (last_loss is not None and not self._helped(last_loss, dev_loss))
            )
            if state.is_halving:
                state.is_finished = state.rate / 2 < self.settings.min_rate
                state.rate /= 2
        state.last_loss = dev_loss

    def _helped(self, last_loss: float, loss: float) -> bool:
        return last_loss - loss >= self.settings.newbob_gain * last_loss  # False for a NaN

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return asdict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._state = _State(**state)


def share(settings: OptimSettings, epochs: float, added_up: int) -> float:
    """Return the share of the rate to use after so many epochs with so many gradients added up."""
    full = settings.scaling.factor(added_up)
    if epochs >= settings.warmup_epochs:
        return full
    first = settings.warmup_from if settings.warmup_from is not None else 1 / added_up
    first = min(first, full)
    return first + (full - first) * epochs / settings.warmup_epochs


def warning(
    settings: OptimSettings, added_up: int, is_bounded: bool, halves: int = 1
) -> str | None:
    """Return a warning for a run that is likely to diverge, else None.

    Args:
        added_up: number of workers whose gradients are added up.
        is_bounded: whether a threshold bounds an update.
        halves: updates of a minibatch, as `comm.method` has it.
    """
    frames = max(1, settings.minibatch_frames // halves)
    size = settings.rate * share(settings, math.inf, added_up) * frames * added_up
    most = MOST_BOUNDED if is_bounded and settings.warmup_epochs else MOST_AN_UPDATE
    if added_up == 1 or size <= most:
        return None
    return (
        f"warning: gradients are sums over {added_up} workers' minibatches of "
        f"{frames} frames, so an update at rate {settings.rate:g} (scaling "
        f"{settings.scaling.name}) counts {size:.3g} times a mean gradient; above {most:g} "
        f"(warm-up {settings.warmup_epochs:g} epochs) training often diverges. If the loss "
        "grows, set optim.scaling=mean, or lower optim.rate or optim.minibatch_frames"
    )
