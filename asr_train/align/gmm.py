"""Re-estimation of monophone Gaussian mixtures from a flat start, until alignments stop moving.

    feats_TF --Front--> x_TD      Gmm: x_TD -> log-likelihoods scores_TS
    pass: align (Viterbi) -> sums of the aligned frames -> new Gaussians, more of them

Viterbi training with diagonal covariances, as in Kaldi's train_mono.sh. Results do not depend on
the number of worker processes: utterances form fixed chunks, whose sums are added in order.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from asr_train.align.flat import easiest, flat_start, usual_loops
from asr_train.align.viterbi import Aligned, Lost, align, unfit
from asr_train.checks import check_shape
from asr_train.data.features import Feats, Utterance, cepstra, with_deltas
from asr_train.files import check_part, part, read_json, replacing, write_json
from asr_train.jobs import parallel_map
from asr_train.lang.index import Lang
from asr_train.lang.states import States
from asr_train.schema import AliSettings, FeatsSettings, GmmSettings, build, plain

Outcome = Aligned | Lost
CHUNK = 50  # utterances summed together
ALWAYS_REALIGN = 10  # passes; later ones keep the alignment for a while
PERTURB = 0.1  # standard deviations by which the halves of a split Gaussian move apart
SEED = 1


@dataclass(frozen=True, slots=True)
class Front:
    """What the Gaussians see of an utterance."""

    settings: GmmSettings

    def __call__(self, feats: Feats) -> Callable[[Utterance], np.ndarray]:
        """A function utterance -> x_TD: normalised, cepstra, deltas; float32."""
        normalise = feats.normaliser(self.settings.norm)

        def read(utterance: Utterance) -> np.ndarray:
            x_TD = normalise(utterance, feats.load(utterance))
            if self.settings.num_ceps:
                x_TD = cepstra(x_TD, self.settings.num_ceps)
            return with_deltas(x_TD, self.settings.deltas)

        return read


@dataclass(frozen=True, slots=True)
class Gmm:
    """Diagonal Gaussians, each belonging to one state; those of a state are neighbours.

    Attributes:
        state_G: int64 [G], rising; every state has at least one.
        weight_G: float64 [G], summing to 1 in each state.
        mean_GD, variance_GD: float64 [G, D].
        loop_S: float64 [S], each state's probability to be followed by itself.
    """

    state_G: np.ndarray
    weight_G: np.ndarray
    mean_GD: np.ndarray
    variance_GD: np.ndarray
    loop_S: np.ndarray

    @property
    def num_states(self) -> int:
        return len(self.loop_S)

    def gaussians(self, x_TD: np.ndarray) -> np.ndarray:
        """log(weight * density) of every Gaussian: float32 [T, G]."""
        precision_GD = 1 / self.variance_GD
        constant_G = np.log(self.weight_G) - 0.5 * (
            np.log(2 * np.pi * self.variance_GD) + self.mean_GD**2 * precision_GD
        ).sum(1)
        linear_DG = (self.mean_GD * precision_GD).T.astype(np.float32)
        square_DG = (-0.5 * precision_GD).T.astype(np.float32)
        return x_TD @ linear_DG + (x_TD * x_TD) @ square_DG + constant_G.astype(np.float32)

    def scores(self, x_TD: np.ndarray) -> np.ndarray:
        """Log-likelihood of every state: float32 [T, S], nats."""
        check_shape("frames for the Gaussians", x_TD, None, self.mean_GD.shape[1])
        logp_TG = self.gaussians(x_TD)
        first_S = np.searchsorted(self.state_G, np.arange(self.num_states))
        top_TS = np.maximum.reduceat(logp_TG, first_S, axis=1)
        np.subtract(logp_TG, top_TS[:, self.state_G], out=logp_TG)
        np.exp(logp_TG, out=logp_TG)
        return top_TS + np.log(np.add.reduceat(logp_TG, first_S, axis=1))


@dataclass(frozen=True, slots=True)
class Counts:
    """Sufficient statistics of some frames; they add up."""

    occupancy_G: np.ndarray
    sum_GD: np.ndarray
    squares_GD: np.ndarray
    frames_S: np.ndarray
    visits_S: np.ndarray  # times a state was entered

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.occupancy_G + other.occupancy_G,
            self.sum_GD + other.sum_GD,
            self.squares_GD + other.squares_GD,
            self.frames_S + other.frames_S,
            self.visits_S + other.visits_S,
        )


def count(gmm: Gmm, x_ND: np.ndarray, state_N: np.ndarray, visits_S: np.ndarray) -> Counts:
    """Sums over frames, shared among the Gaussians of each frame's state.

    Args:
        x_ND: float32 [N, D], frames of one or more utterances.
        state_N: int [N], the state of each.
        visits_S: float [S], times each state was entered.
    """
    order = np.argsort(state_N, kind="stable")
    x_ND, state_N = x_ND[order], state_N[order]
    bounds_S = np.searchsorted(state_N, np.arange(gmm.num_states + 1))
    bounds_G = np.searchsorted(gmm.state_G, np.arange(gmm.num_states + 1))
    occupancy_G = np.zeros(len(gmm.state_G))
    sum_GD, squares_GD = np.zeros_like(gmm.mean_GD), np.zeros_like(gmm.mean_GD)
    for s in np.flatnonzero(np.diff(bounds_S)):
        x_nD = x_ND[bounds_S[s] : bounds_S[s + 1]]
        g = slice(bounds_G[s], bounds_G[s + 1])
        own = replace_rows(gmm, g)
        logp_nG = own.gaussians(x_nD).astype(np.float64)
        share_nG = np.exp(logp_nG - logp_nG.max(1, keepdims=True))
        share_nG /= share_nG.sum(1, keepdims=True)
        occupancy_G[g] = share_nG.sum(0)
        x_nD = x_nD.astype(np.float64)
        sum_GD[g] = share_nG.T @ x_nD
        squares_GD[g] = share_nG.T @ (x_nD * x_nD)
    return Counts(
        occupancy_G, sum_GD, squares_GD, np.diff(bounds_S).astype(np.float64), visits_S.copy()
    )


def replace_rows(gmm: Gmm, rows: slice | np.ndarray) -> Gmm:
    """Some of the Gaussians; the states stay as they are."""
    return replace(
        gmm,
        state_G=gmm.state_G[rows],
        weight_G=gmm.weight_G[rows],
        mean_GD=gmm.mean_GD[rows],
        variance_GD=gmm.variance_GD[rows],
    )


def estimate(gmm: Gmm, counts: Counts, floor_D: np.ndarray, min_count: float) -> Gmm:
    """Maximum likelihood from the sums.

    A Gaussian with fewer than `min_count` frames is removed, unless it is its state's best one;
    a state that saw no frame keeps its parameters.
    """
    best_S: dict[int, int] = {}
    for g, s in enumerate(gmm.state_G):
        if s not in best_S or counts.occupancy_G[g] > counts.occupancy_G[best_S[s]]:
            best_S[s] = g
    alive_G = counts.occupancy_G >= min_count
    alive_G[list(best_S.values())] = True
    occupancy_G1 = np.maximum(counts.occupancy_G, 1e-10)[:, None]
    mean_GD = counts.sum_GD / occupancy_G1
    variance_GD = np.maximum(counts.squares_GD / occupancy_G1 - mean_GD**2, floor_D)
    poor_G = counts.occupancy_G < 2  # nothing to learn from: as before
    mean_GD[poor_G], variance_GD[poor_G] = gmm.mean_GD[poor_G], gmm.variance_GD[poor_G]
    weight_G = np.maximum(counts.occupancy_G, 1e-3) * alive_G
    total_S = np.bincount(gmm.state_G, weight_G, gmm.num_states)
    new = Gmm(
        gmm.state_G,
        weight_G / total_S[gmm.state_G],
        mean_GD,
        variance_GD,
        (counts.frames_S - counts.visits_S + 1) / (counts.frames_S + 2),
    )
    return replace_rows(new, alive_G)


def split(gmm: Gmm, frames_S: np.ndarray, target: int, power: float, min_count: float) -> Gmm:
    """Halve the heaviest Gaussians of the states that deserve more, up to `target` in all.

    A state's number goes with its frames to `power`, as long as each has `min_count` frames.
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
        rows = np.flatnonzero(gmm.state_G == s)
        weights, means = list(gmm.weight_G[rows]), list(gmm.mean_GD[rows])
        variances = list(gmm.variance_GD[rows])
        for _ in range(int(want_S[s]) - int(have_S[s])):
            g = int(np.argmax(weights))
            weights[g] /= 2
            step_D = PERTURB * rng.standard_normal(gmm.mean_GD.shape[1]) * np.sqrt(variances[g])
            weights.append(weights[g])
            means.append(means[g] + step_D)
            means[g] = means[g] - step_D
            variances.append(variances[g])
        parts.append((np.full(len(weights), s), weights, means, variances))
    columns = [np.concatenate([np.asarray(p[i]) for p in parts]) for i in range(4)]
    return Gmm(columns[0], columns[1], columns[2], columns[3], gmm.loop_S)


