"""Probabilities of pronunciations and silences are the counts of alignments, smoothed."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from toy import random_pronprobs, toy_lang

from asr_train.lang.index import load_lang, write_lang
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.pronprobs import EDGE, Spoken, learned, spoken
from asr_train.schema import PronprobsSettings

LEXICON = Lexicon({"A": (("a",), ("b",)), "B": (("b",),), "C": (("c", "a"),)})
SETTINGS = PronprobsSettings(pron_count=1.0, silence_count=2.0, factor_count=3.0)
SAID = [  # the words' variants, and where silence is
    Spoken([("A", 0), ("B", 0)], [True, False, True]),
    Spoken([("B", 0), ("A", 0), ("A", 1)], [False, True, True, False]),
]


def test_the_equations_on_a_few_words():
    found = learned(SAID, LEXICON, SETTINGS)
    share = (3 + 1) / (5 + 2)  # of the places after words that have silence, smoothed by one each
    assert found.pron == {"A": [1.0, pytest.approx(2 / 3)], "B": [1.0], "C": [1.0]}
    after_a, after_a1 = (1 + 2 * share) / 4, (0 + 2 * share) / 3
    after_b, start = (2 + 2 * share) / 4, (1 + 2 * share) / 4
    assert found.pause["A"] == pytest.approx([after_a, after_a1], rel=1e-5)
    assert found.pause["B"] == pytest.approx([after_b], rel=1e-5)
    assert found.pause["C"] == pytest.approx([share], rel=1e-5)
    assert found.start == pytest.approx(start)
    # A's first pronunciation follows the start and B; both times there is silence
    assert found.after_silence["A"][0] == pytest.approx((2 + 3) / (start + after_b + 3), rel=1e-5)
    assert found.after_word["A"][0] == pytest.approx(3 / (2 - start - after_b + 3), rel=1e-5)
    assert found.after_silence["C"] == found.after_word["C"] == [1.0]
    assert found.end_after_silence == pytest.approx((1 + 3) / (after_b + after_a1 + 3))


def test_costs_are_negative_logarithms():
    lang = replace(toy_lang(), pronprobs=None)
    given = random_pronprobs(lang.lexicon, np.random.default_rng(0))
    other = replace(lang, pronprobs=given)
    assert lang.pron_cost(("C", 1)) == math.log(2)
    assert lang.entry_costs(("C", 1)) == lang.entry_costs(EDGE) == (0.0, 0.0)
    assert lang.pause_costs(EDGE) == lang.pause_costs(("C", 0)) == (-math.log(0.4), -math.log(0.6))
    assert other.pron_cost(("C", 1)) == -math.log(given.pron["C"][1])
    assert math.exp(-other.pause_costs(EDGE)[0]) == pytest.approx(given.start)
    assert sum(math.exp(-cost) for cost in other.pause_costs(("C", 1))) == pytest.approx(1)
    assert other.entry_costs(EDGE)[1] == -math.log(given.end_after_word)


def test_a_silence_that_always_follows_still_leaves_a_cost_to_none():
    said = [Spoken([("A", 0)], [True, True])] * 10_000
    lang = replace(toy_lang(), pronprobs=learned(said, LEXICON, SETTINGS))
    assert lang.pronprobs.pause["A"][0] == 1  # as it is rounded in the file
    for variant in (("A", 0), EDGE):
        pause, none = lang.pause_costs(variant)
        assert 0 < pause < 1e-5 < 10 < none < 20


def row(words: str, phones: str):
    """Return an aligned cut: a phone lasts 0.1 s, `|` marks where words begin, `.` is silence."""
    symbols, items, at = words.split(), {"phone": [], "word": []}, 0.0
    for part in phones.split("|"):
        sounds = part.split()
        spoken_phones = [p for p in sounds if p != "."]
        if spoken_phones:
            items["word"].append([symbols.pop(0), round(at, 6), 0.1 * len(spoken_phones), None])
        for p in sounds:
            items["phone"].append(["SIL" if p == "." else p, round(at, 6), 0.1, None])
            at += 0.1
    return {"id": "u", "supervisions": [{"alignment": items}]}


@pytest.mark.parametrize("seed", range(5))
def test_alignments_give_variants_and_pauses_back(seed):
    rng = np.random.default_rng(seed)
    variants = [(w, int(rng.integers(len(LEXICON.prons[w])))) for w in rng.choice([*"ABC"], 6)]
    pauses = [bool(p) for p in rng.random(7) < 0.5]
    parts = ["."] * pauses[0]
    for (word, n), pause in zip(variants, pauses[1:], strict=True):
        parts.append(" ".join(LEXICON.prons[word][n]) + " ." * pause)
    found = spoken(row(" ".join(w for w, _ in variants), "|".join(parts)), LEXICON)
    assert (found.variants, found.pauses) == (variants, pauses)


def test_other_pronunciations_and_alignments_without_phones_are_refused():
    with pytest.raises(ValueError, match="u: B is aligned with the phones 'a', but the lexicon"):
        spoken(row("B", "a"), LEXICON)
    with pytest.raises(ValueError, match="aligned without phones"):
        spoken({"id": "u", "supervisions": [{"alignment": None}]}, LEXICON)
    with pytest.raises(ValueError, match="no utterance is aligned"):
        learned([], LEXICON, SETTINGS)


def test_they_are_part_of_the_lang_folder_and_checked(tmp_path):
    lang = toy_lang()
    given = random_pronprobs(lang.lexicon, np.random.default_rng(1))
    path = tmp_path / "index.json"
    other = replace(lang, pronprobs=given)
    write_lang(path, other)
    assert load_lang(path) == other
    assert lang.hash != other.hash
    content = json.loads(path.read_text())
    content["pronprobs"]["start"] = 1.0
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"says hash \w+ but its content has"):
        load_lang(path)
