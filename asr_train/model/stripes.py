"""A `Dnn` cut into **stripes**, one per process: model parallelism (Seide et al., 2014).

in, out   as those of `Dnn`; all processes get the same frames, and each has its states' logits

"On parallelizability of stochastic gradient descent for speech DNNs", on model parallelism: every
layer is cut into stripes, a stripe's units are computed where its weights are, and all activations
are exchanged between layers. So all matrices, [outputs, inputs], and biases are cut by outputs
(torch's ColwiseParallel, whose columns are those of the transposed matrix). Cutting every second
matrix by inputs (RowwiseParallel) takes half as many exchanges; but each is an all-reduce, of twice
the bytes, and the paper has stripes.

As there, a minibatch is two halves: while one half's activations travel, the other half's are
computed, and likewise errors on the way back. What overlaps is what the backend moves in the
background: NCCL on its own stream, gloo in its own threads, for which there must be cores left.
gloo has no reduce-scatter of its own: torch makes one from an all-reduce, of twice the bytes.
The softmax is shared, too (torch's `loss_parallel`, which the loss and its backward pass need
around them): logits are not exchanged. Knows nothing of workers: data parallelism is in comm.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional

from asr_train.model.dnn import Dnn, LowRank
from asr_train.model.normal import Normalised

WHOLE, STRIPE = [Replicate()], [Shard(1)]  # of activations, [N, F]


class StripedDnn(Dnn):
    """The stripe of a network that this process holds; parameters are DTensors.

    Args:
        whole: with the same weights in all processes; its layers are cut in place, without any
            exchange.
        mesh: of the processes that hold one stripe each, one-dimensional.
        parts: of a minibatch, whose computation and exchange overlap.
    Raises:
        ValueError: if a layer has too few outputs for each stripe to have some.
    """

    def __init__(self, whole: Dnn, mesh: DeviceMesh, parts: int = 2) -> None:
        Normalised.__init__(self, whole.mean_F, whole.var_F)
        self.context_left, self.context_right = whole.context_left, whole.context_right
        self.num_states, self.layers = whole.num_states, whole.layers
        self.nonlinearity, self.dropout = whole.nonlinearity, whole.dropout
        self.mesh, self.parts = mesh, parts
        self._matrices: list[tuple[nn.Linear, bool]] = []  # and whether a hidden layer ends there
        plan: dict[str, Any] = {}
        for number, layer in enumerate(whole.layers):
            is_hidden = number < len(whole.layers) - 1
            names = ["into", "out"] if isinstance(layer, LowRank) else [""]
            for name in names:
                path = f"layers.{number}.{name}".rstrip(".")
                linear = self.get_submodule(path)
                assert isinstance(linear, nn.Linear)
                units = _most(linear.out_features, mesh)
                if units * (mesh.size() - 1) >= linear.out_features:
                    raise ValueError(
                        f"{path} has {linear.out_features} outputs but comm.stripes is "
                        f"{mesh.size()}: stripes of {units} leave none for the last; lower "
                        "comm.stripes, or change the layer's size"
                    )
                plan[path] = ColwiseParallel(use_local_output=False)
                self._matrices.append((linear, is_hidden and name == names[-1]))
        parallelize_module(self, mesh, plan, src_data_rank=None)  # None: all have the weights

    def outputs(self, hidden_NF: Tensor) -> Tensor:
        """Map stacked windows to logits, a DTensor [N, num_states] cut by states."""
        halves = []
        for half_NF in hidden_NF.chunk(self.parts):
            whole_NF = DTensor.from_local(half_NF, self.mesh, WHOLE, run_check=False)
            halves.append(_Gathering(whole_NF, whole_NF))
        for linear, is_hidden in self._matrices[:-1]:
            masks = self._masks(hidden_NF, linear.out_features) if is_hidden else None
            for number, half in enumerate(halves):
                stripe_NF = linear(half.arrived())
                if is_hidden:
                    stripe_NF = self.nonlinearity(stripe_NF)
                if masks is not None:
                    stripe_NF = stripe_NF * masks[number]
                halves[number] = _Gathering.sent(stripe_NF)
        last, _ = self._matrices[-1]
        return torch.cat([last(half.arrived()) for half in halves])

    def _masks(self, hidden_NF: Tensor, units: int) -> list[DTensor] | None:
        """Return dropout's factors for each half, drawn as the whole network draws them."""
        if not self.training or not self.dropout.p:
            return None
        mask_NF = self.dropout(hidden_NF.new_ones(len(hidden_NF), units))
        return [
            DTensor.from_local(part, self.mesh, WHOLE, run_check=False).redistribute(
                placements=STRIPE  # takes columns, and sends nothing
            )
            for part in mask_NF.chunk(self.parts)
        ]


@dataclass(frozen=True, slots=True)
class _Gathering:
    """Activations, [N, F]: the stripe computed here, and all stripes once they have arrived."""

    stripe_NF: DTensor
    whole_NF: DTensor  # torch waits for it at its first use

    @staticmethod
    def sent(stripe_NF: DTensor) -> "_Gathering":
        """Begin to gather the stripes of all processes."""
        with torch.no_grad():
            whole_NF = stripe_NF.redistribute(placements=WHOLE, async_op=True)
        return _Gathering(stripe_NF, whole_NF)

    def arrived(self) -> DTensor:
        """Return the activations of all stripes; differentiable."""
        return _Arrived.apply(self.stripe_NF, [self.whole_NF])  # type: ignore[no-untyped-call]


class _Arrived(torch.autograd.Function):
    """The end of an exchange in the forward pass, which is where the one of errors begins.

    torch's own `redistribute` is one node of the graph for both ends, and backward passes run nodes
    in reverse order. Where it stands, for the forward pass to overlap, behind a layer, the errors'
    exchange would begin right before the half that waits for it.
    """

    @staticmethod
    def forward(ctx: Any, stripe_NF: DTensor, whole: list[DTensor]) -> DTensor:
        return whole[0]

    @staticmethod
    def backward(ctx: Any, *errors: Any) -> tuple[DTensor, None]:
        (error_NF,) = errors
        return error_NF.redistribute(placements=STRIPE, async_op=True), None


def loss_of_stripes(logits_BTS: Any, target_BT: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Return what `loss.frame_loss` does, the same in all processes; inside `loss_parallel`.

    A frame's largest logits and sums of exponentials are exchanged; its logits are not.
    """
    mesh = logits_BTS.device_mesh
    target_N = DTensor.from_local(target_BT.flatten(), mesh, WHOLE, run_check=False)
    loss: Any = functional.cross_entropy(
        logits_BTS.flatten(0, 1), target_N, ignore_index=ignored, reduction="sum"
    )
    most_BT, state_BT = logits_BTS.detach().to_local().max(-1)
    state_BT += mesh.get_local_rank() * _most(logits_BTS.shape[-1], mesh)
    most_BTM, state_BTM = (
        DTensor.from_local(own_BT[..., None], mesh, [Shard(2)], run_check=False).full_tensor()
        for own_BT in (most_BT, state_BT)
    )
    best_BT = state_BTM.gather(2, most_BTM.argmax(-1, keepdim=True))[..., 0]
    return loss.to_local(), (best_BT == target_BT).sum()


def _most(outputs: int, mesh: DeviceMesh) -> int:
    """Return the outputs of every stripe but the last, which may have fewer, as torch cuts them."""
    return -(-outputs // mesh.size())
