"""data.corpus and its stage: output is complete, or an error gives the system's reason."""

import errno
import resource
import runpy
import signal
from pathlib import Path

import numpy as np
import pytest
import soundfile
from noises import corpus_of, lexicon

from asr_train.data.corpus import CorpusError, write, write_flac
from asr_train.data.digits import digits
from asr_train.files import read_jsonl, write_yaml
from asr_train.schema import DigitsSettings, plain

STAGE = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "manifests.py"))["manifests"]
FEW = corpus_of(
    digits=DigitsSettings(
        speakers={"train": 2, "dev": 2},
        utterances={"train": 2, "dev": 2},
        words=[1, 2],
        sample_rate=16000,
        snr_db=[0.0, 20.0],
        level_db=[-30.0, -3.0],
    )
)


def test_a_recording_is_read_as_it_was_written(tmp_path):
    wave_T = np.random.default_rng(0).integers(-(2**15), 2**15, 1000).astype(np.int16)
    write_flac(tmp_path / "a.flac", wave_T, 16000, "PCM_16")
    read_T, rate = soundfile.read(tmp_path / "a.flac", dtype="int16")
    assert rate == 16000
    assert np.array_equal(read_T, wave_T)


def test_a_disk_that_refuses_a_recording_says_why(tmp_path):
    """A limit on the size of files stands for a full disk."""
    noise_T = np.random.default_rng(0).integers(-(2**15), 2**15, 50_000).astype(np.int16)
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.SIG_IGN
    before = signal.signal(signal.SIGXFSZ, ignored)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as refused:
            write_flac(tmp_path / "a.flac", noise_T, 16000, "PCM_16")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert refused.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())


def test_no_utterances_at_all_are_refused(tmp_path):
    made = digits(FEW, "dev", tmp_path / "audio")
    made.cuts.clear()
    with pytest.raises(CorpusError, match="no utterance is left; dropped: none"):
        write(made, tmp_path / "dev.jsonl.gz")


def test_the_stage_keeps_what_it_makes_beside_the_manifests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_yaml("conf/corpus.yaml", plain(FEW))
    write_yaml("conf/lexicon.yaml", plain(lexicon(tmp_path)))
    said = STAGE("conf/corpus.yaml", "conf/lexicon.yaml", "work/manifests/dev.jsonl.gz")
    rows = read_jsonl("work/manifests/dev.jsonl.gz")
    for row in rows:
        assert row["recording"]["sources"][0]["source"] == f"work/audio/dev/{row['id']}.flac"
    assert {path.name for path in Path("work/manifests").iterdir()} == {
        "dev.jsonl.gz",
        "dev.dropped.tsv",
    }
    assert said.startswith("manifests: dev: 2 utterances, 2 speakers, ")
    assert said.endswith(" minutes, 0 dropped")
