"""A recurrent network over stacked, subsampled frames: log-mel frames -> **logits of HMM states**.

in    feats_BTF    float32 log-mel as in the shards; T counts the context frames at both ends
out   logits_BTS   float32, one row every `stride` frames: of frames 0, stride, 2 stride, ...
`stack` adjacent frames are concatenated, and every `subsample`-th such window goes to the layers. A
frame's logits come `delay` windows after its own, so that the network has seen some future frames
(Sak et al., 2014; Ladkat et al., 2019). State flows forward only: padding after an utterance does
not change its logits. Knows nothing of losses or shards.
"""

import math

import torch
from torch import Tensor, nn

from asr_train.model.dnn import UninitialisedLinear, splice
from asr_train.model.normal import Normalised
from asr_train.schema import LstmSettings

GATES = 4  # of a cell, in torch's order: input, forget, cell, output


class Lstm(Normalised):
    """`layers` layers of `width` cells.

    Args:
        settings: of `conf/model`.
        num_states: size of the output.
        mean_F, var_F: of TRAIN, [num_mels]; part of the model, and normalised out of every frame.
        seed: of the initial weights.
    Attributes:
        context_left, context_right: frames needed before and after those of interest.
        stride: frames from one output to the next.
        piece, warm: outputs that it is trained on at once, and those before them that only set up
            the state.
    Raises:
        ValueError: if their shapes are wrong or a variance is not positive.
    """

    is_recurrent = True

    def __init__(
        self, settings: LstmSettings, num_states: int, mean_F: Tensor, var_F: Tensor, seed: int
    ) -> None:
        super().__init__(mean_F, var_F)
        self.delay, self.stride = settings.delay, settings.subsample
        self.piece, self.warm = settings.piece, settings.warm
        self._before = (settings.stack - 1) // 2  # frames of a window before its own frame
        self._after = settings.stack - 1 - self._before
        self.context_left = self._before
        self.context_right = self._after + settings.delay * settings.subsample
        self.num_states = num_states
        self.cells = UninitialisedCells(
            settings.stack * self.num_mels,
            settings.width,
            settings.layers,
            batch_first=True,
            dropout=settings.dropout,
        )
        self.output = UninitialisedLinear(settings.width, num_states)
        initialise(self.cells, self.output, seed)

    def forward(self, feats_BTF: Tensor) -> Tensor:
        """Map float32 [B, T, num_mels] to [B, K, num_states], one output per `stride` frames.

        K = ceil((T - context_left - context_right) / stride).
        """
        normal_BTF = self.normal(feats_BTF)
        stacked_BKF = splice(normal_BTF, self._before, self._after, self.stride)
        # Under autocast to bf16, torch hands cuDNN's cells float16, which overflows; so on a GPU
        # they are float32, with products in tf32
        with torch.autocast("cuda", enabled=False):
            hidden_BKH, _ = self.cells(stacked_BKF)
        return self.output(hidden_BKH[:, self.delay :])

    def every_frame(self, feats_BTF: Tensor) -> Tensor:
        """Map float32 [B, T, num_mels] to [B, T - context_left - context_right, num_states].

        Runs the network `stride` times, each time one frame later, so that every frame is the main
        frame of a window once. A frame's logits are exactly those of `forward`, at `stride` times
        the work.
        """
        frames = feats_BTF.shape[1] - self.context_left - self.context_right
        kept = -(-frames // self.stride)
        missing = kept * self.stride - frames
        feats_BTF = torch.cat([feats_BTF, feats_BTF[:, -1:].expand(-1, missing, -1)], 1)
        span = feats_BTF.shape[1] - self.stride + 1
        rows = [feats_BTF[:, phase : phase + span] for phase in range(self.stride)]
        logits_BKS = self(torch.cat(rows))
        return torch.stack(logits_BKS.chunk(self.stride), 2).flatten(1, 2)[:, :frames]


class UninitialisedCells(nn.LSTM):
    """Layers without initial weights, for the reason of `UninitialisedLinear`."""

    def reset_parameters(self) -> None:
        pass


def initialise(cells: nn.LSTM, output: nn.Linear, seed: int) -> None:
    """Draw initial weights: uniform, as in Glorot and Bengio (2010), for each gate.

    Forget gates start open, with a bias of 1 (Jozefowicz et al., 2015); torch has two biases, one
    of which starts at 0. The output layer is zero: the first loss is log(num_states).
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
    """Count weights and biases of an `Lstm`, without building it."""
    width = settings.width
    inputs = settings.stack * num_mels + (settings.layers - 1) * width  # of all layers
    cells = GATES * width * (inputs + settings.layers * (width + 2))
    return cells + (width + 1) * num_states
