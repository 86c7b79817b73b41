"""Decode recordings with a bundle.

FILE is a recording (wav, flac, mp3, ogg, ... at any rate), or - for standard input. BUNDLE is what
`make bundle` wrote, or the name of one in the package: english (digits, trained on people's
speech) or digits (trained on synthesised speech).

  text   a line per file: its name without suffix, and its words
  ctm    a line per word: recording, channel, start and duration in seconds, word, confidence
  json   a line per file, with words, times, confidences and alternatives

example:
  asr-train decode english call.wav other.flac
  asr-train decode english --format ctm --output all.ctm recordings/*.mp3
  asr-train decode english --speaker-folders speakers/*/*.wav
"""

import argparse
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from asr_train.checks import keep_inputs, printable
from asr_train.command.main import (
    complain,
    complain_of_rates,
    on_terminal,
    prints_utf_8,
    standard_input,
    told_after,
)

Decoded = list[tuple[str, Any, str]]  # of each file: its name, transcript, and why there is none


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("files", metavar="FILE", nargs="+")
    parser.add_argument("-f", "--format", choices=["text", "ctm", "json"], default="text")
    parser.add_argument("-o", "--output", default="-", help="file to write (-: standard output)")
    parser.add_argument("--channel", type=int, help="from 0; default: the mean of all")
    parser.add_argument(
        "--speaker-folders",
        action="store_true",
        help="the files of a folder are one speaker, normalised and adapted as a whole",
    )
    parser.add_argument("--jobs", type=int, help="processes (default: one per core)")


def run(options: argparse.Namespace) -> int:
    from asr_train.bundle.audio import LEAST_SECONDS, missing_seconds
    from asr_train.bundle.recogniser import Recogniser
    from asr_train.bundle.store import bundle_files
    from asr_train.files import replacing
    from asr_train.interop.beside import SUFFIXES
    from asr_train.jobs import parallel_map

    if options.jobs is not None:
        os.environ["JOBS"] = str(options.jobs)
    to_file = options.output != "-"
    if to_file:
        keep_inputs(options.output, *bundle_files(options.bundle), *options.files)
    if to_file and Path(options.output).suffix.lower() in SUFFIXES:
        raise ValueError(
            f"the output {options.output} has the name of a recording, which it would replace; "
            "name another file after --output"
        )
    recogniser = Recogniser.load(options.bundle, confidences=options.format != "text")
    why = "preparing the search; an installation's first call compiles it, for up to a minute"
    with told_after(5, "decode", why):
        recogniser.prepare()
    stream = io.BytesIO(standard_input()) if "-" in options.files else None

    def speaker(files: list[str]) -> Decoded:
        audible, lost = {}, {}
        for name in files:
            try:
                audio = stream if name == "-" and stream is not None else name
                audible[name] = recogniser.features(audio, channel=options.channel)
            except (ValueError, OSError) as error:
                lost[name] = str(error)
            except (MemoryError, RuntimeError) as error:
                lost[name] = f"{name}: {_too_large(error)}"
        try:
            results = recogniser.transcribe_features([*audible.values()])
        except (ValueError, MemoryError, RuntimeError) as error:  # of all, as one speaker
            why = error if isinstance(error, ValueError) else _too_large(error)
            lost |= {name: f"{name}: {why}" for name in audible}
            audible, results = {}, []
        found = dict(zip(audible, results, strict=True))
        return [(name, found.get(name), lost.get(name, "")) for name in files]

    decoded, low = 0, {}
    earlier = not to_file or os.path.exists(options.output)  # an output that a part may not replace
    names = ids(options.files)
    speakers: dict[str, list[str]] = {}
    for file in names:  # once each
        who = os.path.dirname(file) if options.speaker_folders else file
        speakers.setdefault(who, []).append(file)
    with ExitStack() as opened:
        output = sys.stdout
        if to_file:
            scratch = opened.enter_context(replacing(options.output))
            output = opened.enter_context(
                open(scratch, "w", encoding="utf-8", errors="backslashreplace")
            )
        done = parallel_map(speaker, [*speakers.values()], on_terminal("decoding"))
        try:
            for file, found, why in chain.from_iterable(_until_killed(done, [*speakers.values()])):
                if found is None:
                    complain("decode", why)
                    continue
                if found.rate < recogniser.sample_rate:
                    low[file] = found.rate
                given = stream if file == "-" else file if os.path.isfile(file) else None
                if given is not None and (lacking := missing_seconds(given)) > LEAST_SECONDS:
                    complain(
                        "decode",
                        f"{file} is cut off: {lacking:.2f} s of it are missing, by its header; the "
                        "rest is decoded",
                    )
                if not found.pieces:
                    why = f"{file} is silent, so it has no words"
                    if options.channel is None:
                        why += "; if its channels cancel each other out, choose one by --channel"
                    complain("decode", why)
                if found.unadapted:
                    advice = "add recordings of this speaker to the folder"
                    if not options.speaker_folders:
                        advice = "give all recordings of a speaker in a folder of their own, with "
                        advice += "--speaker-folders"
                    complain(
                        "decode",
                        f"{file} is decoded without a transform of its speaker "
                        f"({found.unadapted}), so expect more errors; {advice}",
                    )
                if options.format == "text":
                    shown = f"{names[file]} {found.text}".rstrip() + "\n"
                elif options.format == "ctm":
                    shown = _ctm(names[file], found, options.channel or 0)
                else:
                    row = _row(names[file], file, found)
                    shown = json.dumps(row, ensure_ascii=not (to_file or prints_utf_8())) + "\n"
                print(shown, end="", file=output, flush=True)
                decoded += 1
        except KeyboardInterrupt:
            if earlier or not decoded:
                raise
            complain("decode", f"interrupted; {options.output} has {decoded} of {len(names)} files")
            return 128 + signal.SIGINT
        if not decoded:
            sys.exit(1)  # within the block, so that an earlier output is kept
    complain_of_rates("decode", low, recogniser.sample_rate, "expect more errors")
    return 1 if decoded < len(names) else 0


