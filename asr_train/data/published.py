"""Published corpora in their own layouts -> cuts of one split.

    librispeech  SUBSET/SPEAKER/CHAPTER/*.{flac,trans.txt}; mini_librispeech too
    yesno        60 WAV files whose names are their transcripts
    swbd         LDC97S62, swb_ms98_transcriptions; Hub5'00: LDC2002S09, LDC2002T43
    an4          etc/an4_{train,test}.{fileids,transcription}, wav/an4*_clstk/SPEAKER/*.sph

lhotse reads all but AN4, which it does not support; utterances that it leaves out are counted. All
recordings are then checked like those of a folder.
"""

import io
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import soundfile

from asr_train.checks import few
from asr_train.data import intake
from asr_train.data.corpus import CorpusError, PreparedSplit, check_split
from asr_train.data.intake import Row
from asr_train.data.remarks import Remark
from asr_train.data.splits import share_of
from asr_train.files import read_lines
from asr_train.schema import CorpusSettings, LexiconSettings, Published, PublishedSettings, SplitBy


@dataclass(slots=True)
class Listed:
    """What a reader finds in one part of a corpus, and what it does not find."""

    rows: list[Row]
    remarks: list[Remark] = field(default_factory=list)  # on lost utterances
    # Files of transcripts, folders searched, files that are missing
    tables: list[Path] = field(default_factory=list)


def published(
    settings: CorpusSettings, lexicon: LexiconSettings, split: str, audio_dir: Path | str
) -> PreparedSplit:
    """Read one split, and check each of its recordings.

    Args:
        audio_dir: for recordings of several channels that are mixed into one.
    Raises:
        CorpusError: for folders that do not have the corpus's layout, or what `data.intake`
            refuses.
    """
    assert settings.published is not None
    wanted = settings.published
    check_split(split, "corpus.published", wanted.splits)
    root = Path(wanted.dir)
    if not root.is_dir():
        raise CorpusError(f"{root} is not a folder; CORPUS_DIR must name {wanted.kind.value}'s")
    shared = split in ("train", "dev") and not wanted.splits["dev"]
    names = wanted.splits["train" if shared else split]
    listed = [READERS[wanted.kind](root, name) for name in names]
    rows = [row for part in listed for row in part.rows]
    if not rows:
        raise CorpusError(f"{split}: there are no utterances in {', '.join(names)} of {root}")
    intake.unique_ids(rows, root)
    parts = _spare_dev(rows, wanted) if shared else {split: rows}
    made = intake.take(split, parts[split], wanted, lexicon, Path(audio_dir))
    if split != "dev" or not shared:  # otherwise those of train would be listed twice
        made.remarks += [remark for part in listed for remark in part.remarks]
    made.tables += [path for part in listed for path in part.tables]
    made.notes = intake.notes(made, parts, f"{root}, {', '.join(names)}")
    return made


def _spare_dev(rows: list[Row], settings: PublishedSettings) -> dict[str, list[Row]]:
    """Split the corpus's training part into TRAIN and DEV, by hash of the names."""
    if settings.dev_by is SplitBy.utterances:
        names = [row.utt_id for row in rows]
        dev = share_of(names, settings.dev_share, "utterance of train")
    else:
        names = [row.speaker for row in rows]
        by_utterances = f"set {settings.GROUP}.dev_by=utterances, or add speakers"
        dev = share_of(sorted(set(names)), settings.dev_share, "speaker of train", by_utterances)
    pairs = list(zip(rows, names, strict=True))
    return {
        "train": [row for row, name in pairs if name not in dev],
        "dev": [row for row, name in pairs if name in dev],
    }


# --- lhotse's own -------------------------------------------------------------------------------


@contextmanager
def _prepared(name: str, root: Path) -> Iterator[None]:
    """Turn failures of lhotse's prepare functions into one line; suppress warnings and bars."""
    from lhotse.audio.backend import audio_backend

    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the caller counts what is left out
    try:
        with redirect_stderr(io.StringIO()), audio_backend("LibsndfileBackend"):
            yield
    except OSError:
        raise
    except Exception as error:  # of any kind if the layout is unexpected
        text = " ".join(str(error).split())
        raise CorpusError(
            f"lhotse's prepare_{name} cannot read {root} ({type(error).__name__}: {text[:300]}); "
            "compare its files with the recipe's README"
        ) from error
    finally:
        logging.disable(level)


