"""Scales chosen on DEV: what is tried is decoded, the choice with the fewest errors is kept.

The acoustic scale weighs a frame's scores against the graph, the LM weight the grammar against
pronunciations and durations; the insertion penalty is paid a word (positive: fewer words). One
list after the other is walked, the other values staying as they are, until nothing improves: with
63 combinations of spoken digits this found the best one in a third of the time. A walk goes from
the best value so far to both sides, as long as one of the next two does better: the smallest scales
of a long list are the slowest to search with, and seldom any good.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from asr_train.data.features import Utterance
from asr_train.decode.first import adapted, heard_line
from asr_train.decode.posteriors import Scorer, known_states
from asr_train.decode.words import Choice, search
from asr_train.jobs import parallel_map
from asr_train.lang.index import Lang
from asr_train.schema import DecodeSettings
from asr_train.score.normalise import PLAIN, Normaliser
from asr_train.score.words import WordErrors
from asr_train.search.graph import Arrays, Graph, decoding_graph, with_penalty

CHUNK = 4  # utterances handed to a worker at a time
PATIENCE = 2  # values on each side that do no better, before the walk along a list ends
ROUNDS = 4  # over all lists, at most
LISTS = {
    "acoustic_scale": "acoustic_scales",
    "insertion_penalty": "insertion_penalties",
    "lm_weight": "lm_weights",
}


def tune(
    scorer: Scorer,
    lang: Lang,
    utterances: list[Utterance],
    settings: DecodeSettings,
    normaliser: Normaliser = PLAIN,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[Choice, Arrays, list[tuple[Choice, WordErrors]]]:
    """Walk the settings' lists, one after the other, from the middle of each.

    Speakers are adapted once, to what a first pass with the middle values hears.

    Args:
        log: gets a line about every graph that is built, and about the speakers adapted.
    Returns:
        The best choice, its graph, and the errors of all choices in the order tried.
    """
    tried: dict[Choice, WordErrors] = {}
    graphs: dict[float, Arrays] = {}

    def graph_of(choice: Choice) -> Arrays:
        if choice.lm_weight not in graphs:
            built = decoding_graph(
                lang, known_states(scorer), scorer.loop_S, choice.lm_weight, settings.minimise
            )
            graphs[choice.lm_weight] = built
            log(f"graph: {len(built.final_N)} nodes, {len(built.arcs_A)} arcs")
        return with_penalty(graphs[choice.lm_weight], choice.insertion_penalty)

    best = middle(settings)
    if scorer.adapt is not None:
        scorer, about = adapted(scorer, lang, Graph.of(graph_of(best)), best, settings, utterances)
        log(heard_line(about))
    for _ in range(ROUNDS):
        before = best
        for name, key in LISTS.items():
            values = sorted(getattr(settings, key))
            row = [replace(best, **{name: value}) for value in values]
            while True:
                known = [choice for choice in row if choice in tried]
                best = min(known, key=lambda choice: _rank(choice, tried[choice]), default=best)
                at = row.index(best)
                near = row[max(0, at - PATIENCE) : at + PATIENCE + 1]
                new = [choice for choice in near if choice not in tried]
                if not new:
                    break
                tried.update(_errors(scorer, lang, utterances, settings, normaliser, new, graph_of))
        if best == before:
            break
    return best, graph_of(best), list(tried.items())


def middle(settings: DecodeSettings) -> Choice:
    """What is tried first: the middle of each list."""
    lists = {name: sorted(getattr(settings, key)) for name, key in LISTS.items()}
    return Choice(**{name: values[len(values) // 2] for name, values in lists.items()})


def _errors(
    scorer: Scorer,
    lang: Lang,
    utterances: list[Utterance],
    settings: DecodeSettings,
    normaliser: Normaliser,
    choices: list[Choice],
    graph_of: Callable[[Choice], Arrays],
) -> Iterable[tuple[Choice, WordErrors]]:
    """Decode all utterances with every choice."""
    if not choices:
        return []
    arrays = {(c.lm_weight, c.insertion_penalty): graph_of(c) for c in choices}
    ready = {pair: Graph.of(graph) for pair, graph in arrays.items()}
    chunks = [utterances[i : i + CHUNK] for i in range(0, len(utterances), CHUNK)]
    names = lang.lexicon.words

    def errors(chunk: list[Utterance]) -> list[WordErrors]:
        sums = [WordErrors()] * len(choices)
        for u in chunk:
            scores_TS, said = scorer.score(u), normaliser.reference(u.words)
            for i, c in enumerate(choices):
                graph = ready[c.lm_weight, c.insertion_penalty]
                ids, *_ = search(
                    graph, scores_TS, c.acoustic_scale, settings.beam, settings.max_active
                )
                heard = normaliser.hypothesis(" ".join(names[k - 1] for k in ids))
                sums[i] += WordErrors.between(said, heard)
        return sums

    total = [WordErrors()] * len(choices)
    for sums in parallel_map(errors, chunks, f"tuning {scorer.run}"):
        total = [a + b for a, b in zip(total, sums, strict=True)]
    return list(zip(choices, total, strict=True))


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
