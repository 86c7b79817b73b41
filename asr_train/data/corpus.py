"""Recordings and transcripts -> **validated cuts** (lhotse's): one function a corpus.

    digits   speaks its recordings itself (data.synth), with true word and phone times
    folder   any folder with a tab-separated `utterances.tsv`
    write    what they made -> manifests/SPLIT.jsonl.gz, and SPLIT.dropped.tsv beside it

The id of an utterance is that of its recording, cut and supervision alike. What a later stage
could stumble over is found here: it is dropped and listed, or refused.
"""

import difflib
import hashlib
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment, validate
from lhotse.audio import AudioSource
from lhotse.supervision import AlignmentItem

from asr_train.data import synth
from asr_train.files import replacing, write_jsonl, write_text
from asr_train.jobs import parallel_map
from asr_train.lang.lexicon import Lexicon
from asr_train.schema import Channel, CorpusSettings, DevBy, FolderSettings, LexiconSettings

SPLITS = ("train", "dev", "test")  # of a folder
COLUMNS = ("utt_id", "speaker", "path", "duration_seconds", "transcript")
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
            f"{made.dropped / total:.3f}, above corpus.folder.max_dropped_share "
            f"{made.max_dropped_share}; see {table}, then mend the corpus or raise the limit"
        )
    if not made.cuts:
        raise CorpusError(f"{made.split}: no utterance is left; dropped: {reasons}; see {table}")
    validate(CutSet.from_cuts(made.cuts))
    write_jsonl(path, (cut.to_dict() for cut in made.cuts))


def dropped_table(path: Path | str) -> Path:
    """Where `write` lists what was dropped from the manifest `path`."""
    return Path(path).with_name(Path(path).name.removesuffix(".jsonl.gz") + ".dropped.tsv")


def _cut(
    utt_id: str,
    audio: Path,
    rate: int,
    samples: int,
    supervision: SupervisionSegment,
    channels: int = 1,
) -> MonoCut:
    """The cut of a whole recording, of which the first channel is meant."""
    seconds = samples / rate
    supervision.duration = seconds
    source = AudioSource("file", list(range(channels)), str(audio))
    recording = Recording(utt_id, [source], rate, samples, seconds)
    return MonoCut(utt_id, 0.0, seconds, 0, supervisions=[supervision], recording=recording)


# --- digits -------------------------------------------------------------------------------------


def digits(settings: CorpusSettings, split: str, audio_dir: Path | str) -> Made:
    """Speak digit strings into `audio_dir`/*.flac.

    The same settings give the same bytes. A killed run starts again and overwrites what it finds.
    """
    assert settings.digits is not None
    wanted = settings.digits
    if split not in wanted.utterances:
        raise CorpusError(
            f"{split} is no split of corpus.digits, which has {', '.join(wanted.utterances)}"
        )
    voices = synth.cast(settings.seed, wanted.speakers)[split]
    audio = Path(audio_dir)
    audio.mkdir(parents=True, exist_ok=True)
    cuts = list(
        parallel_map(
            lambda i: _digit_cut(settings, split, voices[i % len(voices)], i, audio),
            range(wanted.utterances[split]),
            f"speech of {split}",
        )
    )
    for old in set(audio.glob("*.flac")) - {Path(c.recording.sources[0].source) for c in cuts}:
        old.unlink()  # of a larger corpus
    return Made(split, cuts)


def _digit_cut(
    settings: CorpusSettings, split: str, voice: synth.Voice, number: int, audio: Path
) -> MonoCut:
    assert settings.digits is not None
    rng = np.random.default_rng(_seed(settings.seed, split, number))
    fewest, most = settings.digits.words
    words = [
        synth.DIGITS[i]
        for i in rng.integers(len(synth.DIGITS), size=rng.integers(fewest, most + 1))
    ]
    speech = synth.digit_utterance(words, voice, settings.digits, int(rng.integers(2**62)))
    utt_id = f"{voice.id}-{number:05d}"
    path = audio / f"{utt_id}.flac"
    with replacing(path) as scratch:
        pcm_T = np.round(speech.samples_T * (2**15 - 1)).astype(np.int16)
        soundfile.write(scratch, pcm_T, speech.rate, format="FLAC", subtype="PCM_16")
    supervision = SupervisionSegment(
        id=utt_id,
        recording_id=utt_id,
        start=0.0,
        duration=0.0,
        text=" ".join(words),
        language="English",
        speaker=voice.id,
        custom=speech.about,
        alignment={
            kind: [
                AlignmentItem(s.label, round(s.start, 6), round(s.end - s.start, 6)) for s in spans
            ]
            for kind, spans in (("word", speech.words), ("phone", speech.phones))
        },
    )
    return _cut(utt_id, path, speech.rate, len(speech.samples_T), supervision)


