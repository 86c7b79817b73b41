"""Conversion between seconds, samples and frames, in one place; and a limit on mel bins.

A frame is one row of features. Frame t is centred on (t + 1/2) * shift. The waveform is mirrored at
both ends, so that a recording has round(samples / shift) frames, however short it is (Kaldi's
`snip_edges=false`, lhotse's default).
"""

import math
from bisect import bisect_left, bisect_right

UNKNOWN_SAMPLES = 1 << 62  # libsndfile's number for a FLAC file whose header has none
NO_LENGTH = "does not say how long it is, like files written to a pipe; write it anew"


def samples_of(seconds: float, rate: int) -> int:
    """Return the nearest whole number of samples; `rate` in Hz."""
    return int(seconds * rate + 0.5)


def window_samples(seconds: float, rate: int) -> int:
    """Return the whole samples of a window, cut off as in Kaldi; `rate` in Hz."""
    return int(seconds * rate + 1e-6)


def num_frames(samples: int, shift: int) -> int:
    """Return the number of frames of a waveform; `samples` and `shift` in samples."""
    return (samples + shift // 2) // shift


def is_whole(shift_seconds: float, rate: int) -> bool:
    """Return whether the shift is a whole number of samples, without which times would drift."""
    return abs(shift_seconds * rate - round(shift_seconds * rate)) < 1e-6


def whole_rate(rate: int, shift_seconds: float = 0.01) -> int:
    """Return the highest sample rate up to `rate` at which the shift is whole; Hz; 0: none."""
    return next((hz for hz in range(rate, 0, -1) if is_whole(shift_seconds, hz)), 0)


def most_mels(rate: int, window_seconds: float, low_hz: float, high_hz: float, limit: int) -> int:
    """Return the most mel bins, up to `limit`, that each contain a point of the spectrum.

    The window is padded to a power of 2; the point at half the sample rate does not count.
    """
    fft = 1 << (window_samples(window_seconds, rate) - 1).bit_length()
    points = [_mel(i * rate / fft) for i in range(fft // 2)]
    low, high = _mel(low_hz), _mel(high_hz)
    for bins in range(1, limit + 1):
        step = (high - low) / (bins + 1)
        edges = [low + i * step for i in range(bins + 2)]
        for left, right in zip(edges, edges[2:], strict=False):
            if bisect_right(points, left) == bisect_left(points, right):  # none is between
                return bins - 1
    return limit


def _mel(hz: float) -> float:
    return 1127.0 * math.log1p(hz / 700.0)
