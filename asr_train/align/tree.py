"""Statistics of triphone states -> **tied states**: derive questions, grow trees (lang.tree).

    phones and frames --triphone_keys, summed--> Stats --questions, grow--> Tree

Each triphone state is one diagonal Gaussian; a split gains the likelihood of two Gaussians over one
(Young, Odell and Woodland, 1994). The best split over all trees is made first. Questions come from
clustering phones (as in Kaldi's cluster-phones and build-tree). Knows nothing of files, lexicons or
the mixtures trained afterwards.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_train.align.transforms import sums_by
from asr_train.lang.tree import CENTRE, LEFT, RIGHT, Tree
from asr_train.schema import QuestionStates, TreeSettings

ROUNDING = 1e-9  # relative to the likelihood; smaller gains count as none
COLUMN = {LEFT: 0, CENTRE: 1, RIGHT: 2}  # of a key: (left, centre, right, position)
MAX_PHONES = 500  # their table of contexts, `Tree.table`, then has 1.5 GB


# --- statistics ---------------------------------------------------------------------------------


class TreeError(ValueError):
    """Settings of a tree that do not fit the phones; the message begins with the setting's name."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Sums over the frames of each triphone state.

    Attributes:
        key_K4: int [K, 4], (left, centre, right, position); no row twice. Silence is phone 0; its
            own contexts do not matter.
        sum_KM: float64 [K, 1 + 2D], number of frames, their sums, and sums of their squares.
    """

    key_K4: np.ndarray
    sum_KM: np.ndarray

    @staticmethod
    def of(key_T4: np.ndarray, x_TD: np.ndarray) -> "Stats":
        """Sum frames, with the triphone state of each."""
        key_K4, inverse_T = np.unique(key_T4, axis=0, return_inverse=True)
        x_TD = x_TD.astype(np.float64)
        x_TM = np.column_stack([np.ones(len(x_TD)), x_TD, x_TD * x_TD])
        return Stats(key_K4, sums_by(inverse_T.reshape(-1), x_TM, len(key_K4)))


def summed(every: Iterable[Stats]) -> Stats:
    """Add up the Stats of many chunks; memory grows with the states seen, not with frames.

    Returns:
        The total, in the order of the keys.
    """
    sums: dict[tuple[int, ...], np.ndarray] = {}
    for stats in every:
        for key, sum_M in zip(map(tuple, stats.key_K4.tolist()), stats.sum_KM, strict=True):
            if key in sums:
                sums[key] += sum_M
            else:
                sums[key] = sum_M.copy()  # a view would keep the matrix in memory
    keys = sorted(sums)
    return Stats(np.array(keys, np.int32), np.array([sums[key] for key in keys]))


def loglik(stats_NM: np.ndarray, floor_D: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of pooled frames under their best Gaussian: float64 [N], nats.

    The Gaussian has diagonal covariance and no variance below `floor_D`, so that a split never
    loses likelihood.

    Args:
        stats_NM: float64 [N, 1 + 2D], count, sums, squares.
    """
    dims = len(floor_D)
    count_N = stats_NM[:, 0]
    each_N1 = np.maximum(count_N, 1e-10)[:, None]
    mean_ND = stats_NM[:, 1 : 1 + dims] / each_N1
    own_ND = np.maximum(stats_NM[:, 1 + dims :] / each_N1 - mean_ND * mean_ND, 0)
    variance_ND = np.maximum(own_ND, floor_D)
    own_ND /= variance_ND
    own_ND += np.log(variance_ND)
    return -0.5 * count_N * (own_ND.sum(1) + dims * np.log(2 * np.pi))


def variance_floor(stats: Stats, share: float) -> np.ndarray:
    """Return `share` of the variance over all frames: float64 [D]."""
    total_M = stats.sum_KM.sum(0)
    mean_D, square_D = np.split(total_M[1:] / total_M[0], 2)
    floor_D: np.ndarray = share * (square_D - mean_D**2)
    if not (floor_D > 0).all():
        worst = int(np.argmin(floor_D))
        raise ValueError(
            f"dimension {worst} of the frames has variance {floor_D[worst] / share:.3g}; "
            "it carries no information, so leave it out of the features"
        )
    return floor_D


# --- questions ----------------------------------------------------------------------------------


