"""Kaldi's tree, transitions and phones -> **States**, paths of transition-ids, a **Lexicon**.

    tree, final.mdl, phones.txt --states_of--> States --write_states--> states.json
    transition-ids --TransitionIds.path--> Aligned    lexiconp.txt --lexicon_of--> Lexicon

State ids are pdf-ids. Phones keep Kaldi's names (AH_B) and order, but the optional silence is first
and named SIL. HMMs are kept as they are, with any number of states, skips and ways back; refused
are those that return to their first state, or have states that emit nothing.
"""

import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asr_train.align.viterbi import Aligned
from asr_train.checks import spelled
from asr_train.files import read_json, read_lines, read_text, write_json
from asr_train.interop.event_map import read_tree, tree_of
from asr_train.interop.transition_model import NONE, Entry, TransitionModel, read_transition_model
from asr_train.lang.g2p import Pronunciation
from asr_train.lang.hmms import Hmms
from asr_train.lang.lexicon import SILENCE, Lexicon
from asr_train.lang.states import States
from asr_train.lang.tree import Tree

FORMAT = 1
POSITIONS = "_B", "_I", "_E", "_S"  # of a phone in its word: first, inner, last, only one
_SILENCES = {SILENCE, *(SILENCE + position for position in POSITIONS)}


# --- states -------------------------------------------------------------------------------------


def states_of(model_dir: Path | str, lang_dir: Path | str) -> States:
    """Read `tree` and `final.mdl` of a model, `phones.txt` and the optional silence of a lang dir.

    Raises:
        DamagedFileError: for a file that is truncated, altered or something else.
        ValueError: if they do not belong together, or the model has HMMs or a window that cannot be
            used here; names the phone.
    """
    model_dir, lang_dir = Path(model_dir), Path(lang_dir)
    for path in (model_dir / "final.mdl", model_dir / "tree", lang_dir / "phones.txt"):
        if not path.is_file():
            raise ValueError(
                f"{path} is missing; a model's folder has tree and final.mdl (or a link to it), a "
                "lang dir has phones.txt"
            )
    model = read_transition_model(model_dir / "final.mdl")
    phones = _phones(lang_dir, model)
    hmms = _hmms(model, phones)
    classes = [hmms.classes(p) for p in range(len(phones))]
    tree = tree_of(read_tree(model_dir / "tree"), list(phones.values()), classes, model.num_pdfs)
    _check_together(tree, hmms, list(phones))
    fewest = [hmms.fewest_frames(p) for p in range(len(phones))]
    names = (SILENCE, *list(phones)[1:])
    return States(names, min(fewest[1:], default=fewest[0]), fewest[0], tree, hmms)


def read_symbols(path: Path) -> dict[str, int]:
    """Read lines of a symbol and its number (`phones.txt`, `words.txt`).

    Raises:
        ValueError: for another line, or a symbol or number that appears twice.
    """
    symbols: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split()
        if len(fields) != 2 or not fields[1].isascii() or not fields[1].isdigit():
            raise ValueError(f"{path}, line {number} is {line!r}; it must be a symbol and a number")
        if fields[0] in symbols:
            raise ValueError(f"{path}, line {number}: {fields[0]} appears twice; remove one")
        symbols[fields[0]] = int(fields[1])
    if len(set(symbols.values())) < len(symbols):
        raise ValueError(f"{path} gives several symbols the same number; make it again")
    return symbols


def _phones(lang_dir: Path, model: TransitionModel) -> dict[str, int]:
    """Return the model's phones with Kaldi's numbers, the optional silence first."""
    path = lang_dir / "phones.txt"
    names = {number: name for name, number in read_symbols(path).items()}
    known = sorted(model.topology.entry_of)
    if missing := [number for number in known if number not in names]:
        raise ValueError(
            f"{path} has no phone {missing[0]}, which is in the model's topology, as are "
            f"{len(missing) - 1} more; take the lang dir that the model was trained with"
        )
    chosen, optional = SILENCE, lang_dir / "phones" / "optional_silence.txt"
    if optional.exists():
        chosen = read_text(optional).strip()
    phones = {names[number]: number for number in known}
    if chosen not in phones or (chosen != SILENCE and SILENCE in phones):
        raise ValueError(
            f"the optional silence is {chosen!r}, by {optional} or else {SILENCE}; it must be a "
            f"phone of the model ({', '.join(list(phones)[:5])}, ...), and no other be {SILENCE}"
        )
    return {chosen: phones.pop(chosen), **phones}


def _hmms(model: TransitionModel, phones: dict[str, int]) -> Hmms:
    for phone, number in phones.items():
        _check_usable(phone, model.topology.of(number))
    place = {number: p for p, number in enumerate(phones.values())}
    pairs = zip(model.state_N4.tolist(), model.logp_N, strict=True)
    rows = [[place[number], *more, *map(_chance, logp.tolist())] for (number, *more), logp in pairs]
    topologies = [
        [[s.enters, s.repeats, [to for to, _ in s.ways]] for s in entry[:-1]]
        for entry in model.topology.entries
    ]
    return Hmms(topologies, [model.topology.entry_of[n] for n in place], rows)


