"""BMUF-GTC: GTC every step within groups, BMUF every few steps across them (Ladkat et al., 2019).

Groups of one are BMUF, and a single group is GTC, both bit for bit. What a worker still owes its
group at the end of a block stays in its residual for the next block.
"""

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.methods.bmuf import momentum_blocks
from asr_train.comm.methods.gtc import gtc_reducer
from asr_train.comm.reducers import Reducer


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> ExchangeMethod:
    """One model per group; raises SettingsError if the workers do not make whole groups."""
    group_size = settings.group_of(len(exchange))
    groups = exchange.groups(group_size)
    reducers: list[Reducer] = []
    for group in groups:
        reducers.append(gtc_reducer(settings, group, size, reducers))
    blocks = momentum_blocks(settings, exchange, group_size)
    notice = f"bmuf_gtc: {len(exchange) // group_size} groups of {group_size}, one model each"
    return ExchangeMethod(exchange, groups, reducers, blocks, notice=notice)
