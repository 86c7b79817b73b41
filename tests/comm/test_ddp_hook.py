"""In an independent DDP script, exchanges give what they give in ours, for any DDP buckets."""

import copy
import io
import multiprocessing
import os
import re
import time
from dataclasses import replace

import forked
import numpy as np
import pytest
import torch
import torch.distributed as dist
from small_methods import method_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from asr_train import schema
from asr_train.comm.block_optimizer import BlockMomentum
from asr_train.comm.bucket import Bucket
from asr_train.comm.codec import MessageError
from asr_train.comm.ddp_hook import GtcHook, OneBitHook
from asr_train.comm.exchange import LENGTH_BYTES, ExchangeError
from asr_train.comm.reducers import Gradient, dense
from asr_train.facts import HEADER_BYTES
from asr_train.schema import AdaptiveSettings, SettingsError

GTC = {"threshold": 0.25, "codec": "rice", "capacity": "fixed"}
SETTINGS = schema.GtcSettings(**GTC)
STEPS, RANKS = 6, 2


@pytest.fixture(autouse=True, scope="module")
def optimisers_are_loaded():
    """Import torch.optim once here, not in each process: it takes five seconds."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


class Net(nn.Module):
    """Layers for several buckets; one is used in even steps only, or always."""

    def __init__(self, always=False):
        super().__init__()
        self.always = always
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(40, 90), nn.Linear(90, 90)
        self.sometimes, self.last = nn.Linear(90, 90), nn.Linear(90, 3)
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)

    def forward(self, x, step):
        hidden = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(self.sometimes(hidden) if self.always or step % 2 == 0 else hidden)


def loss_of(model, rank, step, part=slice(None), amp=False):
    rng = torch.Generator().manual_seed(100 * rank + step)
    x, y = torch.randn(8, 40, generator=rng), torch.randint(3, (8,), generator=rng)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        logits = model(x[part], step).float()
    return nn.functional.cross_entropy(logits, y[part], reduction="sum")


def script(
    scale=1.0,
    broken_at=None,
    micro=1,
    restart_at=None,
    amp=False,
    always=False,
    start_iter=0,
    hooked=True,
    onebit=False,
    **options,
):
    """Train as a user would: DDP, the hook, torch's SGD."""

    def main(exchange):
        rank = exchange.local[0]

        def begin(weights=None, state=None):
            model = Net(always)
            if weights is not None:
                model.load_state_dict(weights)
            gtc = (
                OneBitHook(model, start_iter=start_iter)
                if onebit
                else GtcHook(model, SETTINGS, start_iter=start_iter)
            )
            if state is not None:
                gtc.load_state_dict(state)
            ddp = DistributedDataParallel(model, **{"find_unused_parameters": True, **options})
            if hooked:
                ddp.register_comm_hook(gtc, GtcHook.hook)
            trained = [p for p in model.parameters() if p.requires_grad]
            return model, gtc, ddp, torch.optim.SGD(trained, lr=0.0625)

        model, gtc, ddp, sgd = begin()
        skipped = []
        for step in range(STEPS):
            if step == restart_at:
                file = io.BytesIO()
                torch.save([model.state_dict(), gtc.state_dict()], file)
                file.seek(0)
                model, gtc, ddp, sgd = begin(*torch.load(file, weights_only=True))
            sgd.zero_grad()
            gtc.loss_scale = scale
            parts = [slice(i * 8 // micro, (i + 1) * 8 // micro) for i in range(micro)]
            for part in parts[:-1]:
                with ddp.no_sync():
                    (scale * loss_of(ddp, rank, step, part, amp)).backward()
            loss = scale * loss_of(ddp, rank, step, parts[-1], amp)
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


def ours(amp=False, onebit=False):
    """Train the same with our own method and without DDP."""
    model = Net()
    bucket = Bucket(model)
    size = bucket.weights_P.numel() - 5
    method = method_of("onebit", RANKS, size) if onebit else method_of("gtc", RANKS, size, gtc=GTC)
    shapes = [slot.shape for slot in bucket.table if slot.name != "frozen"]
    method.begin(torch.zeros(size), 0.0, shapes)
    is_frozen_P = torch.zeros(len(bucket.weights_P), dtype=torch.bool)
    (frozen,) = [slot for slot in bucket.table if slot.name == "frozen"]
    is_frozen_P[frozen.offset : frozen.offset + 5] = True

    def gradients(step):
        for rank in range(RANKS):
            bucket.zero_grad()
            loss_of(model, rank, step, amp=amp).backward()
            yield Gradient(bucket.grad_P[~is_frozen_P], 8)

    for step in range(STEPS):
        total_P = dense(method.reduce(0, gradients(step)))
        bucket.weights_P[~is_frozen_P] -= 0.0625 * (total_P / RANKS)
    return bucket.weights_P.numpy(), method.take_sent(0).bits


CASES = {
    "plain": {},
    "small_buckets": {"bucket_cap_mb": 0.02},
    "scaled": {"scale": 1024.0},
    "restarted": {"restart_at": 3},
    "micro": {"micro": 4},
    "broken": {"broken_at": (1, 2)},
    "views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.02},
    "amp": {"amp": True},
    "amp_small_buckets": {"amp": True, "bucket_cap_mb": 0.02},
    "onebit": {"onebit": True},
    "onebit_restarted": {"onebit": True, "restart_at": 3, "bucket_cap_mb": 0.02},
    "onebit_scaled": {"onebit": True, "scale": 1024.0},
    "onebit_broken": {"onebit": True, "broken_at": (1, 2)},
    "always": {"always": True},
    # DDP rebuilds its buckets after the first step, if it need not look for unused parameters
    "rebuilt": {"always": True, "find_unused_parameters": False, "bucket_cap_mb": 0.02},
    "static": {"always": True, "static_graph": True, "bucket_cap_mb": 0.02},
    "dense": {"hooked": False},
    "warm_up": {"start_iter": STEPS},
    "warm_up_small_buckets": {"start_iter": STEPS, "bucket_cap_mb": 0.02},
    "warmed_up": {"start_iter": 2},
    "warmed_up_restarted": {"start_iter": 2, "restart_at": 1, "bucket_cap_mb": 0.02},
    "warmed_up_scaled": {"start_iter": 2, "scale": 1024.0, "restart_at": 4},
    "rebuilt_micro": {
        **{"always": True, "find_unused_parameters": False, "bucket_cap_mb": 0.02},
        "micro": 4,
    },
}
OURS = {"ours": {}, "ours_amp": {"amp": True}, "ours_onebit": {"onebit": True}}


@pytest.fixture(scope="module")
def found():
    """Weights, bits and skipped steps of each case, all in the same two processes."""

    def main(exchange):
        return {
            **{name: script(**case)(exchange) for name, case in CASES.items()},
            **{name: ours(**case) for name, case in OURS.items()},
        }

    first, second = forked.run(main, RANKS, RANKS)
    assert isinstance(first, dict), first
    for name in CASES:
        np.testing.assert_array_equal(first[name][0], second[name][0])
    return first


@pytest.mark.parametrize(
    "case, own", [("plain", "ours"), ("amp", "ours_amp"), ("onebit", "ours_onebit")]
)
def test_a_ddp_script_gives_what_our_own_method_gives(found, case, own):
    weights_P, bits = found[own]
    np.testing.assert_allclose(found[case][0], weights_P, rtol=0, atol=1e-6)
    assert found[case][1] == bits
    assert bits < 32 * len(weights_P) * STEPS / 10


def test_bf16_is_another_run(found):
    assert np.abs(found["amp"][0] - found["plain"][0]).max() > 1e-3


@pytest.mark.parametrize(
    "case, same_as",
    [
        *(("small_buckets", "plain"), ("scaled", "plain"), ("restarted", "plain")),
        *(("views", "plain"), ("amp_small_buckets", "amp")),
        *(("onebit_restarted", "onebit"), ("onebit_scaled", "onebit")),
        *(("rebuilt", "always"), ("static", "always")),
        *(("warmed_up_restarted", "warmed_up"), ("warmed_up_scaled", "warmed_up")),
        ("warm_up_small_buckets", "warm_up"),
    ],
)
def test_buckets_loss_scales_and_restarts_change_nothing(found, case, same_as):
    np.testing.assert_array_equal(found[case][0], found[same_as][0])
    assert found[case][1] == found[same_as][1]


@pytest.mark.parametrize("case, whole", [("micro", "plain"), ("rebuilt_micro", "rebuilt")])
def test_gradients_accumulate_before_they_are_exchanged(found, case, whole):
    close = np.abs(found[case][0] - found[whole][0]) < 1e-6
    assert close.mean() > 0.999  # another order of sums may move an element across the threshold


@pytest.mark.parametrize("case", ["broken", "onebit_broken"])
def test_a_step_that_one_rank_cannot_take_is_skipped_by_all(found, case):
    assert found[case][2] == [2]
    assert np.isfinite(found[case][0]).all()


def test_a_warm_up_is_plain_ddp(found):
    np.testing.assert_array_equal(found["warm_up"][0], found["dense"][0])
    assert found["warm_up"][1] == 32 * STEPS * (len(found["dense"][0]) - 5)  # 5 are frozen
    assert np.abs(found["warmed_up"][0] - found["dense"][0]).max() > 1e-3
    assert np.abs(found["warmed_up"][0] - found["plain"][0]).max() > 1e-3
    assert found["plain"][1] < found["warmed_up"][1] < found["warm_up"][1]


@pytest.mark.parametrize("more", [False, True])
def test_each_of_two_groups_is_a_ddp_of_its_own(more):
    """Ranks 0 and 2 of four have the results of two ranks; 1 and 3 have different data.

    Also where a rank of each is in one group more, by whose number torch would name new groups.
    """

    def train(ranks, rank, **given):
        model = Net(always=True)
        gtc = GtcHook(model, SETTINGS, **given)
        ddp = DistributedDataParallel(model, process_group=given.get("process_group"))
        ddp.register_comm_hook(gtc, GtcHook.hook)
        sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0625)
        for step in range(STEPS):
            sgd.zero_grad()
            loss_of(ddp, ranks[rank], step).backward()
            sgd.step()
        return Bucket(model).weights_P.numpy(), gtc.sent.bits

    def main(exchange):
        rank = exchange.local[0]
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        if more:
            dist.new_group([0, 3])
        with pytest.raises(ValueError, match=f"rank {rank} is not in process_group"):
            GtcHook(Net(), SETTINGS, process_group=groups[1 - rank % 2])
        found = train([0, 7, 1, 8], rank, process_group=groups[rank % 2])
        exchange.barrier()
        return found

    zero, one, two, three = forked.run(main, 4, 4)
    alone = forked.run(lambda exchange: train([0, 1], exchange.local[0]), 2, 2)
    for found, wanted in ((zero, alone[0]), (two, alone[1])):
        np.testing.assert_array_equal(found[0], wanted[0])
        assert found[1] == wanted[1] > 0
    np.testing.assert_array_equal(one[0], three[0])
    assert np.abs(one[0] - zero[0]).max() > 1e-3


def test_arguments_that_are_no_numbers_are_refused_by_name():
    for given in ("0.1", None):
        with pytest.raises(SettingsError, match=f"threshold is {given!r}"):
            replace(SETTINGS, threshold=given)
    adaptive = {"density": 0.01, "band": 1.25, "factor": 1.1}
    assert replace(SETTINGS, adaptive=adaptive).adaptive == AdaptiveSettings(**adaptive)
    for wrong in ({"max_norm": "1"}, {"timeout_seconds": 1e10}, {"start_iter": -1}):
        with pytest.raises(SettingsError, match=f"^{next(iter(wrong))} is "):
            GtcHook(Net(), SETTINGS, **wrong)
    with pytest.raises(TypeError, match=r"^GtcHook: the settings are 0.001; give GtcSettings"):
        GtcHook(Net(), 0.001)


class Odd(nn.Module):
    """A layer that one rank alone uses, in turns; and weights in another order of dimensions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.turns, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.image = nn.Conv2d(3, 2, 2)

    def forward(self, x, mine):
        hidden = self.first(x)
        hidden = self.last(self.turns(hidden) if mine else hidden)
        return self.image(hidden.view(-1, 3, 2, 2))


@pytest.mark.parametrize("kind", ["gtc", "onebit"])
def test_views_of_buckets_and_layouts_change_nothing(kind):
    def train(rank, view, layout):
        model = Odd().to(memory_format=layout)
        hook = GtcHook(model, SETTINGS) if kind == "gtc" else OneBitHook(model)
        ddp = DistributedDataParallel(
            model, gradient_as_bucket_view=view, find_unused_parameters=True
        )
        ddp.register_comm_hook(hook, type(hook).hook)
        sgd = torch.optim.SGD(model.parameters(), lr=0.0625)
        for step in range(STEPS):
            rng = torch.Generator().manual_seed(10 * rank + step)
            sgd.zero_grad()
            ddp(torch.randn(4, 12, generator=rng), step % 2 == rank).square().sum().backward()
            sgd.step()
        return Bucket(model).weights_P.contiguous().numpy()

    def main(exchange):
        rank = exchange.local[0]
        plain, strided = torch.contiguous_format, torch.channels_last
        return [train(rank, *how) for how in ((False, plain), (True, plain), (True, strided))]

    (first, *others), second = forked.run(main, 2, 2)
    assert np.abs(first - Bucket(Odd()).weights_P.numpy()).max() > 1e-3
    for found in (*others, *second):
        np.testing.assert_allclose(found, first, rtol=0, atol=1e-6)


def test_parameters_that_ddp_leaves_out_send_what_they_owe_and_stop_no_step():
    """One that no rank uses any more, with gradients kept or dropped; one that DDP ignores."""

    def train(rank, drops):
        model = Odd()
        model.ignored = nn.Linear(3, 3)
        names = ["ignored.weight", "ignored.bias"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        ddp.register_comm_hook(GtcHook(model, SETTINGS), GtcHook.hook)
        sgd = torch.optim.SGD(model.parameters(), lr=0.0625)
        found = []
        for step in range(4):
            rng = torch.Generator().manual_seed(10 * rank + step)
            sgd.zero_grad(set_to_none=drops)
            loss = ddp(torch.randn(4, 12, generator=rng), step == 0).square().sum()
            loss = 100 * loss if step == 0 else loss  # several thresholds
            (loss * torch.nan if (rank, step) == (1, 2) else loss).backward()
            if model.last.weight.grad.isfinite().all():
                sgd.step()
            found.append([model.turns.weight.detach().clone(), model.last.weight.detach().clone()])
        return found

    def main(exchange):
        dropped, kept = (train(exchange.local[0], drops) for drops in (True, False))
        for ours, theirs in zip(dropped, kept, strict=True):
            assert all(map(torch.equal, ours, theirs))
        (first, _), (second, _), (_, broken), (_, last) = kept
        assert not torch.equal(first, second)  # of what is owed
        assert not torch.equal(broken, last)
        return "trained"

    assert forked.run(main, 2, 2) == ["trained"] * 2


@pytest.mark.parametrize("view", [False, True])
def test_a_parameter_that_is_frozen_later_stays_as_it_is(view):
    """Although it is owed some."""

    def main(exchange):
        model = Net(always=True)
        ddp = DistributedDataParallel(
            model, find_unused_parameters=True, gradient_as_bucket_view=view
        )
        ddp.register_comm_hook(GtcHook(model, SETTINGS), GtcHook.hook)
        sgd = torch.optim.SGD(model.parameters(), lr=0.0625)
        for step in range(4):
            if step == 2:
                model.first.requires_grad_(False)
                kept, moved = model.first.weight.clone(), model.last.weight.detach().clone()
            sgd.zero_grad(set_to_none=not view)
            (100 * loss_of(ddp, exchange.local[0], step)).backward()
            sgd.step()
        return torch.equal(model.first.weight, kept), torch.equal(model.last.weight, moved)

    assert forked.run(main, 2, 2) == [(True, False)] * 2


@pytest.mark.parametrize("kind", [GtcHook, OneBitHook])
def test_ranks_may_run_out_of_data_and_unused_parameters_are_left_alone(kind):
    """With DDP's join, wherever the script drops gradients; and weight decay as without a hook."""

    def train(rank, drops_last):
        model = Net(always=True)
        model.first.never = nn.Linear(3, 3)
        hook = kind(model, *([SETTINGS] if kind is GtcHook else []))
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        ddp.register_comm_hook(hook, kind.hook)
        trained = [p for p in model.parameters() if p.requires_grad]
        sgd = torch.optim.SGD(trained, lr=0.0625, weight_decay=0.5)
        never = model.first.never.weight.clone()
        with ddp.join():
            for step in range(2 + 2 * rank):
                if not drops_last:
                    sgd.zero_grad()
                loss_of(ddp, rank, step).backward()
                sgd.step()
                if drops_last:
                    sgd.zero_grad()
        assert torch.equal(model.first.never.weight, never)
        return Bucket(model).weights_P.numpy()

    def main(exchange):
        return [train(exchange.local[0], drops_last) for drops_last in (False, True)]

    (first, *others), second = forked.run(main, 2, 2)
    for found in (*others, *second):
        np.testing.assert_array_equal(found, first)


@pytest.mark.parametrize("onebit", [False, True], ids=["gtc", "onebit"])
def test_what_a_rank_receives_is_counted(onebit):
    """By hand, for two ranks, after a dense step and after another."""

    def main(exchange):
        rank, model = exchange.local[0], nn.Linear(16, 3)  # 51 parameters
        settings = replace(SETTINGS, capacity=schema.Capacity.exact, threshold=0.5)
        hook = OneBitHook(model, start_iter=1) if onebit else GtcHook(model, settings, start_iter=1)
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(hook, GtcHook.hook)
        found = []
        for _ in range(2):
            ddp((1.0 + rank) * torch.arange(16.0)[None]).sum().backward()
            found.append((hook.sent.bits // 8, hook.sent.received_bits // 8))
        return found

    ((plain, first), (sent, end)), ((_, other_first), (other_sent, other_end)) = forked.run(
        main, RANKS, RANKS
    )
    assert first == other_first == 4 * 51  # a half of the other's, and the other half's sums
    if onebit:
        # A part of 8 columns each, the second with the bias: two floats and 3 bits per column
        parts = 8 * 8 + 3, (8 * 8 + 3) + (8 + 1)
        # Messages about the own part, and the other's new part, padded to the longer one
        expected = [2 * HEADER_BYTES + part + max(parts) for part in parts]
    else:  # all messages are padded to the longest, and their lengths come before them
        expected = [LENGTH_BYTES + max(sent, other_sent) - plain] * 2
    assert [end - first, other_end - first] == expected


def test_a_schedule_may_set_the_threshold_on_all_ranks_alike():
    """Elements that exceed it are sent as one quantum of it: here all, once it has fallen."""

    def main(exchange):
        rank, model = exchange.local[0], nn.Linear(3, 2, bias=False)
        hook = GtcHook(model, schema.build(schema.GtcSettings, {**GTC, "threshold": 100.0}))
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(hook, GtcHook.hook)
        for tau, sent in ((hook.threshold, 0.0), (0.1, 0.1)):
            hook.threshold = tau
            model.weight.grad = None
            ddp(torch.ones(1, 3)).sum().backward()
            assert torch.equal(model.weight.grad, torch.full((2, 3), sent))
        with pytest.raises(ValueError, match="threshold is -1"):
            hook.threshold = -1.0
        with pytest.raises(ValueError, match="max_norm is 0"):
            GtcHook(model, SETTINGS, max_norm=0.0)
        hook.threshold = 0.1 + rank
        with pytest.raises(MessageError, match="expected; were all workers started from the same"):
            ddp(torch.ones(1, 3)).sum().backward()
        return "set"

    assert forked.run(main, 2, 2) == ["set"] * 2


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_gradient_is_clipped_before_it_is_exchanged(scale):
    """Of one rank, whose norm is 60; the other's is below the limit."""

    def main(exchange):
        rank, model = exchange.local[0], nn.Linear(1, 9, bias=False)
        hook = GtcHook(model, SETTINGS, max_norm=3.0)
        hook.loss_scale = scale
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(hook, GtcHook.hook)
        (scale * ddp(torch.tensor([[0.5, 20.0][rank]])[None]).sum()).backward()
        sent_P = 0.25 * scale  # of each rank; the rest stays
        assert torch.equal(model.weight.grad, torch.full((9, 1), sent_P))
        return hook.state_dict()["worker"]["owed"]["residual_P"].numpy()

    for found, kept in zip(forked.run(main, 2, 2), (0.25, 0.75), strict=True):
        np.testing.assert_allclose(found, kept, rtol=0, atol=1e-6)


def test_states_of_others_and_parameters_that_a_hook_cannot_take_are_refused():
    def hooked(hook, model):
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(hook, GtcHook.hook)
        return ddp

    def main(exchange):
        rank = exchange.local[0]
        hook, alike = GtcHook(Net(), SETTINGS), OneBitHook(Net())
        states = exchange.plain([{"identity": hook.state_dict()["identity"]}])
        for other, state in ((hook, states[1 - rank]), (alike, states[rank])):
            with pytest.raises(ValueError, match=f"a {state['identity']}, but the hook is a "):
                other.load_state_dict(state)
        wide, tall = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)  # of equal sizes
        for kind in (lambda model: GtcHook(model, SETTINGS), OneBitHook):
            with pytest.raises(ValueError, match=r"of shape \[2, 6\], where .* has \[6, 2\]; load"):
                kind(tall).load_state_dict(kind(wide).state_dict())
        groups = [dist.new_group([0, 1]), dist.new_group([1, 0])]  # the second one is sorted, too
        states = [GtcHook(Net(), SETTINGS, process_group=group).state_dict() for group in groups]
        hook.load_state_dict(states[1])
        with pytest.raises(
            ValueError, match=r"group has the ranks \[2, 3\], but .* \[0, 1\]; load"
        ):
            hook.load_state_dict(states[0] | {"members": [2, 3]})
        with pytest.raises(ValueError, match="no state of a GtcHook, for it lacks 'group'"):
            hook.load_state_dict({})
        model = Net(always=True)
        model.second.requires_grad_(False)
        hook = GtcHook(model, SETTINGS, start_iter=3)  # refused at once, nevertheless
        model.second.requires_grad_(True)
        ddp = hooked(GtcHook(wide, SETTINGS), wide.double())  # after the hook was made
        with pytest.raises(ValueError, match=r"in float32, not torch\.float64; leave the"):
            ddp(torch.ones(1, 6, dtype=torch.float64)).sum().backward()
        ddp = hooked(GtcHook(tall, SETTINGS, start_iter=2 + rank), tall)
        unlike = f"start_iter is {2 + rank} on rank {rank}, but {3 - rank} on rank {1 - rank}"
        with pytest.raises(ValueError, match=unlike):
            ddp(torch.ones(1, 2)).sum().backward()
        ddp = hooked(hook, model)
        with pytest.raises(ValueError, match=r"shape \(\d+,.*was frozen when the hook was made"):
            loss_of(ddp, rank, 0).backward()
        table = nn.Embedding(9, 3, sparse=True)
        ddp = hooked(GtcHook(table, SETTINGS, start_iter=3), table)
        with pytest.raises(ValueError, match="set sparse=False"):
            ddp(torch.tensor([1])).sum().backward()
        with pytest.raises(TypeError, match=r"GtcHook cannot be copied .* ddp\.module instead"):
            copy.deepcopy(ddp)
        with pytest.raises(TypeError, match="state is a NoneType; give the object of the hook"):
            GtcHook.hook(None, torch.zeros(3))
        for given in (torch.zeros(3), (torch.zeros(4), torch.zeros(2))):  # of FSDP
            with pytest.raises(TypeError, match="GtcHook is for DistributedDataParallel; FSDP"):
                GtcHook.hook(hook, *given)
        return "refused"

    assert forked.run(main, 2, 2) == ["refused"] * 2


def test_a_closed_hook_gives_its_connections_back():
    def main(exchange):
        def made():
            hook, model = GtcHook(Net(), SETTINGS), Net()
            block = BlockMomentum(model, torch.optim.SGD(model.parameters(), lr=1.0), block_steps=1)
            for each in (hook, hook, block):
                each.close()
            return len(os.listdir("/proc/self/fd"))

        first = made()
        for _ in range(5):
            made()
        # The other rank's end is noticed, and this one closed, by threads of their own
        for _ in range(600):
            if len(os.listdir("/proc/self/fd")) <= first:
                return True
            time.sleep(0.1)
        return False

    assert forked.run(main, 2, 2) == [True, True]


@pytest.mark.parametrize("in_group", [False, True])
def test_a_rank_that_does_not_answer_in_the_stated_time_is_an_error(in_group):
    """Of three ranks, the last one takes no step until the others have raised their error."""
    gave_up = multiprocessing.get_context("fork").Semaphore(0)

    def main(exchange):
        rank = exchange.local[0]
        group = dist.new_group([1, 2])
        if in_group and rank == 0:
            return None
        model = Net(always=True)
        # Groups are also created within that time; so all begin together, and the time is long
        # enough for a busy machine
        dist.barrier(group if in_group else None)
        gtc = GtcHook(model, SETTINGS, 15.0, process_group=group if in_group else None)
        ddp = DistributedDataParallel(model, process_group=group if in_group else None)
        ddp.register_comm_hook(gtc, GtcHook.hook)
        if rank == 2:
            return all(
                gave_up.acquire(timeout=forked.PATIENCE_SECONDS)
                for _ in range(1 if in_group else 2)
            )
        try:
            loss_of(ddp, rank, 0).backward()
        except ExchangeError as error:
            gave_up.release()
            return str(error)

    first, second, last = forked.run(main, 3, 3)
    assert last is True, "nobody gave up"
    for said in [second] if in_group else [first, second]:
        assert re.match(
            r"process (\d, )?2 of 3 did not answer in .* s \(timeout_seconds is 15;", said
        )
