"""A stored utterance: features and alignment <-> **Sample** <-> a webdataset record.

A record maps three keys to bytes, so that any tar reader can use them:
    feats.npy   float16 [T, F]   log-mel, normalised as stated in the index
    ali.npy     int16 [T]        state ids
    words.txt   UTF-8            the transcript
and a fourth in shards for sequence training:
    lat.npy     STATE_ARC [A]    the lattice of states that compete (search.occupancy)
Both directions apply the same checks. Nothing is unpickled, and no other key is accepted:
webdataset's default decoders would execute a `.pkl` or `.pth`.
"""

import io
import tokenize
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from asr_train.files import MAX_ID_BYTES
from asr_train.search.occupancy import STATE_ARC, check_arcs, has_path

KEYS = ("ali.npy", "feats.npy", "words.txt")
LATTICE = "lat.npy"
MAX_STATES = np.iinfo(np.int16).max  # state ids are stored as int16

Record = dict[str, bytes]


@dataclass(frozen=True, slots=True, eq=False)  # arrays have no single truth value
class Sample:
    """An utterance's arrays and words."""

    id: str
    feats_TF: npt.NDArray[np.float32]
    ali_T: npt.NDArray[np.int32]
    words: str  # separated by spaces
    lattice_A: npt.NDArray[np.void] | None = None  # `STATE_ARC`; ali_T is one of its paths


def to_record(sample: Sample, num_states: int) -> Record:
    """Convert a sample to a record; features are rounded to float16.

    Raises:
        ValueError: if `from_record` could not restore the sample; see there.
    """
    check_num_states(num_states)
    _check_id(sample.id)
    with np.errstate(over="ignore"):  # infinity is refused below
        feats_TF: np.ndarray = np.asarray(sample.feats_TF).astype(np.float16, order="C")
    stored = replace(sample, feats_TF=feats_TF, ali_T=np.asarray(sample.ali_T))
    _check(stored, num_states)
    lattice = {} if stored.lattice_A is None else {LATTICE: _npy(stored.lattice_A)}
    return {
        "feats.npy": _npy(stored.feats_TF),
        "ali.npy": _npy(stored.ali_T.astype(np.int16)),
        "words.txt": sample.words.encode(),
        **lattice,
    }


def from_record(sample_id: str, record: Record, num_states: int) -> Sample:
    """Convert a record from `to_record`, or one like it, to a sample.

    Raises:
        ValueError: names the utterance, if its id or keys are invalid, an array needs pickle or has
            the wrong type, lengths differ, a feature is not finite, a state is not in
            [0, num_states), or the lattice is damaged or lacks the alignment.
    """
    _check_id(sample_id)
    if set(record) - {LATTICE} != set(KEYS):
        raise ValueError(
            f"{sample_id}: the record has {', '.join(sorted(record)) or 'nothing'} but a sample "
            f"has {', '.join(KEYS)}; rerun the shards stage of this split"
        )
    sample = Sample(
        sample_id,
        _array(sample_id, record, "feats.npy", np.float16).astype(np.float32, order="C"),
        _array(sample_id, record, "ali.npy", np.int16).astype(np.int32),
        _words(sample_id, record),
        # A copy: compiled code would be compiled again for arrays that are read-only
        _array(sample_id, record, LATTICE, STATE_ARC).copy() if LATTICE in record else None,
    )
    _check(sample, num_states)
    return sample


def check_num_states(num_states: int) -> None:
    """Raise ValueError unless state ids 0 to `num_states` - 1 fit the stored type."""
    if not 1 <= num_states <= MAX_STATES:
        raise ValueError(
            f"{num_states} states cannot be stored as int16, which holds 1 to {MAX_STATES}; "
            "tie more states together in the ali stage"
        )


