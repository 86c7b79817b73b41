"""scripts/export.py and import_kaldi.py: from one work folder to another."""

import dataclasses
import gzip
import json

import kaldi_native_io as kaldi
import numpy as np
import pytest
import torch
import toy
import yaml
from interop.made import cut_of, noise, read_textgrid
from interop.made_objects import YESNO_IDS, write_model
from praatio import textgrid

from asr_train.align.table import Alignments
from asr_train.compose import settings
from asr_train.data.features import extract, open_feats, write_index
from asr_train.decode.posteriors import load_scorer
from asr_train.files import read_json, read_jsonl, write_jsonl
from asr_train.interop.ark import write_int_vectors, write_matrices
from asr_train.interop.ctm import read_ctm
from asr_train.lang.index import write_lang
from asr_train.lang.lexicon import Lexicon
from asr_train.model.store import build_model, save_model
from asr_train.schema import (
    ModelSettings,
    NormaliserKind,
    NormaliserSettings,
    NormBy,
    NormSettings,
    build,
    plain,
)
from scripts.decode import decode
from scripts.export import KINDS, export
from scripts.import_kaldi import KINDS as IMPORTS
from scripts.import_kaldi import import_kaldi
from scripts.shards import shards
from scripts.tune import tuned

STATES = 7
FEATS = dataclasses.replace(
    settings("dnn", []).feats, sample_rate=8000, num_mels=5, low_hz=100, high_hz=0
)


@pytest.fixture
def work(tmp_path):
    """Manifests and features of two utterances, and their pdf-ids as Kaldi writes them."""
    paths = [tmp_path / "audio" / f"anna-{i}.wav" for i in range(2)]
    for i, path in enumerate(paths):
        noise(path, 0.5 + 0.3 * i, seed=i)
    cuts = [cut_of(p.stem, p, "anna", "ONE TWO") for p in paths]
    write_jsonl(tmp_path / "manifests" / "dev.jsonl.gz", (cut.to_dict() for cut in cuts))
    store = tmp_path / "feats" / "dev" / "part-00000.h5"
    store.parent.mkdir(parents=True)
    rows, about = extract(cuts, FEATS, store)
    write_index(tmp_path / "feats" / "dev.jsonl.gz", FEATS, [store], [about])
    write_jsonl(tmp_path / "feats" / "dev.jsonl.gz", rows)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "feats.yaml").write_text(yaml.safe_dump(plain(FEATS)))
    rng = np.random.default_rng(0)
    ids = [(r["id"], rng.integers(0, STATES, r["features"]["num_frames"])) for r in rows]
    write_int_vectors(tmp_path / "kaldi" / "ali.txt", ids)
    return tmp_path


def frames_of(row: dict, shift: float) -> float:
    """Return the end of the last frame, in seconds."""
    return round(row["duration"] / shift) * shift


def test_textgrids_of_all_lengths_are_read_by_praatio(work, tmp_path):
    """Alignments end with the last frame, up to half a shift before or after the audio's end."""
    rows = []
    for i, samples in enumerate(range(4000, 4080, 7)):
        path = tmp_path / f"bob-{i}.wav"
        noise(path, samples / 8000, seed=i)
        cut = cut_of(path.stem, path, "bob", "ONE").to_dict()
        end = frames_of(cut, 0.01)
        cut["supervisions"][0]["alignment"] = {"word": [["ONE", 0.1, end - 0.1]], "phone": []}
        cut["features"] = {"frame_shift": 0.01}
        rows.append(cut)
    assert any(frames_of(row, 0.01) > row["duration"] + 1e-3 for row in rows)
    write_jsonl(work / "ali/mono/dev.jsonl.gz", rows)
    call(export, "textgrid", work, "ali/mono/dev.jsonl.gz", "grids")
    for row in rows:
        grid = textgrid.openTextgrid(str(work / f"grids/{row['id']}.TextGrid"), False)
        assert grid.maxTimestamp == pytest.approx(row["duration"], abs=1e-6)
        assert [entry.label for entry in grid.getTier("words").entries] == ["ONE"]


