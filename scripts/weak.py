"""weak.py conf/lattices.yaml lang/index.json manifests/TRAIN.jsonl.gz lang-weak/index.json

The output is the lang folder with a weak language model: a Witten-Bell unigram or bigram of TRAIN's
transcripts, of words that have a pronunciation. Lattices of TRAIN are made with it, because a model
of many words would leave few competitors: it knows what was said there.
"""

import asr_train.interrupt  # noqa: F401

from asr_train.jobs import main
from asr_train.lang.index import load_lang, write_ngram_lang
from asr_train.lang.ngram import Text, spoken, train
from asr_train.schema import LatticesSettings, Smoothing, load


def weak(conf: str, language: str, manifest: str, output: str) -> str:
    settings, lang = load(LatticesSettings, conf), load_lang(language)
    sentences = spoken(manifest)
    known = {word for words in sentences for word in words if word in lang.lexicon.prons}
    text = Text.of(sentences, known)
    model = train(text, settings.order, smoothing=Smoothing.witten_bell)
    write_ngram_lang(output, lang, model)
    return (
        f"weak: order {model.order}, {' + '.join(map(str, model.counts))} n-grams of "
        f"{text.num_words} words; their perplexity {model.perplexity(sentences).perplexity:.1f}"
    )


if __name__ == "__main__":
    main(weak, __doc__)
