"""Transforms have their textbook properties; objectives equal those computed from the frames."""

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.stats import norm

from asr_train.align.gmm import Gmm
from asr_train.align.transforms import (
    AffineSums,
    Classes,
    FullSums,
    adapted,
    fmllr,
    lda,
    mllt,
)

DIMS = 5


@pytest.fixture(params=range(3))
def rng(request):
    return np.random.default_rng(request.param)


def some_matrix(rng, dims=DIMS):
    return np.eye(dims) + 0.4 * rng.standard_normal((dims, dims))


# --- LDA ----------------------------------------------------------------------------------------


def some_classes(rng, classes=6, frames=3000):
    class_N = rng.integers(0, classes, frames)
    mean_CD = 2 * rng.standard_normal((classes, DIMS))
    x_ND = rng.standard_normal((frames, DIMS)) @ some_matrix(rng).T + mean_CD[class_N]
    return x_ND, class_N


def test_covariance_within_classes_becomes_the_unit_and_between_diagonal(rng):
    x_ND, class_N = some_classes(rng)
    matrix_ED = lda(Classes.of(x_ND, class_N, 6), 4)
    y_NE = x_ND @ matrix_ED.T
    mean_CE = np.stack([y_NE[class_N == c].mean(0) for c in range(6)])
    inner_NE = y_NE - mean_CE[class_N]
    np.testing.assert_allclose(inner_NE.T @ inner_NE / len(y_NE), np.eye(4), atol=1e-9)
    between_EE = np.cov(mean_CE.T, bias=True, fweights=np.bincount(class_N))
    np.testing.assert_allclose(between_EE, np.diag(np.diag(between_EE)), atol=1e-9)
    assert (np.diff(np.diag(between_EE)) < 0).all()


def test_two_classes_give_fishers_direction(rng):
    x_ND, class_N = some_classes(rng, classes=2)
    one, two = x_ND[class_N == 0], x_ND[class_N == 1]
    within = np.cov(one.T, bias=True) * len(one) + np.cov(two.T, bias=True) * len(two)
    fisher = np.linalg.solve(within, one.mean(0) - two.mean(0))
    (found,) = lda(Classes.of(x_ND, class_N, 2), 1)
    cosine = found @ fisher / np.linalg.norm(found) / np.linalg.norm(fisher)
    assert abs(cosine) == pytest.approx(1, abs=1e-9)


def test_directions_are_the_generalised_eigenvectors(rng):
    x_ND, class_N = some_classes(rng)
    classes = Classes.of(x_ND, class_N, 6)
    within_DD, between_DD = classes.covariances()
    np.testing.assert_allclose(within_DD + between_DD, np.cov(x_ND.T, bias=True), atol=1e-9)
    _, vectors = eigh(between_DD, within_DD)
    found = lda(classes, DIMS)
    for row, vector in zip(found, vectors.T[::-1], strict=True):
        np.testing.assert_allclose(row, vector * np.sign(row @ vector), atol=1e-7)
    assert (found[np.arange(DIMS), np.abs(found).argmax(1)] > 0).all()


def test_turning_the_input_does_not_change_what_comes_out(rng):
    x_ND, class_N = some_classes(rng)
    turn_DD = some_matrix(rng)
    straight = x_ND @ lda(Classes.of(x_ND, class_N, 6), 3).T
    turned_ND = x_ND @ turn_DD.T
    turned = turned_ND @ lda(Classes.of(turned_ND, class_N, 6), 3).T
    signs = np.sign((straight * turned).sum(0))
    np.testing.assert_allclose(straight, turned * signs, atol=1e-6)


def test_classes_of_chunks_add_up_and_an_empty_class_does_no_harm(rng):
    x_ND, class_N = some_classes(rng)
    x_ND = x_ND.astype(np.float32)
    class_N[class_N == 3] = 2
    whole = Classes.of(x_ND, class_N, 9)
    parts = [Classes.of(x_ND[i::3], class_N[i::3], 9) for i in range(3)]
    np.testing.assert_allclose(lda(whole, 3), lda(parts[0] + parts[1] + parts[2], 3), atol=1e-7)
    np.testing.assert_allclose(lda(whole, 3), lda(Classes.of(x_ND, class_N, 6), 3), atol=1e-9)


