"""Kaldi's `final.mdl` -> **Topology** and **TransitionModel**: what transition-ids mean.

A transition-id, from 1, is a way out of a transition-state: a phone's HMM state with its pdf-ids.
Formats and numbering are those of src/hmm/hmm-topology.cc and transition-model.cc; what follows the
transition model in a .mdl (Gaussians, a network) is not read. Phones are Kaldi's numbers.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr_train.interop.objects import Objects

NONE = -1  # no pdf-class, no pdf-id
MOST = 127  # HMM states of a phone; paths store positions as int8. Kaldi's silence has 5


@dataclass(frozen=True, slots=True)
class HmmState:
    """A state of a phone's HMM.

    Attributes:
        enters, repeats: the pdf-class of a visit's first frame, and of its further ones (which
            differ in chain models); NONE: the state emits nothing, as the last one.
        ways: state that follows, and its probability before training.
    """

    enters: int
    repeats: int
    ways: tuple[tuple[int, float], ...]


Entry = tuple[HmmState, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """The HMM of each phone: an index of `entries`."""

    entries: tuple[Entry, ...]
    entry_of: dict[int, int]

    def of(self, phone: int) -> Entry:
        """Return a phone's HMM; its last state is its end."""
        return self.entries[self.entry_of[phone]]


@dataclass(frozen=True, slots=True, eq=False)
class TransitionModel:
    """Transition-states, and the transition-ids that leave each: all in a row, from 1.

    Attributes:
        state_N4: int32 [transition-states, 4]: phone, HMM state, pdf-id of a visit's first frame
            and of further ones (NONE: there is no self-loop).
        logp_N: float32 of each transition-state's transition-ids, in nats.
    """

    topology: Topology
    state_N4: np.ndarray
    logp_N: list[np.ndarray]

    @property
    def num_pdfs(self) -> int:
        """Return the number of pdf-ids, as Kaldi counts them."""
        return int(self.state_N4[:, 2:].max()) + 1


def read_transition_model(path: Path | str) -> TransitionModel:
    """Read the beginning of a `.mdl`, binary or text (`copy-transition-model --binary=false`).

    Raises:
        DamagedFileError: if it is truncated, altered or something else; names the byte.
    """
    objects = Objects(path)
    objects.expect("<TransitionModel>")
    topology = _topology(objects)
    name = objects.expect("<Triples>", "<Tuples>")
    columns = 3 if name == "<Triples>" else 4
    count = objects.int32()  # a file that ends early ends this, too
    rows = [[objects.int32() for _ in range(columns)] for _ in range(count)]
    if columns == 3:
        rows = [[*row, row[2]] for row in rows]
    objects.expect(name.replace("<", "</"))
    objects.expect("<LogProbs>")
    logp_I = objects.float32s()
    objects.expect("</LogProbs>")
    objects.expect("</TransitionModel>")
    return _model(objects, topology, rows, logp_I)


def _model(
    objects: Objects, topology: Topology, rows: list[list[int]], logp_I: np.ndarray
) -> TransitionModel:
    """Check what was read, and divide the log-probabilities among the transition-states."""
    counts = []
    for row in rows:
        phone, state, enters, repeats = row
        entry = topology.of(phone) if phone in topology.entry_of else ()
        if not (0 <= state < len(entry) and entry[state].enters != NONE):
            raise objects.damaged(
                f"a transition-state is of phone {phone}, HMM state {state}, which the topology "
                "has not, or which emits nothing"
            )
        if enters < 0 or repeats < NONE:
            raise objects.damaged(f"phone {phone}, HMM state {state} has pdf-ids {row[2:]}")
        if repeats == NONE and state in (to for to, _ in entry[state].ways):
            raise objects.damaged(
                f"phone {phone}, HMM state {state} has a self-loop but no pdf-id for it"
            )
        counts.append(len(entry[state].ways))
    if not rows or sum(counts) != len(logp_I) - 1:
        raise objects.damaged(
            f"{len(rows)} transition-states have {sum(counts)} ways out, but there are "
            f"{len(logp_I) - 1} log-probabilities"
        )
    if not (np.isfinite(logp_I).all() and (logp_I <= 0).all()):
        at = int(np.flatnonzero(~(np.isfinite(logp_I) & (logp_I <= 0)))[0])
        raise objects.damaged(f"transition-id {at} has log-probability {logp_I[at]}, not <= 0")
    if len(set(map(tuple, rows))) < len(rows):
        raise objects.damaged("two transition-states are alike")
    logp_N = np.split(logp_I[1:], np.cumsum(counts)[:-1])
    return TransitionModel(topology, np.array(rows, np.int32), logp_N)


# --- topology -----------------------------------------------------------------------------------


