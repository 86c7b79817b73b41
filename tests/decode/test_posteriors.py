"""A scorer gives the scores of the search, only for states and features of its model."""

import dataclasses

import numpy as np
import pytest
import torch
import toy

from asr_train.align.front import Front
from asr_train.align.gmm import Gmm, Mixtures, load_gmm, save_gmm
from asr_train.data.features import cepstra, with_deltas
from asr_train.decode.posteriors import load_scorer
from asr_train.files import DamagedFileError, read_json, write_json
from asr_train.model.store import build_model, load_model, save_model
from asr_train.schema import FrontSettings, ModelSettings, NormBy, NormSettings, build, plain
from asr_train.shards.batch import context_padded

NORM = NormSettings(by=NormBy.speaker, variance=True)
LEFT, RIGHT = 2, 1


@pytest.fixture
def priors_S(lang):
    weights_S = np.random.default_rng(1).uniform(0.1, 1, lang.states.num_states)
    return weights_S / weights_S.sum()


DNN = {
    "layers": 2,
    "width": 16,
    "nonlinearity": "sigmoid",
    "context_left": LEFT,
    "context_right": RIGHT,
}
LSTM = {"layers": 2, "width": 16, "stack": 3, "subsample": 3, "delay": 2, "piece": 9, "warm": 2}


@pytest.fixture
def network(lang, feats, priors_S, tmp_path):
    """A model.json whose network has random weights, including its output layer."""
    return random_network(lang, feats, priors_S, tmp_path, {"dnn": DNN})


@pytest.fixture
def recurrent(lang, feats, priors_S, tmp_path):
    return random_network(lang, feats, priors_S, tmp_path, {"lstm": LSTM})


def random_network(lang, feats, priors_S, tmp_path, values):
    num_mels, num_states = feats.settings.num_mels, lang.states.num_states
    settings = build(ModelSettings, values)
    generator = torch.Generator().manual_seed(3)
    mean_F = torch.randn(num_mels, generator=generator)
    model = build_model(settings, num_states, mean_F, torch.full((num_mels,), 2.0), 1)
    with torch.no_grad():
        output = model.layers[-1] if "dnn" in values else model.output
        for weights in output.parameters():
            weights.copy_(torch.randn(weights.shape, generator=generator))
    about = {
        "run": "dnn",
        "model": values,
        "priors": priors_S.tolist(),
        "feats": plain(feats.settings),
        "norm": plain(NORM),
        "states_hash": lang.states.hash,
        "states": lang.states.plain(),
        "self_loops": [0.6] * num_states,
        "frames": 1,
        "steps": 1,
        "dev": {"loss": 1.0, "accuracy": 0.5},
    }
    return save_model(tmp_path / "exp" / "dnn", model, about)


@pytest.fixture
def gaussians(lang, feats, tmp_path):
    """A model.json with two Gaussians per state."""
    front = Front(FrontSettings(num_ceps=4, deltas=1, norm=NORM))
    rng = np.random.default_rng(2)
    num_states, size = lang.states.num_states, 8
    gmm = Gmm(
        np.repeat(np.arange(num_states), 2),
        np.full(2 * num_states, 0.5),
        rng.standard_normal((2 * num_states, size)),
        rng.uniform(0.5, 2, (2 * num_states, size)),
        rng.uniform(0.2, 0.8, num_states),
    )
    path = tmp_path / "exp/mono/model.json"
    save_gmm(path, Mixtures(front, gmm, lang.states), feats.settings, {})
    return path


def test_a_networks_scores_are_log_posteriors_less_log_priors(network, lang, feats, priors_S):
    scorer = load_scorer(network, feats, lang)
    model, _ = load_model(network)
    normalise = feats.normaliser(NORM)
    for utterance in feats:
        feats_TF = torch.from_numpy(normalise(utterance, feats.load(utterance)))
        for t, score_S in enumerate(scorer.score(utterance)):
            window = torch.arange(t - LEFT, t + RIGHT + 1).clamp(0, len(feats_TF) - 1)
            posteriors_S = torch.softmax(model(feats_TF[window][None])[0, 0], 0)
            wanted_S = np.log(posteriors_S.detach().numpy() / priors_S)
            np.testing.assert_allclose(score_S, wanted_S, atol=1e-4)


def test_scores_and_priors_together_are_posteriors(network, lang, feats, priors_S):
    scorer = load_scorer(network, feats, lang)
    for utterance in feats:
        scores_TS = scorer.score(utterance)
        assert scores_TS.dtype == np.float32
        assert scores_TS.shape == (utterance.frames, lang.states.num_states)
        posteriors_TS = np.exp(scores_TS.astype(np.float64)) * priors_S
        np.testing.assert_allclose(posteriors_TS.sum(1), 1, atol=1e-5)


