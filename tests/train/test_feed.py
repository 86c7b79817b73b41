"""Minibatches are the same whether pools are read ahead or not, from wherever reading begins."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny
import torch

from asr_train.comm.loopback import Loopback
from asr_train.files import DamagedFileError
from asr_train.shards.batch import Cut
from asr_train.shards.read_ahead import MOST_FRAMES, ReadAhead, reading_thread
from asr_train.train.feed import Feed

CPU = torch.device("cpu")
SEEN = [Cut(2, 1), Cut(1, 1, 2, 8, 3)]


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as made:
        yield made


def feed_of(shards, seen, workers, thread=None):
    """Several pools of several minibatches for each of four workers, in two parts of the epoch."""
    phases = [{"until": 0.4, "minibatch_frames": 16, "workers": None}]
    optim = tiny.settings(pool_frames=100, phases=phases).optim
    return Feed(shards, optim, seen, Loopback(range(workers), CPU), 0, thread=thread)


def batches(feed, step, last=None):
    """Return the tensors of all workers' minibatches of some steps."""
    feed.start(step)
    found = []
    for _ in range(step, feed.num_steps if last is None else last):
        for batch in map(feed.next, feed._local):
            found.append(None if batch is None else (batch.feats_BTF, batch.ali_BT, batch.mask_BT))
    return found


def equal(ours, theirs):
    return len(ours) == len(theirs) and all(
        a is b is None or all(map(torch.equal, a, b)) for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("workers", [1, 4])
def test_reading_ahead_gives_the_same_minibatches_from_every_step(splits, thread, seen, workers):
    whole = batches(feed_of(splits[0], seen, workers), 0)
    ahead = feed_of(splits[0], seen, workers, thread)
    for step in range(0, ahead.num_steps + 1, 1 if workers == 4 else 5):
        assert equal(batches(ahead, step), whole[step * workers :]), step


@pytest.mark.parametrize("seen", SEEN)
def test_an_epoch_that_is_left_early_leaves_the_thread_to_others(splits, thread, seen):
    whole = batches(feed_of(splits[0], seen, 4), 0)
    for last in (1, 2, 3, 9):
        batches(feed_of(splits[0], seen, 4, thread), 0, last)
    assert equal(batches(feed_of(splits[0], seen, 4, thread), 0), whole)
    assert thread.submit(int).result() == 0


def test_what_is_wrong_with_a_shard_is_said_where_it_is_needed(tmp_path, thread):
    shards = tiny.shards(tmp_path, 0, 40)
    whole = batches(feed_of(shards, SEEN[0], 1), 0)
    (tmp_path / "00000.tar").write_bytes(b"no tar")
    feed, found = feed_of(tiny.Shards(shards.path), SEEN[0], 1, thread), []

    def read():
        while (batch := feed.next(0)) is not None:
            found.append((batch.feats_BTF, batch.ali_BT, batch.mask_BT))

    with pytest.raises(DamagedFileError, match=r"00000\.tar"):
        read()
    assert equal(found, whole[: len(found)])


def test_items_are_made_once_by_the_thread_alone(thread):
    threads = []

    def made():
        for number in range(4):
            threads.append(threading.get_ident())
            yield number

    with ReadAhead(made(), thread) as ahead:
        ahead.begin()
        ahead.begin()
        assert [ahead.next() for _ in range(3)] == [0, 1, 2]
        assert len(threads) == 3
        ahead.begin()
    assert set(threads) == {thread.submit(threading.get_ident).result()} != {threading.get_ident()}


def test_a_cpu_and_too_many_frames_have_no_thread():
    assert reading_thread(CPU, 1) is None
    assert reading_thread(torch.device("cuda"), MOST_FRAMES + 1) is None
    assert reading_thread(torch.device("cuda"), MOST_FRAMES) is not None