def _rows(manifests: dict[str, Any], root: Path, text: Callable[[str], str]) -> list[Row]:
    """Convert lhotse's recordings and supervisions to rows, in the order of their ids."""
    recordings = {recording.id: recording for recording in manifests["recordings"]}
    rows = []
    for supervision in sorted(manifests["supervisions"], key=lambda s: s.id):
        recording = recordings[supervision.recording_id]
        audio = Path(recording.sources[0].source)
        whole = recording.num_channels == 1 and supervision.duration == recording.duration
        placed = supervision.with_offset(-supervision.start)
        rows.append(
            Row(
                utt_id=supervision.id,
                speaker=supervision.speaker or root.name,
                audio=audio,
                path=_relative(audio, root),
                seconds=supervision.duration,
                text=text(supervision.text or ""),
                where=_relative(audio, root),
                start=None if whole else supervision.start,
                channel=None if whole else supervision.channel,
                alignment={
                    kind: [item for item in items if item.symbol.strip()]  # not pauses
                    for kind, items in (placed.alignment or {}).items()
                },
            )
        )
    return rows


def _folders(root: Path) -> list[Path]:
    """Return a folder and all below it, as `rglob` searches: a file may be added to any."""
    return [Path(where) for where, *_ in os.walk(root)]


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _inner(root: Path, name: str) -> Path:
    """Return the folder of this name that an archive unpacks to, if it is there, or `root`."""
    return root / name if (root / name).is_dir() else root


def _upper(text: str) -> str:
    return " ".join(text.upper().split())


def _librispeech(root: Path, subset: str) -> Listed:
    from lhotse.recipes import prepare_librispeech

    root = _inner(root, "LibriSpeech")
    if not (root / subset).is_dir():
        there = [path.name for path in sorted(root.iterdir()) if path.is_dir()]
        raise CorpusError(
            f"{root / subset} is missing; there are {few(there) or 'no folders'}: download it, or "
            "name others by corpus.published.splits"
        )
    transcripts = sorted((root / subset).rglob("*.trans.txt"))
    listed = _librispeech_lines(transcripts)
    with _prepared("librispeech", root):
        manifests = prepare_librispeech(root, dataset_parts=[subset])[subset]
    rows = _rows(manifests, root, _upper)
    lost = []
    missing = listed.keys() - {row.utt_id for row in rows}
    for utt_id in missing:
        audio, why = _relative(listed[utt_id], root), "missing audio"
        lost.append(Remark(utt_id, utt_id.split("-")[0], audio, why, f"{audio} is missing"))
    for path in (root / subset).rglob("*.flac"):
        if path.stem not in listed and not path.name.startswith("."):
            audio, why = _relative(path, root), "no transcript"
            text = f"no .trans.txt has {audio}"
            lost.append(Remark(path.stem, path.stem.split("-")[0], audio, why, text))
    alignments = sorted((root / subset).rglob("*.alignment.txt"))  # which lhotse reads, too
    lost.sort(key=lambda remark: remark.utt_id)
    absent = [listed[utt_id] for utt_id in missing]
    return Listed(rows, lost, transcripts + alignments + absent + _folders(root / subset))


def _librispeech_lines(transcripts: Iterable[Path]) -> dict[str, Path]:
    """Return the recordings that transcripts list: id -> file; lhotse names no file with errors."""
    listed: dict[str, Path] = {}
    for transcript in transcripts:
        if transcript.name.startswith("._"):
            raise CorpusError(f"{transcript} is no transcript but of macOS; delete all such files")
        for number, line in enumerate(read_lines(transcript), 1):
            utt_id, *words = line.split()[:2] or [""]
            if not words:
                raise CorpusError(
                    f"{transcript}, line {number} is {line!r}; it must be an id and words: correct "
                    "or delete it"
                )
            if utt_id in listed:
                raise CorpusError(f"{transcript}, line {number}: {utt_id} is listed twice")
            listed[utt_id] = transcript.with_name(f"{utt_id}.flac")
    return listed


