"""lang.py manifests/TRAIN.jsonl.gz manifests/DEV.jsonl.gz conf/lang.yaml lm/index.json OUTPUT

OUTPUT is lang/index.json: words, pronunciations, HMM states and grammar, the ids of all later
stages. DEV's words get pronunciations so that it can be aligned; the grammar does not see them.
"""

import asr_train.interrupt  # noqa: F401

from pathlib import Path

from asr_train.checks import spelled
from asr_train.files import check_part, keeping_time, read_json
from asr_train.jobs import main
from asr_train.lang.index import Lang, grammar_words, write_lang
from asr_train.lang.lexicon import Lexicon
from asr_train.lang.ngram import spoken
from asr_train.lang.states import States
from asr_train.schema import GrammarKind, LangSettings, load

SHOWN = 20  # words without pronunciation to print


def lang(manifest: str, dev_manifest: str, conf: str, models: str, output: str) -> str:
    settings = load(LangSettings, conf)
    arpa = _model(settings, Path(models))
    copy = Path(output).parent / "G.arpa" if settings.grammar.kind is GrammarKind.arpa else None
    words, dev_words = (
        {word for words in spoken(each) for word in words} for each in (manifest, dev_manifest)
    )
    if not words:
        raise ValueError(
            f"none of the utterances in {manifest} has a word in its transcript, so there is "
            "nothing to train on; correct the corpus, delete that file and run make again"
        )
    allowed = grammar_words(settings.grammar, arpa, copy) or sorted(words)
    lexicon = Lexicon.from_settings(settings.lexicon, words | set(allowed) | dev_words)
    pronounced = [word for word in allowed if word in lexicon.prons]
    if not pronounced:
        raise ValueError(
            f"none of the {len(allowed)} words of the grammar has a pronunciation, for example "
            f"{', '.join(allowed[:5])}; see lang.grammar and lang.lexicon"
        )
    is_loop = settings.grammar.kind is GrammarKind.loop  # else the words are in the file
    settings.grammar.words = pronounced if is_loop else []
    states = States(tuple(lexicon.phones), settings.phone_states, settings.silence_states)
    with keeping_time(output):
        silence = settings.silence_probability
        write_lang(output, Lang(lexicon, states, settings.grammar, copy or arpa, silence))
    summary = (
        f"lang: {len(lexicon.prons)} words, {len(states.phones)} phones with silence, "
        f"{states.num_states} states"
    )
    if lexicon.missing:
        more = ", ..." * (len(lexicon.missing) > SHOWN)
        summary += (
            f"; {len(lexicon.missing)} without pronunciation: "
            f"{', '.join(lexicon.missing[:SHOWN])}{more}"
        )
    if lexicon.guessed:
        summary += (
            f"; {len(lexicon.guessed)} words by lang.lexicon.unknown="
            f"{settings.lexicon.unknown.value}, for example {', '.join(lexicon.guessed[:5])}; "
            f"all are in {output} under guessed"
        )
    if lexicon.cut:
        summary += (
            f"; {spelled(len(lexicon.cut), 'word')} with more than lang.lexicon.max_variants="
            f"{settings.lexicon.max_variants} pronunciations, the last of which are left out, "
            f"for example {', '.join(lexicon.cut[:5])}"
        )
    return summary


def _model(settings: LangSettings, models: Path) -> Path | None:
    """Return the path of the grammar's n-gram model; None if the grammar is a loop."""
    if settings.grammar.kind is GrammarKind.ngram:
        return check_part(models.parent, read_json(models)["small"], remake=models)
    return None if settings.grammar.file is None else Path(settings.grammar.file)


if __name__ == "__main__":
    main(lang, __doc__)
