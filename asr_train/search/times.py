"""A path and the lexicon -> when each of its words **begins and ends**.

The words' labels alone do not say so: a graph gives them out where it first can. But a path says
which HMM state is entered when, every phone is a fixed number of states, and the words and their
pronunciations are known; what is left open is where silences stand and which variants were said.
"""

import numpy as np

from asr_train.lang.index import Lang
from asr_train.lang.lexicon import SILENCE
from asr_train.search.lattice import Sentence


def phone_fits(lang: Lang) -> np.ndarray:
    """bool [S, phones]: the state is one of the phone's (in tied systems: may be)."""
    fits_SP = np.zeros((lang.states.num_states, len(lang.states.phones)), bool)
    for p, phone in enumerate(lang.states.phones):
        fits_SP[list(lang.states.of(phone)), p] = True
    return fits_SP


def word_times(
    sentence: Sentence, lang: Lang, fits_SP: np.ndarray | None = None
) -> list[tuple[int, int]]:
    """First frame and frame after the last, of each word.

    Where the search did not end where the graph ends, the last word may be cut short.

    Args:
        fits_SP: which phones each state can belong to; default is `phone_fits(lang)`.
    Raises:
        ValueError: if the states are not those of the words: another lexicon or state set. Or
            a phone of one state follows itself, which no path tells from staying.
    """
    fits_SP = phone_fits(lang) if fits_SP is None else fits_SP
    names = lang.lexicon.words
    entered = np.flatnonzero(sentence.entered_T)
    fits_MP = fits_SP[sentence.states_T[entered]]  # M states entered, one after the other
    phones = {phone: p for p, phone in enumerate(lang.states.phones)}
    states = {p: len(lang.states.of(phone)) for phone, p in phones.items()}

    def end_of(begin: int, pron: tuple[str, ...], cut: bool) -> int | None:
        """Where a pronunciation that begins at the given state ends; None if it is not there."""
        at = begin
        for phone in pron:
            p = phones[phone]
            span = fits_MP[at : at + states[p], p]
            if not span.all() or (len(span) < states[p] and not cut):
                return None
            at += len(span)
        return at if at > begin or cut else None

    def starts_from(at: int) -> list[int]:
        silence = end_of(at, (SILENCE,), cut=False)
        return [at] if silence is None else [at, silence]

    ends: dict[int, list[tuple[int, int]]] = {0: []}  # state reached -> spans of the words so far
    for k, word in enumerate(sentence.words):
        cut = not sentence.final and k == len(sentence.words) - 1
        reached: dict[int, list[tuple[int, int]]] = {}
        for at, spans in ends.items():
            for begin in starts_from(at):
                for pron in lang.lexicon.prons[names[word - 1]]:
                    end = end_of(begin, pron, cut)
                    if end is not None:
                        reached.setdefault(end, [*spans, (begin, end)])
        ends = reached
    complete = [
        s for at, s in ends.items() if not sentence.final or len(entered) in starts_from(at)
    ]
    if not complete:
        said = " ".join(names[w - 1] for w in sentence.words)
        raise ValueError(
            f"the {len(entered)} states of the path to {said!r} are not those of its words' "
            "pronunciations; were graph, lexicon and states made together?"
        )
    frames = [*entered.tolist(), len(sentence.states_T)]
    return [(frames[begin], frames[end]) for begin, end in complete[0]]
