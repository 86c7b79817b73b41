"""Gradient threshold compression by **segments, while backward still runs**; see `comm.gtc`.

in    gradients, which a backward pass writes into one flat vector from its end to its beginning
out   what comm.gtc makes of them, to the bit: the same hits, counts, residuals and thresholds
The flat vector is cut where parameters begin. Once a segment's gradients are there it becomes a
message, which is exchanged and read, on a thread of its own (and a CUDA stream, where there is
one): the last segment first, in the same order on all processes, so that collectives match. The
first segment waits until backward has ended: its message says whether all of the gradient was
finite. Residuals change places only when every worker's was, as in comm.gtc; so a step that cannot
be takes nothing back, whatever had been sent of it. A parameter without a gradient only delays its
segment to the end.
"""

import functools
import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asr_train import schema
from asr_train.comm.bucket import Bucket, Slot
from asr_train.comm.codec import Flags, Header
from asr_train.comm.exchange import Exchange
from asr_train.comm.gtc import Gtc
from asr_train.comm.method import Gradient, Quanta, Sent, Watcher
from asr_train.kernels import threshold

ALIGNED = 4  # elements: where a GPU's loads can be 16 bytes wide


@dataclass(slots=True)
class _Pass:
    """A worker's backward pass."""

    worker: int
    sent: Sent
    missing: list[int]  # by segment, its parameters without a gradient so far
    turn: int  # the segment that goes next; those behind it have begun


class SegmentedGtc(Gtc, Watcher):
    """A team's reducer; one segment, until it is told of the bucket that gradients come in.

    Attributes:
        segments: elements of the flat vectors, in order.
    """

    def __init__(self, exchange: Exchange, size: int, settings: schema.GtcSettings) -> None:
        super().__init__(exchange, size, settings)
        self.segments = [range(size)]
        self._of_place: list[list[int]] = []  # the segments that a parameter lies in
        self._grad_P: Tensor | None = None  # the bucket's
        self._pass: _Pass | None = None
        self._side = Side(exchange.device)
        self._messages: list[list[Tensor]] = []  # by segment and local worker
        self._received: list[tuple[list[Header], list[Tensor]]] = []  # by segment

    def watch(self, bucket: Bucket) -> None:
        self.segments = cut(bucket.table, self.settings.segments)
        self._of_place = [lies_in(slot, self.segments) for slot in bucket.table]
        self._grad_P = bucket.grad_P
        bucket.watch(self._arrived)

    def quanta(self, gradients: Iterable[Gradient], sent: dict[int, Sent]) -> Quanta | None:
        """As Gtc's, but what of gradients is there is sent before they are whole."""
        self._messages = [[] for _ in self.segments]
        self._received = [([], []) for _ in self.segments]
        coming = iter(gradients)
        for worker in self.exchange.local:
            gradient = self._sent_meanwhile(worker, sent[worker], coming)
        headers = [whole(parts) for parts in zip(*(h for h, _ in self._received), strict=True)]
        words = [torch.cat(parts) for parts in zip(*(w for _, w in self._received), strict=True)]
        return self._taken(headers, words, gradient.grad_P)

    def _sent_meanwhile(self, worker: int, sent: Sent, coming: Iterator[Gradient]) -> Gradient:
        """A worker's gradient, of which nothing is needed any more when this returns."""
        missing = [0] * len(self.segments)
        for place in self._of_place:
            for segment in place:
                missing[segment] += 1
        self._pass = here = _Pass(worker, sent, missing, len(self.segments) - 1)
        self.exchange.awaited_since = math.inf
        try:
            gradient = next(coming)
        finally:
            self._pass = None
            self.exchange.awaited_since = time.perf_counter()
        begun = here.turn < len(self.segments) - 1
        assert not begun or self._grad_P is gradient.grad_P, "it was made elsewhere"
        for segment in range(here.turn, -1, -1):  # the first one, at least
            self._begin(segment, here, gradient)
        self._side.wait()
        return gradient

    def _arrived(self, place: int) -> None:
        """Backward has written the gradient of a parameter."""
        if (here := self._pass) is None:
            return
        for segment in self._of_place[place]:
            here.missing[segment] -= 1
        assert self._grad_P is not None
        so_far = Gradient(self._grad_P, frames=0)
        while here.turn > 0 and here.missing[here.turn] == 0:
            self._begin(here.turn, here, so_far)
            here.turn -= 1

    def _begin(self, number: int, here: _Pass, gradient: Gradient) -> None:
        """Have a segment compressed, exchanged and read, with what is known of the gradient."""
        self._side.do(functools.partial(self._exchange_part, number, here, gradient))

    def _exchange_part(self, number: int, here: _Pass, gradient: Gradient) -> None:
        messages, segment = self._messages[number], self.segments[number]
        with self.exchange.timed("compress"):
            messages.append(self._part(segment, here, gradient))
        if here.worker != self.exchange.local[-1]:
            return
        headers, words = self._read(self.exchange.gather(messages), len(segment))
        # Indices count from the segment's beginning; the sign is above them
        self._received[number] = headers, [words_K + segment.start for words_K in words]

    def _part(self, segment: range, here: _Pass, gradient: Gradient) -> Tensor:
        """A local worker's message of a segment."""
        part = slice(segment.start, segment.stop)
        residual_P, kept_P = self.residuals[here.worker], self._kept[here.worker]
        words_K = torch.empty(0, dtype=torch.int32, device=kept_P.device)
        is_finite = gradient.is_finite
        if is_finite:
            found = threshold.compress(
                gradient.grad_P[part], residual_P[part], self.tau, kept_P[part]
            )
            is_finite = found.is_finite
            words_K = found.words_K if is_finite else words_K
        flags = Flags.none if is_finite else Flags.not_finite
        if segment.start == 0 and not gradient.frames:
            flags |= Flags.end_of_data
        size, wanted = len(segment), len(words_K)
        header = self._header(here.worker, size, gradient.frames, wanted, flags)
        return self._written(words_K, header, here.sent)


