"""One run: a network, its training and the exchange between workers."""

from dataclasses import dataclass, field, replace

from asr_train.schema.comm import CommSettings, Virtual
from asr_train.schema.fields import LEFT_OUT, SettingsError
from asr_train.schema.model import ModelSettings
from asr_train.schema.objective import ObjectiveSettings
from asr_train.schema.optim import OptimSettings, Precision

MANY_EPOCHS = 10**6  # more than are ever trained


@dataclass(kw_only=True, slots=True)
class RunSettings:
    """One run: a network and how it is trained.

    Attributes:
        objective: of sequence training; None: frame cross-entropy.
        initial: name of the run that sequence training begins with.
    """

    model: ModelSettings
    optim: OptimSettings
    comm: CommSettings
    objective: ObjectiveSettings | None = field(default=None, metadata={LEFT_OUT: True})
    initial: str | None = field(default=None, metadata={LEFT_OUT: True})

    def continued(self, objective: ObjectiveSettings, initial: str) -> "RunSettings":
        """Return the settings of sequence training from run `initial` on.

        Raises:
            SettingsError: if a minibatch is larger than a pool.
        """
        if objective.minibatch_frames > self.optim.pool_frames:
            raise SettingsError(
                f"objective.minibatch_frames is {objective.minibatch_frames}, above "
                f"optim.pool_frames {self.optim.pool_frames}; a pool holds many minibatches"
            )
        own = objective.rate, objective.minibatch_frames, objective.epochs
        # The rate is not halved by the number of epochs, so that there may be more of them later
        optim = replace(self.optim.at_one_rate(*own), hold_epochs=MANY_EPOCHS)
        return replace(self, optim=optim, objective=objective, initial=initial)

    def __post_init__(self) -> None:
        if self.objective is not None:
            self._check_objective()
        elif self.model.lstm is not None:
            self._check_pools(self.model.lstm.subsample)
        traffic = self.comm.method.traffic
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
        if self.comm.stripes > 1:
            self._check_stripes()

    def _check_objective(self) -> None:
        stripes, virtual = self.comm.stripes, self.comm.virtual.value
        for name, value, needed in (("stripes", stripes, 1), ("virtual", virtual, "exact")):
            if value != needed:
                raise SettingsError(
                    f"comm.{name} is {value}, but sequence training computes each worker's "
                    f"gradient by itself, on a whole network; set comm.{name}={needed}"
                )

    def _check_pools(self, subsample: int) -> None:
        for name, size in self.optim.sizes():
            if size * subsample > self.optim.pool_frames:
                raise SettingsError(
                    f"optim.{name} has minibatches of {size} outputs, each of model.lstm.subsample="
                    f"{subsample} frames, above optim.pool_frames {self.optim.pool_frames}; a pool "
                    "holds many minibatches"
                )

    def _check_stripes(self) -> None:
        stripes, dnn, method = self.comm.stripes, self.model.dnn, self.comm.method
        units = 0 if dnn is None else min(dnn.width, dnn.rank or dnn.width)
        for is_wrong, why in (
            (dnn is None, "only layers of model.dnn can be cut; set it to 1"),
            (stripes > units, f"a layer of model.dnn has only {units} units; lower it"),
            (
                method.traffic.is_asynchronous,
                f"the stripes of comm.method={method.value} would know different messages; set it "
                "to 1, or choose gtc",
            ),
            (
                self.comm.virtual is Virtual.batched,
                "comm.virtual=batched is for whole networks; set it to exact",
            ),
            (
                self.optim.precision is Precision.bf16,
                "optim.precision=bf16 is for whole networks; set it to fp32 or tf32",
            ),
        ):
            if is_wrong:
                raise SettingsError(f"comm.stripes is {stripes}, but {why}")
