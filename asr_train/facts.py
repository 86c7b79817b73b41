"""The **table of exchange methods**: one row each, without torch; schema, comm, report, paper and
cost ask it, and know no method by name.

A method is its row here and the file `comm/methods/NAME.py`, which says what is sent. Settings of
its own, if it has any, are a group of `comm` (schema and conf/comm/NAME.yaml).
"""

from dataclasses import dataclass
from enum import Enum

HEADER_BYTES = 56  # of every message; `comm.codec` writes it


class Traffic(Enum):
    """How a method loads the network: what `cost.plan` simulates."""

    none = "sgd"
    allreduce = "allreduce"  # dense sums, every step
    gtc = "gtc"  # sparse messages of all to all, every step
    gtc_async = "gtc_async"  # the same, and nobody waits for a message
    onebit = "1bit"  # a bit per gradient: parts to their owners, sums back (Seide et al., 2014)
    bmuf = "bmuf"  # sums of weights, every block of steps
    bmuf_gtc = "bmuf_gtc"  # gtc inside groups, bmuf over one worker of each

    @property
    def is_sparse(self) -> bool:
        """Messages hold the elements beyond a threshold."""
        return self in (Traffic.gtc, Traffic.gtc_async, Traffic.bmuf_gtc)

    @property
    def has_blocks(self) -> bool:
        """Models meet after every block of steps."""
        return self in (Traffic.bmuf, Traffic.bmuf_gtc)

    @property
    def in_groups(self) -> bool:
        """Workers share a model with some of the others."""
        return self is Traffic.bmuf_gtc

    @property
    def is_asynchronous(self) -> bool:
        """Workers do not wait for each other."""
        return self is Traffic.gtc_async


@dataclass(frozen=True, slots=True)
class Facts:
    """What others must know of a method.

    Attributes:
        needs: groups of `comm`'s settings that must be there.
        blocks: that of them whose `block_steps` says how often models meet.
    """

    traffic: Traffic
    needs: tuple[str, ...] = ()
    blocks: str | None = None


class Method(Enum):
    """How workers exchange what they learned; `comm/methods/` has a file for each."""

    facts: Facts

    def __new__(cls, name: str, facts: Facts) -> "Method":
        member = object.__new__(cls)
        member._value_ = name
        member.facts = facts
        return member

    # One worker, nothing to exchange
    sgd = "sgd", Facts(Traffic.none)
    # All gradients, dense, every step
    allreduce = "allreduce", Facts(Traffic.allreduce, ("allreduce",))
    # Each worker alone; weights are averaged after every block
    model_averaging = (
        "model_averaging",
        Facts(Traffic.bmuf, ("model_averaging",), "model_averaging"),
    )
    # Gradient threshold compression (Strom, 2015)
    gtc = "gtc", Facts(Traffic.gtc, ("gtc",))
    # The same, but workers do not wait for each other
    gtc_async = "gtc_async", Facts(Traffic.gtc_async, ("gtc", "asynchronous"))
    # Model averaging with block momentum (Chen and Huo, 2016)
    bmuf = "bmuf", Facts(Traffic.bmuf, ("bmuf",), "bmuf")
    # gtc within groups, bmuf across them (Ladkat et al., 2019)
    bmuf_gtc = "bmuf_gtc", Facts(Traffic.bmuf_gtc, ("gtc", "bmuf", "group_size"), "bmuf")
