"""Filters and recurrent matrices of which the file has bytes: they stay bytes, and results are those of float32."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from pairwise import pairs

import rammer
from rammer.ir.tensor import Array
from tests.weights import ARCHES, Constant, close, draw, few_bits, in_bytes, model, run, scales

FILTERS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ("Conv", (1, 32, 17, 15), (64, 32, 3, 3), {"pads": [1] * 4}),
    "Winograd's form": ("Conv", (1, 128, 28, 28), (128, 128, 3, 3), {"pads": [1] * 4}),
    "of a batch, by strides": ("Conv", (3, 20, 23, 21), (50, 20, 5, 3), {"strides": [2, 3], "pads": [0, 1, 2, 1]}),
    "1x1": ("Conv", (1, 100, 9, 11), (75, 100, 1, 1), {}),
    "of groups": ("Conv", (1, 64, 13, 13), (96, 16, 3, 3), {"group": 4, "dilations": [2, 2]}),
    "depthwise": ("Conv", (1, 640, 7, 9), (640, 1, 3, 3), {"group": 640, "pads": [1] * 4}),
    "in one dimension": ("Conv", (3, 33, 75), (130, 33, 5), {"pads": [4, 0]}),
    "transposed": ("ConvTranspose", (1, 96, 25), (96, 33, 4), {"strides": [2], "pads": [1, 1]}),
    "transposed, by odd phases": ("ConvTranspose", (1, 96, 7, 9), (96, 48, 3, 3), {"strides": [2, 2]}),
    "transposed groups": ("ConvTranspose", (1, 64, 9, 5), (64, 24, 4, 4), {"strides": [2, 2], "group": 4}),
}


def convolution(x: Array, w: Array, strides: Any = (), pads: Any = (), dilations: Any = (), group: int = 1) -> Array:
    """Tap by tap, in float64."""
    rank = w.ndim - 2
    strides, pads, dilations = strides or [1] * rank, pads or [0] * 2 * rank, dilations or [1] * rank
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    counts = [
        (n - d * (t - 1) - 1) // s + 1 for n, t, d, s in zip(x.shape[2:], w.shape[2:], dilations, strides, strict=True)
    ]
    x, w = x.reshape(len(x), group, -1, *x.shape[2:]), w.reshape(group, -1, *w.shape[1:])
    total = np.zeros((len(x), group, w.shape[1], *counts))
    for tap in np.ndindex(*w.shape[3:]):
        at = [
            slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in zip(tap, dilations, strides, counts, strict=True)
        ]
        total += np.einsum("bgc...,goc->bgo...", x[(..., *at)], w[(..., *tap)])
    return total.reshape(len(x), -1, *counts)


def transposed_convolution(x: Array, w: Array, strides: Any = (), pads: Any = (), group: int = 1) -> Array:
    """Each number of x adds to its window of the result."""
    rank = w.ndim - 2
    strides, pads = strides or [1] * rank, pads or [0] * 2 * rank
    counts = x.shape[2:]
    x, w = x.reshape(len(x), group, -1, *counts), w.reshape(group, -1, *w.shape[1:]).astype(np.float64)
    extents = [s * (n - 1) + t for n, s, t in zip(counts, strides, w.shape[3:], strict=True)]
    total = np.zeros((len(x), group, w.shape[2], *extents))
    for tap in np.ndindex(*w.shape[3:]):
        at = [slice(t, t + s * (n - 1) + 1, s) for t, s, n in zip(tap, strides, counts, strict=True)]
        total[(..., *at)] += np.einsum("bgc...,gco->bgo...", x, w[(..., *tap)])
    inside = [slice(first, n - last) for first, last, n in zip(pads[:rank], pads[rank:], extents, strict=True)]
    return total.reshape(len(x), -1, *extents)[(..., *inside)]


@pairs(name=FILTERS, zeros=[False, True], arch=ARCHES)
def test_filters(name: str, zeros: bool, arch: str) -> None:
    """Whole phases and panels are all that is added to the bytes; numbers from 0 on have their zero at 128."""
    kind, shape, w, attrs = FILTERS[name]
    axis = int(kind == "ConvTranspose")
    group, phases = attrs.get("group", 1), attrs.get("strides", [1]) if axis else [1]
    outputs, inner = w[axis] * group**axis, w[1 - axis] // group**axis
    bias, count = draw(outputs), w[axis]
    numbers = in_bytes(*w)
    constants: dict[str, Constant] = {"w": numbers if zeros else (numbers.astype(int) - 128).astype(np.int8)}
    constants |= {"s": scales(count), **({"z": np.full(count, 128, np.uint8)} if zeros else {})}
    nodes = [
        helper.make_node("DequantizeLinear", list(constants), ["d"], axis=axis),
        helper.make_node(kind, ["x", "d", "b"], ["c"], **attrs),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    made = model(nodes, inputs := {"x": draw(*shape)}, constants | {"b": bias})
    got, nbytes = run(made, inputs, arch)
    scale, ones = np.asarray(constants["s"], np.float64), [1] * len(w[2:])
    weights = (numbers.astype(np.float64) - 128) * scale.reshape([*[1] * axis, -1, *[1] * (1 - axis), *ones])
    sums = (transposed_convolution if axis else convolution)(inputs["x"], weights, **attrs)
    close(got, np.maximum(sums + bias.reshape(-1, *ones), 0).astype(np.float32), 1e-5)
    taps = np.prod([-(-t // p) for t, p in zip_longest(w[2:], phases, fillvalue=1)], dtype=int)
    padded = outputs * np.prod(phases, dtype=int) + 127  # by the last panel
    assert nbytes <= padded * (inner * taps + 8) + 1024


@pytest.mark.parametrize(("bits", "each"), [(4, 1), (8, 2)])
def test_filters_of_four_bits_and_of_any_zero_points(bits: int, each: int) -> None:
    """Four bits become bytes; differences from zero points anywhere take two."""
    w = (64, 32, 3, 3)
    constants: dict[str, Constant] = {"w": few_bits(onnx.TensorProto.INT4, *w) if bits == 4 else in_bytes(*w)}
    constants |= {"s": scales(w[0]), **({"z": in_bytes(w[0])} if bits == 8 else {})}
    nodes = [
        helper.make_node("DequantizeLinear", list(constants), ["d"], axis=0),
        helper.make_node("Conv", ["x", "d"], ["y"], pads=[1] * 4),
    ]
    made = model(nodes, inputs := {"x": draw(1, 32, 14, 14)}, constants)
    got, nbytes = run(made, inputs)
    close(got, in_float32(made, inputs), 1e-5)
    assert nbytes <= each * int(np.prod(w)) + 1024


def in_float32(made: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    """What ONNX Runtime makes of it as it stands: its optimisations would round x to bytes."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, inputs)[0])


