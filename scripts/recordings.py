"""recordings.py work/conf/audio work/manifests SPLIT...

Rewrite SPLIT.yaml if a recording changed since manifests/SPLIT.jsonl.gz was made, because the
manifest depends on it. Runs with every make, so it imports little.
"""

import asr_train.interrupt  # noqa: F401

import os
import sys
from pathlib import Path

from asr_train.data.recordings import changed_files
from asr_train.files import hash_of, write_yaml
from asr_train.jobs import main


def recordings(folder: str, manifests: str, *splits: str) -> None:
    is_plan = Path(folder).parent.name == ".plan"  # which must leave no trace
    for split in splits:
        mark = Path(folder) / f"{split}.yaml"
        if not mark.exists():
            write_yaml(mark, {"changed": None})
            os.utime(mark, (0, 0))  # older than any finished stage
        manifest, table = (Path(manifests) / f"{split}{end}" for end in (".jsonl.gz", ".audio.tsv"))
        changed = changed_files(table, not is_plan) if manifest.exists() and table.exists() else []
        if not changed:
            continue
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        print(f"{changed[0]}{more} changed since {manifest} was made", file=sys.stderr)
        now = [(os.stat(p).st_size, os.stat(p).st_mtime_ns) for p in changed if os.path.exists(p)]
        write_yaml(mark, {"changed": hash_of([changed, now])})
        os.utime(mark)  # the same change may come twice: a disk that is not there


if __name__ == "__main__":
    main(recordings, __doc__)