def test_what_lda_cannot_do_is_refused(rng):
    x_ND, class_N = some_classes(rng)
    with pytest.raises(ValueError, match="LDA to 6 dimensions from 5"):
        lda(Classes.of(x_ND, class_N, 6), 6)
    with pytest.raises(ValueError, match="at least 2 classes, but 1"):
        lda(Classes.of(x_ND, class_N * 0, 6), 2)
    doubled_ND = np.concatenate([x_ND, x_ND[:, :1] - x_ND[:, 1:2]], axis=1)
    with pytest.raises(ValueError, match="singular"):
        lda(Classes.of(doubled_ND, class_N, 6), 2)


# --- shares, and the frames themselves ----------------------------------------------------------


def some_gaussians(rng, states=4, each=3):
    """Return (state_G, weight_G, mean_GD, variance_GD)."""
    return (
        np.repeat(np.arange(states), each),
        rng.dirichlet(np.ones(each), states).reshape(-1),
        2 * rng.standard_normal((states * each, DIMS)),
        rng.uniform(0.2, 3, (states * each, DIMS)),
    )


def gaussian_shares(x_ND, state_N, *gaussians):
    """Return each frame's posteriors over the Gaussians of its state."""
    return Gmm(*gaussians, np.full(4, 0.5)).shares(x_ND, state_N)


def drawn(rng, gaussians, frames):
    """Draw frames from the Gaussians; return them and the state of each."""
    state_G, weight_G, mean_GD, variance_GD = gaussians
    g = rng.choice(len(weight_G), frames, p=weight_G / weight_G.sum())
    noise = rng.standard_normal((frames, DIMS))
    return mean_GD[g] + noise * np.sqrt(variance_GD[g]), state_G[g]


def fit(x_ND, gamma_NG, mean_GD, variance_GD) -> float:
    """Return the expected log-likelihood of the frames: the oracle of all objectives."""
    total = 0.0
    for g, (mean_D, variance_D) in enumerate(zip(mean_GD, variance_GD, strict=True)):
        total += gamma_NG[:, g] @ norm.logpdf(x_ND, mean_D, np.sqrt(variance_D)).sum(1)
    return float(total)


def test_shares_are_posteriors_within_the_frames_own_state(rng):
    gaussians = some_gaussians(rng)
    state_G, weight_G, mean_GD, variance_GD = gaussians
    x_ND, state_N = drawn(rng, gaussians, 50)
    shares = gaussian_shares(x_ND, state_N, *gaussians).toarray()
    for n in range(50):
        density_G = weight_G * np.exp(norm.logpdf(x_ND[n], mean_GD, variance_GD**0.5).sum(1))
        density_G *= state_G == state_N[n]
        np.testing.assert_allclose(shares[n], density_G / density_G.sum(), atol=1e-4)


def test_no_frames_have_no_shares(rng):
    gaussians = some_gaussians(rng)
    shares = gaussian_shares(np.zeros((0, DIMS)), np.zeros(0, int), *gaussians)
    assert shares.shape == (0, 12)
    assert FullSums.of(np.zeros((0, DIMS)), shares, gaussians[3]).count_G.tolist() == [0] * 12


# --- MLLT ---------------------------------------------------------------------------------------


def test_mllt_gains_what_the_frames_gain(rng):
    """Chunked sums, sparse posteriors, blocks and cofactors, compared with plain densities."""
    gaussians = some_gaussians(rng)
    x_ND, state_N = drawn(rng, gaussians, 2500)
    x_ND = x_ND @ some_matrix(rng).T
    _, _, mean_GD, variance_GD = gaussians
    shares = gaussian_shares(x_ND, state_N, *gaussians)
    sums = FullSums.of(x_ND[:900], shares[:900], variance_GD)
    sums = sums + FullSums.of(x_ND[900:], shares[900:].toarray(), variance_GD)
    found = mllt(sums, mean_GD, variance_GD)
    gamma_NG = shares.toarray()
    after = fit(x_ND @ found.matrix.T, gamma_NG, mean_GD @ found.matrix.T, variance_GD)
    after += len(x_ND) * np.linalg.slogdet(found.matrix)[1]
    before = fit(x_ND, gamma_NG, mean_GD, variance_GD)
    assert found.frames == pytest.approx(2500)
    assert found.gain_per_frame == pytest.approx((after - before) / 2500, rel=1e-6)
    assert found.gain_per_frame > 0.1
    assert np.diff(found.gain_S, prepend=0).min() > -1e-10


