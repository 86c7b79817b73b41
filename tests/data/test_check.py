"""data.check: what concerns several splits; and the script that calls it before anything else."""

import json
import shutil

import pytest
from noises import Noises, lexicon

from asr_train.data.check import check, read_split
from asr_train.data.corpus import CorpusError, write
from asr_train.data.folder import SPLITS
from asr_train.data.speeds import add_speeds
from asr_train.files import read_jsonl, write_jsonl
from asr_train.schema import SplitBy


def checked(folder: Noises, tmp_path, limit=0.05) -> list[str]:
    folder.save()
    for split in SPLITS:
        write(folder.found(split), tmp_path / f"{split}.jsonl.gz")
    splits = [read_split(tmp_path / f"{split}.jsonl.gz") for split in SPLITS]
    return check(splits, folder.settings(), lexicon(folder.root), limit)


def test_a_good_corpus_is_described(folder, tmp_path):
    assert checked(folder, tmp_path) == [
        "train: 2 utterances, 1 speaker, 0.0 minutes at 8000 Hz, 2 words (2 different)",
        "dev: 2 utterances, 1 speaker, 0.0 minutes at 8000 Hz, 2 words (2 different)",
        "test: 2 utterances, 1 speaker, 0.0 minutes at 8000 Hz, 2 words (2 different)",
        "0 of 6 utterances dropped, a share of 0.000 where corpus.folder.max_dropped_share is 1.0",
        "0 of 2 different words without pronunciation",
    ]


def test_the_limit_of_what_is_dropped_is_over_the_corpus(folder, tmp_path):
    """One of TEST's two utterances is half of it, but a sixth of all."""
    (folder.root / folder.rows[-1][2]).unlink()
    folder.overrides["max_dropped_share"] = 0.17
    assert "1 of 6 utterances dropped, a share of 0.167" in checked(folder, tmp_path)[3]
    folder.overrides["max_dropped_share"] = 0.16
    with pytest.raises(CorpusError, match=r"share is 0.16: 1 missing audio \(cid-two: "):
        checked(folder, tmp_path)


def test_copies_at_other_speeds_are_no_utterances_of_their_own(folder, tmp_path):
    (folder.root / folder.rows[-1][2]).unlink()
    folder.save()
    for split in SPLITS:
        made = add_speeds(folder.found(split), [0.9, 1.0, 1.1], new_speakers=True)
        write(made, tmp_path / f"{split}.jsonl.gz")
    splits = [read_split(tmp_path / f"{split}.jsonl.gz") for split in SPLITS]
    lines = check(splits, folder.settings(), lexicon(folder.root), 0.05)
    assert lines[0].startswith("train: 6 utterances, 3 speakers")
    assert lines[3].startswith("1 of 6 utterances dropped")


def test_words_without_pronunciation_are_said_with_the_ways_out(folder, tmp_path):
    for row in folder.rows[:2]:
        row[4] = "eins zwei"
    says = (
        r"2 of 4 different words without pronunciation .*: EINS, ZWEI; so 2 of 2 utterances of "
        r"train cannot be aligned, above ali.max_lost_share 0.05; set lang.lexicon.unknown=espeak"
        r".*lang.lexicon.source=letters"
    )
    with pytest.raises(CorpusError, match=says):
        checked(folder, tmp_path)


def test_test_needs_no_pronunciations_and_one_utterance_may_be_lost(folder, tmp_path):
    for i in (0, 4, 5):
        folder.rows[i][4] = "eins"
    assert checked(folder, tmp_path)[4].endswith("(lang.lexicon.source=file): EINS")


@pytest.mark.parametrize(
    "spoil, says",
    [
        (lambda cut: cut.pop("supervisions"), "ann-one has 0 supervisions; it needs one"),
        (lambda cut: cut["supervisions"].append(cut["supervisions"][0]), "has 2 supervisions"),
        (lambda cut: cut["supervisions"][0].pop("text"), "has no text or no speaker"),
        (lambda cut: cut["supervisions"][0].pop("speaker"), "has no text or no speaker"),
    ],
)
def test_a_cut_of_somebody_elses_must_say_who_says_what(folder, tmp_path, spoil, says):
    manifest = tmp_path / "train.jsonl.gz"
    write(folder.made(), manifest)
    rows = read_jsonl(manifest)
    spoil(rows[0])
    write_jsonl(manifest, rows)
    with pytest.raises(CorpusError, match=f"train.jsonl.gz: the cut {says}|{says}"):
        read_split(manifest)


@pytest.mark.parametrize("name", ["alphanumeric_digits"])
@pytest.mark.parametrize("people", [1, 2])
def test_few_real_speakers_are_usable_as_the_message_says(shared_data, tmp_path, name, people):
    """With the advised setting it works."""
    lines = (shared_data(name) / "utterances.tsv").read_text().splitlines()[:7]
    folder = Noises(tmp_path / "corpus", ())
    for i, line in enumerate(lines[1:]):
        utt_id, _, path, *_ = line.split("\t")
        audio = folder.root / path
        audio.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shared_data(name) / path, audio)
        folder.rows.append([utt_id, "ab"[i % people], *line.split("\t")[2:4], "one two"])
    folder.overrides = {"dev_speakers": [], "test_speakers": [], "max_seconds": 40.0}
    advice = {1: "test_by", 2: "dev_by"}[people]
    with pytest.raises(CorpusError, match=f"set corpus.folder.{advice}=utterances"):
        folder.made()
    folder.overrides[advice] = SplitBy.utterances
    assert len(checked(folder, tmp_path)) == 5


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("source", r"ann-two is of the type command \(touch .*to a file"),
        ("transform", r"ann-two is a MonoCut, changed by \['ReverbWithImpulseResponse'\]"),
        ("mixed", r"ann-two is a MixedCut, changed by \[\]; only a MonoCut"),
    ],
)
def test_audio_that_is_no_file_is_refused(folder, tmp_path, where, message):
    """lhotse would run the command."""
    folder.save()
    write(folder.found("train"), tmp_path / "train.jsonl.gz")
    rows = read_jsonl(tmp_path / "train.jsonl.gz")
    recording = rows[-1]["recording"]
    other = json.loads(json.dumps(recording))
    run = {"type": "command", "source": f"touch {tmp_path}/x"}
    other["sources"][0] |= run
    if where == "source":
        recording["sources"][0] |= run
    elif where == "transform":
        kwargs = {"rir": other, "normalize_output": True}
        recording["transforms"] = [{"name": "ReverbWithImpulseResponse", "kwargs": kwargs}]
    else:
        rows[-1] |= {"type": "MixedCut"}
    write_jsonl(tmp_path / "train.jsonl.gz", rows)
    with pytest.raises(CorpusError, match=message):
        read_split(tmp_path / "train.jsonl.gz")
    assert not (tmp_path / "x").exists()
