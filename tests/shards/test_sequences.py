"""Every kept frame is trained on once per epoch, with the context that the network needs."""

import itertools
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numbered import utterance

from asr_train.shards import reader
from asr_train.shards.batch import Cut, FramePools, Plan, Sequences

LENGTHS = (5, 9, 2, 7, 17, 1, 4, 3, 8, 6, 25, 5, 4)


@st.composite
def cuts(draw) -> Cut:
    small = st.integers(0, 4)
    return Cut(
        left=draw(small),
        right=draw(small),
        stride=draw(st.integers(1, 4)),
        piece=draw(st.integers(1, 30)),
        warm=draw(small),
    )


@st.composite
def orders(draw) -> dict[str, int]:
    workers = draw(st.integers(1, len(LENGTHS)))
    return {
        "pool_frames": draw(st.integers(1, 120)),
        "minibatch_frames": draw(st.integers(1, 60)),
        "seed": draw(st.integers(0, 9)),
        "worker": draw(st.integers(0, workers - 1)),
        "workers": workers,
        "epoch": draw(st.integers(0, 9)),
    }


def columns_of(batch, b: int) -> list[int]:
    return batch.mask_BT[b].nonzero().flatten().tolist()


def learned(batches, cut: Cut):
    """Return (utterance, frame) of every output that counts, from the features themselves."""
    for batch in batches:
        assert batch.frames == int(batch.mask_BT.sum())
        rows = cut.left + (batch.ali_BT.shape[1] - 1) * cut.stride + 1 + cut.right
        assert batch.feats_BTF.shape == (len(batch.ali_BT), rows, 3)
        for b in range(len(batch.ali_BT)):
            for column in columns_of(batch, b):
                number, t, _ = batch.feats_BTF[b, cut.left + column * cut.stride].int().tolist()
                yield number, t, int(batch.ali_BT[b, column])


@given(cuts(), orders())
def test_every_kept_frame_comes_once_and_with_its_state(shards, cut, order):
    read = shards(LENGTHS, 3)
    wanted = set()
    who = order["seed"], order["worker"], order["workers"], order["epoch"]
    for position, sample in zip(read.part(*who), read.samples(*who), strict=True):
        number = int(sample.id[3:])
        phase = (order["epoch"] + int(position)) % min(cut.stride, len(sample.ali_T))
        for t in range(phase, len(sample.ali_T), cut.stride):
            wanted.add((number, t, int(sample.ali_T[t])))
    sequences = Sequences(read, cut, Plan(**order))
    found = list(learned(sequences, cut))
    assert len(found) == len(set(found)) == sequences.num_frames
    assert set(found) == wanted


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_in_as_many_epochs_as_the_stride_every_frame_is_kept_once(shards, stride):
    cut = Cut(1, 1, stride, 10, 2)
    who = {"pool_frames": 40, "minibatch_frames": 12, "seed": 0, "worker": 0, "workers": 1}
    found = [
        (number, t)
        for epoch in range(stride)
        for number, t, _ in learned(
            Sequences(shards(LENGTHS, 3), cut, Plan(**who, epoch=epoch)), cut
        )
        if LENGTHS[number] >= stride  # in a shorter one, some frames are repeated
    ]
    wanted = {(n, t) for n, frames in enumerate(LENGTHS) for t in range(frames) if frames >= stride}
    assert len(found) == len(set(found))
    assert set(found) == wanted


@given(cuts(), orders())
def test_a_row_holds_all_that_is_to_be_heard_and_repeats_only_an_utterances_ends(
    shards, cut, order
):
    for batch in Sequences(shards(LENGTHS, 3), cut, Plan(**order)):
        for b in range(len(batch.ali_BT)):
            first, last = (columns_of(batch, b)[i] for i in (0, -1))
            assert first <= cut.warm
            assert last + 1 - first <= cut.piece
            number, t, _ = batch.feats_BTF[b, cut.left + first * cut.stride].int().tolist()
            feats_TF = torch.from_numpy(utterance(number, LENGTHS[number]).feats_TF)
            is_beginning = t < cut.stride  # with nothing before it to initialise the state
            assert (first == 0) == (is_beginning or cut.warm == 0)
            assert t >= first * cut.stride  # no warm-up before the utterance begins
            if first < cut.warm:  # as far as there are frames for it
                assert t - first * cut.stride < cut.stride
            start = t - first * cut.stride - cut.left
            stop = t + (last - first) * cut.stride + 1 + cut.right
            times = torch.arange(start, stop).clamp(0, len(feats_TF) - 1)
            assert torch.equal(batch.feats_BTF[b, : stop - start], feats_TF[times])


