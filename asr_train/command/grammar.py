"""Make a bundle that recognises other words, with the same model: no training is needed.

BUNDLE is what `make bundle` wrote, or the name of one in the package. The new bundle recognises

  --words   any sequence of these words
  --text    text like these sentences, one per line: an n-gram model is trained on them
  --arpa    what an n-gram model in ARPA format allows

Words are looked up in the lexicon given, then as in the bundle's recipe.

example:
  asr-train grammar english switch.tar --words LIGHT ON OFF KITCHEN BEDROOM
  asr-train grammar english menu.tar --text orders.txt --lexicon dishes.txt
"""

import argparse
from dataclasses import fields
from pathlib import Path


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("output", metavar="OUT.tar", type=Path)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--words", nargs="+", metavar="WORD", action="extend", default=[])
    kind.add_argument("--text", nargs="+", metavar="FILE", type=Path, action="extend", default=[])
    kind.add_argument("--arpa", metavar="FILE", type=Path, help="plain or .gz")
    parser.add_argument(
        "--lexicon", metavar="FILE", type=Path, help="lines of WORD PHONE PHONE ..."
    )
    parser.add_argument("--order", type=int, default=3, help="order of --text's n-gram model (3)")
    parser.add_argument(
        "--prune",
        type=float,
        default=1e-8,
        help="threshold of entropy pruning of --text's model, as of SRILM's -prune (1e-8); 0: none",
    )
    parser.add_argument(
        "--min-words",
        type=int,
        choices=[0, 1],
        default=1,
        help="fewest words in a sequence of --words (1); 0: a recording may have none",
    )
    parser.add_argument(
        "--max-words", type=int, help="most words in a sequence, 1 or more (default: no limit)"
    )
    parser.add_argument("--acoustic-scale", type=float, help="default: the bundle's")
    parser.add_argument(
        "--insertion-penalty", type=float, help="cost per word in nats; default: the bundle's"
    )


def run(options: argparse.Namespace) -> int:
    from asr_train.bundle.grammar import Wanted, change_grammar
    from asr_train.bundle.store import bundle_files
    from asr_train.checks import few, keep_inputs

    files = [str(path) for path in (options.arpa, options.lexicon, *options.text) if path]
    keep_inputs(str(options.output), *bundle_files(options.bundle), *files)
    wanted = Wanted(**{each.name: getattr(options, each.name) for each in fields(Wanted)})
    manifest, lexicon = change_grammar(
        options.bundle, options.output, wanted, options.acoustic_scale, options.insertion_penalty
    )
    size = sum(part["bytes"] for part in manifest["parts"])
    graph = manifest["graph"]
    missing, guessed = lexicon.missing, lexicon.guessed
    lost = f"; without pronunciation, left out: {few(missing)}" if missing else ""
    lost += f"; pronounced by rule, in no dictionary: {few(guessed)}" if guessed else ""
    print(
        f"grammar: {graph['nodes']} nodes, {graph['arcs']} arcs, {size / 1e6:.1f} MB: "
        f"{options.output}{lost}"
    )
    return 0
