"""Stored alignments are read back unchanged, and their errors are measured as defined."""

import json
from itertools import pairwise

import numpy as np
import pytest
from held import held
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from toy import path_of, scores_of, tied, toy_lang

from asr_train.align.table import (
    Alignments,
    boundaries,
    check_lost,
    compare,
    durations,
    phones_in_seconds,
    report,
    true_phones,
    words_in_seconds,
    write_alignments,
)
from asr_train.align.viterbi import Aligned, Aligner, Lost
from asr_train.compose import settings
from asr_train.data.features import Utterance
from asr_train.lang.states import States
from asr_train.schema import AliSettings

FEATS = settings("dnn", []).feats
STATES = States(("SIL", "a", "b"), 3, 5)
ABOUT = {"model": "mono", "self_loops": [0.5] * 11}


def utterance(name: str, frames: int, alignment=None, **changes) -> Utterance:
    seconds = frames / 100
    source = AudioSource("file", [0], f"{name}.wav")
    recording = Recording(name, [source], 16000, frames * 160, seconds)
    spoken = SupervisionSegment(name, name, 0.0, seconds, text="A B", speaker="s")
    row = MonoCut(name, 0.0, seconds, 0, [spoken], recording=recording).to_dict()
    if alignment:
        row["supervisions"][0]["alignment"] = {"phone": alignment}
    row |= changes
    return Utterance(name, "s", "A B", seconds, frames, json.dumps(row))


def aligned(phones, loglik, retried=False) -> Aligned:
    """Return an alignment of (phone, frames, place of its word), with frames shared evenly."""
    states, position, rows = [], [], []
    for phone, frames, word in phones:
        rows.append([STATES.phones.index(phone), len(states), word])
        j = np.arange(frames) * len(STATES.of(phone)) // frames
        states += (STATES.of(phone)[0] + j).tolist()
        position += j.tolist()
    return Aligned(
        np.array(states, np.int32),
        np.array(position, np.int8),
        np.array(rows, np.int32),
        loglik,
        retried,
    )


@pytest.fixture
def stored(tmp_path):
    utterances = [utterance("u1", 20), utterance("u2", 30), utterance("u3", 5)]
    outcomes = [
        aligned([("a", 12, 0), ("b", 3, 1), ("SIL", 5, -1)], -100.0),
        aligned([("SIL", 30, -1)], -60.0, retried=True),
        Lost("5 frames, but its shortest pronunciation needs 6"),
    ]
    manifest = tmp_path / "ali" / "mono" / "dev.jsonl.gz"
    write_alignments(manifest, utterances, outcomes, FEATS, STATES, ABOUT)
    return manifest, utterances, outcomes


def test_stored_paths_are_read_back(stored):
    manifest, _, outcomes = stored
    ali = Alignments(manifest)
    assert ali.ids == {"u1", "u2"}
    assert (ali.num_states, ali.states_hash) == (11, STATES.hash)
    assert States.from_plain(ali.states) == STATES
    assert ali.self_loops == ABOUT["self_loops"]
    for name, outcome in zip(("u1", "u2"), outcomes, strict=False):
        assert np.array_equal(ali.load(name), outcome.states_T)


def test_paths_that_were_moved_are_read_where_they_are(stored, tmp_path):
    manifest, _, outcomes = stored
    (tmp_path / "ali").rename(tmp_path / "moved")
    ali = Alignments(tmp_path / "moved" / "mono" / manifest.name)
    assert np.array_equal(ali.load("u1"), outcomes[0].states_T)