def test_an_export_leaves_the_folder_as_it_was(work):
    rows = [row.to_dict() for row in map(whole_cut, (work / "audio").iterdir())]
    del rows[1]["supervisions"][0]["alignment"]
    write_jsonl(work / "ali/mono/dev.jsonl.gz", rows)
    with pytest.raises(ValueError, match="has no word times"):
        call(export, "textgrid", work, "ali/mono/dev.jsonl.gz", "grids")
    assert not (work / "grids").exists()
    assert not list(work.glob(".*"))
    (work / "grids").mkdir()
    for other in ("corrected.TextGrid", "thesis.tex"):
        (work / "grids" / other).touch()
    write_jsonl(work / "ali/mono/dev.jsonl.gz", rows[:1])
    call(export, "textgrid", work, "ali/mono/dev.jsonl.gz", "grids")
    found = {path.name for path in (work / "grids").iterdir()}
    assert found == {"corrected.TextGrid", "thesis.tex", f"{rows[0]['id']}.TextGrid"}


def test_utterances_without_times_of_words_are_left_out_and_counted(work, capsys):
    rows = [row.to_dict() for row in map(whole_cut, sorted((work / "audio").iterdir()))]
    del rows[1]["supervisions"][0]["alignment"]["word"]  # as of some alignments made by Kaldi
    write_jsonl(work / "ali/mono/dev.jsonl.gz", rows)
    call(export, "ctm", work, "ali/mono/dev.jsonl.gz", "w.ctm")
    assert "1 of 2 utterances have no times of words; left out" in capsys.readouterr().out
    assert {line.split()[0] for line in (work / "w.ctm").read_text().splitlines()} == {"anna-0"}
    call(export, "textgrid", work, "ali/mono/dev.jsonl.gz", "grids")
    names = [list(read_textgrid(work / f"grids/anna-{i}.TextGrid")) for i in range(2)]
    assert names == [["words", "phones"], ["phones"]]


def whole_cut(path):
    return cut_of(path.stem, path, "anna", "ONE TWO")


def call(script, kind, work, *names):
    script(kind, *(name if name.isdigit() else str(work / name) for name in names))


def test_features_go_out_and_come_back(work):
    call(export, "feats", work, "feats/dev.jsonl.gz", "kaldi/f.ark")
    call(
        *(import_kaldi, "feats", work, "kaldi/f.scp", "manifests/dev.jsonl.gz", "conf/feats.yaml"),
        "again/feats/dev.jsonl.gz",
    )
    ours, again = (open_feats(work / f / "dev.jsonl.gz") for f in ("feats", "again/feats"))
    for u, v in zip(ours, again, strict=True):
        assert np.array_equal(ours.load(u), again.load(v))


def test_alignments_come_in_and_go_out(work):
    feats, ali = "feats/dev.jsonl.gz", "ali/dev.jsonl.gz"
    call(import_kaldi, "ali", work, "kaldi/ali.txt", str(STATES), feats, ali)
    call(export, "ali", work, ali, "kaldi/again.txt")
    assert (work / "kaldi/again.txt").read_text() == (work / "kaldi/ali.txt").read_text()
    call(import_kaldi, "ali", work, "kaldi/ali.txt", ali, feats, "ali/test.jsonl.gz")
    dev, test = (read_json(work / "ali" / split / "index.json") for split in ("dev", "test"))
    assert {**dev, "parts": 0} == {**test, "parts": 0}
    assert Alignments(work / "ali/test.jsonl.gz").num_states == STATES


def spoken_ids(frames: int) -> list[int]:
    """Return transition-ids of YESNO: SIL, A B (one), SIL, B A (two), and SIL until the end."""
    ids: list[int] = []
    for phone in (1, 2, 3, 1, 3, 2, 1):
        ways = [(0, 2), (2, 1), (1, 4), (4, 5)] if phone == 1 else [(0, 1), (1, 2), (2, 3)]
        for j, to in ways:
            loops = [YESNO_IDS.index((phone, j, j, PDF[phone] + j)) + 1] * (phone > 1)
            ids += [YESNO_IDS.index((phone, j, to, PDF[phone] + j)) + 1, *loops]
    last = YESNO_IDS.index((1, 4, 4, 4)) + 1
    return ids + [last] * (frames - len(ids))


PDF = {1: 0, 2: 5, 3: 8}  # the first pdf-id of each phone


