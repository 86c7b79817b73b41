"""Settings of a corpus -> the cuts of one of its splits, by the corpus's own reader."""

from pathlib import Path

from asr_train.data.corpus import PreparedSplit
from asr_train.data.folder import folder
from asr_train.data.published import published
from asr_train.data.speeds import add_speeds, change_volumes
from asr_train.schema import CorpusSettings, LexiconSettings


def prepare(
    settings: CorpusSettings, lexicon: LexiconSettings, split: str, audio_dir: Path
) -> PreparedSplit:
    """Read, or synthesise, one split, with speed copies of the training data.

    Args:
        audio_dir: for recordings that are made here.
    Raises:
        CorpusError: as the corpus's reader.
    """
    made = _read(settings, lexicon, split, audio_dir)
    if split == "train":
        add_speeds(made, settings.speeds, settings.speed_speakers)
        if settings.volumes is not None:
            change_volumes(made, settings.volumes, settings.seed)
    return made


def _read(
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
