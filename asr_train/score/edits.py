"""Two word lists -> their **cheapest edits**: counts, and the alignment to look at.

Counts are kaldialign's with the costs of NIST sclite: 3 for an insertion or a deletion, 4 for a
substitution. So totals are sclite's; Kaldi's compute-wer counts every edit as 1, and finds one
error fewer in about one noisy utterance of 200. Knows nothing of utterances or rates.
"""

from collections.abc import Sequence

from kaldialign import align, edit_distance

COSTS = "sclite"  # as score files name them
_NOTHING = ""  # where a word is missing; no word is empty


def count_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[int, int, int, int]:
    """Correct words, substitutions, deletions and insertions."""
    found = edit_distance(list(reference), list(hypothesis), sclite_mode=True)
    substitutions, deletions, insertions = (int(found[key]) for key in ("sub", "del", "ins"))
    return len(reference) - substitutions - deletions, substitutions, deletions, insertions


def align_words(
    reference: Sequence[str], hypothesis: Sequence[str]
) -> list[tuple[str | None, str | None]]:
    """Pairs of reference and hypothesis words; None where a word was inserted or deleted."""
    pairs = align(list(reference), list(hypothesis), _NOTHING, sclite_mode=True)
    return [(word or None, found or None) for word, found in pairs]


def show_alignment(pairs: Sequence[tuple[str | None, str | None]]) -> tuple[str, str, str]:
    """Three lines of equal width: reference, hypothesis, and a letter under each edit.

    >>> show_alignment([("ONE", "ONE"), ("SIX", None), (None, "OH")])
    ('ONE SIX **', 'ONE *** OH', '    D   I ')
    """
    lines: tuple[list[str], list[str], list[str]] = ([], [], [])
    for word, found in pairs:
        width = max(len(word or ""), len(found or ""))
        mark = "I" if word is None else "D" if found is None else "S" if word != found else ""
        for line, cell in zip(
            lines, (word or "*" * width, found or "*" * width, mark), strict=True
        ):
            line.append(cell.ljust(width))
    top, middle, bottom = (" ".join(line) for line in lines)
    return top, middle, bottom
