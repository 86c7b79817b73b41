"""Utterances as listed by a corpus -> **usable cuts**, after reading each recording.

    rows --unique_ids--> rows with ids that are valid in tar and CTM files
         --take--> PreparedSplit (cuts, remarks, notes); data.transcripts reads their texts

Knows nothing of splits, or of the sources of rows (data.folder and data.published read them).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from lhotse import MonoCut, Recording
from lhotse.supervision import AlignmentItem

from asr_train.checks import few, spelled
from asr_train.data.corpus import (
    CorpusError,
    PreparedSplit,
    cut_of,
    own_rate,
    whole_recording,
    write_flac,
)
from asr_train.data.remarks import KEPT, Remark
from asr_train.data.transcripts import DigitsError, Transcriber
from asr_train.files import MAX_ID_BYTES
from asr_train.frames import NO_LENGTH, UNKNOWN_SAMPLES, whole_rate
from asr_train.jobs import map_evenly
from asr_train.lang.lexicon import Lexicon
from asr_train.schema import Channel, IntakeSettings, LexiconSettings, LowRate
from asr_train.score.normalise import NORMALISERS
from asr_train.score.sclite import trn_id

MAX_PEAK = 1e9  # relative to full scale; the power of far greater samples exceeds float32


@dataclass(slots=True)
class Row:
    """An utterance as listed by its corpus: a whole recording or, with `start`, a part of one."""

    utt_id: str
    speaker: str
    audio: Path
    path: str  # of `audio`, as the corpus names it
    seconds: float
    text: str
    where: str  # its line in the corpus
    start: float | None = None  # seconds
    channel: int | None = None  # None: as in the settings
    alignment: dict[str, list[AlignmentItem]] = field(default_factory=dict)  # lhotse's
    was: str = ""  # the corpus's own id, if it was changed
    refused: str = ""  # why the text cannot be used


@dataclass(frozen=True, slots=True)
class _Audio:
    """The recording that an utterance is in, and its place there."""

    recording: Recording
    start: float  # of the utterance; seconds
    seconds: float
    mixed: bool  # whether the file is the mean of a recording's channels


class _UnusableError(Exception):
    """The reason to drop a recording: its kind, and the details."""


def unique_ids(rows: Sequence[Row], source: Path | str) -> None:
    """Replace '.' and '/', at which readers of tar files cut names, and invisible characters.

    Raises:
        CorpusError: for duplicate ids, also after this replacement.
    """
    seen: dict[str, Row] = {}
    for row in rows:
        if seen.setdefault(row.utt_id, row) is not row:
            raise CorpusError(
                f"{source}: the utterance id {row.utt_id!r} is in {seen[row.utt_id].where} "
                f"and in {row.where}; ids must be unique"
            )
    owners = {name: name for name in seen}
    for old, row in seen.items():
        new = without_marks(old)
        if new == old:
            continue
        if new in owners:
            raise CorpusError(
                f"the utterance ids {owners[new]!r} and {old!r} both become {new!r} without "
                "'.', '/', spaces and invisible characters, at which readers of tar and CTM files "
                "cut names; rename one of them"
            )
        row.utt_id, row.was = new, row.was or old
        owners[new] = old
    scored: dict[str, str] = {}
    for row in rows:
        name = trn_id(row.utt_id, row.speaker)
        if scored.setdefault(name, row.utt_id) != row.utt_id:
            raise CorpusError(
                f"{source}: the utterance ids {scored[name]} and {row.utt_id} both become {name} "
                "in sclite's trn format, which begins with the speaker; rename one of them"
            )


def without_marks(name: str) -> str:
    """Return the id here of an utterance that its corpus calls so."""
    return "".join("_" if c in "./" or c.isspace() or not c.isprintable() else c for c in name)


def take(
    split: str,
    rows: Sequence[Row],
    settings: IntakeSettings,
    lexicon: LexiconSettings,
    audio_dir: Path,
) -> PreparedSplit:
    """Check each recording; unusable ones are dropped and listed.

    Args:
        audio_dir: for recordings of several channels that are mixed into one.
    Raises:
        CorpusError: for ids that are too long, and for several channels if they are refused;
            ValueError from the lexicon for refused words.
    """
    for row in rows:
        if (size := len(row.utt_id.encode())) > MAX_ID_BYTES:
            raise CorpusError(
                f"{row.where}: the utterance id {row.utt_id!r} has {size} bytes, but names in tar "
                f"files have room for {MAX_ID_BYTES}; shorten it"
            )
    notes = _transcribe(split, rows, settings, lexicon)
    what = f"audio of {split}"
    audios = list(map_evenly(lambda row: _inspect(row, audio_dir, settings), rows, what))
    names = _recording_names(rows, audios)
    made = PreparedSplit(split, [], notes=notes, audio=[row.audio for row in rows])
    for row, audio in zip(rows, audios, strict=True):
        if row.was:
            made.remarks.append(_remark(row, "renamed", f"was {row.was}"))
        if isinstance(audio, Remark):
            made.remarks.append(audio)
        else:
            is_part = row.start is not None and not audio.mixed
            name = names[_part_of(row, audio)] if is_part else row.utt_id
            made.cuts.append(_cut(row, audio, settings, name))
    made.remarks += _unknown_words(rows, {cut.id for cut in made.cuts}, lexicon)
    return made


def _transcribe(
    split: str, rows: Sequence[Row], settings: IntakeSettings, lexicon: LexiconSettings
) -> list[str]:
    """Replace the rows' texts by words; return notes on changes."""
    words_of = Transcriber(settings, lexicon)
    changed = []
    for row in rows:
        before = " ".join(row.text.split())
        try:
            row.text = " ".join(words_of(before))
        except DigitsError as error:
            row.text, row.refused = before.upper(), str(error)
        if not row.refused and row.text != before.upper():
            changed.append(f"{before!r} is {row.text}")
    if not changed:
        return []
    return [
        f"  {len(changed)} of {len(rows)} transcripts of {split} changed by "
        f"{NORMALISERS[settings.normaliser].name} ({settings.GROUP}.normaliser="
        f"{settings.normaliser.value}), for example {'; '.join(changed[:3])}"
    ]


