"""Laws of the cheapest edits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kaldialign import edit_distance
from marks import read_marks

from asr_train.score.edits import (
    Marked,
    align_words,
    count_edits,
    edit_mark,
    show_alignment,
)

word_lists = st.lists(st.sampled_from(["ONE", "TWO", "THREE", "OH", "A"]), max_size=7)
INSERTION = DELETION = 3
SUBSTITUTION = 4  # sclite's costs


def cheapest(reference, hypothesis):
    """Return the lowest cost of any edits, found by exhaustive search."""
    if not reference or not hypothesis:
        return DELETION * len(reference) + INSERTION * len(hypothesis)
    same = reference[0] == hypothesis[0]
    return min(
        cheapest(reference[1:], hypothesis[1:]) + (0 if same else SUBSTITUTION),
        cheapest(reference[1:], hypothesis) + DELETION,
        cheapest(reference, hypothesis[1:]) + INSERTION,
    )


@given(word_lists)
def test_equal_lists_need_no_edit(words):
    assert count_edits(words, words) == (len(words), 0, 0, 0)


@given(word_lists)
def test_nothing_found_is_all_deleted_and_nothing_said_all_inserted(words):
    assert count_edits(words, []) == (0, 0, len(words), 0)
    assert count_edits([], words) == (0, 0, 0, len(words))


@given(word_lists, word_lists)
def test_swapping_the_lists_swaps_insertions_and_deletions(a, b):
    correct, substitutions, deletions, insertions = count_edits(a, b)
    assert correct + substitutions + deletions == len(a)
    assert correct + substitutions + insertions == len(b)
    swapped = count_edits(b, a)
    assert swapped[2] - swapped[3] == insertions - deletions
    assert cost(*swapped[1:]) == cost(substitutions, deletions, insertions)


def cost(substitutions, deletions, insertions):
    return SUBSTITUTION * substitutions + DELETION * deletions + INSERTION * insertions


@given(word_lists.filter(lambda words: len(words) < 6), word_lists.filter(lambda w: len(w) < 6))
def test_no_edits_are_cheaper(a, b):
    _, substitutions, deletions, insertions = count_edits(a, b)
    assert cost(substitutions, deletions, insertions) == cheapest(a, b)


@given(st.lists(st.sampled_from("ABCDEFG"), max_size=40), st.lists(st.sampled_from("ABCDEFG")))
def test_long_lists_cost_what_another_library_says(a, b):
    other = edit_distance(a, b, sclite_mode=True)
    assert cost(*count_edits(a, b)[1:]) == cost(other["sub"], other["del"], other["ins"])


def test_of_equally_cheap_edits_those_of_sclite_are_taken():
    # Found by sclite 2.4.10; three substitutions cost as much as two insertions and two deletions.
    assert count_edits([*"abba"], [*"cccab"]) == (1, 3, 0, 1)
    assert count_edits([*"ccadb"], [*"dbed"]) == (2, 0, 3, 2)
    assert count_edits([*"deebdbbd"], [*"cddeceb"]) == (3, 3, 2, 1)
    assert count_edits([*"dbedea"], [*"edcadccdbb"]) == (2, 4, 0, 4)
    assert count_edits([*"aeedadbbb"], [*"adbcbacaac"]) == (2, 7, 0, 1)


@given(word_lists, word_lists)
def test_the_alignment_shows_the_counted_edits_and_every_word(a, b):
    pairs = align_words(a, b)
    assert [word for word, _ in pairs if word is not None] == a
    assert [found for _, found in pairs if found is not None] == b
    correct, substitutions, deletions, insertions = count_edits(a, b)
    assert sum(found is None for _, found in pairs) == deletions
    assert sum(word is None for word, _ in pairs) == insertions
    assert sum(not edit_mark(*pair) for pair in pairs) == correct
    marks = show_alignment(pairs)[2]
    assert (marks.count("S"), marks.count("D"), marks.count("I")) == (
        substitutions,
        deletions,
        insertions,
    )


@given(word_lists, word_lists)
def test_the_three_shown_lines_are_equally_wide(a, b):
    assert len({len(line) for line in show_alignment(align_words(a, b))}) == 1


@pytest.mark.parametrize(
    "reference, hypothesis, counts",
    [  # by hand: correct, substituted, deleted, inserted
        ("ONE TWO THREE", "ONE THREE", (2, 0, 1, 0)),
        ("ONE TWO THREE", "ONE OH THREE FIVE", (2, 1, 0, 1)),
        ("ONE", "TWO ONE TWO", (1, 0, 0, 2)),
    ],
)
def test_known_counts(reference, hypothesis, counts):
    assert count_edits(reference.split(), hypothesis.split()) == counts


# --- marks --------------------------------------------------------------------------------------

marked_lists = st.lists(
    st.sampled_from([read_marks(w) for w in ["(UH)", "UH", "ON-", "(ON-)", "-NE", "ONE", "OH"]]),
    max_size=6,
)


@pytest.mark.parametrize(
    "word, optional, partial",
    [
        ("(UH)", True, False),
        ("ON-", False, True),
        ("-NE", False, True),
        ("(ON-)", True, True),
        ("(-NE)", True, False),
    ],
)
def test_marks_are_read_as_sclite_reads_them(word, optional, partial):
    marked = read_marks(word)
    assert isinstance(marked, Marked)
    assert (marked.optional, marked.partial) == (optional, partial)


@pytest.mark.parametrize("word", ["ONE", "-", "(", "A-B", "(A", "A)"])
def test_other_words_are_not_marked(word):
    assert not isinstance(read_marks(word), Marked)


def test_without_a_mark_a_word_in_parentheses_is_a_word():
    assert count_edits(["(UH)"], []) == (0, 0, 1, 0)
    assert count_edits([Marked("(UH)")], []) == (1, 0, 0, 0)


@given(marked_lists, marked_lists)
def test_optional_words_are_never_deleted_or_inserted_at_a_cost(a, b):
    pairs = align_words(a, b)
    for word, found in pairs:
        if edit_mark(word, found) in ("D", "I"):
            lone = found if word is None else word
            assert not (isinstance(lone, Marked) and lone.optional)
    optional = [w for w in a if isinstance(w, Marked) and w.optional]
    kept = [w for w in a if not (isinstance(w, Marked) and w.optional)]
    assert count_edits(a, kept) == (len(a), 0, 0, 0)
    assert count_edits(optional, []) == (len(optional), 0, 0, 0)


def test_a_missing_optional_word_is_shown_without_a_mark():
    assert show_alignment([(Marked("(UH)"), None), ("ONE", "ONE"), (Marked("ON-"), "ONE")]) == (
        "(UH) ONE ON-",
        "**** ONE ONE",
        "            ",
    )
