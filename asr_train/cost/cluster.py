"""Settings of a cluster: conf/cluster/NAME.yaml -> **ClusterSettings**, checked.

All nodes are equal, with `gpus_per_node` workers each. A worker reaches those of its node over its
own link (`inside`), others over its node's network interface (`between`). Knows nothing of networks
that are trained, nor of methods.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from asr_train.places import ROOT
from asr_train.schema import SettingsError, load
from asr_train.schema.fields import at, not_negative, positive, within

CLUSTERS = Path(ROOT) / "conf" / "cluster"


@dataclass(kw_only=True, slots=True)
class GpuSettings:
    """The GPU of one worker."""

    name: str
    peak_tflops: float  # 10^12 operations per second, of the arithmetic used in training
    efficiency: float  # share of the peak in a network's forward and backward pass
    fixed_ms: float  # per step, independent of its frames
    jitter: float  # standard deviation of a step's seconds over their mean, per step and worker
    encode_ns: float  # per parameter: residual, threshold, writing a message, copying to the host
    decode_ns: float  # per element received: reading and adding it
    start_ms: float = 0.0  # per step: a network's pass beside its frames, as small ones fill no GPU
    fixed_parameters: float | None = None  # of fixed_ms's network, with which it grows; null: any
    exchange_ms: float = 0.0  # per exchange of 1-bit parts, beside the links: waits and adding up

    def __post_init__(self) -> None:
        positive(peak_tflops=self.peak_tflops, efficiency=self.efficiency)
        positive(fixed_parameters=self.fixed_parameters)
        within(0, 1, efficiency=self.efficiency)
        within(0, 2, jitter=self.jitter)
        not_negative(fixed_ms=self.fixed_ms, start_ms=self.start_ms, exchange_ms=self.exchange_ms)
        not_negative(encode_ns=self.encode_ns, decode_ns=self.decode_ns)

    @property
    def flops(self) -> float:
        """Operations per second reached in training."""
        return self.peak_tflops * 1e12 * self.efficiency


def bytes_per_second(gbit_per_s: float | None) -> float:
    """Return a rate in bytes; None: no limit."""
    return math.inf if gbit_per_s is None else gbit_per_s * 1e9 / 8


@dataclass(kw_only=True, slots=True)
class LinkSettings:
    """A link with this bandwidth in each direction at the same time."""

    gbit_per_s: float
    latency_us: float  # from sending a message to the arrival of its first bit

    def __post_init__(self) -> None:
        positive(gbit_per_s=self.gbit_per_s)
        not_negative(latency_us=self.latency_us)

    @property
    def bytes_per_second(self) -> float:
        return bytes_per_second(self.gbit_per_s)

    @property
    def latency_seconds(self) -> float:
        return self.latency_us * 1e-6


@dataclass(kw_only=True, slots=True)
class ClusterSettings:
    sources: list[str]  # sources of the values, and which are assumed
    gpus_per_node: int
    max_nodes: int
    gpu: GpuSettings
    inside: LinkSettings | None = None  # per GPU; null if nodes have one GPU
    bus_gbit_per_s: float | None = None  # of all GPUs of a node together; null: no limit
    between: LinkSettings | None = None  # per node; null if there is one node
    fabric_gbit_per_s: float | None = None  # of all nodes together; null: no limit
    lambda_conn: float = 1.0  # times that activations between stripes take over a link's time

    def __post_init__(self) -> None:
        positive(gpus_per_node=self.gpus_per_node, max_nodes=self.max_nodes)
        positive(lambda_conn=self.lambda_conn)
        positive(bus_gbit_per_s=self.bus_gbit_per_s, fabric_gbit_per_s=self.fabric_gbit_per_s)
        if self.gpus_per_node > 1 and self.inside is None:
            raise SettingsError(
                f"{at('gpus_per_node')} is {self.gpus_per_node} but {at('inside')} is null; "
                "give the link between the GPUs of a node"
            )
        if self.max_nodes > 1 and self.between is None:
            raise SettingsError(
                f"{at('max_nodes')} is {self.max_nodes} but {at('between')} is null; "
                "give the link between nodes"
            )

    @property
    def max_workers(self) -> int:
        return self.gpus_per_node * self.max_nodes


def read_cluster(name: str) -> ClusterSettings:
    """Read a cluster by its name in conf/cluster, or from a path that ends in .yaml.

    Raises:
        SettingsError: if it does not exist, with the known names, or its file is invalid.
    """
    path = Path(name) if name.endswith(".yaml") else CLUSTERS / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in CLUSTERS.glob("*.yaml")))
        raise SettingsError(f"cluster {name!r} has no file {path}; known: {known}")
    return load(ClusterSettings, path)
