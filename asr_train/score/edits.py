"""Two word lists -> their **cheapest edits**: counts and alignment.

Costs and choices among equally cheap alignments are NIST sclite's: 4 for a substitution, 3 for an
insertion or a deletion, 2 for the omission of an optional word, which is not an error. Traced from
the end, a pair precedes a deletion and a deletion an insertion, but an insertion is preferred to a
deletion of equal cost. Three substitutions cost as much as two insertions and two deletions, so
this choice affects totals. Kaldi's compute-wer counts every edit as 1. Knows nothing of utterances
or rates.
"""

from collections.abc import Sequence
from itertools import accumulate

COSTS = "sclite"  # the name in score files
SUBSTITUTION = 4
MISSING = 3  # an insertion or a deletion
OPTIONAL = 2  # of omitting an optional word
_PAIR, _DELETE, _INSERT = range(3)
Pair = tuple[str | None, str | None]  # reference and hypothesis word; None: missing


class Marked(str):
    """A word with marks, written as for sclite's options -D and -F.

    `(WORD)` is optional; `WOR-` matches any word that begins with it, `-ORD` any that ends with it;
    `(WOR-)` is both, but `(-ORD)` is only optional. In words that are not Marked, these characters
    have no meaning.
    """

    __slots__ = ()

    @property
    def optional(self) -> bool:
        return len(self) > 1 and self[0] == "(" and self[-1] == ")"

    @property
    def partial(self) -> bool:
        return len(self.bare) > 1 and (self.bare[-1] == "-" or self[0] == "-")

    @property
    def bare(self) -> str:
        """The word without parentheses."""
        return str(self[1:-1] if self.optional else self)


def count_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[int, int, int, int]:
    """Count correct words, substitutions, deletions and insertions.

    A missing optional word counts as correct, as in sclite.
    """
    if list(reference) == list(hypothesis):
        return len(reference), 0, 0, 0
    marks = [edit_mark(word, found) for word, found in align_words(reference, hypothesis)]
    return marks.count(""), marks.count("S"), marks.count("D"), marks.count("I")


def edit_mark(word: str | None, found: str | None) -> str:
    """Return `S`, `D` or `I`; "" for a pair that is not an error."""
    if word is None or found is None:
        lone = found if word is None else word
        if isinstance(lone, Marked) and lone.optional:
            return ""
        return "I" if word is None else "D"
    return "" if _same(word, found) else "S"


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Pair]:
    """Return pairs of reference and hypothesis words; None for an insertion or a deletion."""
    moves = _best_moves(reference, hypothesis)
    r, h = len(reference), len(hypothesis)
    pairs: list[Pair] = []
    while r or h:
        move = moves[r][h]
        r -= move != _INSERT
        h -= move != _DELETE
        pairs.append(
            (None if move == _INSERT else reference[r], None if move == _DELETE else hypothesis[h])
        )
    return pairs[::-1]


def _best_moves(reference: Sequence[str], hypothesis: Sequence[str]) -> list[bytearray]:
    """Return the last edit of the cheapest way to each pair of prefixes."""
    insert_H = [_cost_of_missing(found) for found in hypothesis]
    above = [*accumulate(insert_H, initial=0)]
    moves = [bytearray([_INSERT]) * len(above)]
    for word in reference:
        delete = _cost_of_missing(word)
        here = above[0] + delete
        row, move_H = [here], bytearray([_DELETE])
        for h, found in enumerate(hypothesis):
            pair = above[h] if _same(word, found) else above[h] + SUBSTITUTION
            deleted, inserted = above[h + 1] + delete, here + insert_H[h]
            if pair <= deleted and pair <= inserted:
                here = pair
                move_H.append(_PAIR)
            elif deleted < inserted:
                here = deleted
                move_H.append(_DELETE)
            else:
                here = inserted
                move_H.append(_INSERT)
            row.append(here)
        moves.append(move_H)
        above = row
    return moves


def _cost_of_missing(word: str) -> int:
    return OPTIONAL if isinstance(word, Marked) and word.optional else MISSING


def _same(word: str, found: str) -> bool:
    """Compare words; one that is marked as a part matches by its beginning or end."""
    if not isinstance(word, Marked) and not isinstance(found, Marked):
        return word == found
    a = word.bare if isinstance(word, Marked) else word
    b = found.bare if isinstance(found, Marked) else found
    if any(isinstance(side, Marked) and side.partial for side in (word, found)):
        for part, whole in ((a, b), (b, a)):
            if len(part) > 1 and part[0] == "-":
                return whole.endswith(part[1:])
            if len(part) > 1 and part[-1] == "-":
                return whole.startswith(part[:-1])
    return a == b


def show_alignment(pairs: Sequence[Pair]) -> tuple[str, str, str]:
    """Return three lines of equal width: reference, hypothesis, and a letter below each edit.

    >>> show_alignment([("ONE", "ONE"), ("SIX", None), (None, "OH")])
    ('ONE SIX **', 'ONE *** OH', '    D   I ')
    """
    columns = []
    for word, found in pairs:
        width = max(len(word or ""), len(found or ""))
        cells = (word or "*" * width, found or "*" * width, edit_mark(word, found))
        columns.append([cell.ljust(width) for cell in cells])
    top, middle, bottom = (" ".join(cells[line] for cells in columns) for line in range(3))
    return top, middle, bottom
