"""BMUF: workers train alone; every few steps their mean weights move the model, with momentum.

Chen and Huo (2016); as one tier of Ladkat et al. (2019). See `comm.blocks`.
"""

from asr_train import schema
from asr_train.comm.blocks import MomentumBlocks
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.reducers import Alone


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> ExchangeMethod:
    """One model per worker."""
    groups = exchange.groups(1)
    blocks = momentum_blocks(settings, exchange, group_size=1)
    return ExchangeMethod(exchange, groups, [Alone() for _ in groups], blocks)


def momentum_blocks(
    settings: schema.CommSettings, exchange: Exchange, group_size: int
) -> MomentumBlocks | None:
    """Return block momentum across groups; None for a single group."""
    assert settings.bmuf is not None  # as schema checks
    leaders = exchange.members[::group_size]
    return MomentumBlocks(exchange, leaders, settings.bmuf) if len(leaders) > 1 else None
