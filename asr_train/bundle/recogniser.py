"""A bundle -> **words in a recording**, or the times of given words: the package's `Recogniser`.

recording --samples_of--> LogMel --Heard--> Scorer --pieces, search--> Transcript
                                                   --viterbi--> Alignment
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from asr_train.align.table import phones_in_seconds, words_in_seconds
from asr_train.align.viterbi import Aligned, Aligner, Lost
from asr_train.bundle.audio import AudioError, Source, samples_of
from asr_train.bundle.store import Bundle, open_bundle, pronounced
from asr_train.checks import spelled
from asr_train.data.features import Heard
from asr_train.data.logmel import LogMel
from asr_train.decode.first_pass import adapted
from asr_train.decode.posteriors import load_scorer
from asr_train.decode.scorer import known_states
from asr_train.decode.words import ALIGNING
from asr_train.decode.words import Recogniser as Search
from asr_train.interop.times import Span
from asr_train.lang.index import Lang
from asr_train.lang.lexicon import Lexicon, odd_among
from asr_train.schema import NormaliserKind
from asr_train.score.normalise import transcribed
from asr_train.search.arrays import check_const, to_fst
from asr_train.search.graph import Graph
from asr_train.search.lattice import Lattices, view_ordered
from asr_train.search.mbr import compile_confidences

# Of the training data, in the mean and variance of a recording or speaker. Without them, digits of
# 2 s have four times as many errors; with 200, global_frames of Kaldi's online-cmvn, words of 0.4 s
# have 22 % more (docs/use.md).
PRIOR_FRAMES = 50
ALTERNATIVES = 10  # sentences at most, where the recipe stores none (decode.nbest=0)


class AlignmentError(ValueError):
    """A text that could not be aligned with its recording."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The words of a recording.

    Attributes:
        words: with start and duration in seconds, and a confidence within 0 and 1 (None: the
            recogniser was loaded without). Words that could not be aligned, as in less than a frame
            per state, are spread evenly over their piece of the recording.
        seconds: of the recording; search_seconds: of computing.
        final: the search reached a final state everywhere.
        pieces: number of them; a long recording is split at pauses, and decoded piece by piece.
            0: it is silent (all frames are equal), so it has no words, and nothing was searched.
        alternatives: the best sentences, cheapest first, which begin with `text`; empty without
            confidences, and `text` alone where there are several pieces.
        rate: Hz, the recording's own.
        unadapted: why a speaker-adaptive model has no transform for its speaker; empty otherwise.
    """

    text: str
    words: tuple[Span, ...]
    seconds: float
    search_seconds: float
    final: bool
    pieces: int
    alternatives: tuple[str, ...]
    rate: int
    unadapted: str = ""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The times of a text in its recording.

    Attributes:
        words, phones: with start and duration in seconds; phones include SIL.
        seconds: of the recording.
        loglik_per_frame: mean log-likelihood per frame, in nats. If it is far below that of other
            recordings, the text is probably wrong.
        rate: the recording's own, in Hz.
        unadapted: as of a Transcript.
    """

    words: tuple[Span, ...]
    phones: tuple[Span, ...]
    seconds: float
    loglik_per_frame: float
    rate: int
    unadapted: str


