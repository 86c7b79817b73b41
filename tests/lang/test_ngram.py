"""Modified Kneser-Ney equals the paper's and KenLM's; pruning removes the least useful."""

import gzip
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from slow_ngram import SlowKneserNey, random_text, text_of
from toy import logprobs

from asr_train.files import DamagedFileError, write_jsonl
from asr_train.lang.arpa import NgramModel, read_arpa, write_arpa
from asr_train.lang.ngram import (
    FALL_BACK,
    Text,
    best_weight,
    count_ngrams,
    discounts,
    mixed,
    most_frequent,
    prune,
    read_sentences,
    spoken,
    train,
    without,
)
from asr_train.schema import Smoothing


def histories(model: NgramModel) -> np.ndarray:
    """Return all contexts of the model, and an unknown one, as rows of order - 1 ids."""
    K = model.order - 1
    rows = [np.full((1, K), -1)]
    for n in range(1, model.order):
        ids_NK = model.ids(n)
        rows.append(np.hstack([np.full((len(ids_NK), K - n), -1), ids_NK]))
    return np.concatenate(rows)


def distributions(model: NgramModel, known: NgramModel | None = None) -> np.ndarray:
    """P(word | history) for all histories (those of `known`) and words but <s>: [H, V - 1]."""
    rows, V = histories(known or model), len(model.words)
    ids = np.hstack([np.repeat(rows, V, axis=0), np.tile(np.arange(V), len(rows))[:, None]])
    p_HV = 10.0 ** model.conditional(ids).reshape(len(rows), V)
    return np.delete(p_HV, model.id_of["<s>"], axis=1)


# --- estimates ----------------------------------------------------------------------------------


def test_a_case_worked_by_hand():
    """`A B` and `A`: four words with </s> and <unk>, the discounts of tiny texts.

    Bigrams: <s> A twice; A B, A </s>, B </s> once. Words by what precedes them: A 1, B 1, </s> 2.
    """
    model = train(text_of([["A", "B"], ["A"]]), 2)
    ids = np.array([[model.id_of[w] for w in words.split()] for words in (
        "<s> A", "<s> B", "A B", "A </s>", "A <unk>", "B </s>", "B A",
    )])  # fmt: skip
    a = b = 0.5 / 4 + 2 / 4 / 4
    end, unknown = 1 / 4 + 2 / 4 / 4, 2 / 4 / 4
    assert a + b + end + unknown == 1
    expected = [
        1 / 2 + 1 / 2 * a,  # <s> A, count 2, discount 1
        1 / 2 * b,
        0.5 / 2 + 1 / 2 * b,
        0.5 / 2 + 1 / 2 * end,
        1 / 2 * unknown,
        0.5 + 0.5 * end,
        0.5 * a,
    ]
    assert 10 ** model.conditional(ids) == pytest.approx(expected, rel=1e-12)


def test_witten_bell_is_the_papers_formula():
    """(c(hw) + t(h) p(w)) / (c(h) + t(h)), t counting different words; below, uniform over four."""
    sentences = [["A", "B"], ["A"], ["A", "B", "B"]]
    model = train(text_of(sentences), 2, smoothing=Smoothing.witten_bell)
    counts = {"A": 3, "B": 3, "</s>": 3}
    one = {w: (counts.get(w, 0) + 3 / 4) / (9 + 3) for w in ("A", "B", "</s>", "<unk>")}
    assert sum(one.values()) == pytest.approx(1)
    after = {"<s>": {"A": 3}, "A": {"B": 2, "</s>": 1}, "B": {"</s>": 2, "B": 1}}
    for h, seen in after.items():
        for w, lower in one.items():
            p = (seen.get(w, 0) + len(seen) * lower) / (sum(seen.values()) + len(seen))
            ids = np.array([[model.id_of[h], model.id_of[w]]])
            assert 10 ** model.conditional(ids)[0] == pytest.approx(p)