def _check_usable(phone: str, entry: Entry) -> None:
    for j, state in enumerate(entry[:-1]):
        targets = [to for to, _ in state.ways]
        what = None
        if state.enters == NONE:
            what = "emits nothing"
        elif state.repeats == NONE:
            what = "has no pdf-class for its self-loop"
        elif j and 0 in targets:
            what = "leads back to the first one"
        if what is not None:
            raise ValueError(
                f"HMM state {j} of phone {phone} {what}, which graphs here cannot have; convert "
                "alignments by ali-to-pdf, and decode with Kaldi"
            )


def _check_together(tree: Tree, hmms: Hmms, phones: list[str]) -> None:
    known = set()
    for phone, j, entered, repeated, *_ in hmms.rows:
        enters, repeats, _ = hmms.topology(phone)[j]
        known |= {(phone, enters, entered), (phone, repeats, repeated)}
    if unknown := sorted(tree.reached() - known):
        phone, position, pdf = unknown[0]
        raise ValueError(
            f"the tree gives pdf-class {position} of phone {phones[phone]} the pdf-id {pdf}, which "
            f"no transition has, as {len(unknown) - 1} more; take tree and model of the same folder"
        )


def _chance(logp: float) -> float:
    """Return a probability with the digits of float32."""
    return float(f"{math.exp(logp):.7g}")


def write_states(path: Path | str, states: States) -> None:
    """Write states.json."""
    content = {"format": FORMAT, "states_hash": states.hash, "states": states.plain()}
    write_json(path, content)


def read_states(path: Path | str) -> States:
    """Read what `write_states` wrote.

    Raises:
        ValueError: if it is something else, or was changed.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT or "states" not in content:
        raise ValueError(
            f"{path} is not a list of states in format {FORMAT}; import them with import_kaldi.py "
            "states"
        )
    states = States.stored(content, path)
    if states.hmms is None:
        raise ValueError(f"{path} has states of this program, not Kaldi's")
    return states


# --- alignments ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TransitionIds:
    """The meaning of transition-ids.

    Attributes:
        states: of the model.
        transitions_I6: int32, of each transition-id: row of `Hmms.rows` (Kaldi's transition-state,
            minus 1); phone, HMM state and the one that follows; pdf-id; and 1 if the phone ends.
            Row 0 is unused.
        has_positions: whether names of phones end in their position in the word.
    """

    states: States
    transitions_I6: np.ndarray
    has_positions: bool

    @staticmethod
    def of(states: States) -> "TransitionIds":
        """Number the transitions of imported states as Kaldi does."""
        assert states.hmms is not None
        found = [(NONE, NONE, NONE, NONE, NONE, 0)]
        for n, (phone, j, entered, repeated, *_) in enumerate(states.hmms.rows):
            topology = states.hmms.topology(phone)
            for to in topology[j][2]:
                pdf = repeated if to == j else entered
                found.append((n, phone, j, to, pdf, int(to == len(topology))))
        names = set(states.phones)
        bases = {name[:-2] for name in names if name.endswith(POSITIONS)}
        marked = any(all(base + each in names for each in POSITIONS) for base in bases)
        return TransitionIds(states, np.array(found, np.int32), marked)

    def path(self, where: str, ids_T: np.ndarray, words: list[str]) -> Aligned:
        """Return an utterance's path; phones get words only if their names have positions.

        Args:
            ids_T: transition-ids, int32 [T].
            words: the transcript.
        Raises:
            ValueError: for ids that do not exist, or do not follow each other; names the frame.
        """
        if len(ids_T) and not 1 <= ids_T.min() <= ids_T.max() < len(self.transitions_I6):
            raise ValueError(
                f"{where} has the ids {ids_T.min()} to {ids_T.max()} but the model's "
                f"transition-ids are 1 to {len(self.transitions_I6) - 1}; are these pdf-ids, or of "
                "another model?"
            )
        transitions_T6 = self.transitions_I6[ids_T]
        starts = self._starts(where, transitions_T6)
        _, phone_T, position_T, _, pdf_T, _ = transitions_T6.T
        phone_n = phone_T[starts]
        phones_N3 = np.stack([phone_n, starts, self._words(phone_n, words)], 1).astype(np.int32)
        return Aligned(pdf_T.copy(), position_T.astype(np.int8), phones_N3, math.nan, False)

    def _starts(self, where: str, transitions_T6: np.ndarray) -> np.ndarray:
        """Return the first frame of each phone, as Kaldi's SplitToPhones does."""
        if not len(transitions_T6):
            return np.zeros(0, np.int64)
        row_T, phone_T, source_T, target_T, _, last_T = transitions_T6.T
        loop_T = source_T == target_T
        # A visit is a way out and self-loops, which come after it if Kaldi reordered the graph
        is_new_T = row_T[1:] != row_T[:-1]
        changes = np.flatnonzero(is_new_T & (loop_T[1:] != loop_T[:-1]))  # as in its IsReordered
        reordered = loop_T[changes[0]] if len(changes) else not loop_T[0]
        stays_T = (loop_T[1:] if reordered else loop_T[:-1]) & ~is_new_T
        first = np.flatnonzero(np.concatenate([[True], ~stays_T]))
        out = first if reordered else np.concatenate([first[1:], [len(row_T)]]) - 1
        if loop_T[out if reordered else out[:-1]].any():
            at = int(out[np.flatnonzero(loop_T[out])[0]])
            raise ValueError(
                f"{where}: the transition-ids of frame {at} and its neighbour cannot follow each "
                "other; was this aligned with another model?"
            )
        ends = last_T[out] > 0
        wanted_n = np.where(ends, 0, target_T[out])[:-1]
        same = ends[:-1] | (phone_T[first[1:]] == phone_T[first[:-1]])
        if (wrong := (wanted_n != source_T[first[1:]]) | ~same).any():
            at = int(first[1:][np.flatnonzero(wrong)[0]])
            raise ValueError(
                f"{where}: at frame {at}, HMM state {source_T[at]} of "
                f"{self.states.phones[phone_T[at]]} follows a transition to HMM state "
                f"{wanted_n[np.flatnonzero(wrong)[0]]}; was this aligned with another model?"
            )
        return first[np.concatenate([[True], ends[:-1]])]

    def _words(self, phone_n: np.ndarray, words: list[str]) -> np.ndarray:
        """Return the word of each phone, by the position in the phones' names; -1: not known.

        The t_S of X-SAMPA is no position: in models that have them, there is a phone of all four.
        """
        names = [self.states.phones[p] for p in phone_n.tolist()]
        begins = np.array([name.endswith(("_B", "_S")) for name in names], bool)
        inside = np.array([name.endswith(POSITIONS) for name in names], bool)
        if begins.sum() != len(words) or not self.has_positions:
            return np.full(len(names), NONE)
        return np.where(inside & (phone_n > 0), np.cumsum(begins) - 1, NONE)


