"""Seconds, samples, frames: the only place that rounds between them; and how fine a spectrum is.

A frame is one row of features. Frame t is centred on the middle of its shift:
(t + 1/2) * shift. The waveform is mirrored at both ends, so that a recording has
round(samples / shift) frames however short it is (Kaldi's `snip_edges=false`, lhotse's default).
"""

import math


def samples_of(seconds: float, rate: int) -> int:
    """The nearest whole number of samples; `rate` in Hz."""
    return int(seconds * rate + 0.5)


def num_frames(samples: int, shift: int) -> int:
    """Frames of a waveform; `samples` and `shift` in samples."""
    return (samples + shift // 2) // shift


def frame_at(seconds: float, shift_seconds: float) -> int:
    """The frame boundary nearest to a time: frames before it start earlier."""
    return int(seconds / shift_seconds + 0.5)


def seconds_at(frame: int, shift_seconds: float) -> float:
    """When a frame starts, in seconds."""
    return round(frame * shift_seconds, 9)


def most_mels(rate: int, window_seconds: float, low_hz: float, high_hz: float, wish: int) -> int:
    """How many mel bins, `wish` at most, each have a point of the spectrum within them.

    The spectrum is that of a window, padded to a power of 2; the point at half the rate counts not.
    """
    fft = 1 << (samples_of(window_seconds, rate) - 1).bit_length()
    points = [_mel(i * rate / fft) for i in range(fft // 2)]
    low, high = _mel(low_hz), _mel(high_hz)
    for bins in range(1, wish + 1):
        step = (high - low) / (bins + 1)
        edges = [low + i * step for i in range(bins + 2)]
        within = iter(points)
        at = next(within, math.inf)
        for left, right in zip(edges, edges[2:], strict=False):
            while at <= left:
                at = next(within, math.inf)
            if at >= right:
                return bins - 1
    return wish


def _mel(hz: float) -> float:
    return 1127.0 * math.log1p(hz / 700.0)
