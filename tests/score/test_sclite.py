"""Laws of sclite's formats; if sclite is installed, counts of each utterance equal its own."""

import csv
import random
import re
import shutil
import subprocess

import pytest
from marks import read_marks

from asr_train.schema import NormaliserKind, NormaliserSettings
from asr_train.score.normalise import PLAIN, load_normaliser
from asr_train.score.sclite import (
    speaker_table,
    speakers_tsv,
    trn,
    trn_id,
    utterances_tsv,
)
from asr_train.score.words import Scored, WordErrors, by_speaker, total

SCLITE = ["sclite"] if shutil.which("sclite") else ["sctk", "sclite"]  # Debian has one command
MARKS = ["-D", "-F"]
needs_sclite = pytest.mark.skipif(
    shutil.which(SCLITE[0]) is None, reason="no sclite here: apt-get install sctk"
)
ENGLISH = load_normaliser(NormaliserSettings(kind=NormaliserKind.english))


def score(pairs, speakers=3):
    """Return rows of (id, speaker, reference, hypothesis) and their errors."""
    rows = [(f"u{i:04d}", f"s{i % speakers}", *pair) for i, pair in enumerate(pairs)]
    return rows, [Scored(i, who, WordErrors.between(ref, hyp)) for i, who, ref, hyp in rows]


def run_sclite(folder, rows, options):
    """Return sclite's counts (correct, sub, del, ins) by trn id, their sum, sums by speaker."""
    (folder / "ref.trn").write_text(trn((i, who, ref) for i, who, ref, _ in rows))
    (folder / "hyp.trn").write_text(trn((i, who, hyp) for i, who, _, hyp in rows))
    command = [*SCLITE, "-s", *options, "-r", "ref.trn", "trn", "-h", "hyp.trn", "trn", "-i", "rm"]
    said = subprocess.run(
        [*command, "-o", "pra", "rsum", "stdout"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {}
    for block in said.split("\nid: (")[1:]:
        name, scores = block.split(")", 1)[0], re.search(r"Scores: \(#C #S #D #I\) (.*)", block)
        found[name] = tuple(map(int, scores.group(1).split()))
    sums = {
        cells[0]: [int(n) for n in cells[1:]]
        for line in said.splitlines()
        if re.match(r"\s*\|.*\|\s*\d+\s+\d+ \|", line)
        and len(cells := line.replace("|", " ").split()) == 9
    }
    return found, sums


def counts(errors):
    return (errors.correct, errors.substitutions, errors.deletions, errors.insertions)


def check_parity(folder, pairs, options=()):
    rows, scored = score(pairs)
    found, sums = run_sclite(folder, rows, options)
    ours = {trn_id(s.utt_id, s.speaker): counts(s.errors) for s in scored}
    assert len(found) == len(pairs)
    assert found == ours
    for name, errors in {**by_speaker(scored), "Sum": total(s.errors for s in scored)}.items():
        own = [s for s in scored if name in (s.speaker, "Sum")]
        wrong = sum(s.errors.errors > 0 for s in own)
        wanted = [len(own), errors.words, *counts(errors), errors.errors, wrong]
        assert sums[name] == wanted


# --- parity -------------------------------------------------------------------------------------


@needs_sclite
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "vocabulary, longest", [("ab", 7), ("abcde", 12), ("abcdefghijklmnop", 30)]
)
def test_random_lists_count_as_sclite_counts_them(tmp_path, seed, vocabulary, longest):
    """With few words, long lists have many equally cheap alignments; some lists are empty."""
    draw = random.Random(seed)
    pairs = [
        [draw.choices(vocabulary, k=draw.randrange(longest + 1)) for _ in range(2)]
        for _ in range(300)
    ]
    assert any(not ref for ref, _ in pairs)
    assert any(not hyp for _, hyp in pairs)
    check_parity(tmp_path, pairs)


@needs_sclite
@pytest.mark.parametrize("seed", range(4))
def test_optional_words_and_parts_of_words_count_as_sclite_counts_them(tmp_path, seed):
    draw = random.Random(seed)
    marked = "ab b (ab) (c) c a- (a-) -b (-b) abc %uh (%uh)"
    words = [read_marks(word) for word in marked.split()]
    pairs = [[draw.choices(words, k=draw.randrange(10)) for _ in range(2)] for _ in range(300)]
    check_parity(tmp_path, pairs, MARKS)


@needs_sclite
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.7])
@pytest.mark.parametrize("normaliser, options", [(PLAIN, []), (ENGLISH, MARKS)])
def test_sentences_with_errors_count_as_sclite_counts_them(tmp_path, rate, normaliser, options):
    draw = random.Random(1)
    pairs = [
        (
            normaliser.reference(" ".join(said)),
            normaliser.hypothesis(" ".join(distort(said, rate, draw))),
        )
        for said in (sentence(draw, 24) for _ in range(200))
    ]
    check_parity(tmp_path, pairs, options)