def _seed(*names: object) -> int:
    """A seed for these names, whatever other seeds there are."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, names)).encode()).digest()[:8])


# --- any folder ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Row:
    """A line of utterances.tsv."""

    line: int
    utt_id: str
    speaker: str
    path: str
    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class _Audio:
    """What a recording is like; or, in `what` and `why`, why it cannot be used."""

    rate: int = 0
    samples: int = 0
    channels: int = 0
    what: str = ""
    why: str = ""


def folder(
    settings: CorpusSettings, lexicon: LexiconSettings, split: str, audio_dir: Path | str
) -> Made:
    """Take one split of a folder with `utterances.tsv`, after looking at each of its recordings.

    Args:
        audio_dir: for recordings of several channels that are mixed into one.
    Raises:
        CorpusError: for a broken table, duplicate ids, speakers that cannot be split, several
            channels where they are refused; ValueError from the lexicon for refused words.
    """
    assert settings.folder is not None
    wanted = settings.folder
    root = Path(wanted.dir)
    rows = _read(root / "utterances.tsv")
    renamed = _rename(rows)
    if split not in SPLITS:
        raise CorpusError(f"{split} is no split of a folder, which has {', '.join(SPLITS)}")
    parts = _split(rows, wanted)
    mine = parts[split]
    if not mine:
        raise CorpusError(
            f"{split} has no speakers: all {len({row.speaker for row in rows})} are named for "
            "dev and test in corpus.folder"
        )
    audios = parallel_map(
        lambda row: _look(row, root, Path(audio_dir), wanted), mine, f"audio of {split}"
    )
    made = Made(split, [], max_dropped_share=wanted.max_dropped_share)
    for row, audio in zip(mine, audios, strict=True):
        if row.utt_id in renamed:
            made.remarks.append(_remark(row, "renamed", f"was {renamed[row.utt_id]}"))
        if audio.what:
            made.remarks.append(_remark(row, audio.what, audio.why))
        else:
            made.cuts.append(_folder_cut(row, audio, root, Path(audio_dir), wanted))
    made.remarks += _unknown_words(mine, {cut.id for cut in made.cuts}, lexicon)
    made.notes = _notes(made, parts, root)
    return made


def _read(table: Path) -> list[_Row]:
    if not table.is_file():
        raise CorpusError(
            f"{table} is missing; CORPUS_DIR must be a folder with this table, its columns "
            f"{', '.join(COLUMNS)} parted by tabs"
        )
    head, *lines = table.read_text(encoding="utf-8-sig").split("\n")
    columns = head.rstrip("\r").split("\t")
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise CorpusError(
            f"{table} has the columns {', '.join(columns)} but lacks {', '.join(missing)}; "
            "its first line must name them, parted by tabs"
        )
    rows = [
        _row(f"{table}, line {n}", n, columns, line.rstrip("\r"))
        for n, line in enumerate(lines, 2)
        if line.strip()
    ]
    seen: dict[str, _Row] = {}
    for row in rows:
        if seen.setdefault(row.utt_id, row) is not row:
            raise CorpusError(
                f"{table}: the utterance id {row.utt_id!r} stands in line {seen[row.utt_id].line} "
                f"and in line {row.line}; ids must differ"
            )
    return rows


def _row(where: str, number: int, columns: list[str], line: str) -> _Row:
    values = line.split("\t")
    if len(values) != len(columns):
        raise CorpusError(f"{where} has {len(values)} fields for {len(columns)} columns: {line!r}")
    value = {column: text.strip() for column, text in zip(columns, values, strict=True)}
    for column in ("utt_id", "speaker", "path"):
        if not value[column]:
            raise CorpusError(f"{where} has no {column}: {line!r}")
    try:
        seconds = float(value["duration_seconds"])
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise CorpusError(
            f"{where}: duration_seconds is {value['duration_seconds']!r}; it must be a number"
        )
    text = " ".join(value["transcript"].upper().split())
    return _Row(number, value["utt_id"], value["speaker"], value["path"], seconds, text)


def _rename(rows: list[_Row]) -> dict[str, str]:
    """Take '.' and '/', where readers of tar files cut names, out of ids; new -> old id."""
    renamed, owners = {}, {row.utt_id: row.utt_id for row in rows}
    for row in rows:
        old = row.utt_id
        new = old.replace(".", "_").replace("/", "_")
        if new == old:
            continue
        if new in owners:
            raise CorpusError(
                f"the utterance ids {owners[new]!r} and {old!r} both become {new!r} without the "
                "'.' and '/' that tar readers cut names at; rename one of them in utterances.tsv"
            )
        row.utt_id = new
        owners[new] = renamed[new] = old
    return renamed


def _split(rows: list[_Row], settings: FolderSettings) -> dict[str, list[_Row]]:
    """The rows of each split, in the order of the table."""
    speakers = split_speakers([row.speaker for row in rows], settings)
    parts = {
        split: [row for row in rows if row.speaker in set(names)]
        for split, names in speakers.items()
    }
    if settings.dev_by is DevBy.utterances and parts["train"]:
        dev = dev_utterances([row.utt_id for row in parts["train"]], settings.dev_share)
        parts["dev"] = [row for row in parts["train"] if row.utt_id in dev]
        parts["train"] = [row for row in parts["train"] if row.utt_id not in dev]
    return parts


def dev_utterances(ids: list[str], share: float) -> set[str]:
    """The share of these utterances, at least one, whose hashed ids come first.

    Raises:
        CorpusError: if none would be left to train on.
    """
    count = max(1, round(share * len(ids)))
    if count >= len(ids):
        raise CorpusError(
            f"{len(ids)} utterances of the training speakers cannot be split into {count} for "
            "dev and some for train; lower corpus.folder.dev_share or add recordings"
        )
    return set(sorted(ids, key=_hash)[:count])


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def split_speakers(speakers: list[str], settings: FolderSettings) -> dict[str, list[str]]:
    """Which speakers are in which split: those named in the settings, else by a hash of the name.

    The hash orders the speakers; TEST takes its share from one end, then DEV, at least one each.
    With `dev_by: utterances`, DEV's speakers are TRAIN's.

    Raises:
        CorpusError: for names that are not in the corpus, or too few speakers.
    """
    everyone = sorted(set(speakers))
    for key in ("dev_speakers", "test_speakers"):
        for name in getattr(settings, key):
            if name not in everyone:
                near = difflib.get_close_matches(name, everyone, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise CorpusError(
                    f"corpus.folder.{key} names {name!r}, who is not in the corpus; {hint}"
                    f"it has {_few(everyone)}"
                )
    named = {*settings.dev_speakers, *settings.test_speakers}
    free = sorted(set(everyone) - named, key=_hash)
    taken = {"test": sorted(settings.test_speakers), "dev": sorted(settings.dev_speakers)}
    shares = {"test": settings.test_share, "dev": settings.dev_share}
    if settings.dev_by is DevBy.utterances:
        del taken["dev"]
    drawn = [split for split in taken if not taken[split]]
    counts = {split: max(1, round(shares[split] * len(everyone))) for split in drawn}
    if drawn and sum(counts.values()) >= len(free):
        raise CorpusError(
            f"{len(free)} speakers ({_few(free)}) cannot be split into {counts} and some for "
            "train: each split needs one of its own; name corpus.folder.dev_speakers and "
            "test_speakers, lower their shares, or add speakers"
        )
    for split in drawn:
        taken[split], free = sorted(free[: counts[split]]), free[counts[split] :]
    return {
        "train": sorted(free),
        "dev": taken.get("dev", sorted(free)),
        "test": taken["test"],
    }


def _look(row: _Row, root: Path, audio_dir: Path, settings: FolderSettings) -> _Audio:
    """What a recording is like, by its header; what seems right is read from end to end."""
    path = root / row.path
    if not row.text:
        return _Audio(what="empty transcript", why="the transcript is empty")
    if not path.is_file():
        return _Audio(what="missing audio", why=f"{path} is missing")
    try:
        info = soundfile.info(path)
    except (soundfile.LibsndfileError, OSError) as error:
        return _Audio(what="unreadable audio", why=f"{path}: {error}")
    seconds = info.frames / info.samplerate
    if abs(seconds - row.seconds) > settings.duration_tolerance_seconds:
        why = f"the audio has {seconds:.3f} s but duration_seconds is {row.seconds:.3f}"
        return _Audio(what="other duration", why=why)
    for what, wrong, limit in (
        ("too short", seconds < settings.min_seconds, f"min_seconds is {settings.min_seconds}"),
        ("too long", seconds > settings.max_seconds, f"max_seconds is {settings.max_seconds}"),
    ):
        if wrong:
            return _Audio(what=what, why=f"{seconds:.3f} s, but corpus.folder.{limit}")
    if info.channels > 1 and settings.channel is Channel.refuse:
        raise CorpusError(
            f"{row.utt_id}: {path} has {info.channels} channels where one is expected; "
            "set corpus.folder.channel to first or mix"
        )
    mix = _mixed(row, audio_dir) if settings.channel is Channel.mix else None
    return _listen(path, _Audio(info.samplerate, info.frames, info.channels), mix)


def _listen(path: Path, audio: _Audio, mix: Path | None) -> _Audio:
    """Read a recording; its first channel must be sound, or with `mix`, the mean of all."""
    try:
        wave_TC, _ = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError) as error:
        return _Audio(what="unreadable audio", why=f"{path}: {error}")
    if len(wave_TC) != audio.samples:
        why = f"{path} promises {audio.samples} samples but {len(wave_TC)} can be read"
        return _Audio(what="unreadable audio", why=why)
    wave_T = wave_TC.mean(1) if mix else wave_TC[:, 0]
    bad = np.count_nonzero(~np.isfinite(wave_T))
    if bad:
        why = f"{path}: {bad} of {audio.samples} samples are NaN or infinite"
        return _Audio(what="not finite", why=why)
    if not wave_T.any():
        return _Audio(what="only zeros", why=f"{path}: all {audio.samples} samples are zero")
    if mix and audio.channels > 1:
        with replacing(mix) as scratch:
            soundfile.write(scratch, wave_T, audio.rate, format="FLAC", subtype="PCM_24")
    return audio


def _mixed(row: _Row, audio_dir: Path) -> Path:
    return audio_dir / f"{row.utt_id}.flac"


def _folder_cut(
    row: _Row, audio: _Audio, root: Path, audio_dir: Path, settings: FolderSettings
) -> MonoCut:
    supervision = SupervisionSegment(
        id=row.utt_id,
        recording_id=row.utt_id,
        start=0.0,
        duration=0.0,
        text=row.text,
        speaker=row.speaker,
    )
    if audio.channels > 1 and settings.channel is Channel.mix:
        mixed = _mixed(row, audio_dir)
        return _cut(row.utt_id, mixed, audio.rate, audio.samples, supervision)
    path = root / row.path
    return _cut(row.utt_id, path, audio.rate, audio.samples, supervision, audio.channels)


def _unknown_words(rows: list[_Row], kept: set[str], lexicon: LexiconSettings) -> list[Remark]:
    """Utterances that the alignment will lose for want of a pronunciation."""
    rows = [row for row in rows if row.utt_id in kept]
    missing = set(Lexicon.from_settings(lexicon, {w for r in rows for w in r.text.split()}).missing)
    found = ((row, [w for w in row.text.split() if w in missing]) for row in rows)
    return [_remark(row, "no pronunciation", " ".join(words)) for row, words in found if words]


def _remark(row: _Row, what: str, why: str) -> Remark:
    return Remark(row.utt_id, row.speaker, row.path, what, " ".join(why.split()))


def _notes(made: Made, parts: dict[str, list[_Row]], root: Path) -> list[str]:
    speakers = {split: sorted({row.speaker for row in part}) for split, part in parts.items()}
    everyone = {name for names in speakers.values() for name in names}
    count = sum(map(len, parts.values()))
    notes = [f"{root}: {count} utterances of {len(everyone)} speakers"]
    for split, names in speakers.items():
        count = len(parts[split])
        notes.append(f"  {split}: {len(names)} speakers, {count} utterances: {_few(names)}")
    rates = Counter(cut.sampling_rate for cut in made.cuts)
    if len(rates) > 1:
        listed = ", ".join(f"{rate} Hz: {count}" for rate, count in sorted(rates.items()))
        notes.append(f"  sample rates in {made.split}: {listed}")
    for what, count in Counter(remark.what for remark in made.remarks).most_common():
        some = [remark for remark in made.remarks if remark.what == what]
        fate = "dropped" if some[0].dropped else "kept"
        words = sorted({w for r in some for w in r.why.split()}) if what == KEPT[1] else []
        example = f"words: {_few(words)}" if words else f"{some[0].utt_id}: {some[0].why}"
        notes.append(f"  {fate} in {made.split}: {count} {what} ({example})")
    return notes


def _few(names: list[str]) -> str:
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + rest
