"""Phones -> HMM states -> the ids that models predict.

Every phone is a row of states from left to right, each with a self-loop; silence has its own
number of them. Monophone: each (phone, position) is a state of its own. Ids count from 0, in the
order of the phones, silence first.
"""

from dataclasses import dataclass

import numpy as np

from asr_train.files import hash_of
from asr_train.lang.lexicon import SILENCE


@dataclass(frozen=True, slots=True)
class States:
    """The states of a set of phones.

    Attributes:
        phones: names; the first is SIL.
        phone_states, silence_states: states a phone, and of silence.
    """

    phones: tuple[str, ...]
    phone_states: int
    silence_states: int

    def __post_init__(self) -> None:
        assert self.phones[0] == SILENCE

    @property
    def num_states(self) -> int:
        """S, the number of ids."""
        return self.silence_states + (len(self.phones) - 1) * self.phone_states

    @property
    def hash(self) -> str:
        """Models, graphs and alignments carry this, and are refused where it differs."""
        return hash_of([list(self.phones), self.phone_states, self.silence_states])

    def of(self, phone: str) -> range:
        """The phone's ids, in order of time."""
        p = self.phones.index(phone)
        if p == 0:
            return range(self.silence_states)
        first = self.silence_states + (p - 1) * self.phone_states
        return range(first, first + self.phone_states)

    def phone_of_state(self) -> np.ndarray:
        """int64 [S]: each state's place in `phones`."""
        counts = [self.silence_states] + [self.phone_states] * (len(self.phones) - 1)
        return np.repeat(np.arange(len(self.phones)), counts)

    def segments(self, ali_T: np.ndarray) -> list[tuple[str, int, int]]:
        """A state path as (phone, first frame, frame after its last).

        A phone begins where the path enters its first state from another one: from another
        phone, or from a later state of the same phone.
        """
        if len(ali_T) == 0:
            return []
        phone_S = self.phone_of_state()
        path_T = np.asarray(ali_T)
        entered = (phone_S[path_T[1:]] != phone_S[path_T[:-1]]) | (path_T[1:] < path_T[:-1])
        starts = [0, *(np.flatnonzero(entered) + 1).tolist()]
        ends = [*starts[1:], len(path_T)]
        return [(self.phones[phone_S[path_T[s]]], s, e) for s, e in zip(starts, ends, strict=True)]
