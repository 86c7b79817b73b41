"""Sentences from a grammar in **JSGF** (the JSpeech Grammar Format, a W3C note of 2000).

    grammar file --read_grammar--> Grammar --without(words)--> Grammar --draw(rng)--> list of words

Supported are rules, one of them public, sequences, ( groups ), alternatives | with /weights/,
comments and [ options ], taken half of the time. Unlimited repetition (*, +, recursive rules), tags
and imports are refused. Knows nothing of phones, voices and settings.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from asr_train.files import read_text
from asr_train.score.normalise import straight

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_TOKEN = re.compile(r"\s*(?:(<\w+>|/\s*[-+\w.]+\s*/|[()\[\]|;=]|[^\W\d_](?:[^\W\d_]|['’])*)|(\S))")
_HEAD = re.compile(r"#JSGF\s+V1\.0[^;\n]*;(?:\s*grammar\s+[\w.]+\s*;)?")


class GrammarError(ValueError):
    """A grammar that cannot be read, or that has no sentence."""


@dataclass(frozen=True, slots=True)
class Word:
    text: str  # upper case


@dataclass(frozen=True, slots=True)
class Rule:
    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple["Node", ...]  # may be empty


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple["Node", ...]
    weights: tuple[float, ...]  # relative; positive


Node = Word | Rule | Sequence | Choice


@dataclass(frozen=True)
class Grammar:
    """Rules by name, and the one that makes a sentence. No rule is recursive."""

    start: str
    rules: dict[str, Node]

    @cached_property
    def words(self) -> list[str]:
        """All words of the rules in use, sorted."""
        nodes = (node for name in self._used() for node in _nodes(self.rules[name]))
        return sorted({node.text for node in nodes if isinstance(node, Word)})

    def without(self, words: set[str]) -> "Grammar":
        """Remove all alternatives that need one of the words.

        Raises:
            GrammarError: if no sentence is left.
        """
        kept: dict[str, Node | None] = {}

        def left(node: Node) -> Node | None:
            match node:
                case Word(text):
                    return None if text in words else node
                case Rule(name):
                    if name not in kept:
                        kept[name] = left(self.rules[name])
                    return None if kept[name] is None else node
                case Sequence(parts):
                    fewer = [left(part) for part in parts]
                    whole = tuple(part for part in fewer if part is not None)
                    return Sequence(whole) if len(whole) == len(parts) else None
                case Choice(options, weights):
                    pairs = [
                        (part, weight)
                        for part, weight in zip(map(left, options), weights, strict=True)
                        if part is not None
                    ]
                    return Choice(*map(tuple, zip(*pairs, strict=True))) if pairs else None

        if left(Rule(self.start)) is None:
            raise GrammarError(
                f"the grammar has no sentence without {', '.join(sorted(words)[:8])} "
                f"({len(words)} words); give <{self.start}> other alternatives"
            )
        return Grammar(self.start, {k: v for k, v in kept.items() if v is not None})

    def draw(self, rng: np.random.Generator) -> list[str]:
        """Draw a sentence, by the weights.

        Raises:
            GrammarError: for a sentence without words.
        """
        words: list[str] = []
        todo: list[Node] = [Rule(self.start)]
        while todo:
            match todo.pop():
                case Word(text):
                    words.append(text)
                case Rule(name):
                    todo.append(self.rules[name])
                case Sequence(parts):
                    todo.extend(reversed(parts))
                case Choice(options, weights):
                    ends = np.cumsum(weights)
                    at = np.searchsorted(ends, rng.random() * ends[-1], side="right")
                    todo.append(options[min(int(at), len(weights) - 1)])
        if not words:
            raise GrammarError(
                f"<{self.start}> has a sentence without words; leave one outside of [ ]"
            )
        return words

    def _used(self) -> list[str]:
        """Return the rules that sentences are made of.

        Raises:
            GrammarError: for a rule that is missing or recursive.
        """
        done: list[str] = []

        def visit(name: str, above: tuple[str, ...]) -> None:
            if name in above:
                raise GrammarError(
                    f"rule <{name}> is recursive ({' in '.join([name, *reversed(above)])}); "
                    "sentences of unlimited length are not supported, write them out"
                )
            if name in done:
                return
            if name not in self.rules:
                raise GrammarError(f"rule <{name}> is used in <{above[-1]}> but not defined")
            for inner in _nodes(self.rules[name]):
                if isinstance(inner, Rule):
                    visit(inner.name, (*above, name))
            done.append(name)

        visit(self.start, ())
        return done


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    match node:
        case Sequence(parts) | Choice(parts, _):
            for part in parts:
                yield from _nodes(part)


def read_grammar(path: Path | str) -> Grammar:
    """Read a grammar file; words become upper case, and unused rules are left out.

    Raises:
        GrammarError: for text that is not JSGF or not supported; gives the line.
        DamagedFileError: if it is not UTF-8.
    """
    try:
        return parse_grammar(read_text(path))
    except GrammarError as error:
        raise GrammarError(f"{path}: {error}") from error


def parse_grammar(text: str) -> Grammar:
    """Parse a text in JSGF; see `read_grammar`."""
    text = unicodedata.normalize("NFC", text)  # as lexicons are
    plain = _COMMENT.sub(lambda found: "\n" * found.group().count("\n"), text)
    head = _HEAD.match(plain)
    if not head:
        raise GrammarError("the first line must be #JSGF V1.0;")
    tokens = _Tokens(plain, head.end())
    rules: dict[str, Node] = {}
    public = []
    while tokens.next:
        word = tokens.take()
        if word == "public":
            word = tokens.take()
            public.append(word[1:-1])
        if not word.startswith("<"):
            raise GrammarError(f"line {tokens.line}: {word!r}, but a <rule> must begin here")
        if word[1:-1] in rules:
            raise GrammarError(f"line {tokens.line}: rule {word} is defined twice")
        tokens.expect("=")
        rules[word[1:-1]] = _choice(tokens)
        tokens.expect(";")
    if len(public) != 1:
        raise GrammarError(
            f"{len(public)} public rules ({', '.join(public)}); exactly one makes the sentences"
        )
    grammar = Grammar(public[0], rules)
    return Grammar(public[0], {name: rules[name] for name in grammar._used()})


class _Tokens:
    """The remaining tokens of a text; `next` is "" at its end."""

    def __init__(self, text: str, start: int) -> None:
        self._text, self._found, self._at = text, _TOKEN.finditer(text, start), start
        self.next = self._step()

    def _step(self) -> str:
        if (found := next(self._found, None)) is None:
            return ""
        self._at = found.end()
        if found[2]:
            raise GrammarError(
                f"line {self.line}: {found[2]!r} is not supported; a grammar here has words, "
                "<rules>, ( ), [ ], |, /weights/ and ;"
            )
        return found[1]

    @property
    def weight(self) -> bool:
        """Whether the next one is a weight."""
        return self.next.startswith("/")

    @property
    def line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def take(self) -> str:
        if not self.next:
            raise GrammarError("the text ends within a rule; a ; is missing")
        taken, self.next = self.next, self._step()
        return taken

    def expect(self, sign: str) -> None:
        line = self.line
        if (found := self.take()) != sign:
            raise GrammarError(f"line {line}: {found!r}, but {sign!r} is expected")


def _choice(tokens: _Tokens) -> Node:
    weighted = tokens.weight
    weights, options = [_weight(tokens)], [_sequence(tokens)]
    while tokens.next == "|":
        tokens.take()
        weights.append(_weight(tokens))
        options.append(_sequence(tokens))
    if len(options) > 1:
        return Choice(tuple(options), tuple(weights))
    if weighted:
        raise GrammarError(
            f"line {tokens.line}: a weight needs another alternative, as in ( /1/ a | /3/ b )"
        )
    return options[0]


def _weight(tokens: _Tokens) -> float:
    """Take a weight, if there is one."""
    if not tokens.weight:
        return 1.0
    line, text = tokens.line, tokens.take().strip("/").strip()
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0 < weight < np.inf:
        raise GrammarError(f"line {line}: the weight is {text!r}; it must be a positive number")
    return weight


def _sequence(tokens: _Tokens) -> Node:
    parts: list[Node] = []
    while tokens.next not in ("|", ")", "]", ";", ""):
        if tokens.weight:
            raise GrammarError(f"line {tokens.line}: a weight must precede an alternative")
        token = tokens.take()
        if token in ("(", "["):
            inner = _choice(tokens)
            tokens.expect(")" if token == "(" else "]")
            parts.append(inner if token == "(" else Choice((inner, Sequence(())), (1.0, 1.0)))
        elif token == "=":
            raise GrammarError(f"line {tokens.line}: '=' within a rule; is a ; missing before?")
        else:
            parts.append(Rule(token[1:-1]) if token[0] == "<" else Word(straight(token.upper())))
    if not parts:
        raise GrammarError(f"line {tokens.line}: an alternative is empty; [ ] makes one optional")
    return parts[0] if len(parts) == 1 else Sequence(tuple(parts))
