"""A feed-forward network over a window of frames: log-mel frames -> **logits of HMM states**.

in    feats_BTF    float32 log-mel as in the shards; T counts the context frames at both ends
out   logits_BTS   float32, T - context_left - context_right frames; the softmax is in model.loss
Windows are stacked here, on the device, so that every frame is stored and copied once. Knows
nothing of losses, shards or files.
"""

import itertools
import math

import torch
from torch import Tensor, nn

from asr_train.model.normal import Normalised
from asr_train.schema import DnnSettings, Nonlinearity


class CentredSigmoid(nn.Module):
    """sigmoid(x) - 1/2.

    The 1/2 could move into the next layer's bias, so the function class is that of plain sigmoids.
    But hidden values with a mean other than zero make SGD ill-conditioned (LeCun et al., Efficient
    BackProp, 1998): on fsdd, 91 classes, rate 0.008 and minibatch 256, the first epoch of 7 layers
    of 256 reached 74 % frame accuracy on held-out speech, and 50 % (the share of silence) with
    plain sigmoids, whatever the initial weights.
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x) - 0.5


class Dnn(Normalised):
    """`layers` hidden layers of `width` units over context_left + 1 + context_right frames.

    Args:
        settings: of `conf/model`.
        num_states: size of the output.
        mean_F, var_F: of TRAIN, [num_mels]; part of the model, and normalised out of every frame.
        seed: of the initial weights.
    Raises:
        ValueError: if their shapes are wrong or a variance is not positive.
    """

    is_recurrent = False

    def __init__(
        self, settings: DnnSettings, num_states: int, mean_F: Tensor, var_F: Tensor, seed: int
    ) -> None:
        super().__init__(mean_F, var_F)
        self.context_left, self.context_right = settings.context_left, settings.context_right
        self.num_states = num_states
        layers: list[nn.Linear | LowRank] = [
            UninitialisedLinear(n, m) if rank is None else LowRank(n, m, rank)
            for n, m, rank in layer_sizes(settings, self.num_mels, num_states)
        ]
        initialise(layers, settings.nonlinearity, seed)
        self.layers = nn.ModuleList(layers)
        kinds = {Nonlinearity.sigmoid: CentredSigmoid, Nonlinearity.relu: nn.ReLU}
        self.nonlinearity = kinds[settings.nonlinearity]()
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, feats_BTF: Tensor) -> Tensor:
        """Map float32 [B, T, num_mels] to [B, T - context_left - context_right, num_states]."""
        normal_BTF = self.normal(feats_BTF)
        windows_BTF = splice(normal_BTF, self.context_left, self.context_right)
        logits_NS = self.outputs(windows_BTF.flatten(0, 1))
        return logits_NS.unflatten(0, windows_BTF.shape[:2])

    def outputs(self, hidden_NF: Tensor) -> Tensor:
        """Map stacked windows [N, window * num_mels] to logits [N, num_states]."""
        for layer in self.layers[:-1]:
            hidden_NF = self.dropout(self.nonlinearity(layer(hidden_NF)))
        return self.layers[-1](hidden_NF)

    def every_frame(self, feats_BTF: Tensor) -> Tensor:
        """Return logits of every frame, as `forward` does."""
        return self(feats_BTF)


class UninitialisedLinear(nn.Linear):
    """A layer without initial weights. nn.utils.skip_init does the same, but imports sympy: 3 s."""

    def reset_parameters(self) -> None:
        pass


class LowRank(nn.Module):
    """A layer whose weights are a product of two matrices, [outputs, rank] and [rank, inputs].

    Those of a trained network are its truncated singular value decomposition (`factors`); training
    continues from there (Xue et al., 2013).
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.into = UninitialisedLinear(inputs, rank, bias=False)
        self.out = UninitialisedLinear(rank, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.into(x))


def factors(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return [outputs, rank] and [rank, inputs], whose product is nearest to a weight matrix."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, roots[:, None] * right[:rank]


def splice(feats_BTF: Tensor, left: int, right: int, step: int = 1) -> Tensor:
    """Stack each frame with its neighbours: [B, T, F] -> [B, T - left - right, window * F].

    Neighbours are in order of time. With a step, only every step-th window is kept.

    Only frames whose window lies within the T frames remain: for all frames of an utterance, pad
    its ends first (`shards.batch.context_padded`). A minibatch of single windows is not copied.

    Raises:
        ValueError: if there are fewer frames than a window has.
    """
    num_frames = feats_BTF.shape[1]
    window = left + 1 + right
    if num_frames < window:
        raise ValueError(
            f"{num_frames} frames but a window is {left} + 1 + {right}; "
            "pad the utterance first, with shards.batch.context_padded"
        )
    return feats_BTF.unfold(1, window, step).transpose(2, 3).flatten(2)


def initialise(layers: list[nn.Linear | LowRank], nonlinearity: Nonlinearity, seed: int) -> None:
    """Draw initial weights that preserve the size of signals and gradients through many layers.

    Uniform, with the range of Glorot and Bengio (2010) for tanh, times 4 for the sigmoid, whose
    slope at 0 is 1/4; for ReLU as in He et al. (2015). The product of a layer's two factors has the
    same variance as the weights of a full one. The output layer is zero: the first loss is
    log(num_states), and no layer starts with large random gradients.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in layers:
            outer = layer.out if isinstance(layer, LowRank) else layer
            inputs = outer.in_features
            if isinstance(layer, LowRank):
                inputs = layer.into.in_features
                bound = math.sqrt(3 / inputs)  # preserves the variance
                layer.into.weight.uniform_(-bound, bound, generator=generator)
            outer.bias.zero_()
            if layer is layers[-1]:
                outer.weight.zero_()
                continue
            rank, outputs = outer.in_features, outer.out_features  # full: rank is inputs
            bound = (  # the product's variance is rank / inputs of outer's
                4 * math.sqrt(6 * inputs / (rank * (inputs + outputs)))
                if nonlinearity is Nonlinearity.sigmoid
                else math.sqrt(6 / rank)
            )
            outer.weight.uniform_(-bound, bound, generator=generator)


def layer_sizes(
    settings: DnnSettings, num_mels: int, num_states: int
) -> list[tuple[int, int, int | None]]:
    """Return inputs, outputs and rank of each layer; the first one's inputs are a stacked window.

    The first layer, and any that two factors would make no smaller, has no rank.
    """
    window = settings.context_left + 1 + settings.context_right
    sizes = [window * num_mels, *[settings.width] * settings.layers, num_states]
    rank = settings.rank
    return [
        (n, m, None if rank is None or not number or rank * (n + m) >= n * m else rank)
        for number, (n, m) in enumerate(itertools.pairwise(sizes))
    ]


def num_parameters(settings: DnnSettings, num_mels: int, num_states: int) -> int:
    """Count weights and biases of a `Dnn`, without building it."""
    return sum(
        m + (n * m if rank is None else rank * (n + m))
        for n, m, rank in layer_sizes(settings, num_mels, num_states)
    )
