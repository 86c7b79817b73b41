"""asr-train score: totals are sclite's for text, trn, and STM with CTM; two hypotheses compared."""

import io
import json
import os
import random
import re
import shutil
import subprocess

import pytest

from asr_train.command.main import main
from asr_train.score.sclite import trn

SCLITE = ["sclite"] if shutil.which("sclite") else ["sctk", "sclite"]  # Debian has one command
needs_sclite = pytest.mark.skipif(
    shutil.which(SCLITE[0]) is None, reason="no sclite here: apt-get install sctk"
)
WORDS = ["A", "B", "C", "D", "E", "F"]
COUNTS = ("utterances", "words", "substitutions", "deletions", "insertions", "errors")


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["score", *map(str, arguments)])
    return ended.value.code


def scores(capsys, *arguments):
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def misheard(words, rng, rate=0.15):
    found = []
    for word in words:
        if rng.random() > rate:
            found.append(rng.choice(WORDS) if rng.random() < rate else word)
        if rng.random() < rate / 2:
            found.append(rng.choice(WORDS))
    return found


def texts(count, seed=1):
    rng = random.Random(seed)
    said = {f"s{i % 12}-u{i:04d}": rng.choices(WORDS, k=rng.randint(1, 9)) for i in range(count)}
    return said, {utt_id: misheard(words, rng) for utt_id, words in said.items()}


def write_text(path, rows):
    path.write_text("".join(f"{utt_id} {' '.join(words)}\n" for utt_id, words in rows.items()))
    return path


def write_trn(path, rows):
    path.write_text(trn((u, u.partition("-")[0], words) for u, words in rows.items()))
    return path


def timed(folder, seed):
    """Write an STM and a CTM: segments with gaps, words at their edges and between them."""
    rng = random.Random(seed)
    stm, ctm = [], []
    for recording in ("r1", "r2"):
        time = 0.0
        for number in range(40):
            time += rng.choice([0.0, 0.5, 2.0])
            words = rng.choices(WORDS, k=rng.randint(1, 6))
            end = time + 0.4 * len(words)
            speaker = f"s{number % 3}"
            stm.append(f"{recording} 1 {speaker} {time:.3f} {end:.3f} <NA> {' '.join(words)}\n")
            for place, word in enumerate(words):
                if rng.random() < 0.85:
                    at = max(0.0, time + 0.4 * place + rng.uniform(-0.1, 0.1))
                    heard = rng.choice(WORDS) if rng.random() < 0.2 else word
                    ctm.append((recording, at, heard))
            if rng.random() < 0.2:
                ctm.append((recording, end + 0.1, rng.choice(WORDS)))
            time = end
    (folder / "r.stm").write_text("".join(stm))
    lines = [f"{r} 1 {at:.3f} 0.300 {word} 0.9\n" for r, at, word in sorted(ctm)]
    (folder / "h.ctm").write_text("".join(lines))
    return folder / "r.stm", folder / "h.ctm"


def sclite(reference, hypothesis):
    """Return sclite's own counts, in the order of COUNTS."""
    kinds = [path.suffix[1:] for path in (reference, hypothesis)]
    command = [*SCLITE, "-r", reference, kinds[0], "-h", hypothesis, kinds[1], "-i", "rm"]
    ended = subprocess.run(
        [*command, "-o", "rsum", "stdout"], capture_output=True, text=True, check=True
    )
    line = re.search(r"\| +Sum +\|.*", ended.stdout)[0].replace("|", " ")
    utterances, words, _, sub, dele, ins, errors = map(int, line.split()[1:8])
    return [utterances, words, sub, dele, ins, errors]


@needs_sclite
def test_totals_of_2000_random_utterances_are_those_of_sclite(tmp_path, capsys):
    said, heard = texts(2000)
    sides = write_trn(tmp_path / "r.trn", said), write_trn(tmp_path / "h.trn", heard)
    wanted = sclite(*sides)
    text = write_text(tmp_path / "r.txt", said), write_text(tmp_path / "h.txt", heard)
    for pair in (sides, text):
        (found,) = scores(capsys, *pair)["scores"]
        assert [found[name] for name in COUNTS] == wanted


