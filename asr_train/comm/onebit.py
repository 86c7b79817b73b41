"""**1-bit SGD**: a group's gradients -> messages to owners -> their steps -> the step of all.

Every worker owns 1/K of the parameters: whole columns, a column being one input's weights to all
outputs (a bias is one). In a step (Seide et al., 2014, sections 2 and 3)
    1. each worker quantises gradient + residual and sends every owner its part,
    2. an owner adds the parts up, unquantised, applies AdaGrad, then momentum,
    3. quantises what results, plus a residual of its own, and sends it to all,
    4. all apply what was sent: w <- w - rate * step.
So replicas stay bit-identical. If anything is not finite, nobody's state changes: workers keep
their residuals until all messages have arrived, and owners put back what they had.
In a part of training where a single worker reads (optim.phases; the paper's cold start), nothing is
quantised: its gradient is sent to all, and owners send their steps as they are.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from asr_train import schema
from asr_train.comm import codec, columns
from asr_train.comm.codec import Flags, Header, Kind
from asr_train.comm.columns import Block, Layout
from asr_train.comm.exchange import Exchange
from asr_train.comm.optimizer import Adagrad, Shape, Total, means
from asr_train.comm.reducers import Gradient, Reducer, Sent
from asr_train.facts import HEADER_BYTES
from asr_train.kernels import onebit
from asr_train.kernels.onebit import OneBit
from asr_train.schema import AdagradPlace

CHECK_STEPS = 100  # between waits for a GPU's checks of messages
TO_OWNER, FROM_OWNER = 0, 1  # a header's `parameter`


# --- owners ---------------------------------------------------------------------------------------


class Owner:
    """The optimizer of a worker's own part, and its quantiser's residual.

    Attributes:
        velocity, residual: float32, blocks one after the other; None: none.
    """

    def __init__(
        self,
        blocks: list[Block],
        momentum: float,
        adagrad: schema.AdagradSettings | None,
        has_residual: bool,
        device: torch.device,
    ) -> None:
        self.blocks, self.momentum, self.device = blocks, momentum, device
        self.size = sum(block.size for block in blocks)
        self.places = [(block.offset, block.rows, block.columns) for block in blocks]
        self.velocity = torch.zeros(self.size, device=device) if momentum else None
        self.residual = torch.zeros(self.size, device=device) if has_residual else None
        self.adagrad: Adagrad | None = None
        if adagrad is not None:
            runs = [(block.matrix, block.size) for block in blocks]
            self.adagrad = Adagrad(adagrad, runs, device)

    def smoothed(self, gradient: Tensor) -> Tensor:
        """Return the gradient after momentum."""
        if self.velocity is not None:
            self.velocity = gradient = torch.mul(self.velocity, self.momentum).add_(gradient)
        return gradient

    def quantised(self, step: Tensor) -> list[OneBit]:
        """Quantise a step; what is lost is the residual, if it keeps one."""
        return onebit.quantise_all(self.places, step, *self._residuals(step))

    def rebuilt(self, step: Tensor) -> Tensor | None:
        """Return what all would read in `quantised`; None: it is not finite."""
        total = onebit.Sum(self.places, self.size, step.device)
        total.add(step, *self._residuals(step))
        return total.take()

    def _residuals(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual, and the memory of the next."""
        kept = torch.empty_like(step)
        if self.residual is None:
            return torch.zeros_like(step), kept
        before, self.residual = self.residual, kept
        return before, kept

    def unquantised(self, step: Tensor) -> Tensor:
        """Return a step and the residual, if a run of several workers left one; so it ends."""
        owed, self.residual = self.residual, None
        return step if owed is None else step + owed

    def vectors(self) -> dict[str, Tensor]:
        """Return the state; a step replaces these vectors, and writes to none of them."""
        squares = None if self.adagrad is None else self.adagrad.squares_P
        found = {"velocity": self.velocity, "residual": self.residual, "squares": squares}
        return {name: vector for name, vector in found.items() if vector is not None}

    def put_back(self, vectors: dict[str, Tensor]) -> None:
        """Restore what `vectors` returned; without a residual, keep the present one."""
        if self.velocity is not None:
            self.velocity = vectors.get("velocity", self.velocity)
        self.residual = vectors.get("residual", self.residual)
        if self.adagrad is not None:
            self.adagrad.squares_P = vectors.get("squares", self.adagrad.squares_P)

    def state(self) -> dict[str, Tensor]:
        """Return the state in the order of columns."""
        return {k: columns.by_columns(v, self.blocks) for k, v in self.vectors().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        found = {k: columns.by_rows(v.to(self.device), self.blocks) for k, v in state.items()}
        self.put_back(found)


# --- the reducer ----------------------------------------------------------------------------------


class OneBitSgd(Reducer):
    """The reducer of a group, for flat vectors of `size` elements; `begin` comes first.

    A single worker's gradient is neither quantised nor sent; it is AdaGrad and momentum alone.

    Args:
        is_direct: whether messages are counted but not made, if all workers are in this process;
            the result is the same to the bit.
    Attributes:
        delays: whether steps come one call late: double buffering, as in the settings. It may
            change between calls; once it is off, the step that was late comes with the next.
        rate: of the last step that was applied; for one that comes late.
    """

    def __init__(
        self,
        exchange: Exchange,
        size: int,
        settings: schema.OneBitSettings,
        is_direct: bool = False,
    ) -> None:
        self.exchange, self.size, self.settings = exchange, size, settings
        self._is_direct = is_direct and len(exchange.local) == len(exchange)
        self.step, self.rate = 0, 0.0
        self.reading, self.frames = len(exchange), len(exchange)
        self.delays = settings.double_buffering
        self.late_P: Tensor | None = None  # the last step, if it is late
        self._checks = codec.Checks(deferred=exchange.device.type != "cpu")

    def begin(
        self,
        shapes: Sequence[Shape],
        momentum: float,
        adagrad: schema.AdagradSettings | None = None,
        total: Total | None = None,
    ) -> None:
        """Begin with no residuals and no velocity.

        Args:
            shapes: of the parameters, whose elements are `size`.
            adagrad: of the sum over workers; None: none.
            total: over the stripes of a model; None: it is whole.
        """
        self._adagrad, self._total = adagrad, total
        group, device = self.exchange, self.exchange.device
        self.layout = Layout(shapes)
        assert self.layout.size == self.size
        self.parts = [self.layout.blocks(place, len(group)) for place in range(len(group))]
        self.sizes = [sum(block.size for block in blocks) for blocks in self.parts]
        self.lengths = [columns.payload_bytes(blocks) for blocks in self.parts]
        self.is_alone = len(group) == 1
        keeps = self.settings.error_feedback and not self.is_alone
        keeping = group.local if keeps else ()
        self.residuals = {w: self._zeros() for w in keeping}  # by local worker, float32 [P]
        self._kept = {w: self._zeros() for w in keeping}  # swapped with residuals
        self.owners = {
            worker: Owner(self.parts[worker - group.members[0]], momentum, adagrad, keeps, device)
            for worker in group.local
        }

    def begin_step(self, reading: int, frames: int) -> None:
        self.reading, self.frames = reading, frames

    def reduce(self, gradients: Iterable[Gradient], sent: dict[int, Sent]) -> Tensor | None:
        """Return the step of all; None if anything is not finite.

        If it `delays`, it is that of the last call: zeros at first.

        Raises:
            MessageError: if a message is damaged or not the one expected.
        """
        is_plain = self.reading == 1  # as where a worker is alone
        before = {owner: owner.vectors() for owner in self.owners.values()}
        if self.is_alone:
            totals = self._own(gradients)
        elif is_plain:
            totals = self._dense(gradients, sent)
        else:
            totals = self._summed(gradients, sent)
        step_P = None if totals is None else self._stepped(totals, is_plain, sent)
        self.step += 1
        if self.step % CHECK_STEPS == 0:
            self.check()
        if step_P is None:
            for owner, vectors in before.items():
                owner.put_back(vectors)
            return None
        if self._kept and not is_plain:
            self.residuals, self._kept = self._kept, self.residuals
        if self.delays and not is_plain:
            late_P, self.late_P = self.late_P, step_P
            return self._zeros() if late_P is None else late_P
        late_P = self.take_late()
        return step_P if late_P is None else late_P.add_(step_P)

    def take_late(self) -> Tensor | None:
        """Return the step that was not returned yet, float32 [P]; None: there is none."""
        late_P, self.late_P = self.late_P, None
        return late_P

    def check(self) -> None:
        """Raise MessageError if a message since the last call was damaged."""
        self._checks.ask()

    # --- from workers to owners -------------------------------------------------------------------

    def _own(self, gradients: Iterable[Gradient]) -> dict[int, Tensor] | None:
        """Return a single worker's gradient, and what several of another run owed each other."""
        (gradient,) = gradients
        if not gradient.is_finite():
            return None
        (worker,) = self.exchange.local
        owed_P = self.residuals.pop(worker, None)
        return {worker: gradient.grad_P if owed_P is None else gradient.grad_P.add_(owed_P)}

    def _dense(
        self, gradients: Iterable[Gradient], sent: dict[int, Sent]
    ) -> dict[int, Tensor] | None:
        """Return the local owners' parts of the gradient of the only worker that reads."""
        first = self.exchange.members[0]
        vectors = [
            g.grad_P.clone()
            for worker, g in zip(self.exchange.local, gradients, strict=True)
            if worker == first  # the next gradient overwrites it
        ]
        total_P = self.exchange.sum(vectors, self.size, [first])
        if first in self.exchange.local:
            sent[first].bits += 32 * self.size
            sent[first].elements += self.size
        if not bool(torch.isfinite(total_P.sum())):
            return None
        return self._parts(total_P)

    def _parts(self, vector_P: Tensor) -> dict[int, Tensor]:
        """Return the local owners' parts of a flat vector."""
        cut = {
            w: [self.layout.cut(vector_P, block).flatten() for block in owner.blocks]
            for w, owner in self.owners.items()
        }
        return {w: torch.cat([vector_P[:0], *blocks]) for w, blocks in cut.items()}

    def _summed(
        self, gradients: Iterable[Gradient], sent: dict[int, Sent]
    ) -> dict[int, Tensor] | None:
        """Return the local owners' sums of what all workers sent them."""
        first, messages = self.exchange.members[0], []
        direct = None
        if self._is_direct:
            direct = onebit.Sum(self.layout.matrices, self.size, self.exchange.device)
        for worker, gradient in zip(self.exchange.local, gradients, strict=True):
            with self.exchange.timed("compress"):
                vectors = gradient.grad_P, *self._residuals(worker)
                if direct is not None:
                    direct.add(*vectors)
                else:
                    matrices = onebit.quantise_all(self.layout.matrices, *vectors)
                    messages.append(self._messages(worker, gradient.frames, matrices))
            for place in range(len(self.sizes)):
                if place != worker - first:
                    self._count(sent[worker], place)
        if direct is not None:
            for worker, length in zip(self.owners, self.lengths, strict=True):
                self.exchange.count_received(HEADER_BYTES + length, worker)
            with self.exchange.timed("compress"):
                total_P = direct.take()
                return None if total_P is None else self._parts(total_P)
        received = self.exchange.scatter(messages)
        totals = {}
        with self.exchange.timed("compress"):
            for (worker, owner), mine in zip(self.owners.items(), received, strict=True):
                payloads = self._read(mine, TO_OWNER, [worker - first] * len(self.exchange))
                if payloads is None:
                    return None
                sources = [columns.read(payload_B, owner.blocks) for payload_B in payloads]
                totals[worker] = torch.empty(owner.size, device=self.exchange.device)
                for number, block in enumerate(owner.blocks):
                    onebit.add_up([one[number] for one in sources], block.of(totals[worker]))
        return totals

    def _count(self, sent: Sent, place: int) -> None:
        """Count a message about the part of the worker at `place`."""
        sent.bits += 8 * (HEADER_BYTES + self.lengths[place])
        sent.elements += self.sizes[place]

    def _residuals(self, worker: int) -> tuple[Tensor, Tensor]:
        """Return a local worker's residual, and the memory of the next."""
        if not self._kept:
            return self._zeros(), self._zeros()
        return self.residuals[worker], self._kept[worker]

    def _messages(self, worker: int, frames: int, matrices: Sequence[OneBit]) -> list[Tensor]:
        """Return a local worker's messages to all owners."""
        # A mean over elements that are not all finite is not
        is_sound = columns.is_finite(matrices)
        flags = Flags.none if frames else Flags.end_of_data
        return [
            self._enclosed(
                [block.quantised(matrices[block.matrix]) for block in blocks] if is_sound else None,
                *(self._due(place, worker, TO_OWNER), frames, flags),
            )
            for place, blocks in enumerate(self.parts)
        ]

    # --- from owners to all -----------------------------------------------------------------------

    def _stepped(
        self, totals: dict[int, Tensor], is_plain: bool, sent: dict[int, Sent]
    ) -> Tensor | None:
        """Return the step of all, float32 [P]; None if anything is not finite."""
        steps = self._optimized(totals, sent)
        if self.is_alone:
            ((worker, owner),) = self.owners.items()
            return owner.unquantised(steps[worker])
        if is_plain:
            return self._gathered(steps, sent)
        messages, parts = [], []
        with self.exchange.timed("compress"):
            for worker, owner in self.owners.items():
                place = worker - self.exchange.members[0]
                self._count(sent[worker], place)
                if self._is_direct:
                    self.exchange.count_received(HEADER_BYTES + max(self.lengths), worker)
                    parts.append(owner.rebuilt(steps[worker]))
                    continue
                matrices = owner.quantised(steps[worker])
                sound = matrices if columns.is_finite(matrices) else None
                messages.append(self._enclosed(sound, self._due(place, worker, FROM_OWNER)))
            if self._is_direct:
                whole = [part for part in parts if part is not None]
                return self._joined(whole) if len(whole) == len(parts) else None
        received = self.exchange.gather(messages, HEADER_BYTES + max(self.lengths))
        with self.exchange.timed("compress"):
            payloads = self._read(received, FROM_OWNER, range(len(self.exchange)))
            return None if payloads is None else self._whole(payloads)

    def _optimized(self, totals: dict[int, Tensor], sent: dict[int, Sent]) -> dict[int, Tensor]:
        """Return the local owners' steps: after AdaGrad and momentum, in either order."""

        def smoothed(parts: dict[int, Tensor]) -> dict[int, Tensor]:
            return {w: owner.smoothed(parts[w]) for w, owner in self.owners.items()}

        if self._adagrad is None:
            return smoothed(totals)
        if self._adagrad.place is AdagradPlace.smoothed:
            return self._normalized(smoothed(totals), sent)
        return smoothed(self._normalized(totals, sent))

    def _normalized(self, parts: dict[int, Tensor], sent: dict[int, Sent]) -> dict[int, Tensor]:
        """Return parts after AdaGrad; owners tell each other their sums of sigma by matrix."""
        sizes = [rows * width for _, rows, width in self.layout.matrices]
        adagrads = {w: own.adagrad for w, own in self.owners.items() if own.adagrad is not None}
        sigmas: dict[int, Tensor] = {}
        for w, adagrad in adagrads.items():
            adagrad.squares_P = adagrad.after(parts[w], self.frames)
            sigmas[w] = adagrad.squares_P.sqrt()
        sums = [a.sums(sigmas[w], len(sizes)).view(torch.uint8) for w, a in adagrads.items()]
        if not self.is_alone:
            sums = self.exchange.gather(sums, 8 * len(sizes))
            for worker in self.exchange.local:
                sent[worker].bits += 64 * len(sizes)
        sums_M = torch.zeros(len(sizes), dtype=torch.float64, device=self.exchange.device)
        for sum_B in sums:  # in the order of owners
            sums_M += sum_B.clone().view(torch.float64)
        sizes_M = torch.tensor(sizes, dtype=torch.float64).to(sums_M.device, non_blocking=True)
        mean_M = means(sums_M, sizes_M, self._total)
        return {w: a.scaled(parts[w], sigmas[w], mean_M) for w, a in adagrads.items()}

    def _gathered(self, steps: dict[int, Tensor], sent: dict[int, Sent]) -> Tensor:
        """Return the step of all, from owners who send theirs as they are."""
        messages = []
        for worker, owner in self.owners.items():
            messages.append(steps[worker].view(torch.uint8))
            sent[worker].bits += 32 * owner.size
            sent[worker].elements += owner.size
        received = self.exchange.gather(messages, 4 * max(self.sizes))
        sized = zip(received, self.sizes, strict=True)
        return self._joined([B[: 4 * size].clone().view(torch.float32) for B, size in sized])

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the flat vector of all owners' parts."""
        step_P = self._zeros()
        for blocks, part in zip(self.parts, parts, strict=True):
            for block in blocks:
                self.layout.cut(step_P, block).copy_(block.of(part))
        return step_P

    def _whole(self, payloads: Iterable[Tensor]) -> Tensor:
        """Return what all owners sent as one vector, float32 [P]."""
        step_P = torch.empty(self.size, device=self.exchange.device)
        found: list[list[OneBit]] = [[] for _ in self.layout.matrices]
        for blocks, payload_B in zip(self.parts, payloads, strict=True):
            for block, quantised in zip(blocks, columns.read(payload_B, blocks), strict=True):
                found[block.matrix].append(quantised)
        for number, cut in enumerate(found):
            bits_RB, means_2C = (torch.cat(some, 1) for some in zip(*cut, strict=True))
            onebit.add_up([OneBit(bits_RB, means_2C)], self.layout.of(step_P, number))
        return step_P

    # --- messages ---------------------------------------------------------------------------------

    def _enclosed(
        self,
        quantised: list[OneBit] | None,
        due: dict[str, Any],
        frames: int = 0,
        flags: Flags = Flags.none,
    ) -> Tensor:
        """Return a message with a header of what is `due`; None: the part is not finite."""
        device = self.exchange.device
        if quantised is None:
            payload_B = torch.zeros(due["payload_bytes"], dtype=torch.uint8, device=device)
            flags |= Flags.not_finite
        else:
            payload_B = columns.write(quantised, device)
        header = Header(**due, tau=1.0, frames=frames, wanted=due["count"], flags=flags)
        return codec.enclose(payload_B, header)

    def _due(self, place: int, worker: int, way: int) -> dict[str, Any]:
        """Return what a header of this step says of a worker's message about a part."""
        who = {"step": self.step, "worker": worker, "workers": len(self.exchange)}
        what = {"size": self.size, "kind": Kind.columns, "parameter": way}
        return {**who, **what, "count": self.sizes[place], "payload_bytes": self.lengths[place]}

    def _read(self, messages: list[Tensor], way: int, places: Iterable[int]) -> list[Tensor] | None:
        """Return the payloads of all workers' messages about parts; None: one is not finite."""
        headers = codec.read_headers(messages)
        for worker, place, header in zip(self.exchange.members, places, headers, strict=True):
            codec.check_due(header, **self._due(place, worker, way))
        payloads = codec.read_payloads(headers, messages, self._checks)
        is_finite = not any(header.flags & Flags.not_finite for header in headers)
        return payloads if is_finite else None

    def _zeros(self) -> Tensor:
        return torch.zeros(self.size, device=self.exchange.device)

    # --- state ------------------------------------------------------------------------------------

    def measures(self, worker: int) -> tuple[float, float]:
        """Return no threshold, and the sum of squares of a local worker's residual."""
        if worker not in self.residuals:
            return 0.0, 0.0
        return 0.0, float(self.residuals[worker].square().sum(dtype=torch.float64))

    def group_state(self) -> dict[str, Any]:
        late = {} if self.late_P is None else {"late_P": self.late_P, "rate": self.rate}
        return {"step": self.step, **late}

    def load_group_state(self, state: dict[str, Any]) -> None:
        self.step, self.rate = state["step"], state.get("rate", 0.0)
        self.late_P = state["late_P"].to(self.exchange.device) if "late_P" in state else None

    def worker_state(self, worker: int) -> dict[str, Any]:
        own = self.residuals.get(worker)
        owed = {} if own is None else {"owed": {"residual_P": own}}
        return {**owed, "parts": self.owners[worker].state()}

    def load_worker_state(self, worker: int, state: dict[str, Any]) -> None:
        if "owed" in state:
            owed_P = state["owed"]["residual_P"]
            self.residuals[worker] = owed_P.to(self.exchange.device, copy=True)
        self.owners[worker].load(state.get("parts", {}))

    def part_of(self, place: int, workers: int, size: int) -> range:
        return self.layout.range_of(place, workers)
