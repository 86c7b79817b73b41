"""Gaussians do what Viterbi training should: likelihoods rise, sums add up, files come back."""

import numpy as np
import pytest
from toy import path_of, toy_lang

from asr_train.align.gmm import (
    Gmm,
    count,
    estimate,
    load_gmm,
    save_gmm,
    split,
    train,
)
from asr_train.align.viterbi import Aligned
from asr_train.data.features import Utterance
from asr_train.schema import build, plain
from scripts.resolve import settings

CONFIG = settings("dnn", [])
DIMS = 4


@pytest.fixture(params=range(3))
def rng(request):
    return np.random.default_rng(request.param)


def random_gmm(rng, states=5, per_state=3) -> Gmm:
    count_G = states * per_state
    weight_G = rng.dirichlet(np.ones(per_state), states).reshape(-1)
    return Gmm(
        np.repeat(np.arange(states), per_state),
        weight_G,
        rng.standard_normal((count_G, DIMS)),
        rng.uniform(0.5, 2, (count_G, DIMS)),
        rng.uniform(0.2, 0.8, states),
    )


def log_normal(x_D, mean_D, variance_D) -> float:
    return float(-0.5 * (np.log(2 * np.pi * variance_D) + (x_D - mean_D) ** 2 / variance_D).sum())


def test_scores_are_the_mixtures_log_densities(rng):
    gmm, x_TD = random_gmm(rng), rng.standard_normal((7, DIMS)).astype(np.float32)
    scores_TS = gmm.scores(x_TD)
    for t in range(7):
        for s in range(5):
            terms = [
                np.log(gmm.weight_G[g]) + log_normal(x_TD[t], gmm.mean_GD[g], gmm.variance_GD[g])
                for g in np.flatnonzero(gmm.state_G == s)
            ]
            assert scores_TS[t, s] == pytest.approx(np.logaddexp.reduce(terms), abs=1e-3)


def test_counts_of_halves_are_the_counts_of_the_whole(rng):
    gmm, x_ND = random_gmm(rng), rng.standard_normal((50, DIMS)).astype(np.float32)
    state_N, visits_S = rng.integers(0, 5, 50), np.ones(5)
    whole = count(gmm, x_ND, state_N, 2 * visits_S)
    halves = count(gmm, x_ND[:20], state_N[:20], visits_S)
    halves = halves + count(gmm, x_ND[20:], state_N[20:], visits_S)
    for name in ("occupancy_G", "sum_GD", "squares_GD", "frames_S", "visits_S"):
        np.testing.assert_allclose(getattr(whole, name), getattr(halves, name), rtol=1e-5)


def test_one_gaussian_becomes_mean_and_variance_of_its_frames(rng):
    gmm = random_gmm(rng, states=2, per_state=1)
    x_ND = rng.standard_normal((400, DIMS)).astype(np.float32) * 3 + 1
    state_N = np.arange(400) % 2
    new = estimate(gmm, count(gmm, x_ND, state_N, np.full(2, 200.0)), np.full(DIMS, 1e-3), 1)
    for s in (0, 1):
        np.testing.assert_allclose(new.mean_GD[s], x_ND[state_N == s].mean(0), atol=1e-4)
        np.testing.assert_allclose(new.variance_GD[s], x_ND[state_N == s].var(0), rtol=1e-3)


def test_re_estimation_never_lowers_the_likelihood(rng):
    gmm, x_ND = random_gmm(rng), rng.standard_normal((2000, DIMS)).astype(np.float32)
    state_N, visits_S = rng.integers(0, 5, 2000), np.ones(5)
    likelihoods = []
    for _ in range(6):
        likelihoods.append(gmm.scores(x_ND)[np.arange(2000), state_N].astype(np.float64).sum())
        gmm = estimate(gmm, count(gmm, x_ND, state_N, visits_S), np.full(DIMS, 1e-6), 0)
    assert np.diff(likelihoods).min() > -1e-2
    assert likelihoods[-1] > likelihoods[0] + 100


def test_starved_gaussians_go_but_every_state_keeps_one(rng):
    gmm, x_ND = random_gmm(rng), rng.standard_normal((30, DIMS)).astype(np.float32)
    state_N = np.zeros(30, int)  # states 1 to 4 see nothing
    new = estimate(gmm, count(gmm, x_ND, state_N, np.ones(5)), np.full(DIMS, 1e-3), 20)
    assert set(new.state_G) == set(range(5))
    np.testing.assert_allclose(np.bincount(new.state_G, new.weight_G), 1)


def test_splitting_reaches_the_target_and_gives_to_states_with_frames(rng):
    gmm = random_gmm(rng, per_state=1)
    frames_S = np.array([10000.0, 1000.0, 1000.0, 15.0, 0.0])
    new = split(gmm, frames_S, 20, power=0.25, min_count=10)
    have_S = np.bincount(new.state_G, minlength=5)
    assert have_S.sum() == 20
    assert have_S[0] > have_S[1] >= have_S[2] > have_S[3] == have_S[4] == 1
    np.testing.assert_allclose(np.bincount(new.state_G, new.weight_G), 1)


