"""Matrix products, convolution and pooling against NumPy and ONNX's reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from op_cases import evaluate, express, onnx_reference

from rammer.errors import TypeMismatch
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("f")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (6, 4, 5)),
        ((4,), (2, 3, 4, 5)),
        ((2, 3, 4), (4,)),
        ((3, 0), (0, 5)),
        ((0, 4), (4, 5)),
        ((1, 1), (1, 1)),
        ((2, 0, 3, 4), (4, 5)),
    ],
)
def test_matmul_is_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = normal(*a), normal(*b)
    np.testing.assert_allclose(evaluate("matmul", x, y), np.matmul(x, y), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_matmul_transposes_the_last_two_axes(trans_a: bool, trans_b: bool) -> None:
    a, b = normal(2, 3, 4), normal(1, 4, 5)
    x = np.swapaxes(a, -1, -2).copy() if trans_a else a
    y = np.swapaxes(b, -1, -2).copy() if trans_b else b
    np.testing.assert_allclose(evaluate("matmul", x, y, trans_a=trans_a, trans_b=trans_b), a @ b, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "i8", "d"])
def test_matmul_accumulates_in_its_own_type(dtype: str) -> None:
    a, b = (RNG.integers(0, 100, s).astype(dtype) for s in ((3, 40), (40, 5)))
    np.testing.assert_array_equal(evaluate("matmul", a, b), np.matmul(a, b))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_products_are_accumulated_in_float32_and_rounded_once(dtype: Any) -> None:
    a, b = (RNG.normal(size=s).astype(dtype) for s in ((8, 300), (300, 8)))
    exact = (a.astype("d") @ b.astype("d")).astype("f").astype(dtype)
    np.testing.assert_array_equal(evaluate("matmul", a, b), exact)
    x, w, bias = (RNG.normal(size=s).astype(dtype) for s in ((1, 8, 6, 6), (4, 8, 3, 3), (4,)))
    expected = onnx_reference("Conv", *(v.astype("f") for v in (x, w, bias)))
    result = evaluate("conv", x, w, bias)
    np.testing.assert_allclose(result.astype("f"), expected, rtol=1e-2, atol=0.06)
    assert (
        express("conv", TensorType(x.shape, DType.F16), TensorType(w.shape, DType.F16)).stage("sum").dtype is DType.F32
    )


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 8, 9), (4, 3, 3, 3), {}),
    ((2, 3, 8, 9), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 3, 8, 9), (4, 3, 3, 2), {"pads": (0, 2, 1, 0), "strides": (2, 3)}),
    ((1, 3, 8, 9), (4, 3, 3, 3), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    ((1, 6, 5, 5), (4, 3, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ((1, 6, 5, 5), (3, 2, 3, 3), {"group": 3}),
    ((1, 6, 5, 5), (6, 1, 3, 3), {"group": 6, "pads": (1, 1, 1, 1)}),
    ((1, 6, 5, 5), (12, 1, 3, 3), {"group": 6, "strides": (2, 2)}),
    ((1, 6, 5, 5), (6, 1, 1, 1), {"group": 6}),
    ((2, 3, 4, 4), (5, 3, 1, 1), {"strides": (2, 2)}),
    ((1, 1, 7, 7), (2, 1, 3, 3), {}),
    ((2, 3, 10), (4, 3, 3), {"pads": (1, 2), "strides": (2,)}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 3), {"pads": (1, 0, 1, 0, 1, 1), "strides": (1, 2, 1)}),
    ((0, 3, 4, 4), (5, 3, 3, 3), {}),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
def test_convolution_agrees_with_onnx(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], bias: bool
) -> None:
    arrays = [normal(*x), normal(*w)] + ([normal(w[0])] if bias else [])
    result = evaluate("conv", *arrays, **attrs)
    if 0 in x:
        assert result.size == 0
        return
    np.testing.assert_allclose(result, onnx_reference("Conv", *arrays, **attrs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
def test_a_convolution_is_a_product_with_what_its_windows_hold(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    attrs = {name: value for name, value in attrs.items() if name != "group"}
    w = (w[0], x[1], *w[2:])
    values, weights = RNG.integers(0, 256, x).astype("i4"), RNG.integers(-128, 128, w).astype("i4")
    unfolded = evaluate("unfold", values, kernel=w[2:], **attrs)
    product = evaluate("conv", unfolded, np.moveaxis(weights, 1, -1).reshape(w[0], -1, *(1 for _ in w[2:])))
    np.testing.assert_array_equal(product, evaluate("conv", values, weights, **attrs))


@pytest.mark.parametrize("parts", [2, 3, 4, 12])
@pytest.mark.parametrize("group", [1, 2, 3, 6])
def test_a_convolution_of_shuffled_channels(parts: int, group: int) -> None:
    """Of x's parts it takes one channel each in turn, also where groups begin in the middle of a turn."""
    x, w = normal(2, 12, 5, 7), normal(6, 12 // group, 3, 3)
    shuffled = x.reshape(2, parts, -1, 5, 7).swapaxes(1, 2).reshape(x.shape)
    wanted = evaluate("conv", shuffled, w, group=group, pads=(1, 1, 1, 1))
    found = evaluate("conv", x, w, group=group, shuffled=parts, pads=(1, 1, 1, 1))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeMismatch, match="channels must divide into 5 shuffled parts"):
        evaluate("conv", x, w, group=group, shuffled=5)


