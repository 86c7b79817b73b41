"""Data folders: unchanged after export and import, and valid for Kaldi and lhotse."""

import os
import shlex
import shutil
import subprocess
from unittest import mock

import numpy as np
import pytest
import soundfile
from interop.made import cut_of, noise
from layouts import record_piped
from lhotse import AudioSource
from lhotse.kaldi import load_kaldi_data_dir

from asr_train.compose import settings
from asr_train.data import corpus
from asr_train.data.corpus import CorpusError
from asr_train.data.folder import SPLITS
from asr_train.data.folder import folder as folder_of
from asr_train.interop.kaldi import (
    cuts_of,
    read_data_dir,
    seconds_text,
    write_data_dir,
    write_folder,
)


@pytest.fixture
def cuts(tmp_path):
    """Recordings of one utterance each; ids whose order depends on the locale."""
    audio = tmp_path / "audio"
    names = ["anna-B1", "anna-a1", "anna-a_1", "anna-a-1", "ben-1", "ben-10", "ben-2"]
    for i, name in enumerate(names):
        noise(audio / f"{name}.wav", 0.5 + 0.1 * i, seed=i)
    texts = ["ONE TWO", "THREE", "ONE", "TWO", "SIX", "NINE ONE", "ZERO"]
    return [
        cut_of(name, audio / f"{name}.wav", name.split("-")[0], text)
        for name, text in zip(names, texts, strict=True)
    ]


@pytest.fixture
def parts(tmp_path):
    """Three utterances of two recordings."""
    a, b = tmp_path / "audio" / "call1.wav", tmp_path / "audio" / "call2.wav"
    noise(a, 3.0, seed=1)
    noise(b, 2.0, seed=2)
    return [
        cut_of("anna-1", a, "anna", "ONE TWO", 0.25, 1.0),
        cut_of("anna-2", a, "anna", "THREE", 1.5, 1.123456),
        cut_of("ben-1", b, "ben", "FOUR", 0.5, 1.5),
    ]


def content(folder) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


