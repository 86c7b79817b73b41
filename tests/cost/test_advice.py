"""Advice follows from speeds: close to SGD if that costs nothing, far from it on slow networks."""

from dataclasses import replace

import pytest
from cost.clusters import flat, nodes

from asr_train.cost import advice
from asr_train.cost.advice import (
    NEAR,
    ORDER,
    Option,
    PlanRequest,
    advised,
    best_of_each_kind,
    crossovers,
    fastest_with,
    methods,
    nearest,
    plan,
    worker_counts,
)
from asr_train.cost.plan import Scheme, Speed, Traffic


def request(**changed) -> PlanRequest:
    values = {
        **{"parameters": 1e7, "minibatch_frames": 1000.0, "workers": 8, "density": 1e-3},
        **{"codec": "rice", "block_steps": (5, 20), "group_sizes": (2, 4)},
    }
    return PlanRequest(**values | changed)


def test_where_the_network_costs_nothing_gradients_are_summed_every_step():
    assert plan(request(), flat(1e6), [1e-3]).advised.method.traffic is Traffic.allreduce


def test_where_it_is_slow_less_is_sent():
    found = plan(request(), flat(0.1), [1e-3, 1e-4])
    assert found.advised.method.traffic is not Traffic.allreduce
    by_kind = {o.method.traffic: o.speed for o in found.options}
    assert by_kind[Traffic.allreduce].speedup < by_kind[Traffic.onebit].speedup
    assert by_kind[Traffic.onebit].speedup < by_kind[Traffic.gtc].speedup
    assert found.densities[1e-3].frames_per_second < found.densities[1e-4].frames_per_second


def test_what_is_advised_is_nearly_the_fastest_and_nothing_nearer_to_sgd_is(monkeypatch):
    monkeypatch.setattr(advice, "worker_counts", lambda most: [most])  # curves are not looked at
    monkeypatch.setattr(advice, "DRAWS", 0)
    for gbit_per_s in (0.1, 1.0, 10.0):
        options = plan(request(), nodes(gbit_per_s=gbit_per_s, jitter=0.2), []).options
        chosen = advised(options)
        assert chosen in best_of_each_kind(options)
        enough = NEAR * max(o.speed.frames_per_second for o in options)
        assert chosen.speed.frames_per_second >= enough
        for other in options:
            if ORDER.index(other.method.traffic) < ORDER.index(chosen.method.traffic):
                assert other.speed.frames_per_second < enough


def test_the_highest_speed_is_that_of_all_blocks():
    """A shorter block, which keeps 95 % of it, does not make 88 % enough."""

    def option(traffic, frames_per_second, block_steps=50):
        method = Scheme(traffic=traffic, block_steps=block_steps)
        return Option(method, Speed(8, 1.0, frames_per_second, 1.0, 0.0, 0.0))

    gtc, short, long = (
        option(Traffic.gtc, 88),
        option(Traffic.bmuf, 96, 5),
        option(Traffic.bmuf, 100, 20),
    )
    assert advised([gtc, short, long]) is short
    slow, fast = option(Traffic.bmuf_gtc, 89, 5), option(Traffic.bmuf_gtc, 92, 20)
    assert advised([gtc, slow, fast, short, long]) is fast
    assert best_of_each_kind([gtc, slow, fast, short, long]) == [gtc, fast, short]


def test_nearest_to_sgd_are_shorter_blocks_and_then_larger_groups_that_are_fast_enough():
    def option(block_steps, group_size, frames_per_second):
        method = Scheme(traffic=Traffic.bmuf_gtc, block_steps=block_steps, group_size=group_size)
        return Option(method, Speed(8, 1.0, frames_per_second, 1.0, 0.0, 0.0))

    fastest, large, small, slow = (
        option(20, 2, 100),
        option(5, 4, 95),
        option(5, 2, 99),
        option(5, 8, 94),
    )
    assert nearest([fastest, small, slow, large], 0.95) is large
    assert nearest([fastest, small, slow], 0.95) is small
    assert nearest([fastest, small, slow], 0.94) is slow
    assert nearest([fastest, large, small, slow], 1.0) is fastest


def test_curves_end_with_the_options_themselves():
    found = plan(request(), flat(1.0), [])
    for option in best_of_each_kind(found.options):
        speeds = found.curves[option.method.name]
        assert speeds[-1] == option.speed
        assert [s.workers for s in speeds] == [
            w for w in worker_counts(8) if w % option.method.group_size == 0
        ]


def test_double_buffering_pays_where_it_hides_more_than_another_fixed_cost():
    for fixed_ms, name in ((50.0, "onebit"), (0.0, "onebit, double buffering")):
        found = plan(request(kinds=(Traffic.onebit,)), flat(1.0, fixed_ms=fixed_ms), [])
        assert found.advised.method.name == name


def test_a_measured_rate_takes_the_place_of_the_clusters():
    one = {"kinds": (Traffic.allreduce,)}
    found = plan(request(frames_per_second=1234.0, **one), flat(1.0, fixed_ms=50.0), [])
    assert found.alone.frames_per_second == pytest.approx(1234.0)
    derived = plan(request(**one), flat(1.0), []).alone.frames_per_second
    assert derived == pytest.approx(0.5e12 / (6 * 1e7))


def test_passes_over_all_parameters_take_longer_with_more_of_them():
    k20x = flat(1.0, fixed_ms=50.0, fixed_parameters=5e6)
    assert request().work(k20x).fixed_seconds == pytest.approx(0.1)  # 10 M
    assert request().work(flat(1.0, fixed_ms=50.0)).fixed_seconds == pytest.approx(0.05)


def test_one_worker_has_one_method():
    assert [m.traffic for m in methods(request(workers=1))] == [Traffic.none]
    assert plan(request(workers=1), flat(), [1e-3]).advised.speed.speedup == pytest.approx(1.0)


@pytest.mark.parametrize("gpus, optima", [(1, 0), (8, 4)])
def test_a_single_node_has_a_plan_though_k_hat_may_exceed_its_gpus(gpus, optima):
    one = nodes(gpus)
    one = replace(one, max_nodes=1, between=None, inside=one.inside if gpus > 1 else None)
    found = plan(request(workers=gpus, minibatch_frames=1e5, activations=1e3), one, [1e-3])
    assert [k.stripes > gpus for k in found.optima] == [True] * optima
    assert found.options[0].speed.workers == gpus


def test_groups_that_do_not_divide_the_workers_are_left_out():
    sizes = {m.group_size for m in methods(request(workers=6, group_sizes=(2, 3, 4, 6)))}
    assert sizes == {1, 2, 3}


@pytest.mark.parametrize("most, counts", [(1, [1]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])])
def test_worker_counts(most, counts):
    assert worker_counts(most) == counts


def speeds(*pairs: tuple[int, float]) -> list[Speed]:
    return [Speed(workers, 1.0, fps, 1.0, 0.0, 0.0) for workers, fps in pairs]


def test_crossovers_are_where_another_method_becomes_the_fastest():
    curves = {
        "a": speeds((1, 1), (2, 2), (4, 3), (8, 2.5)),
        "b": speeds((1, 1), (2, 1.5), (4, 2.9), (8, 5)),
        "c": speeds((8, 4)),
    }
    assert crossovers(curves) == [(2, "a"), (8, "b")]
    assert [fastest_with(s) for s in curves.values()] == [4, 8, 8]


def test_a_kind_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="workers is 7, with which none of bmuf_gtc is possible"):
        methods(request(workers=7, kinds=(Traffic.bmuf_gtc,)))
