"""The ratios of the papers' rows are those of their texts; ours must be near or say why not."""

import re

import pytest
from finished_runs import SHARE, all_finished, finished, tabulated
from test_paper_table import NODES, a_table

from asr_train import compose
from asr_train.files import read_json, write_json, write_yaml
from asr_train.paper.layout import markdown, plain
from asr_train.paper.ratios import RATIOS, compared, off, ratios
from asr_train.paper.records import Record, write_record
from asr_train.paper.rows import PaperSettings, RowSettings, read_table, run_of
from asr_train.schema import RunSettings, SettingsError, load
from asr_train.schema import plain as plain_data
from scripts.ratios import of_ours, of_paper, stage

RECIPES = compose.CONF.parent / "recipes"
GTC = {"comm.workers": 40}


def paper(name: str) -> PaperSettings:
    return load(PaperSettings, RECIPES / name / "paper.yaml")


def printed(name: str, run: str, **values) -> dict[str, float]:
    row = RowSettings(run=run, set={key.replace("__", "."): v for key, v in values.items()})
    return ratios(of_paper(row, paper(name)), paper(name).epoch_frames)


def composed(run: str, *overrides: str) -> RunSettings:
    return compose.settings(run, list(overrides)).run


@pytest.mark.parametrize("workers, steps", [(5, 71_875), (10, 35_938), (40, 8_984), (80, 4_492)])
def test_stroms_steps_per_epoch_are_his(workers, steps):
    """1,000 hours are 368 M frames, in minibatches of 1,024 per worker."""
    found = printed("strom2015", "gtc", comm__workers=workers)
    assert 1 / found["step_share"] == pytest.approx(steps, abs=1)


def test_stroms_ratios_at_40_nodes():
    found = printed("strom2015", "gtc", comm__workers=40)
    # Epoch 1 with 10 nodes: 61 M frames by 2,560, 307 M by 5,120; then nine of 8,984 steps
    assert found["updates"] == pytest.approx(164_700, rel=2e-3)
    assert found["threshold_per_frame"] == 4 / 1024
    assert found["update_size"] == pytest.approx(0.004 * 40 * 1024)
    assert found["largest_move"] == pytest.approx(0.004 * 4 * 40)
    assert found["last_rate"] == 1 / 512
    assert found["growth"] == 40 * 1024 / (10 * 256)  # of all workers
    assert "blocks" not in found


def test_one_worker_has_no_threshold():
    found = printed("strom2015", "sgd")
    assert found["update_size"] == pytest.approx(4.096)
    assert not {"threshold_per_frame", "largest_move", "blocks"} & found.keys()


@pytest.mark.parametrize("gpus, blocks", [(16, 146), (32, 73), (64, 37), (128, 18)])
def test_ladkats_blocks_per_epoch_are_theirs(gpus, blocks):
    found = printed("ladkat2019", "bmuf", comm__workers=gpus)
    assert found["blocks"] == pytest.approx(blocks, abs=0.5)
    assert found["pretraining"] == 0.125  # 250 of 2,000 hours


def test_an_update_of_two_tiers_is_that_of_a_group():
    alone = ratios(composed("bmuf", "comm.workers=8", "optim.rate=0.01"), 1e6)
    groups = composed("bmuf_gtc", "comm.workers=8", "comm.group_size=4", "optim.rate=0.01")
    assert ratios(groups, 1e6)["update_size"] == pytest.approx(0.01 / 2 * 4 * 256)  # scaling sqrt
    assert alone["update_size"] == pytest.approx(0.01 * 256)


def test_what_a_controller_chooses_has_no_ratio():
    chosen = {"updates", "growth", "last_rate"}
    automatic, listed = (
        printed("seide2014_parallelizability", "sgd", **settings)
        for settings in ({}, {"optim__auto_rate": None, "optim__auto_minibatch": None})
    )
    assert listed.keys() - automatic.keys() == chosen


def test_double_buffering_has_twice_the_steps_and_half_the_frames():
    rows = [
        printed(
            "seide2014_1bit",
            "onebit",
            comm__onebit__double_buffering=is_late,
            optim__auto_minibatch=None,
        )
        for is_late in (False, True)
    ]
    cold = 0.0777 * 111_240_000 / 256  # steps of one worker, which are not halved
    assert rows[1]["updates"] - cold == pytest.approx(2 * (rows[0]["updates"] - cold))
    assert [row["growth"] for row in rows] == [4, 2]
    for name in ("step_share", "update_size"):
        assert rows[1][name] == pytest.approx(rows[0][name] / 2)