def _too_large(error: MemoryError | RuntimeError) -> str:
    """Return what to do for lack of memory, which torch tells in a RuntimeError's text.

    Raises:
        RuntimeError: the error itself, if it has another cause.
    """
    known = isinstance(error, MemoryError) or re.search("allocate memory|out of memory", str(error))
    if not known:
        raise error
    return "there is not enough memory to decode it; set --jobs 1"


def _until_killed(done: Iterable[Decoded], speakers: list[list[str]]) -> Iterator[Decoded]:
    """Yield what worker processes decode; if one is killed, the rest as lost."""
    ended = 0
    try:
        for rows in done:
            yield rows
            ended += 1
    except ChildProcessError as error:
        rest = [file for files in speakers[ended:] for file in files]
        also = f" (nor are {len(rest) - 1} files after it)" if rest[1:] else ""
        yield [(rest[0], None, f"{rest[0]} is not decoded{also}: {error}")]


def ids(files: list[str]) -> dict[str, str]:
    """Return a different name without spaces for each file: its stem, its path without suffix, or
    its path, the first of these that makes all different.

    Raises:
        ValueError: if none does.
    """
    files = [*dict.fromkeys(str(Path(file)) for file in files)]  # ./a.wav is a.wav
    ways: list[Callable[[Path], str]] = [
        lambda path: path.stem,
        lambda path: str(path.with_suffix("")).strip("/"),
        str,
    ]
    for way in ways:
        stems = {f: "stdin" if f == "-" else way(Path(f)) for f in files}
        names = {f: printable("_".join(stem.split()) or "_") for f, stem in stems.items()}
        if len(set(names.values())) == len(files):
            return names
    name = next(name for name in names.values() if [*names.values()].count(name) > 1)
    same = [file for file in files if names[file] == name]
    raise ValueError(f"{' and '.join(same)} would both be called {name}; rename one of them")


def _ctm(name: str, found: Any, channel: int) -> str:
    from asr_train.interop.ctm import ctm_text
    from asr_train.interop.times import Timed

    timed = Timed(name, name, channel, "", 0.0, found.seconds, found.text, found.words)
    return ctm_text([timed])


def _row(name: str, file: str, found: Any) -> dict[str, Any]:
    """Return what JSON has of a recording."""
    return {
        "id": name,
        "file": file,
        "text": found.text,
        "seconds": found.seconds,
        "rate": found.rate,
        "final": found.final,
        "pieces": found.pieces,
        "unadapted": found.unadapted,
        "words": [
            {"word": s.label, "start": s.start, "seconds": s.seconds, "confidence": s.confidence}
            for s in found.words
        ],
        "alternatives": list(found.alternatives),
    }
