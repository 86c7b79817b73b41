"""A first pass finds words; adaptation to them lowers the error rate, also of a network."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from speakers import CONFIG, DIMS, Speakers, system, trained
from toy import random_tree, toy_lang

from asr_train.align.gmm import save_gmm
from asr_train.align.speakers import load_speakers, write_speakers
from asr_train.align.viterbi import transcripts
from asr_train.decode import first_pass
from asr_train.decode.first_pass import adaptation_line, adapted
from asr_train.decode.posteriors import load_scorer
from asr_train.decode.tune import middle, tune
from asr_train.decode.words import ALIGNING, Choice, Effort, Recogniser, transcribe
from asr_train.files import read_json, write_json
from asr_train.model.store import build_model, save_model
from asr_train.schema import ModelSettings, build
from asr_train.score.words import WordErrors
from asr_train.search.graph import Graph, decoding_graph

CHOICE = Choice(acoustic_scale=0.5, insertion_penalty=0.0, lm_weight=1.0)
EFFORT = Effort(beam=40.0, max_active=5000, lattice_beam=8.0, nbest=0)
WORDS = ("A", "ABC")  # no two sequences of them are homophones
APART = 1.2  # standard deviations: little, so that there are errors


@pytest.fixture(autouse=True)
def one_job(monkeypatch):
    monkeypatch.setenv("JOBS", "1")


@pytest.fixture(scope="module")
def lang():
    return toy_lang(words=WORDS)


@pytest.fixture(scope="module")
def new(lang):
    """Speakers that are not in the training data."""
    return Speakers(lang, seed=5, prefix="new", apart=APART, words=WORDS)


@pytest.fixture(scope="module")
def models(lang, tmp_path_factory):
    """Model files: mono, and after it a system of adapted frames."""
    feats, folder = Speakers(lang, apart=APART, words=WORDS), tmp_path_factory.mktemp("exp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOBS", "1")
        mono, *_ = trained(feats, lang, system("mono"))
        sat, *_ = trained(feats, lang, system("sat"), mono)
    paths = {}
    for name, model in (("mono", mono), ("sat", sat)):
        paths[name] = folder / name / "model.json"
        paths[name].parent.mkdir()
        save_gmm(paths[name], model, feats.settings, {})
    return paths


@pytest.fixture
def scorer(models, new, lang):
    return load_scorer(models["sat"], new, lang)


@pytest.fixture(scope="module")
def graph(models, new, lang):
    scorer = load_scorer(models["sat"], new, lang)
    return Graph.of(decoding_graph(lang, scorer.states, scorer.loop_S))


def found(scorer, lang, graph, utterances):
    recognise = Recogniser(scorer, lang, graph, CHOICE, EFFORT, 0.01)
    return [(h.words, h.acoustic_cost) for h, _ in transcribe(recognise, utterances, "")]


def errors(scorer, lang, graph, utterances) -> int:
    pairs = zip(utterances, found(scorer, lang, graph, utterances), strict=True)
    return sum(WordErrors.between(u.words.split(), words).errors for u, (words, _) in pairs)


def test_adapted_speakers_are_understood_better(scorer, lang, graph, new):
    """The result is nearly as good as with adaptation to the reference words."""
    before = errors(scorer, lang, graph, new.utterances)
    heard, about = adapted(scorer, lang, graph, CHOICE, EFFORT, new.utterances)
    told, _ = scorer.adapt(transcripts(new.utterances), lang, ALIGNING)
    after, best = (errors(s, lang, graph, new.utterances) for s in (heard, told))
    assert before > 20
    assert after < 0.6 * before
    assert best <= after
    assert (about["speakers"], about["adapted"]) == (4, 3)
    assert about["gain_per_frame"] > 0
    assert 0 < about["earlier_seconds"] < about["wall_seconds"] + 1
    assert adaptation_line(about).startswith("earlier passes: 3 of 4 speakers adapted, ")


def test_the_seconds_of_all_earlier_passes_are_counted(scorer, lang, graph, new, monkeypatch):
    silence = [([], 2.0) for _ in new.utterances]
    monkeypatch.setattr(first_pass, "map_in_chunks", lambda *_: silence)
    _, about = adapted(scorer, lang, graph, CHOICE, EFFORT, new.utterances)
    assert about["earlier_seconds"] == 2.0 * len(silence) * first_pass.PASSES


def test_transcripts_are_not_looked_at(scorer, lang, graph, new):
    untold = [replace(u, words="") for u in new.utterances]
    results = []
    for utterances in (new.utterances, untold):
        heard, _ = adapted(scorer, lang, graph, CHOICE, EFFORT, utterances)
        results.append(found(heard, lang, graph, utterances))
    assert results[0] == results[1]


def test_tuning_adapts_to_what_its_middle_choice_hears(scorer, lang, new):
    """Once: all choices are decoded with the same transforms, made without transcripts."""
    scales, others = [0.3, 0.5, 0.7], {"insertion_penalties": [0.0], "lm_weights": [1.0]}
    own = replace(CONFIG.decode, beam=40.0, acoustic_scales=scales, **others)
    lines = []
    tuned = tune(scorer, lang, new.utterances, own, log=lines.append)
    assert middle(own) == CHOICE
    graph = Graph.of(tuned.graph)
    heard, _ = adapted(scorer, lang, graph, CHOICE, own, new.utterances)
    tried = dict(tuned.tried)
    assert tried[CHOICE].errors == errors(heard, lang, graph, new.utterances)
    assert min(e.errors for e in tried.values()) == tried[tuned.best].errors
    assert sum("speakers adapted" in line for line in lines) == 1


def test_until_it_is_adapted_it_scores_with_the_gaussians_of_unadapted_frames(scorer, lang, new):
    """Also afterwards for speakers with too few frames."""
    short = [u for u in new.utterances if u.speaker == "new3"]
    after, about = scorer.adapt(transcripts(new.utterances), lang, ALIGNING)
    assert [name for name, _ in about["kept"]] == ["new3"]
    for u in short:
        assert np.array_equal(scorer.score(u), after.score(u))
    other = new.utterances[0]
    assert not np.allclose(scorer.score(other), after.score(other))


def test_other_systems_have_nothing_to_adapt(models, new, lang):
    assert load_scorer(models["mono"], new, lang).adapt is None


# --- networks on fMLLR features ---------------------------------------------------------------

DNN = {"layers": 1, "width": 8, "nonlinearity": "relu", "context_left": 1, "context_right": 1}


@pytest.fixture(scope="module")
def network(models, lang):
    """A network of random weights, beside the system whose frames it reads."""
    states, sat = lang.states, read_json(models["sat"])
    settings = build(ModelSettings, {"dnn": DNN})
    sizes = torch.zeros(DIMS), torch.ones(DIMS)
    model = build_model(settings, states.num_states, *sizes, seed=1)
    torch.nn.init.normal_(model.layers[-1].weight, generator=torch.Generator().manual_seed(2))
    about = {"run": "dnn", "model": {"dnn": DNN}, "priors": [1.0] * states.num_states}
    about |= {"feats": sat["feats"], "norm": {"by": "none", "variance": False}}
    about |= {"states_hash": states.hash, "states": states.plain()}
    about |= {"self_loops": [0.5] * states.num_states}
    about["fmllr"] = {"run": "sat", "sha256": sat["parts"][0]["sha256"]}
    return save_model(models["sat"].parents[1] / "dnn", model, about)


def test_a_network_is_adapted_as_its_system_would_be(network, scorer, lang, graph, new):
    """The system decodes the first passes: no error of the network has a part in them."""
    loaded = load_scorer(network, new, lang)
    assert loaded.first.run == "sat"
    net, about = adapted(loaded, lang, graph, CHOICE, EFFORT, new.utterances)
    sat, same = adapted(scorer, lang, graph, CHOICE, EFFORT, new.utterances)
    assert about["adapted"] == same["adapted"] == 3
    assert net.speakers.matrices.keys() == {"new0", "new1", "new2"}
    for name, matrix_DE in sat.speakers.matrices.items():
        assert np.array_equal(net.speakers.matrices[name], matrix_DE)


def test_a_network_scores_in_decoding_what_it_read_in_training(network, lang, new, tmp_path):
    """Given the same words: through the alignments' file, or the system beside the network."""
    said = transcripts(new.utterances)
    decoding, _ = load_scorer(network, new, lang).adapt(said, lang, ALIGNING)
    sat, _ = load_scorer(network, new, lang).first.adapt(said, lang, ALIGNING)
    write_speakers(tmp_path / "fmllr", sat.speakers)
    stored = load_speakers(tmp_path / "fmllr")
    training = load_scorer(network, new, lang, stored)
    for u in new.utterances[:8]:
        assert np.array_equal(stored.read(new)(u), decoding.speakers.read(new)(u))
        assert np.array_equal(training.score(u), decoding.score(u))
    before = load_scorer(network, new, lang)  # unadapted frames
    plain_frames = replace(stored, matrices={})
    assert np.array_equal(before.score(u), load_scorer(network, new, lang, plain_frames).score(u))
    assert not np.array_equal(before.score(u), decoding.score(u))


