"""Laws of what a page has beside tables: utterances, sounds, data, settings, addresses."""

import base64
import io
import json
import re
from urllib.parse import unquote

import numpy as np
import pytest
import soundfile
from fake_work import ERROR_RATE, make_whole, script
from test_page import outline

from asr_train.files import read_json, read_jsonl, write_json
from asr_train.report import pictures, utterances
from asr_train.report.tables import read_score
from asr_train.schema import NormaliserKind, NormaliserSettings, ScoreSettings
from asr_train.score.normalise import PLAIN, load_normaliser

SCALES = {"acoustic_scale": 0.1, "insertion_penalty": 0.0, "lm_weight": 1.0}
SETTINGS = ScoreSettings(
    bootstrap=500, seed=1, normaliser=NormaliserSettings(kind=NormaliserKind.plain, mapping=None)
)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("whole") / "recipes/digits/work"


@pytest.fixture(scope="module")
def html(work):
    inputs = make_whole(work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures.Picture, "svg", lambda picture: "")
        patch.setattr(pictures.Picture, "png", lambda picture: b"")
        patch.setenv("ASR_GOAL", r"digits RUNS=<dnn>\ gtc SET=a={b,c}")
        script("report").report(*(f"{work}/{i}" for i in inputs), f"{work}/report/index.html")
    return (work / "report/index.html").read_text()


@pytest.fixture(scope="module")
def data(html):
    return json.loads(outline(html).scripts[0])


def read_back(words, edits):
    """Return the hypothesis that a reference and its edits stand for, as page.js does."""
    found, left = [], list(edits)
    for at in range(len(words) + 1):
        kept = at < len(words)
        while left and left[0][0] == at:
            _, word, mark = left.pop(0)
            found += [word] if word is not None else []
            kept = kept and mark == "I"
        found += [words[at]] if kept else []
    assert not left
    return found


def test_edits_and_references_give_the_hypotheses_back(work, data):
    for split, content in data["splits"].items():
        for i, run in enumerate(content["runs"]):
            rows = {row["id"]: row for row in read_jsonl(work / f"exp/{run}/hyp.{split}.jsonl")[1:]}
            score = read_score(work / f"exp/{run}/score.{split}.json")["by_utterance"]
            for utterance in content["utterances"]:
                edits, name = utterance["edits"][i], utterance["id"]
                wanted = PLAIN.hypothesis(" ".join(rows[name]["words"]))
                assert read_back(utterance["words"], edits) == wanted
                assert len(edits) == score[name]["errors"]


def test_an_optional_word_that_is_missing_is_no_error():
    english = load_normaliser(NormaliserSettings(kind=NormaliserKind.english, mapping=None))
    reference = english.reference("uh yes wor- no")
    assert utterances.edits(reference, ["YES", "WORD"]) == [
        (0, None, ""),
        (2, "WORD", ""),
        (3, None, "D"),
    ]


def test_any_two_runs_are_compared_as_in_the_table(work, data):
    for split, content in data["splits"].items():
        rows = [row["ours"] for row in read_json(work / "tables/wer.json")["rows"]]
        (row,) = (r for r in rows if r["split"] == split and r["run"] == "dnn")
        if row["against"] is None:
            assert content["compared"] is None  # scales were chosen on it
            continue
        ((a, b, difference, low, high, p),) = content["compared"]["pairs"]
        assert [content["runs"][i] for i in (a, b)] == ["mono", "dnn"]
        found = row["against"]
        assert [difference, low, high, p] == pytest.approx(
            [found["difference"], *found["ci95"], found["p"]], abs=1e-6
        )


def test_speakers_add_up_to_the_split(work, data):
    for split, content in data["splits"].items():
        for i, run in enumerate(content["runs"]):
            score = read_score(work / f"exp/{run}/score.{split}.json")
            speakers = content["speakers"]
            assert sum(speaker["errors"][i] for speaker in speakers) == score["errors"]
            assert sum(speaker["words"] for speaker in speakers) == score["words"]
            for speaker in speakers:
                low, high = speaker["ci95"][i]
                assert low <= speaker["errors"][i] / speaker["words"] <= high


