"""Check a folder of recordings before training on it: what `make check CORPUS_DIR=FOLDER` does.

FOLDER has utterances.tsv, separated by tabs: utt_id, speaker, path, duration_seconds, transcript,
and, where utterances are parts of recordings, start_seconds and channel (from 0).
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
    from asr_train.data.check import Split, check
    from asr_train.data.corpus import CorpusError
    from asr_train.data.folder import SPLITS
    from asr_train.data.prepare import prepare

    path = compose.quoted(str(options.folder.resolve()))
    given = ["recipe=folder", f"corpus.folder.dir={path}", *options.settings]
    config = compose.settings("dnn", given)
    lexicon = config.lang.lexicon
    with tempfile.TemporaryDirectory() as name:
        splits = []
        more = config.corpus.folder
        assert more is not None
        for split in dict.fromkeys((*SPLITS, *more.more_tests, *more.test_dirs)):
            made = prepare(config.corpus, lexicon, split, Path(name) / split)
            dropped = [f"  {r.utt_id}: {r.what}: {r.why}" for r in made.remarks if r.dropped]
            print("\n".join([*made.notes, *dropped, made.summary()]))
            if not made.cuts:
                raise CorpusError(f"{split}: no utterance is left; correct what is listed above")
            splits.append(Split(split, [cut.to_dict() for cut in made.cuts], made.remarks))
        for line in check(splits, config.corpus, lexicon, config.ali.max_lost_share):
            print(f"check: {line}")
    return 0
