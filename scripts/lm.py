"""lm.py conf/lm.yaml conf/corpus.yaml conf/lexicon.yaml manifests/TRAIN.jsonl.gz
    manifests/DEV.jsonl.gz [manifests/TEST.jsonl.gz ...] lm/index.json

Train n-gram models of TRAIN's transcripts and other text, whose words are found as those of the
corpus's transcripts: small.arpa for the decoding graph,
big.arpa for rescoring lattices. The index has their perplexity on DEV's transcripts, or says
that there is no model. TEST is read only if lm.without_eval is true, to remove its sentences from
the text.
"""

import asr_train.interrupt  # noqa: F401

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

from asr_train.data.transcripts import LmText
from asr_train.files import keeping_time, part, write_json
from asr_train.jobs import main, peak_megabytes
from asr_train.lang import ngram
from asr_train.lang.arpa import NgramModel, read_arpa, write_arpa
from asr_train.schema import CorpusSettings, LexiconSettings, LmSettings, NgramSettings, load, plain

FORMAT = 1


def lm(conf: str, corpus: str, lexicon: str, train: str, dev: str, *paths: str) -> str:
    *tests, output = paths
    settings = load(LmSettings, conf)
    index: dict[str, Any] = {"format": FORMAT, "settings": plain(settings)}
    if settings.small is None:
        with keeping_time(output):
            write_json(output, index | {"small": None, "big": None})
        return "lm: none; only lang.grammar restricts the word sequences"
    texts: list[ngram.Text] = []
    summary = "lm"
    if any(each is not None and each.file is None for each in (settings.small, settings.big)):
        apart = ngram.sentences_of([dev, *tests] if settings.without_eval else [])
        rule = load(CorpusSettings, corpus), load(LexiconSettings, lexicon)
        text = LmText(settings.text, *rule)
        texts = texts_of(settings, train, text, apart)
        vocabulary = len(texts[0].words) - 3  # without <s>, </s>, <unk>
        sentences, words = (sum(getattr(t, k) for t in texts) for k in ("sentences", "num_words"))
        index |= {"sentences": sentences, "words": words, "vocabulary": vocabulary}
        summary += f": {words} words in {sentences} sentences, {vocabulary} different known"
        summary += text.notice()
    spoken = ngram.spoken(dev)
    for name, each in (("small", settings.small), ("big", settings.big)):
        index[name] = None
        if each is not None:
            index[name], line = made(name, each, texts, spoken, Path(output).parent)
            summary += f"; {name}: {line}"
    with keeping_time(output):
        write_json(output, index)
    return f"{summary}; peak memory {peak_megabytes():.0f} MB"


def texts_of(
    settings: LmSettings, train: str, text: LmText, apart: set[tuple[str, ...]]
) -> list[ngram.Text]:
    """Return the texts to learn from: one, or with `mix` two (transcripts, text) of one vocabulary.

    Args:
        train: manifest with the transcripts.
        apart: sentences to remove; their words stay in the vocabulary.
    """
    whole = [ngram.spoken(train)] if settings.transcripts else []
    whole.append(list(text))
    counts = Counter({word: 0 for source in whole for sentence in source for word in sentence})
    kept = [list(ngram.without(source, apart)) for source in whole]
    if apart and any(whole) and not any(kept):
        raise ValueError(
            f"all {sum(map(len, whole))} sentences of the text are in DEV or TEST, and "
            "lm.without_eval takes them out; give other text, or set lm.without_eval=false"
        )
    if not any(whole):
        raise ValueError(f"the language model has no sentence; see lm.text{text.notice()}")
    counts.update(word for sentence in itertools.chain(*kept) for word in sentence)
    pooled = ngram.Text.of(itertools.chain(*kept), ngram.most_frequent(counts, settings.vocabulary))
    if not settings.mix or not all(kept):  # one is empty: only the other remains
        return [pooled]
    return [ngram.Text.of(sentences, pooled.words) for sentences in kept]


def made(
    name: str, settings: NgramSettings, texts: list[ngram.Text], dev: list[list[str]], folder: Path
) -> tuple[dict[str, Any], str]:
    """Train and write one model; return its entry in the index, and a summary line."""
    model, weight = estimated(settings, texts, dev)
    path = folder / f"{name}.arpa"
    write_arpa(path, model)
    perplexity, words, oovs, sentences = model.perplexity(dev)  # without unknown words
    counts = " + ".join(map(str, model.counts))
    line = (
        f"order {model.order}, {counts} n-grams, "
        + (f"share of the transcripts {weight:.3f}, " if weight is not None else "")
        + f"perplexity on DEV {perplexity:.1f}, unknown words {oovs / words:.2%}"
    )
    about = part(path, folder) | {"order": model.order, "ngrams": model.counts, "mix": weight}
    about |= {"perplexity": perplexity, "dev_words": words, "dev_sentences": sentences}
    return about | {"oov_rate": oovs / words}, line


def estimated(
    settings: NgramSettings, texts: list[ngram.Text], dev: list[list[str]]
) -> tuple[NgramModel, float | None]:
    """Return a given model, that of one text, or a mixture of two and the weight of the first."""
    if settings.file is not None:
        return ngram.prune(read_arpa(settings.file), settings.prune), None
    models = [
        ngram.train(text, settings.order, settings.min_counts, smoothing=settings.smoothing)
        for text in texts
    ]
    model, weight = models[0], None
    if len(models) > 1:
        (first_T, unknown_T), (second_T, _) = (each.word_logprobs(dev) for each in models)
        weight = ngram.best_weight(first_T[~unknown_T], second_T[~unknown_T])
        model = ngram.mixed(models[0], models[1], weight)
    return ngram.prune(model, settings.prune), weight


if __name__ == "__main__":
    main(lm, __doc__)