def test_transition_ids_and_scores_of_a_kaldi_model_are_decoded_here(work, capsys):
    write_model(work / "kaldi", "yesno")
    feats, ali = "feats/dev.jsonl.gz", "ali/dev.jsonl.gz"
    paths = {u.id: spoken_ids(u.frames) for u in open_feats(work / feats)}
    pdfs = {key: [YESNO_IDS[i - 1][3] for i in ids] for key, ids in paths.items()}
    (work / "kaldi/ali").mkdir()
    for n, (key, ids) in enumerate(paths.items(), 1):  # as steps/align_si.sh leaves them
        with kaldi.Int32VectorWriter(f"ark:{work}/kaldi/ali.ark") as writer:
            writer.write(key, ids)
        packed = gzip.compress((work / "kaldi/ali.ark").read_bytes())
        (work / f"kaldi/ali/ali.{n}.gz").write_bytes(packed)
    call(import_kaldi, "states", work, "kaldi", "kaldi", "states.json")
    call(import_kaldi, "ali", work, "kaldi/ali", "states.json", feats, ali)
    assert "2 utterances; 2 without times of words: other words" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"has no word times; .* if it was imported, align here"):
        call(export, "ctm", work, ali, "w.ctm")
    call(export, "phones", work, ali, "p.ctm")
    stored = Alignments(work / ali)
    assert {key: stored.load(key).tolist() for key in stored.ids} == pdfs
    (work / "conf/shards.yaml").write_text(yaml.safe_dump(plain(settings("dnn", []).shards)))
    shards(str(work / feats), str(work / ali), str(work / "conf/shards.yaml"), str(work / "s.json"))
    assert read_json(work / "s.json")["about"]["states"]["phones"] == ["SIL", "A", "B"]

    prons = {"OH": (("OW",),), "ONE": (("W", "N"),), "TWO": (("T", "UW"),)}  # of CMU's phones
    ours = toy.toy_lang(words=tuple(prons))
    write_lang(work / "lang/index.json", dataclasses.replace(ours, lexicon=Lexicon(prons)))
    scores = [(key, 9.0 * np.eye(11)[states]) for key, states in pdfs.items()]
    write_matrices(work / "kaldi/p.ark", scores)
    call(
        import_kaldi, "lang", work, "kaldi/lexiconp.txt", "states.json", "lang/index.json", "k.json"
    )
    call(import_kaldi, "scores", work, "kaldi/p.ark", "states.json", "exp/k/model.json")
    for name, values in (
        ("decode", settings("dnn", []).decode),
        ("words", NormaliserSettings(kind=NormaliserKind.words)),
    ):
        (work / f"conf/{name}.yaml").write_text(yaml.safe_dump(plain(values)))
    conf = [str(work / f"conf/{name}.yaml") for name in ("decode", "words")]
    model, tune, language = (
        str(work / n) for n in ("exp/k/model.json", "exp/k/tuned.json", "k.json")
    )
    tuned(model, *conf, language, str(work / feats), tune)
    decode(model, tune, language, str(work / feats), str(work / "exp/k/hyp.dev.jsonl"))
    _, *rows = read_jsonl(work / "exp/k/hyp.dev.jsonl")
    assert [row["words"] for row in rows] == [["ONE", "TWO"]] * 2
    starts = {"ONE": pdfs["anna-0"].index(5), "TWO": pdfs["anna-0"].index(8, 16)}
    assert {word: round(start * 100) for word, start, *_ in rows[0]["words_at"]} == starts


def test_scores_of_pdf_ids_go_to_kaldi(work):
    norm = NormSettings(by=NormBy.speaker, variance=True)
    values = {"layers": 1, "width": 4, "nonlinearity": "sigmoid"}
    values = {"dnn": {**values, "context_left": 1, "context_right": 2}}
    model = build_model(build(ModelSettings, values), STATES, torch.zeros(5), torch.ones(5), seed=1)
    about = {
        "run": "dnn",
        "model": values,
        "priors": [(i + 1) / 28 for i in range(STATES)],
        "feats": plain(FEATS),
        "norm": plain(norm),
        "states_hash": "of another program's tree",
        "states": None,
        "self_loops": [0.5] * STATES,
        "frames": 1,
        "steps": 1,
        "dev": {"loss": 1.0, "accuracy": 0.5},
    }
    path = save_model(work / "exp" / "dnn", model, about)
    call(export, "posteriors", work, "exp/dnn/model.json", "feats/dev.jsonl.gz", "kaldi/p.ark")
    feats = open_feats(work / "feats/dev.jsonl.gz")
    scorer = load_scorer(path, feats, None)
    with kaldi.SequentialFloatMatrixReader(f"ark:{work}/kaldi/p.ark") as reader:
        found = {key: np.array(matrix) for key, matrix in reader}
    assert set(found) == {u.id for u in feats}
    for u in feats:
        assert np.array_equal(found[u.id], scorer.score(u))
        posteriors_TS = np.exp(found[u.id]) * np.array(about["priors"])
        assert np.allclose(posteriors_TS.sum(1), 1, atol=1e-5)  # the priors were divided out


