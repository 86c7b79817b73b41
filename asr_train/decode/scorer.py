"""A scorer of states, for Gaussians and networks alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_train.align.speakers import Speakers
from asr_train.align.viterbi import Scores, Spoken
from asr_train.data.features import Utterance
from asr_train.lang.index import Lang
from asr_train.lang.states import States
from asr_train.schema import AliSettings

Adaptation = tuple["Scorer", dict[str, Any]]  # a scorer adapted to speakers, and a summary


@dataclass(frozen=True, slots=True)
class Scorer:
    """A model that scores states.

    Attributes:
        run: its name.
        num_states: S.
        states: those it scores; None: of another program, whose alignments it was trained on.
        loop_S: float64 [S], self-loop probability of each state.
        scores: utterance -> its `Scores`: a function of state ids [n] and a span of frames [t] to
            float32 [t, n]. Work that is needed once per utterance is done when the function is
            made.
        adapt: for a model of adapted frames: (utterances with words, language, alignment settings)
            -> a scorer adapted to their speakers, and a summary. Other speakers are scored with the
            Gaussians of unadapted frames; by a network, their unadapted frames.
        speakers: the transforms that it scores with, of a model of adapted frames.
        first: the system that decodes the first passes of a network over its frames, and estimates
            the transforms; None: the model itself.
    """

    run: str
    num_states: int
    states: States | None
    loop_S: np.ndarray
    scores: Callable[[Utterance], Scores]
    adapt: Callable[[list[Spoken], Lang, AliSettings], Adaptation] | None = None
    speakers: Speakers | None = None
    first: "Scorer | None" = None

    def score(self, utterance: Utterance) -> np.ndarray:
        """Return the scores of all frames and states: float32 [T, S]."""
        return self.scores(utterance)(np.arange(self.num_states), slice(None))


def known_states(scorer: Scorer) -> States:
    """Return the states of a model that can decode and align here.

    Raises:
        ValueError: if they belong to another program; says what to do instead.
    """
    if scorer.states is None:
        raise ValueError(
            f"{scorer.run} was trained on alignments of another program, which alone knows what "
            f"its {scorer.num_states} states stand for; export its posteriors and decode them there"
        )
    return scorer.states
