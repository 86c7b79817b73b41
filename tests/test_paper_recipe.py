"""The papers' tables from make, at SCALE=tiny on spoken digits: what is made, shared or kept."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from asr_train.files import read_json, read_jsonl, write_jsonl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 900
SETTINGS = "gmm.mono.passes=6 gmm.mono.flat.passes=4"  # alignments need not be good
OF_DIGITS = (
    "corpus.digits.speakers.train=8 corpus.digits.utterances.train=40 "
    "corpus.digits.utterances.dev=12 corpus.digits.utterances.test=20"
)


@pytest.fixture(scope="module")
def make(python) -> Callable[..., str]:
    """A function that calls make for a paper's recipe and returns its output."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "DEBUG")}

    def call(paper: str, work: Path, *arguments: str) -> str:
        command = ["make", "-C", str(ROOT / "recipes" / paper), "SCALE=tiny", "CORPUS=digits"]
        more = "" if "CORPUS=commands" in arguments else OF_DIGITS
        command += [f"W={work}", f"PY={python}", f"SET={SETTINGS} {more}", "V=1", *arguments]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
            env={**inherited, "JOBS": "2"},
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    return call


TABLE_6 = ("SEEDS=1", "TABLES=table6")


def trained(said: str) -> list[str]:
    """Return the runs that make trained."""
    return re.findall(r"train\.py .*/exp/([^/ ]+)/model\.json", said)


@pytest.fixture(scope="module")
def strom(make, tmp_path_factory) -> tuple[Path, str]:
    """The work folder of a figure, and the output of make."""
    work = tmp_path_factory.mktemp("papers") / "work"
    return work, make("strom2015", work, "TABLES=figure1", f"RESULTS={work / 'results'}")


def test_runs_share_what_they_begin_with_and_tables_share_runs(make, strom):
    work, said = strom
    runs = sorted(trained(said))  # they run in parallel, so in either order
    gtc = "strom2015-gtc_async-codecrice-workers4-epochs2-seed1"
    names = gtc, "strom2015-sgd-workers1-epochs2-seed1"
    assert runs == sorted(names)
    assert len(re.findall(r"^layers-1: ", said, re.MULTILINE)) == 1
    tables = "TABLES=figure1 table2 table3"  # the latter share two runs
    planned = trained(make("strom2015", work, "-n", tables, "paper-tables"))
    assert len(planned) == len(set(planned))
    assert not set(planned) & set(runs)
    some = "strom2015-gtc-workers8-seed1", "strom2015-gtc_async-threshold0.2812-workers4-seed1"
    assert set(some) <= set(planned)


def test_seeds_of_the_command_line_replace_those_of_all_rows(make, strom):
    work, said = strom
    names = {name.removesuffix("1") for name in trained(said)}
    planned = make("strom2015", work, "-n", "TABLES=figure1", "SEEDS=1 2", "paper-tables")
    assert set(trained(planned)) == {f"{name}2" for name in names}
    # The same run, but a table of other seeds than asked for before
    planned = make("strom2015", work, "-n", "TABLES=figure1", "SEEDS=1", "paper-tables")
    assert not trained(planned)
    assert re.search(r"paper\.py 'tiny:1' .*strom2015-figure1\.md$", planned, re.MULTILINE)


def test_status_tells_of_a_papers_own_outputs(make, strom, tmp_path):
    said = make("strom2015", strom[0], "TABLES=figure1", "status")
    assert f"{strom[0]}/tables/strom2015-figure1.md" in said
    assert re.search(r"^\d\d done, 0 stale, 0 missing; nothing to do$", said, re.MULTILINE)
    said = make("strom2015", tmp_path / "other", "TABLES=figure1", "status")
    assert re.search(r"^0 done, 0 stale, \d\d missing; next: make strom2015", said, re.MULTILINE)


def test_rows_have_the_papers_numbers_and_ours(strom, two_tiers):
    figure = read_json(strom[0] / "tables" / "strom2015-figure1.json")
    table = read_json(two_tiers / "tables" / "ladkat2019-table3.json")
    for row in [*figure["rows"], *table["rows"]]:
        assert 0 <= row["ours"]["wer"] <= 2
        low, high = row["ours"]["wer_reduction"]["ci95"]
        assert low <= row["ours"]["wer_reduction"]["percent"] <= high
        assert row["ours"]["compression_ratio"] > 1
        assert row["ours"]["simulated"]["speedup"] > 1
    for end in ("md", "json", "png"):
        copied = (strom[0] / "results" / f"figure1.{end}").read_bytes()
        assert copied == (strom[0] / "tables" / f"strom2015-figure1.{end}").read_bytes()