def test_mllt_scatter_is_that_of_each_gaussians_full_covariance(rng):
    gaussians = some_gaussians(rng)
    x_ND, state_N = drawn(rng, gaussians, 300)
    gamma_NG = gaussian_shares(x_ND, state_N, *gaussians).toarray()
    _, _, mean_GD, variance_GD = gaussians
    wanted = np.zeros((DIMS, DIMS, DIMS))
    for g in range(12):
        inner_ND = x_ND - mean_GD[g]
        full_DD = (inner_ND * gamma_NG[:, g : g + 1]).T @ inner_ND
        wanted += full_DD / variance_GD[g][:, None, None]
    found = FullSums.of(x_ND, gamma_NG, variance_GD).scatter(mean_GD, variance_GD)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_no_row_of_mllts_answer_can_be_improved(rng):
    gaussians = some_gaussians(rng)
    x_ND, state_N = drawn(rng, gaussians, 1500)
    x_ND = x_ND @ some_matrix(rng).T
    gamma_NG = gaussian_shares(x_ND, state_N, *gaussians)
    _, _, mean_GD, variance_GD = gaussians
    sums = FullSums.of(x_ND, gamma_NG, variance_GD)
    found = mllt(sums, mean_GD, variance_GD)
    scatter_DDD = sums.scatter(mean_GD, variance_GD)
    # the gradient, frames * M^-T - [m_d G_d], relative to its terms
    slope_DD = np.stack([m_D @ g_DD for m_D, g_DD in zip(found.matrix, scatter_DDD, strict=True)])
    np.testing.assert_allclose(slope_DD / 1500, np.linalg.inv(found.matrix).T, atol=2e-3)


def test_mllt_finds_the_rotation_that_mixed_independent_dimensions(rng):
    """Alternating with means and variances, as in training; rows undo the mixing, up to order."""
    each, states = 4000, 6
    variance_SD = np.exp(1.5 * rng.standard_normal((states, DIMS)))
    mix_DD = np.linalg.qr(rng.standard_normal((DIMS, DIMS)))[0]
    state_N = np.repeat(np.arange(states), each)
    pure_ND = rng.standard_normal((states * each, DIMS)) * np.sqrt(variance_SD[state_N])
    x_ND = pure_ND @ mix_DD.T
    gamma_NG = np.eye(states)[state_N]
    total_DD, logliks = np.eye(DIMS), []
    for _ in range(25):
        y_ND = x_ND @ total_DD.T
        mean_GD = np.stack([y_ND[state_N == s].mean(0) for s in range(states)])
        variance_GD = np.stack([y_ND[state_N == s].var(0) for s in range(states)])
        found = mllt(FullSums.of(y_ND, gamma_NG, variance_GD), mean_GD, variance_GD)
        logdet = np.linalg.slogdet(total_DD)[1]
        logliks.append(fit(y_ND, gamma_NG, mean_GD, variance_GD) / len(x_ND) + logdet)
        total_DD = found.matrix @ total_DD
    assert np.diff(logliks).min() > -1e-9
    undone_DD = np.abs(total_DD @ mix_DD)
    undone_DD /= undone_DD.max(1, keepdims=True)
    assert sorted(undone_DD.argmax(1)) == list(range(DIMS))
    assert np.sort(undone_DD, axis=1)[:, -2].max() < 0.06


def test_mllt_leaves_independent_dimensions_as_they_are():
    gaussians = some_gaussians(np.random.default_rng(8))
    x_ND, state_N = drawn(np.random.default_rng(9), gaussians, 60_000)
    gamma_NG = gaussian_shares(x_ND, state_N, *gaussians)
    found = mllt(FullSums.of(x_ND, gamma_NG, gaussians[3]), *gaussians[2:])
    np.testing.assert_allclose(found.matrix, np.eye(DIMS), atol=0.03)
    assert 0 <= found.gain_per_frame < 1e-3


def test_mllt_refuses_fewer_frames_than_dimensions(rng):
    gaussians = some_gaussians(rng)
    x_ND, _ = drawn(rng, gaussians, 1)
    gamma_NG = np.eye(12)[:1]
    mean_GD = gaussians[2].copy()
    mean_GD[0] = x_ND[0] - 1
    with pytest.raises(ValueError, match="MLLT: the statistics of dimension 0 are singular"):
        mllt(FullSums.of(x_ND, gamma_NG, gaussians[3]), mean_GD, gaussians[3])


