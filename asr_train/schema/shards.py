"""Shards, the input of training: conf/shards."""

from dataclasses import dataclass

from asr_train.schema.feats import NormSettings
from asr_train.schema.fields import positive


@dataclass(kw_only=True, slots=True)
class ShardsSettings:
    utterances: int
    norm: NormSettings

    def __post_init__(self) -> None:
        positive(utterances=self.utterances)
