"""A recurrent network over stacked, thinned-out frames: log-mel frames -> **logits of HMM states**.

in    feats_BTF    float32 log-mel as in the shards; T counts the context frames at both ends
out   logits_BTS   float32, one row every `stride` frames: of frames 0, stride, 2 stride, ...
`stack` neighbouring frames stand side by side, and every `subsample`-th such window goes on into
the layers. A frame's logits come `delay` windows after its own, so that the network has heard a
little of what follows (Sak et al., 2014; Ladkat et al., 2019). State flows forward only: what
stands after an utterance in a row changes nothing in it. Knows nothing of losses or shards.
"""

import math

import torch
from torch import Tensor, nn

from asr_train.model.dnn import splice
from asr_train.model.normal import Normalised
from asr_train.schema import LstmSettings

GATES = 4  # of a cell, in torch's order: input, forget, cell, output


class Lstm(Normalised):
    """`layers` layers of `width` cells.

    Args:
        settings: of `conf/model`.
        num_mels, num_states: sizes of a frame and of the output.
        mean_F, var_F: of TRAIN, [num_mels]; part of the model, and taken out of every frame.
        seed: of the first weights.
    Attributes:
        context_left, context_right: frames that must stand before and after those of interest.
        stride: frames from one output to the next.
        piece, warm: outputs that it is trained on at once, and those before them that only set up
            its state.
    Raises:
        ValueError: if their shapes are wrong or a variance is not positive.
    """

    is_recurrent = True

    def __init__(
        self,
        settings: LstmSettings,
        num_mels: int,
        num_states: int,
        mean_F: Tensor,
        var_F: Tensor,
        seed: int,
    ) -> None:
        super().__init__(num_mels, mean_F, var_F)
        self.delay, self.stride = settings.delay, settings.subsample
        self.piece, self.warm = settings.piece, settings.warm
        self._before = (settings.stack - 1) // 2  # a window's frames on either side of its own
        self._after = settings.stack - 1 - self._before
        self.context_left = self._before
        self.context_right = self._after + settings.delay * settings.subsample
        self.num_states = num_states
        inputs = settings.stack * num_mels
        cells = nn.LSTM(
            inputs,
            settings.width,
            settings.layers,
            batch_first=True,
            dropout=settings.dropout,
            device="meta",
        )
        self.cells = cells.to_empty(device="cpu")  # drawn just below
        self.output = nn.utils.skip_init(nn.Linear, settings.width, num_states)
        initialise(self.cells, self.output, seed)

    def forward(self, feats_BTF: Tensor) -> Tensor:
        """float32 [B, T, num_mels] -> [B, K, num_states], of every `stride`-th frame.

        K = ceil((T - context_left - context_right) / stride).
        """
        normal_BTF = self.normal(feats_BTF)
        stacked_BKF = splice(normal_BTF, self._before, self._after, self.stride)
        hidden_BKH, _ = self.cells(stacked_BKF)
        logits_BKS: Tensor = self.output(hidden_BKH[:, self.delay :])
        return logits_BKS

    def every_frame(self, feats_BTF: Tensor) -> Tensor:
        """float32 [B, T, num_mels] -> [B, T - context_left - context_right, num_states].

        Reads the row `stride` times, each time from one frame later on, so that every frame is kept
        once. Nothing is repeated or interpolated: a frame's logits are those that `forward` gives
        it, at any time, at `stride` times the work.
        """
        frames = feats_BTF.shape[1] - self.context_left - self.context_right
        kept = -(-frames // self.stride)
        missing = kept * self.stride - frames
        feats_BTF = torch.cat([feats_BTF, feats_BTF[:, -1:].expand(-1, missing, -1)], 1)
        span = feats_BTF.shape[1] - self.stride + 1
        rows = [feats_BTF[:, phase : phase + span] for phase in range(self.stride)]
        logits_BKS = self(torch.cat(rows))
        return torch.stack(logits_BKS.chunk(self.stride), 2).flatten(1, 2)[:, :frames]


def initialise(cells: nn.LSTM, output: nn.Linear, seed: int) -> None:
    """First weights: uniform as Glorot and Bengio (2010) say for each gate.

    Forget gates begin open, with a bias of 1 (Jozefowicz et al., 2015); torch has two biases, of
    which one begins at 0. The output layer is zero: the first loss is log(num_states).
    """
    generator = torch.Generator().manual_seed(seed)
    width = cells.hidden_size
    with torch.no_grad():
        for name, parameter in cells.named_parameters():
            if name.startswith("weight"):
                bound = math.sqrt(6 / (width + parameter.shape[1]))
                parameter.uniform_(-bound, bound, generator=generator)
                continue
            parameter.zero_()
            if name.startswith("bias_ih"):
                parameter[width : 2 * width] = 1
        output.weight.zero_()
        output.bias.zero_()


def num_parameters(settings: LstmSettings, num_mels: int, num_states: int) -> int:
    """Weights and biases of an `Lstm`, without building it."""
    width = settings.width
    inputs = settings.stack * num_mels + (settings.layers - 1) * width  # of all layers
    cells = GATES * width * (inputs + settings.layers * (width + 2))
    return cells + (width + 1) * num_states
