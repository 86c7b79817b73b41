"""The frames that networks over adapted features read: a front end and a matrix per speaker.

    SAT system, its transforms of a split --Speakers--> ali/MODEL/SPLIT/fmllr.safetensors --> shards
                              of a first pass --Speakers--> decoding

Training and decoding read through the same `Speakers.read`. Knows nothing of how transforms are
estimated (`align.adapt`).
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from asr_train.align.front import Front, Read
from asr_train.align.transforms import adapted
from asr_train.data.features import Feats
from asr_train.files import replacing
from asr_train.schema import FrontSettings, build, plain

FILE = "fmllr.safetensors"  # a part of the alignments of a split


@dataclass(frozen=True, slots=True, eq=False)
class Speakers:
    """All that turns stored features into a speaker-adaptive system's frames.

    Attributes:
        system: of the speaker-adaptive system: "run", its name, and "sha256" of its Gaussians.
        front: its front end: cepstra, splicing, LDA and MLLT.
        matrices: float64 [D, D + 1] by speaker; the frames of others stay unadapted.
    """

    system: dict[str, str]
    front: Front
    matrices: dict[str, np.ndarray] = field(default_factory=dict)

    def read(self, feats: Feats) -> Read:
        """Return a function utterance -> x_TD, float32, adapted by the speaker's matrix."""
        plainly = self.front(feats)
        return lambda u: adapted(plainly(u), self.matrices.get(u.speaker))


def write_speakers(path: Path, speakers: Speakers) -> None:
    """Write a front end and its matrices; equal content gives equal bytes."""
    names = sorted(speakers.matrices)
    arrays = {f"matrix_DE.{i}": speakers.matrices[name] for i, name in enumerate(names)}
    if speakers.front.transform_dD is not None:
        arrays["transform_dD"] = np.ascontiguousarray(speakers.front.transform_dD)
    about = {"system": speakers.system, "front": plain(speakers.front.settings), "speakers": names}
    with replacing(path) as scratch:
        save_file(arrays, scratch, metadata={"about": json.dumps(about, ensure_ascii=False)})


def load_speakers(path: Path) -> Speakers:
    """Read what `write_speakers` wrote."""
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        about: dict[str, Any] = json.loads(file.metadata()["about"])
    front = build(FrontSettings, about["front"], f"{path}: front")
    matrices = {name: arrays[f"matrix_DE.{i}"] for i, name in enumerate(about["speakers"])}
    return Speakers(about["system"], Front(front, arrays.get("transform_dD")), matrices)
