"""The code that is compiled from the Triton kernels for sm_90; needs no GPU.

Tests in the interpreter show that results are correct. These show that the kernels compile for
any sizes, for sizes of 1 and for multiples of 16, as launches specialise them, and check what the
interpreter cannot: rounding, and the width of memory accesses.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.slow  # 15 kernels are compiled, three times each


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    script = Path(__file__).with_name("gpu_code.py")
    run = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_denormals_are_not_flushed_to_zero(code):
    assert {name: c["flushes"] for name, c in code.items() if c["flushes"]} == {}


def test_products_are_rounded_as_the_references_are(code):
    """Only the kernel that documents it fuses a product with a sum."""
    fused = {name for name, c in code.items() if c["fused"]}
    assert fused == {"move"}


def test_no_result_depends_on_the_order_of_atomics(code):
    """Only integers are added by atomics; an exchange is of counts for 0."""
    atomics = {name: c["atomics"] for name, c in code.items() if c["atomics"]}
    assert atomics.keys() == {"mark", "count", "move"}
    for name, found in atomics.items():
        kind = ".exch.b32" if name == "move" else ".add."
        assert all(kind in one and ".f" not in one for one in found), atomics


def test_vectors_of_any_length_move_16_bytes_at_once(code):
    for name in ("mark", "expand", "tally"):
        assert code[name]["loads"].get("128", 0) > 0, name


def test_registers_do_not_spill(code):
    assert {name: c["spilled"] for name, c in code.items() if c["spilled"]} == {}


def test_programs_leave_room_for_others(code):
    """Of 65,536 registers per multiprocessor: at least two programs of 256 threads."""
    for name in ("mark", "expand", "tally", "quantise", "add_up_4"):
        assert code[name]["registers"] * 256 * 2 <= 65536, name
