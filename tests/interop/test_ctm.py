"""CTM and STM: times are kept, for alignments and hypotheses; sclite gives the same counts."""

import json
import re
import shutil
import subprocess

import pytest
from interop.made import cut_of, noise

from asr_train.files import DamagedFileError
from asr_train.interop.ctm import read_ctm, write_ctm, write_stm
from asr_train.interop.times import Span, Timed, aligned, found, place_of
from asr_train.score.words import WordErrors


@pytest.fixture
def rows(tmp_path):
    """Two utterances of one recording, in reverse order, and one of another."""
    a, b = tmp_path / "call1.wav", tmp_path / "call2.wav"
    noise(a, 6.0)
    noise(b, 3.0)
    cuts = [
        cut_of("anna-2", a, "anna", "THREE FOUR", 3.0, 2.5),
        cut_of("anna-1", a, "anna", "ONE TWO SIX", 0.5, 2.0),
        cut_of("ben-1", b, "ben", "NINE"),
    ]
    return json.loads(json.dumps([cut.to_dict() for cut in cuts]))


def hypothesis(row, words, confidence=0.75):
    """Return words at even times from the utterance's start."""
    each = row["duration"] / (len(words) + 1)
    at = [[w, round(each * (i + 0.5), 3), round(each, 3), confidence] for i, w in enumerate(words)]
    return {"id": row["id"], "words": words, "words_at": at}


@pytest.mark.parametrize("kind", ["word", "phone"])
def test_alignments_come_back_in_order_of_time(rows, tmp_path, kind):
    count = write_ctm(tmp_path / "a.ctm", [aligned(row, kind) for row in rows])
    lanes = read_ctm(tmp_path / "a.ctm")
    assert list(lanes) == [("call1", 0), ("call2", 0)]
    assert sum(map(len, lanes.values())) == count
    expected = [
        (row["start"], item)
        for row in (rows[1], rows[0])  # anna-1 comes before anna-2
        for item in row["supervisions"][0]["alignment"][kind]
    ]
    for span, (begin, (label, start, seconds, *_)) in zip(lanes["call1", 0], expected, strict=True):
        assert span.label == label
        assert span.start == pytest.approx(begin + start, abs=6e-4)
        assert span.seconds == pytest.approx(seconds, abs=6e-4)
        assert span.confidence == 1


def test_a_line_is_as_nist_says(tmp_path):
    spans = (Span("HELLO", 11.34, 0.2), Span("THERE", 11.54, 0.5, 0.53))
    row = {"id": "u", "channel": 1, "start": 11.0, "duration": 2.0, "recording": {"id": "7654"}}
    row["supervisions"] = [{"speaker": "anna", "text": "HELLO THERE"}]
    write_ctm(tmp_path / "a.ctm", [place_of(row, spans)])
    assert (tmp_path / "a.ctm").read_text() == (
        "7654 2 11.340 0.200 HELLO 1.0000\n7654 2 11.540 0.500 THERE 0.5300\n"
    )
    write_stm(tmp_path / "a.stm", [place_of(row)])
    assert (tmp_path / "a.stm").read_text() == "7654 2 anna 11.000 13.000 <NA> HELLO THERE\n"


def test_lines_go_by_recording_then_channel_then_time(tmp_path):
    """Two sides of a call that speak in turn, and a recording before it."""
    timed = [
        Timed("u", name, channel, "anna", start, 1.0, "HI", (Span("HI", start, 0.5),))
        for name, channel, start in (
            *(("b", 1, 0.0), ("b", 0, 3.0), ("b", 1, 2.0), ("b", 0, 1.0)),
            ("a", 0, 9.0),
        )
    ]
    wanted = [("a", 0, 9.0), ("b", 0, 1.0), ("b", 0, 3.0), ("b", 1, 0.0), ("b", 1, 2.0)]
    write_ctm(tmp_path / "a.ctm", timed)
    write_stm(tmp_path / "a.stm", timed)
    for name, start_field in (("a.ctm", 2), ("a.stm", 3)):
        lines = [line.split() for line in (tmp_path / name).read_text().splitlines()]
        assert [(f[0], int(f[1]) - 1, float(f[start_field])) for f in lines] == wanted


def test_hypotheses_count_from_their_utterance(rows, tmp_path):
    hyp = hypothesis(rows[0], ["THREE", "FOUR"])
    timed = found(hyp, rows[0])
    assert [s.start for s in timed.spans] == [at[1] + 3.0 for at in hyp["words_at"]]
    assert {s.confidence for s in timed.spans} == {0.75}
    assert found({"id": "anna-2", "words": []}, rows[0]).spans == ()


