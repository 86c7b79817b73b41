"""Rows of the papers' tables become runs: names, scales, seeds, shared runs, and errors."""

import json
from pathlib import Path
from unittest import mock

import pytest
import yaml

from asr_train.paper.rows import (
    PaperSettings,
    RowSettings,
    ScaleSettings,
    check_effect,
    printed_rows,
    read_table,
    run_of,
    runs_by_settings,
)
from asr_train.schema import SettingsError

ROOT = Path(__file__).parents[2]
PRINTED = {
    "table_1": {"columns": ["nodes", "tau", "wer"], "rows": [[1, 4.0, 0.0], [40, 4.0, 1.6]]},
    "figure_1": "WER per epoch",
}
PAPER = {
    "paper": "strom",
    "title": "A paper",
    "cluster": "ec2_g2",
    "epoch_frames": 1e6,
    "ratios": ["step_share"],
    "settings": ["model=dnn_5x1536"],
    "runs": {"sgd": {}, "gtc": {"comm.gtc.threshold": 4.0, "comm.workers": 40}},
    "scales": {
        "small": {
            "settings": ["optim.epochs=3"],
            "times": {"comm.workers": 0.1, "comm.gtc.threshold": 0.5},
            "seeds": [1, 2],
        },
        "full": {},
    },
}
TABLE = {
    "table": "table_1",
    "title": "Nodes",
    "baseline": {"run": "sgd", "set": {"comm.workers": 1}},
    "rows": [
        {"run": "sgd", "set": {"comm.workers": 1}, "paper": {"nodes": 1}},
        {"run": "gtc", "set": {"comm.workers": 40}, "paper": {"nodes": 40}},
        {"run": "gtc", "set": {"comm.gtc.threshold": 8.0}, "label": "ours alone"},
    ],
}


def folder_with(tmp_path: Path, paper=PAPER, **tables) -> Path:
    for name, content in {"paper": paper, **tables}.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    (tmp_path / "strom.yaml").write_text(yaml.safe_dump(PRINTED, sort_keys=False))
    return tmp_path


def read(folder: Path, scale: str, *names: str):
    with mock.patch("asr_train.cost.papers.PAPERS", folder):
        return [read_table(folder / f"{name}.yaml", scale) for name in names]


def test_a_row_is_a_run_a_seed_with_the_papers_numbers_times_the_scales(tmp_path):
    (table,) = read(folder_with(tmp_path, table1=TABLE), "small", "table1")
    assert [row.label for row in table.rows] == ["1", "40", "ours alone"]
    assert [row.paper for row in table.rows] == [
        {"nodes": 1, "tau": 4.0, "wer": 0.0},
        {"nodes": 40, "tau": 4.0, "wer": 1.6},
        None,
    ]
    first, second = table.rows[1].runs
    assert first.name == "strom-gtc-workers4-seed1"
    assert second.name == "strom-gtc-workers4-seed2"
    assert first.values == {"comm.workers": 4, "comm.gtc.threshold": 2.0}
    assert first.overrides == (
        "model=dnn_5x1536",
        "optim.epochs=3",
        "comm.gtc.threshold=2",
        "comm.workers=4",
        "optim.seed=1",
    )
    assert table.rows[2].runs[0].name == "strom-gtc-threshold4-workers4-seed1"
    assert [run.name for run in table.baseline.runs] == [
        "strom-sgd-workers1-seed1",
        "strom-sgd-workers1-seed2",
    ]


def test_seeds_may_replace_those_of_all_rows(tmp_path):
    own = {**TABLE["rows"][1], "seeds": {"small": [1, 2, 3]}}
    folder = folder_with(tmp_path, table1={**TABLE, "rows": [own]})
    with pytest.raises(SettingsError, match="row '40' has seed 3"):
        read(folder, "small", "table1")
    (table,) = read(folder, "small:4:7", "table1")
    assert table.scale == "small"
    assert [run.seed for run in table.runs] == [4, 7, 4, 7]
    for given, said in [("small:x", "SEEDS names 'x'"), ("small:2:2", r"SEEDS is \[2, 2\]")]:
        with pytest.raises(SettingsError, match=said):
            read(folder, given, "table1")