# --- training -----------------------------------------------------------------------------------


def train(
    feats: Feats, lang: Lang, settings: AliSettings, log: Callable[[dict[str, Any]], None]
) -> tuple[Gmm, list[Outcome]]:
    """Train from a flat start.

    Args:
        log: gets a row a pass: first those of the flat start (`flat_pass`), then with
            loglik_per_frame, gaussians, lost, retried, moved (the share of frames whose state
            changed), seconds.
    Returns:
        The mixtures, and the last alignment of each utterance.
    Raises:
        ValueError: if more utterances are lost than the settings allow.
    """
    own = settings.gmm
    read = Front(own)(feats)
    utterances = feats.utterances
    gmm, floor_D = _flat(feats, read, lang, own, log)
    outcomes: list[Outcome | None] = [unfit(u.words.split(), u.frames, lang) for u in utterances]
    last_growth = max(1, round(own.passes * own.grown_by))
    for number in range(1, own.passes + 1):
        start = time.time()
        realign = number <= ALWAYS_REALIGN or (own.passes - number) % own.realign_every == 0
        before = outcomes
        outcomes, counts, loglik = _pass(gmm, read, utterances, before, lang, settings, realign)
        gmm = estimate(gmm, counts, floor_D, own.min_count)
        log(
            {
                "pass": number,
                "realigned": realign,
                "loglik_per_frame": round(loglik / max(1.0, float(counts.frames_S.sum())), 4),
                "gaussians": len(gmm.state_G),
                "lost": sum(isinstance(o, Lost) for o in outcomes),
                "retried": sum(isinstance(o, Aligned) and o.retried for o in outcomes),
                "moved": round(_moved(before, outcomes), 5),
                "seconds": round(time.time() - start, 2),
            }
        )
        target = lang.states.num_states + round(
            (own.gaussians - lang.states.num_states) * min(1.0, number / last_growth)
        )
        if number < own.passes and target > len(gmm.state_G):
            gmm = split(gmm, counts.frames_S, target, own.power, own.min_count)
    return gmm, [o for o in outcomes if o is not None]


