"""GTC: every step, the elements of gradient plus residual that exceed a threshold.

One model for all workers, which are synchronous (Strom, 2015).
"""

from collections.abc import Iterable

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.gtc import Gtc
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.reducers import Alone, Reducer


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> ExchangeMethod:
    """A lone worker uses its gradient as it is: plain SGD."""
    return ExchangeMethod(exchange, [exchange], [gtc_reducer(settings, exchange, size)])


def gtc_reducer(
    settings: schema.CommSettings, group: Exchange, size: int, others: Iterable[Reducer] = ()
) -> Reducer:
    """Return the reducer of a group that shares a model; `others` take their steps in turn."""
    assert settings.gtc is not None
    if len(group) == 1:
        return Alone()
    return Gtc(group, size, settings.gtc, is_direct=True, others=others)