def test_products_of_bytes_are_summed_as_wider_numbers() -> None:
    x, y = RNG.integers(0, 256, (5, 70), np.uint8), RNG.integers(-128, 128, (70, 3), np.int8)
    np.testing.assert_array_equal(evaluate("matmul", x, y, dtype=DType.I32), x.astype("i4") @ y.astype("i4"))
    image, w = x.reshape(1, 5, 7, 10), y.reshape(3, 5, 7, 2)
    window = evaluate("conv", image, w, dtype=DType.I32, pads=(1, 1, 1, 1))
    np.testing.assert_array_equal(window, evaluate("conv", image.astype("i4"), w.astype("i4"), pads=(1, 1, 1, 1)))


@given(st.data())
@settings(max_examples=40)
def test_random_convolutions_agree_with_onnx(data: st.DataObject) -> None:
    group, per_in, per_out = (data.draw(st.integers(1, 3)) for _ in range(3))
    kernel, strides, dilations = (data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=2)) for _ in range(3))
    pads = data.draw(st.lists(st.integers(0, 3), min_size=4, max_size=4))
    spatial = [(k - 1) * d + 1 + data.draw(st.integers(0, 4)) for k, d in zip(kernel, dilations, strict=True)]
    x, w = normal(2, group * per_in, *spatial), normal(group * per_out, per_in, *kernel)
    attrs: dict[str, Any] = {"group": group}
    for name, value in (("strides", strides), ("dilations", dilations), ("pads", pads)):
        attrs[name] = tuple(value)
    np.testing.assert_allclose(
        evaluate("conv", x, w, **attrs), onnx_reference("Conv", x, w, **attrs), rtol=1e-4, atol=1e-5
    )


def test_convolution_has_only_the_stages_and_axes_it_needs() -> None:
    def conv(w: tuple[int, ...], group: int = 1, **attrs: Any) -> Any:
        return express("conv", TensorType((1, w[1] * group, 8, 8)), TensorType(w), group=group, **attrs)

    assert [s.name for s in conv((8, 4, 3, 3)).stages] == ["out"]
    assert [a for a, _ in conv((8, 4, 3, 3)).root.reduce] == ["r", "s", "c"]
    assert [a for a, _ in conv((8, 4, 1, 1)).root.reduce] == ["c"]
    assert [a for a, _ in conv((8, 1, 3, 3), 8).root.reduce] == ["r", "s"]
    assert str(conv((8, 1, 3, 3), 8).root.body.args[0].index[1]) == "o"
    assert str(conv((16, 1, 3, 3), 8).root.body.args[0].index[1]) == "(o)//2"
    guarded = conv((8, 4, 3, 3), pads=(0, 1, 0, 1)).stage("xp")
    assert [str(r.index) for r in guarded.body.where] == ["w + -1"]


POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 8, 8), {"kernel": (2, 2), "strides": (2, 2)}),
    ((2, 3, 9, 7), {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 2, 9, 7), {"kernel": (3, 2), "pads": (0, 1, 2, 0)}),
    ((1, 2, 9, 9), {"kernel": (3, 3), "dilations": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 2, 11), {"kernel": (3,), "strides": (2,), "pads": (1, 0)}),
    ((1, 2, 5, 6, 7), {"kernel": (2, 3, 2), "strides": (1, 2, 2), "pads": (0, 1, 0, 1, 1, 1)}),
    ((1, 2, 4, 4), {"kernel": (1, 1), "strides": (2, 2)}),
    ((1, 2, 4, 4), {"kernel": (4, 4)}),
]


def onnx_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    return {"kernel_shape" if k == "kernel" else k: v for k, v in attrs.items()}


def windows(x: np.ndarray, attrs: dict[str, Any], fill: float) -> np.ndarray:
    """Every window of x, in as many trailing dimensions."""
    rank = x.ndim - 2
    pads, dilations = attrs.get("pads", (0,) * (2 * rank)), attrs.get("dilations", (1,) * rank)
    wide = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)], constant_values=fill)
    reach = [(k - 1) * d + 1 for k, d in zip(attrs["kernel"], dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(wide, reach, tuple(range(2, 2 + rank)))
    steps = [slice(None, None, s) for s in (*attrs.get("strides", (1,) * rank), *dilations)]
    return view[(slice(None), slice(None), *steps)]


@pytest.mark.parametrize(("shape", "attrs"), POOLS)
def test_max_pool_takes_the_maximum_of_each_window(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    x = normal(*shape)
    over = tuple(range(-(x.ndim - 2), 0))
    np.testing.assert_array_equal(evaluate("max_pool", x, **attrs), windows(x, attrs, -np.inf).max(over))
    whole = (x * 50).astype("i1")
    np.testing.assert_array_equal(evaluate("max_pool", whole, **attrs), windows(whole, attrs, -128).max(over))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("shape", "attrs"), POOLS)
def test_max_pool_indices_point_at_the_maximum(shape: tuple[int, ...], attrs: dict[str, Any], order: int) -> None:
    x = RNG.integers(-3, 3, shape).astype("f")  # with ties
    out, indices = evaluate("max_pool", x, indices=True, storage_order=order, **attrs)
    flat = x if order == 0 else x.transpose(0, 1, *reversed(range(2, x.ndim)))
    np.testing.assert_array_equal(flat.ravel()[indices], out)
    first, _ = evaluate("max_pool", x, indices=True, **attrs)
    np.testing.assert_array_equal(out, first)


def test_max_pool_indices_take_the_first_of_equals_and_survive_nan_and_padding() -> None:
    x = np.full((1, 1, 2, 2), -np.inf, "f")
    _, indices = evaluate("max_pool", x, kernel=(2, 2), pads=(1, 1, 1, 1), indices=True)
    np.testing.assert_array_equal(indices[0, 0], [[0, 0, 1], [0, 0, 1], [2, 2, 3]])
    x[0, 0, 1, 0] = np.nan
    out, indices = evaluate("max_pool", x, kernel=(2, 2), indices=True)
    assert np.isnan(out).all() and indices.item() == 2


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(("shape", "attrs"), POOLS)
def test_average_pool_counts_as_onnx_does(shape: tuple[int, ...], attrs: dict[str, Any], include: bool) -> None:
    x = normal(*shape)
    theirs = onnx_reference("AveragePool", x, count_include_pad=int(include), **onnx_attrs(attrs))
    result = evaluate("average_pool", x, count_include_pad=include, **attrs)
    np.testing.assert_allclose(result, theirs, rtol=1e-4, atol=1e-6)


def test_average_pool_never_counts_what_ceil_mode_added() -> None:
    x = np.ones((1, 1, 4), "f")  # windows at -1 and 2
    attrs: dict[str, Any] = {"kernel": (3,), "strides": (3,)}
    for pads, extra, include, expected in (
        ((1, 1), (1,), True, [2 / 3, 1]),
        ((1, 2), (1,), True, [2 / 3, 2 / 3]),
        ((1, 1), (), True, [2 / 3, 2 / 3]),
        ((1, 1), (1,), False, [1, 1]),
    ):
        result = evaluate("average_pool", x, count_include_pad=include, pads=pads, ceil_extra=extra, **attrs)
        np.testing.assert_allclose(result[0, 0], expected)


def test_average_pool_divides_by_a_literal_where_counts_are_uniform() -> None:
    expr = express("average_pool", TensorType((1, 2, 8, 8)), kernel=(2, 2), strides=(2, 2))
    assert expr.root.body.args[1].value == 4.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(2, 6, 4, 3), (1, 4), (2, 3, 5)])
