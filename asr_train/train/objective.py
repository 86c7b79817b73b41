"""What training minimises: **frame cross-entropy**, or a sequence objective over lattices.

in    logits_BTS and a Batch; for sequences, of whole utterances with their lattices
out   loss, float32 [], differentiable, summed over frames; number of correctly classified frames
The loop, the exchanges and evaluation know an objective by this alone. A sequence objective takes
all else from the index of its shards: the scale of the scores, priors and states of silence.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr_train.model.loss import frame_loss
from asr_train.model.store import Model
from asr_train.schema import Criterion, ObjectiveSettings
from asr_train.search.occupancy import mmi, smbr
from asr_train.shards.batch import Batch
from asr_train.shards.reader import Shards


class Objective:
    """Frame cross-entropy.

    Attributes:
        whole: it needs whole utterances, and their lattices.
    """

    whole = False

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """Return the outputs of a minibatch to train on."""
        return model(batch.feats_BTF)

    def __call__(self, logits_BTS: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss, and the number of frames whose best state is the alignment's."""
        return frame_loss(logits_BTS, batch.ali_BT, batch.mask_BT)


CROSS_ENTROPY = Objective()


def objective_of(settings: ObjectiveSettings | None, shards: Shards) -> Objective:
    """Return the objective of the settings; None: frame cross-entropy.

    Raises:
        ValueError: if it needs lattices, and the shards have none.
    """
    return CROSS_ENTROPY if settings is None else SequenceObjective(settings, shards)


class SequenceObjective(Objective):
    """MMI, boosted MMI or sMBR, interpolated with frame cross-entropy.

        loss = (1 - smoothing) * loss of the lattices + smoothing * cross-entropy

    This is F-smoothing (Su, Li, Yu and Seide, 2013, "Error back propagation for sequence training
    of context-dependent deep networks"). A frame's scores are as in decoding,
    kappa * (log softmax - log prior). Their derivative by the logits is kappa times the slope by
    the scores: a slope's sum over states is 0, so the softmax's normaliser adds nothing. Lattices
    are summed on the CPU, one after the other, in float64; with 200 arcs per frame that takes about
    60 us per frame.
    """

    whole = True

    def __init__(self, settings: ObjectiveSettings, shards: Shards) -> None:
        if not shards.has_lattices:
            raise ValueError(
                f"{shards.path} has no lattices, which objective.criterion="
                f"{settings.criterion.value} learns from; train this run by SEQUENCE"
            )
        about = shards.about["lattices"]
        self._settings, self._kappa = settings, float(about["acoustic_scale"])
        self._log_priors_S = np.log(shards.priors_S)
        self._counted_S = np.ones(shards.num_states, bool)
        if not settings.count_silence:
            self._counted_S[about["silence"]] = False

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """Return the outputs of all frames, as decoding sees them."""
        return model.every_frame(batch.feats_BTF)

    def __call__(self, logits_BTS: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss, and the number of frames whose best state is the alignment's."""
        assert batch.lattices is not None
        cross_entropy, correct = frame_loss(logits_BTS, batch.ali_BT, batch.mask_BT)
        logp_BTS = torch.log_softmax(logits_BTS.detach(), -1).cpu().numpy()
        ali_BT, lengths_B = batch.ali_BT.cpu().numpy(), batch.mask_BT.sum(1).tolist()
        total, slope_BTS = 0.0, np.zeros_like(logp_BTS)
        for b, (arcs_A, frames) in enumerate(zip(batch.lattices, lengths_B, strict=True)):
            scores_TS = self._kappa * (logp_BTS[b, :frames].astype(np.float64) - self._log_priors_S)
            given = arcs_A, scores_TS, ali_BT[b, :frames], self._counted_S
            if self._settings.criterion is Criterion.smbr:
                loss, slope_TS = smbr(*given)
            else:
                loss, slope_TS = mmi(*given, self._settings.boost)
            total += loss
            slope_BTS[b, :frames] = self._kappa * slope_TS
        slope = torch.from_numpy(slope_BTS).to(logits_BTS)
        sequence: Tensor = _Sloped.apply(logits_BTS, total, slope)  # type: ignore[no-untyped-call]
        share = self._settings.smoothing
        if share == 0:
            return sequence, correct
        return (1 - share) * sequence + share * cross_entropy, correct


class _Sloped(torch.autograd.Function):
    """A number whose derivative is known."""

    @staticmethod
    def forward(ctx: Any, at: Tensor, value: float, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return at.new_tensor(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None, None
