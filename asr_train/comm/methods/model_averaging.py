"""Model averaging: workers train alone; every few steps all continue from the mean."""

from dataclasses import replace

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.methods.bmuf import Bmuf


class ModelAveraging(Bmuf):
    """BMUF without momentum, whose model is the mean."""

    def __init__(self, settings: schema.CommSettings, exchange: Exchange, size: int) -> None:
        given = settings.model_averaging
        assert given is not None  # as schema checks
        bmuf = schema.BmufSettings(
            block_steps=given.block_steps,
            form=schema.BlockForm.classical,
            zeta=1.0,
            c=1.0,
            eta=0.0,
            velocity=given.velocity,
        )
        super().__init__(replace(settings, bmuf=bmuf), exchange, size)


METHOD = ModelAveraging
