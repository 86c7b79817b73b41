"""asr-train table: a folder of recordings with texts beside them becomes a corpus."""

import os
import shutil

import numpy as np
import pytest
import soundfile
from layouts import record_piped

from asr_train.command.main import main
from asr_train.data.folder import tabled
from asr_train.interop.textgrid import write_textgrid
from asr_train.interop.times import Span, Timed


@pytest.fixture
def recordings(tmp_path):
    """Two speakers' recordings: 0.5 s of noise each, and their texts."""
    noise = np.random.default_rng(1).normal(0, 0.1, 8000)
    for name, text in {
        "anna/1.wav": "One\ttwo\nthree",
        "anna/anna_2.flac": "x",
        "ben/1.wav": "y",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, noise, 16000)
        path.with_suffix(".txt").write_text(f"\ufeff{text}\n", encoding="utf-8")
    return tmp_path


def run(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["table", *map(str, arguments)])
    return ended.value.code, *capsys.readouterr()


def listed(folder):
    return [(row.utt_id, row.speaker, row.path, row.seconds, row.text) for row in tabled(folder)]


def test_recordings_in_a_folder_per_speaker_are_listed(recordings, capsys):
    code, said, _ = run(capsys, recordings)
    assert listed(recordings) == [
        ("anna-1", "anna", "anna/1.wav", 0.5, "One two three"),
        ("anna_2", "anna", "anna/anna_2.flac", 0.5, "x"),
        ("ben-1", "ben", "ben/1.wav", 0.5, "y"),
    ]
    table = recordings / "utterances.tsv"
    assert (code, said) == (0, f"table: 3 utterances of 2 speakers: {table}\n")


def test_recordings_that_are_left_out_are_no_speakers(recordings, capsys):
    for name, audio in (("empty", b"RIFF"), ("cy", None), ("di", None), ("silent", None)):
        (recordings / f"{name}.txt").write_text("x")
        found = audio or (recordings / "anna/1.wav").read_bytes()
        (recordings / f"{name}.wav").write_bytes(found)
    soundfile.write(recordings / "silent.wav", np.zeros(0), 16000)
    record_piped(recordings / "piped.flac", np.zeros(8000), 16000)
    (recordings / "piped.txt").write_text("x")
    _, said, complaints = run(capsys, recordings)
    assert "piped.flac does not say how long it is, like files written to a pipe;" in complaints
    assert "silent.wav has no samples; record it again, or delete it" in complaints
    assert "5 utterances of 4 speakers" in said
    assert "each of 2 recordings that are in no sub-folder" in said


def test_a_pattern_finds_speakers_in_one_folder(recordings, capsys):
    for name in ("cy_1", "cy_2"):
        for suffix in (".wav", ".txt"):
            (recordings / f"{name}{suffix}").write_bytes(
                (recordings / f"anna/1{suffix}").read_bytes()
            )
    run(capsys, recordings, "--speaker", "^([a-z]+)")
    assert [row[1] for row in listed(recordings)] == ["anna", "anna", "ben", "cy", "cy"]
    (recordings / "utterances.tsv").unlink()
    _, said, _ = run(capsys, recordings)
    assert [row[1] for row in listed(recordings)] == ["anna", "anna", "ben", "cy_1", "cy_2"]
    assert "each of 2 recordings that are in no sub-folder is by a speaker of its own" in said


def grid(audio, tiers):
    """Give a recording a TextGrid in place of its text."""
    audio.with_suffix(".txt").unlink()
    timed = {s: Timed("1", "1", 0, s, 0.0, 0.5, span.label, (span,)) for s, span in tiers.items()}
    write_textgrid(audio.with_suffix(".TextGrid"), timed)


def test_intervals_of_a_textgrid_are_parts(recordings, capsys):
    grid(recordings / "ben/1.wav", {"ben": Span("a b", 0.1, 0.1), "cy": Span("c", 0.25, 0.25)})
    assert run(capsys, recordings)[0] == 0
    rows = {row.utt_id: row for row in tabled(recordings)}
    assert list(rows) == ["anna-1", "anna_2", "ben-1-ben-0000100", "ben-1-cy-0000250"]
    cy = rows["ben-1-cy-0000250"]
    assert (cy.speaker, cy.start, cy.seconds, cy.text) == ("cy", 0.25, 0.25, "c")
    assert rows["anna-1"].start is None


def test_tiers_that_are_no_speakers_give_way_to_a_pattern(recordings, capsys):
    for name in ("anna/1.wav", "ben/1.wav"):
        grid(recordings / name, {"text": Span("a b", 0.1, 0.1)})
    _, said, _ = run(capsys, recordings)
    assert {row[1] for row in listed(recordings)} == {"anna", "text"}
    assert "all 2 recordings with TextGrids are by the speaker text, as their tiers" in said
    (recordings / "utterances.tsv").unlink()
    _, said, _ = run(capsys, recordings, "--speaker", "^(.+)/")
    assert {row[1] for row in listed(recordings)} == {"anna", "ben"}
    assert "by the speaker" not in said


