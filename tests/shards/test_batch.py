"""Every frame is used once per epoch with its window; a position yields the remaining ones."""

import itertools
import weakref

import hypothesis
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numbered import utterance

import asr_train.shards.batch
from asr_train.shards.batch import Cut, FramePools, Plan, context_padded
from asr_train.train.evaluate import side_by_side

LENGTHS = (5, 9, 2, 7, 7, 1, 4, 3, 8, 6, 2, 5, 4)  # 63 frames
SETTINGS = {
    "context_left": 2,
    "context_right": 1,
    "pool_frames": 20,
    "minibatch_frames": 6,
    "seed": 0,
    "worker": 0,
    "workers": 1,
    "epoch": 0,
}


@st.composite
def settings(draw):
    workers = draw(st.integers(1, len(LENGTHS)))
    pool_frames = draw(st.integers(1, 70))
    return {
        "context_left": draw(st.integers(0, 4)),
        "context_right": draw(st.integers(0, 4)),
        "pool_frames": pool_frames,
        "minibatch_frames": draw(st.integers(1, pool_frames)),
        "seed": draw(st.integers(0, 9)),
        "worker": draw(st.integers(0, workers - 1)),
        "workers": workers,
        "epoch": draw(st.integers(0, 9)),
    }


def pools(shards, **changes):
    return pools_of(shards(LENGTHS, 3), **changes)


def pools_of(data, **changes):
    chosen = {**SETTINGS, **changes}
    windows = Cut(chosen.pop("context_left"), chosen.pop("context_right"))
    return FramePools(data, windows, Plan(**chosen))


def samples(shards, s):
    return list(shards(LENGTHS, 3).samples(s["seed"], s["worker"], s["workers"], s["epoch"]))


def same(a, b):
    return a.frames == b.frames and all(
        torch.equal(getattr(a, name), getattr(b, name))
        for name in ("feats_BTF", "ali_BT", "mask_BT")
    )


@given(settings())
def test_every_frame_comes_once_with_its_window_and_state(shards, s):
    left, right = s["context_left"], s["context_right"]
    wanted = {}
    for sample in samples(shards, s):
        padded_TF = np.pad(sample.feats_TF, ((left, right), (0, 0)), mode="edge")
        for t, state in enumerate(sample.ali_T):
            wanted[int(sample.id[3:]), t] = (
                padded_TF[t : t + left + 1 + right].tolist(),
                int(state),
            )
    found = {}
    for batch in pools(shards, **s):
        assert batch.feats_BTF.shape == (batch.frames, left + 1 + right, 3)
        assert batch.ali_BT.shape == batch.mask_BT.shape == (batch.frames, 1)
        assert batch.feats_BTF.dtype == torch.float32
        assert batch.ali_BT.dtype == torch.int64
        assert batch.mask_BT.all()
        for window, state in zip(batch.feats_BTF, batch.ali_BT, strict=True):
            utterance_, t, _ = window[left].int().tolist()
            assert (utterance_, t) not in found
            found[utterance_, t] = (window.tolist(), int(state))
    assert found == wanted


@given(settings())
def test_only_the_last_minibatch_is_short(shards, s):
    epoch = pools(shards, **s)
    sizes = [batch.frames for batch in epoch]
    assert set(sizes[:-1]) <= {s["minibatch_frames"]}
    assert 1 <= sizes[-1] <= s["minibatch_frames"]
    assert (len(sizes), sum(sizes)) == (epoch.num_batches, epoch.num_frames)


@hypothesis.settings(max_examples=40)  # each resumes from every position
@given(settings())
def test_a_position_yields_just_what_is_left_bit_for_bit(shards, s):
    batches = list(pools(shards, **s))
    for done in range(len(batches) + 2):  # and beyond the end
        sought = pools(shards, **s)
        sought.seek(done)
        rest = list(sought)
        assert len(rest) == max(0, len(batches) - done)
        assert all(map(same, rest, batches[done:]))


@given(settings(), st.integers(0, 20))
def test_iterating_again_goes_on(shards, s, some):
    whole = list(pools(shards, **s))
    epoch = pools(shards, **s)
    begun = list(itertools.islice(epoch, some))
    again = begun + list(epoch)
    assert len(again) == len(whole)
    assert all(map(same, again, whole))


@given(settings(), st.integers(1, 70))
def test_the_minibatch_cuts_the_same_row_of_frames(shards, s, minibatch):
    minibatch = min(minibatch, s["pool_frames"])
    one = torch.cat([b.feats_BTF for b in pools(shards, **s)])
    other = torch.cat([b.feats_BTF for b in pools(shards, **{**s, "minibatch_frames": minibatch})])
    assert torch.equal(one, other)