LAYERS: dict[str, tuple[str, tuple[int, int, int, int], str, dict[str, Any]]] = {
    "LSTM": ("LSTM", (5, 1, 80, 128), "forward", {}),
    "LSTM of a batch": ("LSTM", (3, 3, 75, 130), "bidirectional", {}),
    "LSTM of large steps": ("LSTM", (2, 1, 100, 640), "reverse", {}),
    "GRU": ("GRU", (4, 1, 64, 256), "forward", {}),
    "GRU, reset late": ("GRU", (3, 3, 75, 131), "bidirectional", {"linear_before_reset": 1}),
    "RNN": ("RNN", (5, 3, 75, 129), "bidirectional", {}),
}


@pairs(name=LAYERS, each=[False, True], arch=ARCHES)
def test_recurrent_layers(name: str, each: bool, arch: str) -> None:
    """Against ONNX Runtime, which makes float32 of both matrices; no step has a copy of its own."""
    kind, (steps, batch, depth, hidden), direction, attrs = LAYERS[name]
    gates, directions = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 1 + (direction == "bidirectional")
    units = gates * hidden
    constants: dict[str, Constant] = {"b": draw(directions, 2 * units) / 10}
    nodes = []
    for matrix, width in (("w", depth), ("r", hidden)):
        constants[f"{matrix}q"] = in_bytes(directions, units, width)
        constants[f"{matrix}s"] = scales(*[units] * each) / 16
        constants[f"{matrix}z"] = np.full([units] * each, 128, np.uint8)
        nodes.append(helper.make_node("DequantizeLinear", [f"{matrix}{n}" for n in "qsz"], [matrix], axis=1))
    nodes.append(helper.make_node(kind, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, direction=direction, **attrs))
    made = model(nodes, inputs := {"x": draw(steps, batch, depth)}, constants)
    got, nbytes = run(made, inputs, arch)
    close(got, in_float32(made, inputs), 1e-5)
    padded = directions * gates * (hidden + 127)  # by the last panel
    assert nbytes <= padded * (depth + hidden + 24) + 1024


