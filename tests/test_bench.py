"""The benchmarks of kernels and of training steps run, and compare results before timing."""

import json
import multiprocessing
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from asr_train.kernels.backend import Backend, choose

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_kernels

    monkeypatch.setattr(bench_kernels, "BUDGET", 0.0)
    monkeypatch.setattr(bench_kernels, "compiled_mark", lambda: (None, "left out"))
    yield bench_kernels
    for name in ("bench_kernels", "bench_network", "bench_step", "bench_stripes", "resolve"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("size", ["abc", "0", "nan", "-1", "0.001", "3000"])
def test_sizes_that_cannot_be_measured_are_refused_first(kernels, tmp_path, size):
    with pytest.raises(ValueError, match=f"'{size}' must be millions of parameters, from 0.002 to"):
        kernels.main(str(tmp_path), "1", size)


@pytest.mark.parametrize("case", ["lstm_2x128", "lstm_2x128=", "lstm_2x128=a", "=5", "x=64,0"])
def test_cases_of_another_form_are_refused(kernels, case):
    with pytest.raises(ValueError, match=f"'{case}' must be a name and numbers of frames"):
        kernels.frames_of(case)


def test_every_kernel_has_its_copy_its_peer_and_its_place_in_table_and_plot(kernels, tmp_path):
    kernels.main(str(tmp_path), "0.05")
    found = json.loads((tmp_path / "kernels.json").read_text())
    named = {row["kernel"] for row in found["kernels"]}
    assert len(named) == 4
    for kernel in named:
        by = {row["by"] for row in found["kernels"] if row["kernel"] == kernel}
        assert {"copy", "ours", "eager torch"} <= by
    for row in found["kernels"]:
        moved = row["floor_bytes_a_parameter"] * row["parameters"]
        assert row["bytes_per_second"] == pytest.approx(moved / row["seconds"])
    assert [code["density"] for code in found["rice"]] == list(kernels.DENSITIES)
    text = (tmp_path / "kernels.md").read_text()
    assert all(kernel in text for kernel in named)
    assert "gpu: " in text
    assert (tmp_path / "kernels.svg").read_text().startswith("<?xml")


def test_a_kernel_that_is_not_the_reference_is_not_timed(kernels, tmp_path, monkeypatch):
    real = kernels.threshold.compress

    def wrong(grad_P, residual_P, tau, kept_P):
        words_K, is_finite = real(grad_P, residual_P, tau, kept_P)
        kept_P[3] += 1
        return words_K, is_finite

    monkeypatch.setattr(kernels.threshold, "compress", wrong)
    with pytest.raises(SystemExit, match=r"compress: differs from the reference \(50,000"):
        kernels.main(str(tmp_path), "0.05")


def test_eager_codes_are_the_references(kernels, monkeypatch):
    seen = {}

    def timed(calls):
        for name, call in calls.items():
            with monkeypatch.context() as patch:
                note = lambda like, name=name: seen.setdefault(name, choose(like))  # noqa: E731
                patch.setattr(kernels.rice, "choose", note)
                call()
        return dict.fromkeys(calls, 1.0)

    monkeypatch.setattr(kernels, "timed", timed)
    kernels.coding(kernels.Vectors(50_000))
    is_eager = {name: backend is Backend.reference for name, backend in seen.items()}
    assert is_eager == {"write": False, "read": False, "eager write": True, "eager read": True}


def test_other_benchmarks_refuse_what_they_cannot_measure_first(kernels, tmp_path):
    import bench_network
    import bench_step
    import bench_stripes

    with pytest.raises(ValueError, match=r"^lstm_2x128=100 must be a multiple of 64"):
        bench_step.main(str(tmp_path), "dnn_4x256=10", "lstm_2x128=64,100")
    with pytest.raises(ValueError, match=r"^'1' must be a layer's width of 2 or more"):
        bench_stripes.main(str(tmp_path), "16=32", "1=16")
    for rate in ("0", "abc", "nan", "-5"):
        with pytest.raises(ValueError, match=f"^'{rate}' must be a rate in Mb/s"):
            bench_network.run(str(tmp_path), "100", rate)


def test_at_least_one_element_is_beyond_the_threshold(kernels):
    vectors = kernels.Vectors(2048)
    tau = vectors.threshold(1e-4)
    assert ((vectors.residual_P + vectors.grad_P).abs() > tau).sum() == 1


def test_a_steps_parts_are_all_there(kernels, tmp_path, monkeypatch, capsys):
    import bench_step

    monkeypatch.setattr(bench_step, "ROUNDS", 1)
    monkeypatch.setattr(bench_step, "MORE_ROUNDS", 1)
    for name, value in {"BLOCK": 1, "BLOCKS": 1, "SQUARE": 128, "PRECISIONS": "fp32,bf16"}.items():
        monkeypatch.setattr(bench_step, name, value)
    threads = torch.get_num_threads()
    bench_step.main(str(tmp_path), "dnn_4x256=32", "lstm_2x128=64")
    torch.set_num_threads(threads)
    found = json.loads((tmp_path / "steps.json").read_text())
    precisions = ["fp32", "bf16", "fp32"]
    if "lstm_2x128=64, bf16: not measured" not in capsys.readouterr().out:  # by the CPU
        precisions.append("bf16")
    assert [row["precision"] for row in found["methods"]] == precisions
    for row in found["methods"]:
        assert row["step_seconds"].keys() == bench_step.METHODS.keys()
        assert min(row["step_seconds"].values()) > 0
        assert row["products_per_second"] > 0
    for row in found["steps"]:
        wanted = {"forward, backward", "update", "decode and update", "other"}
        assert row["part_seconds"].keys() == wanted | bench_step.PARTS.keys()
        assert 1e-4 < row["density"] < 1e-1
        assert min(row["step_seconds"].values()) > 0
    rows = len(found["steps"]) + len(precisions)
    assert (tmp_path / "steps.md").read_text().count("\n| ") == 4 + rows  # with heads, rules


@pytest.mark.parametrize("name", ["dnn_4x256", "lstm_2x128"])
def test_products_are_counted_for_the_frames_that_the_layers_read(kernels, name):
    """A recurrent network reads one of three frames, so it multiplies a third as often."""
    import bench_step

    worker = bench_step.Worker(name, 128)
    read = []
    for layer in worker.model.modules():
        if isinstance(layer, torch.nn.LSTM | torch.nn.Linear):
            layer.register_forward_pre_hook(lambda _, given: read.append(given[0].shape[:-1]))
    worker.gradient()
    weights = sum(p.numel() for p in worker.model.parameters() if p.ndim == 2)
    assert bench_step.products(worker.model, worker.batch) == 6 * weights * read[0].numel()


@pytest.mark.parametrize(
    "precision, dtype", [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_the_peak_is_that_of_products_alone_in_their_precision(
    kernels, monkeypatch, precision, dtype
):
    import bench_step

    modes, cublas = set(), torch.backends.cuda.matmul
    monkeypatch.setattr(bench_step, "SQUARE", 8)
    monkeypatch.setattr(torch, "mm", lambda a, b: modes.add((a.dtype, cublas.allow_tf32)))
    before, cublas.allow_tf32 = cublas.allow_tf32, precision == "fp32"
    bench_step.peak(bench_step.Precision(precision))
    cublas.allow_tf32 = before
    assert modes == {(dtype, precision == "tf32")}


@pytest.mark.slow
def test_stripes_are_measured_beside_one_process(kernels, tmp_path, monkeypatch):
    import bench_stripes

    some = {name: bench_stripes.SETUPS[name] for name in ("1 process", "2 stripes, halves")}
    monkeypatch.setattr(bench_stripes, "SETUPS", some)
    import_module("torch._dynamo")  # which DTensor imports late; once, before processes fork
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: fork)
    bench_stripes.main(str(tmp_path), "16=32")
    rows = json.loads((tmp_path / "stripes.json").read_text())["rows"]
    assert [row["setup"] for row in rows] == list(bench_stripes.SETUPS)
    for row in rows:
        assert row["loss"] == pytest.approx(rows[0]["loss"], rel=bench_stripes.CLOSE)
        assert row["frames_per_second"].keys() == set(bench_stripes.PHASES)
    assert (tmp_path / "stripes.md").read_text().count("\n| ") == 2 + len(rows)
