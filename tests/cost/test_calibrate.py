"""Rows are the papers', the fit finds constants that it does not know, predictions are accurate."""

from dataclasses import replace
from pathlib import Path

import pytest
from cost.clusters import flat

from asr_train.cost.calibrate import (
    SUB_BATCH_FIT,
    Case,
    Fit,
    Row,
    fit,
    ladkat_2019,
    mean_absolute,
    null_model,
    seide_2014,
    simulated,
    size_at,
    strom_2015,
    strom_contradictions,
    sub_batch,
)
from asr_train.cost.cluster import read_cluster
from asr_train.cost.plan import MessageSize, Scheme, Traffic, Way, Work
from asr_train.files import read_json, read_yaml
from scripts.fit_cluster import run

ROOT = Path(__file__).parents[2]
CLUSTERS = {"strom2015": "ec2_g2", "ladkat2019": "p3.16xlarge"}


def case(name: str) -> Case:
    return strom_2015() if name == "strom2015" else ladkat_2019()


@pytest.fixture(scope="module")
def seide() -> tuple[Case, Case, Fit]:
    """Cases of the farm and of the server, and the fit of the farm's constants."""
    farm, server = seide_2014(), seide_2014(server=True)
    return farm, server, fit(farm, read_cluster("k20x_farm"), farm.fit_on)


def test_t_sub_is_fitted_on_two_rows_and_predicts_the_others():
    paper = read_yaml(ROOT / "conf/papers/seide2014_1bit.yaml")
    found = sub_batch()
    for frames, milliseconds, _ in paper["table_1_subbatch"]["rows"]:
        close = 1e-9 if frames in SUB_BATCH_FIT else 0.02
        assert 1e3 * found.seconds(frames) == pytest.approx(milliseconds, rel=close)
    for name in ("k20x_farm", "k20x_server"):
        gpu = read_cluster(name).gpu
        assert gpu.fixed_ms == 1e3 * found.fixed_seconds
        assert gpu.start_ms == pytest.approx(1e3 * found.start_seconds, rel=0.01)
        assert 6 * 46e6 / gpu.flops == pytest.approx(found.frame_seconds, rel=0.01)


def test_seides_speeds_come_out_with_two_constants(seide):
    farm, server, found = seide
    assert [len(case.rows) for case in (farm, server)] == [17 + 12, 8]
    for row in farm.rows:
        if row.label in farm.fit_on:
            assert found.simulated[row.label] == pytest.approx(row.published, rel=1e-3)
    assert mean_absolute(found.errors(farm.rows)) < 0.08
    for name in ("k20x_farm", "k20x_server"):
        cluster = read_cluster(name)
        assert cluster.lambda_conn == pytest.approx(found.constants["lambda_conn"], rel=0.01)
        assert cluster.gpu.exchange_ms == pytest.approx(found.constants["exchange_ms"], rel=0.01)


def test_only_papers_with_a_case_are_fitted(tmp_path):
    with pytest.raises(ValueError, match="'kaldi' is not a paper with speeds"):
        run("kaldi", str(tmp_path))


def test_the_papers_rows_are_there_once():
    labels = {name: [row.label for row in case(name).rows] for name in CLUSTERS}
    assert [len(found) for found in labels.values()] == [13, 18]
    assert all(len(set(found)) == len(found) for found in labels.values())


def test_what_one_worker_does_is_the_papers():
    strom, ladkat = case("strom2015").rows[0], case("ladkat2019").rows[0]
    assert strom.reference == 10_000
    assert strom.work.frames / strom.work.seconds() == pytest.approx(10_000)
    hours = 290 * 60 * ladkat.reference * 0.03 / 3600  # of speech in 290 minutes
    assert hours == pytest.approx(2000)


def test_a_row_whose_own_numbers_disagree_is_doubtful_and_not_fitted_on():
    found = case("strom2015")
    doubts = strom_contradictions()
    doubtful = [row.label for row in found.rows if row.label in doubts]
    assert doubtful == ["table 3, tau 6", "table 3, tau 9", "table 4, 8 hidden"]
    assert doubts.keys() - doubtful == {"table 3, tau 4", "table 4, 5 hidden"}  # 40 nodes again
    assert "180 minutes" in doubts["table 3, tau 4"]
    assert "306,667 frames/s" in doubts["table 3, tau 4"]  # 9 x 368 M in 180 minutes
    for chosen in (found.fit_on, *found.others):
        assert not set(doubtful) & set(chosen)


