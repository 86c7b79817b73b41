"""Viterbi training of Gaussians: likelihoods rise, sums add up, files are lossless."""

import numpy as np
import pytest
from toy import tied, toy_lang

from asr_train.align.front import Front
from asr_train.align.gmm import Counts, Gmm, Mixtures, count, estimate, load_gmm, save_gmm, split
from asr_train.compose import settings
from asr_train.files import read_json
from asr_train.schema import plain

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


def test_five_frames_give_what_one_computes_by_hand():
    """The first state is entered once, the second twice; constant dimensions are at the floor."""
    gmm = Gmm(np.arange(2), np.ones(2), np.zeros((2, 2)), np.ones((2, 2)), np.full(2, 0.9))
    x_ND = np.array([[0, 1], [1, 1], [5, 1], [7, 4], [9, 6]], np.float32)
    counts = count(gmm, x_ND, np.array([0, 0, 0, 1, 1]), np.array([1.0, 2.0]))
    new = estimate(gmm, counts, np.array([0.5, 0.25]), 1)
    np.testing.assert_allclose(new.mean_GD, [[2, 1], [8, 5]])
    np.testing.assert_allclose(new.variance_GD, [[26 / 3 - 4, 0.25], [1, 1]])
    np.testing.assert_allclose(new.loop_S, [3 / 5, 1 / 4])  # one more frame stays, one leaves
    assert new.weight_G.tolist() == [1, 1]


def test_shares_are_of_adapted_frames_and_sums_of_the_others():
    means_GD, ones_GD = np.array([[0.0], [9]]), np.ones((2, 1))
    gmm = Gmm(np.zeros(2, int), np.full(2, 0.5), means_GD, ones_GD, np.ones(1))
    adapted_ND, plain_ND = np.array([[[0], [9], [9]], [[9], [2], [4]]], np.float32)
    found = count(gmm, adapted_ND, np.zeros(3, int), np.ones(1), plain_ND)
    np.testing.assert_allclose(found.occupancy_G, [1, 2])
    np.testing.assert_allclose(found.sum_GD, [[9], [6]])
    np.testing.assert_allclose(found.squares_GD, [[81], [20]])


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
    state_N = np.zeros(30, int)  # states 1 to 4 have no frames
    new = estimate(gmm, count(gmm, x_ND, state_N, np.ones(5)), np.full(DIMS, 1e-3), 20)
    assert set(new.state_G) == set(range(5))
    np.testing.assert_allclose(np.bincount(new.state_G, new.weight_G), 1)


def test_of_starved_gaussians_a_state_keeps_the_one_with_most_frames():
    """A Gaussian with a single frame stays as it was, since its variance would be zero."""
    gmm = Gmm(np.array([0, 0, 1]), np.array([0.5, 0.5, 1]), *np.full((2, 3, 1), 7.0), np.ones(2))
    ones_S, sums = np.ones(2), np.array([[3.0], [10.0], [4.0]])
    counts = Counts(
        np.array([3.0, 5.0, 1.0]), sums, np.array([[9.0], [60.0], [16.0]]), ones_S, ones_S
    )
    new = estimate(gmm, counts, np.array([0.5]), 20)
    assert new.state_G.tolist() == [0, 1]
    assert new.mean_GD.tolist() == [[2], [7]]
    assert new.variance_GD.tolist() == [[8], [7]]
    assert new.weight_G.tolist() == [1, 1]


def test_a_mixture_without_frames_keeps_its_parameters(rng):
    gmm, x_ND = random_gmm(rng), rng.standard_normal((30, DIMS)).astype(np.float32)
    visits_S = np.eye(5)[0]
    new = estimate(gmm, count(gmm, x_ND, np.zeros(30, int), visits_S), np.ones(DIMS), 20)
    assert new.loop_S[1:].tolist() == gmm.loop_S[1:].tolist() != [0.5] * 4
    unseen_G, kept_G = gmm.state_G > 0, new.state_G > 0
    assert np.bincount(gmm.state_G)[1:].max() > 1
    assert new.state_G[kept_G].tolist() == gmm.state_G[unseen_G].tolist()
    for name in ("weight_G", "mean_GD", "variance_GD"):
        np.testing.assert_allclose(getattr(new, name)[kept_G], getattr(gmm, name)[unseen_G])


