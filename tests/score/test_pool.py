"""Laws of scripts/pool.py: folds of any size are added up, or refused."""

import pytest

from asr_train.files import read_json, write_json, write_yaml
from asr_train.schema import ScoreSettings, build
from scripts.pool import against, fold_of, markdown, pool, pooled

PLAIN = {"bootstrap": 200, "seed": 1, "normaliser": {"kind": "plain"}}
SETTINGS = build(ScoreSettings, PLAIN)


def counted(words: int, errors: int) -> dict[str, int]:
    return {
        "words": words,
        "errors": errors,
        "insertions": 0,
        "deletions": 0,
        "substitutions": errors,
    }


def score(run: str, speaker: str, wrong: int, utterances: int = 10):
    """Write a score file of one speaker, a word per utterance, the first `wrong` of them errors."""
    return {
        "run": run,
        "split": "test",
        **counted(utterances, wrong),
        "wer": wrong / utterances,
        "ci95": [0.0, 1.0],
        "utterances": utterances,
        "normaliser": "upper-1",
        "by_utterance": {
            f"{speaker}-{i}": {"speaker": speaker, **counted(1, int(i < wrong))}
            for i in range(utterances)
        },
    }


def folds(run: str, **wrong: int):
    return [score(run, speaker, count) for speaker, count in wrong.items()]


def test_counts_are_pooled_and_rates_averaged():
    scores = [score("gmm", "ann", 1, utterances=10), score("gmm", "bob", 30, utterances=40)]
    ours = pooled(scores, SETTINGS)["runs"]["gmm"]
    assert (ours["errors"], ours["words"]) == (31, 50)
    assert ours["wer"] == 31 / 50
    assert ours["mean"] == pytest.approx((1 / 10 + 30 / 40) / 2)
    assert ours["ci95"][0] <= ours["wer"] <= ours["ci95"][1]


@pytest.mark.parametrize(("names", "over"), [("abcd", "utterances"), ("abcde", "speakers")])
def test_the_interval_is_over_speakers_from_five_on(names, over):
    ours = pooled(folds("gmm", **dict.fromkeys(names, 2)), SETTINGS)["runs"]["gmm"]
    assert ours["ci_over"] == over
    # Equal speakers give an interval of length 0; their utterances do not.
    assert (ours["ci95"][0] == ours["ci95"][1]) == (over == "speakers")


def test_a_run_is_compared_with_the_first_over_the_same_folds():
    table = pooled(
        [*folds("gmm", ann=4, bob=2, cid=3), *folds("dnn", ann=1, bob=2, cid=2)], SETTINGS
    )
    assert table["runs"]["gmm"]["against"] is None
    found = table["runs"]["dnn"]["against"]
    assert found["difference"] == pytest.approx(-4 / 30)
    assert found["better_folds"] == 2
    assert found["ci95"][0] <= found["difference"] <= found["ci95"][1]


def test_a_run_does_not_differ_from_itself():
    ours = {fold_of(s): s for s in folds("gmm", ann=4, bob=2)}
    assert against(ours, ours, SETTINGS) == {
        "difference": 0,
        "ci95": (0, 0),
        "better_folds": 0,
    }


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            [*folds("gmm", ann=1, bob=1), *folds("dnn", ann=1)],
            "run dnn has the folds ann but gmm has ann, bob",
        ),
        ([*folds("gmm", ann=1), *folds("gmm", ann=2)], "run gmm has the folds ann, ann"),
    ],
)
def test_folds_that_do_not_match_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        pooled(scores, SETTINGS)


def test_no_folds_are_refused_before_their_settings_are_looked_for(tmp_path):
    with pytest.raises(ValueError, match="no score file to pool; name the folds' test speakers"):
        pool(str(tmp_path / "fold-/conf/score.yaml"), str(tmp_path / "folds.md"))


def test_an_utterance_of_two_folds_is_refused():
    ann, bob = folds("gmm", ann=1, bob=1)
    bob["by_utterance"]["ann-3"] = bob["by_utterance"]["bob-3"]
    with pytest.raises(ValueError, match="ann-3 is tested in the folds ann and bob"):
        pooled([ann, bob], SETTINGS)


def test_the_stage_writes_a_row_a_fold_and_prints_the_pooled_rate(tmp_path, capsys):
    paths = []
    for each in [*folds("gmm", ann=4, bob=2), *folds("dnn", ann=1, bob=3)]:
        paths.append(str(tmp_path / f"{each['run']}-{fold_of(each)}.json"))
        write_json(paths[-1], each)
    write_yaml(tmp_path / "conf" / "score.yaml", PLAIN)
    pool(str(tmp_path / "conf" / "score.yaml"), *paths, str(tmp_path / "folds.md"))
    table = read_json(tmp_path / "folds.json")
    assert (tmp_path / "folds.md").read_text() == markdown(table)
    assert "| bob | 20.00 (0.00 – 100.00), 2 / 10 | 30.00 (0.00 – 100.00), 3 / 10 |" in markdown(
        table
    )
    assert "| mean of folds | 30.00 | 20.00 |" in markdown(table)
    assert "dnn against gmm: −10.00 points" in markdown(table)
    assert "fewer errors in 1 of 2 folds" in markdown(table)
    assert capsys.readouterr().out.splitlines() == [
        "%WER 30.00 [ 6 / 20, 0 ins, 0 del, 6 sub ] gmm, 2 folds",
        "%WER 20.00 [ 4 / 20, 0 ins, 0 del, 4 sub ] dnn, 2 folds",
    ]
