"""Seconds, samples, frames: the only place that rounds between them.

A frame is one row of features. Frame t is centred on the middle of its shift:
(t + 1/2) * shift. The waveform is mirrored at both ends, so that a recording has
round(samples / shift) frames however short it is (Kaldi's `snip_edges=false`, lhotse's default).
"""


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
