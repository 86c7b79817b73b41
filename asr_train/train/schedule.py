"""The learning rate from what was seen so far; knows nothing of networks or files."""

from dataclasses import asdict, dataclass
from typing import Any

from asr_train.schema import Halving, OptimSettings


@dataclass(slots=True)
class _State:
    rate: float  # of the epoch to come, per frame
    epochs: int = 0  # finished
    is_halving: bool = False
    last_loss: float | None = None  # of DEV


class Schedule:
    """`optim.rate` for `hold_epochs` epochs (at least the first), then halved.

    each_epoch: after every epoch from then on (Strom, 2015).
    newbob: once DEV's loss fell by less than the share `newbob_gain` of what it was an epoch
    before, and after every epoch from then on.
    """

    def __init__(self, settings: OptimSettings) -> None:
        self.settings = settings
        self._state = _State(settings.rate)

    @property
    def rate(self) -> float:
        """Of the epoch that is being trained, or comes next; per frame."""
        return self._state.rate

    def end_epoch(self, dev_loss: float) -> None:
        """Take in DEV's loss in nats a frame after an epoch."""
        state, last_loss = self._state, self._state.last_loss
        state.epochs += 1
        if state.epochs >= self.settings.hold_epochs:
            state.is_halving = (
                state.is_halving
                or self.settings.halving is Halving.each_epoch
                or (last_loss is not None and not self._helped(last_loss, dev_loss))
            )
            if state.is_halving:
                state.rate /= 2
        state.last_loss = dev_loss

    def _helped(self, last_loss: float, loss: float) -> bool:
        return last_loss - loss >= self.settings.newbob_gain * last_loss  # False for a NaN

    def state_dict(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return asdict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        self._state = _State(**state)
