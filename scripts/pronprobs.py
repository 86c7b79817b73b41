"""pronprobs.py conf/pronprobs.yaml lang/index.json ali/MODEL/TRAIN.jsonl.gz
    lang-pronprobs/index.json

The output is the lang folder with probabilities of pronunciations, and of silence before and after
each, counted in the alignments. Words, phones and grammar, and hence all models, stay as they are.
"""

import asr_train.interrupt  # noqa: F401

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from asr_train.files import iter_jsonl
from asr_train.jobs import main
from asr_train.lang.index import load_lang, write_lang
from asr_train.lang.pronprobs import Spoken, learned, spoken
from asr_train.schema import PronprobsSettings, load


def pronprobs(conf: str, language: str, manifest: str, output: str) -> str:
    settings, lang = load(PronprobsSettings, conf), load_lang(language)
    lexicon = lang.lexicon
    counts = Counter[str]()

    def utterances() -> Iterator[Spoken]:
        for row in iter_jsonl(manifest):
            one = spoken(row, lexicon)
            counts.update(utterances=1, words=len(one.variants), inside=len(one.pauses) - 2)
            counts.update(pauses=sum(one.pauses[1:-1]))
            yield one

    found = learned(utterances(), lexicon, settings)
    write_lang(output, replace(lang, pronprobs=found))
    silence = counts["pauses"] / max(1, counts["inside"])
    varied = [row for row in found.pron.values() if len(row) > 1]
    rare = sum(p < 0.1 for row in varied for p in row)
    return (
        f"pronprobs: {counts['words']:,} words of {counts['utterances']:,} utterances; silence in "
        f"{silence:.1%} of the places between words, first in an utterance "
        f"{found.start:.1%}; {len(varied)} words with variants, {rare} of which are below a tenth "
        "of the word's most likely one"
    )


if __name__ == "__main__":
    main(pronprobs, __doc__)
