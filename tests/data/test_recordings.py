"""data.recordings: a recording with changed content is named; one with only another time is not."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from noises import RATE, lexicon

from asr_train.data.corpus import read_cuts, write
from asr_train.data.folder import folder as read_folder
from asr_train.data.recordings import audio_table, changed_files, list_files
from asr_train.files import write_jsonl
from asr_train.schema import Channel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def listed(tmp_path):
    """Three recordings, one with a separator of lines in its name, and their table."""
    paths = [tmp_path / "a b", tmp_path / "c", tmp_path / "d\u2028e"]
    for path in paths:
        path.write_bytes(b"sound")
    list_files(paths, tmp_path / "train.audio.tsv")
    return tmp_path


def shorter(path: Path) -> None:
    path.write_bytes(b"soun")


def other(path: Path) -> None:
    """Write another recording of the same size."""
    path.write_bytes(b"SOUND")
    os.utime(path, (9, 9))


def renamed(path: Path) -> None:
    """Rename another recording of the same size and time to this one."""
    before = path.stat()
    new = path.with_name("another")
    new.write_bytes(b"SOUND")
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("change", [shorter, other, renamed, Path.unlink])
def test_another_content_is_noticed(listed, change):
    assert changed_files(listed / "train.audio.tsv", keep=False) == []
    change(listed / "a b")
    assert changed_files(listed / "train.audio.tsv", keep=True) == [str(listed / "a b")]


def test_a_copy_of_a_corpus_has_not_changed_and_is_read_once(listed):
    table = listed / "train.audio.tsv"
    os.utime(listed / "c", (9, 9))
    before = table.read_text()
    assert changed_files(table, keep=False) == []
    assert table.read_text() == before
    assert changed_files(table, keep=True) == []
    known = table.read_text()
    assert known != before
    assert changed_files(table, keep=True) == []
    assert table.read_text() == known


def test_a_recording_that_was_missing_and_comes_is_noticed(listed):
    table = listed / "dev.audio.tsv"
    list_files([listed / "later"], table)
    assert changed_files(table, keep=True) == []
    (listed / "later").write_bytes(b"sound")
    assert changed_files(table, keep=True) == [str(listed / "later")]


def test_a_name_that_comes_to_a_folder_or_goes_is_noticed(listed):
    table, inside = listed / "dev.audio.tsv", listed / "speaker"
    inside.mkdir()
    for name in ("1.flac", "2.flac"):
        (inside / name).write_bytes(b"sound")
    os.utime(inside, (9, 9))
    list_files([inside], table)
    (inside / ".DS_Store").touch()  # as file managers do
    other(inside / "1.flac")
    assert changed_files(table, keep=True) == []
    for change in ((inside / "3.flac").touch, (inside / "2.flac").unlink):
        change()
        assert changed_files(table, keep=True) == [str(inside)]
    (inside / "3.flac").rename(inside / "2.flac")
    assert changed_files(table, keep=True) == []
    inside.rename(listed / "away")
    assert changed_files(table, keep=True) == [str(inside)]


def test_a_manifest_lists_the_table_and_all_recordings_dropped_ones_too(folder, tmp_path):
    folder.rows[0][4] = ""
    manifest = tmp_path / "train.jsonl.gz"
    write(folder.made(), manifest)
    assert len(audio_table(manifest).read_text().splitlines()) == 3
    assert changed_files(audio_table(manifest), keep=False) == []


def test_a_copied_work_folder_hears_its_own_recordings(tmp_path):
    """The first one may have been made again, with other sound under the same names."""
    cut = {"id": "a", "type": "MonoCut", "supervisions": [{"text": "ONE", "speaker": "ann"}]}
    for work in ("first", "copy"):
        for name in ("audio/dev", "manifests"):
            (tmp_path / work / name).mkdir(parents=True)
        (tmp_path / work / "audio/dev/a.flac").touch()
        sources = [{"type": "file", "source": f"{tmp_path}/first/audio/dev/a.flac"}]
        row = {**cut, "recording": {"sources": sources}}
        write_jsonl(tmp_path / work / "manifests/dev.jsonl.gz", [row])
        (found,) = read_cuts(tmp_path / work / "manifests/dev.jsonl.gz")
        assert found["recording"]["sources"][0]["source"] == f"{tmp_path}/{work}/audio/dev/a.flac"
    (tmp_path / "copy/audio/dev/a.flac").unlink()  # a user's own, in a folder of that name
    (found,) = read_cuts(tmp_path / "copy/manifests/dev.jsonl.gz")
    assert found == row


def test_a_users_recording_is_heard_though_an_old_mix_has_its_name(folder, tmp_path):
    """The user keeps audio/train/NAME, which a mix of its channels was called in work/, too."""
    for row in folder.rows:
        path = f"audio/train/{row[0]}.flac"
        (folder.root / path).parent.mkdir(exist_ok=True)
        wave_T, _ = soundfile.read(folder.root / row[2])
        soundfile.write(folder.root / path, np.stack([wave_T, wave_T / 2], 1), RATE)
        row[2] = path
    folder.save()
    manifest = tmp_path / "work/manifests/train.jsonl.gz"
    for channel, root in ((Channel.mix, tmp_path / "work"), (Channel.first, folder.root)):
        folder.overrides["channel"] = channel
        audio_dir = tmp_path / "work/audio/train"
        made = read_folder(folder.settings(), lexicon(tmp_path), "train", audio_dir)
        write(made, manifest)
        heard = [row["recording"]["sources"][0]["source"] for row in read_cuts(manifest)]
        assert heard == [f"{root}/audio/train/ann-{word}.flac" for word in ("one", "two")]


def marks(work: Path, conf: str = "conf") -> tuple[str, str, float]:
    """Return the script's output, the file that the manifest depends on, and its time."""
    script = [sys.executable, ROOT / "scripts/recordings.py", work / conf / "audio", work / "m"]
    done = subprocess.run(
        [*script, "train"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    mark = work / conf / "audio/train.yaml"
    return done.stderr, mark.read_text(), mark.stat().st_mtime


def test_the_mark_is_old_until_a_recording_changes_and_stays_when_it_is_listed(listed):
    (listed / "m").mkdir()
    assert marks(listed)[2] == 0
    (listed / "train.audio.tsv").rename(listed / "m/train.audio.tsv")
    (listed / "m/train.jsonl.gz").touch()
    assert marks(listed)[2] == 0
    shorter(listed / "c")
    said, mark, when = marks(listed)
    assert f"{listed}/c changed since {listed}/m/train.jsonl.gz was made" in said
    assert when > 0
    os.utime(listed / "conf/audio/train.yaml", (1, 1))  # as if the manifest were made, and c
    _, mark, when = marks(listed)  # were missing once more: the same change, of another time
    assert when > 1
    list_files([listed / "a b", listed / "c"], listed / "m/train.audio.tsv")  # manifest rewritten
    assert marks(listed) == ("", mark, when)
