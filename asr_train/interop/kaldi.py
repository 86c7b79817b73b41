"""Kaldi's data folders <-> **cuts**, or a folder with `utterances.tsv`.

    DATA_DIR --read_data_dir--> DataDir --cuts_of--> cuts --write_data_dir--> DATA_DIR
                                DataDir --write_folder--> a corpus for `make folder`

No command of wav.scp is executed. One that only decodes a file (by flac, sph2pipe or sox) is
recognised, and the file read by libsndfile; any other is refused. Times come from the audio.
"""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from lhotse import AudioSource, MonoCut, Recording
from lhotse.augmentation import Resample

from asr_train.checks import few, spelled
from asr_train.data.corpus import CorpusError, cut_of, whole_recording
from asr_train.data.table import TABLE, write_table
from asr_train.files import read_lines, write_text
from asr_train.frames import NO_LENGTH, UNKNOWN_SAMPLES

OVERSHOOT_SECONDS = 0.5  # of a segment past the recording's end, as in Kaldi's extract-segments
OURS = ".asr_train"  # marks a folder that may be written again; of an import, names its lists
TRIMMED_SECONDS = 0.01  # by which the times of a text may differ from those of its cut
WHOLE_SECONDS = 1e-4  # a cut that ends this near to its recording's end includes it


@dataclass(frozen=True, slots=True)
class Source:
    """The location of a recording.

    Attributes:
        where: the line of wav.scp, for messages.
        channel: from 0; None: there is one, or as in corpus.folder.channel.
    """

    where: str
    path: Path
    channel: int | None = None


Place = tuple[str, float, float | None, int | None]  # recording, start, end and channel


@dataclass(frozen=True, slots=True)
class Segment:
    """An utterance and its place in a recording.

    Attributes:
        end: in seconds; None: the recording's.
        channel: as of a Source; from wav.scp or segments.
    """

    id: str
    recording: str
    start: float
    end: float | None
    channel: int | None
    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class DataDir:
    """A data folder's content, in order of the utterances' ids.

    Attributes:
        segmented: whether it has `segments`; else each utterance is a recording of the same name.
    """

    folder: Path
    recordings: dict[str, Source]
    utterances: list[Segment]
    segmented: bool


# --- reading ------------------------------------------------------------------------------------


def read_data_dir(folder: Path | str) -> DataDir:
    """Read wav.scp, utt2spk, text and, if it exists, segments.

    A relative path counts from the current folder, as in Kaldi, or else from the one two above
    the data folder (`s5` for `s5/data/train`).

    Raises:
        CorpusError: for a missing or empty file, an invalid line, an id that is duplicate or in one
            file only, or a command in wav.scp that is not recognised.
    """
    folder = Path(folder)
    of = folder / "wav.scp"
    lines = _table(of).items()
    recordings = {i: _source(f"{of}, line {n}", value, folder) for i, (n, value) in lines}
    speakers = _table(folder / "utt2spk")
    texts = _table(folder / "text", empty=True)
    places: dict[str, Place] = {i: (i, 0.0, None, s.channel) for i, s in recordings.items()}
    if (folder / "segments").exists():
        of = folder / "segments"
        lines = _table(of).items()
        places = {i: _segment(f"{of}, line {n}", value, recordings) for i, (n, value) in lines}
    if not places:
        raise CorpusError(f"{of} is empty; it must have a line per utterance")
    for name, known in (("utt2spk", speakers), ("text", texts)):
        _check_same_ids(folder, of.name, set(places), name, set(known))
    for utt_id, (n, speaker) in speakers.items():
        if len(speaker.split()) != 1:
            where = f"{folder / 'utt2spk'}, line {n}"
            raise CorpusError(f"{where}: {utt_id} has the speaker {speaker!r}; give it one word")
    utterances = [
        Segment(i, *places[i], speakers[i][1], " ".join(texts[i][1].split()))
        for i in _sorted(places)
    ]
    return DataDir(folder, recordings, utterances, of.name == "segments")


def _table(path: Path, empty: bool = False) -> dict[str, tuple[int, str]]:
    """Read a table: first word of each line -> its line number and rest (empty if `empty`)."""
    if not path.is_file():
        raise CorpusError(
            f"{path} is missing; a Kaldi data folder has wav.scp, text and utt2spk, and segments "
            "if utterances are parts of recordings"
        )
    rows: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(read_lines(path), 1):
        key, *rest = line.strip().split(maxsplit=1)[:2] or [""]
        if not key or not (rest or empty):
            lacks = "an id and what belongs to it" if not key else f"what belongs to {key}"
            raise CorpusError(f"{path}, line {number} is {line!r}; it lacks {lacks}")
        if key in rows:
            raise CorpusError(
                f"{path}: {key} is in line {rows[key][0]} and in line {number}; ids must be unique"
            )
        rows[key] = number, rest[0] if rest else ""
    return rows


