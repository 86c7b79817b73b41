"""Samples whose values tell where they come from."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from asr_train.shards.sample import Sample
from asr_train.shards.writer import write_shards

NUM_STATES = 50


def utterance(number: int, frames: int, num_mels: int = 3) -> Sample:
    """Return a sample whose frame t is [n, t, ...]: integers that float16 represents."""
    feats_TF = np.zeros((frames, num_mels), np.float32)
    feats_TF[:, 0] = number
    feats_TF[:, 1] = np.arange(frames)
    ali_T = (7 * number + np.arange(frames, dtype=np.int32)) % NUM_STATES
    return Sample(f"utt{number:03d}", feats_TF, ali_T, f"WORD {number}")


def write(folder: Path, lengths: Sequence[int], per_shard: int) -> Path:
    """Write shards of utterances with these frames; return the index's path."""
    write_shards(
        (utterance(n, frames) for n, frames in enumerate(lengths)),
        folder / "index.json",
        utterances_per_shard=per_shard,
        num_states=NUM_STATES,
        about={"states_hash": "abc"},
    )
    return folder / "index.json"