class Side:
    """Does things one after the other, beside the thread and the stream that ask for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def do(self, task: Callable[[], None]) -> None:
        """Begin it after those before, and after what the caller's stream has to do so far."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "segments")
        ready = None
        if self._stream is not None:
            ready = torch.cuda.current_stream(self._device).record_event()
        self._last = self._thread.submit(self._run, task, self._last, ready)

    def wait(self) -> None:
        """Until all of it is done, for the caller's thread and its stream.

        Raises:
            Whatever the first task raised that did; those after it were not begun.
        """
        last, self._last = self._last, None
        if last is not None:
            last.result()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _run(
        self, task: Callable[[], None], before: Future[None] | None, ready: torch.cuda.Event | None
    ) -> None:
        if before is not None:
            before.result()  # others may wait for what failed: do not send them something else
        if self._stream is None or ready is None:
            task()
            return
        with torch.cuda.stream(self._stream):
            ready.wait()
            task()


def cut(table: Sequence[Slot], count: int) -> list[range]:
    """`count` segments of about the same size, or fewer, that begin where parameters do.

    Almost: a beginning moves up to an ALIGNED element, and so into its parameter.
    """
    size = table[-1].offset + table[-1].numel
    begins = {0}
    for i in range(1, count):
        nearest = min((slot.offset for slot in table), key=lambda at: abs(at * count - size * i))
        begins.add(-(-nearest // ALIGNED) * ALIGNED)
    ends = sorted(begin for begin in begins if begin < size)
    return [range(a, b) for a, b in zip(ends, [*ends[1:], size], strict=True)]


def lies_in(slot: Slot, segments: Sequence[range]) -> list[int]:
    """The numbers of the segments that have elements of a parameter."""
    end = slot.offset + slot.numel
    return [n for n, part in enumerate(segments) if part.start < end and slot.offset < part.stop]


def whole(parts: Sequence[Header]) -> Header:
    """What a worker's messages of all segments, in order, would say as one."""
    return replace(
        parts[0],
        size=sum(part.size for part in parts),
        wanted=sum(part.wanted for part in parts),
        count=sum(part.count for part in parts),
        payload_bytes=sum(part.payload_bytes for part in parts),
        flags=functools.reduce(operator.or_, (part.flags for part in parts)),
    )
