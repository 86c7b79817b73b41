"""Scored utterances -> **NIST sclite's formats**: trn files, and its table of speakers.

To check our counts, run sclite on the two trn files:

    sctk sclite -s -D -F -r score.test.ref.trn trn -h score.test.hyp.trn trn -i rm -o rsum stdout

-D (optional words) and -F (parts of words) belong to a normaliser that marks words, not to plain
words. `{ / } @ * ;` and `:` have special meanings in sclite; `en-3` removes all of them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from asr_train.score.words import Scored, WordErrors, by_speaker, total

COUNTS = ("words", "correct", "substitutions", "deletions", "insertions", "errors")
_HEAD = ("SPKR", "# Snt", "# Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err")
_WIDTH = 8  # of a number's column


def trn_id(utt_id: str, speaker: str) -> str:
    """Return `speaker-utt`; sclite takes the speaker from before the first hyphen.

    An id that already begins with the speaker is kept. Hyphens in a speaker's name become
    underscores, as do parentheses and spaces, which end an id.

    >>> trn_id("1272-128104-0003", "1272"), trn_id("utt 7", "mary-ann")
    ('1272-128104-0003', 'mary_ann-utt_7')
    """
    name = re.sub(r"[\s()-]", "_", speaker)
    rest = utt_id.removeprefix(f"{speaker}-") or utt_id
    return f"{name}-" + re.sub(r"[\s()]", "_", rest)


def trn(rows: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """Format lines `words (speaker-utt)` of utterance id, speaker and words.

    Raises:
        ValueError: if two utterances would have the same id.
    """
    lines = []
    taken: dict[str, str] = {}
    for utt_id, speaker, words in rows:
        name = trn_id(utt_id, speaker)
        if taken.setdefault(name, utt_id) != utt_id:
            raise ValueError(
                f"{utt_id} and {taken[name]} both become {name} in sclite's trn format; "
                "rename one of them in the corpus"
            )
        lines.append(" ".join([*words, f"({name})"]) + "\n")
    return "".join(lines)


def row(errors: WordErrors) -> list[int]:
    """Return the numbers of COUNTS."""
    return [getattr(errors, name) for name in COUNTS]


def speakers_tsv(scored: Sequence[Scored]) -> str:
    """Format a line per speaker: name, utterances, counts, utterances with an error."""
    return _tsv(
        ["speaker", "utterances", *COUNTS, "utterances_wrong"],
        ([name, count, *row(e), bad] for name, count, e, bad in _speakers(scored)),
    )


def utterances_tsv(
    scored: Sequence[Scored], pairs: dict[str, tuple[Sequence[str], Sequence[str]]]
) -> str:
    """Format a line per utterance: id, speaker, counts, and both normalised word lists."""
    return _tsv(
        ["id", "speaker", *COUNTS, "reference", "hypothesis"],
        ([s.utt_id, s.speaker, *row(s.errors), *map(" ".join, pairs[s.utt_id])] for s in scored),
    )


def speaker_table(scored: Sequence[Scored]) -> str:
    """Format sclite's `rsum`: raw counts by speaker and their sum; then percentages (`sum`)."""
    rows = _speakers(scored)
    wrong = sum(bad for *_, bad in rows)
    rows.append(("Sum", len(scored), total(s.errors for s in scored), wrong))
    raw = [[name, *map(str, [count, *row(e), bad])] for name, count, e, bad in rows]
    percent = []
    for name, count, e, bad in rows:
        shares = [_percent(n, e.words) for n in row(e)[1:]]
        percent.append([name, str(count), str(e.words), *shares, _percent(bad, count)])
    return "\n\n".join("\n".join(_lines(cells)) for cells in (raw, percent)) + "\n"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    width = max(len(cells[0]) for cells in [_HEAD, *rows])

    def line(cells: Sequence[str]) -> str:
        numbers = [cell.rjust(_WIDTH) for cell in cells[1:]]
        return f"| {cells[0].ljust(width)} |{''.join(numbers[:2])} |{''.join(numbers[2:])} |"

    head, *body = map(line, [_HEAD, *rows])
    rule = re.sub(r"[^|]", "-", head)
    return [head, rule, *body[:-1], rule, body[-1]]


def _speakers(scored: Sequence[Scored]) -> list[tuple[str, int, WordErrors, int]]:
    """Return each speaker's name, utterances, errors, and utterances with an error."""
    count = Counter(s.speaker for s in scored)
    wrong = Counter(s.speaker for s in scored if s.errors.errors)
    return [(name, count[name], e, wrong[name]) for name, e in by_speaker(scored).items()]


def _tsv(head: Sequence[str], rows: Iterable[Sequence[str | int]]) -> str:
    return "".join("\t".join(map(str, cells)) + "\n" for cells in [head, *rows])
