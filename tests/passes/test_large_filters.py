"""Convolutions of large filters between Winograd's transforms: the same meaning, only where it pays, small errors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from cpus import runnable
from pass_models import SPEC, assert_same, model

import rammer
from rammer import config
from rammer.frontend.builder import GraphBuilder
from rammer.ir.device import Execution, MemoryLevel, VDeviceSpec
from rammer.ir.graph import Graph
from rammer.ir.ops.toom_cook import POINTS, matrices
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array, DType
from rammer.kernels import candidates
from rammer.passes import optimize
from rammer.passes.clean.large_filters import transform_large_filters
from rammer.scheduler.graphturbo.in_parts import Parted, in_parts

CACHED = replace(SPEC, memory=(MemoryLevel("L2", 1 << 20, "veu", 100.0, "cache"),))
BOUND = 2e-5  # of the largest output
KINDS = ["input_transform", "conv", "output_transform"]


def conv(
    x: tuple[int, ...],
    outs: int,
    kernel: tuple[int, int],
    *,
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    bias: bool = True,
    dtype: DType = DType.F32,
    **attrs: object,
) -> Graph:
    """A convolution with constant weights, a bias, and a ReLU behind it."""
    rng = np.random.default_rng(3)

    def build(b: GraphBuilder, image: str) -> str:
        depth = x[1] // int(str(attrs.get("group", 1)))
        w = (rng.standard_normal((outs, depth, *kernel)) / np.sqrt(depth * np.prod(kernel))).astype(dtype.numpy)
        more = [b.constant(rng.standard_normal(outs).astype(dtype.numpy))] * bias
        made = b.add(
            "conv", b.add("cast", image, dtype=dtype), b.constant(w), *more, strides=strides, pads=pads, **attrs
        )
        return str(b.add("relu", made))

    return model(build, x)


def kinds(graph: Graph, spec: VDeviceSpec = CACHED) -> list[str]:
    return [op.kind for op in transform_large_filters(graph, spec).operators if op.kind in KINDS]


@pytest.mark.parametrize(("outputs", "taps"), [(2, 2), (3, 3), (4, 4), (2, 3), (4, 3)])
def test_matrices_convolve(outputs: int, taps: int) -> None:
    """With any numbers, exactly but for rounding."""
    found, rng = matrices(outputs, taps), np.random.default_rng(0)
    size = outputs + taps - 1
    assert len(POINTS[size - 1]) == size - 1
    data, weights = rng.standard_normal(size), rng.standard_normal(taps)
    b, g, a = (np.reshape(m, (rows, -1)) for m, rows in zip(found, (size, size, outputs), strict=True))
    wanted = [data[n : n + taps] @ weights for n in range(outputs)]
    np.testing.assert_allclose(a @ ((g @ weights) * (b @ data)), wanted, rtol=1e-12, atol=1e-12)


SIZES = {
    "speech": ((1, 16, 60, 43), 16, (21, 11), {"strides": (2, 1), "pads": (10, 5, 10, 5)}),
    "odd": ((3, 16, 29, 31), 32, (7, 9), {"pads": (3, 0, 2, 4)}),
    "even": ((1, 32, 33, 40), 16, (8, 10), {}),
    "large": ((1, 16, 41, 37), 16, (12, 12), {"bias": False}),
    "both strides": ((2, 16, 47, 52), 16, (11, 12), {"strides": (2, 2), "pads": (5, 5, 5, 5)}),
    "three phases": ((1, 16, 70, 61), 16, (13, 7), {"strides": (3, 1), "pads": (6, 3, 6, 3)}),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_meaning_stays(name: str) -> None:
    x, outs, kernel, options = SIZES[name]
    graph = conv(x, outs, kernel, **options)
    found = transform_large_filters(graph, CACHED)
    assert [op.kind for op in found.operators if op.kind in KINDS] == KINDS
    (inner,) = (op for op in found.operators if op.kind == "conv")
    assert inner.operation.inputs[1].shape[2:] == (3, 3)
    assert_same(graph, found, rtol=2e-4)
    assert_same(graph, optimize(graph, CACHED), rtol=2e-4)


UNCHANGED = {
    "small filter": ((1, 32, 40, 40), 32, (5, 5), {}),
    "one small side": ((1, 32, 40, 40), 32, (21, 3), {}),
    "beyond the points": ((1, 32, 60, 60), 32, (15, 15), {}),
    "few taps of a phase": ((1, 32, 60, 60), 32, (7, 7), {"strides": (3, 3)}),
    "few tiles": ((1, 32, 9, 9), 32, (7, 7), {"pads": (3, 3, 3, 3)}),
    "three channels": ((1, 3, 60, 60), 32, (9, 9), {}),
    "outputs amid a block": ((1, 32, 40, 40), 24, (9, 9), {}),
    "groups": ((1, 32, 40, 40), 32, (9, 9), {"group": 2}),
    "dilations": ((1, 32, 60, 60), 32, (9, 9), {"dilations": (2, 1)}),
    "float64": ((1, 32, 40, 40), 32, (9, 9), {"dtype": DType.F64}),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_others_stay_what_they_are(name: str) -> None:
    x, outs, kernel, options = UNCHANGED[name]
    assert kinds(conv(x, outs, kernel, **options)) == ["conv"]


def test_who_does_not_want_it() -> None:
    """Devices without a cache for each vEU, with threads, without vectors; and who switches Winograd off."""
    graph = conv((1, 32, 40, 40), 32, (9, 9))
    assert kinds(graph) == KINDS
    one = replace(CACHED, lanes=1)
    threads = replace(CACHED, execution=Execution.SIMT, max_threads=32)
    assert all(kinds(graph, spec) == ["conv"] for spec in (SPEC, one, threads))
    direct = replace(CACHED, no_winograd=True)
    operations = {part: op.operation for op in optimize(graph, direct).operators for part in op.kind.split("+")}
    assert "input_transform" not in operations
    assert {k.form for k in candidates(operations["conv"], direct)} == {None}  # none is in Winograd's form
    weights = model(lambda b, x: b.add("conv", x, b.input("w", (32, 32, 9, 9))), (1, 32, 40, 40))
    assert kinds(weights) == ["conv"]


def in_float64(graph: Graph, inputs: dict[str, Array]) -> Array:
    constants = {n: a.astype(np.float64) for n, a in graph.constants.items()}
    types = {t: replace(kind, dtype=DType.F64) for t, kind in graph.types.items()}
    made = GraphBuilder("float64")
    names = {t: made.input(t, types[t].shape, DType.F64) for t in graph.inputs}
    names |= {n: made.constant(a) for n, a in constants.items()}
    for op in graph.operators:
        attrs = {k: DType.F64 if isinstance(v, DType) else v for k, v in op.operation.keywords.items()}
        (names[op.outputs[0]],) = (made.add(op.kind, *(names[t] for t in op.inputs), **attrs),)
    made.output(names[graph.outputs[0]], "y0")
    found = evaluate_graph(made.build(), {n: a.astype(np.float64) for n, a in inputs.items()})
    return found["y0"]


def test_parts_of_transforms_are_scheduled_as_the_whole() -> None:
    """Rows of a part are read some rows further on."""
    x, outs, kernel, options = SIZES["both strides"]
    graph = transform_large_filters(conv(x, outs, kernel, **options), CACHED)
    (n,) = (n for n, op in enumerate(graph.operators) if op.kind == "input_transform")
    *outer, rows, columns = graph.operators[n].operation.outputs[0].shape
    boxes = tuple((*((0, e) for e in outer), ends, (0, columns)) for ends in ((0, 6), (6, rows)))
    found = in_parts(graph, [Parted((n,), boxes)])
    for (number,) in found.parts[0]:
        made = candidates(found.graph.operators[number].operation, CACHED)
        assert made and all(k.name.startswith("input_transform") for k in made)


def test_programs_without_it() -> None:
    x, outs, kernel, options = SIZES["odd"]
    graph = conv(x, outs, kernel, **options)
    with config.override(RAMMER_WINOGRAD="0"), rammer.compile(graph, "cpu", tune_seconds=0) as program:
        assert not {"input_transform"} & {op.kind for op in program.plan.graph.operators}


@pytest.mark.parametrize(
    ("name", "arch"), [*product(["speech", "odd", "both strides"], ["x86-64-avx512"]), ("odd", "x86-64-avx2")]
)
def test_programs_compute_it(name: str, arch: str) -> None:
    """On the CPU, under the epilogue, at sizes that overhang; errors are within the bound that docs/design.md names."""
    x, outs, kernel, options = SIZES[name]
    graph = conv(x, outs, kernel, **options)
    inputs = {"x": np.random.default_rng(5).standard_normal(x, np.float32)}
    with rammer.compile(graph, "cpu", arch=runnable(arch), tune_seconds=0) as program:
        made = {part for op in program.plan.graph.operators for part in op.kind.split("+")}
        assert {"input_transform", "output_transform", "relu"} <= made
        (found,) = program.run(inputs).values()
    wanted = in_float64(graph, inputs)
    assert np.abs(found - wanted).max() <= BOUND * np.abs(wanted).max()


LARGE = {
    "21x11 in steps of 2": ((1, 32, 81, 60), 32, (21, 11), {"strides": (2, 1)}),
    "31x7 in steps of 3": ((1, 32, 52, 44), 32, (31, 7), {"strides": (3, 1)}),
    "11x11": ((1, 64, 44, 44), 32, (11, 11), {"pads": (5, 5, 5, 5)}),
    "9x9": ((1, 16, 48, 41), 16, (9, 9), {}),
    "7x7": ((1, 48, 40, 40), 48, (7, 7), {"pads": (3, 3, 3, 3)}),
}


@pytest.mark.parametrize("name", LARGE)
def test_errors_keep_the_bound(name: str) -> None:
    """Against float64, of several draws, with and without a mean; the one in the middle may be in Winograd's form."""
    (_, *image), outs, kernel, options = LARGE[name]
    graph = conv((4, *image), outs, kernel, bias=False, **options)
    x = np.random.default_rng(7).standard_normal((4, *image), np.float32) + np.float32(
        [[[[0]]], [[[0]]], [[[1]]], [[[3]]]]
    )
    with rammer.compile(graph, "cpu", arch="x86-64-avx512@here", tune_seconds=0) as program:
        assert any("output_transform" in op.kind for op in program.plan.graph.operators)
        (found,) = program.run({"x": x}).values()
    wanted = in_float64(graph, {"x": x})
    off = np.abs(found - wanted).max(axis=(1, 2, 3)) / np.abs(wanted).max(axis=(1, 2, 3))
    assert off.max() <= BOUND
