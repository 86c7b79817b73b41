"""Simulated steps take the time of closed forms; special cases equal other methods; bounds hold."""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from cost.clusters import flat, nodes
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_train.cost.plan import (
    HEADER_BYTES,
    MessageSize,
    Scheme,
    Traffic,
    Way,
    Work,
    coded_message,
    logged_messages,
    simulate,
)
from asr_train.files import write_json, write_jsonl

RATE, LATENCY = 1e9, 1e-4
MESSAGE = MessageSize(1e5, 2.5e4)
WORK = Work(parameters=1e7, frames=1000, frame_seconds=1e-4, messages=(MESSAGE,))
COMPUTE = 0.1
DENSE = 4e7
METHODS = [
    Scheme(traffic=Traffic.allreduce),
    Scheme(traffic=Traffic.allreduce, way=Way.tree),
    Scheme(traffic=Traffic.gtc),
    Scheme(traffic=Traffic.gtc, way=Way.direct, lag=1),
    Scheme(traffic=Traffic.gtc_async, way=Way.direct),
    Scheme(traffic=Traffic.onebit),
    Scheme(traffic=Traffic.onebit, lag=1),
    Scheme(traffic=Traffic.bmuf, block_steps=5),
    Scheme(traffic=Traffic.bmuf_gtc, block_steps=5, group_size=4),
    Scheme(traffic=Traffic.bmuf_gtc, block_steps=5, group_size=2, way=Way.direct, lag=1),
]


@pytest.mark.parametrize("p", [2, 5])
def test_steps_of_synchronous_methods_take_their_closed_forms(p):
    cluster = flat(latency_us=100, encode_ns=1.0, decode_ns=2.0)
    ring = 2 * (p - 1) * (DENSE / p / RATE + LATENCY)
    gather = 0.01 + (p - 1) * (MESSAGE.size / RATE + LATENCY + 2e-9 * MESSAGE.elements)
    onebit = 0.02 + 2 * ((p - 1) / p * DENSE / 32 / RATE + LATENCY)
    for method, wanted in (
        (Scheme(traffic=Traffic.allreduce), COMPUTE + ring),
        (Scheme(traffic=Traffic.bmuf, block_steps=10), COMPUTE + ring / 10),
        (Scheme(traffic=Traffic.gtc), COMPUTE + gather),
        (Scheme(traffic=Traffic.onebit), COMPUTE + onebit),
    ):
        speed = simulate(cluster, WORK, method, p)
        assert speed.step_seconds == pytest.approx(wanted)
        assert speed.frames_per_second == pytest.approx(p * 1000 / wanted)
        assert speed.speedup == pytest.approx(p * COMPUTE / wanted)


@pytest.mark.parametrize("size", [1e5, 1e7, 4e7])
def test_what_overlaps_costs_only_what_exceeds_computing(size):
    """From peer to peer: (p - 1) copies leave each worker's link while it computes."""
    p = 5
    work = replace(WORK, messages=(MessageSize(size, 0.0),))
    wanted = max(COMPUTE, (p - 1) * size / RATE)
    for kind, lag in ((Traffic.gtc, 1), (Traffic.gtc_async, 0)):
        speed = simulate(flat(), work, Scheme(traffic=kind, way=Way.direct, lag=lag), p)
        assert speed.step_seconds == pytest.approx(wanted, rel=0.01)
    speed = simulate(flat(), work, Scheme(traffic=Traffic.gtc, way=Way.direct), p)
    assert speed.step_seconds == pytest.approx(COMPUTE + (p - 1) * size / RATE)


@pytest.mark.parametrize("steps", range(20, 26))
@pytest.mark.parametrize("fabric", [None, 8.0])
def test_asynchronous_workers_are_as_fast_as_a_saturated_network_allows(steps, fabric):
    """Messages that wait together arrive together, and a worker's steps come in bursts."""
    p, size = 8, DENSE
    work = replace(WORK, messages=(MessageSize(size, 1e3),))
    speed = simulate(
        flat(fabric_gbit_per_s=fabric),
        work,
        Scheme(traffic=Traffic.gtc_async, way=Way.direct),
        p,
        steps,
    )
    at_once = 1 if fabric is None else p
    assert speed.step_seconds == pytest.approx(at_once * (p - 1) * size / RATE, rel=1e-3)


def test_one_bit_with_two_half_batches_hides_its_exchange_and_pays_the_fixed_cost_twice():
    work = replace(WORK, fixed_seconds=0.01)
    plain = simulate(flat(), work, Scheme(traffic=Traffic.onebit), 4)
    double = simulate(flat(), work, Scheme(traffic=Traffic.onebit, lag=1), 4)
    assert plain.step_seconds == pytest.approx(0.11 + 2 * 0.75 * DENSE / 32 / RATE)
    assert double.step_seconds == pytest.approx(0.12)


