"""Optional packages: imported where they are used, with a line on how to install them."""

from collections.abc import Iterator
from contextlib import contextmanager

PACKAGES = {  # an extra of pyproject.toml -> its package
    "gather": "markdown",
    "kaldi": "kaldiio",
    "onnx": "onnx",
    "s3": "s3fs",
    "tensorboard": "tensorboard",
}


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Wrap the import of an extra's package, which `what` needs.

    Raises:
        ImportError: naming the package and the command that installs it.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{what} takes {PACKAGES[name]}, which is not installed; run: "
            f"pip install 'asr-train[{name}]', or make, whose .venv has all extras"
        ) from error
