"""Simulated exchanges take the time of closed forms, links are shared fairly, nothing is lost."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from cost.clusters import flat, nodes
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_train.cost.network import (
    Count,
    Links,
    Signal,
    Simulation,
    alone,
    broadcast,
    direct_allgather,
    fair_rates,
    ring_allgather,
    ring_allreduce,
    tree_allreduce,
)

RATE = 1e9  # bytes per second of flat()'s links
LATENCY = 1e-4


def seconds(cluster, workers, collective, *arguments):
    links = Links(cluster, workers)
    return alone(links, lambda sim: collective(sim, range(workers), *arguments))[0]


@pytest.mark.parametrize("p", [2, 3, 4, 7, 16])
def test_a_ring_allreduce_takes_its_closed_form(p):
    n = 5e7
    found = seconds(flat(latency_us=100), p, ring_allreduce, n)
    assert found == pytest.approx(2 * (p - 1) / p * n / RATE + 2 * (p - 1) * LATENCY, rel=1e-9)


@pytest.mark.parametrize("p", [2, 3, 8, 13])
def test_an_allgather_moves_the_others_bytes_through_each_link(p):
    n = 3e6
    ring = seconds(flat(latency_us=100), p, ring_allgather, n)
    direct = seconds(flat(latency_us=100), p, direct_allgather, n)
    assert ring == pytest.approx((p - 1) * (n / RATE + LATENCY), rel=1e-9)
    assert direct == pytest.approx((p - 1) * n / RATE + LATENCY, rel=1e-9)


def test_a_message_to_near_and_far_takes_the_latency_of_the_far():
    cluster = nodes(4)
    cluster = replace(cluster, between=replace(cluster.between, latency_us=100))
    assert Links(cluster, 8).loads(0, [1, 5]).latency_seconds == pytest.approx(LATENCY)


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 9])
def test_a_tree_doubles_who_has_it(p):
    n, rounds = 1e7, math.ceil(math.log2(p))
    each = n / RATE + LATENCY
    assert seconds(flat(latency_us=100), p, broadcast, n) == pytest.approx(rounds * each)
    assert seconds(flat(latency_us=100), p, tree_allreduce, n) == pytest.approx(2 * rounds * each)


@pytest.mark.parametrize("k", [1, 2, 5, 30])
def test_k_flows_through_one_link_have_a_kth_of_it_each(k):
    sim = Simulation(Links(flat(), k + 1))
    ends = []
    for source in range(1, k + 1):
        sim.send(source, [0], 1e6).then(lambda: ends.append(sim.now))
    sim.run()
    assert ends == pytest.approx([k * 1e6 / RATE] * k)


def test_what_a_flow_leaves_when_it_ends_is_shared_by_the_others():
    sim = Simulation(Links(flat(), 3))
    ends = {}
    for source, size in ((1, 1e6), (2, 3e6)):
        sim.send(source, [0], size).then(lambda source=source: ends.update({source: sim.now}))
    sim.run()
    assert ends == pytest.approx({1: 2e6 / RATE, 2: 4e6 / RATE})


def test_a_flow_that_begins_later_slows_one_that_runs():
    sim = Simulation(Links(flat(), 3))
    ends = {}

    def late():
        yield 1e-3
        yield sim.send(2, [0], 1e6)
        ends[2] = sim.now

    def early():
        yield sim.send(1, [0], 2e6)
        ends[1] = sim.now

    sim.spawn(late())
    sim.spawn(early())
    sim.run()
    assert ends == pytest.approx({1: 3e-3, 2: 3e-3})


def test_the_fabric_is_shared_by_all_nodes():
    pairs = 8
    sim = Simulation(Links(flat(fabric_gbit_per_s=16), 2 * pairs))
    for i in range(pairs):
        sim.send(2 * i, [2 * i + 1], 1e6)
    assert sim.run() == pytest.approx(pairs * 1e6 / (2 * RATE))


def test_workers_of_a_node_share_its_interface_and_not_their_own_links():
    sim = Simulation(Links(nodes(), 8))
    for i in range(4):
        sim.send(i, [i + 4], 1e6)
    assert sim.run() == pytest.approx(4e6 / RATE)
    assert sim.left_nodes == 4e6
    inside = Simulation(Links(nodes(), 4))
    for i in range(4):
        inside.send(i, [(i + 1) % 4], 1e6)
    assert inside.run() == pytest.approx(1e6 / (10 * RATE))
    assert inside.left_nodes == 0


def test_a_bus_is_shared_by_a_node():
    sim = Simulation(Links(nodes(bus=80.0), 4))
    for i in range(4):
        sim.send(i, [(i + 1) % 4], 1e6)
    assert sim.run() == pytest.approx(4e6 / (10 * RATE))


def test_copies_of_a_message_load_the_senders_link_once_each():
    sim = Simulation(Links(flat(), 5))
    sim.send(0, [1, 2, 3, 4], 1e6)
    assert sim.run() == pytest.approx(4e6 / RATE)
    assert sim.left_nodes == 4e6


@given(st.data())
@settings(max_examples=60)
def test_rates_fill_links_and_no_flow_could_have_more(data):
    count, flows = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
    capacity_L = np.array(data.draw(st.lists(st.floats(1, 100), min_size=count, max_size=count)))
    crossed = [
        sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1))) for _ in range(flows)
    ]
    flow_E = np.repeat(np.arange(flows), [len(links) for links in crossed])
    link_E = np.array([link for links in crossed for link in links])
    copies_E = np.array(
        data.draw(st.lists(st.integers(1, 3), min_size=len(link_E), max_size=len(link_E))),
        dtype=float,
    )
    rate_F = fair_rates(capacity_L, flow_E, link_E, copies_E, flows)
    used_L = np.bincount(link_E, copies_E * rate_F[flow_E], count)
    assert (used_L <= capacity_L * (1 + 1e-6)).all()
    for f in range(flows):  # a saturated link of its own, on which no other flow is faster
        mine = link_E[flow_E == f]
        assert any(
            used_L[link] >= capacity_L[link] * (1 - 1e-6)
            and rate_F[f] >= rate_F[flow_E[link_E == link]].max() * (1 - 1e-6)
            for link in mine
        )


@given(
    st.integers(2, 9), st.floats(1e3, 1e7), st.lists(st.floats(0.1, 100), min_size=2, max_size=5)
)
@settings(max_examples=25)
def test_more_bandwidth_is_never_slower(p, n, gbits):
    for collective in (ring_allreduce, tree_allreduce, ring_allgather, direct_allgather):
        taken = [seconds(flat(g, latency_us=10), p, collective, n) for g in sorted(gbits)]
        assert all(fast <= slow * (1 + 1e-9) for slow, fast in pairwise(taken))


def test_one_worker_exchanges_nothing():
    for collective in (ring_allreduce, ring_allgather, direct_allgather, tree_allreduce):
        assert seconds(flat(latency_us=100), 1, collective, 1e6) == 0


def test_a_wait_without_end_is_an_error():
    sim = Simulation(Links(flat(), 1))

    def waits():
        yield Signal()

    sim.spawn(waits())
    with pytest.raises(RuntimeError, match="1 simulated processes"):
        sim.run()


def test_a_count_of_nothing_has_happened():
    assert Count(0).fired


def test_more_workers_than_the_cluster_has_are_refused():
    with pytest.raises(ValueError, match=r"300 workers.*64 nodes of 4 GPUs.*1 to 256"):
        Links(nodes(), 300)
