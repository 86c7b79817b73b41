"""Check a folder of recordings before training on it: what `make check CORPUS_DIR=FOLDER` does.

FOLDER has utterances.tsv, separated by tabs: utt_id, speaker, path, duration_seconds, transcript.
Every recording is read; what cannot be used is listed with its reason, and so are words without a
pronunciation. Settings are those of recipe folder; SETTING changes one.

example:
  asr-train check recordings
  asr-train check recordings feats=telephone lang.lexicon.source=letters
"""

import argparse
import tempfile
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("settings", metavar="SETTING", nargs="*", help="group.key=value")


def run(options: argparse.Namespace) -> int:
    from asr_train import compose
    from asr_train.data.check import check, read_split
    from asr_train.data.corpus import write
    from asr_train.data.folder import SPLITS
    from asr_train.data.prepare import prepare

    path = str(options.folder.resolve()).replace("\\", "\\\\").replace("'", "\\'")
    given = ["recipe=folder", f"corpus.folder.dir='{path}'", *options.settings]
    config = compose.settings("dnn", given)
    lexicon = config.lang.lexicon
    with tempfile.TemporaryDirectory() as name:
        work, splits = Path(name), []
        for split in SPLITS:
            made = prepare(config.corpus, lexicon, split, work / "audio" / split)
            for note in made.notes:
                print(note)
            write(made, work / f"{split}.jsonl.gz")
            print(made.summary())
            splits.append(read_split(work / f"{split}.jsonl.gz"))
        for line in check(splits, config.corpus, lexicon, config.ali.max_lost_share):
            print(f"check: {line}")
    return 0
