"""Kaldi's archives (interop.ark) -> our features, alignments and scores, an utterance at a time.

    feats.ark + manifests/SPLIT.jsonl.gz --import_feats-->  feats/SPLIT.jsonl.gz
    ali.*.gz  + feats/SPLIT.jsonl.gz     --import_ali-->    ali/SPLIT.jsonl.gz
    scores.ark + states.json             --import_scores--> exp/RUN/model.json

A state id here is a pdf-id in Kaldi. `scripts/export.py` writes features, alignments and scores by
`ark.write_matrices` and `ark.write_int_vectors`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from lhotse import MonoCut

from asr_train.align.table import write_alignments
from asr_train.align.viterbi import Aligned, Lost
from asr_train.checks import few, too_many_lost
from asr_train.data.features import Feats, Sums, folder_of, listed, write_h5, write_index
from asr_train.data.intake import without_marks
from asr_train.files import part, replacing, replacing_folder, write_json, write_jsonl
from asr_train.interop.ark import Keyed, read_int_vectors, read_matrices
from asr_train.interop.kaldi_states import TransitionIds, about_states
from asr_train.lang.states import States
from asr_train.schema import FeatsSettings

UTTERANCES_A_PART = 200
MAX_LOST_SHARE = 0.05  # of the utterances, which may lack an alignment


def _read(
    read: Callable[[Path | str], Keyed], archives: Iterable[Path | str]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield archives' arrays: what errors call each, its id in manifests here, and the array.

    Raises:
        ValueError: if an id is in two archives, or two of Kaldi's ids have the same one here.
    """
    known: dict[str, str] = {}
    for archive in archives:
        for key, array in read(archive):
            where, name = f"{archive}: {key}", without_marks(key)
            if name in known:
                raise ValueError(f"{known[name]} and {where} are both {name} here; keep one")
            known[name] = where
            yield where, name, array


# --- features -----------------------------------------------------------------------------------


def import_feats(
    archive: Path | str, cuts: list[MonoCut], settings: FeatsSettings, manifest: Path | str
) -> tuple[int, int]:
    """Store the matrices of an archive as the features of these cuts.

    Args:
        archive: .ark, .ark.gz or .scp, in any order.
        settings: how they were computed; rate and bins hold for all further stages.
        manifest: feats/SPLIT.jsonl.gz, written last.
    Returns:
        Frames stored, and utterances of the archive without a cut.
    Raises:
        ValueError: if a cut has no features, or they have another width, values that are not
            finite, or a number of frames that Kaldi's edges do not explain.
    """
    manifest = Path(manifest)
    folder = folder_of(manifest)
    by_id = {cut.id: cut for cut in cuts}
    rows: dict[str, dict[str, Any]] = {}
    parts: list[Path] = []
    sums: dict[str, Sums] = {}
    others = 0

    def wanted() -> Iterator[tuple[MonoCut, np.ndarray]]:
        nonlocal others
        for where, key, feats_TF in _read(read_matrices, [archive]):
            if key not in by_id:
                others += 1
                continue
            _check_feats(where, feats_TF, by_id[key].duration, settings)
            yield by_id[key], feats_TF

    stream = wanted()
    with replacing_folder(folder, _is_of_feats) as scratch:
        while some := list(islice(stream, UTTERANCES_A_PART)):
            parts.append(folder / f"part-{len(parts):05d}.h5")
            write_h5(scratch / parts[-1].name, {cut.id: feats_TF for cut, feats_TF in some})
            rows |= {row["id"]: row for row in listed(parts[-1], some, settings, "kaldi", sums)}
        if missing := sorted(by_id.keys() - rows.keys()):
            raise ValueError(
                f"{archive} lacks {len(missing)} of {len(by_id)} utterances, the first is "
                f"{missing[0]}; compute their features too, or remove them from the manifest"
            )
        manifest.unlink(missing_ok=True)  # of an earlier import, whose parts are replaced now
    index = write_index(manifest, settings, parts, [sums])
    write_jsonl(manifest, (rows[cut.id] for cut in cuts))
    return index["frames"], others


def _is_of_feats(file: Path) -> bool:
    return file.name == "index.json" or file.match("*part-*.h5")


def _check_feats(where: str, feats_TF: np.ndarray, seconds: float, settings: FeatsSettings) -> None:
    _check_some(where, feats_TF)
    if feats_TF.shape[1] != settings.num_mels:
        raise ValueError(
            f"{where} has {feats_TF.shape[1]} columns but feats.num_mels is {settings.num_mels}; "
            "set it to the archive's width"
        )
    _check_finite(where, feats_TF, "column")
    expected = int(seconds / settings.shift_seconds + 0.5)
    edges = math.ceil(settings.window_seconds / settings.shift_seconds)  # lost by snip-edges=true
    last_start = (len(feats_TF) - 1) * settings.shift_seconds  # of the last frame, within the audio
    if len(feats_TF) < expected - edges or last_start > seconds - 1e-6:
        raise ValueError(
            f"{where} has {len(feats_TF)} frames, but {seconds:.3f} s make {expected} at a shift "
            f"of {settings.shift_seconds} s; are these features of this recording?"
        )


def _check_some(where: str, matrix: np.ndarray) -> None:
    if not matrix.size:
        raise ValueError(f"{where} has no frames; compute it again, or remove the utterance")


def _check_finite(where: str, matrix: np.ndarray, column: str) -> None:
    for t, c in np.argwhere(~np.isfinite(matrix))[:1]:
        raise ValueError(f"{where}: frame {t}, {column} {c} is {matrix[t, c]}; compute it again")


# --- alignments ---------------------------------------------------------------------------------


