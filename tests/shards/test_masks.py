"""SpecAugment masks what it may, the same in every process, and other places in every epoch."""

import numpy as np
import pytest

from asr_train.schema import SpecAugmentSettings
from asr_train.shards.batch import Cut, FramePools, Plan, Sequences
from asr_train.shards.masks import masked
from asr_train.shards.sample import Sample

FRAMES, BINS = 50, 12


def settings(**changed) -> SpecAugmentSettings:
    given = {
        "freq_masks": 1, "freq_width": 4, "time_masks": 1, "time_width": 20, "time_share": 0.2,
    }  # fmt: skip
    return SpecAugmentSettings(**(given | changed))


def samples(ids=("a", "b")) -> list[Sample]:
    feats_TF = np.ones((FRAMES, BINS), np.float32)
    return [Sample(i, feats_TF, np.arange(FRAMES, dtype=np.int32), "W") for i in ids]


def zeros(epoch: int, ids=("a", "b"), **changed) -> list[np.ndarray]:
    return [s.feats_TF == 0 for s in masked(samples(ids), settings(**changed), 1, epoch)]


@pytest.mark.parametrize("changed", [{"freq_masks": 0}, {"time_masks": 0}])
def test_a_mask_is_one_run_no_wider_than_allowed(changed):
    widths = set()
    for epoch in range(200):
        for is_zero_TF in zeros(epoch, **changed):
            inside = is_zero_TF.all(1 if "freq_masks" in changed else 0)
            assert is_zero_TF.sum() == inside.sum() * is_zero_TF.size / len(inside)
            assert np.count_nonzero(np.diff(inside.astype(int), prepend=0, append=0)) in (0, 2)
            widths.add(int(inside.sum()))
    most = 10 if "freq_masks" in changed else 4  # a fifth of the frames; or freq_width
    assert widths == set(range(most + 1))


def test_masks_follow_from_seed_epoch_and_utterance_alone():
    (first_a, first_b), (again_b, again_a) = zeros(3), zeros(3, ("b", "a"))
    assert np.array_equal(first_a, again_a)
    assert np.array_equal(first_b, again_b)
    assert not np.array_equal(first_a, first_b)
    assert not np.array_equal(first_a, zeros(4)[0])
    other = next(masked(samples(), settings(), seed=2, epoch=3)).feats_TF == 0
    assert not np.array_equal(first_a, other)


def test_the_sample_itself_and_its_targets_stay():
    given = samples()
    for old, new in zip(given, masked(given, settings(), 1, 0), strict=True):
        assert old.feats_TF.all()
        assert new.ali_T is old.ali_T
        assert (new.id, new.words) == (old.id, old.words)


def test_a_mask_of_features_that_are_not_normalised_is_their_mean():
    given, mean_F = samples(), np.arange(1.0, 1 + samples()[0].feats_TF.shape[1], dtype=np.float32)
    for zeroed, filled in zip(
        masked(given, settings(), 1, 0), masked(given, settings(), 1, 0, mean_F), strict=True
    ):
        at_TF = zeroed.feats_TF == 0
        assert at_TF.any()
        wanted_TF = np.where(at_TF, mean_F.astype(zeroed.feats_TF.dtype), zeroed.feats_TF)
        assert np.array_equal(filled.feats_TF, wanted_TF)


@pytest.mark.parametrize("kind", ["pools", "sequences"])
def test_both_readers_give_masked_samples(shards, kind):
    opened, masks = shards((5, 9, 2, 7), 2), settings(time_share=1.0)
    plan = Plan(
        pool_frames=12, minibatch_frames=4, seed=1, worker=0, workers=1, epoch=3, masks=masks
    )
    if kind == "pools":
        reader = FramePools(opened, Cut(0, 0), plan)
    else:
        reader = Sequences(opened, Cut(0, 0, 1, 99, 0), plan)
    found = np.concatenate([batch.feats_BTF[batch.mask_BT].numpy() for batch in reader])
    plain = list(opened.samples(*plan.order))
    rows = [row.tolist() for sample in masked(plain, masks, 1, 3) for row in sample.feats_TF]
    assert sorted(found.tolist()) == sorted(rows)
    assert sorted(rows) != sorted(row.tolist() for sample in plain for row in sample.feats_TF)