def test_the_utterances_with_the_fewest_errors_are_left_out_first(work):
    cuts = {cut["id"]: cut for cut in read_jsonl(work / "manifests/test.jsonl.gz")}
    scores = [read_score(work / f"exp/{run}/score.test.json") for run in ERROR_RATE]
    rows = [
        {row["id"]: row for row in read_jsonl(work / f"exp/{run}/hyp.test.jsonl")[1:]}
        for run in ERROR_RATE
    ]
    found = utterances.of_split(cuts, scores, rows, SETTINGS, PLAIN, most=10)
    errors = {
        name: sum(s["by_utterance"][name]["errors"] for s in scores)
        for name in scores[0]["by_utterance"]
    }
    kept = [errors[u["id"]] for u in found["utterances"]]
    assert len(kept) == 10
    assert found["all"] == len(cuts)
    assert sorted(errors.values())[-10:] == sorted(kept)
    mono, dnn = (score["by_utterance"] for score in scores)  # compared over all utterances
    assert found["fewer"] == [
        [sum(a[name]["errors"] < b[name]["errors"] for name in cuts) for b in (mono, dnn)]
        for a in (mono, dnn)
    ]


def test_a_score_of_other_hypotheses_is_refused(work):
    cuts = {cut["id"]: cut for cut in read_jsonl(work / "manifests/test.jsonl.gz")}
    score = read_score(work / "exp/dnn/score.test.json")
    rows = {name: {"id": name, "words": []} for name in cuts}
    with pytest.raises(ValueError, match=r"errors but its score.test.json has .*; delete exp/dnn"):
        utterances.of_split(cuts, [score], [rows], SETTINGS, PLAIN)


def test_the_worst_utterances_can_be_heard_and_others_are_addressed(work, data):
    score = read_score(work / "exp/dnn/score.test.json")
    cuts = {cut["id"]: cut for cut in read_jsonl(work / "manifests/test.jsonl.gz")}
    heard = data["heard"]["test"]
    worst = [name for name in utterances.worst([score], 20) if name != "test01-000"]
    assert set(heard) == set(worst)
    for name, sound in heard.items():
        wave, rate = soundfile.read(io.BytesIO(base64.b64decode(sound["flac"])))
        original, _ = soundfile.read(cuts[name]["recording"]["sources"][0]["source"])
        assert rate == sound["rate"] == 8000
        assert np.abs(wave - original).max() <= 2**-15
        assert [word for word, *_ in sound["said"]] == cuts[name]["supervisions"][0]["text"].split()
        assert set(sound["found"]) == set(ERROR_RATE)
    for utterance in data["splits"]["test"]["utterances"]:
        at = (work / "report" / unquote(utterance["audio"])).resolve()
        assert at == (work / f"audio/test/{utterance['id']} 'loud' 100%.flac").resolve()
        assert re.fullmatch(r"[\w./%-]+", utterance["audio"])


def test_no_more_sound_than_the_limit_is_in_the_page(work, monkeypatch):
    report = script("report")
    monkeypatch.setattr(report, "HEARD_BYTES", 50_000)
    scores = [read_score(work / f"exp/{run}/score.test.json") for run in ERROR_RATE]
    cuts = report.read_cuts(work / "manifests/test.jsonl.gz")
    rows = report.found_words(
        [str(work / f"exp/{run}/score.test.json") for run in ERROR_RATE], scores
    )
    found = report.sounds({"run": "dnn", "split": "test"}, scores, cuts, rows)
    total = sum(len(base64.b64decode(sound["flac"])) for sound in found.values())
    assert 0 < total <= 50_000


