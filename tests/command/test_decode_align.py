"""asr-train decode and align: what they print and write, and the lines for what they cannot use."""

import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from interop.made import read_textgrid
from praatio.data_classes.interval_tier import IntervalTier
from praatio.data_classes.point_tier import PointTier
from praatio.data_classes.textgrid import Textgrid
from spoken import RATE, said
from torchaudio.functional import resample

from asr_train import command
from asr_train.bundle.recogniser import Recogniser
from asr_train.bundle.store import SHIPPED
from asr_train.command.decode import ids
from asr_train.command.main import COMMANDS, main, told_after
from asr_train.decode.posteriors import load_scorer
from asr_train.interop.beside import Item
from asr_train.interop.ctm import read_ctm

TEXTS = {"ann": "THREE OH NINE", "ben": "SEVEN ONE", "cat": "FIVE FIVE TWO EIGHT"}


def test_who_waits_long_is_told_why(capsys):
    with told_after(1e6, "decode", "quick"):
        pass
    shown = ""
    with told_after(0.01, "decode", "slow"):
        deadline = time.monotonic() + 60
        while not shown and time.monotonic() < deadline:
            time.sleep(0.01)
            shown = capsys.readouterr().err
    assert shown == "asr-train decode: slow\n"
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two speakers, their texts beside the recordings; and true times by name."""
    folder = tmp_path_factory.mktemp("corpus")
    for seed, (name, text) in enumerate(TEXTS.items()):
        path = folder / ("x y" if name == "ann" else "z") / f"{name}.flac"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, said(text, seed=seed).samples_T, RATE)
        path.with_suffix(".lab" if name == "ann" else ".txt").write_text(f"{text.lower()}.\n")
    return folder


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code


def test_each_command_has_help_with_an_example(capsys):
    assert run("--help") == 0
    listed = capsys.readouterr().out
    assert all(f"\n    {name} " in listed for name in COMMANDS)
    modules = {path.stem for path in Path(command.__file__).parent.glob("*.py")}
    assert modules == {"__init__", "main", *COMMANDS}
    for name in COMMANDS:
        assert run(name, "--help") == 0
        assert f"example:\n  asr-train {name} " in capsys.readouterr().out


def test_wrong_calls_exit_with_2(capsys):
    assert run() == run("sing") == run("decode") == run("decode", "digits", "--format", "pdf") == 2


def test_decode_prints_text_ctm_and_json(corpus, capsys):
    files = sorted(corpus.rglob("*.flac"))
    assert run("decode", "digits", *files, files[0]) == 0  # given twice, decoded once
    text = [line.split(" ", 1) for line in capsys.readouterr().out.splitlines()]
    assert len(text) == len(TEXTS)
    assert dict(text) == TEXTS
    assert run("decode", "digits", "--speaker-folders", "--jobs", 1, *files) == 0
    assert dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines()) == TEXTS
    out = corpus.parent / "all.ctm"
    assert run("decode", "digits", "-f", "ctm", "-o", out, *files) == 0
    ctm = read_ctm(out)
    assert {lane[0]: " ".join(s.label for s in spans) for lane, spans in ctm.items()} == TEXTS
    assert all(0.5 < s.confidence <= 1 for spans in ctm.values() for s in spans)
    assert run("decode", "digits", "--format", "json", files[0]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["text"], row["rate"]) == (TEXTS["ann"], RATE)
    assert [w["word"] for w in row["words"]] == TEXTS["ann"].split()


def test_the_module_reads_a_stream_at_another_rate(corpus):
    """As a user calls it: in a process of its own, with a pipe."""
    wave, _ = soundfile.read(next(corpus.rglob("ben.flac")), dtype="float32")
    stream = io.BytesIO()
    faster = resample(torch.from_numpy(wave), RATE, 22_050).numpy()
    soundfile.write(stream, faster, 22_050, format="FLAC")
    ended = subprocess.run(
        [sys.executable, "-m", "asr_train", "decode", "digits", "-"],
        input=stream.getvalue(),
        capture_output=True,
        check=False,
    )
    assert ended.stdout.decode() == f"stdin {TEXTS['ben']}\n"
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_file_that_cannot_be_used_costs_one_line_and_not_the_others(corpus, tmp_path, capsys):
    (tmp_path / "bad.wav").write_text("no audio")
    low = tmp_path / "low.wav"
    soundfile.write(low, np.zeros(8000) + 0.001, 8000)
    loud = np.random.default_rng(0).standard_normal(16_000).astype(np.float32) * 1e20
    soundfile.write(tmp_path / "loud.wav", loud, 16_000, subtype="FLOAT")
    good = next(corpus.rglob("ben.flac"))
    bad = [tmp_path / f"{name}.wav" for name in ("bad", "no", "loud")]
    too = tmp_path / "low2.wav"
    too.write_bytes(low.read_bytes())
    cut, stream = tmp_path / "cut.wav", tmp_path / "stream.wav"
    soundfile.write(cut, np.linspace(-0.1, 0.1, RATE) ** 3, RATE)
    content = cut.read_bytes()
    cut.write_bytes(content[: 44 + RATE])  # half of it, with 2 bytes per sample
    stream.write_bytes(content.replace(b"data\x00\x7d\x00\x00", b"data\xff\xff\xff\xff"))
    assert run("decode", "digits", cut, stream) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"asr-train decode: {cut} is cut off: 0.50 s of it are missing, by its header; the rest is "
        "decoded"
    ]
    assert run("decode", "digits", *bad, low, good, too) == 1
    said_ = capsys.readouterr()
    assert said_.out.splitlines()[-2] == f"ben {TEXTS['ben']}"
    lines = said_.err.splitlines()
    assert len(lines) == 4
    assert "bad.wav cannot be read as audio" in lines[0]
    assert "no.wav is missing" in lines[1]
    assert "loud.wav has samples of up to" in lines[2]
    assert "low.wav has 8000 Hz, below the model's 16000 Hz (and 1 more):" in lines[3]


@pytest.mark.parametrize("kind", ["WAV", "RF64"])
def test_a_recording_that_was_cut_off_is_told_from_any_source(tmp_path, capsys, monkeypatch, kind):
    stream = io.BytesIO()
    soundfile.write(stream, said(TEXTS["ben"]).samples_T, RATE, "PCM_16", format=kind)
    half = stream.getvalue()[: len(stream.getvalue()) // 2]
    lost = len(half) / 2 / RATE
    (tmp_path / "cut.wav").write_bytes(half)
    assert run("decode", "digits", tmp_path / "cut.wav") == 0
    assert f"cut.wav is cut off: {lost:.2f} s" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(half)))
    assert run("decode", "digits", "-") == 0
    assert f"- is cut off: {lost:.2f} s of it are missing" in capsys.readouterr().err
    (tmp_path / "cut.lab").write_text(TEXTS["ben"])
    for name in ("align digits", "table"):
        assert run(*name.split(), tmp_path) == 1
        assert f"cut.wav is cut off: {lost:.2f} s" in capsys.readouterr().err


def test_files_before_a_killed_process_are_kept(corpus, tmp_path, capsys, monkeypatch):
    first, last = sorted(corpus.rglob("*.flac"))[:2]
    folder = tmp_path / "out"
    folder.mkdir()
    true = Recogniser.features

    def features(self, audio, rate=None, channel=None):
        if audio == "large.wav":
            raise MemoryError
        if audio == "killed.wav":
            deadline = time.monotonic() + 60
            while not any(file.stat().st_size for file in folder.iterdir()):
                time.sleep(0.05)
                assert time.monotonic() < deadline
            os.kill(os.getpid(), signal.SIGKILL)
        return true(self, audio, rate, channel)

    monkeypatch.setattr(Recogniser, "features", features)
    monkeypatch.setenv("JOBS", "2")
    out = folder / "all.txt"
    files = first, "large.wav", "killed.wav", last, corpus / "other.wav"
    assert run("decode", "digits", "--jobs", 2, "-o", out, *files) == 1
    assert out.read_text() == f"{first.stem} {TEXTS[first.stem]}\n"
    assert capsys.readouterr().err.splitlines() == [
        "asr-train decode: large.wav: there is not enough memory to decode it; set --jobs 1",
        "asr-train decode: killed.wav is not decoded (nor are 2 files after it): a worker process "
        "was killed (out of memory?); try again with JOBS=1",
    ]


def test_files_before_ctrl_c_are_kept_unless_they_would_replace_others(
    corpus, tmp_path, capsys, monkeypatch
):
    good = next(corpus.rglob("ben.flac"))
    true = Recogniser.features

    def features(self, audio, rate=None, channel=None):
        if audio == "stop.wav":
            raise KeyboardInterrupt
        return true(self, audio, rate, channel)

    monkeypatch.setattr(Recogniser, "features", features)
    new, old = tmp_path / "new.txt", tmp_path / "old.txt"
    old.write_text("all\n")
    for out, files in ((new, [good, "stop.wav"]), (old, [good, "stop.wav"])):
        assert run("decode", "digits", "--jobs", 1, "-o", out, *files) == 128 + signal.SIGINT
    assert run("decode", "digits", "--jobs", 1, "-o", tmp_path / "no.txt", "stop.wav") == 130
    assert new.read_text() == f"ben {TEXTS['ben']}\n"
    assert old.read_text() == "all\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.txt", "old.txt"]
    assert capsys.readouterr().err.splitlines() == [
        f"asr-train decode: interrupted; {new} has 1 of 2 files",
        *["asr-train decode: interrupted"] * 2,
    ]


@pytest.mark.parametrize("part", ["features", "transcribe_features"])
def test_a_recording_too_large_for_memory_does_not_end_the_others(
    corpus, capsys, monkeypatch, part
):
    true = getattr(Recogniser, part)
    memory = "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"
    fails = iter([RuntimeError(memory), MemoryError(), None, RuntimeError("shapes differ")])

    def failing(*arguments, **options):
        if (error := next(fails)) is not None:
            raise error
        return true(*arguments, **options)

    monkeypatch.setattr(Recogniser, part, failing)
    monkeypatch.setenv("JOBS", "1")
    *large, last = sorted(corpus.rglob("*.flac"))
    assert run("decode", "digits", *large, last) == 1
    said_ = capsys.readouterr()
    assert said_.out == f"{last.stem} {TEXTS[last.stem]}\n"
    assert said_.err.splitlines() == [
        f"asr-train decode: {path}: there is not enough memory to decode it; set --jobs 1"
        for path in large
    ]
    assert run("decode", "digits", last) == 1
    assert "RuntimeError in " in (complaint := capsys.readouterr().err)
    assert "shapes differ" in complaint


def test_an_output_does_not_replace_a_recording(corpus, tmp_path, capsys):
    """As in `decode -o *.wav`."""
    good = next(corpus.rglob("ben.flac"))
    same = tmp_path / "same"
    for output, file, says in (
        (good, tmp_path / "no.wav", f"{good} has the name of a recording, which it would"),
        (same, same, f"the output {same} would replace an input"),
    ):
        before = good.read_bytes()
        assert run("decode", "digits", "-o", output, file) == 1
        assert says in capsys.readouterr().err
        assert good.read_bytes() == before
    bundle = tmp_path / "own.tar"
    bundle.write_bytes((SHIPPED / "digits.tar").read_bytes())
    (tmp_path / "link").symlink_to(bundle)
    for call in (["decode", bundle, good, "-o"], ["export", bundle]):
        assert run(*call, tmp_path / "link") == 1
        assert "link would replace an input; name another file" in capsys.readouterr().err
    assert bundle.read_bytes() == (SHIPPED / "digits.tar").read_bytes()
    (tmp_path / "earlier").write_text("ben SEVEN\n")
    assert run("decode", "digits", "-o", tmp_path / "earlier", tmp_path / "no.wav") == 1
    assert capsys.readouterr().err == f"asr-train decode: {tmp_path}/no.wav is missing\n"
    assert (tmp_path / "earlier").read_text() == "ben SEVEN\n"
    (tmp_path / "all").mkdir()
    assert run("decode", "digits", "-o", tmp_path / "all", good) == 1
    assert f" {tmp_path}/all: is a directory; name a file in" in capsys.readouterr().err


def test_an_output_does_not_replace_a_part_of_a_bundle(corpus, tmp_path, capsys):
    folder, good = tmp_path / "folder", next(corpus.rglob("ben.flac"))
    shutil.unpack_archive(SHIPPED / "digits.tar", folder, filter="data")
    (tmp_path / "link").symlink_to(folder)
    for part in ("lang.json", "bundle.json", "model.pt"):
        before = (folder / part).read_bytes()
        for call in (["decode", folder, good, "-o"], ["export", folder]):
            assert run(*call, tmp_path / "link" / part) == 1
            assert f"{part} would replace an input; name another" in capsys.readouterr().err
        assert (folder / part).read_bytes() == before


def test_a_bundle_for_other_words_does_not_replace_what_it_is_made_of(tmp_path, capsys):
    bundle, text = tmp_path / "my.tar", tmp_path / "orders.tar"
    shutil.copy(SHIPPED / "digits.tar", bundle)
    text.write_text("ONE TWO\n")
    for output in bundle, text:
        before = output.read_bytes()
        assert run("grammar", bundle, output, "--text", text) == 1
        assert f"{output} would replace an input; name another" in capsys.readouterr().err
        assert output.read_bytes() == before


def test_names_need_not_be_utf_8(corpus, tmp_path, capsys):
    path = tmp_path / os.fsdecode(b"a\xe9.flac")
    path.write_bytes(next(corpus.rglob("ben.flac")).read_bytes())
    for output in ([], ["-o", tmp_path / "out"]):
        assert run("decode", "digits", *output, path) == 0
    found = capsys.readouterr().out, (tmp_path / "out").read_text()
    assert set(found) == {rf"a\udce9 {TEXTS['ben']}" "\n"}
    assert run("decode", "digits", "--format", "ctm", path) == 0
    assert capsys.readouterr().out.startswith(r"a\udce9 1 0.")
    path.with_suffix(".lab").write_text(TEXTS["ben"])
    assert run("align", "digits", tmp_path, "-o", tmp_path / "aligned") == 0
    assert [lane[0] for lane in read_ctm(tmp_path / "aligned/words.ctm")] == [r"a\udce9"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf8"])
def test_json_is_valid_in_any_encoding(corpus, tmp_path, monkeypatch, encoding):
    path, text = tmp_path / "caf\u00e9\U0001f600.flac", tmp_path / "\u00e9"
    path.write_bytes(next(corpus.rglob("ben.flac")).read_bytes())
    text.write_text("a ONE\n")
    printed = []
    for call in (["decode", "digits", "-f", "json", path], ["score", text, text, "--json"]):
        output = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding))
        assert run(*call) == 0
        printed.append(output.getvalue())
    assert json.loads(printed[0])["id"] == path.stem
    assert json.loads(printed[1])["scores"][0]["hypothesis"] == str(text)
    assert [path.stem.encode() in printed[0], str(text).encode() in printed[1]] == [
        encoding == "utf8"
    ] * 2


def test_every_word_has_a_time_even_where_there_is_no_time_for_it(tmp_path, capsys):
    """15 ms are fewer frames than any word has states."""
    soundfile.write(tmp_path / "s.wav", said(TEXTS["ben"]).samples_T[4000:4240], RATE)
    assert run("decode", "digits", "--format", "json", tmp_path / "s.wav") == 0
    row = json.loads(capsys.readouterr().out)
    assert [word["word"] for word in row["words"]] == row["text"].split()
    assert all(0 <= w["start"] <= w["start"] + w["seconds"] <= 0.015 for w in row["words"])


def test_files_have_different_names_or_are_refused():
    assert ids(["d/one.wav", "e/two.wav"]) == {"d/one.wav": "one", "e/two.wav": "two"}
    assert ids(["d/one.wav", "/e/one.wav"]) == {"d/one.wav": "d/one", "/e/one.wav": "e/one"}
    assert ids(["d/one.wav", "d/one.flac"])["d/one.flac"] == "d/one.flac"
    assert ids(["x/a b.wav", "y/a_b.wav"]) == {"x/a b.wav": "x/a_b", "y/a_b.wav": "y/a_b"}
    assert ids(["-", "a.wav", "./a.wav"]) == {"-": "stdin", "a.wav": "a"}
    assert ids([" .wav"])[" .wav"] == Item(" ", " .", Path(" .wav"), Path(" .lab")).label == "_"
    with pytest.raises(ValueError, match=r"x/a b.wav and x/a_b.wav would both be called x/a_b"):
        ids(["x/a b.wav", "x/a_b.wav"])


def test_streams_that_are_closed_are_named(corpus, tmp_path, capsys, monkeypatch):
    good = next(corpus.rglob("ben.flac"))
    for stream, call in (
        ("stdin", ["decode", "digits", "-"]),
        ("stdin", ["score", "-", tmp_path]),
        ("stdout", ["decode", "digits", good]),
    ):
        with monkeypatch.context() as closed:
            closed.setattr(sys, stream, None)  # as Python does
            assert run(*call) == 1
        name = {"stdin": "input", "stdout": "output"}[stream]
        assert f"asr-train {call[0]}: standard {name} is closed; " in capsys.readouterr().err


def test_a_closed_standard_error_loses_messages_only(corpus, tmp_path):
    """Its number is no other file's: what is written to it would be in that file."""
    good, out = next(corpus.rglob("ben.flac")), tmp_path / "out.txt"
    call = [sys.executable, "-m", "asr_train", "decode", "digits", good, tmp_path / "none"]
    shell = ["bash", "-c", '"$@" 2>&-', "bash", *call, "-o", out]
    said = subprocess.run(shell, capture_output=True, check=False)
    assert (said.returncode, said.stdout) == (1, b"")
    assert out.read_text() == "ben SEVEN ONE\n"


