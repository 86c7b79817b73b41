"""An epoch's **minibatches for the workers hosted here**: equally many steps for all workers.

Planned from the shards' index before anything is read. Every frame comes once; so workers with
fewer frames run out of minibatches a little earlier, and take part in the last steps with a zero
gradient, so that no worker waits for them. An epoch may have parts (optim.phases), with other
minibatches and fewer workers that read; the others take part with a zero gradient.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from asr_train.comm.exchange import Exchange
from asr_train.model.store import Model
from asr_train.schema import OptimSettings
from asr_train.schema.optim import Part
from asr_train.shards.batch import Batch, Cut, FramePools, Plan, Sequences
from asr_train.shards.reader import Shards
from asr_train.train.state import RunState

ROUNDED = 1e-6  # steps; shares of an epoch are rounded


def seen_by(model: Model, whole: bool = False) -> Cut:
    """Return what a network takes as input: single frames in their windows, or utterances.

    Args:
        whole: the objective needs the outputs of all frames of whole utterances.
    """
    left, right = model.context_left, model.context_right
    if whole:
        return Cut(left, right, piece=sys.maxsize)
    return Cut(left, right, model.stride, model.piece, model.warm)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of an epoch's order of samples, the workers that read it, and their minibatches."""

    share: tuple[float, float]  # of the epoch: its begin and end
    shards: Shards
    minibatch_frames: int  # of each worker that reads
    workers: int  # that read
    first_step: int  # of the epoch
    batches: list[int]  # by worker that reads


class Feed:
    """The minibatches of one epoch.

    Args:
        seen: what the network takes as input.
        exchange: of all workers.
        parts: of the epoch, as `optim.parts` gives them; None: those without choices.
        halves: into so many steps a minibatch of several workers is cut.
        thread: it reads ahead; None: nothing does.
    Attributes:
        num_steps: of the epoch, for every worker.
        fewest: minibatches of the worker that has the fewest frames, of those that read.
    """

    def __init__(
        self,
        shards: Shards,
        optim: OptimSettings,
        seen: Cut,
        exchange: Exchange,
        epoch: int,
        parts: Iterable[Part] | None = None,
        halves: int = 1,
        thread: Executor | None = None,
    ) -> None:
        order = optim.seed, 0, len(exchange), epoch
        how = exchange.device, optim.specaugment, thread
        self._seen = seen
        self._plan = Plan(optim.pool_frames, optim.minibatch_frames, *order, *how)
        self._local = exchange.local
        self._phases: list[Phase] = []
        self.num_steps = self.fewest = 0
        for first, last, minibatch_frames, most in optim.parts(epoch) if parts is None else parts:
            part = shards.span(first, last)
            reading = min(len(exchange), most or len(exchange))
            if (first, last) != (0.0, 1.0):  # too short a part for all is read by fewer
                reading = min(reading, part.span_samples)
            if reading == 0:
                continue
            if reading > 1:
                minibatch_frames = max(1, minibatch_frames // halves)
            phase = Phase((first, last), part, minibatch_frames, reading, self.num_steps, [])
            for worker in range(reading):
                phase.batches.append(self._reader(phase, worker).num_batches)
            self._phases.append(phase)
            self.num_steps += max(phase.batches)
            self.fewest += min(phase.batches)
        self.start(0)

    def start(self, step: int) -> None:
        """Begin to read after so many steps of the epoch."""
        self._at = dict.fromkeys(self._local, step)
        self._readers: dict[int, tuple[Phase, Iterator[Batch]]] = {}

    def next(self, worker: int) -> Batch | None:
        """Return a local worker's next minibatch; None: it has none left."""
        step = self._at[worker]
        self._at[worker] += 1
        phase = self.phase(step)
        if worker >= phase.workers:
            return None
        if worker not in self._readers or self._readers[worker][0] is not phase:
            reader = self._reader(phase, worker)
            reader.seek(step - phase.first_step)
            self._readers[worker] = phase, iter(reader)
        return next(self._readers[worker][1], None)

    def phase(self, step: int) -> Phase:
        """Return the part of the epoch that a step is in."""
        return next(p for p in reversed(self._phases) if p.first_step <= step)

    def share(self, step: int) -> float:
        """Return the share of the epoch's data that comes before a step."""
        if step in (0, self.num_steps):
            return float(step > 0)
        phase = self.phase(step)
        first, last = phase.share
        return first + (last - first) * ((step - phase.first_step) / max(phase.batches))

    def step_at(self, share: float) -> int:
        """Return the first step that so much of the epoch's data comes before."""
        for phase in self._phases:
            first, last = phase.share
            if share <= last:
                steps = (share - first) / (last - first) * max(phase.batches)
                return phase.first_step + max(0, math.ceil(steps - ROUNDED))
        return self.num_steps

    def part_end(self, step: int) -> int:
        """Return the first step of the next part, or the number of steps."""
        later = [p.first_step for p in self._phases if p.first_step > step]
        return min([*later, self.num_steps])

    def _reader(self, phase: Phase, worker: int) -> FramePools | Sequences:
        frames, workers = phase.minibatch_frames, phase.workers
        plan = replace(self._plan, minibatch_frames=frames, worker=worker, workers=workers)
        kind = Sequences if self._seen.piece else FramePools
        return kind(phase.shards, self._seen, plan)


def when(state: RunState, feed: Feed, epoch_step: int) -> tuple[float, int]:
    """Return the schedule's arguments: epochs of data before a step, and gradients added up in it.

    Steps of different parts have different numbers of frames, so steps are not counted.
    """
    done = state.progress.epoch + feed.share(epoch_step)
    return done, min(len(state.method.groups[0]), feed.phase(epoch_step).workers)
