"""Samples -> **tars and their index**: counts, checksums, feature mean and variance, state counts.

in    Samples, in storage order
out   00000.tar, 00001.tar, ...   webdataset tars; see shards.sample
      index.json                  written last: if it exists, all tars are complete
Equal samples give equal bytes: tars have no time, user or machine. Sums are over the stored values
(rounded to float16), in float64 and in storage order.
"""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from webdataset import TarWriter

from asr_train import files, jobs
from asr_train.shards.sample import Sample, check_num_states, to_record

FORMAT = "asr-train shards"
VERSION = 1


class _Totals:
    """The index's totals over all samples."""

    def __init__(self, num_states: int) -> None:
        self.num_mels = 0
        self.frames: dict[str, int] = {}  # utterance -> frames
        self.sum_F = np.zeros(1)
        self.squares_F = np.zeros(1)
        self.state_frames_S = np.zeros(num_states, np.int64)

    def add(self, sample: Sample) -> None:
        if sample.id in self.frames:
            raise ValueError(
                f"utterance id {sample.id!r} appears twice, with {self.frames[sample.id]} and "
                f"{len(sample.ali_T)} frames; rename one in the corpus"
            )
        num_mels = sample.feats_TF.shape[1]
        if self.frames and num_mels != self.num_mels:
            raise ValueError(
                f"{sample.id}: {num_mels} feature bins but the utterances before it have "
                f"{self.num_mels}; rerun the feats stage of this split"
            )
        self.num_mels = num_mels
        self.frames[sample.id] = len(sample.ali_T)
        stored_TF = sample.feats_TF.astype(np.float16).astype(np.float64)
        self.sum_F = self.sum_F + stored_TF.sum(axis=0)
        self.squares_F = self.squares_F + np.square(stored_TF).sum(axis=0)
        self.state_frames_S += np.bincount(sample.ali_T, minlength=len(self.state_frames_S))

    def listed(self) -> dict[str, Any]:
        num_frames = sum(self.frames.values())
        mean_F = self.sum_F / num_frames
        var_F = np.maximum(self.squares_F / num_frames - np.square(mean_F), 0)
        longest = max(self.frames, key=self.frames.__getitem__)
        shortest = min(self.frames, key=self.frames.__getitem__)
        return {
            "num_samples": len(self.frames),
            "num_frames": num_frames,
            "num_mels": self.num_mels,
            "num_states": len(self.state_frames_S),
            "longest": [longest, self.frames[longest]],
            "shortest": [shortest, self.frames[shortest]],
            "mean": mean_F.tolist(),
            "var": var_F.tolist(),
            "state_frames": self.state_frames_S.tolist(),
        }


def write_shards(
    samples: Iterable[Sample],
    index_path: Path | str,
    *,
    utterances_per_shard: int,
    num_states: int,
    about: dict[str, Any],
    left_out: Iterable[str] = (),
    total: int | None = None,
) -> dict[str, Any]:
    """Write `samples` as tars beside `index_path`, then the index; return the index.

    The old index is deleted first, so that a killed run leaves none; tars of an earlier run with
    more shards are removed after the new index is written.

    Args:
        samples: read once, one at a time.
        utterances_per_shard: in each tar; the last may have fewer.
        num_states: of the model.
        about: plain data for readers, for example settings of the features.
        left_out: ids of utterances that are not stored, for the index.
        total: number of samples, for the progress bar.
    Raises:
        ValueError: if there is no sample, an id is duplicate, the number of bins changes, or
            `sample.to_record` refuses a sample.
    """
    check_num_states(num_states)
    if utterances_per_shard < 1:
        raise ValueError(f"{utterances_per_shard} utterances per shard; there must be at least one")
    index_path = Path(index_path)
    index_path.parent.mkdir(parents=True, exist_ok=True)
    index_path.unlink(missing_ok=True)
    totals = _Totals(num_states)
    shown = jobs.progress(samples, "shards", total)
    parts = [
        _write_tar(index_path.parent / f"{number:05d}.tar", shard, totals)
        for number, shard in enumerate(_batched(shown, utterances_per_shard))
    ]
    if not parts:
        raise ValueError(f"{index_path}: there are no samples to write; check the ali stage")
    index = {
        "format": FORMAT,
        "version": VERSION,
        **totals.listed(),
        "left_out": list(left_out),
        "about": about,
        "parts": parts,
    }
    files.write_json(index_path, index)
    _remove_leftovers(index_path.parent, {part["path"] for part in parts})
    return index


def _batched(samples: Iterable[Sample], size: int) -> Iterator[Iterator[Sample]]:
    """Cut into runs of `size`, each to be consumed before the next; none is empty."""
    iterator = iter(samples)
    for first in iterator:
        yield itertools.chain([first], itertools.islice(iterator, size - 1))


def _write_tar(path: Path, samples: Iterable[Sample], totals: _Totals) -> dict[str, Any]:
    order = []
    with (
        files.replacing(path) as scratch,
        open(scratch, "wb") as file,
        # Without encoder and time: bytes are stored unchanged, and equal every time
        TarWriter(file, encoder=False, mtime=0) as tar,
    ):
        for sample in samples:
            record = to_record(sample, len(totals.state_frames_S))
            totals.add(sample)
            tar.write({"__key__": sample.id, **record})
            order.append([sample.id, len(sample.ali_T)])
    return {
        **files.part(path, path.parent),
        "samples": len(order),
        "frames": sum(frames for _, frames in order),
        "order": order,
    }


def _remove_leftovers(folder: Path, listed: set[str]) -> None:
    for path in [*folder.glob("[0-9]*.tar"), *folder.glob(".tmp.[0-9]*.tar")]:
        if path.name not in listed:
            path.unlink()
