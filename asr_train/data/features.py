"""Waveform -> log-mel frames; mean and variance; cepstra and deltas for the Gaussians.

    manifests --log_mel--> feats/SPLIT.jsonl.gz --open_feats--> feats_TF

Features (`data.logmel`) are stored once, unstacked and unnormalised, as lhotse features in HDF5.
Mean, variance, cepstra and deltas are applied when they are read, as each model needs them.
"""

import hashlib
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from asr_train import files
from asr_train.frames import whole_rate
from asr_train.schema import FeatsSettings, NormBy, NormSettings, build, plain
from asr_train.sums import Summed

LIFTER = 22.0  # Kaldi's
OPEN_FILES = 100  # of HDF5, each of which takes half a megabyte
DIGITAL_SILENCE = math.log(2 * np.finfo(np.float32).eps)  # no bin of such a frame is above

# --- the store ----------------------------------------------------------------------------------


def extract(
    cuts: list[Any], settings: FeatsSettings, path: Path
) -> tuple[list[dict[str, Any]], dict[str, "Sums"]]:
    """Compute and store the features of some cuts in one HDF5 file.

    A file that already holds the features of these cuts, settings and recordings is kept.

    Returns:
        The cuts' manifest rows with their features, and the sums of their speakers.
    Raises:
        ValueError: for a sample rate below the settings', or samples or features that are not
            finite.
    """
    import h5py

    sources = [source.source for cut in cuts for source in cut.recording.sources]
    known = {path: files.sha256(path) for path in dict.fromkeys(sources)}  # cuts may share one
    audio = [known[path] for path in sources]
    made_from = files.hash_of([plain(settings), [cut.to_dict() for cut in cuts], audio])
    if not _holds(path, made_from, [cut.id for cut in cuts]):
        _store(cuts, settings, path, made_from)
    sums: dict[str, Sums] = {}
    with h5py.File(path) as file:
        rows = listed(path, ((cut, file[cut.id][:]) for cut in cuts), settings, "log-mel", sums)
    return rows, sums


def _holds(path: Path, made_from: str, ids: list[str]) -> bool:
    import h5py

    if not path.exists():
        return False
    try:
        with h5py.File(path) as file:
            known = file.attrs.get("made_from") == made_from
            content = _hash(file[utt_id][:] for utt_id in ids)
            return bool(known and file.attrs.get("content") == content)
    except (OSError, KeyError, RuntimeError):
        return False  # not HDF5, truncated, or modified


def _hash(arrays: Iterable[np.ndarray]) -> str:
    return files.hash_of([hashlib.sha256(array.tobytes()).hexdigest() for array in arrays])


def _store(cuts: list[Any], settings: FeatsSettings, path: Path, made_from: str) -> None:
    from asr_train.data.logmel import LogMel  # imports torch, which reading does without

    extractor, found = LogMel(settings), dict[str, np.ndarray]()
    for cut in cuts:
        found[cut.id] = extractor(_samples(cut, settings.sample_rate), cut.id)
        if len(found[cut.id]) == 0:
            raise ValueError(
                f"{cut.id} has {cut.duration} seconds, less than half a frame shift of "
                f"{settings.shift_seconds}; drop it with min_seconds of the corpus"
            )
        if not np.isfinite(found[cut.id]).all():
            raise ValueError(
                f"{cut.id}: its features are not finite; its samples are too large: repair or "
                "drop the recording"
            )
    write_h5(path, found, content=_hash(found.values()), made_from=made_from)


def write_h5(path: Path, arrays: Mapping[str, np.ndarray], **attributes: str) -> None:
    """Write arrays by utterance in the layout of lhotse's NumpyHdf5Writer.

    The file is built in memory: a part is small, and the HDF5 library handles full disks badly.
    """
    import h5py

    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for utt_id, array in arrays.items():
            file.create_dataset(utt_id, data=array)
        file.attrs.update(attributes)
    files.write_bytes(path, content.getvalue())


