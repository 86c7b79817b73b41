"""Claims about two rows: the paper's from its printed numbers, ours from both rows' own scores."""

import pytest
from finished_runs import a_table, all_finished, finished, score, tabulated

from asr_train.paper.claims import NO_REDUCTION, claims_markdown, printed_reduction
from asr_train.paper.layout import markdown, plain
from asr_train.schema import SettingsError

NODES = [
    {"run": "gtc", "set": {"comm.workers": 40}, "paper": {"nodes": 40}},
    {"run": "gtc", "set": {"comm.workers": 80}, "paper": {"nodes": 80}},
]
FEWER = {"row": "80", "against": "40", "claim": "80 are better than 40"}


@pytest.fixture(autouse=True)
def unsimulated(monkeypatch):
    """Claims have no speeds: rows of 40 and 80 nodes would be simulated for two seconds each."""
    monkeypatch.setattr("asr_train.paper.table.simulated", lambda *_: None)


def claimed(folder, claims, rows=NODES, seeds=None, score=None, **errors):
    """The claims of a table whose runs make these errors per speaker, by label and seed."""
    table = a_table(folder, "strom2015", "table_2_nodes", rows, seeds, claims=claims)
    trained = all_finished(table)
    for row in table.rows:
        for run in row.runs:
            trained[run.name] = finished(run, errors=errors[f"of{row.label}_{run.seed}"])
    return tabulated(table, trained, score=score)


def test_a_row_is_compared_with_another_and_not_with_the_baseline(tmp_path):
    found = claimed(tmp_path, [FEWER], of40_1=9, of80_1=6)
    (claim,) = found["claims"]
    assert claim["ours"]["percent"] == pytest.approx(100 * (1 - 6 / 9))
    low, high = claim["ours"]["ci95"]
    assert low <= claim["ours"]["percent"] <= high
    assert claim["seeds"] == [1]
    backwards = FEWER | {"row": "40", "against": "80"}
    (claim,) = claimed(tmp_path, [backwards], of40_1=9, of80_1=6)["claims"]
    assert claim["ours"]["percent"] == pytest.approx(100 * (1 - 9 / 6))
    against = FEWER | {"against": "baseline"}  # which makes 6
    (claim,) = claimed(tmp_path, [against], of40_1=9, of80_1=3)["claims"]
    assert claim["ours"]["percent"] == pytest.approx(50)
    assert claim["paper"] == pytest.approx(1.8)
    rows = [{"run": "gtc", "label": "40"}, NODES[1]]  # the paper has no such row as the first
    (claim,) = claimed(tmp_path, [FEWER], rows, of40_1=9, of80_1=3)["claims"]
    assert claim["paper"] is None


def test_only_seeds_that_both_rows_have_are_compared(tmp_path):
    rows = [NODES[0] | {"seeds": {"small": [1, 3]}}, NODES[1]]
    errors = {"of40_1": 9, "of40_3": 3, "of80_1": 3, "of80_2": 9, "of80_3": 3}
    (claim,) = claimed(tmp_path, [FEWER], rows, [1, 2, 3], **errors)["claims"]
    assert claim["seeds"] == [1, 3]
    assert claim["ours"]["percent"] == pytest.approx(100 * (1 - 6 / 12))
    assert claim["ours"]["percent_by_seed"] == pytest.approx([100 * (1 - 3 / 9), 0])


def test_models_of_an_epoch_are_compared_if_both_runs_have_it(tmp_path):
    rows = [{"run": "gtc", "label": "a"}, {"run": "gtc", "set": {"comm.workers": 8}, "label": "b"}]
    claims = [{"row": "a", "against": "b", "epoch": n, "claim": "a is better"} for n in (1, 2, 7)]
    table = a_table(tmp_path, "strom2015", "figure_1", rows, decode_epochs=True, claims=claims)
    by_label = {"a": (6, 3), "b": (12, 3)}
    epochs = {run.name: [score(run.name)] for run in table.baseline.runs} | {
        row.runs[0].name: [score(row.runs[0].name, each) for each in by_label[row.label]]
        for row in table.rows
    }
    first, second, beyond = tabulated(table, all_finished(table), epochs)["claims"]
    assert first["ours"]["percent"] == pytest.approx(50)
    assert second["ours"]["percent"] == pytest.approx(0)
    assert beyond["ours"] is None
    assert beyond["seeds"] == []


