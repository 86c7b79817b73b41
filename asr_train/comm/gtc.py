"""**Gradient threshold compression**: a group's gradients -> messages -> the gradient of all.

Each worker owes the others the sum of its residual and its gradient; of every element that exceeds
tau it sends one quantum and keeps the rest (Strom, 2015, section 2.6). It applies its own message
like the others', never its own gradient. All messages are decoded to integer counts, which are
multiplied by tau once: so replicas stay bit-identical.

If any worker's gradient is not finite, all residuals stay as they were: new ones are written beside
the old, and replace them only when all messages have arrived. So a worker takes 2 P floats; groups
of one process, which take their steps in turn, share the room for new ones.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from asr_train import schema
from asr_train.comm import codec
from asr_train.comm.bucket import rows
from asr_train.comm.codec import Flags, Header, Kind
from asr_train.comm.exchange import LENGTH_BYTES, Exchange
from asr_train.comm.reducers import Counts, Gradient, Quanta, Reducer, Sent, Shared
from asr_train.facts import HEADER_BYTES
from asr_train.kernels import threshold

CHECK_STEPS = 100  # between waits for a GPU's checks of messages
Found = TypeVar("Found")
Vectors = tuple[Tensor, float, Tensor]  # residuals [W, P], tau, what is kept
SLACK = 1.25  # room in a message, relative to the longest of the previous step


@dataclass(slots=True)
class Spare:
    """What a step writes to; between steps nothing in it counts."""

    kept_WP: Tensor  # float32, new residuals, which change places with the old
    counts_P: Tensor | None  # float32, of sent elements; None: messages are made


class Gtc(Reducer):
    """The reducer of a group of several workers, for flat vectors of `size` elements.

    Args:
        is_direct: whether messages are counted but not made where that is possible: if all workers
            are in this process, and the number of its elements gives a message's length. The
            result is the same to the bit.
        others: reducers of other groups of as many workers, which take their steps in turn with
            this one: they share memory.
    Attributes:
        tau: of the next step; the same in the whole group.
        capacity: bytes of payload that the next step's messages have room for.
        residuals: by local worker, float32 [P], rows of one matrix.
    Raises:
        ValueError: if there are more elements than a message can number.
    """

    def __init__(
        self,
        exchange: Exchange,
        size: int,
        settings: schema.GtcSettings,
        is_direct: bool = False,
        others: Iterable[Reducer] = (),
    ) -> None:
        threshold.check_size(size)
        self.exchange, self.size, self.settings = exchange, size, settings
        self.kind = Kind[settings.codec.name]
        self.tau = float(np.float32(settings.threshold))
        self.capacity = codec.largest_capacity(size)
        self.step = 0
        where = len(exchange.local), size, exchange.device
        self._residuals_WP = rows(*where).zero_()
        self._on_device = exchange.device.type != "cpu"
        self._checks = codec.Checks(deferred=self._on_device)
        self._is_fixed = settings.capacity is schema.Capacity.fixed
        is_here = is_direct and len(exchange.local) == len(exchange)
        is_exact = not self._is_fixed and self.kind is not Kind.rice
        spares = [one._spare for one in others if isinstance(one, Gtc)]
        self._spare: Spare = next((s for s in spares if len(s.kept_WP) == where[0]), None) or Spare(
            rows(*where).zero_(),
            torch.zeros(size, device=exchange.device) if is_here and is_exact else None,
        )
        counts_P = self._spare.counts_P
        self.takes_factors = counts_P is not None and threshold.takes_factors(counts_P)
        # The element that goes first if room is short; on a GPU it may lie there
        self._turn: dict[int, int | Tensor] = dict.fromkeys(exchange.local, 0)

    def reduce(self, gradients: Iterable[Gradient], sent: dict[int, Sent]) -> Shared | None:
        """Return all messages' quanta; None if any gradient is not finite.

        Adding them up overwrites the last of the gradients.

        Raises:
            MessageError: if a message is damaged or not the one expected.
        """
        turns = dict(self._turn)
        headers, update = self._exchanged(gradients)
        for worker in self.exchange.local:
            header, own = headers[worker - self.exchange.members[0]], sent[worker]
            own.bits += 8 * (HEADER_BYTES + header.payload_bytes)
            own.elements += header.count
            own.overflows += bool(header.flags & Flags.overflow)
        self.step += 1
        if self.step % CHECK_STEPS == 0:
            self.check()
        if any(header.flags & Flags.not_finite for header in headers):
            self._turn = turns
            return None
        kept_WP, self._spare.kept_WP = self._spare.kept_WP, self._residuals_WP
        self._residuals_WP = kept_WP
        self._plan_next(headers)
        return update

    def _exchanged(self, gradients: Iterable[Gradient]) -> tuple[list[Header], Shared]:
        """Return the headers of all messages, and their quanta, which count if all are finite."""
        if self._spare.counts_P is not None:
            return self._exchanged_here(gradients, self._spare.counts_P)
        messages: list[Tensor] = []
        for worker, gradient, found in self._each(gradients, self._compressed):
            with self.exchange.timed("compress"):
                messages.append(self._message(worker, gradient, found))
            total_P = gradient.grad_P
        room = HEADER_BYTES + self.capacity if self._is_fixed else None
        received = self.exchange.gather(messages, room)
        headers = codec.read_headers(received)
        for worker, header in zip(self.exchange.members, headers, strict=True):
            codec.check_due(header, **self._due(worker))
        words = codec.read_words(headers, received, self._checks)
        return headers, Quanta(words, self.tau, total_P)

    def _exchanged_here(
        self, gradients: Iterable[Gradient], counts_P: Tensor
    ) -> tuple[list[Header], Counts]:
        """Do what `_exchanged` does; messages are counted but not made."""

        def tallied(_: slice, gradient: Gradient, vectors: Vectors) -> Sequence[Tensor]:
            if gradient.factors is not None:
                return threshold.tally_factors(gradient.factors, *vectors, counts_P).unbind()
            return threshold.tally_rows(_rows(gradient), *vectors, counts_P).unbind()

        counts_P.zero_()
        learned, pairs = [], []
        for worker, gradient, pair in self._each(gradients, tallied):
            learned.append((worker, gradient.frames))
            pairs.append(pair)
        with self.exchange.timed("compress"):
            found = torch.stack(pairs).tolist()  # the only wait for a GPU
        headers: list[Header] = []
        for (worker, frames), (count, wrong) in zip(learned, found, strict=True):
            flags = Flags.none if frames else Flags.end_of_data
            if wrong:
                count, flags = 0, flags | Flags.not_finite
            payload_bytes = codec.payload_bytes_of(count, self.size, self.kind)
            payload_bytes = min(payload_bytes, codec.map_bytes(self.size))
            sent: dict[str, Any] = {"wanted": count, "count": count, "payload_bytes": payload_bytes}
            headers.append(Header(**self._due(worker), frames=frames, flags=flags, **sent))
        longest = HEADER_BYTES + max(header.payload_bytes for header in headers)
        self.exchange.count_received(LENGTH_BYTES + longest)
        return headers, Counts(counts_P, self.tau)

    def _each(
        self,
        gradients: Iterable[Gradient],
        compressed: Callable[[slice, Gradient, Vectors], Sequence[Found]],
    ) -> Iterator[tuple[int, Gradient, Found]]:
        """Yield the local workers, their gradients, and what is found of these.

        Args:
            compressed: places of some workers, the gradient of the first, which has those of all,
                their vectors -> what is found of each.
        """
        found: Iterator[Found] = iter(())
        left = 0  # workers whose gradients are compressed, and not yet yielded
        for worker, gradient in zip(self.exchange.local, gradients, strict=True):
            if not left:
                factors = gradient.factors
                left = len(_rows(gradient) if factors is None else factors[0].inputs_WNI)
                first = worker - self.exchange.local[0]
                places = slice(first, first + left)
                vectors = self._residuals_WP[places], self.tau, self._spare.kept_WP[places]
                with self.exchange.timed("compress"):
                    found = iter(compressed(places, gradient, vectors))
            left -= 1
            yield worker, gradient, next(found)

    @property
    def residuals(self) -> dict[int, Tensor]:
        return dict(zip(self.exchange.local, self._residuals_WP, strict=True))

    def _compressed(
        self, places: slice, gradient: Gradient, vectors: Vectors
    ) -> Sequence[threshold.Compressed | threshold.Fixed]:
        """Compress; for packed32 messages of a fixed length, without waiting for the device."""
        rows_WP = _rows(gradient)
        if not (self._on_device and self._is_fixed and self.kind is Kind.packed32):
            return threshold.compress_rows(rows_WP, *vectors)
        turns = [torch.as_tensor(self._turn[worker]) for worker in self.exchange.local[places]]
        turns_W = torch.stack([turn.to(self.exchange.device, non_blocking=True) for turn in turns])
        return threshold.compress_fixed_rows(rows_WP, *vectors, self.capacity // 4, turns_W)

    def _message(
        self, worker: int, gradient: Gradient, found: threshold.Compressed | threshold.Fixed
    ) -> Tensor:
        """Return a local worker's message."""
        flags = Flags.none if gradient.frames else Flags.end_of_data
        if isinstance(found, threshold.Fixed):
            self._turn[worker] = found.turn
            header = Header(**self._due(worker), frames=gradient.frames, wanted=0, flags=flags)
            return codec.write_fixed(found, header)
        words_K, is_finite = found
        if not is_finite:
            words_K = words_K[:0]
            flags |= Flags.not_finite
        wanted = len(words_K)
        if self._is_fixed:
            room = (words_K, self.size, self.kind, self.capacity, int(self._turn[worker]))
            words_K, waiting_K = codec.fitting(*room)
            if len(waiting_K):
                place = worker - self.exchange.local[0]
                residual_P, kept_P = self._residuals_WP[place], self._spare.kept_WP[place]
                threshold.take_back(gradient.grad_P, residual_P, kept_P, waiting_K)
                self._turn[worker] = int(threshold.from_words(waiting_K)[0][0])
                flags |= Flags.overflow
        header = Header(**self._due(worker), frames=gradient.frames, wanted=wanted, flags=flags)
        return codec.write(words_K, header, self.kind)

    def check(self) -> None:
        """Raise MessageError if a message since the last call was damaged."""
        self._checks.ask()

    def _due(self, worker: int) -> dict[str, Any]:
        """Return what a header of this step says of a worker's message."""
        place = {"step": self.step, "worker": worker, "workers": len(self.exchange)}
        return {**place, "size": self.size, "tau": self.tau}

    def _plan_next(self, headers: list[Header]) -> None:
        """Choose the next step's capacity and tau from the headers, the same on all workers."""
        longest = max(math.ceil(h.payload_bytes * h.wanted / max(1, h.count)) for h in headers)
        wanted = 2 ** math.ceil(math.log2(max(1.0, SLACK * longest)))
        if wanted > self.capacity:
            self.capacity = wanted
        elif 4 * wanted <= self.capacity:  # shrink late, so as not to oscillate
            self.capacity //= 2
        self.capacity = self._possible(self.capacity)
        if (adaptive := self.settings.adaptive) is not None:
            self.tau = adapted(self.tau, density(headers), adaptive)

    def _possible(self, capacity: int) -> int:
        least = codec.smallest_capacity(self.kind, self.size)
        return min(codec.largest_capacity(self.size), max(least, capacity))

    # --- state ------------------------------------------------------------------------------------

    def measures(self, worker: int) -> tuple[float, float]:
        """Return tau, and the sum of squares of a local worker's residual."""
        return self.tau, float(self.residuals[worker].square().sum(dtype=torch.float64))

    def group_state(self) -> dict[str, Any]:
        return {"tau": self.tau, "capacity": self.capacity, "step": self.step}

    def load_group_state(self, state: dict[str, Any]) -> None:
        if state:  # empty from a run with one worker
            self.tau, self.step = state["tau"], state["step"]
            self.capacity = self._possible(state["capacity"])  # maybe chosen for another codec

    def worker_state(self, worker: int) -> dict[str, Any]:
        return {"owed": {"residual_P": self.residuals[worker]}, "turn": int(self._turn[worker])}

    def load_worker_state(self, worker: int, state: dict[str, Any]) -> None:
        if "owed" in state:  # absent from a run with one worker
            self.residuals[worker].copy_(state["owed"]["residual_P"])
        self._turn[worker] = state.get("turn", 0)


def _rows(gradient: Gradient) -> Tensor:
    """Return the gradients that are there, float32 [W, P]."""
    return gradient.grad_P[None] if gradient.rows_WP is None else gradient.rows_WP


def density(headers: Collection[Header]) -> float:
    """Return the share of elements above the threshold in a step's messages.

    Those of workers without minibatches, which only send what is left of their residuals, count
    only if there are no others.
    """
    headers = [h for h in headers if not h.flags & codec.Flags.end_of_data] or headers
    return sum(header.wanted for header in headers) / sum(header.size for header in headers)


def adapted(tau: float, share: float, settings: schema.AdaptiveSettings) -> float:
    """Return the next step's tau, a float32: raised if the share sent is too high, else lowered.

    It stays a threshold that kernels take, however long gradients are zero, or explode.
    """
    if share > settings.density * settings.band:
        tau *= settings.factor
    elif share < settings.density / settings.band:
        tau /= settings.factor
    return float(np.float32(min(max(tau, threshold.SMALLEST), threshold.LARGEST)))
