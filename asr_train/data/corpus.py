"""What all corpora end in: **validated cuts** (lhotse's), one an utterance.

    digits     speaks its recordings itself, with true word and phone times
    commands   so does this, sentences of a grammar
    folder     any folders with a tab-separated `utterances.tsv`
    published  LibriSpeech, AN4, yesno, Switchboard as they come
    write      what they made -> manifests/SPLIT.jsonl.gz, and SPLIT.dropped.tsv beside it

The id of an utterance is that of its cut and supervision alike, and where a recording holds nothing
else, of its recording. What a later stage could stumble over is dropped and listed, or refused.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment, validate
from lhotse.audio import AudioSource

from asr_train.files import write_bytes, write_jsonl, write_text

KEPT = ("renamed", "no pronunciation")  # remarks on utterances that stay; all others are dropped


class CorpusError(ValueError):
    """A corpus that cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What became of an utterance that is not simply taken: a line of SPLIT.dropped.tsv."""

    utt_id: str
    speaker: str
    path: str
    what: str  # the kind, of which there are few
    why: str  # in full

    @property
    def dropped(self) -> bool:
        return self.what not in KEPT


@dataclass(slots=True)
class Made:
    """The cuts of one split, and what there is to say about them."""

    split: str
    cuts: list[MonoCut]
    remarks: list[Remark] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # to print
    max_dropped_share: float = 0.0
    group: str = "corpus"  # of the settings that say so

    @property
    def dropped(self) -> int:
        return sum(remark.dropped for remark in self.remarks)

    def summary(self) -> str:
        """One line."""
        texts = [cut.supervisions[0].text.split() for cut in self.cuts]
        return (
            f"{self.split}: {len(self.cuts)} utterances, "
            f"{len({cut.supervisions[0].speaker for cut in self.cuts})} speakers, "
            f"{sum(map(len, texts))} words ({len({w for words in texts for w in words})} "
            f"different), {sum(cut.duration for cut in self.cuts) / 60:.1f} minutes, "
            f"{self.dropped} dropped"
        )


def write(made: Made, path: Path | str) -> None:
    """Write SPLIT.dropped.tsv, then the manifest.

    Raises:
        CorpusError: if too much was dropped; SPLIT.dropped.tsv then says what.
    """
    table = dropped_table(path)
    head = "utt_id", "speaker", "path", "fate", "what", "why"
    rows = [
        (r.utt_id, r.speaker, r.path, "dropped" if r.dropped else "kept", r.what, r.why)
        for r in made.remarks
    ]
    write_text(table, "".join("\t".join(row) + "\n" for row in [head, *rows]))
    total = len(made.cuts) + made.dropped
    kinds = Counter(remark.what for remark in made.remarks if remark.dropped)
    reasons = ", ".join(f"{count} {what}" for what, count in kinds.most_common())
    if made.dropped > made.max_dropped_share * total:
        raise CorpusError(
            f"{made.split}: {made.dropped} of {total} utterances dropped ({reasons}), a share of "
            f"{made.dropped / total:.3f}, above {made.group}.max_dropped_share "
            f"{made.max_dropped_share}; see {table}, then mend the corpus or raise the limit"
        )
    if not made.cuts:
        raise CorpusError(
            f"{made.split}: no utterance is left; dropped: {reasons or 'none'}; see {table}"
        )
    validate(CutSet.from_cuts(made.cuts))
    write_jsonl(path, (cut.to_dict() for cut in made.cuts))


def dropped_table(path: Path | str) -> Path:
    """Where `write` lists what was dropped from the manifest `path`."""
    return Path(path).with_name(Path(path).name.removesuffix(".jsonl.gz") + ".dropped.tsv")


def write_flac(path: Path | str, wave_T: np.ndarray, rate: int, subtype: str) -> None:
    """Write a recording whole. In memory first: libsndfile does not say why a disk refuses it."""
    content = io.BytesIO()
    soundfile.write(content, wave_T, rate, format="FLAC", subtype=subtype)
    write_bytes(path, content.getvalue())


def whole_recording(
    recording_id: str, audio: Path | str, rate: int, samples: int, channels: int = 1
) -> Recording:
    """A recording in one file, by what its header says."""
    source = AudioSource("file", list(range(channels)), str(audio))
    return Recording(recording_id, [source], rate, samples, samples / rate)


def whole_cut(supervision: SupervisionSegment, recording: Recording) -> MonoCut:
    """The cut of a whole recording, of which the first channel is meant."""
    supervision.duration = recording.duration
    return MonoCut(
        supervision.id, 0.0, recording.duration, 0, supervisions=[supervision], recording=recording
    )


def hash_order(name: str) -> bytes:
    """A key that sorts names in an order which is arbitrary, and always the same."""
    return hashlib.sha256(name.encode()).digest()


def few(names: Sequence[str]) -> str:
    """Some names, and how many there are beside."""
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + rest