def _check_same_ids(folder: Path, one: str, ones: set[str], other: str, others: set[str]) -> None:
    for has, lacks, ids in ((one, other, ones - others), (other, one, others - ones)):
        if ids:
            raise CorpusError(
                f"{folder}: {len(ids)} of the utterances in {has} are not in {lacks}, the first is "
                f"{min(ids)}; Kaldi's utils/fix_data_dir.sh removes them from all files"
            )


def _segment(where: str, value: str, recordings: dict[str, Source]) -> Place:
    fields = value.split()
    try:
        recording, start, end = fields[0], float(fields[1]), float(fields[2])
        channel = int(fields[3]) if len(fields) == 4 else None
    except (IndexError, ValueError):
        fields = []
    if len(fields) not in (3, 4) or (channel or 0) < 0:
        raise CorpusError(
            f"{where} is {value!r}; it must be a recording, its start and its end in seconds, and "
            "optionally its channel, from 0"
        )
    if recording not in recordings:
        raise CorpusError(f"{where}: the recording {recording} is not in wav.scp")
    chosen = recordings[recording].channel
    if channel and chosen is not None:
        raise CorpusError(
            f"{where}: the channel is {channel}, but {recordings[recording].where} chooses one, so "
            "that there is only 0; correct one of the files"
        )
    channel = channel if chosen is None else chosen
    if end == -1 and 0 <= start < np.inf:
        return recording, start, None, channel
    if not 0 <= start < end < np.inf:
        raise CorpusError(f"{where}: a segment cannot last from {start} to {end} seconds")
    return recording, start, end, channel


def _source(where: str, value: str, folder: Path) -> Source:
    """Return a path, or the file that a decoding command reads."""
    if value.endswith("|"):
        name, channel = _decoded_file(where, value)
    elif "|" in value[:1] or value == "-" or re.search(r"\.ark:\d+$", value):
        raise CorpusError(
            f"{where} is {value!r}, which names no file of its own; write a WAV file and name that"
        )
    else:
        name, channel = value, None
    path = Path(name)
    if not path.exists() and (above := folder.resolve().parent.parent / path).exists():
        path = above
    return Source(where, Path(os.path.abspath(path)), channel)


def _decoded_file(where: str, command: str) -> tuple[str, int | None]:
    """Return the file that a decoder's command reads, and the channel if it names one."""
    refused = CorpusError(
        f"{where} is the command `{command}`. Commands are not executed, and only these are "
        "recognised: flac -c -d -s FILE |, sph2pipe -f wav -p -c N FILE |, sox FILE "
        "[-b 16 -e signed-integer] [-r RATE] -t wav - [remix N] |; write WAV files with Kaldi's "
        "wav-copy and name those"
    )
    try:
        program, *words = shlex.split(command[:-1])
    except ValueError:
        raise refused from None
    match Path(program).name, words:
        case "flac", [*flags, name] if set(flags) <= _FLAC and not name.startswith("-"):
            if all(set(flags) & needed for needed in _FLAC_NEEDS):  # else it encodes, or a file
                return name, None
        case "sph2pipe", ["-f", "wav", *flags, name]:
            match [flag for flag in flags if flag != "-p"]:
                case []:
                    return name, None
                case ["-c", ("1" | "2") as number]:
                    return name, int(number) - 1
        case "sox", [name, *rest]:
            found = re.fullmatch(_SOX, " ".join(rest))
            if found and not any(" " in word for word in rest):
                return name, int(found[1]) - 1 if found[1] else None
    raise refused


# After the file; it is read at its own rate
_SOX = r"(?:-b 16 -e signed-integer )?(?:-r [0-9]+ )?-t wav -(?: remix ([1-9][0-9]*))?"
_FLAC_NEEDS = {"-d", "--decode"}, {"-c", "--stdout"}
_FLAC = {"-s", "--silent"}.union(*_FLAC_NEEDS)


def _sorted(names: Iterable[str]) -> list[str]:
    """Sort as in the C locale, which Kaldi's tools need."""
    return sorted(names, key=str.encode)


# --- to cuts ------------------------------------------------------------------------------------


