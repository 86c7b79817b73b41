"""What the search asks of a model: scores of states, Gaussians' and networks' alike."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_train.align.viterbi import Scores, Spoken
from asr_train.data.features import Utterance
from asr_train.lang.index import Lang
from asr_train.lang.states import States
from asr_train.schema import AliSettings


@dataclass(frozen=True, slots=True)
class Scorer:
    """A model that scores states.

    Attributes:
        run: its name.
        num_states: S.
        states: those it scores; None: of another program, whose alignments the model learned.
        loop_S: float64 [S], each state's probability to be followed by itself.
        scores: utterance -> its `Scores`: a function of ids of states [n] and a span of frames [t]
            to float32 [t, n]. What is costly once per utterance is done when it is made.
        adapt: of a system of adapted frames: (utterances with words, language, how to align them)
            -> a scorer adapted to their speakers, and what became of those. Until then it scores
            with the Gaussians of unadapted frames, and so it does for all other speakers.
    """

    run: str
    num_states: int
    states: States | None
    loop_S: np.ndarray
    scores: Callable[[Utterance], Scores]
    adapt: "Callable[[list[Spoken], Lang, AliSettings], tuple[Scorer, dict[str, Any]]] | None" = (
        None
    )

    def score(self, utterance: Utterance) -> np.ndarray:
        """All frames and states at once: float32 [T, S]."""
        return self.scores(utterance)(np.arange(self.num_states), slice(None))


def known_states(scorer: Scorer) -> States:
    """The states of a model that we can decode and align with.

    Raises:
        ValueError: if another program knows them; says what to do instead.
    """
    if scorer.states is None:
        raise ValueError(
            f"{scorer.run} learned the alignments of another program, which alone knows what its "
            f"{scorer.num_states} states stand for; export its posteriors and decode them there"
        )
    return scorer.states
