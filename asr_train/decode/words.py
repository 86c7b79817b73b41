"""Scores and HCLG -> the words of a split, in worker processes, with times.

Without lattices, FasterDecoder finds the best path. With them (nbest > 0), our own search also
gives n-best lists, a confidence for each word and the lattice's oracle errors. Word times come from
an alignment of the words found.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from asr_train.align.table import words_in_seconds
from asr_train.align.viterbi import Aligner, Lost
from asr_train.data.features import Utterance
from asr_train.decode.pieces import LONGEST, pieces
from asr_train.decode.scorer import Scorer, known_states
from asr_train.jobs import map_in_chunks
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import SILENCE
from asr_train.schema import AliSettings, DecodeSettings
from asr_train.schema.decode import MaxActive
from asr_train.schema.limits import Checked, Natural, Positive
from asr_train.search.beam import Path, beam_search
from asr_train.search.forced import ready
from asr_train.search.graph import Graph
from asr_train.search.lattice import MAX_ARCS, Lattice, Lattices, best_path
from asr_train.search.mbr import compile_confidences, confidences
from asr_train.search.nbest import lattice_oracle, list_oracle, nbest
from asr_train.search.pack import pack

ALIGN_BEAM = 200.0  # nats, for word times
WIDER = 2.0  # factor of the beam for utterances whose search reached no final state
CHUNK = 8  # utterances per task of a worker process

Found = TypeVar("Found", Path, Lattice)
# Word, start and duration in seconds, confidence: None without lattices
TimedWord = tuple[str, float, float, float | None]


@dataclass(frozen=True, slots=True)
class Choice(Checked):
    """The weights of acoustic scores and graph."""

    acoustic_scale: Positive
    insertion_penalty: float  # nats per word; in the graph
    lm_weight: float  # in the graph


@dataclass(frozen=True, slots=True)
class Effort(Checked):
    """The width of the search; as in `schema.DecodeSettings`."""

    beam: Positive
    max_active: MaxActive
    lattice_beam: Positive
    nbest: Natural


Width = Effort | DecodeSettings  # of a search for the best path, beam and max_active


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The words decoded in one utterance.

    Attributes:
        words: empty if the search found nothing.
        words_at: the words with their times; None if they could not be aligned.
        graph_cost, acoustic_cost: nats, as weighed.
        seconds: of scoring and searching; real_time_factor: relative to the utterance's length.
        final: the search reached a final state, in all pieces that are not silence.
        pieces: number of pieces of the recording; see `decode.pieces`.
    """

    id: str
    words: list[str]
    words_at: list[TimedWord] | None
    graph_cost: float
    acoustic_cost: float
    frames: int
    seconds: float
    real_time_factor: float
    final: bool
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The n-best list of one utterance.

    Attributes:
        sentences: words, graph cost and acoustic cost of each, cheapest first.
        complete: no cheaper word sequence is missing.
        oracle_errors, list_errors: edits from the transcript, if there is one, to the nearest path
            of the lattice, and to the nearest sentence of the list; None also for a recording
            decoded in pieces.
        arcs: of the lattice.
        lattices: packed (`search.pack`), of each piece, if they are wanted; b"" if the search found
            nothing.
    """

    id: str
    sentences: list[tuple[list[str], float, float]]
    complete: bool
    oracle_errors: int | None
    list_errors: int | None
    arcs: int
    lattices: tuple[bytes, ...] = ()

    def row(self) -> dict[str, Any]:
        """Return the row of nbest.SPLIT.jsonl: all but the lattices."""
        return {name: value for name, value in asdict(self).items() if name != "lattices"}


Decoded = tuple[Hypothesis, Alternatives | None]

# What a search finds whose tokens do not survive to the last frame
NOTHING = Path(np.zeros(0, np.int32), [], 0.0, 0.0, False)


def _to_the_end(search: Callable[[float], Found | None], beam: float) -> Found | None:
    """Search within a beam, and within a wider one if no final state is reached."""
    found = search(beam)
    if found is None or not found.final:
        found = search(beam * WIDER) or found
    return found


def search(graph: Graph, scores_TS: np.ndarray, scale: float, beam: float, max_active: int) -> Path:
    """Return the best path of unscaled scores; one without words if the search finds nothing."""
    scaled_TS = scores_TS * np.float32(scale)
    found = _to_the_end(lambda width: beam_search(graph.fst, scaled_TS, width, max_active), beam)
    return found or NOTHING


def silent_states(scorer: Scorer, utterance: Utterance) -> list[int]:
    """Return the states of silence, of which alone a piece may be; none if it is the whole."""
    return list(known_states(scorer).of(SILENCE)) if utterance.seconds > LONGEST else []


def is_silence(cost: float, scores_TS: np.ndarray, scale: float, silent: list[int]) -> bool:
    """Return whether silence explains a piece at least as well as the words found in it.

    A grammar may ask for a word in every sentence, but not every piece of a recording has one.

    Args:
        cost: of the words, acoustic.
    """
    if not silent:
        return False
    likelihood = scores_TS[:, silent].max(1).sum(dtype=np.float64)
    return bool(-scale * likelihood <= cost)


def words_of(
    scorer: Scorer, utterance: Utterance, searches: Sequence[tuple[Graph, float]], width: Width
) -> list[list[int]]:
    """Return the words that each search finds; none in pieces that are silence.

    Args:
        searches: graphs, and the acoustic scales in them.
    """
    found = [list[int]() for _ in searches]
    silent = silent_states(scorer, utterance)
    for _, scores_TS in pieces(scorer, utterance):
        for ids, (graph, scale) in zip(found, searches, strict=True):
            best = search(graph, scores_TS, scale, width.beam, width.max_active)
            if not is_silence(best.acoustic_cost, scores_TS, scale, silent):
                ids += best.words
    return found


def lattice_of(
    lattices: Lattices, scaled_TS: np.ndarray, effort: Effort, max_arcs: int = MAX_ARCS
) -> Lattice | None:
    """Search scaled scores; None if no token survives to the last frame."""
    most, lattice_beam = effort.max_active, effort.lattice_beam
    return _to_the_end(
        lambda width: lattices.decode(scaled_TS, width, most, lattice_beam, max_arcs=max_arcs),
        effort.beam,
    )


# Alignment of decoded words: like transcripts, with unscaled acoustics and transitions
ALIGNING = AliSettings(
    beam=ALIGN_BEAM, retry_beam=5 * ALIGN_BEAM, acoustic_scale=1.0, max_lost_share=1.0
)


@dataclass(eq=False)
class Recogniser:
    """A model, its graph and their weights; built before worker processes are forked.

    Attributes:
        graph: HCLG, made with the choice's weight and penalty; with arrays if lattices are wanted.
        shift_seconds: from one frame to the next.
        lattices: the search in this graph; None: made from its arrays.
        keep: whether to return lattices, too.
        spread: whether words that cannot be aligned, as in a piece of less than a frame per state,
            are spread evenly over it; else the utterance has no times.
    """

    scorer: Scorer
    lang: Lang
    graph: Graph
    choice: Choice
    effort: Effort
    shift_seconds: float
    lattices: Lattices | None = None
    keep: bool = False
    spread: bool = False

    def __post_init__(self) -> None:
        self._aligner = Aligner(self.lang, known_states(self.scorer), self.scorer.loop_S, ALIGNING)
        self._names = self.lang.lexicon.words
        if not self.effort.nbest:
            self.lattices = None
        elif self.lattices is None:
            assert self.graph.arrays is not None
            self.lattices = Lattices(self.graph.arrays, self.scorer.num_states)
            compile_confidences()

    def __call__(self, utterance: Utterance) -> Decoded:
        """Decode one utterance, in pieces if it is long."""
        found, lattices, seconds = [], [], 0.0
        words_at: list[TimedWord] | None = []
        silent, scale = silent_states(self.scorer, utterance), self.choice.acoustic_scale
        start = time.perf_counter()
        for frame, scores_TS in pieces(self.scorer, utterance):
            path, sure, lattice = self._piece(scores_TS)
            unlike = (path.words or not path.final) and path is not NOTHING  # which has no costs
            if unlike and is_silence(path.acoustic_cost, scores_TS, scale, silent):
                # Complete, though a sentence of the graph may have to go on
                path, sure, lattice = replace(path, words=[], final=True), [], None
            found.append(path)
            lattices.append(lattice)
            seconds += time.perf_counter() - start
            times = self._times(self._named(path), scores_TS, sure, frame * self.shift_seconds)
            words_at = None if words_at is None or times is None else words_at + times
            start = time.perf_counter()
        words = [word for path in found for word in self._named(path)]
        graph_cost = sum(path.graph_cost for path in found)
        acoustic_cost = sum(path.acoustic_cost for path in found)
        alternatives = None
        if self.lattices is not None and len(found) == 1:
            alternatives = self._alternatives(utterance, lattices[0])
        elif self.lattices is not None:  # lists of pieces do not combine to one of the whole
            sentences = [(words, graph_cost, acoustic_cost)]
            arcs = sum(len(lattice.arcs_A) for lattice in lattices if lattice is not None)
            alternatives = Alternatives(utterance.id, sentences, False, None, None, arcs)
        if alternatives is not None and self.keep:
            packed = tuple(b"" if lattice is None else pack(lattice) for lattice in lattices)
            alternatives = replace(alternatives, lattices=packed)
        hypothesis = Hypothesis(
            utterance.id,
            words,
            words_at,
            graph_cost,
            acoustic_cost,
            utterance.frames,
            round(seconds, 4),
            round(seconds / utterance.seconds, 5),
            all(path.final for path in found),
            len(found),
        )
        return hypothesis, alternatives

    def _piece(self, scores_TS: np.ndarray) -> tuple[Path, list[float] | None, Lattice | None]:
        """Return a piece's best path, the confidences of its words, and the lattice."""
        effort, scale = self.effort, self.choice.acoustic_scale
        if self.lattices is None:
            path = search(self.graph, scores_TS, scale, effort.beam, effort.max_active)
            return path, None, None
        lattice = lattice_of(self.lattices, scores_TS * np.float32(scale), effort)
        if lattice is None:
            return NOTHING, [], None
        best = best_path(lattice)
        return best, confidences(lattice, best.words), lattice

    def _named(self, path: Path) -> list[str]:
        return [self._names[i - 1] for i in path.words]

    def _alternatives(self, utterance: Utterance, lattice: Lattice | None) -> Alternatives:
        known = self.lang.word_ids
        reference = [known.get(word, 0) for word in utterance.words.split()]  # 0: equals no word
        if lattice is None:
            missed = len(reference) or None
            return Alternatives(utterance.id, [], True, missed, missed, 0)
        listed = nbest(lattice, self.effort.nbest)
        return Alternatives(
            utterance.id,
            [(self._named(path), path.graph_cost, path.acoustic_cost) for path in listed.sentences],
            listed.complete,
            lattice_oracle(lattice, reference) if reference else None,
            list_oracle(listed.sentences, reference) if reference else None,
            len(lattice.arcs_A),
        )

    def _times(
        self, words: list[str], scores_TS: np.ndarray, sure: list[float] | None, begin: float
    ) -> list[TimedWord] | None:
        if not words:
            return []
        found = self._aligner.align(
            words, len(scores_TS), lambda states, span: scores_TS[span][:, states]
        )
        if not isinstance(found, Lost):
            spans = words_in_seconds(words, found, self.shift_seconds)
        elif self.spread:
            each = len(scores_TS) * self.shift_seconds / len(words)
            spans = [(word, i * each, (i + 1) * each) for i, word in enumerate(words)]
        else:
            return None
        confidence = [None] * len(words) if sure is None else [round(c, 4) for c in sure]
        return [
            (word, round(begin + start, 6), round(end - start, 6), c)
            for (word, start, end), c in zip(spans, confidence, strict=True)
        ]


def transcribe(recognise: Recogniser, utterances: list[Utterance], what: str) -> Iterator[Decoded]:
    """Decode utterances in order, in worker processes."""
    ready()  # of the alignment that gives the words' times
    return map_in_chunks(recognise, utterances, CHUNK, what)