def cuts_of(data: DataDir) -> list[MonoCut]:
    """Return one cut per utterance, with rate and length of its audio file.

    Where neither wav.scp nor segments chooses a channel, cuts are of the first one.

    Raises:
        CorpusError: if a recording is missing or cannot be read, lacks the chosen channel, or ends
            before a segment.
    """
    recordings = _recordings(data)
    cuts = []
    for u in data.utterances:
        recording, channel = recordings[u.recording], u.channel or 0
        if channel >= recording.num_channels:
            source = data.recordings[u.recording]
            where = data.folder / "segments" if source.channel is None else source.where
            raise CorpusError(
                f"{where}: channel {channel + 1} of {recording.sources[0].source} for {u.id}, "
                f"which has {recording.num_channels}"
            )
        seconds = _end(u, recording.duration) - u.start
        spoken = {"text": u.text, "speaker": u.speaker}
        cuts.append(cut_of(u.id, recording, u.start, seconds, channel, **spoken))
    return cuts


def _recordings(data: DataDir) -> dict[str, Recording]:
    used = {u.recording for u in data.utterances}
    found, bad = {}, []
    for name, source in data.recordings.items():
        if name not in used:
            continue
        try:
            info, why = soundfile.info(source.path), ""
            if info.frames >= UNKNOWN_SAMPLES:
                why = f"it {NO_LENGTH}"
        except soundfile.LibsndfileError as error:
            why = error.error_string if source.path.exists() else "it is missing"
        if why:
            bad.append(f"{source.where}: {source.path}: {why}")
        else:
            size = info.samplerate, info.frames, info.channels
            found[name] = whole_recording(name, source.path, *size)
    if bad:
        raise CorpusError(
            f"{data.folder}: {len(bad)} of {len(used)} recordings cannot be read: {bad[0]}; "
            "correct their lines (what sph2pipe or sox alone can read must become WAV files), or "
            "remove them and call utils/fix_data_dir.sh"
        )
    return found


def _end(u: Segment, recorded: float) -> float:
    """Return the end of an utterance in seconds; never after its recording's end."""
    if recorded == 0:
        raise CorpusError(f"{u.id}: its recording {u.recording} has no samples; remove it")
    end = recorded if u.end is None else u.end
    if end > recorded + OVERSHOOT_SECONDS or u.start >= recorded:
        raise CorpusError(
            f"{u.id} lasts from {u.start} to {end} s, but its recording {u.recording} has "
            f"{recorded:.3f} s; correct `segments`"
        )
    return min(end, recorded)


# --- to a folder --------------------------------------------------------------------------------


def write_folder(datas: Sequence[DataDir], folder: Path | str) -> list[str]:
    """Write `utterances.tsv`, which `make folder CORPUS_DIR=...` validates and splits.

    Recordings stay in place and are named by absolute paths; segments, and channels that are
    named, become `start_seconds` and `channel`. `speakers.NAME` lists the speakers of each data
    folder, with NAME its last part; lists of an earlier import's other data folders are removed.

    Returns:
        Lines to print.
    Raises:
        CorpusError: as `cuts_of`; for duplicate ids or names of folders; or for a table there that
            was not imported.
    """
    folder = Path(folder)
    owners: dict[str, Path] = {}
    heard: set[str] = set()  # speakers of earlier data folders
    if (folder / "wav.scp").exists():
        raise CorpusError(
            f"the last path, {folder}, is the folder to write to, but it is a data folder of "
            "Kaldi; name a new one after the data folders"
        )
    rows, notes, names = [], [], [data.folder.resolve().name for data in datas]
    lists: dict[str, list[str]] = {}
    table = folder / TABLE
    if table.exists() and not (folder / OURS).exists():
        raise CorpusError(
            f"{table} exists already, and {folder / OURS} does not mark it as an earlier import's; "
            "name another folder, or delete it"
        )
    if len(set(names)) < len(names):
        raise CorpusError(f"the data folders {names} must have different names; rename one")
    for data, name in zip(datas, names, strict=True):
        cuts = cuts_of(data)
        for cut in cuts:
            if owners.setdefault(cut.id, data.folder) is not data.folder:
                raise CorpusError(
                    f"the utterance {cut.id} is in {owners[cut.id]} and in {data.folder}; ids must "
                    "be unique"
                )
        rows += [_row(data, *pair) for pair in zip(data.utterances, cuts, strict=True)]
        speakers = _sorted({cut.supervisions[0].speaker for cut in cuts})
        lists[f"speakers.{name}"] = speakers
        hours = sum(cut.duration for cut in cuts) / 3600
        notes.append(
            f"{name}: {spelled(len(cuts), 'utterance')}, {spelled(len(speakers), 'speaker')}, "
            f"{hours:.3f} hours, audio left in place"
        )
        if both := [speaker for speaker in speakers if speaker in heard]:
            notes.append(
                f"{name}: {spelled(len(both), 'speaker')} of an earlier data folder, too "
                f"({few(both)}); the folder recipe puts a speaker into one split: to keep the data "
                "folders apart, give other names in one utt2spk"
            )
        heard.update(speakers)
    earlier = read_lines(folder / OURS) if (folder / OURS).exists() else []
    for path in folder.glob("speakers.*"):
        if path.name in earlier and path.name not in lists:  # other lists may be the user's
            path.unlink()
    write_text(folder / OURS, "".join(f"{name}\n" for name in lists))
    for name, speakers in lists.items():
        write_text(folder / name, "".join(f"{speaker}\n" for speaker in speakers))
    write_table(folder, rows, parts=True)
    return notes


