"""GTC and 1-bit SGD as **DDP communication hooks**, for any training script.

    ddp = DistributedDataParallel(model)
    gtc = GtcHook(model, GtcSettings(threshold=..., codec=Codec.rice, capacity=Capacity.fixed))
    ddp.register_comm_hook(gtc, GtcHook.hook)

After backward, every `.grad` holds what all ranks sent, as a mean over ranks like DDP's.
State is kept by parameter, not by DDP's bucket, because buckets are rebuilt after the first step
and depend on unrelated settings. So the exchange takes place once per step, when the last bucket is
ready. GTC's threshold is in units of a rank's own gradient.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from asr_train.comm.bucket import shorten, slots
from asr_train.comm.exchange import Exchange
from asr_train.comm.gtc import Gtc
from asr_train.comm.onebit import OneBitSgd
from asr_train.comm.processes import of_group
from asr_train.comm.reducers import Gradient, Reducer, Sent, dense
from asr_train.schema import GtcSettings, OneBitSettings
from asr_train.schema.comm import TIMEOUTS
from asr_train.schema.limits import not_negative, positive, within


class ReducerHook:
    """The state of a hook on one rank; subclasses set the reducer that exchanges gradients.

    Args:
        model: the module that DDP wraps, on its device; only parameters that need a gradient count.
        timeout_seconds: how long to wait for another rank before an ExchangeError, with gloo, or
            with NCCL and TORCH_NCCL_BLOCKING_WAIT=1 in the environment; else NCCL's watchdog ends
            the process after that time.
        process_group: the one that DDP was given; all its ranks make a hook. None: all ranks. The
            hook exchanges in a new group of the same ranks.
        start_iter: how many steps at the beginning are plain all-reduces, as with torch's PowerSGD
            hook; they leave no residual.
        max_norm: of this rank's gradient, which is clipped to it before it is exchanged (not in the
            steps of start_iter); None: it is not clipped.
    Attributes:
        loss_scale: factor that the loss was multiplied by (`GradScaler.get_scale()`); set it before
            backward. If any rank's gradient is not finite, all ranks get NaN, so that a GradScaler
            skips the step everywhere; residuals stay unchanged.
        sent: bits, elements and overflows of this rank so far, and the bits that it received from
            others: a plain all-reduce's counted as those of a ring.
    Raises:
        ValueError: if a parameter is not float32, there are more than messages can number, or this
            rank is not in the group.
    """

    _reducer: Reducer

    def __init__(
        self,
        model: nn.Module,
        timeout_seconds: float = 300.0,
        process_group: dist.ProcessGroup | None = None,
        start_iter: int = 0,
        max_norm: float | None = None,
    ) -> None:
        positive(max_norm=max_norm)
        within(*TIMEOUTS, timeout_seconds=timeout_seconds)
        not_negative(start_iter=start_iter)
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        table, device = slots(named)
        size = table[-1].offset + table[-1].numel
        self._place = {p: slot for slot, (_, p) in zip(table, named, strict=True)}
        self._grad_P = torch.zeros(size, device=device)
        self._group = process_group or dist.distributed_c10d._get_default_group()
        self._processes = of_group(process_group, device, timeout_seconds)
        (self._rank,), self._ranks = self._processes.local, len(self._processes)
        kind = type(self).__name__
        self._identity = f"{kind} of rank {self._rank} of {self._ranks}, {size} parameters"
        self._members = dist.get_process_group_ranks(self._group)
        self._shapes = [list(slot.shape) for slot in table]
        self._start_iter, self._steps, self._max_norm = start_iter, 0, max_norm
        self._has_begun = False
        self._waiting: list[tuple[Any, torch.futures.Future[Tensor]]] = []
        self.loss_scale = 1.0
        self.sent = Sent()

    @staticmethod
    def hook(
        state: "ReducerHook", bucket: dist.GradBucket, *sharded: Tensor
    ) -> torch.futures.Future[Tensor]:
        """Take a bucket from DDP; all futures of a step are completed at its last bucket."""
        if not isinstance(state, ReducerHook):
            raise TypeError(
                f"the hook's state is a {type(state).__name__}; give the object of the hook as the "
                "state: register_comm_hook(gtc, GtcHook.hook)"
            )
        if not isinstance(bucket, dist.GradBucket):  # FSDP's gradient, and where its part belongs
            raise TypeError(
                f"{type(state).__name__} is for DistributedDataParallel; FSDP, which gives its "
                "hooks no buckets, exchanges parts of gradients and needs another method"
            )
        if bucket.buffer().is_sparse:
            raise ValueError(f"{type(state).__name__} takes no sparse gradients; set sparse=False")
        if (dtype := bucket.buffer().dtype) != torch.float32:
            raise ValueError(
                f"{type(state).__name__} takes gradients in float32, not {dtype}; leave the "
                "parameters in float32, and compute in another type by torch.autocast"
            )
        for parameter in bucket.parameters():
            if parameter not in state._place:
                raise ValueError(
                    f"DDP has a parameter of shape {tuple(parameter.shape)} that the hook's model "
                    "lacks, or that was frozen when the hook was made; make the hook of the module "
                    "that DDP wraps, after freezing and unfreezing"
                )
        if not state._has_begun:
            state._begin()
        is_dense = state._steps < state._start_iter
        state._steps += bucket.is_last()
        if is_dense:
            state.sent.bits += 8 * bucket.buffer().nbytes
            state.sent.elements += bucket.buffer().numel()
            with state._received() as exchange:
                exchange.count_sum(bucket.buffer().numel(), exchange.members, bucket.buffer().dtype)
            return allreduce_hook(state._group, bucket)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        for parameter, grad in _shaped(bucket):
            torch.div(grad, state.loss_scale, out=state._place[parameter].of(state._grad_P))
        state._waiting.append((bucket, future))
        if bucket.is_last():
            state._exchange()
        return future

    def _begin(self) -> None:
        """Compare what all ranks begin with; else some would exchange what others do not expect."""
        for what, own in (("start_iter", self._start_iter), ("steps taken", self._steps)):
            for rank, (found,) in enumerate(self._processes.numbers([[own]])):
                if found != own:
                    raise ValueError(
                        f"{type(self).__name__}: {what} is {own} on rank {self._rank}, but "
                        f"{found:.0f} on rank {rank}; give all ranks the same, and load states of "
                        "the same step on all ranks, or on none"
                    )
        self._has_begun = True

    def _exchange(self) -> None:
        if self._max_norm is not None:
            shorten(self._grad_P, self._max_norm)
        gradient = Gradient(self._grad_P, frames=1)
        with self._received():
            update = self._reducer.reduce([gradient], {self._rank: self.sent})
        total_P = self._grad_P.fill_(torch.nan) if update is None else dense(update)
        total_P.mul_(self.loss_scale / self._ranks)
        waiting, self._waiting = self._waiting, []
        unused: list[tuple[nn.Parameter, Tensor]] = []
        for bucket, future in waiting:
            for parameter, grad in _shaped(bucket):
                if not parameter.requires_grad:  # any more; what it owes is not for it
                    grad.zero_()
                    continue
                grad.copy_(self._place[parameter].of(total_P))
                # DDP does not touch .grad where no rank used the parameter in this step; but some
                # of its residual may just have been sent
                if parameter.grad is not None:
                    parameter.grad.copy_(grad)
                elif grad.any():
                    unused.append((parameter, grad.clone()))
            future.set_result(bucket.buffer())
        self._grad_P.zero_()  # parameters that DDP ignores are in no bucket
        # Not in backward, a rank that is out of data answers the others (DDP's join)
        if unused and torch._C._current_graph_task_id() >= 0:
            # DDP itself sets .grad of those that another rank used, at the end of backward
            at_end = torch.autograd.Variable._execution_engine.queue_callback
            at_end(lambda: at_end(lambda: _set_missing(unused)))  # after DDP's own callback

    @contextlib.contextmanager
    def _received(self) -> Iterator[Exchange]:
        """Count what this rank receives inside."""
        before = self._processes.received_bits[self._rank]
        yield self._processes
        self.sent.received_bits += self._processes.received_bits[self._rank] - before

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residual and what else its next step depends on; save all ranks'.

        Raises:
            MessageError: if a message was damaged in transit since the last check.
        """
        self._reducer.check()
        return {
            "identity": self._identity,
            "members": self._members,
            "shapes": self._shapes,
            "steps": self._steps,
            "sent": list(astuple(self.sent)),
            "group": self._reducer.group_state(),
            "worker": self._reducer.worker_state(self._rank),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned on the same rank.

        Raises:
            ValueError: if it is of another rank, number of ranks, kind of hook or model, or of
                no hook at all.
        """
        if (found := state.get("identity", self._identity)) != self._identity:
            raise ValueError(
                f"this is the state of a {found}, but the hook is a {self._identity}; load each "
                "rank's own, or none on any rank: what is not sent yet is lost then"
            )
        if absent := {"sent", "group", "worker"} - state.keys():
            raise ValueError(
                f"this is no state of a {type(self).__name__}, for it lacks {min(absent)!r}; load "
                "what its state_dict() returned"
            )
        # Members, shapes and steps are absent in states of older versions
        if (members := state.get("members", self._members)) != self._members:
            raise ValueError(
                f"this is the state of a hook whose group has the ranks {members}, but this one's "
                f"has {self._members}; load each rank's own"
            )
        for found, own in zip(state.get("shapes", self._shapes), self._shapes, strict=False):
            if found != own:
                raise ValueError(
                    f"this is the state of a model with a parameter of shape {found}, where the "
                    f"hook's model has {own}; load it on the same model, with its layers in the "
                    "same order"
                )
        self._steps, self._has_begun = state.get("steps", self._start_iter), False
        self.sent = Sent(*state["sent"])
        self._reducer.load_group_state(state["group"])
        self._reducer.load_worker_state(self._rank, state["worker"])

    def close(self) -> None:
        """Give back the process group; nothing can be exchanged after that."""
        self._processes.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled, as it belongs to one rank's "
            "exchange; copy or average ddp.module instead of ddp, and save state_dict()"
        )


def _shaped(bucket: dist.GradBucket) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield parameters and gradients, which lie in the bucket with the strides of the parameter."""
    for parameter, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
        strides = parameter.stride()
        # An empty tensor like one without gaps, in any order of the dimensions, has its strides
        if strides == torch.empty_like(parameter, device="meta").stride():
            grad = grad.as_strided(parameter.shape, strides, grad.storage_offset())
        yield cast(nn.Parameter, parameter), grad


def _set_missing(grads: list[tuple[nn.Parameter, Tensor]]) -> None:
    for parameter, grad in grads:
        if parameter.grad is None:
            parameter.grad = grad


class GtcHook(ReducerHook):
    """Gradient threshold compression (Strom, 2015).

    Args:
        settings: of GTC.
    Attributes:
        threshold: tau of the next step, in units of a rank's own gradient; a schedule may set it,
            on all ranks alike.
    """

    _reducer: Gtc

    def __init__(self, model: nn.Module, settings: GtcSettings, *given: Any, **named: Any) -> None:
        if not isinstance(settings, GtcSettings):
            raise TypeError(
                f"GtcHook: the settings are {settings!r}; give GtcSettings(threshold=..., "
                "codec=..., capacity=...)"
            )
        super().__init__(model, *given, **named)
        self._settings = settings
        self._reducer = Gtc(self._processes, len(self._grad_P), settings)

    @property
    def threshold(self) -> float:
        return self._reducer.tau

    @threshold.setter
    def threshold(self, tau: float) -> None:
        self._reducer.tau = float(np.float32(replace(self._settings, threshold=tau).threshold))


class OneBitHook(ReducerHook):
    """1-bit SGD (Seide et al., 2014): one bit per element and two values per column, both ways.

    Ranks own the columns of each parameter's [outputs, inputs], and quantise the ranks' sum once
    more. Momentum is the script's own optimizer's, so it comes after that.
    """

    def __init__(self, model: nn.Module, *given: Any, **named: Any) -> None:
        super().__init__(model, *given, **named)
        settings = OneBitSettings(error_feedback=True, double_buffering=False)
        self._reducer = reducer = OneBitSgd(self._processes, len(self._grad_P), settings)
        reducer.begin([tuple(shape) for shape in self._shapes], momentum=0.0)
