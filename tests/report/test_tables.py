"""Laws of the WER table: its numbers are those of the score files, with the right baseline."""

import re
import subprocess

import pytest
from fake_work import ERROR_RATE, SETTINGS, SPLITS, make_tables, make_work, script

from asr_train import provenance
from asr_train.files import DamagedFileError, read_json, write_json, write_yaml
from asr_train.report import tables
from asr_train.schema import ScoreSettings, build

ABOUT = {"date": "2025-01-01", "commit": "abc1234", "settings": "0f", "machine": "a CPU, 2 cores"}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    work = make_work(tmp_path_factory.mktemp("recipe") / "work")
    make_tables(work)
    return work


@pytest.fixture
def scores(work):
    return [
        tables.read_score(work / f"exp/{run}/score.{split}.json")
        for run in ERROR_RATE
        for split in SPLITS
    ]


def wer_table(scores):
    return tables.wer_table(scores, build(ScoreSettings, SETTINGS), ABOUT)


def test_every_run_and_split_is_one_row_with_its_scores_numbers(scores):
    table = wer_table(scores)
    rows = {(row["ours"]["run"], row["ours"]["split"]): row for row in table["rows"]}
    assert len(table["rows"]) == len(rows) == len(scores)
    for score in scores:
        ours = rows[score["run"], score["split"]]["ours"]
        for key in ("wer", "ci95", "errors", "words", "real_time_factor", "lm_weight"):
            assert ours[key] == score[key]


def test_the_json_has_the_shape_of_all_tables(scores):
    table = wer_table(scores)
    assert table["paper"] is None
    assert table["table"] == "wer"
    assert all(set(row) == {"label", "paper", "ours", "measured"} for row in table["rows"])
    assert all(row["paper"] == {} and row["measured"] is True for row in table["rows"])


def test_only_held_out_splits_are_compared_and_only_with_the_first_run(scores):
    for row in wer_table(scores)["rows"]:
        ours = row["ours"]
        compared = ours["run"] != "mono" and ours["split"] == "test"
        assert (ours["against"] is not None) == compared
        if compared:
            assert ours["against"]["run"] == "mono"
            assert ours["against"]["difference"] < 0
            assert ours["against"]["p"] < 0.05


def test_the_difference_is_that_of_the_rates(scores):
    rate = {(s["run"], s["split"]): s["wer"] for s in scores}
    (against,) = (r["ours"]["against"] for r in wer_table(scores)["rows"] if r["ours"]["against"])
    assert against["difference"] == pytest.approx(rate["dnn", "test"] - rate["mono", "test"])


def test_one_utterance_is_compared_with_nothing(scores):
    one = [s | {"by_utterance": dict(list(s["by_utterance"].items())[:1])} for s in scores]
    assert [row["ours"]["against"] for row in wer_table(one)["rows"]] == [None] * len(one)


@pytest.mark.parametrize("speakers, over", [(12, "12 speakers"), (9, "96 utterances")])
def test_a_comparison_is_said_with_interval_p_and_what_was_drawn(scores, speakers, over):
    for score in scores:
        for row in score["by_utterance"].values():
            row["speaker"] = f"s{int(row['speaker'][-2:]) % speakers}"
    table = wer_table(scores)
    (line,) = tables.comparison_lines(table)
    assert line.startswith("dnn against mono, test: −")
    assert line.endswith(f", paired over {over}")
    assert re.search(r"−\d+\.\d\d points \(−\d+\.\d\d to [−+]\d+\.\d\d\), p 0\.0", line)
    assert line in tables.markdown(table)


