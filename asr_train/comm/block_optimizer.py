"""**Block momentum around any optimizer**, for any training script.

    optimizer = BlockMomentum(model, torch.optim.AdamW(model.parameters()), block_steps=50)
    for minibatch in minibatches:  # each rank's own
        optimizer.zero_grad()
        loss_of(model, minibatch).backward()
        optimizer.step()
    with optimizer.exported():
        evaluate(model)

Each rank trains a model of its own; every `block_steps` steps the mean of the ranks' weights moves
the common model, with momentum (Chen and Huo, 2016; `comm.blocks` has the equations). It stands
where torch's PostLocalSGDOptimizer does, which it equals with eta 0 and zeta 1.

Two tiers (Ladkat et al., 2019): DistributedDataParallel with a process group of ranks that share a
model, perhaps with a GtcHook, and here the group of those that have the same place in theirs:

    mesh = init_device_mesh("cuda", (groups, size), mesh_dim_names=("across", "within"))
    ddp = DistributedDataParallel(model, process_group=mesh.get_group("within"))
    optimizer = BlockMomentum(model, inner, process_group=mesh.get_group("across"), block_steps=50)
"""

import contextlib
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from asr_train.comm.blocks import BlockUpdate
from asr_train.comm.processes import of_group
from asr_train.schema import BlockForm, BlockVelocity, BmufSettings
from asr_train.schema.comm import TIMEOUTS
from asr_train.schema.limits import within