def _flat(
    feats: Feats,
    read: Callable[[Utterance], np.ndarray],
    lang: Lang,
    settings: GmmSettings,
    log: Callable[[dict[str, Any]], None],
) -> tuple[Gmm, np.ndarray]:
    """One Gaussian a state, and the variances' floor; all states are alike at first."""
    some = feats.utterances[:: max(1, len(feats.utterances) // 200)]
    x_ND = np.concatenate([read(u) for u in some]).astype(np.float64)
    mean_D, variance_D = x_ND.mean(0), x_ND.var(0) + 1e-6
    s = lang.states.num_states
    loop_S = usual_loops(lang, feats.settings.shift_seconds)
    means_SD, variances_SD = np.tile(mean_D, (s, 1)), np.tile(variance_D, (s, 1))
    gmm = Gmm(np.arange(s), np.ones(s), means_SD, variances_SD, loop_S)
    floor_D = settings.variance_floor * variance_D
    chosen = easiest(feats.utterances, lang, settings.flat_utterances)
    if not chosen:
        raise ValueError(
            f"none of the {len(feats.utterances)} utterances is long enough for its transcript; "
            "are the transcripts those of these recordings?"
        )
    frames = sum(u.frames for u in chosen)
    for number in range(1, settings.flat_passes + 1):
        start = time.time()
        frames_S, sum_SD, squares_SD, loglik = flat_start(gmm.scores, read, chosen, lang, loop_S)
        some_S1 = np.maximum(frames_S, 1e-3)[:, None]
        means_SD = np.where(some_S1 < 2, mean_D, sum_SD / some_S1)
        variances_SD = np.where(some_S1 < 2, variance_D, squares_SD / some_S1 - means_SD**2)
        gmm = Gmm(np.arange(s), np.ones(s), means_SD, np.maximum(variances_SD, floor_D), loop_S)
        log(
            {
                "flat_pass": number,
                "utterances": len(chosen),
                "loglik_per_frame": round(loglik / frames, 4),
                "seconds": round(time.time() - start, 2),
            }
        )
    return gmm, floor_D


def _pass(
    gmm: Gmm,
    read: Callable[[Utterance], np.ndarray],
    utterances: list[Utterance],
    outcomes: list[Outcome | None],
    lang: Lang,
    settings: AliSettings,
    realign: bool,
) -> tuple[list[Outcome | None], Counts, float]:
    """One look at all utterances: new alignments (if `realign`), their sums and likelihood."""
    chunks = [range(i, min(i + CHUNK, len(utterances))) for i in range(0, len(utterances), CHUNK)]

    def one(chunk: range) -> tuple[list[Outcome | None], Counts]:
        new: list[Outcome | None]
        new, xs, states = [], [np.zeros((0, gmm.mean_GD.shape[1]), np.float32)], []
        visits_S = np.zeros(gmm.num_states)
        for u in chunk:
            x_TD, outcome = read(utterances[u]), outcomes[u]
            if realign and not (isinstance(outcome, Lost) and outcome.for_good):
                words = utterances[u].words.split()
                outcome = align(words, gmm.scores(x_TD), lang, gmm.loop_S, settings)
            new.append(outcome)
            if isinstance(outcome, Aligned):
                xs.append(x_TD)
                states.append(outcome.states_T)
                np.add.at(visits_S, outcome.states_T[_entries(outcome.states_T)], 1)
        state_N = np.concatenate(states) if states else np.zeros(0, np.int32)
        return new, count(gmm, np.concatenate(xs), state_N, visits_S)

    results = list(parallel_map(one, chunks, ""))
    new = [outcome for some, _ in results for outcome in some]
    counts = results[0][1]
    for _, more in results[1:]:
        counts = counts + more
    loglik = sum(o.loglik for o in new if isinstance(o, Aligned))
    return new, counts, loglik


def _entries(states_T: np.ndarray) -> np.ndarray:
    """Frames at which a state is entered from another one."""
    return np.flatnonzero(np.diff(states_T, prepend=-1))


def _moved(before: Sequence[Outcome | None], after: Sequence[Outcome | None]) -> float:
    pairs = [
        (b.states_T, a.states_T)
        for b, a in zip(before, after, strict=True)
        if isinstance(b, Aligned) and isinstance(a, Aligned)
    ]
    frames = sum(len(a) for _, a in pairs)
    return sum(int((b != a).sum()) for b, a in pairs) / max(1, frames)


# --- the model as files -------------------------------------------------------------------------


def save_gmm(
    path: Path, gmm: Gmm, settings: GmmSettings, feats: FeatsSettings, states: States
) -> None:
    """Write gmm.safetensors and then `path`, the model.json that names it."""
    tensors = path.parent / "gmm.safetensors"
    arrays = {
        "state_G": gmm.state_G.astype(np.int64),
        "weight_G": gmm.weight_G,
        "mean_GD": gmm.mean_GD,
        "variance_GD": gmm.variance_GD,
        "loop_S": gmm.loop_S,
    }
    with replacing(tensors) as scratch:
        save_file(arrays, scratch)
    write_json(
        path,
        {
            "kind": "gmm",
            "run": path.parent.name,
            "parts": [part(tensors, path.parent)],
            "gmm": plain(settings),
            "feats": plain(feats),
            "num_states": gmm.num_states,
            "states_hash": states.hash,
        },
    )


def load_gmm(path: Path) -> tuple[Gmm, GmmSettings, dict[str, Any]]:
    """The mixtures, what they see, and the rest of model.json.

    Raises:
        ValueError: if the file is damaged.
    """
    about = read_json(path)
    tensors = check_part(path.parent, about["parts"][0], remake=path)
    with safe_open(tensors, framework="numpy") as file:
        gmm = Gmm(
            file.get_tensor("state_G"),
            file.get_tensor("weight_G"),
            file.get_tensor("mean_GD"),
            file.get_tensor("variance_GD"),
            file.get_tensor("loop_S"),
        )
    return gmm, build(GmmSettings, about["gmm"], f"{path}: gmm"), about
