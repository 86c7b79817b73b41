"""What all corpora end in: **validated cuts** (lhotse's), one an utterance.

    digits     speaks its recordings itself, with true word and phone times
    commands   so does this, sentences of a grammar
    folder     any folders with a tab-separated `utterances.tsv`
    published  LibriSpeech, AN4, yesno, Switchboard as they come
    write      what they made -> manifests/SPLIT.jsonl.gz, with SPLIT.dropped.tsv and .audio.tsv

The id of an utterance is that of its cut and supervision alike, and where a recording holds nothing
else, of its recording. What a later stage could stumble over is dropped and listed, or refused.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment, validate
from lhotse.audio import AudioSource

from asr_train.checks import spelled
from asr_train.data.recordings import list_audio
from asr_train.files import read_jsonl, read_text, write_bytes, write_jsonl, write_text

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
class PreparedSplit:
    """The cuts of one split, and what there is to say about them."""

    split: str
    cuts: list[MonoCut]
    remarks: list[Remark] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # to print
    audio: list[Path] = field(default_factory=list)  # recordings that somebody else may change

    @property
    def dropped(self) -> int:
        return sum(remark.dropped for remark in self.remarks)

    def summary(self) -> str:
        """One line."""
        texts = [cut.supervisions[0].text.split() for cut in self.cuts]
        different = len({w for words in texts for w in words})
        return (
            f"{self.split}: {spelled(len(self.cuts), 'utterance')}, "
            f"{spelled(len({cut.supervisions[0].speaker for cut in self.cuts}), 'speaker')}, "
            f"{spelled(sum(map(len, texts)), 'word')} ({different} "
            f"different), {sum(cut.duration for cut in self.cuts) / 60:.1f} minutes, "
            f"{self.dropped} dropped"
        )


def write(made: PreparedSplit, path: Path | str) -> None:
    """Write SPLIT.dropped.tsv and SPLIT.audio.tsv, then the manifest.

    Raises:
        CorpusError: if nothing is left; SPLIT.dropped.tsv then says why.
    """
    table = dropped_table(path)
    write_text(table, "".join("\t".join(row) + "\n" for row in [REMARK, *map(_row, made.remarks)]))
    if not made.cuts:
        raise CorpusError(
            f"{made.split}: no utterance is left; dropped: {reasons(made.remarks) or 'none'}; "
            f"see {table}"
        )
    validate(CutSet.from_cuts(made.cuts))
    list_audio(made.audio, audio_table(path))
    write_jsonl(path, (cut.to_dict() for cut in made.cuts))


REMARK = "utt_id", "speaker", "path", "fate", "what", "why"


def _row(r: Remark) -> tuple[str, ...]:
    return r.utt_id, r.speaker, r.path, "dropped" if r.dropped else "kept", r.what, r.why


def read_remarks(manifest: Path | str) -> list[Remark]:
    """What `write` listed beside the manifest; nothing, if somebody else wrote that."""
    table = dropped_table(manifest)
    lines = read_text(table).split("\n")[1:-1] if table.exists() else []
    rows = (dict(zip(REMARK, line.split("\t"), strict=True)) for line in lines)
    return [Remark(**{k: v for k, v in row.items() if k != "fate"}) for row in rows]


def reasons(remarks: Sequence[Remark]) -> str:
    """Why utterances were dropped, the commonest reason first, with an example of each."""
    dropped = [remark for remark in remarks if remark.dropped]
    kinds = Counter(remark.what for remark in dropped).most_common()
    first = {remark.what: remark for remark in reversed(dropped)}
    return "; ".join(f"{n} {what} ({first[what].utt_id}: {first[what].why})" for what, n in kinds)


def read_cuts(manifest: Path | str) -> list[dict[str, Any]]:
    """The rows of a manifest, made here or elsewhere.

    Raises:
        CorpusError: for a cut that does not say, once, who says what.
    """
    rows = read_jsonl(manifest)
    for row in rows:
        said = row.get("supervisions") or []
        if len(said) == 1 and said[0].get("text") is not None and said[0].get("speaker"):
            continue
        has = f"{len(said)} supervisions" if len(said) != 1 else "no text or no speaker"
        raise CorpusError(
            f"{manifest}: the cut {row.get('id')} has {has}; it needs one supervision, with text "
            "and speaker: mend or drop it, and run make again"
        )
    return rows


def dropped_table(path: Path | str) -> Path:
    """Where `write` lists what was dropped from the manifest `path`."""
    return Path(path).with_name(Path(path).name.removesuffix(".jsonl.gz") + ".dropped.tsv")


def audio_table(path: Path | str) -> Path:
    """Where it lists the recordings; see `data.recordings`."""
    return Path(path).with_name(Path(path).name.removesuffix(".jsonl.gz") + ".audio.tsv")


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