def test_at_full_scale_the_numbers_are_the_papers(tmp_path):
    (table,) = read(folder_with(tmp_path, table1=TABLE), "full", "table1")
    assert table.rows[1].runs[0].values == {"comm.workers": 40, "comm.gtc.threshold": 4.0}
    assert "optim.epochs=3" not in table.rows[1].runs[0].overrides


def test_tables_share_runs_that_are_the_same_and_the_baselines_come_first(tmp_path):
    other = {**TABLE, "rows": [TABLE["rows"][1], {"run": "gtc", "set": {"comm.workers": 80}}]}
    tables = read(folder_with(tmp_path, table1=TABLE, table2=other), "full", "table1", "table2")
    assert [[run.name for run in table.runs] for table in tables] == [
        [
            "strom-sgd-workers1-seed1",
            "strom-sgd-workers1-seed1",
            "strom-gtc-workers40-seed1",
            "strom-gtc-threshold8-workers40-seed1",
        ],
        ["strom-sgd-workers1-seed1", "strom-gtc-workers40-seed1", "strom-gtc-workers80-seed1"],
    ]
    assert tables[0].runs[2] == tables[1].runs[1]


def test_epochs_are_those_of_the_settings(tmp_path):
    folder = folder_with(tmp_path, table1=TABLE)
    assert [run.epochs for run in read(folder, "small", "table1")[0].baseline.runs] == [3, 3]
    with pytest.raises(SettingsError, match=r"optim.epochs is not set"):
        _ = read(folder, "full", "table1")[0].baseline.runs[0].epochs


@pytest.mark.parametrize(
    ("key", "value", "factor", "scaled"),
    [
        ("comm.workers", 5, 0.1, 1),  # never none
        ("comm.group_size", 0, 0.25, 0),  # chosen automatically at any scale
        ("comm.workers", 40, 0.13, 5),
        ("comm.workers", 40, 0.14, 6),
        ("comm.gtc.threshold", 9.0, 1 / 3, 3.0),
        ("comm.gtc.threshold", 1.0, 1 / 3, 0.3333),
        ("comm.bmuf.form", "printed", 0.5, "printed"),
    ],
)
def test_whole_numbers_stay_whole_and_words_stay(key, value, factor, scaled):
    paper = PaperSettings(
        paper="p",
        title="",
        cluster="",
        epoch_frames=1.0,
        ratios=[],
        settings=[],
        runs={"gtc": {}},
        scales={"s": ScaleSettings(times={key: factor})},
    )
    found = run_of(RowSettings(run="gtc", set={key: value}), paper, "s", 1).values[key]
    assert found == scaled
    assert type(found) is type(scaled)


def test_a_row_may_take_settings_away_or_give_several_at_once(tmp_path):
    """Numbers inside are scaled, too; a name shows which settings there are, not their values."""
    row = {
        "run": "gtc",
        "set": {"optim.adagrad": None, "optim.pretrain": {"epochs": 2, "rate": None, "frames": 64}},
    }
    paper = PAPER | {"scales": {"small": {"times": {"optim.pretrain.frames": 0.25}}}}
    folder = folder_with(tmp_path, paper, table1=TABLE | {"rows": [row]})
    (run,) = read(folder, "small", "table1")[0].rows[0].runs
    assert run.name == "strom-gtc-workers40-adagradnull-pretrain-seed1"
    assert run.overrides[-3:] == (
        "optim.adagrad=null",
        "optim.pretrain={epochs:2,rate:null,frames:16}",
        "optim.seed=1",
    )


