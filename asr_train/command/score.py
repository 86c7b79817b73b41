"""Count word errors of hypotheses against references, as NIST's sclite does.

REF and HYP are text (a line per utterance: id, words), .trn (words, then the id in parentheses),
.json or .jsonl (of asr-train decode --format json), or REF.stm with HYP.ctm, whose words are
assigned to segments by their midpoints; - is text from standard input. Words are compared in upper
case. The difference between two HYPs is tested by a paired bootstrap over speakers, or over
utterances where there are few speakers.

  --speakers   a file with lines of id and speaker, for text (Kaldi's utt2spk)
  --normalise  plain: only upper case; words: also without punctuation; english: also without
               hesitations and partial words, by NIST's rules for Hub5

example:
  asr-train score ref.txt hyp.txt
  asr-train score ref.stm first.ctm second.ctm --details errors.txt
"""

import argparse
import json
import re
import unicodedata
from functools import partial
from pathlib import Path
from typing import Any

from asr_train.checks import keep_inputs, printable, spelled
from asr_train.command.main import prints_utf_8, standard_input
from asr_train.files import DamagedFileError, decoded, read_lines, read_yaml, write_text
from asr_train.interop.ctm import read_ctm, read_stm
from asr_train.interop.times import Timed
from asr_train.places import ROOT
from asr_train.schema import NormaliserKind, NormaliserSettings, ScoreSettings, build
from asr_train.score.normalise import load_normaliser
from asr_train.score.sclite import speaker_table
from asr_train.score.summary import closing_words, counts, page, spread
from asr_train.score.words import (
    MIN_PAIRED_SPEAKERS,
    Scored,
    WordErrors,
    compare,
    total,
    units,
    wer_line,
)

Texts = dict[str, str]
nfc = partial(unicodedata.normalize, "NFC")  # as in what decode writes
TRN = re.compile(r"(.*)\(([^()]+)\)\s*")  # words, then the id in parentheses
SCLITE = re.compile("[{}]|^@$")  # a word of .trn or .stm that is part of alternatives
EXACT = 9  # decimal places to which times are compared; beyond, sums of floats differ
IGNORED = "IGNORE_TIME_SEGMENT_IN_SCORING"  # NIST's mark of a segment that does not count


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", metavar="REF")
    parser.add_argument("hypothesis", metavar="HYP")
    parser.add_argument("second", metavar="HYP", nargs="?")
    parser.add_argument("--speakers", metavar="FILE")
    parser.add_argument("--normalise", choices=[k.value for k in NormaliserKind], default="plain")
    parser.add_argument("--mapping", metavar="FILE", help="with english: lines FROM => TO")
    parser.add_argument("--details", metavar="FILE", help="write the aligned errors (-: print)")
    parser.add_argument("--json", action="store_true", help="print numbers as JSON")


