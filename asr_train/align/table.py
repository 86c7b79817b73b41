"""`ali/SPLIT.jsonl.gz`: state paths of all utterances, their status, and their quality.

The manifest is lhotse's: the cuts of the features manifest, each with a temporal array `ali`.
Beside it are a table of all utterances, including lost ones, and a report.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asr_train import files
from asr_train.align.speakers import FILE as FMLLR
from asr_train.align.speakers import Speakers, load_speakers, write_speakers
from asr_train.align.viterbi import Aligned, Lost, Outcome
from asr_train.checks import too_many_lost
from asr_train.data.features import Utterance, folder_of, open_h5, write_h5
from asr_train.lang.lexicon import SILENCE
from asr_train.lang.states import States
from asr_train.schema import FeatsSettings

LONG = 40  # frames of one phone; more are suspicious
SAME = {"AX": "AH"}  # phones that count as equal, beside those that differ in case or stress
Segment = tuple[str, float, float]  # phone, start and end in seconds


def write_alignments(
    manifest: Path,
    utterances: list[Utterance],
    outcomes: list[Outcome],
    feats: FeatsSettings,
    states: States | None,
    about: dict[str, Any],
    speakers: Speakers | None = None,
) -> None:
    """Write paths, status table and index, and the manifest last.

    Args:
        outcomes: one per utterance, in order.
        states: those of the model that aligned; None: of another program, with "num_states" and
            "states_hash" in `about` and unknown phones.
        about: the model's name ("model") and each state's "self_loops".
        speakers: the transforms with which a speaker-adaptive model aligned, for networks.
    """
    folder = folder_of(manifest)
    store = folder / "states.h5"
    aligned = [(u, o) for u, o in zip(utterances, outcomes, strict=True) if isinstance(o, Aligned)]
    write_h5(store, {utterance.id: outcome.states_T for utterance, outcome in aligned})
    files.write_text(folder.with_name(folder.name + ".status.tsv"), _status(utterances, outcomes))
    described = {"states": None} if states is None else states.about()
    parts = [files.part(store, folder)]
    if speakers is not None:
        write_speakers(folder / FMLLR, speakers)
        parts.append(files.part(folder / FMLLR, folder))
    files.write_json(folder / "index.json", {**about, **described, "parts": parts})
    files.write_jsonl(manifest, _rows(store, aligned, feats.shift_seconds, states))


def _rows(
    path: Path,
    aligned: list[tuple[Utterance, Aligned]],
    shift_seconds: float,
    states: States | None,
) -> Iterator[dict[str, Any]]:
    """Yield the manifest's rows: together they would take several times the paths' memory."""
    from lhotse.array import Array, TemporalArray

    for utterance, outcome in aligned:
        array = Array("numpy_hdf5", str(path), utterance.id, list(outcome.states_T.shape))
        row = utterance.row
        stored = TemporalArray(array, 0, shift_seconds, row["start"]).to_dict()
        items = None if states is None else _items(utterance, outcome, shift_seconds, states)
        supervisions = [{**row["supervisions"][0], "alignment": items}]
        yield {**row, "supervisions": supervisions, "custom": {"ali": stored}}


def _items(
    utterance: Utterance, outcome: Aligned, shift_seconds: float, states: States
) -> dict[str, list[list[Any]]]:
    """Return phones and words as lhotse alignment items: symbol, start, duration, no score.

    Words are left out if the path does not say where they are, as some of Kaldi's do not.
    """
    words = utterance.words.split()
    found = {"phone": phones_in_seconds(states, outcome, shift_seconds)}
    spoken = words_in_seconds(words, outcome, shift_seconds)
    if spoken or not words:
        found["word"] = spoken
    return {
        kind: [[symbol, start, round(end - start, 6), None] for symbol, start, end in segments]
        for kind, segments in found.items()
    }


def _status(utterances: list[Utterance], outcomes: list[Outcome]) -> str:
    lines = ["utt_id\tstatus\tframes\tloglik_per_frame\treason"]
    for u, o in zip(utterances, outcomes, strict=True):
        if isinstance(o, Lost):
            lines.append(f"{u.id}\tlost\t{u.frames}\t\t{o.reason}")
        else:
            status = "retried" if o.retried else "ok"
            lines.append(f"{u.id}\t{status}\t{u.frames}\t{o.loglik / u.frames:.4f}\t")
    return "\n".join(lines) + "\n"


class Alignments:
    """The stored state paths of a split, `ali/SPLIT.jsonl.gz`, whose parts are as in its index.

    Attributes:
        speakers: the transforms of a speaker-adaptive model's alignments; None: of another model.
    """

    def __init__(self, manifest: Path | str) -> None:
        folder = folder_of(manifest)
        index = files.read_json(folder / "index.json")
        if "num_states" not in index:
            raise ValueError(f"{manifest} has no alignments; name ali/MODEL/SPLIT.jsonl.gz")
        for listed in index["parts"]:
            files.check_part(folder, listed, remake=manifest)
        self.num_states: int = index["num_states"]
        self.states_hash: str = index["states_hash"]
        self.states: dict[str, Any] | None = index["states"]
        self.self_loops: list[float] = index["self_loops"]
        self._places = {row["id"]: _place(row, folder) for row in files.iter_jsonl(manifest)}
        has_speakers = any(listed["path"] == FMLLR for listed in index["parts"])
        self.speakers = load_speakers(folder / FMLLR) if has_speakers else None

    @property
    def ids(self) -> set[str]:
        """The utterances that have a path."""
        return set(self._places)

    def load(self, utt_id: str) -> np.ndarray:
        """Return int32 [T], one state per frame."""
        path, key = self._places[utt_id]
        return open_h5(path, os.getpid())[key][:]


def _place(row: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Return a path's file, in this folder, and its name there: all that is kept of a long row."""
    array = row["custom"]["ali"]["array"]
    return sys.intern(str(folder / Path(array["storage_path"]).name)), array["storage_key"]


