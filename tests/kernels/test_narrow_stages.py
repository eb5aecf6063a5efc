"""Stages of 16 bits are rounded where they end, wherever they are computed; trials see where one is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from cpus import runnable
from onnx import numpy_helper

import rammer
from rammer import config
from rammer.compiler import Compilation
from rammer.ir.expr import Call, Cast, Scalar, Select, inline, nodes, result_dtype
from rammer.ir.kernel import RKernel
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import DType
from rammer.ir.tile import Store, TileProgram, rewrite_body
from rammer.passes import optimize
from rammer.plugins import PluginRegistry

ROWS, COLUMNS = 13, 37
NARROW = {10: np.dtype(np.float16), 16: np.dtype(ml_dtypes.bfloat16)}
BODIES = {  # of x, 16 bits, and h, a row of them; `y` is of 32
    "products": "c = Mul(x, x) d = Cast<to=1>(c) y = Mul(d, d)",
    "chain": "a = Mul(x, x) b = Add(a, x) c = Tanh(x) d = Mul(c, b) e = Cast<to=1>(d) y = Mul(e, e)",
    "sum": "a = Mul(x, x) s = ReduceSum<keepdims=1>(a) b = Add(a, s) e = Cast<to=1>(b) y = Mul(e, e)",
    "extremum": "a = Mul(x, x) m = ReduceMax<keepdims=1>(a) b = Sub(a, m) e = Cast<to=1>(b) y = Mul(e, e)",
    "product": "t = Transpose<perm=[1,0]>(x) a = MatMul(t, x) b = Add(a, h) e = Cast<to=1>(b) y = Mul(e, e)",
    "norm": "m = LayerNormalization(x, h) b = Mul(m, x) e = Cast<to=1>(b) y = Mul(e, e)",
}
DEVICES = {
    "AVX-512": ("cpu", {"device": 2, "arch": runnable("x86-64-avx512")}),
    "AVX2": ("cpu", {"device": 2, "arch": runnable("x86-64-avx2")}),
    "cuda": ("cuda", {"device": "emulator:2"}),
    "ipu": ("ipu", {}),
}


def model(body: str, kind: int) -> onnx.ModelProto:
    """A body whose operands are float32 numbers that are made narrow first."""
    rows = COLUMNS if "MatMul" in body else ROWS
    graph = f"g (float[{ROWS},{COLUMNS}] wide) => (float[{rows},{COLUMNS}] y)"
    made = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> {graph} {{ x = Cast<to={kind}>(wide) {body} }}'
    )
    row = np.linspace(0.1, 1.0, COLUMNS).astype(NARROW[kind])
    made.graph.initializer.append(numpy_helper.from_array(row, "h"))
    return made


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("device", DEVICES)
def test_stages_are_rounded_where_they_end(device: str, kind: int) -> None:
    target, options = DEVICES[device]
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    few = () if target == "cpu" else ("products", "extremum", "norm")  # emulators take their time
    for name, body in BODIES.items():
        if name in few:
            continue
        wanted = evaluate_graph(rammer.from_onnx(model(body, kind)), {"wide": x})["y"]
        with rammer.compile(model(body, kind), target, tune_seconds=0, **options) as program:
            found = program.run({"wide": x})["y"]
        off = np.abs(found - wanted) > 1e-5 * np.abs(wanted)
        assert off.mean() < 0.01, name  # not rounded, nearly all are; by other digits of a tanh a few go the other way
        step = float(ml_dtypes.finfo(NARROW[kind]).eps)
        assert (np.abs(found - wanted) <= 4 * step * np.abs(wanted).max()).all(), name


def test_what_is_only_moved_or_chosen_is_not_rounded_again() -> None:
    moved = "a = Transpose<perm=[1,0]>(x) b = Relu(a) c = Neg(b) d = Transpose<perm=[1,0]>(c) y = Cast<to=1>(d)"
    for body, rounded in ((moved, 0), (BODIES["products"], 1)):
        graph = optimize(
            rammer.from_onnx(model(body, 10)), PluginRegistry(third_party=False).open("cpu", device=1).spec
        )
        casts = [
            n
            for op in graph.operators
            for stage in inline(op.operation.expr, set())
            for n in nodes(stage.body)
            if isinstance(n, Cast) and n.dtype is DType.F16 and not _is_load(n.arg)
        ]
        assert len(casts) == rounded * 2, body  # of the product, which is read twice


def _is_load(value: Scalar) -> bool:
    return not isinstance(value, Call | Cast | Select)


def unrounded(kernel: RKernel) -> RKernel:
    """The rKernel without the conversions of 16-bit numbers to their own type."""
    body = kernel.body
    assert isinstance(body, TileProgram)
    types = {b.name: b.dtype for b in (*body.arguments, *body.scratch)}

    def without(value: Any) -> Any:
        match value:
            case Cast(arg, dtype) if result_dtype(arg, types) is dtype:
                return without(arg)
            case Cast(arg):
                return replace(value, arg=without(arg))
            case Call(fn, args):
                return Call(fn, tuple(map(without, args)))
        return value

    changed = rewrite_body(body.body, lambda s: replace(s, value=without(s.value)) if isinstance(s, Store) else s)
    return replace(kernel, schedule="unrounded", body=replace(body, body=changed))


@pytest.mark.parametrize("kind", NARROW)
def test_a_trial_sees_what_is_not_rounded(kind: int, tmp_path: Any) -> None:
    with config.override(RAMMER_CACHE_DIR=str(tmp_path)):
        registry = PluginRegistry(third_party=False)
        device = registry.open("cpu", device=1)
        for name in ("products", "chain"):
            text = BODIES[name]
            compilation = Compilation(rammer.from_onnx(model(text, kind)), device, registry=registry)
            (kernels,) = compilation.candidates.kernels.values()
            bad = [unrounded(k) for k in kernels]
            assert set(device.rkernels_wrong([*kernels, *bad])) == set(bad), name