def test_witten_bell_of_speechocean_is_the_model_that_kaldi_was_measured_with(shared_data):
    """Perplexity 125 on the test speakers' sentences, which were removed from the text."""
    folder = shared_data("speechocean762")
    rows = [r.split("\t") for r in (folder / "utterances.tsv").read_text().splitlines()[1:]]
    held_out = sorted({row[1] for row in rows})[4::5]
    said = [row[4].split() for row in rows if row[1] in held_out]
    text = list(read_sentences([folder / "lm_text.txt"]))
    words = {word for sentence in text for word in sentence}
    kept = list(without(text, {tuple(sentence) for sentence in said}))
    assert len(kept) == len(text) - 184
    model = train(Text.of(kept, words), 2, smoothing=Smoothing.witten_bell)
    assert model.perplexity(said).perplexity == pytest.approx(125, abs=0.5)


def test_discounts_are_those_of_the_formula():
    counts = np.repeat([1, 2, 3, 4, 9], [10, 4, 2, 1, 3])
    y = 10 / 18
    expected = (1 - 2 * y * 4 / 10, 2 - 3 * y * 2 / 4, 3 - 4 * y * 1 / 2)
    assert discounts(counts) == pytest.approx(expected)


@pytest.mark.parametrize(
    "counts", [[], [1, 1, 1], [1, 2, 5], [1, 2, 3, 3, 3, 3], [1, 1, 2, 3, 4, 4]]
)
def test_small_texts_fall_back_to_fixed_discounts(counts):
    assert discounts(np.array(counts, int)) == FALL_BACK


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_all_distributions_are_the_paper_s(order, seed):
    text = random_text(seed, [30, 90, 150][seed], [6, 12, 8][seed], 2)
    vocabulary = sorted({w for s in text for w in s})[: [99, 9, 99][seed]]
    model = train(Text.of(text, vocabulary), order)
    slow = SlowKneserNey(text, order, vocabulary)
    words = [w for w in model.words if w != "<s>"]
    rows = histories(model)
    pick = np.random.default_rng(seed).permutation(len(rows))[:60]
    named = [[model.words[i] for i in rows[h] if i >= 0] for h in pick]
    expected = [[slow.p(w, history) for w in words] for history in named]
    np.testing.assert_allclose(distributions(model)[pick], expected, rtol=1e-6)


def test_rare_ngrams_give_their_mass_to_the_back_off_as_the_paper_s_would():
    text = random_text(0, 150, 8, 2)
    words = sorted({w for s in text for w in s})
    model = train(text_of(text), 3, [1, 2, 3])
    slow = SlowKneserNey(text, 3, words, [1, 2, 3])
    assert model.counts[1:] == [sum(c >= n for c in slow.seen[n].values()) for n in (2, 3)]
    known = [w for w in model.words if w != "<s>"]
    for history in (["<s>", "W0"], ["W0", "W0"], ["W1", "W5"], ["W7", "W7"]):
        ids = [[*(model.id_of[h] for h in history), model.id_of[w]] for w in known]
        expected = [slow.p(w, history) for w in known]
        np.testing.assert_allclose(10.0 ** model.conditional(np.array(ids)), expected, rtol=1e-6)


LMPLZ = [  # KenLM 0.3.0: lmplz -o 3 --discount_fallback; log10 P and back-off
    (
        (1500, 500, 4),
        [500, 4287, 5881],
        {
            "<unk>": (-3.3128657, 0),
            "</s>": (-1.0785077, 0),
            "W0": (-1.1152157, -0.4582277),
            "W39": (-2.4617589, -0.18708406),
            "W0 W0": (-0.9304003, -0.32695976),
            "<s> W1": (-1.4075191, -0.18104559),
            "W5 W2": (-1.8902327, -0.027095761),
            "W1 </s>": (-0.60595447, 0),
            "<s> W0 W0": (-0.6712179, 0),
            "W0 W0 </s>": (-0.50495285, 0),
            "W1 W0 W0": (-0.48552948, 0),
        },
    ),
    (  # the words fall back to fixed discounts
        (500, 100, 2),
        [103, 1503, 2068],
        {
            "<unk>": (-3.0051465, 0),
            "</s>": (-1.1947542, 0),
            "W0": (-1.3078136, -0.5075667),
            "W0 W0": (-1.0045244, -0.119515195),
            "<s> W1": (-1.2746059, -0.029504895),
            "W1 </s>": (-0.8431246, 0),
            "<s> W0 W0": (-1.0595871, 0),
            "W0 W0 </s>": (-0.45433187, 0),
        },
    ),
]


