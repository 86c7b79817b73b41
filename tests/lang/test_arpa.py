"""Back-off models are read back from files with the same costs; damage is reported by line."""

import gzip
import math
import unicodedata

import kaldilm
import numpy as np
import pytest
from slow_ngram import random_text, text_of
from toy import logprobs

from asr_train.files import DamagedFileError
from asr_train.lang.arpa import NgramModel, Ngrams, read_arpa, write_arpa
from asr_train.lang.ngram import prune, read_sentences, train

ARPA = """written by hand
\\data\\
ngram 1=5
ngram 2=4
ngram 3=2

\\1-grams:
-99 <s> -0.5
-0.6 </s>
-0.7 A -0.3
-0.5 B\t-0.2
-0.9 <unk>

\\2-grams:
-0.2 <s> B -0.1
-0.4 B A -0.05
-0.3 A </s>
-0.8 B B

\\3-grams:
-0.15 <s> B A
-0.25 B A </s>

\\end\\
"""


@pytest.fixture
def by_hand(tmp_path) -> NgramModel:
    (tmp_path / "hand.arpa").write_text(ARPA.replace("B", "b"))  # words become upper case
    return read_arpa(tmp_path / "hand.arpa")


def test_accents_of_words_are_composed(tmp_path):
    (tmp_path / "hand.arpa").write_text(ARPA.replace("B", "u\u0308"))
    assert read_arpa(tmp_path / "hand.arpa").words[3] == "Ü"


@pytest.mark.parametrize("word", ["zoë", "μαΐου", "πραΰς"])  # no capital ΐ or ΰ exists
def test_a_model_of_a_text_has_the_words_of_the_text(tmp_path, word):
    (tmp_path / "text").write_text(f"{word} {unicodedata.normalize('NFD', word)}", "utf-8")
    (sentence,) = read_sentences([tmp_path / "text"])
    write_arpa(tmp_path / "m.arpa", train(text_of([sentence]), 2))
    assert set(read_arpa(tmp_path / "m.arpa").words[3:]) == set(sentence)
    assert len(set(sentence)) == 1


def test_a_file_is_read_as_it_stands(by_hand):
    assert by_hand.words == ["<s>", "</s>", "A", "B", "<unk>"]
    assert by_hand.counts == [5, 4, 2]
    named = [" ".join(by_hand.words[i] for i in row) for row in by_hand.ids(3)]
    assert sorted(named) == ["<s> B A", "B A </s>"]


@pytest.mark.parametrize(
    "sentence, log10",
    [
        ("B A", -0.2 - 0.15 - 0.25),
        ("A", (-0.5 - 0.7) - 0.3),  # <s> A does not occur: back-off of <s>
        ("B B", -0.2 + (-0.1 - 0.8) + (-0.2 - 0.6)),
        ("A A", (-0.5 - 0.7) + (-0.3 - 0.7) - 0.3),
        ("B A A", -0.2 - 0.15 + (-0.05 - 0.3 - 0.7) - 0.3),
        ("C", (-0.5 - 0.9) - 0.6),  # unknown
        ("", -0.5 - 0.6),
    ],
)
def test_sentences_cost_what_the_file_says(by_hand, sentence, log10):
    assert logprobs(by_hand, [sentence.split()])[0] == pytest.approx(log10, abs=1e-6)


def test_many_sentences_cost_what_each_does(by_hand):
    sentences = [text.split() for text in ("B A", "", "A A B C", "C")]
    together = logprobs(by_hand, sentences)
    assert together == pytest.approx([logprobs(by_hand, [s])[0] for s in sentences], abs=1e-12)


def test_perplexity_leaves_unknown_words_out(by_hand):
    found = by_hand.perplexity([["A"], ["C"]])
    assert found[1:] == (2, 1, 2)
    assert found.perplexity == pytest.approx(10 ** ((0.5 + 0.7 + 0.3 + 0.6) / 3), rel=1e-6)


