"""export.py KIND INPUT... OUTPUT

Export for other tools. KIND, its inputs and its output:
  data        manifests/SPLIT.jsonl.gz  DATA_DIR            Kaldi's data folder
  feats       feats/SPLIT.jsonl.gz  OUT.ark                 and OUT.scp
  ali         ali/MODEL/SPLIT.jsonl.gz  OUT.txt or OUT.ark        state ids, Kaldi's pdf-ids
  posteriors  exp/RUN/model.json  feats/SPLIT.jsonl.gz  OUT.ark   for latgen-faster-mapped
  ctm         ali/MODEL/SPLIT.jsonl.gz  OUT.ctm                   words at their times
  ctm         exp/RUN/hyp.SPLIT.jsonl  manifests/SPLIT.jsonl.gz  OUT.ctm
  phones      ali/MODEL/SPLIT.jsonl.gz  OUT.ctm                   phones at their times
  stm         manifests/SPLIT.jsonl.gz  OUT.stm             references, for sclite
  textgrid    ali/MODEL/SPLIT.jsonl.gz  OUT_DIR                   a TextGrid per utterance
OUT_DIR may have other files, and keeps them. DATA_DIR may be one of an earlier export.
"""

import asr_train.interrupt  # noqa: F401

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lhotse import CutSet

from asr_train.align.table import Alignments
from asr_train.checks import keep_inputs, spelled
from asr_train.data.corpus import read_cuts
from asr_train.data.features import open_feats
from asr_train.decode.posteriors import load_scorer
from asr_train.files import iter_jsonl, read_jsonl
from asr_train.interop.ark import write_int_vectors, write_matrices
from asr_train.interop.ctm import write_ctm, write_stm
from asr_train.interop.kaldi import write_data_dir
from asr_train.interop.textgrid import write_textgrid
from asr_train.interop.times import Timed, aligned, found, is_wordless, place_of
from asr_train.jobs import main, progress


def export(kind: str, *paths: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"there is no export of {kind!r}; known: {', '.join(KINDS)}")
    counts, function = KINDS[kind]
    if len(paths) not in counts:
        wanted = " or ".join(str(count) for count in counts)
        raise ValueError(
            f"an export of {kind} takes {wanted} paths, not {len(paths)}; --help says which"
        )
    *inputs, output = paths
    keep_inputs(output, *inputs)
    if output.endswith((".jsonl", ".jsonl.gz")):
        raise ValueError(f"{output} has the name of a manifest; name the output after it")
    function(*paths)


def data(manifest: str, output: str) -> None:
    cuts = list(CutSet.from_dicts(read_cuts(manifest)))
    for note in write_data_dir(cuts, output):
        print(f"export: {note}")
    print(f"export: {spelled(len(cuts), 'utterance')} in {output}")


def feats(manifest: str, output: str) -> None:
    store = open_feats(manifest)
    utterances = progress(store, "features", len(store.utterances))
    count = write_matrices(output, ((u.id, store.load(u)) for u in utterances))
    frames = sum(utterance.frames for utterance in store.utterances)
    print(f"export: {frames} frames of {spelled(count, 'utterance')} in {output}")


def ali(manifest: str, output: str) -> None:
    store = Alignments(manifest)
    order = sorted(store.ids, key=str.encode)  # as Kaldi's tools need
    count = write_int_vectors(output, ((utt_id, store.load(utt_id)) for utt_id in order))
    print(f"export: {spelled(count, 'utterance')}, pdf-ids below {store.num_states}, in {output}")


def posteriors(model: str, features: str, output: str) -> None:
    torch.set_num_threads(1)
    store = open_feats(features)
    scorer = load_scorer(model, store, None)
    if scorer.first is not None:
        raise ValueError(
            f"{model} reads frames adapted to speakers by first passes of {scorer.first.run}, "
            "which are part of decoding; export the posteriors of a network on log-mel "
            "(shards.inputs=logmel)"
        )
    if scorer.adapt is not None:
        print(f"export: {scorer.run}: scores of a first pass, without speaker adaptation")
    scores = ((u.id, scorer.score(u)) for u in progress(store, "scores", len(store.utterances)))
    count = write_matrices(output, scores)
    print(
        f"export: scores of {scorer.num_states} states, {spelled(count, 'utterance')}, in {output}"
    )


def ctm(*paths: str) -> None:
    if len(paths) == 2:
        return _aligned("word", *paths)
    hyp, manifest, output = paths
    rows = {row["id"]: row for row in _rows(manifest)}
    utterances = []
    for row in read_jsonl(hyp)[1:]:  # the first line holds the settings
        if row["id"] not in rows:
            raise ValueError(f"{hyp} has {row['id']}, which {manifest} has not; decode again")
        utterances.append(found(row, rows[row["id"]]))
    _written(utterances, output)


def _rows(manifest: str) -> Iterator[dict[str, Any]]:
    for row in iter_jsonl(manifest):
        if "supervisions" not in row:
            raise ValueError(
                f"{manifest} is no manifest: {row.get('id', 'its first line')} has no "
                "supervisions; take manifests/SPLIT.jsonl.gz or ali/MODEL/SPLIT.jsonl.gz"
            )
        yield row


def phones(manifest: str, output: str) -> None:
    _aligned("phone", manifest, output)


def _aligned(kind: str, manifest: str, output: str) -> None:
    rows = list(_rows(manifest))
    timed = [row for row in rows if kind == "phone" or not is_wordless(row)] or rows
    if wordless := len(rows) - len(timed):
        print(f"export: {wordless} of {len(rows)} utterances have no times of words; left out")
    _written([aligned(row, kind) for row in timed], output)


def _written(utterances: list[Timed], output: str) -> None:
    count = write_ctm(output, utterances)
    print(
        f"export: {spelled(count, 'line')} of {spelled(len(utterances), 'utterance')} in {output}"
    )


def stm(manifest: str, output: str) -> None:
    count = write_stm(output, (place_of(row) for row in _rows(manifest)))
    print(f"export: {spelled(count, 'utterance')} in {output}")


def textgrid(manifest: str, output: str) -> None:
    count = sum(1 for row in _rows(manifest) if _tiers(row))  # all, before the first file
    for row in progress(_rows(manifest), "TextGrids", count):
        write_textgrid(Path(output) / f"{row['id']}.TextGrid", _tiers(row))
    print(f"export: {spelled(count, 'TextGrid')} in {output}")


def _tiers(row: dict[str, Any]) -> dict[str, Timed]:
    words = {} if is_wordless(row) else {"words": aligned(row, "word")}
    return words | {"phones": aligned(row, "phone")}


KINDS: dict[str, tuple[tuple[int, ...], Callable[..., None]]] = {
    "data": ((2,), data),
    "feats": ((2,), feats),
    "ali": ((2,), ali),
    "posteriors": ((3,), posteriors),
    "ctm": ((2, 3), ctm),
    "phones": ((2,), phones),
    "stm": ((2,), stm),
    "textgrid": ((2,), textgrid),
}


if __name__ == "__main__":
    main(export, __doc__)