def test_stripes_share_the_work_but_its_start_and_exchange_their_activations():
    """Each of M GPUs sends its part of a frame's values to M - 1 others, forward and backward."""
    work = replace(WORK, fixed_seconds=0.01, start_seconds=0.003, activations=1e4)
    values = 2 * 1e4 * 4 * 1000 / RATE
    for stripes in (2, 4):
        striped = Scheme(traffic=Traffic.none, stripes=stripes)
        cluster = replace(flat(), lambda_conn=1.5)
        taken = simulate(cluster, work, striped, 1).step_seconds
        wanted = 0.11 / stripes + 0.003 + 1.5 * values * (stripes - 1) / stripes
        assert taken == pytest.approx(wanted)


@pytest.mark.parametrize("method", [m for m in METHODS if not m.lag], ids=lambda m: m.name)
def test_stripes_exchange_side_by_side_what_one_gpu_would_send(method):
    """On links of their own, in 1/M of the time."""
    split = replace(method, stripes=2)
    work = replace(WORK, messages=(MessageSize(1e6, 0.0),))
    one, two = (simulate(flat(), work, m, 8) for m in (method, split))
    if method.traffic is not Traffic.gtc_async:  # which hides its exchange
        assert two.step_seconds == pytest.approx(one.step_seconds / 2)
    assert two.sent_bytes == one.sent_bytes
    assert two.node_bytes * 2 == pytest.approx(one.node_bytes)


def test_one_bit_waits_for_an_exchange_beside_the_links_unless_it_is_hidden():
    cluster = flat(exchange_ms=20.0)
    for lag, wanted in ((0, 0.12 + 2 * 0.75 * DENSE / 32 / RATE), (1, 0.1)):
        speed = simulate(cluster, WORK, Scheme(traffic=Traffic.onebit, lag=lag), 4)
        assert speed.step_seconds == pytest.approx(wanted)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name}, {m.way.value}, {m.lag}")
def test_one_worker_exchanges_nothing(method):
    method = replace(method, group_size=1)
    work = replace(WORK, fixed_seconds=0.01)  # once: a lone worker has no half batches
    speed = simulate(flat(jitter=0.3, encode_ns=1.0), work, method, 1)
    assert speed.speedup == pytest.approx(1.0)
    assert speed.sent_bytes == speed.node_bytes == 0


@given(
    st.sampled_from(METHODS),
    st.sampled_from([4, 8]),
    st.floats(0.0, 0.8),
    st.floats(0.1, 100),
    st.integers(0, 5),
)
@settings(max_examples=40)
def test_nobody_is_faster_than_as_many_workers_alone(method, workers, jitter, gbits, seed):
    cluster = nodes(gbit_per_s=gbits, jitter=jitter, encode_ns=0.1, decode_ns=1.0)
    speed = simulate(cluster, WORK, method, workers, steps=10, seed=seed)
    assert 0 < speed.speedup <= workers * (1 + 1e-9)


@given(
    st.sampled_from(METHODS),
    st.lists(st.floats(0.1, 100), min_size=2, max_size=4),
    st.floats(0.0, 0.5),
)
@settings(max_examples=25)
def test_more_bandwidth_is_never_slower(method, gbits, jitter):
    taken = [
        simulate(nodes(gbit_per_s=g, jitter=jitter), WORK, method, 8, steps=10).step_seconds
        for g in sorted(gbits)
    ]
    slack = 1e-6 if method.lag == 0 and method.traffic is not Traffic.gtc_async else 0.01
    assert all(fast <= slow * (1 + slack) for slow, fast in pairwise(taken))


@pytest.mark.parametrize("lag, way", [(0, Way.ring), (1, Way.direct)])
def test_groups_of_one_are_bmuf(lag, way):
    cluster = nodes(jitter=0.3, encode_ns=1.0)
    two_tiers = Scheme(traffic=Traffic.bmuf_gtc, block_steps=7, way=way, lag=lag)
    found = simulate(cluster, WORK, two_tiers, 8)
    assert found == simulate(cluster, WORK, Scheme(traffic=Traffic.bmuf, block_steps=7), 8)


def test_one_group_is_gtc():
    """Its single leader has nobody to average with; the block's broadcast remains."""
    cluster = nodes(gpus=8, jitter=0.3, encode_ns=1.0, decode_ns=2.0)
    steps, gtc = 20, Scheme(traffic=Traffic.gtc)
    one_group = Scheme(traffic=Traffic.bmuf_gtc, block_steps=10, group_size=8)
    broadcast = 3 * DENSE / (10 * RATE) / 10  # three rounds, a tenth of them per step
    assert simulate(cluster, WORK, one_group, 8, steps).step_seconds == pytest.approx(
        simulate(cluster, WORK, gtc, 8, steps).step_seconds + broadcast
    )


