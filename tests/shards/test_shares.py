"""Workers' shares of an epoch: each sample once, about the same number of frames, few shards."""

import numpy as np
import pytest

from asr_train.shards.shares import shares


def samples(count: int, shards: int, seed: int, longest: int = 600):
    """An order of `count` samples that keeps shards together, their shards and frames."""
    rng = np.random.default_rng(seed)
    shard_N = np.sort(rng.integers(0, shards, count))
    frames_N = rng.integers(20, longest, count)
    keys = rng.permutation(shards)[shard_N], rng.random(count)
    return np.lexsort(keys[::-1]), shard_N, frames_N


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("count, shards", [(40, 1), (200, 4), (1000, 30)])
def test_each_sample_is_read_once_and_no_worker_has_none(count, shards, workers):
    order, shard_N, frames_N = samples(count, shards, seed=count + workers)
    parts = shares(order, shard_N, frames_N, workers)
    assert len(parts) == workers
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    places = np.argsort(order)
    for part in parts:
        assert (np.diff(places[part]) > 0).all()  # in the order of the epoch


def test_shares_differ_by_less_than_a_sample():
    """Cut into equal numbers of samples, the largest share is 1.5 times the smallest here."""
    order, shard_N, frames_N = samples(1000, 5, seed=1)
    frames = [int(frames_N[part].sum()) for part in shares(order, shard_N, frames_N, 80)]
    assert max(frames) - min(frames) < 100 < int(frames_N.mean())
    cut = np.add.reduceat(frames_N[order], np.arange(80) * len(order) // 80)
    assert cut.max() > 1.5 * cut.min()


def test_a_worker_opens_few_shards():
    order, shard_N, frames_N = samples(1000, 32, seed=2)
    parts = shares(order, shard_N, frames_N, 8)
    opened = [len(set(shard_N[part].tolist())) for part in parts]
    assert max(opened) <= 32 // 8 + 2


def test_one_sample_each_however_long():
    frames_N = np.array([10, 5000, 10, 10])
    parts = shares(np.arange(4), np.zeros(4, np.int64), frames_N, 4)
    assert sorted(len(part) for part in parts) == [1, 1, 1, 1]


def test_a_shard_without_frames_goes_to_the_last_worker():
    parts = shares(np.arange(3), np.array([0, 0, 1]), np.array([5, 5, 0]), 2)
    assert sorted(len(part) for part in parts) == [1, 2]
    assert 2 in parts[1]


def test_one_long_sample_does_not_leave_others_without():
    frames_N = np.array([10, 9000, 10, 12, 14])
    parts = shares(np.arange(5), np.array([0, 0, 1, 1, 1]), frames_N, 4)
    assert min(map(len, parts)) == 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(5))
