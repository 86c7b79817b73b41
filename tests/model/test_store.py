import json

import pytest
import torch

from asr_train import schema
from asr_train.comm.bucket import Bucket
from asr_train.files import DamagedFileError, part
from asr_train.model.store import build_model, load_model, save_model
from asr_train.schema import DnnSettings, ModelSettings, Nonlinearity

F, S = 4, 6


def settings(width: int = 8, layers: int = 2) -> ModelSettings:
    return ModelSettings(
        dnn=DnnSettings(
            layers=layers,
            width=width,
            nonlinearity=Nonlinearity.relu,
            context_left=1,
            context_right=1,
        )
    )


def make(seed: int = 0, **sizes: int):
    return build_model(settings(**sizes), S, torch.arange(F), 1 + torch.arange(F), seed)


ABOUT = {
    "run": "a",
    "model": schema.plain(settings()),
    "priors": [1 / S] * S,
    "feats": {"num_mels": F},
    "norm": {"by": "none"},
    "states_hash": "abc",
    "frames": 12,
    "steps": 3,
    "dev": {"loss": 1.5, "accuracy": 0.5},
}


def test_what_is_saved_is_loaded(tmp_path):
    model = make()
    path = save_model(tmp_path, model, ABOUT)
    loaded, about = load_model(path)
    assert ABOUT.items() <= about.items()
    assert (about["kind"], about["num_mels"], about["num_states"]) == ("dnn", F, S)
    saved, found = model.state_dict(), loaded.state_dict()
    assert saved.keys() == found.keys()
    assert {"mean_F", "var_F"} <= found.keys()
    assert all(torch.equal(saved[name], found[name]) for name in saved)


def test_equal_weights_give_equal_bytes_even_as_views_of_a_bucket(tmp_path):
    alone, in_bucket = make(), make()
    Bucket(in_bucket)
    for folder, model in (("a", alone), ("b", in_bucket)):
        save_model(tmp_path / folder, model, ABOUT)
    for name in ("model.pt", "model.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_flipped_bit_anywhere_is_noticed(tmp_path):
    path = save_model(tmp_path, make(), ABOUT)
    content = (tmp_path / "model.pt").read_bytes()
    for at in range(0, len(content), 97):
        flipped = bytearray(content)
        flipped[at] ^= 1
        (tmp_path / "model.pt").write_bytes(flipped)
        with pytest.raises(DamagedFileError, match=r"model.pt has SHA-256"):
            load_model(path)


def test_a_model_cut_short_or_missing_is_named(tmp_path):
    path = save_model(tmp_path, make(), ABOUT)
    content = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "model.pt").write_bytes(content[:-1])
    with pytest.raises(DamagedFileError, match=f"{len(content) - 1} bytes .* {len(content)}"):
        load_model(path)
    (tmp_path / "model.pt").unlink()
    with pytest.raises(DamagedFileError, match=r"model.pt is missing"):
        load_model(path)


@pytest.mark.parametrize(
    "other, message",
    [
        ({"width": 9}, r"layers.0.weight is \[8, 12\] but the model's is \[9, 12\]"),
        ({"layers": 3}, r"lacks layers.3.bias, layers.3.weight"),
        ({"layers": 1}, r"has layers.2.bias, layers.2.weight, unknown to the model"),
        ({"width": 10**9}, r"describes a network of 10000000\d+ parameters, but model.pt has \d+;"),
        (
            {"layers": 10**9},
            r"describes a network of 1000000000 layers, but model.pt has \d tensors;",
        ),
    ],
)
def test_weights_of_other_settings_are_refused(tmp_path, other, message):
    path = save_model(tmp_path, make(), {**ABOUT, "model": schema.plain(settings(**other))})
    with pytest.raises(ValueError, match=message):
        load_model(path)


def test_a_model_file_cannot_run_code(tmp_path):
    path = save_model(tmp_path, make(), ABOUT)
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return ran.touch, ()

    torch.save({"layers.0.weight": Evil()}, tmp_path / "model.pt")
    listed = json.loads(path.read_text())

    listed |= {key: part(tmp_path / "model.pt", tmp_path)[key] for key in ("bytes", "sha256")}
    path.write_text(json.dumps(listed))
    with pytest.raises(DamagedFileError, match=r"model.pt holds no tensors that torch can read"):
        load_model(path)
    assert not ran.exists()


def test_an_index_that_lacks_an_entry_is_damaged(tmp_path):
    path = save_model(tmp_path, make(), ABOUT)
    listed = json.loads(path.read_text())
    del listed["sha256"]
    path.write_text(json.dumps(listed))
    with pytest.raises(DamagedFileError, match=r"is not a model \(KeyError\('sha256'\)\)"):
        load_model(path)
