"""Tables without training: printed numbers are all there, few are fitted, the rest is predicted."""

import subprocess
import sys
from pathlib import Path

import pytest

from asr_train.files import read_json, read_yaml
from asr_train.paper.estimates import ICASSP, ONE_BIT, TABLES, estimated, markdown, plain

ROOT = Path(__file__).parents[2]
ABOUT = {"date": "", "commit": "", "settings": "", "machine": "", "command": "make"}
COUNTS = {  # numbers; fitted; marked
    (ICASSP, "estimates"): (11, 0, 4),
    (ICASSP, "table_1_model_parallel_fps"): (9, 1, 0),
    (ONE_BIT, "table_1_subbatch"): (6, 2, 0),
    (ONE_BIT, "table_4_kfps_by_minibatch"): (17, 2, 0),
    (ONE_BIT, "table_5_data_x_model_kfps"): (20, 0, 0),
}


@pytest.fixture(scope="module", params=list(TABLES), ids=lambda key: key[1])
def table(request):
    return estimated(*request.param, "Title", ABOUT)


def numbers(value) -> list[float]:
    """Return all numbers of a printed table."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [number for one in inner for number in numbers(one)]
    return [float(value)] if isinstance(value, int | float) else []


def test_every_number_is_printed_and_once(table):
    rows = table["rows"]
    used = [row["ours"]["used"] for row in rows]
    wanted = COUNTS[table["paper"], table["table"]]
    assert (len(used), used.count("fitted"), used.count("marked")) == wanted
    assert len({row["label"] for row in rows}) == len(rows)
    printed = numbers(read_yaml(ROOT / f"conf/papers/{table['paper']}.yaml")[table["table"]])
    assert all(row["paper"]["value"] in printed for row in rows)


def test_predictions_are_nearer_than_one_constant(table):
    errors = table["errors"]
    assert errors["predicted"] == sum(row["ours"]["used"] == "predicted" for row in table["rows"])
    assert errors["mean_absolute_error"] < 0.15
    assert errors["mean_absolute_error"] < errors["one_constant"] / 2
    for row in table["rows"]:
        if row["ours"]["used"] == "fitted":
            assert abs(row["ours"]["error"]) < 1e-3


def test_nothing_is_called_measured(table):
    assert table["simulated"] is True
    assert not any(row["measured"] for row in table["rows"])
    assert "(simulated)" in markdown(table).splitlines()[0]
    assert "simulated" in plain(table).splitlines()[0]


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match="has no table table_9 that needs no training; known: est"):
        estimated(ICASSP, "table_9", "", ABOUT)


def test_the_committed_table_is_todays(table):
    paths = (ROOT / "results" / table["paper"]).glob("*.json")
    (kept,) = [one for one in map(read_json, paths) if one["table"] == table["table"]]
    for then, now in zip(kept["rows"], table["rows"], strict=True):
        assert then["ours"]["value"] == pytest.approx(now["ours"]["value"], rel=1e-4)


def test_k_hat_of_one_bit_is_bounded_by_what_is_printed():
    """N/2 T_frm over T_float/Z: 1,440 and 8,192 frames of 112.9 us in 10 and in 3 ms."""
    notes = estimated(ONE_BIT, "table_5_data_x_model_kfps", "", ABOUT)["notes"]
    bounds = "at least 16 to 54 (2,880 frames) and 92 to 308 (16,384 frames) nodes of one GPU"
    assert any(bounds in note for note in notes)


def test_make_makes_a_table_without_any_corpus(tmp_path):
    folder = ROOT / "recipes" / ONE_BIT
    asked = ["TABLES=table1", f"W={tmp_path / 'work'}", f"PY={sys.executable}"]
    command = ["make", "-s", "-C", str(folder), "paper", *asked, f"RESULTS={tmp_path / 'results'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "T_sub" in done.stdout
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        f"table1.{end}" for end in ("md", "json", "png")
    }
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"log", "tables"}