def test_the_page_has_the_data_card(html):
    text = outline(html).text
    assert "train 24 " in text
    assert "train: 1 empty text" in text
    assert "a empty text no <words>" in text
    assert "Speakers of test that are also in train: none." in text


def test_the_page_has_passes_settings_commands_and_addresses(work, html, data):
    text = outline(html).text
    assert "2 anew −61.250 120 4.13 0 1 2.0 s" in text
    assert "make digits 'RUNS=<dnn> gtc' 'SET=a={b,c}'" in text
    assert data["settings"]["dnn"] == {
        "model.dnn.layers": "2",
        "optim.rate": "0.008",
        "workers": "1",
        "decode.acoustic_scale": "0.1",
        "decode.insertion_penalty": "-0.5",
        "decode.lm_weight": "1",
    }
    assert data["settings"]["mono"]["gmm.gaussians"] == "120"
    passes = data["charts"]["chart_passes_0"]
    assert passes["dots"] == "training"  # in its CSV; DEV is not scored
    assert passes["curves"][0]["dots"] == [[1, -70.5], [3, -61.25]]
    addresses = [a["href"] for tag, a in outline(html).elements if tag == "a"]
    files = [at for at in addresses if not at.startswith("#")]
    assert {f"../exp/dnn/{name}" for name in ("log.jsonl", "model.pt", "run.json")} <= set(files)
    assert "../exp/mono/g.safetensors" in files
    assert all((work / "report" / at).exists() for at in files)


@pytest.mark.usefixtures("html")  # which makes the work folder
def test_a_run_that_only_decodes_otherwise_has_its_models_settings(work):
    report = script("report")
    models = {"dnn": work / "exp/dnn/model.json"}
    for run, how in (("dnn-bigram", "bigram"), ("dnn/epochs/3", "epochs/3")):
        found = report.of_run(run, models, [], [], work, work / "report")["settings"]
        assert found["decoding"] == how
        assert found["optim.rate"] == "0.008"


@pytest.mark.usefixtures("html")
def test_the_page_links_no_hypotheses_of_another_run(work):
    (work / "exp/dnn/hyp.test.ctm").write_text("")
    model, own = work / "exp/dnn/model.json", work / "exp/dnn-rescored"
    assert ("hyp.test.ctm", "../exp/dnn/hyp.test.ctm") in script("report").links(
        model, model.parent, ["test"], work / "report"
    )
    found = dict(script("report").links(model, own, ["test"], work / "report"))
    assert found["model.pt"] == "../exp/dnn/model.pt"
    assert "hyp.test.ctm" not in found


@pytest.mark.usefixtures("html")
def test_the_page_has_no_commands_of_test_sets_of_earlier_calls(work):
    models, scores = (
        {"dnn": work / "exp/dnn/model.json"},
        [{"run": "dnn", "split": "test"} | SCALES],
    )
    names = ("model.json", "hyp.test.jsonl", "score.test.json", "hyp.old.jsonl", "score.old.json")
    times = [{"output": f"exp/dnn/{name}", "command": f"make {name}"} for name in names]
    found = script("report").of_run("dnn", models, scores, times, work, work / "report")["facts"]
    assert [output for output, command in found if command.startswith("make")] == [
        f"exp/dnn/{name}" for name in names[:3]
    ]


def test_texts_cannot_end_the_pages_data(html, data):
    parsed = outline(html)
    assert len(parsed.scripts) == 2
    assert "</SCRIPT><B>" in json.dumps(data)  # upper case by the normaliser
    assert "<B>" not in html


def test_numbers_that_are_not_finite_stay_out_of_the_data(work):
    rows = [{"step": i, "frames": i, "loss": float("nan" if i else 1), "rate": 1.0} for i in (0, 1)]
    write_json(work / "x.json", pictures.curves({"dnn": rows}, ["dnn"]))  # refuses NaN
    points = read_json(work / "x.json")["chart_loss"]["curves"][0]["points"]
    assert [y for _, y in points] == [1.0, None]