@given(cuts(), orders())
def test_any_minibatch_can_be_the_next(shards, cut, order):
    def new() -> Sequences:
        return Sequences(shards(LENGTHS, 3), cut, Plan(**order))

    whole = list(new())
    assert len(whole) == new().num_batches
    for done in {0, 1, len(whole) // 2, len(whole)} & set(range(len(whole) + 1)):
        rest = new()
        rest.seek(done)
        found = list(rest)
        assert len(found) == len(whole) - done
        for a, b in zip(found, whole[done:], strict=True):
            assert torch.equal(a.feats_BTF, b.feats_BTF)
            assert torch.equal(a.ali_BT, b.ali_BT)
            assert torch.equal(a.mask_BT, b.mask_BT)


@pytest.mark.parametrize("pool_frames", [10, 40, 200])
def test_each_shard_is_read_once(shards, monkeypatch, pool_frames):
    """Also where several pools are cut from it."""
    read, original = [], reader.open_part
    monkeypatch.setattr(
        reader, "open_part", lambda *given: read.append(given[1]["path"]) or original(*given)
    )
    plan = Plan(pool_frames, minibatch_frames=6, seed=0, worker=0, workers=1, epoch=0)
    for pools in (
        Sequences(shards(LENGTHS, 3), Cut(1, 1, 1, 100, 0), plan),
        FramePools(shards(LENGTHS, 3), Cut(1, 1), plan),
    ):
        read.clear()
        assert sum(batch.frames for batch in pools) == sum(LENGTHS)
        assert len(read) == len(set(read)) == 5


def test_minibatches_are_nearly_equal_and_little_is_padded(shards):
    lengths = tuple(20 + 7 * n % 60 for n in range(90))
    plan = Plan(pool_frames=3000, minibatch_frames=120, seed=0, worker=0, workers=1, epoch=0)
    sequences = Sequences(shards(lengths, 30), Cut(1, 7, 3, 300, 30), plan)
    batches = list(sequences)
    assert all(90 <= batch.frames <= 150 for batch in batches)
    cells = sum(batch.mask_BT.numel() for batch in batches)
    assert sequences.num_frames > 0.85 * cells


def test_epochs_and_seeds_differ_in_their_order(shards):
    def first(**changes):
        who = {"seed": 0, "worker": 0, "workers": 1, "epoch": 0, **changes}
        cut = Cut(1, 1, 1, 100, 0)
        return next(iter(Sequences(shards(LENGTHS, 3), cut, Plan(200, 20, **who))))

    made = [first(), first(epoch=1), first(seed=1)]
    for a, b in itertools.combinations(made, 2):
        assert a.feats_BTF.shape != b.feats_BTF.shape or not torch.equal(a.feats_BTF, b.feats_BTF)


def test_one_pool_is_in_memory_at_a_time(shards, monkeypatch):
    """The lattices of a pool may take gigabytes."""
    data, read, alive = shards(LENGTHS, 3), [], []
    stored = data.samples

    def noted(*order, start):
        for sample in stored(*order, start=start):
            read.append(weakref.ref(sample.feats_TF))
            alive.append(sum(one() is not None for one in read))
            yield sample
            del sample

    monkeypatch.setattr(data, "samples", noted)
    plan = Plan(pool_frames=20, minibatch_frames=6, seed=0, worker=0, workers=1, epoch=0)
    pools = Sequences(data, Cut(1, 1, 1, 100, 0), plan)
    assert sum(batch.frames for batch in pools) == sum(LENGTHS)
    assert len(read) == len(LENGTHS)
    assert alive.count(1) > 1  # the first of each pool
