"""check.py conf/corpus.yaml conf/lexicon.yaml conf/ali.yaml manifests/SPLIT.jsonl.gz... OUTPUT

Check all splits of a corpus before anything is computed: dropped utterances, words without a
pronunciation. TRAIN and DEV come first. OUTPUT is manifests/check.txt, for a person to read.
"""

import asr_train.interrupt  # noqa: F401

from asr_train.data.check import check as check_corpus
from asr_train.data.check import read_split
from asr_train.files import write_text
from asr_train.jobs import main
from asr_train.schema import AliSettings, CorpusSettings, LexiconSettings, load


def check(corpus: str, lexicon: str, ali: str, *paths: str) -> None:
    *manifests, output = paths
    lines = check_corpus(
        [read_split(manifest) for manifest in manifests],
        load(CorpusSettings, corpus),
        load(LexiconSettings, lexicon),
        load(AliSettings, ali).max_lost_share,
    )
    write_text(output, "".join(f"check: {line}\n" for line in lines))


if __name__ == "__main__":
    main(check, __doc__)