def test_who_waits_loses_most_by_jitter_and_longer_blocks_lose_less():
    cluster = flat(jitter=0.3)
    speeds = [
        simulate(cluster, WORK, method, 16, steps=100).speedup
        for method in (
            Scheme(traffic=Traffic.gtc),
            Scheme(traffic=Traffic.bmuf, block_steps=10),
            Scheme(traffic=Traffic.bmuf, block_steps=50),
            Scheme(traffic=Traffic.gtc_async, way=Way.direct),
        )
    ]
    assert speeds == sorted(speeds)
    assert speeds[0] < 16 / 1.4 < 15.5 < speeds[-1]


def test_jitter_is_around_a_mean_of_one_and_the_later_of_two_takes_the_closed_form():
    """Log-normal: E max(a, b) = 2 cdf(s / sqrt 2), where s is the deviation of the logarithm."""
    free, jitter, steps = flat(1e9, jitter=0.5), 0.5, 4000
    apart = simulate(free, WORK, Scheme(traffic=Traffic.bmuf, block_steps=steps), 2, steps=steps)
    assert apart.step_seconds == pytest.approx(COMPUTE, rel=0.03)
    met = simulate(free, WORK, Scheme(traffic=Traffic.allreduce), 2, steps=steps)
    later = 2 * NormalDist().cdf(math.sqrt(math.log1p(jitter**2) / 2))
    assert met.step_seconds == pytest.approx(COMPUTE * later, rel=0.03)


def test_half_batches_share_the_jitter_of_their_minibatch():
    """Each half begins when the slower of two workers has ended the half before the last."""
    jitter, steps = 0.5, 4000
    free = flat(1e9, jitter=jitter)
    double = simulate(free, WORK, Scheme(traffic=Traffic.onebit, lag=1), 2, steps=steps)
    variance = math.log1p(jitter**2)
    drawn = np.random.default_rng(9).lognormal(-variance / 2, math.sqrt(variance), (10 * steps, 2))
    before = last = np.zeros(2)
    for half in COMPUTE / 2 * drawn.repeat(2, axis=0):
        before, last = last, np.maximum(last, before.max()) + half
    assert double.step_seconds == pytest.approx(last.max() / len(drawn), rel=0.015)


@pytest.mark.parametrize(
    "method, sent",
    [
        (Scheme(traffic=Traffic.allreduce), DENSE),
        (Scheme(traffic=Traffic.onebit), DENSE / 32),
        (Scheme(traffic=Traffic.onebit, lag=1), DENSE / 16),
        (Scheme(traffic=Traffic.gtc), MESSAGE.size),
        (Scheme(traffic=Traffic.bmuf, block_steps=5), DENSE / 5),
        (Scheme(traffic=Traffic.bmuf_gtc, block_steps=5, group_size=4), DENSE / 20 + MESSAGE.size),
        (Scheme(traffic=Traffic.bmuf_gtc, block_steps=5), DENSE / 5),
    ],
)
def test_bytes_that_a_worker_sends_a_step(method, sent):
    assert simulate(nodes(), WORK, method, 8).sent_bytes == pytest.approx(sent)


