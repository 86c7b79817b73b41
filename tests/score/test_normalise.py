"""Laws of the normalisers: what is ignored, what is optional, and what a mapping may contain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_train.schema import NormaliserKind, NormaliserSettings, SettingsError
from asr_train.score.edits import Marked, count_edits
from asr_train.score.normalise import (
    HESITATIONS,
    PLAIN,
    english,
    load_normaliser,
    read_mapping,
    rewrite,
    transcribed,
)
from asr_train.score.words import normalise

ENGLISH = load_normaliser(NormaliserSettings(kind=NormaliserKind.english))
LETTERS = st.text("abcz'- .,()[]<>&%_", max_size=20)
TEXTS = st.one_of(
    st.text(max_size=30),
    LETTERS,
    st.lists(
        st.sampled_from(
            [
                *("uh", "wor-", "(-ord)", "mm-hm", "don't", "a-b"),
                *("E.R.", "mm-hm-", "ca-uh-", "(-uh-a)", "uh-huhuh", "one…two"),
            ]
        )
    ).map(" ".join),
)


@pytest.fixture
def mapped(tmp_path):
    def make(text, name="en.glm"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return load_normaliser(NormaliserSettings(kind=NormaliserKind.english, mapping=str(path)))

    return make


# --- plain --------------------------------------------------------------------------------------


@given(st.text())
def test_plain_changes_nothing_but_case(text):
    plain = load_normaliser(NormaliserSettings(kind=NormaliserKind.plain))
    assert plain.name == PLAIN.name == "upper-1"
    assert plain.reference(text) == plain.hypothesis(text) == normalise(text)
    assert plain.reference(text) == text.upper().split()


@given(TEXTS)
def test_words_are_letters_in_upper_case_and_stay_so(text):
    rule = load_normaliser(NormaliserSettings(kind=NormaliserKind.words))
    once = rule.reference(text)
    assert rule.name == "words-3"
    assert rule.reference(" ".join(once)) == rule.hypothesis(" ".join(once)) == once
    assert not any(isinstance(word, Marked) for word in once)


@pytest.mark.parametrize(
    "text, words",
    [
        ("One one zero eight.", "ONE ONE ZERO EIGHT"),
        ("“Zoë’s” twenty-one—3.5%", "ZOË'S TWENTY ONE 3.5 PERCENT"),
        ("Uh, [noise] 1,000", "UH 1000"),
        ("हिन्दी", "हिन्दी"),
        ("zero ❤️ 1️⃣ \u0301one", "ZERO 1 ONE"),  # marks of emoji, and one of nothing
        ("1ാം", "1ാം"),  # Malayalam: first
        ("র\u200d্যাব", "র্যাব"),  # a joiner between a letter and its mark
        ("hello…world yes,no wait...what", "HELLO WORLD YES NO WAIT WHAT"),
        ("yes,5 at 10:30; U.S.A. word(s) EU:n एक।दो", "YES 5 AT 1030 USA WORDS EUN एक दो"),
        ("Straße STRAẞE", "STRASSE STRASSE"),
    ],
)
def test_words_keep_letters_of_any_alphabet_with_their_marks(text, words):
    rule = load_normaliser(NormaliserSettings(kind=NormaliserKind.words))
    assert rule.reference(text) == words.split()


@given(TEXTS)
def test_scoring_what_was_transcribed_is_scoring_the_text(text):
    """Intake removes nothing that scoring uses."""
    for kind in NormaliserKind:
        said = transcribed(text, kind)
        rule = load_normaliser(NormaliserSettings(kind=kind))
        assert rule.reference(" ".join(said)) == rule.reference(text)
        assert not any(isinstance(word, Marked) for word in said)


# --- English ------------------------------------------------------------------------------------


@given(TEXTS)
def test_normalising_twice_is_normalising_once(text):
    once = english(text)
    assert english(" ".join(once)) == once
    assert ENGLISH.hypothesis(" ".join(ENGLISH.hypothesis(text))) == ENGLISH.hypothesis(text)


@given(TEXTS)
def test_words_are_upper_case_and_of_letters_digits_and_apostrophes_within(text):
    for word in ENGLISH.hypothesis(text):
        assert word == word.upper()
        assert all(c.isalnum() or c in "'." for c in word)
        assert word.strip("'") == word


@given(TEXTS)
def test_a_text_is_no_error_against_itself(text):
    """A hypothesis with all optional words of the reference has no errors."""
    words = ENGLISH.reference(text)
    assert count_edits(words, ENGLISH.hypothesis(text)) == (len(words), 0, 0, 0)


@given(TEXTS, st.sampled_from(sorted(HESITATIONS)), st.data())
def test_a_hesitation_costs_nothing_on_either_side(text, hesitation, data):
    tokens = text.split()
    at = data.draw(st.integers(0, len(tokens)))
    hesitant = " ".join([*tokens[:at], hesitation.lower() + ",", *tokens[at:]])
    said, hesitantly = ENGLISH.reference(" ".join(tokens)), ENGLISH.reference(hesitant)
    assert ENGLISH.hypothesis(hesitant) == ENGLISH.hypothesis(" ".join(tokens))
    assert count_edits(said, ENGLISH.hypothesis(hesitant))[1:] == (0, 0, 0)
    assert count_edits(hesitantly, ENGLISH.hypothesis(text))[1:] == (0, 0, 0)


@given(st.lists(st.sampled_from(["uh", "one", "on-", "(ne)", "oh"]), max_size=6), TEXTS)
def test_the_number_of_reference_words_does_not_depend_on_what_was_found(said, found):
    words = ENGLISH.reference(" ".join(said))
    correct, substitutions, deletions, _ = count_edits(words, ENGLISH.hypothesis(found))
    assert correct + substitutions + deletions == len(words)


@pytest.mark.parametrize(
    "text, words",
    [
        ("Don’t “stop”, Mr. O'Neill!", "DON'T STOP MR O'NEILL"),
        ("'twas the dogs' twenty-third", "TWAS THE DOGS TWENTY THIRD"),
        ("well -- I — I'd go", "WELL I I'D GO"),
        ("3.5 of 1,000; 50% AT&T", "3.5 OF 1000 50 PERCENT AT AND T"),
        ("café ﬁnd Ⅷ", "CAFE FIND VIII"),
        ("and/or this_one", "AND OR THIS ONE"),
        ("uh, yes ah huh %HESITATION", " ".join(["(%HESITATION) YES", *["(%HESITATION)"] * 3])),
        ("uh-huh um-hum, mhm. uh-uh huh-uh", "UHHUH UHHUH UHHUH UHUH UHUH"),
        ("er... the E.R. doctor (uh.)", "(%HESITATION) THE E R DOCTOR (%HESITATION)"),
        ("so ...um yes .um U.S.A.", "SO (%HESITATION) YES (%HESITATION) USA"),
        ("yes,no… STRAẞE", "YES NO STRASSE"),
        ("I th- th[at]- that (-at) (-) -", "I (TH-) (TH-) THAT (-AT)"),
        ("[laughter] so <noise> so", "SO SO"),
        ("minus -5 and 5-", "MINUS 5 AND 5"),
        ("... ?!", ""),
        ("(-5) 7- (-ord)", "5 7 (-ORD)"),  # numbers are no parts of words
    ],
)
def test_known_texts(text, words):
    assert " ".join(english(text)) == words


def test_only_words_that_may_be_left_out_are_marked():
    words = english("uh th- that")
    assert [isinstance(word, Marked) for word in words] == [True, True, False]
    assert all(word.optional for word in words[:2])


@pytest.mark.parametrize(
    "said, found, edits",
    [
        ("th- that", "that", (2, 0, 0, 0)),  # the part is omitted
        ("th- that", "the that", (2, 0, 0, 0)),  # or recognised as a word with this beginning
        ("th- that", "a that", (1, 1, 0, 0)),
        ("(-at) that", "that", (2, 0, 0, 0)),
        ("(-at) that", "cat that", (1, 1, 0, 0)),  # as in sclite
        ("uh one", "one two", (2, 0, 0, 1)),
    ],
)
def test_parts_of_words_match_words_that_begin_so(said, found, edits):
    assert count_edits(ENGLISH.reference(said), ENGLISH.hypothesis(found)) == edits


# --- mapping ------------------------------------------------------------------------------------

MAPPING = """\
* name "a header of GLM files"
;; a comment