def test_ratios_are_compared_before_runs_are_trained(strom):
    work, said = strom
    assert said.index("scripts/ratios.py") < said.index("scripts/train.py")
    found = read_json(work / "tables" / "strom2015-figure1.ratios.json")
    nodes = "40 nodes, Golomb-Rice codes"
    assert found.keys() == {"baseline", nodes}
    # Of all workers: 40 of 1,024 frames after ten of 256; 4 of 8 after 4 of 2
    assert found[nodes]["growth"] == {"paper": 16, "ours": 4, "why": None}
    assert found[nodes]["updates"]["why"]
    shown = (work / "tables" / "strom2015-figure1.md").read_text()
    assert "## Ratios" in shown
    assert "last / first minibatch" in shown


def test_a_figure_has_the_words_wrong_after_every_epoch(strom):
    work, _ = strom
    figure = read_json(work / "tables" / "strom2015-figure1.json")
    for row in [figure["baseline"], *figure["rows"]]:
        assert len(row["ours"]["wer_by_epoch"]) == 2
        assert row["ours"]["wer_by_epoch"][-1] == pytest.approx(row["ours"]["wer"])
        assert len(row["ours"]["frame_error_by_epoch"]) == 2


def test_rows_are_decoded_with_the_baselines_scale(strom):
    work, said = strom
    assert len(re.findall(r"scripts/tune\.py .*/exp/strom2015-sgd-", said)) == 1
    assert len(re.findall(r"scripts/tune\.py .*/exp/strom2015-gtc", said)) == 0
    runs = trained(said)
    headers = [read_jsonl(work / "exp" / run / "hyp.test.jsonl")[0] for run in runs]
    assert len({header["acoustic_scale"] for header in headers}) == 1


def test_what_is_finished_is_not_made_again(make, strom):
    work, _ = strom
    (work / "tables" / "strom2015-figure1.md").unlink()
    said = make("strom2015", work, "TABLES=figure1")
    assert set(re.findall(r"scripts/(\w+)\.py", said)) <= {"paper", "resolve"}
    assert (work / "tables" / "strom2015-figure1.md").exists()
    printed = f"{ROOT}/conf/papers/strom2015.yaml"
    said = make("strom2015", work, "-n", "TABLES=figure1", "-W", printed, "paper-tables")
    assert "scripts/paper.py" in said


def test_runs_with_a_record_are_not_trained(make, strom, tmp_path):
    """The records are those that RESULTS received, as from another machine."""
    work, said = strom
    records = work / "results" / "records"
    assert {path.stem for path in records.iterdir()} == set(trained(said))
    table = work / "tables" / "strom2015-figure1.json"
    before = read_json(table)["rows"][0]["ours"]
    table.with_suffix(".md").unlink()
    moved = (work / "exp").rename(tmp_path / "exp")
    try:
        said = make("strom2015", work, "TABLES=figure1", f"RECORDS={records}", f"RESULTS={work}")
    finally:
        shutil.rmtree(work / "exp", ignore_errors=True)
        moved.rename(work / "exp")
    assert set(re.findall(r"scripts/(\w+)\.py", said)) <= {"paper", "ratios", "resolve"}
    assert "Trained elsewhere" in table.with_suffix(".md").read_text()
    after = read_json(table)["rows"][0]["ours"]
    for key in ("runs", "wer", "wer_reduction", "wer_by_epoch", "parameters", "epochs"):
        assert after[key] == before[key]
    assert after["compression_ratio"] == pytest.approx(before["compression_ratio"])


def test_a_recorded_baselines_scale_is_for_all_rows(make, strom, tmp_path):
    work, said = strom
    (name,) = (run for run in trained(said) if "sgd" in run)
    (gtc,) = (run for run in trained(said) if "gtc" in run)
    rows = read_jsonl(work / "results" / "records" / f"{name}.jsonl")
    for row in rows:
        for score in row.values():
            if isinstance(score, dict) and "acoustic_scale" in score:
                score["acoustic_scale"] = 0.123
    write_jsonl(tmp_path / f"{name}.jsonl", rows)
    said = make("strom2015", work, "TABLES=figure1", f"RECORDS={tmp_path}")
    assert trained(said) == []
    assert read_json(work / "exp" / f"{name}-recorded" / "tuned.json")["acoustic_scale"] == 0.123
    assert read_jsonl(work / "exp" / gtc / "hyp.test.jsonl")[0]["acoustic_scale"] == 0.123
    assert read_json(work / "exp" / name / "tuned.json")["acoustic_scale"] != 0.123
    said = make("strom2015", work, "-n", "TABLES=figure1")
    assert f"exp/{name}/tuned.json" in said  # without the record, its own again
    assert f"exp/{gtc}/hyp.test.jsonl" in said
    # What was decoded without the record is not decoded again only because the record was used
    assert not re.search(rf"decode\.py .*/exp/{name}/hyp\.test\.jsonl", said)


