"""Laws of a paper's table: changes against a seed's baseline, dashes, texts, pictures."""

import json
from dataclasses import replace

import numpy as np
import pytest
from finished_runs import (
    BMUF,
    CONF,
    EPOCHS,
    FRAMES,
    GTC,
    STEPS,
    P,
    a_table,
    all_finished,
    finished,
    score,
    tabulated,
)
from matplotlib.figure import Figure

from asr_train.cost.cluster import read_cluster
from asr_train.paper import speed
from asr_train.paper.hours import training_hours
from asr_train.paper.layout import columns, markdown, plain, rows_shown
from asr_train.paper.plot import plot
from asr_train.paper.rows import HoursSettings, RowSettings
from asr_train.report.exchange import DASH
from asr_train.schema import CommSettings, build

NODES = [
    {"run": "sgd", "paper": {"nodes": 1}},
    {"run": "gtc", "set": {"comm.workers": 5}, "paper": {"nodes": 5}},
    {"run": "gtc", "set": {"comm.workers": 20}, "paper": {"nodes": 20}},
    {"run": "gtc_async", "set": {"comm.workers": 20}, "label": "20, asynchronous"},
]
METHODS = [
    {"run": "gtc", "set": {"comm.workers": 16}, "paper": {"method": "GTC", "gpus": 16}},
    {"run": "bmuf", "set": {"comm.workers": 16}, "paper": {"method": "BMUF", "gpus": 16}},
    {"run": "bmuf", "set": {"comm.workers": 32}, "paper": {"method": "BMUF", "gpus": 32}},
    {"run": "bmuf_gtc", "set": {"comm.workers": 32}, "paper": {"method": "BMUF_GTC", "gpus": 32}},
]


@pytest.fixture
def nodes(tmp_path):
    return a_table(tmp_path, "strom2015", "table_2_nodes", NODES)


def ours(content, label):
    return next(row["ours"] for row in content["rows"] if row["label"] == label)


def shown(content, label):
    names = [column.name for column in columns(content)]
    row = next(row for row in rows_shown(content) if row["label"] == label)
    return dict(zip(names, [c.cell(row) for c in columns(content)], strict=True))


# --- several test sets --------------------------------------------------------------------------

SPLITS = {"hub5_00": "test_clean", "rt03s_fsh": "test_noise", "teleconf": "test_human"}
PRODUCTION = [
    {"run": "sgd", "paper": {"data_x_model": "1x1"}},
    {"run": "sgd", "realign": True, "paper": {"data_x_model": "1x1 + realign"}},
]


HOURS = {"speech_hours": 3300, "passes": 1, "parameters_millions": 160, "cluster": "k20x_farm"}


@pytest.fixture
def production(tmp_path):
    return a_table(
        *(tmp_path, "seide2014_1bit", "table_6_production", PRODUCTION),
        **{"splits": SPLITS, "hours": HOURS},
    )


def with_errors(table, errors):
    """Finished runs with these errors in every test set of `errors`."""
    trained = all_finished(table)
    for run in trained.values():
        run.about["settings"]["optim"] |= {"phases": [{"until": 1}], "epochs": EPOCHS}
        run.scores[1:] = [
            score(run.run, each, split) for split, each in errors[run.run.count("realign")].items()
        ]
    return trained


def test_each_test_set_has_a_column_and_all_together_the_reduction(production):
    content = tabulated(
        production,
        with_errors(
            production, [{"test_clean": 6, "test_noise": 24}, {"test_clean": 6, "test_noise": 9}]
        ),
    )
    first, second = (row["label"] for row in content["rows"])
    assert shown(content, first)["hub5 00: paper / WER % of test_clean"].startswith("14.5 / 6.")
    assert shown(content, second)["rt03s fsh: paper / WER % of test_noise"].startswith("14.1 / 9.")
    teleconf = next(name for name in shown(content, first) if name.startswith("teleconf"))
    assert shown(content, first)[teleconf] == f"19.4 / {DASH}"  # no recordings of people
    assert ours(content, second)["wer_reduction"]["percent"] == pytest.approx(50)
    assert ours(content, second)["words"] == 2400
    assert ours(content, second)["runs"][0].endswith("-seed1-realign1")