def run(options: argparse.Namespace) -> int:
    settings = build(ScoreSettings, read_yaml(Path(ROOT) / "conf" / "score" / "default.yaml"))
    kind = NormaliserKind(options.normalise)
    if options.mapping is not None and kind is not NormaliserKind.english:
        raise ValueError(f"--mapping goes with --normalise english, not {kind.value}")
    normaliser = load_normaliser(NormaliserSettings(kind=kind, mapping=options.mapping))
    names = [name for name in (options.hypothesis, options.second) if name is not None]
    if [options.reference, *names].count("-") > 1:
        raise ValueError("- is given twice, but standard input is read once; write one to a file")
    if options.json and options.details == "-":
        raise ValueError("--json and --details - would be mixed; name a file after --details")
    if options.details and options.details != "-":
        keep_inputs(options.details, options.reference, *names, options.speakers, options.mapping)
    is_stm = options.reference.lower().endswith(".stm")
    known = read_stm(options.reference) if is_stm else _texts(options.reference)
    rows, lines, shown = [], [], []
    for name in names:
        references, found = _sides(options.reference, known, name)
        speakers = _speakers(options.speakers, references)
        pairs = {
            utt_id: (normaliser.reference(nfc(text)), normaliser.hypothesis(nfc(found[utt_id])))
            for utt_id, (_, text) in references.items()
        }
        scored = [Scored(u, speakers[u], WordErrors.between(*pair)) for u, pair in pairs.items()]
        if not any(s.errors.words for s in scored):
            raise ValueError(
                f"{options.reference} has no words to score; give references with what was said"
            )
        line = wer_line(total(s.errors for s in scored), printable(name))
        summary = counts(scored) | spread(scored, settings) | {"normaliser": normaliser.name}
        lines += [line, closing_words(summary)]
        if not summary["errors"]:
            summary["ci95"] = None  # the bootstrap gives none
        if not any(speakers.values()):
            summary["speakers"] = None  # not known
        rows.append((scored, {"hypothesis": printable(name)} | summary))
        shown.append(page(line, scored, pairs))
    compared = _compared(rows[0][0], rows[1][0], settings) if len(rows) == 2 else None
    if options.details == "-":
        print("\n".join(shown))
    elif options.details:
        write_text(options.details, "\n".join(shown))
    if options.json:
        content: Any = {"scores": [row for _, row in rows], "comparison": compared}
        print(json.dumps(content, indent=2, ensure_ascii=not prints_utf_8()))
        return 0
    if len(rows) == 1:
        print(speaker_table(rows[0][0]))
    print("\n".join(lines))
    if compared is not None:
        low, high = (100 * limit for limit in compared["ci95"])
        print(
            f"{names[1]} minus {names[0]}: {100 * compared['difference']:+.2f} points, 95 % "
            f"interval {low:+.2f} to {high:+.2f}, p = {compared['p']:.3g}, bootstrap over "
            f"{compared['over']}"
        )
    return 0


def _compared(
    first: list[Scored], second: list[Scored], settings: ScoreSettings
) -> dict[str, Any] | None:
    over, ours = units(first, MIN_PAIRED_SPEAKERS)
    _, theirs = units(second, MIN_PAIRED_SPEAKERS)
    if len(ours) < 2:
        raise ValueError("two hypotheses cannot be compared on one utterance; score more")
    made = compare(ours, theirs, settings.bootstrap, settings.seed)
    return {"difference": made.difference, "ci95": list(made.ci95), "p": made.p, "over": over}


# --- files ---------------------------------------------------------------------------------------


def _sides(
    reference: str, known: list[Timed] | Texts, hypothesis: str
) -> tuple[dict[str, tuple[str, str]], Texts]:
    """Return speaker and text of each reference, and the text of each hypothesis.

    Args:
        known: content of the file `reference`.
    """
    if isinstance(known, list) != hypothesis.lower().endswith(".ctm"):
        raise ValueError(
            f"{reference} and {hypothesis} do not go together: a .ctm needs references with times, "
            "in a .stm, and only these"
        )
    if isinstance(known, list):
        found = words_of(known, hypothesis)
        kept = {s.id: (s.speaker, s.text) for s in known if s.text.upper() != IGNORED}
        for utt_id, (_, text) in kept.items():
            _check_plain(f"{reference}, the segment {utt_id}", text)
        return kept, found
    found = _texts(hypothesis)
    missing, unknown = known.keys() - found.keys(), found.keys() - known.keys()
    if missing or unknown:
        some = ", ".join(sorted(missing or unknown)[:3])
        raise ValueError(
            f"{reference} has {spelled(len(known), 'utterance')} and {hypothesis} "
            f"{len(found)}: {len(missing)} missing, {len(unknown)} unknown ({some}); score the "
            "same utterances"
        )
    is_trn = reference.lower().endswith(".trn")
    for utt_id, text in known.items():
        _check_plain(f"{reference}, {utt_id}", text, re.compile("^[{}]$"))
    return {u: (_trn_speaker(u) if is_trn else "", text) for u, text in known.items()}, found


def _trn_speaker(utt_id: str) -> str:
    """Return what stands before the first hyphen, or else underscore, as sclite does."""
    return utt_id.partition("-" if "-" in utt_id else "_")[0]


