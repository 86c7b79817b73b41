"""A recording of any format, rate and number of channels -> samples as the features want them.

Read and resampled in blocks, so that only the result is in memory.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile

BLOCK_SECONDS = 10
MARGIN = 1000  # samples on both sides of a block, more than half of the resampling filter
SUFFIXES = frozenset(f".{name.lower()}" for name in soundfile.available_formats()) | {
    *(".aif", ".sph", ".opus"),
}

Source = Path | str | BinaryIO | np.ndarray


class AudioError(ValueError):
    """A recording that cannot be used."""


def samples_of(
    source: Source, rate: int, given_rate: int | None = None, channel: int | None = None
) -> tuple[np.ndarray, int]:
    """Read a recording.

    Args:
        source: a path, an open file, or samples [N] or [N, channels] in [-1, 1] (or integers).
        rate: Hz, of the result.
        given_rate: Hz, of samples; None: `rate`.
        channel: from 0; None: the mean of all.
    Returns:
        float32 [N] at `rate`, and the recording's own rate in Hz.
    Raises:
        FileNotFoundError: for a missing file.
        AudioError: if it cannot be read, has no such channel, no samples, or samples that are not
            finite; names the recording.
    """
    if isinstance(source, np.ndarray):
        name, own_rate = "the array", rate if given_rate is None else given_rate
        channels_first = source.shape[1:] > source.shape[:1]
        if source.ndim not in (1, 2) or channels_first or own_rate <= 0:
            raise AudioError(
                f"{name} has shape {list(source.shape)} at {own_rate} Hz; it must be samples or "
                "[samples, channels] at a positive rate"
            )
        blocks: Iterable[np.ndarray] = [_scaled(source if source.ndim == 2 else source[:, None])]
        return _joined(name, blocks, own_rate, rate, channel), own_rate
    name = str(source) if isinstance(source, (str, Path)) else "the stream"
    if not isinstance(source, (str, Path)) and not hasattr(source, "read"):
        raise AudioError(
            f"audio is a {type(source).__name__}; it must be a path, an open file or a NumPy array"
        )
    if isinstance(source, (str, Path)) and not Path(source).exists():
        raise FileNotFoundError(f"{name} is missing")
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        raise AudioError(f"{name} is a folder; name the recordings in it")
    try:
        with soundfile.SoundFile(source) as file:
            size = BLOCK_SECONDS * file.samplerate
            blocks = file.blocks(size, dtype="float32", always_2d=True)
            return _joined(name, blocks, file.samplerate, rate, channel), file.samplerate
    except (soundfile.LibsndfileError, OSError, TypeError) as error:
        why = str(error).split(": ")[-1]
        raise AudioError(f"{name} cannot be read as audio ({why})") from error


def _scaled(wave: np.ndarray) -> np.ndarray:
    if np.issubdtype(wave.dtype, np.integer):
        limits = np.iinfo(wave.dtype)
        if limits.bits > 32:  # what NumPy makes of a list
            raise AudioError(
                f"the array has samples of {wave.dtype}, which do not tell full scale; convert "
                "them to what they were recorded as (int16, int32), or to floats in [-1, 1]"
            )
        middle = (limits.max + 1) // 2 if limits.min == 0 else 0  # as in WAV files of 8 bits
        full = np.float32(limits.max + 1 - middle)
        return (wave.astype(np.float32) - np.float32(middle)) / full
    return wave.astype(np.float32)


def _joined(
    name: str, blocks: Iterable[np.ndarray], own_rate: int, rate: int, channel: int | None
) -> np.ndarray:
    mono = (_mono(name, block_NC, channel) for block_NC in blocks)
    parts = list(resampled(mono, own_rate, rate))
    wave_N: np.ndarray = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if not len(wave_N):
        raise AudioError(f"{name} has no samples")
    return wave_N


def _mono(name: str, block_NC: np.ndarray, channel: int | None) -> np.ndarray:
    channels = block_NC.shape[1]
    if channel is not None and not 0 <= channel < channels:
        raise AudioError(f"{name} has no channel {channel}: it has {channels}, numbered from 0")
    wave_N: np.ndarray = block_NC.mean(1) if channel is None else block_NC[:, channel]
    if not np.isfinite(wave_N).all():
        raise AudioError(f"{name} has samples that are NaN or infinite; repair it")
    return wave_N


def resampled(blocks: Iterable[np.ndarray], own_rate: int, rate: int) -> Iterator[np.ndarray]:
    """Resample consecutive blocks of samples: as `torchaudio.functional.resample` of the whole."""
    if own_rate == rate:
        yield from blocks
        return
    import torch
    import torchaudio

    step, new = own_rate // math.gcd(own_rate, rate), rate // math.gcd(own_rate, rate)
    margin = step * math.ceil(MARGIN / step)
    size = step * math.ceil(BLOCK_SECONDS * own_rate / step)

    def one(wave_N: np.ndarray) -> np.ndarray:
        found: np.ndarray = torchaudio.functional.resample(
            torch.from_numpy(np.ascontiguousarray(wave_N)), own_rate, rate
        ).numpy()
        return found

    held_N, left = np.zeros(0, np.float32), 0  # the first `left` samples are only context
    for block_N in blocks:
        held_N = np.concatenate([held_N, block_N])
        while len(held_N) >= left + size + margin:
            found_N = one(held_N[: left + size + margin])
            yield found_N[left // step * new : (left + size) // step * new]
            held_N, left = held_N[left + size - margin :], margin
    if len(held_N) > left:
        yield one(held_N)[left // step * new :]