@given(settings())
def test_pools_are_runs_of_samples_and_about_equal(shards, s):
    """A pool's frames come before the next one's, so the utterances of each are consecutive."""
    read = samples(shards, s)
    rows = torch.cat([b.feats_BTF[:, s["context_left"], 0] for b in pools(shards, **s)]).int()
    sizes, at = [], 0
    for size, numbers in _pools_by_hand(read, s["pool_frames"]):
        assert set(rows[at : at + size].tolist()) == numbers
        sizes.append(size)
        at += size
    assert at == len(rows)
    assert max(sizes) - min(sizes) <= 2 * max(len(sample.ali_T) for sample in read)


def _pools_by_hand(read, pool_frames):
    total = sum(len(sample.ali_T) for sample in read)
    wanted = total / max(1, round(total / pool_frames))
    done, size, numbers, ended = 0, 0, set(), 0
    for sample in read:
        size, numbers = size + len(sample.ali_T), numbers | {int(sample.id[3:])}
        done += len(sample.ali_T)
        if done >= (ended + 1) * wanted - 1e-9:
            yield size, numbers
            while done >= (ended + 1) * wanted - 1e-9:
                ended += 1
            size, numbers = 0, set()


def row(epoch):
    return [tuple(x) for batch in epoch for x in batch.feats_BTF[:, 2, :2].int().tolist()]


def test_frames_are_mixed_within_a_pool_and_differ_by_seed_and_epoch(shards):
    rows = [row(pools(shards, pool_frames=63, seed=s, epoch=e)) for s in (0, 1) for e in (0, 1)]
    assert len({tuple(r) for r in rows}) == 4
    for frames in rows:
        changes = sum(a[0] != b[0] for a, b in itertools.pairwise(frames))
        assert changes > 40  # sorted by utterance there would be 12; at random, about 56


def test_each_pool_is_mixed_in_its_own_way(shards):
    """Each utterance is a pool, and all have the same length, so only the permutations differ."""
    data = shards((30, 30, 30, 30), 4)
    found = []
    for seed, epoch, worker in itertools.product((0, 1), repeat=3):
        places = {"seed": seed, "epoch": epoch, "worker": worker, "workers": 2}
        times = [t for _, t in row(pools_of(data, pool_frames=30, **places))]
        found += [tuple(times[:30]), tuple(times[30:])]
    assert all(sorted(times) == list(range(30)) for times in found)
    assert len(set(found)) == len(found) == 16


def test_one_pool_is_in_memory_at_a_time(shards, monkeypatch):
    """With what it was read from, and the one before, a worker took three times its memory."""
    data, made, read, alive = shards(LENGTHS, 3), [], [], []
    stored = data.samples

    def noted(*order, start):
        for sample in stored(*order, start=start):
            alive.append(sum(one() is not None for one in made))
            read.append(weakref.ref(sample.feats_TF))
            yield sample
            del sample

    class Noted(asr_train.shards.batch._Pool):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(weakref.ref(self))

    monkeypatch.setattr(data, "samples", noted)
    monkeypatch.setattr(asr_train.shards.batch, "_Pool", Noted)
    for _ in pools_of(data):
        assert sum(one() is not None for one in read) <= 1  # the last that `noted` gave
    assert len(made) == 3
    assert not any(alive)


# --- whole utterances ---------------------------------------------------------------------------


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_padding_taken_off_gives_the_utterances_back(lengths):
    read = [utterance(n, frames) for n, frames in enumerate(lengths)]
    batch = side_by_side(read, 0, 0, torch.device("cpu"))
    assert batch.frames == int(batch.mask_BT.sum()) == sum(lengths)
    assert batch.ali_BT.shape == batch.mask_BT.shape == (len(lengths), max(lengths))
    assert (batch.feats_BTF.dtype, batch.ali_BT.dtype) == (torch.float32, torch.int64)
    for b, sample in enumerate(read):
        real_T = batch.mask_BT[b]
        assert real_T.tolist() == [t < lengths[b] for t in range(max(lengths))]
        np.testing.assert_array_equal(batch.feats_BTF[b, real_T], sample.feats_TF)
        np.testing.assert_array_equal(batch.ali_BT[b, real_T], sample.ali_T)
    assert not batch.ali_BT[~batch.mask_BT].any()


@given(st.integers(1, 9), st.integers(0, 5), st.integers(0, 5))
def test_context_repeats_the_edges(frames, left, right):
    feats_TF = utterance(3, frames).feats_TF
    padded_1TF = context_padded(feats_TF, left, right)
    wanted_TF = np.pad(feats_TF, ((left, right), (0, 0)), mode="edge")
    assert padded_1TF.dtype == torch.float32
    np.testing.assert_array_equal(padded_1TF, wanted_TF[None])
    assert torch.equal(context_padded(torch.from_numpy(feats_TF), left, right), padded_1TF)
