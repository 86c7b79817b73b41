"""Rescoring a graph's sentences finds what the graph of the new language model finds."""

import math

import numpy as np
import pytest
from toy import path_of, scores_of, toy_lang

from asr_train.search.graph import decoding_graph
from asr_train.search.lattice import Lattices, best_path
from asr_train.search.nbest import nbest, rescore

LOOPS = np.linspace(0.3, 0.8, 14)


class Bigram:
    """A back-off bigram model: log10 probabilities, and the file that says them.

    Seen bigrams are likelier than backing off, so the graph's cheapest path is the model's.
    """

    def __init__(self, rng, words):
        self._unigram = dict(zip([*words, "</s>"], rng.uniform(-1.2, -0.8, 4), strict=True))
        self._backoff = dict(zip([*words, "<s>"], rng.uniform(-0.6, -0.2, 4), strict=True))
        pairs = [(a, b) for a in self._backoff for b in self._unigram]
        seen = rng.choice(len(pairs), 6, replace=False)
        self._bigram = {pairs[i]: rng.uniform(-0.7, -0.1) for i in seen}

    def logprob(self, words):
        total, before = 0.0, "<s>"
        for word in [*words, "</s>"]:
            backed_off = self._backoff.get(before, 0.0) + self._unigram[word]
            total += self._bigram.get((before, word), backed_off)
            before = word
        return total * math.log(10)

    def write(self, path):
        unigrams = {"<s>": -99.0, **self._unigram}
        lines = ["\\data\\", f"ngram 1={len(unigrams)}", f"ngram 2={len(self._bigram)}", ""]
        lines += ["\\1-grams:"]
        lines += [f"{p:.7f} {w} {self._backoff.get(w, 0.0):.7f}" for w, p in unigrams.items()]
        lines += ["", "\\2-grams:"]
        lines += [f"{p:.7f} {a} {b}" for (a, b), p in sorted(self._bigram.items())]
        path.write_text("\n".join([*lines, "", "\\end\\", ""]))
        return path


@pytest.mark.parametrize("weight, penalty", [(1.0, 0.0), (3.0, -0.5)])
@pytest.mark.parametrize("seed", range(4))
def test_rescoring_is_decoding_with_the_other_model(tmp_path, seed, weight, penalty):
    rng = np.random.default_rng(seed)
    words = ["A", "ABC", "C"]
    old, new = Bigram(rng, words), Bigram(rng, words)
    path_T = path_of(toy_lang(), ["C", "A"], rng, stay=1)
    scores_TS = scores_of(path_T, 14, rng, margin=0.5)

    def decoded(model, extra):
        lang = toy_lang(arpa=model.write(tmp_path / "G.arpa"))
        graph = decoding_graph(lang, LOOPS, weight, extra)
        return lang, Lattices(graph, 14).decode(scores_TS, 1000.0, 10**6, 30.0)

    lang, lattice = decoded(old, 0.0)
    found = nbest(lattice, 10**4).sentences
    best = rescore(found, lang.lexicon.words, old, new, weight, penalty)[0]
    _, other = decoded(new, penalty)
    wanted = best_path(other)
    assert best.cost == pytest.approx(wanted.cost, abs=0.05)  # determinisation quantises weights
    assert best.words == wanted.words
