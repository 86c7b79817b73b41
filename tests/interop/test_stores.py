"""Features and alignments: into archives, and back into the stores that the stages read."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from interop.made import cut_of, noise
from interop.made_objects import write_model
from lhotse import CutSet

from asr_train.align.table import Alignments
from asr_train.compose import settings
from asr_train.data.features import extract, open_feats, write_index
from asr_train.decode.posteriors import load_scorer
from asr_train.files import read_json, write_jsonl
from asr_train.interop.ark import write_int_vectors, write_matrices
from asr_train.interop.kaldi_states import about_states, states_of
from asr_train.interop.stores import (
    import_ali,
    import_feats,
    import_scores,
    self_loops,
)
from asr_train.schema import NormBy, NormSettings

FEATS = dataclasses.replace(settings("dnn", []).feats, sample_rate=8000, low_hz=20, high_hz=0)
STATES = 11
ABOUT = {"num_states": STATES, "states_hash": "abc"}


@pytest.fixture
def cuts(tmp_path):
    for i in range(3):
        noise(tmp_path / "audio" / f"u{i}.wav", 0.4 + 0.2 * i, seed=i)
    paths = [tmp_path / "audio" / f"u{i}.wav" for i in range(3)]
    starts = 0.0, 0.0, 0.2  # the last one begins within its recording
    return [
        cut_of(p.stem, p, ["anna", "ben"][i % 2], "ONE TWO", start=starts[i])
        for i, p in enumerate(paths)
    ]


@pytest.fixture
def feats(cuts, tmp_path):
    manifest, store = tmp_path / "feats" / "dev.jsonl.gz", tmp_path / "feats" / "dev" / "a.h5"
    store.parent.mkdir(parents=True)
    rows, about = extract(cuts, FEATS, store)
    write_index(manifest, FEATS, [store], [about])
    write_jsonl(manifest, rows)
    return open_feats(manifest)


def feats_out(feats):
    return ((u.id, feats.load(u)) for u in feats)


def paths_of(feats, seed=0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {u.id: rng.integers(0, STATES, u.frames).astype(np.int32) for u in feats}


# --- features -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f.ark", "f.scp"])
def test_features_come_back(feats, cuts, tmp_path, name):
    write_matrices(tmp_path / "f.ark", reversed(list(feats_out(feats))))
    manifest = tmp_path / "again" / "dev.jsonl.gz"
    frames, others = import_feats(tmp_path / name, cuts, FEATS, manifest)
    again = open_feats(manifest)
    assert (frames, others) == (sum(u.frames for u in feats), 0)
    assert [u.id for u in again] == [u.id for u in feats]
    speaker = NormSettings(by=NormBy.speaker, variance=True)
    for u, v in zip(feats, again, strict=True):
        assert np.array_equal(feats.load(u), again.load(v))
        assert (u.speaker, u.words, u.seconds, u.frames) == (
            v.speaker,
            v.words,
            v.seconds,
            v.frames,
        )
        ours, theirs = (f.normaliser(speaker)(w, f.load(w)) for f, w in ((feats, u), (again, v)))
        assert np.allclose(ours, theirs, atol=1e-5)
    for cut, u in zip(CutSet.from_file(manifest), feats, strict=True):
        assert np.array_equal(cut.load_features(), feats.load(u))


def test_many_utterances_fill_several_parts(feats, cuts, tmp_path, monkeypatch):
    monkeypatch.setattr("asr_train.interop.stores.UTTERANCES_A_PART", 2)
    write_matrices(tmp_path / "f.ark", feats_out(feats))
    import_feats(tmp_path / "f.ark", cuts, FEATS, tmp_path / "again" / "dev.jsonl.gz")
    again = open_feats(tmp_path / "again" / "dev.jsonl.gz")
    assert len({Path(u.row["features"]["storage_path"]) for u in again}) == 2
    assert np.array_equal(again.load(again.utterances[2]), feats.load(feats.utterances[2]))


def test_features_of_other_utterances_are_counted(feats, cuts, tmp_path):
    write_matrices(tmp_path / "f.ark", feats_out(feats))
    manifest = tmp_path / "again" / "dev.jsonl.gz"
    assert import_feats(tmp_path / "f.ark", cuts[:1], FEATS, manifest)[1] == 2


def test_frames_that_snip_edges_takes_are_missed_by_none(feats, cuts, tmp_path):
    snipped = [(u, x[: len(x) - 2]) for u, x in feats_out(feats)]
    write_matrices(tmp_path / "f.ark", snipped)
    frames, _ = import_feats(tmp_path / "f.ark", cuts, FEATS, tmp_path / "again" / "dev.jsonl.gz")
    assert frames == sum(u.frames for u in feats) - 6


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x: x[:, 1:], "columns but feats.num_mels is"),
        (lambda x: x[:-9], r"u1 has 51 frames, but 0.600 s make 60"),
        (lambda x: np.vstack([x, x[:1]]), r"u1 has 61 frames, but 0.600 s make 60"),
        (lambda x: np.where(np.arange(len(x))[:, None] == 5, np.nan, x), r"u1: frame 5.* is nan"),
    ],
)
def test_wrong_features_are_named_and_nothing_is_listed(feats, cuts, tmp_path, change, message):
    wrong = [(u, change(x) if u == "u1" else x) for u, x in feats_out(feats)]
    write_matrices(tmp_path / "f.ark", wrong)
    with pytest.raises(ValueError, match=message):
        import_feats(tmp_path / "f.ark", cuts, FEATS, tmp_path / "again" / "dev.jsonl.gz")
    assert not (tmp_path / "again" / "dev.jsonl.gz").exists()


def test_a_frame_that_begins_within_the_audio_is_taken(feats, cuts, tmp_path):
    cuts[1].duration -= 0.006
    write_matrices(tmp_path / "f.ark", feats_out(feats))
    frames, _ = import_feats(tmp_path / "f.ark", cuts, FEATS, tmp_path / "again" / "dev.jsonl.gz")
    assert frames == sum(u.frames for u in feats)


def test_features_without_frames_are_named(cuts, tmp_path):
    (tmp_path / "f.ark").write_text("u0  [ ]\n")
    with pytest.raises(ValueError, match=r"f\.ark: u0 has no frames; compute it again, or remove"):
        import_feats(tmp_path / "f.ark", cuts, FEATS, tmp_path / "again" / "dev.jsonl.gz")


def test_missing_features_are_named(feats, cuts, tmp_path):
    write_matrices(tmp_path / "f.ark", [row for row in feats_out(feats) if row[0] != "u2"])
    manifest = tmp_path / "again" / "dev.jsonl.gz"
    import_feats(tmp_path / "f.ark", cuts[:1], FEATS, manifest)
    with pytest.raises(ValueError, match=r"f\.ark lacks 1 of 3 utterances, the first is u2"):
        import_feats(tmp_path / "f.ark", cuts, FEATS, manifest)
    kept = open_feats(manifest)
    assert np.array_equal(kept.load(kept.utterances[0]), feats.load(feats.utterances[0]))


def test_two_of_kaldis_ids_with_one_id_here_are_refused(feats, cuts, tmp_path):
    write_matrices(tmp_path / "f.ark", [(u, np.ones((9, 3))) for u in ("u.0", "u_0")])
    with pytest.raises(ValueError, match=r"f\.ark: u\.0 and .*f\.ark: u_0 are both u_0 here"):
        import_feats(tmp_path / "f.ark", cuts, FEATS, tmp_path / "again" / "dev.jsonl.gz")


# --- alignments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.ark", "a.ark.gz"])
def test_alignments_come_back(feats, tmp_path, name):
    paths, manifest = paths_of(feats), tmp_path / "ali" / "dev.jsonl.gz"
    write_int_vectors(tmp_path / "first", paths.items())
    assert import_ali(tmp_path / "first", feats, ABOUT, manifest) == (3, 0, 0)
    first = Alignments(manifest)
    write_int_vectors(tmp_path / name, ((key, first.load(key)) for key in sorted(first.ids)))
    import_ali(tmp_path / name, feats, ABOUT, tmp_path / "again" / "dev.jsonl.gz")
    again = Alignments(tmp_path / "again" / "dev.jsonl.gz")
    assert (again.num_states, again.ids) == (STATES, set(paths))
    for key, path_T in paths.items():
        assert np.array_equal(again.load(key), path_T)


def test_alignments_of_a_model_here_keep_its_states(feats, tmp_path):
    model = {**ABOUT, "self_loops": [0.25] * STATES}
    write_int_vectors(tmp_path / "a.txt", paths_of(feats).items())
    import_ali(tmp_path / "a.txt", feats, model, tmp_path / "ali" / "dev.jsonl.gz")
    ali = Alignments(tmp_path / "ali" / "dev.jsonl.gz")
    assert (ali.states_hash, ali.self_loops) == ("abc", [0.25] * STATES)
    assert read_json(tmp_path / "ali" / "dev" / "index.json")["model"] == "imported from a.txt"


def test_self_loops_are_those_that_made_the_path():
    rng, loops = np.random.default_rng(3), np.array([0.3, 0.6, 0.9])
    stays = [rng.geometric(1 - p, 4000) for p in loops]
    path_T = np.repeat(np.tile([0, 1, 2], 4000), np.stack(stays, 1).ravel())
    assert np.allclose(self_loops([path_T], 4), [*loops, 0.5], atol=0.02)


def test_the_last_frame_of_a_path_neither_stays_nor_leaves():
    paths = [np.array([0, 0, 0, 1]), np.array([0, 2, 2])]
    assert self_loops(paths, 4).tolist() == [(1 + 2) / (2 + 4), 1 / 2, (1 + 1) / (2 + 1), 1 / 2]


def test_ids_that_are_no_pdf_ids_are_refused(feats, tmp_path):
    paths = paths_of(feats)
    paths["u1"][7] = STATES
    write_int_vectors(tmp_path / "a.txt", paths.items())
    with pytest.raises(ValueError, match=r"u1 has the ids 0 to 11 .*transition-ids\?"):
        import_ali(tmp_path / "a.txt", feats, ABOUT, tmp_path / "ali" / "dev.jsonl.gz")


def test_alignments_of_other_features_are_refused(feats, tmp_path):
    paths = paths_of(feats) | {"u1": np.zeros(59, np.int32)}
    write_int_vectors(tmp_path / "a.txt", paths.items())
    with pytest.raises(ValueError, match=r"u1 has 59 frames but its features have 60"):
        import_ali(tmp_path / "a.txt", feats, ABOUT, tmp_path / "ali" / "dev.jsonl.gz")


def test_missing_alignments_are_lost_by_name(feats, tmp_path):
    paths = {key: path for key, path in paths_of(feats).items() if key != "u1"}
    write_int_vectors(tmp_path / "a.txt", paths.items())
    manifest = tmp_path / "ali" / "dev.jsonl.gz"
    write_int_vectors(tmp_path / "b.txt", [item for item in paths.items() if item[0] != "u0"])
    with pytest.raises(
        ValueError, match=r"b\.txt has no alignment of 2 of 3 utterances \(u0, u1\)"
    ):
        import_ali(tmp_path / "b.txt", feats, ABOUT, manifest)
    assert import_ali(tmp_path / "a.txt", feats, ABOUT, manifest) == (2, 1, 0)
    rows = (tmp_path / "ali" / "dev.status.tsv").read_text().splitlines()[1:]
    assert [row.split("\t")[1] for row in rows] == ["ok", "lost", "ok"]
    assert math.isnan(float(rows[0].split("\t")[3]))  # it is known only to the aligner


# --- scores -------------------------------------------------------------------------------------


@pytest.fixture
def yesno(tmp_path):
    write_model(tmp_path / "yesno", "yesno")
    return states_of(tmp_path / "yesno", tmp_path / "yesno")


def test_scores_of_a_network_are_looked_up(feats, yesno, tmp_path):
    rng = np.random.default_rng(0)
    scores = {u.id: rng.normal(size=(u.frames, 11)).astype(np.float32) for u in feats}
    parts = [tmp_path / "a.ark", tmp_path / "b.ark"]
    write_matrices(parts[0], list(scores.items())[:1])
    write_matrices(parts[1], list(scores.items())[1:])
    assert import_scores(parts, yesno, tmp_path / "exp" / "k" / "model.json") == len(scores)
    scorer = load_scorer(tmp_path / "exp" / "k" / "model.json", feats, None)
    assert (scorer.run, scorer.num_states, scorer.states.hash) == ("k", 11, yesno.hash)
    for u in feats:
        assert np.array_equal(scorer.score(u), scores[u.id])
        some = scorer.scores(u)(np.array([7, 2]), slice(3, 9))
        assert np.array_equal(some, scores[u.id][3:9, [7, 2]])
    u = feats.utterances[0]
    with pytest.raises(ValueError, match=rf"{u.frames} frames of scores .* but 9 feature frames"):
        scorer.score(dataclasses.replace(u, frames=9))
    with pytest.raises(ValueError, match="has no scores of other; import those of all splits"):
        scorer.score(dataclasses.replace(u, id="other"))
    with pytest.raises(ValueError, match=r"b\.ark: u1 and .*b\.ark: u1 are both u1 here"):
        import_scores([*parts, parts[1]], yesno, tmp_path / "exp" / "k" / "model.json")


def test_ids_are_those_of_our_manifests(feats, cuts, yesno, tmp_path):
    """Where points and slashes, at which readers of tar files cut names, are underscores."""
    (cut, *_), (u, *_) = cuts, feats
    cut.id = "u_0"
    manifest, model = tmp_path / "again" / "dev.jsonl.gz", tmp_path / "exp" / "k" / "model.json"
    write_matrices(tmp_path / "f.ark", [("u.0", feats.load(u))])
    assert import_feats(tmp_path / "f.ark", [cut], FEATS, manifest) == (u.frames, 0)
    write_int_vectors(tmp_path / "a.txt", [("u/0", np.zeros(u.frames, np.int32))])
    ali = tmp_path / "ali" / "dev.jsonl.gz"
    assert import_ali(tmp_path / "a.txt", open_feats(manifest), ABOUT, ali) == (1, 0, 0)
    scores_TS = np.zeros((u.frames, 11), np.float32)
    write_matrices(tmp_path / "s.ark", [("u.0", scores_TS)])
    import_scores([tmp_path / "s.ark"], yesno, model)
    (again,) = open_feats(manifest)
    assert np.array_equal(load_scorer(model, feats, None).score(again), scores_TS)


@pytest.mark.parametrize(
    "columns, value, message",
    [
        (10, 0.0, "has 10 columns but the model has 11 pdf-ids"),
        (11, np.nan, "frame 0, pdf-id 0 is nan"),
    ],
)
def test_scores_of_another_model_are_refused(yesno, tmp_path, columns, value, message):
    write_matrices(tmp_path / "s.ark", [("u0", np.full((4, columns), value))])
    with pytest.raises(ValueError, match=message):
        import_scores([tmp_path / "s.ark"], yesno, tmp_path / "k" / "model.json")
    assert not (tmp_path / "k" / "model.json").exists()
    assert not list(tmp_path.glob("k/*"))


def test_a_folder_without_alignments_is_refused(feats, yesno, tmp_path):
    with pytest.raises(ValueError, match=r"yesno has no ali\.\*\.gz; name a folder of steps/align"):
        import_ali(tmp_path / "yesno", feats, about_states(yesno), tmp_path / "ali", yesno)