def test_splitting_stops_where_frames_are_too_few(rng):
    new = split(random_gmm(rng, per_state=1), np.full(5, 25.0), 100, power=0.25, min_count=10)
    assert len(new.state_G) == 10


def test_a_saved_model_comes_back(rng, tmp_path):
    gmm, states = random_gmm(rng), toy_lang().states
    save_gmm(tmp_path / "model.json", gmm, CONFIG.ali.gmm, CONFIG.feats, states)
    back, own, about = load_gmm(tmp_path / "model.json")
    assert own == CONFIG.ali.gmm
    assert about["states_hash"] == states.hash
    for name in ("state_G", "weight_G", "mean_GD", "variance_GD", "loop_S"):
        assert np.array_equal(getattr(back, name), getattr(gmm, name))


def test_a_flipped_bit_in_a_model_is_noticed(rng, tmp_path):
    save_gmm(
        tmp_path / "model.json", random_gmm(rng), CONFIG.ali.gmm, CONFIG.feats, toy_lang().states
    )
    content = bytearray((tmp_path / "gmm.safetensors").read_bytes())
    content[-3] ^= 4
    (tmp_path / "gmm.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"gmm\.safetensors"):
        load_gmm(tmp_path / "model.json")


# --- a whole training on made-up speech ---------------------------------------------------------


class FakeFeats:
    """Features whose every state is a Gaussian of its own; as `data.features.Feats`."""

    def __init__(self, lang, utterances=60, seed=0):
        rng = np.random.default_rng(seed)
        self.settings = CONFIG.feats
        self.mean_SD = 4 * rng.standard_normal((lang.states.num_states, 6))
        self.paths, self.arrays, self.utterances = {}, {}, []
        for u in range(utterances):
            words = [("A", "AB", "ABC", "C")[i] for i in rng.integers(0, 4, 4)]
            path_T = path_of(lang, words, rng, stay=6)
            name = f"u{u}"
            self.paths[name] = path_T
            noise_TD = rng.standard_normal((len(path_T), 6))
            self.arrays[name] = (self.mean_SD[path_T] + noise_TD).astype(np.float32)
            row = Utterance(name, "s", " ".join(words), len(path_T) / 100, len(path_T), {})
            self.utterances.append(row)

    def normaliser(self, norm):
        return lambda utterance, x_TD: x_TD

    def load(self, utterance):
        return self.arrays[utterance.id]


def ali_settings(**change):
    values = plain(CONFIG.ali)
    values["gmm"] |= {"num_ceps": 0, "deltas": 0, "passes": 8, "gaussians": 14}
    values["gmm"] |= change
    return build(type(CONFIG.ali), values)


def train_on(feats, lang, **change):
    rows = []
    gmm, outcomes = train(feats, lang, ali_settings(**change), rows.append)
    return gmm, outcomes, rows


def test_training_from_a_flat_start_finds_the_states(monkeypatch):
    monkeypatch.setenv("JOBS", "2")
    lang = toy_lang()
    feats = FakeFeats(lang)
    _, outcomes, rows = train_on(feats, lang, passes=14)
    assert [row["flat_pass"] for row in rows[:12]] == list(range(1, 13))
    assert rows[-1]["loglik_per_frame"] > rows[0]["loglik_per_frame"] + 3
    assert rows[-1]["moved"] < 0.1
    phone_S = lang.states.phone_of_state()
    right = [
        (phone_S[o.states_T] == phone_S[feats.paths[u.id]]).mean()
        for u, o in zip(feats.utterances, outcomes, strict=True)
    ]
    assert np.mean(right) > 0.9


def test_the_number_of_processes_changes_nothing(monkeypatch):
    lang = toy_lang()
    models = []
    for jobs in ("1", "3"):
        monkeypatch.setenv("JOBS", jobs)
        models.append(train_on(FakeFeats(lang), lang, passes=3)[0])
    for name in ("weight_G", "mean_GD", "variance_GD", "loop_S"):
        assert np.array_equal(getattr(models[0], name), getattr(models[1], name))


def test_utterances_that_cannot_be_trained_on_are_lost_by_name():
    lang = toy_lang()
    feats = FakeFeats(lang, utterances=20)
    bad = feats.utterances[3]
    feats.utterances[3] = Utterance(bad.id, "s", "NOSUCH", bad.seconds, bad.frames, {})
    _, outcomes, rows = train_on(feats, lang, passes=1)
    assert rows[-1]["lost"] == 1
    assert outcomes[3].reason == "no pronunciation of NOSUCH"
    assert all(isinstance(o, Aligned) for i, o in enumerate(outcomes) if i != 3)
