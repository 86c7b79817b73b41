"""The papers' tables from make, at SCALE=tiny on spoken digits: what is made, shared, and not made
again."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from asr_train.files import read_json, read_jsonl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 900


def make(paper: str, work: Path, *arguments: str) -> str:
    """What make printed."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "DEBUG")}
    done = subprocess.run(
        [
            *("make", "-C", str(ROOT / "recipes" / paper), "SCALE=tiny", "CORPUS=digits"),
            *(f"W={work}", f"PY={sys.executable}", *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**inherited, "JOBS": "2"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def trained(said: str) -> list[str]:
    """The runs that make trained."""
    return re.findall(r"train\.py .*/exp/([^/ ]+)/model\.json", said)


STROM = ("table4", "figure1")


@pytest.fixture(scope="module")
def strom(tmp_path_factory) -> tuple[Path, str]:
    """The work folder of two tables, and what was said on the way."""
    work = tmp_path_factory.mktemp("paper") / "strom"
    return work, make("strom2015", work, f"TABLES={' '.join(STROM)}", f"RESULTS={work / 'results'}")


def test_tables_share_their_runs_and_what_these_begin_with(strom):
    work, said = strom
    runs = trained(said)
    assert (
        len(runs) == len(set(runs)) == 5
    )  # the baseline, and one a size, of which figure 1 has one
    # A network of one hidden layer a width; the eight layers begin with the same five
    begun = re.findall(r"^layers-1: ", said, re.MULTILINE)
    widths = {read_json(work / "exp" / run / "model.json")["model"]["dnn"]["width"] for run in runs}
    assert len(begun) == len(widths) == 3


def test_a_row_has_the_papers_numbers_and_ours(strom):
    work, _ = strom
    table = read_json(work / "tables" / "strom2015-table4.json")
    assert [row["paper"]["parameters_millions"] for row in table["rows"]] == [
        14.6,
        21.7,
        23.7,
        48.8,
    ]
    for row in table["rows"]:
        assert row["ours"]["workers"] == 4
        assert 0 <= row["ours"]["wer"] <= 2
        low, high = row["ours"]["wer_reduction"]["ci95"]
        assert low <= row["ours"]["wer_reduction"]["percent"] <= high
        assert row["ours"]["compression_ratio"] > 1
        assert row["ours"]["simulated"]["speedup"] > 1
    sizes = [row["ours"]["parameters"] for row in table["rows"]]
    assert sizes == sorted(sizes)
    for name in STROM:
        for end in ("md", "json", "png"):
            copied = work / "results" / f"{name}.{end}"
            assert copied.read_bytes() == (work / "tables" / f"strom2015-{name}.{end}").read_bytes()


def test_a_figure_has_the_words_wrong_after_every_epoch(strom):
    work, _ = strom
    figure = read_json(work / "tables" / "strom2015-figure1.json")
    for row in [figure["baseline"], *figure["rows"]]:
        assert len(row["ours"]["wer_by_epoch"]) == 2
        assert row["ours"]["wer_by_epoch"][-1] == pytest.approx(row["ours"]["wer"])
        assert len(row["ours"]["frame_error_by_epoch"]) == 2


def test_rows_are_decoded_with_the_baselines_scale(strom):
    work, said = strom
    assert len(re.findall(r"scripts/tune\.py .*/exp/sgd-", said)) == 1
    assert len(re.findall(r"scripts/tune\.py .*/exp/gtc", said)) == 0
    headers = [read_jsonl(path)[0] for path in work.glob("exp/*workers*/hyp.test.jsonl")]
    assert len(headers) == 5
    assert len({header["acoustic_scale"] for header in headers}) == 1


def test_what_is_finished_is_not_made_again(strom):
    work, _ = strom
    said = make("strom2015", work, f"TABLES={' '.join(STROM)}")
    assert "scripts/train.py" not in said
    assert "scripts/decode.py" not in said
    (work / "tables" / "strom2015-table4.md").unlink()
    said = make("strom2015", work, "TABLES=table4")
    assert re.findall(r"scripts/(\w+)\.py", said).count("paper") == 1
    assert trained(said) == []


def test_two_tiers_with_groups_of_several_sizes(tmp_path):
    make("ladkat2019", tmp_path / "w", "TABLES=table3")
    table = read_json(tmp_path / "w" / "tables" / "ladkat2019-table3.json")
    methods = [row["ours"]["method"].split(" tau")[0] for row in table["rows"]]
    assert methods == ["bmuf_gtc 8 x 1", "bmuf_gtc 4 x 2", "bmuf_gtc 2 x 4", "bmuf_gtc 1 x 8"]
    assert [row["paper"]["relative_wer_reduction_percent"] for row in table["rows"]] == [
        *(-8.1, -7.9, -5.8, -4.4)
    ]
    assert table["baseline"]["ours"]["workers"] == 1


def test_an_unknown_table_stops_make_and_says_what_there_is(tmp_path):
    with pytest.raises(AssertionError, match=r"TABLES may be figure1, table2, table3, table4"):
        make("strom2015", tmp_path / "w", "TABLES=table7")
