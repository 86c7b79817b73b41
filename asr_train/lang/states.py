"""Phones -> HMM states -> the ids that models predict.

Every phone has a sequence of states from left to right, each with a self-loop; silence has a
different number of them. Without a tree, each (phone, position) is a state (monophone); with one, a
state is a leaf of the tree (senone), determined by the phone, its neighbours and the position. Ids
start from 0, silence first; silence's states do not depend on its neighbours.

States of another program (interop.kaldi_states) have its ids and HMMs (lang.hmms) instead.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from asr_train.files import hash_of
from asr_train.lang.hmms import Hmm, Hmms, Way
from asr_train.lang.lexicon import SILENCE
from asr_train.lang.tree import Tree


@dataclass(frozen=True)
class States:
    """The states of a set of phones.

    Attributes:
        phones: names; the first is SIL, which also stands for the neighbour at an utterance's edge
            unless the tree has one of its own.
        phone_states, silence_states: states per phone, and of silence. With `hmms`, the fewest
            frames that any phone, and silence, can last.
        tree: ties the states of phones in context; None: monophones.
        hmms: of another program, whose ids the tree has; None: from left to right.
    """

    phones: tuple[str, ...]
    phone_states: int
    silence_states: int
    tree: Tree | None = None
    hmms: Hmms | None = None

    def __post_init__(self) -> None:
        if self.phones[:1] != (SILENCE,):
            raise ValueError(
                f"the phones begin with {self.phones[:1]}; {SILENCE} must be the first"
            )

    @property
    def tied(self) -> bool:
        """Whether states depend on neighbours."""
        return self.tree is not None

    @property
    def num_states(self) -> int:
        """S, the number of state ids."""
        if self.tree is not None:
            return self.tree.num_leaves
        return self.silence_states + (len(self.phones) - 1) * self.phone_states

    @cached_property
    def hash(self) -> str:
        """A hash, recorded in models, graphs and alignments, and compared when they are loaded."""
        return hash_of(list(self.plain().values()))

    def positions(self, phone: int) -> int:
        """Return the number of states of a phone."""
        if self.hmms is not None:
            return len(self.hmms.topology(phone))
        return self.silence_states if phone == 0 else self.phone_states

    @property
    def edge(self) -> int:
        """The phone that stands for the neighbour at an utterance's edge."""
        return 0 if self.hmms is None else len(self.phones)

    @cached_property
    def is_context_dependent_P(self) -> list[bool]:
        """Whether the states of each phone depend on its neighbours."""
        if self.tree is None or self.hmms is None:
            return [self.tied and p != 0 for p in range(len(self.phones))]
        return self.tree.is_context_dependent()

    @cached_property
    def table_LPRJ(self) -> np.ndarray:
        """The state of (left phone, phone, right phone, position): int32 [P, P, P, J]; -1: none.

        Without a tree, the left and right axes are broadcast.
        """
        if self.tree is not None:
            return self.tree.table()
        most, p = max(self.phone_states, self.silence_states), len(self.phones)
        table_PJ = np.full((p, most), -1, np.int32)
        table_PJ[0, : self.silence_states] = np.arange(self.silence_states)
        ids = np.arange(self.silence_states, self.num_states).reshape(p - 1, self.phone_states)
        table_PJ[1:, : self.phone_states] = ids
        return np.broadcast_to(table_PJ[None, :, None], (p, p, p, most))

    def ids(self, left: int, phone: int, right: int) -> list[int]:
        """Return the states of a phone between two others (indices of phones), in order of time."""
        assert self.hmms is None
        return self.table_LPRJ[left, phone, right, : self.positions(phone)].tolist()

    def hmm(self, left: int, phone: int, right: int) -> Hmm:
        """Return the HMM of a phone between two others (indices of phones, or `edge`).

        Raises:
            ValueError: if a tree and transitions of another program do not go together.
        """
        if self.hmms is None or self.tree is None:
            return Hmm.left_to_right(tuple(self.ids(left, phone, right)))
        classes = range(self.hmms.classes(phone))
        return self.hmms.of(phone, tuple(self.tree.find(left, phone, right, j) for j in classes))

    def ways(self) -> Iterator[Way]:
        """Yield the ways out of all HMM states that a phone has in any context."""
        if self.hmms is not None:
            yield from self.hmms.ways()
            return
        for p in range(len(self.phones)):
            for j in range(self.positions(p)):
                for s in np.unique(self.table_LPRJ[:, p, :, j]).tolist():
                    yield Way(p, j, j + 1, s, s, None, 0.0)

    def of(self, phone: str) -> Sequence[int]:
        """Return the ids of a phone, in order of time if its HMM is from left to right.

        Its states must not depend on neighbours, except with `hmms`.
        """
        p = self.phones.index(phone)
        if self.hmms is not None:
            return sorted({i for row in self.hmms.rows if row[0] == p for i in row[2:4] if i >= 0})
        assert p == 0 or not self.tied, f"{phone} has context-dependent states"
        ids = self.ids(0, p, 0)
        return range(ids[0], ids[-1] + 1)

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON, which `from_plain` reads."""
        tree = None if self.tree is None else self.tree.plain()
        more = {} if self.hmms is None else {"hmms": self.hmms.plain()}
        return {
            "phones": list(self.phones),
            "phone_states": self.phone_states,
            "silence_states": self.silence_states,
            "tree": tree,
            **more,
        }

    def about(self) -> dict[str, Any]:
        """Return what an index or a model.json has about its states, which `stored` reads."""
        return {"num_states": self.num_states, "states_hash": self.hash, "states": self.plain()}

    @staticmethod
    def from_plain(content: dict[str, Any]) -> "States":
        """Rebuild the states from plain data."""
        tree = None if content["tree"] is None else Tree.from_plain(content["tree"])
        phones = tuple(content["phones"])
        hmms = Hmms.from_plain(content["hmms"]) if "hmms" in content else None
        return States(phones, content["phone_states"], content["silence_states"], tree, hmms)

    @staticmethod
    def stored(about: dict[str, Any], path: Path | str) -> "States":
        """Read states from a JSON file (`states`), and check their hash (`states_hash`).

        Raises:
            ValueError: if the hash differs; gives both. If there can be no such states.
            KeyError: for a missing entry.
        """
        found = hash_of([*about["states"].values()])
        if found != about["states_hash"]:
            raise ValueError(
                f"{path} says states_hash {about['states_hash']} but its states have {found}; "
                "delete it and run make again"
            )
        try:
            return States.from_plain(about["states"])
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(
                f"{path} has states that there cannot be ({error}); delete it and run make again"
            ) from error

    @property
    def monophones(self) -> "States":
        """The same phones and positions without a tree."""
        return States(self.phones, self.phone_states, self.silence_states)
