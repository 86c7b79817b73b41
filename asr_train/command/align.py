"""Align a folder of recordings with their texts: the times of words and phones.

FOLDER has recordings and, beside each, its text (NAME.lab or NAME.txt), in a sub-folder per speaker
(MFA's layout) or all in one; or NAME.TextGrid with a tier per speaker and the texts as intervals.
BUNDLE is what `make bundle` wrote, or the name of one in the package: english. The output folder
has a TextGrid per recording, for Praat, in the same layout, and words.ctm and phones.ctm of all.

example:
  asr-train align english interviews --output interviews-aligned
"""

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import Any

from asr_train.command.main import complain, complain_of_rates, on_terminal


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="default: FOLDER-aligned")
    parser.add_argument("--jobs", type=int, help="processes (default: one per core)")


def run(options: argparse.Namespace) -> int:
    from asr_train.bundle.folder import align_folder, tiers_of, timed
    from asr_train.bundle.recogniser import Recogniser
    from asr_train.checks import few, spelled
    from asr_train.interop.beside import read_folder
    from asr_train.interop.ctm import write_ctm
    from asr_train.interop.textgrid import write_textgrid

    if options.jobs is not None:
        os.environ["JOBS"] = str(options.jobs)
    output = options.output or options.folder.resolve().with_name(
        f"{options.folder.resolve().name}-aligned"
    )
    items, problems, left_out = read_folder(options.folder)
    for problem in problems:
        complain("align", problem)
    if not items:
        raise ValueError(
            f"no recording in {options.folder} can be aligned; put its text beside it, as "
            "NAME.lab, NAME.txt or NAME.TextGrid"
        )
    for item in items:
        if _is_in(output / f"{item.name}.TextGrid", [item.text]):
            raise ValueError(f"the output would replace {item.text}; name another folder")
    recogniser = Recogniser.load(options.bundle, confidences=False)
    words, phones, seconds = [], [], 0.0
    low: dict[Path, int] = {}  # recordings and their rates
    unadapted: dict[str, tuple[Path, str]] = {}  # by speaker: a recording and the reason
    for name, texts in left_out.items():
        path = output / f"{name}.TextGrid"
        if not _is_in(path, texts):
            path.unlink(missing_ok=True)  # an earlier call's, when it was not left out
    left = Counter(item.name for item in items)
    aligned: dict[str, list[Any]] = {}  # the parts of recordings that others are still to come of
    for item, found in align_folder(recogniser, items, on_terminal("aligning")):
        left[item.name] -= 1
        if isinstance(found, ValueError):
            complain("align", str(found))
            problems.append(str(found))
        else:
            spans = timed(item, found)
            aligned.setdefault(item.name, []).append((item, spans))
            words.append(spans["words"])
            phones.append(spans["phones"])
            seconds += found.seconds
            if found.unadapted:
                unadapted.setdefault(item.speaker, (item.audio, found.unadapted))
            if found.rate < recogniser.sample_rate:
                low[item.audio] = found.rate
        if not left[item.name]:
            path = output / f"{item.name}.TextGrid"
            path.unlink(missing_ok=True)  # an earlier call's, of what was there then
            try:
                if parts := aligned.pop(item.name, None):
                    write_textgrid(path, tiers_of(parts), recogniser.shift_seconds / 2)
            except ValueError as error:  # of intervals that overlap
                complain("align", str(error))
                problems.append(str(error))
    write_ctm(output / "words.ctm", words)
    write_ctm(output / "phones.ctm", phones)
    complain_of_rates("align", low, recogniser.sample_rate, "times are less exact")
    if unadapted:
        (audio, why), *others = unadapted.values()
        more = f", and {spelled(len(others), 'speaker')} more" if others else ""
        complain(
            "align",
            f"the speaker of {audio} has no transform ({why}){more}: times are less exact",
        )
    speakers = len({item.speaker for item in items})
    guessed = sorted(recogniser.guessed)
    more = f"; pronounced by rule, in no dictionary: {few(guessed)}" if guessed else ""
    what = "recording" if len(left) == len(items) else "utterance"
    print(
        f"align: {len(words)} of {spelled(len(items), what)} of "
        f"{spelled(speakers, 'speaker')}, {seconds / 60:.1f} minutes: {output}{more}"
    )
    return 1 if problems else 0


def _is_in(path: Path, texts: list[Path]) -> bool:
    names = {str(text.resolve()).casefold() for text in texts}  # .textgrid, too
    return str(path.resolve()).casefold() in names
