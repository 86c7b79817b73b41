"""Asynchronous GTC: workers send to each other, and wait only for those too far behind.

Strom (2015) calls it dead reckoning; see `comm.peers`. A process hosts one worker, or all.
"""

from asr_train import schema
from asr_train.comm import codec
from asr_train.comm.async_workers import AsyncWorkers
from asr_train.comm.exchange import Exchange
from asr_train.comm.ledger import Ledger
from asr_train.comm.links import Links
from asr_train.comm.method import ExchangeMethod
from asr_train.comm.peers import Peer, Sender, Thresholds
from asr_train.comm.real_time import RealTime
from asr_train.comm.reducers import Alone
from asr_train.comm.virtual_time import VirtualTime
from asr_train.facts import HEADER_BYTES


def build(settings: schema.CommSettings, exchange: Exchange, size: int) -> ExchangeMethod:
    """A lone worker is plain SGD. Raises ValueError if processes host several workers each."""
    if len(exchange) == 1:
        return ExchangeMethod(exchange, [exchange], [Alone()])
    workers = workers_of(settings, exchange, size)
    method = ExchangeMethod(exchange, [exchange], [workers], asynchronous=workers)
    method.sent, method.seconds = workers.sent, workers.seconds
    return method


def workers_of(settings: schema.CommSettings, exchange: Exchange, size: int) -> AsyncWorkers:
    """Return the workers hosted here, in their initial state."""
    given = settings.asynchronous
    assert settings.gtc is not None
    assert given is not None  # as schema checks
    ledger = Ledger(size, exchange.device)
    thresholds = Thresholds(settings.gtc, given.staleness)
    about = len(exchange), settings.gtc, thresholds, ledger
    if exchange.processes == 1:
        senders = [Sender(worker, *about) for worker in exchange.local]
        return VirtualTime(senders, thresholds, given.virtual_time)
    if exchange.processes < len(exchange):
        raise ValueError(
            f"comm.method=gtc_async: {exchange.processes} processes host {len(exchange)} workers, "
            "but asynchronous ones need one process each, or one for all; start as many processes "
            "as workers, or one (VIRTUAL=1)"
        )
    longest = HEADER_BYTES + codec.map_bytes(size)
    links = Links(exchange, settings.timeout_seconds, longest)
    return RealTime(Peer(exchange.local[0], *about), links)
