"""In a DDP script of anybody's, GTC gives what it gives in ours, whatever DDP's buckets are."""

import copy

import forked
import numpy as np
import pytest
import torch
from small_methods import method_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from asr_train import schema
from asr_train.comm.bucket import Bucket
from asr_train.comm.ddp_hook import GtcHook
from asr_train.comm.method import Gradient

GTC = {"threshold": 0.25, "codec": "rice", "capacity": "fixed"}
SETTINGS = schema.build(schema.GtcSettings, GTC)
STEPS, RANKS = 6, 2


class Net(nn.Module):
    """Several buckets' worth of layers; one is used in even steps only."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(40, 90), nn.Linear(90, 90)
        self.sometimes, self.last = nn.Linear(90, 90), nn.Linear(90, 3)
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, x, step):
        hidden = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(self.sometimes(hidden) if step % 2 == 0 else hidden)


def loss_of(model, rank, step, part=slice(None)):
    rng = torch.Generator().manual_seed(100 * rank + step)
    x, y = torch.randn(8, 40, generator=rng), torch.randint(3, (8,), generator=rng)
    logits = model(x[part], step)
    return nn.functional.cross_entropy(logits, y[part], reduction="sum")


def script(bucket_cap_mb=25, scale=1.0, broken_at=None, micro=1, restart_at=None):
    """What a user's own training is: DDP, the hook, torch's SGD."""

    def main(exchange):
        rank = exchange.local[0]

        def begin(weights=None, state=None):
            model = Net()
            if weights is not None:
                model.load_state_dict(weights)
            gtc = GtcHook(model, SETTINGS)
            if state is not None:
                gtc.load_state_dict(state)
            ddp = DistributedDataParallel(
                model, bucket_cap_mb=bucket_cap_mb, find_unused_parameters=True
            )
            ddp.register_comm_hook(gtc, GtcHook.hook)
            trained = [p for p in model.parameters() if p.requires_grad]
            return model, gtc, ddp, torch.optim.SGD(trained, lr=0.0625)

        model, gtc, ddp, sgd = begin()
        skipped = []
        for step in range(STEPS):
            if step == restart_at:
                state = copy.deepcopy([model.state_dict(), gtc.state_dict()])
                model, gtc, ddp, sgd = begin(*state)
            sgd.zero_grad()
            gtc.loss_scale = scale
            parts = [slice(i * 8 // micro, (i + 1) * 8 // micro) for i in range(micro)]
            for part in parts[:-1]:
                with ddp.no_sync():
                    (scale * loss_of(ddp, rank, step, part)).backward()
            loss = scale * loss_of(ddp, rank, step, parts[-1])
            (loss * torch.nan if (rank, step) == broken_at else loss).backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            if not all(grad.isfinite().all() for grad in grads):
                skipped.append(step)
                continue
            for grad in grads:
                grad /= scale
            sgd.step()
        return Bucket(model).weights_P.numpy(), gtc.sent.bits, skipped

    return main


def ours():
    """The same with our own method and no DDP."""
    model = Net()
    bucket = Bucket(model)
    method = method_of("gtc", RANKS, size=bucket.weights_P.numel() - 5, gtc=GTC)
    is_frozen_P = torch.zeros(len(bucket.weights_P), dtype=torch.bool)
    (frozen,) = [slot for slot in bucket.table if slot.name == "frozen"]
    is_frozen_P[frozen.offset : frozen.offset + 5] = True

    def gradients(step):
        for rank in range(RANKS):
            bucket.zero_grad()
            loss_of(model, rank, step).backward()
            yield Gradient(bucket.grad_P[~is_frozen_P], 8)

    for step in range(STEPS):
        total_P = method.reduce_gradient(0, gradients(step))
        bucket.weights_P[~is_frozen_P] -= 0.0625 * (total_P / RANKS)
    return bucket.weights_P.numpy(), method.take_sent(0).bits


CASES = {
    "plain": {},
    "small_buckets": {"bucket_cap_mb": 0.02},
    "scaled": {"scale": 1024.0},
    "restarted": {"restart_at": 3},
    "micro": {"micro": 4},
    "broken": {"broken_at": (1, 2)},
    "ours": None,
}


@pytest.fixture(scope="module")
def found():
    """Weights, bits and skipped steps of each case; all in the same two processes."""

    def main(exchange):
        return {
            name: ours() if case is None else script(**case)(exchange)
            for name, case in CASES.items()
        }

    first, second = forked.run(main, RANKS, RANKS)
    assert isinstance(first, dict), first
    for name in CASES:
        np.testing.assert_array_equal(first[name][0], second[name][0])
    return first


def test_a_ddp_script_gives_what_our_own_method_gives(found):
    weights_P, bits = found["ours"]
    np.testing.assert_allclose(found["plain"][0], weights_P, rtol=0, atol=1e-6)
    assert found["plain"][1] == bits
    assert bits < 32 * len(weights_P) * STEPS / 10


@pytest.mark.parametrize("case", ["small_buckets", "scaled", "restarted"])
def test_buckets_loss_scales_and_restarts_change_nothing(found, case):
    np.testing.assert_array_equal(found[case][0], found["plain"][0])
    assert found[case][1] == found["plain"][1]


def test_gradients_accumulate_before_they_are_exchanged(found):
    close = np.abs(found["micro"][0] - found["plain"][0]) < 1e-6
    assert close.mean() > 0.999  # another order of adding may move an element across the threshold


def test_a_step_that_one_rank_cannot_take_is_skipped_by_all(found):
    assert found["broken"][2] == [2]
    assert np.isfinite(found["broken"][0]).all()
