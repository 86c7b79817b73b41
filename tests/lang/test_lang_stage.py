"""scripts/lang.py reports which words it guessed, and keeps them in the index."""

import gzip
from dataclasses import replace

import pytest

from asr_train.compose import settings
from asr_train.files import DamagedFileError, read_json, write_json, write_jsonl, write_yaml
from asr_train.lang.index import grammar_words, load_lang
from asr_train.lang.lexicon import NOISE
from asr_train.schema import plain
from scripts.lang import lang

TEXTS = ("ONE COVID", "ZERO XQZ ONE")


@pytest.fixture
def stage(tmp_path):
    """Run the stage with a policy for unknown words; return the index's path and the output."""
    manifest, conf, models = (tmp_path / n for n in ("train.jsonl.gz", "lang.yaml", "lm.json"))
    write_jsonl(manifest, [{"supervisions": [{"text": text}]} for text in TEXTS])
    write_json(models, {})

    def run(unknown, *more):
        config = settings("dnn", ["lang=words", f"lang.lexicon.unknown={unknown}", *more])
        write_yaml(conf, plain(config.lang))
        output = tmp_path / "lang" / "index.json"
        output.parent.mkdir(exist_ok=True)
        said = lang(str(manifest), str(manifest), str(conf), str(models), str(output))
        return output, said

    return run


@pytest.mark.parametrize("unknown", ["espeak", "noise", "letters"])
def test_what_was_guessed_is_printed_and_listed(stage, unknown):
    index, said = stage(unknown)
    assert f"2 words by lang.lexicon.unknown={unknown}, for example COVID, XQZ" in said
    assert read_json(index)["guessed"] == ["COVID", "XQZ"]
    loaded = load_lang(index)
    assert loaded.lexicon.guessed == ("COVID", "XQZ")
    assert (NOISE in loaded.states.phones) == (unknown == "noise")


def test_nothing_is_guessed_where_words_are_lost(stage):
    index, said = stage("lose")
    assert "without pronunciation: COVID, XQZ" in said
    assert "for example" not in said
    assert read_json(index)["guessed"] == []


def test_variants_that_are_left_out_are_said(stage, tmp_path):
    (tmp_path / "own.txt").write_text("COVID K OW\nCOVID K AO\nCOVID K IY\nXQZ K\n")
    own = ["source=file", f"file={tmp_path}/own.txt", "max_variants=2"]
    _, said = stage("lose", *(f"lang.lexicon.{setting}" for setting in own))
    assert "1 word with more than lang.lexicon.max_variants=2 pronunciations" in said
    assert said.endswith("for example COVID")


ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<s>\n-1\t</s>\n-0.5\tONE\n\n\\end\\\n"


@pytest.fixture
def with_grammar(tmp_path):
    """Run the stage with an ARPA file of this name and content; return the folder of its output."""

    def run(name, content):
        (tmp_path / name).write_bytes(content)
        write_jsonl(tmp_path / "t.jsonl.gz", [{"supervisions": [{"text": "ONE TWO"}]}])
        write_json(tmp_path / "m", {})
        grammar = ["lang.grammar.kind=arpa", f"lang.grammar.file={tmp_path / name}"]
        write_yaml(tmp_path / "l.yaml", plain(settings("dnn", ["lang=words", *grammar]).lang))
        inputs = [str(tmp_path / n) for n in ("t.jsonl.gz", "t.jsonl.gz", "l.yaml", "m")]
        lang(*inputs, str(tmp_path / "lang" / "index.json"))
        return tmp_path / "lang"

    return run


@pytest.mark.parametrize(
    "name, content",
    [
        ("g.arpa", ARPA.replace("\t", " ").encode()),
        ("g.arpa.gz", gzip.compress(ARPA.encode(), mtime=0)),
        ("g.arpa", ARPA.replace("\n", "\r\n").encode("utf-8-sig")),  # as Windows writes texts
        ("g.arpa", ARPA.replace("ONE", "ONE 0").encode()),  # a back-off of the highest order
        ("g.arpa", ARPA.replace("ONE", "one").encode()),
        ("g.arpa", (" " + ARPA.replace("\n", "\n\t")).encode()),  # indented
    ],
)
def test_a_grammar_is_copied_as_arpa2fst_reads_it(with_grammar, name, content):
    found = with_grammar(name, content)
    assert (found / "G.arpa").read_bytes() == ARPA.encode()
    assert load_lang(found / "index.json").arpa == found / "G.arpa"


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("g.arpa.gz", b"no gzip", r"g\.arpa\.gz cannot be read"),
        ("g.arpa", ARPA.replace("=3", "=4").encode(), r"g\.arpa, line 9: .*before all 1-grams"),
        ("g.arpa", ARPA.replace("-0.5\t", "").encode(), r"g\.arpa, line 7: 'ONE' has 1 fields"),
        ("g.arpa", ARPA.replace("ONE", "<eps>").encode(), r"g\.arpa has the word <eps>, a symbol"),
    ],
)
def test_a_wrong_grammar_is_refused(with_grammar, name, content, message):
    with pytest.raises(DamagedFileError, match=message):
        with_grammar(name, content)


def test_a_grammar_without_any_pronunciation_is_refused_before_training(with_grammar):
    with pytest.raises(ValueError, match=r"none of the 1 words of the grammar .* XQZ;"):
        with_grammar("g.arpa", ARPA.replace("ONE", "XQZ").encode())


def test_a_word_that_a_loop_names_twice_is_no_likelier():
    grammar = settings("dnn", ["lang=words", "lang.grammar.words=[one,two,ONE]"]).lang.grammar
    assert grammar_words(grammar, None) == ["ONE", "TWO"]


def test_the_hash_covers_what_graphs_are_made_of_but_the_grammar(stage):
    lang = load_lang(stage("espeak")[0])
    fewer = replace(lang.lexicon, prons=dict([*lang.lexicon.prons.items()][1:]))
    others = [
        replace(lang, silence_probability=0.4),
        replace(lang, lexicon=fewer),
        replace(lang, states=replace(lang.states, silence_states=3)),
    ]
    assert len({other.hash for other in [lang, *others]}) == 4
    assert replace(lang, grammar=replace(lang.grammar, max_words=1)).hash == lang.hash


def test_words_of_dev_are_pronounced_yet_not_in_the_grammar(tmp_path):
    train, dev, conf, models = (tmp_path / n for n in ("t.jsonl.gz", "d.jsonl.gz", "l.yaml", "m"))
    for manifest, text in ((train, "ONE TWO"), (dev, "TWO THREE")):
        write_jsonl(manifest, [{"supervisions": [{"text": text}]}])
    write_json(models, {})
    write_yaml(conf, plain(settings("dnn", ["lang=words"]).lang))
    lang(str(train), str(dev), str(conf), str(models), str(tmp_path / "index.json"))
    loaded = load_lang(tmp_path / "index.json")
    assert loaded.lexicon.words == ["ONE", "THREE", "TWO"]
    assert loaded.grammar.words == ["ONE", "TWO"]
