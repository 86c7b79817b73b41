"""The methods, a module each; `build` is the one place that knows them all."""

from asr_train import schema
from asr_train.comm.exchange import Exchange
from asr_train.comm.method import Method
from asr_train.comm.methods.allreduce import Allreduce
from asr_train.comm.methods.bmuf import Bmuf
from asr_train.comm.methods.bmuf_gtc import BmufGtc
from asr_train.comm.methods.gtc import GtcMethod
from asr_train.comm.methods.gtc_async import GtcAsync
from asr_train.comm.methods.model_averaging import ModelAveraging
from asr_train.comm.methods.sgd import Sgd

METHODS: dict[schema.Method, type[Method]] = {
    schema.Method.sgd: Sgd,
    schema.Method.allreduce: Allreduce,
    schema.Method.model_averaging: ModelAveraging,
    schema.Method.gtc: GtcMethod,
    schema.Method.gtc_async: GtcAsync,
    schema.Method.bmuf: Bmuf,
    schema.Method.bmuf_gtc: BmufGtc,
}


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> Method:
    """The method that the settings name, for flat vectors of `size` elements.

    Raises:
        ValueError: if it cannot work with so many workers or parameters.
    """
    make: type = METHODS[settings.method]  # whose arguments are these, unlike Method's own
    return make(settings, exchange, size)
