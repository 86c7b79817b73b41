"""Scales chosen on DEV: decode with each candidate, keep the one with the fewest errors.

The acoustic scale weighs a frame's scores against the graph, the LM weight the grammar against
pronunciations and durations; the insertion penalty is paid per word (positive: fewer words). This
is a coordinate search: one list after the other, with the other values fixed, until nothing
improves. With 63 combinations on spoken digits it found the best one in a third of the time. Along
a list it moves from the best value so far to both sides while one of the next two is better: the
smallest scales are the slowest to search with, and seldom good. Of values that tie, the middle one
is taken; a list whose end is best is extended.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from asr_train.data.features import Utterance
from asr_train.decode.first_pass import adaptation_line, adapted
from asr_train.decode.lists import GROWN, extend, least
from asr_train.decode.scorer import Scorer, known_states
from asr_train.decode.words import Choice, words_of
from asr_train.jobs import map_in_chunks, progress_bar
from asr_train.lang.index import Lang
from asr_train.schema import DecodeSettings
from asr_train.score.normalise import PLAIN, Normaliser
from asr_train.score.words import WordErrors
from asr_train.search.arrays import Arrays
from asr_train.search.graph import Graph, decoding_graph, with_penalty

CHUNK = 4  # utterances per task of a worker process
PATIENCE = 2  # values on each side without improvement that end the search along a list
ROUNDS = 4  # over all lists, at most
LISTS = {
    "acoustic_scale": "acoustic_scales",
    "insertion_penalty": "insertion_penalties",
    "lm_weight": "lm_weights",
}
GEOMETRIC = {"acoustic_scale", "lm_weight"}  # lists that are extended by a factor


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of tuning on DEV.

    Attributes:
        graph: HCLG, made with the choice's weight and penalty.
        tried: the errors of all choices, in the order tried.
        grown: the lists that were extended, with their final values.
        at_end: names of lists whose first or last value is chosen nevertheless.
    """

    best: Choice
    graph: Arrays
    tried: list[tuple[Choice, WordErrors]]
    grown: dict[str, list[float]]
    at_end: list[str]


def tune(
    scorer: Scorer,
    lang: Lang,
    utterances: list[Utterance],
    settings: DecodeSettings,
    normaliser: Normaliser = PLAIN,
    log: Callable[[str], None] = lambda line: None,
) -> Tuned:
    """Search the settings' lists, one after the other, from the middle of each.

    Speakers are adapted once, to the words of a first pass with the middle values.

    Args:
        log: receives a line about every graph that is built, and about speaker adaptation.
    """
    graphs: dict[float, Arrays] = {}

    def graph_of(choice: Choice) -> Arrays:
        if choice.lm_weight not in graphs:
            start = time.time()
            built = decoding_graph(
                lang,
                known_states(scorer),
                scorer.loop_S,
                choice.lm_weight,
                settings.minimise,
                settings.self_loop_scale,
            )
            graphs[choice.lm_weight] = built
            seconds = time.time() - start
            log(f"graph: {len(built.final_N)} nodes, {len(built.arcs_A)} arcs, {seconds:.1f} s")
        return with_penalty(graphs[choice.lm_weight], choice.insertion_penalty)

    if scorer.adapt is not None:
        first = middle(settings)
        graph = Graph.of(graph_of(first))
        scorer, about = adapted(scorer, lang, graph, first, settings, utterances)
        log(adaptation_line(about))
    names = lang.lexicon.words
    with progress_bar(f"tuning {scorer.run}", 0) as bar:

        def decoded(choices: list[Choice]) -> list[WordErrors]:
            """Decode all utterances with every choice."""
            bar.total += len(choices) * len(utterances)
            weights = {(c.lm_weight, c.insertion_penalty): c for c in choices}
            ready = {pair: Graph.of(graph_of(choice)) for pair, choice in weights.items()}
            searches = [
                (ready[c.lm_weight, c.insertion_penalty], c.acoustic_scale) for c in choices
            ]

            def errors(utterance: Utterance) -> list[WordErrors]:
                reference = normaliser.reference(utterance.words)
                found = words_of(scorer, utterance, searches, settings)
                texts = (" ".join(names[k - 1] for k in ids) for ids in found)
                return [WordErrors.between(reference, normaliser.hypothesis(t)) for t in texts]

            total = [WordErrors()] * len(choices)
            for counts in map_in_chunks(errors, utterances, CHUNK, ""):
                total = [a + b for a, b in zip(total, counts, strict=True)]
                bar.update(len(choices))
            return total

        best, tried, grown, at_end = walked(settings, decoded)
    return Tuned(best, graph_of(best), tried, grown, at_end)


def walked(
    settings: DecodeSettings, decoded: Callable[[list[Choice]], list[WordErrors]]
) -> tuple[Choice, list[tuple[Choice, WordErrors]], dict[str, list[float]], list[str]]:
    """Search along the lists, extending them, until nothing improves.

    Args:
        decoded: returns the errors of choices.
    Returns:
        The best choice; and tried, grown and at_end of `Tuned`.
    """
    best, tried = middle(settings), dict[Choice, WordErrors]()
    lists = {name: sorted(getattr(settings, key)) for name, key in LISTS.items()}
    sizes = {name: len(values) for name, values in lists.items()}
    for _ in range(ROUNDS):
        before = best
        for name, values in lists.items():
            while True:
                row = {value: replace(best, **{name: value}) for value in values}
                counts = [tried[row[v]].errors if row[v] in tried else None for v in values]
                at = values.index(getattr(best, name))
                if any(count is not None for count in counts):
                    at = least(counts)
                    best = row[values[at]]
                near = values[max(0, at - PATIENCE) : at + PATIENCE + 1]
                new = [row[value] for value in near if row[value] not in tried]
                at_end = len(values) > 1 and at in (0, len(values) - 1)
                if not new and at_end and len(values) < sizes[name] + GROWN:
                    extend(values, at, name in GEOMETRIC)
                    new = [replace(best, **{name: values[-1 if at else 0]})]
                if not new:
                    break
                tried.update(zip(new, decoded(new), strict=True))
        if best == before:
            break
    grown = {LISTS[name]: v for name, v in lists.items() if len(v) > sizes[name]}
    at_ends = [
        LISTS[name]
        for name, values in lists.items()
        if len(values) > 1 and getattr(best, name) in (values[0], values[-1])
    ]
    return best, list(tried.items()), grown, at_ends


def middle(settings: DecodeSettings) -> Choice:
    """Return the first candidate: the middle of each list."""
    lists = {name: sorted(getattr(settings, key)) for name, key in LISTS.items()}
    return Choice(**{name: values[len(values) // 2] for name, values in lists.items()})