def test_one_constant_is_the_yardstick():
    """On Strom's rows 0.88 per node, of his 10 nodes, over the size of the network."""
    found = case("strom2015")
    null = null_model(found)
    assert null.constants == {"efficiency": pytest.approx(0.88)}
    assert null.simulated["table 2, 40 nodes"] == pytest.approx(0.88 * 40)
    assert null.simulated["table 4, 5 hidden of 3x size"] == pytest.approx(0.88 * 40 * 14.6 / 48.8)
    assert mean_absolute(null.errors(found.rows)) == pytest.approx(0.063, abs=0.001)
    assert null.errors(found.rows).keys() == {
        row.label for row in found.rows if row.label not in found.fit_on
    }


@pytest.mark.parametrize("name", CLUSTERS)
def test_there_are_fewer_constants_than_rows_left_to_predict(name):
    found = case(name)
    assert len(found.start) <= len(found.fit_on) < len(found.rows) - 2 * len(found.start)


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_clusters_constants_are_the_fitted_ones(name):
    fitted = read_json(ROOT / "results" / name / "speed.json")["fits"][0]["constants"]
    cluster = read_cluster(CLUSTERS[name])
    ours = {"fabric_gbit_per_s": cluster.fabric_gbit_per_s}
    ours |= {key: getattr(cluster.gpu, key) for key in fitted if hasattr(cluster.gpu, key)}
    for key, value in ours.items():
        assert value == pytest.approx(fitted[key], rel=0.01), key


@pytest.mark.parametrize(
    "name, label",
    [
        ("strom2015", "table 2, 5 nodes"),
        ("strom2015", "table 2, 40 nodes"),
        ("strom2015", "table 3, tau 9"),
        ("ladkat2019", "table 1, GTC, 32 GPUs"),
        ("ladkat2019", "table 1, BMUF, 64 GPUs"),
        ("ladkat2019", "table 1, BMUF-GTC, 64 GPUs"),
    ],
)
def test_rows_that_were_not_fitted_on_come_out(name, label):
    found = case(name)
    assert label not in found.fit_on
    row = next(row for row in found.rows if row.label == label)
    constants = read_json(ROOT / "results" / name / "speed.json")["fits"][0]["constants"]
    cluster = read_cluster(CLUSTERS[name])
    assert simulated(row, cluster, constants, 16) == pytest.approx(row.published, rel=0.15)


def made_up() -> tuple[Case, dict[str, float]]:
    """Return rows of a cluster with known constants."""
    truth = {"encode_ns": 2.0, "decode_ns": 3.0}
    work = Work(parameters=1e7, frames=1000, frame_seconds=1e-4, messages=(MessageSize(1e5, 2e6),))
    rows = []
    for workers in (2, 4, 8):
        row = Row(
            label=str(workers),
            work=work,
            method=Scheme(traffic=Traffic.gtc, way=Way.direct),
            workers=workers,
            published=1.0,
            reference=10_000,
        )
        rows.append(replace(row, published=simulated(row, flat(), truth, 5)))
    return Case(
        rows=tuple(rows),
        start={"encode_ns": 1.0, "decode_ns": 1.0},
        fit_on=("2", "8"),
        steps=5,
    ), truth


def test_the_fit_finds_constants_and_predicts_with_them():
    made, truth = made_up()
    found = fit(made, flat(), made.fit_on)
    assert found.constants == pytest.approx(truth, rel=1e-3)
    assert set(found.errors(made.rows)) == {"4"}
    assert mean_absolute(found.errors(made.rows)) < 1e-3


def test_errors_are_of_the_rows_left_out():
    made, _ = made_up()
    rows = [replace(row, published=10.0) for row in made.rows]
    found = Fit({}, {"2": 11.0, "4": 9.0, "8": 12.0}, ("2",))
    assert found.errors(rows) == pytest.approx({"4": -0.1, "8": 0.2})
    assert mean_absolute(found.errors(rows)) == pytest.approx(0.15)


def test_sizes_between_known_ones_lie_between():
    known = [(2.0, 100.0), (8.0, 25.0)]
    assert size_at(known, 2.0) == pytest.approx(100)
    assert size_at(known, 4.0) == pytest.approx(50)
    with pytest.raises(ValueError, match=r"sizes are known from 2.0 to 8.0"):
        size_at(known, 9.0)