# --- lexicon ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A lexicon and what it lacks of Kaldi's."""

    lexicon: Lexicon
    silent: int  # pronunciations with the optional silence, left out
    weighed: int  # words whose pronunciations had different probabilities


def lexicon_of(path: Path | str, states: States, wanted: Iterable[str]) -> Found:
    """Read pronunciations of words, upper case, in the phones of imported states.

    Args:
        path: lexicon.txt, lexiconp.txt, lexiconp_silprob.txt, or a lang dir's
            phones/align_lexicon.txt. Phones may lack the positions in their names.
        wanted: words; those without a pronunciation are in `missing`.
    Raises:
        ValueError: for another line, or a phone that the states lack; names the line.
    """
    path = Path(path)
    skipped = {"lexiconp.txt": 1, "lexiconp_silprob.txt": 4, "align_lexicon.txt": 1}
    skip = skipped.get(path.name, 0)
    names, has_chances = set(states.phones), path.name.startswith("lexiconp")
    prons: dict[str, list[Pronunciation]] = {word: [] for word in sorted(set(wanted))}
    chances: dict[str, set[str]] = defaultdict(set)
    silent = 0
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split()
        if not fields:
            continue
        word = unicodedata.normalize("NFC", fields[0].upper())
        phones = fields[1 + skip :]
        if not phones:
            raise ValueError(f"{path}, line {number} is {line!r}, which has no phones; correct it")
        if word not in prons:
            continue
        if has_chances and not all(map(_is_number, fields[1 : 1 + skip])):
            raise ValueError(
                f"{path}, line {number} is {line!r}, without the {spelled(skip, 'number')} that a "
                "file of this name has after the word; call it lexicon.txt if it has none"
            )
        if any(phone.upper() in _SILENCES for phone in phones):
            silent += 1
            continue
        pron = _in_positions(tuple(phones), names)
        if unknown := [phone for phone in pron if phone not in names]:
            raise ValueError(
                f"{path}, line {number}: the model has no phone {unknown[0]}, with or without "
                f"{', '.join(POSITIONS)}; take the lexicon that it was trained with"
            )
        prons[word].append(pron)
        if has_chances:
            chances[word].add(fields[1])
    known = {word: tuple(dict.fromkeys(found)) for word, found in prons.items() if found}
    missing = tuple(word for word, found in prons.items() if not found)
    weighed = sum(len(some) > 1 for some in chances.values())
    return Found(Lexicon(known, missing), silent, weighed)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _in_positions(pron: Pronunciation, names: set[str]) -> Pronunciation:
    """Add positions to the names of phones, if the model's phones have them and these do not."""
    if not all(phone + "_I" in names for phone in pron):
        return pron
    if len(pron) == 1:
        return (pron[0] + "_S",)
    return (pron[0] + "_B", *(phone + "_I" for phone in pron[1:-1]), pron[-1] + "_E")


def about_states(states: States) -> dict[str, Any]:
    """Return what an index or a model.json has about imported states."""
    assert states.hmms is not None
    return {**states.about(), "self_loops": states.hmms.loops(states.num_states).tolist()}
