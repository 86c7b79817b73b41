"""Block momentum compared with torch's SGD and the printed equations, and its special cases."""

import pytest
import torch
from small_methods import BMUF, CPU, GTC, SIZE, Run, method_of

from asr_train import schema
from asr_train.comm.blocks import BlockUpdate, MomentumBlocks
from asr_train.comm.exchange import hosted
from asr_train.comm.loopback import Loopback
from asr_train.comm.optimizer import Momentum, Replica
from asr_train.comm.reducers import Sent
from asr_train.schema import BlockForm

ETA, ZETA = 0.75, 0.5


def means(count=6):
    """Return functions that give the mean of the weights at a block's end, from its start."""
    rng = torch.Generator().manual_seed(0)
    pulls = torch.randn(count, SIZE, generator=rng)
    return [lambda start_P, pull_P=pull_P: 0.9 * start_P + 0.1 * pull_P for pull_P in pulls]


def blocks(form, eta=ETA, zeta=ZETA):
    start_P = torch.linspace(-1, 1, SIZE)
    momentum = BlockUpdate(form, eta, zeta, start_P)
    for mean in means():
        start_P = momentum.step(mean(start_P))
        yield momentum, start_P.clone()


@pytest.mark.parametrize(
    "form, nesterov", [(BlockForm.chen_huo, True), (BlockForm.classical, False)]
)
def test_torchs_sgd_on_the_block_gradient_is_where_workers_begin(form, nesterov):
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, SIZE))
    sgd = torch.optim.SGD([parameter], lr=ZETA, momentum=ETA, nesterov=nesterov)
    for (_, start_P), mean in zip(blocks(form), means(), strict=True):
        parameter.grad = parameter.detach() - mean(parameter.detach())
        sgd.step()
        torch.testing.assert_close(start_P, parameter.detach())


@pytest.mark.parametrize("form", BlockForm)
def test_without_momentum_zeta_is_the_rate_of_torchs_sgd(form):
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, SIZE))
    sgd = torch.optim.SGD([parameter], lr=ZETA)
    for (_, start_P), mean in zip(blocks(form, eta=0.0), means(), strict=True):
        parameter.grad = parameter.detach() - mean(parameter.detach())
        sgd.step()
        torch.testing.assert_close(start_P, parameter.detach())


def test_the_model_of_chen_and_huo_lies_behind_where_workers_begin():
    for momentum, start_P in blocks(BlockForm.chen_huo):
        torch.testing.assert_close(start_P, momentum.weights_P + ETA * momentum.delta_P)


def test_equation_4_as_it_is_printed():
    weights_P, delta_P = torch.linspace(-1, 1, SIZE), torch.zeros(SIZE)
    for (momentum, start_P), mean in zip(blocks(BlockForm.printed), means(), strict=True):
        gain_P = mean(weights_P) - weights_P
        delta_P = ETA * delta_P + ZETA * gain_P
        weights_P = weights_P + delta_P + ETA * delta_P
        torch.testing.assert_close(momentum.weights_P, weights_P)
        assert torch.equal(start_P, momentum.weights_P)


def test_equation_4_is_classical_momentum_with_a_larger_block_rate():
    twice = blocks(BlockForm.classical, zeta=ZETA * (1 + ETA))
    for (_, start_P), (_, other_P) in zip(blocks(BlockForm.printed), twice, strict=True):
        torch.testing.assert_close(start_P, other_P, rtol=1e-6, atol=4e-7)


@pytest.mark.parametrize("form", BlockForm)
def test_without_momentum_a_block_is_the_mean_to_the_bit(form):
    mean_P = torch.linspace(-1, 1, SIZE)
    for (momentum, start_P), mean in zip(blocks(form, eta=0.0, zeta=1.0), means(), strict=True):
        mean_P = mean(mean_P)
        assert torch.equal(start_P, mean_P)
        assert torch.equal(momentum.weights_P, mean_P)