@pytest.mark.parametrize(
    ("row", "against", "more", "percent"),
    [
        ({"wer": 15.8}, {"wer": 16.2}, {}, 100 * (1 - 15.8 / 16.2)),
        ({"main_wer": 16.5, "main_acc": 1}, {"main_wer": 16.3}, {}, 100 * (1 - 16.5 / 16.3)),
        # 4.4 % and 8.1 % more errors than one worker
        (
            *({"relative_wer_reduction_percent": p} for p in (-4.4, -8.1)),
            *({}, 100 * (1 - 104.4 / 108.1)),
        ),
        ({"relative_wer_reduction_percent": -4.4}, NO_REDUCTION, {}, -4.4),
        ({"relative_wer_reduction_percent": -4.4}, None, {}, None),
        (
            {"relative_wer_reduction_percent": 5, "pass_1": 18},
            *({"relative_wer_reduction_percent": 0, "pass_1": 20}, {"epoch": 1}, 10),
        ),
        ({"pass_1": 18, "pass_7": 15}, {"pass_1": 20, "pass_7": 15}, {"epoch": 1}, 10),
        ({"pass_1": 18, "pass_7": 15}, {"pass_1": 20, "pass_7": 16}, {}, 6.25),
        ({"a": 9, "b": 30, "hours": 1}, {"a": 10, "b": 30}, {"splits": ("a", "b")}, 2.5),
        ({"a": 9, "b": None}, {"a": 10, "b": 30}, {"splits": ("a", "b")}, 10),
        (None, {"wer": 16.2}, {}, None),
        ({"wer": 15.8}, None, {}, None),
        ({"wer": 15.8}, {"wer": None}, {}, None),
        ({"frames_per_second": 3}, {"frames_per_second": 4}, {}, None),
    ],
)
def test_the_papers_reduction_follows_from_its_printed_numbers(row, against, more, percent):
    found = printed_reduction(row, against, **more)
    assert found == (None if percent is None else pytest.approx(percent))


def test_claims_are_shown_below_the_table_if_there_are_any(tmp_path):
    found = claimed(tmp_path, [FEWER], of40_1=9, of80_1=7)
    (claim,) = found["claims"]
    low, high = claim["ours"]["ci95"]
    assert low < high
    cells = ["80 are better than 40", "80", "40", "1", f"0.2 / 22.2* ({low:.1f} to {high:.1f})"]
    assert f"| {' | '.join(cells)} | " in markdown(found)
    assert "## Claims" in markdown(found)
    assert "80 are better than 40" in plain(found)
    none = claimed(tmp_path, [], of40_1=9, of80_1=6)
    assert "Claims" not in markdown(none)
    assert "claims" not in plain(none)


def test_intervals_over_groups_of_speakers_are_noted_below_both_tables(tmp_path):
    groups = {"speaker_groups": "(s)[1-6]"}
    found = claimed(tmp_path, [FEWER], score=groups, of40_1=9, of80_1=7)
    reduced = found["claims"][0]["ours"]["by_group"]
    low, high = (f"{limit:.1f}".replace("-", "−") for limit in reduced["ci95"])
    over = "- Over 7 groups of speakers that are alike in place of speakers: "
    text = f"{over}80 against 40: {low} to {high} (p {reduced['p']:.2g}).\n"
    first, second = markdown(found).split("## Claims")
    assert text in second
    assert f"{over}80: " in first  # 40 has half as many errors again of every speaker
    assert f"{over}80 against 40, epoch 2: " in claims_markdown([found["claims"][0] | {"epoch": 2}])
    assert over not in markdown(claimed(tmp_path, [FEWER], of40_1=9, of80_1=7))


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (FEWER | {"row": "81"}, r"a claim is about the row '81'; rows are baseline, 40, 80"),
        (FEWER | {"against": ""}, r"a claim is about the row ''"),
        (FEWER | {"epoch": 1}, r"'80 are better than 40' is about epoch 1; .* decode_epochs: true"),
    ],
)
def test_a_claim_about_rows_that_are_not_there_is_refused(tmp_path, claim, words):
    with pytest.raises(SettingsError, match=words):
        a_table(tmp_path, "strom2015", "table_2_nodes", NODES, claims=[claim])


def test_rows_without_a_common_seed_are_refused(tmp_path):
    rows = [NODES[0] | {"seeds": {"small": [1]}}, NODES[1] | {"seeds": {"small": [2]}}]
    with pytest.raises(SettingsError, match=r"'80' has seeds \[2\], '40' \[1\]; .* a common one"):
        a_table(tmp_path, "strom2015", "table_2_nodes", rows, [1, 2], claims=[FEWER])
