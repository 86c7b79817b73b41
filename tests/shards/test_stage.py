"""scripts/shards.py joins features and alignments, and loses no utterance without saying so."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment
from toy import logmel

from asr_train.align.front import Front
from asr_train.align.speakers import Speakers
from asr_train.align.table import write_alignments
from asr_train.align.viterbi import Aligned, Lost
from asr_train.data.features import extract, open_feats, write_index
from asr_train.files import write_jsonl, write_yaml
from asr_train.lang.states import States
from asr_train.schema import FrontSettings, NormBy, NormSettings, plain
from asr_train.shards.reader import Shards

SCRIPT = Path(__file__).parents[2] / "scripts" / "shards.py"
STATES = States(("SIL", "a", "b", "c"), 3, 3)
NUM_STATES = 12
RATE = 8000
FEATS = logmel(sample_rate=RATE, num_mels=5, low_hz=100.0)


def cut(folder, number):
    """Return a cut of noise of 100 ms and more, of two speakers."""
    noise_N = np.random.default_rng(number).normal(0, 0.1, RATE // 10 + 97 * number)
    path = folder / f"u{number}.wav"
    soundfile.write(path, noise_N, RATE)
    recording = Recording.from_file(path)
    said = SupervisionSegment(
        id=f"u{number}",
        recording_id=recording.id,
        start=0,
        duration=recording.duration,
        text=f"WORD {number}",
        speaker=f"s{number % 2}",
    )
    return MonoCut(
        id=f"u{number}",
        start=0,
        duration=recording.duration,
        channel=0,
        recording=recording,
        supervisions=[said],
    )


@pytest.fixture
def work(tmp_path):
    """Features of seven utterances, as written by the previous stages."""
    rows, about = extract([cut(tmp_path, n) for n in range(7)], FEATS, tmp_path / "feats/dev/a.h5")
    write_index(tmp_path / "feats/dev.jsonl.gz", FEATS, [tmp_path / "feats/dev/a.h5"], [about])
    write_jsonl(tmp_path / "feats/dev.jsonl.gz", rows)
    norm = {"by": "speaker", "variance": True}
    write_yaml(tmp_path / "shards.yaml", {"utterances": 3, "norm": norm})
    return tmp_path


def states_of(utterance):
    return (np.arange(utterance.frames) % NUM_STATES).astype(np.int32)


def aligned(states_T):
    """Return an alignment whose phones are all silence, whatever the states."""
    silence_N3 = np.array([[0, 0, -1]], np.int32)
    return Aligned(states_T, np.zeros(len(states_T), np.int8), silence_N3, -1.0, False)


def align(work, lost=(), states=states_of, speakers=None):
    utterances = open_feats(work / "feats/dev.jsonl.gz").utterances
    outcomes = [Lost("no path") if u.id in lost else aligned(states(u)) for u in utterances]
    about = {"model": "mono", "self_loops": [0.5] * NUM_STATES}
    manifest = work / "ali/mono/dev.jsonl.gz"
    write_alignments(manifest, utterances, outcomes, FEATS, STATES, about, speakers)


def stage(work):
    spec = importlib.util.spec_from_file_location("shards_stage", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    output = work / "shards/mono/dev/index.json"
    paths = work / "feats/dev.jsonl.gz", work / "ali/mono/dev.jsonl.gz", work / "shards.yaml"
    return output, script.shards(*map(str, paths), str(output))


def run(work):
    return Shards(stage(work)[0])


def test_shards_hold_normalised_features_states_and_words(work):
    align(work)
    output, said = stage(work)
    shards = Shards(output)
    feats = open_feats(work / "feats/dev.jsonl.gz")
    norm = NormSettings(by=NormBy.speaker, variance=True)
    normalise = feats.normaliser(norm)
    samples = {sample.id: sample for sample in shards.samples(None, 0, 1, 0)}
    assert sorted(samples) == sorted(u.id for u in feats)
    for utterance in feats:
        sample = samples[utterance.id]
        wanted_TF = normalise(utterance, feats.load(utterance))
        np.testing.assert_allclose(sample.feats_TF, wanted_TF, rtol=2**-11, atol=2**-24)
        np.testing.assert_array_equal(sample.ali_T, states_of(utterance))
        assert sample.words == utterance.words
    np.testing.assert_allclose(shards.mean_F, 0, atol=1e-3)
    np.testing.assert_allclose(shards.var_F, 1, atol=1e-2)
    about = {"feats": plain(FEATS), "norm": plain(norm), "states_hash": STATES.hash}
    about |= {"states": STATES.plain()}
    assert shards.about == about | {"self_loops": [0.5] * shards.num_states}
    assert "7 utterances" in said


@pytest.fixture
def fmllr(work):
    """Settings for frames of a speaker-adaptive system, of which one speaker is adapted."""
    norm = {"by": "speaker", "variance": True}
    write_yaml(work / "shards.yaml", {"utterances": 3, "norm": norm, "inputs": "fmllr"})
    own = NormSettings(by=NormBy.speaker, variance=False)
    matrix_DE = np.random.default_rng(0).standard_normal((8, 9))
    front = Front(FrontSettings(num_ceps=4, deltas=1, norm=own))
    return Speakers({"run": "sat", "sha256": "abc"}, front, {"s1": matrix_DE})


def test_shards_of_adapted_frames_hold_what_decoding_reads(work, fmllr):
    align(work, speakers=fmllr)
    shards, feats = run(work), open_feats(work / "feats/dev.jsonl.gz")
    samples, read = {s.id: s for s in shards.samples(None, 0, 1, 0)}, fmllr.read(feats)
    for utterance in feats:
        stored_TF = read(utterance).astype(np.float16).astype(np.float32)
        assert np.array_equal(samples[utterance.id].feats_TF, stored_TF)
    assert shards.about["fmllr"] == fmllr.system
    assert shards.about["norm"] == {"by": "none", "variance": False}


def test_without_transforms_there_are_no_adapted_frames(work, fmllr):
    align(work)
    with pytest.raises(ValueError, match=r"fmllr, but .*mono/dev.jsonl.gz has no speaker transf"):
        run(work)


def test_the_stored_order_is_not_that_of_the_manifest(work):
    """Manifests are sorted by speaker; neighbours in a shard should not be."""
    align(work)
    ids = [sample.id for sample in run(work).samples(None, 0, 1, 0)]
    assert ids != sorted(ids)


def test_utterances_without_alignment_are_counted_and_listed(work):
    align(work, lost={"u2", "u5"})
    output, said = stage(work)
    shards = Shards(output)
    assert shards.num_samples == 5
    assert shards.index["left_out"] == ["u2", "u5"]
    assert said.endswith("2 left out without alignment: u2, u5")


def test_no_alignment_at_all_is_an_error(work):
    align(work, lost={f"u{n}" for n in range(7)})
    with pytest.raises(ValueError, match=r"none of the 7 utterances of .* among the 0 of"):
        run(work)


def test_lengths_that_differ_are_an_error(work):
    align(work, states=lambda u: states_of(u)[: None if u.id != "u3" else -2])
    frames = {u.id: u.frames for u in open_feats(work / "feats/dev.jsonl.gz")}["u3"]
    reason = f"u3: {frames} feature frames but {frames - 2} alignment frames; rerun the ali stage"
    with pytest.raises(ValueError, match=reason):
        run(work)
    assert not (work / "shards/mono/dev/index.json").exists()