class BlockMomentum(torch.optim.Optimizer):
    """An optimizer whose ranks exchange models instead of gradients.

    All ranks must call `step` equally often. A GradScaler skips it on some: there, skip it on all.

    Args:
        model: on its device, with the same weights on all ranks. Parameters with gradients are
            exchanged; others, and buffers (running means of normalisation layers), are not.
        optimizer: of the model's parameters; its state stays as it is at the end of a block.
        process_group: ranks whose models are averaged; each of them makes one of these. None: all.
        block_steps: steps between exchanges.
        form: `chen_huo` looks ahead (Nesterov); `classical`, and equation (4) of Ladkat et al. as
            `printed`, which moves the model 1 + eta times as far.
        zeta: block learning rate.
        eta: block momentum; None: 1 - zeta / ranks (Chen and Huo, 2016).
        timeout_seconds: how long to wait for another rank before an ExchangeError; with NCCL its
            watchdog ends the process after that time.
    Attributes:
        received_bytes: that this rank received from others so far.
    Raises:
        ValueError: if a number is out of its range, this rank is not in the group, no parameter
            needs a gradient, one that does is complex or on another device, or the optimizer has
            none of them.
        TypeError: for an optimizer that is none.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        process_group: dist.ProcessGroup | None = None,
        *,
        block_steps: int,
        form: BlockForm | str = BlockForm.chen_huo,
        zeta: float = 1.0,
        eta: float | None = None,
        timeout_seconds: float = 300.0,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"BlockMomentum: the optimizer is {optimizer!r}; make one")
        self.optimizer = optimizer
        for name in dir(torch.optim.Optimizer):
            if name.startswith("register_"):  # hooks of the inner optimizer
                setattr(self, name, getattr(optimizer, name))
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._named = [(name, p, p.requires_grad) for name, p in model.named_parameters()]
        if not self._parameters:
            raise ValueError("BlockMomentum: no parameter of the model needs a gradient")
        device = self._parameters[0].device
        for name, p, is_trained in self._named:
            if is_trained and (not p.is_floating_point() or p.device != device):
                raise ValueError(
                    f"BlockMomentum: parameter {name} is {p.dtype} on {p.device}; all must be "
                    f"real numbers on {device}"
                )
        updated = {p for group in optimizer.param_groups for p in group["params"]}
        if updated.isdisjoint(self._parameters):
            raise ValueError("BlockMomentum: the optimizer has no parameter of the model")
        within(*TIMEOUTS, timeout_seconds=timeout_seconds)
        self._exchange = of_group(process_group, device, timeout_seconds)
        given = BmufSettings(
            block_steps=block_steps,
            form=BlockForm(form),
            zeta=zeta,
            c=1.0,
            eta=eta,
            velocity=BlockVelocity.keep,
        )
        ranks = len(self._exchange)
        if eta is None and zeta > ranks:
            raise ValueError(f"BlockMomentum: zeta is {zeta}, more than {ranks} ranks; set eta")
        self._update = BlockUpdate(given.form, given.momentum(ranks), zeta, self._weights())
        self.block_steps, self._position = block_steps, 0
        # Until the first step, the model may still be loaded; after a load, the state is the common
        self._has_begun = self._is_loaded = False

    @property
    def received_bytes(self) -> int:
        return sum(self._exchange.received_bits.values()) // 8

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step of the inner optimizer, and end the block after `block_steps` of them.

        Raises:
            ValueError: if ranks began with other weights or states, or parameters were frozen or
                unfrozen since this was made.
        """
        if not self._has_begun:
            self._begin()
        loss: float | None = self.optimizer.step(closure)
        self._position += 1
        if self._position >= self.block_steps:  # which may have become smaller
            self.end_block()
        return loss

    @torch.no_grad()
    def end_block(self) -> None:
        """Average the ranks' models and move the common one, unless no step was taken since.

        Call it on all ranks where training ends, as the last block may be a part of one.
        """
        if self._position == 0:
            return
        if changed := [name for name, p, before in self._named if p.requires_grad != before]:
            raise ValueError(
                f"BlockMomentum: {changed[0]} was frozen or unfrozen since this was made; make "
                "another one after freezing and unfreezing parameters"
            )
        self._position = 0
        own_P = self._weights()
        mean_P = self._exchange.sum([own_P], len(own_P)).div_(len(self._exchange))
        self._set(self._update.step(mean_P, self._rounded(self._update.start())))

    @contextlib.contextmanager
    def exported(self) -> Iterator[None]:
        """Give the model the common weights, of the last finished block, to evaluate or to save."""
        own = [p.detach().clone() for p in self._parameters]  # maybe of more bits than float32
        self._set(self._common().weights_P)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, kept in zip(self._parameters, own, strict=True):
                    parameter.copy_(kept)

    def close(self) -> None:
        """Give back the process group; nothing can be exchanged after that."""
        self._exchange.close()

    def _begin(self) -> None:
        """Compare what all ranks begin with, or have loaded."""
        update = self._common()
        own = {
            "settings": zlib.crc32(
                f"{self.block_steps} {update.form} {update.eta} {update.zeta}".encode()
            ),
            "steps within the block": self._position,
            "weights": _checksum([update.weights_P]),
            "momentum": _checksum([update.delta_P]),
            "frozen parameters": _checksum(
                [p for _, p, is_trained in self._named if not is_trained]
            ),
        }
        rows = self._exchange.numbers([list(own.values())])
        for (place, what), (rank, row) in itertools.product(enumerate(own), enumerate(rows)):
            if row[place] != rows[0][place]:
                raise ValueError(
                    f"BlockMomentum: rank {rank} of {len(rows)} begins with other {what} than rank "
                    "0; give all ranks the same settings and seed, or checkpoints of the same "
                    "step: to resume within a block, load this optimizer's state, too"
                )
        self._has_begun = True

    def _common(self) -> BlockUpdate:
        """Return the common model: before the first step, what the model is now, or was loaded."""
        if not (self._has_begun or self._is_loaded):
            self._update.weights_P.copy_(self._weights())
        return self._update

    def _weights(self) -> Tensor:
        """Return a copy of the weights, float32 [P]."""
        return torch.cat([p.detach().flatten().float() for p in self._parameters])

    def _rounded(self, weights_P: Tensor) -> Tensor:
        """Return weights as they come back from parameters of 16 bits: float32 [P]."""
        if all(p.dtype in (torch.float32, torch.float64) for p in self._parameters):
            return weights_P
        parts = zip(self._parameters, self._split(weights_P), strict=True)
        return torch.cat([part.to(parameter.dtype).float() for parameter, part in parts])

    @torch.no_grad()
    def _set(self, weights_P: Tensor) -> None:
        for parameter, part in zip(self._parameters, self._split(weights_P), strict=True):
            parameter.copy_(part.view_as(parameter))

    def _split(self, weights_P: Tensor) -> Sequence[Tensor]:
        return weights_P.split([p.numel() for p in self._parameters])

    # --- as an optimizer --------------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Those of the inner optimizer, which schedules such as OneCycleLR look into."""
        return self.optimizer.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the exchanged vector cannot grow."""
        raise ValueError(
            "BlockMomentum exchanges the parameters that the model had when it was made; make "
            "another one for a model with more"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data and tensors. Save it on every rank, beside that rank's model."""
        update, inner = self._common().state(), self.optimizer.state_dict()
        return {"optimizer": inner, **update, "position": self._position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: if it is that of another optimizer, or of a model of another size.
        """
        needed = ("optimizer", "weights_P", "delta_P", "position")
        is_whole = all(name in state_dict for name in needed)
        found = len(state_dict["weights_P"]) if is_whole else 0
        size = len(self._update.weights_P)
        if found != size:
            raise ValueError(
                f"this is the state of a BlockMomentum of {found} weights, but the model has "
                f"{size}; a state of the inner optimizer alone is for `optimizer.optimizer`"
            )
        self.optimizer.load_state_dict(state_dict["optimizer"])
        self._update.load_state(state_dict)
        self._position = state_dict["position"]
        self._has_begun, self._is_loaded = False, True

    def __reduce__(self) -> Any:
        raise TypeError(
            "a BlockMomentum cannot be copied or pickled, as it belongs to one rank's exchange; "
            "save state_dict()"
        )

    def __repr__(self) -> str:
        return f"BlockMomentum({self.optimizer!r}, block_steps={self.block_steps})"


def _checksum(tensors: Iterable[Tensor]) -> int:
    crc = 0
    for tensor in tensors:
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        crc = zlib.crc32(content.numpy().data, crc)
    return crc