def test_a_missing_test_set_is_named(production):
    trained = with_errors(production, [{"test_clean": 6}, {"test_clean": 6}])
    with pytest.raises(ValueError, match="has no score of test_noise"):
        tabulated(production, trained)


@pytest.mark.parametrize("lacking", [0, 1])
def test_rows_of_other_test_sets_are_named_with_the_variable_to_give(production, lacking):
    errors = [{"test_clean": 6, "test_noise": 9, "test_human": 9} for _ in range(2)]
    del errors[lacking]["test_human"]
    with pytest.raises(ValueError, match=r"test_human.* call make with HUMAN=path"):
        tabulated(production, with_errors(production, errors))


def test_hours_follow_from_the_minibatches_that_a_run_chose():
    def hours(parallel, *sizes, cold_start=0.0, halves=1, passes=1):
        frames = np.cumsum(np.array(sizes) * 1000)
        log = [{"step": 1000 * i, "frames": int(f)} for i, f in enumerate(frames, 1)]
        settings = HoursSettings(**HOURS | {"passes": passes})
        return training_hours(log, 64, cold_start, halves, parallel, settings)

    alone = hours("1x1", 64)  # T_sub(1024), times the network's size
    sub_batch = (18.2e-3 + 11.9e-3 + 1024 * 112.9e-6) * 160 / 46
    assert alone == pytest.approx(3300 * 360_000 / 1024 * sub_batch / 3600, rel=0.01)
    assert hours("1x1 + realign", 64) == hours("1", 64) == alone
    assert hours("1", 64, passes=7) == pytest.approx(7 * alone)
    assert hours("10x2", 640) < hours("10x2", 64) < alone
    assert hours("10x2", 64, 640, cold_start=0.05) > hours("10x2", 64, 640)
    both = hours("10x2", 64, 64, 640)
    assert hours("10x2", 640) < both < hours("10x2", 64)
    assert hours("10x2") is None
    assert hours("1x1", 32, halves=2) == alone
    late = hours("10x2", 64, 32, 32, cold_start=0.4, halves=2)  # the first is no half
    cold, warm = hours("10x2", 64, cold_start=1.0), hours("10x2", 32, halves=2)
    assert late == pytest.approx((cold + warm) / 2)
    assert warm != hours("10x2", 64)  # two exchanges per minibatch, behind the next half


def test_an_interval_whose_steps_were_all_skipped_has_no_part_in_the_accuracy(nodes):
    trained = all_finished(nodes)
    expected = ours(tabulated(nodes, trained), "5")["train_accuracy"]
    log = trained[nodes.rows[1].runs[0].name].log
    log.append(log[-2] | {"step": log[-2]["step"] + STEPS, "accuracy": None})  # of equal frames
    assert ours(tabulated(nodes, trained), "5")["train_accuracy"] == expected == 0.3


# --- changes ------------------------------------------------------------------------------------


def test_a_row_that_is_the_baseline_has_not_changed(nodes):
    content = tabulated(nodes, all_finished(nodes))
    for label in ("1", "20"):  # the same run, and another with the same errors
        found = ours(content, label)["wer_reduction"]
        assert found["percent"] == 0
        assert found["ci95"] == [0, 0]
        assert found["p"] == 1
        assert ours(content, label)["frame_error_reduction_percent"] == 0


def test_half_the_errors_are_a_reduction_of_50_percent(nodes):
    trained = all_finished(nodes, errors=12)
    row = nodes.rows[2].runs[0]
    trained[row.name] = finished(row, errors=6)
    found = ours(tabulated(nodes, trained), "20")["wer_reduction"]
    assert found["percent"] == pytest.approx(50)
    assert found["ci95"] == pytest.approx([50, 50])
    assert found["p"] == pytest.approx(0.0187, abs=1e-4)  # 2 of 501, by t with 11 degrees
    assert (found["over"], found["units"]) == ("speakers", 12)


