"""manifests.py conf/corpus.yaml conf/lexicon.yaml manifests/SPLIT.jsonl.gz

Write recordings and transcripts of one split, validated, as lhotse cuts. SPLIT.dropped.tsv beside
it lists dropped utterances with reasons. Synthesised recordings go to ../audio/SPLIT.
"""

import asr_train.interrupt  # noqa: F401

from pathlib import Path

from asr_train.data.corpus import write
from asr_train.data.prepare import prepare
from asr_train.jobs import main
from asr_train.schema import CorpusSettings, LexiconSettings, load


def manifests(conf: str, lexicon: str, output: str) -> str:
    split = Path(output).name.removesuffix(".jsonl.gz")
    audio_dir = Path(output).parent.parent / "audio" / split
    made = prepare(load(CorpusSettings, conf), load(LexiconSettings, lexicon), split, audio_dir)
    for note in made.notes:
        print(note)
    write(made, output)
    return f"manifests: {made.summary()}"


if __name__ == "__main__":
    main(manifests, __doc__)
