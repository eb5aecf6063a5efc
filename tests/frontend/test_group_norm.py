"""Norms of groups of channels: as one operator, and as exporters write them around InstanceNormalization."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import model, node

from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array


def normal(x: Array, groups: int, scale: Array, bias: Array) -> Array:
    apart = x.reshape(len(x), groups, -1).astype("f8")
    apart = (apart - apart.mean(-1, keepdims=True)) / np.sqrt(apart.var(-1, keepdims=True) + 1e-5)
    each = (-1, *(1,) * (x.ndim - 2))
    return apart.reshape(x.shape) * scale.reshape(each) + bias.reshape(each)


@pytest.mark.parametrize("form", ["reshaped", "operator"])
@pytest.mark.parametrize(
    ("shape", "groups"), [((1, 48, 75), 1), ((3, 24, 29), 4), ((2, 6, 5, 7), 6), ((3, 12, 1), 3), ((2, 8, 3, 4, 5), 2)]
)
def test_moments_are_those_of_the_groups(form: str, shape: tuple[int, ...], groups: int) -> None:
    rng = np.random.default_rng(0)
    x = (3 + rng.standard_normal(shape)).astype(np.float32)
    scale, bias = (rng.standard_normal(shape[1]).astype(np.float32) for _ in range(2))
    each = (shape[1], *(1,) * (len(shape) - 2))
    constants = {"scale": scale, "bias": bias}
    if form == "operator":
        nodes = [node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=groups)]
    else:
        constants |= {
            "apart": np.array([shape[0], groups, -1]),
            "back": np.array(shape),
            "ones": np.ones(groups, np.float32),
            "zeros": np.zeros(groups, np.float32),
        }
        constants |= {name: constants[name].reshape(each) for name in ("scale", "bias")}
        nodes = [
            node("Reshape", ["x", "apart"], ["g"]),
            node("InstanceNormalization", ["g", "ones", "zeros"], ["n"], epsilon=1e-5),
            node("Reshape", ["n", "back"], ["b"]),
            node("Mul", ["b", "scale"], ["s"]),
            node("Add", ["s", "bias"], ["y"]),
        ]
    graph = load(model(nodes, {"x": shape}, ["y"], constants, 21))
    np.testing.assert_allclose(
        evaluate_graph(graph, {"x": x})["y"], normal(x, groups, scale, bias), rtol=1e-4, atol=1e-4
    )
    if x[0, 0].size > 1:  # the channels' moments are taken in the form of the channels
        wide = [op for op in graph.operators if op.kind == "reduce" and op.operation.inputs[0].size == x.size]
        assert wide and all(op.operation.inputs[0].shape == shape for op in wide)


def test_a_reshape_that_cuts_channels_is_no_group() -> None:
    """Five groups of six channels' elements: InstanceNormalization of what was reshaped, whatever it was before."""
    x = np.random.default_rng(1).standard_normal((2, 6, 10)).astype(np.float32)
    constants = {
        "apart": np.array([2, 5, 12]),
        "scale": np.arange(1, 6, dtype=np.float32),
        "bias": np.ones(5, np.float32),
    }
    nodes = [node("Reshape", ["x", "apart"], ["g"]), node("InstanceNormalization", ["g", "scale", "bias"], ["y"])]
    found = evaluate_graph(load(model(nodes, {"x": (2, 6, 10)}, ["y"], constants)), {"x": x})["y"]
    expected = normal(x.reshape(2, 5, 12), 5, constants["scale"], constants["bias"])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
