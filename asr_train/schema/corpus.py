"""Sources of recordings: conf/corpus."""

import re
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Annotated, Any, ClassVar

from asr_train.schema.fields import LEFT_OUT, SettingsError, at, here
from asr_train.schema.limits import (
    Checked,
    Count,
    Interval,
    Natural,
    NotNegative,
    Positive,
    Share,
    between,
)
from asr_train.schema.score import NormaliserKind


@dataclass(kw_only=True, slots=True)
class DigitsSettings(Checked):
    """Digit strings synthesised by espeak-ng; see `data.synth`."""

    speakers: dict[str, int]
    utterances: dict[str, int]
    words: Interval[Count]
    sample_rate: Annotated[int, between(4000, 192_000)]
    snr_db: Interval[float]
    level_db: Interval[float]

    def check(self) -> None:
        between(-90, 0)(level_db=self.level_db[1])
        _check_same_splits(speakers=self.speakers, utterances=self.utterances)
        for split, count in self.utterances.items():
            if not 1 <= self.speakers[split] <= count:
                raise SettingsError(
                    f"{here()}: {split} has {self.speakers[split]} speakers "
                    f"for {count} utterances; each speaker needs one"
                )


def _check_same_splits(**of_splits: dict[str, Any]) -> None:
    (first, a), (second, b) = of_splits.items()
    if set(a) != set(b):
        raise SettingsError(
            f"{at(first)} has the splits {sorted(a)} but {second} has {sorted(b)}; they must agree"
        )


TEST_SPLIT = re.compile("test_[a-z0-9_]+")  # names of further test splits
HUMAN = "test_human"  # the test set of `CommandsSettings.human`


@dataclass(kw_only=True, slots=True)
class ConditionSettings:
    """Recording conditions of a further test set; null: those of `test`."""

    room_share: float | None = None  # share of the utterances with room reverberation
    rt60_seconds: list[float] | None = None  # range of the reverberation time; seconds
    drr_db: list[float] | None = None  # range of the direct-to-reverberant energy ratio; dB
    snr_db: list[float] | None = None  # range of the signal-to-noise ratio; dB
    level_db: list[float] | None = None  # range of the peak level relative to full scale; dB
    telephone_rate: int | None = None  # sample rate of a telephone that speech went through; Hz


@dataclass(kw_only=True, slots=True)
class CommandsSettings(Checked):
    """Sentences of a grammar synthesised by espeak-ng; see `data.commands`.

    Attributes:
        conditions: of further test sets, `test_NAME`, with the sentences and voices of `test`.
        human: a folder whose recordings are the test set `test_human`; None: there is none.
        more_dirs: folders whose recordings are used for training, too.
    """

    grammar: str
    max_phone_distance: Annotated[float, between(0, 10)]
    speakers: dict[str, Count]
    hours: dict[str, Positive]
    words_per_minute: Interval[Annotated[int, between(80, 300)]]
    pause_share: Share
    margin_seconds: Interval[float]
    sample_rate: Annotated[int, between(4000, 192_000)]
    room_share: Share
    rt60_seconds: Interval[Positive]
    drr_db: Interval[float]
    snr_db: Interval[float]
    level_db: Interval[float]
    telephone_rate: int | None = None
    conditions: dict[str, ConditionSettings] = field(default_factory=dict)
    human: str | None = field(default=None, metadata={LEFT_OUT: True})
    more_dirs: list[str] = field(default_factory=list, metadata={LEFT_OUT: True})

    def check(self) -> None:
        if not self.grammar:
            raise SettingsError(f"{at('grammar')} is empty; it must name a file in JSGF")
        between(0, 10)(margin_seconds=self.margin_seconds[0])
        between(-90, 0)(level_db=self.level_db[1])
        _check_same_splits(speakers=self.speakers, hours=self.hours)
        between(1000, self.sample_rate)(telephone_rate=self.telephone_rate)
        for name, condition in self.conditions.items():
            _check_test_split("conditions", f"test_{name}")
            try:
                self.under(condition)
            except SettingsError as error:
                raise SettingsError(f"{at('conditions')}.{name}: {error}") from error

    def under(self, condition: ConditionSettings) -> "CommandsSettings":
        """Return the settings of a test set that was recorded otherwise."""
        changed = {name: value for name, value in asdict(condition).items() if value is not None}
        return replace(self, conditions={}, **changed)