def test_the_perplexity_of_a_uniform_model_is_its_number_of_words():
    words = ["<s>", "</s>", *"ABCDEFG"]
    logp_N = np.full(9, -math.log10(8))
    model = NgramModel(words, [Ngrams(np.arange(9), logp_N, np.zeros(9))])
    assert model.perplexity([["A", "B"], ["G"]]).perplexity == pytest.approx(8)


def test_a_model_may_have_no_sign_for_unknown_words():
    words = ["<s>", "</s>", "A"]
    model = NgramModel(words, [Ngrams(np.arange(3), np.log10([1e-9, 0.5, 0.5]), np.zeros(3))])
    assert model.perplexity([["A"], ["A", "Q"]]) == (pytest.approx(2), 3, 1, 2)


def test_no_sentences_have_no_perplexity(by_hand):
    with pytest.raises(ValueError, match="no sentences"):
        by_hand.perplexity([])


def write(path, model):
    """Write a model, gzipped if the name ends in `.gz`."""
    write_arpa(path, model)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["m.arpa", "m.arpa.gz"])
def test_a_model_comes_back_from_its_file(tmp_path, order, name):
    model = train(text_of(random_text(order, 60, 20, 2)), order)
    write(tmp_path / name, model)
    back = read_arpa(tmp_path / name)
    assert back.words == model.words
    assert back.counts == model.counts
    for ours, theirs in zip(model.orders, back.orders, strict=True):
        assert np.array_equal(ours.key_N, theirs.key_N)
        np.testing.assert_allclose(theirs.logp_N, ours.logp_N, rtol=1e-6)
        np.testing.assert_allclose(theirs.backoff_N, ours.backoff_N, rtol=1e-6)


def test_equal_models_give_equal_bytes(tmp_path):
    for name in ("a.arpa", "b.arpa"):
        write_arpa(tmp_path / name, train(text_of(random_text(0, 60, 20, 2)), 3))
    assert (tmp_path / "a.arpa").read_bytes() == (tmp_path / "b.arpa").read_bytes()


def test_five_words_and_unsorted_lines_can_be_read(tmp_path):
    lines = ["\\data\\", *(f"ngram {n}=2" for n in range(1, 6)), "\\1-grams:"]
    lines += ["-1 </s>", "-1 <s> -1"]
    for n in range(2, 6):
        starred = [" ".join(["<s>"] * (n - 1) + [last]) for last in ("<s>", "</s>")]
        lines += [f"\\{n}-grams:", *(f"-0.{n} {words}" for words in starred)]
    (tmp_path / "five.arpa").write_text("\n".join([*lines, "\\end\\"]))
    model = read_arpa(tmp_path / "five.arpa")
    begin, end = model.id_of["<s>"], model.id_of["</s>"]
    found = model.conditional(np.array([[begin] * 4 + [end], [end] + [begin] * 4]))
    assert found == pytest.approx([-0.5, -0.4])


