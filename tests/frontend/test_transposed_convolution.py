"""ConvTranspose by its definition: every element adds the weight, times itself, to the output."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx_models import model, node

from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array


def scattered(x: Array, w: Array, b: Array, attrs: dict[str, list[int]], group: int) -> Array:
    """The whole output with output_padding, and then what pads leave of it."""
    strides, dilations, more, pads = (attrs[n] for n in ("strides", "dilations", "output_padding", "pads"))
    rank, outs = len(strides), w.shape[1]
    kernel, each = w.shape[2:], x.shape[1] // group
    whole = [
        s * (e - 1) + d * (k - 1) + 1 + o
        for e, s, d, k, o in zip(x.shape[2:], strides, dilations, kernel, more, strict=True)
    ]
    y = np.zeros((len(x), group * outs, *whole))
    for g, place in product(range(group), product(*map(range, kernel))):
        mine = slice(g * each, g * each + each)
        value = np.einsum("nc...,co->no...", x[:, mine].astype("f8"), w[(mine, slice(None), *place)].astype("f8"))
        at = (
            slice(p * d, p * d + s * (e - 1) + 1, s)
            for p, d, s, e in zip(place, dilations, strides, x.shape[2:], strict=True)
        )
        y[(slice(None), slice(g * outs, g * outs + outs), *at)] += value
    y += b.reshape(-1, *(1,) * rank)
    return y[(..., *(slice(pads[d], whole[d] - pads[rank + d]) for d in range(rank)))]


@pytest.mark.parametrize("seed", range(60))
def test_of_any_strides_dilations_and_pads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    each, outs = int(rng.choice([1, 3])), int(rng.choice([1, 2, 5]))
    spatial, kernel, strides = (rng.integers(1, high, rank).tolist() for high in (8, 5, 6))
    dilations = rng.choice([1, 1, 2, 3], rank).tolist()
    more = [int(rng.integers(0, max(s, d))) for s, d in zip(strides, dilations, strict=True)]
    pads = rng.integers(0, 4, 2 * rank).tolist()
    attrs = {"strides": strides, "dilations": dilations, "output_padding": more, "pads": pads}
    x, w, b = (
        rng.standard_normal(s).astype(np.float32)
        for s in ((2, group * each, *spatial), (group * each, outs, *kernel), group * outs)
    )
    expected = scattered(x, w, b, attrs, group)
    if 0 in expected.shape:
        pytest.skip("the pads leave nothing")
    nodes = [node("ConvTranspose", ["x", "w", "b"], ["y"], group=group, kernel_shape=kernel, **attrs)]
    graph = load(model(nodes, {"x": x.shape}, ["y"], {"w": w, "b": b}))
    np.testing.assert_allclose(evaluate_graph(graph, {"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_no_term_is_multiplied_by_a_zero_between_elements() -> None:
    """A stride of 8 costs what its taps cost: each position of the output has two."""
    w = np.ones((64, 32, 16), np.float32)
    graph = load(
        model([node("ConvTranspose", ["x", "w"], ["y"], strides=[8], pads=[4, 4])], {"x": (1, 64, 29)}, ["y"], {"w": w})
    )
    (conv,) = (op for op in graph.operators if op.kind == "conv")
    assert conv.operation.inputs[1].shape == (32 * 8, 64, 2)
    assert graph.types["y"].shape == (1, 32, 29 * 8)
