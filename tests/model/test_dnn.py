import dataclasses
import math

import pytest
import torch

from asr_train.model.dnn import Dnn, num_parameters, splice
from asr_train.model.loss import frame_loss
from asr_train.model.store import build_model
from asr_train.schema import DnnSettings, ModelSettings, Nonlinearity

SETTINGS = DnnSettings(
    layers=2, width=24, nonlinearity=Nonlinearity.sigmoid, context_left=3, context_right=2
)
F, S, WINDOW = 5, 7, 6


def make(seed=0, mean_F=None, var_F=None, settings=SETTINGS) -> Dnn:
    mean_F = torch.zeros(F) if mean_F is None else mean_F
    var_F = torch.ones(F) if var_F is None else var_F
    return Dnn(settings, S, mean_F, var_F, seed)


def random_output(model: Dnn) -> Dnn:
    """Make the output layer random: it starts at zero, where all logits are equal."""
    with torch.no_grad():
        model.layers[-1].weight.normal_(generator=torch.Generator().manual_seed(1))
    return model


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def test_a_window_alone_has_the_logits_it_has_within_its_utterance():
    model, feats_BTF = random_output(make()), noise(2, 20, F)
    whole_BTS = model(feats_BTF)
    assert whole_BTS.shape == (2, 20 - WINDOW + 1, S)
    for t in range(whole_BTS.shape[1]):
        alone_BTS = model(feats_BTF[:, t : t + WINDOW])
        torch.testing.assert_close(alone_BTS[:, 0], whole_BTS[:, t])


def test_a_stacked_window_is_its_frames_from_the_oldest_to_the_newest():
    feats_BTF = torch.arange(2 * 4 * 3.0).reshape(2, 4, 3)
    stacked_BTF = splice(feats_BTF, left=1, right=1)
    for b in range(2):
        for t in range(2):
            assert torch.equal(stacked_BTF[b, t], feats_BTF[b, t : t + 3].flatten())


def test_an_utterance_shorter_than_the_window_is_refused():
    with pytest.raises(ValueError, match=r"5 frames but a window is 3 \+ 1 \+ 2"):
        make()(noise(1, WINDOW - 1, F))


def test_mean_and_variance_are_taken_out_of_every_frame():
    mean_F, var_F = noise(F), noise(F).exp()
    feats_BTF = noise(1, 9, F)
    shifted_BTF = feats_BTF * var_F.sqrt() + mean_F
    torch.testing.assert_close(
        random_output(make(mean_F=mean_F, var_F=var_F))(shifted_BTF),
        random_output(make())(feats_BTF),
        rtol=1e-4,
        atol=1e-4,
    )


def test_the_number_of_parameters_is_that_of_the_network():
    model = build_model(ModelSettings(dnn=SETTINGS), S, torch.zeros(F), torch.ones(F), seed=0)
    assert num_parameters(SETTINGS, F, S) == sum(p.numel() for p in model.parameters())


def test_the_seed_decides_the_first_weights():
    a, b, other = (make(seed).layers[0].weight for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, other)


def test_building_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    make()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_first_loss_is_that_of_guessing():
    ali_BT = torch.arange(5)[None] % S
    loss, _ = frame_loss(make()(noise(1, 10, F)), ali_BT, torch.ones_like(ali_BT, dtype=torch.bool))
    assert loss.item() == pytest.approx(5 * math.log(S))


@pytest.mark.parametrize("rank", [None, 32])
@pytest.mark.parametrize("nonlinearity", Nonlinearity)
def test_signals_and_gradients_neither_vanish_nor_explode_through_seven_layers(nonlinearity, rank):
    settings = dataclasses.replace(SETTINGS, layers=7, width=256, rank=rank)
    model = make(settings=dataclasses.replace(settings, nonlinearity=nonlinearity))
    hidden = noise(300, WINDOW * F)
    sizes, hiddens = [], []
    for layer in model.layers[:-1]:
        hidden = model.nonlinearity(layer(hidden))
        hidden.retain_grad()
        hiddens.append(hidden)
        sizes.append(hidden.std().item())
    (hidden * noise(*hidden.shape)).sum().backward()
    grads = [h.grad.std().item() for h in hiddens]
    assert min(sizes) > max(sizes) / 4
    assert min(grads) > max(grads) / 4


def test_statistics_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"var_F has shape \[5\]; it must be \[6\]"):
        make(mean_F=torch.zeros(F + 1))
    with pytest.raises(ValueError, match=r"var_F has 0.0; every bin's must be positive"):
        make(var_F=torch.zeros(F))


def test_dropout_keeps_the_mean_of_hidden_values():
    settings = dataclasses.replace(SETTINGS, width=2000, dropout=0.4)
    model = make(settings=settings)
    hidden = []
    model.dropout.register_forward_hook(lambda _, before, after: hidden.append((before[0], after)))
    torch.manual_seed(0)
    model(noise(1, 30, F))
    for before, after in hidden:
        kept = after != 0
        assert kept.float().mean().item() == pytest.approx(0.6, abs=0.02)
        torch.testing.assert_close(after[kept], before[kept] / 0.6)
