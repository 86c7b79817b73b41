"""A dry run takes steps of a run's own size, whatever its method and network."""

import pytest

from asr_train import compose
from asr_train.paper.rows import read_table
from scripts import dry_run

RECIPES = compose.CONF.parent / "recipes"


@pytest.mark.parametrize(
    "table, label",
    [("strom2015/table2", "20"), ("ladkat2019/table2", "100"), ("seide2014_1bit/table3", None)],
)
def test_a_few_steps_tell_the_size_of_a_run(monkeypatch, table, label):
    monkeypatch.setenv("JOBS", "1")
    read = read_table(RECIPES / f"{table}.yaml", "tiny")
    configs = dict(dry_run.configs(read, ["optim.log_steps=7"]))
    assert {config.optim.log_steps for config in configs.values()} == {7}
    assert ("baseline" in configs) == (table == "ladkat2019/table2")  # else it is a row, too
    config = configs[label] if label in configs else list(configs.values())[-1]
    found = dry_run.few_steps(config, 0.15)
    workers = config.comm.workers
    assert found["workers"] == workers > 1
    halves = 2 if table == "seide2014_1bit/table3" else 1  # double buffering
    assert found["frames"] == workers * (config.optim.minibatch_frames // halves)
    assert found["seconds"] > 0
    assert found["hours"] == pytest.approx(found["seconds"] * found["steps"] / 3600)
    assert "scale tiny" in dry_run.markdown(
        {
            **{
                "table": "t",
                "scale": "tiny",
                "hours": 0.15,
                "rows": [{"label": "a", **found}],
                "settings": [],
            },
            **{"date": "2026-01-01", "commit": "abc", "device": "a CPU"},
        }
    )
