"""Fixtures for tests of corpora."""

from pathlib import Path

import pytest
from noises import Noises


@pytest.fixture
def folder(tmp_path: Path) -> Noises:
    root = tmp_path / "corpus"
    root.mkdir()
    return Noises(root)
