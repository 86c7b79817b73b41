"""import_kaldi.py KIND INPUT... OUTPUT

Import what Kaldi made. KIND, its inputs and its output:
  data   DATA_DIR...  OUT_FOLDER      a corpus for `make folder CORPUS_DIR=OUT_FOLDER`
  feats  ARCHIVE  manifests/SPLIT.jsonl.gz  conf/feats.yaml  feats/SPLIT.jsonl.gz
  ali    ARCHIVE  STATES  feats/SPLIT.jsonl.gz  ali/SPLIT.jsonl.gz
ARCHIVE is .ark, .ark.gz or .scp; alignments are pdf-ids (by ali-to-pdf), also as text. STATES is
their number, or an ali/OTHER.jsonl.gz with the same states: another split's, or an exported one's.
"""

import asr_train.interrupt  # noqa: F401

# isort: split
from pathlib import Path
from typing import Any

from lhotse import CutSet

from asr_train.align.table import open_ali
from asr_train.data.features import open_feats
from asr_train.files import read_json, read_jsonl
from asr_train.interop.kaldi import read_data_dir, write_folder
from asr_train.interop.stores import import_ali, import_feats
from asr_train.jobs import main
from asr_train.schema import FeatsSettings, load


def import_kaldi(kind: str, *paths: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"there is no import of {kind!r}; there are: {', '.join(KINDS)}")
    if (kind == "data" and len(paths) < 2) or (kind != "data" and len(paths) != 4):
        raise ValueError(f"an import of {kind} takes other paths; see import_kaldi.py --help")
    KINDS[kind](*paths)


def data(*paths: str) -> None:
    *folders, output = paths
    for note in write_folder([read_data_dir(folder) for folder in folders], output):
        print(f"import: {note}")
    print(f"import: next, make folder CORPUS_DIR={output}")


def feats(archive: str, manifest: str, conf: str, output: str) -> None:
    cuts = list(CutSet.from_dicts(read_jsonl(manifest)))
    frames, others = import_feats(archive, cuts, load(FeatsSettings, conf), output)
    rest = f"; {others} more in the archive are not in the manifest" if others else ""
    print(f"import: {frames} frames of {len(cuts)} utterances{rest}")


def ali(archive: str, states: str, features: str, output: str) -> None:
    model = None if states.isdigit() else _states_of(states)
    num_states = int(states) if model is None else int(model["num_states"])
    aligned, lost = import_ali(archive, open_feats(features), num_states, output, model)
    table = Path(output).name.replace(".jsonl.gz", ".status.tsv")
    rest = f", {lost} have none (see {table})" if lost else ""
    print(f"import: alignments of {aligned} utterances{rest}")


def _states_of(manifest: str) -> dict[str, Any]:
    """Return what an alignment's index has about its states."""
    if not manifest.endswith(".jsonl.gz"):
        raise ValueError(f"{manifest} is neither a number of states nor an ali/OTHER.jsonl.gz")
    open_ali(manifest)  # raises if it is damaged
    index = read_json(Path(manifest.removesuffix(".jsonl.gz")) / "index.json")
    return {key: value for key, value in index.items() if key != "parts"}


KINDS = {"data": data, "feats": feats, "ali": ali}


if __name__ == "__main__":
    main(import_kaldi, __doc__)
