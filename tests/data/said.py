"""Synthesise voices in some order: called by test_synth here and in a separate process."""

import hashlib
import json
import sys

from asr_train.data.synth import DIGITS, VARIANTS, cast, speak

MANY = cast(5, {"": len(VARIANTS)})[""]  # one of each variant, in all dialects


def said_in_order(numbers: list[int]) -> dict[str, str]:
    """Return number of the voice -> hash of its samples and times."""
    said = {}
    for i in numbers:
        speech = speak(f"nine {DIGITS[i % len(DIGITS)]} six two", MANY[i], seed=i)
        content = speech.samples_T.tobytes() + repr((speech.words, speech.phones)).encode()
        said[str(i)] = hashlib.sha256(content).hexdigest()
    return said


if __name__ == "__main__":
    print(json.dumps(said_in_order([int(number) for number in sys.argv[1:]])))