@pytest.mark.parametrize("name", ["seide2014_parallelizability", "seide2014_1bit"])
def test_adagrad_averages_over_as_many_steps_as_in_the_paper(name):
    """2 hours are 720,000 frames, in minibatches of 1,024."""
    row, about = RowSettings(run="sgd"), paper(name)
    assert printed(name, "sgd")["averaged"] == pytest.approx(720_000 / 1024)
    run = run_of(row, about, "small", 1)
    own = composed(run.base, *run.overrides)
    assert ratios(own, about.epoch_frames)["averaged"] == pytest.approx(720_000 / 1024, rel=1e-3)
    assert "averaged" not in printed(name, "sgd", optim__adagrad=None)


def test_the_rate_is_that_of_the_first_epoch_after_the_phases():
    phases = "optim.phases=[{until:1.5,minibatch_frames:16,workers:null}]"
    run = composed("sgd", phases, "optim.rate=0.08", "optim.hold_epochs=1")
    assert ratios(run, 1e6)["update_size"] == pytest.approx(0.08 / 4 * 256)
    run.optim.hold_epochs = 0  # the first epoch is held all the same
    assert ratios(run, 1e6)["update_size"] == pytest.approx(0.08 / 4 * 256)


def test_a_networks_outputs_are_counted_where_it_drops_frames():
    run = composed("lstm", "optim.share=0.5", "comm.workers=1")
    kept = 600_000 * 0.5 / run.model.lstm.subsample
    assert of_ours(run, 600_000)["step_share"] == pytest.approx(run.optim.minibatch_frames / kept)


def test_ten_times_off_is_refused_unless_there_is_a_reason():
    theirs, ours = {"step_share": 1e-4, "growth": 4.0}, {"step_share": 2e-3, "growth": 2.0}
    with pytest.raises(
        SettingsError,
        match=r"row 40: frames per step / epoch is 0.002, where the paper has 0.0001: 20 times off"
        r".*unlike\.step_share",
    ):
        compared("40", ["step_share", "growth"], theirs, ours, {})
    found = compared("40", ["step_share", "growth"], theirs, ours, {"step_share": "little data"})
    assert found["step_share"] == {"paper": 1e-4, "ours": 2e-3, "why": "little data"}
    assert found["growth"]["why"] is None
    assert compared("40", ["growth"], theirs, ours, {}).keys() == {"growth"}


def test_a_value_of_zero_is_infinitely_far_from_others():
    assert off(0.0, 0.0) == 1
    assert off(0.0, 1e-9) == off(1e-9, 0.0) > 1e300
    assert off(2.0, 0.5) == 4


def test_an_unknown_ratio_is_named(tmp_path):
    content = plain_data(paper("strom2015")) | {"ratios": ["steps"]}
    write_yaml(tmp_path / "paper.yaml", content)
    with pytest.raises(SettingsError, match="ratios has 'steps'; ratios are step_share, updates"):
        load(PaperSettings, tmp_path / "paper.yaml")


def test_a_paper_may_name_no_ratio_and_a_record_of_another_scale_is_refused(tmp_path):
    settings = plain_data(paper("strom2015")) | {"ratios": []}
    table = {"table": "table_2_nodes", "title": "", "baseline": {"run": "sgd"}, "rows": []}
    for name, content in (("paper", settings), ("mine", table)):
        write_yaml(tmp_path / f"{name}.yaml", content)
    (run,) = read_table(tmp_path / "mine.yaml", "tiny").runs
    write_yaml(tmp_path / f"{run.name}.yaml", plain_data(composed(run.base, *run.overrides)))
    task = {"num_mels": 20, "num_states": 90, "num_frames": 1e6}
    write_json(tmp_path / "index.json", task)
    names = "mine.yaml", "index.json", "", f"{run.name}.jsonl", "out.json"
    *given, record, output = (str(tmp_path / name) for name in names)
    assert "no ratio" in stage("tiny", *given, output)
    assert read_json(output) == {"baseline": {}}
    trained = finished(run)
    trained.about["settings"] = plain_data(composed(run.base, *run.overrides))
    write_record(record, Record(trained, [], task, {}, {}))
    assert "no ratio" in stage("tiny", *given, record, output)
    write_record(record, Record(trained, [], task | {"num_frames": 1e7}, {}, {}))
    with pytest.raises(ValueError, match=r"made with TRAIN.num_frames 1\d*.0, but here it is"):
        stage("tiny", *given, record, output)


