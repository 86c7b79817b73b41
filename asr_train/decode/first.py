"""A first pass without transforms -> words -> the speakers' transforms -> a scorer for the next.

No transcript is looked at: a split's speakers are adapted to what was heard of them.
"""

import time
from typing import Any, Protocol

from asr_train.align.adapt import speakers_line
from asr_train.data.features import Utterance
from asr_train.decode.posteriors import Scorer
from asr_train.decode.words import Choice, aligning, search, top_label
from asr_train.jobs import parallel_map
from asr_train.lang.index import Lang
from asr_train.search.graph import Arrays, to_const

CHUNK = 8  # utterances handed to a worker at a time


class Width(Protocol):
    """How wide is searched."""

    beam: float
    max_active: int


def adapted(
    scorer: Scorer,
    lang: Lang,
    graph: Arrays,
    choice: Choice,
    width: Width,
    utterances: list[Utterance],
) -> tuple[Scorer, dict[str, Any]]:
    """Adapt a scorer to the speakers of some utterances.

    Args:
        graph: HCLG, made with the choice's weight and penalty.
    Returns:
        The scorer; and how many speakers were adapted, what that wins, why others were not
        (`align.adapt.Adapted.summary`), the first pass's seconds of scoring and searching, and
        those of all by the clock.
    """
    assert scorer.adapt is not None
    start = time.time()
    ready, top, names = to_const(graph), top_label(graph), lang.lexicon.words

    def heard(chunk: list[Utterance]) -> list[tuple[list[str], float]]:
        found = []
        for u in chunk:
            begin = time.perf_counter()
            scores_TS = scorer.score(u)
            ids, *_ = search(
                ready, top, scores_TS, choice.acoustic_scale, width.beam, width.max_active
            )
            found.append(([names[i - 1] for i in ids], time.perf_counter() - begin))
        return found

    chunks = [utterances[i : i + CHUNK] for i in range(0, len(utterances), CHUNK)]
    done = [f for some in parallel_map(heard, chunks, f"{scorer.run}: first pass") for f in some]
    said = [(u, words) for u, (words, _) in zip(utterances, done, strict=True)]
    new, about = scorer.adapt(said, lang, aligning(choice))
    seconds = {
        "first_pass_seconds": round(sum(s for _, s in done), 3),
        "wall_seconds": round(time.time() - start, 3),
    }
    return new, about | seconds


def heard_line(about: dict[str, Any]) -> str:
    """What `adapted` says of the speakers, for the eye."""
    return f"first pass: {speakers_line(about)}, {about['wall_seconds']:.1f} s"
