"""Clusters with round numbers."""

from asr_train.cost.cluster import ClusterSettings, GpuSettings, LinkSettings


def gpu(**changed: float) -> GpuSettings:
    values: dict = {
        **{"name": "made up", "peak_tflops": 1.0, "efficiency": 0.5, "fixed_ms": 0.0},
        **{"jitter": 0.0, "encode_ns": 0.0, "decode_ns": 0.0},
    }
    return GpuSettings(**values | changed)


def flat(
    gbit_per_s: float = 8.0,
    latency_us: float = 0.0,
    fabric_gbit_per_s: float | None = None,
    **changed: float,
) -> ClusterSettings:
    """One GPU per node, links of 1 GB/s; `changed` is of the GPU."""
    return ClusterSettings(
        sources=[],
        gpus_per_node=1,
        max_nodes=1024,
        gpu=gpu(**changed),
        between=LinkSettings(gbit_per_s=gbit_per_s, latency_us=latency_us),
        fabric_gbit_per_s=fabric_gbit_per_s,
    )


def nodes(
    gpus: int = 4, gbit_per_s: float = 8.0, bus: float | None = None, **changed: float
) -> ClusterSettings:
    """Nodes of several GPUs, ten times faster inside than between."""
    return ClusterSettings(
        sources=[],
        gpus_per_node=gpus,
        max_nodes=64,
        gpu=gpu(**changed),
        inside=LinkSettings(gbit_per_s=10 * gbit_per_s, latency_us=0.0),
        between=LinkSettings(gbit_per_s=gbit_per_s, latency_us=0.0),
        bus_gbit_per_s=bus,
    )
