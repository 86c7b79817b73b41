"""Cuts -> **the same at other speeds**, for training: pitch, formants and all times change.

lhotse resamples when the audio is read, so nothing is stored twice. (Ko, Peddinti, Povey,
Khudanpur: "Audio augmentation for speech recognition", Interspeech 2015, with 0.9, 1.0 and 1.1.)
"""

from lhotse import MonoCut

from asr_train.data.corpus import CorpusError, PreparedSplit


def add_speeds(made: PreparedSplit, speeds: list[float], new_speakers: bool) -> PreparedSplit:
    """Add each cut at each speed but 1.0, which all are already.

    `a` at 0.9 is `a-sp09`: a tar's readers would cut a name at its dot. Word and phone times
    change with the audio. The supervision's `custom` says the speed, for those who count words.

    Args:
        new_speakers: `bob` at 0.9 is another speaker, `bob-sp09`, normalised by itself: his
            spectrum has moved.
    Raises:
        CorpusError: if the corpus has such an id already.
    """
    known = {cut.id for cut in made.cuts}
    for speed in speeds:
        if speed == 1.0:
            continue
        cuts = [_at_speed(cut, speed, new_speakers) for cut in made.cuts if cut.id in known]
        clash = sorted(known & {cut.id for cut in cuts})
        if clash:
            raise CorpusError(
                f"{clash[0]} is an utterance id of the corpus already, so none is left for the one "
                f"at speed {speed}; rename it, or leave that out of corpus.speeds"
            )
        made.cuts += cuts
    if len(speeds) > 1:
        made.notes.append(f"  {made.split} at the speeds {', '.join(map(str, speeds))}")
    return made


def speed_name(name: str, speed: float) -> str:
    return f"{name}-sp{str(speed).replace('.', '')}"


def _at_speed(cut: MonoCut, speed: float, new_speakers: bool) -> MonoCut:
    fast = cut.perturb_speed(speed, affix_id=False)
    fast.id = speed_name(cut.id, speed)
    fast.recording.id = speed_name(cut.recording.id, speed)
    (said,) = fast.supervisions
    said.id, said.recording_id = fast.id, fast.recording.id
    said.custom = {**(said.custom or {}), "speed": speed}  # its words were counted already
    if new_speakers:
        said.speaker = speed_name(said.speaker, speed)
    return fast
