"""Kaldi's `tree` -> **ContextDependency**: phones in context and a pdf-class -> pdf-id.

An event has values of keys: PDF_CLASS, and 0 ... N - 1 for the phones of a window of N, of which
the one at P is pronounced. Phones are Kaldi's, from 1; 0 is the place before or after an utterance.
The format is that of src/tree/event-map.cc and context-dep.cc. `tree_of` converts to `lang.tree`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr_train.interop.objects import Objects
from asr_train.lang.tree import CENTRE, LEFT, RIGHT, Tree

PDF_CLASS = -1
NONE = -1  # no node: Kaldi's NULL


@dataclass(frozen=True, slots=True)
class Split:
    """`SE`: whether a key's value is in a set leads to one of two nodes, or to none."""

    key: int
    values: frozenset[int]
    yes: int
    no: int


@dataclass(frozen=True, slots=True)
class ContextDependency:
    """A window's `width` N, the `centre` P that is pronounced, and the event map to pdf-ids.

    Nodes refer to each other by their places; no node's branches come after it. A number (`CE`) is
    the answer. A table (`TE`), in which a key's value is the number of a branch, becomes a row of
    splits.
    """

    width: int
    centre: int
    nodes: list[int | Split]
    root: int


def read_tree(path: Path | str) -> ContextDependency:
    """Read a `tree`, binary or text (`copy-tree --binary=false`).

    Raises:
        DamagedFileError: if it is truncated, altered or something else; names the byte.
    """
    objects = Objects(path)
    objects.expect("ContextDependency")
    width, centre = objects.int32(), objects.int32()
    if not 0 <= centre < width:
        raise objects.damaged(f"place {centre} is pronounced in a window of {width} phones")
    nodes: list[int | Split] = []
    try:
        if objects.expect("ToPdf", "ToLength") == "ToLength":  # of old versions, which ignore it
            _read_node(objects, [])
            objects.expect("ToPdf")
        root = _read_node(objects, nodes)
    except RecursionError:  # Kaldi reads trees by recursion, too
        raise objects.damaged("the nodes of the tree are nested too deeply") from None
    objects.expect("EndContextDependency")
    if not objects.ended():
        raise objects.damaged("something follows the tree")
    return ContextDependency(width, centre, nodes, root)


def _read_node(objects: Objects, nodes: list[int | Split], *more: str) -> int:
    """Add the next node after its branches; return its place.

    Args:
        more: `NULL`, where no node is allowed.
    """
    kind = objects.expect("CE", "SE", "TE", *more)
    if kind == "NULL":
        return NONE
    if kind == "CE":
        nodes.append(objects.int32())
        return len(nodes) - 1
    key = objects.int32()
    if kind == "SE":
        values = frozenset(objects.int32s().tolist())
        objects.expect("{")
        yes, no = _read_node(objects, nodes), _read_node(objects, nodes)
        objects.expect("}")
        nodes.append(Split(key, values, yes, no))
        return len(nodes) - 1
    size = objects.uint32()
    objects.expect("(")
    branches = [_read_node(objects, nodes, "NULL") for _ in range(size)]
    objects.expect(")")
    place = NONE
    for value, branch in reversed([*enumerate(branches)]):
        if branch != NONE:
            nodes.append(Split(key, frozenset({value}), branch, place))
            place = len(nodes) - 1
    return place


# --- conversion ---------------------------------------------------------------------------------


def tree_of(
    dependency: ContextDependency, phones: Sequence[int], classes: Sequence[int], pdfs: int
) -> Tree:
    """Convert to a tree over these phones and, as the last one, the edge of an utterance.

    Args:
        phones: Kaldi's numbers, in the order of the new ones.
        classes: pdf-classes of each phone, the positions of the new tree.
        pdfs: number of pdf-ids.
    Returns:
        A tree whose leaves are pdf-ids. The edge (Kaldi's 0) has no roots.
    Raises:
        ValueError: for a wider window than a neighbour on either side, or a context without a
            pdf-id, or with one that is not below `pdfs`.
    """
    width, centre = dependency.width, dependency.centre
    if centre > 1 or width - centre > 2:
        raise ValueError(
            f"the tree has a window of {width} phones of which the one at {centre} is pronounced; "
            "only one neighbour on each side can be used here: train with "
            "--context-width=3 --central-position=1"
        )
    return _Conversion(dependency, phones, pdfs).tree(classes)