def _topology(objects: Objects) -> Topology:
    objects.expect("<Topology>")
    entries, entry_of = (_binary if objects.binary else _text)(objects)
    if not entry_of:
        raise objects.damaged("the topology has no phones")
    if min(entry_of) < 1:
        raise objects.damaged(f"the topology is for phone {min(entry_of)}; phones count from 1")
    example = {e: phone for phone, e in entry_of.items()}
    for e, entry in enumerate(entries):
        if e not in example:
            raise objects.damaged(f"the topology's entry {e} is for no phones")
        _check_entry(objects, example[e], entry)
    return Topology(tuple(entries), entry_of)


def _text(objects: Objects) -> tuple[list[Entry], dict[int, int]]:
    entries: list[Entry] = []
    entry_of: dict[int, int] = {}
    while objects.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        objects.expect("<ForPhones>")
        while (word := objects.token()) != "</ForPhones>":
            phone = objects.whole(word)
            if phone in entry_of:
                raise objects.damaged(f"phone {phone} is in two entries of the topology")
            entry_of[phone] = len(entries)
        entry: list[HmmState] = []
        while objects.expect("<State>", "</TopologyEntry>") == "<State>":
            if (number := objects.int32()) != len(entry):
                raise objects.damaged(f"state {number} is where state {len(entry)} should be")
            entry.append(_state_in_text(objects))
        entries.append(tuple(entry))
    return entries, entry_of


def _state_in_text(objects: Objects) -> HmmState:
    rest = "<Transition>", "</State>"
    enters = repeats = NONE
    word = objects.expect("<PdfClass>", "<ForwardPdfClass>", *rest)
    if word not in rest:
        enters = repeats = objects.int32()
        if word == "<ForwardPdfClass>":
            objects.expect("<SelfLoopPdfClass>")
            repeats = objects.int32()
        word = objects.expect(*rest)
    ways = []
    while word == "<Transition>":
        ways.append((objects.int32(), objects.float32()))
        word = objects.expect(*rest)
    return HmmState(enters, repeats, tuple(ways))


def _binary(objects: Objects) -> tuple[list[Entry], dict[int, int]]:
    phones, index_of = objects.int32s().tolist(), objects.int32s().tolist()
    count = objects.int32()
    both_classes = count == -1  # of versions that know classes of self-loops
    if both_classes:
        count = objects.int32()
    entries: list[Entry] = []
    for _ in range(count):
        entry = []
        for _ in range(objects.int32()):
            enters = objects.int32()
            repeats = objects.int32() if both_classes else enters
            ways = [(objects.int32(), objects.float32()) for _ in range(objects.int32())]
            entry.append(HmmState(enters, repeats, tuple(ways)))
        entries.append(tuple(entry))
    objects.expect("</Topology>")
    entry_of: dict[int, int] = {}
    for phone in phones:
        if phone in entry_of or not (
            0 <= phone < len(index_of) and 0 <= index_of[phone] < len(entries)
        ):
            raise objects.damaged(
                f"phone {phone} of the topology appears twice, or has none of the "
                f"{len(entries)} entries"
            )
        entry_of[phone] = index_of[phone]
    return entries, entry_of


def _check_entry(objects: Objects, phone: int, entry: Entry) -> None:
    """Check what Kaldi's HmmTopology::Check does."""
    where = f"the topology of phone {phone}"
    if not 2 <= len(entry) <= MOST + 1 or entry[-1].ways or entry[-1].enters != NONE:
        raise objects.damaged(
            f"{where} has {len(entry)} states; it must have 2 to {MOST + 1}, of which the last one "
            "emits nothing and has no transitions"
        )
    classes = {c for s in entry if s.enters != NONE for c in (s.enters, s.repeats)}
    if not classes or classes != set(range(len(classes))):
        raise objects.damaged(
            f"{where} has the pdf-classes {sorted(classes)[:9]}; they must count from 0"
        )
    for j, state in enumerate(entry):
        targets = [to for to, _ in state.ways]
        if len(set(targets)) < len(targets) or not all(0 <= to < len(entry) for to in targets):
            raise objects.damaged(f"{where}: state {j} leads to {targets}, of {len(entry)} states")
        if not all(p > 0 and math.isfinite(p) for _, p in state.ways):
            raise objects.damaged(f"{where}: state {j} has a probability that is not positive")
        if j < len(entry) - 1 and not targets:
            raise objects.damaged(f"{where}: state {j} has no transitions, but is not the last")
        if state.enters == NONE and j in targets:
            raise objects.damaged(f"{where}: state {j} repeats, but emits nothing")
    entered = {to for j, state in enumerate(entry) for to, _ in state.ways if to != j}
    if missing := sorted(set(range(1, len(entry))) - entered):
        raise objects.damaged(f"{where}: no transition leads to state {missing[0]}")
