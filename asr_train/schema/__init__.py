"""Settings as dataclasses, checked when built; `conf/` holds the numbers. Imports no torch.

`Config` has a field for each group of `conf/`, with a file each here. The comments in `conf/` say
what a number means; comments here only add what is missing there. `build` makes it from plain data:
an unknown key, a wrong type or an impossible value is a SettingsError that names key, value and
what is allowed.
"""

from asr_train.facts import Method
from asr_train.schema.comm import (
    AdaptiveSettings,
    BlockForm,
    BlockVelocity,
    BmufSettings,
    Capacity,
    Codec,
    CommSettings,
    GtcSettings,
    OneBitSettings,
    Virtual,
    VirtualTimeSettings,
    Wire,
)
from asr_train.schema.config import Config
from asr_train.schema.corpus import (
    HUMAN,
    Channel,
    CommandsSettings,
    ConditionSettings,
    CorpusSettings,
    Digits,
    DigitsSettings,
    FolderSettings,
    IntakeSettings,
    LowRate,
    Published,
    PublishedSettings,
    SplitBy,
)
from asr_train.schema.decode import DecodeSettings
from asr_train.schema.feats import FeatsSettings, NormBy, NormSettings
from asr_train.schema.fields import SettingsError
from asr_train.schema.gmm import (
    AliSettings,
    FmllrSettings,
    FrontSettings,
    GmmSettings,
    QuestionStates,
    TreeSettings,
)
from asr_train.schema.lang import (
    GrammarKind,
    GrammarSettings,
    LangSettings,
    LexiconSettings,
    LexiconSource,
    PronprobsSettings,
    Unknown,
)
from asr_train.schema.lm import BigramSettings, LmSettings, NgramSettings, Smoothing
from asr_train.schema.load import build, load, plain, unknown_key
from asr_train.schema.model import DnnSettings, LstmSettings, ModelSettings, Nonlinearity
from asr_train.schema.objective import Criterion, LatticesSettings, ObjectiveSettings
from asr_train.schema.optim import (
    AdagradPlace,
    AdagradSettings,
    AutoMinibatchSettings,
    AutoRateSettings,
    Halving,
    OptimSettings,
    Precision,
    PretrainSettings,
    Scaling,
    SpecAugmentSettings,
)
from asr_train.schema.run import RunSettings
from asr_train.schema.score import NormaliserKind, NormaliserSettings, ScoreSettings
from asr_train.schema.shards import Inputs, ShardsSettings
