"""The lm stage writes models with checksums and their perplexity, or reports that there is none."""

import gzip

import pytest
from slow_ngram import random_text
from toy import toy_lang

from asr_train.compose import settings
from asr_train.files import check_part, read_json, read_jsonl, write_jsonl, write_yaml
from asr_train.lang.arpa import read_arpa
from asr_train.lang.index import load_lang, write_lang
from asr_train.schema import LmSettings, SettingsError, build, plain
from scripts.bigram import bigram
from scripts.lm import lm

RULE = "corpus.yaml", "lexicon.yaml"  # of transcripts and text


def write_conf(folder, *overrides):
    found = settings("dnn", list(overrides))
    shown = {"lm": found.lm, "corpus": found.corpus, "lexicon": found.lang.lexicon}
    for name, value in shown.items():
        write_yaml(folder / f"{name}.yaml", plain(value))


@pytest.fixture
def stage(tmp_path):
    """Run the stage on ten transcripts per split, with separate text."""
    sentences = random_text(0, 220, 30, 2)
    for name, some in (("train", sentences[:10]), ("dev", [*sentences[10:20], ["NEVERSAID"]])):
        rows = [{"id": str(i), "supervisions": [{"text": " ".join(s)}]} for i, s in enumerate(some)]
        write_jsonl(tmp_path / f"{name}.jsonl.gz", rows)
    text = "\n".join(" ".join(s) for s in sentences[20:])
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.lower().encode()))

    def run(*overrides):
        write_conf(tmp_path, *overrides)
        inputs = [tmp_path / f for f in ("lm.yaml", *RULE, "train.jsonl.gz", "dev.jsonl.gz")]
        said = lm(*map(str, [*inputs, tmp_path / "lm" / "index.json"]))
        return tmp_path / "lm", read_json(tmp_path / "lm" / "index.json"), said

    return run


def test_no_model_is_said_to_be_none(stage):
    folder, index, said = stage()
    assert (index["small"], index["big"]) == (None, None)
    assert [p.name for p in folder.iterdir()] == ["index.json"]
    assert "none" in said


def test_both_models_are_listed_with_what_they_are(stage, tmp_path):
    folder, index, said = stage(
        "lm=fourgram", f"lm.text=[{tmp_path}/text.gz]", "lm.small.prune=0.001"
    )
    for name, order in (("small", 3), ("big", 4)):
        model = read_arpa(check_part(folder, index[name]))
        assert model.order == index[name]["order"] == order
        assert model.counts == index[name]["ngrams"]
        assert f"{name}: order {order}, {' + '.join(map(str, model.counts))} n-grams" in said
        assert f"{index[name]['perplexity']:.1f}" in said
    assert index["sentences"] == 210
    assert index["big"]["oov_rate"] == 1 / index["big"]["dev_words"]
    assert index["small"]["ngrams"][2] < index["big"]["ngrams"][2]


def test_text_and_transcripts_are_each_optional(stage, tmp_path):
    alone = stage("lm=trigram")[1]
    text = stage("lm=trigram", f"lm.text=[{tmp_path}/text.gz]", "lm.transcripts=false")[1]
    both = stage("lm=trigram", f"lm.text=[{tmp_path}/text.gz]")[1]
    assert (alone["sentences"], text["sentences"], both["sentences"]) == (10, 200, 210)


def test_sentences_of_dev_and_test_are_taken_out_where_told_so(stage, tmp_path):
    """Their words stay in the vocabulary."""
    dev = [r["supervisions"][0]["text"] for r in read_jsonl(tmp_path / "dev.jsonl.gz")]
    (tmp_path / "prompts.txt").write_text("\n".join([*dev, "A B", "B C"]) + "\n")
    args = ("lm=trigram", f"lm.text=[{tmp_path}/prompts.txt]", "lm.transcripts=false")
    with_dev, alone = stage(*args)[1], stage(*args, "lm.without_eval=true")[1]
    assert with_dev["sentences"] - alone["sentences"] == len(dev)
    assert with_dev["vocabulary"] == alone["vocabulary"]
    assert alone["small"]["perplexity"] > 2 * with_dev["small"]["perplexity"]


def test_text_is_read_as_the_transcripts_are(stage, tmp_path):
    (tmp_path / "prompts.txt").write_text("a b.\nB, c!\n\u2014\nthe 4 of us\n")
    text = "lm=trigram", f"lm.text=[{tmp_path}/prompts.txt]", "lm.transcripts=false"
    folder = "recipe=folder", "corpus.folder.dir=/x", *text
    lm_folder, index, said = stage(*folder)
    assert index["sentences"] == 2
    assert read_arpa(lm_folder / "small.arpa").words[3:] == ["A", "B", "C"]
    assert "1 sentence of text left out, for example: 4 has digits" in said
    _, index, said = stage(*folder, "corpus.folder.digits=number")
    assert (index["sentences"], index["vocabulary"]) == (3, 7)
    assert "left out" not in said
    (tmp_path / "prompts.txt").write_text("4\n5\n")
    with pytest.raises(
        ValueError, match=r"no sentence; see lm\.text; 2 sentences of text left out"
    ):
        stage(*folder)
    (tmp_path / "prompts.txt").write_text("B, c!\n")
    words = read_arpa(stage(*text)[0] / "small.arpa").words
    assert "C!" in words  # synthesised speech has no transcripts but the grammar's