def _row(data: DataDir, segment: Segment, cut: MonoCut) -> tuple[str, ...]:
    supervision, path = cut.supervisions[0], cut.recording.sources[0].source
    if "\t" in path:
        raise CorpusError(f"{cut.id}: {path!r} has a tab, which separates columns here; rename it")
    return (
        cut.id,
        supervision.speaker,
        path,
        f"{cut.duration:.6f}",
        supervision.text,
        f"{cut.start:.6f}" if data.segmented else "",
        "" if segment.channel is None else str(segment.channel),
    )


# --- writing a data folder ----------------------------------------------------------------------


def write_data_dir(cuts: Sequence[MonoCut], folder: Path | str) -> list[str]:
    """Write a data folder that passes utils/validate_data_dir.sh; wav.scp comes last.

    WAV files are named by their paths. Kaldi reads no other format itself, so FLAC is decoded by
    flac, and other formats, or one channel of several, by sox. `segments` is written if a cut is
    not a whole recording, or has another name.

    Returns:
        Notes for the user.
    Raises:
        FileExistsError: if the folder is a data folder that was not written here.
        ValueError: for missing or unreadable audio, ids or speakers that are empty or have spaces,
            duplicate ids, no cuts at all, copies of another speed or volume, cuts of one recording
            with different channels, or cuts with more than their supervision.
    """
    folder = Path(folder)
    if (folder / "wav.scp").exists() and not (folder / OURS).exists():
        raise FileExistsError(
            f"{folder} is a data folder already, and {folder / OURS} does not mark it as an "
            "earlier export's; name another folder"
        )
    by_id = {cut.id: cut for cut in sorted(cuts, key=lambda cut: cut.id.encode())}
    if not cuts or len(by_id) < len(cuts):
        raise ValueError(f"{folder}: {len(cuts)} cuts with {len(by_id)} different ids")
    speakers = {utt_id: cut.supervisions[0].speaker or "" for utt_id, cut in by_id.items()}
    for utt_id, cut in by_id.items():
        _check_whole(cut)
        names = {"id": utt_id, "speaker": speakers[utt_id], "recording": cut.recording_id}
        for what, name in names.items():
            if name.split() != [name]:
                raise ValueError(
                    f"{utt_id}: the {what} {name!r} is empty or has a space, which Kaldi splits "
                    "at; rename it in the corpus, and run make again"
                )
    heard: dict[str, tuple[str, int]] = {}  # file and channel of each recording
    for cut in cuts:
        own = _file_with(cut.recording, cut.channel).source, cut.channel
        if (other := heard.setdefault(cut.recording_id, own)) != own:
            raise ValueError(
                f"{cut.recording_id} is the recording {other[0]}, channel {other[1]}, and for "
                f"{cut.id} {own[0]}, channel {own[1]}; give one of them another name"
            )
    recordings = {cut.recording_id: cut.recording for cut in cuts}
    for recording in recordings.values():
        path = heard[recording.id][0]
        if any(not isinstance(changed, Resample) for changed in recording.transforms or []):
            raise ValueError(
                f"{recording.id} is a copy of {path} with another speed or volume, which Kaldi's "
                "wav.scp cannot name; export a manifest made with corpus.speeds=[1.0] and "
                "corpus.volumes=null, and change them in Kaldi"
            )
        if not Path(path).exists():
            raise ValueError(
                f"{recording.id}: {os.path.abspath(path)} is missing; paths in a manifest are "
                "relative to the recipe's folder: call this from there"
            )
    of_speaker: dict[str, list[str]] = {}
    for utt_id, speaker in speakers.items():
        of_speaker.setdefault(speaker, []).append(utt_id)
    files = {
        "text": {i: " ".join((c.supervisions[0].text or "").split()) for i, c in by_id.items()},
        "utt2spk": speakers,
        "spk2utt": {s: " ".join(of_speaker[s]) for s in _sorted(of_speaker)},
        "utt2dur": {i: seconds_text(cut.duration) for i, cut in by_id.items()},
        "reco2dur": {r: seconds_text(recordings[r].duration) for r in _sorted(recordings)},
    }
    if any(_is_part(cut) for cut in cuts):
        files["segments"] = {i: _segment_text(cut) for i, cut in by_id.items()}
    files["wav.scp"] = {r: _wav(recordings[r], heard[r][1]) for r in _sorted(recordings)}
    write_text(folder / OURS, "")
    for name in ("wav.scp", "segments"):  # of an earlier export, which is incomplete from here on
        (folder / name).unlink(missing_ok=True)
    for name, rows in files.items():
        write_text(
            folder / name, "".join(f"{key} {value}".rstrip() + "\n" for key, value in rows.items())
        )
    return _notes(speakers, files["wav.scp"].values())