class Recogniser:
    """A trained model that decodes recordings, and aligns texts with them.

    Threads may share it; their calls wait for each other.

    `manifest` is the content of bundle.json: name (of the recipe), run, wer, data_licence,
    versions, choice (scales on DEV), and more.
    `guessed` are the words of aligned texts whose pronunciation is by rule, in no dictionary.

    >>> from asr_train import Recogniser
    >>> recogniser = Recogniser.load("digits", confidences=False)
    >>> found = recogniser.transcribe(spoken("three oh nine", rate=44_100), rate=44_100)
    >>> found.text
    'THREE OH NINE'
    >>> [span.label for span in recogniser.align(spoken("five"), "Five!").phones]
    ['SIL', 'F', 'AY', 'V', 'SIL']
    """

    def __init__(self, opened: Bundle, confidences: bool = True) -> None:
        """Load an open bundle's parts; see `load`."""
        self.manifest = opened.manifest
        self._lang, self._lexicon = opened.lang, opened.lexicon
        self._odd = odd_among(opened.lang.lexicon.prons, of_file=opened.lexicon is None)
        self._feats = Heard(opened.feats, opened.frames.weighing(PRIOR_FRAMES))
        self._lock = threading.RLock()  # transcribing prepares
        self._logmel = LogMel(opened.feats)
        self._scorer = load_scorer(opened.model, self._feats, opened.lang)
        self._states = known_states(self._scorer)
        self.guessed: set[str] = set()
        self._choice, self._first = opened.choice, opened.first
        self._mapped = opened.fst.mapped(), opened.heights.mapped()
        self._confidences = confidences
        self._searched: tuple[Graph, Lattices | None] | None = None
        nbest = (opened.effort.nbest or ALTERNATIVES) if confidences else 0
        self._effort = replace(opened.effort, nbest=nbest)

    @staticmethod
    def load(bundle: Path | str, confidences: bool = True) -> "Recogniser":
        """Open a bundle: a folder or .tar of `make bundle`, or one of the package (`english`,
        `digits`).

        Its graph is mapped into memory: as long as the recogniser is used, the bundle may be
        deleted or replaced by renaming (as `make bundle` does), but not be changed in place.

        Args:
            confidences: whether to search lattices, which give confidences and alternatives. This
                search is compiled when it is first used, once per installation.
        Raises:
            FileNotFoundError: if there is no such bundle.
            ValueError: if it is damaged, or of another version; says what to do.
        """
        with open_bundle(bundle) as opened:
            return Recogniser(opened, confidences)

    def prepare(self) -> tuple[Graph, Lattices | None]:
        """Get ready the search, as the first transcription does; return its graph, and lattices.

        The search for the best path copies its graph; the one for lattices uses it where it is
        mapped, and is compiled, or loaded if it was compiled before (a second). Call this before
        worker processes are forked: they share the result.

        Raises:
            ValueError: if the graph leads beyond its nodes, the states of the model or the words,
                or in a circle.
        """
        if self._searched is not None:
            return self._searched
        with self._lock:
            if self._searched is None:  # no other thread was faster
                fst, heights = self._mapped
                check_const(fst, self._scorer.num_states, len(self._lang.lexicon.words))
                graph = view_ordered(fst, heights)
                lattices = None
                if self._confidences:
                    lattices = Lattices(graph, self._scorer.num_states)
                    compile_confidences()
                alone = lattices is None or self._scorer.adapt is not None
                self._searched = Graph(to_fst(fst) if alone else None), lattices
                del self._mapped
            return self._searched

    @property
    def sample_rate(self) -> int:
        """The sample rate in Hz that recordings are converted to; lower ones lack upper bands."""
        return self._feats.settings.sample_rate

    @property
    def shift_seconds(self) -> float:
        """The distance of frames."""
        return self._feats.settings.shift_seconds

    def transcribe(
        self, audio: Source, rate: int | None = None, channel: int | None = None
    ) -> Transcript:
        """Decode a recording of any length, format, rate and number of channels.

        A recording of more than a minute is split at pauses into pieces; an hour takes 1.6 GB.

        Args:
            audio: path, open file (read from its beginning, if it can seek), or samples [N] or
                [N, channels]: floats in [-1, 1] or integers.
            rate: Hz, of samples; None: they are taken to have `sample_rate`.
            channel: from 0; None: the mean of all.
        Raises:
            FileNotFoundError: for a missing file.
            AudioError: (a ValueError) if it cannot be used; names it.
        """
        return self.transcribe_features([self.features(audio, rate, channel)])[0]

    def transcribe_features(
        self, recordings: Sequence[tuple[np.ndarray, float, int]]
    ) -> list[Transcript]:
        """Decode the recordings of one speaker, normalised and adapted as a whole.

        A speaker-adaptive model needs five seconds of speech for a transform; with less, frames
        stay unadapted, and the transcripts say so.

        Args:
            recordings: of each, what `features` returns.
        """
        if not recordings:
            return []
        silent = [_is_silent(features_TF) for features_TF, *_ in recordings]
        if any(silent):
            pairs = list(zip(recordings, silent, strict=True))
            rest = iter(
                self.transcribe_features([one for one, is_silent in pairs if not is_silent])
            )
            return [
                Transcript("", (), round(seconds, 6), 0.0, True, 0, ("",) * self._confidences, rate)
                if is_silent
                else next(rest)
                for (_, seconds, rate), is_silent in pairs
            ]
        with self._alone():
            graph, lattices = self.prepare()
            utterances = [
                self._feats.put(str(i), "speaker", "", features_TF, seconds)
                for i, (features_TF, seconds, _) in enumerate(recordings)
            ]
            scorer, lang, unadapted = self._scorer, self._lang, ""
            if scorer.adapt is not None:
                scorer, about = adapted(scorer, lang, graph, self._first, self._effort, utterances)
                unadapted = "; ".join(why for _, why in about["kept"])
            how = self._choice, self._effort, self.shift_seconds, lattices
            search = Search(scorer, lang, graph, *how, spread=True)
            found = [search(utterance) for utterance in utterances]
        return [
            Transcript(
                " ".join(one.words),
                tuple(_within(Span(*item), seconds) for item in one.words_at or []),
                round(seconds, 6),
                one.seconds,
                one.final,
                one.pieces,
                tuple(" ".join(words) for words, *_ in others.sentences) if others else (),
                rate,
                unadapted,
            )
            for (one, others), (_, seconds, rate) in zip(found, recordings, strict=True)
        ]

    def align(
        self, audio: Source, text: str, rate: int | None = None, channel: int | None = None
    ) -> Alignment:
        """Return the times of a text's words and phones in a recording.

        Punctuation is removed. Words that the bundle has no pronunciation of are looked up as in
        the recipe (dictionary, then a guess); their phones must be the model's.

        Args:
            audio, rate, channel: as in `transcribe`.
        Raises:
            FileNotFoundError, AudioError: as in `transcribe`.
            AlignmentError: (a ValueError) with the reason.
        """
        heard = self.features(audio, rate, channel)
        (found,) = self.align_features([Spoken(_name(audio), "", text, *heard)])
        if isinstance(found, AlignmentError):
            raise found
        return found

    def features(
        self, audio: Source, rate: int | None = None, channel: int | None = None
    ) -> tuple[np.ndarray, float, int]:
        """Return a recording's features: float32 [T, F]; its seconds; and its own rate in Hz."""
        wave_N, own_rate = samples_of(audio, self.sample_rate, rate, channel)
        features_TF = self._logmel(wave_N)
        name = _name(audio)
        if not len(features_TF):
            raise AudioError(
                f"{name} has {spelled(len(wave_N), 'sample')} at {self.sample_rate} Hz, less than "
                "a frame"
            )
        if not np.isfinite(features_TF).all():
            raise AudioError(
                f"{name} has samples of up to {np.abs(wave_N).max():g}, full scale is 1; repair it"
            )
        return features_TF, len(wave_N) / self.sample_rate, own_rate

    def align_features(
        self, spoken: "Sequence[Spoken]", what: str = ""
    ) -> "list[Alignment | AlignmentError]":
        """Align many texts in worker processes; speakers are normalised and adapted as a whole.

        Args:
            what: label of a progress bar; "": none is shown.
        """
        texts = [transcribed(one.text, NormaliserKind.words, self._odd) for one in spoken]
        vocabulary = {word for words in texts for word in words}
        lang = self._pronouncing(vocabulary)
        self.guessed |= vocabulary.intersection(lang.lexicon.guessed)
        with self._alone():
            utterances = [
                self._feats.put(str(i), one.speaker, " ".join(words), one.features_TF, one.seconds)
                for i, (one, words) in enumerate(zip(spoken, texts, strict=True))
            ]
            pairs = list(zip(utterances, texts, strict=True))
            scorer, kept = self._scorer, {}
            if scorer.adapt is not None:
                scorer, about = scorer.adapt(pairs, lang, ALIGNING)
                kept = dict(about["kept"])
            aligner = Aligner(lang, self._states, scorer.loop_S, ALIGNING)
            outcomes = aligner.align_all(scorer.scores, pairs, what)
        return [
            AlignmentError(f"{one.name}: it is silent: all frames are equal; record it again")
            if words and _is_silent(one.features_TF)
            else AlignmentError(f"{one.name}: {outcome.reason}")
            if isinstance(outcome, Lost)
            else self._times(words, outcome, one, kept.get(one.speaker, ""))
            for one, words, outcome in zip(spoken, texts, outcomes, strict=True)
        ]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one thread at a time have features; forget them at the end."""
        with self._lock:
            try:
                yield
            finally:
                self._feats.clear()

    def _times(
        self, words: list[str], outcome: Aligned, one: "Spoken", unadapted: str
    ) -> Alignment:
        shift, seconds = self.shift_seconds, one.seconds

        def spans(segments: list[tuple[str, float, float]]) -> tuple[Span, ...]:
            timed = (Span(s, start, round(end - start, 6)) for s, start, end in segments)
            return tuple(_within(span, seconds) for span in timed)

        word_spans = spans(words_in_seconds(words, outcome, shift))
        phone_spans = spans(phones_in_seconds(self._states, outcome, shift))
        loglik_per_frame = outcome.loglik / len(outcome.states_T)
        seconds = round(seconds, 6)
        return Alignment(word_spans, phone_spans, seconds, loglik_per_frame, one.rate, unadapted)

    def _pronouncing(self, words: set[str]) -> Lang:
        """Return the language with the pronunciations of further words, as far as known."""
        known = self._lang.lexicon.prons
        if self._lexicon is None or not (unknown := words - known.keys()):
            return self._lang
        found = pronounced(self._lexicon, unknown, self._states)
        guessed = (*self._lang.lexicon.guessed, *found.guessed)
        lexicon = Lexicon(dict(sorted({**known, **found.prons}.items())), guessed=guessed)
        return replace(self._lang, lexicon=lexicon)


def _name(audio: Source) -> str:
    return str(audio) if isinstance(audio, str | Path) else "the recording"


def _is_silent(features_TF: np.ndarray) -> bool:
    """Return whether all frames are equal, as those of samples that are all zero."""
    return len(features_TF) > 1 and not np.ptp(features_TF, axis=0).any()


def _within(span: Span, seconds: float) -> Span:
    """Cut a span where its recording ends: within the last frame."""
    start = min(span.start, seconds)
    return replace(span, start=start, seconds=round(min(span.seconds, seconds - start), 6))


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A text and the features of its recording.

    Attributes:
        name: for messages.
        features_TF, seconds, rate: as by `Recogniser.features`.
    """

    name: str
    speaker: str
    text: str
    features_TF: np.ndarray
    seconds: float
    rate: int
