"""The methods: one file each, which ends in `METHOD`, its class; `facts.Method` is their table."""

from importlib import import_module

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import ExchangeMethod
from asr_train.facts import Method


def method_class(method: Method) -> type[ExchangeMethod]:
    """Return the class that `comm/methods/NAME.py` calls METHOD."""
    found: type[ExchangeMethod] = import_module(f"{__name__}.{method.value}").METHOD
    return found


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> ExchangeMethod:
    """Build the method that the settings name, for flat vectors of `size` elements.

    Raises:
        ValueError: if it cannot work with so many workers or parameters.
    """
    make: type = method_class(settings.method)  # takes these arguments, unlike its base class
    method: ExchangeMethod = make(settings, exchange, size)
    return method
