"""A recording of any format, rate and number of channels -> samples as the features want them.

Read and resampled in blocks, so that only the result is in memory.
"""

import io
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile

from asr_train.data import features
from asr_train.frames import UNKNOWN_SAMPLES

BLOCK_SECONDS = 10
MARGIN = 1000  # samples on both sides of a block, more than half of the resampling filter
MOST_WEIGHTS = 200_000_000  # of resampling filters, one per sample of a common period: 4 GB

Source = Path | str | BinaryIO | np.ndarray


class AudioError(ValueError):
    """A recording that cannot be used."""


def samples_of(
    source: Source, rate: int, given_rate: int | None = None, channel: int | None = None
) -> tuple[np.ndarray, int]:
    """Read a recording.

    Args:
        source: a path, an open file (read from its beginning, if it can seek), or samples [N] or
            [N, channels] in [-1, 1] (or integers).
        rate: Hz, of the result.
        given_rate: Hz, of samples, a whole number; None: `rate`.
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
        if source.ndim not in (1, 2) or channels_first or own_rate <= 0 or own_rate % 1:
            raise AudioError(
                f"{name} has shape {list(source.shape)} at {own_rate} Hz; it must be samples or "
                "[samples, channels] at a positive, whole rate"
            )
        own_rate = int(own_rate)  # some libraries give a float
        wave_NC = _scaled(source if source.ndim == 2 else source[:, None])
        return _joined(name, [wave_NC], own_rate, rate, channel), own_rate
    if not isinstance(source, (str, Path)):
        name = "the stream"
        if isinstance(source, io.TextIOBase) or not hasattr(source, "read"):
            raise AudioError(
                f"audio is a {type(source).__name__}; it must be a path, a file open in binary "
                "mode or a NumPy array"
            )
    elif not Path(name := str(source)).exists():
        raise FileNotFoundError(f"{name} is missing")
    elif Path(name).is_dir():
        raise AudioError(f"{name} is a folder; name the recordings in it")
    try:
        with soundfile.SoundFile(_seekable(source)) as file:
            if file.frames >= UNKNOWN_SAMPLES:  # soundfile seeks after a read; at the end it fails
                file.seekable = lambda: False
            return _joined(name, _blocks(file), file.samplerate, rate, channel), file.samplerate
    except PermissionError as error:
        raise AudioError(f"{name}: permission denied; make it readable") from error
    except (soundfile.LibsndfileError, OSError, TypeError) as error:
        why = str(error).split(": ")[-1]
        raise AudioError(
            f"{name} cannot be read as audio ({why}); convert it to WAV or FLAC"
        ) from error


LEAST_SECONDS = 0.01  # that a recording lacks, to be called cut off
LARGEST_BYTES = 2**31 - 2**16  # larger sizes are those of streams, which are not known


def missing_seconds(source: Path | str | BinaryIO) -> float:
    """Return how much a WAV file lacks of what its header tells of; 0 in other formats."""
    with soundfile.SoundFile(_seekable(source)) as file:
        says: str = file.extra_info  # libsndfile's notes on the header
        rate: int = file.samplerate
    size = re.search(r"^data : (\d+) \(should be (\d+)\)", says, re.MULTILINE)
    align = re.search(r"^ +Bytes/sec +: (\d+)", says, re.MULTILINE)
    if size and align and int(size[1]) <= LARGEST_BYTES:
        return max(0.0, (int(size[1]) - int(size[2])) / int(align[1]))
    # RF64, which is for more than 4 GB
    if frames := re.search(r"Calculated frame count (\d+) .* 'ds64' chunk of (\d+)", says):
        return max(0.0, (int(frames[2]) - int(frames[1])) / rate)
    return 0.0


def check_whole(path: Path) -> None:
    """Refuse a recording that was cut off, because its text cannot be what it says.

    Raises:
        AudioError: with the seconds that are missing.
    """
    if (lacking := missing_seconds(path)) > LEAST_SECONDS:
        raise AudioError(
            f"{path} is cut off: {lacking:.2f} s of it are missing, by its header; copy it again, "
            "or convert what is left of it and correct its text"
        )


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


def _seekable(source: Path | str | BinaryIO) -> bytes | BinaryIO:
    """Return what libsndfile can read: a path, which need not be UTF-8, or a file with a size."""
    if not isinstance(source, (str, Path)):
        if not source.seekable():
            return io.BytesIO(source.read())
        source.seek(0)  # it was just written, or has been read before
        return source
    if not Path(source).is_file():
        return io.BytesIO(Path(source).read_bytes())
    open(source, "rb").close()  # libsndfile does not say why it cannot open a file
    return os.fsencode(source)


def _blocks(file: soundfile.SoundFile) -> Iterator[np.ndarray]:
    """Yield samples to the end, which may come earlier than the header says, as of a cut MP3.

    `SoundFile.blocks` would fill up with samples of the block before.
    """
    while len(block_NC := file.read(BLOCK_SECONDS * file.samplerate, "float32", always_2d=True)):
        yield block_NC


def _joined(
    name: str, blocks: Iterable[np.ndarray], own_rate: int, rate: int, channel: int | None
) -> np.ndarray:
    common = math.gcd(own_rate, rate)
    if own_rate // common * (rate // common) > MOST_WEIGHTS:
        raise AudioError(
            f"{name} has {own_rate} Hz, which cannot be resampled to the model's {rate} Hz within "
            "4 GB of memory; convert it to a usual rate, or correct its header"
        )
    mono = (_mono(name, block_NC, channel) for block_NC in blocks)
    wave_N = np.concatenate([np.zeros(0, np.float32), *resampled(mono, own_rate, rate)])
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
    step, new = own_rate // math.gcd(own_rate, rate), rate // math.gcd(own_rate, rate)
    margin = step * math.ceil(MARGIN / step)
    size = step * math.ceil(max(BLOCK_SECONDS * own_rate, margin) / step)

    held_N, left = np.zeros(0, np.float32), 0  # the first `left` samples are only context
    for block_N in blocks:
        held_N = np.concatenate([held_N, block_N])
        while len(held_N) >= left + size + margin:
            found_N = features.resampled(held_N[: left + size + margin], own_rate, rate)
            yield found_N[left // step * new : (left + size) // step * new]
            held_N, left = held_N[left + size - margin :], margin
    if len(held_N) > left:
        yield features.resampled(held_N, own_rate, rate)[left // step * new :]