def _yesno(root: Path, subset: str) -> Listed:
    from lhotse.recipes import prepare_yesno

    root = _inner(root, "waves_yesno")
    with _prepared("yesno", root):
        manifests = prepare_yesno(root)
    rows = _rows(_part(dict(manifests), subset, "yesno"), root, _upper)
    return Listed(rows, tables=[root])


def _part(parts: dict[str, Any], subset: str, corpus: str) -> Any:
    if subset not in parts:
        raise CorpusError(f"{corpus} has no part {subset!r}; it has {', '.join(parts)}")
    return parts[subset]


# --- Switchboard --------------------------------------------------------------------------------

MS98 = "swb_ms98_transcriptions"
HUB5_MARKS = re.compile(r"""<(?:[^<>"]|"[^"]*")*>|\{[^}]*\}|\[[^\]]*\]|--+""")
HUB5_PARTS = {"eval2000": "", "eval2000_swbd": "sw_", "eval2000_callhome": "en_"}  # id prefixes


def _swbd(root: Path, subset: str) -> Listed:
    from lhotse.recipes import prepare_eval2000, prepare_switchboard
    from lhotse.recipes.eval2000 import make_segments

    prefix = _part({"swbd": "", **HUB5_PARTS}, subset, "swbd")
    needed = ["LDC97S62", MS98] if subset == "swbd" else ["LDC2002S09", "LDC2002T43"]
    for name in needed:
        if not (root / name).is_dir():
            raise CorpusError(
                f"{root / name} is missing; CORPUS_DIR must hold {', '.join(needed)} (or links to "
                "them); see recipes/swbd/README.md"
            )
    if subset == "swbd":
        with _prepared("switchboard", root):
            manifests = prepare_switchboard(root / needed[0], root / MS98, absolute_paths=True)
        rows = _rows(manifests, root, ms98_text)
        for row in rows:  # lhotse names both sides A
            row.speaker = f"{row.audio.stem}-{'AB'[row.channel or 0]}"
        tables = sorted((root / MS98).rglob("*trans.text"))
        lost = _left_out(_count_lines(tables) - len(rows), "swbd", MS98)
        return Listed(rows, lost, tables + [p for name in needed for p in _folders(root / name)])
    english = root / "LDC2002T43" / "reference" / "english"
    with _prepared("eval2000", root), tempfile.TemporaryDirectory() as scratch:
        manifests = prepare_eval2000(root, scratch, absolute_paths=True)
        listed = make_segments(english)
    rows = [row for row in _rows(manifests, root, hub5_text) if row.utt_id.startswith(prefix)]
    lines = sum(segment.id.startswith(prefix) for segment in listed)
    lost = _left_out(lines - len(rows), subset, "LDC2002T43")
    folders = [*_folders(root / "LDC2002S09" / "hub5e_00" / "english"), *_folders(english)]
    return Listed(rows, lost, [*english.rglob("*.txt"), *folders])


def _count_lines(tables: Iterable[Path]) -> int:
    lines = (line.split() for table in tables for line in table.read_text().splitlines())
    return sum(len(fields) > 3 and fields[3] != "[silence]" for fields in lines)


def _left_out(count: int, part: str, where: str) -> list[Remark]:
    """Return remarks on transcripts without a recording, which lhotse skips without naming them."""
    why = f"{where} has {count} more segments than there are recordings"
    return [Remark(f"{part}-{i}", "", "", "missing audio", why) for i in range(max(0, count))]


def ms98_text(text: str) -> str:
    """Return the words of the Mississippi State transcripts, upper case.

    As in Kaldi's swbd1_map_words.pl, [laughter-yes] is YES, [it'n/isn't] IT'N, ab[solute]- AB-,
    {yuppiedom} YUPPIEDOM and them_1 THEM. [noise], [laughter], [vocalized-noise] and the marks of
    asides are not words: silence and the phone models absorb their frames.
    """
    return _upper(" ".join(filter(None, map(_ms98_word, text.split()))))


