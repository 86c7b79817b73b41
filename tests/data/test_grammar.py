"""data.grammar: JSGF is parsed, drawn by its weights, and counted without drawing."""

from collections import Counter
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest

from asr_train.data.grammar import (
    Choice,
    Grammar,
    GrammarError,
    Node,
    Rule,
    Sequence,
    Word,
    parse_grammar,
    read_grammar,
)
from asr_train.files import DamagedFileError

COMMANDS = Path(__file__).parents[2] / "recipes/commands/commands.gram"
HEAD = "#JSGF V1.0;\ngrammar test;\n"
SMALL = (
    HEAD
    + """/* what
   is said */
public <said> = (turn | switch) (on | off) the <thing> [please] | /2/ stop ; // ends it
<thing> = <room> lamp | old radio | <room> fan ;
<room> = kitchen | garage ;
<unused> = never ;
"""
)


def drawn(text: str, count: int, seed: int = 0) -> Counter[str]:
    grammar, rng = parse_grammar(text), np.random.default_rng(seed)
    return Counter(" ".join(grammar.draw(rng)) for _ in range(count))


def derivations(grammar: Grammar) -> int:
    """Return the number of derivations of a sentence."""

    def ways(node: Node) -> int:
        match node:
            case Rule(name):
                return ways(grammar.rules[name])
            case Sequence(parts):
                return prod(map(ways, parts))
            case Choice(options):
                return sum(map(ways, options))
        return 1

    return ways(Rule(grammar.start))


def test_all_sentences_and_no_others_are_drawn():
    things = ["KITCHEN LAMP", "GARAGE LAMP", "OLD RADIO", "KITCHEN FAN", "GARAGE FAN"]
    wanted = {
        f"{verb} {way} THE {thing}{end}"
        for verb, way, thing, end in product(
            ("TURN", "SWITCH"), ("ON", "OFF"), things, ("", " PLEASE")
        )
    } | {"STOP"}
    assert set(drawn(SMALL, 2000)) == wanted
    assert derivations(parse_grammar(SMALL)) == len(wanted) == 41


def test_rules_without_a_sentence_are_left_out():
    grammar = parse_grammar(SMALL)
    assert set(grammar.rules) == {"said", "thing", "room"}
    assert "NEVER" not in grammar.words
    assert grammar.words == sorted(set(" ".join(drawn(SMALL, 2000)).split()))


def test_weights_say_how_often():
    counts = drawn(f"{HEAD}public <a> = /6/ yes | /3/ no | perhaps [not] ;", 5000)
    shares = {word: count / 5000 for word, count in counts.items()}
    assert shares == pytest.approx(
        {"YES": 0.6, "NO": 0.3, "PERHAPS": 0.05, "PERHAPS NOT": 0.05}, abs=0.02
    )


def test_weights_and_letters_may_be_written_in_any_way():
    grammar = parse_grammar(f"{HEAD}public <s> = / 5. / cafe\u0301 | /1e-1/ b ;")
    assert grammar.rules["s"] == Choice((Word("CAFÉ"), Word("B")), (5.0, 0.1))


def test_names_with_dots_and_typographic_apostrophes_are_read():
    text = "#JSGF V1.0 UTF-8;\ngrammar com.acme.lights;\npublic <a> = don\u2019t stop ;"
    assert set(drawn(text, 5)) == {"DON'T STOP"}


def test_equal_seeds_draw_equal_sentences():
    assert drawn(SMALL, 50, seed=3) == drawn(SMALL, 50, seed=3) != drawn(SMALL, 50, seed=4)


def test_without_a_word_no_sentence_has_it_and_all_others_stay():
    grammar = parse_grammar(SMALL)
    fewer = grammar.without({"OLD", "SWITCH", "NOWHERE"})
    assert derivations(fewer) == 2 * 4 * 2 + 1
    assert set(fewer.words) == set(grammar.words) - {"OLD", "RADIO", "SWITCH"}
    assert grammar.without({"KITCHEN", "GARAGE"}).words == sorted(
        ["THE", "OFF", "OLD", "ON", "PLEASE", "RADIO", "STOP", "SWITCH", "TURN"]
    )
    assert derivations(grammar.without({"PLEASE"})) == 21
    with pytest.raises(GrammarError, match="no sentence without STOP, THE"):
        grammar.without({"STOP", "THE"})


@pytest.mark.parametrize(
    "text, message",
    [
        ("public <a> = b ;", "first line must be"),
        (f"{HEAD}public <a> = x <b> ;\n<b> = y | z <a> ;", "rule <a> is recursive"),
        (f"{HEAD}public <a> = <b> ;", "rule <b> is used in <a> but not defined"),
        (f"{HEAD}<a> = b ;", "0 public rules"),
        (f"{HEAD}public <a> = b ;\npublic <c> = d ;", "2 public rules"),
        (f"{HEAD}public <a> = b ;\n<a> = c ;", "line 4: rule <a> is defined twice"),
        (f"{HEAD}public <a> = b* ;", r"line 3: '\*' is not supported"),
        (f"{HEAD}public <a> = b {{tag}} ;", "line 3: '{' is not supported"),
        (f"{HEAD}public <a> = b | ;", "line 3: an alternative is empty"),
        (f"{HEAD}public <a> = (b | c ;", "';', but '\\)' is expected"),
        (f"{HEAD}public <a> = b", "ends within a rule"),
        (f"{HEAD}public <a> = b\n<c> = d ;", "is a ; missing before"),
        (f"{HEAD}public <a> = b /2/ c ;", "a weight must precede an alternative"),
        (f"{HEAD}public <a> = /0/ b | c ;", r"line 3: the weight is '0'; it must be a positive"),
        (f"{HEAD}public <a> = /-1/ b | c ;", "the weight is '-1'"),
        (f"{HEAD}public <a> = /x/ b | c ;", "the weight is 'x'"),
        (f"{HEAD}public <a> = c [/0.01/ a] ;", "a weight needs another alternative"),
        ("#JSGF V1.0\npublic <a> = b ;\n", "the first line must be #JSGF V1.0;"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text, message, tmp_path):
    path = tmp_path / "broken.gram"
    path.write_text(text)
    with pytest.raises(GrammarError, match=f"broken.gram: .*{message}"):
        read_grammar(path)


def test_a_sentence_without_words_is_refused():
    with pytest.raises(GrammarError, match="<a> has a sentence without words"):
        drawn(f"{HEAD}public <a> = [please] ;", 100)


def test_a_byte_order_mark_is_no_text_and_other_encodings_are_named(tmp_path):
    path = tmp_path / "a.gram"
    text = f"{HEAD}public <a> = schön ;"
    path.write_text(text, encoding="utf-8-sig")
    assert read_grammar(path).words == ["SCHÖN"]
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DamagedFileError, match=r"a\.gram, line 3 has the byte 0xf6"):
        read_grammar(path)


def test_the_commands_are_many():
    grammar, rng = read_grammar(COMMANDS), np.random.default_rng(0)
    assert len(grammar.words) > 3000
    said = {" ".join(grammar.draw(rng)) for _ in range(20000)}
    assert len(said) > 18000
    # With only n sentences, 20,000 draws would repeat more often than for n equally likely ones.
    again = 20000 - len(said)
    assert 20000**2 / 2 / again > 100_000  # for n equally likely ones, 20000^2 / 2n repeat
    assert derivations(grammar) > 10**9
