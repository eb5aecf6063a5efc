"""Element types beyond the common ones: what NumPy and ml_dtypes say of them, by the interpreter and on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rammer
from rammer.frontend.builder import GraphBuilder
from rammer.ir.evaluate import evaluate_graph
from rammer.ir.graph import Graph
from rammer.ir.tensor import Array, DType

UNSIGNED = (DType.U8, DType.U16, DType.U32, DType.U64)


def _interpreted(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    return evaluate_graph(graph, inputs)


def _on_cpu(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    with rammer.compile(graph, target="cpu") as program:
        return program.run(inputs)


EXECUTORS: dict[str, Callable[[Graph, dict[str, Array]], dict[str, Array]]] = {
    "interpreter": _interpreted,
    "cpu": _on_cpu,
}
everywhere = pytest.mark.parametrize("execute", EXECUTORS.values(), ids=EXECUTORS)


def extremes(dtype: DType, count: int = 37) -> tuple[Array, Array]:
    """Two vectors of integers: ends of the range against each other, then any."""
    info = np.iinfo(dtype.numpy)
    middle = info.max // 2
    ends = np.array([info.min, info.min + 1, 2, 3, middle, middle + 1, info.max - 1, info.max], dtype.numpy)
    a, b = (x.ravel() for x in np.meshgrid(ends, ends))
    random = np.random.default_rng(0).integers(info.min, info.max, (2, count), dtype.numpy, endpoint=True)
    return np.concatenate([a, random[0]]), np.concatenate([b, random[1]])


@cache
def arithmetic(dtype: DType) -> Graph:
    """Every binary and unary operator of integers, a cast to every type, and moves of them."""
    builder = GraphBuilder()
    (extent,) = extremes(dtype)[0].shape
    a, b = (builder.input(name, (extent,), dtype) for name in "ab")
    for kind in ("add", "sub", "mul", "div", "mod", "fmod", "pow", "max", "min", "less", "greater_equal", "equal"):
        builder.output(builder.add(kind, a, b), kind)
    for kind in ("neg", "abs", "sign", "relu"):
        builder.output(builder.add(kind, a), kind)
    for target in (DType.F32, DType.F64, DType.F16, DType.BOOL, DType.I8, DType.I32, DType.I64, *UNSIGNED):
        builder.output(builder.add("cast", a, dtype=target), f"to {target}")
    rows = builder.add("reshape", a, shape=(1, extent))
    builder.output(builder.add("reduce", rows, fn="sum", axes=(1,), keepdims=False), "sum")
    builder.output(builder.add("reduce", rows, fn="max", axes=(1,), keepdims=False), "reduce max")
    builder.output(builder.add("arg_max", rows, axis=1, keepdims=False, select_last_index=False), "arg_max")
    product = builder.add("matmul", rows, builder.add("reshape", b, shape=(extent, 1)))
    builder.output(product, "matmul")
    builder.output(builder.add("concat", a, b, axis=0), "concat")
    return builder.build()


def by_numpy(a: Array, b: Array) -> dict[str, Array]:
    dtype = a.dtype
    zero = b == 0
    safe = np.where(zero, dtype.type(1), b)
    expected = {
        "add": a + b,
        "sub": a - b,
        "mul": a * b,
        "div": np.where(zero, 0, a // safe),
        "mod": np.where(zero, 0, a % safe),
        "fmod": np.where(zero, 0, a % safe),
        "pow": a**b,
        "max": np.maximum(a, b),
        "min": np.minimum(a, b),
        "less": a < b,
        "greater_equal": a >= b,
        "equal": a == b,
        "neg": -a,
        "abs": a,
        "sign": np.sign(a),
        "relu": a,
        "sum": a.sum(dtype=dtype)[None],
        "reduce max": a.max()[None],
        "arg_max": np.argmax(a)[None],
        "matmul": (a * b).sum(dtype=dtype)[None, None],
        "concat": np.concatenate([a, b]),
    }
    truth = {"less", "greater_equal", "equal"}
    special = dict.fromkeys(truth, np.bool_) | {"arg_max": np.int64}
    return {name: np.asarray(value).astype(special.get(name, dtype)) for name, value in expected.items()}


@everywhere
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_integers_wrap_and_compare_as_numpys(dtype: DType, execute: Callable[..., Any]) -> None:
    a, b = extremes(dtype)
    with np.errstate(all="ignore"):
        seen, wanted = execute(arithmetic(dtype), {"a": a, "b": b}), by_numpy(a, b)
        wanted |= {name: a.astype(seen[name].dtype) for name in seen if name.startswith("to ")}
    assert seen.keys() == wanted.keys()
    for name, value in wanted.items():
        assert seen[name].dtype == value.dtype, name
        np.testing.assert_array_equal(seen[name], value, err_msg=name)


@everywhere
@pytest.mark.parametrize("source", [DType.F32, DType.F64])
def test_large_floats_become_uint64(source: DType, execute: Callable[..., Any]) -> None:
    builder = GraphBuilder()
    x = builder.input("x", (5,), source)
    builder.output(builder.add("cast", x, dtype=DType.U64), "y")
    values: NDArray[Any] = np.array([0, 1.75, 2.0**63, 2.0**63 + 2.0**40, 2.0**64 - 2.0**41], source.numpy)
    seen = execute(builder.build(), {"x": values})["y"]
    assert seen.tolist() == [int(v) for v in values]