# --- quality ------------------------------------------------------------------------------------


def true_phones(row: dict[str, Any]) -> list[Segment] | None:
    """Return an utterance's phones from the corpus; None if it has none."""
    known = (row["supervisions"][0].get("alignment") or {}).get("phone")
    if not known:
        return None
    return [(p, float(s), round(float(s) + float(d), 6)) for p, s, d, *_ in known]


def boundaries(errors: Sequence[float], unmatched: int) -> dict[str, Any] | None:
    """Return median and shares of the absolute errors of `compare`; None without any."""
    if not errors:
        return None
    off = np.abs(errors)
    return {
        "compared": len(off),
        "unmatched": unmatched,
        "median_ms": round(float(np.median(off)) * 1000, 2),
        "bias_ms": round(float(np.median(errors)) * 1000, 2),
        **{
            f"within_{ms}ms": round(float((off <= ms / 1000 + 1e-9).mean()), 4)
            for ms in (20, 25, 50)
        },
    }


def compare(aligned: list[Segment], true: list[Segment]) -> tuple[list[float], int]:
    """Match two phone strings by edit distance; compare starts and ends of matched phones.

    Silences are ignored, but not the edges of the phones beside them.

    Returns:
        Seconds, aligned minus true, of each boundary of a matched phone; and the number of true
        phones that the alignment pronounces differently.
    """
    from kaldialign import align

    ours, theirs = _named_alike(aligned), _named_alike(true)
    gap = "*"
    errors: list[float] = []
    unmatched = i = j = 0
    for a, b in align([s[0] for s in ours], [s[0] for s in theirs], gap):
        if a == b:
            errors += [ours[i][1] - theirs[j][1], ours[i][2] - theirs[j][2]]
        elif b != gap:
            unmatched += 1
        i += a != gap
        j += b != gap
    return errors, unmatched


