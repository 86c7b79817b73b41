"""Laws of the cheapest edits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_train.score.edits import align_words, count_edits, show_alignment

word_lists = st.lists(st.sampled_from(["ONE", "TWO", "THREE", "OH", "A"]), max_size=7)
INSERTION = DELETION = 3
SUBSTITUTION = 4  # sclite's costs


def cheapest(reference, hypothesis):
    """The lowest cost of any edits, tried one by one."""
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
    assert sum(swapped[1:]) == substitutions + deletions + insertions
    assert swapped[2] - swapped[3] == insertions - deletions


@given(word_lists.filter(lambda words: len(words) < 6), word_lists.filter(lambda w: len(w) < 6))
def test_no_edits_are_cheaper(a, b):
    _, substitutions, deletions, insertions = count_edits(a, b)
    found = SUBSTITUTION * substitutions + DELETION * deletions + INSERTION * insertions
    assert found == cheapest(a, b)


@given(word_lists, word_lists)
def test_the_alignment_shows_the_counted_edits_and_every_word(a, b):
    pairs = align_words(a, b)
    assert [word for word, _ in pairs if word is not None] == a
    assert [found for _, found in pairs if found is not None] == b
    correct, substitutions, deletions, insertions = count_edits(a, b)
    assert sum(found is None for _, found in pairs) == deletions
    assert sum(word is None for word, _ in pairs) == insertions
    assert sum(word == found for word, found in pairs) == correct
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
