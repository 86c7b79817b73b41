"""Plain SGD: one worker, whose gradients and weights stay as they are."""

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.reducers import Alone


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> ExchangeMethod:
    """Raises ValueError if there are several workers."""
    if len(exchange) != 1:
        raise ValueError(
            f"comm.method=sgd is for one worker, but there are {len(exchange)}; start one, or "
            "choose another method"
        )
    return ExchangeMethod(exchange, [exchange], [Alone()])