@pytest.mark.parametrize(
    "name, scale, hours",  # each paper; 1,080,110 frames are three hours of commands
    [
        ("strom2015", "small", 3),
        ("ladkat2019", "medium", 24),
        ("seide2014_1bit", "full", 309),
        ("seide2014_parallelizability", "medium", 24),
    ],
)
def test_the_stage_compares_every_row_before_anything_is_trained(name, scale, hours, tmp_path):
    file = RECIPES / name / "table2.yaml"
    table = read_table(file, scale)
    for row in (table.baseline, *table.rows):
        run = row.runs[0]  # of the first seed, whose settings are read
        config = compose.settings(run.base, list(run.overrides))
        parts = {key: plain_data(getattr(config, key)) for key in ("model", "optim", "comm")}
        write_yaml(tmp_path / f"{run.name}.yaml", parts)
    write_json(tmp_path / "index.json", {"num_frames": hours * 360_037})
    given = str(file), str(tmp_path / "index.json"), str(tmp_path), str(tmp_path / "out.json")
    assert re.search(r"table2: furthest off: .* times", stage(scale, *given))
    found = read_json(tmp_path / "out.json")
    assert found.keys() == {"baseline", *(row.label for row in table.rows)}
    assert all(found[label].keys() <= set(RATIOS) for label in found)
    write_json(tmp_path / "index.json", {"num_frames": 10_000})
    (tmp_path / "out.json").unlink()
    with pytest.raises(SettingsError, match="times off"):
        stage(scale, *given)
    assert not (tmp_path / "out.json").exists()


def test_a_table_shows_its_ratios_and_the_reasons(tmp_path):
    nodes = a_table(tmp_path, "strom2015", "table_2_nodes", NODES)
    content = tabulated(nodes, all_finished(nodes))
    assert content["rows"][0]["ratios"]["step_share"] == SHARE
    text = markdown(content)
    assert "| 20 | 0.0001 / 0.002 † |" in text
    assert "- frames per step / epoch: little data" in text
    assert "0.0001 / 0.002 †" in plain(content)


def test_elements_sent_per_epoch_are_the_printed_and_the_measured_ones(tmp_path):
    """With 40 nodes at tau 4 the paper sends one in 846 elements in each of 8,984 steps."""
    row = {"run": "gtc", "set": {"comm.workers": 40}, "paper": {"tau": 4.0}}
    row["unlike"] = {"quanta": "few parameters"}
    table = a_table(tmp_path, "strom2015", "table_3_threshold", [row])
    content = tabulated(table, all_finished(table, density=0.002))
    (found,) = (row["ratios"]["quanta"] for row in content["rows"])
    assert found["paper"] == pytest.approx(1 / 846 / SHARE["paper"])
    assert found["ours"] == pytest.approx(0.002 * 40)
    assert f"- {RATIOS['quanta']}: few parameters" in markdown(content)


def test_elements_sent_that_are_ten_times_off_without_a_reason_are_named_after_training(tmp_path):
    """A row with 100 times as many elements as printed keeps its results, with a warning."""
    row = {"run": "gtc", "set": {"comm.workers": 40}, "paper": {"tau": 4.0}}
    warning = "warning: row 4.0: elements sent per parameter, worker and epoch is 1.2e+03, "
    for reasons in ({}, {"quanta": "few parameters"}):
        row["unlike"] = reasons
        table = a_table(tmp_path, "strom2015", "table_3_threshold", [row])
        content = tabulated(table, all_finished(table, density=30.0))
        for shown in (markdown(content), plain(content)):
            said = [line for line in shown.splitlines() if warning in line]
            assert len(said) == (0 if reasons else 1)
            assert all("has 11.8: 102 times off" in line for line in said)
            assert all("state the reason as unlike.quanta of the" in line for line in said)


def test_rows_that_share_a_run_keep_their_own_numbers_of_the_paper():
    about = paper("strom2015")
    rows = [RowSettings(run="gtc", set={"comm.workers": n}) for n in (5, 10)]
    ours = {run_of(row, about, "tiny", 1).name for row in rows}
    theirs = [1 / ratios(of_paper(row, about), about.epoch_frames)["step_share"] for row in rows]
    assert len(ours) <= 2
    assert theirs[0] == pytest.approx(2 * theirs[1])