@needs_sclite
@pytest.mark.parametrize("seed", range(4))
def test_words_with_times_are_counted_as_by_sclite(tmp_path, capsys, seed):
    pair = timed(tmp_path, seed)
    (found,) = scores(capsys, *pair)["scores"]
    assert [found[name] for name in COUNTS] == sclite(*pair)


def test_speakers_are_the_units_where_there_are_enough(tmp_path, capsys):
    said, heard = texts(60)
    pair = write_text(tmp_path / "r", said), write_text(tmp_path / "h", heard)
    assert scores(capsys, *pair)["scores"][0]["ci_over"] == "utterances"
    who = write_text(tmp_path / "utt2spk", {u: [u.partition("-")[0]] for u in said})
    (found,) = scores(capsys, *pair, "--speakers", who)["scores"]
    assert found["ci_over"] == "speakers"
    assert found["ci95"][0] < found["wer"] < found["ci95"][1]
    who.write_text(re.sub(r"(?m)^(s0-u0000) .*", r"\1", who.read_text()))
    assert run(*pair, "--speakers", who) == 1
    assert f"{who} has no speaker of s0-u0000; each takes a line: ID" in capsys.readouterr().err


def test_a_trns_speaker_ends_at_the_first_hyphen_or_else_underscore(tmp_path, capsys):
    for mark, who in (("_", {"ann", "ben"}), ("-", {"ann_1", "ann_2", "ben_1", "ben_2"})):
        lines = [f"ONE ({name}_{n}{mark}x)\n" for name in ("ann", "ben") for n in (1, 2)]
        lines.insert(0, ";; a comment\n")
        for path in ("r.trn", "h.trn"):
            (tmp_path / path).write_text("".join(lines))
        assert run(tmp_path / "r.trn", tmp_path / "h.trn") == 0
        table = capsys.readouterr().out
        assert {w for w in re.findall(r"\b(?:ann|ben)(?:_\d)?\b", table)} == who


def test_segments_to_be_ignored_may_be_named_in_lower_case(tmp_path, capsys):
    ignored = "r 1 gap 0 2 <o,,unknown> ignore_time_segment_in_scoring\n"
    (tmp_path / "r.stm").write_text(f"{ignored}r 1 ann 2 4 <o,f0,male> one two\n")
    (tmp_path / "h.ctm").write_text("r 1 0.5 0.2 nine\nr 1 2.5 0.2 one\nr 1 3 0.2 two\n")
    (found,) = scores(capsys, tmp_path / "r.stm", tmp_path / "h.ctm")["scores"]
    assert (found["errors"], found["words"]) == (0, 2)


def test_a_word_whose_middle_is_a_segment_s_end_belongs_to_the_next(tmp_path, capsys):
    """Also where sums of times differ in their last bits."""
    (tmp_path / "r.stm").write_text("r 1 a 5.3 5.7 one\nr 1 b 5.7 6.5 two\n")
    (tmp_path / "h.ctm").write_text("r 1 5.4 0.1 one\nr 1 5.6 0.2 two\n")
    (found,) = scores(capsys, tmp_path / "r.stm", tmp_path / "h.ctm")["scores"]
    assert found["errors"] == 0


def test_the_better_of_two_is_found_with_its_p_value(tmp_path, capsys):
    said, heard = texts(300)
    worse = {u: misheard(words, random.Random(u), 0.5) for u, words in said.items()}
    paths = [write_text(tmp_path / n, r) for n, r in (("r", said), ("h", heard), ("w", worse))]
    compared = scores(capsys, *paths)["comparison"]
    assert compared["difference"] > 0
    assert compared["p"] < 0.01
    details = tmp_path / "details.txt"
    assert run(*paths, "--details", details) == 0
    out = capsys.readouterr().out
    assert re.search(r"%WER [\d.]+ \[ \d+ / \d+, \d+ ins, \d+ del, \d+ sub \] ", out)
    assert re.search(r"points, 95 % interval \+[\d.]+ to \+[\d.]+, p = 0\.\d+", out)
    assert details.read_text().count("most frequent confusions") == 2


