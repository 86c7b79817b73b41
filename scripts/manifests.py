"""manifests.py conf/corpus.yaml conf/lexicon.yaml manifests/SPLIT.jsonl.gz

Recordings and transcripts of one split, validated, as lhotse cuts. What was dropped, and why, is in
SPLIT.dropped.tsv beside it. Recordings that are made here lie in ../audio/SPLIT.
"""

from pathlib import Path

from asr_train.data import corpus
from asr_train.jobs import main
from asr_train.schema import CorpusSettings, LexiconSettings, load


def manifests(conf: str, lexicon_conf: str, output: str) -> None:
    settings = load(CorpusSettings, conf)
    lexicon = load(LexiconSettings, lexicon_conf)
    split = Path(output).name.removesuffix(".jsonl.gz")
    audio_dir = Path(output).parent.parent / "audio" / split
    if settings.digits is not None:
        made = corpus.digits(settings, split, audio_dir)
    else:
        made = corpus.folder(settings, lexicon, split, audio_dir)
    for note in made.notes:
        print(note)
    corpus.write(made, output)
    print(f"manifests: {made.summary()}")


if __name__ == "__main__":
    main(manifests, __doc__)
