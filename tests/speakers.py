"""Synthetic features of several speakers, and systems trained on them."""

import numpy as np
from toy import path_of

from asr_train.align.train import train
from asr_train.compose import settings
from asr_train.data.features import Utterance
from asr_train.schema import GmmSettings, build, plain

CONFIG = settings("dnn", ["gmm=sat"])
WORDS = ("A", "AB", "ABC", "C")
DIMS = 6


class Speakers:
    """Features of several speakers; replaces `data.features.Feats`. Each state is a Gaussian.

    A speaker's frames are an affine transform of those that all have in common, unless `alike`.
    The states' means are `apart` standard deviations from each other.
    """

    def __init__(self, lang, alike=False, seed=0, prefix="s", apart=3.0, words=WORDS):
        made = np.random.default_rng(0)
        mean_SD = apart * made.standard_normal((lang.states.num_states, DIMS))
        rng = np.random.default_rng(seed + 1)
        self.settings, self.arrays, self.utterances = CONFIG.feats, {}, []
        self.paths, self.change = {}, {}
        for s in range(4):
            change_DE = np.eye(DIMS, DIMS + 1)
            if not alike:
                change_DE += 0.22 * rng.standard_normal(change_DE.shape)
                change_DE[:, -1] *= 4
            self.change[f"{prefix}{s}"] = change_DE
        for u in range(61):
            speaker = f"{prefix}{u % 3 if u < 60 else 3}"  # the fourth has one utterance
            said = [words[i] for i in rng.integers(0, len(words), 4)]
            path_T = path_of(lang, said, rng, stay=6)
            frames_TD = mean_SD[path_T] + rng.standard_normal((len(path_T), DIMS))
            change_DE, name = self.change[speaker], f"{speaker}-{u}"
            self.paths[name] = path_T
            self.arrays[name] = (frames_TD @ change_DE[:, :-1].T + change_DE[:, -1]).astype("f4")
            row = Utterance(name, speaker, " ".join(said), len(path_T) / 100, len(path_T))
            self.utterances.append(row)

    def normaliser(self, norm):
        return lambda utterance, x_TD: x_TD

    def load(self, utterance):
        return self.arrays[utterance.id]


def system(name, **change) -> GmmSettings:
    values = plain(CONFIG.gmm[name])
    if name == "mono":
        values["front"] |= {"num_ceps": 0, "deltas": 0}
    values |= {"passes": 8, "gaussians": 14, "tree": None, **change}
    if name == "sat":
        own = {"min_frames": 200.0, "passes": [2, 4], **change.get("fmllr", {})}
        values["fmllr"] = plain(CONFIG.gmm[name].fmllr) | own
    return build(GmmSettings, values)


def trained(feats, lang, own, before=None):
    rows = []
    return *train(feats, lang, own, CONFIG.ali, before, rows.append), rows