def test_runs_are_compared_over_groups_of_speakers_too(scores):
    """As if the speakers of a group were one speaker."""
    settings = build(ScoreSettings, SETTINGS | {"speaker_groups": "(test)0[0-4]"})
    theirs, ours = (score for score in scores if score["split"] == "test")
    found = tables.against(theirs, ours, settings)
    reduced = tables.wer_reduction([ours], [theirs], settings)
    for score in (theirs, ours):
        for row in score["by_utterance"].values():
            row["speaker"] = re.sub("0[0-4]$", "", row["speaker"])
    groups = [tables.units(tables.scored(score))[1] for score in (theirs, ours)]
    expected = tables.compare(*groups, *settings.draws.values())
    assert found["by_group"] == {"ci95": expected.ci95, "p": expected.p, "units": 8}
    expected = tables.reduction([groups], *settings.draws.values())
    assert reduced["by_group"]["ci95"] == [100 * limit for limit in expected.ci95]
    table = tables.wer_table([theirs, ours], settings, ABOUT)
    table["rows"][1]["ours"] |= {"against": found, "groups": 8, "ci95_groups": [0.02, 0.04]}
    text = tables.markdown(table)
    assert f"p {found['by_group']['p']:.2g} over 8 groups of them)." in text
    assert f"{ours['run']}, test: 2.00 – 4.00 % over 8 groups of speakers" in text


