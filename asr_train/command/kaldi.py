"""Exchange data, features, alignments and scores with Kaldi.

import and export take the arguments of scripts/import_kaldi.py and scripts/export.py, which docs/
kaldi.md describes; `asr-train kaldi import --help` lists what there is. An imported data folder is
a corpus for `asr-train recipe folder`.

example:
  asr-train kaldi import data s5/data/train s5/data/test corpus
  asr-train kaldi export ctm folder-work/ali/dnn/dev.jsonl.gz dev.ctm
  asr-train kaldi export stm folder-work/manifests/test.jsonl.gz test.stm
"""

import argparse

from asr_train.command.main import script

SCRIPTS = {"import": "import_kaldi", "export": "export"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("direction", choices=SCRIPTS)
    parser.add_argument("rest", metavar="ARGUMENT", nargs=argparse.REMAINDER)


def run(options: argparse.Namespace) -> int:
    asked = {"-h", "--help"} & {*options.rest}  # also after a KIND
    return script(SCRIPTS[options.direction], *(["--help"] if asked else options.rest))
