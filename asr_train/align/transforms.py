"""Aligned frames -> **linear transforms** of features: LDA, MLLT, fMLLR.

    Classes (frames, class of each)      --lda-->   matrix_ED, fewer and better dimensions
    FullSums (frames, Gaussian shares)   --mllt-->  matrix_DD, in which covariances are diagonal
    AffineSums (a speaker's frames)      --fmllr--> matrix_DE, towards the model

`of` makes sums of a chunk of frames, and sums add up. Shares (gamma_NG) are the probabilities of
the Gaussians in each frame, dense or scipy.sparse as from `Gmm.shares`. Knows nothing of how
utterances are read, aligned or distributed over processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_train.sums import Summed

BLOCK = 2048  # frames whose products of dimensions are in memory at once
SINGULAR = 1e-12  # smallest over largest eigenvalue that float64 can invert
SWEEPS = 200  # over all rows of a matrix, at most
SETTLED = 1e-7  # gain in nats per frame below which sweeps end


def sums_by(label_N: np.ndarray, x_NM: np.ndarray, labels: int) -> np.ndarray:
    """Sum rows of equal label, in their order: float64 [labels, M]."""
    order_N = np.argsort(label_N, kind="stable")
    seen, first = np.unique(label_N[order_N], return_index=True)
    sum_LM = np.zeros((labels, x_NM.shape[1]))
    if len(seen):
        sum_LM[seen] = np.add.reduceat(x_NM[order_N], first)
    return sum_LM


# --- LDA ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Classes(Summed):
    """Sums of frames by class, for `lda`.

    Attributes:
        count_C: float64 [C], frames.
        sum_CD: float64 [C, D].
        square_DD: float64 [D, D], sum of x x' over all frames, whatever their class.
    """

    count_C: np.ndarray
    sum_CD: np.ndarray
    square_DD: np.ndarray

    @staticmethod
    def of(x_ND: np.ndarray, class_N: np.ndarray, num_classes: int) -> "Classes":
        """Sum frames (usually spliced), with the class (tied state) of each."""
        x_ND = x_ND.astype(np.float64)
        count_C = np.bincount(class_N, minlength=num_classes).astype(np.float64)
        return Classes(count_C, sums_by(class_N, x_ND, num_classes), x_ND.T @ x_ND)

    def covariances(self) -> tuple[np.ndarray, np.ndarray]:
        """Return covariances within and between classes: float64 [D, D]; they sum to the total."""
        frames = self.count_C.sum()
        mean_D = self.sum_CD.sum(0) / frames
        seen = self.count_C > 0
        weighted_CD = self.sum_CD[seen] / np.sqrt(self.count_C[seen])[:, None]
        by_class_DD = weighted_CD.T @ weighted_CD / frames
        return (self.square_DD / frames - by_class_DD, by_class_DD - np.outer(mean_D, mean_D))


def lda(classes: Classes, dims: int) -> np.ndarray:
    """Return the directions that best separate the classes (Haeb-Umbach and Ney, 1992).

    After `x @ matrix_ED.T` the covariance within classes is the identity, and that between them is
    diagonal and decreasing, which suits diagonal Gaussians. Each row's largest element is positive,
    which makes the result unique.

    Args:
        dims: E, the number of directions; at most C - 1 are informative.
    Returns:
        matrix_ED, float64.
    Raises:
        ValueError: for too few classes, more directions than dimensions, or linearly dependent
            dimensions within classes.
    """
    if not 1 <= dims <= len(classes.square_DD):
        raise ValueError(
            f"LDA to {dims} dimensions from {len(classes.square_DD)}; it cannot add dimensions"
        )
    if (seen := int((classes.count_C > 0).sum())) < 2:
        raise ValueError(f"LDA needs frames of at least 2 classes, but {seen} have any")
    within_DD, between_DD = classes.covariances()
    values_D, vectors_DD = np.linalg.eigh(within_DD)
    if not values_D[0] > SINGULAR * values_D[-1]:
        raise ValueError(
            f"LDA: the covariance of {len(values_D)} dimensions within classes is singular "
            f"(eigenvalues {values_D[0]:.3g} to {values_D[-1]:.3g}); are some copies or sums of "
            "others, as deltas of spliced frames are, or are there fewer frames than dimensions?"
        )
    whiten_DD = vectors_DD.T / np.sqrt(values_D)[:, None]
    _, turn_DD = np.linalg.eigh(whiten_DD @ between_DD @ whiten_DD.T)
    matrix_ED = turn_DD.T[::-1][:dims] @ whiten_DD
    largest_E = np.abs(matrix_ED).argmax(1)
    return matrix_ED * np.sign(matrix_ED[np.arange(dims), largest_E])[:, None]


# --- sums of products ---------------------------------------------------------------------------


def _moments(weight_ND: np.ndarray, x_NE: np.ndarray) -> np.ndarray:
    """Sum weight_d x x' over frames, for each d: float64 [D, E, E].

    One half of each symmetric matrix is computed, by one matrix product for all d.
    """
    dims, width = weight_ND.shape[1], x_NE.shape[1]
    i, j = np.triu_indices(width)
    half_DH = np.zeros((dims, len(i)))
    for start in range(0, len(x_NE), BLOCK):
        x_nE = x_NE[start : start + BLOCK]
        half_DH += weight_ND[start : start + BLOCK].T @ (x_nE[:, i] * x_nE[:, j])
    full_DEE = np.empty((dims, width, width))
    full_DEE[:, i, j] = half_DH
    full_DEE[:, j, i] = half_DH
    return full_DEE


def _inverses(name: str, moment_DEE: np.ndarray) -> np.ndarray:
    """Return the inverse of each d's matrix; raise ValueError if one is singular."""
    values_DE, vectors_DEE = np.linalg.eigh(moment_DEE)
    poor = np.flatnonzero(~(values_DE[:, 0] > SINGULAR * values_DE[:, -1]))
    if len(poor):
        low, high = values_DE[poor[0], [0, -1]]
        raise ValueError(
            f"{name}: the statistics of dimension {poor[0]} are singular (eigenvalues {low:.3g} "
            f"to {high:.3g}); they need more frames, or frames that differ more"
        )
    return (vectors_DEE / values_DE[:, None, :]) @ vectors_DEE.transpose(0, 2, 1)


