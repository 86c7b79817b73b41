"""bigram.py conf/bigram.yaml conf/corpus.yaml conf/lexicon.yaml lang/index.json
    manifests/DEV.jsonl.gz manifests/TEST.jsonl.gz ... lang-bigram/index.json

The output is the lang folder with another grammar: a Witten-Bell bigram of the same text, the kind
of language model that Kaldi was measured with. Its words are those of both the text and the
lexicon; pronunciations, and hence all models, stay as they are.
"""

import asr_train.interrupt  # noqa: F401

from collections import Counter
from pathlib import Path

from asr_train.data.transcripts import LmText
from asr_train.jobs import main
from asr_train.lang import ngram
from asr_train.lang.index import load_lang, write_ngram_lang
from asr_train.schema import BigramSettings, CorpusSettings, LexiconSettings, Smoothing, load


def bigram(conf: str, corpus: str, lexicon: str, language: str, *paths: str) -> str:
    *manifests, output = paths
    settings, lang = load(BigramSettings, conf), load_lang(language)
    if not settings.text:
        raise ValueError("lm.bigram.text is empty; a bigram needs text: set lm.text, or no BIGRAM")
    apart = ngram.sentences_of(manifests) if settings.without_eval else set()
    known = lang.lexicon.prons
    text = LmText(settings.text, load(CorpusSettings, corpus), load(LexiconSettings, lexicon))
    counts = Counter(w for words in text for w in words if w in known)
    if not counts:
        raise ValueError(
            f"no word of {', '.join(settings.text)} has a pronunciation, so it gives no bigram; "
            "see lm.bigram.text and lang.lexicon"
        )
    vocabulary = ngram.most_frequent(counts, settings.vocabulary)
    kept = ngram.Text.of(ngram.without(text, apart), vocabulary)
    model = ngram.train(kept, 2, smoothing=Smoothing.witten_bell)
    write_ngram_lang(output, lang, model)
    summary = f"bigram: {' + '.join(map(str, model.counts))} n-grams{text.notice()}"
    for manifest in manifests:
        found = model.perplexity(ngram.spoken(manifest))
        summary += (
            f"; perplexity on {Path(manifest).name.removesuffix('.jsonl.gz')} "
            f"{found.perplexity:.1f}, unknown words {found.oovs / found.words:.2%}"
        )
    return summary


if __name__ == "__main__":
    main(bigram, __doc__)
