"""Checks of a corpus over all its splits, before anything is computed.

in    manifests/SPLIT.jsonl.gz of every split, and what was dropped from them
out   lines to print; or a CorpusError that names the problem, both values and a remedy
Knows nothing of audio: data.intake has read each recording.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_train import schema
from asr_train.checks import few, spelled, too_many_lost
from asr_train.data.corpus import CorpusError, own_rate, read_cuts
from asr_train.data.remarks import Remark, read_remarks, reasons
from asr_train.lang.lexicon import Lexicon


@dataclass(frozen=True, slots=True)
class Split:
    """The manifest of a split, and remarks on its utterances."""

    name: str
    rows: list[dict[str, Any]]
    remarks: list[Remark]

    @property
    def texts(self) -> Iterator[list[str]]:
        return (row["supervisions"][0]["text"].split() for row in self.rows)

    @property
    def recorded(self) -> int:
        """The number of utterances, without speed copies."""
        supervisions = (row["supervisions"][0] for row in self.rows)
        return sum("speed" not in (s.get("custom") or {}) for s in supervisions)

    def __str__(self) -> str:
        words = Counter(word for text in self.texts for word in text)
        speakers = {row["supervisions"][0]["speaker"] for row in self.rows}
        rates = sorted({own_rate(row["recording"]) for row in self.rows})
        minutes = sum(row["duration"] for row in self.rows) / 60
        return (
            f"{self.name}: {spelled(len(self.rows), 'utterance')}, "
            f"{spelled(len(speakers), 'speaker')}, {minutes:.1f} minutes at "
            f"{', '.join(map(str, rates))} Hz, {spelled(words.total(), 'word')} "
            f"({len(words)} different)"
        )


def read_split(manifest: Path | str) -> Split:
    """Read a manifest and the table beside it."""
    name = Path(manifest).name.removesuffix(".jsonl.gz")
    return Split(name, list(read_cuts(manifest)), read_remarks(manifest))


def check(
    splits: Sequence[Split],
    corpus: schema.CorpusSettings,
    lexicon: schema.LexiconSettings,
    max_lost_share: float,
) -> list[str]:
    """Check a corpus; return lines to print.

    Args:
        splits: all of them; TRAIN and DEV, which are aligned, come first.
        max_lost_share: share of an aligned split's utterances that may lack an alignment.
    Raises:
        CorpusError: if too many utterances were dropped, or too many words have no pronunciation.
    """
    intake = corpus.folder or corpus.published
    dropped = [remark for split in splits for remark in split.remarks if remark.dropped]
    lines = [str(split) for split in splits]
    if intake is not None:
        kept = sum(split.recorded for split in splits)
        lines.append(_dropped(dropped, len(dropped) + kept, intake))
    lines.append(_pronounced(splits, lexicon, max_lost_share))
    return lines


def _dropped(dropped: list[Remark], total: int, intake: schema.IntakeSettings) -> str:
    share = len(dropped) / max(1, total)
    message = (
        f"{len(dropped)} of {spelled(total, 'utterance')} dropped, a share of {share:.3f} where "
        f"{intake.GROUP}.max_dropped_share is {intake.max_dropped_share}"
    )
    if share > intake.max_dropped_share:
        raise CorpusError(
            f"{message}: {reasons(dropped)}; correct the corpus (manifests/*.dropped.tsv, or "
            "asr-train check, lists all), or raise the limit"
        )
    return message + (f": {reasons(dropped)}" if dropped else "")


def _pronounced(splits: Sequence[Split], lexicon: schema.LexiconSettings, limit: float) -> str:
    words = Counter(word for split in splits for text in split.texts for word in text)
    missing = set(Lexicon.from_settings(lexicon, words).missing)
    message = f"{len(missing)} of {len(words)} different words without pronunciation"
    if not missing:
        return message
    commonest = [word for word, _ in words.most_common() if word in missing]
    message += f" (lang.lexicon.source={lexicon.source.value}): {few(commonest)}"
    for split in splits[:2]:
        lost = sum(any(word in missing for word in text) for text in split.texts)
        if too_many_lost(lost, len(split.rows), limit):
            raise CorpusError(
                f"{message}; so {lost} of {len(split.rows)} utterances of {split.name} cannot be "
                f"aligned, above ali.max_lost_share {limit}; {_remedy(lexicon)}"
            )
    return message


def _remedy(lexicon: schema.LexiconSettings) -> str:
    own = "lang.lexicon.source=file lang.lexicon.file=/path (lines of WORD PHONE PHONE)"
    if lexicon.source is schema.LexiconSource.letters:
        return f"write them in letters, or set {own}"
    ways = []
    if lexicon.unknown not in (schema.Unknown.espeak, schema.Unknown.noise):
        ways.append("lang.lexicon.unknown=espeak, which pronounces them in English")
    ways.append("lang.lexicon.source=letters, for other languages")
    ways.append(own if lexicon.file is None else f"add them to {lexicon.file}")
    return f"set {'; or '.join(ways)}"
