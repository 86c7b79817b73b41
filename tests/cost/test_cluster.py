"""A cluster's file is valid, or an error names the wrong key."""

import pytest
from cost.clusters import flat, nodes

from asr_train.cost.cluster import ClusterSettings, read_cluster
from asr_train.files import write_yaml
from asr_train.schema import SettingsError, build, plain
from scripts.bench_network import compare


def test_settings_are_plain_data_and_back(tmp_path, monkeypatch):
    cluster = nodes(bus=50.0)
    write_yaml(tmp_path / "mine.yaml", plain(cluster))
    assert read_cluster(str(tmp_path / "mine.yaml")) == cluster
    monkeypatch.setattr("asr_train.cost.cluster.CLUSTERS", tmp_path)
    assert read_cluster("mine") == cluster
    assert build(ClusterSettings, plain(flat())) == flat()


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"gpus_per_node": 0}, "gpus_per_node is 0; it must be positive"),
        ({"inside": None}, "gpus_per_node is 4 but inside is null"),
        ({"between": None}, "max_nodes is 64 but between is null"),
        ({"fabric_gbit_per_s": -1.0}, "fabric_gbit_per_s is -1.0"),
        ({"between": {"gbit_per_s": 0, "latency_us": 1}}, "between.gbit_per_s is 0"),
        ({"nodes": 3}, "nodes is not a setting; .*allowed there: sources, gpus_per_node"),
    ],
)
def test_what_cannot_be_is_refused(changed, said):
    with pytest.raises(SettingsError, match=said):
        build(ClusterSettings, plain(nodes()) | changed)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"efficiency": 1.2}, r"gpu.efficiency is 1.2; it must lie in \[0, 1\]"),
        ({"jitter": -0.1}, "gpu.jitter is -0.1"),
        ({"peak_tflops": 0}, "gpu.peak_tflops is 0"),
        ({"encode_ns": -1}, "gpu.encode_ns is -1"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused(changed, said):
    values = plain(flat())
    values["gpu"] |= changed
    with pytest.raises(SettingsError, match=said):
        build(ClusterSettings, values)


def test_measurements_that_take_their_closed_forms_have_no_error():
    rate, late, size, workers = 1e7, 1e-3, 400_000, 3
    found = {
        "workers": workers,
        "mbit_per_s": 80.0,
        "latency_seconds": late,
        "bytes_per_second": rate,
        "seconds": {
            "all-reduce": {str(size): [4 * (size / 3 / rate + late)] * 3},
            "all-gather": {str(size): [2 * (size / rate + late)] * 3},
            "peer to peer": {str(size): [2 * size / rate + late] * 3},
            "broadcast": {str(size): [2 * (size / rate + late)] * 3},
            "all to one": {str(size): [2 * size / rate + late] * 3},
        },
    }
    rows = compare(found)
    assert [row["error"] for row in rows] == pytest.approx([0.0] * 5, abs=1e-9)