def notes(made: PreparedSplit, parts: dict[str, list[Row]], source: Path | str) -> list[str]:
    """Return notes on one part of a corpus; with the first part, also on the corpus."""
    notes = _corpus_notes(parts, source) if made.split == next(iter(parts)) else []
    rates = Counter(own_rate(cut.recording.to_dict()) for cut in made.cuts)
    if len(rates) > 1:
        listed = ", ".join(f"{rate} Hz: {count}" for rate, count in sorted(rates.items()))
        notes.append(f"  sample rates in {made.split}: {listed}")
    least = min((cut.sampling_rate for cut in made.cuts), default=0)  # after resampling
    raised = Counter({rate: count for rate, count in rates.items() if rate < least})
    if raised:
        notes.append(
            f"  {raised.total()} of {rates.total()} utterances of {made.split} have only "
            f"{few([str(rate) for rate in sorted(raised)])} Hz: their upper bands are empty"
        )
    for what, count in Counter(remark.what for remark in made.remarks).most_common():
        some = [remark for remark in made.remarks if remark.what == what]
        fate = "dropped" if some[0].dropped else "kept"
        words = sorted({w for r in some for w in r.why.split()}) if what == KEPT[1] else []
        example = f"words: {few(words)}" if words else f"{some[0].utt_id}: {some[0].why}"
        notes.append(f"  {fate} in {made.split}: {count} {what} ({example})")
    return notes + made.notes


def _corpus_notes(parts: dict[str, list[Row]], source: Path | str) -> list[str]:
    speakers = {split: sorted({row.speaker for row in part}) for split, part in parts.items()}
    everyone = {name for names in speakers.values() for name in names}
    count = sum(map(len, parts.values()))
    notes = [f"{source}: {spelled(count, 'utterance')} of {spelled(len(everyone), 'speaker')}"]
    for split, names in speakers.items():
        count = len(parts[split])
        counts = f"{spelled(len(names), 'speaker')}, {spelled(count, 'utterance')}"
        notes.append(f"  {split}: {counts}: {few(names)}")
    return notes