def test_another_system_than_in_training_is_refused(network, models, new, lang, tmp_path):
    about = read_json(network)
    own = about["fmllr"]["sha256"]
    for name in (network.name, about["file"]):
        (tmp_path / "exp/dnn").mkdir(parents=True, exist_ok=True)
        (tmp_path / "exp/dnn" / name).write_bytes((network.parent / name).read_bytes())
    copied = tmp_path / "exp/dnn/model.json"
    with pytest.raises(
        FileNotFoundError, match=r"fMLLR features of sat .* but .*/sat/model.json is"
    ):
        load_scorer(copied, new, lang)
    other = read_json(models["sat"])
    other["parts"][0]["sha256"] = "b" * 64
    write_json(tmp_path / "exp/sat/model.json", other)
    with pytest.raises(ValueError, match=f"trained on .*{own[:12]}.* has fMLLR .*bbbbbbbbbbbb"):
        load_scorer(copied, new, lang)
    write_json(copied, {name: about[name] for name in about if name != "fmllr"})
    speakers = load_scorer(models["sat"], new, lang).speakers
    with pytest.raises(
        ValueError, match="was trained on log-mel but is given fMLLR features of sat"
    ):
        load_scorer(copied, new, lang, speakers)


@pytest.mark.parametrize(
    "change, says",
    [("tree", "whose first passes it decodes, "), ("self_loops", "self-loops of 1;")],
)
def test_a_system_of_other_states_than_the_network_is_refused(
    network, models, lang, new, tmp_path, change, says
):
    """The network's graph would lead beyond its scores."""
    for path in (network, models["sat"]):
        shutil.copytree(path.parent, tmp_path / "exp" / path.parent.name)
    copied, about = tmp_path / "exp/dnn/model.json", read_json(network)
    if change == "tree":
        tree = random_tree(lang.states, np.random.default_rng(0), depth=0)
        states = replace(lang.states, tree=tree)
        about |= {"states": states.plain(), "states_hash": states.hash}
    else:
        about["self_loops"] = [0.5]
    write_json(copied, about)
    with pytest.raises(ValueError, match=says):
        load_scorer(copied, new, lang)
