"""Scales and zero points of quantized products in all forms, against ONNX Runtime and the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from onnx_models import model, node
from rammer_testing.runtime import run_runtime

import rammer
from rammer.errors import ModelError
from rammer.frontend.onnx import load
from rammer.ir.tensor import Array

M, K, N = 6, 6, 6  # alike, so that a vector along the wrong axis fits, too
F32 = np.float32


def whole(low: int, high: int, *shape: int, dtype: str = "uint8", seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).integers(low, high, shape).astype(dtype)


def scales(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).uniform(0.004, 0.02, shape).astype(F32)


def parameters(form: str, rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of a parameter; rows and columns are those of the result."""
    return {"absent": None, "scalar": (), "one": (1,), "rows": rows, "columns": columns}[form]


def ran(made: ModelProto, feeds: dict[str, Array], want: Array, *, atol: float, runtime: bool = True) -> None:
    """Compare with the formula, and with ONNX Runtime where that takes this form."""
    found = {"rammer": rammer.compile(made, "interpreter").run(feeds)["y"]}
    if runtime:
        (found["ONNX Runtime"],) = run_runtime(made, feeds)
    for who, value in found.items():
        np.testing.assert_allclose(value.astype(np.float64), want, rtol=1e-5, atol=atol, err_msg=who)


def product(a: Array, za: Any, b: Array, zb: Any) -> Array:
    return (a.astype(np.int64) - np.asarray(za, np.int64)) @ (b.astype(np.int64) - np.asarray(zb, np.int64))


def clipped(value: Array) -> Array:
    return np.clip(np.rint(value), 0, 255)


@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize("b_form", ["absent", "scalar", "one", "columns"])
@pytest.mark.parametrize("a_form", ["absent", "scalar", "one", "rows"])
def test_matmul_integer(a_form: str, b_form: str, lead: tuple[int, ...]) -> None:
    a, b = whole(0, 256, *lead, M, K), whole(-128, 128, *lead, K, N, dtype="int8")
    rows, columns = ((*lead, M, 1), (*lead, 1, N)) if lead else ((M,), (N,))
    zeros = {"az": parameters(a_form, rows, ()), "bz": parameters(b_form, (), columns)}
    fixed = {n: whole(1, 9, *s, dtype="uint8" if n == "az" else "int8") for n, s in zeros.items() if s is not None}
    za, zb = fixed.get("az", np.zeros(())), fixed.get("bz", np.zeros(()))
    za = za[:, None] if za.shape == (M,) else za
    names = ["a", "b", *("" if zeros[n] is None else n for n in zeros)]
    made = model([node("MatMulInteger", names)], {"a": ("uint8", a.shape)}, constants={"b": b, **fixed}, opset=17)
    # ONNX Runtime has one zero point for a, and none along a batch
    ran(made, {"a": a}, product(a, za, b, zb), atol=0, runtime=a_form != "rows" and (not lead or b_form != "columns"))


@pytest.mark.parametrize("y_form", ["scalar", "rows"])
@pytest.mark.parametrize("b_form", ["scalar", "one", "columns"])
@pytest.mark.parametrize("a_form", ["scalar", "one", "rows"])
def test_qlinear_matmul(a_form: str, b_form: str, y_form: str) -> None:
    a, b = whole(0, 256, M, K), whole(0, 256, K, N)
    fixed: dict[str, Array] = {"b": b}
    meant = {}
    for seed, (name, form) in enumerate((("a", a_form), ("b", b_form), ("y", y_form))):
        shape = parameters(form, (M,), (N,))
        assert shape is not None
        fixed[f"{name}s"] = scales(*shape, seed=seed) * (40 if name == "y" else 1)
        fixed[f"{name}z"] = whole(100, 140, *shape, seed=seed)
        rows = form == "rows"
        meant |= {n: fixed[n][:, None] if rows else fixed[n] for n in (f"{name}s", f"{name}z")}
    real = product(a, meant["az"], b, meant["bz"]) * meant["as"].astype(np.float64) * meant["bs"] / meant["ys"]
    names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    made = model([node("QLinearMatMul", names)], {"a": ("uint8", a.shape)}, constants=fixed, opset=17)
    runtime = "rows" not in (a_form, y_form)
    ran(made, {"a": a}, clipped(real + meant["yz"]), atol=1, runtime=runtime)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("form", ["absent", "scalar", "one", "columns"])
def test_qgemm(form: str, transposed: tuple[int, int], quantized: bool) -> None:
    a, b = whole(0, 256, M, K), whole(-128, 128, K, N, dtype="int8")
    shape = parameters(form, (), (N,))
    fixed = {"as": F32(0.01), "az": np.uint8(113), "bs": scales(*(shape or ()))}
    fixed["b"] = np.ascontiguousarray(b.T) if transposed[1] else b
    if shape is not None:
        fixed["bz"] = whole(-9, 9, *shape, dtype="int8")
    fixed["c"] = whole(-500, 500, N, dtype="int32")
    result = {"ys": F32(0.3), "yz": np.uint8(99)} if quantized else {}
    fed = np.ascontiguousarray(a.T) if transposed[0] else a
    real = product(a, 113, b, fixed.get("bz", 0)) + fixed["c"]
    want = real * (0.5 * 0.01 * fixed["bs"].astype(np.float64))
    names = ["a", "as", "az", "b", "bs", "bz" if "bz" in fixed else "", "c", *result]
    trans = dict(zip(("transA", "transB"), transposed, strict=True))
    made = model(
        [node("QGemm", names, domain="com.microsoft", alpha=0.5, **trans)],
        {"a": ("uint8", fed.shape)},
        constants={**fixed, **result},
        opset=17,
        domains={"com.microsoft": 1},
    )
    want = clipped(want / 0.3 + 99) if quantized else want
    # ONNX Runtime asks for a zero point as long as the scale
    ran(made, {"a": fed}, want, atol=1 if quantized else 2e-4, runtime=form != "absent")


