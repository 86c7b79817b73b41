"""Model averaging: workers train alone; every few steps all continue from the mean."""

from dataclasses import replace

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.methods import bmuf


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> ExchangeMethod:
    """BMUF without momentum, whose model is the mean."""
    given = settings.model_averaging
    assert given is not None  # as schema checks
    blocks = schema.BmufSettings(
        block_steps=given.block_steps,
        form=schema.BlockForm.classical,
        zeta=1.0,
        c=1.0,
        eta=0.0,
        velocity=given.velocity,
    )
    return bmuf.build(replace(settings, bmuf=blocks), exchange, size)
