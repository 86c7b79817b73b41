"""Settings and fixtures for all tests."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# As in recipes/stages.mk
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Ignored in what a shell starts in the background; tests of Ctrl-C need what a terminal gives
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]

# First calls compile, and a busy machine is slow: examples have no time limit
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")


def pytest_collection_modifyitems(items):
    """Run whole recipes first: in parallel with the rest, they take longest."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """What make may call in place of Python: see `preloaded`."""
    from preloaded import preloaded

    with preloaded(tmp_path_factory.mktemp("python")) as command:
        yield command


@pytest.fixture
def shared_data():
    """A folder of real speech beside the checkout; tests are skipped if it does not exist."""

    def find(name: str) -> Path:
        folder = ROOT.parent / "shared" / "data" / name
        if not folder.exists():
            pytest.skip(f"needs the recordings in ../shared/data/{name}")
        return folder

    return find