def _check_whole(cut: MonoCut) -> None:
    """Check that the cut has audio, and that its text is of all of it."""
    if not cut.has_recording:
        raise ValueError(f"{cut.id} has no recording, which a data folder needs")
    of = cut.supervisions[0]
    if max(abs(of.start), abs(of.duration - cut.duration)) > TRIMMED_SECONDS:
        raise ValueError(
            f"{cut.id} has {cut.duration:g} s, but its text is of {of.duration:g} s from "
            f"{of.start:g} s on; call lhotse's trim_to_supervisions first"
        )


def _file_with(recording: Recording, channel: int) -> AudioSource:
    """Return the file with this channel of a recording, which may have one per channel."""
    return next(source for source in recording.sources if channel in source.channels)


def seconds_text(seconds: float) -> str:
    """Format with a precision of microseconds and at least two decimals: 2.00, 0.123456."""
    whole, decimals = f"{seconds:.6f}".split(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"


def _is_part(cut: MonoCut) -> bool:
    rest = cut.recording.duration - cut.start - cut.duration
    return bool(cut.id != cut.recording_id or cut.start > WHOLE_SECONDS or rest > WHOLE_SECONDS)


def _segment_text(cut: MonoCut) -> str:
    end = cut.start + cut.duration  # cut.end has four decimals
    return f"{cut.recording_id} {seconds_text(cut.start)} {seconds_text(end)}"


def _wav(recording: Recording, channel: int) -> str:
    """Return a path, or a command; Kaldi reads 16-bit PCM WAV alone."""
    source = _file_with(recording, channel)
    path: str = os.path.abspath(source.source)
    if "\n" in path:
        raise ValueError(f"{recording.id}: {path!r} has a line feed, where wav.scp ends; rename it")
    quoted = shlex.quote(path)
    try:
        info = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise ValueError(
            f"{recording.id}: {path}: {error.error_string}; replace the file, or remove the "
            "recording from the corpus and run make again"
        ) from error
    if info.subtype == "PCM_16" and len(source.channels) == 1 and not recording.transforms:
        # Kaldi would read such a path as a command, or as a place in a file
        if info.format in ("WAV", "WAVEX") and not re.search(r"\||[\s\]]$|:\d+$", path):
            return path
        if info.format == "FLAC":
            return f"flac -c -d -s {quoted} |"
    bits = "" if info.subtype == "PCM_16" else " -b 16 -e signed-integer"
    rate = f" -r {recording.sampling_rate}" if recording.transforms else ""
    place = source.channels.index(channel) + 1
    remix = f" remix {place}" if len(source.channels) > 1 else ""
    return f"sox {quoted}{bits}{rate} -t wav -{remix} |"


def _notes(speakers: dict[str, str], wavs: Iterable[str]) -> list[str]:
    notes = []
    if sorted(speakers, key=lambda i: (speakers[i].encode(), i.encode())) != list(speakers):
        notes.append(
            "the ids do not begin with their speakers, as Kaldi's sorting expects; "
            "call utils/validate_data_dir.sh with --no-feats --no-spk-sort"
        )
    if programs := {wav.split()[0] for wav in wavs if wav.endswith("|")}:
        notes.append(f"wav.scp decodes with {' and '.join(_sorted(programs))}: Kaldi needs it")
    return notes
