"""`lang/index.json`: words, phones, states and grammar, with the ids of all later stages."""

import math
import shutil
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from asr_train import files
from asr_train.lang.arpa import EPSILON, SYMBOLS, NgramModel, in_upper_case, read_arpa, write_arpa
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.pronprobs import EDGE, Pronprobs, Variant
from asr_train.lang.states import States
from asr_train.schema import GrammarKind, GrammarSettings, build, plain

FORMAT = 2
MOST = 1 - 1e-6  # probability of a silence; the file's six digits may say 1
NGRAM = GrammarSettings(  # of a model whose file is `Lang.arpa`
    kind=GrammarKind.ngram, words=[], min_words=1, max_words=None, file=None
)


@dataclass(frozen=True)
class Lang:
    """Words, pronunciations, states and grammar.

    Attributes:
        lexicon: the pronunciations.
        states: of monophones; models that tie states in context have their own.
        grammar: its settings, with the words of a loop filled in.
        arpa: the n-gram model's file, if the grammar is one.
        silence_probability: of each optional silence.
        pronprobs: pronunciation and silence probabilities; None: a word's
            pronunciations are equally likely, and so are all silences.
    """

    lexicon: Lexicon
    states: States
    grammar: GrammarSettings
    arpa: Path | None
    silence_probability: float
    pronprobs: Pronprobs | None = None

    @cached_property
    def word_ids(self) -> dict[str, int]:
        """Ids from 1 in the order of the lexicon; 0 is epsilon."""
        return {word: i for i, word in enumerate(self.lexicon.words, 1)}

    @cached_property
    def hash(self) -> str:
        """Return a hash of lexicon, states and silence; it does not cover the grammar."""
        learned = [] if self.pronprobs is None else [asdict(self.pronprobs)]
        return files.hash_of(
            [self.lexicon.prons, self.states.hash, self.silence_probability, *learned]
        )

    def pron_cost(self, variant: Variant) -> float:
        """Return the cost in nats of a pronunciation."""
        word, n = variant
        if self.pronprobs is None:
            return math.log(len(self.lexicon.prons[word]))
        return -math.log(self.pronprobs.pron[word][n])

    def pause_costs(self, variant: Variant) -> tuple[float, float]:
        """Return the costs in nats of a silence after a pronunciation or EDGE, and of none."""
        known, (word, n) = self.pronprobs, variant
        if known is None:
            p = self.silence_probability
        else:
            p = known.start if variant == EDGE else known.pause[word][n]
        p = min(p, MOST)
        return -math.log(p), -math.log1p(-p)

    def entry_costs(self, variant: Variant) -> tuple[float, float]:
        """Return what a pronunciation or EDGE costs more after a silence, and after none; nats."""
        known, (word, n) = self.pronprobs, variant
        if known is None:
            return 0.0, 0.0
        if variant == EDGE:
            return -math.log(known.end_after_silence), -math.log(known.end_after_word)
        return -math.log(known.after_silence[word][n]), -math.log(known.after_word[word][n])


def write_lang(path: Path | str, lang: Lang) -> None:
    """Write the index; an ARPA file of another folder is copied to G.arpa beside it."""
    folder, arpa = Path(path).parent, lang.arpa
    if arpa is not None and arpa.parent != folder:
        with files.replacing(folder / "G.arpa") as scratch:
            shutil.copyfile(arpa, scratch)
        arpa = folder / "G.arpa"
    content: dict[str, Any] = {
        "format": FORMAT,
        "hash": lang.hash,
        "phones": list(lang.states.phones),
        "phone_states": lang.states.phone_states,
        "silence_states": lang.states.silence_states,
        "num_states": lang.states.num_states,
        "silence_probability": lang.silence_probability,
        "grammar": plain(lang.grammar),
        "arpa": None if arpa is None else files.part(arpa, folder),
        "missing": list(lang.lexicon.missing),
        "guessed": list(lang.lexicon.guessed),
        "lexicon": {w: [" ".join(p) for p in ps] for w, ps in lang.lexicon.prons.items()},
    }
    if lang.pronprobs is not None:
        content["pronprobs"] = asdict(lang.pronprobs)
    files.write_json(path, content)


def write_ngram_lang(path: Path | str, lang: Lang, model: NgramModel) -> None:
    """Write the same language with an n-gram model as its grammar, in G.arpa beside the index."""
    arpa = Path(path).parent / "G.arpa"
    write_arpa(arpa, model)
    write_lang(path, replace(lang, grammar=NGRAM, arpa=arpa))


def load_lang(path: Path | str) -> Lang:
    """Read what `write_lang` wrote.

    Raises:
        ValueError: for another format, or if the content does not have the recorded hash.
    """
    content = files.read_json(path)
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')}, this version reads {FORMAT}; "
            "delete it and run make again"
        )
    arpa = content["arpa"]
    prons = {w: tuple(tuple(p.split()) for p in ps) for w, ps in content["lexicon"].items()}
    lexicon = Lexicon(prons, tuple(content["missing"]), tuple(content["guessed"]))
    learned = content.get("pronprobs")
    lang = Lang(
        lexicon,
        States(tuple(content["phones"]), content["phone_states"], content["silence_states"]),
        build(GrammarSettings, content["grammar"], "grammar"),
        None if arpa is None else files.check_part(Path(path).parent, arpa),
        content["silence_probability"],
        None if learned is None else Pronprobs(**learned),
    )
    if lang.hash != content["hash"]:
        raise ValueError(
            f"{path} says hash {content['hash']} but its content has {lang.hash}; "
            "delete it and run make again"
        )
    return lang


def grammar_words(
    settings: GrammarSettings, arpa: Path | None, copy: Path | None = None
) -> list[str]:
    """Return the words that the grammar names: a loop's list, or an n-gram model's.

    Args:
        copy: where to write the n-gram model for arpa2fst, which reads no other forms: unpacked,
            in upper case, not indented, without back-offs of the highest order.
    Raises:
        DamagedFileError: if the file is no n-gram model; names the line. Kaldi's arpa2fst, which
            makes the graph of it, would abort or leave n-grams out. Also for its own symbols.
    """
    if settings.kind is GrammarKind.loop:
        return list(dict.fromkeys(map(in_upper_case, settings.words)))
    assert arpa is not None
    model = read_arpa(arpa)
    words = [word for word in model.words if word not in SYMBOLS]
    if reserved := {EPSILON, "#0"} & set(words):
        raise files.DamagedFileError(
            f"{arpa} has the word {min(reserved)}, a symbol of decoding graphs; train the model "
            "without it"
        )
    if copy is not None:
        write_arpa(copy, model)
    return words
