"""import_kaldi.py KIND INPUT... OUTPUT

Import what Kaldi made. KIND, its inputs and its output:
  data   DATA_DIR...  OUT_FOLDER      a corpus for `make folder CORPUS_DIR=OUT_FOLDER`
  feats  ARCHIVE  manifests/SPLIT.jsonl.gz  conf/feats.yaml  feats/SPLIT.jsonl.gz
  states MODEL_DIR  LANG_DIR  states.json     tree and final.mdl; phones.txt
  ali    ARCHIVE  STATES  feats/SPLIT.jsonl.gz  ali/SPLIT.jsonl.gz
  lang   LEXICON  states.json  lang/index.json  OUT/index.json
  scores ARCHIVE...  states.json  exp/RUN/model.json    log-likelihoods of a network, to decode
ARCHIVE is .ark, .ark.gz or .scp; of alignments also text, or a folder with ali.*.gz. STATES is a
states.json if they are transition-ids. If they are pdf-ids (by ali-to-pdf), it is their number, or
an ali/OTHER.jsonl.gz with the same states: another split's, or an exported one's. LEXICON is a
lexicon.txt or lexiconp.txt; words and grammar are those of lang/index.json.
"""

import asr_train.interrupt  # noqa: F401

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lhotse import CutSet

from asr_train.align.table import Alignments
from asr_train.checks import keep_inputs, spelled
from asr_train.data.corpus import read_cuts
from asr_train.data.features import open_feats
from asr_train.files import hash_of
from asr_train.interop import kaldi_states
from asr_train.interop.kaldi import read_data_dir, write_folder
from asr_train.interop.stores import import_ali, import_feats, import_scores
from asr_train.jobs import main
from asr_train.lang.index import Lang, grammar_words, load_lang, write_lang
from asr_train.schema import FeatsSettings, load


def import_kaldi(kind: str, *paths: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"there is no import of {kind!r}; known: {', '.join(KINDS)}")
    least, most, function = KINDS[kind]
    if not least <= len(paths) <= most:
        wanted = str(least) if least == most else f"{least} or more"
        raise ValueError(
            f"an import of {kind} takes {wanted} paths, not {len(paths)}; --help says which"
        )
    keep_inputs(paths[-1], *paths[:-1])
    function(*paths)


def data(*paths: str) -> None:
    *folders, output = paths
    for note in write_folder([read_data_dir(folder) for folder in folders], output):
        print(f"import: {note}")
    corpus = f"CORPUS_DIR={output}"
    print(f"import: next, make folder {corpus} (without a clone: asr-train recipe folder {corpus})")


def feats(archive: str, manifest: str, conf: str, output: str) -> None:
    _check_manifest(output)
    cuts = list(CutSet.from_dicts(read_cuts(manifest)))
    frames, others = import_feats(archive, cuts, load(FeatsSettings, conf), output)
    rest = f"; {others} more in the archive are not in the manifest" if others else ""
    print(f"import: {frames} frames of {spelled(len(cuts), 'utterance')}{rest}")


def states(model_dir: str, lang_dir: str, output: str) -> None:
    found = kaldi_states.states_of(model_dir, lang_dir)
    kaldi_states.write_states(output, found)
    assert found.hmms is not None
    print(
        f"import: {found.num_states} pdf-ids of {spelled(len(found.phones), 'phone')} with "
        f"{spelled(len(set(found.hmms.topology_P)), 'kind')} of HMM in {output}"
    )


def ali(archive: str, states: str, features: str, output: str) -> None:
    _check_manifest(output)
    known = None
    if states.endswith(".json"):
        known = kaldi_states.read_states(states)
        about = kaldi_states.about_states(known)
    elif states.isdigit():
        about = {"num_states": int(states), "states_hash": hash_of(["pdf-ids", int(states)])}
    else:
        about = _states_of(states)
    aligned, lost, wordless = import_ali(archive, open_feats(features), about, output, known)
    table = Path(output).name.replace(".jsonl.gz", ".status.tsv")
    rest = f", {lost} without (see {table})" if lost else ""
    if wordless:
        rest += (
            f"; {wordless} without times of words: other words than the transcript's, or phones "
            "without positions in words (_B, _E, _I, _S)"
        )
    print(f"import: alignments of {spelled(aligned, 'utterance')}{rest}")


def lang(lexicon: str, states: str, language: str, output: str) -> None:
    ours, kaldis = load_lang(language), kaldi_states.read_states(states)
    wanted = {*ours.lexicon.prons, *ours.lexicon.missing, *grammar_words(ours.grammar, ours.arpa)}
    found = kaldi_states.lexicon_of(lexicon, kaldis, wanted)
    known = found.lexicon.prons
    if not known:
        raise ValueError(
            f"{lexicon} has none of the {len(wanted)} words of {language}; words are compared in "
            "upper case"
        )
    grammar = replace(ours.grammar, words=[w for w in ours.grammar.words if w in known])
    phones = kaldis.monophones
    write_lang(output, Lang(found.lexicon, phones, grammar, ours.arpa, ours.silence_probability))
    lost = []
    if missing := found.lexicon.missing:
        lost.append(f"{len(missing)} without pronunciation ({', '.join(missing[:SHOWN])})")
    if found.silent:
        lost.append(f"{spelled(found.silent, 'pronunciation')} with silence left out")
    if found.weighed:
        lost.append(f"variants of {spelled(found.weighed, 'word')} had other probabilities")
    print("; ".join([f"import: {spelled(len(known), 'word')} in {output}", *lost]))


def scores(*paths: str) -> None:
    *archives, states, output = paths
    count = import_scores(archives, kaldi_states.read_states(states), output)
    print(f"import: scores of {count} utterances in {Path(output).with_name('scores.h5')}")


def _check_manifest(output: str) -> None:
    if not output.endswith(".jsonl.gz"):
        raise ValueError(f"{output} is to be a manifest, so its name must end with .jsonl.gz")


def _states_of(manifest: str) -> dict[str, Any]:
    """Return what an alignment's index has about its states."""
    if not manifest.endswith(".jsonl.gz"):
        raise ValueError(
            f"{manifest} is neither a number of states nor an ali/OTHER.jsonl.gz nor a states.json"
        )
    found = Alignments(manifest)
    return {key: getattr(found, key) for key in ("num_states", "states_hash", "self_loops")}


SHOWN = 10  # words without pronunciation to print
MANY = 10**6
KINDS: dict[str, tuple[int, int, Callable[..., None]]] = {  # fewest and most paths
    "data": (2, MANY, data),
    "feats": (4, 4, feats),
    "states": (3, 3, states),
    "ali": (4, 4, ali),
    "lang": (4, 4, lang),
    "scores": (3, MANY, scores),
}


if __name__ == "__main__":
    main(import_kaldi, __doc__)