def test_a_seed_gives_one_speed():
    method = Scheme(traffic=Traffic.gtc_async, way=Way.direct)
    runs = [simulate(flat(jitter=0.3), WORK, method, 8, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_workers_draws_do_not_depend_on_how_many_there_are():
    """With blocks as long as the run, its time is the slowest worker's sum of draws."""
    method = Scheme(traffic=Traffic.bmuf, block_steps=20)
    cluster = flat(1e9, jitter=0.3)
    taken = [simulate(cluster, WORK, method, w, steps=20).step_seconds for w in (2, 4, 8, 16)]
    assert taken == sorted(taken)


DIRECT = Scheme(traffic=Traffic.gtc, way=Way.direct)


@pytest.mark.parametrize(
    "method, gpus, left",
    [
        (Scheme(traffic=Traffic.allreduce), 1, 2 * 7 / 8 * DENSE),
        (Scheme(traffic=Traffic.bmuf, block_steps=5), 1, 2 * 7 / 8 * DENSE / 5),
        (Scheme(traffic=Traffic.onebit), 1, 2 * 7 / 8 * DENSE / 32),
        (Scheme(traffic=Traffic.onebit, lag=1), 1, 2 * 7 / 8 * DENSE / 16),
        (Scheme(traffic=Traffic.onebit), 4, 2 * 4 * 4 / 8 * DENSE / 32),
        (Scheme(traffic=Traffic.gtc), 1, 7 * MESSAGE.size),
        (DIRECT, 1, 7 * MESSAGE.size),
        (Scheme(traffic=Traffic.gtc_async, way=Way.direct), 1, 7 * MESSAGE.size),
        (Scheme(traffic=Traffic.gtc), 4, 7 * MESSAGE.size),
        (DIRECT, 4, 16 * MESSAGE.size),
    ],
)
def test_bytes_out_of_a_node_a_step(method, gpus, left):
    """Eight workers, each with a node of its own or four on each of two."""
    cluster = flat() if gpus == 1 else nodes(gpus)
    assert simulate(cluster, WORK, method, 8).node_bytes == pytest.approx(left)


def test_messages_of_a_log_are_replayed_in_turn(tmp_path):
    rows = [
        {"step": 1, "sent_bits": 8e5, "elements_sent": 2.5e4, "threshold": 4.0},
        {"step": 2, "sent_bits": 2.4e6, "elements_sent": 7.5e4, "threshold": 4.0},
        {"epoch": 1, "dev_loss": 1.0},
    ]
    write_jsonl(tmp_path / "log.jsonl", rows)
    messages = logged_messages(tmp_path / "log.jsonl")
    assert messages == (MessageSize(1e5, 2.5e4), MessageSize(3e5, 7.5e4))
    work = replace(WORK, messages=messages)
    speed = simulate(flat(), work, Scheme(traffic=Traffic.gtc), 5, steps=10)
    assert speed.step_seconds == pytest.approx(COMPUTE + 4 * 2e5 / RATE)
    assert speed.sent_bytes == 2e5


def test_a_logs_messages_are_of_the_workers_that_had_minibatches(tmp_path):
    """Ten of 40 read in the first half of the first epoch."""
    comm, optim = {"method": "gtc"}, {"phases": [{"until": 0.5, "workers": 10}]}
    about = {"settings": {"comm": comm, "optim": optim}, "workers": 40}
    write_json(tmp_path / "run.json", about)
    row = {"sent_bits": 8e5, "elements_sent": 2.5e4, "threshold": 4.0, "epoch": 1}
    rows = [{**row, "step": 1 + i, "frames": 50 + 50 * i} for i in range(2)]
    write_jsonl(tmp_path / "log.jsonl", rows)
    first, second = logged_messages(tmp_path / "log.jsonl")
    assert (first, second) == (MessageSize(4e5, 1e5), MessageSize(1e5, 2.5e4))


@pytest.mark.parametrize(
    "method, elements, threshold, said",
    [
        (None, 0.0, 4.0, "has no row with a threshold and sent elements"),
        (None, 1e6, None, "has no row with a threshold"),  # whole gradients
        ("bmuf_gtc", 1e6, 4.0, "is a log of bmuf_gtc"),  # whole models among the messages
        ("gtc", 0.0, 4.0, "has no row .* with several workers"),  # of one worker
    ],
)
def test_a_log_of_anything_but_gtcs_messages_is_refused(
    tmp_path, method, elements, threshold, said
):
    row = {"step": 1, "sent_bits": 32 * elements, "elements_sent": elements, "threshold": threshold}
    write_jsonl(tmp_path / "log.jsonl", [row])
    if method is not None:
        write_json(tmp_path / "run.json", {"settings": {"comm": {"method": method}}})
    with pytest.raises(ValueError, match=f"log.jsonl {said}"):
        logged_messages(tmp_path / "log.jsonl")
    (tmp_path / "other.jsonl").write_text('{\n "settings": {}\n}')
    with pytest.raises(ValueError, match=r"other\.jsonl is not .*; name one that is$"):
        logged_messages(tmp_path / "other.jsonl")


def test_of_more_messages_than_steps_some_of_all_are_sent():
    work = replace(WORK, messages=(MESSAGE,) * 50 + (replace(MESSAGE, size=3e5),) * 50)
    speed = simulate(flat(), work, Scheme(traffic=Traffic.gtc), 5, steps=10)
    assert speed.step_seconds == pytest.approx(COMPUTE + 4 * 2e5 / RATE)
    assert speed.sent_bytes == pytest.approx(2e5)


@pytest.mark.parametrize(
    "codec, bits", [("packed32", 32.0), ("tile16", 16.0 + 16 / 32.768), ("rice", 9.97 + 2.5)]
)
def test_sizes_of_messages(codec, bits):
    message = coded_message(32_768_000, 1e-3, codec)
    assert message.elements == pytest.approx(32_768)
    assert message.size == pytest.approx(HEADER_BYTES + bits * 32_768 / 8, rel=1e-3)
    assert coded_message(1e6, 0.9, codec).size == HEADER_BYTES + 2e6 / 8  # a map


def test_the_header_is_as_long_as_the_codecs():
    from asr_train.comm import codec

    assert codec.HEADER_BYTES == HEADER_BYTES


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: coded_message(1e6, 0.0, "rice"), "density is 0.0"),
        (lambda: coded_message(1e6, 0.1, "zip"), "codec is 'zip'; allowed: packed32, tile16, rice"),
    ],
)
def test_what_does_not_go_together_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