def _check_test_split(key: str, split: str) -> None:
    if not TEST_SPLIT.fullmatch(split):
        raise SettingsError(
            f"{at(key)} has the split {split!r}; "
            "its name must be test_ followed by small letters, digits or _"
        )


class Channel(Enum):
    """The treatment of recordings with several channels."""

    refuse = "refuse"
    first = "first"
    mix = "mix"


class SplitBy(Enum):
    """The unit of DEV's or TEST's share."""

    speakers = "speakers"  # which are in no other split
    utterances = "utterances"  # of the training speakers, if there are too few to spare one


class LowRate(Enum):
    """The treatment of recordings with a lower sample rate than the features."""

    drop = "drop"  # and list: their upper bands would be empty
    resample = "resample"


class Digits(Enum):
    """The treatment of transcripts with digits, if the normaliser is not plain."""

    refuse = "refuse"  # dropped and listed: the spoken words are unknown
    each = "each"  # 108 is ONE ZERO EIGHT
    number = "number"  # 108 is ONE HUNDRED EIGHT


@dataclass(kw_only=True, slots=True)
class IntakeSettings(Checked):
    """Requirements on recordings, and the source of DEV; see `data.intake`."""

    GROUP: ClassVar[str]  # the group's path in conf/, for messages of stages
    dev_by: SplitBy
    dev_share: Share
    normaliser: NormaliserKind
    digits: Digits
    sample_rate: Annotated[int, between(4000, 192_000)]
    low_rate: LowRate
    channel: Channel
    duration_tolerance_seconds: NotNegative
    min_seconds: NotNegative
    max_seconds: Positive
    max_dropped_share: Share

    def check_intake(self, folder: str) -> None:
        if not folder:
            raise SettingsError(f"{at('dir')} is empty; call make with CORPUS_DIR=path")
        if self.min_seconds > self.max_seconds:
            raise SettingsError(
                f"{at('min_seconds')} is {self.min_seconds}, more than {at('max_seconds')}, "
                f"{self.max_seconds}, so that no recording would be used"
            )


@dataclass(kw_only=True, slots=True)
class FolderSettings(IntakeSettings):
    """Folders with `utterances.tsv`; see `data.folder`.

    Attributes:
        dev_dir: a folder that is DEV as a whole, where no speaker of `dir` is held out for it.
        test_dirs: the same of test splits, `test` and `test_NAME`.
    """

    GROUP: ClassVar[str] = "corpus.folder"
    dir: str
    more_dirs: list[str]
    more_tests: dict[str, str]
    dev_speakers: list[str]
    test_speakers: list[str]
    test_by: SplitBy
    test_share: Share
    test_every: int | None
    phone_labels: str | None
    dev_dir: str | None = field(default=None, metadata={LEFT_OUT: True})
    test_dirs: dict[str, str] = field(default_factory=dict, metadata={LEFT_OUT: True})

    def check(self) -> None:
        self.check_intake(self.dir)
        both = set(self.dev_speakers) & set(self.test_speakers)
        if both:
            raise SettingsError(f"{here()}: {sorted(both)} are in dev_speakers and test_speakers")
        if self.test_every is not None and self.test_every < 2:
            raise SettingsError(f"{at('test_every')} is {self.test_every}; it must be 2 or more")
        for split in self.more_tests:
            _check_test_split("more_tests", split)
        for split in self.test_dirs.keys() - {"test"}:
            _check_test_split("test_dirs", split)
        if self.test_dirs and "test" not in self.test_dirs:
            raise SettingsError(f"{at('test_dirs')} has {sorted(self.test_dirs)}; name test, too")
        if twice := sorted(self.test_dirs.keys() & self.more_tests.keys()):
            raise SettingsError(f"{here()}: {twice} are in test_dirs and more_tests")
        by = [None if by is SplitBy.speakers else by.name for by in (self.dev_by, self.test_by)]
        # Without a source, a setting is as written here
        dev: dict[str, Any] = {"dev_by=speakers": by[0], "dev_dir=null": self.dev_dir}
        dev |= {"dev_speakers=[]": self.dev_speakers}
        test: dict[str, Any] = {"test_by=speakers": by[1], "test_dirs={}": self.test_dirs}
        test |= {"test_every=null": self.test_every, "test_speakers=[]": self.test_speakers}
        for sources in (dev, test):
            given = {without: value for without, value in sources.items() if value}
            if len(given) > 1:
                listed = " but ".join(f"{w.partition('=')[0]} is {v}" for w, v in given.items())
                raise SettingsError(
                    f"{at(listed)}: each says what is held out; keep one, without the others: "
                    f"{', '.join(given)}"
                )

    @property
    def held_out(self) -> dict[str, str]:
        """The folders that are a split as a whole, by split."""
        return {**({"dev": self.dev_dir} if self.dev_dir else {}), **self.test_dirs}