@pytest.mark.parametrize(
    "line, new, message",
    [
        (1, "hello", r"line 24: it has no line \\data\\"),
        (2, "ngram 2=5", r"line 3: 'ngram 2=5' should be 'ngram 1='"),
        (2, "ngram 1=x", "line 3: 'ngram 1=x' should be"),
        (2, "ngram 1=3\u00b2", "line 3: 'ngram 1=3\u00b2' should be"),
        (2, "ngram 1=0", "line 7: no 1-grams are listed"),
        (2, "ngram 1=6", r"line 14: '\\\\2-grams:' comes before all 1-grams"),
        (2, "ngram 1=4", r"line 12: '-0.9 <unk>' should be \\2-grams:"),
        (4, "ngram 3=1", r"line 22: the last section should have 1 n-grams"),
        (8, "-0.7 A B C", "line 9: '-0.7 A B C' has 4 fields; a 1-gram has 2, or 3"),
        (10, "-0.7 A -0.3", "line 11: the word 'A' is listed twice"),
        (10, "-0.7 a -0.3", "line 11: the word 'a' is listed twice .* first as 'A'"),
        (7, "-0.6 END", r"line 12: <s> and </s> must be among"),
        (9, "-0.7x A -0.3", "line 10: '-0.7x' should be a number"),
        (9, "-0.5 B nan", "line 10: log10 P is -0.5 and the back-off nan"),
        (14, "0.3 B A", "line 15: log10 P is 0.3"),
        (14, "-0.3 B", "line 15: '-0.3 B' has 2 fields; a 2-gram has 3"),
        (15, "-0.3 A D", "line 16: the word 'D' is not among the 1-grams"),
        (15, "-0.3 B B", r"line 18: this 2-gram is in line 16 already"),
        (20, "-0.15 <s> A A", "line 21: '<s> A A' is listed, but not '<s> A'"),
        (23, "", "line 24: the file ends too soon"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path, line, new, message):
    lines = ARPA.split("\n")
    lines[line] = new
    (tmp_path / "bad.arpa").write_text("\n".join(lines))
    with pytest.raises(DamagedFileError, match=message) as found:
        read_arpa(tmp_path / "bad.arpa")
    assert "correct the file" in str(found.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", ["m.arpa", "m.arpa.gz"])
def test_a_file_cut_short_is_refused(tmp_path, name, share):
    write(tmp_path / name, train(text_of(random_text(0, 200, 50, 2)), 3))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DamagedFileError, match=rf"{name}(, line \d+:| cannot be read)"):
        read_arpa(tmp_path / name)


def test_what_is_not_packed_or_not_text_is_refused(tmp_path):
    (tmp_path / "a.arpa.gz").write_text(ARPA)
    (tmp_path / "b.arpa").write_bytes(ARPA.encode().replace(b"B", b"\xff"))
    for name in ("a.arpa.gz", "b.arpa"):
        with pytest.raises(DamagedFileError, match=f"{name}.*cannot be read"):
            read_arpa(tmp_path / name)


def walked(state, arcs, final, words) -> float:
    """Return the cost of a sentence in arpa2fst's graph, by the word's arc if there is one."""
    cost = 0.0
    for word in words:
        while (state, word) not in arcs:
            state, more = arcs[state, "#0"]
            cost += more
        state, more = arcs[state, word]
        cost += more
    while state not in final:
        state, more = arcs[state, "#0"]
        cost += more
    return cost + final[state]


@pytest.mark.parametrize("threshold", [0.0, 1e-4])
def test_kaldilm_takes_what_we_write_and_finds_the_same_costs(tmp_path, threshold):
    text = random_text(3, 300, 20, 2)
    model = prune(train(text_of(text), 3), threshold)
    write_arpa(tmp_path / "m.arpa", model)
    symbols = ["<eps>", *model.words, "#0"]
    table = "".join(f"{word} {i}\n" for i, word in enumerate(symbols))
    (tmp_path / "words.txt").write_text(table)
    lines = kaldilm.arpa2fst(
        str(tmp_path / "m.arpa"),
        disambig_symbol="#0",
        read_symbol_table=str(tmp_path / "words.txt"),
    )
    arcs, final = {}, {}
    for fields in filter(None, map(str.split, lines.splitlines())):
        if len(fields) <= 2:
            final[int(fields[0])] = float(fields[1]) if len(fields) == 2 else 0.0
        else:
            cost = float(fields[4]) if len(fields) == 5 else 0.0
            arcs[int(fields[0]), symbols[int(fields[2])]] = (int(fields[1]), cost)
    start = int(lines.split()[0])
    for sentence in random_text(4, 50, 20, 2):
        known = [word for word in sentence if word in model.id_of]
        expected = -logprobs(model, [known])[0] * math.log(10)
        assert walked(start, arcs, final, known) == pytest.approx(expected, abs=1e-4)


def test_a_pruned_model_is_a_model_like_any_other(tmp_path):
    model = prune(train(text_of(random_text(3, 300, 20, 2)), 3), 1e-4)
    write_arpa(tmp_path / "m.arpa", model)
    back = read_arpa(tmp_path / "m.arpa")
    sentences = random_text(5, 40, 20, 2)
    np.testing.assert_allclose(logprobs(back, sentences), logprobs(model, sentences), atol=1e-4)
