"""Every word gets a pronunciation of its source, or is reported as missing."""

import pytest

from asr_train.lang.lexicon import NOISE, SILENCE, Lexicon, read_lexicon_file
from asr_train.schema import LexiconSettings, LexiconSource, SettingsError, Unknown


def settings(**change):
    values = {"source": LexiconSource.cmudict, "file": None, "unknown": Unknown.lose}
    return LexiconSettings(**values | {"max_variants": 4, "schwa": True} | change)


def test_cmudict_gives_variants_without_stress_in_a_stable_order():
    lexicon = Lexicon.from_settings(settings(), ["ZERO", "ONE", "ZERO"])
    assert lexicon.words == ["ONE", "ZERO"]
    assert lexicon.prons["ZERO"] == (("Z", "IH", "R", "OW"), ("Z", "IY", "R", "OW"))
    assert lexicon.phones == [SILENCE, "AH", "IH", "IY", "N", "OW", "R", "W", "Z"]


@pytest.mark.parametrize("schwa, last", [(True, "AX"), (False, "AH")])
def test_unstressed_ah_may_be_a_phone_of_its_own(schwa, last):
    lexicon = Lexicon.from_settings(settings(schwa=schwa), ["SEVEN", "ONE"])
    assert lexicon.prons["SEVEN"] == (("S", "EH", "V", last, "N"),)
    assert lexicon.prons["ONE"] == (("W", "AH", "N"),)


def test_variants_are_limited():
    lexicon = Lexicon.from_settings(settings(max_variants=1), ["ZERO"])
    assert len(lexicon.prons["ZERO"]) == 1
    assert lexicon.cut == ("ZERO",)


def test_a_pronunciation_that_stands_twice_is_one_variant(tmp_path):
    (tmp_path / "lexicon.txt").write_text("A x\nA x\nA y\n")
    own = settings(source=LexiconSource.file, file=str(tmp_path / "lexicon.txt"), max_variants=2)
    found = Lexicon.from_settings(own, ["A"])
    assert (found.prons["A"], found.cut) == ((("x",), ("y",)), ())


@pytest.mark.parametrize("unknown", [Unknown.lose, Unknown.letters])
def test_unknown_words_are_missing_or_spelled(unknown):
    lexicon = Lexicon.from_settings(settings(unknown=unknown), ["XQZ", "ONE"])
    if unknown is Unknown.lose:
        assert lexicon.missing == ("XQZ",)
        assert lexicon.words == ["ONE"]
    else:
        assert lexicon.guessed == ("XQZ",)
        assert lexicon.prons["XQZ"] == (("EH", "K", "S", "K", "Y", "UW", "Z", "IY"),)


@pytest.mark.parametrize(
    "word, pron", [("AB", ("x", "y", "z")), ("B'A", ("y", "z", "x")), ("AC", None)]
)
def test_letters_are_named_with_or_without_a_point(tmp_path, word, pron):
    (tmp_path / "lexicon.txt").write_text("A x\nA x x\nB. y z\n")
    source = {"source": LexiconSource.file, "file": str(tmp_path / "lexicon.txt")}
    lexicon = Lexicon.from_settings(settings(**source, unknown=Unknown.letters), [word])
    assert lexicon.prons == ({} if pron is None else {word: (pron,)})


def test_letters_of_cmus_dictionary_are_not_words():
    lexicon = Lexicon.from_settings(settings(unknown=Unknown.letters), ["ABQ"])
    assert lexicon.prons["ABQ"] == (("EY", "B", "IY", "K", "Y", "UW"),)  # A as in ABC, not a man


def test_unknown_words_can_be_refused_by_name():
    with pytest.raises(ValueError, match=r"1 of 2 words.*XQZ"):
        Lexicon.from_settings(settings(unknown=Unknown.refuse), ["XQZ", "ONE"])


def test_espeak_guesses_what_the_dictionary_lacks():
    words = ["ONE", "COVID", "ZOOMING", "<UNK>", "ЖУК"]
    lexicon = Lexicon.from_settings(settings(unknown=Unknown.espeak), words)
    assert lexicon.guessed == ("COVID",)  # ZOOMING is in the dictionary
    assert lexicon.missing == ("<UNK>", "ЖУК")
    assert lexicon.prons["COVID"] == (("K", "AA", "V", "IH", "D"),)
    assert lexicon.prons["ONE"] == (("W", "AH", "N"),)


@pytest.mark.parametrize("schwa", [True, False])
def test_guesses_have_the_phones_of_the_dictionary(schwa):
    ours = settings(unknown=Unknown.espeak, schwa=schwa)
    words = ["COVID", "MUGWORTIFICATION", "QUIDDITCH"]
    lexicon = Lexicon.from_settings(ours, words)
    assert lexicon.guessed == tuple(words)
    assert ("AX" in lexicon.phones) == schwa


