"""Samples -> **Batch**: whole utterances, padded; or single frames with their context, in pools.

`FramePools` is for networks that see one frame and its neighbours: it draws frames at random from a
pool of a few utterances, in an order determined by (seed, epoch, worker), and can start at any
batch. `Sequences` does the same for networks that read utterances: whole ones, or pieces of long
ones. Frames are stored once; their windows are views into the pool, gathered on the device.
"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from asr_train.schema import SpecAugmentSettings
from asr_train.shards.masks import masked
from asr_train.shards.read_ahead import ReadAhead
from asr_train.shards.reader import Shards
from asr_train.shards.sample import Sample

Device = torch.device | str


@dataclass(frozen=True, slots=True, eq=False)  # tensors have no single truth value
class Batch:
    """The input and targets of one training step.

    From `FramePools`, B counts frames: feats_BTF has each one's window, ali_BT and mask_BT have T =
    1, the frame itself. From `Sequences`, B counts utterances or pieces of them, T counts the
    network's outputs, and feats_BTF has the frames that it needs for them.
    """

    feats_BTF: torch.Tensor  # float32; zeros in padding
    ali_BT: torch.Tensor  # int64 state ids; 0 in padding
    mask_BT: torch.Tensor  # bool; false in padding
    frames: int  # the mask's sum
    # `STATE_ARC`, one per row; of whole utterances, all of whose frames are outputs
    lattices: tuple[npt.NDArray[np.void], ...] | None = None


def lattices_of(samples: Sequence[Sample]) -> tuple[npt.NDArray[np.void], ...] | None:
    """Return the samples' lattices; None if any has none."""
    found = tuple(s.lattice_A for s in samples if s.lattice_A is not None)
    return found if len(found) == len(samples) else None