def test_a_bigram_takes_the_grammars_place_and_no_other(stage, tmp_path):
    lang = toy_lang()
    write_lang(tmp_path / "lang" / "index.json", lang)
    (tmp_path / "prompts.txt").write_text("A, B - C!\nab c\nA «AB»\nC C NEVERHEARD\n1 A\n")
    write_yaml(
        tmp_path / "bigram.yaml",
        {"text": [str(tmp_path / "prompts.txt")], "vocabulary": 2, "without_eval": True},
    )
    rows = [{"id": "u", "supervisions": [{"text": "A AB"}]}]
    write_jsonl(tmp_path / "test.jsonl.gz", rows)
    write_conf(tmp_path, "recipe=folder", "corpus.folder.dir=/x")
    names = "bigram.yaml", *RULE, "lang/index.json", "test.jsonl.gz"
    inputs = [str(tmp_path / name) for name in names]
    said = bigram(*inputs, str(tmp_path / "lang-bigram" / "index.json"))
    made = load_lang(tmp_path / "lang-bigram" / "index.json")
    assert made.hash == lang.hash  # pronunciations and states: all models fit
    model = read_arpa(made.arpa)
    assert model.order == 2
    assert model.words == ["<s>", "</s>", "<unk>", "A", "C"]  # the two most frequent known ones
    assert "perplexity on test" in said
    assert "1 sentence of text left out, for example: 1 has digits" in said
    (tmp_path / "prompts.txt").write_text("NEVERHEARD\n")
    with pytest.raises(ValueError, match=r"no word of .*prompts\.txt has a pronunciation.*bigram"):
        bigram(*inputs, str(tmp_path / "lang-bigram" / "index.json"))


def test_the_vocabulary_is_of_the_most_frequent_words(stage, tmp_path):
    few = stage("lm=trigram", f"lm.text=[{tmp_path}/text.gz]", "lm.vocabulary=5")[1]
    assert few["small"]["ngrams"][0] == 5 + 3
    assert few["small"]["oov_rate"] > 0.2


def test_a_mixture_says_its_share(stage, tmp_path):
    text = f"lm.text=[{tmp_path}/text.gz]"
    _, index, said = stage("lm=fourgram", text, "lm.mix=true", "lm.small.prune=0.001")
    for name in ("small", "big"):
        assert 0 < index[name]["mix"] < 1
        assert f"share of the transcripts {index[name]['mix']:.3f}" in said
    assert stage("lm=fourgram", text)[1]["big"]["mix"] is None


def test_the_same_input_gives_the_same_bytes(stage, tmp_path):
    first = stage("lm=fourgram", f"lm.text=[{tmp_path}/text.gz]")[1]
    assert stage("lm=fourgram", f"lm.text=[{tmp_path}/text.gz]")[1] == first


@pytest.mark.parametrize(
    "change, message",
    [
        ({"small": None}, "lm.big is set but lm.small is null"),
        ({"transcripts": False}, "lm.text is empty and lm.transcripts is false"),
        ({"mix": True}, "lm.mix is true but lm.text is"),
        ({"vocabulary": 0}, "lm.vocabulary is 0"),
        ({"small": {"order": 5, "min_counts": [1] * 5, "prune": 0.0}}, r"lm.small.order is 5"),
        ({"small": {"order": 2, "min_counts": [1], "prune": 0.0}}, r"lm.small.min_counts is \[1\]"),
        ({"big": {"order": 2, "min_counts": [2, 2], "prune": 0.0}}, r"lm.big.min_counts is"),
        ({"big": {"order": 3, "min_counts": [1, 2, 1], "prune": 0.0}}, r"none above the next"),
        ({"big": {"order": 1, "min_counts": [1], "prune": -1.0}}, r"lm.big.prune is -1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, message):
    values = plain(settings("dnn", ["lm=fourgram"]).lm)
    with pytest.raises(SettingsError, match=message):
        build(LmSettings, values | change, "lm")


def test_a_text_of_nothing_but_devs_sentences_is_refused_with_the_remedy(stage, tmp_path):
    dev = [r["supervisions"][0]["text"] for r in read_jsonl(tmp_path / "dev.jsonl.gz")]
    (tmp_path / "prompts.txt").write_text("\n".join(dev) + "\n")
    args = ("lm=trigram", f"lm.text=[{tmp_path}/prompts.txt]", "lm.transcripts=false")
    with pytest.raises(ValueError, match=r"all 11 sentences .* set lm.without_eval=false"):
        stage(*args, "lm.without_eval=true")