@pytest.mark.parametrize("drawn, counts, values", LMPLZ)
def test_estimates_are_those_of_a_published_toolkit(drawn, counts, values):
    model = train(text_of(random_text(7, *drawn)), 3)
    assert model.counts == counts
    for text, expected in values.items():
        ids = np.array([[model.id_of[word] for word in text.split()]])
        (place,) = model.place(ids)
        ngrams = model.orders[ids.shape[1] - 1]
        found = ngrams.logp_N[place], ngrams.backoff_N[place]
        assert found == pytest.approx(expected, abs=1e-6), text


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("min_count, threshold", [(1, 0.0), (2, 0.0), (1, 1e-4), (2, 1e-3)])
def test_every_history_s_distribution_sums_to_one(order, min_count, threshold):
    text = Text.of(random_text(order, 200, 15, 2), [f"W{n}" for n in range(12)])
    model = prune(train(text, order, [1] + [min_count] * (order - 1)), threshold)
    np.testing.assert_allclose(distributions(model).sum(axis=1), 1, atol=1e-9)


@pytest.mark.parametrize("threshold", [0.0, 1e-3, 0.1])
def test_histories_that_all_words_follow_sum_to_one_too(threshold):
    model = prune(train(Text.of(random_text(1, 300, 4, 1), ["W0", "W1"]), 3), threshold)
    if not threshold:
        assert np.bincount(model.orders[1].key_N // 5).max() == 4  # all but <s>, so none is left
    np.testing.assert_allclose(distributions(model).sum(axis=1), 1, atol=1e-9)


@pytest.fixture(params=["trained", "of a file"])
def covered(request, tmp_path):
    """Two models, all of whose histories all words follow, and text of the first one's language."""
    follows = {"A": "B", "B": "C", "C": "A", "X": "A"}

    def text(seed):
        rng, sentences = np.random.default_rng(seed), []
        for _ in range(3000):
            sentences.append([rng.choice([*"ABC"])])
            while rng.random() < 0.8:
                likely = follows[sentences[-1][-1]]
                sentences[-1].append(likely if rng.random() < 0.9 else rng.choice([*"ABCX"]))
        return sentences

    models = [train(Text.of(text(seed), "ABC"), 2) for seed in (1, 2)]
    if request.param == "of a file":  # float32, so that the masses left over are up to 1e-6
        for k, model in enumerate(models):
            write_arpa(tmp_path / f"{k}.arpa", model)
            models[k] = read_arpa(tmp_path / f"{k}.arpa")
    return *models, text(3)


@pytest.mark.parametrize("change", ["prune", "mix"])
def test_histories_that_all_words_follow_stay_as_likely_and_do_not_back_off(covered, change):
    first, second, said = covered
    model = prune(first, 1e-8) if change == "prune" else mixed(first, second, 0.5)
    assert model.counts == first.counts == [6, 23]
    assert model.perplexity(said).perplexity < 1.01 * first.perplexity(said).perplexity
    ids = model.ids(2)
    backoff_N = model.orders[0].backoff_N[ids[:, 0]]
    assert (model.conditional(ids) > backoff_N + model.conditional(ids[:, 1:]) - 1e-6).all()
    assert model.orders[0].backoff_N.max() <= 0


def test_ngrams_of_a_text_are_counted_within_sentences():
    text = text_of([["A", "B"], ["B"]])
    counts = count_ngrams(text, 3)
    assert [len(c.key_N) for c in counts] == [5, 4, 3]  # <unk> is a word without count
    assert int(counts[1].count_N.sum()) == 3 + 2
    assert (text.sentences, text.num_words) == (2, 3)


# --- pruning ------------------------------------------------------------------------------------


def worth(model: NgramModel, row: np.ndarray, history_p: float) -> float:
    """Return the rise of perplexity without one n-gram, from the whole distributions."""
    n, V, begin = len(row), len(model.words), model.id_of["<s>"]
    words = np.array([v for v in range(V) if v != begin])
    full = np.hstack([np.tile(row[:-1], (len(words), 1)), words[:, None]])
    old = 10.0 ** model.conditional(full)
    lower = 10.0 ** model.conditional(full[:, 1:])
    explicit = np.array([model.place(f[None])[0] >= 0 for f in full]) & (words != row[-1])
    new = np.where(explicit, old, lower)
    new[~explicit] *= (1 - old[explicit].sum()) / lower[~explicit].sum()
    assert n > 1
    return math.expm1(history_p * float((old * np.log(old / new)).sum()))


@pytest.mark.parametrize("order, threshold", [(2, 3e-4), (2, 3e-3), (3, 3e-4), (3, 1e-3)])
def test_what_is_pruned_is_what_is_worth_less_than_the_threshold(order, threshold):
    model = train(text_of(random_text(order, 80, 10, 2)), order)
    left = prune(model, threshold)
    kept = {tuple(row) for n in range(1, order + 1) for row in left.ids(n).tolist()}
    begins = {row[:-1] for row in kept}
    gone = 0
    for n in range(2, order + 1):
        for row in model.ids(n):
            first = np.where(row == model.id_of["<s>"], model.id_of["</s>"], row)[:1]
            steps = [model.conditional(row[None, : k + 1])[0] for k in range(1, n - 1)]
            history = 10 ** (model.conditional(first[None])[0] + sum(steps))
            needed = worth(model, row, history) >= threshold or tuple(row) in begins
            assert (tuple(row) in kept) == needed
            gone += not needed
    assert 0 < gone < sum(model.counts[1:])


def test_nothing_is_pruned_at_zero_and_only_words_are_left_at_one():
    model = train(text_of(random_text(1, 80, 10, 2)), 3)
    assert prune(model, 1.0).counts == [model.counts[0], 0, 0]
    assert prune(model, -1.0).counts == model.counts
    np.testing.assert_allclose(distributions(prune(model, -1.0)), distributions(model), rtol=1e-9)


# --- two models in one --------------------------------------------------------------------------


@pytest.fixture(params=[1, 2, 3])
def two(request):
    """Two models of one order and vocabulary, from different texts."""
    texts = [random_text(9, 150, 15, 2), random_text(10, 40, 15, 1)]
    words = text_of([*itertools.chain(*texts)]).words
    return [train(Text.of(text, words), request.param) for text in texts]


def test_a_mixture_of_one_model_alone_is_that_model(two):
    histories_of_both = mixed(*two, 0.5)
    for weight, alone in ((1.0, two[0]), (0.0, two[1])):
        found = distributions(mixed(*two, weight), histories_of_both)
        np.testing.assert_allclose(found, distributions(alone, histories_of_both), rtol=1e-6)


def test_a_mixture_is_a_model_and_weighs_what_it_lists(two):
    model = mixed(*two, 0.3)
    np.testing.assert_allclose(distributions(model).sum(axis=1), 1, atol=1e-9)
    for n in range(1, model.order + 1):
        ids = model.ids(n)
        ids = ids[ids[:, -1] != model.id_of["<s>"]]
        both = [10.0 ** each.conditional(ids) for each in two]
        np.testing.assert_allclose(
            10.0 ** model.conditional(ids), 0.3 * both[0] + 0.7 * both[1], rtol=1e-9
        )


def test_no_other_share_makes_the_text_likelier(two):
    held_out = random_text(11, 30, 15, 1.5)
    first_T, second_T = (each.word_logprobs(held_out)[0] for each in two)
    weight = best_weight(first_T, second_T)

    def likelihood(share):
        return np.log(share * 10.0**first_T + (1 - share) * 10.0**second_T).sum()

    assert 0.02 < weight < 0.98
    assert likelihood(weight) >= max(map(likelihood, np.linspace(0, 1, 101))) - 1e-6


# --- text ---------------------------------------------------------------------------------------


def test_the_most_frequent_words_are_known_and_ties_go_by_name():
    sentences = [["D", "B", "C"], ["A", "B", "E"], ["E"]]
    counts = Counter(itertools.chain(*sentences, ["<UNK>"] * 9))
    text = Text.of(sentences, most_frequent(counts, 3))
    assert text.words == ["<s>", "</s>", "<unk>", "A", "B", "E"]
    named = [text.words[i] for i in text.id_T]
    assert " ".join(named) == "<s> <unk> B <unk> </s> <s> A B E </s> <s> E </s>"


def test_words_of_the_vocabulary_that_the_text_lacks_are_possible():
    model = train(Text.of([["A"]], ["A", "Z"]), 2)
    assert logprobs(model, [["Z"]])[0] == pytest.approx(logprobs(model, [["Q"]])[0])
    assert -5 < logprobs(model, [["Z"]])[0] < logprobs(model, [["A"]])[0]


def test_files_plain_and_packed_are_read_as_upper_case_words(tmp_path):
    (tmp_path / "a.txt").write_text("one Two\n\n  fu\u0308nf \n", encoding="utf-8-sig")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"four\n", mtime=0))
    found = list(read_sentences([tmp_path / "a.txt", tmp_path / "b.txt.gz"]))
    assert found == [["ONE", "TWO"], ["FÜNF"], ["FOUR"]]


