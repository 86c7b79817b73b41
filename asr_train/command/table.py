"""List a folder of recordings with their texts in utterances.tsv, so that it is a corpus.

FOLDER has recordings and, beside each, its text (NAME.lab or NAME.txt), in a sub-folder per speaker
(MFA's layout); or NAME.TextGrid with a tier per speaker and the texts as intervals. The table is
written to FOLDER; `asr-train check FOLDER` reads all of it, `asr-train recipe folder
CORPUS_DIR=FOLDER` trains on it.

example:
  asr-train table recordings
  asr-train table recordings --speaker '^([a-z]+)_'      # of anna_001.wav: anna
  asr-train table recordings --speaker '^([^/]+)/'       # TextGrids: the sub-folder, not the tier
"""

import argparse
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from asr_train.command.main import complain

if TYPE_CHECKING:
    from asr_train.interop.beside import Item


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument(
        "--speaker",
        metavar="PATTERN",
        help="regular expression, searched in a recording's path without suffix; its first group "
        "is the speaker (default: the sub-folder, or a TextGrid's tier)",
    )


def run(options: argparse.Namespace) -> int:
    import soundfile

    from asr_train.checks import spelled
    from asr_train.data.table import COLUMNS, TABLE, write_table
    from asr_train.interop.beside import read_folder

    table = options.folder / TABLE
    if table.exists():
        raise ValueError(f"{table} exists already; delete it to write it again")
    pattern = None if options.speaker is None else _pattern(options.speaker)

    items, problems, _ = read_folder(options.folder)
    rows: dict[str, tuple[str, ...]] = {}
    for item in items:
        try:
            fields = _row(item, options.folder, pattern)
            if (other := rows.setdefault(fields[0], fields)) is not fields:
                raise ValueError(
                    f"{fields[2]} and {other[2]} would both be called {fields[0]}; rename one"
                )
        except soundfile.LibsndfileError as error:
            why = error.error_string
            problems.append(
                f"{item.audio} cannot be read as audio ({why}); convert it to WAV or FLAC"
            )
        except (OSError, ValueError) as error:
            problems.append(str(error))
    for problem in problems:
        complain("table", problem)
    if not rows:
        raise ValueError(f"{options.folder} has no recording with a text beside it")
    timed = any(item.interval for item in items)
    shown = None if timed else len(COLUMNS)
    write_table(options.folder, (rows[utt_id][:shown] for utt_id in sorted(rows)), timed)
    speakers = {fields[1] for fields in rows.values()}
    left = f"; {len(problems)} left out, listed above" if problems else ""
    print(
        f"table: {spelled(len(rows), 'utterance')} of {spelled(len(speakers), 'speaker')}: "
        f"{table}{left}"
    )
    used = {fields[2] for fields in rows.values()}
    alone = sum("/" not in path for path in used) if not timed else 0
    if alone > 1 and pattern is None:
        print(
            f"table: each of {alone} recordings that are in no sub-folder is by a speaker of its "
            "own; if one said several, give --speaker, so that none is in training and in test"
        )
    tiers = {item.speaker for item in items if item.interval}
    grids = len({item.name for item in items if item.interval})
    if len(tiers) == 1 < grids and pattern is None:
        print(
            f"table: all {grids} recordings with TextGrids are by the speaker {tiers.pop()}, as "
            "their tiers are called; if that is no speaker, delete the table and give --speaker"
        )
    return 1 if problems else 0


def _row(item: "Item", folder: Path, pattern: re.Pattern[str] | None) -> tuple[str, ...]:
    """Return the item's values of all columns."""
    import soundfile

    from asr_train.bundle.audio import check_whole
    from asr_train.checks import check_text
    from asr_train.files import read_text
    from asr_train.frames import NO_LENGTH, UNKNOWN_SAMPLES

    path = item.audio.relative_to(folder).as_posix()
    if path.encode(errors="replace").decode() != path:
        raise ValueError(f"the name {path!r} is not UTF-8; rename it")
    names = [*item.name.split("/"), ""]
    # anna/anna_1.wav is anna_1, anna/1.wav is anna-1; 1/1.wav is 1-1 and 1/10.wav is 1-10
    utt_id = "-".join(
        name for name, next_ in pairwise(names) if not re.match(rf"{re.escape(name)}[\W_]", next_)
    )
    if (at := item.interval) is not None:
        speaker, text, start, seconds = item.speaker, at.label, f"{at.start:.4f}", at.end - at.start
        utt_id = f"{utt_id}-{speaker}-{round(1000 * at.start):07d}"
    else:
        speaker, text, start = names[0], read_text(item.text), ""
        info = soundfile.info(item.audio)
        seconds = info.duration
        if info.frames >= UNKNOWN_SAMPLES:
            raise ValueError(f"{path} {NO_LENGTH}")
        if seconds == 0:
            raise ValueError(f"{path} has no samples; record it again, or delete it")
        check_whole(item.audio)
    if pattern is not None:
        found = pattern.search(item.name)
        if not (found and found[1]):
            raise ValueError(f"{path}: --speaker {pattern.pattern!r} finds no speaker in it")
        speaker = found[1]
    text = " ".join(text.split())
    check_text(item.text, text)
    written = (utt_id, speaker, path)
    if broken := [value for value in written if not value.isprintable() or value != value.strip()]:
        raise ValueError(f"{path}: {broken[0]!r} cannot stand in a table; rename it")
    return (utt_id, speaker, path, f"{seconds:.4f}", text, start, "")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"--speaker {text!r} is no regular expression: {error}") from error
    if not pattern.groups:
        raise ValueError(f"--speaker {text!r} has no group; put the speaker in (parentheses)")
    return pattern