def test_the_same_twice_differs_by_nothing(tmp_path, capsys):
    said, heard = texts(50)
    r, h = write_text(tmp_path / "r", said), write_text(tmp_path / "h", heard)
    assert scores(capsys, r, h, h)["comparison"]["difference"] == 0
    (found,) = scores(capsys, r, r)["scores"]
    assert found["errors"] == 0
    assert run(r, r) == 0
    limit = f"{300 / found['words']:.2f} % are plausible"
    assert f"no errors: the bootstrap gives no upper limit; rates up to about {limit}" in (
        capsys.readouterr().out
    )


def test_one_word_in_two_unicode_forms_is_the_same_word(tmp_path, capsys):
    said = write_text(tmp_path / "r", {"a": ["CAN\u0303O"]})
    heard = write_text(tmp_path / "h", {"a": ["CA\u00d1O"]})
    assert run(said, heard) == 0
    assert "%WER 0.00 [ 0 / 1," in capsys.readouterr().out


def test_ids_in_two_unicode_forms_are_one_id(tmp_path, capsys):
    said = write_text(tmp_path / "r", {"cafe\u0301-1": ["ONE"]})  # as macOS names files
    heard = write_text(tmp_path / "h", {"caf\u00e9-1": ["ONE"]})
    forms = {"stm": "cafe\u0301 1 ann 0 1 ONE\n", "ctm": "caf\u00e9 1 0.1 0.5 ONE\n"}
    timed = [tmp_path / f"x.{suffix}" for suffix in forms]
    for path, text in zip(timed, forms.values(), strict=True):
        path.write_text(text)
    for pair in ((said, heard), timed):
        assert run(*pair) == 0
        assert "%WER 0.00 [ 0 / 1," in capsys.readouterr().out
    who = write_text(tmp_path / "utt2spk", {"cafe\u0301-1-0": ["ben"]})
    assert run(*timed, "--speakers", who) == 0
    assert "ben" in capsys.readouterr().out


def test_kinds_of_files_may_be_named_in_upper_case_and_are_not_taken_for_text(tmp_path, capsys):
    trn_text = "one two (ann-1)\nthree four (ben-1)\n"
    for name in ("ref.TRN", "hyp.trn.filt"):
        (tmp_path / name).write_text(trn_text)
    (tmp_path / "hyp.json").write_text(
        '{"id": "ann-1", "text": "one too"}\n{"id": "ben-1", "text": "three four"}\n'
    )
    (score,) = scores(capsys, tmp_path / "ref.TRN", tmp_path / "hyp.json")["scores"]
    assert (score["words"], score["errors"], score["speakers"]) == (4, 1, 2)
    assert run(tmp_path / "ref.TRN", tmp_path / "hyp.trn.filt") == 1
    assert "each line of " in (complaint := capsys.readouterr().err)
    assert "so that it ends in .trn" in complaint


def test_what_is_not_known_is_null(tmp_path, capsys):
    path = write_text(tmp_path / "a.txt", {f"u{i}": ["A", "B"] for i in range(9)})
    (score,) = scores(capsys, path, path)["scores"]
    assert (score["speakers"], score["ci95"], score["utterances"]) == (None, None, 9)


def test_json_lines_may_have_a_byte_order_mark_and_empty_lines(tmp_path, capsys):
    said = write_text(tmp_path / "r", {"a": ["ONE"], "b": ["TWO"]})
    heard = tmp_path / "h.jsonl"
    heard.write_text('\ufeff{"id": "a", "text": "ONE"}\n\n{"id": "b", "text": "TWO"}\n\n')
    assert run(said, heard) == 0
    assert "%WER 0.00 [ 0 / 2," in capsys.readouterr().out


def test_a_hypothesis_need_not_be_named_in_utf_8(tmp_path, capsys):
    said = write_text(tmp_path / "r", {"a": ["ONE"]})
    heard = write_text(tmp_path / os.fsdecode(b"h\xe9"), {"a": ["TWO"]})
    assert run(said, heard, "--details", tmp_path / "details") == 0
    assert r"h\udce9" in (tmp_path / "details").read_text()


