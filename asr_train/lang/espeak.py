"""espeak-ng, the library: loaded afresh, and put away again.

Library and voices come with the wheel `espeakng_loader`; nothing is read from the system. What is
said with it is the business of `lang.g2p` (words -> phones) and `data.synth` (words -> speech).
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
    """espeak-ng did not say what it was asked to say, or said what has no name here."""


@contextmanager
def loaded(options: int = 0) -> Iterator[tuple[ctypes.CDLL, int]]:
    """The library, loaded afresh, and its sample rate in Hz.

    espeak-ng keeps much between calls (phases, echo, flutter, noise), even across its own
    Initialize; only unloading it makes what it says independent of what it said before. It costs
    0.4 ms.

    Args:
        options: flags of espeak_Initialize, PHONEME_EVENTS for one.
    Raises:
        EspeakError: without voices, or where another module of this process holds the library.
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
                f"{path} stays loaded (by another module of this process?), so that what it says "
                "would depend on what was said before; call it in a process of its own"
            )


def _resident(path: str) -> bool:
    try:
        dlclose(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)._handle)
    except OSError:
        return False
    return True