def test_a_table_may_show_some_of_the_printed_columns(tmp_path):
    folder = folder_with(tmp_path, table1=TABLE | {"columns": ["wer"]})
    rows = read(folder, "full", "table1")[0].rows
    assert rows[1].paper == {"nodes": 40, "wer": 1.6}
    folder_with(tmp_path, table1=TABLE | {"columns": ["speed"]})
    with pytest.raises(SettingsError, match="table_1 has no column speed; nodes, tau, wer"):
        read(folder, "full", "table1")


def test_a_table_may_scale_what_its_rows_set_in_another_way(tmp_path):
    table = {**TABLE, "times": {"small": {"comm.gtc.threshold": 1.0}}}
    (table,) = read(folder_with(tmp_path, table1=table), "small", "table1")
    assert table.rows[2].runs[0].values["comm.gtc.threshold"] == 8.0
    assert table.rows[1].runs[0].values["comm.gtc.threshold"] == 2.0  # the run's default
    adaptive = {"comm.gtc.adaptive": {"density": 0.01, "band": 2.0}}
    rows = [{"run": "gtc", "set": adaptive, "label": "adaptive"}]
    table = {**TABLE, "rows": rows, "times": {"small": {"comm.gtc.adaptive.density": 3.0}}}
    (table,) = read(folder_with(tmp_path, table1=table), "small", "table1")
    found = table.rows[0].runs[0].values["comm.gtc.adaptive"]
    assert found == {"density": 0.03, "band": 2.0}


def test_a_scale_may_choose_the_default_value_of_a_run_unscaled(tmp_path):
    chosen = {"gtc": {"comm.gtc.threshold": 3.0, "optim.rate": 0.01}}
    small = PAPER["scales"]["small"] | {"runs": chosen}
    paper = PAPER | {"scales": {"small": small, "full": {}}}
    (table,) = read(folder_with(tmp_path, paper, table1=TABLE), "small", "table1")
    usual, own = (table.rows[n].runs[0] for n in (1, 2))
    assert usual.values["comm.gtc.threshold"] == 3.0  # the paper's 4, halved, would be 2
    assert "optim.rate=0.01" in usual.overrides
    assert own.values["comm.gtc.threshold"] == 4.0  # a row's own value is scaled as ever
    assert (usual.name, own.name) == (
        "strom-gtc-workers4-seed1",
        "strom-gtc-threshold4-workers4-seed1",
    )
    (table,) = read(folder_with(tmp_path, paper, table1=TABLE), "full", "table1")
    assert table.rows[1].runs[0].values["comm.gtc.threshold"] == 4.0
    paper["scales"]["small"]["runs"] = {"bmuf": {}}
    folder_with(tmp_path, paper, table1=TABLE)
    with pytest.raises(SettingsError, match=r"scales.small.runs has 'bmuf'; .* sgd, gtc"):
        read(tmp_path, "full", "table1")
    paper["scales"]["small"]["runs"] = {"gtc": {"a.b": [1]}}
    folder_with(tmp_path, paper, table1=TABLE)
    with pytest.raises(SettingsError, match=r"a.b is \[1\]; it must be a number"):
        read(tmp_path, "small", "table1")