def test_one_bit_from_a_trained_network_of_low_rank(make, strom):
    """It has the other paper's features and alignments, and only the printed columns it is for."""
    work, _ = strom
    said = make("seide2014_1bit", work, "TABLES=table2_svd")
    assert not re.findall(r"scripts/(?:feats|gmm|ali|shards)\.py", said)
    table = read_json(work / "tables" / "seide2014_1bit-table2_svd.json")
    printed = [(row["paper"]["svd_ll_wer"], row["paper"]["svd_ll_acc"]) for row in table["rows"]]
    assert printed == [(17.6, 61.5), (17.7, 61.3)]
    assert [row["ours"]["workers"] for row in table["rows"]] == [1, 4]
    assert all(0.1 < row["ours"]["train_accuracy"] < 1 for row in table["rows"])
    assert "main_wer" not in table["rows"][0]["paper"]


def test_controlled_rates_and_minibatches_pass_by_pass(make, strom):
    """It has the other paper's features and alignments, and decodes the model of each pass."""
    work, _ = strom
    said = make("seide2014_parallelizability", work, "TABLES=table2")
    assert not re.findall(r"scripts/(?:feats|gmm|ali|shards)\.py", said)
    table = read_json(work / "tables" / "seide2014_parallelizability-table2.json")
    found = {row["label"]: row["ours"] for row in table["rows"]}
    assert list(found) == [
        *("baseline", "+ AdaGrad", "+ automatic LR control", "+ automatic N adjustment")
    ]
    assert [row["is_controlled"] for row in found.values()] == [False, False, True, True]
    for ours in found.values():
        assert len(ours["wer_by_epoch"]) == ours["epochs"] == 2
        assert ours["wer_by_epoch"][-1] == pytest.approx(ours["wer"])
    wrong = [ours["frame_error_by_epoch"] for ours in found.values()]
    assert wrong[0] != wrong[1]  # AdaGrad does something
    wers = [ours["wer_by_epoch"] for ours in found.values()]
    sizes = [ours["minibatch_by_epoch"] for ours in found.values()]
    assert sizes[0] == sizes[1] == sizes[2] != sizes[3]
    first = table["claims"][2]
    assert first["ours"]["percent"] == pytest.approx(100 * (1 - wers[3][0] / wers[2][0]))


@pytest.fixture(scope="module")
def two_tiers(make, strom) -> Path:
    """The work folder of groups of several sizes, with the same features and alignments."""
    work, _ = strom
    said = make("ladkat2019", work, "TABLES=table3")
    assert not re.findall(r"scripts/(?:feats|gmm|ali|shards)\.py", said)
    return work


def test_two_tiers_with_groups_of_several_sizes(two_tiers):
    table = read_json(two_tiers / "tables" / "ladkat2019-table3.json")
    methods = [row["ours"]["method"].split(" tau")[0] for row in table["rows"]]
    assert methods == ["bmuf_gtc 8 x 1", "bmuf_gtc 4 x 2", "bmuf_gtc 2 x 4", "bmuf_gtc 1 x 8"]
    assert [row["paper"]["relative_wer_reduction_percent"] for row in table["rows"]] == [
        *(-8.1, -7.9, -5.8, -4.4)
    ]
    assert table["baseline"]["ours"]["workers"] == 1


def test_an_unknown_table_stops_make_and_says_what_there_is(make, tmp_path):
    with pytest.raises(
        AssertionError, match=r"TABLES may be figure1, seeds, staleness, table2, table3, table4"
    ):
        make("strom2015", tmp_path / "w", "TABLES=table7")


def test_tiny_has_the_papers_own_tables_unless_others_are_named(make, tmp_path):
    def tables(*arguments: str) -> set[str]:
        said = make("ladkat2019", tmp_path / "w", "-n", "DRY_RUN=1", *arguments)  # plans no stages
        return set(re.findall(r"/tables/ladkat2019-(\w+)\.dry-run\.md", said))

    assert tables() == {"table1", "table2", "table3", "figure2"}
    assert tables("TABLES=table3 epochs_groups") == {"table3", "epochs_groups"}


def test_each_table_is_made_of_its_own_file(make, tmp_path):
    """Also where one's name begins with another's."""
    asked = ("-n", "SEEDS=1", "TABLES=table2 table2_relu table2_svd", "paper-tables")
    said = make("seide2014_1bit", tmp_path / "w", *asked)
    made = re.findall(r"paper\.py '\S+' \S+/(\w+)\.yaml .*/seide2014_1bit-(\w+)\.md", said)
    assert sorted(made) == [(name, name) for name in ("table2", "table2_relu", "table2_svd")]
    kinds = {re.search("relu-|-rank|$", run)[0] for run in trained(said)}
    assert kinds == {"", "relu-", "-rank"}


