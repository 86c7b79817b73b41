"""Shards, the input of training: conf/shards."""

from dataclasses import dataclass, field
from enum import Enum

from asr_train.schema.feats import NormSettings
from asr_train.schema.fields import LEFT_OUT
from asr_train.schema.limits import Checked, Count


class Inputs(Enum):
    """What networks read."""

    logmel = "logmel"
    fmllr = "fmllr"  # the frames of the speaker-adaptive system that aligned, `align.speakers`


@dataclass(kw_only=True, slots=True)
class ShardsSettings(Checked):
    utterances: Count
    norm: NormSettings
    inputs: Inputs = field(default=Inputs.logmel, metadata={LEFT_OUT: True})
