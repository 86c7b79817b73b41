"""Stored features of a few utterances of noise, of two speakers, and two models that score them."""

import numpy as np
import pytest
import soundfile
import toy
from lhotse import MonoCut, Recording, SupervisionSegment

from asr_train.data.features import Feats, extract, open_feats, write_index
from asr_train.files import write_jsonl
from asr_train.schema import FeatsSettings

RATE = 8000


@pytest.fixture(scope="session")
def lang():
    return toy.toy_lang()


@pytest.fixture(scope="session")
def feats_settings() -> FeatsSettings:
    return toy.logmel(sample_rate=RATE, num_mels=5, low_hz=100.0)


@pytest.fixture(scope="session")
def feats(tmp_path_factory, feats_settings) -> Feats:
    folder = tmp_path_factory.mktemp("feats")
    cuts = []
    for n in range(5):
        path = folder / f"u{n}.wav"
        samples = 80 if n == 4 else RATE // 10 + 997 * n  # the last one is a single frame
        soundfile.write(path, np.random.default_rng(n).normal(0, 0.1, samples), RATE)
        recording = Recording.from_file(path)
        said = SupervisionSegment(
            f"u{n}", f"u{n}", 0, recording.duration, text="AB C", speaker=f"s{n % 2}"
        )
        cut = MonoCut(f"u{n}", 0, recording.duration, 0, recording=recording, supervisions=[said])
        cuts.append(cut)
    rows, about = extract(cuts, feats_settings, folder / "dev" / "part-00000.h5")
    manifest = folder / "dev.jsonl.gz"
    write_index(manifest, feats_settings, [folder / "dev" / "part-00000.h5"], [about])
    write_jsonl(manifest, rows)
    return open_feats(manifest)
