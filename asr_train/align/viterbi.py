"""Best state path through one utterance, or through many; and how it failed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from asr_train.data.features import Utterance
from asr_train.jobs import parallel_map
from asr_train.lang.index import Lang
from asr_train.lang.states import States
from asr_train.schema import AliSettings
from asr_train.search.forced import forced_path, ready
from asr_train.search.transcript import transcript_graph

CHUNK = 20  # utterances handed to a worker at a time
# Ids of states [n] and a span of frames [t] -> their scores, float32 [t, n].
Scores = Callable[[np.ndarray, slice], np.ndarray]
Said = tuple[Utterance, list[str]]  # and the words to align it with


@dataclass(frozen=True, slots=True)
class Aligned:
    """An utterance's state path.

    Attributes:
        states_T: int32 [T].
        position_T: int8 [T], the state's position in its phone.
        phones_N3: int32 [phones, 3]: phone, first frame, place of its word in the transcript
            (-1: silence).
        loglik: nats, of the whole utterance, at scale 1; acoustic and transition.
        retried: it needed the wider beam.
    """

    states_T: np.ndarray
    position_T: np.ndarray
    phones_N3: np.ndarray
    loglik: float
    retried: bool

    def phone_of_frames(self) -> np.ndarray:
        """Int [T]: the place in `phones_N3` of each frame."""
        starts = self.phones_N3[:, 1]
        return np.repeat(np.arange(len(starts)), np.diff([*starts, len(self.states_T)]))


@dataclass(frozen=True, slots=True)
class Lost:
    """An utterance without a path, and why.

    Attributes:
        for_good: no model could align it.
    """

    reason: str
    for_good: bool = False


Outcome = Aligned | Lost


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
    words: list[str],
    frames: int,
    scores: Scores,
    lang: Lang,
    states: States,
    loop_S: np.ndarray,
    settings: AliSettings,
) -> Outcome:
    """Find the most likely state path of a transcript.

    Args:
        words: the transcript.
        frames: of the utterance, T.
        scores: of the states that the transcript needs, log-likelihoods in nats, unscaled, a
            window of frames at a time.
        states: of the model.
        loop_S: each state's probability to be followed by itself.
    """
    if (lost := unfit(words, frames, lang)) is not None:
        return lost
    transcript = transcript_graph(words, lang, states, loop_S)
    needed, column_K = np.unique(transcript.state_K, return_inverse=True)
    for beam in (settings.beam, settings.retry_beam):
        path = forced_path(
            transcript.graph,
            column_K,
            frames,
            lambda span: scores(needed, span),
            settings.acoustic_scale,
            beam,
        )
        if path is not None:
            return Aligned(
                transcript.state_K[path.places_T],
                transcript.position_K[path.places_T],
                transcript.phones(path.places_T),
                -path.acoustic_cost - path.graph_cost,
                beam != settings.beam,
            )
    return Lost(f"no path within a beam of {settings.retry_beam:g}; is the transcript right?")


def transcripts(utterances: Iterable[Utterance]) -> list[Said]:
    """Utterances with the words that their transcripts have."""
    return [(u, u.words.split()) for u in utterances]


def align_all(
    score: Callable[[Utterance], Scores],
    said: list[Said],
    lang: Lang,
    states: States,
    loop_S: np.ndarray,
    settings: AliSettings,
    what: str = "",
) -> list[Outcome]:
    """`align` of many utterances, in worker processes.

    Args:
        score: utterance -> its scores.
        what: shown with the progress; "": nothing is shown.
    """

    def some(chunk: list[Said]) -> list[Outcome]:
        return [
            align(words, u.frames, score(u), lang, states, loop_S, settings) for u, words in chunk
        ]

    ready()
    chunks = [said[i : i + CHUNK] for i in range(0, len(said), CHUNK)]
    return [outcome for done in parallel_map(some, chunks, what) for outcome in done]