def _named_alike(segments: list[Segment]) -> list[Segment]:
    """Rename phones as labels are (upper case, no stress), and by SAME; leave silence out."""
    named = [(p.upper().rstrip("012"), start, end) for p, start, end in segments if p != SILENCE]
    return [(SAME.get(p, p), start, end) for p, start, end in named]


def phones_in_seconds(states: States, outcome: Aligned, shift_seconds: float) -> list[Segment]:
    """Return a path's phones, silence included, with start and end in seconds."""
    names = [states.phones[p] for p in outcome.phones_N3[:, 0].tolist()]
    times = _bounds(outcome, shift_seconds)
    return list(zip(names, times, times[1:], strict=False))


def words_in_seconds(words: list[str], outcome: Aligned, shift_seconds: float) -> list[Segment]:
    """Return a path's words with start and end in seconds."""
    times, found = _bounds(outcome, shift_seconds), dict[int, list[float]]()
    for i, place in enumerate(outcome.phones_N3[:, 2].tolist()):
        if place >= 0:
            found.setdefault(place, [times[i], 0.0])[1] = times[i + 1]
    return [(words[place], start, end) for place, (start, end) in found.items()]


def _bounds(outcome: Aligned, shift_seconds: float) -> list[float]:
    """Return the start of each phone of a path, and the end of the last one, in seconds."""
    frames = [*outcome.phones_N3[:, 1].tolist(), len(outcome.states_T)]
    return [round(frame * shift_seconds, 6) for frame in frames]


def durations(kept: list[tuple[Utterance, Aligned]], states: States) -> dict[str, Any]:
    """Summarise phone durations: very short or long ones point to a wrong transcript."""
    frames = [
        np.diff([*o.phones_N3[:, 1], len(o.states_T)])[o.phones_N3[:, 0] > 0] for _, o in kept
    ]
    every = np.concatenate([*frames, np.zeros(0, np.int64)])
    short = float((every <= states.phone_states).mean()) if len(every) else 0
    long = int((every > LONG).sum())
    return {"phones": len(every), "shortest_share": round(short, 4), "long": long}


def report(
    split: str,
    utterances: list[Utterance],
    outcomes: list[Outcome],
    states: States,
    shift_seconds: float,
) -> dict[str, Any]:
    """Return the content of `ali/SPLIT.report.json`, without the example's picture."""
    silence = set(states.of(SILENCE))
    pairs = list(zip(utterances, outcomes, strict=True))
    lost = [[u.id, o.reason] for u, o in pairs if isinstance(o, Lost)]
    kept = [(u, o) for u, o in pairs if isinstance(o, Aligned)]
    frames = sum(len(o.states_T) for _, o in kept)
    errors: list[float] = []
    silent = unmatched = 0
    for u, o in kept:
        silent += int(np.isin(o.states_T, list(silence)).sum())
        if true := true_phones(u.row):
            more, differ = compare(phones_in_seconds(states, o, shift_seconds), true)
            errors += more
            unmatched += differ
    return {
        "split": split,
        "utterances": len(pairs),
        "lost": lost,
        "retried": sum(o.retried for _, o in kept),
        "frames": frames,
        "loglik_per_frame": round(sum(o.loglik for _, o in kept) / max(1, frames), 4),
        "silence_share": round(silent / max(1, frames), 4),
        "boundaries": boundaries(errors, unmatched),
        "durations": durations(kept, states),
    }


def check_lost(what: str, lost: list[list[str]], utterances: int, limit: float) -> None:
    """Raise ValueError if more than `limit` of the utterances are lost, with the first reasons."""
    if too_many_lost(len(lost), utterances, limit):
        named = "; ".join(f"{u}: {reason}" for u, reason in lost[:3])
        raise ValueError(
            f"{what}: {len(lost)} of {utterances} utterances could not be aligned, more than the "
            f"share ali.max_lost_share={limit:g} allows ({named}); correct the transcripts or the "
            "lexicon, or set ali.max_lost_share; with little to train on, ali.retry_beam=1e9"
        )
