"""Folders with a tab-separated `utterances.tsv` -> cuts of one split.

One folder is split by speaker; further ones add training data, have their own test splits, or are
DEV or a test split as a whole.
`phone_labels` names a table of phones and their times, with which alignments are compared.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from unicodedata import normalize

from lhotse.supervision import AlignmentItem

from asr_train.checks import few, spelled
from asr_train.data import intake, splits
from asr_train.data.corpus import CorpusError, PreparedSplit, check_split
from asr_train.data.intake import Row
from asr_train.data.table import COLUMNS, TABLE
from asr_train.files import read_text
from asr_train.lang.lexicon import SILENCE
from asr_train.schema import CorpusSettings, FolderSettings, LexiconSettings

SPLITS = ("train", "dev", "test")
LABEL_COLUMNS = ("utt_id", "start_seconds", "end_seconds", "phone")
PAUSES = ("PAU", "SIL")  # Festival's name, and SIL


def folder(
    settings: CorpusSettings, lexicon: LexiconSettings, split: str, audio_dir: Path | str
) -> PreparedSplit:
    """Read one split of the folders, and check each of its recordings.

    Args:
        audio_dir: for recordings of several channels that are mixed into one.
    Raises:
        CorpusError: for a broken table, duplicate ids, speakers that cannot be split, several
            channels if they are refused; ValueError from the lexicon for refused words.
    """
    assert settings.folder is not None
    wanted = settings.folder
    known = dict.fromkeys((*SPLITS, *wanted.more_tests, *wanted.test_dirs))
    check_split(split, "a folder", known)
    folders = (*wanted.more_dirs, *wanted.more_tests.values(), *wanted.held_out.values())
    roots = [Path(wanted.dir), *map(Path, folders)]
    refuse_twice(roots, "corpus.folder's dir, more_dirs, more_tests, dev_dir and test_dirs")
    tables = [tabled(root) for root in roots]
    prefixed = tell_apart(roots, tables)
    parts = split_rows(tables, wanted)
    mine = parts[split]
    if not mine:
        count = len({row.speaker for table in tables for row in table})
        raise CorpusError(
            f"{split} has no speakers: all {count} are named for dev and test in corpus.folder; "
            "name fewer, or none and set corpus.folder.test_by=utterances"
        )
    if wanted.phone_labels is not None:
        _label(roots, tables, wanted)
    made = intake.take(split, mine, wanted, lexicon, Path(audio_dir))
    tables_of = TABLE, *([wanted.phone_labels] if wanted.phone_labels else [])
    made.tables += [root / name for root in roots for name in tables_of]  # labels may come later
    made.notes = intake.notes(made, parts, " + ".join(map(str, roots))) + prefixed
    return made


# --- the table ----------------------------------------------------------------------------------


def tabled(root: Path) -> list[Row]:
    """Read a folder's table; return its rows in order."""
    table = root / TABLE
    if not table.is_file():
        raise CorpusError(
            f"{table} is missing; a folder of recordings must have this table, its columns "
            f"{', '.join(COLUMNS)} separated by tabs"
        )
    rows = [_row(root, number, value) for number, value in _lines(table, COLUMNS)]
    if not rows:
        raise CorpusError(f"{table} names columns but no utterance; write a line for each")
    _spell_alike(rows)
    intake.unique_ids(rows, table)
    return rows


