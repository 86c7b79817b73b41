"""Modified Kneser-Ney by the paper's formulas, with dicts: an oracle for small texts."""

import random
from collections import Counter

from asr_train.lang.ngram import Text


def random_text(seed: int, sentences: int, words: int, power: float) -> list[list[str]]:
    """Return sentences of 1 to 8 words; the lower a word's number, the more frequent it is."""
    draw = random.Random(seed)
    return [
        [f"W{int(words * draw.random() ** power)}" for _ in range(draw.randrange(1, 9))]
        for _ in range(sentences)
    ]


def text_of(sentences: list[list[str]]) -> Text:
    """Return a text whose words are all known."""
    return Text.of(sentences, {word for sentence in sentences for word in sentence})


class SlowKneserNey:
    """Computes P(word | history) by recursion over the definitions."""

    def __init__(self, sentences, order, vocabulary, min_counts=None):
        self.order = order
        self.vocabulary = {*vocabulary, "</s>", "<unk>"}
        self.seen = [Counter() for _ in range(order + 1)]
        for sentence in sentences:
            known = [w if w in self.vocabulary else "<unk>" for w in sentence]
            marked = ("<s>", *known, "</s>")
            for n in range(1, order + 1):
                for i in range(len(marked) - n + 1):
                    self.seen[n][marked[i : i + n]] += 1
        self.min_counts = min_counts or [1] * order
        self.count = {n: self._modified(n) for n in range(1, order + 1)}
        self.discount = {n: self._discounts(n) for n in range(1, order + 1)}

    def _modified(self, n):
        if n == self.order:
            counts = Counter(self.seen[n])
        else:
            counts = Counter(longer[1:] for longer in self.seen[n + 1])
            for ngram, count in self.seen[n].items():
                if ngram[0] == "<s>":
                    counts[ngram] = count
        counts.pop(("<s>",), None)
        return counts

    def _discounts(self, n):
        of = Counter(self.count[n].values())
        if not (of[1] and of[2] and of[3]):
            return (0, 0.5, 1.0, 1.5)
        y = of[1] / (of[1] + 2 * of[2])
        found = [k - (k + 1) * y * of[k + 1] / of[k] for k in (1, 2, 3)]
        return (0, *found) if min(found) > 0 else (0, 0.5, 1.0, 1.5)

    def p(self, word, history):
        """Return P(word | history); the history may be longer than the order needs."""
        history = tuple(history)[len(history) - min(len(history), self.order - 1) :]
        n = len(history) + 1
        if n == 1:
            lower = 1 / len(self.vocabulary)
        else:
            lower = self.p(word, history[1:])
        total, kept, freed = 0, 0.0, 0.0
        for v in self.vocabulary:
            c = self.count[n].get((*history, v), 0)
            d = self.discount[n][min(c, 3)]
            if n > 1 and self.seen[n][(*history, v)] < self.min_counts[n - 1]:
                d = c
            total += c
            freed += d
            if v == word:
                kept = c - d
        return lower if total == 0 else kept / total + freed / total * lower
