"""What all tests share."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in recipes/stages.mk

ROOT = Path(__file__).parents[1]


@pytest.fixture
def shared_data():
    """A folder of real speech beside the checkout; skips where it is not there."""

    def find(name: str) -> Path:
        folder = ROOT.parent / "shared" / "data" / name
        if not folder.exists():
            pytest.skip(f"needs the recordings in ../shared/data/{name}")
        return folder

    return find