def context_padded(
    feats_TF: npt.NDArray[np.float32] | torch.Tensor, left: int, right: int
) -> torch.Tensor:
    """Return one utterance [1, left + T + right, F]; its edges repeat the first and last frame."""
    feats_TF = torch.as_tensor(feats_TF)
    times = torch.arange(-left, len(feats_TF) + right).clamp(0, len(feats_TF) - 1)
    return feats_TF[times.to(feats_TF.device)][None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one worker's samples of an epoch become minibatches.

    Attributes:
        pool_frames: of a pool, about.
        minibatch_frames: of a batch; for `Sequences`, outputs.
        seed, worker, workers, epoch: as in `Shards.samples`.
        masks: of the samples; None: they have none.
        thread: as in `ReadAhead`.
    """

    pool_frames: int
    minibatch_frames: int
    seed: int
    worker: int
    workers: int
    epoch: int
    device: Device = "cpu"
    masks: SpecAugmentSettings | None = None
    thread: Executor | None = None

    @property
    def order(self) -> tuple[int, int, int, int]:
        return self.seed, self.worker, self.workers, self.epoch


@dataclass(frozen=True, slots=True)
class Cut:
    """How utterances become rows of a network's input.

    Attributes:
        left, right: frames needed before the first and after the last frame of interest; an
            utterance's edges repeat its first and last frame.
        stride: frames from one output to the next.
        piece: outputs that are trained on at once; longer utterances are cut into equal pieces. 0:
            each frame is a row of its own.
        warm: outputs before a piece that only set up the network's state.
    """

    left: int
    right: int
    stride: int = 1
    piece: int = 0
    warm: int = 0


class _Epoch:
    """One worker's samples of an epoch, in pools; nothing is read yet.

    Raises:
        ValueError: if there are more workers than samples.
    """

    num_batches: int

    def __init__(self, shards: Shards, plan: Plan) -> None:
        self._shards, self.plan = shards, plan
        self._frames_N = shards.frames(*plan.order)
        self._before = np.concatenate([[0], np.cumsum(self._frames_N)])  # frames before each sample
        self._firsts = _pool_firsts(self._before, plan.pool_frames)  # and, last, the end
        self._next = 0

    def seek(self, batches: int) -> None:
        """Continue after this number of minibatches of the epoch."""
        self._next = min(batches, self.num_batches)

    def _runs(self, firsts: Sequence[int]) -> Iterator[list[Sample]]:
        """Return the samples of each of some pools, with masks if there are any."""
        plan = self.plan
        samples = self._shards.samples(*plan.order, start=firsts[0])
        if plan.masks is not None:
            is_normalised = self._shards.about.get("norm", {}).get("by") != "none"
            mean_F = 0.0 if is_normalised else self._shards.mean_F
            samples = masked(samples, plan.masks, plan.seed, plan.epoch, mean_F)
        pairs = itertools.pairwise(firsts)
        return (list(itertools.islice(samples, last - first)) for first, last in pairs)


class FramePools(_Epoch):
    """Yields Batches of single frames, each with its context window.

    A pool is a sequence of the worker's samples, of about `pool_frames`; the pools of an epoch are
    as equal as whole utterances allow. Each pool's frames are permuted; the concatenation of all
    pools is cut into minibatches of `minibatch_frames`. So every frame occurs exactly once per
    epoch, and only the last minibatch may be short; one that spans two pools takes its frames from
    both. All of it follows from the index. Iterating again continues after the last batch.
    """

    def __init__(self, shards: Shards, cut: Cut, plan: Plan) -> None:
        super().__init__(shards, plan)
        self._cut = cut
        self.num_frames = int(self._before[-1])  # in the whole epoch, of this worker
        self.num_batches = -(-self.num_frames // plan.minibatch_frames)

    def __iter__(self) -> Iterator[Batch]:
        plan = self.plan
        done = self._next * plan.minibatch_frames  # of the epoch's frames
        if done >= self.num_frames:
            return
        pool_at = sum(self._before[first] <= done for first in self._firsts) - 1
        firsts = self._firsts[pool_at:]
        at = done - int(self._before[firsts[0]])
        held: list[Batch] = []  # the begin of a minibatch that the last pool did not fill
        arrays = map(self._arrays, self._runs(firsts))  # keeps no samples, as a generator would
        with ReadAhead(arrays, plan.thread) as read:
            for first in firsts[:-1]:
                pool = _Pool(read.next(), self._cut, self._generator(first), plan.device)
                while at < pool.num_frames:
                    missing = plan.minibatch_frames - sum(piece.frames for piece in held)
                    held.append(pool.gather(at, at + missing))
                    at += held[-1].frames
                    if held[-1].frames == missing:
                        self._next += 1
                        yield _joined(held)
                        held = []
                        read.begin()  # not sooner: other workers' first pools are needed first
                at = 0
                del pool  # before the next one is read
        if held:
            self._next += 1
            yield _joined(held)

    def _arrays(self, samples: Sequence[Sample]) -> "_Arrays":
        left, right = self._cut.left, self._cut.right
        pieces = []
        for feats_TF in (sample.feats_TF for sample in samples):
            pieces += [feats_TF[:1].repeat(left, 0), feats_TF, feats_TF[-1:].repeat(right, 0)]
        lengths = [len(sample.ali_T) for sample in samples]
        # A frame's window begins at its own number plus the edge rows of the utterances before it
        edges_N = np.repeat(np.arange(len(samples)) * (left + right), lengths)
        ali_N = np.concatenate([s.ali_T for s in samples]).astype(np.int64)
        return _Arrays(np.concatenate(pieces), np.arange(len(ali_N)) + edges_N, ali_N)

    def _generator(self, first: int) -> torch.Generator:
        words = [self.plan.seed, self.plan.epoch, self.plan.worker, first]
        (bits,) = np.random.SeedSequence(words).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(bits))


def _pool_firsts(before: npt.NDArray[np.int64], pool_frames: int) -> list[int]:
    """Return each pool's first sample, then the number of samples.

    All pools of an epoch are about equal, and near `pool_frames`: a short last one would train on
    few utterances (182,000 frames: DEV accuracy 60.6 % with pools of 60,000 and the rest, 73.8 %
    with three equal ones).
    """
    pools = max(1, round(int(before[-1]) / pool_frames))
    ends = np.searchsorted(before, np.arange(1, pools + 1) * int(before[-1]) / pools)
    return [0, *sorted({max(1, int(end)) for end in ends})]


class _Arrays(NamedTuple):
    """Some utterances' frames, in order: what is made of them without torch."""

    rows_RF: npt.NDArray[np.float32]  # with repeated edges
    start_N: npt.NDArray[np.int64]  # the row in which a frame's window begins
    ali_N: npt.NDArray[np.int64]


class _Pool:
    """Some utterances' frames in random order, with a view of each one's window."""

    def __init__(
        self, arrays: _Arrays, cut: Cut, generator: torch.Generator, device: Device
    ) -> None:
        window = cut.left + 1 + cut.right
        self.num_frames = len(arrays.ali_N)
        rows_RF = torch.from_numpy(arrays.rows_RF).to(device)
        self._windows_NTF = rows_RF.unfold(0, window, 1).transpose(1, 2)  # they overlap
        # On the CPU: same everywhere
        order_N = torch.randperm(self.num_frames, generator=generator)
        self._start_N = torch.from_numpy(arrays.start_N)[order_N].to(device)
        self._ali_N1 = torch.from_numpy(arrays.ali_N)[order_N, None].to(device)

    def gather(self, first: int, last: int) -> Batch:
        """Return frames `first` to `last` of the permuted pool, or as many as there are."""
        ali_B1 = self._ali_N1[first:last]
        # By numba a copy took 3.7 times as long, by Triton 1.1 times
        feats_BTF = self._windows_NTF.index_select(0, self._start_N[first:last])
        return Batch(feats_BTF, ali_B1, torch.ones_like(ali_B1, dtype=torch.bool), len(ali_B1))


def _joined(pieces: list[Batch]) -> Batch:
    if len(pieces) == 1:
        return pieces[0]
    arrays = ((piece.feats_BTF, piece.ali_BT, piece.mask_BT) for piece in pieces)
    feats, alis, masks = zip(*arrays, strict=True)
    frames = sum(piece.frames for piece in pieces)
    return Batch(torch.cat(feats), torch.cat(alis), torch.cat(masks), frames)


@dataclass(frozen=True, slots=True)
class Piece:
    """A row: outputs `first` to `last` of a pool's sample, read from frame `phase` on."""

    sample: int
    phase: int
    first: int
    last: int
    warm: int = 0  # outputs before `first`

    @property
    def frames(self) -> int:
        return self.last - self.first

    @property
    def columns(self) -> int:
        return self.warm + self.frames


class Sequences(_Epoch):
    """Yields Batches of utterances, or of pieces of long ones.

    Utterances are trained on whole, from a state of zeros, so that no state is carried between
    batches: the order may be random, gradients are exact, and a run can continue at any batch given
    its number. Utterances are short (2 s on average in Ladkat et al., 2019); one with more outputs
    than `cut.piece` is cut, and each piece sets up its state on the `cut.warm` outputs before it,
    which have no targets.

    In each epoch an utterance is read from another of its first `stride` frames on, so that after
    `stride` epochs each frame was used once. A minibatch has about `minibatch_frames` outputs: a
    pool's pieces are sorted by length, to reduce padding, cut into runs of equal numbers of
    outputs, and the runs are permuted. All of it follows from the index.
    """

    def __init__(self, shards: Shards, cut: Cut, plan: Plan) -> None:
        super().__init__(shards, plan)
        self._cut = cut
        positions_N = shards.part(*plan.order)
        self._batches = [
            self._cut_pool(self._frames_N[first:last], positions_N[first:last], first)
            for first, last in itertools.pairwise(self._firsts)
        ]
        self.num_frames = sum(p.frames for pool in self._batches for batch in pool for p in batch)
        self.num_batches = sum(map(len, self._batches))

    def __iter__(self) -> Iterator[Batch]:
        before = np.cumsum([0, *map(len, self._batches)])  # minibatches before each pool
        pool_at = int(np.searchsorted(before, self._next, side="right")) - 1
        pools, firsts = self._batches[pool_at:], self._firsts[pool_at:]
        skipped = self._next - int(before[pool_at])
        with ReadAhead(self._runs(firsts), self.plan.thread) as read:
            for batches in pools:
                run = read.next()
                for batch in batches[skipped:]:
                    self._next += 1
                    yield stacked(batch, run, self._cut, self.plan.device)
                    read.begin()  # not sooner: other workers' first pools are needed first
                skipped = 0
                del run  # before the next pool is read: its lattices may take a gigabyte

    def _cut_pool(
        self, frames_N: npt.NDArray[np.int64], positions_N: npt.NDArray[np.int64], first: int
    ) -> list[list[Piece]]:
        """Return the minibatches of a pool, in order."""
        seed, worker, _, epoch = self.plan.order
        turns = (epoch + positions_N).tolist()
        pieces = [
            piece
            for sample, (frames, turn) in enumerate(zip(frames_N.tolist(), turns, strict=True))
            for piece in _pieces(sample, frames, turn, self._cut)
        ]
        bits = np.random.Philox(np.random.SeedSequence([seed, epoch, worker, first]))
        columns_N = np.array([piece.columns for piece in pieces])
        order = np.lexsort([bits.random_raw(len(pieces)), columns_N])
        pieces = [pieces[at] for at in order]
        outputs_N = np.array([piece.frames for piece in pieces])
        ends_N, total = np.cumsum(outputs_N), int(outputs_N.sum())
        count = max(1, round(total / self.plan.minibatch_frames))
        runs = ((ends_N - outputs_N / 2) * count / total).astype(np.int64)
        cuts = [0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(pieces)]
        batches = [pieces[a:b] for a, b in itertools.pairwise(cuts)]
        return [batches[at] for at in np.argsort(bits.random_raw(len(batches)), kind="stable")]


def stacked(pieces: Sequence[Piece], samples: Sequence[Sample], cut: Cut, device: Device) -> Batch:
    """Return pieces of samples as rows, padded to the longest by its last frame; see `Cut`."""
    columns = max(piece.columns for piece in pieces)
    rows = cut.left + (columns - 1) * cut.stride + 1 + cut.right
    times_R = np.arange(rows) - cut.left
    num_mels = samples[pieces[0].sample].feats_TF.shape[1]
    feats_BTF = np.empty((len(pieces), rows, num_mels), np.float32)
    ali_BT = np.zeros((len(pieces), columns), np.int64)
    mask_BT = np.zeros((len(pieces), columns), bool)
    for b, piece in enumerate(pieces):
        sample = samples[piece.sample]
        start = piece.phase + (piece.first - piece.warm) * cut.stride
        # The edges repeat the first and the last frame
        feats_BTF[b] = sample.feats_TF[np.clip(start + times_R, 0, len(sample.ali_T) - 1)]
        states = sample.ali_T[piece.phase :: cut.stride][piece.first : piece.last]
        ali_BT[b, piece.warm : piece.columns] = states
        mask_BT[b, piece.warm : piece.columns] = True
    read = [samples[piece.sample] for piece in pieces]
    whole = all(p.frames == len(s.ali_T) for p, s in zip(pieces, read, strict=True))
    feats, ali, mask = (_sent(array, device) for array in (feats_BTF, ali_BT, mask_BT))
    frames = sum(piece.frames for piece in pieces)
    return Batch(feats, ali, mask, frames, lattices_of(read) if whole else None)


def _sent(array: npt.NDArray[Any], device: Device) -> torch.Tensor:
    """Return an array on the device; a copy to a GPU does not wait for the work queued there."""
    tensor = torch.from_numpy(array)
    if torch.device(device).type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _pieces(sample: int, frames: int, turn: int, cut: Cut) -> Iterator[Piece]:
    """Yield an utterance's rows; `turn` selects the frame at which reading starts."""
    phase = turn % min(cut.stride, frames)
    outputs = -(-(frames - phase) // cut.stride)
    count = -(-outputs // cut.piece)
    ends = [outputs * n // count for n in range(count + 1)]
    for first, last in itertools.pairwise(ends):
        yield Piece(sample, phase, first, last, min(first, cut.warm))
