"""Laws of scripts/score.py: the content of a score file, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asr_train.files import read_json, write_jsonl, write_yaml

ROOT = Path(__file__).parents[2]
HEADER = {
    "run": "dnn",
    "split": "test",
    "real_time_factor": 0.03,
    "acoustic_scale": 0.1,
    "insertion_penalty": 0.0,
    "lm_weight": 1.0,
}
SAID = {f"s{i % 6}-{i}": words for i, words in enumerate(["one two", "three", "four five six"] * 4)}


def settings(**normaliser):
    return {"bootstrap": 200, "seed": 1, "normaliser": {"kind": "plain", **normaliser}}


@pytest.fixture
def stage(tmp_path):
    """Write both sides and run the script on them; return the finished process."""
    write_yaml(tmp_path / "score.yaml", settings())

    def run(found, said=SAID, header=HEADER, final=True):
        cuts = [
            {"id": i, "supervisions": [{"id": i, "text": text, "speaker": i.split("-")[0]}]}
            for i, text in said.items()
        ]
        rows = [
            {"id": i, "words": text.split(), "final": final, "frames": 90, "seconds": 0.1}
            for i, text in found.items()
        ]
        write_jsonl(tmp_path / "test.jsonl.gz", cuts)
        write_jsonl(tmp_path / "hyp.test.jsonl", [*([header] if header else []), *rows])
        command = [sys.executable, ROOT / "scripts/score.py", "hyp.test.jsonl", "test.jsonl.gz"]
        return subprocess.run(
            [*command, "score.yaml", "score.test.json"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )

    return run


def test_equal_words_score_zero_whatever_their_case(stage, tmp_path):
    done = stage({utt_id: text.upper() for utt_id, text in SAID.items()})
    assert done.returncode == 0, done.stderr
    score = read_json(tmp_path / "score.test.json")
    assert (score["wer"], score["errors"], score["ci95"]) == (0, 0, [0, 0])
    assert score["words"] == sum(len(text.split()) for text in SAID.values())
    assert score["normaliser"] == "upper-1"
    line = "%WER 0.00 [ 0 / 24, 0 ins, 0 del, 0 sub ] exp/dnn test"
    assert done.stdout.startswith(f"{line}; no errors: the bootstrap gives no upper limit; ")


def test_totals_are_the_sums_of_utterances_and_of_speakers(stage, tmp_path):
    found = dict(zip(SAID, ["ONE", "THREE", "FOUR NINE SIX SIX"] * 4, strict=True))
    assert stage(found).returncode == 0
    score = read_json(tmp_path / "score.test.json")
    assert (score["deletions"], score["substitutions"], score["insertions"]) == (4, 4, 4)
    assert score["wer"] == pytest.approx(12 / 24)
    assert score["ci_over"] == "speakers"
    for part in ("by_utterance", "by_speaker"):
        for key in ("words", "errors", "insertions", "deletions", "substitutions"):
            assert sum(row[key] for row in score[part].values()) == score[key]
    assert (len(score["by_utterance"]), len(score["by_speaker"])) == (12, 6)
    assert score | HEADER == score  # what the decoder reported is kept


def test_the_text_beside_shows_every_utterance_and_its_edits(stage, tmp_path):
    stage(dict(zip(SAID, ["ONE", "THREE", "FOUR NINE SIX"] * 4, strict=True)))
    text = (tmp_path / "score.test.txt").read_text()
    assert all(utt_id in text for utt_id in SAID)
    assert "     4  TWO -> *" in text
    assert "  ref   FOUR FIVE SIX\n  hyp   FOUR NINE SIX\n             S" in text


def test_beside_the_score_stand_tables_whose_rows_add_up_to_it(stage, tmp_path):
    stage(dict(zip(SAID, ["ONE", "THREE", "FOUR NINE SIX SIX"] * 4, strict=True)))
    score = read_json(tmp_path / "score.test.json")
    for name, count in (("speakers", 6), ("utterances", 12)):
        head, *rows = (tmp_path / f"score.test.{name}.tsv").read_text().splitlines()
        assert len(rows) == count
        for key in ("words", "errors", "insertions", "deletions", "substitutions"):
            column = head.split("\t").index(key)
            assert sum(int(row.split("\t")[column]) for row in rows) == score[key]
    text = (tmp_path / "score.test.txt").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("| Sum")][:1]
    cells = [int(cell) for cell in line.replace("|", " ").split()[1:]]
    assert cells == [12, 24, 16, 4, 4, 4, 12, 8]
    for part in ("confusions", "deletions", "insertions"):
        assert f"most frequent {part}: " in text


def test_both_sides_are_written_for_sclite(stage, tmp_path):
    stage(dict(zip(SAID, ["ONE", "", "FOUR NINE SIX"] * 4, strict=True)))
    ref, hyp = ((tmp_path / f"score.test.{side}.trn").read_text() for side in ("ref", "hyp"))
    assert ref.splitlines()[:2] == ["ONE TWO (s0-0)", "THREE (s1-1)"]
    assert hyp.splitlines()[:2] == ["ONE (s0-0)", "(s1-1)"]
    assert len(ref.splitlines()) == len(hyp.splitlines()) == len(SAID)


def test_english_and_its_mapping_hold_for_both_sides(stage, tmp_path):
    (tmp_path / "en.glm").write_text("CAN'T => CANNOT\n")
    write_yaml(tmp_path / "score.yaml", settings(kind="english", mapping="en.glm"))
    said = {"a-1": "Uh, I can't!", "a-2": "twenty-one"}
    done = stage({"a-1": "I UM CANNOT", "a-2": "TWENTY ONE"}, said=said)
    assert done.returncode == 0, done.stderr
    score = read_json(tmp_path / "score.test.json")
    assert score["normaliser"].startswith("en-3+en-")
    assert (score["errors"], score["words"]) == (0, 5)
    ref = (tmp_path / "score.test.ref.trn").read_text()
    assert ref == "(%HESITATION) I CANNOT (a-1)\nTWENTY ONE (a-2)\n"


def test_a_wrong_mapping_stops_the_stage_with_file_and_line(stage, tmp_path):
    (tmp_path / "en.glm").write_text("A => B\nC\n")
    write_yaml(tmp_path / "score.yaml", settings(kind="english", mapping="en.glm"))
    done = stage(SAID)
    assert done.returncode == 1
    assert done.stderr.startswith("score: en.glm, line 2: 'C' has 0 '=>'")
    assert not (tmp_path / "score.test.json").exists()


def test_search_failures_are_counted_and_said(stage, tmp_path):
    done = stage(SAID, final=False)
    assert read_json(tmp_path / "score.test.json")["search_failures"] == len(SAID)
    assert "12 search failures" in done.stdout


def test_equal_inputs_give_equal_bytes(stage, tmp_path):
    found = {utt_id: "ONE" for utt_id in SAID}
    stage(found)
    first = (tmp_path / "score.test.json").read_bytes()
    stage(found)
    assert (tmp_path / "score.test.json").read_bytes() == first


def test_an_utterance_on_one_side_only_is_refused(stage, tmp_path):
    found = {("x-9" if utt_id == "s1-1" else utt_id): text for utt_id, text in SAID.items()}
    del found["s0-0"]
    done = stage(found)
    assert done.returncode == 1
    assert not (tmp_path / "score.test.json").exists()
    assert "hyp.test.jsonl has 11 utterances but test.jsonl.gz has 12" in done.stderr
    assert "2 missing (s0-0, s1-1), 1 unknown (x-9)" in done.stderr
    assert "run make again" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_file_without_header_is_refused(stage):
    done = stage(SAID, header=None)
    assert done.returncode == 1
    assert "has no run, split" in done.stderr


def test_one_utterance_is_scored_without_an_interval(stage, tmp_path):
    done = stage({"a-1": "ONE"}, said={"a-1": "one two"})
    assert done.returncode == 0, done.stderr
    score = read_json(tmp_path / "score.test.json")
    assert (score["wer"], score["ci95"], score["ci_over"]) == (0.5, None, None)


def test_speakers_that_are_alike_are_drawn_together_too(stage, tmp_path):
    found = {utt_id: "" if "s1" in utt_id else words for utt_id, words in SAID.items()}
    stage(found)
    alone = read_json(tmp_path / "score.test.json")
    write_yaml(tmp_path / "score.yaml", settings() | {"speaker_groups": "s([12]|[0-9]+)"})
    stage(found)
    assert read_json(tmp_path / "score.test.json") == alone  # no two speakers are alike
    write_yaml(tmp_path / "score.yaml", settings() | {"speaker_groups": "(s)[1-4]"})
    done = stage(found)
    score = read_json(tmp_path / "score.test.json")
    assert (score["groups"], score["ci95"]) == (3, alone["ci95"])
    low, high = (100 * limit for limit in score["ci95_groups"])
    assert f"speakers ({low:.2f} to {high:.2f} % over 3 groups of them)" in done.stdout


def test_scoring_and_reporting_import_neither_torch_nor_lhotse():
    code = (
        "import sys; sys.path.insert(0, 'scripts'); import score, tables, report, status, json;"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"torch", "lhotse", "hydra"} & set(json.loads(done.stdout))
