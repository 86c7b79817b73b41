"""Steps of every method by the GPUs' kernels (interpreted without one), beside the reference."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernels.conftest import DEVICE, some_quick

COMM = Path(__file__).parents[1] / "comm"
sys.path.insert(0, str(COMM))
from backends import forced  # noqa: E402
from small_methods import CPU, SETTINGS, SHAPES, dyadic_gradient, method_of  # noqa: E402

from asr_train.comm.loopback import Loopback  # noqa: E402
from asr_train.comm.reducers import Gradient  # noqa: E402
from asr_train.kernels.backend import Backend  # noqa: E402

ROUNDED = ("onebit", "onebit_late")  # means of columns are sums, whose order differs by device
PACKED = {"gtc_packed": {"threshold": 1.0, "codec": "packed32", "capacity": "fixed"}}
METHODS = [name for name in SETTINGS if name not in ("sgd", "gtc_async")]


def sparse_gradient(worker: int, step: int) -> torch.Tensor:
    """Of four elements, three are zero: Triton's interpreter takes a round per sent element."""
    rng = torch.Generator().manual_seed(1000 * worker + step)
    grad_P = dyadic_gradient(worker, step)
    return grad_P * (torch.randint(4, grad_P.shape, generator=rng) == 0)


def trained(name: str, device: torch.device, backend: Backend, together: bool = False):
    """Return the weights of all workers after some steps; gradients may come as one matrix."""
    drawn = sparse_gradient if "gtc" in name else dyadic_gradient
    workers, size = 4 if "bmuf" in name else 3, len(drawn(0, 0))
    changes = {"gtc": PACKED[name]} if name in PACKED else {}
    with forced(backend):
        exchange = Loopback(range(workers), device)
        method = method_of("gtc" if name in PACKED else name, exchange, size, **changes)
        method.begin(torch.linspace(-1, 1, size).to(device), 0.0, SHAPES)
        for step in range(4):
            for number, group in enumerate(method.groups):
                grads_WP = torch.stack([drawn(w, step) for w in group.local]).to(device)
                gradients = [Gradient(grad_P, 10) for grad_P in grads_WP]
                if together:
                    gradients[0].rows_WP = grads_WP
                method.begin_step(workers, 10 * workers)
                method.apply(number, method.reduce(number, gradients), rate=0.125)
            method.after_update()
        return torch.stack([replica.weights_P for replica in method.replicas]).cpu()


@pytest.mark.parametrize("name", some_quick([*METHODS, *PACKED], ["allreduce", "gtc", "onebit"]))
def test_steps_of_every_method_are_the_references(name):
    wanted = trained(name, CPU, Backend.reference)
    found = trained(name, torch.device(DEVICE), Backend.triton)
    if name in ROUNDED:
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(found, wanted)
    assert not torch.equal(wanted[0], torch.linspace(-1, 1, wanted.shape[1]))


@pytest.mark.parametrize("name", some_quick(["gtc_exact", "bmuf_gtc", *PACKED], PACKED))
def test_gradients_that_come_together_are_compressed_as_alone(name):
    wanted = trained(name, CPU, Backend.reference)
    assert torch.equal(trained(name, torch.device(DEVICE), Backend.triton, together=True), wanted)
    assert torch.equal(trained(name, CPU, Backend.reference, together=True), wanted)


ALONE = """
import sys, torch
from asr_train.comm.processes import close_exchange, join, of_group
device = torch.device(sys.argv[1])
join(1, 1, device, 30.0)
exchange = of_group(None, device, 30.0)
vector_P = torch.arange(1000.0, device=device)
assert torch.equal(exchange.sum([vector_P], 1000), vector_P)
(received,) = exchange.gather([vector_P.to(torch.uint8)])
assert torch.equal(received, vector_P.to(torch.uint8))
print(torch.distributed.get_backend(), exchange.numbers([[1.5, 2.0]]))
close_exchange()
"""


def test_collectives_of_a_single_process():
    """NCCL on a GPU, else gloo."""
    where = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", ALONE, DEVICE],
        env={**os.environ, **where, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split(maxsplit=1) == [
        "nccl" if DEVICE == "cuda" else "gloo",
        "[[1.5, 2.0]]\n",
    ]