def network() -> tuple[onnx.ModelProto, dict[str, Array], int]:
    """Inverted residuals, an LSTM over their columns, and a product; inputs; and bytes of constants."""
    counts, steps, hidden = (64, 160), 15, 96
    constants: dict[str, Constant] = {"turned": np.array([steps, 1, -1])}
    nodes = []

    def weights(name: str, axis: int, *shape: int) -> str:
        constants[f"{name}_q"] = (in_bytes(*shape).astype(int) - 128).astype(np.int8)
        constants[f"{name}_s"] = scales(shape[axis]) / np.float32(np.sqrt(np.prod(shape) / shape[axis]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s"], [name], axis=axis))
        return name

    narrow, wide = counts
    t = "x"
    for n in range(2):
        wider = weights(f"wide{n}", 0, wide, narrow, 1, 1)
        nodes.append(helper.make_node("Conv", [t, wider], [f"a{n}"]))
        deep = weights(f"deep{n}", 0, wide, 1, 5, 5)
        nodes.append(helper.make_node("Conv", [f"a{n}", deep], [f"b{n}"], group=wide, pads=[2] * 4))
        nodes.append(helper.make_node("Relu", [f"b{n}"], [f"c{n}"]))
        nodes.append(helper.make_node("Conv", [f"c{n}", weights(f"narrow{n}", 0, narrow, wide, 1, 1)], [f"d{n}"]))
        nodes.append(helper.make_node("Add", [t, f"d{n}"], [t := f"e{n}"]))
    nodes.append(helper.make_node("Transpose", [t], ["columns"], perm=[3, 0, 1, 2]))
    nodes.append(helper.make_node("Reshape", ["columns", "turned"], ["rows"]))
    matrices = [weights("w", 1, 1, 4 * hidden, 7 * narrow), weights("r", 1, 1, 4 * hidden, hidden)]
    nodes.append(helper.make_node("LSTM", ["rows", *matrices], ["", "last"], hidden_size=hidden))
    nodes.append(helper.make_node("MatMul", ["last", weights("head", 1, hidden, 80)], ["y"]))
    inputs = {"x": draw(1, narrow, 7, steps)}
    return model(nodes, inputs, constants), inputs, sum(np.asarray(value).nbytes for value in constants.values())


@pytest.mark.parametrize("arch", ARCHES)
def test_a_network_takes_no_more_room_than_its_file(arch: str) -> None:
    """One layer reads what the other gives."""
    made, inputs, in_file = network()
    got, nbytes = run(made, inputs, arch)
    close(got, in_float32(made, inputs), 1e-5)
    assert nbytes <= in_file * 1.05 + 4096


@pytest.mark.parametrize(("target", "arch", "kept"), [("ipu", "gc2:16", True), ("cuda", None, False)])
def test_tiles_keep_bytes_and_threads_name_what_they_do_not(target: str, arch: str | None, kept: bool) -> None:
    made, inputs, in_file = network()
    with rammer.compile(made, target, arch=arch, device="emulator", tune_seconds=0) as program:
        close(np.asarray(program.run(inputs)["y"]), in_float32(made, inputs), 1e-5)
        assert program.plan is not None
        wide = [note for note in program.plan.notes if "take the room of float32" in note]
        nbytes = program.report().weight_bytes
    assert (len(wide) == 0 and nbytes <= in_file * 1.05 + 4096) if kept else (len(wide) == 7 and nbytes > 3.5 * in_file)