def import_ali(
    archive: Path | str,
    feats: Feats,
    about: dict[str, Any],
    manifest: Path | str,
    states: States | None = None,
) -> tuple[int, int, int]:
    """Store pdf-ids, or transition-ids, as the alignment of these features.

    Args:
        archive: integers of each utterance: text or binary, one archive or a folder of ali.*.gz.
        about: entries of the index on the states of the model that aligned: num_states,
            states_hash, and self_loops, which are counted if they are missing.
        manifest: ali/SPLIT.jsonl.gz, written last.
        states: Kaldi's, if the integers are transition-ids; None: they are pdf-ids (`ali-to-pdf`).
    Returns:
        Utterances with an alignment, and without; and those of the first whose phones are known,
        but not where their words are: other words than the transcript's, or phones without
        positions in words.
    Raises:
        ValueError: for ids that the states have not, another number of frames than the features',
            or too many utterances without alignment.
    """
    num_states = about["num_states"]
    paths: dict[str, Aligned] = {}
    utterances = {u.id: u for u in feats}
    ids = None if states is None else TransitionIds.of(states)
    for where, key, ids_T in _read(read_int_vectors, _archives(Path(archive))):
        if key not in utterances:
            continue
        if len(ids_T) != (frames := utterances[key].frames):
            raise ValueError(
                f"{where} has {len(ids_T)} frames but its features have {frames}; "
                "import the features that were aligned, or align these"
            )
        if ids is None:
            _check_ids(where, ids_T, num_states)
            paths[key] = _path(ids_T)
        else:
            paths[key] = ids.path(where, ids_T, utterances[key].words.split())
    outcomes: list[Aligned | Lost] = [paths.get(u.id) or Lost(f"not in {archive}") for u in feats]
    lost = [u.id for u in feats if u.id not in paths]
    if too_many_lost(len(lost), len(outcomes), MAX_LOST_SHARE):
        raise ValueError(
            f"{archive} has no alignment of {len(lost)} of {len(outcomes)} utterances "
            f"({few(lost)}), more than {MAX_LOST_SHARE:.0%} of them; name the archive of this "
            "split, align the rest in Kaldi, or leave these utterances out of its data folder"
        )
    loops = about.get("self_loops")
    if loops is None:
        loops = self_loops([p.states_T for p in paths.values()], num_states).tolist()
    about = {**about, "self_loops": loops, "model": f"imported from {Path(archive).name}"}
    write_alignments(Path(manifest), feats.utterances, outcomes, feats.settings, states, about)
    if states is None:
        return len(paths), len(lost), 0
    wordless = {key for key, path in paths.items() if not (path.phones_N3[:, 2] >= 0).any()}
    return len(paths), len(lost), sum(bool(utterances[key].words.split()) for key in wordless)


def _archives(path: Path) -> list[Path]:
    """Return one archive, or all ali.*.gz of a folder, which Kaldi's alignment scripts write."""
    archives = sorted(path.glob("ali.*.gz")) if path.is_dir() else [path]
    if not archives:
        raise ValueError(
            f"{path} has no ali.*.gz; name a folder of steps/align_*.sh, or an archive"
        )
    return archives


def _path(states_T: np.ndarray) -> Aligned:
    """Return a path with states but unknown phones."""
    unknown = np.zeros(len(states_T), np.int8), np.zeros((0, 3), np.int32)
    return Aligned(states_T, *unknown, math.nan, False)


def _check_ids(where: str, states_T: np.ndarray, num_states: int) -> None:
    if len(states_T) and not 0 <= states_T.min() <= states_T.max() < num_states:
        raise ValueError(
            f"{where} has the ids {states_T.min()} to {states_T.max()} but the states are 0 to "
            f"{num_states - 1}; are these transition-ids? Import the model's states and name "
            "states.json in place of the number, or convert them with Kaldi's ali-to-pdf"
        )


def self_loops(paths: list[np.ndarray], num_states: int) -> np.ndarray:
    """Estimate each state's self-loop probability from counts: float64 [S].

    One is added to both counts, so that an unseen state gets 1/2.
    """
    stay_S, all_S = np.ones(num_states), np.full(num_states, 2.0)
    for path_T in paths:
        before_T, after_T = path_T[:-1], path_T[1:]
        all_S += np.bincount(before_T, minlength=num_states)
        stay_S += np.bincount(before_T[before_T == after_T], minlength=num_states)
    return stay_S / all_S


# --- scores -------------------------------------------------------------------------------------


def import_scores(archives: Sequence[Path | str], states: States, path: Path | str) -> int:
    """Store scores of another program's network as a model that decodes with these states.

    Args:
        archives: of all splits to decode: .ark, .ark.gz or .scp, in any order; per utterance
            log-likelihoods in nats, [T, S]: log posteriors minus log priors.
        path: exp/RUN/model.json, written last; scores.h5 is beside it.
    Returns:
        Utterances stored.
    Raises:
        ValueError: for another number of columns than pdf-ids, scores that are not finite, or an
            utterance that is in two archives.
    """
    import h5py

    path = Path(path)
    store = path.with_name("scores.h5")
    with replacing(store) as scratch, h5py.File(scratch, "w") as file:
        for where, key, scores_TS in _read(read_matrices, archives):
            _check_some(where, scores_TS)
            if scores_TS.shape[1] != states.num_states:
                raise ValueError(
                    f"{where} has {scores_TS.shape[1]} columns but the model has "
                    f"{states.num_states} pdf-ids; take states and scores of the same model"
                )
            _check_finite(where, scores_TS, "pdf-id")
            file.create_dataset(key, data=scores_TS)
        count = len(file)
    about = {"kind": "scores", "run": path.parent.name, "file": part(store, path.parent)}
    write_json(path, {**about, "feats": {}, **about_states(states)})
    return count
