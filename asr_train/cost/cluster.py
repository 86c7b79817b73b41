"""Settings of a cluster: conf/cluster/NAME.yaml -> **ClusterSettings**, checked.

Nodes are alike and hold `gpus_per_node` workers each. A worker talks to those of its node over
its own link (`inside`), to others over its node's network interface (`between`). Knows nothing of
networks that are trained on it, nor of methods.
"""

from dataclasses import dataclass
from pathlib import Path

from asr_train.schema import SettingsError, load


def _positive(where: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise SettingsError(f"{where}.{name} is {value}; it must be positive")


def _not_negative(where: str, **values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise SettingsError(f"{where}.{name} is {value}; it must not be negative")


@dataclass(kw_only=True, slots=True)
class GpuSettings:
    """What one worker computes with."""

    name: str
    peak_tflops: float  # 10^12 operations a second, of the arithmetic that training uses
    efficiency: float  # share of the peak that a network's forward and backward pass reach
    fixed_ms: float  # of a step, whatever its frames
    jitter: float  # standard deviation of a step's seconds over their mean, drawn a step and worker
    encode_ns: float  # a parameter: residual, threshold and writing of a message, also to the host
    decode_ns: float  # an element received: reading and adding it

    def __post_init__(self) -> None:
        where = "cluster.gpu"
        _positive(where, peak_tflops=self.peak_tflops)
        _not_negative(where, fixed_ms=self.fixed_ms, encode_ns=self.encode_ns)
        _not_negative(where, decode_ns=self.decode_ns)
        if not 0 < self.efficiency <= 1:
            raise SettingsError(f"{where}.efficiency is {self.efficiency}; it must lie in (0, 1]")
        if not 0 <= self.jitter <= 2:
            raise SettingsError(f"{where}.jitter is {self.jitter}; it must lie in [0, 2]")

    @property
    def flops(self) -> float:
        """Operations a second that training reaches."""
        return self.peak_tflops * 1e12 * self.efficiency


@dataclass(kw_only=True, slots=True)
class LinkSettings:
    """Both directions at once have this bandwidth each."""

    gbit_per_s: float
    latency_us: float  # from the sending of a message to its first bit's arrival

    def __post_init__(self) -> None:
        _positive("cluster link", gbit_per_s=self.gbit_per_s)
        _not_negative("cluster link", latency_us=self.latency_us)

    @property
    def bytes_per_second(self) -> float:
        return self.gbit_per_s * 1e9 / 8

    @property
    def latency_seconds(self) -> float:
        return self.latency_us * 1e-6


@dataclass(kw_only=True, slots=True)
class ClusterSettings:
    sources: list[str]  # where the figures come from, and which are assumed
    gpus_per_node: int
    max_nodes: int
    gpu: GpuSettings
    inside: LinkSettings | None = None  # each GPU's; null where a node has one GPU
    bus_gbit_per_s: float | None = None  # of all GPUs of a node together; null: no such limit
    between: LinkSettings | None = None  # each node's; null where there is one node
    fabric_gbit_per_s: float | None = None  # of all nodes together; null: no such limit

    def __post_init__(self) -> None:
        where = "cluster"
        _positive(where, gpus_per_node=self.gpus_per_node, max_nodes=self.max_nodes)
        for name, limit in (("bus", self.bus_gbit_per_s), ("fabric", self.fabric_gbit_per_s)):
            if limit is not None:
                _positive(where, **{f"{name}_gbit_per_s": limit})
        if self.gpus_per_node > 1 and self.inside is None:
            raise SettingsError(
                f"cluster.gpus_per_node is {self.gpus_per_node} but cluster.inside is null; "
                "give the link between the GPUs of a node"
            )
        if self.max_nodes > 1 and self.between is None:
            raise SettingsError(
                f"cluster.max_nodes is {self.max_nodes} but cluster.between is null; "
                "give the link between nodes"
            )

    @property
    def max_workers(self) -> int:
        return self.gpus_per_node * self.max_nodes


def read_cluster(name: str, folder: Path | str) -> ClusterSettings:
    """The cluster of that name in `folder`, which is conf/cluster; or of a path that ends in .yaml.

    Raises:
        SettingsError: if there is none, naming those there are, or if its file is not right.
    """
    path = Path(name) if name.endswith(".yaml") else Path(folder) / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in Path(folder).glob("*.yaml")))
        raise SettingsError(f"cluster {name!r} has no file {path}; there are {known}")
    return load(ClusterSettings, path)
