"""Settings of a cluster: conf/cluster/NAME.yaml -> **ClusterSettings**, checked.

All nodes are equal, with `gpus_per_node` workers each. A worker reaches those of its node over its
own link (`inside`), others over its node's network interface (`between`). Knows nothing of networks
that are trained, nor of methods.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from asr_train.places import ROOT
from asr_train.schema import SettingsError, load
from asr_train.schema.fields import at
from asr_train.schema.limits import Checked, Count, NotNegative, Positive, between, positive

CLUSTERS = Path(ROOT) / "conf" / "cluster"


@dataclass(kw_only=True, slots=True)
class GpuSettings(Checked):
    """The GPU of one worker."""

    name: str
    peak_tflops: Positive  # 10^12 operations per second, of the arithmetic used in training
    # Share of the peak in a network's forward and backward pass
    efficiency: Annotated[float, positive, between(0, 1)]
    fixed_ms: NotNegative  # per step, independent of its frames
    # Standard deviation of a step's seconds over their mean, per step and worker
    jitter: Annotated[float, between(0, 2)]
    # Per parameter: residual, threshold, writing a message, copying to the host
    encode_ns: NotNegative
    decode_ns: NotNegative  # per element received: reading and adding it
    # Per step: a network's pass beside its frames, as small ones fill no GPU
    start_ms: NotNegative = 0.0
    # Of fixed_ms's network, with which it grows; null: any
    fixed_parameters: Positive | None = None
    # Per exchange of 1-bit parts, beside the links: waits and adding up
    exchange_ms: NotNegative = 0.0

    @property
    def flops(self) -> float:
        """Operations per second reached in training."""
        return self.peak_tflops * 1e12 * self.efficiency


def bytes_per_second(gbit_per_s: float | None) -> float:
    """Return a rate in bytes; None: no limit."""
    return math.inf if gbit_per_s is None else gbit_per_s * 1e9 / 8


@dataclass(kw_only=True, slots=True)
class LinkSettings(Checked):
    """A link with this bandwidth in each direction at the same time."""

    gbit_per_s: Positive
    latency_us: NotNegative  # from sending a message to the arrival of its first bit

    @property
    def bytes_per_second(self) -> float:
        return bytes_per_second(self.gbit_per_s)

    @property
    def latency_seconds(self) -> float:
        return self.latency_us * 1e-6


@dataclass(kw_only=True, slots=True)
class ClusterSettings(Checked):
    sources: list[str]  # sources of the values, and which are assumed
    gpus_per_node: Count
    max_nodes: Count
    gpu: GpuSettings
    inside: LinkSettings | None = None  # per GPU; null if nodes have one GPU
    bus_gbit_per_s: Positive | None = None  # of all GPUs of a node together; null: no limit
    between: LinkSettings | None = None  # per node; null if there is one node
    fabric_gbit_per_s: Positive | None = None  # of all nodes together; null: no limit
    lambda_conn: Positive = 1.0  # times that activations between stripes take over a link's time

    def check(self) -> None:
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
