"""N-best lists and a larger language model -> the words it prefers; its weight chosen on DEV.

A sentence's graph cost holds pronunciations, transitions and lm_weight times the small model's
cost; the large model's takes the place of the latter.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_train.score.normalise import Normaliser
from asr_train.score.words import WordErrors

Logprobs = Callable[[list[list[str]]], np.ndarray]  # of sentences with their ends: natural log


@dataclass(frozen=True, slots=True)
class Reweighed:
    """How the large model is weighed."""

    lm_weight: float
    penalty: float  # nats a word, on top of the graph's


@dataclass(frozen=True, slots=True)
class Listed:
    """An n-best list with both models' log-probabilities; arrays by sentence, nats.

    Attributes:
        fixed: all costs but a language model's.
    """

    id: str
    sentences: list[list[str]]
    fixed: np.ndarray
    new_logprob: np.ndarray
    lengths: np.ndarray

    @staticmethod
    def of(row: dict[str, Any], old: Logprobs, new: Logprobs, lm_weight: float) -> "Listed":
        """From a row of nbest.SPLIT.jsonl.

        Args:
            lm_weight: of the old model in the graph.
        Raises:
            ValueError: if the old model forbids a sentence that its graph allowed.
        """
        sentences = [words for words, *_ in row["sentences"]]
        olds = old(sentences)
        if not np.isfinite(olds).all():
            bad = int(np.flatnonzero(~np.isfinite(olds))[0])
            raise ValueError(
                f"{row['id']}: the graph's language model gives {' '.join(sentences[bad])!r} "
                f"log-probability {olds[bad]}, but the graph allowed it; lm/ and exp/ belong to "
                "different runs: delete the hypotheses and run make again"
            )
        costs = np.array([graph + acoustic for _, graph, acoustic in row["sentences"]])
        return Listed(
            row["id"],
            sentences,
            costs + lm_weight * olds,
            new(sentences),
            np.array([len(words) for words in sentences], np.float64),
        )

    def best(self, choice: Reweighed) -> tuple[list[str], float]:
        """The words of the cheapest sentence, and its cost; no words where the list is empty."""
        if not self.sentences:
            return [], 0.0
        cost_N = self.fixed - choice.lm_weight * self.new_logprob + choice.penalty * self.lengths
        n = int(np.argmin(cost_N))
        return self.sentences[n], float(cost_N[n])


def tune_rescoring(
    lists: list[Listed],
    transcripts: dict[str, str],
    weights: list[float],
    penalties: list[float],
    normaliser: Normaliser,
) -> tuple[Reweighed, list[tuple[Reweighed, WordErrors]]]:
    """The weight and penalty with the fewest errors on these lists, and the errors of all."""
    tried = []
    for weight, penalty in itertools.product(weights, penalties):
        choice, total = Reweighed(weight, penalty), WordErrors()
        for listed in lists:
            heard = normaliser.hypothesis(" ".join(listed.best(choice)[0]))
            total += WordErrors.between(normaliser.reference(transcripts[listed.id]), heard)
        tried.append((choice, total))
    best = min(tried, key=lambda t: (t[1].errors, abs(t[0].penalty), abs(t[0].lm_weight - 1)))
    return best[0], tried