def test_the_markdown_has_a_cell_a_column_and_the_rows_percent(scores):
    table = wer_table(scores)
    lines = [line for line in tables.markdown(table).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {len(table["columns"]) + 1}
    for row, line in zip(table["rows"], lines[2:], strict=True):
        assert f"| {100 * row['ours']['wer']:.2f} |" in line
        assert f"| {row['ours']['errors']} / {row['ours']['words']} |" in line


def test_each_kind_of_error_stands_under_its_name(scores):
    kinds = {"insertions": 3, "deletions": 5, "substitutions": 11}
    table = wer_table([{**scores[0], **kinds, "errors": 19, "words": 200, "wer": 0.095}])
    head, _, line = (x for x in tables.markdown(table).splitlines() if x.startswith("|"))
    cells = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    found = [cells[name] for name in ("WER %", "errors / words", "ins", "del", "sub")]
    assert found == ["9.50", "19 / 200", "3", "5", "11"]
    (said,) = tables.wer_lines(table)
    assert said.startswith("%WER 9.50 [ 19 / 200, 3 ins, 5 del, 11 sub ]")


def test_splits_on_which_scales_are_chosen_are_not_held_out():
    names = ("dev", "dev_other", "valid", "VALIDATION")
    assert not any(tables.held_out(name) for name in names)
    names = ("test", "test_device", "test_dev_other", "test_valid", "eval2000")
    assert all(tables.held_out(name) for name in names)


def test_a_bar_in_a_name_does_not_add_a_column(scores):
    for score in scores:
        score["run"] = score["run"].replace("dnn", "d|n")
    text = tables.markdown(wer_table(scores))
    assert "d\\|n" in text


def test_the_markdown_says_when_with_what_and_what_went_wrong(scores):
    text = tables.markdown(wer_table(scores))
    for said in (*ABOUT.values(), "1000 draws, seed 1", "over speakers", "upper-1", "sclite"):
        assert said in text
    assert "mono, test: 1 of 96 utterances reached no final state" in text


def test_no_error_is_not_shown_as_certainty(scores):
    """With 600 words, a rate of 3 in 600 gives no error with a probability of a twentieth."""
    score = dict(scores[0], errors=0, words=600, wer=0.0, ci95=[0.0, 0.0])
    text = tables.markdown(wer_table([score]))
    assert "rates up to about 0.50 % are plausible" in text


def test_the_lines_are_kaldis_one_a_row(work):
    make_tables(work)
    table = read_json(work / "tables/wer.json")
    lines = (work / "tables/wer.txt").read_text().splitlines()
    assert lines == tables.wer_lines(table) + tables.comparison_lines(table)
    lines = lines[: len(table["rows"])]
    assert all(line.startswith("%WER ") for line in lines)
    assert [line.split("exp/")[1] for line in lines] == [
        f"{run} {split}" for split in SPLITS for run in ERROR_RATE
    ]


def test_two_scores_of_one_run_and_split_are_refused(scores):
    with pytest.raises(ValueError, match="run mono has two scores of dev"):
        wer_table([*scores, scores[0]])


def test_words_normalised_differently_are_refused(scores):
    scores[1]["normaliser"] = "lower-3"
    with pytest.raises(ValueError, match="normalised by lower-3 but mono by upper-1"):
        wer_table(scores)


def test_runs_scored_on_other_utterances_are_refused(scores):
    score = next(s for s in scores if s["run"] == "dnn" and s["split"] == "test")
    for row in score["by_utterance"].values():
        row["speaker"] = "x" + row["speaker"]
    with pytest.raises(ValueError, match="dnn and mono, test: 12 and 12 units cannot be paired"):
        wer_table(scores)


def test_a_score_file_without_counts_is_refused_by_name(tmp_path):
    write_json(tmp_path / "score.json", {"run": "a", "split": "dev"})
    with pytest.raises(DamagedFileError, match=r"score\.json has no words, errors"):
        tables.read_score(tmp_path / "score.json")


def test_a_call_without_scores_is_refused(tmp_path):
    write_yaml(tmp_path / "score.yaml", SETTINGS)
    with pytest.raises(ValueError, match="no score file to tabulate"):
        script("tables").tables(f"{tmp_path}/score.yaml", f"{tmp_path}/wer.md")


# --- when, where, with what ---------------------------------------------------------------------


def git(folder, *words):
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", folder, *name, *words], check=True, capture_output=True)


def test_the_commit_says_whether_files_were_changed(tmp_path, monkeypatch):
    assert provenance.commit(tmp_path) == "unknown"
    git(tmp_path, "init")
    assert provenance.commit(tmp_path) == "unknown"  # there is no commit yet
    (tmp_path / "a.txt").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = provenance.commit(tmp_path)
    assert len(clean) >= 7
    assert set(clean) <= set("0123456789abcdef")
    (tmp_path / "results").mkdir()
    (tmp_path / "results/b.json").write_text("1")
    assert provenance.commit(tmp_path) == clean  # else a benchmark in parts would begin anew
    (tmp_path / "a.txt").write_text("2")
    assert provenance.commit(tmp_path) == clean + "+"
    monkeypatch.setenv("PATH", "")  # no git
    assert provenance.commit(tmp_path) == "unknown"


def test_a_folder_inside_another_repository_has_no_commit_of_its_own(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "site-packages").mkdir()
    assert provenance.commit(tmp_path / "site-packages") == "unknown"


def test_the_settings_hash_follows_what_the_files_say_not_how(tmp_path):
    write_yaml(tmp_path / "score.yaml", SETTINGS)
    write_yaml(tmp_path / "run/dnn.yaml", {"rate": 0.008})
    before = provenance.settings_hash(tmp_path)
    (tmp_path / "score.yaml").write_text(
        "# a comment\n{seed: 1, normaliser: {kind: plain}, bootstrap: 1000}\n"
    )
    assert provenance.settings_hash(tmp_path) == before
    write_yaml(tmp_path / "run/dnn.yaml", {"rate": 0.004})
    assert provenance.settings_hash(tmp_path) != before


def test_the_settings_hash_leaves_out_settings_of_earlier_calls(tmp_path):
    write_yaml(tmp_path / "score.yaml", SETTINGS)
    before = provenance.settings_hash(tmp_path)
    write_yaml(tmp_path / "names.yaml", ["score"])
    write_yaml(tmp_path / "run/dnn.yaml", {"rate": 0.008})
    assert provenance.settings_hash(tmp_path) == before


@pytest.mark.parametrize(
    "seconds, said",
    [(4.21, "4.2 s"), (59.96, "1 min 00 s"), (185.4, "3 min 05 s"), (7630, "2 h 07 min")],
)
def test_times_are_said_as_people_say_them(seconds, said):
    assert tables.spell_seconds(seconds) == said


@pytest.mark.parametrize(
    "count, said",
    [(999, "999 B"), (999_499, "999 kB"), (999_700, "1 MB"), (2.5e9, "2.5 GB"), (4e12, "4 TB")],
)
def test_bytes_have_three_digits(count, said):
    assert tables.spell_bytes(count) == said
