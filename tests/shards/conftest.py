"""Shards that tests only read are written once."""

from collections.abc import Callable

import pytest
from numbered import write

from asr_train.shards.reader import Shards


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> Callable[[tuple[int, ...], int], Shards]:
    """A function of (frames of each utterance, utterances per shard) that opens such Shards."""
    made = {}

    def make(lengths: tuple[int, ...], per_shard: int) -> Shards:
        if (lengths, per_shard) not in made:
            made[lengths, per_shard] = write(tmp_path_factory.mktemp("read"), lengths, per_shard)
        return Shards(made[lengths, per_shard])

    return make