Sides = tuple[np.ndarray, ...]  # bool [P + 1] each: the left, right and centre phones of a node


class _Conversion:
    """Nodes of the new tree, as they come."""

    def __init__(self, dependency: ContextDependency, phones: Sequence[int], pdfs: int) -> None:
        self._nodes, self._root = dependency.nodes, dependency.root
        self._pdfs, self._phones = pdfs, phones
        centre = dependency.centre
        sides = {centre - 1: LEFT, centre: CENTRE, centre + 1: RIGHT}
        self._sides = {key: side for key, side in sides.items() if 0 <= key < dependency.width}
        self._value_P = np.array([*phones, 0])  # of each new phone, the edge last
        self._questions: dict[bytes, int] = {}
        # question, side, yes, no, leaf: arrays of `Tree`, in its order
        self._rows: list[list[int]] = []

    def tree(self, classes: Sequence[int]) -> Tree:
        root_PJ = np.full((len(self._phones) + 1, max(classes)), NONE, np.int32)
        sharing: dict[tuple[int, int], list[int]] = {}  # node and class -> phones
        for p, count in enumerate(classes):
            for j in range(count):
                sharing.setdefault((self._resolved(self._root, j, p), j), []).append(p)
        for (place, j), phones in sharing.items():
            centre_P = np.zeros(len(self._value_P), bool)
            centre_P[phones] = True
            root_PJ[phones, j] = self._grown(place, j, centre_P)
        sets = [np.frombuffer(key, bool) for key in self._questions]
        questions_QP = np.array(sets, bool).reshape(-1, len(self._value_P))
        question_N, side_N, yes_N, no_N, leaf_N = np.array(self._rows, np.int32).T
        nodes = question_N, side_N, yes_N, no_N, leaf_N
        return Tree(questions_QP, *nodes, root_PJ, self._pdfs)

    def _resolved(self, place: int, pdf_class: int, phone: int | None) -> int:
        """Follow what the pdf-class, and the phone if it is given, answer."""
        while place != NONE and isinstance(node := self._nodes[place], Split):
            if node.key == PDF_CLASS:
                value = pdf_class
            elif phone is not None and self._sides.get(node.key) == CENTRE:
                value = self._phones[phone]
            else:
                break
            place = node.yes if value in node.values else node.no
        return place

    def _grown(self, place: int, pdf_class: int, centre_P: np.ndarray) -> int:
        """Add the nodes below a root of these centre phones; return its number."""
        every_P = np.ones(len(self._value_P), bool)
        root = self._add()
        todo: list[tuple[int, int, Sides]] = [(root, place, (every_P, every_P, centre_P))]
        while todo:
            number, here, sides_SP = todo.pop()
            here = self._resolved(here, pdf_class, None)
            if here == NONE:
                left, right, centre = (int(self._value_P[side_P][0]) for side_P in sides_SP)
                raise ValueError(
                    f"the tree has no pdf-id for pdf-class {pdf_class} of phone {centre} between "
                    f"{left} and {right} (Kaldi's numbers); take tree and model of the same folder"
                )
            node = self._nodes[here]
            if isinstance(node, int):
                if not 0 <= node < self._pdfs:
                    raise ValueError(
                        f"the tree has pdf-id {node}, but the transition model has "
                        f"{self._pdfs} pdf-ids from 0; take tree and model of the same folder"
                    )
                self._rows[number][4] = node
                continue
            side = self._sides.get(node.key)
            if side is None:
                raise ValueError(
                    f"the tree asks about key {node.key}, but its window has the keys "
                    f"{sorted(self._sides)}; is it damaged?"
                )
            yes_P = np.array([value in node.values for value in self._value_P.tolist()])
            both = [
                tuple(p & a if s == side else p for s, p in enumerate(sides_SP))
                for a in (yes_P, ~yes_P)
            ]
            if not both[1][side].any():  # all that come here are in the set
                todo.append((number, node.yes, both[0]))
            elif not both[0][side].any():
                todo.append((number, node.no, both[1]))
            else:
                asked = self._questions.setdefault(yes_P.tobytes(), len(self._questions))
                one, other = self._add(), self._add()
                self._rows[number] = [asked, side, one, other, NONE]
                todo += [(other, node.no, both[1]), (one, node.yes, both[0])]
        return root

    def _add(self) -> int:
        self._rows.append([NONE] * 5)
        return len(self._rows) - 1