@pytest.mark.parametrize("form", BlockForm)
def test_bmuf_without_momentum_is_model_averaging_to_the_bit(form):
    plain = {**BMUF, "form": form.name, "eta": 0.0, "velocity": "keep"}
    bmuf = Run(method_of("bmuf", 4, bmuf=plain), momentum=0.5).steps(10)
    averaging = Run(method_of("model_averaging", 4), momentum=0.5).steps(10)
    for a, b in zip(bmuf.weights(), averaging.weights(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("form", BlockForm)
@pytest.mark.parametrize("workers", [1, 4])
def test_groups_of_one_are_bmuf_to_the_bit(form, workers):
    given = {**BMUF, "form": form.name}
    groups = Run(method_of("bmuf_gtc", workers, bmuf=given, group_size=1), momentum=0.5).steps(10)
    alone = Run(method_of("bmuf", workers, bmuf=given), momentum=0.5).steps(10)
    assert groups.log == alone.log


@pytest.mark.parametrize("workers", [2, 4])
def test_one_group_is_gtc_to_the_bit(workers):
    group = Run(method_of("bmuf_gtc", workers, group_size=workers), momentum=0.5).steps(10)
    gtc = Run(method_of("gtc", workers, gtc=GTC), momentum=0.5).steps(10)
    assert group.log == gtc.log


def test_workers_share_models_by_groups_and_meet_at_the_end_of_blocks():
    run = Run(method_of("bmuf_gtc", 4))
    for step in range(1, 7):
        run.steps(1)
        a, b = run.weights()
        assert torch.equal(a, b) == (step % 3 == 0)


def test_the_mean_is_over_models_not_over_workers():
    plain = {**BMUF, "eta": 0.0, "zeta": 1.0}
    run = Run(method_of("bmuf_gtc", 4, bmuf=plain)).steps(2)
    a, b = (weights_P.clone() for weights_P in run.weights())
    run.method.end_epoch()
    assert not torch.equal(a, b)
    for weights_P in run.weights():
        torch.testing.assert_close(weights_P, (a + b) / 2)


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 6])
def test_a_groups_model_is_sent_where_its_first_worker_is(processes):
    """Six workers in groups of two; a process may host half of one group and all of another."""
    for process in range(processes):
        exchange, given = Loopback(range(6), CPU), []
        exchange.local = local = hosted(6, process, processes)

        def total(vectors, size, senders, given=given):
            given += [int(vector_P[0]) for vector_P in vectors]
            return torch.zeros(size)

        exchange.sum = total
        groups = MomentumBlocks(exchange, [0, 2, 4], schema.build(schema.BmufSettings, BMUF))
        groups.begin(torch.zeros(SIZE))
        models = [torch.full((SIZE,), float(n)) for n in sorted({w // 2 for w in local})]
        replicas = [Replica(model_P, Momentum(model_P, 0.0)) for model_P in models]
        sent = {worker: Sent() for worker in local}
        for _ in range(3):
            groups.after_update(replicas, sent)
        assert given == [w // 2 for w in local if w % 2 == 0]
        assert [sent[w].elements for w in local] == [SIZE * (w % 2 == 0) for w in local]


def test_residuals_live_on_across_the_end_of_a_block():
    run = Run(method_of("bmuf_gtc", 4)).steps(3)
    assert all(run.method.worker_state(w)["owed"]["residual_P"].any() for w in range(4))


@pytest.mark.parametrize("velocity", ["reset", "keep"])
def test_momentum_at_the_end_of_a_block_is_what_the_settings_say(velocity):
    run = Run(method_of("bmuf", 2, bmuf={**BMUF, "velocity": velocity}), momentum=0.5).steps(3)
    for replica in run.replicas:
        assert bool(replica.optimizer.velocity_P.any()) == (velocity == "keep")


@pytest.mark.parametrize("form", BlockForm)
def test_other_workers_measure_their_first_block_from_where_it_began(form):
    """Resumed by twice as many, with a larger eta; they learn nothing, so only momentum acts."""
    given = {**BMUF, "form": form.name}
    before = Run(method_of("bmuf", 4, bmuf=given)).steps(3).method
    resumed = Run(method_of("bmuf", 8, bmuf=given)).method
    resumed.load_shared_state(before.shared_state())
    for number in range(8):
        resumed.load_group_states(number, [before.group_state(group) for group in range(4)])
    delta_P = before.blocks.momentum.delta_P.clone()
    for _ in range(3):
        resumed.after_update()
    torch.testing.assert_close(resumed.blocks.momentum.delta_P, (1 - 1 / 8) * delta_P)


def test_eta_follows_from_equation_5():
    given = schema.build(schema.BmufSettings, {**BMUF, "zeta": 1.0, "c": 2.0})
    assert given.momentum(16) == 1 - 1 / 32
    assert method_of("bmuf_gtc", 8).blocks.eta == 1 - 1 / 4  # one model per group
    with pytest.raises(schema.SettingsError, match=r"zeta 4.0 and c 1.0 give 2 models .* of -1"):
        schema.build(schema.BmufSettings, {**BMUF, "zeta": 4.0}).momentum(2)
