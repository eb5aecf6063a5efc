"""Ordinary layers at their real sizes on CPUs that are made up: every candidate fits, and computes its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import prod

import numpy as np
import pytest
from cpus import ARCHS, KIB, made_up
from kernel_harness import Built, Runner, compare, compile_all, random_inputs
from onnx import NodeProto, TensorProto, helper, numpy_helper

import rammer
from rammer.ir.device import VDeviceSpec
from rammer.ir.evaluate import evaluate_box
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.passes import optimize
from rammer.ir.tile import TileProgram
from rammer.kernels import candidates

L2, VEUS = (512 * KIB, 1024 * KIB, 2048 * KIB), (2, 4, 8)


# A Latin square: any two of arch, size and number meet.
CPUS = {
    f"{arch}, {l2 // KIB} KiB, {veus} vEUs": made_up(arch, veus, l2, (32 if l2 < 1024 * KIB else 48) * KIB)
    for row, arch in enumerate(ARCHS)
    for l2, veus in zip(L2, (*VEUS[row:], *VEUS[:row]), strict=True)
}
RUN = [list(CPUS)[4 * row] for row in range(len(ARCHS))]  # of every arch, size and number one: these compile and run

node = helper.make_node


def network(shape: tuple[int, ...], nodes: list[NodeProto], **weights: tuple[int, ...]) -> Graph:
    """Nodes from `x` to `y`, with random weights of the given shapes."""
    rng = np.random.default_rng(0)
    values = [
        numpy_helper.from_array(rng.standard_normal(size, np.float32) / np.float32(max(prod(size[1:]), 1) ** 0.5), name)
        for name, size in weights.items()
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "network", [x], [y], values)
    return rammer.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def recurrent(kind: str, gates: int, steps: int, batch: int, width: int, units: int, directions: int = 2) -> Graph:
    direction = {"direction": "bidirectional"} if directions == 2 else {}
    layer = node(kind, ["x", "w", "r"], ["y"], hidden_size=units, **direction)
    w, r = (directions, gates * units, width), (directions, gates * units, units)
    return network((steps, batch, width), [layer], w=w, r=r)


def conv(channels: int, outs: int, size: int, kernel: int, stride: int = 1, group: int = 1, batch: int = 1) -> Graph:
    """Convolution, bias, ReLU, and a second one of 1x1, so that channels lie in blocks between them."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], pads=[kernel // 2] * 4, strides=[stride] * 2, group=group),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "v"], ["y"]),
    ]
    weights = {"w": (outs, channels // group, kernel, kernel), "b": (outs,), "v": (outs, outs, 1, 1)}
    return network((batch, channels, size, size), nodes, **weights)


def matmul(*shape: int, columns: int) -> Graph:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["p", "b"], ["y"])]
    return network(shape, nodes, w=(shape[-1], columns), b=(columns,))