def questions(
    stats: Stats, states_P: Sequence[int], which: QuestionStates, floor_D: np.ndarray
) -> np.ndarray:
    """Return sets of similar phones: bool [Q, P], without duplicates or complements.

    They are single phones, and all clusters of agglomerative clustering by least loss of
    likelihood. Silence, a class of its own, and unseen phones are in no cluster.
    """
    phones = len(states_P)
    sets = list(np.eye(phones, dtype=bool))
    for place in (0.5,) if which is QuestionStates.middle else (0.5, 0.0, 1.0):
        wanted_P = np.array([round(place * (n - 1)) for n in states_P])
        centre_K, position_K = stats.key_K4[:, 1], stats.key_K4[:, 3]
        chosen_K = (position_K == wanted_P[centre_K]) & (centre_K > 0)
        pooled_PM = np.zeros((phones, 1 + 2 * len(floor_D)))
        np.add.at(pooled_PM, centre_K[chosen_K], stats.sum_KM[chosen_K])
        sets += _clusters(pooled_PM, floor_D)
    kept: dict[bytes, np.ndarray] = {}
    for set_P in sets:
        canonical = set_P if not set_P[0] else ~set_P  # a set and its complement are one question
        if 0 < set_P.sum() < phones:
            kept.setdefault(canonical.tobytes(), set_P)
    return np.array(list(kept.values())).reshape(-1, phones)


def _clusters(pooled_PM: np.ndarray, floor_D: np.ndarray) -> list[np.ndarray]:
    """Return the unions made on the way from single phones to all of them."""
    seen_P = pooled_PM[:, 0] > 0
    members = list(np.eye(len(pooled_PM), dtype=bool)[seen_P])
    unions = []
    for a, b in _joins(pooled_PM[seen_P], floor_D, np.inf):
        members[a] = members[a] | members[b]
        unions.append(members[a])
    return unions


def _joins(stats_NM: np.ndarray, floor_D: np.ndarray, limit: float) -> list[tuple[int, int]]:
    """Return pairs (a < b) joined into a, cheapest first, while the loss is below `limit` nats."""
    stats_NM = stats_NM.copy()
    size = len(stats_NM)
    loglik_N = loglik(stats_NM, floor_D)

    def loss(a: int, others: np.ndarray) -> np.ndarray:
        joint_N = loglik(stats_NM[a] + stats_NM[others], floor_D)
        return loglik_N[a] + loglik_N[others] - joint_N

    loss_NN = np.full((size, size), np.inf)  # above the diagonal
    for a in range(size - 1):
        loss_NN[a, a + 1 :] = loss(a, np.arange(a + 1, size))
    alive_N = np.ones(size, bool)
    joined = []
    for _ in range(size - 1):
        a, b = divmod(int(np.argmin(loss_NN)), size)
        if not loss_NN[a, b] < limit:
            break
        joined.append((a, b))
        stats_NM[a] += stats_NM[b]
        loglik_N[a] = loglik(stats_NM[a : a + 1], floor_D)[0]
        alive_N[b] = False
        loss_NN[b, :] = loss_NN[:, b] = np.inf
        others = np.flatnonzero(alive_N & (np.arange(size) != a))
        loss_NN[np.minimum(others, a), np.maximum(others, a)] = loss(a, others)
    return joined


# --- growing ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    """A node of a growing tree."""

    rows: np.ndarray  # of the statistics
    centres: int  # phones that start from its root
    loglik: float
    question: int = -1  # -1: a leaf
    side: int = 0
    yes: int = -1
    no: int = -1
    leaf: int = -1


