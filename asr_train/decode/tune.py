"""Scales chosen on DEV: every combination is decoded, the one with the fewest errors is kept.

The acoustic scale weighs a frame's scores against the graph, the LM weight the grammar against
pronunciations and durations; the insertion penalty is paid a word (positive: fewer words).
"""

import itertools
from typing import Any

import numpy as np

from asr_train.data.features import Utterance
from asr_train.decode.posteriors import Scorer
from asr_train.decode.words import Choice, search
from asr_train.jobs import parallel_map
from asr_train.lang.index import Lang
from asr_train.schema import DecodeSettings
from asr_train.score.normalise import PLAIN, Normaliser
from asr_train.score.words import WordErrors
from asr_train.search.graph import Arrays, decoding_graph, to_vector

CHUNK = 4  # utterances handed to a worker at a time


def tune(
    scorer: Scorer,
    lang: Lang,
    utterances: list[Utterance],
    settings: DecodeSettings,
    normaliser: Normaliser = PLAIN,
) -> tuple[Choice, Arrays, list[tuple[Choice, WordErrors]]]:
    """Try every combination of the settings' lists.

    Returns:
        The best choice, its graph, and the errors of all choices in the order tried.
    """
    pairs = list(itertools.product(settings.lm_weights, settings.insertion_penalties))
    graphs = {pair: decoding_graph(lang, scorer.loop_S, *pair) for pair in pairs}
    ready = {pair: (to_vector(g), top_label(g)) for pair, g in graphs.items()}
    choices = [Choice(scale, p, w) for w, p in pairs for scale in settings.acoustic_scales]
    chunks = [utterances[i : i + CHUNK] for i in range(0, len(utterances), CHUNK)]
    names = lang.lexicon.words

    def errors(chunk: list[Utterance]) -> list[WordErrors]:
        sums = [WordErrors()] * len(choices)
        for u in chunk:
            scores_TS, said = scorer.score(u), normaliser.reference(u.words)
            for i, c in enumerate(choices):
                graph, top = ready[c.lm_weight, c.insertion_penalty]
                ids, *_ = search(
                    graph, top, scores_TS, c.acoustic_scale, settings.beam, settings.max_active
                )
                heard = normaliser.hypothesis(" ".join(names[k - 1] for k in ids))
                sums[i] += WordErrors.between(said, heard)
        return sums

    total = [WordErrors()] * len(choices)
    for sums in parallel_map(errors, chunks, f"tuning {scorer.run}"):
        total = [a + b for a, b in zip(total, sums, strict=True)]
    tried = list(zip(choices, total, strict=True))
    best, _ = min(tried, key=lambda row: _rank(*row))
    return best, graphs[best.lm_weight, best.insertion_penalty], tried


def _rank(choice: Choice, errors: WordErrors) -> Any:
    """Fewest errors; among equals the smallest penalty, then the smallest scale."""
    return (
        errors.errors,
        abs(choice.insertion_penalty),
        choice.insertion_penalty,
        abs(choice.lm_weight - 1),
        choice.acoustic_scale,
    )


def at_an_edge(best: Choice, settings: DecodeSettings) -> list[str]:
    """Settings whose best value is the first or last of those tried: a wider list may be better."""
    lists = {
        "acoustic_scales": (settings.acoustic_scales, best.acoustic_scale),
        "insertion_penalties": (settings.insertion_penalties, best.insertion_penalty),
        "lm_weights": (settings.lm_weights, best.lm_weight),
    }
    return [
        name
        for name, (values, chosen) in lists.items()
        if len(values) > 1 and chosen in (min(values), max(values))
    ]


def top_label(graph: Arrays) -> int:
    """The largest input label: it must not exceed the model's states."""
    return int(np.max(graph.arcs_A["ilabel"], initial=0))
