"""data.room: first the direct sound, then a tail of the requested energy and length."""

import numpy as np
import pytest

from asr_train.data.room import room_response

RATE = 16000


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rt60_seconds", [0.15, 0.6])
@pytest.mark.parametrize("drr_db", [0.0, 12.0])
def test_a_room_has_the_ratio_and_the_decay_asked_for(seed, rt60_seconds, drr_db):
    response_T = room_response(RATE, rt60_seconds, drr_db, np.random.default_rng(seed))
    tail_T = response_T[1:]
    assert response_T[0] == 1
    assert not tail_T[: round(0.002 * RATE) - 1].any()  # nothing right after the direct sound
    assert -10 * np.log10(np.sum(tail_T**2)) == pytest.approx(drr_db)
    # Schroeder (1965): the remaining energy falls along a straight line in dB
    left_db = 10 * np.log10(np.cumsum(tail_T[::-1] ** 2)[::-1] / np.sum(tail_T**2))
    first = int(np.flatnonzero(tail_T)[0])
    half = int(np.flatnonzero(left_db < -30)[0]) - first
    assert 2 * half / RATE == pytest.approx(rt60_seconds, rel=0.15)


def test_a_room_is_that_of_its_seed():
    one, same, other = (room_response(RATE, 0.3, 6.0, np.random.default_rng(s)) for s in (1, 1, 2))
    assert np.array_equal(one, same)
    assert len(one) != len(other) or not np.array_equal(one, other)