class _Forest:
    """All trees while they grow."""

    def __init__(self, stats: Stats, questions_QP: np.ndarray, floor_D: np.ndarray, least: float):
        self.key_K4, self.sum_KM = stats.key_K4, stats.sum_KM
        self.questions_QP, self.floor_D, self.least = questions_QP, floor_D, least
        self.asked_QP = questions_QP.astype(np.float64)
        self.nodes: list[_Node] = []

    def add(self, rows: np.ndarray, centres: int) -> int:
        """Add a leaf; return its number."""
        pooled_1M = self.sum_KM[rows].sum(0, keepdims=True)
        self.nodes.append(_Node(rows, centres, float(loglik(pooled_1M, self.floor_D)[0])))
        return len(self.nodes) - 1

    def best_split(self, number: int) -> tuple[float, int, int] | None:
        """Return gain in nats, question and side of the best split that leaves enough frames."""
        node = self.nodes[number]
        sum_KM = self.sum_KM[node.rows]
        total_M = sum_KM.sum(0)
        if total_M[0] < 2 * self.least:
            return None
        sides = [LEFT, RIGHT, CENTRE][: 3 if node.centres > 1 else 2]
        phone_SK = [self.key_K4[node.rows, COLUMN[side]] for side in sides]
        phones = self.questions_QP.shape[1]
        yes_SQM = np.stack([self.asked_QP @ sums_by(p_K, sum_KM, phones) for p_K in phone_SK])
        yes_XM = yes_SQM.reshape(-1, len(total_M))
        enough = (yes_XM[:, 0] >= self.least) & (total_M[0] - yes_XM[:, 0] >= self.least)
        candidates = np.flatnonzero(enough)
        if not len(candidates):
            return None
        yes_XM = yes_XM[candidates]
        gain_X = loglik(yes_XM, self.floor_D) + loglik(total_M - yes_XM, self.floor_D)
        best = int(np.argmax(gain_X))
        side, question = divmod(int(candidates[best]), len(self.questions_QP))
        gain = float(gain_X[best]) - node.loglik
        return (gain, question, sides[side]) if gain > ROUNDING * abs(node.loglik) else None

    def split(self, number: int, question: int, side: int) -> list[int]:
        """Split a leaf by a question; return the new leaves."""
        node = self.nodes[number]
        answer_K = self.questions_QP[question, self.key_K4[node.rows, COLUMN[side]]]
        node.question, node.side = question, side
        node.yes = self.add(node.rows[answer_K], node.centres)
        node.no = self.add(node.rows[~answer_K], node.centres)
        return [node.yes, node.no]

    def below(self, root: int) -> list[int]:
        """Return the root and all nodes under it, `yes` first."""
        order, todo = [], [root]
        while todo:
            order.append(todo.pop())
            node = self.nodes[order[-1]]
            if node.question >= 0:
                todo += [node.no, node.yes]
        return order


def grow(
    stats: Stats, states_P: Sequence[int], settings: TreeSettings, phones: Sequence[str]
) -> tuple[Tree, dict[str, Any]]:
    """Tie triphone states to a target number of leaves.

    Every (phone, position) is a root. One queue over all of them yields the best split next, until
    there are `settings.leaves` leaves or no split gains likelihood and leaves enough frames.
    Silence (phone 0) is not split. An unseen context gets the leaf that its answers lead to. Equal
    statistics give an equal tree.

    Args:
        states_P: int [P], HMM states (positions) of each phone.
        phones: [P], their names, for `settings.share` and messages.
    Returns:
        The tree; and, for the log:
        stopped: why splitting ended: leaves, min_gain, or min_count (no question leaves enough
            frames on both sides, or none gains anything).
        roots, splits, merged: of which leaves = roots + splits - merged.
        gain_per_frame: nats gained over one Gaussian per root, after merging.
        least_gain: gain in nats of the worst split, over all frames; 0 without splits.
        fewest_frames: of a leaf.
    Raises:
        TreeError: for an unknown phone in `share`, fewer leaves than roots, or over MAX_PHONES.
        ValueError: for a dimension in which the frames do not vary.
    """
    if len(phones) > MAX_PHONES:
        raise TreeError(
            f"tree: {len(phones)} phones are too many for triphones, of which a table is kept (at "
            f"most {MAX_PHONES}); train mono alone, or use a lexicon with fewer phones"
        )
    floor_D = variance_floor(stats, settings.variance_floor)
    questions_QP = questions(stats, states_P, settings.question_states, floor_D)
    forest = _Forest(stats, questions_QP, floor_D, settings.min_count)
    root_PJ = _roots(forest, states_P, _groups(settings.share, phones))
    roots = list(dict.fromkeys(root_PJ[root_PJ >= 0].tolist()))
    if settings.leaves < len(roots):
        raise TreeError(
            f"tree.leaves is {settings.leaves}, but {len(phones)} phones have {len(roots)} "
            "states to start from; ask for at least as many leaves, or share roots"
        )
    gains, stopped = _split(forest, [r for r in roots if r not in root_PJ[0]], settings)
    merged = sum(_merge(forest, r, min(gains)) for r in roots) if settings.merge and gains else 0
    tree = _finish(forest, roots, root_PJ)
    stats_LM = np.zeros((tree.num_leaves, forest.sum_KM.shape[1]))
    for node in forest.nodes:
        if node.question < 0:
            stats_LM[node.leaf] += forest.sum_KM[node.rows].sum(0)
    frames, before = float(stats_LM[:, 0].sum()), sum(forest.nodes[r].loglik for r in roots)
    return tree, {
        "leaves": tree.num_leaves,
        "stopped": stopped,
        "roots": len(roots),
        "splits": len(gains),
        "merged": merged,
        "frames": frames,
        "gain_per_frame": (float(loglik(stats_LM, floor_D).sum()) - before) / frames,
        "least_gain": min(gains, default=0.0),
        "fewest_frames": float(stats_LM[:, 0].min()),
    }


