"""Small training runs; one thread, so that tests may fork."""

import pytest
import tiny

from asr_train.shards.reader import Shards


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Threads of torch do not survive in forked children."""
    monkeypatch.setenv("JOBS", "1")


@pytest.fixture(scope="session")
def splits(tmp_path_factory) -> tuple[Shards, Shards]:
    """TRAIN with about 1500 frames, and DEV."""
    folder = tmp_path_factory.mktemp("shards")
    return tiny.shards(folder / "train", 1, 60), tiny.shards(folder / "dev", 2, 20)
