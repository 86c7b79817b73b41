"""All-reduce: every step, the sum of all workers' gradients. One model for all.

W workers with minibatches of n frames compute what one worker does with W * n frames.
"""

import torch

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.reducers import Alone, Dense

WIRE = {schema.Wire.fp32: torch.float32, schema.Wire.bf16: torch.bfloat16}


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> ExchangeMethod:
    """A lone worker sends nothing, and its gradient is not rounded."""
    assert settings.allreduce is not None
    wire = WIRE[settings.allreduce.wire]
    reducer = Alone() if len(exchange) == 1 else Dense(exchange, size, wire)
    return ExchangeMethod(exchange, [exchange], [reducer])
