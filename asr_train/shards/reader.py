"""Tars and their index -> **Samples in an order determined by (seed, epoch)**, by worker.

The order of an epoch permutes the shards, and then the samples inside each shard, so that a reader
holds one shard at a time. Without a seed it is the stored order. Each of W workers reads a part of
that order, with about as many frames as the others: every sample is read by exactly one worker, for
any W, and none is dropped or repeated. All of it follows from the index, so a reader can start
anywhere without decoding what comes before.
"""

import copy
import itertools
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from webdataset import tariterators

from asr_train.files import DamagedFileError
from asr_train.shards.place import open_part, place, read_index
from asr_train.shards.sample import Record, Sample, check_num_states, from_record
from asr_train.shards.shares import Positions, shares
from asr_train.shards.writer import FORMAT, VERSION

# Per bin. float16 rounds log-mels around 16 by up to 2**-7, a variance of 2e-5: smaller variances
# are rounding errors, and dividing by them would amplify these
VARIANCE_FLOOR = 1e-4


class Shards:
    """A split's shards.

    Args:
        index_path: of index.json; tars are beside it. A path or a URL: see `shards.place`.
        index: its content, or a part of it; None: it is read.
    Attributes:
        index: as written by `writer.write_shards`.
        num_samples, num_frames, num_mels, num_states: totals, sizes.
        mean_F, var_F: of the features over all frames; variances are at least VARIANCE_FLOOR.
        priors_S: each state's share of the frames; an unseen state counts as one frame, because
            decoding divides by it.
        about: the writer's description of the features.
    Raises:
        DamagedFileError: if the index is invalid or inconsistent.
        FetchError: if it is remote and cannot be read.
    """

    def __init__(self, index_path: Path | str, index: dict[str, Any] | None = None) -> None:
        self.path = place(index_path)
        self.index: dict[str, Any] = read_index(self.path) if index is None else index
        try:
            self._take_index()
        except DamagedFileError:
            raise
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise self._damaged(f"is not an index of shards ({error!r})") from error
        self._opened: set[int] = set()  # shards whose checksum this process has compared
        self._last_read: tuple[int, str, dict[str, Record]] | None = None  # what is left of a shard
        self._last_parts: tuple[tuple[int | None, int, int], list[Positions]] | None = None

    def _take_index(self) -> None:
        index = self.index
        if (index["format"], index["version"]) != (FORMAT, VERSION):
            raise self._damaged(
                f"is {index['format']!r} version {index['version']}, "
                f"but this code reads {FORMAT!r} version {VERSION}"
            )
        kinds = {"path": str, "bytes": int, "sha256": str}
        for part in index["parts"]:
            if not all(isinstance(part[key], kind) for key, kind in kinds.items()):
                raise self._damaged(f"has a part without {', '.join(kinds)}")
        orders = [part["order"] for part in index["parts"]]
        self._ids: list[str] = [sample_id for order in orders for sample_id, _ in order]
        self._frames_N = np.array([n for order in orders for _, n in order], np.int64)
        self._shard_N = np.repeat(np.arange(len(orders)), [len(order) for order in orders])
        self.num_samples: int = index["num_samples"]
        self.num_frames: int = index["num_frames"]
        self.num_mels: int = index["num_mels"]
        self.num_states: int = index["num_states"]
        check_num_states(self.num_states)
        for name, total, found in (
            ("samples", self.num_samples, len(set(self._ids))),
            ("frames", self.num_frames, int(self._frames_N.sum())),
            ("bins", self.num_mels, len(index["mean"])),
            ("bins", self.num_mels, len(index["var"])),
            ("states", self.num_states, len(index["state_frames"])),
        ):
            if total != found:
                raise self._damaged(f"states {total} {name} but lists {found}")
        self.mean_F = np.array(index["mean"], np.float32)
        self.var_F = np.maximum(np.array(index["var"], np.float32), np.float32(VARIANCE_FLOOR))
        counts_S = np.maximum(np.array(index["state_frames"], np.float64), 1)
        self.priors_S: npt.NDArray[np.float64] = counts_S / counts_S.sum()
        self.about = dict[str, Any](index["about"])
        self._span = slice(0, self.num_samples)  # of each epoch's order

    @property
    def has_lattices(self) -> bool:
        """Whether each sample has a lattice, for sequence training."""
        return "lattices" in self.about

    def _damaged(self, what: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path} {what}; delete it and run make again")

    def _unlike_index(self, tar: str, what: object) -> DamagedFileError:
        return DamagedFileError(f"{tar}: {what}; delete {self.path} and run make again")

    # --- subsets ---------------------------------------------------------------------------------

    def span(self, first: float, last: float) -> "Shards":
        """Return the same shards restricted to a share of each epoch's order of samples.

        Adjacent spans are disjoint and complete.
        """
        assert 0 <= first < last <= 1
        part = copy.copy(self)
        part._span = slice(round(first * self.num_samples), round(last * self.num_samples))
        part._last_parts = part._last_read = None
        return part

    def some(self, share: float) -> "Shards":
        """Return the shards restricted to some tars, at equal distances: about this share.

        Mean, variance and priors stay those of all tars.
        """
        parts = self.index["parts"]
        count = max(1, round(share * len(parts)))
        chosen = [parts[len(parts) * n // count] for n in range(count)]
        frames = [frames for part in chosen for _, frames in part["order"]]
        totals = {"num_samples": len(frames), "num_frames": sum(frames)}
        return Shards(self.path, {**self.index, "parts": chosen, **totals})

    def other_share(self, whole: "Shards", share: float, setting: str) -> str | None:
        """Say it if this part, `whole.some(share)`, is over a quarter larger or smaller than asked.

        Args:
            setting: that gave the share, such as 'optim.share'.
        """
        found = self.num_frames / whole.num_frames
        if abs(found - share) <= share / 4:
            return None
        tars = f"{len(self.index['parts'])} of {len(whole.index['parts'])}"
        return (
            f"{setting}={share:g}, but {found:.0%} of the frames are used: whole tar files are "
            f"chosen, {tars}; shards.utterances sets their size"
        )

    # --- order -----------------------------------------------------------------------------------

    def order(self, seed: int | None, epoch: int) -> npt.NDArray[np.int64]:
        """Return the samples of an epoch (within the span), as positions in the stored order.

        With a seed they are sorted by random keys: raw bits are equal in all versions of NumPy,
        unlike `permutation`. Equal keys, which are very rare with 64 bits, keep the stored order.
        """
        if seed is None:
            return np.arange(self.num_samples)[self._span]
        bits = np.random.Philox(np.random.SeedSequence([seed, epoch]))
        shard_key_M = bits.random_raw(len(self.index["parts"]))
        sample_key_N = bits.random_raw(self.num_samples)
        rank_M = np.argsort(np.argsort(shard_key_M, kind="stable"))
        order_N = np.lexsort([sample_key_N, rank_M[self._shard_N]])  # the last key is the primary
        return order_N[self._span]

    @property
    def span_samples(self) -> int:
        """The number of samples in the span."""
        return int(self._span.stop - self._span.start)

    def part(
        self, seed: int | None, worker: int, workers: int, epoch: int
    ) -> npt.NDArray[np.int64]:
        """Return one worker's part of an epoch, with about as many frames as the others'.

        Raises:
            ValueError: if there are more workers than samples.
        """
        assert 0 <= worker < workers
        count = self.span_samples
        if workers > count:
            raise ValueError(
                f"{self.path} has {count} samples for {workers} workers, some of which "
                f"would have none; use at most {count} workers"
            )
        if self._last_parts is None or self._last_parts[0] != (seed, epoch, workers):
            order = self.order(seed, epoch)
            parts = shares(order, self._shard_N, self._frames_N, workers)
            self._last_parts = (seed, epoch, workers), parts
        return self._last_parts[1][worker]

    def frames(
        self, seed: int | None, worker: int, workers: int, epoch: int
    ) -> npt.NDArray[np.int64]:
        """Return the frames of each sample that `samples` yields with the same arguments."""
        return self._frames_N[self.part(seed, worker, workers, epoch)]

    # --- reading ---------------------------------------------------------------------------------

    def samples(
        self, seed: int | None, worker: int, workers: int, epoch: int, start: int = 0
    ) -> Iterator[Sample]:
        """Yield one worker's samples of an epoch; equal arguments give equal samples.

        Args:
            seed: of the order; None: as stored.
            start: the number of this worker's samples to skip without reading.
        Raises:
            ValueError: if there are more workers than samples.
            DamagedFileError: while reading, if a tar or a sample does not match the index.
        """
        part = self.part(seed, worker, workers, epoch)
        assert 0 <= start <= len(part)
        return self._read(part[start:])

    def _read(self, positions: npt.NDArray[np.int64]) -> Iterator[Sample]:
        for shard, group in itertools.groupby(positions.tolist(), self._shard_N.__getitem__):
            wanted = list(group)
            path, records = self._records(int(shard), wanted)
            for position in wanted:
                # Popped: a shard's memory is freed as it is read, which matters if one process
                # hosts many virtual workers
                yield self._sample(path, position, records.pop(self._ids[position], None))

    def _records(self, shard: int, wanted: list[int]) -> tuple[str, dict[str, Record]]:
        """Return the undecoded records of a shard's `wanted` samples.

        The others stay in memory until another shard is read: many virtual workers of one process
        read one shard.
        """
        names = [self._ids[position] for position in wanted]
        last, self._last_read = self._last_read, None
        if last is None or last[0] != shard or not last[2].keys() >= set(names):
            last = None  # frees the memory
            last = shard, *self._all_records(shard)
        self._last_read = last
        _, path, rest = last
        return path, {name: rest.pop(name) for name in names if name in rest}

    def _all_records(self, shard: int) -> tuple[str, dict[str, Record]]:
        """Read a shard."""
        listed = self.index["parts"][shard]
        unseen = shard not in self._opened
        path, opened = open_part(self.path, listed, unseen)
        self._opened.add(shard)
        known = {sample_id for sample_id, _ in listed["order"]}
        records: dict[str, Record] = {}
        with opened as file:
            # webdataset's iteration over an open file: its `gopen` would run `pipe:` names
            members = tariterators.tar_file_expander([{"url": path, "stream": file}])
            try:
                for record in tariterators.group_by_keys(members):
                    sample_id = record.pop("__key__")
                    del record["__url__"]
                    if sample_id not in known or sample_id in records:
                        raise ValueError(f"sample {sample_id!r} is duplicate or not in the index")
                    records[sample_id] = record
            except (ValueError, EOFError, tarfile.TarError) as error:
                what = error.args[0] if error.args else error
                raise self._unlike_index(path, what) from error
        return path, records

    def _sample(self, path: str, position: int, record: Record | None) -> Sample:
        sample_id, frames = self._ids[position], int(self._frames_N[position])
        named = f"sample {sample_id!r}"
        if record is None:
            raise self._unlike_index(path, f"{named} is missing")
        try:
            sample = from_record(sample_id, record, self.num_states)
        except ValueError as error:
            raise DamagedFileError(f"{path}: {error}") from error
        if (sample.lattice_A is not None) != self.has_lattices:
            found, listed = ("a", "none") if sample.lattice_A is not None else ("no", "one of each")
            what = f"{named} has {found} lattice but the index says {listed}"
            raise self._unlike_index(path, what)
        if sample.feats_TF.shape != (frames, self.num_mels):
            found = "{} frames of {} bins".format(*sample.feats_TF.shape)
            what = f"{named} has {found} but the index says {frames} of {self.num_mels}"
            raise self._unlike_index(path, what)
        return sample