def _ms98_word(word: str) -> str:
    if re.fullmatch(r"\[(silence|noise|laughter|vocalized-noise)\]|<[be]_aside>", word, re.I):
        return ""
    word = re.sub(r"^(-?)\[laughter-(.+)\](-?)$", r"\1\2\3", word, flags=re.I)
    word = re.sub(r"^\[(.+)/.+\](-?)$", r"\1\2", word)
    word = re.sub(r"^-?\[[^\][]+\](.+)$", r"-\1", word)
    word = re.sub(r"^(.+)\[[^\][]+\]-?$", r"\1-", word)
    word = re.sub(r"^\{(.+)\}$", r"\1", word)
    return re.sub(r"_\d", "", word)


def hub5_text(text: str) -> str:
    """Return the words of LDC's Hub5'00 transcripts, upper case, without annotation marks.

    `%um, <contraction e_form="[we=>we]['re=>are]">we're {laugh} ((going)) --` is UM WE'RE GOING.
    """
    text = HUB5_MARKS.sub(" ", text)
    words = (word.strip("%&^~@*+/().,?!:;\"`'") for word in re.sub(r"[()]", " ", text).split())
    return _upper(" ".join(words))


# --- AN4 ----------------------------------------------------------------------------------------

AN4_AUDIO = (".sph", ".wav", ".flac")  # formats with a header


def _an4(root: Path, subset: str) -> Listed:
    """Read CMU's lists: lines `fash/an251-fash-b` and `<s> YES </s> (an251-fash-b)`."""
    root = _inner(root, "an4")
    _part({"train": 0, "test": 0}, subset, "an4")
    files = root / "etc" / f"an4_{subset}.fileids"
    spoken = root / "etc" / f"an4_{subset}.transcription"
    for table in (files, spoken):
        if not table.is_file():
            raise CorpusError(
                f"{table} is missing; CORPUS_DIR must be the folder that an4_sphere.tar.gz unpacks"
            )
    texts = dict(_an4_texts(spoken))
    rows, tables = [], [files, spoken]
    for number, line in enumerate(files.read_text().splitlines(), 1):
        if not line.strip():
            continue
        path = Path(line.strip())
        if path.name not in texts:
            raise CorpusError(
                f"{files}, line {number}: {spoken.name} has no transcript of {path.name}; "
                "unpack the corpus again"
            )
        audio, absent = _an4_audio(root / "wav" / path)
        tables += absent
        rows.append(
            Row(
                utt_id=path.name,
                speaker=path.parent.name,
                audio=audio,
                path=_relative(audio, root),
                seconds=_seconds(audio),
                text=texts[path.name],
                where=f"line {number}",
            )
        )
    return Listed(rows, tables=tables)


def _an4_texts(table: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(table.read_text().splitlines(), 1):
        if not line.strip():
            continue
        found = re.fullmatch(r"(.*)\(([^()\s]+)\)\s*", line)
        if found is None:
            raise CorpusError(f"{table}, line {number}: {line!r} does not end in (its id)")
        words = [w for w in found[1].split() if not re.fullmatch(r"</?s>|<sil>|\+\+.*\+\+", w)]
        yield found[2], _upper(" ".join(words))


def _an4_audio(stem: Path) -> tuple[Path, list[Path]]:
    """Return the recording, and the names that were tried before; all if there is none."""
    suffixes = [each for suffix in AN4_AUDIO for each in (suffix, suffix.upper())]
    names = [stem.with_name(stem.name + suffix) for suffix in suffixes]
    for tried, path in enumerate(names):
        if path.is_file():
            return path, names[:tried]
    raw = stem.with_name(stem.name + ".raw")
    if raw.is_file():
        raise CorpusError(
            f"{raw} has no header, so its byte order is unknown; take an4_sphere.tar.gz, or "
            "convert the recordings to .wav"
        )
    return names[0], [*names, raw]


def _seconds(audio: Path) -> float:
    """Return the header's duration, which the lists lack; `intake` reports missing files."""
    try:
        return float(soundfile.info(audio).duration)
    except (soundfile.LibsndfileError, OSError):
        return 0.0


READERS: dict[Published, Callable[[Path, str], Listed]] = {
    Published.librispeech: _librispeech,
    Published.an4: _an4,
    Published.yesno: _yesno,
    Published.swbd: _swbd,
}
