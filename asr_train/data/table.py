"""The table of a folder of recordings, `utterances.tsv`: a line per utterance, with tabs."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from asr_train.files import write_text

TABLE = "utterances.tsv"
COLUMNS = ("utt_id", "speaker", "path", "duration_seconds", "transcript")
OPTIONAL = ("start_seconds", "channel")  # of parts of recordings; a field may be empty


def write_table(folder: Path | str, rows: Iterable[Sequence[str]], parts: bool = False) -> Path:
    """Write the table; return its path.

    Args:
        rows: values of `COLUMNS`, and of `OPTIONAL` if some utterances are parts of recordings.
    """
    lines = [(*COLUMNS, *OPTIONAL) if parts else COLUMNS, *rows]
    write_text(Path(folder) / TABLE, "".join("\t".join(line) + "\n" for line in lines))
    return Path(folder) / TABLE
