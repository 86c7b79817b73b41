"""Conversions between seconds, samples and frames are rounded consistently."""

import pytest

from asr_train.frames import num_frames, samples_of, whole_rate


@pytest.mark.parametrize("samples, frames", [(0, 0), (79, 0), (80, 1), (239, 1), (240, 2)])
def test_a_recording_has_the_nearest_number_of_frames(samples, frames):
    assert num_frames(samples, 160) == frames


def test_samples_are_the_nearest_whole_number():
    assert samples_of(0.025, 11025) == 276
    assert samples_of(0.010, 16000) == 160


@pytest.mark.parametrize(
    "rate, shift, whole", [(11025, 0.01, 11000), (44100, 0.01, 44100), (9, 1, 9)]
)
def test_a_shift_is_whole_at_the_next_lower_rate(rate, shift, whole):
    assert whole_rate(rate, shift) == whole