def _lines(table: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the lines of a tab-separated table: number, and values by column.

    Raises:
        CorpusError: for missing columns, or lines with another number of fields.
    """
    head, *lines = read_text(table).split("\n")
    if not head.strip():
        raise CorpusError(
            f"{table} has no first line; it must name the columns {', '.join(wanted)}, separated "
            "by tabs"
        )
    columns = head.rstrip("\r").split("\t")
    if twice := [column for column in columns if column and columns.count(column) > 1]:
        raise CorpusError(f"{table} has two columns {twice[0]}; keep one, or rename the other")
    missing = [column for column in wanted if column not in columns]
    if missing:
        raise CorpusError(
            f"{table} has the columns {', '.join(columns)} but lacks {', '.join(missing)}; "
            "its first line must name them, separated by tabs"
        )
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        values = line.rstrip("\r").split("\t")
        if len(values) != len(columns):
            raise CorpusError(
                f"{table}, line {number} has {len(values)} fields for {len(columns)} columns: "
                f"{line!r}"
            )
        yield f"line {number}", {c: v.strip() for c, v in zip(columns, values, strict=True)}


def _row(root: Path, where: str, value: dict[str, str]) -> Row:
    for column in ("utt_id", "speaker", "path"):
        if not value[column]:
            raise CorpusError(f"{root / TABLE}, {where} has no {column}: {value}")
    seconds = _number(root / TABLE, where, value, "duration_seconds")
    start = None
    if value.get("start_seconds"):
        start = _number(root / TABLE, where, value, "start_seconds")
    given = value.get("channel")
    if given and not (given.isascii() and given.isdecimal()):
        raise CorpusError(
            f"{root / TABLE}, {where}: channel is {given!r}; it must be 0 for the first, 1 for "
            "the second, or empty"
        )
    utt_id, speaker, path, text = (value[c] for c in ("utt_id", "speaker", "path", "transcript"))
    channel = int(given) if given else None
    return Row(utt_id, speaker, root / path, path, seconds, text, where, start, channel)


def _spell_alike(rows: Iterable[Row]) -> None:
    """Give a speaker whose umlauts are one character here and two there the first spelling."""
    first: dict[str, str] = {}
    for row in rows:
        row.speaker = first.setdefault(normalize("NFC", row.speaker), row.speaker)


def _number(table: Path, where: str, value: dict[str, str], column: str) -> float:
    try:
        number = float(value[column])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise CorpusError(f"{table}, {where}: {column} is {value[column]!r}; it must be a number")
    return number


# --- several folders ----------------------------------------------------------------------------


def refuse_twice(roots: list[Path], named_in: str) -> None:
    """Raise CorpusError if two of these are the same folder, perhaps by way of a link."""
    seen: dict[Path, Path] = {}
    for root in roots:
        if seen.setdefault(root.resolve(), root) is not root:
            raise CorpusError(f"{named_in} name the folder {root} twice; name it once")


def tell_apart(
    roots: list[Path],
    tables: list[list[Row]],
    speakers: Iterable[str] = (),
    ids: Iterable[str] = (),
) -> list[str]:
    """Prefix speakers and ids that an earlier folder has with the folder's name; return notes.

    A speaker is the same in either form of Unicode.

    Args:
        speakers, ids: which are taken before the first folder.
    """
    notes: list[str] = []
    _spell_alike(row for table in tables for row in table)
    for what, before in (("speaker", speakers), ("utt_id", ids)):
        taken = set(before)
        for root, table in zip(roots, tables, strict=True):
            own = {getattr(row, what) for row in table}
            clash = sorted(own & taken)
            prefix = intake.without_marks(root.resolve().name)
            if again := sorted({f"{prefix}-{name}" for name in clash} & (own | taken)):
                raise CorpusError(
                    f"{root / TABLE}: {what} {few(clash)} is in an earlier folder, and "
                    f"{few(again)} too; rename them"
                )
            for row in table:
                if getattr(row, what) in clash:
                    if what == "utt_id":
                        row.was = row.was or row.utt_id
                    setattr(row, what, f"{prefix}-{getattr(row, what)}")
            taken |= {getattr(row, what) for row in table}
            if clash:
                notes.append(
                    f"  {root}: {spelled(len(clash), what)} of earlier folders too, "
                    f"now with {prefix}- before them: {few(clash)}"
                )
    return notes


def split_rows(tables: list[list[Row]], settings: FolderSettings) -> dict[str, list[Row]]:
    """Return the rows of each split, in the order of the folders and their tables.

    Args:
        tables: the rows of `dir`, of each of `more_dirs`, and of the folders of `more_tests` and
            `held_out`.
    """
    whole = settings.held_out
    apart = tables[len(tables) - len(whole) :]
    first, *more = tables = tables[: len(tables) - len(whole)]
    settings = splits.spelled_as((row.speaker for rows in tables for row in rows), settings)
    speakers = splits.split_speakers(
        [row.speaker for row in first], settings, [row.speaker for rows in more for row in rows]
    )
    named = set(settings.dev_speakers) | set(settings.test_speakers)
    own = more[len(settings.more_dirs) :]
    for split, rows in zip(settings.more_tests, own, strict=True):
        others = [row.speaker for row in rows if row.speaker not in named]
        speakers[split] = splits.further_test_speakers(others, settings)
    tested = {name for split in settings.more_tests for name in speakers[split]}
    speakers["train"] = sorted(set(speakers["train"]) - tested)
    everything = [row for rows in tables for row in rows]
    names_in = {split: set(names) for split, names in speakers.items()}
    parts = {split: [r for r in everything if r.speaker in own] for split, own in names_in.items()}
    here = {row.utt_id for row in first}
    for split in splits.by_utterances(settings):
        mine = [row.utt_id for row in parts["train"] if row.utt_id in here]
        ids = mine or [row.utt_id for row in parts["train"]]
        share = settings.test_share if split == "test" else settings.dev_share
        taken = splits.share_of(ids, share, "utterance of the training speakers") if ids else set()
        parts[split] = [row for row in parts["train"] if row.utt_id in taken]
        parts["train"] = [row for row in parts["train"] if row.utt_id not in taken]
    return parts | dict(zip(whole, apart, strict=True))


# --- phones -------------------------------------------------------------------------------------


def _label(roots: list[Path], tables: list[list[Row]], settings: FolderSettings) -> None:
    """Assign phones to the rows, if a folder has labels for them."""
    name = settings.phone_labels
    assert name is not None
    found = [pair for pair in zip(roots, tables, strict=True) if (pair[0] / name).is_file()]
    if not found:
        raise CorpusError(
            f"corpus.folder.phone_labels is {name}, but {few([str(r / name) for r in roots])} is "
            "missing; set it to null, or put the table there"
        )
    for root, rows in found:
        labels = read_phone_labels(root / name)
        for row in rows:
            phones = labels.get(row.was or row.utt_id)
            if phones is None:
                continue
            if phones[-1].end > row.seconds + settings.duration_tolerance_seconds:
                raise CorpusError(
                    f"{root / name}: the phones of {row.utt_id} end at {phones[-1].end:.3f} s, but "
                    f"{TABLE} says {row.seconds:.3f} s; compare the two"
                )
            row.alignment["phone"] = phones
        if not any("phone" in row.alignment for row in rows):
            raise CorpusError(
                f"{root / name} has labels of {few(sorted(labels))}, none of which is in "
                f"{root / TABLE}; compare their utt_id"
            )


def read_phone_labels(table: Path) -> dict[str, list[AlignmentItem]]:
    """Read a table of utt_id, start_seconds, end_seconds, phone; return each utterance's phones.

    Names become those of CMU's dictionary: upper case, without stress; Festival's `pau` is SIL.

    Raises:
        CorpusError: for missing columns, or decreasing times; names the line.
    """
    labels: dict[str, list[AlignmentItem]] = {}
    for where, value in _lines(table, LABEL_COLUMNS):
        start, end = (_number(table, where, value, c) for c in ("start_seconds", "end_seconds"))
        phones = labels.setdefault(value["utt_id"], [])
        before = phones[-1].end if phones else 0.0
        if not before - 1e-6 <= start < end:
            raise CorpusError(
                f"{table}, {where}: {value['phone']!r} of {value['utt_id']} lasts from {start} "
                f"to {end} s, after one that ends at {before:.4f} s; times must increase"
            )
        phone = value["phone"].upper().rstrip("012")
        phone = SILENCE if phone in PAUSES else phone
        phones.append(AlignmentItem(phone, start, round(end - start, 6)))
    return labels
