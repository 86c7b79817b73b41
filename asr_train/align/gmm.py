"""Diagonal Gaussian mixtures: densities, re-estimation from counts, splitting, and their files.

    x_TD --gaussians--> scores_TS        aligned frames --count--> Counts --estimate, split--> Gmm

Knows nothing of utterances; align.train decides which frames belong to which state.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

from asr_train.align.front import Front
from asr_train.checks import check_shape
from asr_train.files import check_part, part, read_json, replacing, write_json
from asr_train.lang.states import States
from asr_train.schema import FeatsSettings, FmllrSettings, FrontSettings, build, plain
from asr_train.sums import Summed

if TYPE_CHECKING:
    from scipy.sparse import csr_array  # slow to import: only where it is used

PERTURB = 0.1  # standard deviations by which the two halves of a split Gaussian are moved
SEED = 1


@dataclass(frozen=True)
class Gmm:
    """Diagonal Gaussians, each of one state; those of a state are adjacent.

    Attributes:
        state_G: int64 [G], non-decreasing; every state has at least one.
        weight_G: float64 [G], summing to 1 in each state.
        mean_GD, variance_GD: float64 [G, D].
        loop_S: float64 [S], self-loop probability of each state.
    """

    state_G: np.ndarray
    weight_G: np.ndarray
    mean_GD: np.ndarray
    variance_GD: np.ndarray
    loop_S: np.ndarray

    @property
    def num_states(self) -> int:
        return len(self.loop_S)

    @cached_property
    def first_S(self) -> np.ndarray:
        """First Gaussian of each state, and the number of Gaussians: int64 [S + 1]."""
        return np.searchsorted(self.state_G, np.arange(self.num_states + 1))

    @cached_property
    def terms(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Terms of the log densities: constant [G], linear and square terms [G, D], float32."""
        precision_GD = 1 / self.variance_GD
        constant_G = np.log(self.weight_G) - 0.5 * (
            np.log(2 * np.pi * self.variance_GD) + self.mean_GD**2 * precision_GD
        ).sum(1)
        terms = constant_G, self.mean_GD * precision_GD, -0.5 * precision_GD
        return terms[0].astype(np.float32), terms[1].astype(np.float32), terms[2].astype(np.float32)

    def gaussians(self, x_TD: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        """Return log(weight * density) of Gaussians, all or some `rows`: float32 [T, G]."""
        constant_G, linear_GD, square_GD = (term[rows] for term in self.terms)
        return x_TD @ linear_GD.T + (x_TD * x_TD) @ square_GD.T + constant_G

    def scores(self, x_TD: np.ndarray, states: np.ndarray | None = None) -> np.ndarray:
        """Return log-likelihoods of states, all or some, in nats: float32 [T, S]."""
        check_shape("frames for the Gaussians", x_TD, None, self.mean_GD.shape[1])
        if states is None:
            states = np.arange(self.num_states)
        begin_S, end_S = self.first_S[states], self.first_S[states + 1]
        size_S = end_S - begin_S
        first_S = np.cumsum(size_S) - size_S
        rows_G = np.arange(size_S.sum()) + np.repeat(begin_S - first_S, size_S)
        logp_TG = self.gaussians(x_TD, rows_G)
        top_TS = np.maximum.reduceat(logp_TG, first_S, axis=1)
        np.subtract(logp_TG, np.repeat(top_TS, size_S, axis=1), out=logp_TG)
        np.exp(logp_TG, out=logp_TG)
        return top_TS + np.log(np.add.reduceat(logp_TG, first_S, axis=1))

    def shares(self, x_ND: np.ndarray, state_N: np.ndarray) -> "csr_array":
        """Return the share of each Gaussian of its state in each frame: [N, G]; rows sum to 1."""
        from scipy.sparse import csr_array

        none = np.zeros(0, np.int64)
        parts = [(none, none, np.zeros(0))]
        for frames_n, g, share_nG in _by_state(self, x_ND, state_N):
            gaussians = np.tile(np.arange(g.start, g.stop), len(frames_n))
            parts.append((np.repeat(frames_n, g.stop - g.start), gaussians, share_nG.reshape(-1)))
        rows, columns, values = map(np.concatenate, zip(*parts, strict=True))
        return csr_array((values, (rows, columns)), shape=(len(x_ND), len(self.state_G)))


@dataclass(frozen=True, slots=True)
class Counts(Summed):
    """Sufficient statistics of some frames; they add up."""

    occupancy_G: np.ndarray
    sum_GD: np.ndarray
    squares_GD: np.ndarray
    frames_S: np.ndarray
    visits_S: np.ndarray  # times a state was entered


def count(
    gmm: Gmm,
    x_ND: np.ndarray,
    state_N: np.ndarray,
    visits_S: np.ndarray,
    summed_ND: np.ndarray | None = None,
) -> Counts:
    """Sum frames, shared among the Gaussians of each frame's state.

    Args:
        x_ND: float32 [N, D], frames of one or more utterances.
        state_N: int [N], the state of each frame.
        visits_S: float [S], times each state was entered.
        summed_ND: the same frames in another form (unadapted), which are summed instead.
    """
    summed_ND = x_ND if summed_ND is None else summed_ND
    occupancy_G = np.zeros(len(gmm.state_G))
    sum_GD, squares_GD = np.zeros_like(gmm.mean_GD), np.zeros_like(gmm.mean_GD)
    for frames_n, g, share_nG in _by_state(gmm, x_ND, state_N):
        x_nD = summed_ND[frames_n].astype(np.float64)
        occupancy_G[g] = share_nG.sum(0)
        sum_GD[g] = share_nG.T @ x_nD
        squares_GD[g] = share_nG.T @ (x_nD * x_nD)
    frames_S = np.bincount(state_N, minlength=gmm.num_states).astype(np.float64)
    return Counts(occupancy_G, sum_GD, squares_GD, frames_S, visits_S.copy())


def _by_state(
    gmm: Gmm, x_ND: np.ndarray, state_N: np.ndarray
) -> Iterator[tuple[np.ndarray, slice, np.ndarray]]:
    """Yield per state its frames, its Gaussians, and their shares of each frame, float64 [n, G]."""
    order_N = np.argsort(state_N, kind="stable")
    bounds_S = np.searchsorted(state_N[order_N], np.arange(gmm.num_states + 1))
    for s in np.flatnonzero(np.diff(bounds_S)):
        frames_n = order_N[bounds_S[s] : bounds_S[s + 1]]
        g = slice(gmm.first_S[s], gmm.first_S[s + 1])
        logp_nG = gmm.gaussians(x_ND[frames_n], g).astype(np.float64)
        share_nG = np.exp(logp_nG - logp_nG.max(1, keepdims=True))
        yield frames_n, g, share_nG / share_nG.sum(1, keepdims=True)


def estimate(gmm: Gmm, counts: Counts, floor_D: np.ndarray, min_count: float) -> Gmm:
    """Estimate by maximum likelihood from the sums.

    A Gaussian with fewer than `min_count` frames is removed, unless it is its state's best one;
    a state without frames keeps its parameters.
    """
    order = np.lexsort((-counts.occupancy_G, gmm.state_G))
    unseen_G = (counts.frames_S == 0)[gmm.state_G]
    alive_G = (counts.occupancy_G >= min_count) | unseen_G
    alive_G[order[gmm.first_S[:-1]]] = True
    occupancy_G1 = np.maximum(counts.occupancy_G, 1e-10)[:, None]
    mean_GD = counts.sum_GD / occupancy_G1
    variance_GD = np.maximum(counts.squares_GD / occupancy_G1 - mean_GD**2, floor_D)
    poor_G = counts.occupancy_G < 2  # too few frames: keep the parameters
    mean_GD[poor_G], variance_GD[poor_G] = gmm.mean_GD[poor_G], gmm.variance_GD[poor_G]
    weight_G = np.where(unseen_G, gmm.weight_G, np.maximum(counts.occupancy_G, 1e-3) * alive_G)
    total_S = np.bincount(gmm.state_G, weight_G, gmm.num_states)
    loop_S = (counts.frames_S - counts.visits_S + 1) / (counts.frames_S + 2)
    return Gmm(
        gmm.state_G[alive_G],
        (weight_G / total_S[gmm.state_G])[alive_G],
        mean_GD[alive_G],
        variance_GD[alive_G],
        np.where(counts.frames_S == 0, gmm.loop_S, loop_S),
    )


def split(gmm: Gmm, frames_S: np.ndarray, target: int, power: float, min_count: float) -> Gmm:
    """Halve the heaviest Gaussians of the states that deserve more, up to `target` in all.

    A state's share grows with its frames to `power`; each Gaussian keeps at least `min_count`.
    """
    have_S = np.bincount(gmm.state_G, minlength=gmm.num_states)
    want_S = np.ones(gmm.num_states, np.int64)
    heap = [(-(float(f) ** power), s) for s, f in enumerate(frames_S) if f >= 2 * min_count]
    heapq.heapify(heap)
    for _ in range(target - int(want_S.sum())):
        if not heap:
            break
        _, s = heapq.heappop(heap)
        want_S[s] += 1
        if frames_S[s] >= (want_S[s] + 1) * min_count:
            heapq.heappush(heap, (-(float(frames_S[s]) ** power) / want_S[s], s))
    rng = np.random.Generator(np.random.Philox(SEED))
    parts = []
    for s in range(gmm.num_states):
        rows = slice(gmm.first_S[s], gmm.first_S[s + 1])
        own = gmm.weight_G[rows], gmm.mean_GD[rows], gmm.variance_GD[rows]
        weights, means, variances = map(list, own)
        for _ in range(int(want_S[s]) - int(have_S[s])):
            g = int(np.argmax(weights))
            weights[g] /= 2
            step_D = PERTURB * rng.standard_normal(gmm.mean_GD.shape[1]) * np.sqrt(variances[g])
            weights.append(weights[g])
            means.append(means[g] + step_D)
            means[g] = means[g] - step_D
            variances.append(variances[g])
        parts.append((np.full(len(weights), s), weights, means, variances))
    state_G, weight_G, mean_GD, variance_GD = map(np.concatenate, zip(*parts, strict=True))
    return Gmm(state_G, weight_G, mean_GD, variance_GD, gmm.loop_S)


# --- the model as files -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpeakerAdaptive:
    """What a system of adapted frames needs in addition.

    Attributes:
        unadapted: the same Gaussians, in the same order, estimated on unadapted frames.
        settings: how a speaker's transform is estimated.
    """

    unadapted: Gmm
    settings: FmllrSettings


@dataclass(frozen=True, slots=True)
class Mixtures:
    """A trained system: front end, mixtures, and their states.

    Attributes:
        adaptive: set if the mixtures are of speaker-adapted frames.
    """

    front: Front
    gmm: Gmm
    states: States
    adaptive: SpeakerAdaptive | None = None


def save_gmm(path: Path, model: Mixtures, feats: FeatsSettings, about: dict[str, Any]) -> None:
    """Write gmm.safetensors and then `path`, the model.json that names it.

    Args:
        about: further entries of model.json.
    """
    tensors = path.parent / "gmm.safetensors"
    gmm, transform_dD, adaptive = model.gmm, model.front.transform_dD, model.adaptive
    arrays = _arrays(gmm)
    if transform_dD is not None:
        arrays["transform_dD"] = np.ascontiguousarray(transform_dD)
    if adaptive is not None:
        arrays |= {f"unadapted.{k}": array for k, array in _arrays(adaptive.unadapted).items()}
    with replacing(tensors) as scratch:
        save_file(arrays, scratch)
    write_json(
        path,
        {
            "kind": "gmm",
            "run": path.parent.name,
            "parts": [part(tensors, path.parent)],
            "front": plain(model.front.settings),
            "feats": plain(feats),
            **model.states.about(),
            "fmllr": None if adaptive is None else plain(adaptive.settings),
            **about,
        },
    )


def _arrays(gmm: Gmm) -> dict[str, np.ndarray]:
    return {f.name: getattr(gmm, f.name) for f in fields(gmm)}


def load_gmm(path: Path) -> Mixtures:
    """Load the system that a model.json names.

    Raises:
        ValueError: if a file is damaged, or the states' hash differs from the recorded one.
        KeyError: for a missing entry of model.json.
    """
    about = read_json(path)
    tensors = check_part(path.parent, about["parts"][0], remake=path)
    arrays = load_file(tensors)
    gmm, transform_dD = _gmm(arrays, ""), arrays.get("transform_dD")
    adaptive = None
    if about.get("fmllr") is not None:
        settings = build(FmllrSettings, about["fmllr"], f"{path}: fmllr")
        adaptive = SpeakerAdaptive(_gmm(arrays, "unadapted."), settings)
    front = Front(build(FrontSettings, about["front"], f"{path}: front"), transform_dD)
    return Mixtures(front, gmm, States.stored(about, path), adaptive)


def _gmm(arrays: dict[str, np.ndarray], prefix: str) -> Gmm:
    return Gmm(**{f.name: arrays[prefix + f.name] for f in fields(Gmm)})
