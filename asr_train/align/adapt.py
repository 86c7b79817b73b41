"""Speaker transforms (fMLLR): utterances and their words -> a matrix per speaker -> adapted frames.

    words --align--> paths --shares, sums by speaker--> fmllr --> Adapted, which reads utterances

The words are transcripts or the result of a first pass; `Utterance.words` is not read. A system of
adapted frames also holds the Gaussians of unadapted frames (Kaldi's final.alimdl), which align
before there are transforms and score speakers without one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from asr_train.align.front import Read
from asr_train.align.gmm import Gmm, Mixtures
from asr_train.align.transforms import AffineSums, Transform, adapted, fmllr
from asr_train.align.viterbi import Aligned, Aligner, Outcome, Scores, Spoken
from asr_train.data.features import Utterance
from asr_train.jobs import parallel_map
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import SILENCE
from asr_train.schema import AliSettings, FmllrSettings

CHUNK = 50  # utterances in memory at once


@dataclass(frozen=True, slots=True)
class Adapted:
    """Reads utterances, each adapted by its speaker's transform.

    Attributes:
        plain: utterance -> x_TD, unadapted.
        speakers: their transforms; the others have none.
        gain: nats per frame gained over the transforms before (`estimated`), or over the Gaussians
            of unadapted frames (`adapt`).
    """

    plain: Read
    speakers: dict[str, Transform] = field(default_factory=dict)
    gain: float = 0.0

    def matrix(self, utterance: Utterance) -> np.ndarray | None:
        """Return the speaker's matrix [D, D + 1]; None if the frames stay unadapted."""
        found = self.speakers.get(utterance.speaker)
        return None if found is None or found.kept is not None else found.matrix

    def matrices(self) -> dict[str, np.ndarray]:
        """Return the matrices of the speakers that are adapted."""
        return {name: t.matrix for name, t in self.speakers.items() if t.kept is None}

    def __call__(self, utterance: Utterance) -> np.ndarray:
        """Return x_TD, float32."""
        return adapted(self.plain(utterance), self.matrix(utterance))

    def logdet(self, utterance: Utterance) -> float:
        """Return log|det A| in nats per frame, by which densities of adapted frames grow."""
        matrix_DE = self.matrix(utterance)
        return 0.0 if matrix_DE is None else float(np.linalg.slogdet(matrix_DE[:, :-1])[1])

    def summary(self) -> dict[str, Any]:
        """Summarise how many speakers have a transform, its gain, and why others have none."""
        kept = [[name, t.kept] for name, t in self.speakers.items() if t.kept is not None]
        return {
            "speakers": len(self.speakers),
            "adapted": len(self.speakers) - len(kept),
            "gain_per_frame": round(self.gain, 4),
            "kept": kept,
        }


def estimated(
    read: Adapted,
    sharing: Gmm,
    model: Mixtures,
    settings: FmllrSettings,
    utterances: Sequence[Utterance],
    outcomes: Sequence[Outcome | None],
) -> Adapted:
    """Estimate new transforms, one per speaker, from state paths.

    Args:
        read: the present adaptation.
        sharing: the Gaussians that give the shares of the adapted frames.
        model: as many Gaussians of the same states, towards which the unadapted frames are
            transformed.
        outcomes: of the utterances, in the model's states.
    """
    target = model.gmm
    weight_S = np.ones(target.num_states)
    weight_S[model.states.of(SILENCE)] = settings.silence_weight
    sharing.terms, sharing.first_S  # noqa: B018 - cached before the workers fork
    by_speaker: dict[str, list[tuple[Utterance, np.ndarray]]] = {}
    for utterance, outcome in zip(utterances, outcomes, strict=True):
        aligned = by_speaker.setdefault(utterance.speaker, [])
        if isinstance(outcome, Aligned):
            aligned.append((utterance, outcome.states_T))

    def sums_of(some: list[tuple[Utterance, np.ndarray]]) -> AffineSums:
        from scipy.sparse import diags_array  # slow to import

        state_N = np.concatenate([states_T for _, states_T in some])
        counted_N = weight_S[state_N] > 0
        state_N = state_N[counted_N]
        plain_ND, now_ND = (
            np.concatenate([of(utterance) for utterance, _ in some])[counted_N]
            for of in (read.plain, read)
        )
        share_NG = diags_array(weight_S[state_N]) @ sharing.shares(now_ND, state_N)
        return AffineSums.of(plain_ND, share_NG, target.mean_GD, target.variance_GD)

    def one(speaker: str) -> Transform:
        d = target.mean_GD.shape[1]
        none = AffineSums(0.0, np.zeros((d, d + 1)), np.zeros((d, d + 1, d + 1)))
        aligned, before = by_speaker[speaker], read.speakers.get(speaker)
        chunks = (aligned[i : i + CHUNK] for i in range(0, len(aligned), CHUNK))
        sums = sum(map(sums_of, chunks), none)
        return fmllr(sums, settings.min_frames, None if before is None else before.matrix)

    names = list(by_speaker)
    found = list(parallel_map(one, names, ""))
    frames = sum(t.frames for t in found if t.kept is None)
    gain = sum(t.frames * t.gain_per_frame for t in found if t.kept is None) / max(1.0, frames)
    return Adapted(read.plain, dict(zip(names, found, strict=True)), gain)


def scores(model: Mixtures, read: Adapted) -> Callable[[Utterance], Scores]:
    """Return a function utterance -> its `Scores` by the model."""

    def of(utterance: Utterance) -> Scores:
        gmm = model.gmm
        if model.adaptive is not None and read.matrix(utterance) is None:
            gmm = model.adaptive.unadapted
        return scores_of(gmm, read(utterance), read.logdet(utterance))

    return of


def scores_of(gmm: Gmm, x_TD: np.ndarray, logdet: float) -> Scores:
    """Return the `Scores` of an utterance's frames, with log|det A| of their transform added."""
    more = np.float32(logdet)
    return lambda states, span: gmm.scores(x_TD[span], states) + more


def adapt(
    model: Mixtures, plain: Read, spoken: list[Spoken], lang: Lang, ali: AliSettings
) -> Adapted:
    """Return the transforms of these utterances' speakers towards a system of adapted frames.

    They are estimated from an alignment by the Gaussians of unadapted frames, and again from an
    adapted alignment.
    """
    assert model.adaptive is not None
    settings, utterances = model.adaptive.settings, [utterance for utterance, _ in spoken]
    aligner = Aligner(lang, model.states, model.gmm.loop_S, ali)
    read, logliks = Adapted(plain), []
    for sharing in (model.adaptive.unadapted, model.gmm):
        aligned = aligner.align_all(scores(model, read), spoken)
        logliks.append([o.loglik if isinstance(o, Aligned) else None for o in aligned])
        read = estimated(read, sharing, model, settings, utterances, aligned)
        del aligned  # before the next ones are found: all paths are large
    every = zip(utterances, *logliks, strict=True)
    # Over the utterances that were aligned both times
    both = [(u.frames, a - b) for u, b, a in every if b is not None and a is not None]
    gain = sum(gain for _, gain in both) / max(1, sum(frames for frames, _ in both))
    return replace(read, gain=gain)


def speakers_line(summary: dict[str, Any]) -> str:
    """Format `Adapted.summary` for the terminal."""
    named = "; ".join(f"{name}: {why}" for name, why in summary["kept"][:3])
    return (
        f"{summary['adapted']} of {summary['speakers']} speakers adapted, "
        f"{summary['gain_per_frame']:.3f} nats per frame" + (f" (not {named})" if named else "")
    )