def test_intervals_hold_the_mean_and_do_not_hold_0_where_all_speakers_gain(nodes):
    name = nodes.rows[1].runs[0].name
    gained = {f"s{s}": 7 - s % 4 for s in range(12)}
    trained = all_finished(nodes, errors=8)
    trained[name] = replace(trained[name], scores=[score(name, **gained)])
    content = tabulated(nodes, trained)
    found = ours(content, "5")["wer_reduction"]
    low, high = found["ci95"]
    assert 0 < low < found["percent"] < high
    assert shown(content, "5")["relative WER reduction %: paper / ours"].startswith("1.6 / ")
    assert "*" in shown(content, "5")["relative WER reduction %: paper / ours"]


def test_more_errors_are_a_negative_reduction(nodes):
    trained = all_finished(nodes)
    row = nodes.rows[2].runs[0]
    trained[row.name] = finished(row, errors=9, accuracy=0.5)
    found = ours(tabulated(nodes, trained), "20")
    assert found["wer_reduction"]["percent"] == pytest.approx(-50)
    assert found["frame_error_reduction_percent"] == pytest.approx(-25)


def test_rates_of_two_seeds_are_their_mean_and_each_meets_its_own_baseline(tmp_path):
    table = a_table(tmp_path, "strom2015", "table_2_nodes", NODES, seeds=[1, 2])
    trained = all_finished(table)
    first, second = table.rows[2].runs
    trained[table.baseline.runs[1].name] = finished(table.baseline.runs[1], errors=12)
    trained[first.name] = finished(first, errors=3, accuracy=0.7)
    trained[second.name] = finished(second, errors=12)
    content = tabulated(table, trained)
    found = ours(content, "20")
    rates = found["wer_by_seed"]
    assert found["seeds"] == len(rates) == 2
    assert found["wer"] == pytest.approx(sum(rates) / 2)
    assert found["wer_reduction"]["percent_by_seed"] == pytest.approx([50, 0])
    low, high = found["wer_reduction"]["ci95"]
    assert low < 0 < 50 < high  # two seeds of 50 and 0 % say little
    assert found["wer_reduction"]["percent"] == pytest.approx(100 * 3 / 18)
    assert found["frame_error_reduction_percent"] == pytest.approx((25 + 0) / 2)
    assert shown(content, "20")["WER %"] == "7.50 (3.00, 12.00)"
    assert "components of variance of speakers and seeds" in markdown(content)


def test_a_mean_by_epoch_is_over_the_seeds_that_came_so_far(tmp_path):
    table = a_table(tmp_path, "strom2015", "table_2_nodes", NODES, seeds=[1, 2])
    trained = all_finished(table)
    first, second = table.rows[2].runs
    trained[first.name] = finished(first, accuracy=0.7)
    ended = finished(second, accuracy=0.6)
    trained[second.name] = replace(ended, log=ended.log[:2])  # after an epoch
    found = ours(tabulated(table, trained), "20")
    assert found["frame_error_by_epoch"] == pytest.approx([(0.5 + 0.6) / 2, 0.4, 0.3])


def test_epochs_at_the_full_rate_are_said_where_newbob_chooses_their_number(tmp_path):
    table = a_table(tmp_path, "strom2015", "table_2_nodes", NODES[1:2], seeds=[1, 2])
    trained = all_finished(table)
    assert "at the full rate" not in markdown(tabulated(table, trained))
    for run in trained.values():
        run.about["settings"]["optim"]["halving"] = "newbob"
    second = trained[table.rows[0].runs[1].name]
    for row in second.log:
        if row["epoch"] == 2 and "rate" in row:
            row["rate"] = 0.008  # as in epoch 1, where the others halve it
    found = tabulated(table, trained)
    each = [row["ours"]["full_rate_epochs"] for row in rows_shown(found)]
    assert each == [[1, 1], [1, 2]]
    assert f"baseline: 1, 1; {found['rows'][0]['label']}: 1, 2." in markdown(found)


def test_a_baseline_without_errors_leaves_dashes(nodes):
    content = tabulated(nodes, all_finished(nodes, errors=0))
    assert ours(content, "20")["wer_reduction"] is None
    assert "p" not in content["columns"]  # it would be dashes alone
    assert "made no error" in markdown(content)


# --- what is sent, and where it is missing --------------------------------------------------------