def test_a_version_that_cannot_be_written_is_an_error():
    call = [sys.executable, "-m", "asr_train", "--version"]
    with open("/dev/full", "w") as full:
        said = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert said.returncode == 1
    assert said.stderr.startswith("asr-train --version: the output: no space left on device; ")
    assert said.stderr.count("\n") == 1


def test_how_many_words_there_may_be_is_in_the_help(tmp_path, capsys):
    assert run("grammar", "--help") == 0
    assert "--min-words {0,1}" in capsys.readouterr().out
    assert run("grammar", "digits", tmp_path / "a.tar", "--words", "ONE", "--min-words", 2) == 2
    assert "--min-words: invalid choice: 2 (choose from" in capsys.readouterr().err


def test_ctrl_c_while_a_command_loads_is_one_line(capsys, monkeypatch):
    def load(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", load)
    assert run("export", "digits", "x.onnx") == 128 + signal.SIGINT
    assert capsys.readouterr().err == "asr-train export: interrupted\n"


def test_an_error_is_one_line(tmp_path, capsys):
    assert run("decode", tmp_path, "a.wav") == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert run("align", "nothing", tmp_path) == 1
    assert "has no recordings" in capsys.readouterr().err
    (tmp_path / "a.arpa").write_text("\\data\\\n")
    assert run("grammar", "digits", tmp_path / "b.tar", "--arpa", tmp_path / "a.arpa") == 1
    assert capsys.readouterr().err.endswith("; correct the file and try again\n")


def test_align_keeps_the_layout_of_the_folder(corpus, tmp_path, capsys):
    assert run("align", "digits", corpus, "-o", tmp_path / "out") == 0
    assert "3 of 3 recordings of 2 speakers" in capsys.readouterr().out
    grids = {p.relative_to(tmp_path / "out").as_posix() for p in tmp_path.rglob("*.TextGrid")}
    assert grids == {"x y/ann.TextGrid", "z/ben.TextGrid", "z/cat.TextGrid"}
    words = read_ctm(tmp_path / "out/words.ctm")
    assert {lane[0] for lane in words} == {"x_y/ann", "z/ben", "z/cat"}
    for seed, (name, text) in enumerate(TEXTS.items()):
        true = said(text, seed=seed)
        (path,) = tmp_path.rglob(f"{name}.TextGrid")
        grid = read_textgrid(path)
        assert [span.label for span in grid["words"]] == text.split()
        for span, word in zip(grid["words"], true.words, strict=True):
            assert abs(span.start - word.start) < 0.1
        assert {span.label for span in grid["phones"]} > {"SIL"}


def test_align_ends_where_the_recording_does_and_leaves_nothing_of_an_earlier_call(
    tmp_path, capsys
):
    wave, out = said(TEXTS["ben"]).samples_T, tmp_path / "out"
    shorter, speech = (len(wave) // 160 * 160 - lacking for lacking in (100, 40)), tmp_path / "in"
    speech.mkdir()
    for number, samples in enumerate(shorter):  # the last frame would end 100 and 40 samples later
        soundfile.write(speech / f"{number}.wav", wave[:samples], RATE)
        (speech / f"{number}.lab").write_text(TEXTS["ben"])
    assert run("align", "digits", speech, "-o", out) == 0
    for kind in ("words", "phones"):
        for (name, _), spans in read_ctm(out / f"{kind}.ctm").items():
            seconds = soundfile.info(speech / f"{name}.wav").duration
            assert spans[-1].start + spans[-1].seconds <= seconds + 0.0005  # CTMs have milliseconds
            assert read_textgrid(out / f"{name}.TextGrid")[kind][-1].end <= seconds + 1e-6
    soundfile.write(speech / "1.wav", wave[: RATE // 10], RATE)
    (out / "2.TextGrid").touch()  # of a call before its text was removed
    soundfile.write(speech / "2.wav", wave, RATE)
    assert run("align", "digits", speech, "-o", out) == 1
    printed = capsys.readouterr().err
    assert "1: " in printed
    assert "2.wav has no text beside it" in printed
    assert [path.name for path in out.glob("*.TextGrid")] == ["0.TextGrid"]


def test_align_reads_a_textgrid_with_a_tier_per_speaker(tmp_path, capsys):
    """Two speakers who take turns; times are as of their utterances alone, and of one recording."""
    tiers, waves, at = {"ann": [], "ben": []}, [], 0.0
    for seed, (name, text) in enumerate(
        [("ann", "THREE OH NINE"), ("ben", "SEVEN"), ("ann", "ONE")]
    ):
        wave_T = said(text, seed=seed).samples_T
        folder = tmp_path / "alone" / name
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"{seed}.wav", wave_T, RATE, subtype="FLOAT")
        (folder / f"{seed}.lab").write_text(text)
        tiers[name].append((at, at + len(wave_T) / RATE, text.lower()))
        waves += [wave_T, np.zeros(RATE // 10)]
        at += len(wave_T) / RATE + 0.1
    grid = Textgrid(0, at)
    for name, spans in tiers.items():
        grid.addTier(IntervalTier(name, spans, 0, at))
    grid.addTier(PointTier("clicks", [(0.1, "click")], 0, at))
    talk = tmp_path / "talks" / "talk.wav"
    talk.parent.mkdir()
    soundfile.write(talk, np.concatenate(waves), RATE, subtype="FLOAT")
    grid.save(str(talk.with_suffix(".TextGrid")), "long_textgrid", includeBlankSpaces=True)
    assert run("align", "digits", talk.parent, "-o", tmp_path / "out") == 0
    assert "3 of 3 utterances of 2 speakers" in capsys.readouterr().out
    assert run("align", "digits", tmp_path / "alone", "-o", tmp_path / "out") == 0
    found = read_textgrid(tmp_path / "out" / "talk.TextGrid")
    assert list(found) == ["ann - words", "ann - phones", "ben - words", "ben - phones"]
    for name, seeds in {"ann": (0, 2), "ben": (1,)}.items():
        for kind in ("words", "phones"):
            alone = [
                (span.label, round(start + span.start, 3), round(start + span.end, 3))
                for seed, (start, *_) in zip(seeds, tiers[name], strict=True)
                for span in read_textgrid(tmp_path / "out" / name / f"{seed}.TextGrid")[kind]
            ]
            assert [
                (span.label, round(span.start, 3), round(span.end, 3))
                for span in found[f"{name} - {kind}"]
            ] == alone
    for suffix in (".textgrid", ".TextGrid"):
        (grid_path,) = talk.parent.glob("*.[tT]*")
        grid_path.rename(talk.with_suffix(suffix))
        assert run("align", "digits", talk.parent, "-o", talk.parent) == 1
        assert f"the output would replace {talk.with_suffix(suffix)};" in capsys.readouterr().err
    both = tmp_path / "both"
    shutil.copytree(talk.parent, both)
    spaced = (both / "talk.TextGrid").read_text().replace('"ben"', '"ann "')
    (both / "talk.TextGrid").write_text(spaced)
    assert run("align", "digits", both, "-o", tmp_path / "none") == 1
    assert "talk.TextGrid has two tiers called 'ann'; rename one" in capsys.readouterr().err
    talk.with_suffix(".lab").write_text("THREE OH NINE SEVEN ONE")  # takes precedence
    assert run("align", "digits", talk.parent, "-o", talk.parent) == 0
    assert list(read_textgrid(talk.with_suffix(".TextGrid"))) == ["words", "phones"]
    talk.with_suffix(".lab").unlink()
    assert run("align", "digits", talk.parent, "-o", tmp_path / "again") == 1
    assert "talk.TextGrid has tiers of words and phones" in capsys.readouterr().err
    assert run("align", "digits", tmp_path / "talks", "-o", tmp_path / "talks") == 1
    assert talk.with_suffix(".TextGrid").exists()  # its own input


def test_align_refuses_intervals_that_cannot_be(corpus, tmp_path, capsys):
    wave = said(TEXTS["ben"]).samples_T
    tiers = {"late": [("ann", 0.1, 60.0, "seven")], "none": [("ann", 0.0, 0.5, " ")]}
    tiers |= {"junk": None, "latin": None, "bell": [("ann", 0.1, 0.5, "seven\a")]}
    for name, spans in tiers.items():
        soundfile.write(tmp_path / f"{name}.wav", wave, RATE)
        path = tmp_path / f"{name}.TextGrid"
        path.write_bytes(b"no TextGrid" if name == "junk" else b"St\xfcck")
        if spans is not None:
            grid = Textgrid(0, 60.0)
            for tier, *span in spans:
                grid.addTier(IntervalTier(tier, [tuple(span)], 0, 60.0))
            grid.save(str(path), "short_textgrid", includeBlankSpaces=True)
    assert run("align", "digits", tmp_path, "-o", tmp_path / "out") == 1
    said_ = capsys.readouterr().err
    assert "late, ann, 0.10 to 60.00 s: " in said_
    assert "none.TextGrid has no interval with text" in said_
    assert "bell.TextGrid has the control character '\\x07'; delete it there" in said_
    assert "junk.TextGrid is no TextGrid that praatio can read" in said_
    assert "latin.TextGrid, line 1 has the byte 0xfc, so it is not UTF-8; convert it" in said_


def test_align_names_words_in_no_dictionary(tmp_path, capsys):
    soundfile.write(tmp_path / "a.wav", said(TEXTS["ben"]).samples_T, RATE)
    (tmp_path / "a.txt").write_text("seven frobni")
    assert run("align", "english", tmp_path, "-o", tmp_path / "out") == 0
    assert capsys.readouterr().out.endswith("out; pronounced by rule, in no dictionary: FROBNI\n")


def test_align_names_what_it_left_out(corpus, tmp_path, capsys):
    folder = tmp_path / "c"
    folder.mkdir()
    wave = said(TEXTS["ben"]).samples_T
    for name, text in {
        "good": "seven one",
        "bad": "seven zebra",
        "null": "seven\0one",
        "mute": None,
    }.items():
        soundfile.write(folder / f"{name}.wav", wave, RATE)
        if text:
            (folder / f"{name}.txt").write_text(text)
    (folder / "alone.lab").write_text("ONE")
    for name in ("twice.wav", "twice.flac"):
        soundfile.write(folder / name, wave, RATE)
    (folder / "twice.lab").write_text("SEVEN ONE")
    (folder / "linked").symlink_to(corpus / "z")
    assert run("align", "digits", folder) == 1
    said_ = capsys.readouterr()
    assert "align: 3 of 5 recordings of 4 speakers" in said_.out
    assert (tmp_path / "c-aligned/good.TextGrid").exists()
    wanted = ("alone.lab has no recording", "mute.wav has no text", "bad: no pronunciation of ZEB")
    wanted += ("c has twice.flac and twice.wav; keep one of them",)
    wanted += (r"null.txt has the control character '\x00'; delete it there",)
    assert all(part in said_.err for part in wanted)
    assert said_.err.count("\n") == 5


def test_align_tells_of_low_rates_and_silence(corpus, tmp_path, capsys):
    folder = tmp_path / "c"
    folder.mkdir()
    wave = said(TEXTS["ben"]).samples_T
    low = resample(torch.from_numpy(wave), RATE, 8000).numpy()
    for name, samples, rate in (
        ("low", low, 8000),
        ("good", wave, RATE),
        ("none", wave[:1600] * 0, RATE),
        ("brief", wave[4000:4200], RATE),
    ):
        soundfile.write(folder / f"{name}.wav", samples, rate)
        (folder / f"{name}.txt").write_text(TEXTS["ben"])
    assert run("align", "digits", folder) == 1
    printed = capsys.readouterr()
    assert "align: 2 of 4 recordings" in printed.out
    assert printed.err.splitlines() == [
        "asr-train align: brief: 1 frames, but its shortest pronunciation needs 24",
        "asr-train align: none: it is silent: all frames are equal; record it again",
        f"asr-train align: {folder}/low.wav has 8000 Hz, below the model's 16000 Hz: the upper "
        "bands are empty, so times are less exact",
    ]


def test_a_silent_recording_has_no_words_and_is_named(corpus, tmp_path, capsys):
    wave = said(TEXTS["ben"]).samples_T
    soundfile.write(tmp_path / "none.wav", wave[:8000] * 0, RATE)
    left_N = (wave * 30_000).astype(np.int16)  # in 16 bits, so that the mean is exactly zero
    soundfile.write(tmp_path / "both.wav", np.stack([left_N, -left_N], 1), RATE)
    soundfile.write(tmp_path / "good.wav", wave, RATE)
    paths = [tmp_path / f"{name}.wav" for name in ("none", "both", "good")]
    assert run("decode", "digits", "--speaker-folders", *paths) == 0
    printed = capsys.readouterr()
    assert printed.out == f"none\nboth\ngood {TEXTS['ben']}\n"
    assert [line.split(": ")[1].split("; ")[0] for line in printed.err.splitlines()] == [
        f"{path} is silent, so it has no words" for path in paths[:2]
    ]
    assert "--channel" in printed.err
    assert run("decode", "digits", "--channel", 1, "--format", "json", paths[1]) == 0
    assert json.loads(capsys.readouterr().out)["text"]
    assert run("decode", "digits", "--channel", 0, paths[0]) == 0
    assert "--channel" not in capsys.readouterr().err


def test_speakers_without_a_transform_are_named(corpus, tmp_path, capsys, monkeypatch):
    def adaptive(*given):
        scorer = load_scorer(*given)

        def adapt(spoken, lang, settings):
            kept = [[u.speaker, "9 frames, fewer than 500"] for u, _ in spoken]
            about = {"speakers": len(kept), "adapted": 0, "gain_per_frame": 0.0, "kept": kept}
            return replace(scorer, adapt=adapt), about

        return replace(scorer, adapt=adapt)

    monkeypatch.setattr("asr_train.bundle.recogniser.load_scorer", adaptive)
    folder = tmp_path / "c"
    folder.mkdir()
    wave = said(TEXTS["ben"]).samples_T
    for name, samples in (("a", wave[:1600]), ("b", wave), ("c", wave)):  # a is too short
        soundfile.write(folder / f"{name}.wav", samples, RATE)
        (folder / f"{name}.txt").write_text(TEXTS["ben"])
    assert run("align", "digits", folder) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"asr-train align: the speaker of {folder}/b.wav has no transform (9 frames, fewer than "
        "500), and 1 speaker more: times are less exact"
    ]
    file = next(corpus.rglob("*.flac"))
    for options, advice in (
        ((), "give all recordings of a speaker in a folder of their own, with --speaker-folders"),
        (("--speaker-folders",), "add recordings of this speaker to the folder"),
    ):
        assert run("decode", "digits", "--jobs", 1, *options, file) == 0
        told = capsys.readouterr().err
        assert f"(9 frames, fewer than 500), so expect more errors; {advice}\n" in told


def test_align_says_if_there_is_nothing_to_align(tmp_path, capsys):
    folder = tmp_path / "c"
    folder.mkdir()
    soundfile.write(folder / "a.wav", said(TEXTS["ben"]).samples_T, RATE)
    assert run("align", "digits", folder) == 1
    errors = capsys.readouterr().err
    assert "a.wav has no text beside it" in errors
    assert f"no recording in {folder} can be aligned; put its text beside it" in errors
    assert not (tmp_path / "c-aligned").exists()
