"""Compile the Triton kernels, for which no GPU is needed, and print properties of the code:

    {kernel: {registers, spilled (bytes), shared (bytes), instructions (all, SASS), loads (widths in
    bits of loads from global memory), stores, flushes (denormals), fused (multiply-adds), atomics
    (instructions)}}
Run without TRITON_INTERPRET. Pointers are aligned to 16 bytes, rows are multiples of 16 elements
apart (0 where there is one: see comm.bucket.rows), sizes are arbitrary. Each kernel is also
compiled as a launch does if all sizes are 1, which makes them constants, or multiples of 16, but
for those that are not specialised.
"""

import collections
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from asr_train.kernels import gpu_dense, gpu_rice, gpu_sparse

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    "grad": "*fp32",
    "residual": "*fp32",
    "kept": "*fp32",
    "marks": "*i32",
    "counts": "*i32",
    "sums": "*i32",
    "wrong": "*i32",
    "ends": "*i64",
    "turn": "*i64",
    "next_turn": "*i64",
    "words": "*i32",
    "starts": "*i64",
    "num_tiles": "i32",
    **dict.fromkeys(("grad_stride", "residual_stride", "kept_stride"), "i32"),
    "lengths": "*i64",
    "found": "*i64",
    "total": "*fp32",
    "sent": "*i32",
    "out": "*fp32",
    "bits": "*u8",
    "means": "*fp32",
    "table": "*i64",
    "weights": "*fp32",
    "rows": "i32",
    **dict.fromkeys(("threshold", "tau", "rate"), "fp32"),
}
SELECT = {"BLOCK": gpu_sparse.BLOCK}
EXPAND = {**SELECT, "GROUP": gpu_sparse.GROUP, "SUPERS": 256}
DECODE = {"CHUNK": gpu_sparse.CHUNK}
QUANTISE = {"MATRICES": 32, "ROWS": gpu_dense.ROWS, "BYTES": gpu_dense.BYTES}
ADD_UP = {"MATRICES": 32, "HIGH": gpu_dense.HIGH, "WIDE": gpu_dense.WIDE}
RICE = {"BLOCK": gpu_rice.BLOCK}
PAYLOAD = {"payload": "*i32", "words": "i32"}
KERNELS = {
    "mark": (gpu_sparse._mark, SELECT, {}),
    "expand": (gpu_sparse._expand, EXPAND, {}),
    "tally": (gpu_sparse._tally, {"BLOCK": gpu_sparse.TALLY}, {}),
    "count": (gpu_sparse._count, DECODE, {}),
    "move": (gpu_sparse._move, DECODE, {}),
    "quantise": (gpu_dense._quantise, QUANTISE, {}),
    "quantise_1": (gpu_dense._quantise, {**QUANTISE, "MATRICES": 1}, {}),
    "add_up_1": (gpu_dense._add_up, {**ADD_UP, "MATRICES": 1, "WORKERS": 1}, {}),
    "add_up_4": (gpu_dense._add_up, {**ADD_UP, "WORKERS": 4}, {}),
    "checksum": (
        gpu_dense._checksum,
        {"BLOCK": gpu_dense.BLOCK},
        {"content": "*u8", "sums": "*i64"},
    ),
    "rice_split": (gpu_rice._split, RICE, {"steps": "*i64", "codes": "*i64"}),
    "rice_pack": (
        gpu_rice._pack,
        {**RICE, "CODES": 5},
        {"firsts": "*i64", "codes": "*i64", "out": "*i32", "words": "i32", "unary": "i64"},
    ),
    "rice_count": (gpu_rice._count_ones, RICE, {**PAYLOAD, "ones": "*i32"}),
    "rice_find": (gpu_rice._find_ends, RICE, {**PAYLOAD, "ranks": "*i64"}),
    "rice_low": (gpu_rice._read_low, RICE, {**PAYLOAD, "codes": "*i64"}),
}


def compiled(name: str, size: int | None = None) -> triton.compiler.CompiledKernel:
    """Compile a kernel; a size is that of all integers that it is given, None: any."""
    function, constants, types = KERNELS[name]
    kinds = {argument: {**TYPES, **types}.get(argument, "i32") for argument in function.arg_names}
    fixed = [a for a, kind in kinds.items() if kind == "i32" and a not in constants]
    fixed = [a for a in fixed if a not in function.do_not_specialize]
    if size == 1:
        ones = [a for a in fixed if not a.endswith("_stride")]
        constants = {**constants, **dict.fromkeys(ones, 1)}
    signature = {
        argument: "constexpr" if argument in constants else kind for argument, kind in kinds.items()
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (argument, kind) in enumerate(signature.items())
        if kind.startswith("*")
        or (kind == "i32" and argument in fixed and (size == 16 or argument.endswith("_stride")))
    }
    options = {"enable_fp_fusion": not name.startswith("move")}
    if name.startswith("quantise"):
        options["num_warps"] = gpu_dense.WARPS
    elif name.startswith("add_up"):
        options["num_warps"] = gpu_dense.ADD_WARPS
    elif name.startswith("mark"):
        options["num_warps"] = gpu_sparse.WARPS
    return triton.compile(ASTSource(function, signature, constants, aligned), HOPPER, options)


def tool(name: str, *arguments: str) -> str:
    path = Path(triton.__file__).parent / "backends/nvidia/bin" / name
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def facts(name: str) -> dict[str, object]:
    kernel = compiled(name)
    for size in (1, 16):
        compiled(name, size)
    ptx, sass = kernel.asm["ptx"], ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = tool("cuobjdump", "-res-usage", file.name)
        sass = tool("cuobjdump", "-sass", file.name)
    (used,) = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    registers, stack, shared, local = map(int, used)
    widths = {
        which: collections.Counter(
            int(vector or 1) * int(bits)
            for vector, bits in re.findall(rf"{which}\.global\S*?(?:\.v(\d))?\.b(\d+)", ptx)
        )
        for which in ("ld", "st")
    }
    return {
        "registers": registers,
        "spilled": stack + local,
        "shared": max(shared, kernel.metadata.shared),
        "instructions": len(re.findall(r"^\s+/\*[0-9a-f]{4}\*/", sass, re.MULTILINE)),
        "loads": dict(widths["ld"]),
        "stores": dict(widths["st"]),
        "flushes": len(re.findall(r"\.ftz\.", ptx)),
        "fused": len(re.findall(r"\bfma\.rn\.f32", ptx)),
        "atomics": sorted(set(re.findall(r"\b(?:atom|red)\.global\S*", ptx))),
    }


if __name__ == "__main__":
    names = sys.argv[1:] or list(KERNELS)
    print(json.dumps({name: facts(name) for name in names}))
