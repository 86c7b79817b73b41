"""Block momentum around torch's optimizers gives what comm.blocks does, in any script."""

import copy
import io

import forked
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from small_methods import method_of
from torch import nn
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from asr_train import schema
from asr_train.comm.block_optimizer import BlockMomentum
from asr_train.comm.bucket import Bucket
from asr_train.comm.ddp_hook import GtcHook
from asr_train.comm.reducers import Gradient

RANKS, STEPS, BLOCK = 2, 9, 4  # the last block is a part of one
RATE, MOMENTUM = 0.0625, 0.5
GTC = {"threshold": 0.25, "codec": "rice", "capacity": "exact"}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))


def loss_of(model, rank, step):
    rng = torch.Generator().manual_seed(100 * rank + step)
    x, y = torch.randn(8, 40, generator=rng), torch.randint(3, (8,), generator=rng)
    return nn.functional.cross_entropy(model(x), y, reduction="sum")


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def script(inner=sgd, restart_at=None, **options):
    """Train as a user would; return the common weights and the bytes received."""

    def main(rank):
        def begin(states=None):
            model = network()
            optimizer = BlockMomentum(model, inner(model), block_steps=BLOCK, **options)
            if states is not None:
                model.load_state_dict(states[0])
                optimizer.load_state_dict(states[1])
            return model, optimizer

        model, optimizer = begin()
        for step in range(STEPS):
            if step == restart_at:
                file = io.BytesIO()
                torch.save([model.state_dict(), optimizer.state_dict()], file)
                file.seek(0)
                model, optimizer = begin(torch.load(file, weights_only=True))
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        optimizer.end_block()
        optimizer.end_block()  # nothing is left to do
        with optimizer.exported():
            found = Bucket(model).weights_P.clone().numpy()
        return found, optimizer.received_bytes

    return main


def ours(rank, form="chen_huo"):
    """Train the same with our own method, all workers here."""
    model = network()
    bucket = Bucket(model)
    settings = {"block_steps": BLOCK, "form": form, "zeta": 1.0, "c": 1.0, "velocity": "keep"}
    size = len(bucket.weights_P)
    method = method_of("bmuf", RANKS, size=size, bmuf={**settings, "eta": None})
    method.begin(bucket.weights_P, MOMENTUM)
    for step in range(STEPS):
        for worker, replica in enumerate(method.replicas):
            bucket.point_at(replica.weights_P)
            bucket.zero_grad()
            loss_of(model, worker, step).backward()
            update = method.reduce(worker, [Gradient(bucket.grad_P, 8)])
            method.apply(worker, update, RATE)
        method.after_update()
    method.end_epoch()
    return method.exported().numpy(), None


def averaged_by_torch(rank):
    model = network()
    averager = averagers.PeriodicModelAverager(period=BLOCK)
    optimizer = PostLocalSGDOptimizer(sgd(model), averager)
    for step in range(BLOCK + 1):  # torch counts from 0, and averages after the first step, too
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return Bucket(model).weights_P.clone().numpy(), None


def averaged_by_us(rank):
    model = network()
    optimizer = BlockMomentum(model, sgd(model), block_steps=BLOCK, eta=0.0)
    for step in range(BLOCK + 1):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
        if step == 0:
            optimizer.end_block()
    return Bucket(model).weights_P.clone().numpy(), None


CASES = {
    "chen_huo": script(),
    "classical": script(form="classical"),
    "printed": script(form=schema.BlockForm.printed),
    "restarted": script(restart_at=6),
    "adam": script(adam),
    "adam_restarted": script(adam, restart_at=6),
    **{
        f"ours_{form.value}": lambda rank, form=form: ours(rank, form.value)
        for form in schema.BlockForm
    },
    "torch": averaged_by_torch,
    "plain": averaged_by_us,
}


@pytest.fixture(scope="module")
def found():
    """What each rank finds in each case, all in the same two processes."""

    def main(exchange):
        return {name: case(dist.get_rank()) for name, case in CASES.items()}

    ranks = forked.run(main, RANKS, RANKS)
    assert isinstance(ranks[0], dict), ranks[0]
    return ranks


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_have_the_same_model(found, name):
    np.testing.assert_array_equal(found[0][name][0], found[1][name][0])


