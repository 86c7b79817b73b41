"""Lattice <-> **bytes**: every array, in a .npz that NumPy can read; 5 bytes per arc."""

import io
import zipfile
from typing import Any

import numpy as np

from asr_train.search.lattice import LINK, Lattice

LEVEL = 1  # of zlib: the sizes of 1 and 6 differ by a twentieth, the times by a factor of four
LABELS_AND_COSTS = ("ilabel", "olabel", "graph", "acoustic")


def pack(lattice: Lattice) -> bytes:
    """Return a lattice as bytes; equal lattices give equal bytes.

    Integers are stored as differences and all numbers by their bytes, first of all arcs the first
    bytes, then the second ones: these are more alike, so that they compress better.
    """
    arcs_A, nodes = lattice.arcs_A, len(lattice.frame_N)
    columns = {
        "about": np.array([lattice.cost, lattice.final, lattice.beam]),
        "frames": np.diff(lattice.frame_N, prepend=np.int32(0)),
        "final": lattice.final_N,
        "arcs": np.bincount(arcs_A["source"], minlength=nodes).astype(np.int32),
        "jump": arcs_A["target"] - arcs_A["source"],
        **{name: arcs_A[name] for name in LABELS_AND_COSTS},
        "active": lattice.active_T,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as file:
        for name, column in columns.items():
            each = np.ascontiguousarray(column)
            planes = each.view(np.uint8).reshape(len(each), each.itemsize).T
            with file.open(f"{name}.npy", "w") as member:  # without the time
                np.lib.format.write_array(member, np.ascontiguousarray(planes), allow_pickle=False)
    return buffer.getvalue()


def unpack(content: bytes) -> Lattice:
    """Return the lattice that `pack` was given.

    Raises:
        ValueError: if arcs lead beyond its nodes or back, or anything is no number.
    """
    kinds: dict[str, Any] = dict.fromkeys(("about", "final"), "<f8")
    kinds |= dict.fromkeys(("frames", "arcs", "jump", "active"), "<i4")
    kinds |= {name: LINK[name] for name in LABELS_AND_COSTS}
    found: dict[str, np.ndarray] = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        for name, kind in kinds.items():
            found[name] = np.ascontiguousarray(file[name].T).view(kind).reshape(-1)
    arcs_A = np.empty(len(found["jump"]), LINK)
    arcs_A["source"] = np.repeat(np.arange(len(found["arcs"]), dtype=np.int32), found["arcs"])
    arcs_A["target"] = arcs_A["source"] + found["jump"]
    for name in LABELS_AND_COSTS:
        arcs_A[name] = found[name]
    nodes, final_N = len(found["frames"]), found["final"]
    costs_A = arcs_A["graph"] + arcs_A["acoustic"]
    if not (
        len(final_N) == len(found["arcs"]) == nodes
        and (found["frames"] >= 0).all()
        and (arcs_A["target"] > arcs_A["source"]).all()
        and (arcs_A["target"] < nodes).all()
        and min(arcs_A["ilabel"].min(initial=0), arcs_A["olabel"].min(initial=0)) >= 0
        and np.isfinite(costs_A).all()
        and (final_N > -np.inf).all()
    ):
        raise ValueError("a lattice has arcs that lead beyond its nodes or back, or odd costs")
    cost, final, beam = found["about"].tolist()
    frame_N = np.cumsum(found["frames"], dtype=np.int32)
    return Lattice(frame_N, final_N, arcs_A, cost, bool(final), beam, found["active"])
