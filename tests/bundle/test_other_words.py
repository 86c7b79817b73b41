"""A bundle for other words: the same model with another decoding graph."""

import gzip
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from spoken import RATE, said

from asr_train import Recogniser
from asr_train.bundle.grammar import Wanted, _language, change_grammar
from asr_train.bundle.store import open_bundle
from asr_train.command.main import main
from asr_train.files import hash_of, write_json
from asr_train.lang.arpa import write_arpa
from asr_train.lang.ngram import Text, train

SENTENCES = "One, nine two.\nnine two one hello\n\ntwo one nine\n"


def heard(bundle, text):
    recogniser = Recogniser.load(bundle, confidences=False)
    return recogniser.transcribe(said(text).samples_T, RATE).text


def test_the_same_words_give_the_same_bundle(tmp_path):
    with open_bundle("digits") as old:
        words = old.lang.grammar.words
        made, lexicon = change_grammar("digits", tmp_path / "a.tar", Wanted(words=words))
        assert made["parts"] == old.manifest["parts"]
    assert lexicon == old.lang.lexicon


def test_the_graph_has_the_self_loop_scale_of_the_bundle(tmp_path):
    wanted = Wanted(words=["ONE"])
    made, _ = change_grammar("digits", tmp_path / "a", wanted)
    made["graph"]["self_loop_scale"] = 1.0
    made.pop("hash")
    write_json(tmp_path / "a" / "bundle.json", made | {"hash": hash_of(made)})
    again, _ = change_grammar(tmp_path / "a", tmp_path / "b", wanted)
    assert again["graph"]["self_loop_scale"] == 1.0
    graphs = [{p["path"]: p["sha256"] for p in one["parts"]}["HCLG.fst"] for one in (made, again)]
    assert graphs[0] != graphs[1]


def test_any_sequence_of_words(tmp_path):
    for name in ("a.tar", "b.tar"):
        change_grammar("digits", tmp_path / name, Wanted(words=["nine", "ONE", "two", "wait"]))
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert heard(tmp_path / "a.tar", "ONE NINE TWO NINE") == "ONE NINE TWO NINE"
    assert "FOUR" not in heard(tmp_path / "a.tar", "FOUR FOUR")
    with open_bundle(tmp_path / "a.tar") as made, open_bundle("digits") as old:
        assert made.lang.lexicon.words == ["NINE", "ONE", "TWO", "WAIT"]
        assert made.choice == old.choice
        assert made.manifest["wer"] == []
        assert made.manifest["data_licence"] == old.manifest["data_licence"]
    wanted = Wanted(words=["ONE", "NINE"], min_words=0, max_words=1)
    change_grammar("digits", tmp_path / "c.tar", wanted)
    assert len(heard(tmp_path / "c.tar", "ONE NINE NINE").split()) == 1
    assert Recogniser.load(tmp_path / "c.tar", False).transcribe(np.zeros(RATE)).text == ""


def test_sentences_and_an_arpa_file_give_the_same_bundle(tmp_path, capsys):
    (tmp_path / "text").write_text(SENTENCES)
    with pytest.raises(SystemExit) as ended:
        main(["grammar", "digits", f"{tmp_path}/a.tar", "--text", f"{tmp_path}/text"])
    assert ended.value.code == 0
    assert "without pronunciation, left out: HELLO" in capsys.readouterr().out
    assert heard(tmp_path / "a.tar", "ONE NINE TWO") == "ONE NINE TWO"
    sentences = [
        line.upper().replace(",", "").replace(".", "").split() for line in SENTENCES.splitlines()
    ]
    text = Text.of([one for one in sentences if one], ["ONE", "TWO", "NINE"])
    write_arpa(tmp_path / "g.arpa", train(text, 3))
    (tmp_path / "g.arpa.gz").write_bytes(gzip.compress((tmp_path / "g.arpa").read_bytes()))
    change_grammar("digits", tmp_path / "b.tar", Wanted(arpa=tmp_path / "g.arpa.gz"))
    with open_bundle(tmp_path / "a.tar") as ours, open_bundle(tmp_path / "b.tar") as theirs:
        assert ours.manifest["graph"] == theirs.manifest["graph"]
        assert ours.manifest["parts"][-2:] == theirs.manifest["parts"][-2:]  # the graph


def test_words_keep_the_pronunciations_that_the_model_has_phones_for(tmp_path):
    _, lexicon = change_grammar("digits", tmp_path / "a", Wanted(words=["AN", "ONE"]))
    assert lexicon.prons["AN"] == (("AX", "N"),)  # not AE N


def test_words_in_no_dictionary_are_reported(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["grammar", "english", f"{tmp_path}/a", "--words", "don\u2019t", "frobnicate"])
    assert ended.value.code == 0
    assert "in no dictionary: FROBNICATE" in capsys.readouterr().out
    with open_bundle(tmp_path / "a") as made:
        assert made.lang.grammar.words == ["DON'T", "FROBNICATE"]