# --- round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cuts", "parts"])
def test_there_and_back_is_the_same_folder(tmp_path, request, kind):
    write_data_dir(request.getfixturevalue(kind), tmp_path / "one")
    write_data_dir(cuts_of(read_data_dir(tmp_path / "one")), tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert ("segments" in content(tmp_path / "one")) == (kind == "parts")


@pytest.mark.parametrize("kind", ["cuts", "parts"])
def test_cuts_come_back(tmp_path, request, kind):
    cuts = request.getfixturevalue(kind)
    write_data_dir(cuts, tmp_path / "data")
    found = {cut.id: cut for cut in cuts_of(read_data_dir(tmp_path / "data"))}
    assert list(found) == sorted(found, key=str.encode)
    for cut in cuts:
        again = found[cut.id]
        assert again.recording.to_dict() == cut.recording.to_dict()
        assert (again.start, again.channel) == (cut.start, cut.channel)
        assert again.duration == pytest.approx(cut.duration, abs=2e-6)
        spoken, said = again.supervisions[0], cut.supervisions[0]
        assert (spoken.id, spoken.text, spoken.speaker) == (said.id, said.text, said.speaker)
        assert np.array_equal(again.load_audio(), cut.load_audio())


@pytest.mark.parametrize("kind", ["cuts", "parts"])
def test_lhotse_reads_what_we_write(tmp_path, request, kind):
    cuts = request.getfixturevalue(kind)
    write_data_dir(cuts, tmp_path / "data")
    recordings, supervisions, _ = load_kaldi_data_dir(tmp_path / "data", 8000)
    assert {r.id for r in recordings} == {cut.recording_id for cut in cuts}
    for cut in cuts:
        spoken, said = supervisions[cut.id], cut.supervisions[0]
        assert (spoken.text, spoken.speaker) == (said.text, said.speaker)
        assert spoken.recording_id == cut.recording_id
        assert spoken.start == pytest.approx(cut.start)
        assert spoken.duration == pytest.approx(cut.duration, abs=1e-4)


@pytest.mark.parametrize("kind", ["cuts", "parts"])
def test_files_agree_and_are_sorted_as_kaldis_validation_asks(tmp_path, request, kind):
    """The checks of utils/validate_data_dir.sh on each file, by the same tools."""
    data = tmp_path / "data"
    write_data_dir(request.getfixturevalue(kind), data)
    checks = """
      for f in *; do [ "$(tail -c1 $f | od -An -c | tr -d ' ')" = '\\n' ]; done
      for f in *; do cut -d' ' -f1 $f | sort -cu; done
      cmp <(sort -k2 utt2spk) utt2spk
      cmp <(cut -d' ' -f1 text) <(cut -d' ' -f1 utt2spk)
      cmp <(cut -d' ' -f1 utt2dur) <(cut -d' ' -f1 utt2spk)
      cmp <(cut -d' ' -f1 reco2dur) <(cut -d' ' -f1 wav.scp)
      awk '{for (i = 2; i <= NF; i++) print $i, $1}' spk2utt | sort | cmp - utt2spk
      awk 'NF != 2 || !($2 > 0) {exit 1}' utt2dur
      awk 'NF != 2 || !($2 > 0) {exit 1}' reco2dur
      if [ -f segments ]; then
        awk 'NF != 4 || $4 <= $3 {exit 1}' segments
        cmp <(cut -d' ' -f1 segments) <(cut -d' ' -f1 utt2spk)
        cmp <(cut -d' ' -f2 segments | sort -u) <(cut -d' ' -f1 wav.scp)
      else
        cmp <(cut -d' ' -f1 wav.scp) <(cut -d' ' -f1 utt2spk)
      fi
    """
    done = subprocess.run(
        ["bash", "-xeuo", "pipefail", "-c", checks],
        cwd=data,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_ids_that_do_not_begin_with_the_speaker_are_remarked(cuts, tmp_path):
    assert write_data_dir(cuts, tmp_path / "data") == []
    for cut in cuts:
        cut.supervisions[0].speaker = {"anna": "zoe", "ben": "ann"}[cut.supervisions[0].speaker]
    (note,) = write_data_dir(cuts, tmp_path / "data")
    assert "--no-spk-sort" in note


@pytest.mark.parametrize(
    "seconds, text", [(2, "2.00"), (0.5, "0.50"), (0.1234564, "0.123456"), (3600.125, "3600.125")]
)
def test_seconds_are_written_to_the_microsecond(seconds, text):
    assert seconds_text(seconds) == text


# --- commands -----------------------------------------------------------------------------------


def test_flac_goes_through_flac_and_comes_back_without_running_it(tmp_path):
    path = tmp_path / "audio of anna" / "anna-1.flac"
    wave_NC = noise(path, 0.5)
    write_data_dir([cut_of("anna-1", path, "anna", "ONE")], tmp_path / "data")
    (line,) = (tmp_path / "data" / "wav.scp").read_text().splitlines()
    assert line == f"anna-1 flac -c -d -s '{path}' |"
    (cut,) = cuts_of(read_data_dir(tmp_path / "data"))
    assert cut.recording.sources[0].source == str(path)
    assert np.array_equal(np.round(cut.load_audio()[0] * 2**15), wave_NC[:, 0])


@pytest.mark.parametrize(
    ("subtype", "command"),
    [
        ("PCM_16", "{}"),
        ("PCM_24", "sox {} -b 16 -e signed-integer -t wav - |"),
        ("FLOAT", "sox {} -b 16 -e signed-integer -t wav - |"),
    ],
)
def test_kaldi_gets_16_bit_samples(tmp_path, subtype, command):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.ones(4000) / 2, 8000, subtype=subtype)
    write_data_dir([cut_of("a", path, "anna", "ONE")], tmp_path / "data")
    assert (tmp_path / "data" / "wav.scp").read_text() == f"a {command.format(path)}\n"
    (cut,) = cuts_of(read_data_dir(tmp_path / "data"))
    assert cut.recording.sources[0].source == str(path)


def test_kaldi_takes_no_path_for_a_command_or_a_place_in_a_file(tmp_path):
    for name in ("$(touch x)|", "a|b.wav", "a.wav:12", "a ", "a[1]"):
        path = tmp_path / name
        with open(path, "wb") as file:
            soundfile.write(file, np.ones(4000) / 2, 8000, format="WAV")
        cut = cut_of("a", path, "anna", "ONE")
        cut.recording.id = "a"
        write_data_dir([cut], tmp_path / "data")
        line = f"a sox {shlex.quote(str(path))} -t wav - |\n"
        assert (tmp_path / "data" / "wav.scp").read_text() == line
    cut.recording.id = "a touch x |\nb"
    with pytest.raises(ValueError, match=r"the recording 'a touch x \|\\nb' is empty or has a"):
        write_data_dir([cut], tmp_path / "data")


def test_sox_resamples_what_is_resampled_here(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.ones(4000) / 2, 8000)
    slow = cut_of("a", path, "anna", "ONE")
    write_data_dir([slow.resample(16000)], tmp_path / "data")
    assert (tmp_path / "data" / "wav.scp").read_text() == f"a sox {path} -r 16000 -t wav - |\n"
    with pytest.raises(ValueError, match="is a copy of"):
        write_data_dir([slow.perturb_speed(0.9)], tmp_path / "data")


@pytest.mark.skipif(shutil.which("sox") is None, reason="sox is not installed")
def test_sox_gives_kaldi_the_channel_that_is_meant(tmp_path):
    path = tmp_path / "two.wav"
    wave_NC = noise(path, 0.5, channels=2)
    cut = cut_of("two", path, "anna", "ONE")
    cut.channel = 1
    write_data_dir([cut], tmp_path / "data")
    command = (tmp_path / "data" / "wav.scp").read_text().split(maxsplit=1)[1].rstrip("|\n ")
    out = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert np.array_equal(np.frombuffer(out[-2 * len(wave_NC) :], np.int16), wave_NC[:, 1])


def test_a_recording_may_have_a_file_per_channel(tmp_path):
    paths = [tmp_path / "zero.wav", tmp_path / "one.wav"]
    for path in paths:
        noise(path, 0.5)
    cut = cut_of("zero", paths[0], "anna", "ONE")
    cut.recording.sources = [AudioSource("file", [i], str(paths[i])) for i in (1, 0)]
    cut.recording.channel_ids = [0, 1]
    for i, path in enumerate(paths):
        cut.channel = i
        write_data_dir([cut], tmp_path / "data")
        assert (tmp_path / "data" / "wav.scp").read_text() == f"zero {path}\n"


@pytest.mark.parametrize(
    "command, channel",
    [
        ("sph2pipe -f wav -p -c 2 {} |", 1),
        ("/opt/kaldi/tools/sph2pipe_v2.5/sph2pipe -f wav -p -c 1 {} |", 0),
        ("sox {} -t wav - remix 2 |", 1),
        ("sox {} -t wav - |", None),
        ("sox {} -b 16 -e signed-integer -r 16000 -t wav - remix 1 |", 0),
        ("flac -d -c --silent {} |", None),
    ],
)
def test_decoders_are_understood(tmp_path, cuts, command, channel):
    write_data_dir(cuts[:1], tmp_path / "data")
    audio = cuts[0].recording.sources[0].source
    (tmp_path / "data" / "wav.scp").write_text(f"anna-B1 {command.format(audio)}\n")
    (source,) = read_data_dir(tmp_path / "data").recordings.values()
    assert (str(source.path), source.channel) == (audio, channel)


@pytest.mark.parametrize(
    "command",
    [
        "touch {trap} |",
        "flac -c -d -s {audio} | touch {trap} |",
        "flac -c -d -s {audio}; touch {trap} |",
        "flac -c -d -s $(touch {trap}) |",
        "flac -c -d -s -o {trap} {audio} |",
        "flac -d {audio} |",
        "flac -c -s {audio} |",
        "flac -c -d -s --skip=100 {audio} |",
        "sox {audio} {trap} |",
        "sox {audio} -t wav - remix 0 |",
        "sph2pipe -f wav -p -c 3 {audio} |",
        "flac -c -d -s 'unclosed |",
        "| touch {trap}",
        "{audio}.ark:44",
        "-",
    ],
)
def test_other_commands_are_refused_and_not_run(tmp_path, cuts, command):
    write_data_dir(cuts[:1], tmp_path / "data")
    audio, trap = cuts[0].recording.sources[0].source, tmp_path / "sprung"
    wav_scp = f"anna-B1 {command.format(audio=audio, trap=trap)}\n"
    (tmp_path / "data" / "wav.scp").write_text(wav_scp)
    with pytest.raises(CorpusError, match=r"wav\.scp, line 1 is|cannot be read"):
        cuts_of(read_data_dir(tmp_path / "data"))
    assert not trap.exists()


def test_a_data_folder_of_others_is_not_replaced(tmp_path, cuts):
    write_data_dir(cuts, tmp_path / "data")
    write_data_dir(cuts[:1], tmp_path / "data")  # ours may be
    assert len((tmp_path / "data/text").read_text().splitlines()) == 1
    (tmp_path / "data/.asr_train").unlink()
    before = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    with pytest.raises(FileExistsError, match=r"data is a data folder already.*another folder"):
        write_data_dir(cuts, tmp_path / "data")
    with pytest.raises(CorpusError, match=r"last path, .*data, is the folder to write to"):
        write_folder([read_data_dir(tmp_path / "data")], tmp_path / "data")
    assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before


def test_a_failed_export_leaves_the_earlier_one(tmp_path, parts, cuts):
    write_data_dir(parts, tmp_path / "data")
    before = content(tmp_path / "data")
    (tmp_path / "audio" / "ben-2.wav").write_bytes(b"no audio")
    with pytest.raises(
        ValueError, match=r"^ben-2: /.*/ben-2\.wav: .*; replace the file, or remove"
    ):
        write_data_dir(cuts, tmp_path / "data")
    assert content(tmp_path / "data") == before
    failing = mock.patch(
        "asr_train.interop.kaldi.write_text", side_effect=[None, KeyboardInterrupt]
    )
    with failing, pytest.raises(KeyboardInterrupt):
        write_data_dir(cuts[:1], tmp_path / "data")
    assert not {"wav.scp", "segments"} & set(content(tmp_path / "data"))  # it is no whole folder


# --- a folder for the recipe --------------------------------------------------------------------


def taken(folder, **more) -> list[corpus.PreparedSplit]:
    """Prepare all splits of the folder, as scripts/manifests.py does."""
    named = [f"corpus.folder.dir={folder}", "corpus.folder.max_dropped_share=0"]
    resolved = settings(
        "dnn", ["corpus=folder", "feats=telephone", *named, *(f"{k}={v}" for k, v in more.items())]
    )
    return [
        folder_of(resolved.corpus, resolved.lang.lexicon, split, folder / "mixed")
        for split in SPLITS
    ]


def test_whole_recordings_stay_where_they_are(tmp_path, cuts):
    write_data_dir(cuts, tmp_path / "data")
    more = noise(tmp_path / "audio" / "cy-1.wav", 0.7)
    write_data_dir(
        [cut_of("cy-1", tmp_path / "audio" / "cy-1.wav", "cy", "TWO")], tmp_path / "eval"
    )
    data, heldout = read_data_dir(tmp_path / "data"), read_data_dir(tmp_path / "eval")
    notes = write_folder([data, heldout], tmp_path / "out")
    assert notes[0].startswith("data: 7 utterances, 2 speakers")
    assert (tmp_path / "out" / "speakers.eval").read_text() == "cy\n"
    assert not (tmp_path / "out" / "audio").exists()
    train, dev, test = taken(tmp_path / "out", **{"corpus.folder.test_speakers": "[cy]"})
    assert [cut.id for cut in test.cuts] == ["cy-1"]
    assert np.array_equal(np.round(test.cuts[0].load_audio()[0] * 2**15), more[:, 0])
    assert len(train.cuts) + len(dev.cuts) == 7


def test_segments_stay_in_their_recordings_to_the_sample(tmp_path, parts):
    noise(tmp_path / "audio" / "call3.wav", 1.0, seed=3)
    parts.append(cut_of("cy-1", tmp_path / "audio" / "call3.wav", "cy", "SIX", 0.1, 0.9))
    write_data_dir(parts, tmp_path / "data")
    write_folder([read_data_dir(tmp_path / "data")], tmp_path / "out")
    assert not (tmp_path / "out" / "audio").exists()
    found = {cut.id: cut for made in taken(tmp_path / "out") for cut in made.cuts}
    assert set(found) == {cut.id for cut in parts}
    for cut in parts:
        assert np.array_equal(found[cut.id].load_audio(), cut.load_audio())
        assert found[cut.id].supervisions[0].text == cut.supervisions[0].text


def test_segments_may_name_channels(tmp_path):
    """As Kaldi's: from 0, in a fifth column; wav.scp that chooses one leaves only 0."""
    data, audio = tmp_path / "data", tmp_path / "call.wav"
    noise(audio, 1.0, channels=2)
    data.mkdir()
    (data / "wav.scp").write_text(f"call {audio}\n")
    for name, of in (("text", "ONE"), ("utt2spk", "{}")):
        rows = (f"{i} {of.format(i[0])}\n" for i in ("a-1", "b-1", "c-1"))
        (data / name).write_text("".join(rows))
    (data / "segments").write_text("a-1 call 0 0.5 0\nb-1 call 0 0.5 1\nc-1 call 0.5 -1 1\n")
    write_folder([read_data_dir(data)], tmp_path / "out")
    found = {cut.id: cut for made in taken(tmp_path / "out") for cut in made.cuts}
    wave_NC, rate = soundfile.read(audio, dtype="float32")
    for name, channel, place in (("a-1", 0, 0), ("b-1", 1, 0), ("c-1", 1, rate // 2)):
        wave_N = wave_NC[place : place + rate // 2, channel]
        assert np.array_equal(found[name].load_audio()[0], wave_N)
    (data / "segments").write_text("a-1 call 0 0.5 0\nb-1 call 0 0.5 2\nc-1 call 0 0.5\n")
    with pytest.raises(
        CorpusError, match=r"segments: channel 3 of .*call.wav for b-1, which has 2"
    ):
        cuts_of(read_data_dir(data))
    (data / "wav.scp").write_text(f"call sph2pipe -f wav -c 2 {audio} |\n")
    with pytest.raises(CorpusError, match=r"segments, line 2: the channel is 2, but .* chooses"):
        read_data_dir(data)
    (data / "segments").write_text("a-1 call 0 0.5 0\nb-1 call 0 0.5\nc-1 call 0 0.5\n")
    assert {cut.channel for cut in cuts_of(read_data_dir(data))} == {1}


def test_the_named_channel_is_taken(tmp_path):
    cuts = []
    for name in ("anna-1", "ben-1", "cy-1"):
        path = tmp_path / f"{name}.wav"
        noise(path, 1.0, channels=2)
        cuts.append(cut_of(name, path, name.split("-")[0], "ONE"))
        cuts[-1].channel = 1
    write_data_dir(cuts, tmp_path / "data")
    write_folder([read_data_dir(tmp_path / "data")], tmp_path / "out")
    found = {cut.id: cut for made in taken(tmp_path / "out") for cut in made.cuts}
    for cut in cuts:
        wave_NC, _ = soundfile.read(tmp_path / f"{cut.id}.wav", dtype="float32")
        assert np.array_equal(found[cut.id].load_audio()[0], wave_NC[:, 1])


def test_ids_of_two_folders_must_differ(tmp_path, parts):
    write_data_dir(parts, tmp_path / "data")
    write_data_dir(parts[:1], tmp_path / "more")
    datas = [read_data_dir(tmp_path / name) for name in ("data", "more")]
    with pytest.raises(CorpusError, match=r"anna-1 is in .*data and in .*more; ids must"):
        write_folder(datas, tmp_path / "out")
    assert not (tmp_path / "out" / "utterances.tsv").exists()


def test_a_table_that_was_not_imported_is_kept(tmp_path, cuts):
    write_data_dir(cuts, tmp_path / "data")
    data, out = read_data_dir(tmp_path / "data"), tmp_path / "out"
    write_folder([data], out)
    write_folder([data], out)  # again, which replaces it
    (out / ".asr_train").unlink()
    (out / "utterances.tsv").write_text("mine")
    with pytest.raises(CorpusError, match=r"out/utterances\.tsv exists already, and .* name anoth"):
        write_folder([data], out)
    assert (out / "utterances.tsv").read_text() == "mine"


def test_an_import_leaves_no_list_of_a_data_folder_that_it_lacks(tmp_path, cuts):
    datas = []
    for name, part in ("a", cuts[:2]), ("b", cuts[2:]):
        write_data_dir(part, tmp_path / name)
        datas.append(read_data_dir(tmp_path / name))
    write_folder(datas, tmp_path / "out")
    (tmp_path / "out" / "speakers.mine").write_text("anna\n")
    write_folder(datas[:1], tmp_path / "out")
    lists = {path.name for path in (tmp_path / "out").glob("speakers.*")}
    assert lists == {"speakers.a", "speakers.mine"}


def test_a_path_with_a_tab_is_refused(tmp_path, cuts):
    write_data_dir(cuts[:1], tmp_path / "data")
    data = read_data_dir(tmp_path / "data")
    cuts[0].recording.sources[0].source = "a\tb.wav"
    patched = mock.patch("asr_train.interop.kaldi.cuts_of", return_value=cuts[:1])
    with patched, pytest.raises(CorpusError, match=r"'a\\tb\.wav' has a tab"):
        write_folder([data], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_speaker_of_two_folders_is_named(tmp_path, cuts):
    write_data_dir(cuts[:-1], tmp_path / "train")
    write_data_dir(cuts[-1:], tmp_path / "test")
    datas = [read_data_dir(tmp_path / name) for name in ("train", "test")]
    speaker = cuts[-1].supervisions[0].speaker
    assert speaker in {cut.supervisions[0].speaker for cut in cuts[:-1]}
    (note,) = write_folder(datas, tmp_path / "out")[2:]
    assert note.startswith(f"test: 1 speaker of an earlier data folder, too ({speaker}); ")


def test_relative_paths_count_from_the_recipe_as_kaldis_do(tmp_path, cuts, monkeypatch):
    write_data_dir(cuts[:1], tmp_path / "data" / "train")
    (tmp_path / "data" / "train" / "wav.scp").write_text("anna-B1 audio/anna-B1.wav\n")
    expected = cuts[0].recording.sources[0].source
    (cut,) = cuts_of(read_data_dir(tmp_path / "data" / "train"))
    assert cut.recording.sources[0].source == expected
    monkeypatch.chdir(tmp_path)
    (cut,) = cuts_of(read_data_dir("data/train"))
    assert cut.recording.sources[0].source == expected


# --- bad folders --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("text", None, r"text is missing"),
        ("text", "anna-1 ONE\nanna-1 TWO\n", r"text: anna-1 is in line 1 and in line 2"),
        ("text", "anna-1 ONE\n\nanna-2 TWO\n", r"text, line 2 is ''; it lacks an id"),
        ("text", "anna-1 ONE\nanna-2 TWO\n", r"1 of the utterances in segments are not in text.*b"),
        ("utt2spk", "anna-1 anna\nanna-2\nben-1 ben\n", r"utt2spk, line 2"),
        ("utt2spk", "anna-1 a\nanna-2 a b\nben-1 ben\n", r"utt2spk, line 2.*'a b'.*one word"),
        ("utt2spk", "anna-1 a\nanna-2 a\nben-1 b\nz z\n", r"in utt2spk are not in segments.*z"),
        ("segments", "", r"segments is empty; it must have a line per utterance"),
        ("segments", "anna-1 call1 0.5\n", r"segments, line 1 is 'call1 0.5'"),
        ("segments", "anna-1 call1 0.5 x\n", r"segments, line 1"),
        ("segments", "anna-1 call1 0 1 -1\n", r"segments, line 1 is .*its channel, from 0"),
        ("segments", "anna-1 call1 nan -1\n", r"segments, line 1.*from nan to -1.0"),
        ("segments", "anna-1 call1 -0.3 -1\n", r"segments, line 1.*from -0.3 to -1.0"),
        ("segments", "anna-1 call1 0.5 nan\n", r"segments, line 1.*from 0.5 to nan"),
        ("segments", "anna-1 call1 2 1\n", r"segments, line 1.*from 2.0 to 1.0"),
        ("segments", "anna-1 call9 0 1\n", r"segments, line 1: the recording call9 is not in wav"),
        ("wav.scp", "call1\n", r"wav\.scp, line 1 is 'call1'; it lacks what belongs to call1"),
        ("wav.scp", b"call1 \xff.wav\n", r"wav\.scp, line 1 has the byte 0xff, so it is not UTF-8"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, parts, name, change, message):
    data = tmp_path / "data"
    write_data_dir(parts, data)
    if change is None:
        (data / name).unlink()
    else:
        (data / name).write_bytes(change if isinstance(change, bytes) else change.encode())
    with pytest.raises(ValueError, match=message):
        read_data_dir(data)


def test_missing_and_broken_audio_is_named_with_its_line(tmp_path, parts):
    write_data_dir(parts, tmp_path / "data")
    (tmp_path / "audio" / "call2.wav").write_bytes(b"no audio")
    with pytest.raises(CorpusError, match=r"1 of 2 recordings .*wav\.scp, line 2: .*call2\.wav"):
        cuts_of(read_data_dir(tmp_path / "data"))
    (tmp_path / "audio" / "call2.wav").unlink()
    with pytest.raises(CorpusError, match=r"wav\.scp, line 2: .*call2\.wav: it is missing"):
        cuts_of(read_data_dir(tmp_path / "data"))


def test_a_recording_of_unknown_length_is_refused(tmp_path):
    """As a pipe's writer leaves it: FLAC's header has no number of samples."""
    path = tmp_path / "a.flac"
    noise(path, 0.5)
    write_data_dir([cut_of("a", path, "a", "A")], tmp_path / "d")
    record_piped(path, *soundfile.read(path))
    with pytest.raises(CorpusError, match=r"line 1: .*a\.flac: it does not say how long it is"):
        cuts_of(read_data_dir(tmp_path / "d"))


def test_an_empty_recording_is_no_error_of_segments(tmp_path):
    noise(tmp_path / "a.wav", 0.5)
    write_data_dir([cut_of("a", tmp_path / "a.wav", "a", "A")], tmp_path / "d")
    (tmp_path / "d/segments").unlink(missing_ok=True)
    soundfile.write(tmp_path / "a.wav", np.zeros(0), 8000)
    with pytest.raises(CorpusError, match="a: its recording a has no samples; remove it"):
        cuts_of(read_data_dir(tmp_path / "d"))


def test_a_segment_ends_with_its_recording(tmp_path, parts):
    write_data_dir(parts, tmp_path / "data")
    table = tmp_path / "data" / "segments"
    good = table.read_text()
    for end in ("-1", "2.3"):  # to the end; past it by less than Kaldi allows
        table.write_text(good.replace("ben-1 call2 0.50 2.00", f"ben-1 call2 0.50 {end}"))
        assert cuts_of(read_data_dir(tmp_path / "data"))[-1].end == pytest.approx(2.0)
    table.write_text(good.replace("ben-1 call2 0.50 2.00", "ben-1 call2 0.50 2.6"))
    with pytest.raises(CorpusError, match=r"ben-1 lasts from 0.5 to 2.6 s.*call2 has 2.000 s"):
        cuts_of(read_data_dir(tmp_path / "data"))


def test_two_files_of_one_name_are_told_apart_or_refused(tmp_path, parts):
    noise(tmp_path / "more" / "call1.wav", 1.0, seed=4)
    parts.append(cut_of("cy-1", tmp_path / "more" / "call1.wav", "cy", "SIX", 0.1, 0.5))
    with pytest.raises(ValueError, match=r"call1 is the recording .*audio.*cy-1 .*more"):
        write_data_dir(parts, tmp_path / "data")


def test_what_kaldi_cannot_write_down_is_refused(tmp_path, cuts):
    for cut, speaker in ((cuts[0], "anna b"), (cuts[1], "")):
        cut.supervisions[0].speaker = speaker
        with pytest.raises(ValueError, match=f"{cut.id}: the speaker '{speaker}'"):
            write_data_dir([cut], tmp_path / "data")
    cuts[3].recording.sources[0].source = "audio/anna.wav"
    with pytest.raises(ValueError, match=r"anna-a-1: .*audio/anna\.wav is missing.*from there"):
        write_data_dir([cuts[3]], tmp_path / "data")
    faster = cuts[2].perturb_speed(1.1)
    with pytest.raises(
        ValueError, match=r"anna-a_1_sp1.1 is a copy of .*a_1\.wav with another speed"
    ):
        write_data_dir([cuts[2], faster], tmp_path / "data")
    cuts[2].supervisions[0].duration -= 0.2
    with pytest.raises(ValueError, match=r"text is of .* s from 0 s on; call lhotse's trim"):
        write_data_dir([cuts[2]], tmp_path / "data")
    cuts[0].recording = None
    with pytest.raises(ValueError, match=f"{cuts[0].id} has no recording"):
        write_data_dir([cuts[0]], tmp_path / "data")
    with pytest.raises(ValueError, match="2 cuts with 1 different ids"):
        write_data_dir([cuts[2], cuts[2]], tmp_path / "data")