_TEXT = """
    the of and to a in that it was he I you is for on with as his had at uh um don't twenty-three
    they're well, street Mr. wor- it's know (-ing) house café uh-huh some"""
WORDS = _TEXT.split()


def sentence(draw, longest):
    """Draw words as frequent as in text: the n-th about 1/n times."""
    weights = [1 / n for n in range(1, len(WORDS) + 1)]
    return draw.choices(WORDS, weights, k=draw.randrange(1, longest))


def distort(said, rate, draw):
    found = []
    for word in said:
        chance = draw.random()
        if chance > rate:
            found.append(word)
        elif chance > rate / 4:
            found += draw.choices(WORDS, k=draw.choice([1, 1, 2]))
    return found


# --- forms --------------------------------------------------------------------------------------


@pytest.fixture(params=range(3))
def scored_pairs(request):
    draw = random.Random(request.param)
    pairs = [(s := sentence(draw, 9), distort(s, 0.4, draw)) for _ in range(40)]
    rows, scored = score([*pairs, ([], ["a"])], speakers=7)
    return {i: (ref, hyp) for i, _, ref, hyp in rows}, scored


def numbers(text):
    return [dict(row) for row in csv.DictReader(text.splitlines(), delimiter="\t")]


def test_rows_of_both_tables_add_up_to_the_total(scored_pairs):
    pairs, scored = scored_pairs
    whole = total(s.errors for s in scored)
    tables = numbers(speakers_tsv(scored)), numbers(utterances_tsv(scored, pairs))
    assert [len(rows) for rows in tables] == [7, len(scored)]
    for rows in tables:
        for key in ("words", "correct", "substitutions", "deletions", "insertions", "errors"):
            assert sum(int(row[key]) for row in rows) == getattr(whole, key)
    assert sum(int(row["utterances"]) for row in tables[0]) == len(scored)
    wrong = sum(s.errors.errors > 0 for s in scored)
    assert sum(int(row["utterances_wrong"]) for row in tables[0]) == wrong


def test_utterances_are_listed_with_the_words_compared(scored_pairs):
    pairs, scored = scored_pairs
    for row in numbers(utterances_tsv(scored, pairs)):
        assert (row["reference"].split(), row["hypothesis"].split()) == pairs[row["id"]]


def test_the_table_to_read_has_the_sums_of_its_rows(scored_pairs):
    _, scored = scored_pairs
    raw, percent = (
        [line.replace("|", " ").split() for line in part.splitlines() if "---" not in line]
        for part in speaker_table(scored).strip().split("\n\n")
    )
    for rows in (raw, percent):
        assert [row[0] for row in rows] == ["SPKR", *sorted({s.speaker for s in scored}), "Sum"]
    columns = zip(*([int(n) for n in row[1:]] for row in raw[1:]), strict=True)
    assert all(sum(column[:-1]) == column[-1] for column in columns)
    whole = total(s.errors for s in scored)
    assert percent[-1][-2] == f"{100 * whole.rate:.1f}"
    for counts, shares in zip(raw[1:], percent[1:], strict=True):
        said, words, *edits, wrong = map(int, counts[1:])
        of = [(n, words) for n in edits] + [(wrong, said)]  # sentences, of the speaker's own
        assert shares[1:] == [counts[1], counts[2], *(f"{100 * n / all_:.1f}" for n, all_ in of)]


@pytest.mark.parametrize(
    "utt_id, speaker, name",
    [
        ("1272-128104-0003", "1272", "1272-128104-0003"),
        ("arctic_a0001", "slt", "slt-arctic_a0001"),
        ("u 1 (b)", "mary-ann", "mary_ann-u_1__b_"),
        ("ann", "ann", "ann-ann"),
    ],
)
def test_an_utterance_goes_by_its_speaker(utt_id, speaker, name):
    assert trn_id(utt_id, speaker) == name
    assert trn([(utt_id, speaker, ["A", "B"])]) == f"A B ({name})\n"


def test_two_utterances_with_one_trn_id_are_refused():
    with pytest.raises(ValueError, match="u_1 and u 1 both become s-u_1"):
        trn([("u 1", "s", []), ("u_1", "s", [])])
