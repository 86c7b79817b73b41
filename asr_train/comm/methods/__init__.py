"""The methods: one file each, whose `build` makes one; `facts.Method` is their table."""

from importlib import import_module

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import ExchangeMethod


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> ExchangeMethod:
    """Build the method that the settings name, for flat vectors of `size` elements.

    Raises:
        ValueError: if it cannot work with so many workers or parameters.
    """
    module = import_module(f"{__name__}.{settings.method.value}")
    return module.build(settings, exchange, size)
