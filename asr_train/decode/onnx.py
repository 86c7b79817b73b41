"""A network -> an **ONNX file**, to score frames elsewhere, with what decoding takes from it.

in    feats     float32 [batch, frames, mels]: log-mel, normalised as `norm` says (docs/use.md),
                with context_left and context_right frames repeated at the ends
out   scores    float32 [batch, K, states]: log posteriors with the priors divided out, in nats; K
                is frames - context_left - context_right, or one row every `stride` of these
Metadata of the file has the run, context_left, context_right and stride, and as JSON the settings
`feats` of the log-mel frames and `norm` (shards.norm) of their mean and variance. The graph is
written layer by layer: torch's exporter takes a minute, and no LSTM of varying length.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from asr_train.checks import inputs_named
from asr_train.extras import extra
from asr_train.files import read_json, replacing
from asr_train.model.dnn import Dnn, LowRank
from asr_train.model.lstm import Lstm
from asr_train.model.store import load_model
from asr_train.schema import Nonlinearity

OPSET = 17


class _Graph:
    """Nodes and constants, each node with one output that it is named after."""

    def __init__(self) -> None:
        with extra("onnx", "an ONNX file"):
            import onnx

        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: np.ndarray | Tensor) -> str:
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        node = self.onnx.helper.make_node(kind, list(inputs), [name], name, **attributes)
        self.nodes.append(node)
        return name

    def conv(self, x: str, weight: Tensor, bias: Tensor | None) -> str:
        """Add a convolution over the last axis; weight [outputs, inputs, window]."""
        more = [] if bias is None else [self.constant(bias)]
        return self.add("Conv", x, self.constant(weight), *more)


def export_onnx(model: Path | str, path: Path | str) -> dict[str, str]:
    """Write the network of a model.json; return the file's metadata.

    Raises:
        ValueError: if the model is no network.
        ImportError: if the package onnx is missing; names the command that installs it.
    """
    about = read_json(Path(model))
    if about["kind"] in ("gmm", "scores"):
        has = {"gmm": "Gaussian mixtures, which ONNX has no operator for", "scores": "scores alone"}
        raise ValueError(f"the model has {has[about['kind']]}; export a network")
    if about.get("fmllr") is not None:
        raise ValueError(
            f"the model reads {inputs_named(about['fmllr'])}, which another program cannot make; "
            "export a network on log-mel (shards.inputs=logmel)"
        )
    network, _ = load_model(Path(model))
    graph = _Graph()
    onnx = graph.onnx
    x = graph.add("Transpose", "feats", perm=[0, 2, 1])
    x = graph.add("Sub", x, graph.constant(network.mean_F[:, None]))
    x = graph.add("Mul", x, graph.constant(network.var_F.rsqrt()[:, None]))
    logits = (
        _dnn(graph, network, about, x) if isinstance(network, Dnn) else _lstm(graph, network, x)
    )
    logp = graph.add("LogSoftmax", logits, axis=2)
    log_priors_S = np.log(np.array(about["priors"])).astype(np.float32)
    graph.nodes.append(
        onnx.helper.make_node("Sub", [logp, graph.constant(log_priors_S)], ["scores"], "scores")
    )

    def tensor(name: str, *shape: int | str) -> Any:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    made = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            about["run"],
            [tensor("feats", "batch", "frames", network.num_mels)],
            [tensor("scores", "batch", "rows", network.num_states)],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=8,  # which readers of OPSET know
        producer_name="asr-train",
    )
    metadata = {
        "run": about["run"],
        "context_left": str(network.context_left),
        "context_right": str(network.context_right),
        "stride": str(network.stride),
        "feats": json.dumps(about["feats"]),
        "norm": json.dumps(about["norm"]),
    }
    onnx.helper.set_model_props(made, metadata)
    onnx.checker.check_model(made, full_check=True)
    with replacing(Path(path)) as scratch:
        scratch.write_bytes(made.SerializeToString())
    return metadata


def _dnn(graph: _Graph, network: Dnn, about: dict[str, Any], x: str) -> str:
    """Add the layers over [batch, mels, frames]: the first one sees a window, others one frame."""
    window = network.context_left + 1 + network.context_right
    is_sigmoid = about["model"]["dnn"]["nonlinearity"] == Nonlinearity.sigmoid.value
    for number, layer in enumerate(network.layers):
        if number:
            x = graph.add("Sigmoid" if is_sigmoid else "Relu", x)
            if is_sigmoid:
                x = graph.add("Sub", x, graph.constant(np.array(0.5, np.float32)))
        if isinstance(layer, LowRank):
            x = graph.conv(x, layer.into.weight[..., None], None)
            layer = layer.out
        assert isinstance(layer, nn.Linear)
        weight = layer.weight.unflatten(1, (1 if number else window, -1)).transpose(1, 2)
        x = graph.conv(x, weight, layer.bias)
    return graph.add("Transpose", x, perm=[0, 2, 1])


def _lstm(graph: _Graph, network: Lstm, x: str) -> str:
    """Add stacking, the cells and the output, over [batch, mels, frames]."""
    mels, width = network.num_mels, network.cells.hidden_size
    stack = network.cells.input_size // mels
    # Row (frame, mel) of the stacked window takes that mel of that frame
    picks = np.eye(stack * mels, dtype=np.float32).reshape(stack * mels, stack, mels)
    picks = picks.transpose(0, 2, 1)
    x = graph.add("Conv", x, graph.constant(picks), strides=[network.stride])
    x = graph.add("Transpose", x, perm=[2, 0, 1])

    def gates(name: str) -> Tensor:
        """Return a parameter with its gates in ONNX's order: input, output, forget, cell."""
        i, f, c, o = getattr(network.cells, name).detach().chunk(4)
        return nn.utils.parameters_to_vector([i, o, f, c]).view(1, 4 * width, -1)

    for number in range(network.cells.num_layers):
        bias = [gates(f"bias_{kind}_l{number}").view(1, -1) for kind in ("ih", "hh")]
        weights = [graph.constant(gates(f"weight_{kind}_l{number}")) for kind in ("ih", "hh")]
        joined = graph.constant(np.concatenate([b.numpy() for b in bias], 1))
        x = graph.add("LSTM", x, *weights, joined, hidden_size=width)
        x = graph.add("Squeeze", x, graph.constant(np.array([1], np.int64)))
    far = np.iinfo(np.int64).max
    bounds = (np.array([value], np.int64) for value in (network.delay, far, 0))
    x = graph.add("Slice", x, *map(graph.constant, bounds))
    x = graph.add("Transpose", x, perm=[1, 0, 2])
    x = graph.add("MatMul", x, graph.constant(network.output.weight.T))
    return graph.add("Add", x, graph.constant(network.output.bias))