@pytest.mark.parametrize("form", schema.BlockForm)
def test_it_is_bmuf_around_any_optimizer(found, form):
    weights_P = found[0][form.value][0]
    np.testing.assert_allclose(weights_P, found[0][f"ours_{form.value}"][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("case, same_as", [("restarted", "chen_huo"), ("adam_restarted", "adam")])
def test_a_script_that_starts_again_goes_on(found, case, same_as):
    np.testing.assert_array_equal(found[0][case][0], found[0][same_as][0])


def test_without_momentum_it_is_torchs_post_local_sgd(found):
    np.testing.assert_allclose(found[0]["plain"][0], found[0]["torch"][0], rtol=0, atol=1e-6)


def test_forms_and_optimizers_differ(found):
    several = [found[0][name][0] for name in ("chen_huo", "classical", "printed", "adam", "plain")]
    for number, weights_P in enumerate(several):
        assert all(np.abs(weights_P - other).max() > 1e-3 for other in several[:number])


def test_what_a_rank_receives_is_counted(found):
    weights_P, received = found[0]["chen_huo"]
    blocks = -(-STEPS // BLOCK)
    assert received == blocks * 4 * len(weights_P)  # half of the other's, and the sums of its half


def test_two_tiers_are_bmuf_gtc():
    """Groups of two under DDP with GTC, and block momentum across the two groups."""

    def main(exchange):
        rank = dist.get_rank()
        model = network()
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        gtc = schema.build(schema.GtcSettings, GTC)
        hook = GtcHook(model, gtc, process_group=pairs[rank // 2])
        ddp = DistributedDataParallel(model, process_group=pairs[rank // 2])
        ddp.register_comm_hook(hook, GtcHook.hook)
        inner = torch.optim.SGD(model.parameters(), lr=2 * RATE)  # DDP's gradients are means
        optimizer = BlockMomentum(model, inner, across[rank % 2], block_steps=BLOCK)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(ddp, rank, step).backward()
            optimizer.step()
        optimizer.end_block()
        with optimizer.exported():
            return Bucket(model).weights_P.clone().numpy()

    def by_our_method():
        model = network()
        bucket = Bucket(model)
        bmuf = {"block_steps": BLOCK, "form": "chen_huo", "zeta": 1.0, "c": 1.0, "eta": None}
        method = method_of(
            *("bmuf_gtc", 4),
            size=len(bucket.weights_P),
            gtc=GTC,
            bmuf={**bmuf, "velocity": "keep"},
            group_size=2,
        )
        method.begin(bucket.weights_P, 0.0)

        def gradients(group, step):
            for rank in (2 * group, 2 * group + 1):
                bucket.zero_grad()
                loss_of(model, rank, step).backward()
                yield Gradient(bucket.grad_P, 8)

        for step in range(STEPS):
            for group, replica in enumerate(method.replicas):
                bucket.point_at(replica.weights_P)
                method.apply(group, method.reduce(group, gradients(group, step)), RATE)
            method.after_update()
        method.end_epoch()
        return method.exported().numpy()

    ranks = forked.run(main, 4, 4)
    assert isinstance(ranks[0], np.ndarray), ranks[0]
    for weights_P in ranks[1:]:
        np.testing.assert_array_equal(weights_P, ranks[0])
    np.testing.assert_allclose(ranks[0], by_our_method(), rtol=0, atol=1e-6)


def test_an_evaluation_does_not_round_weights():
    def main(exchange):
        model = nn.Linear(3, 2).double()
        model.weight.data.add_(1e-12)
        before = model.weight.clone()
        with BlockMomentum(model, sgd(model), block_steps=4).exported():
            pass
        return torch.equal(model.weight, before)

    assert forked.run(main, RANKS, RANKS) == [True] * RANKS


@pytest.mark.parametrize("form", ["classical", "chen_huo", "printed"])
def test_rounded_weights_do_not_move_the_model(form):
    """One block trains; then the momentum dies away, and no rounding error takes its place."""

    def main(exchange):
        torch.manual_seed(0)
        model = nn.Linear(32, 32, bias=False, dtype=torch.bfloat16)
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = BlockMomentum(model, inner, block_steps=1, eta=0.75, form=form)
        move, weights = 0.001 * torch.randn(32, 32), []
        for block in range(100):
            model.weight.grad = ((block == 0) * move).to(torch.bfloat16)
            optimizer.step()
            with optimizer.exported():
                weights.append(model.weight.detach().float())
        optimizer.close()
        return float((weights[0] - weights[-1]).norm()), float((weights[60] - weights[-1]).norm())

    moved, late = forked.run(main, RANKS, RANKS)[0]
    assert moved > 0.01
    assert late == 0


def test_weights_may_be_loaded_until_the_first_step():
    def main(exchange):
        def train(model, optimizer):
            for step in range(2 * BLOCK):
                optimizer.zero_grad()
                loss_of(model, dist.get_rank(), step).backward()
                optimizer.step()
            return Bucket(model).weights_P.clone()

        model, other = network(), network()
        with torch.no_grad():
            model[0].weight.zero_()
        optimizer = BlockMomentum(other, sgd(other), block_steps=BLOCK)
        other.load_state_dict(model.state_dict())
        with optimizer.exported():
            assert torch.equal(other[0].weight, model[0].weight)
        found = train(other, optimizer)
        wanted = train(model, BlockMomentum(model, sgd(model), block_steps=BLOCK))
        return torch.equal(found, wanted)

    assert forked.run(main, RANKS, RANKS) == [True] * RANKS


def test_blocks_may_become_shorter_and_ranks_more():
    def main(exchange):
        model = network()
        optimizer = BlockMomentum(model, sgd(model), block_steps=4)
        for step in range(3):
            loss_of(model, dist.get_rank(), step).backward()
            optimizer.step()
        optimizer.end_block()
        loss_of(model, dist.get_rank(), 3).backward()
        optimizer.step()
        optimizer.step()
        state, delta_P = optimizer.state_dict(), optimizer._update.delta_P.clone()
        other = BlockMomentum(model, sgd(model), block_steps=1, eta=0.75)  # as of four ranks
        other.load_state_dict(state)
        begin_P = other._update.weights_P + 0.5 * delta_P
        gain_P = other._exchange.sum([other._weights()], len(begin_P)) / RANKS - begin_P
        with torch.no_grad():
            other.optimizer.zero_grad()
            other.step()  # the third of a block that is to have one
        torch.testing.assert_close(other._update.delta_P, 0.75 * delta_P + gain_P)
        return "moved"

    assert forked.run(main, RANKS, RANKS) == ["moved"] * RANKS


@pytest.mark.parametrize("differs", ["steps within the block", "momentum", "frozen parameters"])
def test_what_ranks_begin_with_or_have_loaded_is_compared(differs):
    """A script that is killed while it saves leaves ranks the states of different steps."""

    def main(exchange):
        rank, model = dist.get_rank(), network()
        model[0].requires_grad_(False)
        first = BlockMomentum(model, sgd(model), block_steps=2, form="classical", eta=0.9)
        states = []
        for step in range(4):
            loss_of(model, rank, step).backward()
            first.step()
            states.append(copy.deepcopy((model.state_dict(), first.state_dict())))
        own = rank if differs == "steps within the block" else 1
        weights, state = states[own]
        if differs == "momentum" and rank == 1:
            state["delta_P"] = states[3][1]["delta_P"]
        model.load_state_dict(weights)
        if differs == "frozen parameters":
            model[0].bias.data += rank
        other = BlockMomentum(model, sgd(model), block_steps=2, form="classical", eta=0.9)
        other.load_state_dict(state)
        with pytest.raises(ValueError, match=f"rank 1 of 2 begins with other {differs} than rank"):
            other.step()
        return "refused"

    assert forked.run(main, RANKS, RANKS) == ["refused"] * RANKS


def test_settings_of_numpy_leave_a_state_of_plain_data():
    def main(exchange):
        model, file = network(), io.BytesIO()
        for given in ({"eta": np.float64(0.5)}, {"zeta": np.float64(0.5)}):
            optimizer = BlockMomentum(model, sgd(model), block_steps=4, **given)
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
            with pytest.raises(ValueError, match="of 0 weights"):
                optimizer.load_state_dict({"weights_P": optimizer.state_dict()["weights_P"]})
            file.seek(0)
        dist.destroy_process_group()
        optimizer.close()  # late, as in a `finally`
        return "loaded"

    assert forked.run(main, RANKS, RANKS) == ["loaded"] * RANKS


def test_copies_and_foreign_optimizers_are_refused_and_do_not_harm_others():
    def main(exchange):
        model = network()
        with pytest.raises(TypeError, match=r"the optimizer is <class .*SGD'>; make one"):
            BlockMomentum(model, torch.optim.SGD, block_steps=1)
        with pytest.raises(ValueError, match="has no parameter of the model"):
            BlockMomentum(model, sgd(network()), block_steps=1)
        optimizer = BlockMomentum(model, sgd(model), block_steps=1)
        for copied in (copy.deepcopy, lambda given: torch.save(given, io.BytesIO())):
            with pytest.raises(TypeError, match="BlockMomentum cannot be copied or pickled"):
                copied(optimizer)
        loss_of(model, dist.get_rank(), 0).backward()
        optimizer.step()
        return "trained"

    assert forked.run(main, RANKS, RANKS) == ["trained"] * RANKS


def test_schedules_apply_and_wrong_numbers_and_new_parameters_are_refused():
    def main(exchange):
        model = network()
        with pytest.raises(ValueError, match=r"^timeout_seconds is 1e\+30; it must lie in"):
            BlockMomentum(model, sgd(model), block_steps=4, timeout_seconds=1e30)
        with pytest.raises(ValueError, match="block_steps is 0"):
            BlockMomentum(model, sgd(model), block_steps=0)
        with pytest.raises(ValueError, match=r"zeta is 3\.0, more than 2 ranks; set eta"):
            BlockMomentum(model, sgd(model), block_steps=4, zeta=3.0)
        for odd in (nn.Linear(2, 3, dtype=torch.complex64), nn.Linear(2, 3, device="meta")):
            both = nn.Sequential(network(), odd)
            with pytest.raises(ValueError, match=r"parameter 1\.weight is torch\..* on "):
                BlockMomentum(both, sgd(model), block_steps=4)
        with pytest.raises(ValueError, match="no parameter of the model needs a gradient"):
            BlockMomentum(network().requires_grad_(False), sgd(model), block_steps=4)
        optimizer = BlockMomentum(model, sgd(model), block_steps=4)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        optimizer.step()
        schedule.step()
        assert optimizer.optimizer.param_groups[0]["lr"] == RATE / 2
        taken = []
        optimizer.register_step_post_hook(lambda *_: taken.append(1))
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=9)
        optimizer.step()
        cycle.step()
        assert taken == [1]
        saved = optimizer.register_state_dict_post_hook(lambda *_: taken.append(2))
        loaded = optimizer.register_load_state_dict_pre_hook(lambda *_: taken.append(3))
        optimizer.load_state_dict(optimizer.state_dict())
        assert taken == [1, 2, 3]
        for each in (saved, loaded):
            each.remove()
        inner = optimizer.optimizer.state_dict()
        with pytest.raises(ValueError, match=r"of 0 weights, but the model has 1323; a state of"):
            optimizer.load_state_dict(inner)
        for needed in (False, True):
            model[0].requires_grad_(needed)
            other = BlockMomentum(model, sgd(model), block_steps=1)
            model[0].requires_grad_(not needed)
            with pytest.raises(ValueError, match=r"0\.weight was frozen or unfrozen since"):
                other.step()
        model[0].requires_grad_(True)
        with torch.no_grad():
            model[2].bias += dist.get_rank()
        with pytest.raises(ValueError, match="rank 1 of 2 begins with other weights than rank 0"):
            BlockMomentum(model, sgd(model), block_steps=4).step()
        with pytest.raises(ValueError, match="when it was made"):
            optimizer.add_param_group({"params": [torch.zeros(3, requires_grad=True)]})
        return "refused"

    assert forked.run(main, RANKS, RANKS) == ["refused"] * RANKS