def test_another_manifest_is_named(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/index.json").write_text('{"parts": []}')
    with pytest.raises(ValueError, match=r"dev\.jsonl\.gz has no alignments; name ali/MODEL/"):
        Alignments(tmp_path / "dev.jsonl.gz")


def test_memory_does_not_grow_with_the_phones_of_the_alignments(tmp_path):
    """For 960 hours the manifest's rows would take 14 GB, 50 KB an utterance with 140 phones."""
    outcome = aligned([("a", 3, 0), ("b", 3, 1)] * 100, -1.0)
    utterances = [utterance(f"u{n}", 600) for n in range(100)]
    manifest = tmp_path / "train.jsonl.gz"

    def write():
        write_alignments(manifest, utterances, [outcome] * 100, FEATS, STATES, ABOUT)

    _, highest = held(write)
    assert highest < 100 * 2 * outcome.states_T.nbytes + 5e5  # the HDF5 file while it is made
    kept, highest = held(lambda: Alignments(manifest))
    assert kept < 100 * 500
    assert highest < 100 * 500 + 5e5


def test_lhotse_loads_the_same_paths(stored):
    manifest, _, outcomes = stored
    for cut, outcome in zip(CutSet.from_file(manifest), outcomes, strict=False):
        assert np.array_equal(cut.load_ali(), outcome.states_T)


def test_lhotse_loads_the_path_of_a_part_of_a_recording(tmp_path):
    longer = utterance("u1", 900).row["recording"]
    part = utterance("u1", 20, start=1.0, recording=longer)
    outcome = aligned([("a", 12, 0), ("b", 8, 1)], -100.0)
    manifest = tmp_path / "dev.jsonl.gz"
    write_alignments(manifest, [part], [outcome], FEATS, STATES, ABOUT)
    (cut,) = CutSet.from_file(manifest)
    assert np.array_equal(cut.load_ali(), outcome.states_T)


def test_lhotse_finds_phones_and_words_where_the_path_has_them(stored):
    cuts = list(CutSet.from_file(stored[0]))
    found = [
        {
            kind: [(item.symbol, round(item.start, 3), round(item.duration, 3)) for item in items]
            for kind, items in cut.supervisions[0].alignment.items()
        }
        for cut in cuts
    ]
    assert found[0] == {
        "phone": [("a", 0, 0.12), ("b", 0.12, 0.03), ("SIL", 0.15, 0.05)],
        "word": [("A", 0, 0.12), ("B", 0.12, 0.03)],
    }
    assert found[1] == {"phone": [("SIL", 0, 0.3)]}  # it does not say where the words are
    assert [cut.supervisions[0].text for cut in cuts] == ["A B", "A B"]


def test_the_true_phones_of_a_corpus_are_not_those_of_the_path(tmp_path):
    """The manifest of alignments has the path's phones; that of the features the true ones."""
    true = [["a", 0.0, 0.05, None], ["b", 0.05, 0.15, None]]
    u = utterance("u1", 20, true)
    path = aligned([("a", 12, 0), ("b", 8, 1)], -1.0)
    manifest = tmp_path / "dev.jsonl.gz"
    write_alignments(manifest, [u], [path], FEATS, STATES, ABOUT)
    (cut,) = CutSet.from_file(manifest)
    assert [i.duration for i in cut.supervisions[0].alignment["phone"]] == [0.12, 0.08]
    assert u.row["supervisions"][0]["alignment"]["phone"] == true


@pytest.mark.parametrize("seed", range(3))
def test_phones_and_words_of_an_aligned_utterance_lie_end_to_end(seed):
    """For a path of the aligner, with states tied in context."""
    rng = np.random.default_rng(seed)
    lang = toy_lang()
    states = tied(lang, rng)
    words = ["C", "ABC", "A", "A"]
    path_T = path_of(lang, words, rng, states=states, stay=3)
    scores_TS = scores_of(path_T, states.num_states, rng, 20.0)
    ali = AliSettings(beam=200.0, retry_beam=1000.0, acoustic_scale=1.0, max_lost_share=0.1)
    loop_S = np.full(states.num_states, 0.5)
    aligner = Aligner(lang, states, loop_S, ali)
    found = aligner.align(words, len(path_T), lambda ids, span: scores_TS[span][:, ids])
    assert np.array_equal(found.states_T, path_T)
    phones = phones_in_seconds(states, found, 0.01)
    assert phones[0][1] == 0
    assert phones[-1][2] == pytest.approx(len(path_T) / 100)
    assert all(a[2] == b[1] for a, b in pairwise(phones))
    said = words_in_seconds(words, found, 0.01)
    assert [word for word, *_ in said] == words
    for word, start, end in said:
        inside = tuple(p for p, s, e in phones if start <= s and e <= end)
        assert inside in lang.lexicon.prons[word]
    silent = sum(e - s for p, s, e in phones if p == "SIL")
    assert sum(e - s for _, s, e in said) == pytest.approx(len(path_T) / 100 - silent)


def test_durations_count_the_shortest_and_the_very_long_phones_but_no_silence():
    kept = [
        (utterance("u1", 68), aligned([("a", 3, 0), ("b", 15, 1), ("SIL", 50, -1)], -1.0)),
        (utterance("u2", 44), aligned([("a", 41, 0), ("b", 3, 1)], -1.0)),
        (utterance("u3", 43), aligned([("a", 40, 0), ("b", 3, 1)], -1.0)),
    ]
    found = durations(kept, STATES)
    assert (found["phones"], found["long"]) == (6, 1)
    assert found["shortest_share"] == pytest.approx(3 / 6)
    assert durations([], STATES)["phones"] == 0


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
    assert summary["silence_share"] == pytest.approx(35 / 50)
    assert summary["durations"]["shortest_share"] == pytest.approx(1 / 2)
    assert summary["boundaries"] is None


def test_an_alignment_that_is_true_has_no_error():
    true = [("SIL", 0.0, 0.1), ("a", 0.1, 0.2), ("b", 0.2, 0.35), ("SIL", 0.35, 0.5)]
    summary = boundaries(*compare(true, true))
    assert summary["median_ms"] == 0
    assert summary["within_20ms"] == 1
    assert summary["compared"] == 4


def test_phones_of_ones_own_lexicon_are_compared_with_labels_in_upper_case_without_stress():
    true = [("AA", 0.1, 0.2), ("T", 0.2, 0.35), ("AH", 0.35, 0.5)]
    ours = [(p, *s[1:]) for p, s in zip(("aa1", "t", "AX"), true, strict=True)]
    assert compare(ours, true) == ([0.0] * 6, 0)


@pytest.mark.parametrize("shift_ms, within_20, within_50", [(10, 1, 1), (30, 0, 1), (60, 0, 0)])
def test_a_shifted_alignment_is_off_by_the_shift(shift_ms, within_20, within_50):
    true = [("a", 0.1, 0.2), ("b", 0.2, 0.35)]
    moved = [(p, s + shift_ms / 1000, e + shift_ms / 1000) for p, s, e in true]
    summary = boundaries(*compare(moved, true))
    assert summary["median_ms"] == pytest.approx(shift_ms)
    assert summary["bias_ms"] == pytest.approx(shift_ms)
    assert (summary["within_20ms"], summary["within_50ms"]) == (within_20, within_50)


def test_phones_that_are_pronounced_otherwise_are_counted_and_not_compared():
    true = [("a", 0.0, 0.1), ("b", 0.1, 0.2), ("a", 0.2, 0.3)]
    ours = [("a", 0.0, 0.1), ("a", 0.2, 0.3)]
    errors, unmatched = compare(ours, true)
    assert unmatched == 1
    assert len(errors) == 4
    assert boundaries(errors, unmatched)["median_ms"] == 0


def test_phones_that_nobody_said_are_neither_counted_nor_compared():
    true = [("a", 0.0, 0.1), ("b", 0.2, 0.3)]
    assert compare([true[0], ("a", 0.1, 0.2), true[1]], true) == ([0.0] * 4, 0)


def test_true_phones_have_start_and_end():
    row = utterance("u", 30, [["a", 0.1, 0.2, None], ["b", 0.3, 0.05, None]]).row
    assert true_phones(row) == [("a", 0.1, 0.3), ("b", 0.3, 0.35)]
    assert true_phones(utterance("u", 30).row) is None


def test_too_many_lost_utterances_stop_the_stage_by_name():
    check_lost("ali", [["u1", "why"]], 20, 0.05)
    with pytest.raises(ValueError, match=r"2 of 20.*u1: why"):
        check_lost("ali", [["u1", "why"], ["u2", "why"]], 20, 0.05)
