"""1-bit SGD: every step, one bit per element of gradient plus residual, and two means per column.

One model for all workers, each of which owns a part of its optimizer (Seide et al., 2014).
"""

import contextlib
from collections.abc import Iterator

from torch import Tensor

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.onebit import OneBitSgd
from asr_train.comm.optimizer import Momentum, Replica
from asr_train.comm.reducers import Update
from asr_train.schema import Virtual


class OneBitMethod(ExchangeMethod):
    """A lone worker uses its gradient as it is: plain SGD."""

    def __init__(self, settings: schema.CommSettings, exchange: Exchange, size: int) -> None:
        assert settings.onebit is not None  # as schema checks
        is_direct = settings.virtual is Virtual.batched
        self.owners = OneBitSgd(exchange, size, settings.onebit, is_direct)
        super().__init__(exchange, [exchange], [self.owners])
        self.halves = settings.halves(len(exchange))
        self._delays_trials = settings.onebit.delayed_trials

    def _replica(
        self, weights_P: Tensor, momentum: float, adagrad: schema.AdagradSettings | None
    ) -> Replica:
        self.owners.begin(self.shapes, momentum, adagrad, self.total)
        return Replica(weights_P, Momentum(weights_P, 0.0))

    @contextlib.contextmanager
    def undelayed(self) -> Iterator[None]:
        if self._delays_trials:
            yield
            return
        before = self.halves, self.owners.delays
        self.halves, self.owners.delays = 1, False
        yield
        self.halves, self.owners.delays = before

    def apply(self, group: int, update: Update, rate: float) -> None:
        self.owners.rate = rate
        super().apply(group, update, rate)

    def end_epoch(self) -> None:
        """Apply the step that double buffering still holds, at the rate of the last one."""
        late_P = self.owners.take_late()
        if late_P is not None:
            self.replicas[0].weights_P.add_(late_P, alpha=-self.owners.rate)


build = OneBitMethod
