"""HMMs of phones: the left-to-right ones here, and those of a model of another program.

    (phone, states by class of its HMM states) --Hmms.of--> Hmm      Hmms <--plain--> JSON

A class is a position of the tree (a pdf-class in Kaldi). States are given by their ids. Knows
nothing of how a tree finds them (lang.states), nor of files of other programs (interop).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

NONE = -1  # no state: a HMM state that is never repeated


@dataclass(frozen=True, slots=True)
class Hmm:
    """The HMM of a phone in its context; J HMM states, of which the first one is entered.

    Attributes:
        entered, repeated: the id of a visit's first frame, and of further ones, of each HMM state;
            NONE: it has no self-loop.
        ways: all ways out but self-loops, by source: source, target (J: the phone ends) and cost in
            nats, relative to all ways out but the self-loop.
        stay: self-loop probability of each HMM state; None: that of the state, in the model.
    """

    entered: tuple[int, ...]
    repeated: tuple[int, ...]
    ways: tuple[tuple[int, int, float], ...]
    stay: tuple[float, ...] | None = None

    @staticmethod
    @lru_cache(maxsize=100_000)  # made for every phone of every transcript
    def left_to_right(ids: tuple[int, ...]) -> "Hmm":
        """Return an HMM with a self-loop and one way out per state."""
        return Hmm(ids, ids, tuple((j, j + 1, 0.0) for j in range(len(ids))))


@dataclass(frozen=True, slots=True)
class Way:
    """A way out of an HMM state of a phone that is not its self-loop; fields as in `Hmm`."""

    phone: int
    source: int
    target: int
    entered: int
    repeated: int
    stay: float | None
    cost: float


HmmState = list[Any]  # class entered, class repeated, list of targets


@dataclass(frozen=True)
class Hmms:
    """The HMMs of another program's phones, with trained transitions.

    Attributes:
        topologies: different HMMs: of each HMM state, the classes of a visit's first frame and of
            further ones, and its targets in order, itself included if it has a self-loop; the
            number of HMM states means the phone's end.
        topology_P: of each phone, its HMM in `topologies`.
        rows: phone, HMM state, ids of first and further frames (NONE: no self-loop), and then the
            probability of each target. All transitions in a row, and rows in order, are numbered
            from 1: Kaldi's transition-ids.
    """

    topologies: list[list[HmmState]]
    topology_P: list[int]
    rows: list[list[Any]]

    def topology(self, phone: int) -> list[HmmState]:
        """Return the HMM states of a phone."""
        return self.topologies[self.topology_P[phone]]

    def classes(self, phone: int) -> int:
        """Return the number of classes of a phone."""
        return 1 + max(max(state[:2]) for state in self.topology(phone))

    def fewest_frames(self, phone: int) -> int:
        """Return the number of HMM states on the shortest way through a phone."""
        states = self.topology(phone)
        reached, frames = {0}, 1
        while len(states) not in (onward := {to for j in reached for to in states[j][2]}):
            if frames > len(states):
                raise ValueError(f"HMM {self.topology_P[phone]} never ends")
            reached, frames = onward, frames + 1
        return frames

    @cached_property
    def _known(self) -> dict[tuple[int, int, int, int], tuple[list[tuple[int, float]], float]]:
        """Of the first four of each row: its ways out, as in `Hmm`, and the self-loop's chance."""
        known = {}
        for phone, j, entered, repeated, *chances in self.rows:
            targets = self.topology(phone)[j][2]
            loop = chances[targets.index(j)] if j in targets else 0.0
            rest = max(1 - loop, 1e-10)  # as in Kaldi's ComputeDerivedOfProbs
            pairs = zip(targets, chances, strict=True)
            ways = [(to, -math.log(chance / rest)) for to, chance in pairs if to != j]
            known[phone, j, entered, repeated] = ways, loop
        return known

    @cached_property
    def _made(self) -> dict[tuple[int, tuple[int, ...]], Hmm]:
        return {}

    def of(self, phone: int, ids: tuple[int, ...]) -> Hmm:
        """Return a phone's HMM in a context in which its classes have these ids.

        Raises:
            ValueError: if the transitions know no such HMM state.
        """
        key = phone, ids
        if key not in self._made:
            self._made[key] = self._make(phone, ids)
        return self._made[key]

    def _make(self, phone: int, ids: tuple[int, ...]) -> Hmm:
        entered, repeated, ways, stay = [], [], [], []
        for j, (enters, repeats, targets) in enumerate(self.topology(phone)):
            pair = ids[enters], ids[repeats] if j in targets else NONE
            # Without a self-loop, Kaldi may number the id of further frames or not
            known = self._known.get((phone, j, *pair))
            if known is None and pair[1] == NONE:
                known = self._known.get((phone, j, ids[enters], ids[repeats]))
            if known is None:
                raise ValueError(
                    f"the tree gives HMM state {j} of phone {phone} the ids {pair}, which no "
                    "transition has; take tree and model of the same folder"
                )
            entered.append(pair[0])
            repeated.append(pair[1])
            ways += [(j, to, cost) for to, cost in known[0]]
            stay.append(known[1])
        return Hmm(tuple(entered), tuple(repeated), tuple(ways), tuple(stay))

    def ways(self) -> Iterator[Way]:
        """Yield all ways out of all HMM states, in order of `rows`."""
        for (phone, j, entered, repeated), (ways, loop) in self._known.items():
            again = repeated if j in self.topology(phone)[j][2] else NONE
            for to, cost in ways:
                yield Way(phone, j, to, entered, again, loop, cost)

    def loops(self, states: int) -> np.ndarray:
        """Return the mean self-loop probability of each id: float64 [S]; 1/2 if it has none."""
        ways = [way for way in self.ways() if way.repeated != NONE]
        ids = np.array([way.repeated for way in ways], np.int64)
        count_S = np.bincount(ids, minlength=states)
        sum_S = np.bincount(ids, np.array([way.stay for way in ways], np.float64), states)
        return np.where(count_S > 0, sum_S / np.maximum(count_S, 1), 0.5)

    def plain(self) -> dict[str, Any]:
        """Return JSON-able data, which `from_plain` reads."""
        hmms = {"topologies": self.topologies, "topology": self.topology_P}
        return {**hmms, "transitions": self.rows}

    @staticmethod
    def from_plain(content: dict[str, Any]) -> "Hmms":
        """Rebuild HMMs from what `plain` returned.

        Raises:
            ValueError: if a state leads to none of its HMM.
        """
        for states in content["topologies"]:
            if not all(0 <= target <= len(states) for *_, to in states for target in to):
                raise ValueError(
                    f"an HMM of {len(states)} states has {states}, which lead elsewhere"
                )
        return Hmms(content["topologies"], content["topology"], content["transitions"])