@pytest.mark.parametrize("b_form", ["absent", "scalar", "one", "columns"])
@pytest.mark.parametrize("a_form", ["absent", "scalar", "one", "rows"])
def test_matmul_integer_to_float(a_form: str, b_form: str) -> None:
    a, b = whole(0, 256, M, K), whole(0, 256, K, N)
    shapes = {"a": parameters(a_form, (M,), ()), "b": parameters(b_form, (), (N,))}
    fixed: dict[str, Array] = {"b": b} | {f"{n}s": scales(*(shape or ())) for n, shape in shapes.items()}
    fixed |= {f"{n}z": whole(100, 140, *shape) for n, shape in shapes.items() if shape is not None}
    meant = {n: v[:, None] if n[0] == "a" and v.shape == (M,) else v for n, v in fixed.items()}
    want = product(a, meant.get("az", 0), b, meant.get("bz", 0)) * meant["as"].astype(np.float64) * meant["bs"]
    names = ["a", "b", "as", "bs", *(n if n in fixed else "" for n in ("az", "bz"))]
    made = model(
        [node("MatMulIntegerToFloat", names, domain="com.microsoft")],
        {"a": ("uint8", a.shape)},
        constants=fixed,
        opset=17,
        domains={"com.microsoft": 1},
    )
    ran(made, {"a": a}, want, atol=1e-3, runtime=a_form != "rows")


@pytest.mark.parametrize("op", ["ConvInteger", "QLinearConv"])
@pytest.mark.parametrize("form", ["absent", "scalar", "one", "columns"])
def test_convolutions(op: str, form: str) -> None:
    """Of 4 filters over 4 channels, so that a vector along the wrong axis fits, too."""
    if op == "QLinearConv" and form == "absent":
        form = "scalar"
    x, w = whole(0, 256, 2, 4, 5, 5), whole(0, 256, 4, 4, 3, 3)
    shape = parameters(form, (), (4,))
    fixed: dict[str, Array] = {"w": w, "xz": np.uint8(120)}
    if shape is not None:
        fixed["wz"] = np.full(shape, 128, np.uint8) if op == "QLinearConv" else whole(100, 140, *shape)
    zero = fixed.get("wz", np.zeros((), np.int64)).astype(np.int64)
    wide = w.astype(np.int64) - (zero[:, None, None, None] if zero.shape == (4,) else zero)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64) - 120, (3, 3), (2, 3))
    want = np.einsum("bcijkl,fckl->bfij", windows, wide)
    if op == "ConvInteger":
        names = ["x", "w", "xz", "wz" if "wz" in fixed else ""]
    else:
        fixed |= {"xs": F32(0.01), "ws": scales(*(shape or ())), "ys": F32(0.7), "yz": np.uint8(99)}
        names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
        filters = fixed["ws"].astype(np.float64)
        want = want * (0.01 * (filters[:, None, None] if filters.shape == (4,) else filters))
        want = clipped(want / 0.7 + 99)
    made = model([node(op, names)], {"x": ("uint8", x.shape)}, constants=fixed, opset=17)
    runtime = op == "QLinearConv" or form != "columns"
    ran(made, {"x": x}, want, atol=float(op == "QLinearConv"), runtime=runtime)


@pytest.mark.parametrize(
    ("op", "names", "fixed", "domain"),
    [
        ("MatMulInteger", ["a", "b", "", "bz"], {"b": whole(0, 9, K, 1), "bz": whole(0, 9, 5)}, ""),
        ("MatMulInteger", ["a", "b", "az"], {"b": whole(0, 9, K, N), "az": whole(0, 9, M + 1)}, ""),
        (
            "QLinearSigmoid",
            ["a", "s", "z", "s", "z"],
            {"s": scales(M), "z": whole(0, 9, M)},
            "com.microsoft",
        ),
        (
            "QLinearSigmoid",
            ["a", "one", "", "s", "z"],
            {"one": F32(1), "s": scales(M), "z": whole(0, 9, M)},
            "com.microsoft",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    op: str, names: list[str], fixed: dict[str, Array], domain: str
) -> None:
    """Also where broadcasting would make the result larger, or the domain has one number for all."""
    made = model(
        [node(op, names, domain=domain)],
        {"a": ("uint8", (M, K))},
        constants=fixed,
        opset=17,
        domains={"com.microsoft": 1},
    )
    with pytest.raises(ModelError, match="scale or zero point"):
        load(made)