def test_a_recurrent_networks_scores_are_those_of_the_reading_that_keeps_the_frame(
    recurrent, lang, feats, priors_S
):
    scorer = load_scorer(recurrent, feats, lang)
    model, _ = load_model(recurrent)
    normalise = feats.normaliser(NORM)
    for utterance in feats:
        feats_TF = torch.from_numpy(normalise(utterance, feats.load(utterance)))
        scores_TS = scorer.score(utterance)
        assert scores_TS.shape == (utterance.frames, lang.states.num_states)
        padded_BTF = context_padded(feats_TF, 1, 1 + 2 * 3)
        for phase in range(min(3, len(feats_TF))):
            posteriors_KS = torch.softmax(model(padded_BTF[:, phase:])[0], 1)
            wanted_KS = np.log(posteriors_KS.detach().numpy() / priors_S)
            np.testing.assert_allclose(scores_TS[phase::3], wanted_KS, atol=1e-4)


def test_the_mixtures_scores_are_theirs_on_what_they_see(gaussians, lang, feats):
    scorer = load_scorer(gaussians, feats, lang)
    gmm, normalise = load_gmm(gaussians).gmm, feats.normaliser(NORM)
    for utterance in feats:
        feats_TF = normalise(utterance, feats.load(utterance))
        wanted_TS = gmm.scores(with_deltas(cepstra(feats_TF, 4), 1))
        np.testing.assert_allclose(scorer.score(utterance), wanted_TS, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["network", "recurrent", "gaussians"])
def test_scores_of_some_states_are_their_columns(request, kind, lang, feats):
    scorer = load_scorer(request.getfixturevalue(kind), feats, lang)
    some = np.array([7, 2, 3])
    for utterance in feats:
        scores_TS = scorer.score(utterance)
        found_tS = scorer.scores(utterance)(some, slice(5, 20))
        np.testing.assert_allclose(found_tS, scores_TS[5:20, some], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind, run_in", [("network", 6), ("recurrent", 300)])
def test_windows_of_a_long_utterance_score_as_all_of_it(
    request, kind, run_in, lang, feats, monkeypatch
):
    """A recurrent network has all preceding windows as input."""
    scorer = load_scorer(request.getfixturevalue(kind), feats, lang)
    whole = [scorer.score(utterance) for utterance in feats]
    monkeypatch.setattr("asr_train.decode.network.WHOLE", 0)
    monkeypatch.setattr("asr_train.decode.network.RUN_IN", run_in)
    ids = np.arange(lang.states.num_states)
    for utterance, whole_TS in zip(feats, whole, strict=True):
        for begin in (0, 9, utterance.frames - 4):
            span = slice(begin, begin + 7)
            found_tS = scorer.scores(utterance)(ids, span)
            np.testing.assert_allclose(found_tS, whole_TS[span], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["network", "gaussians"])
def test_a_scorer_knows_its_run_states_and_self_loops(request, kind, lang, feats):
    path = request.getfixturevalue(kind)
    scorer = load_scorer(path, feats, lang)
    assert scorer.run == path.parent.name
    assert scorer.states == lang.states
    assert scorer.num_states == len(scorer.loop_S) == lang.states.num_states
    wanted_S = load_gmm(path).gmm.loop_S if kind == "gaussians" else read_json(path)["self_loops"]
    np.testing.assert_array_equal(scorer.loop_S, wanted_S)


@pytest.mark.parametrize("kind", ["network", "gaussians"])
def test_a_model_of_other_states_is_refused_with_both_hashes(request, kind, feats, lang):
    path = request.getfixturevalue(kind)
    other = toy.toy_lang(phone_states=2)
    hashes = rf"{lang.states.hash}.*{other.states.hash}"
    with pytest.raises(ValueError, match=rf"model.json: .*{hashes}"):
        load_scorer(path, feats, other)


@pytest.mark.parametrize("kind", ["network", "gaussians"])
@pytest.mark.parametrize(
    "change",
    [{"num_mels": 6}, {"sample_rate": 16000}, {"shift_seconds": 0.02}, {"low_hz": 60.0}],
    ids=lambda change: next(iter(change)),
)
def test_a_model_of_other_features_is_refused_with_both_values(
    request, kind, feats, lang, change, monkeypatch
):
    path = request.getfixturevalue(kind)
    (name, value), had = *change.items(), plain(feats.settings)
    monkeypatch.setattr(feats, "settings", dataclasses.replace(feats.settings, **change))
    with pytest.raises(ValueError, match=rf"feats.{name}={had[name]} but .* have {value}; "):
        load_scorer(path, feats, lang)


@pytest.mark.parametrize("kind", ["network", "gaussians"])
def test_states_that_changed_since_they_were_stored_are_refused_with_both_hashes(
    request, kind, feats, lang
):
    path = request.getfixturevalue(kind)
    about = read_json(path)
    other = toy.tied(lang, np.random.default_rng(0))
    write_json(path, about | {"states": other.plain()})
    with pytest.raises(ValueError, match=rf"model.json says .*{lang.states.hash}.*{other.hash}"):
        load_scorer(path, feats, lang)


@pytest.mark.parametrize("kind", ["network", "gaussians"])
@pytest.mark.parametrize("key", ["states", "states_hash", "feats", "kind", "run"])
def test_a_model_that_lacks_an_entry_is_refused_by_name(request, kind, key, feats, lang):
    path = request.getfixturevalue(kind)
    write_json(path, {k: v for k, v in read_json(path).items() if k != key})
    with pytest.raises(DamagedFileError, match=rf"model.json lacks '{key}'; delete it"):
        load_scorer(path, feats, lang)
