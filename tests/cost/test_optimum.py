"""K-hat has the papers' values; the closed forms agree with each other and with the crossing."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from cost.clusters import flat, nodes

from asr_train.cost.optimum import (
    Node,
    alone_seconds,
    crossing,
    data_parallel,
    data_parallel_speedup,
    model_parallel,
    model_parallel_speedup,
    one_bit,
    optimum,
    peer_rate,
    printed_node,
    ring_rate,
)
from asr_train.cost.plan import BYTES, MessageSize, Scheme, Work, simulate
from asr_train.facts import Traffic
from asr_train.files import read_yaml

PAPERS = Path(__file__).parents[2] / "conf/papers"


@pytest.fixture(scope="module")
def node() -> Node:
    return printed_node(read_yaml(PAPERS / "seide2014_parallelizability.yaml"))


@pytest.mark.parametrize(
    "frames, value_bytes, lambda_conn, eta, nodes",
    [
        # Section 3 of the ICASSP paper: 1.5, between a full GPU and eta_mbs(512) = 1.2
        (1024, 4, 1, 1.0, 1.35),
        (1024, 4, 1, 1.2, 1.63),
        (4096, 4, 2, 1.0, 2.23),  # printed: 2
        (16384, 4, 3, 1.0, 5.63),  # printed: 6
        # 8 bits: printed 5 and 12, which the same lambda_conn do not give
        (4096, 1, 2, 1.0, 18.9),
        (16384, 1, 3, 1.0, 33.7),
        (4096, 1, 4.2, 1.0, 5.06),
        (16384, 1, 6.3, 1.0, 11.9),
    ],
)
def test_data_parallel_k_hat_is_the_papers(node, frames, value_bytes, lambda_conn, eta, nodes):
    found = data_parallel(node, frames, value_bytes, lambda_conn, eta)
    assert found == pytest.approx(nodes, abs=0.006 * nodes)


@pytest.mark.parametrize("post", [0.0, 4e-3])
def test_equation_4_is_where_both_take_the_same_time(post):
    """conf/papers has no printed K-hat of the 1-bit paper: the condition that equation 4 solves.

    T_float/Z is the printed 10 ms, and T_frm that of table 1 with 8,192 frames.
    """
    frames, frame, exchange, update = 2880, 114e-6, 10e-3, 2e-3
    found = one_bit(frames, frame, exchange, update, post)
    half = crossing(lambda k: (frames / 2 * frame + 3 * post) / k + update, lambda k: exchange)
    assert found == pytest.approx(half, rel=1e-5)
    assert one_bit(frames, frame, exchange, exchange, post) == math.inf


def test_equation_4_is_the_condition_of_the_plan():
    """There a node keeps its own part: (K - 1)/K of all is sent, as if T_post were the rest."""
    slow = flat(0.08, encode_ns=1.0, decode_ns=10.0, exchange_ms=20.0)  # 10 MB/s
    found = optimum(slow, WORK, 8000, block_steps=200).nodes[Traffic.onebit]
    whole = 2 * 4e7 / 32 / 1e7
    closed = one_bit(8000, 1e-4, whole + 0.02, 0.01 + 2 * 0.01, whole / 3)
    assert found == pytest.approx(closed, rel=1e-5)


def test_model_parallel_k_hat_is_the_papers(node):
    assert model_parallel(node, lambda_conn=2) == pytest.approx(3.37, abs=0.005)  # printed: 3.3


def test_speedups_at_whole_numbers_of_nodes_are_the_papers_but_for_one(node):
    """Equation 3 over the longer of T_calc and T_comm. Printed: 2.5, 5.1; but 1.1 with 4k."""
    assert model_parallel_speedup(node, 3, 1024, 2) == pytest.approx(2.45, abs=0.005)
    assert data_parallel_speedup(node, 6, 16384, 4, 3) == pytest.approx(5.11, abs=0.005)
    assert data_parallel_speedup(node, 2, 4096, 4, 2) == pytest.approx(1.78, abs=0.005)


def test_alone_is_a_third_of_the_operations_three_times_and_the_fixed_cost(node):
    assert alone_seconds(node, 1024) == pytest.approx(1024 * 3 * 46e6 / 976e9 + 0.0182)


def test_the_crossing_is_where_both_take_the_same_time():
    assert crossing(lambda k: 9 / k, lambda k: k) == pytest.approx(3, rel=1e-5)
    assert crossing(lambda k: 1 / k, lambda k: 2) == pytest.approx(1, rel=1e-5)
    assert crossing(lambda k: 1 + 1 / k, lambda k: 1) == math.inf


WORK = Work(
    parameters=1e7,
    frames=1000,
    frame_seconds=1e-4,
    fixed_seconds=0.01,
    activations=1e4,
    messages=(MessageSize(1e5, 2.5e4),),
)


def test_at_k_hat_of_any_cluster_the_exchange_takes_as_long_as_half_a_batch():
    found = optimum(flat(), WORK, 8000, block_steps=10)
    dense, k = 4e7, found.nodes[Traffic.allreduce]
    assert 2 * (k - 1) / k * dense / 1e9 == pytest.approx(0.01 + 4000 / k * 1e-4, rel=1e-4)
    k = found.stripes
    assert 8000 / 3 / k * 1e-4 == pytest.approx(8000 * 1e4 * BYTES * (k - 1) / k / 1e9, rel=1e-4)
    assert found.nodes[Traffic.onebit] == math.inf  # 2.5 ms at most, against 10 ms
    k = found.nodes[Traffic.gtc]
    assert (k - 1) * 1e-4 == pytest.approx(0.01 + 4000 / k * 1e-4, rel=1e-4)


def test_k_hat_counts_what_messages_cost_beside_the_links_and_the_steps_of_a_block():
    slow = flat(0.08, encode_ns=1.0, decode_ns=10.0, exchange_ms=20.0)  # 10 MB/s; encoding: 10 ms
    found = optimum(slow, WORK, 8000, block_steps=200).nodes
    k = found[Traffic.onebit]
    assert 2 * (k - 1) / k * 0.125 + 0.02 == pytest.approx(0.01 + 0.4 / k + 2 * 0.01, rel=1e-4)
    k = found[Traffic.gtc]
    assert (k - 1) * (0.01 + 2.5e-4) == pytest.approx(0.01 + 0.4 / k + 0.01, rel=1e-4)
    k = found[Traffic.bmuf]
    assert 2 * (k - 1) / k * 4 == pytest.approx(200 * (0.01 + 0.8 / k), rel=1e-4)


def test_more_nodes_pay_with_larger_minibatches_and_with_smaller_messages():
    for cluster in (flat(2), nodes(4, bus=16.0), flat(fabric_gbit_per_s=20.0)):
        rows = [optimum(cluster, WORK, frames, 10).nodes for frames in (1e3, 4e3, 16e3)]
        for traffic in rows[0]:
            assert all(few[traffic] <= many[traffic] for few, many in pairwise(rows))
        assert all(row[Traffic.allreduce] <= row[Traffic.onebit] for row in rows)


@pytest.mark.parametrize(
    "cluster", [flat(), nodes(4), nodes(4, bus=20.0)], ids=["flat", "nodes", "bus"]
)
def test_the_rates_are_the_simulators(cluster):
    p = 8
    work = replace(WORK, fixed_seconds=0.0)
    taken = {
        traffic: simulate(cluster, work, Scheme(traffic=traffic), p).step_seconds - 0.1
        for traffic in (Traffic.allreduce, Traffic.onebit)
    }
    ring = 2 * 7 / 8 * 4e7 / ring_rate(cluster, p)
    peers = 2 * 7 / 8 * 4e7 / 32 / peer_rate(cluster, p)
    assert taken[Traffic.allreduce] == pytest.approx(ring, rel=0.01)
    assert taken[Traffic.onebit] == pytest.approx(peers, rel=0.01)