# --- fMLLR --------------------------------------------------------------------------------------


def test_fmllr_gains_what_the_frames_gain(rng):
    gaussians = some_gaussians(rng)
    _, _, mean_GD, variance_GD = gaussians
    x_ND, state_N = drawn(rng, gaussians, 2500)
    x_ND = (x_ND @ some_matrix(rng).T + rng.standard_normal(DIMS)).astype(np.float32)
    shares = gaussian_shares(x_ND, state_N, *gaussians)
    shares = shares * np.where(state_N == 0, 0.01, 1)[:, None]  # silence has a small weight
    halves = [slice(0, 1300), slice(1300, None)]
    sums = [AffineSums.of(x_ND[h], shares.tocsr()[h], mean_GD, variance_GD) for h in halves]
    found = fmllr(sums[0] + sums[1], min_count=100)
    gamma_NG = shares.toarray()
    count = gamma_NG.sum()
    y_ND = adapted(x_ND.astype(np.float64), found.matrix)
    after = fit(y_ND, gamma_NG, mean_GD, variance_GD)
    after += count * np.linalg.slogdet(found.matrix[:, :DIMS])[1]
    before = fit(x_ND, gamma_NG, mean_GD, variance_GD)
    assert found.frames == pytest.approx(count)
    assert found.gain_per_frame == pytest.approx((after - before) / count, rel=1e-6)
    assert found.gain_per_frame > 0.1
    assert np.diff(found.gain_S, prepend=0).min() > -1e-10
    assert found.kept is None


def test_fmllr_undoes_a_known_affine_change(rng):
    gaussians = some_gaussians(rng)
    _, _, mean_GD, variance_GD = gaussians
    x_ND, state_N = drawn(rng, gaussians, 30_000)
    gamma_NG = gaussian_shares(x_ND, state_N, *gaussians)
    change_DD, shift_D = some_matrix(rng), 2 * rng.standard_normal(DIMS)
    changed_ND = x_ND @ change_DD.T + shift_D
    found = fmllr(AffineSums.of(changed_ND, gamma_NG, mean_GD, variance_GD), 100)
    np.testing.assert_allclose(found.matrix[:, :DIMS] @ change_DD, np.eye(DIMS), atol=0.05)
    rest_ND = adapted(changed_ND, found.matrix) - x_ND
    assert np.sqrt((rest_ND**2).mean()) < 0.06


def test_fmllr_is_best_among_its_neighbours(rng):
    gaussians = some_gaussians(rng)
    _, _, mean_GD, variance_GD = gaussians
    x_ND, state_N = drawn(rng, gaussians, 400)
    x_ND = x_ND @ some_matrix(rng).T
    gamma_NG = gaussian_shares(x_ND, state_N, *gaussians).toarray()
    found = fmllr(AffineSums.of(x_ND, gamma_NG, mean_GD, variance_GD), 100)

    def likelihood(matrix_DE):
        logdet = np.linalg.slogdet(matrix_DE[:, :DIMS])[1]
        return fit(adapted(x_ND, matrix_DE), gamma_NG, mean_GD, variance_GD) + 400 * logdet

    best = likelihood(found.matrix)
    for _ in range(30):
        step_DE = rng.standard_normal(found.matrix.shape)
        assert likelihood(found.matrix + 0.02 * step_DE / np.linalg.norm(step_DE)) < best


def test_fmllr_of_few_or_equal_frames_is_the_identity_and_says_why(rng):
    gaussians = some_gaussians(rng)
    x_ND, state_N = drawn(rng, gaussians, 200)
    gamma_NG = gaussian_shares(x_ND, state_N, *gaussians)
    few = fmllr(AffineSums.of(x_ND, gamma_NG, *gaussians[2:]), min_count=201)
    assert few.kept == "200 frames, fewer than 201"
    equal = fmllr(AffineSums.of(x_ND[:1].repeat(200, 0), gamma_NG, *gaussians[2:]), 100)
    assert "singular" in equal.kept
    for found in (few, equal):
        assert found.gain_per_frame == 0
        np.testing.assert_array_equal(adapted(x_ND, found.matrix), x_ND)


def test_adapted_frames_keep_their_type():
    x_TD = np.ones((3, DIMS), np.float32)
    assert adapted(x_TD, np.eye(DIMS, DIMS + 1)).dtype == np.float32
