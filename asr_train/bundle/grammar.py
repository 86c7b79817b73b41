"""A bundle -> **the same model with other words**: a bundle with another decoding graph.

    words       any sequence of them, all equally likely
    text        sentences, one per line: an n-gram model is trained on them
    arpa        an n-gram model in ARPA format

Pronunciations come from the user's lexicon, then from where the bundle's recipe took them.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from asr_train.bundle.store import Bundle, open_bundle, pronounced, write_bundle
from asr_train.checks import check_positive, few
from asr_train.data.features import Heard
from asr_train.decode.posteriors import load_scorer
from asr_train.decode.scorer import known_states
from asr_train.files import naming_full_disk
from asr_train.lang.arpa import MAX_ORDER, in_upper_case, write_arpa
from asr_train.lang.g2p import Pronunciation
from asr_train.lang.index import NGRAM, Lang, grammar_words
from asr_train.lang.lexicon import Lexicon, odd_among, read_lexicon_file
from asr_train.lang.ngram import Text, prune, read_sentences, train
from asr_train.lang.states import States
from asr_train.schema import GrammarKind, NormaliserKind
from asr_train.score.normalise import straight, transcribed
from asr_train.search.graph import decoding_graph, with_penalty

LARGEST = 1e6  # scale and penalty; costs are stored in 32 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a bundle is to recognise: exactly one of `words`, `text` and `arpa`.

    Attributes:
        text: files, plain or .gz; punctuation is removed.
        order, prune: of the n-gram model of `text`; n-grams whose removal raises perplexity by a
            smaller share are removed.
        min_words: fewest in a sequence of `words`: 1, or 0, so that silence has none.
        max_words: most in it, 1 or more; None: no limit.
        lexicon: file with pronunciations, lines of `WORD PHONE PHONE ...`.
    """

    words: Sequence[str] = ()
    text: Sequence[Path] = ()
    arpa: Path | None = None
    order: int = 3
    prune: float = 1e-8
    min_words: int = 1
    max_words: int | None = None
    lexicon: Path | None = None

    def __post_init__(self) -> None:
        kinds = [bool(self.words), bool(self.text), self.arpa is not None]
        if sum(kinds) != 1:
            raise ValueError("exactly one of words, text and arpa must be given")
        if not self.words and (self.min_words, self.max_words) != (1, None):
            raise ValueError("min_words and max_words are of words, not of a text or ARPA file")
        if not self.text and (self.order, self.prune) != (3, 1e-8):
            raise ValueError("order and prune are of the n-gram model of a text")
        if not 1 <= self.order <= MAX_ORDER:
            raise ValueError(f"the order is {self.order}; it must be from 1 to {MAX_ORDER}")
        if not 0 <= self.prune <= 1:
            raise ValueError(f"prune is {self.prune}; it must be from 0 to 1")


def change_grammar(
    source: Path | str,
    output: Path | str,
    wanted: Wanted,
    acoustic_scale: float | None = None,
    insertion_penalty: float | None = None,
) -> tuple[dict[str, Any], Lexicon]:
    """Write the bundle `output` with the model of `source` and the wanted grammar.

    Learned pronunciation and silence probabilities are not taken over. WER lines are not, either:
    they were measured with other words.

    Args:
        acoustic_scale, insertion_penalty: None: those of `source`, chosen on its recipe's DEV.
    Returns:
        The manifest, and the lexicon: `missing` has the words of text or ARPA file that are left
        out, `guessed` those pronounced by rule, as in the bundle's recipe.
    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: for a damaged file; for one of `words` without pronunciation; for a phone that
            the model does not have; without any word.
        OSError: if the folder of temporary files is full; names it.
    """
    if acoustic_scale is not None:
        check_positive("the acoustic scale", acoustic_scale)
    both = {"acoustic_scale": acoustic_scale, "insertion_penalty": insertion_penalty}
    given = {name: value for name, value in both.items() if value is not None}
    for name, value in given.items():
        if not abs(value) <= LARGEST:
            raise ValueError(f"{name} is {value}; its size must be at most {LARGEST:g}")
    with open_bundle(source) as opened, tempfile.TemporaryDirectory() as folder:
        scorer = load_scorer(opened.model, Heard(opened.feats, opened.frames), opened.lang)
        states = known_states(scorer)
        with naming_full_disk(folder):
            lang = _language(opened, states, wanted, Path(folder) / "G.arpa")
        system = replace(opened, lang=lang, choice=replace(opened.choice, **given))
        choice, scale, old = system.choice, system.self_loop_scale, opened.manifest
        graph = decoding_graph(lang, states, scorer.loop_S, choice.lm_weight, self_loop_scale=scale)
        about = {
            "wer": [],
            "data_licence": old["data_licence"],
            "code_licence": old["code_licence"],
            "versions": {**old["versions"], "asr_train": version("asr-train")},
        }
        graph = with_penalty(graph, choice.insertion_penalty)
        manifest = write_bundle(output, system, states, graph, about)
        return manifest, lang.lexicon


