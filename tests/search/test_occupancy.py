"""Sequence objectives are what going through all paths gives; slopes are finite differences."""

import numpy as np
import pytest
from made_lattices import all_paths, random_arcs

from asr_train.search.occupancy import EMPTY, STATE_ARC, check_arcs, has_path, mmi, smbr

S, T = 4, 5
BOOST = 0.7
OBJECTIVES = {
    "mmi": lambda *given: mmi(*given),
    "boosted": lambda *given: mmi(*given, BOOST),
    "smbr": smbr,
}


def drawn(seed, spread=2.0):
    """Return a lattice, scores, its reference, and which states count: all, or all but state 0."""
    rng = np.random.default_rng(seed)
    ali_T = rng.integers(S, size=T)
    counted_S = np.arange(S) >= seed % 2
    return random_arcs(rng, ali_T, S), spread * rng.standard_normal((T, S)), ali_T, counted_S


def enumerated(name, arcs_A, scores_TS, ali_T, counted_S):
    """Return the loss by the weights and errors of all paths."""
    paths = list(all_paths(arcs_A))
    states_NT = np.array([states for states, _ in paths])
    errors_N = ((states_NT != ali_T) & counted_S[ali_T]).sum(1)
    log_N = scores_TS[np.arange(T), states_NT].sum(1) - np.array([cost for _, cost in paths])
    if name == "smbr":
        return (errors_N * np.exp(log_N)).sum() / np.exp(log_N).sum()
    is_reference_N = (states_NT == ali_T).all(1)
    boosted_N = log_N + {"mmi": 0.0, "boosted": BOOST}[name] * errors_N
    return np.log(np.exp(boosted_N).sum()) - np.log(np.exp(log_N[is_reference_N]).sum())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("seed", range(12))
def test_losses_are_what_going_through_all_paths_gives(seed, name):
    given = drawn(seed)
    loss, slope_TS = OBJECTIVES[name](*given)
    assert loss == pytest.approx(enumerated(name, *given), abs=1e-9)
    assert loss > -1e-9
    assert slope_TS.sum(1) == pytest.approx(np.zeros(T), abs=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("seed", range(4))
def test_slopes_are_finite_differences(seed, name):
    arcs_A, scores_TS, *reference = drawn(seed)
    _, slope_TS = OBJECTIVES[name](arcs_A, scores_TS, *reference)
    step = 1e-5
    for t, s in np.ndindex(T, S):
        moved = [scores_TS.copy(), scores_TS.copy()]
        moved[0][t, s] -= step
        moved[1][t, s] += step
        low, high = (OBJECTIVES[name](arcs_A, each, *reference)[0] for each in moved)
        assert slope_TS[t, s] == pytest.approx((high - low) / (2 * step), abs=1e-8)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_where_only_the_reference_is_there_is_nothing_to_gain(name):
    ali_T = np.array([2, 2, 0, 1])
    arcs_A = np.array([(t, t + 1, s, 0.3) for t, s in enumerate(ali_T)], STATE_ARC)
    loss, slope_TS = OBJECTIVES[name](arcs_A, np.ones((4, S)), ali_T, np.ones(S, bool))
    assert loss == pytest.approx(0, abs=1e-12)
    assert np.abs(slope_TS).max() < 1e-12


@pytest.mark.parametrize("seed", range(6))
def test_far_apart_scores_do_not_overflow(seed):
    arcs_A, scores_TS, *reference = drawn(seed, spread=2000.0)
    for objective in OBJECTIVES.values():
        loss, slope_TS = objective(arcs_A, scores_TS, *reference)
        assert np.isfinite(loss)
        assert np.isfinite(slope_TS).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_path_is_found_where_it_is(seed):
    rng = np.random.default_rng(seed)
    arcs_A, _, ali_T, _ = drawn(seed)
    there = {states for states, _ in all_paths(arcs_A)}
    assert has_path(arcs_A, ali_T)
    for _ in range(20):
        other_T = rng.integers(S, size=T)
        assert has_path(arcs_A, other_T) == (tuple(other_T.tolist()) in there)
    lost_T = next(t for t in np.ndindex(*[S] * T) if t not in there)
    with pytest.raises(ValueError, match="the reference is not a path of the lattice"):
        mmi(arcs_A, np.zeros((T, S)), np.array(lost_T), np.ones(S, bool))


def broken(field, value, number=-1):
    def change(arcs_A):
        arcs_A[field][number] = value

    return change


@pytest.mark.parametrize(
    "change, says",
    [
        (broken("source", 10**6), "not in topological order"),
        (broken("source", -1, 0), "not in topological order"),
        (broken("target", 0), "not in topological order"),
        (broken("target", 2**31 - 1), "cannot join"),
        (broken("target", 40), "lies on no path"),
        (broken("state", S), "has a state outside of -1 to 3"),
        (broken("state", -2), "has a state outside"),
        (broken("state", 0), "joins nodes of other frames|paths have 6 frames"),
        (broken("graph", np.nan), "cost that is not finite"),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_lattice_is_refused(seed, change, says):
    arcs_A, *_ = drawn(seed)
    check_arcs(arcs_A, T, S)
    assert (arcs_A["state"] == EMPTY).any()
    for frames in (T - 1, T + 1):
        with pytest.raises(ValueError, match=f"have {T} frames, but there are {frames}"):
            check_arcs(arcs_A, frames, S)
    change(arcs_A)
    with pytest.raises(ValueError, match=says):
        check_arcs(arcs_A, T, S)
