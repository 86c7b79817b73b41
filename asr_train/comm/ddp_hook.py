"""GTC as a **DDP communication hook**, for anybody's training script.

    ddp = DistributedDataParallel(model)
    gtc = GtcHook(model, GtcSettings(threshold=..., codec=Codec.rice, capacity=Capacity.fixed))
    ddp.register_comm_hook(gtc, GtcHook.hook)

Backward then leaves in every `.grad` what GTC makes of all ranks' gradients. What is kept is keyed
by parameter, not by DDP's buckets: those are rebuilt after the first step and follow settings that
have nothing to do with it. So the exchange takes place once a step, when the last bucket is there.
Gradients are means over ranks, as DDP's are; the threshold is in units of a rank's own gradient.
"""

from dataclasses import astuple
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from asr_train.comm.bucket import slots
from asr_train.comm.gtc import Gtc
from asr_train.comm.processes import Processes
from asr_train.comm.reducers import Gradient, Sent
from asr_train.schema import GtcSettings


class GtcHook:
    """The state of the hook on one rank.

    Args:
        model: the module that DDP wraps, on its device; only parameters that need a gradient count.
        settings: of GTC.
        timeout_seconds: without an answer from another rank: an ExchangeError. That holds for gloo,
            and for NCCL with TORCH_NCCL_BLOCKING_WAIT=1 in the environment; else NCCL's watchdog
            ends the process after that time.
        process_group: the one that DDP was given, of which all ranks make a hook; None: all ranks.
            The hook makes another group of the same ranks: with this one DDP goes on as it does.
        start_iter: the first so many steps are plain all-reduces, as with torch's PowerSGD hook;
            nothing is owed from them.
    Attributes:
        loss_scale: what the loss was multiplied by (`GradScaler.get_scale()`), if it was; set it
            before backward. A step in which any rank's gradient is not finite gives NaN on all, so
            that a GradScaler skips it everywhere; residuals stay as they were.
        sent: bits, elements and overflows of this rank so far.
    Raises:
        ValueError: if a parameter is not float32, or there are more than messages can number, or
            this rank is not in the group.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: GtcSettings,
        timeout_seconds: float = 300.0,
        process_group: dist.ProcessGroup | None = None,
        start_iter: int = 0,
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        table, device = slots(named)
        size = table[-1].offset + table[-1].numel
        self._place = {p: slot for slot, (_, p) in zip(table, named, strict=True)}
        self._grad_P = torch.zeros(size, device=device)
        everybody = dist.distributed_c10d._get_default_group()
        self._group = everybody if process_group is None else process_group
        if dist.get_rank(self._group) < 0:
            raise ValueError(
                f"rank {dist.get_rank()} is not in process_group; make a hook, and DDP, only where "
                "it is"
            )
        members = sorted(dist.get_process_group_ranks(self._group))  # as new groups have them
        self._rank, self._ranks = members.index(dist.get_rank()), len(members)
        hosts = [range(0)] * dist.get_world_size()
        for worker, rank in enumerate(members):
            hosts[rank] = range(worker, worker + 1)
        # DDP's own collectives go another way. Other ranks need not come here, nor wait
        group = dist.new_group(
            members,
            timeout=timedelta(seconds=timeout_seconds),
            backend=dist.get_backend(self._group),
            use_local_synchronization=process_group is not None,
        )
        exchange = Processes(range(self._ranks), hosts, device, timeout_seconds, group)
        self._gtc = Gtc(exchange, size, settings)
        self._start_iter, self._steps = start_iter, 0
        self._waiting: list[tuple[Any, torch.futures.Future[Tensor]]] = []
        self.loss_scale = 1.0
        self.sent = Sent()

    @staticmethod
    def hook(state: "GtcHook", bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """What DDP calls with each bucket; all are answered when the last one is there."""
        is_dense = state._steps < state._start_iter
        state._steps += bucket.is_last()
        if is_dense:
            state.sent.bits += 8 * bucket.buffer().nbytes
            state.sent.elements += bucket.buffer().numel()
            return allreduce_hook(state._group, bucket)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        for parameter, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
            slot = state._place[cast(nn.Parameter, parameter)]
            part = state._grad_P[slot.offset : slot.offset + slot.numel]
            torch.div(grad.flatten(), state.loss_scale, out=part)
        state._waiting.append((bucket, future))
        if bucket.is_last():
            state._exchange()
        return future

    def _exchange(self) -> None:
        is_finite = bool(torch.isfinite(self._grad_P.sum()))
        gradient = Gradient(self._grad_P, frames=1, is_finite=is_finite)
        quanta = self._gtc.reduce([gradient], {self._rank: self.sent})
        total_P = self._grad_P.fill_(torch.nan) if quanta is None else quanta.dense()
        total_P.mul_(self.loss_scale / self._ranks)
        waiting, self._waiting = self._waiting, []
        for bucket, future in waiting:
            for parameter, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
                slot = self._place[cast(nn.Parameter, parameter)]
                grad.copy_(total_P[slot.offset : slot.offset + slot.numel].view_as(grad))
                # DDP leaves it as it is where no rank used the parameter in this step; yet what was
                # still owed to it has just been sent
                if parameter.grad is None:
                    parameter.grad = grad.clone()
                else:
                    parameter.grad.copy_(grad)
            future.set_result(bucket.buffer())

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residual and what else its next step depends on; save all ranks'.

        Raises:
            MessageError: if a message was damaged on the way since the last check.
        """
        self._gtc.check()
        return {
            "steps": self._steps,
            "sent": list(astuple(self.sent)),
            "group": self._gtc.group_state(),
            "worker": self._gtc.worker_state(self._rank),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave on the same rank."""
        self._steps = state.get("steps", self._start_iter)  # none: from before there was a warm-up
        self.sent = Sent(*state["sent"])
        self._gtc.load_group_state(state["group"])
        self._gtc.load_worker_state(self._rank, state["worker"])
