"""Model averaging: workers train alone; every few steps all continue from the mean."""

from asr_train import schema
from asr_train.comm.blocks import MomentumBlocks
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.reducers import Alone
from asr_train.schema import BlockForm


class ModelAveraging(ExchangeMethod):
    """One model per worker."""

    def __init__(self, settings: schema.CommSettings, exchange: Exchange, size: int) -> None:
        given = settings.model_averaging
        assert given is not None  # as schema checks
        groups = exchange.groups(1)
        blocks = MomentumBlocks(
            exchange,
            exchange.members,
            given.block_steps,
            BlockForm.classical,
            eta=0.0,
            zeta=1.0,
            velocity=given.velocity,
        )
        alone = len(exchange) == 1  # its mean is itself
        super().__init__(exchange, groups, [Alone() for _ in groups], None if alone else blocks)


METHOD = ModelAveraging
