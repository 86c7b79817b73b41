"""Phones in context -> **tied states**: trees of yes/no questions about neighbouring phones.

    (left, centre, right, position) --find, table--> leaf      Tree <--plain--> JSON

Phones are numbered from 0, silence is phone 0; it also stands for the neighbour at an utterance's
edge. Knows nothing of how a tree is grown (align.tree) nor of what is modelled at its leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

FORMAT = 1
LEFT, RIGHT, CENTRE = 0, 1, 2  # the phone that a question is about
OF_NODES = ("question", "side", "yes", "no", "leaf")  # arrays by node, as stored


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """For each (centre phone, position), a binary tree of questions; its leaves are tied states.

    Leaves are numbered depth-first, by phone and then position of the roots, `yes` before `no`.
    Silence asks no questions, so its leaves come first, one per position. Merged leaves are several
    nodes with one leaf id.

    Attributes:
        questions_QP: bool [Q, P], sets of phones.
        question_N: int32 [N], the question of node n; -1: the node is a leaf.
        side_N: int32 [N], the phone it is about: 0 the left one, 1 the right one, 2 the centre (if
            several centres share a root).
        yes_N, no_N: int32 [N], the next node; -1 at leaves.
        leaf_N: int32 [N], the leaf's id; -1 at questions.
        root_PJ: int32 [P, J], the root of (phone, position); -1: no such position.
        leaves: of another program's tree, their number: it numbered them (silence has no special
            ones, and questions may contradict each other), and the last phone is the utterance's
            edge, which has no roots. None: a tree as described above.
    """

    questions_QP: np.ndarray
    question_N: np.ndarray
    side_N: np.ndarray
    yes_N: np.ndarray
    no_N: np.ndarray
    leaf_N: np.ndarray
    root_PJ: np.ndarray
    leaves: int | None = None

    @property
    def num_leaves(self) -> int:
        return int(self.leaf_N.max()) + 1 if self.leaves is None else self.leaves

    @property
    def num_phones(self) -> int:
        return len(self.root_PJ)

    def find(self, left: int, centre: int, right: int, position: int) -> int:
        """Return the leaf of a phone in context; the phone must have this position."""
        node = int(self.root_PJ[centre, position])
        phone_S = (left, right, centre)
        while self.leaf_N[node] < 0:
            yes = self.questions_QP[self.question_N[node], phone_S[self.side_N[node]]]
            node = int(self.yes_N[node] if yes else self.no_N[node])
        return int(self.leaf_N[node])

    def table(self) -> np.ndarray:
        """Return all leaves: int32 [P, P, P, J] by (left, centre, right, position); -1 pads."""
        phones, positions = self.root_PJ.shape
        table_PPPJ = np.full((phones, phones, phones, positions), -1, np.int32)
        for left_p, right_p, centre_p, position, leaf in self._boxes():
            table_PPPJ[..., position][np.ix_(left_p, centre_p, right_p)] = leaf
        return table_PPPJ

    def reached(self) -> set[tuple[int, int, int]]:
        """Return all (centre, position, leaf) that some context has."""
        return {(int(p), j, leaf) for _, _, centre_p, j, leaf in self._boxes() for p in centre_p}

    def is_context_dependent(self) -> list[bool]:
        """Return whether the leaves of each phone depend on its neighbours; without the edge."""
        asked_P = np.zeros(self.num_phones, bool)
        for left_p, right_p, centre_p, *_ in self._boxes():
            if min(len(left_p), len(right_p)) < self.num_phones:
                asked_P[centre_p] = True
        return asked_P.tolist()[: None if self.leaves is None else -1]

    def _boxes(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, int, int]]:
        """Yield the contexts of each leaf node: disjoint products of left x right x centre.

        Phone ids of each side, then the position and the leaf.
        """
        every_P = np.ones(self.num_phones, bool)
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
                        yield left_p, right_p, centre_p, position, int(self.leaf_N[node])
                    continue
                asked_P, side = self.questions_QP[self.question_N[node]], self.side_N[node]
                for child, answer_P in ((self.no_N[node], ~asked_P), (self.yes_N[node], asked_P)):
                    inside = tuple(p & answer_P if s == side else p for s, p in enumerate(sides_SP))
                    todo.append((int(child), inside))

    def plain(self) -> dict[str, Any]:
        """Return JSON-able data, which `from_plain` reads; a question is its list of phones."""
        more = {} if self.leaves is None else {"leaves": self.leaves}
        return {
            "format": FORMAT,
            "phones": self.num_phones,
            "questions": [np.flatnonzero(set_P).tolist() for set_P in self.questions_QP],
            **{name: getattr(self, f"{name}_N").tolist() for name in OF_NODES},
            "root": self.root_PJ.tolist(),
            **more,
        }

    @staticmethod
    def from_plain(content: dict[str, Any]) -> "Tree":
        """Rebuild a tree from what `plain` returned; `States.stored` checks that it is unchanged.

        Raises:
            ValueError: for another format, or nodes that do not form trees.
        """
        if content["format"] != FORMAT:
            raise ValueError(
                f"the tree has format {content['format']}, this version reads {FORMAT}; "
                "rerun the stage that grew it"
            )
        questions_QP = np.zeros((len(content["questions"]), content["phones"]), bool)
        for set_P, members in zip(questions_QP, content["questions"], strict=True):
            set_P[members] = True
        nodes = {f"{name}_N": np.array(content[name], np.int32) for name in OF_NODES}
        root_PJ = np.array(content["root"], np.int32)
        tree = Tree(questions_QP, root_PJ=root_PJ, leaves=content.get("leaves"), **nodes)
        _check(tree)
        return tree


def _check(tree: Tree) -> None:
    """Check that each node is entered once, from a smaller number: else a walk might never end."""
    asking_N, nodes = tree.leaf_N < 0, len(tree.leaf_N)
    next_2A = np.stack([tree.yes_N, tree.no_N])[:, asking_N]
    entered = np.concatenate([np.unique(tree.root_PJ[tree.root_PJ >= 0]), *next_2A])
    once = np.array_equal(np.sort(entered), np.arange(nodes))
    if not once or (next_2A <= np.flatnonzero(asking_N)).any():
        raise ValueError(
            f"the tree's {nodes} nodes are not entered once each, from nodes with smaller numbers; "
            "rerun the stage that grew it"
        )
    question, side = tree.question_N[asking_N], tree.side_N[asking_N]
    if not (
        (question >= 0) & (question < len(tree.questions_QP)) & (side >= 0) & (side <= 2)
    ).all():
        raise ValueError("a node of the tree asks a question, or about a side, that there is not")
    if tree.leaves is not None and tree.leaf_N.max() >= tree.leaves:
        raise ValueError(f"the tree has leaf {tree.leaf_N.max()} of {tree.leaves} leaves from 0")