@pytest.mark.parametrize(
    "content", [gzip.compress(b"a b\n" * 999, mtime=0)[:-9], b"plain", b"\xff\xfe\n"]
)
def test_text_that_cannot_be_read_is_named(tmp_path, content):
    name = "a.txt" if content[0] == 255 else "a.txt.gz"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFileError, match=f"{name} cannot be read"):
        list(read_sentences([tmp_path / name]))


def test_copies_at_another_speed_are_no_further_sentences(tmp_path):
    said = [
        {"text": "one Two"},
        {"text": "one Two", "custom": {"speed": 0.9}},
        {"text": "six", "custom": {"room": "small"}},
        {"text": " ", "custom": None},
    ]
    write_jsonl(tmp_path / "train.jsonl.gz", [{"supervisions": [one]} for one in said])
    assert spoken(str(tmp_path / "train.jsonl.gz")) == [["ONE", "TWO"], ["SIX"]]


def test_equal_words_are_one_object(tmp_path):
    """Else the transcripts of 960 hours take 0.6 GB, and more text as much per 10 million words."""
    write_jsonl(tmp_path / "train.jsonl.gz", [{"supervisions": [{"text": "one two"}]}] * 2)
    (tmp_path / "more.txt").write_text("one two\n")
    first, second = spoken(str(tmp_path / "train.jsonl.gz"))
    (third,) = read_sentences([tmp_path / "more.txt"])
    assert all(a is b is c for a, b, c in zip(first, second, third, strict=True))


@pytest.mark.parametrize("mark", ["<s>", "</s>", "<S>", "</S>"])
def test_marks_of_sentences_are_no_words(mark):
    with pytest.raises(ValueError, match=r"the text's sentence 'B .*holds"):
        Text.of([["A"], ["B", mark]], "AB")


def test_no_text_makes_no_model():
    with pytest.raises(ValueError, match="no sentence"):
        Text.of([], "AB")


def test_a_million_words_are_no_burden(shared_data):
    """Sizes for a published text; its perplexity is finite, and falls with the order."""
    path = shared_data("librispeech_mini") / "lm_text.txt.gz"
    sentences = list(itertools.islice(read_sentences([path]), 20_000))
    text, held_out = text_of(sentences[:18_000]), sentences[18_000:]
    found = [train(text, order).perplexity(held_out).perplexity for order in (1, 2, 3)]
    assert 100 < found[2] < found[1] < found[0] < len(text.words)
