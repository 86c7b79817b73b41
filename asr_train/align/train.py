"""Training of a system of Gaussian mixtures: from a flat start, or from the previous one.

    flat start | (system before --align--> phones in context --tree--> states --> one Gaussian each)
    pass: align (Viterbi) -> sums of the aligned frames -> new Gaussians, more of them

Viterbi training with diagonal covariances, as in Kaldi's train_mono.sh, train_deltas.sh,
train_lda_mllt.sh and train_sat.sh. Results do not depend on the number of worker processes:
utterances form fixed chunks, whose sums are added in order.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from asr_train.align.adapt import Adapted, adapt, estimated, scores, scores_of
from asr_train.align.flat import easiest, flat_start, usual_loops
from asr_train.align.front import Front, Read
from asr_train.align.gmm import Counts, Gmm, Mixtures, SpeakerAdaptive, count, estimate, split
from asr_train.align.transforms import Classes, FullSums, lda, mllt
from asr_train.align.tree import Stats, grow, summed
from asr_train.align.viterbi import Aligned, Aligner, Lost, Outcome, transcripts, unfit
from asr_train.data.features import Feats, Utterance
from asr_train.jobs import parallel_map
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import SILENCE
from asr_train.lang.states import States
from asr_train.schema import AliSettings, GmmSettings
from asr_train.search.forced import ready

Log = Callable[[dict[str, Any]], None]
Outcomes = list[Outcome | None]  # of all utterances; None: not aligned yet
Pairs = list[tuple[Utterance, Aligned]]
Sums = TypeVar("Sums")
OfFrames = Callable[[np.ndarray, np.ndarray], Sums]  # of frames and their states
CHUNK = 50  # utterances summed together
LEAST_VARIANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Job:
    """What all passes of a training share."""

    feats: Feats
    lang: Lang
    settings: GmmSettings
    ali: AliSettings
    log: Log

    @property
    def utterances(self) -> list[Utterance]:
        return self.feats.utterances

    def chunks(self) -> list[range]:
        """Return ranges of adjacent utterances that are summed together."""
        n = len(self.utterances)
        return [range(i, min(i + CHUNK, n)) for i in range(0, n, CHUNK)]


def train(
    feats: Feats,
    lang: Lang,
    settings: GmmSettings,
    ali: AliSettings,
    before: Mixtures | None,
    log: Log,
) -> tuple[Mixtures, list[Outcome]]:
    """Train a system of Gaussian mixtures.

    Args:
        before: the system to start from; None: a flat start.
        log: receives a row per pass: those of the start (`flat_pass` or `start`), then with
            realigned, gaussians, seconds; of passes that realign, with loglik_per_frame, lost,
            retried and moved (the share of frames whose state changed); with speaker adaptation,
            with a summary of it (`speakers`).
    Returns:
        The system, and the last alignment of each utterance.
    Raises:
        ValueError: if there is nothing to train on, or too few leaves for the tree.
    """
    job = Job(feats, lang, settings, ali, log)
    return _passes(job, _start_flat(job) if before is None else _start_from(job, before))


@dataclass(frozen=True, slots=True)
class Start:
    """The state before the first pass.

    Attributes:
        floor_D: lower limit of the variances.
    """

    model: Mixtures
    read: Adapted
    outcomes: Outcomes
    floor_D: np.ndarray


# --- from a flat start --------------------------------------------------------------------------


def _start_flat(job: Job) -> Start:
    """Start with one Gaussian per monophone state; all states are alike at first."""
    feats, lang, flat = job.feats, job.lang, job.settings.flat
    assert flat is not None
    assert job.settings.front is not None
    front = Front(job.settings.front)
    read = front(feats)
    mean_D, variance_D = _moments(read, feats.utterances)
    loop_S = usual_loops(lang, feats.settings.shift_seconds)
    floor_D = job.settings.variance_floor * variance_D
    gmm = alike = _alike(mean_D, variance_D, loop_S)
    chosen = easiest(feats.utterances, lang, flat.utterances, flat.seconds)
    if not chosen:
        raise ValueError(
            f"none of the {len(feats.utterances)} utterances is long enough for its transcript; "
            "are the transcripts those of these recordings?"
        )
    frames = sum(u.frames for u in chosen)
    for number in range(1, flat.passes + 1):
        start = time.time()
        frames_S, sum_SD, squares_SD, loglik = flat_start(gmm.scores, read, chosen, lang, loop_S)
        counts = Counts(frames_S, sum_SD, squares_SD, frames_S, visits_S=frames_S)
        gmm = replace(estimate(alike, counts, floor_D, job.settings.min_count), loop_S=loop_S)
        per_frame, seconds = round(loglik / frames, 4), round(time.time() - start, 2)
        row = {"flat_pass": number, "utterances": len(chosen), "loglik_per_frame": per_frame}
        job.log({**row, "seconds": seconds})
    outcomes = [unfit(u.words.split(), u.frames, lang) for u in feats.utterances]
    return Start(Mixtures(front, gmm, lang.states), Adapted(read), list(outcomes), floor_D)


def _alike(mean_D: np.ndarray, variance_D: np.ndarray, loop_S: np.ndarray) -> Gmm:
    """Return one Gaussian per state, the same for all."""
    s = len(loop_S)
    means_SD, variances_SD = (np.tile(array_D, (s, 1)) for array_D in (mean_D, variance_D))
    return Gmm(np.arange(s), np.ones(s), means_SD, variances_SD, loop_S)


def _moments(read: Read, utterances: list[Utterance]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance over about 200 utterances."""
    some = utterances[:: max(1, len(utterances) // 200)]
    x_ND = np.concatenate([read(u) for u in some]).astype(np.float64)
    return x_ND.mean(0), x_ND.var(0) + LEAST_VARIANCE


# --- from the previous system ---------------------------------------------------------------------


def _start_from(job: Job, before: Mixtures) -> Start:
    """Start with one Gaussian per state of the new system, from alignments by the one before."""
    start = time.time()
    settings = job.settings
    read, outcomes = _aligned_by(job, before)
    aligned = [o for o in outcomes if isinstance(o, Aligned)]
    if not aligned:
        raise ValueError("the previous system aligned no utterance; was it trained on this corpus?")
    loglik, frames = sum(o.loglik for o in aligned), sum(len(o.states_T) for o in aligned)
    row: dict[str, Any] = {"start": "the previous system"}
    row |= {"loglik_per_frame": round(loglik / frames, 4), "lost": len(outcomes) - len(aligned)}
    front = before.front if settings.front is None else Front(settings.front)
    if settings.lda is not None:
        front = replace(front, transform_dD=_lda(job, front, outcomes, before.states))
    if settings.fmllr is None:
        read = Adapted(front(job.feats))
    else:
        read = estimated(read, before.gmm, before, settings.fmllr, job.utterances, outcomes)
        row["speakers"] = read.summary()
    stats = _triphones(job, read, outcomes)
    states = before.states
    if settings.tree is not None:
        positions = [states.positions(p) for p in range(len(states.phones))]
        tree, row["tree"] = grow(stats, positions, settings.tree, states.phones)
        states = States(states.phones, states.phone_states, states.silence_states, tree)
    moved = [_with_states(o, states) if isinstance(o, Aligned) else o for o in outcomes]
    visits = (_visits(o, states.num_states) for o in moved if isinstance(o, Aligned))
    visits_S = sum(visits, np.zeros(states.num_states))
    gmm, floor_D = _one_gaussian_each(stats, visits_S, states, settings)
    job.log({**row, "states": states.num_states, "seconds": round(time.time() - start, 2)})
    return Start(Mixtures(front, gmm, states), read, moved, floor_D)


def _aligned_by(job: Job, before: Mixtures) -> tuple[Adapted, Outcomes]:
    """Return how the previous system read the utterances, and its alignments."""
    spoken, read = transcripts(job.utterances), Adapted(before.front(job.feats))
    if before.adaptive is not None:
        read = adapt(before, read.plain, spoken, job.lang, job.ali)
    before.gmm.terms, before.gmm.first_S  # noqa: B018 - cached before the workers fork
    aligner = Aligner(job.lang, before.states, before.gmm.loop_S, job.ali)
    return read, list(aligner.align_all(scores(before, read), spoken))


def triphone_keys(outcome: Aligned) -> np.ndarray:
    """Return left phone, phone, right phone and position of each frame: int32 [T, 4].

    The neighbours at the ends of an utterance are silence; silence itself has none.
    """
    phone_N = outcome.phones_N3[:, 0]
    around_N = np.pad(phone_N, 1)
    key_N3 = np.stack([around_N[:-2], phone_N, around_N[2:]], 1)
    key_N3[phone_N == 0] = 0
    key_T3 = key_N3[outcome.phone_of_frames()]
    return np.column_stack([key_T3, outcome.position_T]).astype(np.int32)


def _visits(outcome: Aligned, num_states: int) -> np.ndarray:
    """Count how often each state is entered: a phone or position begins there; int64 [S]."""
    place_T = outcome.phone_of_frames() * 64 + outcome.position_T
    begins_T = np.diff(place_T, prepend=-1) != 0
    return np.bincount(outcome.states_T[begins_T], minlength=num_states)


def _with_states(outcome: Aligned, states: States) -> Aligned:
    """Express a path in the states of another system."""
    left_T, phone_T, right_T, position_T = triphone_keys(outcome).T
    return replace(outcome, states_T=states.table_LPRJ[left_T, phone_T, right_T, position_T])


def _by_chunk(job: Job, outcomes: Outcomes, of: Callable[[Pairs], Sums]) -> Iterator[Sums]:
    """Yield `of`(the aligned utterances) of each chunk that has any, in order."""

    def one(chunk: range) -> Sums | None:
        aligned = [(job.utterances[u], o) for u in chunk if isinstance(o := outcomes[u], Aligned)]
        return of(aligned) if aligned else None

    yield from (sums for sums in parallel_map(one, job.chunks(), "") if sums is not None)


def _summed(job: Job, read: Read, outcomes: Outcomes, states: States, of: OfFrames[Sums]) -> Sums:
    """Add up `of`(frames, their states) of all chunks, in order: the statistics of LDA and MLLT.

    Silence is left out, unless the settings want it.
    """
    assert job.settings.lda is not None
    without = () if job.settings.lda.silence else states.of(SILENCE)

    def frames_of(aligned: Pairs) -> Sums:
        x_ND = np.concatenate([read(utterance) for utterance, _ in aligned])
        state_N = np.concatenate([o.states_T for _, o in aligned])
        if without:
            kept_N = ~np.isin(state_N, without)
            x_ND, state_N = x_ND[kept_N], state_N[kept_N]
        return of(x_ND, state_N)

    return reduce(add, _by_chunk(job, outcomes, frames_of))


def _triphones(job: Job, read: Read, outcomes: Outcomes) -> Stats:
    """Sum the frames of every phone in context, by position."""

    def of(aligned: Pairs) -> Stats:
        return summed(Stats.of(triphone_keys(o), read(utterance)) for utterance, o in aligned)

    return summed(_by_chunk(job, outcomes, of))


def _one_gaussian_each(
    stats: Stats, visits_S: np.ndarray, states: States, settings: GmmSettings
) -> tuple[Gmm, np.ndarray]:
    """Return one Gaussian per state with its frames' mean and variance, and the variance floor.

    A state without frames gets those of all frames.
    """
    left_K, phone_K, right_K, position_K = stats.key_K4.T
    state_K = states.table_LPRJ[left_K, phone_K, right_K, position_K]
    sum_SM = np.zeros((states.num_states, stats.sum_KM.shape[1]))
    np.add.at(sum_SM, state_K, stats.sum_KM)
    total_M = sum_SM.sum(0)
    mean_D, square_D = np.split(total_M[1:] / total_M[0], 2)
    variance_D = square_D - mean_D**2 + LEAST_VARIANCE
    floor_D = settings.variance_floor * variance_D
    frames_S, (sum_SD, squares_SD) = sum_SM[:, 0], np.split(sum_SM[:, 1:], 2, axis=1)
    counts = Counts(frames_S, sum_SD, squares_SD, frames_S, visits_S)
    alike = _alike(mean_D, variance_D, np.full(states.num_states, 0.5))
    return estimate(alike, counts, floor_D, settings.min_count), floor_D


# --- linear transforms --------------------------------------------------------------------------


def _lda(job: Job, front: Front, outcomes: Outcomes, states: States) -> np.ndarray:
    """Estimate the projection of spliced frames that separates the previous system's states."""
    assert job.settings.lda is not None

    def of(x_ND: np.ndarray, state_N: np.ndarray) -> Classes:
        return Classes.of(x_ND, state_N, states.num_states)

    total = _summed(job, front(job.feats), outcomes, states, of)
    return lda(total, job.settings.lda.dims).astype(np.float32)


def _mllt(job: Job, model: Mixtures, outcomes: Outcomes) -> tuple[Mixtures, float]:
    """Transform the features so that diagonal covariances fit better; transform the means too."""
    gmm = model.gmm

    def of(x_ND: np.ndarray, state_N: np.ndarray) -> FullSums:
        return FullSums.of(x_ND, gmm.shares(x_ND, state_N), gmm.variance_GD)

    total = _summed(job, model.front(job.feats), outcomes, model.states, of)
    turn = mllt(total, gmm.mean_GD, gmm.variance_GD)
    assert model.front.transform_dD is not None
    turned_dD = (turn.matrix @ model.front.transform_dD).astype(np.float32)
    front = replace(model.front, transform_dD=turned_dD)
    turned = replace(gmm, mean_GD=gmm.mean_GD @ turn.matrix.T)
    return replace(model, front=front, gmm=turned), turn.gain_per_frame


def _unadapted(job: Job, gmm: Gmm, read: Adapted, outcomes: Outcomes) -> Counts:
    """Sum unadapted frames, with the shares of the adapted ones; visits are not counted."""

    def of(aligned: Pairs) -> Counts:
        x_ND, plain_ND = (np.concatenate([r(u) for u, _ in aligned]) for r in (read, read.plain))
        state_N = np.concatenate([o.states_T for _, o in aligned])
        return count(gmm, x_ND, state_N, np.zeros(gmm.num_states), plain_ND)

    return reduce(add, _by_chunk(job, outcomes, of))


# --- passes -------------------------------------------------------------------------------------


def _passes(job: Job, begin: Start) -> tuple[Mixtures, list[Outcome]]:
    """Run all re-estimation passes."""
    model, read, outcomes, floor_D = begin.model, begin.read, begin.outcomes, begin.floor_D
    del begin  # else its paths stay in memory, beside those before and after each pass
    own, s = job.settings, model.states.num_states
    last_growth = max(1, min(own.passes - 1, round(own.passes * own.grown_by)))
    first = own.realign_first if own.flat is None else max(1, own.realign_first)  # no paths yet
    for number in range(1, own.passes + 1):
        start = time.time()
        realign = number <= first or (own.passes - number) % own.realign_every == 0
        before = outcomes
        outcomes, counts, loglik = _pass(job, model, read, before, realign)
        gmm = estimate(model.gmm, counts, floor_D, own.min_count)
        if own.fmllr is not None and number == own.passes:
            plain = replace(_unadapted(job, model.gmm, read, outcomes), visits_S=counts.visits_S)
            unadapted = estimate(model.gmm, plain, floor_D, own.min_count)
            model = replace(model, adaptive=SpeakerAdaptive(unadapted, own.fmllr))
        model = replace(model, gmm=gmm)
        row: dict[str, Any] = {"pass": number, "realigned": realign, "gaussians": len(gmm.state_G)}
        if realign:  # otherwise this is the likelihood of an earlier pass
            row |= {
                "loglik_per_frame": round(loglik / max(1.0, float(counts.frames_S.sum())), 4),
                "lost": sum(isinstance(o, Lost) for o in outcomes),
                "retried": sum(isinstance(o, Aligned) and o.retried for o in outcomes),
                "moved": round(_moved(before, outcomes), 5),
            }
        target = s + round((own.gaussians - s) * min(1.0, number / last_growth))
        if number < own.passes and target > len(gmm.state_G):
            gmm = split(gmm, counts.frames_S, target, own.power, own.min_count)
            model = replace(model, gmm=gmm)
        if own.lda is not None and number in own.lda.mllt_passes:
            model, row["mllt_gain"] = _mllt(job, model, outcomes)
            read = Adapted(model.front(job.feats))
        if own.fmllr is not None and number in own.fmllr.passes and number < own.passes:
            read = estimated(read, model.gmm, model, own.fmllr, job.utterances, outcomes)
            row["speakers"] = read.summary()
        job.log({**row, "seconds": round(time.time() - start, 2)})
    return model, [o for o in outcomes if o is not None]


def _pass(
    job: Job, model: Mixtures, read: Adapted, outcomes: Outcomes, realign: bool
) -> tuple[Outcomes, Counts, float]:
    """Go through all utterances: alignments (new if `realign`), their sums and likelihood."""
    gmm = model.gmm
    aligner = Aligner(job.lang, model.states, gmm.loop_S, job.ali)
    gmm.terms, gmm.first_S, ready()

    def one(chunk: range) -> tuple[Outcomes, Counts]:
        new: Outcomes
        new, xs = [], [np.zeros((0, gmm.mean_GD.shape[1]), np.float32)]
        states = [np.zeros(0, np.int32)]
        visits_S = np.zeros(gmm.num_states)
        for u in chunk:
            utterance, outcome = job.utterances[u], outcomes[u]
            x_TD, words = read(utterance), utterance.words.split()
            if realign and not (isinstance(outcome, Lost) and outcome.for_good):
                score = scores_of(gmm, x_TD, read.logdet(utterance))
                outcome = aligner.align(words, len(x_TD), score)
            new.append(outcome)
            if isinstance(outcome, Aligned):
                xs.append(x_TD)
                states.append(outcome.states_T)
                visits_S += _visits(outcome, gmm.num_states)
        return new, count(gmm, np.concatenate(xs), np.concatenate(states), visits_S)

    new: Outcomes = []
    total: Counts | None = None
    for some, counts in parallel_map(one, job.chunks(), ""):
        new += some
        total = counts if total is None else total + counts  # at once: those of a chunk are large
    assert total is not None
    loglik = sum(o.loglik for o in new if isinstance(o, Aligned))
    return new, total, loglik


def _moved(before: Sequence[Outcome | None], after: Sequence[Outcome | None]) -> float:
    pairs = [
        (b.states_T, a.states_T)
        for b, a in zip(before, after, strict=True)
        if isinstance(b, Aligned) and isinstance(a, Aligned)
    ]
    frames = sum(len(a) for _, a in pairs)
    return sum(int((b != a).sum()) for b, a in pairs) / max(1, frames)