def _check_plain(where: str, text: str, marked: re.Pattern[str] = SCLITE) -> None:
    """Refuse sclite's alternatives, which would count as words."""
    if found := next(filter(marked.search, text.split()), None):
        raise DamagedFileError(
            f"{where} has {found!r}: alternatives such as {{ two / three }} are not supported; "
            "leave one of them, and no @"
        )


def words_of(segments: list[Timed], ctm: str) -> Texts:
    """Return the words of a CTM by segment, assigned as by sclite.

    A word belongs to the first segment that ends after the word's middle; after the last segment's
    end, to the last. Unlike in sclite, which never returns to an earlier segment, this holds for
    overlapping words, too.

    Raises:
        ValueError: for a recording without segments.
    """
    lanes: dict[tuple[str, int], list[Timed]] = {}
    for segment in sorted(segments, key=lambda segment: segment.start):
        earlier = lanes.setdefault((nfc(segment.recording), segment.channel), [])
        if earlier and earlier[-1].start == segment.start:
            raise ValueError(
                f"two segments of {segment.recording}, channel {segment.channel + 1}, begin at "
                f"{segment.start} s; correct the .stm"
            )
        earlier.append(segment)
    found: dict[str, list[str]] = {segment.id: [] for segment in segments}
    for (recording, channel), spans in read_ctm(ctm).items():
        lane = nfc(recording), channel
        if lane not in lanes:
            raise ValueError(
                f"{ctm} has words of {recording}, channel {channel + 1}, of which the .stm has no "
                "segment; score the same recordings"
            )
        for span in sorted(spans, key=lambda span: span.start):
            middle = round(span.start + span.seconds / 2, EXACT)
            later = (s for s in lanes[lane] if round(s.start + s.seconds, EXACT) > middle)
            found[next(later, lanes[lane][-1]).id].append(span.label)
    return {utt_id: " ".join(words) for utt_id, words in found.items()}


def _texts(path: str) -> Texts:
    """Read texts by utterance id."""
    found: Texts = {}
    for where, written, text in _rows(path):
        utt_id = nfc(written)  # names of files are decomposed on macOS
        if utt_id in found:
            raise DamagedFileError(f"{where} has {utt_id} twice; ids must be unique")
        found[utt_id] = text
    if not found:
        raise DamagedFileError(f"{path} has no utterance")
    return found


def _rows(path: str) -> list[tuple[str, str, str]]:
    lines = decoded(standard_input(), path).split("\n") if path == "-" else read_lines(path)
    suffix, found = Path(path).suffix.lower(), []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (suffix == ".trn" and line.startswith(";;")):  # a comment
            continue
        where = f"{path}, line {number}"
        if suffix in (".json", ".jsonl"):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DamagedFileError(
                    f"{where} is not valid JSON ({error}); correct it"
                ) from error
            if not (isinstance(row, dict) and {type(row.get(k)) for k in ("id", "text")} == {str}):
                raise DamagedFileError(
                    f"{where} lacks id or text; make the file by: asr-train decode --format json"
                )
            found.append((where, row["id"], row["text"]))
        elif suffix == ".trn":
            trn = TRN.fullmatch(line)
            if trn is None:
                raise DamagedFileError(f"{where} is {line!r}; it must end with an id: (ann-1)")
            _check_plain(where, trn[1])
            found.append((where, trn[2], trn[1]))
        else:
            utt_id, *words = line.split()
            found.append((where, utt_id, " ".join(words)))
    ids = [trn[2] for _, _, text in found if (trn := TRN.fullmatch(text))]
    if suffix != ".trn" and 1 < len(found) == len(set(ids)):
        raise ValueError(
            f"each line of {path} ends with an id in parentheses; name the file so that it ends in "
            ".trn"
        )
    return found


def _speakers(path: str | None, references: dict[str, tuple[str, str]]) -> Texts:
    if path is None:
        return {utt_id: speaker for utt_id, (speaker, _) in references.items()}
    known = _texts(path)
    found = {utt_id: known.get(nfc(utt_id), "") for utt_id in references}
    if lacking := sorted(utt_id for utt_id, speaker in found.items() if not speaker):
        raise ValueError(
            f"{path} has no speaker of {', '.join(lacking[:3])}; each takes a line: ID SPEAKER"
        )
    return found
