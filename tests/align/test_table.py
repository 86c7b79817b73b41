"""Alignments come back as they were stored, and their errors are measured as defined."""

import numpy as np
import pytest
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource

from asr_train.align.table import (
    Boundaries,
    check_lost,
    compare,
    open_ali,
    report,
    true_phones,
    write_alignments,
)
from asr_train.align.viterbi import Aligned, Lost
from asr_train.data.features import Utterance
from asr_train.lang.states import States
from scripts.resolve import settings

FEATS = settings("dnn", []).feats
STATES = States(("SIL", "a", "b"), 3, 5)
ABOUT = {"num_states": 11, "states_hash": STATES.hash, "self_loops": [0.5] * 11}


def utterance(name: str, frames: int, alignment=None) -> Utterance:
    seconds = frames / 100
    source = AudioSource("file", [0], f"{name}.wav")
    recording = Recording(name, [source], 16000, frames * 160, seconds)
    spoken = SupervisionSegment(name, name, 0.0, seconds, text="A B", speaker="s")
    row = MonoCut(name, 0.0, seconds, 0, [spoken], recording=recording).to_dict()
    if alignment:
        row["supervisions"][0]["alignment"] = {"phone": alignment}
    return Utterance(name, "s", "A B", seconds, frames, row)


@pytest.fixture
def stored(tmp_path):
    utterances = [utterance("u1", 20), utterance("u2", 30), utterance("u3", 5)]
    outcomes = [
        Aligned(np.repeat([5, 6, 7, 8], 5).astype(np.int32), -100.0, False),
        Aligned(np.repeat([0, 1, 2], 10).astype(np.int32), -60.0, True),
        Lost("5 frames, but its shortest pronunciation needs 6"),
    ]
    manifest = tmp_path / "ali" / "dev.jsonl.gz"
    write_alignments(manifest, utterances, outcomes, FEATS, ABOUT)
    return manifest, utterances, outcomes


def test_stored_paths_are_read_back(stored):
    manifest, _, outcomes = stored
    ali = open_ali(manifest)
    assert ali.ids == {"u1", "u2"}
    assert (ali.num_states, ali.states_hash) == (11, STATES.hash)
    for name, outcome in zip(("u1", "u2"), outcomes, strict=False):
        assert np.array_equal(ali.load(name), outcome.states_T)


def test_lhotse_loads_the_same_paths(stored):
    manifest, _, outcomes = stored
    for cut, outcome in zip(CutSet.from_file(manifest), outcomes, strict=False):
        assert np.array_equal(cut.load_ali(), outcome.states_T)


def test_the_table_says_how_every_utterance_fared(stored):
    lines = (stored[0].parent / "dev.status.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    assert [row[:2] for row in rows] == [["u1", "ok"], ["u2", "retried"], ["u3", "lost"]]
    assert rows[0][3] == "-5.0000"
    assert "needs 6" in rows[2][4]


def test_the_report_counts_what_happened(stored):
    _, utterances, outcomes = stored
    summary = report("dev", utterances, outcomes, STATES, 0.01)
    assert summary["utterances"] == 3
    assert summary["lost"] == [["u3", "5 frames, but its shortest pronunciation needs 6"]]
    assert summary["retried"] == 1
    assert summary["frames"] == 50
    assert summary["loglik_per_frame"] == pytest.approx(-160 / 50)
    assert summary["silence_share"] == pytest.approx(30 / 50)
    assert summary["boundaries"] is None


def test_an_alignment_that_is_true_has_no_error():
    true = [("SIL", 0.0, 0.1), ("a", 0.1, 0.2), ("b", 0.2, 0.35), ("SIL", 0.35, 0.5)]
    summary = compare(true, true).summary()
    assert summary["median_ms"] == 0
    assert summary["within_20ms"] == 1
    assert summary["compared"] == 4


@pytest.mark.parametrize("shift_ms, within_20, within_50", [(10, 1, 1), (30, 0, 1), (60, 0, 0)])
def test_a_shifted_alignment_is_off_by_the_shift(shift_ms, within_20, within_50):
    true = [("a", 0.1, 0.2), ("b", 0.2, 0.35)]
    moved = [(p, s + shift_ms / 1000, e + shift_ms / 1000) for p, s, e in true]
    summary = compare(moved, true).summary()
    assert summary["median_ms"] == pytest.approx(shift_ms)
    assert summary["bias_ms"] == pytest.approx(shift_ms)
    assert (summary["within_20ms"], summary["within_50ms"]) == (within_20, within_50)


def test_phones_that_are_pronounced_otherwise_are_counted_and_not_compared():
    true = [("a", 0.0, 0.1), ("b", 0.1, 0.2), ("a", 0.2, 0.3)]
    ours = [("a", 0.0, 0.1), ("a", 0.2, 0.3)]
    found = compare(ours, true)
    assert found.unmatched == 1
    assert len(found.errors) == 4
    assert found.summary()["median_ms"] == 0


def test_errors_of_utterances_add_up():
    a, b = Boundaries((0.01,), 1), Boundaries((0.02, 0.03), 0)
    assert a + b == Boundaries((0.01, 0.02, 0.03), 1)


def test_true_phones_have_start_and_end():
    row = utterance("u", 30, [["a", 0.1, 0.2, None], ["b", 0.3, 0.05, None]]).row
    assert true_phones(row) == [("a", 0.1, 0.3), ("b", 0.3, 0.35)]
    assert true_phones(utterance("u", 30).row) is None


def test_too_many_lost_utterances_stop_the_stage_by_name():
    check_lost("ali", [["u1", "why"]], 20, 0.05)
    with pytest.raises(ValueError, match=r"2 of 20.*u1: why"):
        check_lost("ali", [["u1", "why"], ["u2", "why"]], 20, 0.05)
