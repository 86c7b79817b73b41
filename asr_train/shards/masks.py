"""**SpecAugment**: a sample with random runs of frames and of mel bins set to their mean.

Park et al. (2019), "SpecAugment: a simple data augmentation method for automatic speech
recognition", without its time warping, which they found to matter least. The mean of normalised
features is 0. lhotse's own draws from Python's global generator, so that a resumed run would see
other masks; here they follow from (seed, epoch, utterance), whoever reads it.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from asr_train.schema import SpecAugmentSettings
from asr_train.shards.sample import Sample


def masked(
    samples: Iterable[Sample],
    settings: SpecAugmentSettings,
    seed: int,
    epoch: int,
    mean_F: NDArray[np.float32] | float = 0.0,
) -> Iterator[Sample]:
    """Yield copies of samples with new masks; targets stay as they are.

    Args:
        mean_F: of the features.
    """
    for sample in samples:
        words = [seed, epoch, zlib.crc32(sample.id.encode())]
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
        feats_TF = sample.feats_TF.copy()
        frames, bins = feats_TF.shape
        mean_TF = np.broadcast_to(np.asarray(mean_F, feats_TF.dtype), feats_TF.shape)
        longest = min(settings.time_width, int(settings.time_share * frames))
        for _ in range(settings.time_masks):
            first, last = _span(rng, frames, longest)
            feats_TF[first:last] = mean_TF[first:last]
        for _ in range(settings.freq_masks):
            first, last = _span(rng, bins, min(settings.freq_width, bins))
            feats_TF[:, first:last] = mean_TF[:, first:last]
        yield replace(sample, feats_TF=feats_TF)


def _span(rng: np.random.Generator, size: int, longest: int) -> tuple[int, int]:
    """Draw a width from 0 to `longest`, and where a mask of it begins."""
    width = int(rng.integers(longest + 1))
    first = int(rng.integers(size - width + 1))
    return first, first + width
