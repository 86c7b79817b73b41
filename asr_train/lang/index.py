"""`lang/index.json`: words, phones, states and grammar, with the ids of all later stages."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from asr_train.files import check_part, hash_of, part, read_json, replacing, write_json
from asr_train.lang.arpa import NgramModel, write_arpa
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.states import States
from asr_train.schema import GrammarKind, GrammarSettings, build, plain

FORMAT = 2


@dataclass(frozen=True)
class Lang:
    """Words, pronunciations, states and grammar.

    Attributes:
        lexicon: the pronunciations.
        states: of monophones; models that tie states in context have their own.
        grammar: its settings, with the words of a loop filled in.
        arpa: the n-gram model's file, if the grammar is one.
        silence_probability: of each optional silence.
    """

    lexicon: Lexicon
    states: States
    grammar: GrammarSettings
    arpa: Path | None
    silence_probability: float

    @cached_property
    def word_ids(self) -> dict[str, int]:
        """Ids from 1 in the order of the lexicon; 0 is epsilon."""
        return {word: i for i, word in enumerate(self.lexicon.words, 1)}

    @cached_property
    def hash(self) -> str:
        """Return a hash of lexicon, states and silence; it does not cover the grammar."""
        return hash_of([self.lexicon.prons, self.states.hash, self.silence_probability])


def write_lang(path: Path | str, lang: Lang) -> None:
    """Write the index; the ARPA file, if any, must be in the same folder."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "hash": lang.hash,
        "phones": list(lang.states.phones),
        "phone_states": lang.states.phone_states,
        "silence_states": lang.states.silence_states,
        "num_states": lang.states.num_states,
        "silence_probability": lang.silence_probability,
        "grammar": plain(lang.grammar),
        "arpa": None if lang.arpa is None else part(lang.arpa, Path(path).parent),
        "missing": list(lang.lexicon.missing),
        "guessed": list(lang.lexicon.guessed),
        "lexicon": {w: [" ".join(p) for p in ps] for w, ps in lang.lexicon.prons.items()},
    }
    write_json(path, content)


def write_ngram_lang(path: Path | str, lang: Lang, model: NgramModel) -> None:
    """Write the same language with an n-gram model as its grammar, in G.arpa beside the index."""
    arpa = Path(path).parent / "G.arpa"
    with replacing(arpa) as scratch:
        write_arpa(scratch, model)
    grammar = GrammarSettings(
        kind=GrammarKind.ngram, words=[], min_words=1, max_words=None, file=None
    )
    write_lang(path, replace(lang, grammar=grammar, arpa=arpa))


def load_lang(path: Path | str) -> Lang:
    """Read what `write_lang` wrote.

    Raises:
        ValueError: for another format, or if the content does not have the recorded hash.
    """
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')}, this version reads {FORMAT}; "
            "delete it and run make again"
        )
    arpa = content["arpa"]
    prons = {w: tuple(tuple(p.split()) for p in ps) for w, ps in content["lexicon"].items()}
    lang = Lang(
        Lexicon(prons, tuple(content["missing"]), tuple(content["guessed"])),
        States(tuple(content["phones"]), content["phone_states"], content["silence_states"]),
        build(GrammarSettings, content["grammar"], "grammar"),
        None if arpa is None else check_part(Path(path).parent, arpa),
        content["silence_probability"],
    )
    if lang.hash != content["hash"]:
        raise ValueError(
            f"{path} says hash {content['hash']} but its content has {lang.hash}; "
            "delete it and run make again"
        )
    return lang


def grammar_words(settings: GrammarSettings, arpa: Path | None) -> list[str]:
    """Return the words that the grammar names: a loop's list, or an ARPA file's unigrams."""
    if settings.kind is GrammarKind.loop:
        return [word.upper() for word in settings.words]
    assert arpa is not None
    words, inside = [], False
    with open(arpa) as file:
        for line in file:
            if line.startswith("\\"):
                if inside:
                    break
                inside = line.strip() == "\\1-grams:"
            elif inside and line.strip():
                words.append(line.split()[1])
    if not words:
        raise ValueError(f"{arpa} lists no unigrams; is it an n-gram model in ARPA format?")
    return [word for word in words if word not in ("<s>", "</s>", "<unk>", "<UNK>")]
