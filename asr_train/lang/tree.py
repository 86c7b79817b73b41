"""Phones in context -> **tied states**: trees of yes/no questions about neighbouring phones.

    (left, centre, right, position) --find, table--> leaf      Tree <--plain--> JSON

Phones are numbered from 0, silence is phone 0; it also stands for the neighbour at an utterance's
edge. Knows nothing of how a tree is grown (align.tree) nor of what is modelled at its leaves.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_train.checks import check_shape

FORMAT = 1
LEFT, RIGHT, CENTRE = 0, 1, 2  # the phone that a question is about
SIDES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """For each (centre phone, position), a binary tree of questions; its leaves are tied states.

    Leaves are numbered depth-first, by phone and then position of the roots, `yes` before `no`.
    Silence asks no questions, so its leaves come first, one per position. Merged leaves are several
    nodes with one leaf id.

    Attributes:
        questions_QP: bool [Q, P], sets of phones.
        question_N: int32 [N], the question of node n; -1: the node is a leaf.
        side_N: int8 [N], the phone it is about: 0 the left one, 1 the right one, 2 the centre (if
            several centres share a root).
        yes_N, no_N: int32 [N], the next node; -1 at leaves.
        leaf_N: int32 [N], the leaf's id; -1 at questions.
        root_PJ: int32 [P, J], the root of (phone, position); -1: no such position.
        leaves: of another program's tree, their number: it numbered them (silence has no special
            ones, and questions may contradict each other), and the last phone is the utterance's
            edge, which has no roots. None: a tree as described above.
    Raises:
        ValueError: if these do not form trees; names the wrong node, question or leaf.
    """

    questions_QP: np.ndarray
    question_N: np.ndarray
    side_N: np.ndarray
    yes_N: np.ndarray
    no_N: np.ndarray
    leaf_N: np.ndarray
    root_PJ: np.ndarray
    leaves: int | None = None

    def __post_init__(self) -> None:
        _check_shapes(self)
        _check_nodes(self)
        _check_paths(self)
        if self.leaves is None:
            _check_numbers(self)
        elif self.leaf_N.max() >= self.leaves:
            raise ValueError(f"tree: leaf {self.leaf_N.max()} of {self.leaves} leaves from 0")

    @property
    def num_leaves(self) -> int:
        return int(self.leaf_N.max()) + 1 if self.leaves is None else self.leaves

    @property
    def num_phones(self) -> int:
        return len(self.root_PJ)

    def find(self, left: int, centre: int, right: int, position: int) -> int:
        """Return the leaf of a phone in context.

        Raises:
            ValueError: if the phone has no such position.
        """
        node = int(self.root_PJ[centre, position])
        if node < 0:
            raise ValueError(
                f"phone {centre} has no position {position}, only "
                f"{int((self.root_PJ[centre] >= 0).sum())} of them"
            )
        phone_S = (left, right, centre)
        while self.leaf_N[node] < 0:
            yes = self.questions_QP[self.question_N[node], phone_S[self.side_N[node]]]
            node = int(self.yes_N[node] if yes else self.no_N[node])
        return int(self.leaf_N[node])

    def table(self) -> np.ndarray:
        """Return all leaves: int32 [P, P, P, J] by (left, centre, right, position); -1 pads."""
        phones, positions = self.root_PJ.shape
        table_PPPJ = np.full((phones, phones, phones, positions), -1, np.int32)
        for box in self._boxes():
            here_PPP = table_PPPJ[..., box.position]
            here_PPP[np.ix_(box.left_p, box.centre_p, box.right_p)] = box.leaf
        return table_PPPJ

    def reached(self) -> set[tuple[int, int, int]]:
        """Return all (centre, position, leaf) that some context has."""
        return {(int(p), box.position, box.leaf) for box in self._boxes() for p in box.centre_p}

    def is_context_dependent(self) -> list[bool]:
        """Return whether the leaves of each phone depend on its neighbours; without the edge."""
        asked_P = np.zeros(self.num_phones, bool)
        for box in self._boxes():
            if min(len(box.left_p), len(box.right_p)) < self.num_phones:
                asked_P[box.centre_p] = True
        return asked_P.tolist()[: None if self.leaves is None else -1]

    def _boxes(self) -> list["_Box"]:
        """Return the contexts of each leaf node: disjoint products of left x centre x right."""
        every_P = np.ones(self.num_phones, bool)
        boxes = []
        roots, first_R = np.unique(self.root_PJ, return_index=True)
        for root, first in zip(roots.tolist(), first_R.tolist(), strict=True):
            if root < 0:
                continue
            position = first % self.root_PJ.shape[1]
            centre_P = self.root_PJ[:, position] == root
            todo = [(root, (every_P, every_P, centre_P))]
            while todo:
                node, sides_SP = todo.pop()
                if self.leaf_N[node] >= 0:
                    left_p, right_p, centre_p = (np.flatnonzero(side_P) for side_P in sides_SP)
                    if len(left_p) and len(right_p) and len(centre_p):
                        leaf = int(self.leaf_N[node])
                        boxes.append(_Box(left_p, centre_p, right_p, position, leaf))
                    continue
                asked_P, side = self.questions_QP[self.question_N[node]], self.side_N[node]
                for child, answer_P in ((self.no_N[node], ~asked_P), (self.yes_N[node], asked_P)):
                    inside = tuple(p & answer_P if s == side else p for s, p in enumerate(sides_SP))
                    todo.append((int(child), inside))
        return boxes

    def plain(self) -> dict[str, Any]:
        """Return JSON-able data, which `from_plain` reads; a question is its list of phones."""
        more = {} if self.leaves is None else {"leaves": self.leaves}
        return {
            "format": FORMAT,
            "phones": self.num_phones,
            "questions": [np.flatnonzero(set_P).tolist() for set_P in self.questions_QP],
            "question": self.question_N.tolist(),
            "side": self.side_N.tolist(),
            "yes": self.yes_N.tolist(),
            "no": self.no_N.tolist(),
            "leaf": self.leaf_N.tolist(),
            "root": self.root_PJ.tolist(),
            **more,
        }

    @staticmethod
    def from_plain(content: Any) -> "Tree":
        """Rebuild a tree from plain data.

        Raises:
            ValueError: for another format, missing or wrong content.
        """
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else type(content).__name__
            raise ValueError(
                f"the tree has format {found}, this version reads {FORMAT}; "
                "rerun the stage that grew it"
            )
        phones = content.get("phones")
        if not isinstance(phones, int) or isinstance(phones, bool) or phones < 1:
            raise ValueError(f"the tree's phones is {phones!r}; it must be a positive number")
        leaves = content.get("leaves")
        if leaves is not None and type(leaves) is not int:
            raise ValueError(f"the tree's leaves is {leaves!r}; it must be an integer")
        return Tree(
            _questions(content, phones),
            _whole(content, "question", 1, np.int32),
            _whole(content, "side", 1, np.int8),
            _whole(content, "yes", 1, np.int32),
            _whole(content, "no", 1, np.int32),
            _whole(content, "leaf", 1, np.int32),
            _whole(content, "root", 2, np.int32),
            leaves,
        )


@dataclass(frozen=True, slots=True)
class _Box:
    """The contexts of one leaf node: lists of phone ids, and a position."""

    left_p: np.ndarray
    centre_p: np.ndarray
    right_p: np.ndarray
    position: int
    leaf: int


# --- checks -------------------------------------------------------------------------------------


def _whole(content: dict[str, Any], name: str, dims: int, dtype: type) -> np.ndarray:
    """Convert JSON lists to an array of integers."""
    try:
        array = np.array(content.get(name))
    except ValueError:  # rows of unequal lengths
        array = np.array(None)
    limits = np.iinfo(dtype)
    if array.ndim != dims or array.dtype.kind != "i" or array.size == 0:
        raise ValueError(
            f"the tree's {name} must be {'rows' if dims == 2 else 'a list'} of integers; "
            "rerun the stage that grew it"
        )
    if array.min() < limits.min or array.max() > limits.max:
        raise ValueError(
            f"the tree's {name} holds {array.min()} to {array.max()}; "
            f"it must lie in [{limits.min}, {limits.max}]"
        )
    return array.astype(dtype)


def _questions(content: dict[str, Any], phones: int) -> np.ndarray:
    sets = content.get("questions")
    if not isinstance(sets, list):
        raise ValueError("the tree's questions must be a list of lists of phone ids")
    questions_QP = np.zeros((len(sets), phones), bool)
    for q, members in enumerate(sets):
        if not isinstance(members, list) or not all(
            isinstance(p, int) and 0 <= p < phones for p in members
        ):
            raise ValueError(
                f"the tree's question {q} is {members!r}; "
                f"it must be a list of phone ids from 0 to {phones - 1}"
            )
        questions_QP[q, members] = True
    return questions_QP


def _check_shapes(tree: Tree) -> None:
    check_shape("tree: root_PJ", tree.root_PJ, None, None)
    check_shape("tree: questions_QP", tree.questions_QP, None, tree.num_phones)
    for name in ("question_N", "side_N", "yes_N", "no_N", "leaf_N"):
        check_shape(f"tree: {name}", getattr(tree, name), len(tree.question_N))
    rootless = np.flatnonzero(tree.root_PJ[:, 0] < 0)
    if tree.leaves is not None and rootless.tolist() == [tree.num_phones - 1]:
        return
    if len(rootless):
        phone = int(rootless[0])
        raise ValueError(f"tree: phone {phone} has no root at its first position")


def _check_nodes(tree: Tree) -> None:
    """Check that every node is a leaf or a question, and refers to existing nodes."""
    nodes = len(tree.question_N)
    for n in range(nodes):
        question, leaf = int(tree.question_N[n]), int(tree.leaf_N[n])
        if (question < 0) == (leaf < 0):
            raise ValueError(
                f"tree: node {n} has question {question} and leaf {leaf}; "
                "exactly one of them must be -1"
            )
        if leaf >= 0:
            continue
        if question >= len(tree.questions_QP):
            raise ValueError(
                f"tree: node {n} asks question {question}, but there are {len(tree.questions_QP)}"
            )
        if not 0 <= tree.side_N[n] < SIDES:
            raise ValueError(f"tree: node {n} asks about side {tree.side_N[n]}; it must be 0 to 2")
        for child in (int(tree.yes_N[n]), int(tree.no_N[n])):
            if not 0 <= child < nodes:
                raise ValueError(f"tree: node {n} leads to node {child} of {nodes}")
    if tree.root_PJ.max() >= nodes:
        raise ValueError(f"tree: a root is node {tree.root_PJ.max()} of {nodes}")


def _check_paths(tree: Tree) -> None:
    """Check that every node is reached once, from roots of one position each."""
    roots = np.unique(tree.root_PJ[tree.root_PJ >= 0])
    asking = tree.leaf_N < 0
    reached_N = np.bincount(
        np.concatenate([roots, tree.yes_N[asking], tree.no_N[asking]]), minlength=len(asking)
    )
    if (reached_N != 1).any():
        node = int(np.flatnonzero(reached_N != 1)[0])
        raise ValueError(
            f"tree: node {node} is reached from {reached_N[node]} places; it must be one"
        )
    todo, seen = roots.tolist(), 0
    while todo:  # with one way to each node, an unreached node is part of a cycle
        node, seen = todo.pop(), seen + 1
        if asking[node]:
            todo += [int(tree.yes_N[node]), int(tree.no_N[node])]
    if seen != len(asking):
        raise ValueError(f"tree: {len(asking) - seen} of {len(asking)} nodes form a cycle")
    for root in roots:
        if len(positions := np.unique(np.nonzero(tree.root_PJ == root)[1])) > 1:
            raise ValueError(f"tree: node {root} is the root of several positions, {positions}")


def _check_numbers(tree: Tree) -> None:
    """Check that no leaf id is missing, and silence asks nothing."""
    leaves = np.unique(tree.leaf_N[tree.leaf_N >= 0])
    if len(leaves) != leaves[-1] + 1:
        missing = np.setdiff1d(np.arange(leaves[-1]), leaves)
        raise ValueError(f"tree: leaf {missing[0]} is missing, but leaf {leaves[-1]} exists")
    for position, root in enumerate(tree.root_PJ[0]):
        alone = (tree.leaf_N == position).sum() == 1 and not (tree.root_PJ[1:] == root).any()
        if root >= 0 and not (tree.leaf_N[root] == position and alone):
            raise ValueError(
                f"tree: position {position} of silence has leaf {tree.leaf_N[root]}; it must be a "
                f"separate leaf, {position}"
            )