def test_tables_of_the_same_name_of_two_papers_are_both_made():
    named = ("strom2015-table2", "ladkat2019-table2")
    command = ["make", "-C", str(ROOT), "-n", "-o", ".venv/.ready", "MAKE=echo", *named]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for paper in ("strom2015", "ladkat2019"):
        assert f"echo -C recipes/{paper} paper TABLES=table2" in said


def test_a_paper_without_tables_of_its_own_names_makes_all(make, tmp_path):
    """At SCALE=tiny; and no table at all is an error."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes", ignore=shutil.ignore_patterns("work*"))
    for part in ("asr_train", "scripts", "conf"):
        (tmp_path / part).symlink_to(ROOT / part)
    folder = tmp_path / "recipes" / "strom2015"
    for table in folder.glob("*[0-9].yaml"):
        table.unlink()
    said = make(str(folder), tmp_path / "w", "-n", "paper-tables")
    assert set(re.findall(r"/tables/strom2015-(\w+)\.md", said)) == {"seeds", "staleness"}
    with pytest.raises(AssertionError, match=r"TABLES is empty.* it may be seeds staleness"):
        make(str(folder), tmp_path / "w", "-n", "TABLES=", "paper")


def test_what_cannot_be_a_folder_of_results_is_refused_before_any_training(make, tmp_path):
    (tmp_path / "file").touch()
    for results, why in (("my results", "paths with spaces"), ("file", "is no folder; name")):
        given = ("-n", "TABLES=table2", f"RESULTS={tmp_path}/{results}", "paper")
        with pytest.raises(AssertionError, match=f"RESULTS is .*{why}"):
            make("strom2015", tmp_path / "w", *given)


def test_variables_of_commands_are_refused_with_other_speech(make, tmp_path):
    for given in "HUMAN=/people", "TEST_HOURS=5":
        name = given.partition("=")[0]
        with pytest.raises(AssertionError, match=f"{name} is for CORPUS=commands, but .* digits"):
            make("seide2014_1bit", tmp_path / "w", "-n", given, "paper")


def test_a_test_set_whose_name_begins_with_anothers_is_decoded(make, tmp_path):
    """Where the features of the other alone are there already."""
    work = tmp_path / "w"
    named = make("seide2014_1bit", work, "-n", "CORPUS=commands", *TABLE_6, "paper-tables")
    row = next(run for run in trained(named) if "workers" in run and "realign" in run)
    baseline = trained(named)[0]
    made = [f"feats/{split}.jsonl.gz" for split in ("train", "dev", "test")]
    made += [f"exp/{run}/model.json" for run in (row, baseline)]
    for path in (*made, "lang/index.json", f"exp/{baseline}/tuned.json"):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).touch()
    goal = str(work / "exp" / row / "hyp.test_room.jsonl")
    said = make("seide2014_1bit", work, "-n", "CORPUS=commands", *TABLE_6, goal)
    assert re.search(r"decode\.py .*/feats/test_room\.jsonl\.gz .*hyp\.test_room", said)


def test_realigned_rows_and_several_test_sets(make, tmp_path):
    """Table 6: a run learns its own alignments, and is decoded under every condition."""
    work = tmp_path / "w"
    said = make("seide2014_1bit", work, "-n", "TABLES=table6", "CORPUS=commands")
    lines = [line.replace(f"{work}/", "").split() for line in said.splitlines()]
    made = {words[-1]: words[:-1] for words in lines if any("/scripts/" in w for w in words)}
    models = [name.split("/")[1] for name in made if re.fullmatch("exp/seide.*/model.json", name)]
    again = [name for name in models if name.endswith("-realign1")]
    assert sorted(again) == sorted(f"{name}-realign1" for name in set(models) - set(again))
    assert len(again) == 3
    for name in again:
        teacher = name.removesuffix("-realign1")
        inputs = made[f"exp/{name}/model.json"]
        assert f"shards/{teacher}/train/index.json" in inputs
        assert any(path.endswith(f"/run/{teacher}.yaml") for path in inputs)
        assert f"exp/{teacher}/model.json" in made[f"ali/{teacher}/train.jsonl.gz"]
    for name in models:
        tested = {path.split(".")[1] for path in made if path.startswith(f"exp/{name}/score.")}
        assert tested == {"test_clean", "test_room", "test_noise", "test_8khz"}


def test_a_table_that_needs_commands_is_refused_or_left_out_with_another_corpus(make, tmp_path):
    with pytest.raises(AssertionError, match="table6 has test sets that only CORPUS=commands has"):
        make("seide2014_1bit", tmp_path / "w", "-n", "TABLES=table6")
    said = make("seide2014_1bit", tmp_path / "w", "-n")
    planned = trained(said)
    assert 0 < len(planned) == len(set(planned))  # a plan lists each once
    assert "seide2014_1bit-table3.md" in said
    assert "table6" not in said
