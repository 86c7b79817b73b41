"""The **table of exchange methods**: one row each, without torch. schema, comm, report, paper and
cost ask it; none of them knows a method by name.

A method is its row here and the file `comm/methods/NAME.py`, which defines what is sent. Its own
settings, if any, are a group of `comm` (schema and conf/comm/NAME.yaml).
"""

from enum import Enum

HEADER_BYTES = 56  # of every message; `comm.codec` writes it
MAX_ELEMENTS = 2**31 - 1  # of a network whose messages are sparse: an index has 31 bits


class Traffic(Enum):
    """How a method loads the network; `cost.plan` simulates each kind."""

    none = "sgd"
    allreduce = "allreduce"  # dense sums, every step
    gtc = "gtc"  # sparse messages from all to all, every step
    gtc_async = "gtc_async"  # the same, but no worker waits for a message
    onebit = "onebit"  # one bit per element: parts to their owners, sums back (Seide et al., 2014)
    bmuf = "bmuf"  # sums of weights, after every block of steps
    bmuf_gtc = "bmuf_gtc"  # gtc inside groups, bmuf across one worker of each

    @property
    def is_sparse(self) -> bool:
        """Whether messages hold the elements beyond a threshold."""
        return self in (Traffic.gtc, Traffic.gtc_async, Traffic.bmuf_gtc)

    @property
    def has_blocks(self) -> bool:
        """Whether models are combined after every block of steps."""
        return self in (Traffic.bmuf, Traffic.bmuf_gtc)

    @property
    def in_groups(self) -> bool:
        """Whether a model is shared by a group of workers."""
        return self is Traffic.bmuf_gtc

    @property
    def is_asynchronous(self) -> bool:
        """Whether workers do not wait for each other."""
        return self is Traffic.gtc_async


class Method(Enum):
    """How workers exchange gradients or models; each has a file in `comm/methods/`.

    Attributes:
        needs: groups of `comm`'s settings that must be set.
    """

    traffic: Traffic
    needs: tuple[str, ...]

    def __new__(cls, name: str, traffic: Traffic, needs: tuple[str, ...] = ()) -> "Method":
        member = object.__new__(cls)
        member._value_ = name
        member.traffic, member.needs = traffic, needs
        return member

    # One worker, no exchange
    sgd = "sgd", Traffic.none
    # All gradients, dense, every step
    allreduce = "allreduce", Traffic.allreduce, ("allreduce",)
    # Each worker on its own; weights are averaged after every block
    model_averaging = "model_averaging", Traffic.bmuf, ("model_averaging",)
    # Gradient threshold compression (Strom, 2015)
    gtc = "gtc", Traffic.gtc, ("gtc",)
    # The same, but workers do not wait for each other
    gtc_async = "gtc_async", Traffic.gtc_async, ("gtc", "asynchronous")
    # 1-bit SGD: one bit per element, summed by the owners of columns (Seide et al., 2014)
    onebit = "onebit", Traffic.onebit, ("onebit",)
    # Model averaging with block momentum (Chen and Huo, 2016)
    bmuf = "bmuf", Traffic.bmuf, ("bmuf",)
    # gtc within groups, bmuf across them (Ladkat et al., 2019)
    bmuf_gtc = "bmuf_gtc", Traffic.bmuf_gtc, ("gtc", "bmuf", "group_size")