def test_a_data_folder_goes_out_and_becomes_a_corpus(work):
    call(export, "data", work, "manifests/dev.jsonl.gz", "kaldi/data/dev")
    call(import_kaldi, "data", work, "kaldi/data/dev", "corpus")
    rows = [line.split("\t") for line in (work / "corpus/utterances.tsv").read_text().splitlines()]
    whole = ["", ""]  # start_seconds and channel
    audio = str(work / "audio/anna-0.wav")
    assert rows[1] == ["anna-0", "anna", audio, "0.500000", "ONE TWO", *whole]
    assert len(rows) == 3


def test_times_go_out(work):
    manifest = "manifests/dev.jsonl.gz"
    call(export, "ctm", work, manifest, "w.ctm")
    call(export, "phones", work, manifest, "p.ctm")
    call(export, "stm", work, manifest, "r.stm")
    call(export, "textgrid", work, manifest, "grids")
    header = {"run": "dnn", "split": "dev"}
    at = [["ONE", 0.1, 0.2, 0.9]]
    hyps = [
        header,
        {"id": "anna-0", "words": ["ONE"], "words_at": at},
        {"id": "anna-1", "words": []},
    ]
    (work / "hyp.dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in hyps))
    call(export, "ctm", work, "hyp.dev.jsonl", manifest, "h.ctm")
    labels = {f: [s.label for s in read_ctm(work / f)["anna-0", 0]] for f in ("w.ctm", "p.ctm")}
    assert labels == {"w.ctm": ["ONE", "TWO"], "p.ctm": list("ONETWO")}
    assert (work / "h.ctm").read_text() == "anna-0 1 0.100 0.200 ONE 0.9000\n"
    assert len((work / "r.stm").read_text().splitlines()) == 2
    assert list(read_textgrid(work / "grids" / "anna-1.TextGrid")) == ["words", "phones"]


def test_wrong_calls_say_what_there_is(work):
    with pytest.raises(ValueError, match="no export of 'nix'; known: data, feats"):
        export("nix", "a", "b")
    for kind in KINDS:
        with pytest.raises(ValueError, match=rf"an export of {kind} takes .* not 1"):
            export(kind, "a")
    for manifests in (["m.jsonl.gz", "./m.jsonl.gz"], ["ali.jsonl.gz", "m.jsonl.gz"]):
        with pytest.raises(ValueError, match=r"m\.jsonl\.gz (would replace an|has the name of)"):
            export("ctm", *manifests)
    with pytest.raises(ValueError, match=r"m\.jsonl\.gz would replace an input"):
        import_kaldi("feats", "f.ark", "m.jsonl.gz", "feats.yaml", "m.jsonl.gz")
    with pytest.raises(ValueError, match="no import of 'nix'; known: data, feats, st"):
        import_kaldi("nix", "a", "b")
    for kind in IMPORTS:
        with pytest.raises(ValueError, match=rf"an import of {kind} takes .* not 1"):
            import_kaldi(kind, "a")
    for kind in ("feats", "ali"):
        with pytest.raises(ValueError, match=r"out is to be a manifest, .* end with \.jsonl\.gz"):
            import_kaldi(kind, "a", "b", "c", "out")
    with pytest.raises(ValueError, match=r"model\.pt is neither a number of states nor"):
        call(
            import_kaldi,
            "ali",
            work,
            "kaldi/ali.txt",
            "model.pt",
            "feats/dev.jsonl.gz",
            "x.jsonl.gz",
        )


def test_a_hypothesis_of_another_split_is_refused(work):
    rows = [{"run": "dnn"}, {"id": "ben-0", "words": []}]
    (work / "hyp.dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"hyp\.dev\.jsonl has ben-0, which .* has not"):
        call(export, "ctm", work, "hyp.dev.jsonl", "manifests/dev.jsonl.gz", "h.ctm")
    for kind in ("ctm", "phones", "stm", "textgrid"):
        with pytest.raises(ValueError, match=r"hyp\.dev\.jsonl is no manifest: its first line"):
            call(export, kind, work, "hyp.dev.jsonl", "h.ctm")
    assert not (work / "h.ctm").exists()