def test_names_are_good_for_make_and_a_shell(tmp_path):
    (table,) = read(folder_with(tmp_path, table1=TABLE), "small", "table1")
    for run in table.runs:
        assert all(c.isalnum() or c in "-_." for c in run.name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [{"run": "bmuf"}]}, "run 'bmuf'; paper.yaml's runs are sgd, gtc"),
        ({"rows": [{"run": "gtc", "paper": {"nodes": 7}}]}, "no row with {'nodes': 7}"),
        ({"table": "table_9"}, "no table_9; it has table_1, figure_1"),
        ({"rows": [{"run": "gtc", "set": {"a.b": [1]}}]}, r"a.b is \[1\]; it must be a number"),
        ({"titel": "x"}, "did you mean title"),
        (
            {"times": {"smal": {"comm.workers": 0.5}}},
            r"table1.yaml: times has the scale 'smal'; paper.yaml's scales are small, full",
        ),
        (
            {"rows": [{"run": "gtc", "label": "a", "seeds": {"tiny": [1]}}]},
            r"table1.yaml: seeds has the scale 'tiny'; paper.yaml's scales are small, full",
        ),
        (
            {"times": {"full": {"comm.gtc.treshold": 0.5}}},
            r"table1.yaml: times.full has 'comm.gtc.treshold', which no row sets, .* rows set "
            "comm.workers, comm.gtc.threshold$",
        ),
    ],
)
def test_what_a_file_says_wrongly_is_named(tmp_path, change, message):
    folder = folder_with(tmp_path, table1={**TABLE, **change})
    with pytest.raises(SettingsError, match=message):
        read(folder, "small", "table1")


def test_an_unknown_table_and_scale_say_what_there_is(tmp_path):
    folder = folder_with(tmp_path, table1=TABLE)
    with pytest.raises(SettingsError, match=r"TABLES may be .*table1"):
        read(folder, "small", "table7")
    with pytest.raises(SettingsError, match=r"SCALE is huge; .* has small, full"):
        read(folder, "huge", "table1")


def test_one_name_for_two_runs_is_refused_in_one_table_and_in_two(tmp_path):
    rows = [
        {"run": "gtc", "set": {f"comm.{group}.block": 2}, "label": group}
        for group in ("gtc", "bmuf")
    ]
    named = "two runs are named strom-gtc-block2-workers40-seed1"
    folder = folder_with(tmp_path, table1={**TABLE, "rows": rows})
    with pytest.raises(SettingsError, match=named):
        read(folder, "full", "table1")
    tables = {f"table{i}": {**TABLE, "rows": [row]} for i, row in enumerate(rows)}
    folder_with(tmp_path, **tables)
    with pytest.raises(SettingsError, match=named):
        runs_by_settings(read(folder, "full", *tables))


def test_a_setting_that_all_runs_set_otherwise_is_refused(tmp_path):
    table = read(folder_with(tmp_path, table1=TABLE), "small", "table1")[0]
    check_effect(["decode.beam=9", "comm.workers=1", "optim.epochs=3"], table.runs)
    with pytest.raises(
        SettingsError, match=r"SET says optim.epochs=5, but the paper's tables set it to 3, which"
    ):
        check_effect(["optim.epochs=5"], table.runs)


def test_a_figure_has_no_printed_rows():
    assert printed_rows(PRINTED, "figure_1") == []


def test_a_row_must_name_one_printed_row_and_has_a_label_of_its_own(tmp_path):
    rows = [{"run": "gtc", "paper": {"tau": 4.0}}]  # with 1 and with 40 nodes
    with pytest.raises(SettingsError, match=r"2 rows with {'tau': 4.0}; .* exactly one"):
        read(folder_with(tmp_path, table1={**TABLE, "rows": rows}), "small", "table1")
    rows = [{"run": run, "paper": {"nodes": 40}} for run in ("sgd", "gtc")]
    with pytest.raises(SettingsError, match="two rows are named '40'; give one another label"):
        read(folder_with(tmp_path, table1={**TABLE, "rows": rows}), "small", "table1")


KEPT = [p for p in sorted(ROOT.glob("recipes/*/*.yaml")) if p.stem != "paper"]


@pytest.mark.parametrize("path", KEPT, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_kept_table_has_the_runs_that_its_command_trains(path):
    kept = ROOT / "results" / path.parent.name / f"{path.stem}.json"
    content = json.loads(kept.read_text()) if kept.exists() else {}
    if "baseline" in content:  # it is trained
        table = read_table(path, content["scale"])
        rows = [content["baseline"], *content["rows"]]
        runs = {run for row in rows for run in row["ours"]["runs"]}
        assert runs == {run.name for run in table.runs}
