"""A transducer as **arrays** and as OpenFst's ConstFst, in a file or for kaldifst's search.

Knows nothing of how a graph is built.
"""

import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kaldifst
import numpy as np

from asr_train.files import Region, naming_full_disk

# OpenFst's ConstFst on disk
COUNTS = ("first", "arcs", "iepsilons", "oepsilons")
STATE = np.dtype([("final", "<f4"), *((name, "<u4") for name in COUNTS)])
ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("weight", "<f4"), ("next", "<i4")])
# Magic number, both type names, version, flags, properties, start, states, arcs
HEADER = struct.Struct("<ii5si8siiQqqq")
MAGIC, VERSION, EXPANDED = 2125659606, 2, 1


@dataclass(frozen=True, slots=True)
class Arrays:
    """A transducer as NumPy arrays: arcs sorted by source state.

    Attributes:
        start: the first state; states count from 0.
        final_N: float32 [states], the cost of ending there; infinite if not final.
        source_A: int64 [arcs], the source state of each arc.
        arcs_A: `ARC` [arcs].
    """

    start: int
    final_N: np.ndarray
    source_A: np.ndarray
    arcs_A: np.ndarray


def to_arrays(fst: Any) -> Arrays:
    """Convert a kaldifst transducer that can be modified.

    Raises:
        OSError: if there is no space for it in the folder of temporary files.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fst"
        if not kaldifst.StdConstFst(fst).write(str(path)):
            raise OSError(
                f"{folder} cannot hold a graph of {fst.num_states} nodes; free some space there, "
                "or set TMPDIR to another folder"
            )
        return read_arrays(path)


def read_arrays(path: Path) -> Arrays:
    """Read a ConstFst file."""
    start, states_N, arcs_A = view_const(np.fromfile(path, np.uint8).data)
    source_A = np.repeat(np.arange(len(states_N)), states_N["arcs"])
    return Arrays(start, states_N["final"].copy(), source_A, arcs_A)


def view_const(content: memoryview) -> tuple[int, np.ndarray, np.ndarray]:
    """View a ConstFst file's content without a copy: the start, `STATE` [states], `ARC` [arcs]."""
    *_, start, states, arcs = HEADER.unpack_from(content)
    states_N = np.frombuffer(content, STATE, states, HEADER.size)
    return start, states_N, np.frombuffer(content, ARC, arcs, HEADER.size + states_N.nbytes)


def check_const(content: memoryview, states: int, words: int) -> None:
    """Check a ConstFst file's content from elsewhere: a search must stay within its arrays.

    Args:
        states: of the network; input labels are at most that.
        words: output labels are at most that.
    Raises:
        ValueError: if it is no ConstFst as `const_of` makes it, an arc leads, or has a label,
            beyond what there is, or a weight is no number.
    """
    header = bytes(content[: HEADER.size])
    *_, start, nodes, arcs = HEADER.unpack(header.ljust(HEADER.size))
    if header != _header(start, nodes, arcs):
        raise ValueError("HCLG.fst has no header of OpenFst's ConstFst as it is written here")
    size = HEADER.size + nodes * STATE.itemsize + arcs * ARC.itemsize
    if min(nodes, arcs) < 0 or size != len(content):
        raise ValueError(
            f"HCLG.fst has {len(content)} bytes, but {size} are needed for the {nodes} nodes and "
            f"{arcs} arcs of its header"
        )
    _, states_N, arcs_A = view_const(content)
    first_N = np.cumsum(states_N["arcs"], dtype=np.int64) - states_N["arcs"]
    for field, most in (("next", nodes - 1), ("ilabel", states), ("olabel", words)):
        if (top := int(arcs_A[field].view("<u4").max(initial=0))) > most:  # -1 is large
            raise ValueError(f"HCLG.fst has an arc with {field} {top}, above {most}")
    whole = bool((states_N["iepsilons"] <= states_N["arcs"]).all())
    listed = int(first_N[-1] + states_N["arcs"][-1]) if nodes else 0
    if (
        not (0 <= start < nodes and listed == arcs and whole)
        or (states_N["first"] != first_N).any()
    ):
        raise ValueError(
            f"HCLG.fst starts in node {start} of {nodes}, whose arcs are {listed} of {arcs}, or "
            "are not in the order of the nodes"
        )
    if not (np.isfinite(arcs_A["weight"]).all() and (states_N["final"] > -np.inf).all()):
        raise ValueError("HCLG.fst has an arc or a node whose cost is not a number; make it again")


def load_const(path: Path, states: int, words: int) -> Arrays:
    """Read and check a ConstFst file that is not trusted.

    Raises:
        ValueError: as `check_const`; or if epsilon arcs form a cycle.
    """
    check_const(Region.of(path).mapped(), states, words)
    graph = read_arrays(path)
    epsilon_heights(graph)
    return graph


def const_of(arrays: Arrays) -> bytes:
    """Return the content of a ConstFst file; each state's arcs are sorted by input label."""
    order = np.lexsort((arrays.arcs_A["ilabel"], arrays.source_A))
    arcs_A, source_A = arrays.arcs_A[order], arrays.source_A[order]
    states_N = np.zeros(len(arrays.final_N), STATE)
    states_N["final"] = arrays.final_N
    states_N["arcs"] = np.bincount(source_A, minlength=len(states_N))
    states_N["first"] = np.cumsum(states_N["arcs"]) - states_N["arcs"]
    for field, label in (("iepsilons", "ilabel"), ("oepsilons", "olabel")):
        states_N[field] = np.bincount(source_A[arcs_A[label] == 0], minlength=len(states_N))
    header = _header(arrays.start, len(states_N), len(arcs_A))
    return header + states_N.tobytes() + arcs_A.tobytes()


def _header(start: int, states: int, arcs: int) -> bytes:
    names = (5, b"const", 8, b"standard")
    return HEADER.pack(MAGIC, *names, VERSION, 0, EXPANDED, start, states, arcs)


def to_vector(arrays: Arrays) -> Any:
    """Convert to a kaldifst transducer that can be modified."""
    return kaldifst.StdVectorFst(to_fst(const_of(arrays)))


def to_fst(content: bytes | memoryview) -> Any:
    """Read a ConstFst file's content as kaldifst's transducer for search, which copies it.

    It takes half the memory of one that can be modified, and is searched faster.

    Raises:
        OSError: if there is no space for it in the folder of temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="asr-train-") as folder:
        path = Path(folder) / "fst"
        with naming_full_disk(folder):
            path.write_bytes(content)
        return kaldifst.StdConstFst.read(str(path))


def epsilon_heights(graph: Arrays) -> np.ndarray:
    """Return each node's longest chain of epsilon arcs: int64 [nodes]; 0 if none leaves.

    Raises:
        ValueError: if epsilon arcs form a cycle, which a path could follow forever.
    """
    empty = graph.arcs_A["ilabel"] == 0
    source, target = graph.source_A[empty], graph.arcs_A["next"][empty]
    height_N = np.zeros(len(graph.final_N), np.int64)
    while len(source):
        waiting_N = np.zeros(len(height_N), bool)
        waiting_N[source] = True
        ready = ~waiting_N[target]
        if not ready.any():
            raise ValueError(
                f"epsilon arcs form a cycle through node {int(source[0])} or a node after it; "
                "the grammar or the lexicon has a cycle that consumes no speech"
            )
        np.maximum.at(height_N, source[ready], height_N[target[ready]] + 1)
        source, target = source[~ready], target[~ready]
    return height_N