can't => cannot            ;; at the end of a line
[CAN NOT]  =>  [CANNOT] / [ ] __ [ ]
NEW YORK => NEWYORK
NEW YORK CITY => NYC
YOU KNOW => (YOU) (KNOW)
KINDA =>
"""


def test_a_mapping_rewrites_both_sides(mapped):
    rule = mapped(MAPPING)
    assert rule.reference("I can’t, I can not") == ["I", "CANNOT", "I", "CANNOT"]
    assert rule.hypothesis("I CAN NOT I CAN'T") == ["I", "CANNOT", "I", "CANNOT"]
    assert rule.reference("you know kinda so") == ["(YOU)", "(KNOW)", "SO"]
    assert rule.hypothesis("you know kinda so") == ["SO"]


def test_the_longest_row_of_words_is_rewritten_and_nothing_twice(mapped):
    rule = mapped(MAPPING + "A => B\nB => A\n")
    assert rule.reference("new york city new york") == ["NYC", "NEWYORK"]
    assert rule.reference("a b") == ["B", "A"]


@given(st.lists(st.sampled_from("ABC"), max_size=8))
def test_rules_that_apply_nowhere_change_nothing(words):
    assert rewrite(words, {("X",): ("Y",), ("A", "X"): ()}) == words


def test_the_name_follows_the_rules_not_their_layout(mapped):
    name = mapped("A => B\nC => D\n").name
    assert name.startswith("en-3+en-")
    assert mapped(";; other\n[C] => [D]\n\na => b ;; x\n").name == name
    assert mapped("A => B\n").name != name
    assert mapped("A => B\nC => D\n", "other.glm").name != name


@pytest.mark.parametrize(
    "line, message",
    [
        ("A B", "has 0 '=>' but needs 1"),
        ("A => B => C", "has 2 '=>' but needs 1"),
        (" => B", "has no word before '=>'"),
        ("A => { B / C }", "has alternatives"),
        ("A => B / [ X ] __ [ ]", "has a context"),
        ("YOU KNOW => (YOU KNOW)", r"'\(YOU' has a parenthesis alone; write .* \(YOU\) \(KNOW\)"),
        ("UH => OH", r"makes optional already"),
        ("can't => can", "line 1 maps CAN'T differently"),
    ],
)
def test_a_wrong_line_is_refused_by_file_and_line(tmp_path, line, message):
    path = tmp_path / "en.glm"
    path.write_text(f"CAN'T => CANNOT\n\n{line}\n")
    with pytest.raises(ValueError, match=rf"en\.glm, line 3: .*{message}"):
        read_mapping(path)


def test_a_mapping_goes_with_english_only():
    with pytest.raises(SettingsError, match="a mapping goes with kind=english"):
        NormaliserSettings(kind=NormaliserKind.plain, mapping="en.glm")


def test_a_mapping_is_a_text_in_utf_8(tmp_path):
    (tmp_path / "en.glm").write_text(";; a comment\nA => B\n", encoding="utf-8-sig")
    assert read_mapping(tmp_path / "en.glm") == {("A",): ("B",)}
    (tmp_path / "bad.glm").write_bytes(b"\xff\xfe => A")
    with pytest.raises(ValueError, match=r"bad\.glm, line 1 .* not UTF-8"):
        read_mapping(tmp_path / "bad.glm")
