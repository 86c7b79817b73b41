import pytest
import torch
from torch import nn

from asr_train.comm.bucket import Bucket


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2))


X = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))


def test_the_model_computes_with_the_flat_weights():
    model = make()
    wanted = model(X)
    bucket = Bucket(model)
    assert torch.equal(model(X), wanted)
    bucket.weights_P.zero_()
    assert not model(X).any()


def test_whatever_changes_a_parameter_in_place_changes_the_flat_weights():
    model = make()
    bucket = Bucket(model)
    model.load_state_dict({name: torch.ones_like(w) for name, w in model.state_dict().items()})
    assert bucket.weights_P.eq(1).all()


def test_gradients_stand_in_the_flat_vector_under_their_parameters_slots():
    model, bucket = make(), None
    wanted = torch.autograd.grad(model(X).square().sum(), list(model.parameters()))
    bucket = Bucket(model)
    model(X).square().sum().backward()
    assert torch.equal(bucket.grad_P, torch.cat([grad.flatten() for grad in wanted]))
    for slot, grad in zip(bucket.table, wanted, strict=True):
        assert torch.equal(slot.of(bucket.grad_P), grad)


def test_one_model_can_compute_with_other_weights():
    model = make()
    bucket = Bucket(model)
    first_P, wanted = bucket.weights_P, model(X)
    second_P = torch.zeros_like(first_P)
    bucket.point_at(second_P)
    assert bucket.weights_P is second_P  # which is the vector that is checked and stored
    assert not model(X).any()
    model(X).square().sum().backward()
    for name, grad in [(s.name, s.of(bucket.grad_P)) for s in bucket.table]:
        assert model.get_parameter(name).grad.data_ptr() == grad.data_ptr()
    second_P.fill_(1.0)
    assert model(X).any()
    bucket.point_at(first_P)
    assert torch.equal(model(X), wanted)


def test_checksums_tell_which_parameter_differs():
    bucket = Bucket(make())
    before = bucket.checksums(bucket.weights_P)
    bucket.weights_P[bucket.table[2].offset] += 1e-3
    after = bucket.checksums(bucket.weights_P)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False, True]


def test_gradients_come_back_after_somebody_dropped_them():
    model = make()
    bucket = Bucket(model)
    model(X).sum().backward()
    wanted_P = bucket.grad_P.clone()
    model.zero_grad(set_to_none=True)
    bucket.zero_grad()
    assert not bucket.grad_P.any()
    model(X).sum().backward()
    assert torch.equal(bucket.grad_P, wanted_P)


def test_the_gradients_of_two_halves_add_up_to_that_of_the_whole():
    model = make()
    bucket = Bucket(model)
    model(X).square().sum().backward()
    whole_P = bucket.grad_P.clone()
    bucket.zero_grad()
    model(X[:2]).square().sum().backward()
    model(X[2:]).square().sum().backward()
    torch.testing.assert_close(bucket.grad_P, whole_P)


def test_order_and_offsets_depend_on_the_model_alone():
    fresh, used = make(), make()
    used(X).sum().backward()
    used.load_state_dict(dict(reversed(used.state_dict().items())))
    assert Bucket(fresh).table == Bucket(used).table


def test_slots_cover_the_flat_vector_without_gap_or_overlap():
    model = make()
    bucket = Bucket(model)
    assert [slot.name for slot in bucket.table] == [name for name, _ in model.named_parameters()]
    end = 0
    for slot in bucket.table:
        assert slot.offset == end
        assert bucket.name_of(slot.offset) == bucket.name_of(slot.offset + slot.numel - 1)
        assert bucket.name_of(slot.offset) == slot.name
        end += slot.numel
    assert end == bucket.weights_P.numel() == bucket.grad_P.numel()


def test_other_types_than_float32_are_refused():
    with pytest.raises(ValueError, match=r"2.weight is torch.float64 on cpu; all must be float32"):
        Bucket(nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2).double()))
