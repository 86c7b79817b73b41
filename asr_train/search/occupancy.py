"""Lattice of states, scores, reference -> **sequence objectives** and their derivatives.

in    arcs_A       `STATE_ARC`: all paths of states that compete in an utterance; see `check_arcs`
      scores_TS    float64, scaled log-likelihoods kappa log p(x_t | s), nats
      ali_T        int, the reference: the state of each frame; one of the paths
      counted_S    bool, states whose frames count in accuracies: all, or all but those of silence
out   loss         float, to be minimised
      slope_TS     float64, its derivative with respect to scores_TS; each frame's sum is 0
Sums over paths go forward and backward over the arcs (Povey, 2003, "Discriminative training for
large vocabulary speech recognition"). Knows nothing of networks, words or files; needs NumPy and
numba alone.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

STATE_ARC = np.dtype([("source", "<i4"), ("target", "<i4"), ("state", "<i4"), ("graph", "<f4")])
EMPTY = -1  # the state of an arc that consumes no frame


class Sums(NamedTuple):
    """Sums over the paths of a lattice.

    A path's weight is exp of its scores minus its graph costs, plus `boost` for each counted frame
    that it has wrong.

    Attributes:
        total, reference: log of the weights of all paths, and of those of the reference's states.
        accuracy: expected number of counted frames that are right.
        gamma_TS: posterior of each state at each frame.
        delta_TS: derivative of `accuracy` with respect to the scores.
    """

    total: float
    reference: float
    accuracy: float
    gamma_TS: np.ndarray
    delta_TS: np.ndarray


def mmi(
    arcs_A: np.ndarray,
    scores_TS: np.ndarray,
    ali_T: np.ndarray,
    counted_S: np.ndarray,
    boost: float = 0.0,
) -> tuple[float, np.ndarray]:
    """Return minus the log posterior of the reference in nats, and its slope.

        loss = log sum_paths w(path) exp(boost * errors(path)) - log w(reference)
        slope = gamma_den - gamma_num

    With a boost this is boosted MMI (Povey et al., 2008, "Boosted MMI for model and feature-space
    discriminative training"). The paper subtracts boost * accuracy, which differs by a constant;
    with errors the loss is never negative. An error is a counted frame in another state than the
    reference's; the paper counts phones.

    Raises:
        ValueError: if the reference is not a path of the lattice.
    """
    sums = _checked(arcs_A, scores_TS, ali_T, counted_S, boost)
    slope_TS = sums.gamma_TS
    slope_TS[np.arange(len(ali_T)), ali_T] -= 1.0
    return sums.total - sums.reference, slope_TS


def smbr(
    arcs_A: np.ndarray, scores_TS: np.ndarray, ali_T: np.ndarray, counted_S: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the expected number of counted frames in a wrong state, and its slope.

        loss = sum_paths P(path) errors(path)
        slope(t, s) = -sum_{arcs of s at t} gamma(arc) (c(arc) - c_average)

    This is state-level minimum Bayes risk: c(arc) is the expected accuracy of the paths through an
    arc (Vesely et al., 2013, "Sequence-discriminative training of deep neural networks"; Gibson and
    Hain, 2006).

    Raises:
        ValueError: if the reference is not a path of the lattice.
    """
    sums = _checked(arcs_A, scores_TS, ali_T, counted_S, 0.0)
    return float(counted_S[ali_T].sum()) - sums.accuracy, -sums.delta_TS


def check_arcs(arcs_A: np.ndarray, frames: int, num_states: int) -> None:
    """Check that arcs are a lattice of `frames` frames.

    Nodes are numbered from 0, the start, in topological order; the last one is the end. Arcs are
    sorted by source. Each node lies on a path from start to end, and each path consumes `frames`
    frames: an arc one, or none if its state is EMPTY.

    Raises:
        ValueError: naming the first arc or node that is wrong.
    """
    if arcs_A.ndim != 1 or not len(arcs_A):
        raise ValueError(f"arcs are {list(arcs_A.shape)}; they must be [arcs], one at least")
    source_A, target_A = arcs_A["source"], arcs_A["target"]
    ordered_A = (source_A >= 0) & (target_A > source_A) & (np.diff(source_A, prepend=0) >= 0)
    _first(~ordered_A, arcs_A, "is not in topological order")
    _first(
        (arcs_A["state"] < EMPTY) | (arcs_A["state"] >= num_states),
        arcs_A,
        f"has a state outside of {EMPTY} to {num_states - 1}",
    )
    _first(~np.isfinite(arcs_A["graph"]), arcs_A, "has a cost that is not finite")
    nodes = int(target_A.max()) + 1
    if nodes > 2 * len(arcs_A):  # before an array of that size is made
        raise ValueError(f"{len(arcs_A)} arcs cannot join {nodes} nodes")
    entered_N = np.bincount(target_A, minlength=nodes) > 0
    left_N = np.bincount(source_A, minlength=nodes) > 0
    loose_N = np.zeros(nodes, bool)
    loose_N[1:] |= ~entered_N[1:]
    loose_N[:-1] |= ~left_N[:-1]
    if loose_N.any():
        raise ValueError(f"node {int(np.argmax(loose_N))} lies on no path from start to end")
    frame_N = frame_of_node(arcs_A)
    steps_A = frame_N[target_A] - frame_N[source_A] != (arcs_A["state"] != EMPTY)
    _first(steps_A, arcs_A, "joins nodes of other frames than it consumes")
    if frame_N[-1] != frames:
        raise ValueError(f"its paths have {frame_N[-1]} frames, but there are {frames}")


def _first(wrong_A: np.ndarray, arcs_A: np.ndarray, what: str) -> None:
    if wrong_A.any():
        number = int(np.argmax(wrong_A))
        raise ValueError(f"arc {number} {arcs_A[number].item()} {what}")


def _checked(
    arcs_A: np.ndarray,
    scores_TS: np.ndarray,
    ali_T: np.ndarray,
    counted_S: np.ndarray,
    boost: float,
) -> Sums:
    scores_TS = np.ascontiguousarray(scores_TS, np.float64)
    sums = Sums(*_sums(arcs_A, frame_of_node(arcs_A), scores_TS, ali_T, counted_S, float(boost)))
    if sums.reference == -np.inf:
        raise ValueError("the reference is not a path of the lattice")
    return sums


# --- compiled -----------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def frame_of_node(arcs_A: Any) -> Any:
    """Return the frames consumed before each node, by the last arc that enters it."""
    frame_N = np.zeros(arcs_A[-1].target + 1, np.int64)  # the last arc leads to the end
    for a in range(len(arcs_A)):
        arc = arcs_A[a]
        frame_N[arc.target] = frame_N[arc.source] + (arc.state != EMPTY)
    return frame_N


@numba.njit(cache=True, nogil=True)
def has_path(arcs_A: Any, ali_T: Any) -> bool:
    """Return whether the lattice has a path of these states."""
    frame_N = frame_of_node(arcs_A)
    reached_N = np.zeros(len(frame_N), np.bool_)
    reached_N[0] = True
    for a in range(len(arcs_A)):
        arc = arcs_A[a]
        if reached_N[arc.source] and (
            arc.state == EMPTY or arc.state == ali_T[frame_N[arc.source]]
        ):
            reached_N[arc.target] = True
    return reached_N[-1]


@numba.njit(cache=True, nogil=True)
def _sums(
    arcs_A: Any, frame_N: Any, scores_TS: Any, ali_T: Any, counted_S: Any, boost: float
) -> Any:
    """Return what `Sums` holds."""
    arcs, nodes = len(arcs_A), len(frame_N)
    way_A, right_A = np.empty(arcs), np.zeros(arcs)
    forward_N, reference_N = np.full(nodes, -np.inf), np.full(nodes, -np.inf)
    forward_N[0] = reference_N[0] = 0.0
    for a in range(arcs):  # sorted by source, so all arcs into it came before
        arc = arcs_A[a]
        s, u = arc.source, arc.target
        way, is_reference = -np.float64(arc.graph), True
        if arc.state != EMPTY:
            t = frame_N[s]
            way += scores_TS[t, arc.state]
            is_reference = arc.state == ali_T[t]
            if counted_S[ali_T[t]]:
                if is_reference:
                    right_A[a] = 1.0
                else:
                    way += boost
        way_A[a] = way
        forward_N[u] = np.logaddexp(forward_N[u], forward_N[s] + way)
        if is_reference:
            reference_N[u] = np.logaddexp(reference_N[u], reference_N[s] + way)
    total = forward_N[-1]
    before_N = np.zeros(nodes)  # expected accuracy from the start to each node
    for a in range(arcs):
        s, u = arcs_A[a].source, arcs_A[a].target
        share = np.exp(forward_N[s] + way_A[a] - forward_N[u])
        before_N[u] += share * (before_N[s] + right_A[a])
    accuracy = before_N[-1]
    backward_N, after_N = np.full(nodes, -np.inf), np.zeros(nodes)
    backward_N[-1] = 0.0
    gamma_TS, delta_TS = np.zeros(scores_TS.shape), np.zeros(scores_TS.shape)
    last = arcs - 1
    for a in range(arcs - 1, -1, -1):
        s, u = arcs_A[a].source, arcs_A[a].target
        backward_N[s] = np.logaddexp(backward_N[s], way_A[a] + backward_N[u])
        if a > 0 and arcs_A[a - 1].source == s:
            continue
        for b in range(a, last + 1):  # all arcs of this source: its backward sum is complete
            arc = arcs_A[b]
            onward = way_A[b] + backward_N[arc.target]
            expected = right_A[b] + after_N[arc.target]
            after_N[s] += np.exp(onward - backward_N[s]) * expected
            if arc.state != EMPTY:
                gamma = np.exp(forward_N[s] + onward - total)
                gamma_TS[frame_N[s], arc.state] += gamma
                delta_TS[frame_N[s], arc.state] += gamma * (before_N[s] + expected - accuracy)
        last = a - 1
    return total, reference_N[-1], accuracy, gamma_TS, delta_TS
