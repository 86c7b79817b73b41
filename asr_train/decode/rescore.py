"""N-best lists and a larger language model -> the best words; the model's weight chosen on DEV.

A sentence's graph cost holds pronunciations, transitions and lm_weight times the small model's
cost; the large model's cost replaces the last of these.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_train.decode.lists import GROWN, extend
from asr_train.score.normalise import Normaliser
from asr_train.score.words import WordErrors

Logprobs = Callable[[list[list[str]]], np.ndarray]  # sentences, with ends -> natural log


@dataclass(frozen=True, slots=True)
class Reweighed:
    """The weights of rescoring."""

    lm_weight: float
    penalty: float  # nats per word, in addition to the graph's


@dataclass(frozen=True, slots=True)
class Listed:
    """An n-best list with both models' log-probabilities; arrays by sentence, in nats.

    Attributes:
        fixed: all costs but those of language models.
    """

    id: str
    sentences: list[list[str]]
    fixed: np.ndarray
    new_logprob: np.ndarray
    lengths: np.ndarray

    @staticmethod
    def of(row: dict[str, Any], old: Logprobs, new: Logprobs, lm_weight: float) -> "Listed":
        """Convert a row of nbest.SPLIT.jsonl.

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

    def costs(self, choice: Reweighed) -> np.ndarray:
        """Return total costs in nats, by sentence."""
        return self.fixed - choice.lm_weight * self.new_logprob + choice.penalty * self.lengths

    def cheapest(self, choice: Reweighed) -> int:
        """Return the index of the cheapest sentence; -1 if the list is empty."""
        return int(np.argmin(self.costs(choice))) if self.sentences else -1

    def words(self, place: int) -> list[str]:
        """Return the words of the sentence at an index; none at -1."""
        return self.sentences[place] if place >= 0 else []

    def best(self, choice: Reweighed) -> tuple[list[str], float]:
        """Return the words and the cost of the cheapest sentence; no words if the list is empty."""
        n = self.cheapest(choice)
        return self.words(n), float(self.costs(choice)[n]) if n >= 0 else 0.0


def tune_rescoring(
    lists: list[Listed],
    transcripts: dict[str, str],
    weights: list[float],
    penalties: list[float],
    normaliser: Normaliser,
) -> tuple[Reweighed, list[tuple[Reweighed, WordErrors]], list[str]]:
    """Choose the weight and penalty with the fewest errors on these lists.

    All pairs are tried. Of pairs that tie, the one nearest to their mean is taken; a list whose end
    is best is extended, as in `decode.tune`.

    Returns:
        The choice, the errors of all pairs, and the lists whose end is chosen nevertheless.
    """
    references = [normaliser.reference(transcripts[listed.id]) for listed in lists]
    known: dict[tuple[int, int], WordErrors] = {}
    tried: dict[Reweighed, WordErrors] = {}

    def errors_of(choice: Reweighed) -> WordErrors:
        total = WordErrors()
        for u, listed in enumerate(lists):
            n = listed.cheapest(choice)
            if (u, n) not in known:
                heard = normaliser.hypothesis(" ".join(listed.words(n)))
                known[u, n] = WordErrors.between(references[u], heard)
            total += known[u, n]
        return total

    axes = {"rescore_lm_weights": sorted(weights), "rescore_penalties": sorted(penalties)}
    longest = {name: len(values) + GROWN for name, values in axes.items()}
    while True:
        for pair in itertools.product(*axes.values()):
            if Reweighed(*pair) not in tried:
                tried[Reweighed(*pair)] = errors_of(Reweighed(*pair))
        chosen = _middle(axes, tried)
        ends = {
            name: at
            for (name, values), at in zip(axes.items(), chosen, strict=True)
            if len(values) > 1 and at in (0, len(values) - 1)
        }
        growing = {name: at for name, at in ends.items() if len(axes[name]) < longest[name]}
        if not growing:
            best = Reweighed(*(v[at] for v, at in zip(axes.values(), chosen, strict=True)))
            return best, list(tried.items()), list(ends)
        for name, at in growing.items():
            extend(axes[name], at, name == "rescore_lm_weights")


def _middle(axes: dict[str, list[float]], tried: dict[Reweighed, WordErrors]) -> tuple[int, ...]:
    """Return both indices of the best pair: of those that tie, the nearest to their mean."""
    weights, penalties = axes.values()
    counts = np.array([[tried[Reweighed(w, p)].errors for p in penalties] for w in weights])
    tied_K2 = np.argwhere(counts == counts.min())
    distance_K = np.abs(tied_K2 - tied_K2.mean(0)).sum(1)
    return tuple(int(at) for at in tied_K2[int(np.argmin(distance_K))])
