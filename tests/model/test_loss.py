import math

import pytest
import torch

from asr_train.model.loss import frame_loss

B, T, S = 6, 5, 4


@pytest.fixture(params=range(3))
def batch(request):
    rng = torch.Generator().manual_seed(request.param)
    logits_BTS = torch.randn(B, T, S, generator=rng)
    ali_BT = torch.randint(0, S, (B, T), generator=rng)
    mask_BT = torch.rand(B, T, generator=rng) < 0.7
    return logits_BTS, ali_BT, mask_BT


def test_it_is_the_sum_of_the_negative_log_probabilities_of_real_frames(batch):
    logits_BTS, ali_BT, mask_BT = batch
    logp_BTS = logits_BTS.double().log_softmax(-1)
    wanted = sum(-logp_BTS[b, t, ali_BT[b, t]].item() for b, t in mask_BT.nonzero().tolist())
    loss, correct = frame_loss(*batch)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    assert correct.item() == ((logits_BTS.argmax(-1) == ali_BT) & mask_BT).sum().item()


def test_the_losses_of_parts_add_up_to_that_of_the_whole(batch):
    whole, whole_correct = frame_loss(*batch)
    parts = [frame_loss(*(x[part] for x in batch)) for part in (slice(2), slice(2, None))]
    assert sum(loss.item() for loss, _ in parts) == pytest.approx(whole.item(), rel=1e-5)
    assert sum(correct.item() for _, correct in parts) == whole_correct.item()


def test_what_stands_where_there_is_no_frame_does_not_matter(batch):
    logits_BTS, ali_BT, mask_BT = batch
    other_BTS = torch.where(mask_BT[..., None], logits_BTS, 1e3).requires_grad_()
    other_BT = torch.where(mask_BT, ali_BT, S - 1 - ali_BT)
    loss, correct = frame_loss(other_BTS, other_BT, mask_BT)
    wanted_loss, wanted_correct = frame_loss(*batch)
    assert loss.item() == wanted_loss.item()
    assert correct.item() == wanted_correct.item()
    loss.backward()
    assert not other_BTS.grad[~mask_BT].any()
    assert other_BTS.grad[mask_BT].any()


def test_a_guess_costs_the_logarithm_of_the_number_of_states():
    ali_BT = torch.zeros(B, T, dtype=torch.int64)
    loss, _ = frame_loss(torch.zeros(B, T, S), ali_BT, torch.ones(B, T, dtype=torch.bool))
    assert loss.item() == pytest.approx(B * T * math.log(S))