class Published(Enum):
    """Corpora known by their layout on disk."""

    librispeech = "librispeech"  # and mini_librispeech
    an4 = "an4"
    yesno = "yesno"
    swbd = "swbd"  # Switchboard-1, and Hub5'00 for scoring


@dataclass(kw_only=True, slots=True)
class PublishedSettings(IntakeSettings):
    """A published corpus in its own layout; see `data.published`."""

    GROUP: ClassVar[str] = "corpus.published"
    kind: Published
    dir: str
    splits: dict[str, list[str]]

    def check(self) -> None:
        self.check_intake(self.dir)
        for split in ("train", "dev"):
            if split not in self.splits:
                raise SettingsError(
                    f"{at('splits')} has {', '.join(self.splits)} but not {split}; "
                    "dev: [] takes some of train's speakers or utterances"
                )
        owner: dict[str, str] = {}
        for split, parts in self.splits.items():
            if not parts and split != "dev":
                raise SettingsError(f"{at('splits')}.{split} is empty; it must name parts")
            for part in parts:
                other = owner.setdefault(part, split)
                if other != split and not (other.startswith("test") and split.startswith("test")):
                    raise SettingsError(
                        f"{at('splits')}: {part} is in {other} and in {split}; training or "
                        "tuning data cannot be tested on"
                    )


@dataclass(kw_only=True, slots=True)
class CorpusSettings(Checked):
    """The source of recordings: exactly one of the kinds."""

    seed: Natural
    speeds: list[Annotated[float, between(0.5, 2.0)]]
    speed_speakers: bool
    digits: DigitsSettings | None = None
    commands: CommandsSettings | None = None
    folder: FolderSettings | None = None
    published: PublishedSettings | None = None
    volumes: list[float] | None = field(default=None, metadata={LEFT_OUT: True})

    def check(self) -> None:
        kinds = [self.digits, self.commands, self.folder, self.published]
        if sum(kind is not None for kind in kinds) != 1:
            raise SettingsError(
                f"{here()} needs exactly one of digits, commands, folder and published"
            )
        volumes = [1.0, 1.0] if self.volumes is None else self.volumes
        if len(volumes) != 2 or not 0 < volumes[0] <= volumes[1] <= 100:
            raise SettingsError(
                f"{at('volumes')} is {self.volumes}; it must be the smallest and the largest "
                "factor, from above 0 to 100"
            )
        if 1.0 not in self.speeds or len(set(self.speeds)) < len(self.speeds):
            raise SettingsError(
                f"{at('speeds')} is {self.speeds}; it must hold 1.0, and no speed twice"
            )
