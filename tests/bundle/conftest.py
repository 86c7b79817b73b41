"""The digits bundle of the package, open."""

import pytest

from asr_train import Recogniser


@pytest.fixture(scope="session")
def recogniser():
    return Recogniser.load("digits")