def attention(rows: int, width: int, heads: int) -> Graph:
    """Queries, keys and values from one product, as GPT-2 exports them; softmax; products of activations."""
    split = {
        "size": np.array([1, rows, heads, width // heads], np.int64),
        "whole": np.array([1, rows, width], np.int64),
    }
    nodes = [
        *(node("Constant", [], [name], value=numpy_helper.from_array(v)) for name, v in split.items()),
        node("MatMul", ["x", "w"], ["p"]),
        node("Split", ["p"], ["q", "k", "v"], axis=2),
        *(node("Reshape", [n, "size"], [f"{n}s"]) for n in "qkv"),
        node("Transpose", ["qs"], ["qt"], perm=[0, 2, 1, 3]),
        node("Transpose", ["ks"], ["kt"], perm=[0, 2, 3, 1]),
        node("Transpose", ["vs"], ["vt"], perm=[0, 2, 1, 3]),
        node("MatMul", ["qt", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "vt"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "whole"], ["joined"]),
        node("LayerNormalization", ["joined", "g"], ["y"], axis=-1),
    ]
    return network((1, rows, width), nodes, w=(width, 3 * width), g=(width,))


def softmax(*shape: int, axis: int) -> Graph:
    return network(shape, [node("Softmax", ["x"], ["y"], axis=axis)])


LAYERS: dict[str, Callable[[], Graph]] = {
    "bidirectional LSTM": lambda: recurrent("LSTM", 4, 40, 1, 512, 128),
    "bidirectional GRU": lambda: recurrent("GRU", 3, 40, 1, 64, 256),
    "LSTM, batch 16": lambda: recurrent("LSTM", 4, 20, 16, 256, 256, 1),
    "ResNet's first": lambda: conv(3, 64, 112, 7, 2),
    "ResNet 56x56": lambda: conv(64, 64, 56, 3),
    "ResNet 7x7": lambda: conv(512, 512, 7, 3),
    "ResNet's step": lambda: conv(256, 512, 28, 1, 2),
    "ResNeXt": lambda: conv(256, 256, 28, 3, group=32, batch=2),
    "MobileNet 112x112": lambda: conv(96, 96, 112, 3, 2, group=96),
    "MobileNet 14x14": lambda: conv(480, 480, 14, 5, group=480),
    "MatMul [1, 384, 14, 64]": lambda: matmul(1, 384, 14, 64, columns=64),
    "MatMul [1, 29, 32, 75]": lambda: matmul(1, 29, 32, 48, columns=75),
    "MatMul, 33 rows": lambda: matmul(33, 512, columns=1000),
    "softmax of columns": lambda: softmax(1, 80, 3000, axis=1),
    "softmax of channels": lambda: softmax(1, 21, 112, 112, axis=1),
    "attention": lambda: attention(48, 768, 12),
}
graphs = cache(lambda layer: LAYERS[layer]())


def offered(layer: str, spec: VDeviceSpec) -> dict[str, tuple[Operation, list[RKernel]]]:
    """Every operation that a layer comes to on a device, and its candidates."""
    operations = dict.fromkeys(op.operation for op in optimize(graphs(layer), spec).operators)
    return {f"{layer} {n} {op.kind}": (op, candidates(op, spec)) for n, op in enumerate(operations)}


@pytest.mark.parametrize("layer", LAYERS)
def test_candidates_fit_every_cpu_and_compute_every_element_once(layer: str) -> None:
    for cpu, spec in CPUS.items():
        for name, (op, kernels) in offered(layer, spec).items():
            assert min(k.scratch_bytes for k in kernels) <= spec.scratch_bytes, f"{cpu}: {name}"
            for kernel in kernels:
                assert isinstance(kernel.body, TileProgram)
                where = f"{cpu}: {name} {kernel.name}"
                arguments = kernel.body.arguments[kernel.body.num_outputs :]
                for buffer, kind in zip(arguments, kernel.input_types(), strict=True):
                    assert buffer.size * kind.element_bytes == kind.nbytes, f"{where}: {buffer.name} is {kind}"
                boxes = [tuple(kernel.box(task).values()) for task in range(kernel.num_rtasks)]
                volumes = [prod(high - low for low, high in box) for box in boxes]
                assert len({box for box, volume in zip(boxes, volumes, strict=True) if volume}) == sum(
                    map(bool, volumes)
                )
                assert sum(volumes) == prod(extent for _, extent in op.expr.root.axes), where


@pytest.fixture(scope="module", params=RUN)
def built(request: pytest.FixtureRequest) -> Iterator[tuple[VDeviceSpec, Built]]:
    spec = CPUS[request.param]
    yield (
        spec,
        compile_all(
            {name: found for layer in LAYERS for name, found in offered(layer, spec).items()}, spec, check=True
        ),
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_candidates_compute_the_expression(built: tuple[VDeviceSpec, Built], layer: str) -> None:
    """On the first, a middle and the last rTask; every access is checked."""
    _, code = built
    for name, (op, kernels) in code.kernels.items():
        if not name.startswith(layer):
            continue
        inputs = random_inputs(op)
        for kernel, symbol in kernels:
            runner = Runner(kernel, code.library, symbol, inputs)
            for task in sorted({0, kernel.num_rtasks // 2, kernel.num_rtasks - 1}):
                runner(task)
                box = kernel.box(task)
                inside = tuple(slice(*box[axis]) for axis, _ in op.expr.root.axes)
                for got, want in zip(runner.results(), evaluate_box(op.expr, inputs, box), strict=True):
                    compare(got[inside], want, 2e-5, f"{name} {kernel.name}, rTask {task}")
            assert runner.context.status == 0, f"{name} {kernel.name}"