def test_noise_is_one_phone_for_all_unknown_words():
    lexicon = Lexicon.from_settings(settings(unknown=Unknown.noise), ["XQZ", "ONE", "<UNK>"])
    assert lexicon.prons == {"<UNK>": ((NOISE,),), "ONE": (("W", "AH", "N"),), "XQZ": ((NOISE,),)}
    assert lexicon.guessed == ("<UNK>", "XQZ")
    assert lexicon.missing == ()
    assert NOISE in lexicon.phones


def test_a_file_of_other_phones_takes_no_guesses(tmp_path):
    path = tmp_path / "lexicon.txt"
    ours = {"source": LexiconSource.file, "file": str(path), "unknown": Unknown.espeak}
    path.write_text("COVEN K AH V AX N\n")
    lexicon = Lexicon.from_settings(settings(**ours), ["COVEN", "COVENS"])
    assert lexicon.prons["COVENS"] == (("K", "AH", "V", "AX", "N", "Z"),)
    path.write_text("COVEN K AH1 V AH0 N\n")
    with pytest.raises(ValueError, match=r"2 others \(AH0, AH1\)"):
        Lexicon.from_settings(settings(**ours), ["COVEN", "COVENS"])


def test_letters_take_no_guesses():
    with pytest.raises(SettingsError, match=r"unknown is espeak but source is letters"):
        settings(source=LexiconSource.letters, unknown=Unknown.espeak)


def test_letters_pronounce_any_word():
    lexicon = Lexicon.from_settings(settings(source=LexiconSource.letters), ["AB", "B2", "❤️"])
    assert lexicon.prons == {"AB": (("A", "B"),)}
    assert lexicon.missing == ("B2", "❤️")


def test_a_lexicon_file_has_variants_and_comments(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text(
        "yes Y EH S\nyes(2) Y AE # short\n\n# nothing\nNO N OW\nWATER w O: t# 3\n(2) T UW\n"
    )
    assert read_lexicon_file(path) == {
        "(2)": [("T", "UW")],
        "YES": [("Y", "EH", "S"), ("Y", "AE")],
        "NO": [("N", "OW")],
        "WATER": [("w", "O:", "t#", "3")],
    }


@pytest.mark.parametrize("line", ["YES", "YES SIL Y", "YES SIL", "YES 1.0 Y EH S", "YES 1e-05 Y"])
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "lexicon.txt"
    path.write_text(f"NO N OW\n{line}\n")
    with pytest.raises(ValueError, match="line 2"):
        read_lexicon_file(path)


def test_a_lexicon_of_kaldi_may_name_silence(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("!SIL SIL\n<SIL>\tSIL\n<UNK> SPN\na AH0\n")
    assert read_lexicon_file(path) == {"<UNK>": [("SPN",)], "A": [("AH0",)]}


def test_a_number_after_every_word_is_a_probability(tmp_path):
    """As in the lexiconp.txt of a lexicon with one pronunciation per word."""
    path = tmp_path / "lexiconp.txt"
    path.write_text("!SIL 1 SIL\ndeux 1 d 2\nun 1 9~\n")
    with pytest.raises(ValueError, match="has a number after every word; leave out probabilities"):
        read_lexicon_file(path)
    path.write_text("deux d 2\neu 2\neux 2 z\n")  # phones of X-SAMPA
    assert read_lexicon_file(path) == {"DEUX": [("d", "2")], "EU": [("2",)], "EUX": [("2", "z")]}


def test_letters_are_those_of_any_alphabet_with_their_marks():
    lexicon = Lexicon.from_settings(
        settings(source=LexiconSource.letters), ["DON'T", "FÜR", "हिन्दी", "B2B"]
    )
    assert lexicon.prons["DON'T"] == (("D", "O", "N", "T"),)
    assert lexicon.prons["FÜR"] == (("F", "Ü", "R"),)
    assert lexicon.prons["हिन्दी"] == (tuple("हिन्दी"),)
    assert lexicon.missing == ("B2B",)


def test_a_lexicon_file_in_latin_1_or_empty_is_refused(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_bytes(b"ONE W AH N\nCAF\xc9 K AE F EY\n")
    with pytest.raises(ValueError, match=r"lexicon.txt, line 2 has the byte 0xc9"):
        read_lexicon_file(path)
    path.write_bytes(b"\xef\xbb\xbfONE W AH N\n\xc9 K AE F EY\n")  # begins with an order mark
    with pytest.raises(ValueError, match=r"lexicon.txt, line 2 has the byte 0xc9"):
        read_lexicon_file(path)
    path.write_text("# nothing\n")
    with pytest.raises(ValueError, match=r"lexicon.txt has no words"):
        read_lexicon_file(path)
