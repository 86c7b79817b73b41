"""data.digits: speech is complete, valid and reproducible, however its creation was interrupted."""

import itertools
import os
import signal
from pathlib import Path

import pytest
from lhotse import CutSet, validate
from noises import corpus_of, files

from asr_train.data.corpus import CorpusError, write
from asr_train.data.digits import digits
from asr_train.schema import CorpusSettings, DigitsSettings


def tiny(utterances: int = 6) -> CorpusSettings:
    return corpus_of(
        digits=DigitsSettings(
            speakers={"train": 3, "dev": 2},
            utterances={"train": utterances, "dev": 2},
            words=[1, 4],
            sample_rate=16000,
            snr_db=[0.0, 20.0],
            level_db=[-30.0, -3.0],
        ),
    )


def test_digits_are_cuts_that_lhotse_reads(tmp_path):
    made = digits(tiny(), "train", tmp_path / "audio")
    write(made, tmp_path / "train.jsonl.gz")
    cuts = CutSet.from_file(tmp_path / "train.jsonl.gz")
    validate(cuts, read_data=True)
    assert [cut.to_dict() for cut in cuts] == [cut.to_dict() for cut in made.cuts]
    for cut in cuts:
        (supervision,) = cut.supervisions
        assert cut.id == cut.recording.id == supervision.id == supervision.recording_id
        assert cut.load_audio().shape == (1, cut.num_samples)
        words = supervision.alignment["word"]
        assert [item.symbol for item in words] == supervision.text.split()
        phones = supervision.alignment["phone"]
        assert phones[0].start == 0
        assert phones[-1].end == pytest.approx(cut.duration, abs=1e-4)
    assert {cut.supervisions[0].speaker for cut in cuts} == {c.id.rpartition("-")[0] for c in cuts}


def test_digits_do_not_depend_on_the_number_of_jobs(tmp_path, monkeypatch):
    for jobs in ("1", "3"):
        monkeypatch.setenv("JOBS", jobs)
        monkeypatch.chdir(_new(tmp_path / jobs))
        write(digits(tiny(), "train", Path("audio")), Path("train.jsonl.gz"))
    assert files(tmp_path / "1" / "audio") == files(tmp_path / "3" / "audio")
    one, three = (tmp_path / jobs / "train.jsonl.gz" for jobs in ("1", "3"))
    assert one.read_bytes() == three.read_bytes()


def test_a_killed_run_leaves_no_half_file_and_starts_again(tmp_path, monkeypatch):
    """It is killed when its fourth file is written but not yet renamed."""
    monkeypatch.setenv("JOBS", "1")
    monkeypatch.chdir(tmp_path)
    settings = tiny(utterances=8)
    whole = digits(settings, "train", Path("whole"))
    child = os.fork()
    if child == 0:
        original, calls = os.replace, itertools.count(1)

        def replace(*paths):
            if next(calls) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            original(*paths)

        os.replace = replace
        try:
            digits(settings, "train", Path("killed"))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    found = files(Path("killed"))
    finished = {n: b for n, b in found.items() if not n.startswith(".tmp.")}
    assert (len(found), len(finished)) == (4, 3)
    assert finished.items() <= files(Path("whole")).items()
    again = digits(settings, "train", Path("killed"))
    assert files(Path("killed")) == files(Path("whole"))
    assert [cut.supervisions for cut in again.cuts] == [cut.supervisions for cut in whole.cuts]


def test_audio_of_a_larger_corpus_goes(tmp_path):
    digits(tiny(8), "train", tmp_path)
    made = digits(tiny(4), "train", tmp_path)
    assert sorted(files(tmp_path)) == sorted(f"{cut.id}.flac" for cut in made.cuts)


def test_no_speaker_of_digits_is_in_two_splits(tmp_path):
    speakers = [
        {cut.supervisions[0].speaker for cut in digits(tiny(), split, tmp_path / split).cuts}
        for split in ("train", "dev")
    ]
    assert [len(names) for names in speakers] == [3, 2]
    assert not speakers[0] & speakers[1]


def test_an_unknown_split_of_digits_is_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"tset is not a split .* train, dev"):
        digits(tiny(), "tset", tmp_path)


def _new(path: Path) -> Path:
    path.mkdir(parents=True)
    return path
