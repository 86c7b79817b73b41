"""Room acoustics: **impulse responses** with a direct sound and a decaying tail.

After Polack (1988): after the first few milliseconds a room's response is Gaussian noise with an
exponential envelope that falls by 60 dB in the reverberation time. The direct sound comes first and
without delay, so that times of words and phones stay true.
"""

import math

import numpy as np
from scipy.signal import lfilter

FIRST_SECONDS = (0.002, 0.01)  # until the first reflection: a detour of 0.7 to 3.4 m
DECAY_NEPERS = 3 * math.log(10)  # 60 dB, of amplitude
DAMPED = 0.5  # coefficient of a one-pole low-pass: walls and air absorb high frequencies


def room_response(
    rate: int, rt60_seconds: float, drr_db: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw an impulse response, float64; its first sample is 1, the direct sound.

    Args:
        rate: Hz.
        rt60_seconds: time in which the tail falls by 60 dB.
        drr_db: energy of the direct sound over that of the tail.
    """
    start = round(rng.uniform(*FIRST_SECONDS) * rate)
    count = max(1, round(rt60_seconds * rate))
    decay_T = np.exp(-DECAY_NEPERS * np.arange(count) / count)
    tail_T = lfilter([1 - DAMPED], [1, -DAMPED], rng.standard_normal(count)) * decay_T
    tail_T *= 10 ** (-drr_db / 20) / np.sqrt(np.sum(tail_T**2))
    return np.concatenate([[1.0], np.zeros(start), tail_T])
