"""Which results an infinity or NaN reaches: with numerics="strict" those that ONNX Runtime gives it to, no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_models import model, node

import rammer
from rammer import config
from rammer.errors import DeviceError
from rammer.ir.kernel import ForeignSource
from rammer.ir.tensor import Array

# ONNX Runtime multiplies neighbours by zero there, or has a running sum: what a finite change reaches is the oracle.
BY_CHANGE = ("Resize, linear", "Resize, cubic", "Resize, corners", "RoiAlign", "LRN")


def weights(*shape: int) -> Array:
    return (np.random.default_rng(shape).standard_normal(shape) + 0.1).astype(np.float32)


class Case(NamedTuple):
    """Nodes from x to y, x's shape, and what else they read."""

    nodes: list[onnx.NodeProto]
    shape: tuple[int, ...]
    constants: dict[str, Array]
    values: tuple[str, ...] = ("nan", "inf", "-inf")


def one(op: str, *shape: int, opset: int = 18, **given: Any) -> Case:
    """A node of x and arrays, in order; what is no array is an attribute."""
    arrays = {k: v for k, v in given.items() if isinstance(v, np.ndarray)}
    return Case(
        [node(op, ["x", *arrays], **{k: v for k, v in given.items() if k not in arrays})],
        shape,
        {k: v for k, v in arrays.items() if v.size},
    )


def resized(mode: str, *factors: float, **attrs: Any) -> Case:
    none = np.zeros(0, np.float32)
    case = one("Resize", 1, 20, 9, 11, r=none, s=np.array([1, 1, *factors], np.float32), mode=mode, **attrs)
    return case._replace(nodes=[node("Resize", ["x", "", "s"], mode=mode, **attrs)])


def chained(*channels: int) -> Case:
    """Convolutions whose channels fill no vector: padded lanes must not hand on what a ReLU ends."""
    nodes, constants, at = [], {}, "x"
    for n, (depth, outs) in enumerate(pairwise(channels)):
        constants[f"w{n}"] = weights(outs, depth, 3, 3) if n else -np.abs(weights(outs, depth, 3, 3))
        nodes += [node("Conv", [at, f"w{n}"], [f"c{n}"], pads=[1] * 4), node("Relu", [f"c{n}"], [at := f"r{n}"])]
    nodes[-1].output[0] = "y"
    return Case(nodes, (1, channels[0], 9, 10), constants)