def _inspect(row: Row, audio_dir: Path, settings: IntakeSettings) -> _Audio | Remark:
    """Check header and samples; write the mean of several channels, if that is wanted.

    A mean above full scale is scaled down to it.
    """
    try:
        audio, wave_T = _read(row, settings)
    except _UnusableError as error:
        return _remark(row, *error.args)
    except (soundfile.LibsndfileError, OSError) as error:
        why = str(error.strerror if isinstance(error, OSError) else error)
        why = why.removeprefix(f"Error opening {str(row.audio)!r}: ")  # libsndfile's
        return _remark(row, "unreadable audio", f"{row.audio}: {why}")
    if not audio.mixed:
        return audio
    wave_T = wave_T / max(1.0, float(np.abs(wave_T).max()))  # FLAC has nothing above full scale
    path, rate = audio_dir / f"{row.utt_id}.flac", audio.recording.sampling_rate
    write_flac(path, wave_T, rate, "PCM_24")
    recording = whole_recording(row.utt_id, path, rate, len(wave_T))
    return _Audio(recording, 0.0, recording.duration, audio.mixed)


def _read(row: Row, settings: IntakeSettings) -> tuple[_Audio, np.ndarray]:
    """Return an utterance's place in its recording, and its samples: float32 [T].

    Raises:
        _UnusableError: if they cannot be used; soundfile's error or OSError if it cannot be read.
    """
    path = row.audio
    if row.refused:
        raise _UnusableError("with digits", row.refused)
    if not row.text:
        raise _UnusableError("empty transcript", "the transcript has no words")
    if not path.is_file():
        raise _UnusableError("missing audio", f"{path} is missing")
    if not path.stat().st_size:
        raise _UnusableError("unreadable audio", f"{path} is empty, it has 0 bytes")
    with soundfile.SoundFile(path) as file:
        audio = _by_header(row, file, settings)
        if not file.seekable():
            why = f"{path} is {file.subtype}, of which no part can be read; convert it to FLAC"
            raise _UnusableError("unreadable audio", why)
        first = round(audio.start * file.samplerate)
        count = min(round(audio.seconds * file.samplerate), file.frames - first)
        file.seek(first)
        wave_TC = file.read(count, dtype="float32", always_2d=True)
    if len(wave_TC) != count:
        why = f"{path} declares {count} samples but {len(wave_TC)} can be read"
        raise _UnusableError("unreadable audio", why)
    wave_T = wave_TC.mean(1) if audio.mixed else wave_TC[:, row.channel or 0]
    if bad := np.count_nonzero(~np.isfinite(wave_T)):
        why = f"{path}: {bad} of {count} samples are NaN or infinite"
        raise _UnusableError("not finite", why)
    if not wave_T.any():
        raise _UnusableError("only zeros", f"{path}: all {count} samples are zero")
    if (peak := float(np.abs(wave_T).max())) > MAX_PEAK:
        why = f"{path} has a sample of {peak:.3g}, where full scale is 1; write it anew"
        raise _UnusableError("out of range", why)
    return audio, wave_T


