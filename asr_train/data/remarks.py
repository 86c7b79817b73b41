"""Utterances of a corpus that were dropped or changed: the **remarks** in SPLIT.dropped.tsv.

Imports no library: the report reads these tables, too.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asr_train.files import read_text

REMARK = "utt_id", "speaker", "path", "fate", "what", "why"
KEPT = ("renamed", "no pronunciation")  # remarks on utterances that stay; others are dropped


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark on an utterance that was dropped or changed: a line of SPLIT.dropped.tsv."""

    utt_id: str
    speaker: str
    path: str
    what: str  # the kind
    why: str  # the details

    @property
    def dropped(self) -> bool:
        return self.what not in KEPT


def dropped_table(path: Path | str) -> Path:
    """Return the path of the table of dropped utterances beside a manifest."""
    return Path(path).with_name(Path(path).name.removesuffix(".jsonl.gz") + ".dropped.tsv")


def read_remarks(manifest: Path | str) -> list[Remark]:
    """Read the remarks beside a manifest; none if another program wrote the manifest."""
    table = dropped_table(manifest)
    lines = read_text(table).split("\n")[1:-1] if table.exists() else []
    rows = (line.split("\t") for line in lines)
    return [Remark(utt_id, speaker, path, *rest) for utt_id, speaker, path, _, *rest in rows]


def reasons(remarks: Sequence[Remark]) -> str:
    """Summarise why utterances were dropped, most frequent first, with an example of each."""
    dropped = [remark for remark in remarks if remark.dropped]
    kinds = Counter(remark.what for remark in dropped).most_common()
    first = {remark.what: remark for remark in reversed(dropped)}
    return "; ".join(f"{n} {what} ({first[what].utt_id}: {first[what].why})" for what, n in kinds)
