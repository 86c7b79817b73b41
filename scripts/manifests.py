"""manifests.py conf/corpus.yaml conf/lexicon.yaml manifests/SPLIT.jsonl.gz

Write recordings and transcripts of one split, validated, as lhotse cuts. SPLIT.dropped.tsv beside
it lists dropped utterances with reasons. Synthesised recordings go to ../audio/SPLIT.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
from pathlib import Path

from asr_train.data.corpus import PreparedSplit, write
from asr_train.data.folder import folder
from asr_train.data.published import published
from asr_train.data.speeds import add_speeds
from asr_train.jobs import main
from asr_train.schema import CorpusSettings, LexiconSettings, load


def manifests(conf: str, lexicon_conf: str, output: str) -> str:
    settings = load(CorpusSettings, conf)
    lexicon = load(LexiconSettings, lexicon_conf)
    split = Path(output).name.removesuffix(".jsonl.gz")
    made = _made(settings, lexicon, split, Path(output).parent.parent / "audio" / split)
    if split == "train":
        add_speeds(made, settings.speeds, settings.speed_speakers)
    for note in made.notes:
        print(note)
    write(made, output)
    return f"manifests: {made.summary()}"


def _made(
    settings: CorpusSettings, lexicon: LexiconSettings, split: str, audio_dir: Path
) -> PreparedSplit:
    # Speech synthesis needs libraries that are slow to import.
    if settings.digits is not None:
        from asr_train.data.digits import digits

        return digits(settings, split, audio_dir)
    if settings.commands is not None:
        from asr_train.data.commands import commands

        return commands(settings, lexicon, split, audio_dir)
    if settings.folder is not None:
        return folder(settings, lexicon, split, audio_dir)
    return published(settings, lexicon, split, audio_dir)


if __name__ == "__main__":
    main(manifests, __doc__)