def _by_header(row: Row, info: soundfile.SoundFile, settings: IntakeSettings) -> _Audio:
    """Check what a recording's header says."""
    path, rate = row.audio, info.samplerate
    if rate < settings.sample_rate and settings.low_rate is LowRate.drop:
        lower = "feats=telephone" if rate == 8000 else f"feats.sample_rate={whole_rate(rate)}"
        raise _UnusableError(
            "low sample rate",
            f"{path} has {rate} Hz, below feats.sample_rate {settings.sample_rate}; if most "
            f"have no more, set {lower}; else drop it, or set {settings.GROUP}.low_rate=resample",
        )
    if info.frames >= UNKNOWN_SAMPLES:
        raise _UnusableError("unreadable audio", f"{path} {NO_LENGTH}")
    seconds = info.frames / rate
    tolerance = settings.duration_tolerance_seconds
    if row.start is None and abs(seconds - row.seconds) > tolerance:
        why = f"the audio has {seconds:.3f} s but duration_seconds is {row.seconds:.3f}"
        raise _UnusableError("other duration", why)
    if row.start is not None:
        if not 0 <= row.start < row.start + row.seconds <= seconds + tolerance:
            why = f"{row.seconds:.3f} s from {row.start:.3f} s, but the audio has {seconds:.3f} s"
            raise _UnusableError("outside the audio", why)
        seconds = min(row.seconds, seconds - row.start)
    for what, wrong, limit in (
        ("too short", seconds < settings.min_seconds, f"min_seconds is {settings.min_seconds}"),
        ("too long", seconds > settings.max_seconds, f"max_seconds is {settings.max_seconds}"),
    ):
        if wrong:
            raise _UnusableError(what, f"{seconds:.3f} s, but {settings.GROUP}.{limit}")
    if row.channel is not None and row.channel >= info.channels:
        why = f"{path} has {info.channels} channels, so no channel {row.channel}"
        raise _UnusableError("missing channel", why)
    several = row.channel is None and info.channels > 1
    if several and settings.channel is Channel.refuse:
        raise CorpusError(
            f"{row.utt_id}: {path} has {info.channels} channels where one is expected; "
            f"set {settings.GROUP}.channel to first or mix"
        )
    mixed = several and settings.channel is Channel.mix
    recording = whole_recording(row.utt_id, path, rate, info.frames, info.channels)
    return _Audio(recording, row.start or 0.0, seconds, mixed)


def _part_of(row: Row, audio: _Audio) -> tuple[str, int | None]:
    """Return the file and the channel that a row is a part of; for one with a start."""
    return str(row.audio), (row.channel or 0) if audio.recording.num_channels > 1 else None


def _recording_names(
    rows: Sequence[Row], audios: Sequence[_Audio | Remark]
) -> dict[tuple[str, int | None], str]:
    """Return the names of recordings that have several utterances, by file and channel.

    They are paths without suffixes and marks, in which two may be equal: numbers tell these apart.
    Other recordings have the name of their utterance.
    """
    listed, taken = set(), set()
    for row, audio in zip(rows, audios, strict=True):
        if row.start is None or (isinstance(audio, _Audio) and audio.mixed):
            taken.add(row.utt_id)
        elif isinstance(audio, _Audio):
            key = _part_of(row, audio)
            name = without_marks(str(Path(row.path).with_suffix("")))
            listed.add((name if key[1] is None else f"{name}-{key[1]}", key))
    found = {}
    for name, key in sorted(listed, key=lambda one: (one[0], one[1][0])):
        unique, number = name, 1
        while unique in taken:
            number += 1
            unique = f"{name}_{number}"
        taken.add(unique)
        found[key] = unique
    return found


def _cut(row: Row, audio: _Audio, settings: IntakeSettings, name: str) -> MonoCut:
    recording = audio.recording
    recording.id = name
    spoken = {"text": row.text, "speaker": row.speaker, "alignment": row.alignment or None}
    cut = cut_of(row.utt_id, recording, audio.start, audio.seconds, row.channel or 0, **spoken)
    if recording.sampling_rate < settings.sample_rate:
        cut = cut.resample(settings.sample_rate)  # when it is read
    return cut


def _unknown_words(rows: Sequence[Row], kept: set[str], lexicon: LexiconSettings) -> list[Remark]:
    """Return remarks on utterances that cannot be aligned without a pronunciation."""
    rows = [row for row in rows if row.utt_id in kept]
    missing = set(Lexicon.from_settings(lexicon, {w for r in rows for w in r.text.split()}).missing)
    found = ((row, [w for w in row.text.split() if w in missing]) for row in rows)
    return [_remark(row, "no pronunciation", " ".join(words)) for row, words in found if words]


def _remark(row: Row, what: str, why: str) -> Remark:
    return Remark(row.utt_id, row.speaker, row.path, what, " ".join(why.split()))
