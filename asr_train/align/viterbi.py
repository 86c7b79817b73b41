"""Best state path through one utterance, or through many; and reasons for failure."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from asr_train.data.features import Utterance
from asr_train.jobs import map_in_chunks
from asr_train.lang.index import Lang
from asr_train.lang.states import States
from asr_train.schema import AliSettings
from asr_train.search.forced import forced_path, ready
from asr_train.search.transcript import transcript_graph

CHUNK = 20  # utterances per task of a worker process
# State ids [n] and a span of frames [t] -> their scores, float32 [t, n]
Scores = Callable[[np.ndarray, slice], np.ndarray]
Spoken = tuple[Utterance, list[str]]  # an utterance and the words to align it with


@dataclass(frozen=True, slots=True)
class Aligned:
    """An utterance's state path.

    Attributes:
        states_T: int32 [T].
        position_T: int8 [T], the state's position in its phone.
        phones_N3: int32 [phones, 3]: phone, first frame, index of its word in the transcript
            (-1: silence).
        loglik: nats, of the whole utterance at scale 1, acoustic and transition.
        retried: whether it needed the wider beam.
    """

    states_T: np.ndarray
    position_T: np.ndarray
    phones_N3: np.ndarray
    loglik: float
    retried: bool

    def phone_of_frames(self) -> np.ndarray:
        """Return the index into `phones_N3` of each frame: int [T]."""
        starts = self.phones_N3[:, 1]
        return np.repeat(np.arange(len(starts)), np.diff([*starts, len(self.states_T)]))


@dataclass(frozen=True, slots=True)
class Lost:
    """An utterance without a path.

    Attributes:
        for_good: whether no model could align it.
    """

    reason: str
    for_good: bool = False


Outcome = Aligned | Lost


def unfit(words: list[str], frames: int, lang: Lang) -> Lost | None:
    """Return why no model could align a transcript with so many frames, or None."""
    if not words:
        return Lost("empty transcript", for_good=True)
    unknown = [w for w in words if w not in lang.lexicon.prons]
    if unknown:
        return Lost(f"no pronunciation of {' '.join(unknown)}", for_good=True)
    phones = sum(min(map(len, lang.lexicon.prons[w])) for w in words)
    if (least := lang.states.phone_states * phones) > frames:
        return Lost(f"{frames} frames, but its shortest pronunciation needs {least}", for_good=True)
    return None


@dataclass(frozen=True, slots=True)
class Aligner:
    """Finds the most likely state paths of transcripts, by one model.

    Attributes:
        states: of the model.
        loop_S: self-loop probability of each state.
    """

    lang: Lang
    states: States
    loop_S: np.ndarray
    settings: AliSettings

    def align(self, words: list[str], frames: int, scores: Scores) -> Outcome:
        """Align one transcript.

        Args:
            frames: of the utterance, T.
            scores: log-likelihoods in nats, unscaled, of the states that the transcript needs, for
                a window of frames at a time.
        """
        if (lost := unfit(words, frames, self.lang)) is not None:
            return lost
        transcript = transcript_graph(words, self.lang, self.states, self.loop_S)
        needed, column_K = np.unique(transcript.state_K, return_inverse=True)
        own, window = self.settings, partial(scores, needed)
        for beam in (own.beam, own.retry_beam):
            graph, scale = transcript.graph, own.acoustic_scale
            path = forced_path(graph, column_K, frames, window, scale, beam)
            if path is not None:
                at, loglik = path.places_T, -path.acoustic_cost - path.graph_cost
                found = transcript.state_K[at], transcript.position_K[at], transcript.phones(at)
                return Aligned(*found, loglik, beam != own.beam)
        return Lost(f"no path within a beam of {own.retry_beam:g}; is the transcript right?")

    def align_all(
        self, score: Callable[[Utterance], Scores], spoken: list[Spoken], what: str = ""
    ) -> list[Outcome]:
        """Align many utterances in worker processes.

        Args:
            score: utterance -> its scores.
            what: label of the progress bar; "": none is shown.
        """

        def one(pair: Spoken) -> Outcome:
            utterance, words = pair
            return self.align(words, utterance.frames, score(utterance))

        ready()
        return list(map_in_chunks(one, spoken, CHUNK, what))


def transcripts(utterances: Iterable[Utterance]) -> list[Spoken]:
    """Pair utterances with the words of their transcripts; equal words are one object."""
    return [(u, [*map(sys.intern, u.words.split())]) for u in utterances]
