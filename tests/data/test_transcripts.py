"""data.transcripts: non-words are removed, words of the lexicon stay, numbers are spelled out."""

import re
import unicodedata

import pytest
from noises import folders, lexicon

from asr_train.data.transcripts import DigitsError, Transcriber, number_words
from asr_train.lang.lexicon import Lexicon
from asr_train.schema import Digits, LexiconSettings, LexiconSource, NormaliserKind, Unknown


@pytest.fixture
def words_of(tmp_path):
    def read(text: str, kind=NormaliserKind.words, digits=Digits.refuse) -> str:
        settings = folders(normaliser=kind, digits=digits)
        return " ".join(Transcriber(settings, lexicon(tmp_path))(text))

    return read


@pytest.mark.parametrize(
    "kind, text, words",
    [
        (NormaliserKind.words, "One one zero eight.", "ONE ONE ZERO EIGHT"),
        (NormaliserKind.words, "“Don’t” -- stop, Zoë!", "DON'T STOP ZOË"),
        (NormaliserKind.words, "twenty-one [door slams] men & women", "TWENTY ONE MEN AND WOMEN"),
        (NormaliserKind.words, "हिन्दी।", "हिन्दी"),
        (NormaliserKind.english, "Uh, Zoë ca- can’t", "UH ZOE CA- CAN'T"),
        (NormaliserKind.english, "Zoë likes cafés", "ZOE LIKES CAFES"),
        (NormaliserKind.words, "canʼt stop", "CAN'T STOP"),
        (NormaliserKind.plain, "Stop.  one", "STOP. ONE"),
        (NormaliserKind.words, " -- ...", ""),
    ],
)
def test_a_transcript_becomes_words(words_of, kind, text, words):
    assert words_of(text, kind) == words


def test_words_of_ones_own_lexicon_stay_as_they_are(tmp_path):
    own = lexicon(tmp_path)
    with open(own.file, "a") as file:
        file.write("<NOISE> SPN\nUH-HUH AH HH AH\n5 F AY V\nA. EY\n")
    words_of = Transcriber(folders(), own)
    assert words_of("<noise> uh-huh, 5 one. a.") == ["<NOISE>", "UH-HUH", "5", "ONE", "A."]
    assert words_of("[they say uh-huh] one") == ["ONE"]  # a mark that has such a word
    assert words_of("“uh-huh!” UH-HUH-5?") == ["UH-HUH", "UH", "HUH", "5"]


@pytest.mark.parametrize("kind", [NormaliserKind.words, NormaliserKind.plain])
def test_letters_and_their_accents_are_composed_as_in_the_lexicon(tmp_path, kind):
    own = lexicon(tmp_path)
    apart = unicodedata.normalize("NFD", "Zoë")
    with open(own.file, "a", encoding="utf-8") as file:
        file.write(f"{apart} Z OW IY\nταΐζω t a i z o\n")  # no capital ΐ exists
    words = Transcriber(folders(normaliser=kind), own)(f"{apart} zoë ταΐζω")
    assert words[:2] == ["ZOË", "ZOË"]
    assert Lexicon.from_settings(own, words).missing == ()


def test_a_letter_and_a_full_stop_are_no_word_of_cmus_dictionary():
    cmu = LexiconSettings(
        source=LexiconSource.cmudict, file=None, unknown=Unknown.lose, max_variants=4, schwa=True
    )
    assert Transcriber(folders(), cmu)("Plan A. o'clock 'tis dogs'") == [
        *("PLAN", "A", "O'CLOCK", "'TIS", "DOGS'")
    ]


def test_digits_are_refused_with_the_settings_that_read_them(words_of):
    both = "corpus.folder.digits=each .* or corpus.folder.digits=number"
    with pytest.raises(DigitsError, match=f"108 has digits; write what was said, or set {both}"):
        words_of("call 108!")
    assert words_of("call 108!", digits=Digits.each) == "CALL ONE ZERO EIGHT"
    assert words_of("1'08 9's", digits=Digits.each) == "ONE ZERO EIGHT NINE S"
    assert words_of("call 108, 3.5", digits=Digits.number) == (
        "CALL ONE HUNDRED EIGHT THREE POINT FIVE"
    )
    with pytest.raises(DigitsError, match="5TH is not a number"):
        words_of("5th", digits=Digits.number)
    for digits in (Digits.each, Digits.number):
        for text in (".25", "(.5)", "\u2212.5"):
            with pytest.raises(DigitsError, match=re.escape(text) + " begins with a point; write"):
                words_of(f"about {text} inch", digits=digits)
        assert words_of("so ...5", digits=digits) == "SO FIVE"


@pytest.mark.parametrize(
    "text",
    [
        *("3:30", "1/2", "3,5", "1,00", "1.000,50", "5,6,7", "$5", "5€", "₹5", "20°", "-5", "#1"),
        *("½", "3²", "2+2", "5*3", "1·5", "5(6", "5…6", "5..6", "５：３０"),
    ],
)
def test_what_would_be_read_as_another_number_is_refused(words_of, text):
    with pytest.raises(DigitsError, match=re.escape(text) + " is more than a number; write what"):
        words_of(f"at {text}", digits=Digits.number)


@pytest.mark.parametrize("text, word", [("007", "007"), ("00", "00"), ("12 000", "000")])
def test_zeros_in_front_of_a_number_are_refused_as_they_would_be_lost(words_of, text, word):
    with pytest.raises(DigitsError, match=f"{word} is not a number that can be read; write what"):
        words_of(text, digits=Digits.number)
    assert words_of("0.5 0", digits=Digits.number) == "ZERO POINT FIVE ZERO"


def test_signs_around_a_number_are_no_part_of_it(words_of):
    assert words_of("1,000,000 (5), 5-6; [0:30] '7'", digits=Digits.number) == (
        "ONE MILLION FIVE FIVE SIX SEVEN"
    )


@pytest.mark.parametrize(
    "number, words",
    [
        (0, "ZERO"),
        (19, "NINETEEN"),
        (20, "TWENTY"),
        (40, "FORTY"),
        (71, "SEVENTY ONE"),
        (110, "ONE HUNDRED TEN"),
        (2000, "TWO THOUSAND"),
        (1_000_017, "ONE MILLION SEVENTEEN"),
        (315_000_000_002, "THREE HUNDRED FIFTEEN BILLION TWO"),
    ],
)
def test_numbers_in_english(number, words):
    assert " ".join(number_words(number)) == words