def test_numbers_are_the_logs(nodes):
    content = tabulated(nodes, all_finished(nodes, density=0.002))
    found = ours(content, "20")
    assert found["workers"] == 2
    assert found["parameters"] == P
    assert found["elements_a_minibatch"] == pytest.approx(0.002 * P)
    assert found["compression_ratio"] == pytest.approx(32 / 11 / 0.002)
    assert found["frame_error"] == pytest.approx(0.4)
    assert found["frames_an_epoch"] == STEPS * FRAMES * 2
    assert found["cpu_minutes"] == pytest.approx(EPOCHS * STEPS * 0.015 / 60)
    assert found["staleness"] is None
    assert found["virtual_seconds"] is None
    assert ours(content, "20, asynchronous")["virtual_seconds"] == 12
    assert found["frame_error_by_epoch"] == pytest.approx([0.6, 0.5, 0.4])


def test_numbers_are_shown_in_the_units_of_their_columns(nodes):
    """200 elements of 11 bits per step; three epochs of 40 steps of 20 ms."""
    row = shown(tabulated(nodes, all_finished(nodes, density=0.002)), "20")
    assert row["KB per minibatch"] == "0.275"
    assert row["elements per step"] == "200"
    assert row["KB received per step"] == "0.275"  # of one other worker
    assert row["bf16 / received"] == "727"  # 2 bytes for each of 100,000 parameters
    assert row["density"] == "0.002"
    assert row["DEV frame error %"] == "40.00"
    assert row["minutes: paper / CPU of this machine"] == "323 / 0.03"
    shown_speeds = row["frames/s: paper / simulated / CPU of this machine"]
    assert shown_speeds.endswith(" / 8,533")  # 128 frames in 15 ms


def test_frame_errors_over_the_baselines_are_below_1_where_a_row_has_fewer(nodes):
    trained = all_finished(nodes)  # 0.6, 0.5 and 0.4 after the three epochs
    name = nodes.rows[2].runs[0].name
    trained[name] = finished(nodes.rows[2].runs[0], accuracy=0.8)
    found = ours(tabulated(nodes, trained), "20")["frame_error_over_baseline_by_epoch"]
    assert found == pytest.approx([0.4 / 0.6, 0.3 / 0.5, 0.2 / 0.4])


def test_gtc_of_one_worker_sends_nothing_and_has_dashes(nodes):
    content = tabulated(nodes, all_finished(nodes))
    row = shown(content, "5")  # a tenth of 5 workers is one
    assert row["nodes: paper / ours"] == "5 / 1"
    for name in ("KB per minibatch", "compression ratio", "elements per step", "density"):
        assert row[name] == DASH
    assert row["speed-up: paper / simulated"] == "4.3 / 4.4"  # of the paper's five workers


@pytest.mark.parametrize("case", ["strom2015", "ladkat2019"])
def test_the_papers_rows_are_simulated_as_they_were_fitted(case):
    """With the paper's density: the same work and method, for every row that was predicted."""
    found = speed.case_of(case)
    for row in found.rows:
        millions = {"parameters_millions": row.work.parameters / 1e6}
        message = row.work.messages[0]
        work = speed.work_of(found, millions, message.elements / row.work.parameters)
        assert work.parameters == pytest.approx(row.work.parameters)
        assert work.frames == row.work.frames
        assert work.frame_seconds == pytest.approx(row.work.frame_seconds)
        if message.elements:
            assert work.messages[0].size == pytest.approx(message.size)
        name = row.method.traffic.value
        values = {
            **{"comm.workers": row.workers, "comm.bmuf.block_steps": row.method.block_steps},
            "comm.group_size": row.method.group_size,
        }
        comm = speed.at_paper_scale(_comm("gtc" if name == "gtc_async" else name), values)
        method = speed.method_of(comm, row.workers, found, is_printed=True)
        ours = speed.method_of(comm, row.workers, found, is_printed=False)
        assert ours.traffic is comm.method.traffic  # workers wait if those of our run did
        assert method == replace(row.method, block_steps=method.block_steps)
        if "block" in row.label:
            assert method.block_steps == row.method.block_steps


def _comm(method):
    return {"method": method, "gtc": dict(GTC), "bmuf": dict(BMUF), "group_size": 0}


