"""Networks built from settings, and as files: model.pt (tensors) and model.json (all else).

model.json is written last and lists size and SHA-256 of model.pt: if it exists, the model is
complete. No tensor file can execute code (`weights_only`), and equal weights give equal bytes.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr_train import files, schema
from asr_train.model import dnn, lstm
from asr_train.model.dnn import Dnn, LowRank, factors
from asr_train.model.lstm import Lstm
from asr_train.schema import ModelSettings

# Each has context_left, context_right, stride, every_frame, num_mels, num_states, mean_F, var_F
Model = Dnn | Lstm


def build_model(
    settings: ModelSettings, num_states: int, mean_F: Tensor, var_F: Tensor, seed: int
) -> Model:
    """Build the network of the settings on the CPU; arguments as in `Dnn`."""
    if settings.lstm is not None:
        return Lstm(settings.lstm, num_states, mean_F, var_F, seed)
    assert settings.dnn is not None  # schema checks that one of the two is set
    return Dnn(settings.dnn, num_states, mean_F, var_F, seed)


def num_parameters(settings: ModelSettings, num_mels: int, num_states: int) -> int:
    """Count weights and biases of a network, without building it."""
    if settings.lstm is not None:
        return lstm.num_parameters(settings.lstm, num_mels, num_states)
    assert settings.dnn is not None
    return dnn.num_parameters(settings.dnn, num_mels, num_states)


def initialise_from(source: Model, target: Model) -> None:
    """Initialise `target` with the layers of `source`, in place.

    A feed-forward network may have more hidden layers than its source. Then it takes over the
    layers that exist; the others keep their initial weights, and so does the output layer, which
    was trained on other inputs (Seide et al., 2011, discriminative pre-training). Its layers of low
    rank take over a truncated singular value decomposition of the source's (Xue et al., 2013).

    Raises:
        ValueError: if layers do not match, or the networks are of equal sizes but read other frames
            or have other nonlinearities; names one, and both values.
    """
    for name in ("context_left", "context_right", "stride", "nonlinearity"):
        theirs, ours = (str(getattr(model, name, None)) for model in (source, target))
        if theirs != ours and type(source) is type(target):
            raise ValueError(
                f"the pre-trained network has {name} {theirs} but this one {ours}, so that its "
                "weights would mean something else; begin with a network of the same settings"
            )
    found, wanted = source.state_dict(), target.state_dict()
    if isinstance(source, Dnn) and isinstance(target, Dnn):
        hidden = len(source.layers) - 1
        if hidden < len(target.layers) - 1:
            found = {n: t for n, t in found.items() if not n.startswith(f"layers.{hidden}.")}
        found = _factored(found, target)
        if hidden < len(target.layers) - 1:
            wanted = {n: t for n, t in wanted.items() if n in found}
    _check_tensors(Path("the pre-trained network"), found, wanted)
    target.load_state_dict(found, strict=False)


def _factored(tensors: dict[str, Tensor], target: Dnn) -> dict[str, Tensor]:
    """Return tensors of full-rank layers as the factors that `target` has in their place."""
    found = dict(tensors)
    for number, layer in enumerate(target.layers):
        name = f"layers.{number}"
        if isinstance(layer, LowRank) and f"{name}.weight" in found:
            out, into = factors(found.pop(f"{name}.weight"), layer.out.in_features)
            found |= {f"{name}.out.weight": out, f"{name}.into.weight": into}
            found[f"{name}.out.bias"] = found.pop(f"{name}.bias")
    return found


def save_model(
    folder: Path | str, model: Model, about: dict[str, Any], writes: bool = True
) -> Path:
    """Write model.pt, then model.json; return the path of the latter.

    All processes that hold a stripe of a model call this, which gathers them; one of them writes.
    The files are those of a model that is not cut.

    Args:
        about: further entries of model.json: "run", "model" (settings as plain data), "priors",
            "feats", "norm", "states_hash", "frames", "steps", "dev".
    """
    folder = Path(folder)
    tensors = {name: _whole(t).cpu() for name, t in model.state_dict().items()}
    if not writes:
        return folder / "model.json"
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "model.pt", tensors)
    part = files.part(folder / "model.pt", folder)
    (kind,) = (name for name, value in about["model"].items() if value is not None)
    listed = {"kind": kind, "file": part["path"], "bytes": part["bytes"], "sha256": part["sha256"]}
    sizes = {"num_mels": model.num_mels, "num_states": model.num_states}
    files.write_json(folder / "model.json", {**listed, **sizes, **about})
    return folder / "model.json"


def _whole(tensor: Any) -> Tensor:
    """Return a tensor; of one that is cut into stripes (torch's DTensor), gather them."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def load_model(path: Path | str) -> tuple[Model, dict[str, Any]]:
    """Load the network of a model.json, on the CPU; return it and the entries.

    Raises:
        DamagedFileError: if model.pt is missing or changed, or model.json lacks an entry.
        ValueError: if the parameters do not match the settings; names one and both shapes.
    """
    path = Path(path)
    about = files.read_json(path)
    try:
        settings = schema.build(ModelSettings, about["model"], "model")
        num_mels, num_states = about["num_mels"], about["num_states"]
        listed = {"path": about["file"], "bytes": about["bytes"], "sha256": about["sha256"]}
    except (KeyError, TypeError) as error:
        raise files.DamagedFileError(
            f"{path} is not a model ({error!r}); delete it and run make again"
        ) from error
    tensors = load_tensors(files.check_part(path.parent, listed, remake=path))
    _check_size(path, settings, num_mels, num_states, tensors)
    model = build_model(settings, num_states, torch.zeros(num_mels), torch.ones(num_mels), seed=0)
    _check_tensors(path.parent / listed["path"], tensors, model.state_dict())
    model.load_state_dict(tensors)
    return model.eval(), about


def save_tensors(path: Path, content: dict[str, Any]) -> None:
    """Write tensors and plain data; `path` stays unchanged on failure.

    Raises:
        OSError: if the disk is full or not writable.
    """
    with files.replacing(path) as scratch:
        try:
            torch.save(_own(content), scratch)
        except RuntimeError as error:  # torch's exception for a failed write
            reason = str(error).split("\n")[0]
            raise OSError(f"{path} cannot be written ({reason}): is the disk full?") from error


def _own(content: Any) -> Any:
    """Return content whose tensors have memory of their own.

    torch.save would write all that a view lies in: of one worker's row, the matrix of all workers.
    """
    if isinstance(content, dict):
        return {name: _own(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_own(value) for value in content]
    if isinstance(content, Tensor) and content.untyped_storage().nbytes() > content.nbytes:
        return content.clone()
    return content


def load_tensors(path: Path) -> dict[str, Any]:
    """Read tensors and plain data that torch.save wrote; nothing in the file is executed.

    Raises:
        DamagedFileError: if torch cannot read it.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # RuntimeError, UnpicklingError, KeyError, ...
        reason = str(error).split("\n")[0]
        raise files.DamagedFileError(
            f"{path} holds no tensors that torch can read safely ({reason}); "
            "delete it and run make again"
        ) from error


def _check_size(
    path: Path, settings: ModelSettings, num_mels: int, num_states: int, tensors: dict[str, Tensor]
) -> None:
    """Refuse settings of a far larger network before its memory is allocated."""
    network = settings.dnn or settings.lstm
    layers = 0 if network is None else network.layers
    held = sum(tensor.numel() for tensor in tensors.values())
    if layers > len(tensors):
        found, wanted = f"{layers} layers", f"{len(tensors)} tensors"
    elif (described := num_parameters(settings, num_mels, num_states)) > 10 * held:
        found, wanted = f"{described} parameters", f"{held}"
    else:
        return  # lesser differences are found, and named, when the network exists
    raise ValueError(
        f"{path} describes a network of {found}, but model.pt has {wanted}; "
        "get the model again, or train it anew"
    )


def _check_tensors(path: Path, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    hint = "was it trained with other settings? delete model.json and run make again"
    if missing := sorted(wanted.keys() - found.keys()):
        raise ValueError(f"{path} lacks {', '.join(missing)}; {hint}")
    if unknown := sorted(found.keys() - wanted.keys()):
        raise ValueError(f"{path} has {', '.join(unknown)}, unknown to the model; {hint}")
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            raise ValueError(
                f"{path}: {name} is {list(found[name].shape)} "
                f"but the model's is {list(tensor.shape)}; {hint}"
            )
