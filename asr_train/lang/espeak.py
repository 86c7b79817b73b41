"""The espeak-ng library, loaded for each use and unloaded afterwards.

Library and voices come with the wheel `espeakng_loader`; nothing is read from the system.
`lang.g2p` (words -> phones) and `data.synth` (words -> speech) use it.
"""

import ctypes
import os
from _ctypes import dlclose
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import espeakng_loader

# From espeak-ng's speak_lib.h, version 1.52.
SYNCHRONOUS = 2
PHONEME_EVENTS, DONT_EXIT = 0x0001, 0x8000
UTF8 = 1

_one_at_a_time = RLock()  # the library has one state for all threads


class EspeakError(ValueError):
    """espeak-ng failed, or gave a phoneme that has no name here."""


@contextmanager
def loaded(options: int = 0) -> Iterator[tuple[ctypes.CDLL, int]]:
    """Load the library; yield it and its sample rate in Hz.

    espeak-ng keeps state between calls (phases, echo, flutter, noise), even across its own
    Initialize; only unloading it makes its output independent of earlier calls. This costs 0.4 ms.

    Args:
        options: flags of espeak_Initialize, for example PHONEME_EVENTS.
    Raises:
        EspeakError: without voices, or if another module of this process holds the library.
    """
    path = espeakng_loader.get_library_path()
    with _one_at_a_time:
        lib = ctypes.CDLL(path)
        try:
            data = os.fsencode(espeakng_loader.get_data_path())
            rate = lib.espeak_Initialize(SYNCHRONOUS, 0, data, options | DONT_EXIT)
            if rate <= 0:
                raise EspeakError(f"espeak-ng finds no voices in {os.fsdecode(data)}; reinstall it")
            yield lib, rate
        finally:
            lib.espeak_Terminate()
            dlclose(lib._handle)
        if _resident(path):
            raise EspeakError(
                f"{path} stays loaded (by another module of this process?), so that its output "
                "would depend on earlier calls; use a separate process"
            )


def _resident(path: str) -> bool:
    try:
        dlclose(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)._handle)
    except OSError:
        return False
    return True