def _groups(share: list[list[str]], phones: Sequence[str]) -> list[list[int]]:
    """Return lists of phones with common roots, in the order of their first phone."""
    own: dict[int, list[int]] = {p: [p] for p in range(len(phones))}
    for group in share:
        for name in group:
            if name not in phones[1:]:
                raise TreeError(
                    f"tree.share names {name!r}, which is not among the phones that have "
                    f"contexts: {', '.join(phones[1:])}"
                )
        ids = sorted(phones.index(name) for name in group)
        own |= dict.fromkeys(ids, ids)
    return [ids for p, ids in own.items() if ids[0] == p]


def _roots(forest: _Forest, states_P: Sequence[int], groups: list[list[int]]) -> np.ndarray:
    """Add a leaf for each group and position; return node numbers, -1 if there is none."""
    root_PJ = np.full((len(states_P), max(states_P)), -1, np.int32)
    for group in groups:
        here_K = np.isin(forest.key_K4[:, 1], group)
        for position in range(states_P[group[0]]):
            rows = np.flatnonzero(here_K & (forest.key_K4[:, 3] == position))
            root_PJ[group, position] = forest.add(rows, len(group))
    return root_PJ


def _split(forest: _Forest, roots: list[int], settings: TreeSettings) -> tuple[list[float], str]:
    """Make the best split until there are enough leaves; return the gains, and why it ended."""
    queue: list[tuple[float, int, int, int]] = []
    gains: list[float] = []
    leaves, new, short = len(forest.nodes), roots, "min_count"
    while True:
        for number in new:
            if (found := forest.best_split(number)) is not None:
                gain, question, side = found
                if gain > settings.min_gain:
                    heapq.heappush(queue, (-gain, number, question, side))
                else:
                    short = "min_gain"
        if leaves + len(gains) == settings.leaves:
            return gains, "leaves"
        if not queue:
            return gains, short
        loss, *best = heapq.heappop(queue)
        gains.append(-loss)
        new = forest.split(*best)


def _merge(forest: _Forest, root: int, limit: float) -> int:
    """Merge leaves of one root whose union loses less than `limit`; return the number merged."""
    leaves = [n for n in forest.below(root) if forest.nodes[n].question < 0]
    stats_LM = np.stack([forest.sum_KM[forest.nodes[n].rows].sum(0) for n in leaves])
    joined = _joins(stats_LM, forest.floor_D, limit)
    into = list(range(len(leaves)))
    for a, b in joined:
        into = [a if i == b else i for i in into]
    for n, i in zip(leaves, into, strict=True):
        forest.nodes[n].leaf = leaves[i]  # a node number; `_finish` replaces it by an id
    return len(joined)


def _finish(forest: _Forest, roots: list[int], root_PJ: np.ndarray) -> Tree:
    """Number nodes and leaves depth-first, `yes` first."""
    order = [n for root in roots for n in forest.below(root)]
    place = {n: i for i, n in enumerate(order)}
    place[-1] = -1
    leaf_id: dict[int, int] = {}
    for n in order:
        node = forest.nodes[n]
        if node.question < 0:
            node.leaf = leaf_id.setdefault(node.leaf if node.leaf >= 0 else n, len(leaf_id))
    nodes = [forest.nodes[n] for n in order]
    rows = [(n.question, n.side, place[n.yes], place[n.no], n.leaf) for n in nodes]
    root_PJ = np.array([[place[int(r)] for r in row] for row in root_PJ], np.int32)
    question_N, side_N, yes_N, no_N, leaf_N = np.array(rows, np.int32).T
    return Tree(forest.questions_QP, question_N, side_N, yes_N, no_N, leaf_N, root_PJ)
