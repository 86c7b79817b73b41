"""How two rows of a paper's table differ, beside what the paper prints -> **text**.

Columns compare each row with the baseline. What a paper claims is often about two other rows:
larger groups against smaller ones, double buffering against none. Their intervals do not follow
from those against the baseline. Knows the printed rows, and nothing of settings and runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asr_train.report.exchange import DASH
from asr_train.report.tables import as_markdown

Printed = Mapping[str, Any]
WERS = ("wer", "main_wer", "relu_wer", "svd_ll_wer")  # columns of the papers
REDUCTION = "relative_wer_reduction_percent"
NO_REDUCTION: dict[str, Any] = {REDUCTION: 0.0}
COLUMNS = ["claim of the paper", "row", "against", "seeds", "fewer errors %: paper / ours", "p"]
EXPLANATION = (
    "Errors of the row fewer than those of the other, in percent of them, with 95 % intervals as "
    "above; *: it excludes 0. Positive: the row is better. The paper's follow from its printed "
    "word error rates or reductions; its several test sets count alike, ours by their words."
)


def printed_reduction(
    row: Printed | None,
    against: Printed | None,
    splits: Sequence[str] = (),
    epoch: int | None = None,
) -> float | None:
    """Return by how many percent fewer errors the paper prints for a row than for another.

    Args:
        splits: columns of several test sets; those that both rows have count alike.
        epoch: of a table with a column per pass; None: the last.
    """
    if row is None or against is None:
        return None
    if epoch is None and row.get(REDUCTION) is not None:
        base = against.get(REDUCTION)
        return None if base is None else 100 * (1 - (100 - row[REDUCTION]) / (100 - base))
    passes = [key for key in row if key.startswith("pass_")]
    keys = [f"pass_{epoch}"] if epoch else splits or [*WERS, *passes[-1:]]
    numbers = [(row.get(key), against.get(key)) for key in keys]
    both = [(own, other) for own, other in numbers if own is not None and other is not None]
    total = sum(other for _, other in both)
    return 100 * (1 - sum(own for own, _ in both) / total) if total else None


def claims_markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """Format the section of claims; "" if there is none."""
    if not found:
        return ""
    named = [
        (f"{each['row']} against {each['against']}{_after(each)}", each["ours"]) for each in found
    ]
    notes = [EXPLANATION, *groups_note(named)]
    return "\n#" + as_markdown("Claims", COLUMNS, map(_cells, found), notes)


def claims_lines(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the headings and rows for a terminal; [] if there is none."""
    return [["claim", *COLUMNS[1:]], *map(_cells, found)] if found else []


def _cells(found: Mapping[str, Any]) -> list[str]:
    after, paper, ours = _after(found), found["paper"], found["ours"]
    return [
        found["claim"],
        found["row"] + after,
        found["against"] + after,
        str(len(found["seeds"])),
        f"{DASH if paper is None else signed(paper)} / {interval(ours)}",
        p_value(ours),
    ]


def _after(found: Mapping[str, Any]) -> str:
    return f", epoch {found['epoch']}" if found["epoch"] else ""


def groups_note(found: Iterable[tuple[str, Mapping[str, Any] | None]]) -> list[str]:
    """Return a note of the intervals of reductions, by name, over groups of speakers; or none."""
    texts, counts = [], set()
    for name, reduced in found:
        if reduced is not None and (groups := reduced.get("by_group")) is not None:
            low, high = groups["ci95"]
            if low != high:
                counts.add(groups["units"])
                texts.append(f"{name}: {signed(low)} to {signed(high)} (p {groups['p']:.2g})")
    if not texts:
        return []
    return [
        f"Over {' or '.join(map(str, sorted(counts)))} groups of speakers that are alike in place "
        f"of speakers: {'; '.join(texts)}."
    ]


def signed(percent: float) -> str:
    """Format a change with one digit and a minus sign, not a hyphen."""
    return f"{percent:.1f}".replace("-", "−")


def interval(found: Mapping[str, Any] | None) -> str:
    """Format a reduction with its interval, a star if it excludes 0."""
    if found is None:
        return DASH
    low, high = found["ci95"]
    if low == high:
        return signed(found["percent"])
    star = "" if low <= 0 <= high else "*"
    return f"{signed(found['percent'])}{star} ({signed(low)} to {signed(high)})"


def p_value(found: Mapping[str, Any] | None) -> str:
    """Format the two-sided p of a reduction; a dash if nothing could be drawn."""
    return DASH if found is None or found["ci95"][0] == found["ci95"][1] else f"{found['p']:.2g}"
