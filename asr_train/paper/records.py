"""Finished runs -> small **records**, so that a table can use runs that were trained elsewhere.

    records/RUN.jsonl
        a line with what identifies the run: its settings; the numbers of mel bins, states and
        frames of TRAIN; the search's settings; date, commit and machine of the record; and the
        number of lines that follow (not in records made before 2026-12)
        {"log": row}           its log, shortened to a few rows of steps per epoch
        {"score": ...}         of each test set: word errors by speaker
        {"epoch_score": ...}   of each epoch's model, if those were decoded

A row of a shortened log averages over more steps, with the same number of workers, so that sums
over the run and over each epoch, and means per minibatch, stay the same. Knows nothing of make, and
not how runs are trained.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from asr_train.cost.plan import sending_shares
from asr_train.files import DamagedFileError, read_jsonl, write_jsonl
from asr_train.report.exchange import Trained
from asr_train.report.tables import Score, held_out, paired_units, scored
from asr_train.schema import RunSettings, SettingsError, build, plain

FORMAT = 1
ROWS = 4  # of steps per epoch in a shortened log, at most, if the number of workers stays the same
SCALES = ("acoustic_scale", "insertion_penalty", "lm_weight", "normaliser")  # of a score
_LAST = ("step", "epoch", "frames", "rate", "workers", "simulated_seconds")  # so far, or at the end
_MEANS = (  # per step
    *("sent_bits", "elements_sent", "received_bits", "staleness_mean", "step_seconds"),
    *("compute_seconds", "exchange_seconds", "wait_seconds", "compress_seconds"),
    *("transfer_seconds", "cpu_seconds"),
)
_DEV = ("epoch", "step", "dev_loss", "dev_accuracy", "rate", "diverged")
_ABOUT = ("settings", "workers", "processes")


@dataclass(frozen=True, slots=True)
class Record:
    """A finished run.

    Attributes:
        trained: with scores of test sets only.
        epochs: scores of the models of its epochs; may be empty.
        task: numbers of mel bins, states and frames of TRAIN; see `task_of`.
        decoding: settings of the search.
        made: date, commit and machine of the record.
    """

    trained: Trained
    epochs: list[Score]
    task: dict[str, Any]
    decoding: dict[str, Any]
    made: dict[str, str]


def task_of(index: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers that are equal in all runs of a table: mel bins, states, frames of TRAIN.

    Args:
        index: of the shards.
    """
    return {key: index[key] for key in ("num_mels", "num_states", "num_frames")}


def write_record(path: Path | str, record: Record) -> None:
    run = record.trained
    scores = [score for score in run.scores if held_out(score["split"])]
    phases = run.about["settings"].get("optim", {}).get("phases", [])
    rest = [
        *({"log": row} for row in shortened(run.log, phases, run.about["workers"])),
        *({"score": _packed(score)} for score in scores),
        *({"epoch_score": _packed(score)} for score in record.epochs),
    ]
    first = {
        "format": FORMAT,
        "lines": len(rest),
        "run": run.run,
        "made": record.made,
        "task": record.task,
        "decoding": record.decoding,
        "about": {key: run.about[key] for key in _ABOUT},
    }
    write_jsonl(path, [first, *rest])


def read_record(path: Path | str) -> Record:
    """Read what `write_record` wrote.

    Raises:
        DamagedFileError: if it is incomplete, of another format, or of a run with another name.
    """
    rows, run = read_jsonl(path), Path(path).stem
    head = rows[0] if rows and isinstance(rows[0], dict) else {}
    about = {key: head.get(key) for key in ("format", "run")}
    if about != {"format": FORMAT, "run": run}:
        raise DamagedFileError(
            f"{path} is a record of format {about.get('format')} of the run {about.get('run')}, "
            f"but one of format {FORMAT} of {run} is needed; delete it to train the run here"
        )
    try:
        first, *rest = rows
        record = Record(
            Trained(
                run,
                {key: first["about"][key] for key in _ABOUT},
                [row["log"] for row in rest if "log" in row],
                [_unpacked(run, row["score"]) for row in rest if "score" in row],
            ),
            [_unpacked(run, row["epoch_score"]) for row in rest if "epoch_score" in row],
            *(first[key] for key in ("task", "decoding", "made")),
        )
        _check_whole(record, len(rest), first.get("lines", len(rest)))
        return record
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise DamagedFileError(
            f"{path} is not a record of a run ({type(error).__name__}: {error}); delete it to "
            "train the run here"
        ) from error


def _check_whole(record: Record, lines: int, written: int) -> None:
    """Raise ValueError for a record that lacks lines, or has a log of other than numbers."""
    if lines != written:
        raise ValueError(f"it has {lines} of {written} lines after the first")
    if not record.trained.scores:
        raise ValueError("it has no score")
    for row in record.trained.log:
        for key, value in row.items():
            if key != "diverged" and not isinstance(value, int | float | None):
                raise ValueError(f"{key} is {value!r} in its log")