# --- MLLT ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FullSums(Summed):
    """Statistics of the Gaussians' full covariances, as `mllt` needs them.

    Attributes:
        count_G: float64 [G], frames of each Gaussian.
        sum_GD: float64 [G, D].
        moment_DDD: float64 [D, D, D], for each d the sum over frames and Gaussians of
            gamma / variance_gd * x x'.
    """

    count_G: np.ndarray
    sum_GD: np.ndarray
    moment_DDD: np.ndarray

    @staticmethod
    def of(x_ND: np.ndarray, gamma_NG: Any, variance_GD: np.ndarray) -> "FullSums":
        """Sum frames; all chunks must use the same Gaussians."""
        x_ND = x_ND.astype(np.float64)
        return FullSums(
            np.asarray(gamma_NG.sum(0), np.float64).reshape(-1),
            gamma_NG.T @ x_ND,
            _moments(gamma_NG @ (1 / variance_GD), x_ND),
        )

    def scatter(self, mean_GD: np.ndarray, variance_GD: np.ndarray) -> np.ndarray:
        """Return, for each d, the sum of gamma / variance_gd * (x - mean)(x - mean)': [D, D, D].

        The product is expanded, so that no Gaussian's covariance is stored.
        """
        scatter_DDD = self.moment_DDD.copy()
        half_GD = self.sum_GD - 0.5 * self.count_G[:, None] * mean_GD
        for d, precision_G in enumerate((1 / variance_GD).T):
            cross_DD = (half_GD * precision_G[:, None]).T @ mean_GD
            scatter_DDD[d] -= cross_DD + cross_DD.T
        return scatter_DDD


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform, and its gain.

    Attributes:
        matrix: float64 [D, D], or [D, D + 1] with a last column that is added to all frames.
        frames: number of frames that it was estimated from.
        gain_S: float64 [S], nats per frame over the start (the identity by default) after each
            sweep; non-decreasing.
        kept: the reason if it is the identity.
    """

    matrix: np.ndarray
    frames: float
    gain_S: np.ndarray
    kept: str | None = None

    @property
    def gain_per_frame(self) -> float:
        """Gain in nats, including the log-determinant that makes likelihoods comparable."""
        return float(self.gain_S[-1]) if len(self.gain_S) else 0.0


def mllt(sums: FullSums, mean_GD: np.ndarray, variance_GD: np.ndarray) -> Transform:
    """Return the square transform that best fits diagonal covariances (Gales, 1999).

    Maximises, over M, the likelihood of frames M x under means M mean and fixed variances:
    frames * log|det M| - 1/2 sum_d m_d G_d m_d', row by row; also called a global semi-tied
    covariance. Afterwards means are `mean_GD @ matrix.T`, and variances are re-estimated.

    Args:
        mean_GD, variance_GD: of the Gaussians that `sums` were made with.
    Raises:
        ValueError: if there are too few frames for full covariances.
    """
    scatter_DDD, frames = sums.scatter(mean_GD, variance_GD), float(sums.count_G.sum())
    inverse_DDD = _inverses("MLLT", scatter_DDD)

    def best_row(d: int, cofactor_D: np.ndarray) -> np.ndarray:
        row_D = cofactor_D @ inverse_DDD[d]
        return row_D * np.sqrt(frames / (row_D @ cofactor_D))

    matrix_DD = np.eye(len(scatter_DDD))
    quadratic = AffineSums(frames, np.zeros_like(matrix_DD), scatter_DDD)
    return Transform(matrix_DD, frames, _sweeps(matrix_DD, quadratic, best_row))


# --- fMLLR --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AffineSums(Summed):
    """Sums of one speaker's frames for `fmllr`; E = D + 1, the last a constant 1.

    Attributes:
        count: frames, weighted by their shares.
        linear_DE: float64 [D, E], for each d the sum of gamma * mean_gd / variance_gd * [x, 1].
        moment_DEE: float64 [D, E, E], that of gamma / variance_gd * [x, 1] [x, 1]'.
    """

    count: float
    linear_DE: np.ndarray
    moment_DEE: np.ndarray

    @staticmethod
    def of(
        x_ND: np.ndarray, gamma_NG: Any, mean_GD: np.ndarray, variance_GD: np.ndarray
    ) -> "AffineSums":
        """Sum untransformed frames, even if the shares came from transformed ones.

        A frame whose shares sum to less than 1, for example silence, has less weight.
        """
        x_NE = np.column_stack([x_ND.astype(np.float64), np.ones(len(x_ND))])
        linear_ND = gamma_NG @ (mean_GD / variance_GD)
        return AffineSums(
            float(gamma_NG.sum()), linear_ND.T @ x_NE, _moments(gamma_NG @ (1 / variance_GD), x_NE)
        )


def fmllr(sums: AffineSums, min_count: float, start_DE: np.ndarray | None = None) -> Transform:
    """Return the affine transform of a speaker's frames with maximum likelihood (Gales, 1998).

    Constrained MLLR: maximises, over W = [A b], the likelihood of A x + b with log|det A| added:
    count * log|det A| + sum_d (w_d k_d' - 1/2 w_d G_d w_d'), row by row.

    Args:
        min_count: frames below which the speaker keeps the identity; `kept` has the reason.
        start_DE: an earlier transform to start from; None: the identity.
    Returns:
        W, for `adapted`. Also the identity if the statistics are singular.
    """
    dims = len(sums.linear_DE)
    identity_DE = np.eye(dims, dims + 1)
    if sums.count < min_count:
        kept = f"{sums.count:.0f} frames, fewer than {min_count:.0f}"
        return Transform(identity_DE, sums.count, np.zeros(0), kept)
    try:
        inverse_DEE = _inverses("fMLLR", sums.moment_DEE)
    except ValueError as error:
        return Transform(identity_DE, sums.count, np.zeros(0), str(error))

    def best_row(d: int, cofactor_D: np.ndarray) -> np.ndarray:
        """Return (alpha p + k) G^-1, with alpha from a quadratic equation."""
        cofactor_E, linear_E, count = np.append(cofactor_D, 0.0), sums.linear_DE[d], sums.count
        across_E = cofactor_E @ inverse_DEE[d]
        a, b = float(across_E @ cofactor_E), float(across_E @ linear_E)
        root = np.sqrt(b * b + 4 * a * count)
        alphas = ((-b + root) / (2 * a), (-b - root) / (2 * a))
        best = max(alphas, key=lambda alpha: count * np.log(abs(alpha * a + b)) - alpha**2 * a / 2)
        return (best * cofactor_E + linear_E) @ inverse_DEE[d]

    matrix_DE = (identity_DE if start_DE is None else start_DE).copy()
    return Transform(matrix_DE, sums.count, _sweeps(matrix_DE, sums, best_row))


def adapted(x_TD: np.ndarray, matrix_DE: np.ndarray | None) -> np.ndarray:
    """Return A x + b for every frame, in the type of x; without a matrix, x."""
    if matrix_DE is None:
        return x_TD
    return (x_TD @ matrix_DE[:, :-1].T + matrix_DE[:, -1]).astype(x_TD.dtype)


# --- row by row ---------------------------------------------------------------------------------

BestRow = Callable[[int, np.ndarray], np.ndarray]


def _sweeps(matrix_DE: np.ndarray, sums: AffineSums, best_row: BestRow) -> np.ndarray:
    """Maximise count * log|det A| + sum_d (w_d k_d' - 1/2 w_d G_d w_d') over W = [A ...].

    Args:
        matrix_DE: W, changed in place.
        sums: count, k and G.
        best_row: d, and the cofactors of row d of A, up to a factor -> the best row d of W with all
            others fixed.
    Returns:
        The gain per frame after each sweep over the rows.
    """
    dims = len(matrix_DE)
    square_DD = matrix_DE[:, :dims]

    def objective() -> float:
        logdet = float(np.linalg.slogdet(square_DD)[1])
        fit = float(((matrix_DE[:, None] @ sums.moment_DEE)[:, 0] * matrix_DE).sum())
        return sums.count * logdet + float((matrix_DE * sums.linear_DE).sum()) - 0.5 * fit

    before, gains = objective(), [0.0]
    for _ in range(SWEEPS):
        cofactor_DD = np.linalg.inv(square_DD)
        for d in range(dims):
            row_E = best_row(d, cofactor_DD[:, d].copy())
            change_D = (row_E[:dims] - square_DD[d]) @ cofactor_DD
            matrix_DE[d] = row_E
            # Sherman and Morrison; rounding adds up, so each sweep inverts anew
            cofactor_DD -= np.outer(cofactor_DD[:, d], change_D / (1 + change_D[d]))
        gains.append((objective() - before) / sums.count)
        if gains[-1] - gains[-2] < SETTLED:
            break
    return np.array(gains[1:])
