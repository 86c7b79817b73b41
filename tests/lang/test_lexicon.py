"""Every word is pronounced by its source, or named as missing."""

import pytest

from asr_train.lang.lexicon import SILENCE, Lexicon, read_lexicon_file
from asr_train.schema import LexiconSettings, LexiconSource, Unknown


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


@pytest.mark.parametrize("unknown", [Unknown.lose, Unknown.letters])
def test_unknown_words_are_missing_or_spelled(unknown):
    lexicon = Lexicon.from_settings(settings(unknown=unknown), ["XQZ", "ONE"])
    if unknown is Unknown.lose:
        assert lexicon.missing == ("XQZ",)
        assert lexicon.words == ["ONE"]
    else:
        assert lexicon.prons["XQZ"] == (("EH", "K", "S", "K", "Y", "UW", "Z", "IY"),)


def test_unknown_words_can_be_refused_by_name():
    with pytest.raises(ValueError, match=r"1 of 2 words.*XQZ"):
        Lexicon.from_settings(settings(unknown=Unknown.refuse), ["XQZ", "ONE"])


def test_letters_pronounce_any_word():
    lexicon = Lexicon.from_settings(settings(source=LexiconSource.letters), ["AB", "B2"])
    assert lexicon.prons == {"AB": (("A", "B"),)}
    assert lexicon.missing == ("B2",)


def test_a_lexicon_file_has_variants_and_comments(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("yes Y EH S\nyes(2) Y AE # short\n\n# nothing\nNO N OW\n")
    assert read_lexicon_file(path) == {
        "YES": [("Y", "EH", "S"), ("Y", "AE")],
        "NO": [("N", "OW")],
    }


@pytest.mark.parametrize("line", ["YES", "YES SIL Y"])
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "lexicon.txt"
    path.write_text(f"NO N OW\n{line}\n")
    with pytest.raises(ValueError, match="line 2"):
        read_lexicon_file(path)
