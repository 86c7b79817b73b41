"""Scores and HCLG -> the words of a split, in worker processes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_train.data.features import Utterance
from asr_train.decode.posteriors import Scorer
from asr_train.jobs import parallel_map
from asr_train.search.beam import Beam

WIDER = 2.0  # times the beam, for utterances whose search did not end where the graph ends
CHUNK = 8  # utterances handed to a worker at a time


@dataclass(frozen=True, slots=True)
class Choice:
    """How acoustic scores and graph are weighed against each other."""

    acoustic_scale: float
    insertion_penalty: float  # nats a word; in the graph
    lm_weight: float  # in the graph


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The words found in one utterance.

    Attributes:
        words: empty where the search found nothing.
        graph_cost, acoustic_cost: nats, as weighed.
        seconds: spent on scoring and searching.
        final: the search ended where the graph ends.
    """

    id: str
    words: list[str]
    graph_cost: float
    acoustic_cost: float
    frames: int
    seconds: float
    final: bool


def search(
    graph: Any, top_label: int, scores_TS: np.ndarray, scale: float, beam: float, max_active: int
) -> tuple[list[int], float, float, bool]:
    """Word ids, graph and acoustic cost, and whether the end was reached (wider beam included)."""
    scaled_TS = scores_TS * np.float32(scale)
    found = None
    for width in (beam, beam * WIDER):
        path = Beam(graph, scores_TS.shape[1], width, max_active, top_label).best_path(scaled_TS)
        found = path or found
        if path is not None and path.final:
            break
    if found is None:
        return [], 0.0, 0.0, False
    return found.words, found.graph_cost, found.acoustic_cost, found.final


def transcribe(
    scorer: Scorer,
    graph: Any,
    top_label: int,
    words: list[str],
    utterances: list[Utterance],
    choice: Choice,
    beam: float,
    max_active: int,
) -> Iterator[Hypothesis]:
    """Decode utterances in their order.

    Args:
        graph: HCLG, made with the choice's penalty and weight; top_label is its largest label.
        words: of the lexicon, in the order of their ids.
    """
    chunks = [utterances[i : i + CHUNK] for i in range(0, len(utterances), CHUNK)]

    def some(chunk: list[Utterance]) -> list[Hypothesis]:
        found = []
        for u in chunk:
            start = time.perf_counter()
            ids, graph_cost, acoustic_cost, final = search(
                graph, top_label, scorer.score(u), choice.acoustic_scale, beam, max_active
            )
            seconds = time.perf_counter() - start
            said = [words[i - 1] for i in ids]
            found.append(
                Hypothesis(u.id, said, graph_cost, acoustic_cost, u.frames, seconds, final)
            )
        return found

    for hypotheses in parallel_map(some, chunks, f"decoding with {scorer.run}"):
        yield from hypotheses
