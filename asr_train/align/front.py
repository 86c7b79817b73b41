"""The front end of Gaussian systems, and of networks on log-mel.

feats_TF --normalise--> cepstra --deltas--> x_TD
                                --spliced frames, one matrix (LDA, MLLT)--> x_TD
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from asr_train.data.features import Feats, Utterance, cepstra, spliced, with_deltas
from asr_train.schema import FrontSettings, NormSettings

Read = Callable[[Utterance], np.ndarray]  # utterance -> x_TD, float32


def logmel(feats: Feats, norm: NormSettings) -> Read:
    """Return a function utterance -> its stored features, normalised: float32 [T, F]."""
    normalise = feats.normaliser(norm)
    return lambda utterance: normalise(utterance, feats.load(utterance))


@dataclass(frozen=True, slots=True)
class Front:
    """Turns stored features into the frames that Gaussians are estimated on.

    Attributes:
        settings: of cepstra, deltas, normalisation and splicing.
        transform_dD: float32 [d, D], applied last; None: no transform.
    """

    settings: FrontSettings
    transform_dD: np.ndarray | None = None

    def __call__(self, feats: Feats) -> Read:
        """Return a function utterance -> x_TD."""
        own = self.settings
        normalised = logmel(feats, own.norm)

        def read(utterance: Utterance) -> np.ndarray:
            x_TD = normalised(utterance)
            if own.num_ceps:
                x_TD = cepstra(x_TD, own.num_ceps)
            x_TD = with_deltas(spliced(x_TD, own.splice), own.deltas)
            return x_TD if self.transform_dD is None else x_TD @ self.transform_dD.T

        return read
