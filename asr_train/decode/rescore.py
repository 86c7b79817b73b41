"""Lattices and a larger language model -> the best words; the model's weight chosen on DEV.

A path's graph cost holds pronunciations, transitions and lm_weight times the small model's cost;
the large model's cost replaces the last of these (`search.rescore`).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from asr_train.decode.lists import GROWN, extend
from asr_train.lang.arpa import NgramModel
from asr_train.score.normalise import Normaliser
from asr_train.score.words import WordErrors
from asr_train.search.lattice import Lattice
from asr_train.search.mbr import ROUNDS, decide
from asr_train.search.posterior import posterior
from asr_train.search.rescore import Model, expanded


@dataclass(frozen=True, slots=True)
class RescoringChoice:
    """The weights of rescoring."""

    lm_weight: float
    penalty: float  # nats per word, in addition to the graph's
    mbr: bool = False  # minimum-Bayes-risk words, not those of the best path


@dataclass(slots=True)
class Rescored:
    """The words of an utterance under the larger model.

    Attributes:
        cost, acoustic_cost: of the best path, nats; as `search.rescore.Path`, summed over pieces.
        confidences: of the words, from the posterior under the larger model; empty without one.
        beam: the narrowest of the lattices; nats. It is the search's unless expansions were too
            large.
        narrowed: number of lattices that were narrowed.
        cut: number of posteriors, for MBR words and confidences, that lack sequences within the
            lattice's beam, as they would have too many nodes.
    """

    words: list[str] = field(default_factory=list)
    cost: float = 0.0
    acoustic_cost: float = 0.0
    confidences: list[float] = field(default_factory=list)
    beam: float = math.inf
    narrowed: int = 0
    cut: int = 0


class Rescorer:
    """Both models; built before worker processes are forked.

    Args:
        names: the lexicon's words, numbered from 1 in lattices.
        old: the graph's model, at the weight `lm_weight`.
        new: the one to replace it.
    """

    def __init__(
        self, names: Sequence[str], old: NgramModel, new: NgramModel, lm_weight: float
    ) -> None:
        self._names, self._lm_weight = names, lm_weight
        self._old, self._new = Model.of(old, names), Model.of(new, names)

    def __call__(
        self,
        lattices: Sequence[Lattice | None],
        choices: Sequence[RescoringChoice],
        confidences: bool = False,
    ) -> list[Rescored]:
        """Rescore an utterance's pieces, each a sentence of its own; one result per choice."""
        rescored = [Rescored() for _ in choices]
        for lattice in lattices:
            if lattice is None:
                continue
            found = expanded(lattice, self._old, self._new, self._lm_weight)
            beam = found.lattice.beam
            for one, choice in zip(rescored, choices, strict=True):
                path = found.best(choice.lm_weight, choice.penalty)
                words = path.words
                if choice.mbr or confidences:
                    paths = posterior(found, choice.lm_weight, choice.penalty, beam)
                    decision = decide(paths, words, ROUNDS if choice.mbr else 0)
                    words = decision.words
                    one.confidences += decision.confidences
                    one.cut += paths.beam < beam
                one.words += [self._names[k - 1] for k in words]
                one.cost += path.cost
                one.acoustic_cost += path.acoustic_cost
                one.beam = min(one.beam, beam)
                one.narrowed += found.lattice is not lattice
        return rescored


def tune_rescoring(
    search: Callable[[list[RescoringChoice]], Iterable[list[list[str]]]],
    transcripts: Sequence[str],
    weights: list[float],
    penalties: list[float],
    mbr: list[bool],
    normaliser: Normaliser,
) -> tuple[RescoringChoice, list[tuple[RescoringChoice, WordErrors]], list[str]]:
    """Choose the weight and penalty with the fewest errors.

    All pairs are tried. Of pairs that tie, the one nearest to their mean is taken; a list whose end
    is best is extended, as in `decode.tune`. Then the best pair is tried with each of `mbr`; of
    ties, False is taken.

    Args:
        search: returns each utterance's words by choice, in the order of the transcripts.
    Returns:
        The choice, the errors of all pairs, and the lists whose end is chosen nevertheless.
    """
    references = [normaliser.reference(text) for text in transcripts]
    tried: dict[RescoringChoice, WordErrors] = {}

    def try_all(choices: list[RescoringChoice]) -> None:
        choices = [choice for choice in choices if choice not in tried]
        if not choices:
            return
        sums = [WordErrors()] * len(choices)
        for reference, rows in zip(references, search(choices), strict=True):
            known: dict[str, WordErrors] = {}
            for i, heard in enumerate(map(" ".join, rows)):
                if heard not in known:
                    known[heard] = WordErrors.between(reference, normaliser.hypothesis(heard))
                sums[i] += known[heard]
        tried.update(zip(choices, sums, strict=True))

    axes = {"rescore_lm_weights": sorted(weights), "rescore_penalties": sorted(penalties)}
    longest = {name: len(values) + GROWN for name, values in axes.items()}
    while True:
        grid = [RescoringChoice(weight, nats) for weight, nats in itertools.product(*axes.values())]
        try_all(grid)
        chosen = _middle(axes, tried)
        ends = {
            name: at
            for (name, values), at in zip(axes.items(), chosen, strict=True)
            if len(values) > 1 and at in (0, len(values) - 1)
        }
        growing = {name: at for name, at in ends.items() if len(axes[name]) < longest[name]}
        if not growing:
            weight, nats = (v[at] for v, at in zip(axes.values(), chosen, strict=True))
            last = [RescoringChoice(weight, nats, each) for each in sorted(set(mbr))]
            try_all(last)
            best = min(last, key=lambda choice: tried[choice].errors)
            return best, list(tried.items()), list(ends)
        for name, at in growing.items():
            extend(axes[name], at, name == "rescore_lm_weights")


def _middle(
    axes: dict[str, list[float]], tried: dict[RescoringChoice, WordErrors]
) -> tuple[int, ...]:
    """Return both indices of the best pair: of those that tie, the nearest to their mean."""
    weights, penalties = axes.values()
    counts = np.array([[tried[RescoringChoice(w, p)].errors for p in penalties] for w in weights])
    tied_K2 = np.argwhere(counts == counts.min())
    distance_K = np.abs(tied_K2 - tied_K2.mean(0)).sum(1)
    return tuple(int(at) for at in tied_K2[int(np.argmin(distance_K))])