def test_lrn_sums_squares_of_channels_around(shape: tuple[int, ...], size: int) -> None:
    x = normal(*shape)
    squares = np.pad(x.astype("d") ** 2, [(0, 0), ((size - 1) // 2, size // 2), *((0, 0),) * (x.ndim - 2)])
    total = sum(squares[:, k : k + x.shape[1]] for k in range(size))
    expected = x / (1.5 + 0.3 / size * total) ** 0.6
    np.testing.assert_allclose(evaluate("lrn", x, size=size, alpha=0.3, beta=0.6, bias=1.5), expected, rtol=1e-5)


F, INT = TensorType, DType.I32
BAD: list[tuple[str, tuple[TensorType, ...], dict[str, Any]]] = [
    ("matmul", (F((2, 3)), F((2, 3))), {}),
    ("matmul", (F(()), F((2, 3))), {}),
    ("matmul", (F((3,)), F((3, 2))), {"trans_a": True}),
    ("matmul", (F((2, 2, 3)), F((3, 3, 4))), {}),
    ("matmul", (F((2, 3)), F((3, 2), INT)), {}),
    ("matmul", (F((2**17, 1)), F((1, 2**16))), {}),
    ("matmul", (F((2, 3), DType.U8), F((3, 2))), {"dtype": INT}),
    ("matmul", (F((2, 3), DType.I64), F((3, 2), INT)), {"dtype": INT}),
    ("unfold", (F((1, 4, 4, 4)),), {"kernel": (5, 5)}),
    ("conv", (F((1, 3, 4, 4)), F((2, 3, 3))), {}),
    ("conv", (F((1, 3, 4, 4)), F((2, 4, 3, 3))), {}),
    ("conv", (F((1, 4, 4, 4)), F((3, 2, 3, 3))), {"group": 2}),
    ("conv", (F((1, 4, 4, 4)), F((3, 2, 3, 3))), {"group": 0}),
    ("conv", (F((1, 4, 4, 4)), F((3, 4, 3, 3)), F((4,))), {}),
    ("conv", (F((1, 4, 4, 4)), F((3, 4, 5, 5))), {}),
    ("conv", (F((1, 4, 4, 4)), F((3, 4, 3, 3))), {"strides": (0, 1)}),
    ("conv", (F((1, 4, 4, 4)), F((3, 4, 3, 3))), {"strides": (1,)}),
    ("conv", (F((1, 4, 4, 4)), F((3, 4, 3, 3))), {"dilations": (1, -1)}),
    ("conv", (F((1, 4, 4, 4)), F((3, 4, 3, 3))), {"pads": (-1, 0, 0, 0)}),
    ("conv", (F((1, 4, 4, 4)), F((3, 4, 0, 3))), {}),
    ("max_pool", (F((1, 4, 4, 4)),), {"kernel": (5, 5)}),
    ("max_pool", (F((1, 4, 4, 4)),), {"kernel": (2,)}),
    ("max_pool", (F((4, 4)),), {"kernel": ()}),
    ("max_pool", (F((1, 4, 4)),), {"kernel": (2,), "storage_order": 2}),
    ("average_pool", (F((1, 4, 4), INT),), {"kernel": (2,)}),
    ("average_pool", (F((1, 4, 4)),), {"kernel": (2,), "ceil_extra": (1,)}),
    ("lrn", (F((1, 4, 4)),), {"size": 0}),
]


@pytest.mark.parametrize(("kind", "types", "attrs"), BAD)
def test_wrong_operands_are_refused_with_their_types(
    kind: str, types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> None:
    with pytest.raises(TypeMismatch, match=kind) as caught:
        OPS[kind].express(*types, **attrs)
    assert "hint" in str(caught.value)