def cases() -> Iterator[tuple[str, Case]]:
    for name, kernel, attrs in (
        ("ragged phases", 3, {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
        ("whole phases", 4, {"strides": [2, 2], "pads": [1] * 4}),
        ("more stride than taps", 2, {"strides": [3, 3]}),
        ("dilations", 3, {"strides": [2, 2], "dilations": [3, 1]}),
        ("five taps", 5, {"strides": [3, 2]}),
        ("groups", 3, {"strides": [2, 2], "group": 2}),
    ):
        yield f"ConvTranspose, {name}", one("ConvTranspose", 1, 8, 7, 6, w=weights(8, 5, kernel, kernel), **attrs)
    for name, shape, w, attrs in (
        ("3x3", (1, 32, 20, 20), (32, 32, 3, 3), {"pads": [1] * 4}),
        ("many channels", (1, 128, 20, 20), (128, 128, 3, 3), {"pads": [1] * 4}),
        ("steps", (1, 20, 17, 15), (24, 20, 3, 3), {"pads": [1] * 4, "strides": [2, 2]}),
        ("one tap", (1, 20, 9, 9), (33, 20, 1, 1), {}),
        ("depthwise", (1, 40, 11, 13), (40, 1, 3, 3), {"pads": [1] * 4, "group": 40}),
        ("groups", (1, 12, 11, 13), (18, 4, 3, 3), {"group": 3}),
        ("dilations", (1, 16, 17, 15), (16, 16, 3, 3), {"dilations": [2, 3]}),
        ("a large filter", (1, 16, 48, 41), (16, 16, 9, 9), {}),
        ("a line", (2, 20, 50), (24, 20, 5), {"pads": [2, 2]}),
    ):
        yield f"Conv, {name}", one("Conv", *shape, w=weights(*w), **attrs)
    yield "Conv, twice", chained(20, 5, 21, 3)
    for mode in ("linear", "cubic", "nearest"):
        yield f"Resize, {mode}", resized(mode, 2, 1.5)
        yield f"Resize, {mode} down", resized(mode, 0.75, 0.5)
    yield "Resize, antialias", resized("linear", 0.5, 0.75, antialias=1)
    yield "Resize, corners", resized("linear", 2, 3, coordinate_transformation_mode="align_corners")
    for n, attrs in enumerate(({}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1})):
        yield f"CumSum {n}", one("CumSum", 3, 77, a=np.array(1), **attrs)
    yield "MatMul", one("MatMul", 5, 75, w=weights(75, 33))
    yield "MatMul, large", one("MatMul", 64, 256, w=weights(256, 256))
    yield "MatMul, a batch", one("MatMul", 3, 7, 28, w=weights(3, 28, 20))
    yield "Gemm", one("Gemm", 3, 75, w=weights(40, 75), b=weights(40), transB=1)
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    yield "AveragePool", one("AveragePool", 1, 20, 11, 12, **pool)
    yield "LpPool", one("LpPool", 1, 20, 11, 12, **pool)
    yield "LRN", one("LRN", 1, 40, 5, 6, size=5)._replace(values=("nan",))
    yield "ReduceSum", one("ReduceSum", 3, 28, 20, a=np.array([1]))
    yield "GlobalAveragePool", one("GlobalAveragePool", 2, 20, 7, 7)
    few = {"K": 128, "N": 40, "bits": 4, "block_size": 32}
    words = np.random.default_rng(2).integers(0, 256, (40, 4, 16), np.uint8)
    zeros = np.random.default_rng(3).integers(0, 256, 80, np.uint8)
    for name, more in (("even", {}), ("uneven", {"z": zeros})):
        few |= {"domain": "com.microsoft", "q": words, "s": np.abs(weights(160)), **more}
        yield f"MatMulNBits, {name}", one("MatMulNBits", 3, 128, **few)
    yield "Softmax", one("Softmax", 5, 75)
    yield "LayerNormalization", one("LayerNormalization", 5, 75, s=weights(75), b=weights(75))
    yield "InstanceNormalization", one("InstanceNormalization", 2, 20, 7, 7, s=weights(20), b=weights(20))
    yield (
        "BatchNormalization",
        one("BatchNormalization", 1, 20, 7, 7, s=weights(20), b=weights(20), m=weights(20), v=weights(20) ** 2),
    )
    yield "Pad", one("Pad", 3, 20, 9, p=np.array([0, 1, 2, 0, 3, 1]))
    yield "Trilu", one("Trilu", 3, 20, 20)
    places = np.random.default_rng(0).uniform(-1.4, 1.4, (1, 6, 5, 2)).astype(np.float32)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            yield (
                f"GridSample {mode} {padding}",
                one("GridSample", 1, 20, 7, 6, g=places, mode=mode, padding_mode=padding),
            )
    boxes = np.array([[0.5, 0.5, 4.7, 5.2], [-1, 2, 3, 9]], np.float32)
    yield (
        "RoiAlign",
        one("RoiAlign", 1, 20, 7, 6, r=boxes, b=np.array([0, 0]), output_height=3, output_width=2, sampling_ratio=2),
    )
    yield "Einsum", one("Einsum", 4, 4, 20, w=weights(20, 7), equation="iij,jk->ik")
    yield (
        "LSTM",
        one("LSTM", 7, 3, 20, w=weights(1, 160, 20), r=weights(1, 160, 40), hidden_size=40)._replace(
            nodes=[node("LSTM", ["x", "w", "r", "", "l"], ["y"], hidden_size=40)],
            constants={"w": weights(1, 160, 20), "r": weights(1, 160, 40), "l": np.array([7, 3, 5], np.int32)},
        ),
    )
    yield (
        "ScatterElements",
        one("ScatterElements", 5, 20, i=np.array([[1, 3, 2]]), u=weights(1, 3), axis=1, reduction="add"),
    )
    yield (
        "Attention",
        Case(
            [
                node("MatMul", ["x", "k"], ["s"]),
                node("Add", ["s", "m"], ["a"]),
                node("Softmax", ["a"], ["p"]),
                node("MatMul", ["p", "v"], ["y"]),
            ],
            (2, 28, 20),
            {"k": weights(2, 20, 28), "m": np.triu(np.full((28, 28), -np.inf, np.float32), 1), "v": weights(2, 28, 20)},
        ),
    )


CASES = dict(cases())


@pytest.mark.parametrize("name", CASES)
def test_what_they_reach(name: str) -> None:
    case = CASES[name]
    made = model(case.nodes, {"x": case.shape}, ["y"], case.constants, opset=18, domains={"com.microsoft": 1})
    for n, each in enumerate(made.graph.node):
        each.name = f"{each.op_type}{n}"
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    with rammer.compile(made, "cpu", tune_seconds=0, numerics="strict") as program:
        assert all(kernel.faithful for kernel in program.plan.kernels)
        for value in case.values:
            for _ in range(3):
                x = rng.standard_normal(case.shape).astype(np.float32)
                at = tuple(int(rng.integers(0, extent)) for extent in case.shape)

                def runtime(number: float, x: Array = x, at: tuple[int, ...] = at) -> Array:
                    x[at] = number
                    return np.asarray(session.run(None, {"x": x})[0])

                if name.startswith(BY_CHANGE):
                    reached = runtime(7.0) != runtime(-3.0)
                wanted = runtime(float(value))
                found = program.run({"x": x})["y"]
                if not name.startswith(BY_CHANGE):
                    reached = ~np.isfinite(wanted)
                    np.testing.assert_array_equal(found[reached], wanted[reached])
                np.testing.assert_array_equal(~np.isfinite(found), reached)
                finite = np.isfinite(wanted)
                atol = max(1e-4, 4e-6 * np.abs(wanted[finite]).max(initial=0.0))  # sums of thousands of terms
                np.testing.assert_allclose(found[finite], wanted[finite], rtol=1e-4, atol=atol)


@pytest.mark.parametrize("arch", ["x86-64-avx512@here", "x86-64-amx@here"])
def test_fast_kernels_that_reach_further_say_so(arch: str) -> None:
    """Winograd's form and parts of bf16 are used where nothing else is said, and make NaN of an infinity."""
    case = CASES["Conv, many channels"] if "amx" not in arch else one("MatMul", 256, 512, w=weights(512, 512))
    made = model(case.nodes, {"x": case.shape}, ["y"], case.constants, opset=18)
    x = np.ones(case.shape, np.float32)
    x[(0,) * len(case.shape)] = np.inf
    nan = {}
    for numerics in ("fast", "strict"):
        with rammer.compile(made, "cpu", arch=arch, tune_seconds=0, numerics=numerics) as program:
            assert all(kernel.faithful for kernel in program.plan.kernels) == (numerics == "strict")
            nan[numerics] = int(np.isnan(program.run({"x": x})["y"]).sum())
    assert nan["strict"] == 0 < nan["fast"]


@pytest.mark.parametrize("channels", [16, 48, 64])
def test_errors_are_those_of_direct_sums(channels: int) -> None:
    """Four times as large at most, against float64."""
    x, w = weights(1, channels, 24, 24), weights(channels, channels, 3, 3)
    made = model([node("Conv", ["x", "w"])], {"x": x.shape}, ["y"], {"w": w}, opset=18)
    with rammer.compile(made, "cpu", arch="x86-64-avx512@here", tune_seconds=0, numerics="strict") as program:
        found = program.run({"x": x})["y"][0]
    direct, exact = np.zeros(found.shape, np.float32), np.zeros(found.shape)
    for c, i, j in np.ndindex(channels, 3, 3):  # one after the other
        window = x[0, c, i : i + 22, j : j + 22]
        direct += w[:, c, i, j, None, None] * window
        exact += w[:, c, i, j, None, None].astype(np.float64) * window
    assert np.abs(found - exact).max() <= 4 * np.abs(direct - exact).max()


def test_numerics_are_checked_and_foreign_text_is_not_taken() -> None:
    made = model([node("Relu", ["x"])], {"x": (3, 5)}, ["y"])
    with pytest.raises(DeviceError, match="'exact', and not fast or strict"):
        rammer.compile(made, "cpu", numerics="exact")
    with pytest.raises(DeviceError, match="rounds no operands"):
        rammer.compile(made, "cpu", arch="x86-64-amx@here", numerics="strict", precision="bf16")
    with config.override(RAMMER_NUMERICS="strict"), rammer.compile(made, "cpu", tune_seconds=0) as program:
        assert program.plan.spec.numerics == "strict"
        (kernel,) = program.plan.kernels
        foreign = ForeignSource("c", "f", "void f() {}", kernel.body.digits)
        assert kernel.faithful and not replace(kernel, body=foreign).faithful
    with rammer.compile(made, "interpreter", numerics="strict") as program:
        assert all(kernel.faithful for kernel in program.plan.kernels)
    with rammer.Session(made, "cpu", tune_seconds=0, numerics="strict") as session:
        assert np.isnan(session.run(None, {"x": np.full((3, 5), np.nan, np.float32)})[0]).all()
