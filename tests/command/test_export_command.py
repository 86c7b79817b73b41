"""A network exported as ONNX scores frames as ours does."""

import json
import shutil

import numpy as np
import pytest
import torch

from asr_train import schema
from asr_train.bundle.recogniser import PRIOR_FRAMES
from asr_train.bundle.store import open_bundle
from asr_train.command.main import main
from asr_train.data.features import Heard
from asr_train.decode.onnx import export_onnx
from asr_train.decode.posteriors import load_scorer
from asr_train.files import read_json, write_json
from asr_train.model.store import build_model, save_model

onnxruntime = pytest.importorskip("onnxruntime")

MELS, STATES = 6, 11
NORM = {"by": "utterance", "variance": True}
DNN = {"layers": 3, "width": 24, "context_left": 3, "context_right": 2}
LSTM = {"layers": 2, "width": 8, "stack": 3, "subsample": 2, "delay": 2, "piece": 5, "warm": 3}
NETWORKS = {
    "sigmoid": {"dnn": {**DNN, "nonlinearity": "sigmoid"}},
    "relu": {"dnn": {**DNN, "nonlinearity": "relu", "dropout": 0.3}},
    "low_rank": {"dnn": {**DNN, "nonlinearity": "relu", "rank": 4}},
    "lstm": {"lstm": LSTM},
    "lstm_stride_3": {"lstm": {**LSTM, "layers": 1, "stack": 4, "subsample": 3, "delay": 0}},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_those_of_our_network(tmp_path, name):
    settings = schema.build(schema.ModelSettings, NETWORKS[name], "model")
    torch.manual_seed(0)
    model = build_model(settings, STATES, torch.randn(MELS), 1 + torch.rand(MELS), seed=1)
    for parameter in model.parameters():  # the output layer begins with zeros
        torch.nn.init.normal_(parameter, std=0.5)
    priors_S = torch.rand(STATES).softmax(0)
    about = {"model": schema.plain(settings), "run": name, "priors": priors_S.tolist()}
    more = {"feats": {"num_mels": MELS}, "norm": NORM, "states": None, "self_loops": [0.5] * STATES}
    saved = save_model(tmp_path, model, {**about, **more})
    export_onnx(saved, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    found = session.get_modelmeta().custom_metadata_map
    context = int(found["context_left"]) + int(found["context_right"])
    assert [json.loads(found[name]) for name in ("feats", "norm")] == [{"num_mels": MELS}, NORM]
    assert (context, int(found["stride"])) == (
        model.context_left + model.context_right,
        model.stride,
    )
    save_model(tmp_path, model, {**about, **more, "fmllr": {"run": "sat", "sha256": "abc"}})
    with pytest.raises(ValueError, match=r"fMLLR features of sat .*, which another program cannot"):
        export_onnx(saved, tmp_path / "other.onnx")
    model.eval()
    for batch, frames in ((1, context + 1), (3, context + 40)):
        feats_BTF = torch.randn(batch, frames, MELS)
        with torch.inference_mode():
            logp_BKS = torch.log_softmax(model(feats_BTF), 2)
        wanted = (logp_BKS - priors_S.log()).numpy()
        (scores,) = session.run(None, {"feats": feats_BTF.numpy()})
        assert scores.shape == wanted.shape
        np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=2e-5)  # float32


@pytest.mark.parametrize("variance", [False, True])
@pytest.mark.parametrize("by", [by.value for by in schema.NormBy])
def test_frames_normalised_as_the_metadata_says_have_the_scores_of_decoding(tmp_path, by, variance):
    with open_bundle("digits") as opened:
        for name in ("model.json", "model.pt"):
            shutil.copy(opened.model.with_name(name), tmp_path)
    model, training = tmp_path / "model.json", opened.frames
    write_json(model, read_json(model) | {"norm": {"by": by, "variance": variance}})
    export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    found = session.get_modelmeta().custom_metadata_map
    assert json.loads(found["feats"]) == schema.plain(opened.feats)
    norm = json.loads(found["norm"])

    frames_TF = np.random.default_rng(0).normal(5, 3, (70, 20)).astype(np.float32)
    feats = Heard(opened.feats, training.weighing(PRIOR_FRAMES))
    wanted_TS = load_scorer(model, feats, None).score(feats.put("a", "a", "", frames_TF, 0.7))

    prior = PRIOR_FRAMES if norm["by"] == "speaker" else 0
    mean_F, square_F = (
        (sum_F * prior / training.frames + (frames_TF**power).sum(0)) / (prior + 70)
        for power, sum_F in ((1, training.sum_F), (2, training.squares_F))
    )
    normal_TF = frames_TF if norm["by"] == "none" else frames_TF - mean_F
    if norm["by"] != "none" and norm["variance"]:
        normal_TF = normal_TF / np.sqrt(square_F - mean_F**2)
    sides = [(int(found["context_left"]), int(found["context_right"])), (0, 0)]
    padded_BTF = np.pad(normal_TF, sides, mode="edge")[None].astype(np.float32)
    (scores_BTS,) = session.run(None, {"feats": padded_BTF})
    np.testing.assert_allclose(scores_BTS[0], wanted_TS, rtol=1e-4, atol=1e-3)


def test_the_command_exports_the_packages_bundle(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", "digits", str(tmp_path / "digits.onnx")])
    assert ended.value.code == 0
    assert "context_left 8" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "digits.onnx")
    (inputs,), (outputs,) = session.get_inputs(), session.get_outputs()
    assert (inputs.shape[2], outputs.shape[2]) == (20, 65)


def test_gaussians_are_refused(tmp_path):
    path = tmp_path / "model.json"
    path.write_text('{"kind": "gmm"}')
    with pytest.raises(ValueError, match="no operator"):
        export_onnx(path, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