@pytest.mark.parametrize("density", [0.001, 0.1])
def test_a_simulated_speed_is_that_of_speed_md_whatever_the_density_of_ours(nodes, density):
    content = tabulated(nodes, all_finished(nodes, density=density))
    committed = json.loads((CONF.parent / "results/strom2015/speed.json").read_text())
    expected = {row["label"]: row["ours"]["speedup"] for row in committed["rows"]}
    found = ours(content, "20")["simulated"]
    assert found["method"] == "gtc_async"
    assert found["speedup"] == pytest.approx(expected["table 2, 20 nodes"], rel=0.01)
    assert ours(content, "1")["simulated"]["speedup"] == pytest.approx(1)


def test_density_falls_with_the_threshold_as_the_paper_printed():
    strom, ladkat = (speed.case_of(name) for name in ("strom2015", "ladkat2019"))
    assert strom.density(4.0) == pytest.approx(69e3 / 4 / 14.6e6)
    assert strom.density(4.0) == pytest.approx(1 / 846, rel=0.01)  # its compression ratio
    assert strom.density(15.0) == pytest.approx(4.5e3 / 4 / 14.6e6)
    committed = json.loads((CONF.parent / "results/ladkat2019/speed.json").read_text())
    fitted = committed["fits"][0]["constants"]["message_kb"]
    assert ladkat.density(8.0) == pytest.approx(1e3 * fitted / 4 / 24e6, rel=0.01)
    assert ladkat.density(2.0) > ladkat.density(8.0)


def test_speed_ups_in_total_time_count_the_frames_that_were_needed(nodes):
    trained = all_finished(nodes)
    row = nodes.rows[2].runs[0]
    half = len(trained[row.name].log) // 3
    trained[row.name] = replace(trained[row.name], log=trained[row.name].log[: 2 * half])
    found = ours(tabulated(nodes, trained), "20")["simulated"]
    alone = trained[nodes.baseline.runs[0].name].log[-2]["frames"]
    needed = trained[row.name].log[-2]["frames"]
    assert found["speedup_total"] == pytest.approx(found["speedup"] * alone / needed)
    assert alone != needed


@pytest.mark.parametrize("which", ["row", "baseline"])
def test_a_run_that_diverged_has_no_total_time(tmp_path, which):
    table = a_table(tmp_path, "ladkat2019", "table_1_workers", METHODS)
    trained = all_finished(table)
    run = (table.rows[0] if which == "row" else table.baseline).runs[0]
    trained[run.name].log[-1] |= {"diverged": "the loss is nan at step 7", "simulated_seconds": 9.0}
    content = tabulated(table, trained)
    assert content["rows"][0]["ours"]["virtual_seconds"] is None
    cells = shown(content, table.rows[0].label)
    assert cells["speed-up in total time: paper / simulated"].endswith(f" / {DASH}")
    assert not cells["speed-up in frames/s: paper / simulated"].endswith(DASH)
    assert (cells["minutes, CPU of this machine"] == DASH) == (which == "row")
    plot(content, tmp_path / "made.png")
    assert "diverged" in markdown(content)


def test_values_of_the_paper_take_the_place_of_the_scaled_ones():
    comm = speed.at_paper_scale(_comm("bmuf_gtc"), {"comm.workers": 128, "comm.group_size": 8})
    assert isinstance(comm, CommSettings)
    assert (comm.workers, comm.group_of(128)) == (128, 8)
    assert comm == build(CommSettings, _comm("bmuf_gtc") | {"workers": 128, "group_size": 8})


def test_who_says_no_number_of_workers_is_not_simulated(nodes):
    case = speed.case_of("strom2015")
    run = finished(nodes.baseline.runs[0])
    comm = run.about["settings"]["comm"] | {"workers": None}
    row = RowSettings(run="sgd")
    assert speed.simulated(case, read_cluster("ec2_g2"), row, {}, None, comm) is None


