"""Real models on the CPU: the onnx package's networks against ONNX Runtime, the paper's against PyTorch."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import rammer
from rammer.plugins import PluginRegistry

light = pytest.importorskip("benchmarks.models.light", reason="needs the source checkout")
POLICIES = sorted(PluginRegistry(third_party=False).policies())
QUICK = {("squeezenet", policy) for policy in POLICIES[::2]} | {("shufflenet", policy) for policy in POLICIES[1::2]}


def check(path: str, inputs: dict[str, np.ndarray], wanted: dict[str, np.ndarray], policy: str) -> None:
    with rammer.compile(path, "cpu", policy=policy, tune_seconds=1) as program:
        found = program.run(inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-3 * np.abs(value).max(), err_msg=name)
        assert np.ptp(value) > 0, "an output of one repeated number proves nothing"


@pytest.mark.parametrize(
    ("name", "policy"),
    [pytest.param(*one, marks=[] if one in QUICK else pytest.mark.slow) for one in product(light.NAMES, POLICIES)],
)
def test_light_model_agrees_with_onnxruntime(name: str, policy: str) -> None:
    pytest.importorskip("onnxruntime", reason="the reference of these models is ONNX Runtime (dev extra)")
    built = light.build(name)
    check(str(built.path), built.inputs, built.outputs, policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "name",
    [
        "resnext29",
        "resnext29_grouped",
        "nasnet_cifar",
        "alexnet",
        "lstm_tc_lstm",
        "lstm_tc_unrolled",
        "deepspeech2_lstm",
        "deepspeech2_unrolled",
        "seq2seq_lstm",
        "seq2seq_unrolled",
        "resnext101",
        "nasnet_imagenet",
    ],
)
def test_paper_model_agrees_with_pytorch(name: str, policy: str) -> None:
    """At reduced size; `-m slow` runs the full ones."""
    pytest.importorskip("torch", reason="the paper's models are built with PyTorch (extra torch)")
    from benchmarks.models.build import build

    built = build(name, scale="small")
    check(str(built.path), built.inputs, built.outputs, policy)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "resnext29",
        "nasnet_cifar",
        "alexnet",
        "lstm_tc_lstm",
        "lstm_tc_unrolled",
        "deepspeech2_lstm",
        "deepspeech2_unrolled",
        "seq2seq_lstm",
        "seq2seq_unrolled",
    ],
)
def test_paper_model_at_full_size(name: str) -> None:
    pytest.importorskip("torch", reason="the paper's models are built with PyTorch (extra torch)")
    from benchmarks.models.build import build

    built = build(name)
    for policy in POLICIES:
        check(str(built.path), built.inputs, built.outputs, policy)
