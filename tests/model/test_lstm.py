"""An output depends neither on other utterances of the batch nor on where reading starts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from asr_train.model.loss import frame_loss
from asr_train.model.lstm import Lstm
from asr_train.model.store import build_model, load_model, num_parameters, save_model
from asr_train.schema import LstmSettings, ModelSettings, SettingsError, plain
from asr_train.shards.batch import context_padded

F, S = 5, 7
EXACT = {"rtol": 1e-5, "atol": 1e-6}  # float32 sums in another order


def settings(**changes: int) -> LstmSettings:
    values = {
        "layers": 2,
        "width": 9,
        "stack": 3,
        "subsample": 3,
        "delay": 2,
        "piece": 5,
        "warm": 2,
    }
    return LstmSettings(**{**values, **changes})


def make(seed: int = 0, mean_F=None, var_F=None, **changes: int) -> Lstm:
    """Make an LSTM with a random output layer: it starts at zero, where all logits are equal."""
    mean_F = torch.zeros(F) if mean_F is None else mean_F
    var_F = torch.ones(F) if var_F is None else var_F
    model = Lstm(settings(**changes), S, mean_F, var_F, seed)
    with torch.no_grad():
        model.output.weight.normal_(generator=torch.Generator().manual_seed(1))
    return model


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def padded(model: Lstm, feats_TF: torch.Tensor) -> torch.Tensor:
    return context_padded(feats_TF, model.context_left, model.context_right)


shapes = st.fixed_dictionaries(
    {"stack": st.integers(1, 5), "subsample": st.integers(1, 4), "delay": st.integers(0, 4)}
)


@given(shapes, st.integers(1, 20))
@examples(max_examples=30)
def test_frame_k_times_the_stride_is_said_once_the_delay_has_been_heard(shape, frames):
    """Compared with LSTM cells called window by window, with an index for each."""
    model, feats_TF = make(**shape), noise(frames, F)
    stack, every, delay = shape["stack"], shape["subsample"], shape["delay"]
    state, said = None, []
    outputs = math.ceil(frames / every)
    for k in range(outputs + delay):
        window = [every * k + n - (stack - 1) // 2 for n in range(stack)]
        heard_F = torch.cat([feats_TF[min(max(t, 0), frames - 1)] for t in window])
        hidden, state = model.cells(heard_F[None, None], state)
        if k >= delay:  # the window of frame (k - delay) * every lies delay windows back
            said.append(model.output(hidden)[0, 0])
    found_BKS = model(padded(model, feats_TF))
    assert found_BKS.shape == (1, outputs, S)
    torch.testing.assert_close(found_BKS[0], torch.stack(said), **EXACT)


@given(shapes, st.integers(1, 20))
@examples(max_examples=30)
def test_every_frame_has_the_logits_of_the_row_in_which_it_is_kept(shape, frames):
    model, feats_TF = make(**shape), noise(frames, F)
    row_BTF = padded(model, feats_TF)
    found_TS = model.every_frame(row_BTF)[0]
    assert found_TS.shape == (frames, S)
    for phase in range(min(shape["subsample"], frames)):
        wanted_KS = model(row_BTF[:, phase:])[0]
        torch.testing.assert_close(found_TS[phase :: shape["subsample"]], wanted_KS, **EXACT)


def test_utterances_side_by_side_have_the_loss_and_gradient_of_each_alone():
    model, lengths = make(), [11, 4, 17, 1]
    feats = [noise(n, F) for n in lengths]
    alis = [torch.arange(n) % S for n in lengths]
    for n, ali_T in zip(lengths, alis, strict=True):
        row_BTF, kept_BT = padded(model, feats[lengths.index(n)]), ali_T[None, ::3]
        loss, _ = frame_loss(model(row_BTF), kept_BT, torch.ones_like(kept_BT, dtype=torch.bool))
        loss.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()

    longest = max(lengths)
    rows, labels = [], torch.zeros(4, math.ceil(longest / 3), dtype=torch.long)
    mask_BT = torch.zeros_like(labels, dtype=torch.bool)
    for b, (feats_TF, ali_T) in enumerate(zip(feats, alis, strict=True)):
        right = model.context_right + longest - len(feats_TF)
        rows.append(context_padded(feats_TF, model.context_left, right))
        labels[b, : len(ali_T[::3])] = ali_T[::3]
        mask_BT[b, : len(ali_T[::3])] = True
    loss, _ = frame_loss(model(torch.cat(rows)), labels, mask_BT)
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-4, atol=1e-5)


def test_nothing_that_comes_after_the_delay_is_heard():
    model, feats_TF = make(), noise(20, F)
    row_BTF = padded(model, feats_TF)
    before = model(row_BTF)[0]
    changed_BTF = row_BTF.clone()
    frame = 12  # of the utterance; windows are 3 wide
    changed_BTF[0, model.context_left + frame] += 1
    differs_K = (model(changed_BTF)[0] != before).any(1)
    # Output k depends on windows up to that of frame 3 * (k + delay), whose last frame is one later
    assert differs_K.tolist() == [3 * (k + 2) + 1 >= frame for k in range(7)]


def test_mean_and_variance_are_taken_out_of_every_frame():
    mean_F, var_F = noise(F), noise(F).exp()
    feats_BTF = noise(1, 19, F)
    shifted_BTF = feats_BTF * var_F.sqrt() + mean_F
    torch.testing.assert_close(
        make(mean_F=mean_F, var_F=var_F)(shifted_BTF), make()(feats_BTF), rtol=1e-4, atol=1e-4
    )


def test_the_seed_decides_the_first_weights_and_nothing_else_is_drawn():
    before = torch.get_rng_state()
    a, b, other = (make(seed).cells.weight_hh_l1 for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, b)
    assert not torch.equal(a, other)


def test_the_first_loss_is_that_of_guessing_and_forget_gates_are_open():
    model = Lstm(settings(), S, torch.zeros(F), torch.ones(F), 0)
    ali_BT = torch.zeros(1, 3, dtype=torch.long)
    logits_BTS = model(padded(model, noise(9, F)))
    loss, _ = frame_loss(logits_BTS, ali_BT, torch.ones_like(ali_BT, dtype=torch.bool))
    assert loss.item() == pytest.approx(3 * math.log(S))
    biases = model.cells.bias_ih_l1 + model.cells.bias_hh_l1
    assert biases.tolist() == [0.0] * 9 + [1.0] * 9 + [0.0] * 18


def test_what_is_saved_is_loaded(tmp_path):
    chosen = ModelSettings(lstm=settings())
    about = {"run": "a", "model": plain(chosen), "priors": [1 / S] * S}
    model = make()
    loaded, found = load_model(save_model(tmp_path, model, about))
    assert found["kind"] == "lstm"
    row_BTF = padded(model, noise(9, F))
    assert torch.equal(loaded(row_BTF), model(row_BTF))


def test_the_number_of_parameters_is_that_of_the_network():
    chosen = ModelSettings(lstm=settings(layers=3, stack=2))
    model = build_model(chosen, S, torch.zeros(F), torch.ones(F), seed=0)
    assert num_parameters(chosen, F, S) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "change, message",
    [
        ({"layers": 0}, "layers is 0"),
        ({"subsample": 0}, "subsample is 0"),
        ({"delay": -1}, "delay"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    with pytest.raises(SettingsError, match=message):
        settings(**change)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cells_on_a_gpu_are_float32_where_autocast_would_make_them_float16():
    model = make().cuda()
    seen = []
    model.cells.register_forward_hook(lambda _, __, out: seen.append(out[0].dtype))
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(noise(2, 20, F).cuda())
    assert (seen, logits.dtype) == ([torch.float32], torch.bfloat16)