@pytest.mark.parametrize(("tau", "known"), [(15.0, True), (60.0, False)])
def test_a_threshold_beyond_the_printed_ones_is_not_simulated(tau, known):
    case = speed.case_of("strom2015")
    row = RowSettings(run="gtc", set={"comm.workers": 40, "comm.gtc.threshold": tau})
    found = speed.simulated(case, read_cluster("ec2_g2"), row, {}, None, _comm("gtc"))
    assert (found is not None) == known


def test_weights_of_blocks_are_no_messages_of_gtc(tmp_path):
    rows = [METHODS[3]]
    table = a_table(tmp_path, "ladkat2019", "table_1_workers", rows)
    (run,) = table.rows[0].runs  # 8 workers, groups of 8, blocks of 5: 8 blocks per epoch
    sent = finished(run, density=0.002)
    assert sent.log[0]["elements_sent"] == pytest.approx((0.002 + 8 / STEPS / 8) * P)
    assert speed.density(sent) == pytest.approx(0.002)


# --- missing runs and scores ---------------------------------------------------------------------


def test_a_missing_run_is_named_with_what_to_do(nodes):
    trained = all_finished(nodes)
    name = nodes.rows[2].runs[0].name
    del trained[name]
    with pytest.raises(ValueError, match=rf"{name}, which is missing; run make .*SCALE=small"):
        tabulated(nodes, trained)


@pytest.mark.parametrize("splits, count", [(["dev"], 0), (["test", "eval"], 2)])
def test_a_run_has_one_score_of_test(nodes, splits, count):
    trained = all_finished(nodes)
    name = nodes.rows[2].runs[0].name
    trained[name] = replace(trained[name], scores=[score(name, split=s) for s in splits])
    with pytest.raises(ValueError, match=f"{name} has {count} scores of held-out splits.*run make"):
        tabulated(nodes, trained)


def test_missing_scores_of_epochs_are_named(tmp_path):
    rows = [{"run": "gtc", "label": "40"}]
    table = a_table(tmp_path, "strom2015", "figure_1", rows, decode_epochs=True)
    with pytest.raises(ValueError, match=r"sgd-workers1-seed1 has no scores of its epochs.*make"):
        tabulated(table, all_finished(table))


def test_runs_of_other_speakers_are_not_compared(nodes):
    trained = all_finished(nodes)
    name = nodes.rows[2].runs[0].name
    trained[name] = replace(trained[name], scores=[score(name, speakers=13)])
    with pytest.raises(
        ValueError, match=f"{name} and strom2015-sgd-workers1-seed1, test: .*cannot be paired"
    ):
        tabulated(nodes, trained)


# --- texts and pictures ---------------------------------------------------------------------------


def both_figures(tmp_path):
    strom, ladkat = tmp_path / "strom", tmp_path / "ladkat"
    strom.mkdir()
    ladkat.mkdir()
    first = a_table(
        strom, "strom2015", "figure_1", [{"run": "gtc", "label": "40 nodes"}], decode_epochs=True
    )
    rows = [{key: row[key] for key in ("run", "set")} for row in METHODS[:2]]
    rows = [row | {"label": row["run"].upper()} for row in rows]
    second = a_table(ladkat, "ladkat2019", "figure_2", rows)
    epochs = {run.name: [score(run.name, 9 - n) for n in range(EPOCHS)] for run in first.runs}
    return (
        tabulated(first, all_finished(first), epochs),
        tabulated(second, all_finished(second, accuracy=0.55)),
    )