def test_words_given_twice_are_all_taken(tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["grammar", "digits", f"{tmp_path}/a", "--words", "ONE", "two", "--words", "SIX"])
    assert ended.value.code == 0
    with open_bundle(tmp_path / "a") as made:
        assert made.lang.grammar.words == ["ONE", "TWO", "SIX"]


def test_a_lexicon_replaces_pronunciations(tmp_path):
    lines = "WUN W AH N\nNINE N AY N\nNINE(2) N AY N\nOTHER C I\n"  # C and I are not needed
    (tmp_path / "lexicon").write_text(lines)
    wanted = Wanted(words=["WUN", "NINE"], lexicon=tmp_path / "lexicon")
    change_grammar("digits", tmp_path / "a.tar", wanted)
    assert heard(tmp_path / "a.tar", "ONE NINE ONE") == "WUN NINE WUN"
    again = Wanted(words=["WUN", "TWO"])  # known from the bundle itself
    change_grammar(tmp_path / "a.tar", tmp_path / "b.tar", again)
    with open_bundle(tmp_path / "b.tar") as made:
        assert made.lang.lexicon.prons["WUN"] == (("W", "AH", "N"),)


def test_odd_words_of_a_lexicon_are_words_of_texts(tmp_path):
    end, pipe = os.pipe()
    os.write(pipe, b"W_UN W AH N\n<NINE> N AY N\n")
    os.close(pipe)
    (tmp_path / "text").write_text("W_un, two.\n<nine> two <noise>\n")
    wanted = Wanted(text=[tmp_path / "text"], lexicon=Path(f"/dev/fd/{end}"))
    _, lexicon = change_grammar("digits", tmp_path / "a.tar", wanted)
    os.close(end)
    assert {"W_UN", "<NINE>", "TWO"} <= set(lexicon.prons)
    recogniser = Recogniser.load(tmp_path / "a.tar", confidences=False)
    found = recogniser.align(said("NINE TWO ONE").samples_T, "<Nine> two -- w_un!", RATE)
    assert [span.label for span in found.words] == ["<NINE>", "TWO", "W_UN"]


def test_a_text_limits_the_words_of_a_bundle_without_a_dictionary(tmp_path):
    (tmp_path / "text").write_text(SENTENCES)
    with open_bundle("digits") as opened:
        own = replace(opened, lexicon=None)
        wanted = Wanted(text=[tmp_path / "text"])
        lang = _language(own, opened.lang.states, wanted, tmp_path / "G.arpa")
    assert len(lang.lexicon.words) > 3  # they can be aligned
    unigrams = (tmp_path / "G.arpa").read_text().split("\\1-grams:")[1].split("\\2-grams:")[0]
    words = {line.split()[1] for line in unigrams.strip().splitlines()}
    assert words - {"<s>", "</s>", "<unk>"} == {"ONE", "TWO", "NINE"}


@pytest.mark.parametrize(
    "wanted, says",
    [
        (Wanted(words=["turn on"]), "'TURN ON' is not one word; put sentences into a file"),
        (
            Wanted(words=["hello", "one"]),
            r"no pronunciation of HELLO is known; .*phones of the model \(AH AO",
        ),
        (Wanted(words=["QI"], lexicon="lexicon"), "QI has the phone C, but the model's phones are"),
        (Wanted(text=["empty"]), "empty has no word .*; add sentences"),
        (Wanted(text=["strange"]), "strange has no word .*: HELLO; add them to a lex"),
        (Wanted(arpa="empty"), "empty"),
    ],
)
def test_what_the_model_cannot_recognise_is_named(tmp_path, monkeypatch, wanted, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lexicon").write_text("QI C I\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "strange").write_text("hello hello\n")
    with pytest.raises(ValueError, match=says):
        change_grammar("digits", tmp_path / "a.tar", wanted)
    assert not (tmp_path / "a.tar").exists()


def test_numbers_outside_their_range_are_refused(tmp_path):
    with pytest.raises(ValueError, match="order is 0; it must be from 1 to 5"):
        Wanted(text=["text"], order=0)
    with pytest.raises(ValueError, match="acoustic scale is -1"):
        change_grammar("digits", tmp_path / "a.tar", Wanted(words=["ONE"]), acoustic_scale=-1)
    for penalty in (math.nan, 1e300):
        with pytest.raises(ValueError, match=r"insertion_penalty is (nan|1e.300); its size"):
            change_grammar(
                "digits", tmp_path / "a.tar", Wanted(words=["ONE"]), insertion_penalty=penalty
            )
    with pytest.raises(ValueError, match="prune is nan; it must be from 0 to 1"):
        Wanted(text=["text"], prune=math.nan)
    with pytest.raises(ValueError, match="exactly one of words, text and arpa"):
        Wanted(words=["ONE"], text=["text"])
    with pytest.raises(ValueError, match="min_words and max_words are of words"):
        Wanted(text=["text"], max_words=1)
    with pytest.raises(ValueError, match="order and prune are of the n-gram model"):
        Wanted(words=["ONE"], order=2)
    with pytest.raises(ValueError, match="max_words is 0"):
        change_grammar("digits", tmp_path / "a.tar", Wanted(words=["ONE"], max_words=0))