def test_details_replace_no_input(tmp_path, capsys):
    path = write_text(tmp_path / "r", {"a": ["ONE"]})
    other = write_text(tmp_path / "s", {"a": ["ann"]})
    for given in (path, tmp_path / "." / "r", other):
        assert run(path, path, "--speakers", other, "--details", given) == 1
        assert f"the output {given} would replace an input" in capsys.readouterr().err
    assert path.read_text() == "a ONE\n"
    assert run(path, path, path, "--details", tmp_path / "new") == 1
    assert "cannot be compared on one utterance" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert run(path, path, "--json", "--details", "-") == 1
    assert "would be mixed; name a file" in capsys.readouterr().err
    assert run(path, path, "--details", "-") == 0
    assert "%WER 0.00 [ 0 / 1," in capsys.readouterr().out


def test_standard_input_is_read_once(tmp_path, capsys, monkeypatch):
    said, heard = texts(50)
    h, text = write_text(tmp_path / "h", heard), write_text(tmp_path / "r", said).read_text()
    content = io.BytesIO(f"\ufeff{text}".encode())  # as of a file, without the mark
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(content))
    assert scores(capsys, "-", h, h)["comparison"]["difference"] == 0
    assert run("-", "-") == 1
    assert "- is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    "files, says",
    [
        ({"r.txt": "a ONE\n", "h.txt": "b ONE\n"}, "1 missing, 1 unknown"),
        ({"r.txt": "a ONE\na TWO\n", "h.txt": "a ONE\n"}, "line 2 has a twice"),
        ({"r.stm": "r 1 s 0 1 ONE\n", "h.txt": "a ONE\n"}, "do not go together"),
        ({"r.stm": "r 1 s 2 1 ONE\n", "h.ctm": "r 1 0 1 ONE\n"}, r"lasts from 2 to 1 s"),
        ({"r.stm": "r 1 s 0 1 ONE\n", "h.ctm": "q 1 0 1 ONE\n"}, "of which the .stm has no"),
        ({"r.trn": "ONE\n", "h.trn": "ONE (a)\n"}, "must end with an id"),
        ({"r.trn": "ONE { A / B } (a)\n", "h.trn": "A (a)\n"}, "line 1 has '{': alternatives"),
        ({"r.trn": "ONE {two/three} (a)\n", "h.trn": "A (a)\n"}, "has '{two/three}': altern"),
        ({"r.stm": "r 1 s 0 1 ONE @\n", "h.ctm": "r 1 0 1 ONE\n"}, "segment r-1-0 has '@'"),
        ({"r.txt": "a { b / c }\n", "h.txt": "a b\n"}, "r.txt, a has '{': alternatives"),
        (
            {"r.stm": "r 1 s 0 1 ONE\nr 1 s 0.0 2 TWO\n", "h.ctm": "r 1 0 1 ONE\n"},
            "two segments of r, channel 1, begin at 0.0 s; correct",
        ),
        ({"r.txt": "", "h.txt": ""}, "has no utterance"),
        ({"r.txt": "a\n", "h.jsonl": "\n[1]\n"}, "h.jsonl, line 2 lacks id or text"),
        ({"r.txt": "a\n", "h.jsonl": '{"id": "a", "text": null}\n'}, "line 1 lacks id or text"),
        ({"r.txt": "a\n", "h.jsonl": '{"id":\n'}, r"line 1 is not valid JSON .*; correct it"),
        ({"r.txt": "a\n", "h.txt": "a ONE\n"}, r"r\.txt has no words to score; give"),
    ],
)
def test_what_cannot_be_scored_costs_one_line(tmp_path, capsys, files, says):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert run(*(tmp_path / name for name in files)) == 1
    error = capsys.readouterr().err
    assert re.search(says, error)
    assert error.count("\n") == 1


def test_a_mapping_without_its_normaliser_is_refused_in_the_commands_words(tmp_path, capsys):
    path = write_text(tmp_path / "r", {"a": ["ONE"]})
    assert run(path, path, "--mapping", path) == 1
    assert "--mapping goes with --normalise english, not plain" in capsys.readouterr().err