def test_a_tier_without_a_name_is_refused(recordings, capsys):
    grid(recordings / "ben/1.wav", {" ": Span("a b", 0.1, 0.1)})
    code, _, errors = run(capsys, recordings)
    assert code == 1
    assert "ben/1.TextGrid has 'a b' in a tier without a name; name the tier after its" in errors


def test_joiners_are_kept_and_control_characters_named(recordings, capsys):
    text = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"  # Persian, with a non-joiner
    (recordings / "ben/1.txt").write_text(text, encoding="utf-8")
    (recordings / "anna/1.txt").write_text("one\x07")
    code, _, said = run(capsys, recordings)
    assert [row[-1] for row in listed(recordings)] == ["x", text]
    assert code == 1
    assert f"{recordings}/anna/1.txt has the control character '\\x07'; delete it" in said


def test_what_cannot_be_listed_is_named_and_the_rest_is_listed(recordings, capsys):
    (recordings / "ben/1.txt").unlink()
    (recordings / "ben/note.txt").write_text("one")
    for kind in ("m4a", "json", "TextGrid"):
        (recordings / f"ben/note.{kind}").write_bytes(b"no format of ours")
    (recordings / "anna/anna_2.flac").write_bytes(b"no audio")
    for name in (b"caf\xe9", b" cleo "):
        leave = shutil.ignore_patterns("anna_2.*")
        shutil.copytree(recordings / "anna", recordings / os.fsdecode(name), ignore=leave)
    code, said, errors = run(capsys, recordings)
    assert code == 1
    assert [row[0] for row in listed(recordings)] == ["anna-1"]
    assert "ben/1.wav has no text beside it" in errors
    assert "ben/note.txt has no recording beside it, but note.m4a; convert it to WAV" in errors
    assert "anna/anna_2.flac cannot be read as audio (Format not recognised.); convert it" in errors
    assert "the name 'caf\\udce9/1.wav' is not UTF-8; rename it" in errors
    assert " cleo /1.wav: ' cleo -1' cannot stand in a table; rename it" in errors
    assert "5 left out, listed above" in said


def test_attributes_that_macos_keeps_beside_files_are_one_line(recordings, capsys):
    for name in ("._1.wav", "._1.txt", "._anna_2.flac"):
        (recordings / "anna" / name).write_bytes(b"\0\5\26\7")
    code, _, errors = run(capsys, recordings)
    assert code == 1
    assert len(errors.splitlines()) == 1
    assert f"3 files beginning with ._, as {recordings}/anna/._1.txt, left out: macOS" in errors
    assert [row[0] for row in listed(recordings)] == ["anna-1", "anna_2", "ben-1"]


def test_numbered_recordings_in_numbered_folders_have_different_ids(recordings, capsys):
    names = ("1/1", "1/10", "10/1", "10/10", "10/10_2")
    for name in names:
        (recordings / name).parent.mkdir(exist_ok=True)
        for suffix in (".wav", ".txt"):
            copied = (recordings / f"anna/1{suffix}").read_bytes()
            (recordings / f"{name}{suffix}").write_bytes(copied)
    assert run(capsys, recordings)[0] == 0
    found = {row[2].removesuffix(".wav"): row[0] for row in listed(recordings)}
    assert [found[name] for name in names] == ["1-1", "1-10", "10-1", "10-10", "10_2"]


def test_two_recordings_of_one_name_are_told_apart(recordings, capsys):
    (recordings / "anna-1.wav").write_bytes((recordings / "anna/1.wav").read_bytes())
    (recordings / "anna-1.txt").write_text("z")
    _, _, errors = run(capsys, recordings)
    assert "anna-1.wav and anna/1.wav would both be called anna-1; rename one" in errors


@pytest.mark.parametrize(
    "pattern, message",
    [
        ("[", "is no regular expression"),
        ("anna", "has no group; put the speaker in"),
        ("^b(.*)/", "anna/1.wav: --speaker '^b(.*)/' finds no speaker in it"),
    ],
)
def test_a_pattern_that_finds_nothing_is_refused(recordings, capsys, pattern, message):
    code, _, errors = run(capsys, recordings, "--speaker", pattern)
    assert code == 1
    assert message in errors


def test_a_table_that_exists_is_kept(recordings, capsys):
    (recordings / "utterances.tsv").write_text("mine")
    code, _, errors = run(capsys, recordings)
    assert (code, (recordings / "utterances.tsv").read_text()) == (1, "mine")
    assert "exists already; delete it to write it again" in errors