def test_a_word_ends_with_its_recording_at_the_latest(rows):
    """The last frame may end half a frame shift later."""
    hyp = {"id": "anna-2", "words": ["FOUR"], "words_at": [["FOUR", 2.0, 0.505, 0.75]]}
    (span,) = found(hyp, rows[0]).spans
    assert (span.start - rows[0]["start"], span.seconds) == (2.0, 0.5)


@pytest.mark.parametrize("kind", ["word", "phone"])
@pytest.mark.parametrize("seconds, left", [(0.505, 0.5), (0.495, 0.495), (0.6, 0.6)])
def test_what_is_aligned_ends_with_its_utterance_too(rows, kind, seconds, left):
    """The last frame may end half a shift later; times further off are wrong, and left so."""
    row = rows[0] | {"features": {"frame_shift": 0.01}}
    row["supervisions"][0]["alignment"] = {kind: [["FOUR", 2.0, seconds]]}
    (span,) = aligned(row, kind).spans
    assert (span.start - row["start"], span.seconds) == (2.0, left)


def test_words_without_times_are_spread_evenly(rows):
    hyp = {"id": "anna-2", "words": ["THREE", "FOUR"], "words_at": None, "confidences": [0.5, 1]}
    half = rows[0]["duration"] / 2
    spans = found(hyp, rows[0]).spans
    assert [(s.start - rows[0]["start"], s.seconds) for s in spans] == [(0, half), (half, half)]
    assert [s.confidence for s in spans] == [0.5, 1]


def test_times_of_other_words_are_refused(rows):
    hyp = hypothesis(rows[0], ["THREE", "FOUR"])
    with pytest.raises(ValueError, match="anna-2 has the words THREE but times of THREE FOUR"):
        found({**hyp, "words": ["THREE"]}, rows[0])


def test_rows_without_times_and_impossible_times_are_named(rows):
    rows[0]["supervisions"][0]["alignment"]["word"][0][1] = -0.5
    with pytest.raises(ValueError, match=r"anna-2: THREE starts at -0.5 s"):
        aligned(rows[0], "word")
    del rows[0]["supervisions"][0]["alignment"]
    with pytest.raises(ValueError, match="anna-2 has no word times"):
        aligned(rows[0], "word")


def test_an_alignments_score_is_no_confidence(rows):
    rows[2]["supervisions"][0]["alignment"]["word"][0][3:] = [-71.5]
    assert aligned(rows[2], "word").spans[0].confidence is None


@pytest.mark.parametrize(
    "line",
    [
        "a 1 0.1 0.2",
        "a 1 x 0.2 W",
        "a 1 0.1 -0.2 W",
        "a 1 0.1 nan W",
        "a q 0.1 0.2 W",
        "a 1 0 1 W 1 1",
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    (tmp_path / "a.ctm").write_text(f";; comment\na A 0.1 0.2 W NA\n{line}\n")
    with pytest.raises(DamagedFileError, match=r"a\.ctm, line 3 is"):
        read_ctm(tmp_path / "a.ctm")


def test_a_word_with_a_space_is_refused(rows, tmp_path):
    rows[0]["supervisions"][0]["alignment"]["word"][0][0] = "THREE FOUR"
    with pytest.raises(ValueError, match="'THREE FOUR'"):
        write_ctm(tmp_path / "a.ctm", [aligned(row, "word") for row in rows])
    assert not (tmp_path / "a.ctm").exists()


@pytest.mark.skipif(shutil.which("sctk") is None, reason="sctk is not installed")
def test_sclite_counts_the_same_errors(rows, tmp_path):
    said = {"anna-2": ["THREE"], "anna-1": ["ONE", "OH", "TWO", "SEVEN"], "ben-1": ["NINE"]}
    ours = WordErrors()
    for row in rows:
        ours += WordErrors.between(row["supervisions"][0]["text"].split(), said[row["id"]])
    write_ctm(tmp_path / "h.ctm", [found(hypothesis(r, said[r["id"]]), r) for r in rows])
    write_stm(tmp_path / "r.stm", [place_of(row) for row in rows])
    done = subprocess.run(
        ["sctk", "sclite", "-r", "r.stm", "stm", "-h", "h.ctm", "ctm", "-o", "rsum", "stdout"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (total,) = re.findall(r"^ *\| *Sum *\|(.*)\| *$", done.stdout, re.M)
    counts = [int(n) for n in re.findall(r"\d+", total)[:7]]
    assert counts[:6] == [
        3, 6, ours.correct, ours.substitutions, ours.deletions, ours.insertions
    ]  # fmt: skip
    assert counts[6] == ours.errors == 3
