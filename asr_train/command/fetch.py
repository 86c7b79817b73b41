"""Download a public corpus: what `make fetch-NAME` does in a checkout.

NAME is fsdd, an4, yesno, mini_librispeech, librispeech or speechocean. FOLDER is data/NAME here
without it, where `asr-train recipe NAME` looks for it. PARTS and LMS in the environment choose the
parts and language models of LibriSpeech, FETCH_URL a mirror.

example:
  asr-train fetch fsdd
  PARTS='train-clean-100 dev-clean' LMS=4-gram asr-train fetch librispeech /corpora/librispeech
"""

import argparse

from asr_train.command.main import script


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("folder", metavar="FOLDER", nargs="?")


def run(options: argparse.Namespace) -> int:
    return script("fetch", options.name, options.folder or f"data/{options.name}")