def _check_id(sample_id: str) -> None:
    if not sample_id:
        wrong = "is empty; name it"
    elif cut := next((sign for sign in "./" if sign in sample_id), None):
        wrong = f"contains {cut!r}, where tar readers cut names; rename it"
    elif not sample_id.isprintable() or any(c.isspace() for c in sample_id):
        wrong = "contains white space or a control character; rename it"
    elif (size := len(sample_id.encode())) > MAX_ID_BYTES:
        wrong = f"has {size} bytes but a tar's names have room for {MAX_ID_BYTES}; shorten it"
    else:
        return
    raise ValueError(f"utterance id {sample_id!r} {wrong} in the corpus")


def _check(sample: Sample, num_states: int) -> None:
    """Check that lengths agree, features are finite and states exist."""
    feats_TF, ali_T = sample.feats_TF, sample.ali_T
    if feats_TF.ndim != 2 or ali_T.ndim != 1 or not np.issubdtype(ali_T.dtype, np.integer):
        raise ValueError(
            f"{sample.id}: features are {list(feats_TF.shape)} and alignments are "
            f"{ali_T.dtype} {list(ali_T.shape)}; they must be [T, F] and integers [T]"
        )
    if len(feats_TF) != len(ali_T):
        raise ValueError(
            f"{sample.id}: {len(feats_TF)} feature frames but {len(ali_T)} alignment frames; "
            "rerun the ali stage of this split"
        )
    if feats_TF.size == 0:
        raise ValueError(
            f"{sample.id}: {feats_TF.shape[0]} frames of {feats_TF.shape[1]} bins are empty; "
            "leave it out in the corpus"
        )
    # One sum detects both: float32 cannot overflow from float16 values, and keeps NaN and infinity
    with np.errstate(invalid="ignore"):
        total = feats_TF.sum(dtype=np.float32)
    if not np.isfinite(total):
        t, f = np.argwhere(~np.isfinite(feats_TF))[0]
        raise ValueError(
            f"{sample.id}: bin {f} of frame {t} is {feats_TF[t, f]} in float16 "
            f"(largest {np.finfo(np.float16).max}); look for bad samples in its audio"
        )
    low, high = int(ali_T.min()), int(ali_T.max())
    if low < 0 or high >= num_states:
        raise ValueError(
            f"{sample.id}: states {low} to {high} but the model has states 0 to {num_states - 1}; "
            "rerun the ali stage of this split"
        )
    if sample.lattice_A is not None:
        _check_lattice(sample, sample.lattice_A, num_states)


def _check_lattice(sample: Sample, arcs_A: np.ndarray, num_states: int) -> None:
    try:
        check_arcs(arcs_A, len(sample.ali_T), num_states)
        if not has_path(arcs_A, sample.ali_T):
            raise ValueError("the alignment is none of its paths")
    except ValueError as error:
        raise ValueError(
            f"{sample.id}: its lattice is damaged: {error}; rerun the shards stage of this split"
        ) from error


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _array(sample_id: str, record: Record, key: str, dtype: npt.DTypeLike) -> np.ndarray:
    """Return a view of an array in npy format; with a fixed dtype, so never a pickle."""
    content = record[key]
    try:
        size = 10 + int.from_bytes(content[8:10], "little")  # magic, version, length; the header
        shape, is_fortran, found = _header(content[:size])
        if found != dtype:
            raise ValueError(f"it holds {found}, but {np.dtype(dtype)} is expected")
        flat = np.frombuffer(content, found, offset=size)
        return flat.reshape(shape, order="F" if is_fortran else "C")
    except (ValueError, SyntaxError, tokenize.TokenError) as error:  # numpy parses Python
        raise ValueError(
            f"{sample_id}: {key} cannot be read ({error}); rerun the shards stage of this split"
        ) from error


@lru_cache(maxsize=10_000)  # one per length; np.load's parsing takes as long as the rest
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    file = io.BytesIO(head)
    if (version := np.lib.format.read_magic(file)) != (1, 0):
        raise ValueError(f"its format is npy {version}, but samples are written as npy (1, 0)")
    return np.lib.format.read_array_header_1_0(file)


def _words(sample_id: str, record: Record) -> str:
    try:
        return record["words.txt"].decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{sample_id}: words.txt is not UTF-8 ({error}); rerun the shards stage of this split"
        ) from error