def _language(opened: Bundle, states: States, wanted: Wanted, arpa: Path) -> Lang:
    """Return the language of a grammar; an n-gram model is written as `arpa`."""
    grammar = NGRAM
    sentences: list[list[str]] = []
    own = {} if wanted.lexicon is None else read_lexicon_file(wanted.lexicon)
    if wanted.words:
        words = [in_upper_case(word) for word in wanted.words]
        words = list(dict.fromkeys(w if w in own else straight(w) for w in words))
        if phrases := [word for word in words if len(word.split()) != 1]:
            raise ValueError(f"{phrases[0]!r} is not one word; put sentences into a file of text")
        kind, low, high = GrammarKind.loop, wanted.min_words, wanted.max_words
        grammar = replace(grammar, kind=kind, words=words, min_words=low, max_words=high)
    elif wanted.arpa is not None:
        words = grammar_words(grammar, wanted.arpa, copy=arpa)
    else:
        odd = odd_among(opened.lang.lexicon.prons, of_file=opened.lexicon is None)
        odd |= odd_among(own, of_file=True)
        sentences = [
            words
            for line in read_sentences(wanted.text)
            if (words := transcribed(" ".join(line), NormaliserKind.words, odd))
        ]
        words = sorted({word for sentence in sentences for word in sentence})
    lexicon = _lexicon(opened, states, words, own, wanted.lexicon)
    if wanted.words and lexicon.missing:
        raise ValueError(
            f"no pronunciation of {few(lexicon.missing)} is known; add it to a lexicon, in "
            f"the phones of the model ({' '.join(states.phones[1:])})"
        )
    if len(lexicon.missing) == len(words):
        named = wanted.arpa or ", ".join(map(str, wanted.text))
        raise ValueError(
            f"{named} has no word that a pronunciation is known of"
            + (f": {few(words)}; add them to a lexicon" if words else "; add sentences")
        )
    if wanted.text:
        text = Text.of(sentences, lexicon.prons.keys() & set(words))
        write_arpa(arpa, prune(train(text, wanted.order), wanted.prune))
    made = None if wanted.words else arpa
    return replace(opened.lang, lexicon=lexicon, grammar=grammar, arpa=made, pronprobs=None)


def _lexicon(
    opened: Bundle,
    states: States,
    words: Iterable[str],
    own: Mapping[str, Sequence[Pronunciation]],
    path: Path | None,
) -> Lexicon:
    """Return pronunciations of these words, and of all the bundle's if it has no dictionary.

    Args:
        own: the user's, which take precedence, read from `path`.
    """
    wanted, known = set(words), opened.lang.lexicon
    given = {word: tuple(dict.fromkeys(prons)) for word, prons in own.items() if word in wanted}
    for word, prons in given.items():
        if other := {p for pron in prons for p in pron} - set(states.phones):
            raise ValueError(
                f"{path}: {word} has the phone {min(other)}, but the model's phones are "
                f"{' '.join(states.phones[1:])}"
            )
    of_bundle = known.prons.keys() if opened.lexicon is None else wanted & known.prons.keys()
    found = {word: known.prons[word] for word in of_bundle} | given
    missing, guessed = wanted - found.keys(), set(known.guessed) - given.keys()
    if opened.lexicon is not None and missing:
        looked_up = pronounced(opened.lexicon, missing, states)
        found |= looked_up.prons
        missing, guessed = set(looked_up.missing), guessed.union(looked_up.guessed)
    return Lexicon(
        dict(sorted(found.items())), tuple(sorted(missing)), tuple(sorted(guessed & found.keys()))
    )
