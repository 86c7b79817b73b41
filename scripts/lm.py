"""lm.py manifests/TRAIN.jsonl.gz manifests/DEV.jsonl.gz conf/lm.yaml lm/index.json

N-gram models of TRAIN's transcripts and other text: small.arpa for the decoding graph, big.arpa to
score n-best lists anew; their perplexity on DEV's transcripts. Without a model, the index says so.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
import itertools
import resource
import time
from pathlib import Path
from typing import Any

from asr_train.files import part, read_jsonl, write_json
from asr_train.jobs import main
from asr_train.lang.arpa import NgramModel, read_arpa, write_arpa
from asr_train.lang.ngram import Text, best_weight, mixed, prune, read_sentences, train
from asr_train.schema import LmSettings, NgramSettings, load, plain

FORMAT = 1


def lm(train_manifest: str, dev_manifest: str, conf: str, output: str) -> None:
    settings = load(LmSettings, conf)
    index: dict[str, Any] = {"format": FORMAT, "settings": plain(settings)}
    if settings.small is None:
        write_json(output, index | {"small": None, "big": None})
        print("lm: none; lang.grammar alone says what may be said")
        return
    texts: list[Text] = []
    if any(each is not None and each.file is None for each in (settings.small, settings.big)):
        texts = texts_of(settings, train_manifest)
        vocabulary = len(texts[0].words) - 3  # without <s>, </s>, <unk>
        sentences, words = (sum(getattr(t, k) for t in texts) for k in ("sentences", "num_words"))
        index |= {"sentences": sentences, "words": words, "vocabulary": vocabulary}
        print(f"lm: {words} words in {sentences} sentences, {vocabulary} different known")
    dev = spoken(dev_manifest)
    for name, each in (("small", settings.small), ("big", settings.big)):
        index[name] = None if each is None else made(name, each, texts, dev, Path(output).parent)
    write_json(output, index)


def texts_of(settings: LmSettings, train_manifest: str) -> list[Text]:
    """What models learn from: one text, or with `mix` transcripts and text, of one vocabulary."""
    sources = [read_sentences(settings.text)]
    if settings.transcripts:
        sources.insert(0, spoken(train_manifest))
    text = Text.of(itertools.chain(*sources), most_frequent=settings.vocabulary)
    if not settings.mix:
        return [text]
    apart = sources[0], read_sentences(settings.text)
    return [Text.of(sentences, text.words) for sentences in apart]


def spoken(manifest: str) -> list[list[str]]:
    """The transcripts of a split, as upper-case words; without empty ones and copies at a speed."""
    spoken = [s for cut in read_jsonl(manifest) for s in cut["supervisions"]]
    originals = [s for s in spoken if "speed" not in (s.get("custom") or {})]
    return [words for s in originals if (words := s["text"].upper().split())]


def made(
    name: str, settings: NgramSettings, texts: list[Text], dev: list[list[str]], folder: Path
) -> dict[str, Any]:
    """Train and write one model; what the index says of it."""
    start = time.time()
    model, weight = estimated(settings, texts, dev)
    path = folder / f"{name}.arpa"
    write_arpa(path, model)
    found = measured(model, dev)
    counts = " + ".join(str(count) for count in model.counts)
    print(
        f"lm {name}: order {model.order}, {counts} n-grams, "
        + (f"share of the transcripts {weight:.3f}, " if weight is not None else "")
        + f"perplexity on DEV {found['perplexity']:.1f}, "
        f"unknown words {found['oov_rate']:.2%}, {time.time() - start:.1f} s, "
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"
    )
    return {
        **part(path, folder),
        "order": model.order,
        "ngrams": model.counts,
        "mix": weight,
        **found,
    }


def estimated(
    settings: NgramSettings, texts: list[Text], dev: list[list[str]]
) -> tuple[NgramModel, float | None]:
    """A given model, that of one text, or the mixture of two and the share of the first."""
    if settings.file is not None:
        given = read_arpa(settings.file)
        return (prune(given, settings.prune) if settings.prune > 0 else given), None
    models = [train(text, settings.order, settings.min_counts) for text in texts]
    model, weight = models[0], None
    if len(models) > 1:
        (first_T, _, unknown_T), (second_T, _, _) = (each.word_logprobs(dev) for each in models)
        weight = best_weight(first_T[~unknown_T], second_T[~unknown_T])
        model = mixed(models[0], models[1], weight)
    return (prune(model, settings.prune) if settings.prune > 0 else model), weight


def measured(model: NgramModel, dev: list[list[str]]) -> dict[str, Any]:
    """Perplexity without the unknown words, and their share."""
    perplexity, words, oovs, sentences = model.perplexity(dev)
    return {
        "perplexity": perplexity,
        "dev_words": words,
        "dev_sentences": sentences,
        "oov_rate": oovs / words,
    }


if __name__ == "__main__":
    main(lm, __doc__)
