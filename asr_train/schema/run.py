"""One run: a network, its training and the exchange between workers."""

from dataclasses import dataclass

from asr_train.schema.comm import CommSettings
from asr_train.schema.fields import SettingsError
from asr_train.schema.model import ModelSettings
from asr_train.schema.optim import OptimSettings


@dataclass(kw_only=True, slots=True)
class RunSettings:
    """One run: a network and how it is trained."""

    model: ModelSettings
    optim: OptimSettings
    comm: CommSettings

    def __post_init__(self) -> None:
        traffic = self.comm.method.facts.traffic
        if traffic.has_blocks and any(p.workers is not None for p in self.optim.phases):
            raise SettingsError(
                f"optim.phases limits the workers, but comm.method={self.comm.method.value} takes "
                "the mean of all workers' models, including idle ones; set workers to null there"
            )
        if traffic.is_asynchronous and self.optim.momentum:
            raise SettingsError(
                f"optim.momentum is {self.optim.momentum}, but comm.method="
                f"{self.comm.method.value} is for plain SGD: momentum would depend on the order of "
                "messages; set it to 0"
            )
        if traffic.is_asynchronous and self.optim.adagrad is not None:
            raise SettingsError(
                f"optim.adagrad is set, but comm.method={self.comm.method.value} is for plain SGD; "
                "set it to null"
            )
        pretrain = self.optim.pretrain
        if pretrain is not None and pretrain.layer_by_layer and self.model.dnn is None:
            raise SettingsError(
                "optim.pretrain.layer_by_layer is for model.dnn; set it to false, which trains the "
                "whole network on a part of TRAIN"
            )
