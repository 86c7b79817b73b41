"""Write a bundle's network as ONNX, to score frames with another program.

The network takes log-mel frames, and returns log posteriors minus log priors, in nats. The file's
metadata has the context, the stride, and how frames are made and normalised; see docs/use.md.

example:
  asr-train export digits digits.onnx
"""

import argparse

from asr_train.bundle.store import bundle_files, open_bundle
from asr_train.checks import keep_inputs
from asr_train.decode.onnx import export_onnx


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", help="path of a bundle, or one of the package")
    parser.add_argument("output", metavar="OUT.onnx")


def run(options: argparse.Namespace) -> int:
    keep_inputs(options.output, *bundle_files(options.bundle))
    with open_bundle(options.bundle) as opened:
        about = export_onnx(opened.model, options.output)
    shown = (f"{key} {value}" for key, value in about.items() if key != "feats")
    print(", ".join(shown) + f": {options.output}")
    return 0
