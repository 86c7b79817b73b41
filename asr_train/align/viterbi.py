"""Best state path through one utterance, and how it failed."""

from dataclasses import dataclass

import numpy as np

from asr_train.lang.index import Lang
from asr_train.schema import AliSettings
from asr_train.search.beam import Beam
from asr_train.search.graph import training_graph

ALL = 2**31 - 1  # tokens: a transcript's graph is small


@dataclass(frozen=True, slots=True)
class Aligned:
    """An utterance's state path.

    Attributes:
        states_T: int32 [T].
        loglik: nats, of the whole utterance, at scale 1; acoustic and transition.
        retried: it needed the wider beam.
    """

    states_T: np.ndarray
    loglik: float
    retried: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """An utterance without a path, and why.

    Attributes:
        for_good: no model could align it.
    """

    reason: str
    for_good: bool = False


def fewest_frames(words: list[str], lang: Lang) -> int:
    """Frames below which a transcript cannot be passed through: one a state, no silence.

    Raises:
        KeyError: the first word that has no pronunciation.
    """
    return lang.states.phone_states * sum(min(map(len, lang.lexicon.prons[w])) for w in words)


def unfit(words: list[str], frames: int, lang: Lang) -> Lost | None:
    """Why a transcript cannot be aligned with so many frames, whatever the model says."""
    if not words:
        return Lost("empty transcript", for_good=True)
    unknown = [w for w in words if w not in lang.lexicon.prons]
    if unknown:
        return Lost(f"no pronunciation of {' '.join(unknown)}", for_good=True)
    if (least := fewest_frames(words, lang)) > frames:
        return Lost(f"{frames} frames, but its shortest pronunciation needs {least}", for_good=True)
    return None


def align(
    words: list[str], scores_TS: np.ndarray, lang: Lang, loop_S: np.ndarray, settings: AliSettings
) -> Aligned | Lost:
    """Find the most likely state path of a transcript.

    Args:
        words: the transcript.
        scores_TS: float32 [T, S], log-likelihoods in nats, unscaled.
        loop_S: each state's probability to be followed by itself.
    """
    if (lost := unfit(words, len(scores_TS), lang)) is not None:
        return lost
    graph = training_graph(words, lang, loop_S)
    scaled_TS = scores_TS * np.float32(settings.acoustic_scale)
    for beam in (settings.beam, settings.retry_beam):
        search = Beam(graph, scores_TS.shape[1], beam, ALL, lang.states.num_states)
        path = search.best_path(scaled_TS)
        if path is not None and path.final:
            loglik = -path.acoustic_cost / settings.acoustic_scale - path.graph_cost
            return Aligned(path.states_T, loglik, beam != settings.beam)
    return Lost(f"no path within a beam of {settings.retry_beam:g}; is the transcript right?")
