"""Waveform -> log-mel frames: `torchaudio.compliance.kaldi.fbank`, computed in blocks."""

import math
import zlib
from typing import Any

import numpy as np
import torch

from asr_train.frames import num_frames, samples_of, window_samples
from asr_train.schema import FeatsSettings

FULL_SCALE = 32768.0  # samples are scaled to 16-bit integers, as in Kaldi
POVEY_POWER = 0.85
BLOCK = 512  # frames at a time, whose spectra fit into the cache
EPSILON = float(np.finfo(np.float32).eps)  # lower limit of energies


class LogMel:
    """Log-mel filter-bank energies of 16-bit-scaled waveforms (Kaldi's `compute-fbank-feats`
    with `snip_edges=false`, `use_energy=false`)."""

    def __init__(self, settings: FeatsSettings) -> None:
        self.settings = settings
        rate = settings.sample_rate
        self.window = window_samples(settings.window_seconds, rate)
        self.shift = samples_of(settings.shift_seconds, rate)
        self.fft = 1 << (self.window - 1).bit_length()
        ramp = torch.arange(self.window, dtype=torch.float64)
        hann = 0.5 - 0.5 * torch.cos(2 * math.pi / (self.window - 1) * ramp)
        self.window_N = hann.pow(POVEY_POWER).float()
        self.mels_HF = torch.from_numpy(_mel_weights(settings, self.fft)).float()

    def __call__(self, wave_N: np.ndarray, key: str = "") -> np.ndarray:
        """Compute the features of one waveform.

        Args:
            wave_N: float32 [N] in [-1, 1], at the settings' sample rate.
            key: seed of the dither, so that an utterance always gets the same.
        Returns:
            float32 [T, F], natural logarithms; T is `frames.num_frames`.
        """
        frames = num_frames(len(wave_N), self.shift)
        if frames == 0:
            return np.zeros((0, self.settings.num_mels), np.float32)
        wave_N = np.asarray(wave_N, np.float32) * FULL_SCALE
        if self.settings.dither:
            rng = np.random.Generator(np.random.Philox(zlib.crc32(key.encode())))
            wave_N = wave_N + self.settings.dither * rng.standard_normal(len(wave_N), np.float32)
        left = self.window // 2 - self.shift // 2
        right = max(0, (frames - 1) * self.shift - left + self.window - len(wave_N))
        padded_N = torch.from_numpy(np.pad(wave_N, (max(0, left), right), mode="symmetric"))
        frames_TN = padded_N[max(0, -left) :].unfold(0, self.window, self.shift)
        blocks = [self._block(frames_TN[t : t + BLOCK]) for t in range(0, frames, BLOCK)]
        return torch.cat(blocks).numpy()

    def _block(self, frames_TN: torch.Tensor) -> torch.Tensor:
        x_TN = frames_TN - frames_TN.mean(1, keepdim=True)
        before_TN = torch.cat([x_TN[:, :1], x_TN[:, :-1]], 1)
        x_TN = (x_TN - self.settings.preemphasis * before_TN) * self.window_N
        spectrum_TH = torch.fft.rfft(x_TN, self.fft)
        power_TH = spectrum_TH.real.square() + spectrum_TH.imag.square()
        return (power_TH @ self.mels_HF).clamp_min(EPSILON).log()


def _mel_weights(settings: FeatsSettings, fft: int) -> np.ndarray:
    """Return triangular filters of equal width in mel: float64 [fft / 2 + 1, F]."""
    nyquist = settings.sample_rate / 2
    high = settings.high_hz if settings.high_hz > 0 else nyquist + settings.high_hz
    edges = np.linspace(_mel(settings.low_hz), _mel(high), settings.num_mels + 2)
    bins_H1 = _mel(np.arange(fft // 2 + 1) * settings.sample_rate / fft)[:, None]
    low, centre, top = edges[:-2], edges[1:-1], edges[2:]
    rise = (bins_H1 - low) / (centre - low)
    fall = (top - bins_H1) / (top - centre)
    weights_HF: np.ndarray = np.maximum(0, np.minimum(rise, fall))
    weights_HF[-1] = 0  # Kaldi's banks leave out the bin at half the sample rate
    assert (weights_HF.sum(0) > 0).all(), "schema.FeatsSettings excludes empty bins"
    return weights_HF


def _mel(hz: Any) -> Any:
    return 1127.0 * np.log1p(np.asarray(hz) / 700.0)
