"""The result of reading any corpus: **validated cuts** (lhotse's), one per utterance.

    digits     synthesises recordings, with true word and phone times
    commands   synthesises sentences of a grammar
    folder     any folders with a tab-separated `utterances.tsv`
    published  LibriSpeech, AN4, yesno, Switchboard in their own layouts
    write      their cuts -> manifests/SPLIT.jsonl.gz, with SPLIT.dropped.tsv and .audio.tsv

The id of an utterance is that of its cut and supervision, and of its recording if that holds
nothing else. What a later stage could fail on is dropped and listed, or refused.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment, validate
from lhotse.audio import AudioSource

from asr_train.checks import spelled
from asr_train.data.recordings import audio_table, list_files, listed_sums, with_own_audio
from asr_train.data.remarks import REMARK, Remark, dropped_table, reasons
from asr_train.files import iter_jsonl, keeping_time, write_bytes, write_jsonl, write_text

# Changes of a recording that are made here; others may name further recordings
TRANSFORMS = frozenset({"Resample", "Speed", "Volume"})


class CorpusError(ValueError):
    """A corpus that cannot be used as it is."""


@dataclass(slots=True)
class PreparedSplit:
    """The cuts of one split, with remarks and notes."""

    split: str
    cuts: list[MonoCut]
    remarks: list[Remark] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # to print
    audio: list[Path] = field(default_factory=list)  # the user's recordings, which may change
    # And what names them: tables, folders searched, files that are missing
    tables: list[Path] = field(default_factory=list)

    @property
    def dropped(self) -> int:
        return sum(remark.dropped for remark in self.remarks)

    def summary(self) -> str:
        """Return one line."""
        words = Counter(word for cut in self.cuts for word in cut.supervisions[0].text.split())
        return (
            f"{self.split}: {spelled(len(self.cuts), 'utterance')}, "
            f"{spelled(len({cut.supervisions[0].speaker for cut in self.cuts}), 'speaker')}, "
            f"{spelled(words.total(), 'word')} ({len(words)} "
            f"different), {sum(cut.duration for cut in self.cuts) / 60:.1f} minutes, "
            f"{self.dropped} dropped"
        )


def write(made: PreparedSplit, path: Path | str) -> None:
    """Write SPLIT.dropped.tsv and SPLIT.audio.tsv, then the manifest.

    The manifest keeps its time if nothing that it stands for has changed. What is made here may be
    other sound under the same name.

    Raises:
        CorpusError: if no cut is left; SPLIT.dropped.tsv then has the reasons.
    """
    users = set(map(str, made.audio))
    is_users = all(s.source in users for cut in made.cuts for s in cut.recording.sources)
    with keeping_time(path, lambda path: _state(path, users) if is_users else None):
        _write(made, path)


def _state(path: Path, recordings: set[str]) -> tuple[bytes, bytes, dict[str, str]] | None:
    """Return the bytes of manifest and dropped utterances, and checksums of the recordings."""
    sums, table = listed_sums(audio_table(path)), dropped_table(path)
    sums = {name: found for name, found in sums.items() if name in recordings}
    return (path.read_bytes(), table.read_bytes(), sums) if table.exists() else None


def _write(made: PreparedSplit, path: Path | str) -> None:
    table = dropped_table(path)
    write_text(table, "".join("\t".join(row) + "\n" for row in [REMARK, *map(_row, made.remarks)]))
    if not made.cuts:
        raise CorpusError(
            f"{made.split}: no utterance is left; dropped: {reasons(made.remarks) or 'none'}; "
            f"see {table}"
        )
    validate(CutSet.from_cuts(made.cuts))
    Path(path).unlink(missing_ok=True)  # or, if killed here, it would seem to be of what is listed
    list_files([*made.audio, *made.tables], audio_table(path))
    write_jsonl(path, (cut.to_dict() for cut in made.cuts))


def _row(r: Remark) -> tuple[str, ...]:
    return r.utt_id, r.speaker, r.path, "dropped" if r.dropped else "kept", r.what, r.why


def own_rate(recording: Mapping[str, Any]) -> int:
    """Return the sample rate of a recording's file, before resampling, in Hz."""
    for change in recording.get("transforms") or []:
        if change["name"] == "Resample":
            return int(change["kwargs"]["source_sampling_rate"])
    return int(recording["sampling_rate"])


def read_cuts(manifest: Path | str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a manifest, made here or elsewhere.

    Raises:
        CorpusError: for a cut that lacks one supervision with text and speaker; or whose audio is
            not a file: lhotse would run the command of another kind of source, or call its URL, and
            of a source within a transform, too.
    """
    for row in iter_jsonl(manifest):
        recording = row.get("recording") or {}
        changes = [change.get("name") for change in recording.get("transforms") or []]
        if row.get("type") != "MonoCut" or not TRANSFORMS.issuperset(changes):
            raise CorpusError(
                f"{manifest}: the cut {row.get('id')} is a {row.get('type')}, changed by "
                f"{changes}; only a MonoCut, changed by {', '.join(sorted(TRANSFORMS))}, is read "
                "here: write its audio to a file, and name that"
            )
        for source in recording.get("sources") or []:
            if source.get("type") != "file":
                raise CorpusError(
                    f"{manifest}: the audio of the cut {row.get('id')} is of the type "
                    f"{source.get('type')} ({source.get('source')}); write it to a file, and name "
                    "that with the type file"
                )
        supervisions = row.get("supervisions") or []
        if len(supervisions) != 1:
            has = f"{len(supervisions)} supervisions"
        elif supervisions[0].get("text") is None or not supervisions[0].get("speaker"):
            has = "no text or no speaker"
        else:
            yield with_own_audio(row, manifest)
            continue
        raise CorpusError(
            f"{manifest}: the cut {row.get('id')} has {has}; it needs one supervision, with text "
            "and speaker: correct or drop it, and run make again"
        )


def write_flac(path: Path | str, wave_T: np.ndarray, rate: int, subtype: str) -> None:
    """Write a recording, built in memory: libsndfile does not say why writing to a disk fails."""
    content = io.BytesIO()
    soundfile.write(content, wave_T, rate, format="FLAC", subtype=subtype)
    write_bytes(path, content.getvalue())


def whole_recording(
    recording_id: str, audio: Path | str, rate: int, samples: int, channels: int = 1
) -> Recording:
    """Describe a recording in one file, from its header's values."""
    source = AudioSource("file", list(range(channels)), str(audio))
    return Recording(recording_id, [source], rate, samples, samples / rate)


def cut_of(
    utt_id: str, recording: Recording, start: float, seconds: float, channel: int, **spoken: Any
) -> MonoCut:
    """Return the cut of an utterance, a part of a recording.

    Args:
        spoken: of lhotse's supervision: text, speaker and more.
    """
    supervision = SupervisionSegment(utt_id, recording.id, 0.0, seconds, channel, **spoken)
    return MonoCut(utt_id, start, seconds, channel, [supervision], recording=recording)


def check_split(split: str, where: str, splits: Iterable[str]) -> None:
    """Raise CorpusError unless a split is one of those that the settings name."""
    if split not in splits:
        raise CorpusError(f"{split} is not a split of {where}, which has {', '.join(splits)}")


def hash_order(name: str) -> bytes:
    """Return a sort key for an arbitrary but fixed order of names."""
    return hashlib.sha256(name.encode()).digest()
