"""The choice of a kernel's backend."""

import os
from unittest import mock

from asr_train.kernels.backend import VARIABLE, Backend


def forced(backend: Backend):
    """Run all kernels called inside on this backend; overrides the environment."""
    return mock.patch.dict(os.environ, {VARIABLE: backend.value})