def test_splitting_reaches_the_target_and_gives_to_states_with_frames(rng):
    gmm = random_gmm(rng, per_state=1)
    frames_S = np.array([10000.0, 1000.0, 1000.0, 15.0, 0.0])
    new = split(gmm, frames_S, 20, power=0.25, min_count=10)
    have_S = np.bincount(new.state_G, minlength=5)
    assert have_S.sum() == 20
    assert have_S[0] > have_S[1] >= have_S[2] > have_S[3] == have_S[4] == 1
    np.testing.assert_allclose(np.bincount(new.state_G, new.weight_G), 1)


def test_halves_lie_a_tenth_of_a_deviation_to_either_side_on_average():
    dims = 4000
    whole = Gmm(
        np.zeros(1, int), np.ones(1), *np.full((2, 1, dims), [[[7.0]], [[9.0]]]), np.ones(1)
    )
    new = split(whole, np.array([1e6]), 2, power=0.25, min_count=10)
    np.testing.assert_allclose(new.mean_GD.mean(0), 7)
    away_D = new.mean_GD[1] - 7
    assert np.sqrt((away_D**2).mean()) == pytest.approx(0.1 * 3, rel=0.05)
    assert new.weight_G.tolist() == [0.5, 0.5]
    assert (new.variance_GD == 9).all()


def test_splitting_stops_where_frames_are_too_few(rng):
    new = split(random_gmm(rng, per_state=1), np.full(5, 25.0), 100, power=0.25, min_count=10)
    assert len(new.state_G) == 10


@pytest.mark.parametrize("some", [None, [3, 0], [4], [2, 2, 1]])
def test_scores_of_some_states_are_their_columns(rng, some):
    gmm, x_TD = random_gmm(rng), rng.standard_normal((7, DIMS)).astype(np.float32)
    columns = slice(None) if some is None else some
    ids = None if some is None else np.array(some)
    np.testing.assert_allclose(gmm.scores(x_TD, ids), gmm.scores(x_TD)[:, columns], atol=1e-5)


def saved(rng, path, transform_dD=None) -> Mixtures:
    front = Front(CONFIG.gmm["mono"].front, transform_dD)
    model = Mixtures(front, random_gmm(rng), tied(toy_lang(), rng))
    save_gmm(path, model, CONFIG.feats, {"gmm": {"passes": 3}})
    return model


@pytest.mark.parametrize("projected", [False, True])
def test_a_saved_model_comes_back(rng, tmp_path, projected):
    """Including its tree and its front end."""
    transform_dD = rng.standard_normal((4, 6)).astype(np.float32)
    model = saved(rng, tmp_path / "model.json", transform_dD if projected else None)
    back, about = load_gmm(tmp_path / "model.json"), read_json(tmp_path / "model.json")
    assert back.front.settings == model.front.settings
    if projected:
        assert np.array_equal(back.front.transform_dD, transform_dD)
    else:
        assert back.front.transform_dD is None
    assert back.states.hash == model.states.hash == about["states_hash"]
    assert np.array_equal(back.states.table_LPRJ, model.states.table_LPRJ)
    assert (about["gmm"], about["feats"]) == ({"passes": 3}, plain(CONFIG.feats))
    for name in ("state_G", "weight_G", "mean_GD", "variance_GD", "loop_S"):
        assert np.array_equal(getattr(back.gmm, name), getattr(model.gmm, name))


def test_a_flipped_bit_in_a_model_is_noticed(rng, tmp_path):
    saved(rng, tmp_path / "model.json")
    content = bytearray((tmp_path / "gmm.safetensors").read_bytes())
    content[-3] ^= 4
    (tmp_path / "gmm.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"gmm\.safetensors"):
        load_gmm(tmp_path / "model.json")
