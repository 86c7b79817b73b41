"""Cuts -> **copies at other speeds** for training: pitch, formants and all times change.

lhotse resamples when the audio is read, so nothing is stored twice. (Ko, Peddinti, Povey,
Khudanpur: "Audio augmentation for speech recognition", Interspeech 2015, with 0.9, 1.0 and 1.1.)
Volumes are changed in place.
"""

import zlib

import numpy as np
from lhotse import MonoCut

from asr_train.data.corpus import CorpusError, PreparedSplit
from asr_train.files import MAX_ID_BYTES


def add_speeds(made: PreparedSplit, speeds: list[float], new_speakers: bool) -> PreparedSplit:
    """Add a copy of each cut at each speed other than 1.0.

    `a` at 0.9 is `a-sp09`, because tar readers cut names at a dot. Word and phone times change with
    the audio. The supervision's `custom` records the speed, for counting words.

    Args:
        new_speakers: whether `bob` at 0.9 is another speaker, `bob-sp09`, normalised separately.
    Raises:
        CorpusError: if the corpus has such an id already.
    """
    originals, known = made.cuts, {cut.id for cut in made.cuts}
    for speed in speeds:
        if speed == 1.0:
            continue
        cuts = [_at_speed(cut, speed, new_speakers) for cut in originals]
        clash = sorted(known & {cut.id for cut in cuts})
        if clash:
            raise CorpusError(
                f"{clash[0]} is an utterance id of the corpus already, so the copy at speed "
                f"{speed} cannot have it; rename it, or leave that speed out of corpus.speeds"
            )
        for cut in cuts:
            if (size := len(cut.id.encode())) > MAX_ID_BYTES:
                raise CorpusError(
                    f"the copy {cut.id} at speed {speed} has an id of {size} bytes, but names in "
                    f"tar files have room for {MAX_ID_BYTES}; shorten it, or leave that speed out "
                    "of corpus.speeds"
                )
        made.cuts = made.cuts + cuts
    if len(speeds) > 1:
        made.notes.append(f"  {made.split} at the speeds {', '.join(map(str, speeds))}")
    return made


def change_volumes(made: PreparedSplit, volumes: list[float], seed: int) -> None:
    """Scale each recording by a random factor, which its cut's id and the seed determine.

    As Kaldi's utils/data/perturb_data_dir_volume.sh, which draws from 0.125 to 2, uniformly.

    Args:
        volumes: the smallest and the largest factor of amplitudes.
    """
    low, high = volumes
    for n, cut in enumerate(made.cuts):
        rng = np.random.default_rng([seed, zlib.crc32(cut.id.encode())])
        factor = round(float(rng.uniform(low, high)), 4)
        made.cuts[n] = cut.perturb_volume(factor, affix_id=False)
    made.notes.append(f"  {made.split} at volumes from {low} to {high}")


def speed_name(name: str, speed: float) -> str:
    return f"{name}-sp{str(speed).replace('.', '')}"


def _at_speed(cut: MonoCut, speed: float, new_speakers: bool) -> MonoCut:
    fast = cut.perturb_speed(speed, affix_id=False)
    fast.id = speed_name(cut.id, speed)
    fast.recording.id = speed_name(cut.recording.id, speed)
    (supervision,) = fast.supervisions
    supervision.id, supervision.recording_id = fast.id, fast.recording.id
    supervision.custom = {**(supervision.custom or {}), "speed": speed}  # not counted again
    if new_speakers:
        supervision.speaker = speed_name(supervision.speaker, speed)
    return fast