def _samples(cut: Any, rate: int) -> np.ndarray:
    if cut.sampling_rate < rate:
        raise ValueError(
            f"{cut.id} has {cut.sampling_rate} Hz, below feats.sample_rate {rate}: its upper bands "
            f"would be empty; set feats.sample_rate={whole_rate(cut.sampling_rate)}"
        )
    from lhotse.audio.backend import audio_backend

    try:
        with audio_backend("LibsndfileBackend"):  # as data.intake; lhotse's default fails for .sph
            wave_CN = cut.load_audio()
    except FileNotFoundError:
        raise
    except Exception as error:  # lhotse's own kinds, with texts of a page
        audio = ", ".join(source.source for source in cut.recording.sources)
        raise ValueError(
            _shortened(cut)
            or f"{cut.id}: {audio} cannot be read ({type(error).__name__}); repair or drop it"
        ) from error
    wave_N = np.ascontiguousarray(wave_CN.mean(0), np.float32)
    if not np.isfinite(wave_N).all():
        where = int(np.flatnonzero(~np.isfinite(wave_N))[0])
        raise ValueError(
            f"{cut.id}: sample {where} is {wave_N[where]}; repair or drop the recording"
        )
    return resampled(wave_N, cut.sampling_rate, rate)


def resampled(wave_N: np.ndarray, own_rate: int, rate: int) -> np.ndarray:
    """Return a waveform at another rate: float32 [N]."""
    if own_rate == rate:
        return wave_N
    import torch
    import torchaudio

    wave = torch.from_numpy(np.ascontiguousarray(wave_N))
    return torchaudio.functional.resample(wave, own_rate, rate).numpy()


def _shortened(cut: Any) -> str:
    """Return a message if a recording is now shorter than in its manifest, else ""."""
    for source in [] if cut.recording.transforms else cut.recording.sources:
        try:
            found = soundfile.info(source.source)
        except (soundfile.LibsndfileError, OSError):
            continue
        had = cut.recording.duration
        if found.duration < had:
            return (
                f"{cut.id}: {source.source} has {found.duration:.3f} s but had {had:.3f} s when "
                "its manifest was made; run make again to rebuild the manifest"
            )
    return ""


def listed(
    path: Path,
    pairs: Iterable[tuple[Any, np.ndarray]],
    settings: FeatsSettings,
    kind: str,
    sums: dict[str, "Sums"],
) -> list[dict[str, Any]]:
    """Return the manifest rows of cuts whose features are in this HDF5 file, under their ids.

    Args:
        pairs: cuts and their features.
        sums: by speaker; these features are added.
    """
    from lhotse import Features

    rows = []
    for cut, feats_TF in pairs:
        speaker = cut.supervisions[0].speaker or ""
        sums[speaker] = sums.get(speaker, Sums.zero(settings.num_mels)) + Sums.of(feats_TF)
        cut.features = Features(
            type=kind,
            num_frames=len(feats_TF),
            num_features=settings.num_mels,
            frame_shift=settings.shift_seconds,
            sampling_rate=cut.sampling_rate,
            start=cut.start,
            duration=cut.duration,
            storage_type="numpy_hdf5",
            storage_path=str(path),
            storage_key=cut.id,
            recording_id=cut.recording_id,
            channels=cut.channel,
        )
        rows.append(cut.to_dict())
    return rows


def write_index(
    manifest: Path, settings: FeatsSettings, parts: list[Path], sums: list[dict[str, "Sums"]]
) -> dict[str, Any]:
    """Write `feats/SPLIT/index.json`: settings, parts, and each speaker's sums over all parts."""
    folder = folder_of(manifest)
    speakers: dict[str, Sums] = {}
    for of_part in sums:
        for speaker, own in of_part.items():
            speakers[speaker] = speakers.get(speaker, Sums.zero(settings.num_mels)) + own
    index = {
        "settings": plain(settings),
        "frames": sum(own.frames for own in speakers.values()),
        "parts": [files.part(path, folder) for path in parts],
        "speakers": {speaker: own.plain() for speaker, own in sorted(speakers.items())},
    }
    files.write_json(folder / "index.json", index)
    return index


def folder_of(manifest: Path | str) -> Path:
    """Return feats/dev for feats/dev.jsonl.gz."""
    path = Path(manifest)
    return path.with_name(path.name.removesuffix(".jsonl.gz"))


