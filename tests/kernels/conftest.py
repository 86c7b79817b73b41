"""Fixtures to compare backends; without a GPU, Triton's kernels run in its interpreter."""

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before kernels.gpu_* are imported

from backends import forced

from asr_train.kernels.backend import Backend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = [Backend.triton] if DEVICE == "cuda" else [Backend.cpu, Backend.triton]
INTERPRETED = None if DEVICE == "cuda" else Backend.triton  # slow: by programs, whatever their size


@pytest.fixture(autouse=True)
def rounded_once(monkeypatch):
    """Make the interpreter's multiply-add fused: it rounds the product, unlike a GPU's.

    In float64 the product of two float32 is exact; rounding the sum twice differs from rounding it
    once in about one of 2**29 cases.
    """
    if DEVICE == "cuda":
        return
    from triton.runtime import interpreter

    def fma(self, x, y, z):
        exact = x.data.astype(np.float64) * y.data + z.data
        return interpreter.TensorHandle(exact.astype(np.float32), z.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fma", fma)


@pytest.fixture(params=COMPILED, ids=lambda b: b.value)
def both(request):
    """A function that returns another's results on the reference and on a compiled backend.

    Its attribute `backend` is the latter.
    """

    def run(function):
        with forced(Backend.reference):
            wanted = function()
        with forced(request.param):
            found = function()
        return found, wanted

    run.backend = request.param
    return run


@pytest.fixture(params=[2, 3])
def threads(request, monkeypatch):
    """Number of CPU threads, of which each gets at least 8192 elements.

    Returns:
        The number, and a list to which each call adds its number of parts.
    """
    if DEVICE != "cpu":
        pytest.skip("threads are the CPU's")
    from asr_train.kernels import compiled

    parts, in_parts = [], compiled.in_parts

    def counted(size, step, work, weight=1):
        found = in_parts(size, step, lambda *ends: (work(*ends),), weight)
        parts.append(len(found))
        return [result for (result,) in found]

    monkeypatch.setattr(compiled, "GRAIN", 1 << 13)
    monkeypatch.setattr(compiled, "in_parts", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param, parts
    torch.set_num_threads(before)


def by_backend(name, values, interpreted):
    """Parametrise a test by `both` and a value, of which the interpreter has others."""
    pairs = [(b, v) for b in COMPILED for v in (interpreted if b is INTERPRETED else values)]
    return pytest.mark.parametrize(f"both, {name}", pairs, indirect=["both"])


def some_quick(values, quick):
    """Return parameters of tests, of which only those in `quick` are not slow if interpreted."""
    long = [pytest.mark.slow] if DEVICE == "cpu" else []
    return [pytest.param(each, marks=[] if each in quick else long) for each in values]


@pytest.fixture
def dyadic():
    """Draw multiples of 2**-8 below 4: float32 adds and subtracts those without rounding."""
    rng = torch.Generator().manual_seed(0)
    return lambda *shape: (torch.randint(-1023, 1024, shape, generator=rng) / 2**8).to(DEVICE)


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Compare float32 values including the sign of zero; any NaN equals any other."""
    nan = found.isnan() & wanted.isnan()
    return torch.equal(
        found.masked_fill(nan, 0.0).view(torch.int32),
        wanted.masked_fill(nan, 0.0).view(torch.int32),
    )
