"""All settings of a recipe, one field per group of `conf/`."""

from dataclasses import dataclass

from asr_train.schema.comm import CommSettings
from asr_train.schema.corpus import CorpusSettings
from asr_train.schema.decode import DecodeSettings
from asr_train.schema.feats import FeatsSettings
from asr_train.schema.fields import SettingsError
from asr_train.schema.gmm import AliSettings, FrontSettings, GmmSettings
from asr_train.schema.lang import GrammarKind, LangSettings
from asr_train.schema.lm import LmSettings
from asr_train.schema.model import ModelSettings
from asr_train.schema.objective import LatticesSettings, ObjectiveSettings
from asr_train.schema.optim import OptimSettings
from asr_train.schema.run import RunSettings
from asr_train.schema.score import ScoreSettings
from asr_train.schema.shards import ShardsSettings


@dataclass(kw_only=True, slots=True)
class Config:
    """All groups of `conf/`."""

    corpus: CorpusSettings
    lang: LangSettings
    lm: LmSettings
    feats: FeatsSettings
    gmm: dict[str, GmmSettings]  # by name, each trained from the one before it
    ali: AliSettings
    shards: ShardsSettings
    model: ModelSettings
    optim: OptimSettings
    comm: CommSettings
    lattices: LatticesSettings
    objective: ObjectiveSettings  # of the runs in SEQUENCE
    decode: DecodeSettings
    score: ScoreSettings

    def __post_init__(self) -> None:
        if self.lang.grammar.kind is GrammarKind.ngram and self.lm.small is None:
            raise SettingsError(
                "lang.grammar.kind is ngram but lm.small is null; choose a model, for example "
                "lm=trigram"
            )
        for name, system in self.gmm.items():
            if system.front is not None:
                self._check_front(f"gmm.{name}", system, system.front)
        _ = self.run  # checks combinations

    @property
    def run(self) -> RunSettings:
        """The settings of a run by frame cross-entropy."""
        return RunSettings(model=self.model, optim=self.optim, comm=self.comm)

    def _check_front(self, path: str, system: GmmSettings, front: FrontSettings) -> None:
        """Check dimensions: a system is trained hours after its settings are read."""
        bins = self.feats.num_mels
        if front.num_ceps > bins:
            raise SettingsError(
                f"{path}.front.num_ceps is {front.num_ceps}, more than feats.num_mels {bins}; "
                "lower it"
            )
        width = (front.num_ceps or bins) * (2 * front.splice + 1) * (front.deltas + 1)
        if system.lda is not None and system.lda.dims > width:
            raise SettingsError(
                f"{path}.lda.dims is {system.lda.dims}, but the frames to project have {width} "
                "dimensions; lower it"
            )