@dataclass(frozen=True, slots=True)
class Sums(Summed):
    """Number of frames, and sum and sum of squares of their features; instances add up."""

    frames: int
    sum_F: np.ndarray  # float64
    squares_F: np.ndarray

    @staticmethod
    def zero(num_mels: int) -> "Sums":
        return Sums(0, np.zeros(num_mels), np.zeros(num_mels))

    @staticmethod
    def of(feats_TF: np.ndarray) -> "Sums":
        x_TF = feats_TF.astype(np.float64)
        return Sums(len(x_TF), x_TF.sum(0), (x_TF * x_TF).sum(0))

    def weighing(self, frames: int) -> "Sums":
        """Return the sums of so many frames with the same mean and variance."""
        share = frames / max(1, self.frames)
        return Sums(frames, share * self.sum_F, share * self.squares_F)

    def plain(self) -> dict[str, Any]:
        return {
            "frames": self.frames,
            "sum": self.sum_F.tolist(),
            "squares": self.squares_F.tolist(),
        }

    @staticmethod
    def from_plain(values: dict[str, Any]) -> "Sums":
        return Sums(values["frames"], np.array(values["sum"]), np.array(values["squares"]))

    def mean_and_scale(self, variance: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return what to subtract, and then to multiply by: float32 [F] each."""
        mean_F = self.sum_F / max(1, self.frames)
        scale_F = np.ones_like(mean_F)
        if variance and self.frames > 1:
            variance_F = self.squares_F / self.frames - mean_F**2
            scale_F = 1 / np.sqrt(np.maximum(variance_F, 1e-4))  # a constant bin stays at zero
        return mean_F.astype(np.float32), scale_F.astype(np.float32)


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Utterance:
    """One row of a features manifest.

    Attributes:
        line: the row, as JSON, in a quarter of its objects' memory; "{}" if it is in no manifest.
    """

    id: str
    speaker: str
    words: str
    seconds: float
    frames: int
    line: str = "{}"

    @property
    def row(self) -> dict[str, Any]:
        """The row, unpacked at each call."""
        return json.loads(self.line)


@dataclass(slots=True, eq=False)
class Feats:
    """The stored features of a split; see `open_feats`.

    Attributes:
        speakers: the sums of each.
        folder: with the parts that the rows name; the rows' own paths are of where they were made.
    """

    settings: FeatsSettings
    utterances: list[Utterance]
    speakers: dict[str, Sums]
    folder: Path

    def __iter__(self) -> Iterator[Utterance]:
        return iter(self.utterances)

    def load(self, utterance: Utterance) -> np.ndarray:
        """Return features as stored: float32 [T, F]."""
        stored = utterance.row["features"]
        part = self.folder / Path(stored["storage_path"]).name
        try:
            return open_h5(str(part), os.getpid())[stored["storage_key"]][:]
        except (OSError, KeyError) as error:
            raise ValueError(
                f"{utterance.id} cannot be read from {part} ({error}); "
                "delete that file and its manifest, and run make again"
            ) from error

    def normaliser(self, norm: NormSettings) -> Callable[[Utterance, np.ndarray], np.ndarray]:
        """Return a function (utterance, feats_TF) -> feats_TF that normalises by mean, variance."""

        def apply(utterance: Utterance, feats_TF: np.ndarray) -> np.ndarray:
            if norm.by is NormBy.none:
                return feats_TF
            by_speaker = norm.by is NormBy.speaker
            sums = self.speakers[utterance.speaker] if by_speaker else Sums.of(feats_TF)
            mean_F, scale_F = sums.mean_and_scale(norm.variance)
            return (feats_TF - mean_F) * scale_F

        return apply


def open_feats(manifest: Path | str) -> Feats:
    """Open `feats/SPLIT.jsonl.gz`, after comparing its parts' checksums with the index."""
    folder = folder_of(manifest)
    index = files.read_json(folder / "index.json")
    if "settings" not in index:
        raise ValueError(f"{manifest} has no features; name feats/SPLIT.jsonl.gz")
    for listed in index["parts"]:
        files.check_part(folder, listed, remake=manifest)
    settings = build(FeatsSettings, index["settings"], f"{manifest}: settings")
    utterances = [_utterance(row) for row in files.iter_jsonl(manifest)]
    speakers = {speaker: Sums.from_plain(sums) for speaker, sums in index["speakers"].items()}
    return Feats(settings, utterances, speakers, folder)


def total_sums(manifest: Path | str) -> Sums:
    """Return the sums of all speakers of `feats/SPLIT.jsonl.gz`."""
    index = files.read_json(folder_of(manifest) / "index.json")
    sums = [Sums.from_plain(values) for values in index["speakers"].values()]
    return sum(sums[1:], sums[0])


def _utterance(row: dict[str, Any]) -> Utterance:
    supervision = row["supervisions"][0]
    speaker, text = sys.intern(supervision["speaker"]), supervision["text"]
    frames = row["features"]["num_frames"]
    return Utterance(row["id"], speaker, text, row["duration"], frames, json.dumps(row))


class Heard(Feats):
    """Features in memory, of recordings that come and go.

    Args:
        prior: counted with each speaker's own frames, of which one short recording has too few.
    """

    def __init__(self, settings: FeatsSettings, prior: Sums) -> None:
        super().__init__(settings, [], {}, Path())  # no files
        self._prior = prior
        self._feats: dict[str, np.ndarray] = {}

    def put(
        self, utt_id: str, speaker: str, words: str, feats_TF: np.ndarray, seconds: float
    ) -> Utterance:
        """Add an utterance; a speaker's mean and variance are those of the speaker's utterances.

        Digital silence (equal samples, as of telephones or padding) has no level: it does not
        count in them, and becomes as quiet as the quietest of the other frames.
        """
        utterance = Utterance(utt_id, speaker, words, seconds, len(feats_TF))
        self.utterances.append(utterance)
        heard_TF = feats_TF[feats_TF.max(1) > DIGITAL_SILENCE]
        self._feats[utt_id] = np.maximum(feats_TF, heard_TF.min(0)) if len(heard_TF) else feats_TF
        self.speakers[speaker] = self.speakers.get(speaker, self._prior) + Sums.of(heard_TF)
        return utterance

    def load(self, utterance: Utterance) -> np.ndarray:
        """Return an utterance's features: float32 [T, F]."""
        return self._feats[utterance.id]

    def clear(self) -> None:
        """Forget all utterances and speakers."""
        self.utterances.clear()
        self.speakers.clear()
        self._feats.clear()


@lru_cache(maxsize=OPEN_FILES)
def open_h5(path: str, process: int) -> Any:
    """Open an HDF5 file for reading; forked processes must not share a handle, hence `process`.

    The files read last stay open. A process may usually have 1,024 open, and 960 hours are 1,407.
    """
    import h5py

    return h5py.File(path)


# --- front end of the Gaussians -----------------------------------------------------------------


def cepstra(feats_TF: np.ndarray, num_ceps: int) -> np.ndarray:
    """Compute MFCCs from log-mel: float32 [T, num_ceps], liftered as in Kaldi (c0 is energy)."""
    return feats_TF @ _dct(feats_TF.shape[1], num_ceps)


@cache
def _dct(num_mels: int, num_ceps: int) -> np.ndarray:
    f, c = np.arange(num_mels)[:, None], np.arange(num_ceps)
    dct_FC = math.sqrt(2 / num_mels) * np.cos(math.pi / num_mels * (f + 0.5) * c)
    dct_FC[:, 0] = math.sqrt(1 / num_mels)
    return (dct_FC * (1 + LIFTER / 2 * np.sin(math.pi * c / LIFTER))).astype(np.float32)


def spliced(feats_TF: np.ndarray, around: int) -> np.ndarray:
    """Splice each frame with its neighbours, in order of time: [T, F * (2 * around + 1)].

    The first and the last frame are repeated at the edges.
    """
    return feats_TF if around == 0 else np.concatenate(_shifted(feats_TF, around), 1)


def _shifted(feats_TF: np.ndarray, around: int) -> list[np.ndarray]:
    """Return the neighbours of each frame, from `around` frames before it to as many after it."""
    padded = np.pad(feats_TF, ((around, around), (0, 0)), mode="edge")
    return [padded[d : d + len(feats_TF)] for d in range(2 * around + 1)]


def with_deltas(feats_TF: np.ndarray, order: int) -> np.ndarray:
    """Append time differences up to `order`: float32 [T, F * (order + 1)], Kaldi's add-deltas.

    A difference is the least-squares slope over 5 frames. Higher orders convolve the slope's filter
    with itself and filter the features: at the edges, the first and the last frame are repeated,
    not their differences.
    """
    ramp = np.arange(-2, 3.0)
    parts, filter_D = [feats_TF], np.ones(1)
    for _ in range(order):
        filter_D = np.convolve(filter_D, ramp / (ramp @ ramp))
        slope_TF = np.zeros(feats_TF.shape)
        shifted_DTF = _shifted(feats_TF, len(filter_D) // 2)
        for weight, shifted_TF in zip(filter_D, shifted_DTF, strict=True):
            slope_TF += weight * shifted_TF
        parts.append(slope_TF.astype(np.float32))
    return np.concatenate(parts, 1)