def check_record(record: Record, usual: Record, settings: RunSettings, decode_epochs: bool) -> None:
    """Raise ValueError unless a run's record can stand beside a run that was trained here.

    That both were tested on the same words is checked when they are compared. Alignments are not:
    they are not in a record.

    Args:
        usual: of a run trained here, or of the baseline, with what TRAIN and the search are here.
        settings: of the record's run, as it would be trained here.
        decode_epochs: whether the table needs scores of epochs.
    """
    name = record.trained.run
    remedy = "call make without RECORDS, or delete it, to train the run here"
    try:
        known = build(RunSettings, record.trained.about["settings"])
    except SettingsError as error:
        raise ValueError(f"the record of {name} has other settings: {error}; {remedy}") from error
    theirs, ours = _comparable(record, known), _comparable(usual, settings)
    for key, own, other in _differences("", ours, theirs):
        raise ValueError(
            f"the record of {name} was made with {key} {other!r}, but here it is {own!r}; {remedy}"
        )
    epochs = sum("dev_accuracy" in row for row in record.trained.log)
    if decode_epochs and len(record.epochs) != epochs:
        raise ValueError(
            f"the record of {name} has scores of {len(record.epochs)} of its {epochs} epochs; "
            f"{remedy}"
        )


def _comparable(record: Record, settings: RunSettings) -> dict[str, Any]:
    return {
        "settings": plain(settings),
        "decoding": record.decoding,
        "TRAIN": record.task,
        "scores": _scales(record.trained.scores[0]) if record.trained.scores else None,
    }


def _differences(name: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in dict.fromkeys([*ours, *theirs]):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(inner, ours.get(key), theirs.get(key))
    elif ours != theirs:
        yield name, ours, theirs


# --- logs ---------------------------------------------------------------------------------------


def shortened(
    log: Sequence[Mapping[str, Any]], phases: Sequence[Mapping[str, Any]] = (), workers: int = 1
) -> list[dict[str, Any]]:
    """Return a log with at most ROWS rows of steps per epoch, and those of DEV.

    Args:
        phases: of optim; a row in which the number of workers changes becomes two.
    """
    found: list[dict[str, Any]] = []
    before = {"step": 0, "frames": 0}
    known = [row for row in log if "sent_bits" in row or "dev_accuracy" in row]
    shares = iter(sending_shares(phases, workers, [row for row in known if "sent_bits" in row]))
    for (of_steps, _), group in groupby(known, lambda row: ("sent_bits" in row, row["epoch"])):
        rows = list(group)
        if of_steps:
            size = math.ceil(len(rows) / ROWS)
            for i in range(0, len(rows), size):
                shared = [((next(shares), r.get("workers")), r) for r in rows[i : i + size]]
                for _, part in groupby(shared, itemgetter(0)):
                    found.append(_mean([row for _, row in part], before))
        else:
            found += [{key: row[key] for key in _DEV if key in row} for row in rows]
    return found


def _mean(rows: Sequence[Mapping[str, Any]], before: dict[str, int]) -> dict[str, Any]:
    """Return neighbouring rows as one; `before` is the end of the previous rows."""
    steps, frames = [], []
    for row in rows:
        steps.append(row["step"] - before["step"])
        frames.append(row["frames"] - before["frames"])
        before.update(step=row["step"], frames=row["frames"])
    found: dict[str, Any] = {key: rows[-1][key] for key in _LAST if key in rows[-1]}
    for key in _MEANS:
        if all(key in row for row in rows):
            found[key] = _average([row[key] for row in rows], steps)
    known = [(row["accuracy"], n) for row, n in zip(rows, frames, strict=True) if n]
    if known and all(accuracy is not None for accuracy, _ in known):
        found["accuracy"] = _average(*zip(*known, strict=True))
    dense = next((r["compression_ratio"] * r["sent_bits"] for r in rows if r["sent_bits"]), None)
    found["compression_ratio"] = None if dense is None else dense / found["sent_bits"]
    return found


def _average(values: Iterable[float], weights: Sequence[float]) -> float:
    mean = sum(x * n for x, n in zip(values, weights, strict=True)) / sum(weights)
    return float(f"{mean:.8g}")


# --- scores -------------------------------------------------------------------------------------


def _scales(score: Mapping[str, Any]) -> dict[str, Any]:
    return {key: score.get(key) for key in SCALES}


def _packed(score: Score) -> dict[str, Any]:
    """Return a score by speaker, or by utterance if there are too few speakers to draw from."""
    over, errors = paired_units(score)
    speakers = {row.utt_id: row.speaker for row in scored(score)}
    return {
        "split": score["split"],
        **_scales(score),
        "utterances": score["utterances"],
        "units": {  # speaker, words, substitutions, deletions, insertions
            name: [
                name if over == "speakers" else speakers[name],
                *(e.words, e.substitutions, e.deletions, e.insertions),
            ]
            for name, e in errors.items()
        },
    }


def _unpacked(run: str, packed: Mapping[str, Any]) -> Score:
    rows = {
        name: {
            **{"speaker": speaker, "words": words, "errors": sub + dele + ins},
            **{"substitutions": sub, "deletions": dele, "insertions": ins},
        }
        for name, (speaker, words, sub, dele, ins) in packed["units"].items()
    }
    if min(n for row in packed["units"].values() for n in row[1:]) < 0:
        raise ValueError("a number of words or errors is negative")
    words, errors = (sum(row[key] for row in rows.values()) for key in ("words", "errors"))
    return {
        **{"run": run, "split": packed["split"], "utterances": packed["utterances"]},
        **_scales(packed),
        **{"words": words, "errors": errors, "wer": errors / words, "by_utterance": rows},
    }