def every_table(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    nodes = a_table(first, "strom2015", "table_2_nodes", NODES)
    methods = a_table(second, "ladkat2019", "table_1_workers", METHODS)
    return [
        tabulated(nodes, all_finished(nodes)),
        tabulated(methods, all_finished(methods)),
        *both_figures(tmp_path),
    ]


def test_texts_have_a_cell_a_column_and_json_comes_back(tmp_path):
    keys = {"label", "paper", "ours", "measured", "ratios"}
    for content in every_table(tmp_path):
        assert json.loads(json.dumps(content, allow_nan=False)) == content
        assert all(set(row) == keys for row in content["rows"])
        own, _, ratios = markdown(content).partition("\n## Ratios\n")
        lines = [line for line in own.splitlines() if line.startswith("|")]
        count = len(rows_shown(content))
        assert ratios.count("\n|") == 2 + len(content["rows"])  # of the baseline none are given
        assert len(lines) == 2 + count
        assert {line.count("|") for line in lines} == {len(content["columns"]) + 1}
        assert "Made 2025-01-01 at commit abc1234" in markdown(content)
        assert "Simulated, not measured" in markdown(content)
        own, _, ratios = plain(content).partition("ratios, the paper's / ours:\n")
        assert len(own.splitlines()) == 2 + count
        assert len(ratios.splitlines()) == 1 + len(content["rows"])


def test_the_baseline_is_a_row_where_the_table_has_none(tmp_path):
    nodes, methods, *_ = every_table(tmp_path)
    assert [row["label"] for row in rows_shown(nodes)] == ["1", "5", "20", "20, asynchronous"]
    assert rows_shown(methods)[0]["label"] == "baseline"


def test_what_the_paper_prints_stands_as_printed(tmp_path):
    nodes, methods, *_ = every_table(tmp_path)
    assert nodes["rows"][2]["paper"] == {
        **{"nodes": 20, "frames_per_second": 171_000, "elapsed_minutes": 323},
        **{"relative_speed": 17, "relative_wer_reduction_percent": 1.6},
    }
    assert nodes["rows"][3]["paper"] == {}
    row = shown(nodes, "20")
    speeds = row["frames/s: paper / simulated / CPU of this machine"]
    assert speeds.startswith("171,000 / 17")
    total = shown(methods, "BMUF, 32")["speed-up in total time: paper / simulated"]
    assert total.startswith("36.6 / ")
    assert shown(methods, "BMUF, 32")["gpus: paper / ours"] == "32 / 8"


def test_words_wrong_after_each_pass_stand_beside_the_papers(tmp_path):
    """A table of passes has a column per pass; what the controllers did is said below."""
    row = {"run": "sgd", "set": {"optim.share": 0.5}, "paper": {"setup": "baseline"}}
    table = a_table(
        *(tmp_path, "seide2014_parallelizability", "table_2_wer_by_data_pass", [row]),
        decode_epochs=True,
    )
    name, trained = table.rows[0].runs[0].name, all_finished(table)
    grown = [dict(r) for r in trained[name].log]
    for r in grown[4:]:
        if "frames" in r:
            r["frames"] = 64 * 80 + 512 * (r["step"] - 80)
    about = {**trained[name].about}
    about["settings"] = {**about["settings"]}
    about["settings"]["optim"] = {**about["settings"]["optim"], "auto_minibatch": {"every": 1}}
    trained[name] = replace(trained[name], log=grown, about=about)
    epochs = {run: [score(run, each) for each in (9, 6, 3)] for run in trained}
    assert "mean frames per step" not in markdown(tabulated(table, all_finished(table), epochs))
    found = tabulated(table, trained, epochs)
    cells = dict(zip(found["columns"], _cells(found), strict=True))
    assert cells["WER % after epoch 1: paper / ours"] == "19.6 / 9.00"
    assert cells["WER % after epoch 3: paper / ours"] == "16.9 / 3.00"
    assert cells["WER % after epoch 7: paper / ours"] == f"16.0 / {DASH}"
    said = "frames per step in each epoch 64, 64, 512; the rate was divided by 1, 2, 3 at the end"
    assert f"{said} of each." in markdown(found)
    assert "KB" not in markdown(found)  # nothing was sent
    found["rows"][0]["ours"]["seeds"] = 3
    assert f"{said} of each, with the first seed." in markdown(found)


def test_training_accuracy_is_that_of_the_last_epoch(tmp_path):
    row = {"run": "sgd", "paper": {"configuration": "baseline (not parallel)"}}
    columns = ["relu_wer", "relu_acc"]
    table = a_table(tmp_path, "seide2014_1bit", "table_2_quantisation", [row], columns=columns)
    found = tabulated(table, all_finished(table))
    cells = dict(zip(found["columns"], _cells(found), strict=True))
    assert cells["training frame accuracy %: paper / ours"] == "62.8 / 30.0"
    assert not any("main" in name or "svd" in name for name in found["columns"])


def _cells(table):
    return [column.cell(table["rows"][0]) for column in columns(table)]


def test_figures_have_their_series(tmp_path):
    first, second = both_figures(tmp_path)
    rates = [score("", 9 - n)["wer"] for n in range(EPOCHS)]
    assert first["rows"][0]["ours"]["wer_by_epoch"] == pytest.approx(rates)
    assert first["baseline"]["ours"]["wer_by_epoch"] == pytest.approx(rates)
    assert "40 nodes: WER % after each epoch 9.00, 8.00, 7.00." in markdown(first)
    ratios = second["rows"][0]["ours"]["frame_error_over_baseline_by_epoch"]
    assert ratios == pytest.approx([1.0] * EPOCHS)


def test_pictures_are_drawn_of_tables_and_figures(tmp_path):
    sizes = [
        {"run": "gtc", "set": {"model.dnn.layers": n}, "paper": {"layers": f"{n} hidden"}}
        for n in (5, 8)
    ]
    words = a_table(tmp_path, "strom2015", "table_4_model_size", sizes)
    contents = [*every_table(tmp_path), tabulated(words, all_finished(words))]
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.png"
        plot(json.loads(json.dumps(content)), path)
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5000


@pytest.fixture
def axes_of(tmp_path, monkeypatch):
    """A function that draws a table and returns its panels."""
    figures = []

    def save(figure, *arguments, **options):
        figures.append(figure)
        savefig(figure, *arguments, **options)

    def draw(content):
        plot(content, tmp_path / "t.png")
        return figures[-1].axes

    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", save)
    return draw


def test_a_table_of_passes_is_drawn_by_epoch_with_the_printed_ones(axes_of, tmp_path):
    content = both_figures(tmp_path)[0] | {"figure": False}
    content["rows"][0]["paper"] = {"setup": "40 nodes", "pass_1": 12.5, "pass_2": 11.0}
    (ax,) = axes_of(content)
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert drawn["40 nodes, ours"] == pytest.approx([9.0, 8.0, 7.0])
    assert drawn["40 nodes, paper"] == [12.5, 11.0]


def test_no_panel_is_empty(axes_of, nodes):
    content = tabulated(nodes, all_finished(nodes))
    assert len(axes_of(content)) == 2
    for row in content["rows"]:
        row["ours"] |= {"compression_ratio": None, "simulated": None}
    assert len(axes_of(content)) == 1


def test_printed_error_rates_are_drawn_as_reductions(nodes, axes_of):
    content = tabulated(nodes, all_finished(nodes))
    assert content["rows"][0]["ours"]["runs"] == content["baseline"]["ours"]["runs"]
    for row, wer in zip(content["rows"], (20.0, 19.0), strict=False):
        row["paper"] = {"configuration": row["label"], "main_wer": wer}
    (drawn,) = [c[0] for c in axes_of(content)[0].containers if c.get_label() == "paper"]
    assert list(drawn.get_ydata()[:2]) == pytest.approx([0.0, 5.0])


def test_printed_error_rates_of_several_test_sets_are_drawn_as_one_reduction(production, axes_of):
    content = tabulated(
        production, with_errors(production, 2 * [dict.fromkeys(SPLITS.values(), 6)])
    )
    (drawn,) = [c[0] for c in axes_of(content)[0].containers if c.get_label() == "paper"]
    assert list(drawn.get_ydata()) == pytest.approx([0.0, 100 * (1 - 45.8 / 49.0)])


def test_a_row_that_failed_does_not_hide_the_others(nodes, axes_of):
    """It is drawn at the lower edge of an axis that the other rows determine, and named."""
    content = tabulated(nodes, all_finished(nodes))
    lowest = {}
    for percent in (-40.0, -300.0):
        content["rows"][2]["ours"]["wer_reduction"] = {"percent": percent, "ci95": [percent, 0.0]}
        ax = axes_of(content)[0]
        lowest[percent] = ax.get_ylim()[0]
        failed = [line for line in ax.lines if "below the axis" in line.get_label()]
    assert lowest[-40.0] < -40.0 < lowest[-300.0]
    (line,) = failed
    assert line.get_label() == "20, ours: -300 %, below the axis"
    assert line.get_ydata() == [lowest[-300.0]]
